"""PreferredWorkloads: prefer domains that liked neighbours are in; the more of them, the better."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import counts_per_node


@dataclass(frozen=True, slots=True)
class PreferredAffinity:
    name: ClassVar[str] = "PreferredWorkloads"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.near_preferences)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """By weight, n neighbours score n/(n+1); a topology key that a node lacks brings none."""
        total = np.zeros(rows.count, np.float32)
        for each in ask.demands.near_preferences:
            tally = rows.topology_counts(ask.demands.namespace, each.term.selector)
            near = counts_per_node(rows, each.term.topology_key, tally)
            near /= near + np.float32(1)
            total += np.multiply(near, np.float32(each.weight), out=near)
        total *= np.float32(1 / sum(each.weight for each in ask.demands.near_preferences))
        return total


@dataclass(frozen=True, slots=True)
class PreferredAntiAffinity:
    name: ClassVar[str] = "AntiPreferred"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.far_preferences)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """By weight, n neighbours score 1/(n+1); a node without the topology key has none."""
        total = np.zeros(rows.count, np.float32)
        for each in ask.demands.far_preferences:
            tally = rows.topology_counts(ask.demands.namespace, each.term.selector)
            near = counts_per_node(rows, each.term.topology_key, tally)
            near += np.float32(1)
            total += np.divide(np.float32(each.weight), near, out=near)
        total *= np.float32(1 / sum(each.weight for each in ask.demands.far_preferences))
        return total
