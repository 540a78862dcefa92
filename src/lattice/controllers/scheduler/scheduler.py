"""The scheduler loop: decide batches of workloads on a node table that follows the caches, and bind the
workloads in fenced commits."""

import asyncio
import random
from functools import partial
from typing import ClassVar

from lattice import metrics
from lattice import tracing as traces
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue
from lattice.controllers.scheduler.awaiting_victims import AwaitingVictims
from lattice.controllers.scheduler.binding_cycle import BindingCycle
from lattice.controllers.scheduler.binding_store import PersistentBindingStore
from lattice.controllers.scheduler.changed_objects import ChangedObjects
from lattice.controllers.scheduler.disruption_budgets import DisruptionBudgets
from lattice.controllers.scheduler.pending_decisions import PendingDecisions
from lattice.controllers.scheduler.table_updater import TableUpdater
from lattice.controllers.scheduler.unschedulable import BindFailureReporter, UnschedulableReporter
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.scheduling.cycle.binder import BindingMode
from lattice.scheduling.cycle.cycle import CycleResult, compose
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, ProfileSpec
from lattice.scheduling.cycle.reservation_record import holder_name
from lattice.scheduling.cycle.scheduler_cache import SchedulerCache
from lattice.scheduling.cycle.scheduling_queue import largest_first
from lattice.scheduling.plugins.cluster_events import ClusterEvent as Wakes
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk

# Workloads per batch; the next batch is decided while this batch is written. If every workload of a batch
# goes to a different node, the batch needs 12 commits.
BATCH_SIZE = 396
MAX_BATCHES_PER_RECONCILE = 50
# Limit of batches that are written at the same time.
MAX_BATCHES_IN_FLIGHT = 3
# The interval at which stored reservations are checked for a binding attempt that has ended.
ORPHANED_RESERVATION_POLL_S = 1.0


