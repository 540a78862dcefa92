"""InCluster: a workload of a cluster runs on nodes of that cluster."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Rows
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.labels import having
from lattice.scheduling.reason import Because


@dataclass(frozen=True, slots=True)
class InCluster:
    name: ClassVar[str] = "InCluster"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.cluster)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        cluster = ask.demands.cluster
        elsewhere = rows.memo((self.name, cluster), lambda table: ~having(table, "cluster", cluster))
        return {Because(self.name, f"outside cluster {cluster}", f"cluster={cluster}", "cluster"): elsewhere}
