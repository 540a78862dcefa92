"""CountedNodes: keep the replicas of a service on the number of nodes that placement counts for them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.table.label_match import rows_with_label
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import MATCH_ALL


@dataclass(frozen=True, slots=True)
class CountedNodes:
    """Where affinity decides which services share a node, placement counts the nodes of each service. Once the
    replicas use that many nodes, these nodes score 1 and all other nodes 0; until then every node scores 1."""

    name: ClassVar[str] = "CountedNodes"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_count)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        counts = rows.topology_counts(ask.demands.namespace, MATCH_ALL, ask.demands.service)
        # The count is of one cluster and class: other nodes do not count.
        is_used = counts.per_node(rows) > 0
        for key, value in (("cluster", ask.demands.cluster), *ask.demands.node_selector):
            if value:
                is_used &= rows_with_label(rows, key, value)
        if int(is_used.sum()) < ask.demands.node_count:
            return np.ones(rows.count, np.float32)
        return is_used.astype(np.float32)
