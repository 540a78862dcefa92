"""The scheduler loop: decide batches of workloads on a node table that follows the caches, and bind the
workloads in fenced commits."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import structlog

from lattice import metrics
from lattice import tracing as traces
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.scheduler.awaiting_victims import AwaitingVictims
from lattice.controllers.scheduler.bind_batches import BatchBinder, Gang
from lattice.controllers.scheduler.binding_records import BindingDetails
from lattice.controllers.scheduler.binding_store import PersistentBindingStore
from lattice.controllers.scheduler.disruption_budgets import DisruptionBudgets
from lattice.controllers.scheduler.unschedulable import BindFailureReporter, UnschedulableReporter
from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.tie_order import tie_rank
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.binder import Binder, BindEvent, BindingMode, BindRequest
from lattice.scheduling.cycle.cycle import CompositeScheduler, CycleResult, ScheduledWorkload, compose
from lattice.scheduling.cycle.decision_record import DecisionRecord, chosen_records
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, ProfileSpec
from lattice.scheduling.cycle.reservation_record import holder_name
from lattice.scheduling.cycle.scheduler_cache import ClockReading, SchedulerCache
from lattice.scheduling.plugins.cluster_events import ClusterEvent as Wakes
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import allocated_ports
from lattice.store.protocol import Change, Entry

# The single key of the controller: all nodes share one table.
NODE_TABLE_KEY = "nodes"
# Workloads per batch; the next batch is decided while this batch is written. On distinct nodes a batch fills
# 12 commits.
BATCH_SIZE = 396
MAX_BATCHES_PER_RECONCILE = 50
# Batches that are written at the same time.
MAX_BATCHES_IN_FLIGHT = 3
# Bindings of several steps that run at the same time.
MAX_CONCURRENT_BINDINGS = 16
# The poll interval of reservations whose attempt has ended.
ORPHANED_RESERVATION_POLL_S = 1.0

log = structlog.get_logger()


@dataclass
class SchedulingController:
    """Schedule and bind all pending workloads.

    `previous_table` is the node table of an earlier term, if any. `standalone_profile` scores nodes for
    workloads without a service; None applies the profile of services.
    """

    context: ControllerContext
    profile: ProfileSpec = PRESETS[DEFAULT_PROFILE]
    previous_table: NodeTable | None = None
    # The reason to evict a workload, for example a drain; empty if there is no reason.
    eviction_reason: Callable[[LatticeWorkload], str] = lambda _: ""
    standalone_profile: ProfileSpec | None = None
    name: ClassVar[str] = "scheduling"

    def __post_init__(self) -> None:
        context, term = self.context, self.context.term
        # Seeded by the profile: equal inputs give equal decisions.
        rng = random.Random(self.profile.seed)  # noqa: S311
        holder, table = holder_name(term.role, term.holder, term.number), NodeTable(self.profile.seed)
        self.scheduler: CompositeScheduler = compose(
            self.profile, table, rng, holder, self.standalone_profile
        )
        self.profiles = {self.scheduler.profile: self.profile}
        if self.scheduler.standalone_profile and self.standalone_profile:
            self.profiles[self.scheduler.standalone_profile] = self.standalone_profile
        self.disruption_budgets = DisruptionBudgets(context, self._victims, self.eviction_reason)
        self.scheduler.preemptor = Preemptor(
            self.table, self.scheduler.profile, self.disruption_budgets.budget, self._age
        )
        self.scheduler.on_decided = self._record_decisions
        self.scheduler_cache = SchedulerCache(self.scheduler)
        self.binding_store = PersistentBindingStore(
            context, self._binding_details, self._is_workload_unchanged, self.scheduler_cache.reflects_node
        )
        mode = BindingMode(self.profile.binding)
        self.binder = Binder(self.binding_store, self.scheduler.reservations, context.clock.monotonic, mode)
        self.batch_binder = BatchBinder(
            self.binding_store,
            self.scheduler.reservations,
            self.binder.node_revisions,
            self.scheduler_cache.node_uids,
            self._on_bound,
            self._on_nodes_written,
        )
        self.unschedulable_reporter = UnschedulableReporter(
            self.binding_store.records, self.scheduler, self.profiles
        )
        self.bind_failure_reporter = BindFailureReporter(self.binding_store.records)
        self._decision_records: dict[str, DecisionRecord] = {}
        # Decided, and in a running commit.
        self._being_bound: dict[str, ScheduledWorkload] = {}
        self.awaiting_victims = AwaitingVictims(
            self.scheduler, self.scheduler_cache.queue, context.clock.monotonic
        )
        # Changed since the table was last updated.
        self._changed_nodes: dict[str, None] = {}
        self._changed_workloads: dict[str, None] = {}
        # Workloads that changed while our own write was missing in the cache: update the table when the write
        # arrives.
        self._ahead_of_cache: set[str] = set()
        # Nodes that a workload has left.
        self._nodes_to_recount: set[str] = set()
        # Nodes with a workload whose ask has changed.
        self._nodes_with_changed_asks: set[str] = set()
        # Problems of the scheduler cache that are in the log.
        self._logged_anomalies: dict[str, str] = {}
        self._is_filled = False

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def loop(self) -> Loop:
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        # The loop waits for the cache of a source: without the services, preemption knows no disruption
        # budgets.
        services = Source(self.context.cache(LatticeService), self._service_changed)
        sources = (Source(nodes, self._node_changed), Source(workloads, self._workload_changed), services)
        return Loop(
            self, self.context.clock, self.context.rng, self._list_keys, sources, Concurrency(workers=1)
        )

    def _list_keys(self) -> Iterable[str]:
        """Mark every node and workload as changed until the table is filled; after that, the caches report
        every change."""
        if not self._is_filled:
            names = [node.metadata.name for node in self.context.cache(LatticeNode).objects()]
            self._changed_nodes.update(
                dict.fromkeys(sorted(names, key=lambda name: tie_rank(self.table.seed, name)))
            )
            workloads = self.context.cache(LatticeWorkload).objects()
            self._changed_workloads.update(dict.fromkeys(path_of(workload) for workload in workloads))
        return (NODE_TABLE_KEY,)

    def _node_changed(self, change: Change) -> Iterable[str]:
        name = change.key.name
        self.batch_binder.on_node_cached(name, change.revision)
        # Our own write: `_on_nodes_written` compares revisions when the commit returns.
        if name in self.batch_binder.writing_nodes or self.binder.node_revisions.get(name) == change.revision:
            return ()
        self._changed_nodes[name] = None
        return (NODE_TABLE_KEY,)

    def _service_changed(self, change: Change) -> Iterable[str]:
        return (NODE_TABLE_KEY,) if self.disruption_budgets.note_service(change.key.path) else ()

    def _workload_changed(self, change: Change) -> Iterable[str]:
        path = change.key.path
        # `_on_bound` or `_requeue_unbound` compares the revisions when the commit returns.
        if path in self._being_bound:
            return ()
        if self.binding_store.written_revisions.get(path) == change.revision:
            del self.binding_store.written_revisions[path]
            if path not in self._ahead_of_cache:
                return ()
            self._ahead_of_cache.discard(path)
        self._changed_workloads[path] = None
        return (NODE_TABLE_KEY,)

    async def reconcile(self, key: str) -> Requeue | None:
        """Decide batches on top of each other while earlier batches are written, then write reports and
        counts."""
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
        await self._settle_orphaned()
        await self._mark_victims()
        await self.unschedulable_reporter.report(self.scheduler_cache.queue)
        await self.bind_failure_reporter.report()
        await self._write_counts()
        return self._next_requeue()

    async def _apply_changes(self) -> None:
        """Update the table from the caches; a node's revision is taken over only together with every binding
        up to the revision."""
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        entries = {name: nodes.entry(f"/{name}") for name in self._changed_nodes}
        objects = {name: nodes.get(f"/{name}") for name in entries}
        self._changed_nodes.clear()
        # Every binding moves its node's revision (I-12): the workload cache must have caught up with the
        # nodes.
        await workloads.wait_for(max((entry.revision for entry in entries.values() if entry), default=0))
        now = ClockReading(self.context.clock.monotonic(), self.context.clock.now())
        self._withdraw_stale(
            {
                name
                for name, entry in entries.items()
                if entry and entry.revision > self.binder.node_revisions.get(name, 0)
            }
        )
        for name, entry in entries.items():
            self._apply_node_change(name, entry, objects[name], now)
        self._changed_workloads.update(dict.fromkeys(self.scheduler_cache.pop_due_retries(now.monotonic)))
        self._apply_workload_changes(now)
        # Between two updates: restoring a victim marks further workloads as changed.
        self._restore_spared_victims(now)
        self._apply_workload_changes(now)
        if self.disruption_budgets.has_eased(
            self.scheduler_cache.queue.is_awaited(Wakes.DISRUPTION_LIMITS_EASED)
        ):
            self.scheduler_cache.queue.wake(Wakes.DISRUPTION_LIMITS_EASED, now.monotonic)
        self._log_anomalies()
        if not self._is_filled:
            self._is_filled = True
            if self.previous_table is not None:
                self.table.gpu_demand.copy_progress_from(self.previous_table.gpu_demand)
                self.previous_table = None

    def _apply_workload_changes(self, now: ClockReading) -> None:
        """Update the table for changed workloads, including workloads that the update itself marks as
        changed."""
        while self._changed_workloads:
            changed = list(self._changed_workloads)
            self._changed_workloads.clear()
            for path in changed:
                self._apply_workload_change(path, now)
        self._withdraw_stale(self._nodes_with_changed_asks)
        self._nodes_with_changed_asks.clear()

    def _restore_spared_victims(self, now: ClockReading) -> None:
        """Give spared victims their place in the table back, before another workload gets the capacity."""
        awaited = self.awaiting_victims.awaited_victims()
        for name in self.unschedulable_reporter.spared_victims(self.scheduler_cache.queue, awaited):
            self.scheduler.finish_eviction(name)
            self._apply_workload_change(name, now)

    def _withdraw_stale(self, nodes: set[str]) -> None:
        """Withdraw unwritten reservations on nodes that another writer changed, because the decision did not
        know the change."""
        for scheduled in self._being_bound.values() if nodes else ():
            if scheduled.node in nodes and scheduled.ask.name not in self.binding_store.written_revisions:
                self.scheduler.reservations.withdraw(scheduled.reservation.id)

    def _log_anomalies(self) -> None:
        """Log every problem of the scheduler cache once."""
        if self.scheduler_cache.problems == self._logged_anomalies:
            return
        for subject, problem in self.scheduler_cache.problems.items():
            if self._logged_anomalies.get(subject) != problem:
                log.warning("not counted as it is", what=subject, why=problem)
        self._logged_anomalies = dict(self.scheduler_cache.problems)

    def _apply_node_change(
        self, name: str, entry: Entry | None, node: LatticeNode | None, now: ClockReading
    ) -> None:
        revisions = self.binder.node_revisions
        if entry is None:
            revisions.pop(name, None)
        elif revisions.get(name, 0) > entry.revision:
            # Our own newer write is still on its way to the cache.
            return
        else:
            revisions[name] = entry.revision
        previous_info = self._node_info(name)
        self._changed_workloads.update(
            dict.fromkeys(self.scheduler_cache.update_node(name, node, now.monotonic))
        )
        if self._node_info(name) != previous_info:
            self._changed_workloads.update(dict.fromkeys(self.awaiting_victims.release_on(name)))

    def _node_info(self, name: str) -> NodeInfo | None:
        return self.table.node_infos[self.table.row_of[name]] if name in self.table.row_of else None

    def _apply_workload_change(self, path: str, now: ClockReading) -> None:
        cache = self.context.cache(LatticeWorkload)
        if self._is_ahead_of_cache(path):
            self._ahead_of_cache.add(path)
            return
        self.binding_store.written_revisions.pop(path, None)
        node, ask, workload = self._current_node(path), self._placed_ask(path), cache.get(path)
        self.scheduler_cache.update_workload(path, workload, now)
        self.disruption_budgets.note_workload(workload)
        if node and self._current_node(path) != node:
            self._nodes_to_recount.add(node)
        elif node and self._placed_ask(path) is not ask:
            self._nodes_with_changed_asks.add(node)
            self._changed_workloads.update(dict.fromkeys(self.awaiting_victims.release_on(node)))
        if path in self.awaiting_victims.by_path and path not in self.scheduler_cache.queue:
            self.awaiting_victims.release(path)

    def _placed_ask(self, path: str) -> WorkloadAsk | None:
        """The ask of the placed workload; the same object as long as the workload asks for the same
        resources."""
        placement = self.table.placements.get(path)
        return placement.ask if placement is not None else None

    def _current_node(self, path: str) -> str:
        """The node that the workload is bound to or leaves as a victim; empty if there is none."""
        placement = self.table.placements.get(path)
        if placement is not None and placement.state == "bound":
            return self.table.names[placement.row]
        return next((node for node, names in self.table.evicting.items() if path in names), "")

    def _decide(self) -> CycleResult | None:
        """Decide the next batch, and release workloads whose victims have left; None if nothing is to be
        done."""
        now, queue = self.context.clock.monotonic(), self.scheduler_cache.queue
        batch = self._without_unsettled_gangs(queue.pop_batch(now, BATCH_SIZE), now)
        if not batch and not self.awaiting_victims.by_path:
            return None
        with (
            metrics.SCHEDULING_SECONDS.labels("decide").time(),
            traces.span("schedule", term=self.context.term.number) as span,
        ):
            cycle = self._run_cycle(batch, now)
            if span.is_recording:
                span.set_attributes(
                    workloads=traces.first_paths([ask.name for run in batch for ask in run]),
                    placed=len(cycle.scheduled) if cycle else 0,
                )
            return cycle

    def _run_cycle(self, batch: list[list[WorkloadAsk]], now: float) -> CycleResult | None:
        queue = self.scheduler_cache.queue
        revision = self.context.cache(LatticeNode).revision
        # A budget is spent within one cycle; the next cycle computes the budget anew.
        self.disruption_budgets.reset()
        for run in batch:
            for ask in run:
                self._decision_records.pop(ask.name, None)
            metrics.SCHEDULING_ATTEMPTS.inc(len(run))
        cycle = self.scheduler.cycle(batch, now)
        for reservation in cycle.expired:
            self.awaiting_victims.requeue_expired(reservation.workload, now)
        self.unschedulable_reporter.record_cycle(cycle, queue, now, revision)
        self.awaiting_victims.add(cycle.scheduled)
        self._changed_workloads.update(dict.fromkeys(self.awaiting_victims.release_evicted()))
        cycle.scheduled = self.awaiting_victims.pop_ready()
        self._being_bound.update((scheduled.ask.name, scheduled) for scheduled in cycle.scheduled)
        return cycle if cycle.scheduled or batch else None

    def _record_decisions(self, asks: Sequence[WorkloadAsk], result: Decision | BatchResult) -> None:
        """Record why a workload got its node, as of the moment of the decision."""
        records = chosen_records(
            result, self.profiles[result.profile], self.context.cache(LatticeNode).revision
        )
        self._decision_records.update(zip((ask.name for ask in asks), records, strict=False))

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
                await self._bind(cycle.scheduled)
        finally:
            self._requeue_unbound(cycle.scheduled)

    async def _bind(self, placed: Iterable[ScheduledWorkload]) -> None:
        gangs = list(self._gangs(placed))
        alone = [scheduled for scheduled in placed if not scheduled.ask.group]
        is_optimistic = self.binder.mode is BindingMode.OPTIMISTIC
        small = [gang for gang in gangs if is_optimistic and self.batch_binder.fits_in_one_commit(gang)]
        await self.batch_binder.bind(alone if is_optimistic else (), small)
        for gang in gangs:
            if gang not in small:
                reservations = [member.reservation for member in gang.members]
                self._apply_bind_events(await self.binder.bind_gang(reservations, gang.min_members))
        if not is_optimistic:
            await self._bind_by_steps(alone)
        if self.binding_store.fenced is not None:
            raise self.binding_store.fenced

    async def _bind_by_steps(self, alone: Iterable[ScheduledWorkload]) -> None:
        """Bind several nodes at a time; the bindings of one node follow each other, because each moves the
        node's revision."""
        semaphore = asyncio.Semaphore(MAX_CONCURRENT_BINDINGS)
        by_node: dict[str, list[ScheduledWorkload]] = {}
        for scheduled in alone:
            by_node.setdefault(scheduled.node, []).append(scheduled)

        async def bind(on_node: list[ScheduledWorkload]) -> None:
            async with semaphore:
                for scheduled in on_node:
                    self._apply_bind_events([await self.binder.bind(scheduled.reservation)])

        async with asyncio.TaskGroup() as group:
            for on_node in by_node.values():
                group.create_task(bind(on_node))

    def _gangs(self, placed: Iterable[ScheduledWorkload]) -> Iterator[Gang]:
        by_name: dict[str, list[ScheduledWorkload]] = {}
        for scheduled in placed:
            if scheduled.ask.group:
                by_name.setdefault(scheduled.ask.group, []).append(scheduled)
        for members in by_name.values():
            yield Gang(tuple(members), self.scheduler.missing_members(members[0].ask, uncounted=len(members)))

    def _apply_bind_events(self, events: Iterable[BindEvent]) -> None:
        for event in events:
            if event.outcome == "bound":
                self._on_bound(self._being_bound[event.workload])
                # The reply of an earlier commit may be lost: the workload may have changed since.
                self._changed_workloads[event.workload] = None
            else:
                self.batch_binder.needs_backoff.add(event.workload)
                self.batch_binder.bind_failures[event.workload] = event.reason

    def _on_bound(self, placed: ScheduledWorkload) -> None:
        """Finish a bound workload; a change of the workload during the commit marks the workload as
        changed."""
        name = placed.ask.name
        metrics.ATTEMPT_BOUND.inc()
        self._being_bound.pop(name, None)
        self._decision_records.pop(name, None)
        self.batch_binder.bind_failures.pop(name, None)
        self.scheduler_cache.reservation_records.pop(name, None)
        self.scheduler_cache.forget_pending(name)
        self.scheduler_cache.queue.done(name)
        workload = self.context.cache(LatticeWorkload).entry(name)
        written = self.binding_store.written_revisions.get(name, 0)
        if workload is None or workload.revision >= written:
            self.binding_store.written_revisions.pop(name, None)
        if workload is None or workload.revision > written or name not in self.table.placements:
            self._changed_workloads[name] = None

    def _on_nodes_written(self, names: Iterable[str]) -> None:
        for name in names:
            entry = self.context.cache(LatticeNode).entry(f"/{name}")
            if entry is None or entry.revision > self.binder.node_revisions.get(name, 0):
                self._changed_nodes[name] = None

    def _requeue_unbound(self, placed: Iterable[ScheduledWorkload]) -> None:
        """Release the reservations of unbound workloads and requeue the workloads, with back-off where an
        immediate retry is useless."""
        unbound = [
            scheduled for scheduled in placed if self._being_bound.pop(scheduled.ask.name, None) is not None
        ]
        for scheduled in unbound:
            name = scheduled.ask.name
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_LOST.inc()
            self.bind_failure_reporter.record_failure(
                name, scheduled.node, self.batch_binder.bind_failures.pop(name, "it was not written")
            )
            self.scheduler.reservations.release(scheduled.reservation.id)
            if name in self.batch_binder.needs_backoff:
                self.batch_binder.needs_backoff.discard(name)
                self.scheduler_cache.queue.requeue_failed(name, self.context.clock.monotonic())
            else:
                self.scheduler_cache.queue.done(name)
            self._changed_workloads[name] = None
            self._changed_nodes[scheduled.node] = None
            if self._is_ahead_of_cache(name):
                # A lost commit may have bound the workload: trust the caches for this node, not our revision.
                self.binder.node_revisions[scheduled.node] = 0
        if unbound:
            self.scheduler_cache.queue.wake(Wakes.WORKLOAD_GONE, self.context.clock.monotonic())

    def _is_ahead_of_cache(self, path: str) -> bool:
        """Whether our last write of the workload is newer than the cache."""
        entry = self.context.cache(LatticeWorkload).entry(path)
        return entry is not None and entry.revision < self.binding_store.written_revisions.get(path, 0)

    def _binding_details(self, request: BindRequest) -> BindingDetails:
        """Ports and GPUs that the table chose with the reservation, and the decision record."""
        placement = self.table.placements.get(request.workload)
        workload = self.context.cache(LatticeWorkload).get(request.workload)
        record = self._decision_records.get(request.workload, {})
        # A node outside the best nodes comes from a gang or a preemption: the record does not explain the
        # node.
        if request.node not in record.get("best", (request.node,)):
            record = {}
        if placement is None or workload is None:
            return BindingDetails(decision_record=record)
        ports = allocated_ports(workload.spec.containers, placement.ports)
        return BindingDetails(ports, {**record, "gpus": list(placement.gpus)} if placement.gpus else record)

    def _is_workload_unchanged(self, workload: LatticeWorkload) -> bool:
        placement = self.table.placements.get(path_of(workload))
        return placement is not None and self.scheduler_cache.has_same_ask(workload, placement.ask)

    async def _mark_victims(self) -> None:
        """Mark the victims of preemption as evicted; the workload controller stops and unbinds the
        victims."""
        victims: dict[str, str] = {}
        for node, names in self.table.evicting.items():
            victims.update(dict.fromkeys(names, node))
        if victims:
            await self.unschedulable_reporter.mark_evicted(victims)

    async def _settle_orphaned(self) -> None:
        """Bind or cancel stored reservations whose attempt has ended."""
        now = self.context.clock.now()
        for path, record in list(self.scheduler_cache.reservation_records.items()):
            is_orphaned = self.scheduler.reservations.get(record.reservation) is None
            if is_orphaned and await self.binding_store.settle_reservation(path, now):
                self._changed_workloads[path] = None
                self._changed_nodes[record.node] = None

    async def _write_counts(self) -> None:
        """Write the workload counts of nodes that a workload has left; a concurrent binding counts by
        itself."""
        names = [name for name in sorted(self._nodes_to_recount) if name in self.table.row_of]
        self._nodes_to_recount.clear()
        await self.batch_binder.write_counts(
            {name: len(self.table.placements_by_row[self.table.row_of[name]]) for name in names}
        )

    def _next_requeue(self) -> Requeue | None:
        now = self.context.clock.monotonic()
        due = [
            due_at
            for due_at in (self.scheduler_cache.next_due_at(), self.bind_failure_reporter.next_report_at)
            if due_at is not None
        ]
        due += self.awaiting_victims.expiry_times()
        if self.scheduler_cache.reservation_records:
            due.append(now + ORPHANED_RESERVATION_POLL_S)
        if self._changed_nodes or self._changed_workloads:
            due.append(now)
        return Requeue(max(0.0, min(due) - now)) if due else None

    def _victims(self) -> set[str]:
        victims: set[str] = set()
        return victims.union(*self.table.evicting.values())

    def _age(self, name: str) -> float:
        """The age of the workload in seconds."""
        workload = self.context.cache(LatticeWorkload).get(name)
        created_at = workload.metadata.creation_timestamp if workload else None
        if not created_at:
            return 0.0
        return (self.context.clock.now() - parse_timestamp(created_at)).total_seconds()
