"""Topology domains as plugins see them: values per domain laid out over the nodes, and which domains count at all."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Floats
from lattice.kinds.constraint import Spread
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.labels import having, matching_any
from lattice.scheduling.nodes import EVERYTHING, NodeTable
from lattice.scheduling.tally import Counts, Tally


def over_nodes(table: NodeTable, key: str, values: NDArray[Any], elsewhere: Any) -> NDArray[Any]:
    """For each node the value of its domain; `elsewhere` for nodes that are in none."""
    padded = np.empty(len(values) + 1, values.dtype)
    padded[:-1] = values
    padded[-1] = elsewhere
    found: NDArray[Any] = padded.take(_codes(table, key), mode="wrap")  # -1 is the last one
    return found


def _codes(table: NodeTable, key: str) -> NDArray[np.intp]:
    return table.memo(("codes", key), lambda _: table.codes(key).astype(np.intp))


def occupied(table: NodeTable, key: str, tally: Tally) -> Flags:
    """Nodes in whose domain something was counted."""
    if table.domain_count(key) == table.count:  # every node is a domain of its own
        return tally.per_node(table) > 0
    return over_nodes(table, key, tally.domains(table, key) > 0, False)


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
    demands = ask.demands
    memo: Hashable = ("domains", key, demands.cluster, demands.node_selector, demands.node_terms)
    usable = table.memo(memo, lambda _: _usable(table, ask, key))
    if len(usable) == len(counts):
        return int(counts.min(initial=0)) if not len(counts) else int(counts.min())
    return int(counts[usable].min()) if len(usable) else 0


def _usable(table: NodeTable, ask: WorkloadAsk, key: str) -> NDArray[np.intp]:
    demands = ask.demands
    nodes = table.column("alive") & ~(table.column("unready") | table.column("cordoned") | table.column("draining"))
    if demands.cluster:
        nodes = nodes & having(table, "cluster", demands.cluster)
    for label, value in demands.node_selector:
        nodes = nodes & having(table, label, value)
    if demands.node_terms:
        nodes = nodes & matching_any(table, demands.node_terms)
    codes = table.codes(key)[nodes]
    return np.unique(codes[codes >= 0]).astype(np.intp)


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
    return over_nodes(table, key, np.float32(1) / (ahead + np.float32(1)).astype(np.float32), 0)
