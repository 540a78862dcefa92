"""How many matching workloads are where: per node, and per domain of any topology key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lattice.kinds.selector import LabelSelector

if TYPE_CHECKING:
    from lattice.scheduling.nodes import NodeTable

Counts = NDArray[np.int32]


class Tally:
    """Kept up to date as workloads come and go. `nodes[row]` counts one node; `domains(key)` counts by topology code."""

    def __init__(self, namespace: str, selector: LabelSelector, service: str = "") -> None:
        self.namespace = namespace
        self.selector = selector
        self.service = service  # "": any
        self.nodes: Counts = np.zeros(0, np.int32)
        self._domains: dict[str, tuple[int, Counts]] = {}

    def matches(self, namespace: str, service: str, labels: Mapping[str, str]) -> bool:
        if namespace != self.namespace or (self.service and service != self.service):
            return False
        return self.selector.matches(labels)

    def add(self, table: "NodeTable", row: int, change: int) -> None:
        self._make_room(table)
        self.nodes[row] += change
        for key, (version, counts) in self._domains.items():
            if version == table.fixed_version and (code := int(table.codes(key)[row])) >= 0:
                counts[code] += change

    def per_node(self, table: "NodeTable") -> Counts:
        self._make_room(table)
        return self.nodes[: table.count]

    def domains(self, table: "NodeTable", key: str) -> Counts:
        """Counts by code of `key`; see NodeTable.codes."""
        kept = self._domains.get(key)
        if kept is None or kept[0] != table.fixed_version:
            codes = table.codes(key)
            known = codes >= 0
            counts = np.bincount(codes[known], weights=self.per_node(table)[known], minlength=table.domain_count(key)).astype(np.int32)
            kept = self._domains[key] = (table.fixed_version, counts)
        return kept[1]

    def _make_room(self, table: "NodeTable") -> None:
        if len(self.nodes) < table.count:
            self.nodes = np.concatenate([self.nodes, np.zeros(table.count - len(self.nodes) + 64, np.int32)])
