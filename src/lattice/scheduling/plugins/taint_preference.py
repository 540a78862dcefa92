"""TaintPreference: prefer nodes without PreferNoSchedule taints that the workload does not tolerate."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, Table
from lattice.kinds.constraint import Toleration
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.nodes import NodeTable


@dataclass(frozen=True, slots=True)
class TaintPreference:
    name: ClassVar[str] = "TaintPreference"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """n such taints score 1/(n+1)."""
        patience = ask.demands.tolerations
        values = rows.floats()
        np.copyto(values, rows.memo((self.name, patience), lambda table: _scores(table, patience)))
        return values


def _scores(table: Table, tolerations: tuple[Toleration, ...]) -> Floats:
    found = np.ones(table.count, np.float32)
    for row, facts in enumerate(cast("NodeTable", table).facts):
        soft = [taint for taint in facts.taints if taint.effect == "PreferNoSchedule"] if facts else []
        found[row] = 1 / (1 + sum(not any(each.tolerates(taint) for each in tolerations) for taint in soft))
    return found
