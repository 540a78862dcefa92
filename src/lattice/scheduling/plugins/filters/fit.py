"""Fit: a node must have room for everything that the workload asks for, by whatever name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.container import show_amount
from lattice.scheduling.table.ask import PORTS, SLOTS, WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.plugins.reasons import each_once, only


class _Short(NamedTuple):
    resource: str
    need: int


class Short(_Short):
    """Too little of a resource is free. A tuple, because each decision looks several of them up."""

    __slots__ = ()
    plugin = "Fit"

    def summary(self) -> str:
        if self.resource == SLOTS:
            return "without a free workload slot"
        if self.resource == PORTS:
            return f"without {self.need} free ports" if self.need != 1 else "without a free port"
        return f"without {show_amount(self.resource, self.need)} {self.resource} free"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        need = show_amount(self.resource, self.need)

        def tell(have: int) -> Shortfall:  # below 0 on a node that shrank under what it runs
            left, missing = (show_amount(self.resource, amount) for amount in (have, self.need - have))
            return Shortfall(self.resource, need, left, missing)

        return each_once(table.free(table.index[self.resource])[rows].tolist(), tell)


@dataclass(frozen=True, slots=True)
class Fit:
    name: ClassVar[str] = "Fit"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[Change]] = frozenset(
        {Change.NODE_ADDED, Change.NODE_GREW, Change.WORKLOAD_GONE}
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        named = rows.table.resources
        return {
            Short(named[resource], amount): np.less(rows.free(resource), amount)
            for resource, amount in ask.needs
        }
