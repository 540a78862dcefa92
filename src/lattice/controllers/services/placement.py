"""Place services: decide pools and clusters for replicas, and commit every placement together with its
machines and charges.

One key stands for the whole fleet, because the placement of a service depends on the placements of the other
services. `plan` calls the same functions.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.services.ledger_commit import (
    CommittedPayment,
    LedgerCommitter,
    LedgerUpdate,
    OverBudget,
    Payment,
)
from lattice.controllers.services.observed_machines import ObservedMachineRecorder
from lattice.controllers.services.placement_writer import PlacementWriter
from lattice.controllers.services.world_cache import (
    AdapterLookup,
    WorldCache,
    is_spec_or_metadata_change,
)
from lattice.errors import Invalid, NotFound
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, SchedulerDecision
from lattice.kinds.workload import NO_NODE_FITS, LatticeWorkload
from lattice.lifecycle.replica_observation import (
    SchedulingTimeout,
    observe_replicas,
)
from lattice.placement.feed.placement_input import CONFIG_KINDS, PricingTables
from lattice.placement.greedy.commit_stages import StagedDecision, decide_stages
from lattice.placement.greedy.fresh_plan import (
    clusters_of_paused_updates,
    compare_with_fresh_plan,
    is_comparable,
)
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.costs import paid_machines
from lattice.placement.status.fleet_status import digest_of, fleet_digest
from lattice.placement.status.placement_conditions import (
    PlacementStatus,
    decide_with_verdict,
    placement_status,
)
from lattice.placement.status.refused_purchases import changed_refusals, refused_purchases
from lattice.store.protocol import Change

FLEET_KEY = "fleet"
OVER_BUDGET = "OverBudget"
# The time that a workload without a feasible node waits for free capacity before placement adds a node or
# moves the replica.
UNSCHEDULABLE_GRACE_S = 10.0
# Delay before placement runs again while replicas have not reached their placement.
UNSETTLED_RECHECK_S = 5.0
# A controller of the whole fleet rests for at least this multiple of the duration of its last decision, so
# that the decisions of a large fleet leave CPU time for other work.
MIN_IDLE_RATIO = 20
_NO_NODE_FITS_BYTES = NO_NODE_FITS.encode()
# The longest time to decide and to write the whole fleet.
PLACEMENT_TIMEOUT_S = 600.0
BackgroundRunner = Callable[[Callable[[], Any]], Awaitable[Any]]


async def run_inline(decide: Callable[[], Any]) -> Any:
    """Run the decision on the event loop; for tests and small fleets."""
    return decide()


def builtin_pricing_tables() -> PricingTables:
    """The built-in price book without latency table."""
    return PricingTables(PriceBook.builtin())


@dataclass(frozen=True)
class PlacementOutcome:
    """The decided placements and the status of every service."""

    decided: StagedDecision
    service_reports: Mapping[str, PlacementStatus]


@dataclass
class PlacementController:
    """Reconcile the placement of the whole fleet.

    `run_in_background` runs the CPU-bound decision off the event loop.
    """

    context: ControllerContext
    pricing_tables: Callable[[], PricingTables] = builtin_pricing_tables
    adapters: AdapterLookup | None = None
    run_in_background: BackgroundRunner = run_inline
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    resync_s: float = 30.0
    name: str = "services"
    # By service: the inputs of the decision, and the decision.
    _decision_cache: dict[str, tuple[Hashable, SchedulerDecision]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._world_cache = WorldCache(self.context, self.pricing_tables, self.adapters)
        self._writer = PlacementWriter(self.context)
        self._machine_recorder = ObservedMachineRecorder(self.context)
        self._committer = LedgerCommitter(
            self.context.store, self.context.clock, self.context.term, self.context.new_uid
        )
        self._has_unplaced = self._has_unsettled = True
        self._last_duration_s = 0.0
        # The fleet that was compared last with a fresh plan, and the result.
        self._comparison: tuple[Hashable, Mapping[str, str]] | None = None

    def loop(self) -> Loop:
        config_sources = [Source(self.context.cache(kind), self.keys_for_config) for kind in CONFIG_KINDS]
        state_sources = [
            Source(self.context.cache(LatticeCluster), self.keys_for_state),
            Source(self.context.cache(LatticeLedger), self.keys_for_state),
            Source(self.context.cache(LatticeNode), self.keys_for_state),
            Source(self.context.cache(LatticeWorkload), self.keys_for_workload),
        ]
        service_source = Source(self.context.cache(LatticeService), self.keys_for_config)
        concurrency = Concurrency(workers=1, resync_s=self.resync_s, timeout_s=PLACEMENT_TIMEOUT_S)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: (FLEET_KEY,),
            [service_source, *config_sources, *state_sources],
            concurrency,
        )

    def keys_for_config(self, change: Change) -> Iterable[str]:
        return (FLEET_KEY,) if is_spec_or_metadata_change(change) else ()

    def keys_for_state(self, _: Change) -> Iterable[str]:
        """Wake placement only if services wait for capacity or budget: the change may have freed either."""
        return (FLEET_KEY,) if self._has_unplaced else ()

    def keys_for_workload(self, change: Change) -> Iterable[str]:
        """Wake placement for an unschedulable replica, unless placement rechecks unsettled replicas
        anyway."""
        # A search in the stored bytes avoids decoding every changed workload.
        if self._has_unsettled or not change.value or _NO_NODE_FITS_BYTES not in change.value:
            return ()
        workload = self.context.cache(LatticeWorkload).get(change.key.path)
        self._has_unsettled = workload is not None and bool(workload.spec.service)
        return (FLEET_KEY,) if self._has_unsettled else ()

    async def reconcile(self, _: str) -> Requeue | None:
        # No change and no replica that waits: the decision would be the same.
        if not (self._world_cache.has_changes or self._has_unplaced or self._has_unsettled):
            return None
        await self._world_cache.catch_up()
        # Before the decision: a machine is released only when its report is stored, so that no later leader
        # buys such a machine again.
        await self._machine_recorder.record()
        rejected: dict[str, OverBudget] = {}
        # A ledger may reject a stage: decide again without the rejected services, on fresh caches.
        while True:
            outcome = await self._decide(rejected)
            rejection = await self._writer.write(outcome.decided, outcome.service_reports)
            if rejection is None:
                break
            rejected |= dict.fromkeys(rejection.services, rejection.over_budget)
            await self._world_cache.catch_up()
        decided = outcome.decided
        await self._record_refusals(decided, rejected)
        for name in decided.placements:
            decision = outcome.service_reports[name].status.scheduler_decision
            verdict = decision.verdict if decision else "Placed"
            metrics.SCHEDULING_RESULTS.labels("placed" if verdict == "Placed" else "refused", verdict).inc()
        self._has_unplaced = bool(rejected) or any(
            placement.missing for placement in decided.placements.values()
        )
        self._has_unsettled = bool(decided.unsettled_clusters or decided.stages or decided.surge_returns)
        if not self._has_unsettled:
            return None
        return Requeue(max(UNSETTLED_RECHECK_S, MIN_IDLE_RATIO * self._last_duration_s))

    async def _record_refusals(self, decided: StagedDecision, rejected: Mapping[str, OverBudget]) -> None:
        """Write the purchases that a hard limit refuses now into the ledgers, and remove those that are over."""
        over_budget = {**rejected, **self._writer.rejected_replacements}
        refused = refused_purchases(
            decided, {name: rejection.rejections for name, rejection in over_budget.items()}
        )
        ledgers = self.context.cache(LatticeLedger)
        stored = {ledger.metadata.name: ledger for ledger in ledgers.objects()}
        updates = []
        for name, refusals in changed_refusals(refused, stored.values(), decided.world):
            ledger = stored.get(name)
            account = ledger.spec.budget if ledger is not None else decided.world.supply.budgets[name].account
            updates.append(LedgerUpdate(account, refusals=refusals))
        for update in updates:
            try:
                result = await self._committer.commit_with_charges(Payment([], updates=[update]))
            except (NotFound, Invalid):
                # The budget was deleted since the decision and has no ledger, or an operator must restore the
                # ledger from a backup.
                continue
            if isinstance(result, CommittedPayment):
                await ledgers.wait_for(result.revision)

    async def _decide(self, rejected: Mapping[str, OverBudget]) -> PlacementOutcome:
        context = self.context
        now = context.clock.now()
        # First, since this waits: everything below is read at one moment.
        world = await self._world_cache.world(now)
        services = context.cache(LatticeService).objects()
        workloads = context.cache(LatticeWorkload).objects()
        nodes = context.cache(LatticeNode).objects()
        paid = list(paid_machines(context.cache(LatticeLedger).objects()).values())
        timeout = SchedulingTimeout(now, timedelta(seconds=self.unschedulable_grace_s))

        # Everything that the thread reads is captured here: the caches change while the thread runs.
        def decide() -> PlacementOutcome:
            observation = observe_replicas(services, workloads, nodes, timeout, paid)
            decided = decide_stages(
                world,
                observation,
                excluded_services={name: str(over) for name, over in rejected.items()},
                over_budget=self._writer.over_budget_groups,
            )
            decided.cost_messages = self._cost_messages(decided)
            fleet_state = fleet_digest(decided.fleet) if decided.placements or rejected else ""
            decisions = {
                name: self._decision_for(decided, placement, fleet_state)
                for name, placement in decided.placements.items()
            }
            for name, over_budget in rejected.items():
                digest = digest_of(decided.demands[name], fleet_state)
                decision = world.services[name].status.scheduler_decision
                # If the inputs are the same, the stored decision stays, even if amounts in its text have changed.
                if decision is None or (decision.verdict, decision.digest) != (OVER_BUDGET, digest):
                    decision = SchedulerDecision(verdict=OVER_BUDGET, reason=str(over_budget), digest=digest)
                decisions[name] = decision
            self._decision_cache = {
                name: cached for name, cached in self._decision_cache.items() if name in world.services
            }
            return PlacementOutcome(
                decided,
                {
                    name: placement_status(service, decided, decisions.get(name))
                    for name, service in world.services.items()
                },
            )

        started_at = context.clock.monotonic()
        outcome: PlacementOutcome = await self.run_in_background(decide)
        # Measure the decision only: one slow commit would otherwise lengthen the next intervals for minutes
        # (I-33).
        self._last_duration_s = context.clock.monotonic() - started_at
        return outcome

    def _cost_messages(self, decided: StagedDecision) -> Mapping[str, str] | None:
        """Why the bill is higher than that of a fresh plan, by service; None while something is unsettled, apart
        from updates that wait for capacity. The comparison of an unchanged fleet is reused."""
        if (
            decided.unsettled_clusters - clusters_of_paused_updates(decided.world)
            or decided.changes_placements
            or decided.surge_returns
            or not is_comparable(decided.fleet)
        ):
            return None
        demands = tuple(decided.world.demands.values())
        # Caps and spending of budgets change with time alone, and are no reason to compare again.
        limits = tuple((budget.name, budget.limit) for budget in decided.fleet.ledgers.budgets.values())
        key = (fleet_digest(decided.fleet), demands, limits)
        if self._comparison is None or self._comparison[0] != key:
            self._comparison = (key, compare_with_fresh_plan(decided.world, decided.fleet).messages)
        return self._comparison[1]

    def _decision_for(
        self, decided: StagedDecision, placement: Placement, fleet_state: str
    ) -> SchedulerDecision:
        """Return the decision of a service; a decision with the same inputs is reused.

        Spent money is no input: while the inputs are the same, the decision keeps its text, even if spent
        amounts in the text have changed.
        """
        name, digest = placement.demand.name, digest_of(placement.demand, fleet_state)
        inputs = (digest, *((budget.name, budget.limit) for budget in decided.fleet.ledgers.budgets.values()))
        previous = decided.world.services[name].status.scheduler_decision
        cached = self._decision_cache.get(name)
        # A new leader starts with an empty cache: a stored decision with the same digest stays valid.
        if cached is None and previous is not None and previous.digest == digest:
            cached = (inputs, previous)
        if cached is None or cached[0] != inputs:
            fresh = decide_with_verdict(placement, decided.fleet, decided.world.services, fleet_state)
            cached = (inputs, fresh)
            # If the fleet differs but the text is the same, the stored decision stays and nothing is written
            # (I-33).
            if previous is not None and _text_of(previous) == _text_of(fresh):
                cached = (inputs, previous)
        self._decision_cache[name] = cached
        return cached[1]


def _text_of(decision: SchedulerDecision) -> tuple[object, ...]:
    return (decision.verdict, decision.reason, decision.alternatives, decision.required)
