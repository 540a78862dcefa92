"""ReservedNodes, stored and shown as `Kept`: nodes that a data center reserves for certain services reject
workloads without a service."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import StaticReason
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.workload_ask import WorkloadAsk

RESERVED = StaticReason(
    "Kept",
    "reserved for certain services",
    "reserved node",
    "a service that may use the node",
    "a workload without a service",
)


@dataclass(frozen=True, slots=True)
class ReservedNodes:
    """Only workloads without a service are checked, because placement has already applied the reservations
    when it chose the clusters of services."""

    name: ClassVar[str] = "Kept"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return not ask.demands.service

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        def is_reserved(subset: Rows) -> Flags:
            infos = node_infos_on(subset)
            return np.array([info is not None and RESERVE_LABEL in info.labels for info in infos], np.bool_)

        return {RESERVED: rows.derived((self.name,), is_reserved)}
