"""Ready: only nodes that are well, not cordoned and not draining take new workloads."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Rows
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.plugins.reasons import Because

OPEN = "open to new workloads"
UNREADY = Because("Ready", "not ready", "node", "ready", "not ready")
CORDONED = Because("Ready", "cordoned", "node", OPEN, "cordoned")
DRAINING = Because("Ready", "draining", "node", OPEN, "draining")


@dataclass(frozen=True, slots=True)
class Ready:
    name: ClassVar[str] = "Ready"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = frozenset({Change.NODE_ADDED, Change.NODE_READY})

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        return {
            UNREADY: rows.column("unready"),
            CORDONED: rows.column("cordoned"),
            DRAINING: rows.column("draining"),
        }
