"""How many matching workloads are where: per node, and per domain of any topology key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import lengthened
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.table.label_codes import Coded

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable

Counts = NDArray[np.int32]


class _Counted(NamedTuple):
    coded: Coded
    moved: int  # with the moves of nodes from domain to domain up to then
    counts: Counts


class Tally:
    """Kept up to date as workloads come and go. `nodes[row]` counts one node; `domains(key)` counts by topology code."""

    def __init__(self, namespace: str, selector: LabelSelector, service: str = "") -> None:
        self.namespace = namespace
        self.selector = selector
        self.service = service  # "": any
        self.nodes: Counts = np.zeros(0, np.int32)
        self._domains: dict[str, _Counted] = {}  # by topology key

    def matches(self, namespace: str, service: str, labels: Mapping[str, str]) -> bool:
        if namespace != self.namespace or (self.service and service != self.service):
            return False
        return self.selector.matches(labels)

    def add(self, table: "NodeTable", row: int, change: int) -> None:
        self._make_room(table)
        for key in self._domains:
            counts = self.domains(table, key)  # moves first: they took along what was on the node then
            if (code := int(table.codes(key)[row])) >= 0:
                counts[code] += change
        self.nodes[row] += change

    def per_node(self, table: "NodeTable") -> Counts:
        self._make_room(table)
        return self.nodes[: table.count]

    def domains(self, table: "NodeTable", key: str) -> Counts:
        """Counts by code of `key`; see NodeTable.codes. A code that no node has counts nothing."""
        coded, kept = table.coded(key), self._domains.get(key)
        if kept is not None and kept.coded is coded and kept.moved == coded.moved:
            return kept.counts
        moves = coded.moves_since(kept.moved) if kept is not None and kept.coded is coded else None
        if kept is None or moves is None:
            known = coded.codes >= 0
            here = self.per_node(table)[known]
            counts = np.bincount(coded.codes[known], weights=here, minlength=len(coded.names)).astype(
                np.int32
            )
        else:
            counts = self._carried(table, lengthened(kept.counts, len(coded.names)), moves)
        self._domains[key] = _Counted(coded, coded.moved, counts)
        return counts

    def _carried(self, table: "NodeTable", counts: Counts, moves: list[tuple[int, int, int]]) -> Counts:
        """Nodes changed their domain, and took along what is on them."""
        self._make_room(table)
        for row, before, after in moves:
            if here := int(self.nodes[row]):
                if before >= 0:
                    counts[before] -= here
                if after >= 0:
                    counts[after] += here
        return counts

    def _make_room(self, table: "NodeTable") -> None:
        if len(self.nodes) < table.count:
            self.nodes = lengthened(self.nodes, table.count + 64)
