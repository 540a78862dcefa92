"""Which workloads would fit on no node even if it were empty, and what is it that they ask too much of?"""

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from lattice.kinds.container import format_amount
from lattice.scheduling.cycle.input_checks import InputWarning
from lattice.scheduling.table.ask import (
    GPU,
    MILLI_PER_GPU,
    PORTS,
    WORKLOAD_SLOTS,
    Demands,
    GpuNeed,
    WorkloadAsk,
)
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import port_range_of


class ResourceCheck(NamedTuple):
    resource: str
    need: int

    @property
    def key(self) -> Hashable:
        return self.resource

    @property
    def description(self) -> str:
        return f"{format_amount(self.resource, self.need)} {self.resource}"

    def largest_available(self, missing: int) -> str:
        return format_amount(self.resource, self.need - missing)

    def missing_on(self, facts: NodeInfo) -> int:
        """A node that does not say how many workloads it takes takes any number."""
        return self.need - facts.allocatable.get(
            self.resource, self.need if self.resource == WORKLOAD_SLOTS else 0
        )


class GpuCheck(NamedTuple):
    need: GpuNeed

    @property
    def key(self) -> Hashable:
        return self

    @property
    def description(self) -> str:
        models = f" of model {' or '.join(self.need.models)}" if self.need.models else ""
        return f"{format_amount(GPU, self.need.total_milli)} gpu{models}"

    def largest_available(self, missing: int) -> str:
        return format_amount(GPU, self.need.total_milli - missing)

    def missing_on(self, facts: NodeInfo) -> int:
        """Thousandths: of all that are whole together, or of the one that has most, where a part of one is asked for."""
        usable = [milli for model, milli in facts.gpus if not self.need.models or model in self.need.models]
        if self.need.milli < MILLI_PER_GPU:
            return self.need.milli - max(usable, default=0)
        return self.need.total_milli - MILLI_PER_GPU * sum(milli >= MILLI_PER_GPU for milli in usable)


class PortCheck(NamedTuple):
    dynamic_count: int
    host_ports: frozenset[int]

    @property
    def key(self) -> Hashable:
        return self

    @property
    def description(self) -> str:
        count = self.dynamic_count + len(self.host_ports)
        return f"{count} port{'' if count == 1 else 's'}"

    def largest_available(self, missing: int) -> str:
        return str(self.dynamic_count + len(self.host_ports) - missing)

    def missing_on(self, facts: NodeInfo) -> int:
        """Fixed ones outside the range that ports are chosen from take nothing from it."""
        numbers = port_range_of(facts)
        have = min(len(numbers), facts.allocatable.get(PORTS, len(numbers)))
        return self.dynamic_count + sum(number in numbers for number in self.host_ports) - have


CapacityCheck = ResourceCheck | GpuCheck | PortCheck


def oversized_warnings(asks: Iterable[WorkloadAsk], table: NodeTable) -> Iterator[InputWarning]:
    """Those of whom the same is to be said are told once."""
    fleet = _EmptyNodes(facts for facts in table.node_infos if facts is not None)
    seen: dict[Hashable, str] = {}
    told: dict[str, list[str]] = {}
    for ask in asks if fleet.distinct_nodes else ():
        demands = ask.demands
        key = (demands.requests, demands.gpu, demands.ports, demands.host_ports)
        if key not in seen:
            seen[key] = fleet.shortage_message(demands)
        if seen[key]:
            told.setdefault(seen[key], []).append(ask.name)
    for what, (first, *others) in told.items():
        alike = (
            f" (and so do {len(others):,} others)"
            if len(others) > 1
            else " (and so does another)"
            if others
            else ""
        )
        yield InputWarning(
            "workload", first, f"asks for more than any node has even when empty{alike}: {what}"
        )


class _EmptyNodes:
    """The nodes without anything on them, each size once."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        self.distinct_nodes = list(
            {
                (tuple(sorted(each.allocatable.items())), tuple(sorted(each.gpus)), each.port_range): each
                for each in nodes
            }.values()
        )
        self._best_nodes: dict[Hashable, NodeInfo] = {}

    def shortage_message(self, demands: Demands) -> str:
        """Each thing that no node has enough of; if there is none such, that no node has enough of all together; "" if one has."""
        things = list(_checks(demands))
        short = [(each, each.missing_on(self._best_node_for(each))) for each in things]
        if any(missing > 0 for _, missing in short):
            return ", ".join(
                f"{each.description} of at most {each.largest_available(missing)}"
                for each, missing in short
                if missing > 0
            )
        if any(all(each.missing_on(facts) <= 0 for each in things) for facts in self.distinct_nodes):
            return ""
        return f"no node has {' and '.join(each.description for each in things)} together"

    def _best_node_for(self, thing: CapacityCheck) -> NodeInfo:
        if thing.key not in self._best_nodes:
            self._best_nodes[thing.key] = min(self.distinct_nodes, key=thing.missing_on)
        return self._best_nodes[thing.key]


def _checks(demands: Demands) -> Iterator[CapacityCheck]:
    """It needs a slot of its own besides those that it asks for by name, and ports by name are ports like any others."""
    asked = dict(demands.requests)
    ports = demands.ports + asked.pop(PORTS, 0)
    yield from (
        ResourceCheck(resource, amount + (resource == WORKLOAD_SLOTS)) for resource, amount in asked.items()
    )
    if demands.gpu:
        yield GpuCheck(demands.gpu)
    if ports or demands.host_ports:
        yield PortCheck(ports, frozenset(number for number, _ in demands.host_ports))
