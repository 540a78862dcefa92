"""The binding cycle: bind the workloads of a scheduling cycle, and requeue the workloads that were not
bound."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from lattice import metrics
from lattice.controllers.scheduler.bind_batches import BatchBinder, Gang
from lattice.controllers.scheduler.binding_store import PersistentBindingStore
from lattice.controllers.scheduler.changed_objects import ChangedObjects
from lattice.controllers.scheduler.pending_decisions import PendingDecisions
from lattice.controllers.scheduler.unschedulable import BindFailureReporter
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.binder import Binder, BindEvent, BindingMode
from lattice.scheduling.cycle.cycle import ScheduledWorkload
from lattice.scheduling.cycle.scheduler_cache import SchedulerCache
from lattice.scheduling.plugins.cluster_events import ClusterEvent

# Limit of nodes to which `_bind_by_steps` binds at the same time.
MAX_CONCURRENT_BINDINGS = 16


@dataclass
class BindingCycle:
    """Bind decided workloads in batches or step by step, as the binding mode demands.

    A bound workload leaves the queue; the reservation of an unbound workload is released. Nodes and workloads
    that the node table must read again from the caches are added to `changes`.
    """

    scheduler_cache: SchedulerCache
    binding_store: PersistentBindingStore
    mode: BindingMode
    changes: ChangedObjects
    pending_decisions: PendingDecisions
    failure_reporter: BindFailureReporter
    # Decided workloads by path, from `begin` until the workload is bound or requeued.
    being_bound: dict[str, ScheduledWorkload] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context = self.binding_store.context
        self.scheduler = self.scheduler_cache.scheduler
        reservations = self.scheduler.reservations
        self.binder = Binder(self.binding_store, reservations, self.context.clock.monotonic, self.mode)
        self.batch_binder = BatchBinder(
            self.binding_store,
            reservations,
            self.binder.node_revisions,
            self.scheduler_cache.node_uids,
            self._on_bound,
            self._on_nodes_written,
        )

    def begin(self, scheduled: Iterable[ScheduledWorkload]) -> None:
        """Add the workloads to `being_bound`; must be called before the first commit starts."""
        self.being_bound.update((workload.ask.name, workload) for workload in scheduled)

    async def bind(self, placed: Sequence[ScheduledWorkload]) -> None:
        """Bind workloads; a workload that is not bound stays in `being_bound` until `requeue_unbound`."""
        alone: list[ScheduledWorkload] = []
        by_group: dict[str, list[ScheduledWorkload]] = {}
        for scheduled in placed:
            if scheduled.ask.group:
                by_group.setdefault(scheduled.ask.group, []).append(scheduled)
            else:
                alone.append(scheduled)
        missing_members = self.scheduler.missing_members
        gangs = [
            Gang(tuple(members), missing_members(members[0].ask, uncounted=len(members)))
            for members in by_group.values()
        ]
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

    def requeue_unbound(self, placed: Collection[ScheduledWorkload]) -> None:
        """Release the reservations of unbound workloads and requeue the workloads, with back-off where an
        immediate retry would fail again."""
        unbound = [
            scheduled for scheduled in placed if self.being_bound.pop(scheduled.ask.name, None) is not None
        ]
        queue = self.scheduler_cache.queue
        for scheduled in unbound:
            name = scheduled.ask.name
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_LOST.inc()
            self.failure_reporter.record_failure(
                name, scheduled.node, self.batch_binder.bind_failures.pop(name, "the binding was not written")
            )
            self.scheduler.reservations.release(scheduled.reservation.id)
            if name in self.batch_binder.needs_backoff:
                self.batch_binder.needs_backoff.discard(name)
                queue.requeue_failed(name, self.context.clock.monotonic())
            else:
                queue.done(name)
            self.changes.workloads[name] = None
            self.changes.nodes[scheduled.node] = None
            if self.is_ahead_of_cache(name):
                # The commit may have succeeded although its reply was lost. With revision 0, the node table
                # accepts the node of the cache, whatever its revision.
                self.binder.node_revisions[scheduled.node] = 0
        if unbound:
            queue.wake(ClusterEvent.WORKLOAD_GONE, self.context.clock.monotonic())
        # A workload may wait for a neighbour: the cache wakes it only for bindings of other servers.
        if len(unbound) < len(placed):
            queue.wake(ClusterEvent.WORKLOAD_ADDED, self.context.clock.monotonic())

    def withdraw_stale(self, nodes: set[str]) -> None:
        """Withdraw unwritten reservations on nodes that another writer changed, because the decision was made
        without the change."""
        for scheduled in self.being_bound.values() if nodes else ():
            if scheduled.node in nodes and scheduled.ask.name not in self.binding_store.written_revisions:
                self.scheduler.reservations.withdraw(scheduled.reservation.id)

    def is_ahead_of_cache(self, path: str) -> bool:
        """Whether our last write of the workload is newer than the cache."""
        entry = self.context.cache(LatticeWorkload).entry(path)
        return entry is not None and entry.revision < self.binding_store.written_revisions.get(path, 0)

    def is_own_node_write(self, node: str, revision: int) -> bool:
        """Whether this server writes the node now, or has written the revision."""
        return node in self.batch_binder.writing_nodes or self.binder.node_revisions.get(node) == revision

    async def settle_orphaned(self) -> None:
        """Bind or cancel stored reservations whose binding attempt has ended."""
        now = self.context.clock.now()
        for path, record in list(self.scheduler_cache.reservation_records.items()):
            is_orphaned = self.scheduler.reservations.get(record.id) is None
            if is_orphaned and await self.binding_store.settle_reservation(path, now):
                self.changes.workloads[path] = None
                self.changes.nodes[record.node] = None

    async def _bind_by_steps(self, alone: Iterable[ScheduledWorkload]) -> None:
        """Bind on several nodes at the same time; the bindings of one node run one after another, because
        each binding moves the node's revision."""
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

    def _apply_bind_events(self, events: Iterable[BindEvent]) -> None:
        for event in events:
            if event.outcome == "bound":
                self._on_bound(self.being_bound[event.workload])
                # The reply of an earlier commit may have been lost, so the stored workload may differ from the
                # node table.
                self.changes.workloads[event.workload] = None
            else:
                self.batch_binder.needs_backoff.add(event.workload)
                self.batch_binder.bind_failures[event.workload] = event.reason

    def _on_bound(self, placed: ScheduledWorkload) -> None:
        """Remove a bound workload from the queue and forget its binding attempt. If the workload was changed
        meanwhile, or is missing in the cache or the node table, the table must read it again."""
        name = placed.ask.name
        metrics.ATTEMPT_BOUND.inc()
        self.being_bound.pop(name, None)
        self.pending_decisions.forget((name,))
        self.batch_binder.bind_failures.pop(name, None)
        self.scheduler_cache.reservation_records.pop(name, None)
        self.scheduler_cache.forget_pending(name)
        self.scheduler_cache.queue.done(name)
        workload = self.context.cache(LatticeWorkload).entry(name)
        written = self.binding_store.written_revisions.get(name, 0)
        if workload is None or workload.revision >= written:
            self.binding_store.written_revisions.pop(name, None)
        if workload is None or workload.revision > written or name not in self.scheduler.table.placements:
            self.changes.workloads[name] = None

    def _on_nodes_written(self, names: Iterable[str]) -> None:
        for name in names:
            entry = self.context.cache(LatticeNode).entry(f"/{name}")
            if entry is None or entry.revision > self.binder.node_revisions.get(name, 0):
                self.changes.nodes[name] = None
