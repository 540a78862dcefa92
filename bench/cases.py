"""Worlds to schedule in: nodes, and workloads of each kind that the benchmark is about."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lattice.kinds.constraint import NodeTerm, Spread, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.scheduling.table.ask import Demands, WorkloadAsk
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable

MIB, GIB = 1 << 20, 1 << 30
ZONES = ("a", "b", "c")
SMALL = (("cpu", 100), ("memory", 500 * MIB))
HUGE = (("cpu", 9000), ("memory", 500 * MIB))  # more than a node has
MAX_SKEW = 5
GROUPS = 10


CROWD = (("app", "crowd"),)
NEAR_CROWD = LabelSelector(match_labels=dict(CROWD))
REFUSED = {  # by why: what fits on no node that the crowd is on
    "no room": Demands(requests=HUGE),
    "anti-affinity by zone": Demands(
        requests=SMALL, far=(WorkloadTerm(selector=NEAR_CROWD, topology_key="zone"),)
    ),
    "anti-affinity by node": Demands(
        requests=SMALL, far=(WorkloadTerm(selector=NEAR_CROWD, topology_key="node"),)
    ),
    "affinity": Demands(
        requests=SMALL,
        near=(WorkloadTerm(selector=LabelSelector(match_labels={"app": "nobody"}), topology_key="zone"),),
    ),
    "no room, and spread by node": Demands(
        requests=HUGE, labels=CROWD, spread=(Spread(topology_key="node", max_skew=1, selector=NEAR_CROWD),)
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Of one node."""

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
    """The same nodes as they come, one by one, and not in the order that decides among equals."""
    table = NodeTable()
    for facts in sorted((each for each in node_table(count).node_infos if each), key=lambda each: each.name):
        table.put_node(facts)
    return table


def _node(name: str, zone: str, totals: dict[str, int]) -> NodeInfo:
    return NodeInfo(name, totals, {"node": name, "zone": zone})


def plain(table: NodeTable, count: int, prefix: str = "w") -> list[WorkloadAsk]:
    demands = Demands(requests=SMALL)
    return [table.make_ask(f"default/{prefix}-{number}", demands) for number in range(count)]


def of_services(table: NodeTable, count: int, services: int) -> list[WorkloadAsk]:
    """Replicas of services in turn: the default profile spreads each softly over nodes and zones."""
    demands = [
        Demands(requests=SMALL, service=f"s{number}", labels=(("app", f"s{number}"),))
        for number in range(services)
    ]
    return [table.make_ask(f"default/w-{number}", demands[number % services]) for number in range(count)]


def different_of_a_service(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """No two ask for the same, and all are replicas of one service."""
    sizes = [(("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB)) for number in range(count)]
    return [
        table.make_ask(f"default/d-{number}", Demands(requests=size, service="s"))
        for number, size in enumerate(sizes)
    ]


def different(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """No two ask for the same."""
    return [
        table.make_ask(
            f"default/d-{number}",
            Demands(requests=(("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB))),
        )
        for number in range(count)
    ]


def choosy(table: NodeTable, count: int) -> list[WorkloadAsk]:
    """No two ask for the same, and each has a demand on node labels that was never heard before: nothing at all is remembered of it."""
    made = []
    for number in range(count):
        term = NodeTerm(
            match_expressions=(Requirement(key="zone", operator="NotIn", values=(f"other-{number}",)),)
        )
        requests = (("cpu", 50 + number % 100), ("memory", (200 + number // 100) * MIB))
        made.append(table.make_ask(f"default/c-{number}", Demands(requests=requests, node_terms=(term,))))
    return made


def _member(number: int) -> tuple[tuple[tuple[str, str], ...], LabelSelector]:
    color = f"color-{number % GROUPS}"
    return (("color", color),), LabelSelector(match_labels={"color": color})


def spread(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """As evenly as demanded over the zones, each of ten groups by itself."""
    for number in range(count):
        labels, selector = _member(number)
        rule = Spread(topology_key="zone", max_skew=MAX_SKEW, selector=selector)
        yield table.make_ask(f"default/s-{number}", Demands(labels=labels, requests=SMALL, spread=(rule,)))


def apart(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """No two of a group on one node."""
    for number in range(count):
        labels, selector = _member(number)
        term = WorkloadTerm(selector=selector, topology_key="node")
        yield table.make_ask(f"default/f-{number}", Demands(labels=labels, requests=SMALL, far=(term,)))


def together(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Each group in one zone."""
    for number in range(count):
        labels, selector = _member(number)
        term = WorkloadTerm(selector=selector, topology_key="zone")
        yield table.make_ask(f"default/n-{number}", Demands(labels=labels, requests=SMALL, near=(term,)))


def mixed(table: NodeTable, count: int) -> Iterator[WorkloadAsk]:
    """Every eleventh is important, fits nowhere, and has to be told so each time: twenty kinds of them."""
    fitting = iter(plain(table, count, "m"))
    for number in range(count + count // 10):
        if number % 11:
            yield next(fitting)
        else:
            requests = (("cpu", 9000 + number // 11 % 20), ("memory", 500 * MIB))
            yield table.make_ask(f"default/u-{number}", Demands(requests=requests), priority=1000)


def fill(table: NodeTable, share: float, seed: int = 1) -> None:
    """One workload on each node, which takes about so much of it."""
    shares = np.random.default_rng(seed).uniform(share - 0.15, min(1.0, share + 0.15), table.count)
    for row, part in enumerate(shares.tolist()):
        facts = table.node_infos[row]
        assert facts is not None
        requests = tuple((name, int(facts.allocatable[name] * part)) for name in ("cpu", "memory"))
        table.assume(table.make_ask(f"default/filler-{row}", Demands(requests=requests)), row)


def jobs(table: NodeTable, count: int, tasks: int) -> Iterator[list[WorkloadAsk]]:
    """Jobs of equal tasks; each job has its own labels and one of ten sizes."""
    for job in range(count):
        labels = (("job", f"job-{job}"),)
        demands = Demands(
            labels=labels, requests=(("cpu", 50 + 10 * (job % 10)), ("memory", (64 + 8 * (job % 10)) * MIB))
        )
        yield [table.make_ask(f"default/job-{job}-{task}", demands) for task in range(tasks)]
