"""NodePressure: a node that is short of memory or disk takes no BestEffort workload."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Rows
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import StaticReason
from lattice.scheduling.table.workload_ask import WorkloadAsk

UNDER_PRESSURE = StaticReason(
    "NodePressure",
    "short of memory or disk for BestEffort workloads",
    "node",
    "no pressure, or requests of the workload",
    "MemoryPressure or DiskPressure",
)


@dataclass(frozen=True, slots=True)
class NodePressure:
    name: ClassVar[str] = "NodePressure"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.is_best_effort

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        return {UNDER_PRESSURE: rows.column("pressured")}
