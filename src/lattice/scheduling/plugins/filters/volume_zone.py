"""VolumeZone: a node must be in the zone, or region, of the workload's volumes."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Reason, Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import LabelMismatch
from lattice.scheduling.table.label_match import rows_with_label
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class VolumeZone:
    name: ClassVar[str] = "VolumeZone"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(volume.zone or volume.region for volume in ask.demands.volumes)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        for volume in ask.demands.volumes:
            for key, value in (("zone", volume.zone), ("region", volume.region)):
                if value:
                    text = f"outside {key} {value} of volume {volume.name}"
                    reason = LabelMismatch(self.name, text, f"volume {volume.name}", f"{key}={value}", key)
                    rejections[reason] = ~rows_with_label(rows, key, value)
        return rejections
