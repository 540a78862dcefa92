"""Latency: the nearest placed replica of a dependency must be near enough."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.rejection_reasons import FixedReason, fleet_of


@dataclass(frozen=True, slots=True)
class LatencyExceeded:
    requirement: Requirement
    service: str
    plugin: str = "Latency"

    def summary(self) -> str:
        return f"more than {self.requirement.amount} ms from {self.requirement.value}"

    def detail(self, table: Table, row: int) -> Shortfall:
        """To the nearest replica, and where that figure comes from."""
        fleet = fleet_of(table)
        here = fleet.offers[row].place
        places = [fleet.offers[each].place for each in sorted(set(fleet.offer_rows_of(self.service)))]
        known = [
            (rtt.ms, rtt.source, place.name)
            for place in places
            if (rtt := fleet.latencies.between(here, place))
        ]
        what, need = f"latency to {self.requirement.value}", f"{self.requirement.amount} ms"
        if not known:
            return Shortfall(what, need, "unknown", "a figure: declare latencyTo, or give a latency file")
        ms, source, place_name = min(known)
        return Shortfall(
            what, need, f"{ms} ms to {place_name} ({source})", f"{ms - self.requirement.amount} ms"
        )


@dataclass(frozen=True, slots=True)
class Latency:
    name: ClassVar[str] = "Latency"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.latency)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        fleet, targets = fleet_of(rows), dict(ask.demand.latency_to)
        found: dict[Reason, Flags] = {}
        for each in ask.demand.latency:
            service = targets[each.value]
            near = sorted(set(fleet.offer_rows_of(service)))
            if near:
                found[LatencyExceeded(each, service)] = fleet.ms_to_nearest(near) > each.amount
            elif (
                "dependencies" not in ask.demand.ignored_limits and service != ask.demand.name
            ):  # the first one is near itself
                words = f"waiting for {each.value}, which is not placed"
                waiting = FixedReason(
                    self.name,
                    words,
                    f"latency to {each.value}",
                    f"{each.amount} ms",
                    "not placed",
                    f"a replica of {each.value}",
                )
                found[waiting] = np.ones(rows.count, np.bool_)
        return found
