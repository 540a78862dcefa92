"""Taints: NoSchedule and NoExecute taints of a node reject workloads that do not tolerate them; NoExecute
taints also evict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.kinds.constraints import Taint, Toleration
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import single_row
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class Untolerated:
    """The node has a taint that the workload does not tolerate."""

    taint: Taint
    # Only for the message: workloads with different tolerations share the reason.
    tolerations: tuple[Toleration, ...] = field(default=(), compare=False)
    plugin: ClassVar[str] = "Taints"

    def summary(self) -> str:
        return f"with untolerated taint {_taint_text(self.taint)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        similar = [toleration for toleration in self.tolerations if toleration.key in ("", self.taint.key)]
        need, have = _taint_text(self.taint), ", ".join(map(_taint_text, similar)) or "none"
        return [Shortfall("toleration", need, have, need)] * len(rows)


def _taint_text(taint: Taint | Toleration) -> str:
    """A taint or toleration as key=value:effect, without empty parts."""
    value, effect = f"={taint.value}" if taint.value else "", f":{taint.effect}" if taint.effect else ""
    return f"{taint.key or 'any'}{value}{effect}"


@dataclass(frozen=True, slots=True)
class Taints:
    name: ClassVar[str] = "Taints"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        tolerations = ask.demands.tolerations
        rejections: dict[Reason, Flags] = {}
        # One column per taint, because there are few distinct taints and many nodes.
        for taint in rows.aggregate(self.name, _hard_taints):
            if any(toleration.tolerates(taint) for toleration in tolerations):
                continue

            def has_taint(subset: Rows, taint: Taint = taint) -> Flags:
                infos = node_infos_on(subset)
                return np.array([info is not None and taint in info.taints for info in infos], np.bool_)

            rejections[Untolerated(taint, tolerations)] = rows.derived((self.name, taint), has_taint)
        return rejections


def _hard_taints(table: Table) -> tuple[Taint, ...]:
    """The NoSchedule and NoExecute taints of all nodes, in a fixed order."""
    hard = (taint for taint in cast("NodeTable", table).taints if taint.effect != "PreferNoSchedule")
    return tuple(sorted(hard, key=lambda taint: (taint.key, taint.value, taint.effect)))


@dataclass(frozen=True, slots=True)
class TaintEviction:
    """The eviction of a workload `after_seconds` seconds after the node got the taint."""

    after_seconds: int
    taint: Taint

    def __str__(self) -> str:
        taint = f"taint {_taint_text(self.taint)}"
        if self.after_seconds:
            return f"{self.after_seconds} s after {taint} was added: the toleration ends then"
        return f"immediately: the workload does not tolerate {taint}"


def taint_evictions(node_info: NodeInfo, placements: Iterable[Placement]) -> dict[str, TaintEviction]:
    """Evictions by workload name because of the node's NoExecute taints. If several taints evict a workload,
    the taint that the workload tolerates for the shortest time counts."""
    taints = [taint for taint in node_info.taints if taint.effect == "NoExecute"]
    evictions = {}
    for placement in placements if taints else ():
        evictions_by_taint = []
        for taint in taints:
            tolerated = [
                toleration.toleration_seconds
                for toleration in placement.ask.demands.tolerations
                if toleration.tolerates(taint)
            ]
            # The longest toleration counts; one without seconds has no limit.
            if None not in tolerated:
                longest = max((seconds for seconds in tolerated if seconds is not None), default=0)
                evictions_by_taint.append(TaintEviction(longest, taint))
        if evictions_by_taint:
            evictions[placement.ask.name] = min(evictions_by_taint, key=lambda taint: taint.after_seconds)
    return evictions
