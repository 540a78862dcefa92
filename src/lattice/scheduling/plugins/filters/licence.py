"""Licence: the node must hold at least one of the accepted licences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_node_info, single_row
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class Unlicensed:
    """The node holds none of the accepted licences."""

    licences: tuple[str, ...]
    plugin: ClassVar[str] = "Licence"

    def summary(self) -> str:
        return f"without licence {' or '.join(self.licences)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        need = " or ".join(self.licences)

        def shortfall(have: frozenset[str]) -> Shortfall:
            return Shortfall("licence", need, ", ".join(sorted(have)) or "none", need)

        return shortfalls_by_node_info(table, rows, lambda info: info.licences, shortfall)


@dataclass(frozen=True, slots=True)
class Licence:
    name: ClassVar[str] = "Licence"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.licences)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        licences = ask.demands.licences

        def is_unlicensed(subset: Rows) -> Flags:
            infos = node_infos_on(subset)
            return np.array([info is None or info.licences.isdisjoint(licences) for info in infos], np.bool_)

        return {Unlicensed(licences): rows.derived((self.name, licences), is_unlicensed)}
