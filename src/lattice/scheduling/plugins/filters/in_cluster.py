"""InCluster: a workload of a cluster runs on nodes of the same cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_label, single_row
from lattice.scheduling.table.label_match import rows_with_label
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class ClusterMismatch:
    """The node belongs to a different cluster, or to no cluster."""

    cluster: str
    plugin: ClassVar[str] = "InCluster"

    def summary(self) -> str:
        return f"outside cluster {self.cluster}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_label(
            table,
            "cluster",
            rows,
            lambda cluster: Shortfall("cluster", self.cluster, cluster or "none", self.cluster),
        )


@dataclass(frozen=True, slots=True)
class InCluster:
    name: ClassVar[str] = "InCluster"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.cluster)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        cluster = ask.demands.cluster
        return {ClusterMismatch(cluster): ~rows_with_label(rows, "cluster", cluster)}
