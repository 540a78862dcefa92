"""NodeShare: a node takes no more replicas of a service than placement plans there, where other replicas must
share the node."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Table
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import MATCH_ALL


@dataclass(frozen=True, slots=True)
class NodeShareUsed:
    """The node has as many replicas of the service as planned."""

    namespace: str
    service: str
    limit: int
    plugin: ClassVar[str] = "NodeShare"

    def summary(self) -> str:
        return f"with {self.limit:,} of service {self.service}, and its other replicas are planned elsewhere"

    def detail(self, table: Table, row: int) -> Shortfall:
        nodes = cast("NodeTable", table)
        counts = nodes.topology_counts(self.namespace, MATCH_ALL, self.service).per_node(nodes)
        subject = f"replicas of service {self.service} on the node"
        return Shortfall(subject, f"fewer than {self.limit:,}", f"{int(counts[row]):,}", "a further node")


@dataclass(frozen=True, slots=True)
class NodeShare:
    name: ClassVar[str] = "NodeShare"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = frozenset(
        {ClusterEvent.NODE_ADDED, ClusterEvent.WORKLOAD_GONE}
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        planned = ask.demands.planned_nodes
        return planned is not None and planned.per_node > 0

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        demands, planned = ask.demands, ask.demands.planned_nodes
        limit = planned.per_node if planned else 0
        counts = rows.topology_counts(demands.namespace, MATCH_ALL, demands.service).per_node(rows)
        reason = NodeShareUsed(demands.namespace, demands.service, limit)
        return {reason: np.asarray(counts >= limit, np.bool_)}
