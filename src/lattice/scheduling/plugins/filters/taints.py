"""Taints: a node's NoSchedule and NoExecute marks keep workloads away that do not tolerate them; NoExecute also sends them away."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.kinds.constraint import Taint, Toleration
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import NEW_NODES, Change
from lattice.scheduling.table.node_info import NodeFacts
from lattice.scheduling.table.label_match import facts_on
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.plugins.reasons import only


@dataclass(frozen=True, slots=True)
class Untolerated:
    """The node has this taint and the workload does not put up with it."""

    taint: Taint
    tolerations: tuple[Toleration, ...] = field(
        default=(), compare=False
    )  # only to be shown: many workloads share the reason
    plugin: ClassVar[str] = "Taints"

    def summary(self) -> str:
        return f"with untolerated taint {_written(self.taint)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nearly = ", ".join(_written(each) for each in self.tolerations if each.key in ("", self.taint.key))
        return [Shortfall("toleration", _written(self.taint), nearly or "none", _written(self.taint))] * len(
            rows
        )


def _written(mark: Taint | Toleration) -> str:
    """key=value:effect, without what it does not say."""
    value, effect = f"={mark.value}" if mark.value else "", f":{mark.effect}" if mark.effect else ""
    return f"{mark.key or 'any'}{value}{effect}"


@dataclass(frozen=True, slots=True)
class Taints:
    name: ClassVar[str] = "Taints"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        tolerations = ask.demands.tolerations
        found: dict[Reason, Flags] = {}
        for taint in rows.fact(self.name, _present):
            if not any(each.tolerates(taint) for each in tolerations):
                column = rows.derived((self.name, taint), lambda some, taint=taint: _tainted(some, taint))  # type: ignore[misc]
                found[Untolerated(taint, tolerations)] = column
        return found


def _present(table: Table) -> tuple[Taint, ...]:
    """Those that keep anybody away, of any node, in a fixed order."""
    hard = (taint for taint in cast("NodeTable", table).taints if taint.effect != "PreferNoSchedule")
    return tuple(sorted(hard, key=lambda taint: (taint.key, taint.value, taint.effect)))


def _tainted(rows: Rows, taint: Taint) -> Flags:
    return np.array([facts is not None and taint in facts.taints for facts in facts_on(rows)], np.bool_)


@dataclass(frozen=True, slots=True)
class Eviction:
    """It must leave so many seconds after the taint came."""

    after: int
    taint: Taint

    def __str__(self) -> str:
        taint = f"taint {_written(self.taint)}"
        return (
            f"{self.after} s after {taint} came: it is not tolerated for longer"
            if self.after
            else f"at once: it does not tolerate {taint}"
        )


def evicted_by(facts: NodeFacts, placements: Iterable[Placement]) -> dict[str, Eviction]:
    """Who must leave a node because of its NoExecute taints, by name, each for the taint that it bears least."""
    taints = [taint for taint in facts.taints if taint.effect == "NoExecute"]
    found = {}
    for placement in placements if taints else ():
        stays = ((_stays(placement.ask.demands.tolerations, taint), taint) for taint in taints)
        limits = [Eviction(seconds, taint) for seconds, taint in stays if seconds is not None]
        if limits:
            found[placement.ask.name] = min(limits, key=lambda each: each.after)
    return found


def _stays(tolerations: Sequence[Toleration], taint: Taint) -> int | None:
    """Seconds that a taint is put up with, by the most patient toleration; None: for ever."""
    patience = [each.toleration_seconds for each in tolerations if each.tolerates(taint)]
    if None in patience:
        return None
    return max((seconds for seconds in patience if seconds is not None), default=0)
