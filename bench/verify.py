"""Verifies placements in the order of placing, with plain code that shares nothing with the scheduler."""

from collections import defaultdict
from collections.abc import Sequence

from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.workload_ask import WorkloadAsk

# A workload and the name of its node.
Placed = tuple[WorkloadAsk, str]


class Violation(Exception):
    """A placement that violates a rule."""


def verify(nodes: Sequence[NodeInfo], placed: Sequence[Placed]) -> int:
    """The number of checked placements. Raises Violation for the first placement that violates a rule."""
    by_name = {node.name: node for node in nodes}
    used: dict[str, dict[str, int]] = {name: defaultdict(int) for name in by_name}
    placed_names: set[str] = set()
    colors = _Colors(nodes)
    for ask, name in placed:
        if ask.name in placed_names:
            raise Violation(f"{ask.name} is placed twice")
        placed_names.add(ask.name)
        _check_room(ask, by_name[name], used[name])
        if ask.demands.spread or ask.demands.anti_affinity_terms or ask.demands.affinity_terms:
            colors.check(ask, by_name[name])
    return len(placed)


def _check_room(ask: WorkloadAsk, node: NodeInfo, used: dict[str, int]) -> None:
    for resource, amount in (*ask.demands.requests, ("workloads", 1)):
        used[resource] += amount
        if used[resource] > node.allocatable.get(resource, 0):
            raise Violation(
                f"{ask.name} on {node.name}: {resource} {used[resource]} of {node.allocatable.get(resource, 0)}"
            )


class _Colors:
    """Rules of the benchmark's workloads, which concern workloads of the same color only."""

    def __init__(self, nodes: Sequence[NodeInfo]) -> None:
        self.zones = sorted({node.labels["zone"] for node in nodes})
        self.in_zone: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(self.zones, 0))
        self.on_node: dict[tuple[str, str], int] = defaultdict(int)

    def check(self, ask: WorkloadAsk, node: NodeInfo) -> None:
        color = dict(ask.demands.labels)["color"]
        counts, zone = self.in_zone[color], node.labels["zone"]
        if ask.demands.affinity_terms and any(counts.values()) and not counts[zone]:
            raise Violation(f"{ask.name} is in zone {zone}, its group in {counts}")
        counts[zone] += 1
        self.on_node[color, node.name] += 1
        if ask.demands.anti_affinity_terms and self.on_node[color, node.name] > 1:
            raise Violation(f"{ask.name} meets one of its group on {node.name}")
        for rule in ask.demands.spread:
            if counts[zone] - min(counts.values()) > rule.max_skew:
                raise Violation(f"{ask.name} in zone {zone} makes the skew {counts}")
