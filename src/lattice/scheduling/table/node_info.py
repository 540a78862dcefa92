"""The scheduler's view of one node, read once from the stored node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from lattice.kinds.constraints import Taint
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, is_true
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import (
    DISK_PRESSURE_CONDITION,
    DRAINING_TAINT,
    MEMORY_PRESSURE_CONDITION,
    LatticeNode,
)

PRICE_LABEL = "lattice.dev/price-per-hour"
TOPOLOGY_KEYS = ("region", "zone", "provider", "pool", "cluster")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    name: str
    allocatable: Mapping[str, int]  # allocatable by resource: milli-cores, bytes, counts
    labels: Mapping[str, str] = field(default_factory=dict)  # with topology labels: node, zone, region …
    taints: tuple[Taint, ...] = ()
    # (model, thousandths that programs outside Lattice leave free)
    gpus: tuple[tuple[str, int], ...] = ()
    is_ready: bool = True
    is_cordoned: bool = False
    is_draining: bool = False
    is_under_pressure: bool = False  # short of memory or disk
    runtimes: frozenset[str] = (
        frozenset()
    )  # empty: the node reports no runtimes, so every runtime is accepted
    licences: frozenset[str] = frozenset()
    image: str = ""
    port_range: tuple[int, int] | None = None  # first and last assignable port
    taken_ports: frozenset[int] = frozenset()  # ports in use by programs outside Lattice
    price: int = 0  # micro-dollars an hour


def node_info_of(node: LatticeNode, *, default_ready: str = "Unknown") -> NodeInfo:
    """Read a node manifest.

    `default_ready` is the status that counts for a node without a Ready condition, such as a node that has
    just joined.
    """
    spec, status = node.spec, node.status
    topology_labels = {name: getattr(spec, name) for name in TOPOLOGY_KEYS if getattr(spec, name)}
    ready = find_condition(status.conditions, READY_CONDITION)
    return NodeInfo(
        name=node.metadata.name,
        allocatable={name: amount for name, amount in allocatable(node).items() if name != "gpu"},
        labels={**node.metadata.labels, **topology_labels, "node": node.metadata.name},
        taints=spec.taints,
        gpus=tuple((gpu.model, gpu.milli_free) for gpu in status.gpus),
        is_ready=(ready.status if ready is not None else default_ready) == "True",
        is_cordoned=spec.unschedulable,
        is_draining=status.phase == "Draining" or any(taint.key == DRAINING_TAINT for taint in spec.taints),
        is_under_pressure=is_true(status.conditions, MEMORY_PRESSURE_CONDITION)
        or is_true(status.conditions, DISK_PRESSURE_CONDITION),
        runtimes=frozenset(status.runtimes),
        licences=frozenset(node.effective_licences),
        image=node.effective_machine_image,
        port_range=(status.port_range.first, status.port_range.last) if status.port_range else None,
        taken_ports=frozenset(map(int, status.taken_ports)),
        price=dollars_to_micros(Decimal(node.metadata.labels[PRICE_LABEL]))
        if PRICE_LABEL in node.metadata.labels
        else 0,
    )


def allocatable(node: LatticeNode) -> dict[str, int]:
    """The allocatable amounts of a node by resource name.

    Capacity minus reserved is the upper limit of what the node reports as allocatable. A node that reports no
    allocatable amounts has capacity minus reserved. If a node reports the allocatable amount of a resource
    but not its capacity, the allocatable amount is used.
    """
    status = node.status
    unreserved = {
        name: max(0, amount - status.reserved.get(name, 0)) for name, amount in status.capacity.items()
    }
    if not status.allocatable:
        return unreserved
    return {
        name: max(0, min(amount, unreserved.get(name, amount))) for name, amount in status.allocatable.items()
    }
