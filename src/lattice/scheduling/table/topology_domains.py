"""Topology domains for plugins: values per domain laid out over the nodes, and the domains that are eligible
for a workload."""

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Floats
from lattice.kinds.constraints import Spread
from lattice.scheduling.table.label_match import rows_matching_any, rows_with_label
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import MATCH_ALL, Counts, TopologyCounts


def domain_values_per_node(table: NodeTable, key: str, values: NDArray[Any], elsewhere: Any) -> NDArray[Any]:
    """The value of each node's domain; `elsewhere` for nodes without the topology key."""
    padded = np.empty(len(values) + 1, values.dtype)
    padded[:-1] = values
    padded[-1] = elsewhere
    # Code -1, a node without the topology key, selects the last value.
    per_node: NDArray[Any] = padded.take(table.domain_codes(key), mode="wrap")
    return per_node


def in_occupied_domain(
    table: NodeTable, key: str, topology_counts: TopologyCounts, default: bool = False
) -> Flags:
    """Nodes whose domain has at least one counted workload; `default` for nodes without the topology key."""
    # If every node is a domain of its own, the counts per node are the counts per domain.
    if table.domain_count(key) == len(table.row_of):
        return topology_counts.per_node(table) > 0
    return domain_values_per_node(table, key, topology_counts.by_domain(table, key) > 0, default)


def rows_by_domain(
    table: NodeTable, key: str, topology_counts: TopologyCounts, codes: Collection[int]
) -> dict[int, list[int]]:
    """The rows with a counted workload, in order, by domain code; only of the given domains."""
    is_given = np.zeros(len(table.domain_names(key)), np.bool_)
    is_given[list(codes)] = True
    rows = np.flatnonzero(
        domain_values_per_node(table, key, is_given, False) & (topology_counts.per_node(table) > 0)
    )
    domains = table.domain_codes(key)[rows]
    rows_of_domain: dict[int, list[int]] = {}
    for row, code in zip(rows.tolist(), domains.tolist(), strict=True):
        rows_of_domain.setdefault(code, []).append(row)
    return rows_of_domain


def without_topology_key(table: NodeTable, key: str) -> Flags:
    """Nodes without the topology key."""
    return table.memo(("outside", key), lambda _: table.domain_codes(key) < 0)


def spread_counts(table: NodeTable, ask: WorkloadAsk, spread: Spread) -> TopologyCounts | None:
    """Counts of the workloads that a spread constraint spreads; None if the constraint has no selector and
    the workload has no service."""
    demands = ask.demands
    if spread.selector is not None:
        return table.topology_counts(demands.namespace, spread.selector)
    return table.topology_counts(demands.namespace, MATCH_ALL, demands.service) if demands.service else None


def min_domain_count(table: NodeTable, ask: WorkloadAsk, key: str, counts: Counts) -> int:
    """The least count over the eligible domains, whether or not their nodes have free capacity."""
    usable = eligible_domains(table, ask, key)
    if len(usable) == len(counts):
        return int(counts.min(initial=0)) if not len(counts) else int(counts.min())
    return int(counts[usable].min()) if len(usable) else 0


