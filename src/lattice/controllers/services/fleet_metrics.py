"""Metrics about the fleet: who waits for a place, where budgets stand, how full pools are. Told by the leader, from its copies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import Gauge

from lattice import metrics
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import standing

ALL = "figures"  # the one key
PAUSE = 2.0  # seconds between two looks
MONEY_MOVES = 30.0  # seconds after which spending is told anew, though nothing has changed
MICRO = 1_000_000
UNDECIDED = "Undecided"
PLACED = "Placed"  # the condition


class Figure(NamedTuple):
    gauge: Gauge
    labels: tuple[str, ...]
    value: float


@dataclass
class Figures:
    """Writes nothing."""

    office: Office
    name: str = "figures"
    _looked: float = field(default=float("-inf"))
    _told: set[tuple[Gauge, tuple[str, ...]]] = field(
        default_factory=set
    )  # what is gone is not told of any more

    def loop(self) -> Loop:
        copies = (self.office.copy(kind) for kind in (LatticePool, LatticeLedger, LatticeService))
        sources = tuple(Source(copy, lambda _: (ALL,)) for copy in copies)
        return Loop(self, self.office.clock, self.office.rng, lambda: (ALL,), sources, Pace(workers=1))

    async def reconcile(self, key: str) -> Again | None:
        now = self.office.clock.monotonic()
        if (wait := self._looked + PAUSE - now) > 0:
            return Again(wait)
        self._looked = now
        found = [*self._waiting(), *self._budgets(), *self._pools()]
        for gauge, labels, value in found:
            gauge.labels(*labels).set(value)
        told = {(gauge, labels) for gauge, labels, _ in found}
        for gauge, labels in self._told - told:
            gauge.remove(*labels)
        self._told = told
        return Again(MONEY_MOVES)

    def _waiting(self) -> Iterator[Figure]:
        found = Counter(
            (verdict_of(each), reason_of(each)) for each in self.office.copy(LatticeService).all()
        )
        for (verdict, reason), count in found.items():
            if verdict:
                yield Figure(metrics.PENDING_SERVICES, (verdict, reason), count)

    def _budgets(self) -> Iterator[Figure]:
        now = self.office.clock.now()
        for each in self.office.copy(LatticeLedger).all():
            budget = each.spec.budget
            pool = budget.name if budget.kind == LatticePool.resource.kind else ""
            labels, stands = (each.metadata.name, pool), standing(each, now)
            yield Figure(metrics.BUDGET_COMMITTED, labels, each.status.committed_micros / MICRO)
            yield Figure(metrics.BUDGET_SPENT, labels, stands.spent / MICRO)
            yield Figure(metrics.BUDGET_PROJECTED, labels, stands.projected / MICRO)
            if stands.limit is not None:
                yield Figure(metrics.BUDGET_LIMIT, labels, stands.limit / MICRO)

    def _pools(self) -> Iterator[Figure]:
        for each in self.office.copy(LatticePool).all():
            use = each.status.utilization
            for resource in ("nodes", "cores", "memory") if use is not None else ():
                if (share := getattr(use, resource)) is not None:
                    yield Figure(metrics.POOL_UTILIZATION, (each.metadata.name, resource), float(share))


def verdict_of(service: LatticeService) -> str:
    """Why it waits, in one word; empty if it does not, or is on its way out."""
    if service.metadata.deletion_timestamp:
        return ""
    placed = sum(each.replicas or 0 for each in service.status.placements)
    decision = service.status.scheduler_decision
    if decision is None or not decision.verdict:
        return UNDECIDED if placed < service.spec.wanted() else ""
    return "" if decision.verdict == "Placed" else decision.verdict


def reason_of(service: LatticeService) -> str:
    """Of its condition Placed: one word, of which there are few."""
    return next((each.reason for each in service.status.conditions if each.type == PLACED), "")
