"""TaintPreference: prefer nodes without PreferNoSchedule taints that the workload does not tolerate."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.kinds.constraints import Toleration
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class TaintPreference:
    name: ClassVar[str] = "TaintPreference"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """n untolerated PreferNoSchedule taints score 1/(n+1)."""
        tolerations = ask.demands.tolerations
        values = rows.float_buffer()
        np.copyto(values, rows.derived((self.name, tolerations), lambda subset: _scores(subset, tolerations)))
        return values


def _scores(rows: Rows, tolerations: tuple[Toleration, ...]) -> Floats:
    scores = np.ones(rows.count, np.float32)
    for row, info in enumerate(node_infos_on(rows)):
        untolerated = 0
        for taint in info.taints if info else ():
            if taint.effect == "PreferNoSchedule":
                untolerated += not any(toleration.tolerates(taint) for toleration in tolerations)
        scores[row] = 1 / (1 + untolerated)
    return scores
