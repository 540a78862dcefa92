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
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class NoRuntime:
    """The node reports its runtimes, and the needed runtime is not among them."""

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

        def lacks_runtime(subset: Rows) -> Flags:
            # A node without reported runtimes is accepted: it may have every runtime.
            reported = [info.runtimes if info else frozenset() for info in node_infos_on(subset)]
            return np.array([bool(runtimes) and runtime not in runtimes for runtimes in reported], np.bool_)

        return {NoRuntime(runtime): rows.derived((self.name, runtime), lacks_runtime)}
