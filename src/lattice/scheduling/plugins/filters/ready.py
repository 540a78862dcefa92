"""Ready: only nodes that are ready, not cordoned and not draining take new workloads."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Rows
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import StaticReason
from lattice.scheduling.table.workload_ask import WorkloadAsk

OPEN_TO_WORKLOADS = "open to new workloads"
UNREADY = StaticReason("Ready", "not ready", "node", "ready", "not ready")
CORDONED = StaticReason("Ready", "cordoned", "node", OPEN_TO_WORKLOADS, "cordoned")
DRAINING = StaticReason("Ready", "draining", "node", OPEN_TO_WORKLOADS, "draining")


@dataclass(frozen=True, slots=True)
class Ready:
    name: ClassVar[str] = "Ready"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = frozenset(
        {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_READY}
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        return {
            UNREADY: rows.column("unready"),
            CORDONED: rows.column("cordoned"),
            DRAINING: rows.column("draining"),
        }
