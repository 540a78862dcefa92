"""Taints: a node's NoSchedule and NoExecute marks keep workloads away that do not tolerate them; NoExecute also sends them away."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.kinds.constraint import Taint, Toleration
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import single_row
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable, Placement


@dataclass(frozen=True, slots=True)
class Untolerated:
    """The node has this taint and the workload does not put up with it."""

    taint: Taint
    tolerations: tuple[Toleration, ...] = field(
        default=(), compare=False
    )  # only to be shown: many workloads share the reason
    plugin: ClassVar[str] = "Taints"

    def summary(self) -> str:
        return f"with untolerated taint {_taint_text(self.taint)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nearly = ", ".join(_taint_text(each) for each in self.tolerations if each.key in ("", self.taint.key))
        return [
            Shortfall("toleration", _taint_text(self.taint), nearly or "none", _taint_text(self.taint))
        ] * len(rows)


def _taint_text(mark: Taint | Toleration) -> str:
    """key=value:effect, without what it does not say."""
    value, effect = f"={mark.value}" if mark.value else "", f":{mark.effect}" if mark.effect else ""
    return f"{mark.key or 'any'}{value}{effect}"


@dataclass(frozen=True, slots=True)
class Taints:
    name: ClassVar[str] = "Taints"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        tolerations = ask.demands.tolerations
        found: dict[Reason, Flags] = {}
        for taint in rows.aggregate(self.name, _hard_taints):
            if not any(each.tolerates(taint) for each in tolerations):
                column = rows.derived((self.name, taint), lambda some, taint=taint: _tainted(some, taint))  # type: ignore[misc]
                found[Untolerated(taint, tolerations)] = column
        return found


def _hard_taints(table: Table) -> tuple[Taint, ...]:
    """Those that keep anybody away, of any node, in a fixed order."""
    hard = (taint for taint in cast("NodeTable", table).taints if taint.effect != "PreferNoSchedule")
    return tuple(sorted(hard, key=lambda taint: (taint.key, taint.value, taint.effect)))


def _tainted(rows: Rows, taint: Taint) -> Flags:
    return np.array([facts is not None and taint in facts.taints for facts in node_infos_on(rows)], np.bool_)


@dataclass(frozen=True, slots=True)
class TaintEviction:
    """It must leave so many seconds after the taint came."""

    after_seconds: int
    taint: Taint

    def __str__(self) -> str:
        taint = f"taint {_taint_text(self.taint)}"
        return (
            f"{self.after_seconds} s after {taint} came: it is not tolerated for longer"
            if self.after_seconds
            else f"at once: it does not tolerate {taint}"
        )


def taint_evictions(facts: NodeInfo, placements: Iterable[Placement]) -> dict[str, TaintEviction]:
    """Who must leave a node because of its NoExecute taints, by name, each for the taint that it bears least."""
    taints = [taint for taint in facts.taints if taint.effect == "NoExecute"]
    found = {}
    for placement in placements if taints else ():
        stays = ((_tolerated_seconds(placement.ask.demands.tolerations, taint), taint) for taint in taints)
        limits = [TaintEviction(seconds, taint) for seconds, taint in stays if seconds is not None]
        if limits:
            found[placement.ask.name] = min(limits, key=lambda each: each.after_seconds)
    return found


def _tolerated_seconds(tolerations: Sequence[Toleration], taint: Taint) -> int | None:
    """Seconds that a taint is put up with, by the most patient toleration; None: for ever."""
    patience = [each.toleration_seconds for each in tolerations if each.tolerates(taint)]
    if None in patience:
        return None
    return max((seconds for seconds in patience if seconds is not None), default=0)
