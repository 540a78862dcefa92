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
from lattice.scheduling.table.workload_index import EVERYTHING
from lattice.scheduling.table.label_match import having, matching_any
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.tally import Counts, Tally


def over_nodes(table: NodeTable, key: str, values: NDArray[Any], elsewhere: Any) -> NDArray[Any]:
    """For each node the value of its domain; `elsewhere` for nodes that are in none."""
    padded = np.empty(len(values) + 1, values.dtype)
    padded[:-1] = values
    padded[-1] = elsewhere
    found: NDArray[Any] = padded.take(table.codes(key), mode="wrap")  # -1 is the last one
    return found


def occupied(table: NodeTable, key: str, tally: Tally, elsewhere: bool = False) -> Flags:
    """Nodes in whose domain something was counted; `elsewhere` for nodes that are in none."""
    if table.domain_count(key) == len(table.row_of):  # every node is a domain of its own
        return tally.per_node(table) > 0
    return over_nodes(table, key, tally.domains(table, key) > 0, elsewhere)


def rows_by_domain(table: NodeTable, key: str, tally: Tally, codes: Collection[int]) -> dict[int, list[int]]:
    """Of these domains, the nodes on which something was counted, in the order of rows."""
    asked = np.zeros(len(table.domain_names(key)), np.bool_)
    asked[list(codes)] = True
    rows = np.flatnonzero(over_nodes(table, key, asked, False) & (tally.per_node(table) > 0))
    domains = table.codes(key)[rows]
    found: dict[int, list[int]] = {}
    for row, code in zip(rows.tolist(), domains.tolist(), strict=True):
        found.setdefault(code, []).append(row)
    return found


def outside(table: NodeTable, key: str) -> Flags:
    """Nodes that do not have the topology key."""
    return table.memo(("outside", key), lambda _: table.codes(key) < 0)


def spread_tally(table: NodeTable, ask: WorkloadAsk, spread: Spread) -> Tally | None:
    """Who is counted for a spread constraint; None: without selector and service there is nobody to spread from."""
    demands = ask.demands
    if spread.selector is not None:
        return table.tally(demands.namespace, spread.selector)
    return table.tally(demands.namespace, EVERYTHING, demands.service) if demands.service else None


def fewest(table: NodeTable, ask: WorkloadAsk, key: str, counts: Counts) -> int:
    """Least count over the domains with a node that the workload could be allowed on, whatever room there is."""
    usable = usable_domains(table, ask, key)
    if len(usable) == len(counts):
        return int(counts.min(initial=0)) if not len(counts) else int(counts.min())
    return int(counts[usable].min()) if len(usable) else 0


def usable_domains(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    """With a node that the workload could be allowed on."""
    demands = ask.demands
    memo: Hashable = ("domains", key, demands.cluster, demands.node_selector, demands.node_terms)
    return table.memo(memo, lambda _: _usable(table, ask, key))


def _usable(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    demands = ask.demands
    nodes = table.column("alive") & ~(
        table.column("unready") | table.column("cordoned") | table.column("draining")
    )
    if demands.cluster:
        nodes = nodes & having(table, "cluster", demands.cluster)
    for label, value in demands.node_selector:
        nodes = nodes & having(table, label, value)
    if demands.node_terms:
        nodes = nodes & matching_any(table, demands.node_terms)
    found = np.bincount(np.where(nodes, table.codes(key), -1) + 1, minlength=1)[1:]
    return np.flatnonzero(found)


def counts_itself(tally: Tally, ask: WorkloadAsk) -> bool:
    """Would it be counted once it is placed?"""
    return tally.matches(ask.demands.namespace, ask.demands.service, ask.labels)


def counts_over_nodes(table: NodeTable, key: str, tally: Tally) -> Floats:
    """For each node how many were counted in its domain; 0 where it is in none. A fresh array."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    return over_nodes(table, key, tally.domains(table, key).astype(np.float32), 0)


def evenness(table: NodeTable, ask: WorkloadAsk, key: str, tally: Tally) -> Floats:
    """1 in the emptiest domain, 1/(n+1) in one that is n ahead, 0 for a node in none. A fresh array."""
    if not table.domain_count(key):
        return np.zeros(table.count, np.float32)
    counts = tally.domains(table, key)
    ahead = np.maximum(counts - fewest(table, ask, key, counts), 0)
    return over_nodes(table, key, even(ahead), 0)


def even(ahead: NDArray[Any]) -> Floats:
    """By how many more than in the emptiest domain there are."""
    score: Floats = ahead.astype(np.float32)
    score += np.float32(1)
    return np.divide(np.float32(1), score, out=score)


FEW = 32  # domains


class EvenTiers:
    """What the domains of a key score for evenness, `share` of it, while more of the same service are taken to be placed."""

    def __init__(self, table: NodeTable, ask: WorkloadAsk, key: str, share: np.float32) -> None:
        self.codes = table.codes(key)
        tally = table.tally(ask.demands.namespace, EVERYTHING, ask.demands.service)
        self._counts = tally.domains(table, key).tolist()
        self._usable = usable_domains(table, ask, key).tolist()
        self._share = share
        self._find_fewest()

    def _find_fewest(self) -> None:
        counts = [self._counts[code] for code in self._usable]
        self._fewest = min(counts, default=0)
        self._emptiest = counts.count(self._fewest)

    def _is_usable(self, code: int) -> bool:
        at = bisect_left(self._usable, code)
        return at < len(self._usable) and self._usable[at] == code

    def value(self, code: int) -> np.float32:
        return self._share * _even(max(0, self._counts[code] - self._fewest)) if code >= 0 else np.float32(0)

    def values(self) -> Floats:
        """Of all domains, and last of none."""
        if len(self._counts) <= FEW:  # less work than the arithmetic on small arrays
            fewest, share = self._fewest, self._share
            return np.array(
                [share * _even(max(0, count - fewest)) for count in self._counts] + [0], np.float32
            )
        found = np.zeros(len(self._counts) + 1, np.float32)
        found[:-1] = even(np.maximum(np.array(self._counts) - self._fewest, 0))
        found *= self._share
        return found

    def place(self, code: int) -> Iterable[int] | None:
        if code < 0:
            return (code,)
        before = self._counts[code]
        self._counts[code] = before + 1
        if before > self._fewest or not self._is_usable(code):
            return (code,)
        self._emptiest -= 1
        if self._emptiest:
            return (code,)
        self._find_fewest()
        return None


@lru_cache(maxsize=4096)
def _even(ahead: int) -> np.float32:
    score: np.float32 = even(np.array([ahead], np.int32))[0]
    return score
