"""InCluster: a workload of a cluster runs on nodes of that cluster."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.labels import having
from lattice.scheduling.reason import facts_at


@dataclass(frozen=True, slots=True)
class OtherCluster:
    """It is a node of another cluster, or of none."""

    cluster: str
    plugin: ClassVar[str] = "InCluster"

    def summary(self) -> str:
        return f"outside cluster {self.cluster}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall("cluster", self.cluster, facts_at(table, row).labels.get("cluster", "none"))


@dataclass(frozen=True, slots=True)
class InCluster:
    name: ClassVar[str] = "InCluster"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.cluster)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        cluster = ask.demands.cluster
        return {OtherCluster(cluster): ~having(rows, "cluster", cluster)}
