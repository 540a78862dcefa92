"""Workloads that would fit on no node even if it were empty, and the resources of which they request too
much."""

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from lattice.kinds.container import format_amount
from lattice.scheduling.cycle.input_checks import InputWarning
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import port_range_of
from lattice.scheduling.table.workload_ask import (
    GPU,
    MILLI_PER_GPU,
    PORTS,
    WORKLOAD_SLOTS,
    Demands,
    GpuNeed,
    WorkloadAsk,
)


class ResourceCheck(NamedTuple):
    resource: str
    need: int

    @property
    def key(self) -> Hashable:
        # The best node does not depend on the amount.
        return self.resource

    @property
    def description(self) -> str:
        return f"{format_amount(self.resource, self.need)} {self.resource}"

    def largest_available(self, missing: int) -> str:
        return format_amount(self.resource, self.need - missing)

    def missing_on(self, node_info: NodeInfo) -> int:
        """The missing amount on an empty node; a node that states no number of workload slots has no limit."""
        return self.need - node_info.allocatable.get(
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

    def missing_on(self, node_info: NodeInfo) -> int:
        """The thousandths that an empty node lacks: for whole GPUs, all missing GPUs together; for a part of
        one GPU, what the largest GPU lacks."""
        usable = [
            milli for model, milli in node_info.gpus if not self.need.models or model in self.need.models
        ]
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

    def missing_on(self, node_info: NodeInfo) -> int:
        """The missing ports on an empty node; host ports outside the port range take nothing from the range."""
        numbers = port_range_of(node_info)
        have = min(len(numbers), node_info.allocatable.get(PORTS, len(numbers)))
        return self.dynamic_count + sum(number in numbers for number in self.host_ports) - have


CapacityCheck = ResourceCheck | GpuCheck | PortCheck


def oversized_warnings(asks: Iterable[WorkloadAsk], table: NodeTable) -> Iterator[InputWarning]:
    """One warning per distinct shortage; workloads with the same shortage share the warning."""
    nodes = _EmptyNodes(info for info in table.node_infos if info is not None)
    # Workloads with equal demands share one check.
    message_by_demand: dict[Hashable, str] = {}
    workloads_by_message: dict[str, list[str]] = {}
    for ask in asks if nodes.distinct_nodes else ():
        demands = ask.demands
        key = (demands.requests, demands.gpu, demands.ports, demands.host_ports)
        if key not in message_by_demand:
            message_by_demand[key] = nodes.shortage_message(demands)
        if message := message_by_demand[key]:
            workloads_by_message.setdefault(message, []).append(ask.name)
    for message, (first, *similar) in workloads_by_message.items():
        suffix = ""
        if len(similar) > 1:
            suffix = f" (as do {len(similar):,} other workloads)"
        elif similar:
            suffix = " (as does 1 other workload)"
        yield InputWarning("workload", first, f"requests more than any empty node has{suffix}: {message}")


class _EmptyNodes:
    """The nodes as if they ran no workloads; one node stands for all nodes of the same size."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        by_size = {}
        for node in nodes:
            size = (tuple(sorted(node.allocatable.items())), tuple(sorted(node.gpus)), node.port_range)
            by_size[size] = node
        self.distinct_nodes = list(by_size.values())
        # By key of the check: the empty node that lacks least.
        self._best_nodes: dict[Hashable, NodeInfo] = {}

    def shortage_message(self, demands: Demands) -> str:
        """The resources of which no node has enough. If every resource alone fits some node, a message that
        no node has enough of all resources together; "" if the workload fits an empty node."""
        requests = dict(demands.requests)
        # A request for the resource PORTS counts like ports that the scheduler chooses.
        ports = demands.ports + requests.pop(PORTS, 0)
        # A workload takes one workload slot, in addition to the slots in its requests.
        checks: list[CapacityCheck] = [
            ResourceCheck(resource, amount + (resource == WORKLOAD_SLOTS))
            for resource, amount in requests.items()
        ]
        if demands.gpu:
            checks.append(GpuCheck(demands.gpu))
        if ports or demands.host_ports:
            checks.append(PortCheck(ports, frozenset(number for number, _ in demands.host_ports)))
        shortages = []
        for check in checks:
            if check.key not in self._best_nodes:
                self._best_nodes[check.key] = min(self.distinct_nodes, key=check.missing_on)
            missing = check.missing_on(self._best_nodes[check.key])
            if missing > 0:
                shortages.append(f"{check.description} of at most {check.largest_available(missing)}")
        if shortages:
            return ", ".join(shortages)
        for node in self.distinct_nodes:
            if all(check.missing_on(node) <= 0 for check in checks):
                return ""
        return f"no node has {' and '.join(check.description for check in checks)} together"
