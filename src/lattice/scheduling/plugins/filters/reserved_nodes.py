"""Kept: machines that a data center reserves are for services that the reserve is for; a workload of no service keeps out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import NEW_NODES, Change
from lattice.scheduling.table.label_match import facts_on
from lattice.scheduling.plugins.reasons import Because

RESERVED = Because(
    "Kept", "reserved for certain services", "reserve", "a service that it is for", "a workload of no service"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Replicas of services are put into clusters by who knows of reserves."""

    name: ClassVar[str] = "Kept"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return not ask.demands.service

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        return {RESERVED: rows.derived((self.name,), _reserved)}


def _reserved(rows: Rows) -> Flags:
    return np.array(
        [facts is not None and RESERVE_LABEL in facts.labels for facts in facts_on(rows)], np.bool_
    )
