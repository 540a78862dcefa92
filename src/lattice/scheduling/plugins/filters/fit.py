"""Fit: a node must have enough free of every requested resource, extended resources included."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.container import format_amount
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_value, single_row
from lattice.scheduling.table.workload_ask import PORTS, WORKLOAD_SLOTS, WorkloadAsk


class _InsufficientResource(NamedTuple):
    resource: str
    need: int


class InsufficientResource(_InsufficientResource):
    """The node has too little of a resource free. A tuple, because tuples hash fast and every decision looks
    up several reasons."""

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

        # The free amount is negative on a node that shrank below its allocated amount.
        def shortfall(free: int) -> Shortfall:
            have, missing = (format_amount(self.resource, amount) for amount in (free, self.need - free))
            return Shortfall(self.resource, need, have, missing)

        return shortfalls_by_value(table.free(table.resource_index[self.resource])[rows].tolist(), shortfall)


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
        resource_names = rows.table.resources
        return {
            InsufficientResource(resource_names[resource], amount): np.less(rows.free(resource), amount)
            for resource, amount in ask.needs
        }
