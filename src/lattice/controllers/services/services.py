"""Services -> where their replicas go: one after the other, each written in one commit with the machines that it takes and what they cost.

One key stands for the whole fleet, since where one service goes depends on where all others are; `plan` asks the same functions.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.services.ledger_commit import OverBudget
from lattice.controllers.services.placement_writer import PlacementWriter
from lattice.controllers.services.world_cache import (
    CONFIG_KINDS,
    PricingTables,
    WorldCache,
    is_spec_or_metadata_change,
)
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, SchedulerDecision
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import (
    NO_NODE_FITS,
    ReplicaObservation,
    SchedulingTimeout,
    observe_replicas,
)
from lattice.placement.greedy.commit_stages import StagedDecision, decide_stages
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.costs import paid_machines
from lattice.placement.model.world import World
from lattice.placement.status.placement_conditions import (
    PlacementStatus,
    decide_with_verdict,
    placement_status,
)
from lattice.placement.status.service_status import digest_of, fleet_digest
from lattice.store.protocol import Change

FLEET_KEY = "fleet"
OVER_BUDGET = "OverBudget"
UNSCHEDULABLE_GRACE_S = 10.0  # seconds that a workload which no node takes is left to wait for room
UNSETTLED_RECHECK_S = 5.0  # seconds until replicas that are not where they should be yet are looked at again
MIN_IDLE_RATIO = 20  # and at least so many times as long as it took to think
_NO_NODE_FITS_BYTES = NO_NODE_FITS.encode()
PLACEMENT_TIMEOUT_S = 600.0  # seconds that deciding and writing everything may take
BackgroundRunner = Callable[[Callable[[], Any]], Awaitable[Any]]


async def run_inline(think: Callable[[], Any]) -> Any:
    return think()


def builtin_pricing_tables() -> PricingTables:
    return (PriceBook.builtin(), "", "")


@dataclass(frozen=True)
class PlacementOutcome:
    """What was decided, and what is to be said of every service."""

    decided: StagedDecision
    service_reports: Mapping[str, PlacementStatus]


@dataclass
class PlacementController:
    """`aside`: where to think about a large fleet without holding up everybody else, such as `aside.py`."""

    context: ControllerContext
    pricing_tables: Callable[[], PricingTables] = builtin_pricing_tables
    adapters: frozenset[str] | None = None
    run_in_background: BackgroundRunner = run_inline
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    resync_s: float = 30.0
    name: str = "services"
    _decision_cache: dict[str, tuple[Hashable, SchedulerDecision]] = field(
        default_factory=dict
    )  # by service: on what grounds, and how

    def __post_init__(self) -> None:
        self._world_cache = WorldCache(self.context, self.pricing_tables, self.adapters)
        self._writer = PlacementWriter(self.context)
        self._has_unplaced = self._has_unsettled = True
        self._last_duration_s = 0.0

    def loop(self) -> Loop:
        stated = [Source(self.context.cache(kind), self._keys_for_config) for kind in CONFIG_KINDS]
        made = [
            Source(self.context.cache(LatticeCluster), self._keys_for_state),
            Source(self.context.cache(LatticeLedger), self._keys_for_state),
            Source(self.context.cache(LatticeNode), self._keys_for_state),
            Source(self.context.cache(LatticeWorkload), self._keys_for_workload),
        ]
        services = Source(self.context.cache(LatticeService), self._keys_for_config)
        pace = Concurrency(workers=1, resync_s=self.resync_s, timeout_s=PLACEMENT_TIMEOUT_S)
        return Loop(
            self, self.context.clock, self.context.rng, lambda: (FLEET_KEY,), [services, *stated, *made], pace
        )

    def _keys_for_config(self, change: Change) -> Iterable[str]:
        return (FLEET_KEY,) if is_spec_or_metadata_change(change) else ()

    def _keys_for_state(self, _: Change) -> Iterable[str]:
        """Whoever waits for room or money may get it now."""
        return (FLEET_KEY,) if self._has_unplaced else ()

    def _keys_for_workload(self, change: Change) -> Iterable[str]:
        """One that no node takes, and that nobody here waits for yet."""
        if self._has_unsettled or not change.value or _NO_NODE_FITS_BYTES not in change.value:
            return ()
        found = self.context.cache(LatticeWorkload).get(change.key.path)
        self._has_unsettled = found is not None and bool(found.spec.service)
        return (FLEET_KEY,) if self._has_unsettled else ()

    async def reconcile(self, _: str) -> Requeue | None:
        if not (self._world_cache.has_changes or self._has_unplaced or self._has_unsettled):
            return None
        await self._world_cache.catch_up()
        refused: dict[str, OverBudget] = {}
        while True:
            outcome = await self._decide(refused)
            refusal = await self._writer.write(outcome.decided, outcome.service_reports)
            if refusal is None:
                break
            refused |= dict.fromkeys(refusal.services, refusal.over_budget)
            await self._world_cache.catch_up()
        _count(outcome)
        decided = outcome.decided
        self._has_unplaced = bool(refused) or any(each.missing for each in decided.placements.values())
        self._has_unsettled = bool(decided.unsettled_clusters or decided.stages)
        return (
            Requeue(max(UNSETTLED_RECHECK_S, MIN_IDLE_RATIO * self._last_duration_s))
            if self._has_unsettled
            else None
        )

    async def _decide(self, refused: Mapping[str, OverBudget]) -> PlacementOutcome:
        office = self.context
        now = office.clock.now()
        services, workloads = office.cache(LatticeService).objects(), office.cache(LatticeWorkload).objects()
        nodes, paid = (
            office.cache(LatticeNode).objects(),
            list(paid_machines(office.cache(LatticeLedger).objects()).values()),
        )
        world = self._world_cache.world(now)
        patience = SchedulingTimeout(now, timedelta(seconds=self.unschedulable_grace_s))

        def think() -> PlacementOutcome:
            return self._decide_sync(
                world, observe_replicas(services, workloads, nodes, patience, paid), refused
            )

        began = office.clock.monotonic()
        found: PlacementOutcome = await self.run_in_background(think)
        self._last_duration_s = office.clock.monotonic() - began
        return found

    def _decide_sync(
        self, world: World, seen: ReplicaObservation, refused: Mapping[str, OverBudget]
    ) -> PlacementOutcome:
        decided = decide_stages(
            world, seen, excluded_services=refused, over_budget=self._writer.over_budget_groups
        )
        state = fleet_digest(decided.fleet) if decided.placements or refused else ""
        decisions = {
            name: self._decision_for(decided, each, state) for name, each in decided.placements.items()
        }
        decisions |= {name: _over_budget(over, world, name, state) for name, over in refused.items()}
        self._decision_cache = {
            name: each for name, each in self._decision_cache.items() if name in world.services
        }
        return PlacementOutcome(
            decided,
            {
                name: placement_status(service, decided, decisions.get(name))
                for name, service in world.services.items()
            },
        )

    def _decision_for(self, decided: StagedDecision, placement: Placement, state: str) -> SchedulerDecision:
        """What was judged on the same grounds stands. Money that trickles away is none: the same words would be said of other amounts."""
        name, digest = placement.demand.name, digest_of(placement.demand, state)
        grounds = (digest, *((each.name, each.limit) for each in decided.fleet.budgets.values()))
        before, known = decided.world.services[name].status.scheduler_decision, self._decision_cache.get(name)
        if known is None and before is not None and before.digest == digest:
            known = (grounds, before)
        if known is None or known[0] != grounds:
            fresh = decide_with_verdict(placement, decided.fleet, decided.world.services, state)
            known = (grounds, before if before is not None and _has_same_text(before, fresh) else fresh)
        self._decision_cache[name] = known
        return known[1]


def _has_same_text(one: SchedulerDecision, other: SchedulerDecision) -> bool:
    return (one.verdict, one.reason, one.alternatives, one.required) == (
        other.verdict,
        other.reason,
        other.alternatives,
        other.required,
    )


def _count(outcome: PlacementOutcome) -> None:
    for name in outcome.decided.placements:
        decision = outcome.service_reports[name].status.scheduler_decision
        verdict = decision.verdict if decision else "Placed"
        metrics.SCHEDULING_RESULTS.labels("placed" if verdict == "Placed" else "refused", verdict).inc()


def _over_budget(over: OverBudget, world: World, name: str, state: str) -> SchedulerDecision:
    """What the ledgers said; again on the same grounds, in the words of the first time."""
    before, digest = world.services[name].status.scheduler_decision, digest_of(world.demands[name], state)
    if before is not None and (before.verdict, before.digest) == (OVER_BUDGET, digest):
        return before
    return SchedulerDecision(verdict=OVER_BUDGET, reason=str(over), digest=digest)
