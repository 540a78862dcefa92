"""Small clusters for tests: nodes and workloads that name only what a case is about."""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from hypothesis import settings

from lattice.engine.plugin import Profile
from lattice.scheduling.ask import Demands, GpuNeed, WorkloadAsk
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.plugins.bin_packing import BinPacking
from lattice.scheduling.plugins.fit import Fit
from lattice.scheduling.plugins.gpu import Gpu
from lattice.scheduling.plugins.host_ports import HostPorts
from lattice.scheduling.plugins.least_taken import LeastTaken
from lattice.scheduling.plugins.node_selector import NodeSelector
from lattice.scheduling.plugins.workload_anti_affinity import WorkloadAntiAffinity

EXAMPLES = int(os.environ.get("EXAMPLES", "10000" if os.environ.get("LATTICE_LONG") == "1" else "500"))
many = settings(max_examples=EXAMPLES, deadline=None)

FILTERS: Any = (NodeSelector(), Fit(), Gpu(), HostPorts(), WorkloadAntiAffinity())
EMPTIEST: Any = ((LeastTaken(), 1.0),)
FULLEST: Any = ((BinPacking(), 1.0),)


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same every time is the point


@cache
def spreading() -> Profile:
    return Profile("spreading", FILTERS, EMPTIEST)


@cache
def packing() -> Profile:
    return Profile("packing", FILTERS, FULLEST)


@cache
def indifferent() -> Profile:
    return Profile("indifferent", FILTERS, ())


def nodes(*cpus: int, gpus: tuple[int, ...] = (), seed: int = 0) -> NodeTable:
    """Nodes n0, n1 … with so many cpu (in thousandths) each."""
    table = NodeTable(seed)
    for number, cpu in enumerate(cpus):
        labels = {"node": f"n{number}", "zone": f"z{number % 2}"}
        have = tuple(("T4", 1000) for _ in range(gpus[number])) if gpus else ()
        table.put(NodeFacts(f"n{number}", {"cpu": cpu, "memory": 1 << 40}, labels, gpus=have))
    return table


def ask(table: NodeTable, name: str, cpu: int = 100, priority: int = 0, **more: Any) -> WorkloadAsk:
    group, least = more.pop("group", ""), more.pop("least", 0)
    gpu = more.pop("gpu", 0)
    if gpu:
        more["gpu"] = GpuNeed(1, gpu) if gpu < 1000 else GpuNeed(gpu // 1000, 1000)
    made = table.asked(f"default/{name}", Demands(requests=(("cpu", cpu),), **more), priority)
    return replace(made, group=group, min_member=least)


def put(table: NodeTable, node: str, asks: Iterable[WorkloadAsk]) -> None:
    for each in asks:
        table.assume(each, table.row_of[node])
        table.commit(each.name)


def where(table: NodeTable) -> dict[str, str]:
    return {name.removeprefix("default/"): table.names[each.row] for name, each in table.placements.items()}


def check_capacity(table: NodeTable) -> None:
    """Counted anew from who is where: nothing is given out twice, and the table's own sums agree."""
    for row in range(table.count):
        here = [each for each in table.placements.values() if each.row == row]
        for number in range(len(table.resources)):
            taken = sum(dict(each.ask.needs).get(number, 0) for each in here)
            assert taken == table.taken(number)[row]
            assert taken <= table.total(number)[row], f"{table.names[row]}: {taken} {table.resources[number]} taken"
        facts = table.facts[row]
        free = [milli for _, milli in facts.gpus] if facts else []
        for each in here:
            for number in each.gpus:
                free[number] -= each.ask.demands.gpu.milli if each.ask.demands.gpu else 0
        assert free == table.gpus.free(row).tolist()
        assert all(milli >= 0 for milli in free)
        ports = [port for each in here for port in each.ask.demands.host_ports]
        assert len(ports) == len(set(ports))
