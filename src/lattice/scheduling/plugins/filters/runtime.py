"""Runtime: the node must be able to run this kind of workload, process or container; one that does not say takes any."""

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
class NoRuntime:
    """It says what it can run, and this is not among it."""

    runtime: str
    plugin: ClassVar[str] = "Runtime"

    def summary(self) -> str:
        return f"without a {self.runtime} runtime"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        def tell(have: frozenset[str]) -> Shortfall:
            return Shortfall("runtime", self.runtime, ", ".join(sorted(have)), self.runtime)

        return shortfalls_by_node_info(table, rows, lambda facts: facts.runtimes, tell)


@dataclass(frozen=True, slots=True)
class Runtime:
    name: ClassVar[str] = "Runtime"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.runtime)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        runtime = ask.demands.runtime
        return {
            NoRuntime(runtime): rows.derived((self.name, runtime), lambda some: _lacks_runtime(some, runtime))
        }


def _lacks_runtime(rows: Rows, runtime: str) -> Flags:
    listed = node_infos_on(rows)
    return np.array(
        [facts is not None and bool(facts.runtimes) and runtime not in facts.runtimes for facts in listed],
        np.bool_,
    )
