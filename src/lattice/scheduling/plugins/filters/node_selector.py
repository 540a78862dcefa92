"""NodeSelector: the node must have every label of the selector with exactly its value."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Reason, Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import LabelMismatch
from lattice.scheduling.table.label_match import rows_with_label
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class NodeSelector:
    name: ClassVar[str] = "NodeSelector"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_selector)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        for key, value in ask.demands.node_selector:
            reason = LabelMismatch(self.name, f"without label {key}={value}", "label", f"{key}={value}", key)
            rejections[reason] = ~rows_with_label(rows, key, value)
        return rejections
