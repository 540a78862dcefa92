"""Topology domains as plugins see them: values per domain laid out over the nodes, and which domains count at all."""

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Floats
from lattice.kinds.constraint import Spread
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import matching_any, with_label
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_index import MATCH_ALL, Counts, TopologyCounts


def domain_values_per_node(table: NodeTable, key: str, values: NDArray[Any], elsewhere: Any) -> NDArray[Any]:
    """For each node the value of its domain; `elsewhere` for nodes that are in none."""
    padded = np.empty(len(values) + 1, values.dtype)
    padded[:-1] = values
    padded[-1] = elsewhere
    found: NDArray[Any] = padded.take(table.domain_codes(key), mode="wrap")  # -1 is the last one
    return found


def occupied(table: NodeTable, key: str, tally: TopologyCounts, default: bool = False) -> Flags:
    """Nodes in whose domain something was counted; `elsewhere` for nodes that are in none."""
    if table.domain_count(key) == len(table.row_of):  # every node is a domain of its own
        return tally.per_node(table) > 0
    return domain_values_per_node(table, key, tally.by_domain(table, key) > 0, default)


def rows_by_domain(
    table: NodeTable, key: str, tally: TopologyCounts, codes: Collection[int]
) -> dict[int, list[int]]:
    """Of these domains, the nodes on which something was counted, in the order of rows."""
    asked = np.zeros(len(table.domain_names(key)), np.bool_)
    asked[list(codes)] = True
    rows = np.flatnonzero(domain_values_per_node(table, key, asked, False) & (tally.per_node(table) > 0))
    domains = table.domain_codes(key)[rows]
    found: dict[int, list[int]] = {}
    for row, code in zip(rows.tolist(), domains.tolist(), strict=True):
        found.setdefault(code, []).append(row)
    return found


def without_topology_key(table: NodeTable, key: str) -> Flags:
    """Nodes that do not have the topology key."""
    return table.memo(("outside", key), lambda _: table.domain_codes(key) < 0)


def spread_counts(table: NodeTable, ask: WorkloadAsk, spread: Spread) -> TopologyCounts | None:
    """Who is counted for a spread constraint; None: without selector and service there is nobody to spread from."""
    demands = ask.demands
    if spread.selector is not None:
        return table.topology_counts(demands.namespace, spread.selector)
    return table.topology_counts(demands.namespace, MATCH_ALL, demands.service) if demands.service else None


def min_domain_count(table: NodeTable, ask: WorkloadAsk, key: str, counts: Counts) -> int:
    """Least count over the domains with a node that the workload could be allowed on, whatever room there is."""
    usable = eligible_domains(table, ask, key)
    if len(usable) == len(counts):
        return int(counts.min(initial=0)) if not len(counts) else int(counts.min())
    return int(counts[usable].min()) if len(usable) else 0


def eligible_domains(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    """With a node that the workload could be allowed on."""
    demands = ask.demands
    memo: Hashable = ("domains", key, demands.cluster, demands.node_selector, demands.node_terms)
    return table.memo(memo, lambda _: _eligible_domains(table, ask, key))


def _eligible_domains(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    demands = ask.demands
    nodes = table.column("alive") & ~(
        table.column("unready") | table.column("cordoned") | table.column("draining")
    )
    if demands.cluster:
        nodes = nodes & with_label(table, "cluster", demands.cluster)
    for label, value in demands.node_selector:
        nodes = nodes & with_label(table, label, value)
    if demands.node_terms:
        nodes = nodes & matching_any(table, demands.node_terms)
    found = np.bincount(np.where(nodes, table.domain_codes(key), -1) + 1, minlength=1)[1:]
    return np.flatnonzero(found)


def counts_itself(tally: TopologyCounts, ask: WorkloadAsk) -> bool:
    """Would it be counted once it is placed?"""
    return tally.matches(ask.demands.namespace, ask.demands.service, ask.labels)


def counts_per_node(table: NodeTable, key: str, tally: TopologyCounts) -> Floats:
    """For each node how many were counted in its domain; 0 where it is in none. A fresh array."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    return domain_values_per_node(table, key, tally.by_domain(table, key).astype(np.float32), 0)


def evenness(table: NodeTable, ask: WorkloadAsk, key: str, tally: TopologyCounts) -> Floats:
    """1 in the emptiest domain, 1/(n+1) in one that is n ahead, 0 for a node in none. A fresh array."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    counts = tally.by_domain(table, key)
    ahead = np.maximum(counts - min_domain_count(table, ask, key, counts), 0)
    return domain_values_per_node(table, key, evenness_score(ahead), 0)


def evenness_score(ahead: NDArray[Any]) -> Floats:
    """By how many more than in the emptiest domain there are."""
    score: Floats = ahead.astype(np.float32)
    score += np.float32(1)
    return np.divide(np.float32(1), score, out=score)


SMALL_DOMAIN_COUNT = 32  # domains


class EvenDomainScores:
    """What the domains of a key score for evenness, `share` of it, while more of the same service are taken to be placed."""

    def __init__(self, table: NodeTable, ask: WorkloadAsk, key: str, share: np.float32) -> None:
        self.codes = table.domain_codes(key)
        tally = table.topology_counts(ask.demands.namespace, MATCH_ALL, ask.demands.service)
        self._counts = tally.by_domain(table, key).tolist()
        self._eligible = eligible_domains(table, ask, key).tolist()
        self._share = share
        self._update_min_count()

    def _update_min_count(self) -> None:
        counts = [self._counts[code] for code in self._eligible]
        self._min_count = min(counts, default=0)
        self._emptiest_count = counts.count(self._min_count)

    def _is_eligible(self, code: int) -> bool:
        at = bisect_left(self._eligible, code)
        return at < len(self._eligible) and self._eligible[at] == code

    def value(self, code: int) -> np.float32:
        return (
            self._share * _cached_evenness_score(max(0, self._counts[code] - self._min_count))
            if code >= 0
            else np.float32(0)
        )

    def values(self) -> Floats:
        """Of all domains, and last of none."""
        if len(self._counts) <= SMALL_DOMAIN_COUNT:  # less work than the arithmetic on small arrays
            fewest, share = self._min_count, self._share
            return np.array(
                [share * _cached_evenness_score(max(0, count - fewest)) for count in self._counts] + [0],
                np.float32,
            )
        found = np.zeros(len(self._counts) + 1, np.float32)
        found[:-1] = evenness_score(np.maximum(np.array(self._counts) - self._min_count, 0))
        found *= self._share
        return found

    def place(self, code: int) -> Iterable[int] | None:
        if code < 0:
            return (code,)
        before = self._counts[code]
        self._counts[code] = before + 1
        if before > self._min_count or not self._is_eligible(code):
            return (code,)
        self._emptiest_count -= 1
        if self._emptiest_count:
            return (code,)
        self._update_min_count()
        return None


@lru_cache(maxsize=4096)
def _cached_evenness_score(ahead: int) -> np.float32:
    score: np.float32 = evenness_score(np.array([ahead], np.int32))[0]
    return score
