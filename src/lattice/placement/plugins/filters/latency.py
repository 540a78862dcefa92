"""Latency: the nearest replica of a dependency must be within the required round trip."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.plugins.rejection_reasons import FixedReason, fleet_of


@dataclass(frozen=True, slots=True)
class LatencyExceeded:
    """The nearest replica of the dependency is too far from the offer, or the round trip to every replica is
    unknown."""

    requirement: Requirement
    service: str
    is_unknown: bool = False
    plugin: str = "Latency"

    def summary(self) -> str:
        if self.is_unknown:
            return f"without a known latency to {self.requirement.value}"
        return f"more than {self.requirement.amount} ms from {self.requirement.value}"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The round trip to the nearest replica, with its source."""
        fleet = fleet_of(table)
        origin = fleet.offers[row].place
        round_trips: list[tuple[int, str, str]] = []
        for target_row in sorted(set(fleet.replicas.offer_rows(self.service))):
            target = fleet.offers[target_row].place
            rtt = fleet.latencies.between(origin, target)
            if rtt:
                round_trips.append((rtt.ms, rtt.source, target.name))
        subject, need = f"latency to {self.requirement.value}", f"{self.requirement.amount} ms"
        if not round_trips:
            return Shortfall(
                subject, need, "unknown", "a measurement: declare latencyTo, or provide a latency file"
            )
        ms, source, place_name = min(round_trips)
        return Shortfall(
            subject, need, f"{ms} ms to {place_name} ({source})", f"{ms - self.requirement.amount} ms"
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """Filter plugin: rejects offers too far from a dependency, and every offer while a dependency is not
    placed."""

    name: ClassVar[str] = "Latency"
    # The filter needs the whole table, because replicas of a dependency may be in any offer.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.latency)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        fleet, targets = fleet_of(rows), dict(ask.demand.latency_to)
        rejections: dict[Reason, Flags] = {}
        for requirement in ask.demand.latency:
            service = targets[requirement.value]
            target_rows = sorted(set(fleet.replicas.offer_rows(service)))
            if target_rows:
                too_far = fleet.ms_to_nearest(target_rows) > requirement.amount
                unknown = fleet.has_unknown_rtt(target_rows)
                rejections[LatencyExceeded(requirement, service)] = too_far & ~unknown
                if unknown.any():
                    rejections[LatencyExceeded(requirement, service, is_unknown=True)] = unknown
            # If the dependency is the service itself, its first replica has no other replica to be near to.
            elif "dependencies" not in ask.demand.ignored_limits and service != ask.demand.name:
                summary = f"waiting for {requirement.value}, which is not placed"
                waiting = FixedReason(
                    self.name,
                    summary,
                    f"latency to {requirement.value}",
                    f"{requirement.amount} ms",
                    "not placed",
                    f"a replica of {requirement.value}",
                )
                rejections[waiting] = np.ones(rows.count, np.bool_)
        return rejections
