"""Small clusters for tests of the scheduling cycle: a table of nodes, asks and placements."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from lattice.engine.plugin import Profile
from lattice.scheduling.plugins.filters.fit import Fit
from lattice.scheduling.plugins.filters.gpu import Gpu
from lattice.scheduling.plugins.filters.host_ports import HostPorts
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAntiAffinity
from lattice.scheduling.plugins.filters.node_selector import NodeSelector
from lattice.scheduling.plugins.scores.bin_packing import BinPacking
from lattice.scheduling.plugins.scores.least_allocated import LeastAllocated
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import Demands, GpuNeed, WorkloadAsk

FILTERS: Any = (NodeSelector(), Fit(), Gpu(), HostPorts(), WorkloadAntiAffinity())
EMPTIEST: Any = ((LeastAllocated(), 1.0),)
FULLEST: Any = ((BinPacking(), 1.0),)


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
    """Nodes n0, n1 … with the given cpu in thousandths."""
    table = NodeTable(seed)
    for number, cpu in enumerate(cpus):
        labels = {"node": f"n{number}", "zone": f"z{number % 2}"}
        have = tuple(("T4", 1000) for _ in range(gpus[number])) if gpus else ()
        table.put_node(NodeInfo(f"n{number}", {"cpu": cpu, "memory": 1 << 40}, labels, gpus=have))
    return table


def ask(table: NodeTable, name: str, cpu: int = 100, priority: int = 0, **more: Any) -> WorkloadAsk:
    group, least = more.pop("group", ""), more.pop("least", 0)
    gpu = more.pop("gpu", 0)
    if gpu:
        more["gpu"] = GpuNeed(1, gpu) if gpu < 1000 else GpuNeed(gpu // 1000, 1000)
    made = table.make_ask(f"default/{name}", Demands(requests=(("cpu", cpu),), **more), priority)
    return replace(made, group=group, min_member=least)


def put(table: NodeTable, node: str, asks: Iterable[WorkloadAsk]) -> None:
    """Bind the workloads to the node, even beyond its capacity."""
    for item in asks:
        table.admit(item, table.row_of[node])
        table.commit(item.name)


def nodes_by_workload(table: NodeTable) -> dict[str, str]:
    return {
        name.removeprefix("default/"): table.names[placement.row]
        for name, placement in table.placements.items()
    }


def check_capacity(table: NodeTable) -> None:
    """No node is overcommitted, and the table's sums equal its placements."""
    check_sums(table)
    for row in range(table.count):
        for number in range(len(table.resources)):
            assert table.free(number)[row] >= 0, (
                f"{table.names[row]}: too much {table.resources[number]} taken"
            )
        assert (table.gpus.free(row) >= 0).all()
        assert all(
            len(item.ports) == item.ask.demands.ports for item in table.placements_by_row[row].values()
        )


def check_sums(table: NodeTable) -> None:
    """The table's sums equal its placements, also on nodes that shrank."""
    for row in range(table.count):
        here = [placement for placement in table.placements.values() if placement.row == row]
        assert here == sorted(table.placements_by_row[row].values(), key=here.index)
        for number in range(len(table.resources)):
            taken = sum(dict(item.ask.needs).get(number, 0) for item in here)
            if table.resources[number] == "ports":
                taken += len(fixed_inside(table, row, here))
            assert taken == table.allocated(number)[row] == table.total(number)[row] - table.free(number)[row]
        facts = table.node_infos[row]
        gpus = [milli for _, milli in facts.gpus] if facts else []
        used = [
            sum(item.ask.demands.gpu.milli for item in here if item.ask.demands.gpu and number in item.gpus)
            for number in range(len(gpus))
        ]
        assert table.gpus.free(row).tolist() == [
            milli - taken for milli, taken in zip(gpus, used, strict=True)
        ]
        ports = [
            port
            for item in here
            for port in (*item.ask.demands.host_ports, *product(item.ports, ("TCP", "UDP")))
        ]
        assert len(ports) == len(set(ports)), (
            f"{table.names[row]}: a port is given out twice: {sorted(ports)}"
        )
        assert set(ports) == set(table.ports.in_use(row))


def fixed_inside(table: NodeTable, row: int, here: Iterable[Placement]) -> set[int]:
    """Host ports of the placements that lie in the node's port range."""
    facts = table.node_infos[row]
    first, last = (facts and facts.port_range) or (30000, 32767)
    return {number for item in here for number, _ in item.ask.demands.host_ports if first <= number <= last}
