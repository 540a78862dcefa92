"""PreferredNodes: prefer nodes whose labels the workload likes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.kinds.constraint import PreferredNodes as Preference
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import matching_any


@dataclass(frozen=True, slots=True)
class NodePreference:
    name: ClassVar[str] = "PreferredNodes"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_preferences)

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """The weight of the preferences that hold, as a share of all."""
        liked = ask.demands.node_preferences
        values = rows.float_buffer()
        np.copyto(values, rows.derived((self.name, liked), lambda some: _shares(some, liked)))
        return values


def _shares(rows: Rows, preferences: tuple[Preference, ...]) -> Floats:
    found = np.zeros(rows.count, np.float32)
    for each in preferences:
        found += matching_any(rows, (each.term,)) * np.float32(each.weight)
    found /= np.float32(sum(each.weight for each in preferences))
    return found
