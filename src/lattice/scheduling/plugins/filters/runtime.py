"""Runtime: the node must have the runtime of the workload, process or container; a node that reports no
runtimes is accepted."""

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
    """The node reports runtimes without the needed one."""

    runtime: str
    plugin: ClassVar[str] = "Runtime"

    def summary(self) -> str:
        return f"without a {self.runtime} runtime"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        def shortfall(have: frozenset[str]) -> Shortfall:
            return Shortfall("runtime", self.runtime, ", ".join(sorted(have)), self.runtime)

        return shortfalls_by_node_info(table, rows, lambda info: info.runtimes, shortfall)


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
            NoRuntime(runtime): rows.derived(
                (self.name, runtime), lambda subset: _lacks_runtime(subset, runtime)
            )
        }


def _lacks_runtime(rows: Rows, runtime: str) -> Flags:
    infos = node_infos_on(rows)
    return np.array(
        [info is not None and bool(info.runtimes) and runtime not in info.runtimes for info in infos],
        np.bool_,
    )
