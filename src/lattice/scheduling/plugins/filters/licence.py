"""Licence: the node must hold at least one of the licences that will do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_node_info, single_row
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import node_infos_on


@dataclass(frozen=True, slots=True)
class Unlicensed:
    """It holds none of these."""

    licences: tuple[str, ...]
    plugin: ClassVar[str] = "Licence"

    def summary(self) -> str:
        return f"without licence {' or '.join(self.licences)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        need = " or ".join(self.licences)

        def tell(have: frozenset[str]) -> Shortfall:
            return Shortfall("licence", need, ", ".join(sorted(have)) or "none", need)

        return shortfalls_by_node_info(table, rows, lambda facts: facts.licences, tell)


@dataclass(frozen=True, slots=True)
class Licence:
    name: ClassVar[str] = "Licence"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.licences)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        licences = ask.demands.licences
        return {
            Unlicensed(licences): rows.derived(
                (self.name, licences), lambda some: _unlicensed(some, licences)
            )
        }


def _unlicensed(rows: Rows, licences: tuple[str, ...]) -> Flags:
    return np.array(
        [facts is None or facts.licences.isdisjoint(licences) for facts in node_infos_on(rows)], np.bool_
    )