class SchedulingController:
    """Schedule and bind all pending workloads: update the table, decide a batch, bind the batch, report.

    `previous_table` is the node table of an earlier term, if any. `evictions` holds the evictions that
    all controllers have decided, those of preemption among them. `standalone_profile` scores nodes for
    workloads without a service; None applies the profile of services.
    """

    name: ClassVar[str] = "scheduling"

    def __init__(
        self,
        context: ControllerContext,
        profile: ProfileSpec = PRESETS[DEFAULT_PROFILE],
        previous_table: NodeTable | None = None,
        evictions: DecidedEvictions | None = None,
        standalone_profile: ProfileSpec | None = None,
    ) -> None:
        self.context, self.previous_table = context, previous_table
        self.table = NodeTable(profile.seed)
        self.evictions = evictions or DecidedEvictions()
        term = context.term
        holder = holder_name(term.role, term.holder, term.number)
        # Seeded by the profile: equal inputs give equal decisions.
        rng = random.Random(profile.seed)  # noqa: S311
        self.scheduler = compose(profile, self.table, rng, holder, standalone_profile, self.evictions)
        self.profiles = {self.scheduler.profile: profile}
        if self.scheduler.standalone_profile and standalone_profile:
            self.profiles[self.scheduler.standalone_profile] = standalone_profile
        self.disruption_budgets = DisruptionBudgets(context, self.evictions)
        self.scheduler.preemptor = Preemptor(
            self.table, self.scheduler.profile, self.disruption_budgets.budget, partial(_age, context)
        )
        self.pending_decisions = PendingDecisions(context, self.table, self.profiles)
        self.scheduler.on_decided = self.pending_decisions.record
        self.scheduler_cache = SchedulerCache(self.scheduler)
        binding_store = PersistentBindingStore(
            context,
            self.pending_decisions.details_for,
            self.scheduler_cache.has_placed_ask,
            self.scheduler_cache.reflects_node,
        )
        self.unschedulable_reporter = UnschedulableReporter(
            binding_store.records, self.scheduler, self.profiles
        )
        self.bind_failure_reporter = BindFailureReporter(binding_store.records)
        self.changes = ChangedObjects()
        self.binding_cycle = BindingCycle(
            self.scheduler_cache,
            binding_store,
            BindingMode(profile.binding),
            self.changes,
            self.pending_decisions,
            self.bind_failure_reporter,
        )
        self.awaiting_victims = AwaitingVictims(
            self.scheduler, self.scheduler_cache.queue, context.clock.monotonic
        )
        self.table_updater = TableUpdater(
            context,
            self.scheduler_cache,
            self.binding_cycle,
            self.awaiting_victims,
            self.disruption_budgets,
            self.unschedulable_reporter,
        )

    def loop(self) -> Loop:
        updater = self.table_updater
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            updater.list_keys,
            updater.sources(),
            Concurrency(workers=1),
        )

    async def reconcile(self, key: str) -> Requeue | None:
        """Decide every batch on the table as the previous batch left it, while earlier batches are being
        written; then write reports and counts."""
        in_flight: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_BATCHES_PER_RECONCILE):
                await self._apply_changes()
                cycle = self._decide()
                if cycle is None:
                    break
                in_flight.add(group.create_task(self._bind_cycle(cycle)))
                # Let the commit of this batch start before the next batch is decided.
                await asyncio.sleep(0)
                if len(in_flight) == MAX_BATCHES_IN_FLIGHT:
                    _, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
        await self.binding_cycle.settle_orphaned()
        # The workload controller stops and unbinds the marked victims of preemption.
        if victims := {path: node for node, path, _ in self.evictions.victims()}:
            await self.unschedulable_reporter.mark_evicted(victims)
        await self.unschedulable_reporter.report(self.scheduler_cache.queue)
        await self.bind_failure_reporter.report()
        await self.binding_cycle.batch_binder.write_counts(self.table_updater.pop_recounts())
        now = self.context.clock.monotonic()
        due = [
            due_at
            for due_at in (
                self.scheduler_cache.next_due_at(),
                self.bind_failure_reporter.next_report_at,
                self.unschedulable_reporter.next_event_at,
            )
            if due_at is not None
        ]
        due += self.awaiting_victims.expiry_times()
        if self.scheduler_cache.reservation_records:
            due.append(now + ORPHANED_RESERVATION_POLL_S)
        if self.changes:
            due.append(now)
        return Requeue(max(0.0, min(due) - now)) if due else None

    async def _apply_changes(self) -> None:
        """Update the table from the caches. The first update takes over the statistics of GPU requests that
        the table of the previous term has learned (scheduling/table/gpu_demand.py)."""
        await self.table_updater.update()
        if self.previous_table is not None:
            self.table.gpu_demand.copy_progress_from(self.previous_table.gpu_demand)
            self.previous_table = None

    def _decide(self) -> CycleResult | None:
        """Decide the next batch, and add the preemptors whose victims have left to the workloads to bind;
        None if there is no work."""
        now, queue = self.context.clock.monotonic(), self.scheduler_cache.queue
        batch = self._without_unsettled_gangs(largest_first(queue.pop_batch(now, BATCH_SIZE)), now)
        if not batch and not self.awaiting_victims.by_path:
            return None
        with (
            metrics.SCHEDULING_SECONDS.labels("decide").time(),
            traces.span("schedule", term=self.context.term.number) as span,
        ):
            revision = self.context.cache(LatticeNode).revision
            # A budget is spent within one cycle; the next cycle computes the budget again.
            self.disruption_budgets.reset()
            for run in batch:
                self.pending_decisions.forget(ask.name for ask in run)
                metrics.SCHEDULING_ATTEMPTS.inc(len(run))
            cycle = self.scheduler.cycle(batch, now)
            for reservation in cycle.expired:
                self.awaiting_victims.requeue_expired(reservation.workload, now)
            self.unschedulable_reporter.record_cycle(cycle, queue, now, revision)
            self.awaiting_victims.add(cycle.scheduled)
            self.changes.add_workloads(self.awaiting_victims.release_evicted())
            cycle.scheduled = self.awaiting_victims.pop_ready()
            self.binding_cycle.begin(cycle.scheduled)
            if span.is_recording:
                span.set_attributes(
                    workloads=traces.first_paths([ask.name for run in batch for ask in run]),
                    placed=len(cycle.scheduled),
                )
            return cycle if cycle.scheduled or batch else None

    def _without_unsettled_gangs(self, batch: list[list[WorkloadAsk]], now: float) -> list[list[WorkloadAsk]]:
        """The batch without gangs that have reservations of another attempt; these gangs wait until the
        attempt is settled."""
        unsettled = self.scheduler_cache.in_doubt_gangs() if self.scheduler_cache.reservation_records else ()
        for run in batch:
            for ask in run:
                if ask.group in unsettled:
                    self.scheduler_cache.queue.requeue_unschedulable(
                        ask.name, {Wakes.WORKLOAD_GONE, Wakes.WORKLOAD_ADDED}, now
                    )
        return [run for run in batch if run[0].group not in unsettled]

    async def _bind_cycle(self, cycle: CycleResult) -> None:
        try:
            with (
                metrics.SCHEDULING_SECONDS.labels("bind").time(),
                traces.span("bind", term=self.context.term.number) as span,
            ):
                if span.is_recording:
                    names = [scheduled.ask.name for scheduled in cycle.scheduled]
                    span.set_attributes(workloads=traces.first_paths(names))
                await self.binding_cycle.bind(cycle.scheduled)
        finally:
            self.binding_cycle.requeue_unbound(cycle.scheduled)


def _age(context: ControllerContext, name: str) -> float:
    """The age of the workload in seconds."""
    workload = context.cache(LatticeWorkload).get(name)
    created_at = workload.metadata.creation_timestamp if workload else None
    if not created_at:
        return 0.0
    return (context.clock.now() - parse_timestamp(created_at)).total_seconds()
