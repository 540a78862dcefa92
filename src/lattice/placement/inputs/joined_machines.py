"""Joined machines: machines that their owners join to a pool, as placement counts them.

A joined machine is capacity at the size that its agent reports. A cluster claims it when a placement uses it.
Until then it belongs to its pool only.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lattice.kinds.constraints import Taint
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition
from lattice.kinds.meta.quantity import GIB, MIB, MILLI
from lattice.kinds.node import DRAINING_TAINT, PINNED_CLUSTER_ANNOTATION, LatticeNode
from lattice.placement.inputs.observed_machines import machine_report

# Begins the class of a joined machine for which no LatticeNodeClass was stated.
JOINED_CLASS_PREFIX = "joined-"
# Label values have at most 63 characters.
MAX_CLASS_CHARS = 63


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A joined machine, with its cluster (empty: no cluster has claimed the machine) and its class."""

    node: str
    pool: str
    cluster: str
    node_class: str
    # Milli-cores, bytes, milli-GPUs and counts, by resource.
    size: Mapping[str, int]
    gpu_model: str
    runtimes: frozenset[str]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    # The machine accepts new replicas.
    is_open: bool
    # The join token names the cluster: the machine stays in the cluster while the cluster has replicas.
    is_pinned: bool


def joined_machines(objects: Iterable[Kind]) -> list[JoinedMachine]:
    """The joined machines that are not being deleted, by name."""
    nodes = [kind for kind in objects if isinstance(kind, LatticeNode) and kind.is_joined_machine]
    return [
        _joined_machine(node)
        for node in sorted(nodes, key=lambda node: node.metadata.name)
        if not node.metadata.deletion_timestamp
    ]


def _joined_machine(node: LatticeNode) -> JoinedMachine:
    spec, status = node.spec, node.status
    ready = find_condition(status.conditions, READY_CONDITION)
    taints = tuple(taint for taint in spec.taints if taint.key != DRAINING_TAINT)
    is_ready = ready is None or ready.status == "True"
    report = machine_report(node)
    return JoinedMachine(
        node.metadata.name,
        spec.pool,
        spec.cluster,
        claimed_class(node),
        dict(report.size) if report else {},
        report.gpu_model if report else "",
        frozenset(status.runtimes),
        dict(node.metadata.labels),
        taints,
        # Without a registration the size is unknown.
        bool(status.allocatable) and is_ready and not spec.unschedulable and taints == spec.taints,
        bool(spec.cluster) and node.metadata.annotations.get(PINNED_CLUSTER_ANNOTATION) == spec.cluster,
    )


def claimed_class(node: LatticeNode) -> str:
    """The class of a joined machine in a cluster: the stated LatticeNodeClass, else a class by size, so that
    replicas of one class need machines of equal size."""
    stated = node.spec.node_class
    if stated and not (stated.startswith(JOINED_CLASS_PREFIX) and not node.spec.cluster):
        return stated
    size = node.status.allocatable
    cores, memory = size.get("cpu", 0), size.get("memory", 0)
    words = [
        f"{cores // MILLI}c" if cores >= MILLI else f"{cores}m",
        f"{memory // GIB}g" if memory >= GIB else f"{memory // MIB}mi",
    ]
    models = sorted(gpu.model for gpu in node.status.gpus)
    words += [
        f"{models.count(model)}x{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}"
        for model in dict.fromkeys(models)
    ]
    return (JOINED_CLASS_PREFIX + "-".join(words))[:MAX_CLASS_CHARS].rstrip("-")
