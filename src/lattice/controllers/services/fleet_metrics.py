"""Metrics about the fleet: who waits for a place, where budgets stand, how full pools are. Told by the leader, from its copies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import Gauge

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import budget_status

METRICS_KEY = "figures"  # the one key
METRICS_INTERVAL_S = 2.0  # seconds between two looks
SPEND_REFRESH_S = 30.0  # seconds after which spending is told anew, though nothing has changed
MICRO = 1_000_000
UNDECIDED = "Undecided"
PLACED = "Placed"  # the condition


class MetricSample(NamedTuple):
    gauge: Gauge
    labels: tuple[str, ...]
    value: float


@dataclass
class FleetMetricsController:
    """Writes nothing."""

    context: ControllerContext
    name: str = "figures"
    _last_run_at: float = field(default=float("-inf"))
    _exported: set[tuple[Gauge, tuple[str, ...]]] = field(
        default_factory=set
    )  # what is gone is not told of any more

    def loop(self) -> Loop:
        copies = (self.context.cache(kind) for kind in (LatticePool, LatticeLedger, LatticeService))
        sources = tuple(Source(copy, lambda _: (METRICS_KEY,)) for copy in copies)
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
        found = [*self._pending_services(), *self._budgets(), *self._pools()]
        for gauge, labels, value in found:
            gauge.labels(*labels).set(value)
        told = {(gauge, labels) for gauge, labels, _ in found}
        for gauge, labels in self._exported - told:
            gauge.remove(*labels)
        self._exported = told
        return Requeue(SPEND_REFRESH_S)

    def _pending_services(self) -> Iterator[MetricSample]:
        found = Counter(
            (pending_verdict(each), reason_of(each)) for each in self.context.cache(LatticeService).objects()
        )
        for (verdict, reason), count in found.items():
            if verdict:
                yield MetricSample(metrics.PENDING_SERVICES, (verdict, reason), count)

    def _budgets(self) -> Iterator[MetricSample]:
        now = self.context.clock.now()
        for each in self.context.cache(LatticeLedger).objects():
            budget = each.spec.budget
            pool = budget.name if budget.kind == LatticePool.resource.kind else ""
            labels, stands = (each.metadata.name, pool), budget_status(each, now)
            yield MetricSample(metrics.BUDGET_COMMITTED, labels, each.status.committed_micros / MICRO)
            yield MetricSample(metrics.BUDGET_SPENT, labels, stands.spent / MICRO)
            yield MetricSample(metrics.BUDGET_PROJECTED, labels, stands.projected / MICRO)
            if stands.limit is not None:
                yield MetricSample(metrics.BUDGET_LIMIT, labels, stands.limit / MICRO)

    def _pools(self) -> Iterator[MetricSample]:
        for each in self.context.cache(LatticePool).objects():
            use = each.status.utilization
            for resource in ("nodes", "cores", "memory") if use is not None else ():
                if (share := getattr(use, resource)) is not None:
                    yield MetricSample(metrics.POOL_UTILIZATION, (each.metadata.name, resource), float(share))


def pending_verdict(service: LatticeService) -> str:
    """Why it waits, in one word; empty if it does not, or is on its way out."""
    if service.metadata.deletion_timestamp:
        return ""
    placed = sum(each.replicas or 0 for each in service.status.placements)
    decision = service.status.scheduler_decision
    if decision is None or not decision.verdict:
        return UNDECIDED if placed < service.spec.desired_replicas() else ""
    return "" if decision.verdict == "Placed" else decision.verdict


def reason_of(service: LatticeService) -> str:
    """Of its condition Placed: one word, of which there are few."""
    return next((each.reason for each in service.status.conditions if each.type == PLACED), "")
