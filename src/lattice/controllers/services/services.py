"""Services -> where their replicas go: one after the other, each written in one commit with the machines that it takes and what they cost.

One key stands for the whole fleet, since where one service goes depends on where all others are; `plan` asks the same functions.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lattice import metrics
from lattice.controllers.services.ledger_commit import OverBudget
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.services.placement_writer import Placing
from lattice.controllers.services.world_cache import RULES, Survey, Tables, is_news
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, SchedulerDecision
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.charges import paid_for
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.price_book import PriceBook
from lattice.lifecycle.replica_state import NO_NODE_FITS, Patience, Seen, look
from lattice.placement.greedy.commit_stages import Decided, decide_stages
from lattice.placement.status.placement_conditions import Said, judged, said
from lattice.placement.status.service_status import digest_of, state_of
from lattice.placement.model.world import World
from lattice.store.protocol import Change

FLEET = "fleet"
OVER_BUDGET = "OverBudget"
GRACE = 10.0  # seconds that a workload which no node takes is left to wait for room
UNDER_WAY = 5.0  # seconds until replicas that are not where they should be yet are looked at again
SHARE = 20  # and at least so many times as long as it took to think
_NO_NODE = NO_NODE_FITS.encode()
PATIENCE = 600.0  # seconds that deciding and writing everything may take
Aside = Callable[[Callable[[], Any]], Awaitable[Any]]


async def here(think: Callable[[], Any]) -> Any:
    return think()


def built_in() -> Tables:
    return (PriceBook.builtin(), "", "")


@dataclass(frozen=True)
class Outcome:
    """What was decided, and what is to be said of every service."""

    decided: Decided
    said: Mapping[str, Said]


@dataclass
class Services:
    """`aside`: where to think about a large fleet without holding up everybody else, such as `aside.py`."""

    office: Office
    tables: Callable[[], Tables] = built_in
    adapters: frozenset[str] | None = None
    aside: Aside = here
    grace: float = GRACE
    resync: float = 30.0
    name: str = "services"
    _judged: dict[str, tuple[Hashable, SchedulerDecision]] = field(
        default_factory=dict
    )  # by service: on what grounds, and how

    def __post_init__(self) -> None:
        self._survey = Survey(self.office, self.tables, self.adapters)
        self._placing = Placing(self.office)
        self._is_waiting = self._is_under_way = True
        self._took = 0.0

    def loop(self) -> Loop:
        stated = [Source(self.office.copy(kind), self._of_rule) for kind in RULES]
        made = [
            Source(self.office.copy(LatticeCluster), self._of_made),
            Source(self.office.copy(LatticeLedger), self._of_made),
            Source(self.office.copy(LatticeNode), self._of_made),
            Source(self.office.copy(LatticeWorkload), self._of_replica),
        ]
        services = Source(self.office.copy(LatticeService), self._of_rule)
        pace = Pace(workers=1, resync=self.resync, patience=PATIENCE)
        return Loop(
            self, self.office.clock, self.office.rng, lambda: (FLEET,), [services, *stated, *made], pace
        )

    def _of_rule(self, change: Change) -> Iterable[str]:
        return (FLEET,) if is_news(change) else ()

    def _of_made(self, _: Change) -> Iterable[str]:
        """Whoever waits for room or money may get it now."""
        return (FLEET,) if self._is_waiting else ()

    def _of_replica(self, change: Change) -> Iterable[str]:
        """One that no node takes, and that nobody here waits for yet."""
        if self._is_under_way or not change.value or _NO_NODE not in change.value:
            return ()
        found = self.office.copy(LatticeWorkload).get(change.key.path)
        self._is_under_way = found is not None and bool(found.spec.service)
        return (FLEET,) if self._is_under_way else ()

    async def reconcile(self, _: str) -> Again | None:
        if not (self._survey.has_news or self._is_waiting or self._is_under_way):
            return None
        await self._survey.catch_up()
        refused: dict[str, OverBudget] = {}
        while True:
            outcome = await self._decide(refused)
            refusal = await self._placing.write(outcome.decided, outcome.said)
            if refusal is None:
                break
            refused |= dict.fromkeys(refusal.services, refusal.over)
            await self._survey.catch_up()
        _count(outcome)
        decided = outcome.decided
        self._is_waiting = bool(refused) or any(each.missing for each in decided.placements.values())
        self._is_under_way = bool(decided.unsettled or decided.stages)
        return Again(max(UNDER_WAY, SHARE * self._took)) if self._is_under_way else None

    async def _decide(self, refused: Mapping[str, OverBudget]) -> Outcome:
        office = self.office
        now = office.clock.now()
        services, workloads = office.copy(LatticeService).all(), office.copy(LatticeWorkload).all()
        nodes, paid = (
            office.copy(LatticeNode).all(),
            list(paid_for(office.copy(LatticeLedger).all()).values()),
        )
        world = self._survey.world(now)
        patience = Patience(now, timedelta(seconds=self.grace))

        def think() -> Outcome:
            return self._thought(world, look(services, workloads, nodes, patience, paid), refused)

        began = office.clock.monotonic()
        found: Outcome = await self.aside(think)
        self._took = office.clock.monotonic() - began
        return found

    def _thought(self, world: World, seen: Seen, refused: Mapping[str, OverBudget]) -> Outcome:
        decided = decide_stages(world, seen, but=refused, too_dear=self._placing.too_dear)
        state = state_of(decided.fleet) if decided.placements or refused else ""
        decisions = {name: self._judge(decided, each, state) for name, each in decided.placements.items()}
        decisions |= {name: _over_budget(over, world, name, state) for name, over in refused.items()}
        self._judged = {name: each for name, each in self._judged.items() if name in world.services}
        return Outcome(
            decided,
            {name: said(service, decided, decisions.get(name)) for name, service in world.services.items()},
        )

    def _judge(self, decided: Decided, placement: Placement, state: str) -> SchedulerDecision:
        """What was judged on the same grounds stands. Money that trickles away is none: the same words would be said of other amounts."""
        name, digest = placement.demand.name, digest_of(placement.demand, state)
        grounds = (digest, *((each.name, each.limit) for each in decided.fleet.budgets.values()))
        before, known = decided.world.services[name].status.scheduler_decision, self._judged.get(name)
        if known is None and before is not None and before.digest == digest:
            known = (grounds, before)
        if known is None or known[0] != grounds:
            fresh = judged(placement, decided.fleet, decided.world.services, state)
            known = (grounds, before if before is not None and _same_words(before, fresh) else fresh)
        self._judged[name] = known
        return known[1]


def _same_words(one: SchedulerDecision, other: SchedulerDecision) -> bool:
    return (one.verdict, one.reason, one.alternatives, one.required) == (
        other.verdict,
        other.reason,
        other.alternatives,
        other.required,
    )


def _count(outcome: Outcome) -> None:
    for name in outcome.decided.placements:
        decision = outcome.said[name].status.scheduler_decision
        verdict = decision.verdict if decision else "Placed"
        metrics.ATTEMPTS.labels("placed" if verdict == "Placed" else "refused", verdict).inc()


def _over_budget(over: OverBudget, world: World, name: str, state: str) -> SchedulerDecision:
    """What the ledgers said; again on the same grounds, in the words of the first time."""
    before, digest = world.services[name].status.scheduler_decision, digest_of(world.demands[name], state)
    if before is not None and (before.verdict, before.digest) == (OVER_BUDGET, digest):
        return before
    return SchedulerDecision(verdict=OVER_BUDGET, reason=str(over), digest=digest)
