"""PlannedNodes: keep the replicas of a service to the nodes that placement counts for them, and beside the
services that placement puts there."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Flags, Floats
from lattice.scheduling.table.label_match import rows_with_label
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import MATCH_ALL

# Scores of a node while the replicas use fewer nodes than planned.
SHARED_SCORE = 1.0
UNPLANNED_SCORE = 0.75  # no service with planned nodes is there yet
OWN_SCORE = 0.5
FOREIGN_SCORE = 0.0  # planned for services that placement puts elsewhere


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """Where affinity decides which services share a node, placement plans the nodes of each service. Once the
    replicas use as many nodes as planned, these nodes score 1 and all other nodes 0."""

    name: ClassVar[str] = "PlannedNodes"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.planned_nodes is not None

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        demands, planned = ask.demands, ask.demands.planned_nodes
        in_group: Flags = np.ones(rows.count, np.bool_)
        # The plan is of one cluster and class.
        for key, value in (("cluster", demands.cluster), *demands.node_selector):
            if value:
                in_group &= rows_with_label(rows, key, value)
        own = in_group & _hosts(rows, demands.namespace, demands.service)
        if planned is None or int(own.sum()) >= planned.count:
            return own.astype(np.float32)
        scores: Floats = np.full(rows.count, UNPLANNED_SCORE, np.float32)
        for row in np.flatnonzero(in_group).tolist():
            placements = rows.placements_by_row[row].values()
            if any(placement.ask.demands.planned_nodes for placement in placements):
                scores[row] = FOREIGN_SCORE
        for name in planned.shared_with:
            namespace, _, service = name.partition("/")
            scores[in_group & _hosts(rows, namespace, service)] = SHARED_SCORE
        scores[own] = OWN_SCORE
        return scores


def _hosts(rows: NodeTable, namespace: str, service: str) -> Flags:
    """Mask of the nodes with replicas of the service."""
    flags: Flags = rows.topology_counts(namespace, MATCH_ALL, service).per_node(rows) > 0
    return flags
