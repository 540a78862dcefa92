"""Fit: a node must have room for everything that the workload asks for, by whatever name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.container import format_amount
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_value, single_row
from lattice.scheduling.table.ask import PORTS, WORKLOAD_SLOTS, WorkloadAsk


class _InsufficientResource(NamedTuple):
    resource: str
    need: int


class InsufficientResource(_InsufficientResource):
    """Too little of a resource is free. A tuple, because each decision looks several of them up."""

    __slots__ = ()
    plugin = "Fit"

    def summary(self) -> str:
        if self.resource == WORKLOAD_SLOTS:
            return "without a free workload slot"
        if self.resource == PORTS:
            return f"without {self.need} free ports" if self.need != 1 else "without a free port"
        return f"without {format_amount(self.resource, self.need)} {self.resource} free"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        need = format_amount(self.resource, self.need)

        def tell(have: int) -> Shortfall:  # below 0 on a node that shrank under what it runs
            left, missing = (format_amount(self.resource, amount) for amount in (have, self.need - have))
            return Shortfall(self.resource, need, left, missing)

        return shortfalls_by_value(table.free(table.resource_index[self.resource])[rows].tolist(), tell)


@dataclass(frozen=True, slots=True)
class Fit:
    name: ClassVar[str] = "Fit"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = frozenset(
        {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_GREW, ClusterEvent.WORKLOAD_GONE}
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        named = rows.table.resources
        return {
            InsufficientResource(named[resource], amount): np.less(rows.free(resource), amount)
            for resource, amount in ask.needs
        }
