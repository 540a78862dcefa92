"""Workloads that need a node -> bindings: batches are decided on a table that follows the copies, and written in fenced commits."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import structlog

from lattice import metrics
from lattice import tracing as traces
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.scheduler.bind_batches import BatchBinder, Gang
from lattice.controllers.scheduler.binding_records import BindingDetails
from lattice.controllers.scheduler.binding_store import PersistentBindingStore
from lattice.controllers.scheduler.disruption_budgets import DisruptionBudgets
from lattice.controllers.scheduler.unschedulable import BindFailureReporter, UnschedulableReporter
from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.tie_order import tie_rank
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

NODE_TABLE_KEY = "nodes"  # the one key: all nodes are one table
BATCH_SIZE = 396  # workloads decided at once; the next are decided while these are written. Each on a node of its own, they fill 12 commits
MAX_BATCHES_PER_RECONCILE = 50  # in one look
MAX_BATCHES_IN_FLIGHT = 3  # batches that are being written at once
MAX_CONCURRENT_BINDINGS = 16  # bindings of several steps that are under way at once
ORPHANED_RESERVATION_POLL_S = 1.0  # seconds between looks at what an attempt that is no more has prepared

log = structlog.get_logger()


@dataclass
class SchedulingController:
    """Told that something changed; looks at what did, and binds all that can be bound. `before`: the table of the term before, if any.

    `plain`: how nodes are scored for workloads that belong to no service; None: as for all others.
    """

    context: ControllerContext
    profile: ProfileSpec = PRESETS[DEFAULT_PROFILE]
    previous_table: NodeTable | None = None
    eviction_reason: Callable[[LatticeWorkload], str] = lambda _: (
        ""
    )  # why a workload must leave its node, a drain for one
    standalone_profile: ProfileSpec | None = None
    name: ClassVar[str] = "scheduling"

    def __post_init__(self) -> None:
        office, term = self.context, self.context.term
        dice = random.Random(self.profile.seed)  # noqa: S311 - the same every time is the point
        holder, table = holder_name(term.role, term.holder, term.number), NodeTable(self.profile.seed)
        self.scheduler: CompositeScheduler = compose(
            self.profile, table, dice, holder, self.standalone_profile
        )
        self.profiles = {self.scheduler.profile: self.profile}
        if self.scheduler.standalone_profile and self.standalone_profile:
            self.profiles[self.scheduler.standalone_profile] = self.standalone_profile
        self.disruption_budgets = DisruptionBudgets(office, self._victims, self.eviction_reason)
        self.scheduler.preemptor = Preemptor(
            self.table, self.scheduler.profile, self.disruption_budgets.budget, self._age
        )
        self.scheduler.on_decided = self._record_decisions
        self.scheduler_cache = SchedulerCache(self.scheduler)
        self.binding_store = PersistentBindingStore(
            office, self._binding_details, self._is_workload_unchanged, self.scheduler_cache.reflects_node
        )
        mode = BindingMode(self.profile.binding)
        self.binder = Binder(self.binding_store, self.scheduler.reservations, office.clock.monotonic, mode)
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
        self._being_bound: dict[str, ScheduledWorkload] = {}  # decided, and being written
        self._awaiting_victims: dict[str, ScheduledWorkload] = {}  # decided, and waiting for others to leave
        self._changed_nodes: dict[str, None] = {}  # changed since the last look
        self._changed_workloads: dict[str, None] = {}
        self._ahead_of_cache: set[str] = (
            set()
        )  # workloads that were looked at before what we wrote of them had come back to us
        self._nodes_to_recount: set[str] = set()  # nodes that somebody left
        self._nodes_with_changed_asks: set[str] = set()  # nodes where somebody asks for something else
        self._logged_anomalies: dict[str, str] = {}  # as logged
        self._is_filled = False

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def loop(self) -> Loop:
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        kept = Source(
            self.context.cache(LatticeService), self._service_changed
        )  # before what a service keeps is known, nobody makes room
        sources = (Source(nodes, self._node_changed), Source(workloads, self._workload_changed), kept)
        return Loop(
            self, self.context.clock, self.context.rng, self._list_keys, sources, Concurrency(workers=1)
        )

    def _list_keys(self) -> Iterable[str]:
        """All there is, the first time; then the copies tell of every change."""
        if not self._is_filled:
            names = [node.metadata.name for node in self.context.cache(LatticeNode).objects()]
            self._changed_nodes.update(
                dict.fromkeys(sorted(names, key=lambda name: tie_rank(self.table.seed, name)))
            )
            each = self.context.cache(LatticeWorkload).objects()
            self._changed_workloads.update(
                dict.fromkeys(f"{one.metadata.namespace}/{one.metadata.name}" for one in each)
            )
        return (NODE_TABLE_KEY,)

    def _node_changed(self, change: Change) -> Iterable[str]:
        name = change.key.name
        self.batch_binder.on_node_cached(name, change.revision)
        if name in self.batch_binder.writing_nodes or self.binder.node_revisions.get(name) == change.revision:
            return ()  # we write that; whatever else it is shows when our answer comes
        self._changed_nodes[name] = None
        return (NODE_TABLE_KEY,)

    def _service_changed(self, change: Change) -> Iterable[str]:
        return (NODE_TABLE_KEY,) if self.disruption_budgets.note_service(change.key.path) else ()

    def _workload_changed(self, change: Change) -> Iterable[str]:
        path = change.key.path
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
        """Batches are decided on top of one another while those before are written."""
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as writing:
            for _ in range(MAX_BATCHES_PER_RECONCILE):
                await self._apply_changes()
                decided = self._decide()
                if decided is None:
                    break
                under_way.add(writing.create_task(self._bind_cycle(decided)))
                await asyncio.sleep(0)
                if len(under_way) == MAX_BATCHES_IN_FLIGHT:
                    _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        await self._settle_orphaned()
        await self._mark_victims()
        await self.unschedulable_reporter.report(self.scheduler_cache.queue)
        await self.bind_failure_reporter.report()
        await self._write_counts()
        return self._next_requeue()

    async def _apply_changes(self) -> None:
        """The table takes up what changed. A node's revision counts as seen only with every binding that moved it."""
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        changed = {name: nodes.entry(f"/{name}") for name in self._changed_nodes}
        found = {name: nodes.get(f"/{name}") for name in changed}
        self._changed_nodes.clear()
        await workloads.wait_for(max((entry.revision for entry in changed.values() if entry), default=0))
        now = ClockReading(self.context.clock.monotonic(), self.context.clock.now())
        self._withdraw_stale(
            {
                name
                for name, entry in changed.items()
                if entry and entry.revision > self.binder.node_revisions.get(name, 0)
            }
        )
        for name, entry in changed.items():
            self._apply_node_change(name, entry, found[name], now)
        self._changed_workloads.update(dict.fromkeys(self.scheduler_cache.pop_due_retries(now.monotonic)))
        self._apply_workload_changes(now)
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
        """Those that must be looked at again because of what others ask for now, too."""
        while self._changed_workloads:
            changed = list(self._changed_workloads)
            self._changed_workloads.clear()
            for path in changed:
                self._apply_workload_change(path, now)
        self._withdraw_stale(self._nodes_with_changed_asks)
        self._nodes_with_changed_asks.clear()

    def _restore_spared_victims(self, now: ClockReading) -> None:
        """Who needs not make room any more has its place again, before anybody is given the room."""
        awaited = {name for each in self._awaiting_victims.values() for name in each.waits_for}
        for name in self.unschedulable_reporter.spared_victims(self.scheduler_cache.queue, awaited):
            self.scheduler.finish_eviction(name)
            self._apply_workload_change(name, now)

    def _withdraw_stale(self, nodes: set[str]) -> None:
        """What was decided before somebody else moved its node, and is not written yet, was decided on less than is known now."""
        for each in self._being_bound.values() if nodes else ():
            if each.node in nodes and each.ask.name not in self.binding_store.written_revisions:
                self.scheduler.reservations.withdraw(each.reservation.id)

    def _log_anomalies(self) -> None:
        """What cannot be counted, once."""
        if self.scheduler_cache.problems == self._logged_anomalies:
            return
        for what, why in self.scheduler_cache.problems.items():
            if self._logged_anomalies.get(what) != why:
                log.warning("not counted as it is", what=what, why=why)
        self._logged_anomalies = dict(self.scheduler_cache.problems)

    def _apply_node_change(
        self, name: str, entry: Entry | None, found: LatticeNode | None, now: ClockReading
    ) -> None:
        seen = self.binder.node_revisions
        if entry is None:
            seen.pop(name, None)
        elif seen.get(name, 0) > entry.revision:
            return  # what we wrote since is still on its way
        else:
            seen[name] = entry.revision
        before = self._node_info(name)
        self._changed_workloads.update(
            dict.fromkeys(self.scheduler_cache.update_node(name, found, now.monotonic))
        )
        if self._node_info(name) != before:
            self._release_awaiting_on(name)

    def _node_info(self, name: str) -> NodeInfo | None:
        return self.table.node_infos[self.table.row_of[name]] if name in self.table.row_of else None

    def _release_awaiting_on(self, node: str) -> None:
        """Who waits for others to leave it chose it as it was: smaller, fuller, cordoned or tainted, it may not be the one any more."""
        for each in [held for held in self._awaiting_victims.values() if held.node == node]:
            self._release_awaiting(each.ask.name)
            self._changed_workloads[each.ask.name] = None

    def _release_awaiting(self, path: str) -> None:
        """Who waited for others to leave has its place in line again; and whoever found no room because of it."""
        self.scheduler.reservations.release(self._awaiting_victims.pop(path).reservation.id)
        self.scheduler_cache.queue.done(
            path
        )  # or one that comes again under its name would wait for this one to be through
        self.scheduler_cache.queue.wake(Wakes.WORKLOAD_GONE, self.context.clock.monotonic())

    def _apply_workload_change(self, path: str, now: ClockReading) -> None:
        copy = self.context.cache(LatticeWorkload)
        if self._is_ahead_of_cache(path):
            self._ahead_of_cache.add(path)
            return
        self.binding_store.written_revisions.pop(path, None)
        was, had, found = self._current_node(path), self._placed_ask(path), copy.get(path)
        self.scheduler_cache.update_workload(path, found, now)
        self.disruption_budgets.note_workload(found)
        if was and self._current_node(path) != was:
            self._nodes_to_recount.add(was)
        elif was and self._placed_ask(path) is not had:
            self._nodes_with_changed_asks.add(was)
            self._release_awaiting_on(was)
        if path in self._awaiting_victims and path not in self.scheduler_cache.queue:
            self._release_awaiting(path)

    def _placed_ask(self, path: str) -> WorkloadAsk | None:
        """The same as long as it asks for the same."""
        there = self.table.placements.get(path)
        return there.ask if there is not None else None

    def _current_node(self, path: str) -> str:
        there = self.table.placements.get(path)
        if there is not None and there.state == "bound":
            return self.table.names[there.row]
        return next((node for node, names in self.table.evicting.items() if path in names), "")

    def _decide(self) -> CycleResult | None:
        """The next batch, and whoever waited for others to leave; None: there is nothing to do."""
        now, queue = self.context.clock.monotonic(), self.scheduler_cache.queue
        batch = self._without_unsettled_gangs(queue.pop_batch(now, BATCH_SIZE), now)
        if not batch and not self._awaiting_victims:
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
        self.disruption_budgets.reset()
        for run in batch:
            for ask in run:
                self._decision_records.pop(ask.name, None)
            metrics.SCHEDULING_ATTEMPTS.inc(len(run))
        cycle = self.scheduler.cycle(batch, now)
        for held in cycle.expired:
            if self._awaiting_victims.pop(held.workload, None):
                queue.requeue_failed(held.workload, now)
                queue.wake(Wakes.WORKLOAD_GONE, now)
        self.unschedulable_reporter.record_cycle(cycle, queue, now, revision)
        self._awaiting_victims.update((each.ask.name, each) for each in cycle.scheduled)
        self._drop_awaiting_victims()
        cycle.scheduled = [self._awaiting_victims.pop(each.ask.name) for each in self._ready_to_bind()]
        self._being_bound.update((each.ask.name, each) for each in cycle.scheduled)
        return cycle if cycle.scheduled or batch else None

    def _drop_awaiting_victims(self) -> None:
        """Who only waits for a place, and was chosen to make room on it, has nothing to leave."""
        for each in [
            held
            for held in self._awaiting_victims.values()
            if held.ask.name in self.table.evicting.get(held.node, ())
        ]:
            self.scheduler.finish_eviction(each.ask.name)
            self._release_awaiting(each.ask.name)
            self._changed_workloads[each.ask.name] = None

    def _record_decisions(self, asks: Sequence[WorkloadAsk], found: Decision | BatchResult) -> None:
        """Why each goes where it goes, as of its own turn."""
        grounds = chosen_records(
            found, self.profiles[found.profile], self.context.cache(LatticeNode).revision
        )
        self._decision_records.update(zip((ask.name for ask in asks), grounds, strict=False))

    def _without_unsettled_gangs(self, batch: list[list[WorkloadAsk]], now: float) -> list[list[WorkloadAsk]]:
        """Without groups of which another attempt still has some: they wait until that is over."""
        unsettled = self.scheduler_cache.in_doubt_gangs() if self.scheduler_cache.reservation_records else ()
        for ask in (ask for run in batch for ask in run if ask.group in unsettled):
            self.scheduler_cache.queue.requeue_unschedulable(
                ask.name, {Wakes.WORKLOAD_GONE, Wakes.WORKLOAD_ADDED}, now
            )
        return [run for run in batch if run[0].group not in unsettled]

    def _ready_to_bind(self) -> list[ScheduledWorkload]:
        waiting = {
            each.ask.group or each.ask.name
            for each in self._awaiting_victims.values()
            if self.scheduler.pending_evictions(each)
        }
        return [
            each
            for each in self._awaiting_victims.values()
            if (each.ask.group or each.ask.name) not in waiting
        ]

    async def _bind_cycle(self, cycle: CycleResult) -> None:
        try:
            with (
                metrics.SCHEDULING_SECONDS.labels("bind").time(),
                traces.span("bind", term=self.context.term.number) as span,
            ):
                if span.is_recording:
                    span.set_attributes(
                        workloads=traces.first_paths([each.ask.name for each in cycle.scheduled])
                    )
                await self._bind(cycle.scheduled)
        finally:
            self._requeue_unbound(cycle.scheduled)

    async def _bind(self, placed: Iterable[ScheduledWorkload]) -> None:
        gangs = list(self._gangs(placed))
        alone = [each for each in placed if not each.ask.group]
        optimistic = self.binder.mode is BindingMode.OPTIMISTIC
        small = [group for group in gangs if optimistic and self.batch_binder.fits_in_one_commit(group)]
        await self.batch_binder.bind(alone if optimistic else (), small)
        for group in gangs:
            if group not in small:
                self._apply_bind_events(
                    await self.binder.bind_gang(
                        [each.reservation for each in group.members], group.min_members
                    )
                )
        if not optimistic:
            await self._bind_by_steps(alone)
        if self.binding_store.fenced is not None:
            raise self.binding_store.fenced

    async def _bind_by_steps(self, alone: Iterable[ScheduledWorkload]) -> None:
        """Node by node, several nodes at once; each binding waits for the one before it on the same node."""
        turns = asyncio.Semaphore(MAX_CONCURRENT_BINDINGS)
        by_node: dict[str, list[ScheduledWorkload]] = {}
        for each in alone:
            by_node.setdefault(each.node, []).append(each)

        async def bind(here: list[ScheduledWorkload]) -> None:
            async with turns:
                for each in here:
                    self._apply_bind_events([await self.binder.bind(each.reservation)])

        async with asyncio.TaskGroup() as group:
            for here in by_node.values():
                group.create_task(bind(here))

    def _gangs(self, placed: Iterable[ScheduledWorkload]) -> Iterator[Gang]:
        by_name: dict[str, list[ScheduledWorkload]] = {}
        for each in placed:
            if each.ask.group:
                by_name.setdefault(each.ask.group, []).append(each)
        for members in by_name.values():
            yield Gang(tuple(members), self.scheduler.missing_members(members[0].ask, uncounted=len(members)))

    def _apply_bind_events(self, events: Iterable[BindEvent]) -> None:
        for event in events:
            if event.outcome == "bound":
                self._on_bound(self._being_bound[event.workload])
                self._changed_workloads[event.workload] = (
                    None  # who was found to be bound, its answer lost, may have been changed since
                )
            else:
                self.batch_binder.needs_backoff.add(event.workload)
                self.batch_binder.bind_failures[event.workload] = event.reason

    def _on_bound(self, placed: ScheduledWorkload) -> None:
        """What happened to it while this was written is news."""
        name = placed.ask.name
        metrics.ATTEMPT_BOUND.inc()
        self._being_bound.pop(name, None)
        self._decision_records.pop(name, None)
        self.batch_binder.bind_failures.pop(name, None)
        self.scheduler_cache.reservation_records.pop(name, None)
        self.scheduler_cache.forget_pending(name)
        self.scheduler_cache.queue.done(name)
        workload, written = (
            self.context.cache(LatticeWorkload).entry(name),
            self.binding_store.written_revisions.get(name, 0),
        )
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
        """The room of those not bound is free again; they are looked at anew, with their nodes, but not at once if that is vain."""
        lost = [each for each in placed if self._being_bound.pop(each.ask.name, None) is not None]
        for each in lost:
            name = each.ask.name
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_LOST.inc()
            self.bind_failure_reporter.record_failure(
                name, each.node, self.batch_binder.bind_failures.pop(name, "it was not written")
            )
            self.scheduler.reservations.release(each.reservation.id)
            if name in self.batch_binder.needs_backoff:
                self.batch_binder.needs_backoff.discard(name)
                self.scheduler_cache.queue.requeue_failed(name, self.context.clock.monotonic())
            else:
                self.scheduler_cache.queue.done(name)
            self._changed_workloads[name] = None
            self._changed_nodes[each.node] = None
            if self._is_ahead_of_cache(name):
                self.binder.node_revisions[each.node] = (
                    0  # as our copies know it: what we wrote there may count, and is not in the table now
                )
        if lost:
            self.scheduler_cache.queue.wake(Wakes.WORKLOAD_GONE, self.context.clock.monotonic())

    def _is_ahead_of_cache(self, path: str) -> bool:
        """What we wrote of it has not come back to us."""
        entry = self.context.cache(LatticeWorkload).entry(path)
        return entry is not None and entry.revision < self.binding_store.written_revisions.get(path, 0)

    def _binding_details(self, request: BindRequest) -> BindingDetails:
        """Its ports are those that the table chose when its room was taken."""
        there, found = (
            self.table.placements.get(request.workload),
            self.context.cache(LatticeWorkload).get(request.workload),
        )
        grounds = self._decision_records.get(request.workload, {})
        if request.node not in grounds.get("best", (request.node,)):
            grounds = {}  # it came there by another way: with its group, or by making others leave
        if there is None or found is None:
            return BindingDetails(decision_record=grounds)
        ports = allocated_ports(found.spec.containers, there.ports)
        return BindingDetails(ports, {**grounds, "gpus": list(there.gpus)} if there.gpus else grounds)

    def _is_workload_unchanged(self, workload: LatticeWorkload) -> bool:
        there = self.table.placements.get(f"{workload.metadata.namespace}/{workload.metadata.name}")
        return there is not None and self.scheduler_cache.has_same_ask(workload, there.ask)

    async def _mark_victims(self) -> None:
        """Who was told to make room is marked; whoever runs workloads stops it, and takes its node away."""
        if self.table.evicting:
            await self.unschedulable_reporter.mark_evicted(
                {name: node for node, names in self.table.evicting.items() for name in names}
            )

    async def _settle_orphaned(self) -> None:
        """What attempts that are no more have left prepared is finished or given up."""
        now = self.context.clock.now()
        for path, held in list(self.scheduler_cache.reservation_records.items()):
            if self.scheduler.reservations.get(
                held.reservation
            ) is None and await self.binding_store.settle_reservation(path, now):
                self._changed_workloads[path] = None
                self._changed_nodes[held.node] = None

    async def _write_counts(self) -> None:
        """Of nodes that somebody left, how many are there now. Whoever binds to one counts, too, so a rival is no trouble."""
        names = [name for name in sorted(self._nodes_to_recount) if name in self.table.row_of]
        self._nodes_to_recount.clear()
        await self.batch_binder.write_counts(
            {name: len(self.table.placements_by_row[self.table.row_of[name]]) for name in names}
        )

    def _next_requeue(self) -> Requeue | None:
        now = self.context.clock.monotonic()
        dates = [
            when
            for when in (self.scheduler_cache.next_due_at(), self.bind_failure_reporter.next_report_at)
            if when is not None
        ]
        dates += [each.reservation.expires_at for each in self._awaiting_victims.values()]
        dates += [now + ORPHANED_RESERVATION_POLL_S] if self.scheduler_cache.reservation_records else []
        dates += [now] if self._changed_nodes or self._changed_workloads else []
        return Requeue(max(0.0, min(dates) - now)) if dates else None

    def _victims(self) -> set[str]:
        return {name for names in self.table.evicting.values() for name in names}

    def _age(self, name: str) -> float:
        found = self.context.cache(LatticeWorkload).get(name)
        made = found.metadata.creation_timestamp if found else None
        return (self.context.clock.now() - datetime.fromisoformat(made)).total_seconds() if made else 0.0