def eligible_domains(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    """Codes of the domains with a node that takes new workloads (ready, neither cordoned nor draining) and
    that the workload's cluster, node selector and node affinity allow."""
    demands = ask.demands
    memo: Hashable = ("domains", key, demands.cluster, demands.node_selector, demands.node_terms)
    return table.memo(memo, lambda _: _eligible_domains(table, ask, key))


def _eligible_domains(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    demands = ask.demands
    nodes = table.column("alive") & ~(
        table.column("unready") | table.column("cordoned") | table.column("draining")
    )
    if demands.cluster:
        nodes = nodes & rows_with_label(table, "cluster", demands.cluster)
    for label, value in demands.node_selector:
        nodes = nodes & rows_with_label(table, label, value)
    if demands.node_terms:
        nodes = nodes & rows_matching_any(table, demands.node_terms)
    # Codes are shifted by one: -1, a node without the key, is counted at 0 and cut off.
    node_counts = np.bincount(np.where(nodes, table.domain_codes(key), -1) + 1, minlength=1)[1:]
    return np.flatnonzero(node_counts)


def counts_workload(topology_counts: TopologyCounts, ask: WorkloadAsk) -> bool:
    """Whether the counts will include the workload once it is placed."""
    return topology_counts.matches(ask.demands.namespace, ask.demands.service, ask.labels)


def counts_per_node(table: NodeTable, key: str, topology_counts: TopologyCounts) -> Floats:
    """The count of each node's domain, 0 for a node without the topology key, in a new array."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    return domain_values_per_node(table, key, topology_counts.by_domain(table, key).astype(np.float32), 0)


def evenness(table: NodeTable, ask: WorkloadAsk, key: str, topology_counts: TopologyCounts) -> Floats:
    """The evenness score of each node, in a new array: 1 in the emptiest domain, 1/(n+1) with n more
    workloads, 0 without domain."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    counts = topology_counts.by_domain(table, key)
    ahead = np.maximum(counts - min_domain_count(table, ask, key, counts), 0)
    return domain_values_per_node(table, key, evenness_score(ahead), 0)


def evenness_score(ahead: NDArray[Any]) -> Floats:
    """The evenness score of domains; `ahead` is how many more workloads a domain has than the emptiest
    domain."""
    score: Floats = ahead.astype(np.float32)
    score += np.float32(1)
    return np.divide(np.float32(1), score, out=score)


# Up to this number of domains, a list costs less than arithmetic on small arrays.
SMALL_DOMAIN_COUNT = 32


class EvenDomainScores:
    """Evenness scores of the domains of a key, times `share`, while the engine places further workloads of
    the same service."""

    def __init__(self, table: NodeTable, ask: WorkloadAsk, key: str, share: np.float32) -> None:
        self.codes = table.domain_codes(key)
        topology_counts = table.topology_counts(ask.demands.namespace, MATCH_ALL, ask.demands.service)
        self._counts = topology_counts.by_domain(table, key).tolist()
        self._eligible = eligible_domains(table, ask, key).tolist()
        self._share = share
        self._update_min_count()

    def _update_min_count(self) -> None:
        counts = [self._counts[code] for code in self._eligible]
        self._min_count = min(counts, default=0)
        self._emptiest_count = counts.count(self._min_count)

    def value(self, code: int) -> np.float32:
        if code < 0:
            return np.float32(0)
        return self._share * _cached_evenness_score(max(0, self._counts[code] - self._min_count))

    def values(self) -> Floats:
        """The scores by domain code, and 0 as the last entry for nodes without a domain."""
        if len(self._counts) <= SMALL_DOMAIN_COUNT:
            fewest, share = self._min_count, self._share
            return np.array(
                [share * _cached_evenness_score(max(0, count - fewest)) for count in self._counts] + [0],
                np.float32,
            )
        scores = np.zeros(len(self._counts) + 1, np.float32)
        scores[:-1] = evenness_score(np.maximum(np.array(self._counts) - self._min_count, 0))
        scores *= self._share
        return scores

    def place(self, code: int) -> Iterable[int] | None:
        """Count one more workload in a domain, and return the codes whose score may change; None for all
        codes."""
        if code < 0:
            return (code,)
        count = self._counts[code]
        self._counts[code] = count + 1
        if count > self._min_count:
            return (code,)
        position = bisect_left(self._eligible, code)
        if position == len(self._eligible) or self._eligible[position] != code:
            return (code,)
        # The minimum rises only when the last of the emptiest domains gets a workload.
        self._emptiest_count -= 1
        if self._emptiest_count:
            return (code,)
        self._update_min_count()
        return None


@lru_cache(maxsize=4096)
def _cached_evenness_score(ahead: int) -> np.float32:
    score: np.float32 = evenness_score(np.array([ahead], np.int32))[0]
    return score
