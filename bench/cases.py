"""Nodes and workloads of the scheduling benchmark."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lattice.kinds.constraints import NodeTerm, Spread, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands, WorkloadAsk

MIB, GIB = 1 << 20, 1 << 30
ZONES = ("a", "b", "c")
SMALL = (("cpu", 100), ("memory", 500 * MIB))
HUGE = (("cpu", 9000), ("memory", 500 * MIB))  # more than a node has
MAX_SKEW = 5
GROUPS = 10


CROWD = (("app", "crowd"),)
NEAR_CROWD = LabelSelector(match_labels=dict(CROWD))
# By reason: demands that fit on no node of the crowd.
REFUSED = {
    "no room": Demands(requests=HUGE),
    "anti-affinity by zone": Demands(
        requests=SMALL, anti_affinity_terms=(WorkloadTerm(selector=NEAR_CROWD, topology_key="zone"),)
    ),
    "anti-affinity by node": Demands(
        requests=SMALL, anti_affinity_terms=(WorkloadTerm(selector=NEAR_CROWD, topology_key="node"),)
    ),
    "affinity": Demands(
        requests=SMALL,
        affinity_terms=(
            WorkloadTerm(selector=LabelSelector(match_labels={"app": "nobody"}), topology_key="zone"),
        ),
    ),
    "no room, and spread by node": Demands(
        requests=HUGE, labels=CROWD, spread=(Spread(topology_key="node", max_skew=1, selector=NEAR_CROWD),)
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Capacity of a node."""

    cpu: int = 4000
    memory: int = 32 * GIB
    slots: int = 110


def node_table(count: int, size: Size | None = None) -> NodeTable:
    size = size or Size()
    totals = {"cpu": size.cpu, "memory": size.memory, "workloads": size.slots}
    table = NodeTable()
    table.load(_node(f"node-{number:06}", ZONES[number % len(ZONES)], totals) for number in range(count))
    return table


def joined_table(count: int) -> NodeTable:
    """The same nodes in order of joining, not in the order that breaks ties."""
    table = NodeTable()
    for info in sorted((node for node in node_table(count).node_infos if node), key=lambda node: node.name):
        table.put_node(info)
    return table


def _node(name: str, zone: str, totals: dict[str, int]) -> NodeInfo:
    return NodeInfo(name, totals, {"node": name, "zone": zone})


def plain(table: NodeTable, count: int, prefix: str = "w") -> list[WorkloadAsk]:
    demands = Demands(requests=SMALL)
    return [table.make_ask(f"default/{prefix}-{number}", demands) for number in range(count)]


def of_services(table: NodeTable, count: int, services: int) -> list[WorkloadAsk]:
    """Replicas of services in turn; the default profile spreads the replicas of a service softly over nodes
    and zones."""
    demands = [
        Demands(requests=SMALL, service=f"s{number}", labels=(("app", f"s{number}"),))
        for number in range(services)
    ]
    return [table.make_ask(f"default/w-{number}", demands[number % services]) for number in range(count)]


def different_of_a_service(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """Replicas of a single service, all with different requests."""
    sizes = [(("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB)) for number in range(count)]
    return [
        table.make_ask(f"default/d-{number}", Demands(requests=size, service="s"))
        for number, size in enumerate(sizes)
    ]


def different(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """Workloads that all have different requests."""
    return [
        table.make_ask(
            f"default/d-{number}",
            Demands(requests=(("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB))),
        )
        for number in range(count)
    ]


def choosy(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """Workloads with different requests and a new label demand each, so that no cached answer applies."""
    asks = []
    for number in range(count):
        term = NodeTerm(
            match_expressions=(Requirement(key="zone", operator="NotIn", values=(f"other-{number}",)),)
        )
        requests = (("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB))
        asks.append(table.make_ask(f"default/c-{number}", Demands(requests=requests, node_terms=(term,))))
    return asks


def _member(number: int) -> tuple[tuple[tuple[str, str], ...], LabelSelector]:
    color = f"color-{number % GROUPS}"
    return (("color", color),), LabelSelector(match_labels={"color": color})


def spread(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Workloads of ten groups, each group spread over the zones."""
    for number in range(count):
        labels, selector = _member(number)
        rule = Spread(topology_key="zone", max_skew=MAX_SKEW, selector=selector)
        yield table.make_ask(f"default/s-{number}", Demands(labels=labels, requests=SMALL, spread=(rule,)))


def apart(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Workloads of ten groups; a node takes a single workload of a group."""
    for number in range(count):
        labels, selector = _member(number)
        term = WorkloadTerm(selector=selector, topology_key="node")
        yield table.make_ask(
            f"default/f-{number}", Demands(labels=labels, requests=SMALL, anti_affinity_terms=(term,))
        )


def together(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Workloads of ten groups, each group in a single zone."""
    for number in range(count):
        labels, selector = _member(number)
        term = WorkloadTerm(selector=selector, topology_key="zone")
        yield table.make_ask(
            f"default/n-{number}", Demands(labels=labels, requests=SMALL, affinity_terms=(term,))
        )


def mixed(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Every eleventh workload has a high priority, fits on no node, and is rejected anew; twenty kinds of
    such workloads."""
    fitting = iter(plain(table, count, "m"))
    for number in range(count + count // 10):
        if number % 11:
            yield next(fitting)
        else:
            requests = (("cpu", 9000 + number // 11 % 20), ("memory", 500 * MIB))
            yield table.make_ask(f"default/u-{number}", Demands(requests=requests), priority=1000)


def fill(table: NodeTable, share: float, seed: int = 1) -> None:
    """Place a workload on every node that takes about `share` of the node."""
    shares = np.random.default_rng(seed).uniform(share - 0.15, min(1.0, share + 0.15), table.count)
    for row, part in enumerate(shares.tolist()):
        info = table.node_infos[row]
        assert info is not None
        requests = tuple((name, int(info.allocatable[name] * part)) for name in ("cpu", "memory"))
        table.assume(table.make_ask(f"default/filler-{row}", Demands(requests=requests)), row)


def jobs(table: NodeTable, count: int, tasks: int) -> Iterator[list[WorkloadAsk]]:
    """Jobs of equal tasks; a job has labels of its own and one of ten sizes."""
    for job in range(count):
        labels = (("job", f"job-{job}"),)
        demands = Demands(
            labels=labels, requests=(("cpu", 50 + 10 * (job % 10)), ("memory", (64 + 8 * (job % 10)) * MIB))
        )
        yield [table.make_ask(f"default/job-{job}-{task}", demands) for task in range(tasks)]
