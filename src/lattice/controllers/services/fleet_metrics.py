"""Export metrics of the fleet from the leader's caches: pending services, budgets and utilisation of
pools."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import Gauge

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.quantity import MICRO
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import PLACED_CONDITION, LatticeService
from lattice.placement.inputs.ledger_math import budget_status

# The single key of the controller.
METRICS_KEY = "figures"
# The shortest time between two exports.
METRICS_INTERVAL_S = 2.0
# Interval of the export while no object changes, because spending grows all the time.
SPEND_REFRESH_S = 30.0
UNDECIDED = "Undecided"


class MetricSample(NamedTuple):
    """One value of a gauge with the labels of the series."""

    gauge: Gauge
    labels: tuple[str, ...]
    value: float


@dataclass
class FleetMetricsController:
    """Export the gauges of the fleet; the controller writes no objects."""

    context: ControllerContext
    name: str = "figures"
    _last_run_at: float = field(default=float("-inf"))
    # The exported series: a series whose object no longer exists is removed from the gauge.
    _exported: set[tuple[Gauge, tuple[str, ...]]] = field(default_factory=set)

    def loop(self) -> Loop:
        caches = (self.context.cache(kind) for kind in (LatticePool, LatticeLedger, LatticeService))
        sources = tuple(Source(cache, lambda _: (METRICS_KEY,)) for cache in caches)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: (METRICS_KEY,),
            sources,
            Concurrency(workers=1),
        )

    async def reconcile(self, key: str) -> Requeue | None:
        now = self.context.clock.monotonic()
        if (wait := self._last_run_at + METRICS_INTERVAL_S - now) > 0:
            return Requeue(wait)
        self._last_run_at = now
        samples: list[MetricSample] = []
        counts = Counter(
            (pending_verdict(service), reason_of(service))
            for service in self.context.cache(LatticeService).objects()
        )
        for (verdict, reason), count in counts.items():
            if verdict:
                samples.append(MetricSample(metrics.PENDING_SERVICES, (verdict, reason), count))
        wall_time = self.context.clock.now()
        for ledger in self.context.cache(LatticeLedger).objects():
            budget = ledger.spec.budget
            pool_name = budget.name if budget.kind == LatticePool.resource.kind else ""
            series, status = (ledger.metadata.name, pool_name), budget_status(ledger, wall_time)
            samples += [
                MetricSample(metrics.BUDGET_COMMITTED, series, ledger.status.committed_micros / MICRO),
                MetricSample(metrics.BUDGET_SPENT, series, status.spent / MICRO),
                MetricSample(metrics.BUDGET_PROJECTED, series, status.projected / MICRO),
            ]
            if status.limit is not None:
                samples.append(MetricSample(metrics.BUDGET_LIMIT, series, status.limit / MICRO))
        for pool in self.context.cache(LatticePool).objects():
            utilization = pool.status.utilization
            for resource in ("nodes", "cores", "memory") if utilization is not None else ():
                if (share := getattr(utilization, resource)) is not None:
                    series = (pool.metadata.name, resource)
                    samples.append(MetricSample(metrics.POOL_UTILIZATION, series, float(share)))
        for gauge, labels, value in samples:
            gauge.labels(*labels).set(value)
        exported = {(gauge, labels) for gauge, labels, _ in samples}
        for gauge, labels in self._exported - exported:
            gauge.remove(*labels)
        self._exported = exported
        return Requeue(SPEND_REFRESH_S)


def pending_verdict(service: LatticeService) -> str:
    """The verdict of a service that waits for placement; empty if the service is placed or terminating."""
    if service.metadata.deletion_timestamp:
        return ""
    placed = sum(placement.replicas or 0 for placement in service.status.placements)
    decision = service.status.scheduler_decision
    if decision is None or not decision.verdict:
        return UNDECIDED if placed < service.spec.desired_replicas() else ""
    return "" if decision.verdict == "Placed" else decision.verdict


def reason_of(service: LatticeService) -> str:
    """The reason of the condition Placed; the number of reasons is small, so the reason is a safe metrics
    label."""
    placed = find_condition(service.status.conditions, PLACED_CONDITION)
    return placed.reason if placed is not None else ""
