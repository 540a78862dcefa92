"""PreferredWorkloads and AntiPreferred: prefer domains with many workloads that match preferred affinity, and
with few that match preferred anti-affinity."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import counts_per_node
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class PreferredAffinity:
    name: ClassVar[str] = "PreferredWorkloads"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.affinity_preferences)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """The weighted mean over the preferences: n/(n+1) for n matching workloads in the domain of the node,
        0 for a node without the topology key."""
        total = np.zeros(rows.count, np.float32)
        for preference in ask.demands.affinity_preferences:
            counts = rows.topology_counts(
                preference.term.namespace or ask.demands.namespace, preference.term.selector
            )
            in_domain = counts_per_node(rows, preference.term.topology_key, counts)
            in_domain /= in_domain + np.float32(1)
            total += np.multiply(in_domain, np.float32(preference.weight), out=in_domain)
        total *= np.float32(1 / sum(preference.weight for preference in ask.demands.affinity_preferences))
        return total


@dataclass(frozen=True, slots=True)
class PreferredAntiAffinity:
    name: ClassVar[str] = "AntiPreferred"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.anti_affinity_preferences)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """The weighted mean over the preferences: 1/(n+1) for n matching workloads in the domain of the node,
        1 for a node without the topology key."""
        total = np.zeros(rows.count, np.float32)
        for preference in ask.demands.anti_affinity_preferences:
            counts = rows.topology_counts(
                preference.term.namespace or ask.demands.namespace, preference.term.selector
            )
            in_domain = counts_per_node(rows, preference.term.topology_key, counts)
            in_domain += np.float32(1)
            total += np.divide(np.float32(preference.weight), in_domain, out=in_domain)
        total *= np.float32(
            1 / sum(preference.weight for preference in ask.demands.anti_affinity_preferences)
        )
        return total
