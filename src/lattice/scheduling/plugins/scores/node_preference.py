"""PreferredNodes: prefer nodes whose labels match the preferred node affinity of the workload."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.kinds.constraints import PreferredNodes as Preference
from lattice.scheduling.table.label_match import rows_matching_any
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class NodePreference:
    name: ClassVar[str] = "PreferredNodes"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_preferences)

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """The weight of the preferences that match, as a share of the weight of all preferences."""
        preferences = ask.demands.node_preferences
        values = rows.float_buffer()
        np.copyto(
            values,
            rows.derived((self.name, preferences), lambda subset: _matching_share(subset, preferences)),
        )
        return values


def _matching_share(rows: Rows, preferences: tuple[Preference, ...]) -> Floats:
    share = np.zeros(rows.count, np.float32)
    for preference in preferences:
        share += rows_matching_any(rows, (preference.term,)) * np.float32(preference.weight)
    share /= np.float32(sum(preference.weight for preference in preferences))
    return share
