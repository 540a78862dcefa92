"""Taints: a node's NoSchedule and NoExecute marks keep workloads away that do not tolerate them; NoExecute also sends them away."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.kinds.constraint import Taint, Toleration
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.nodes import NodeTable, Placement


@dataclass(frozen=True, slots=True)
class Untolerated:
    """The node has this taint and the workload does not put up with it."""

    taint: Taint
    plugin: ClassVar[str] = "Taints"

    def summary(self) -> str:
        taint = self.taint
        return f"with untolerated taint {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(self.summary().removeprefix("with "))


@dataclass(frozen=True, slots=True)
class Taints:
    name: ClassVar[str] = "Taints"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        tolerations = ask.demands.tolerations
        untolerated = rows.table.memo((self.name, tolerations), lambda table: _untolerated(table, tolerations))
        found: dict[Reason, Flags] = {}
        for reason in untolerated:
            found[reason] = rows.memo(reason, lambda table, taint=reason.taint: _tainted(table, taint))  # type: ignore[misc]
        return found


def _untolerated(table: Table, tolerations: Sequence[Toleration]) -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
    """A reason for each taint that any node has and these do not cover, in a fixed order."""
    present = {taint for facts in cast("NodeTable", table).facts if facts for taint in facts.taints if taint.effect != "PreferNoSchedule"}
    against = [taint for taint in present if not any(each.tolerates(taint) for each in tolerations)]
    reasons = np.empty(len(against), np.object_)
    for index, taint in enumerate(sorted(against, key=lambda taint: (taint.key, taint.value, taint.effect))):
        reasons[index] = Untolerated(taint)
    return reasons


def _tainted(table: Table, taint: Taint) -> Flags:
    return np.array([facts is not None and taint in facts.taints for facts in cast("NodeTable", table).facts], np.bool_)


def evicted_by(facts: NodeFacts, placements: Iterable[Placement]) -> dict[str, int]:
    """Who must leave a node because of its NoExecute taints: name -> seconds from when the taint came, 0 for at once."""
    taints = [taint for taint in facts.taints if taint.effect == "NoExecute"]
    found = {}
    for placement in placements:
        stays = [_stays(placement.ask.demands.tolerations, taint) for taint in taints]
        limits = [seconds for seconds in stays if seconds is not None]
        if limits:
            found[placement.ask.name] = min(limits)
    return found


def _stays(tolerations: Sequence[Toleration], taint: Taint) -> int | None:
    """Seconds that a taint is put up with, by the most patient toleration; None: for ever."""
    patience = [each.toleration_seconds for each in tolerations if each.tolerates(taint)]
    if None in patience:
        return None
    return max((seconds for seconds in patience if seconds is not None), default=0)
