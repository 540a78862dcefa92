"""TaintPreference: prefer nodes without PreferNoSchedule taints that the workload does not tolerate."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.kinds.constraint import Toleration
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import node_infos_on


@dataclass(frozen=True, slots=True)
class TaintPreference:
    name: ClassVar[str] = "TaintPreference"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """n such taints score 1/(n+1)."""
        patience = ask.demands.tolerations
        values = rows.float_buffer()
        np.copyto(values, rows.derived((self.name, patience), lambda some: _scores(some, patience)))
        return values


def _scores(rows: Rows, tolerations: tuple[Toleration, ...]) -> Floats:
    found = np.ones(rows.count, np.float32)
    for row, facts in enumerate(node_infos_on(rows)):
        soft = [taint for taint in facts.taints if taint.effect == "PreferNoSchedule"] if facts else []
        found[row] = 1 / (1 + sum(not any(each.tolerates(taint) for each in tolerations) for taint in soft))
    return found
