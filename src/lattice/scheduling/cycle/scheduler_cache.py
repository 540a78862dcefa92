"""The scheduler cache: the node table and the scheduling queue, updated with the stored nodes and workloads."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from lattice.engine.derived_columns import drop_oldest_half
from lattice.errors import LatticeError
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.json_body import encode
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, ReservationRecord
from lattice.lifecycle.eviction import EvictionCause, derive_eviction
from lattice.lifecycle.retry import has_succeeded
from lattice.lifecycle.workload import Action, WorkloadInput, decide
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.input_checks import capacity_conflicts
from lattice.scheduling.cycle.reservation_record import allocated_gpus, reservation_record
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_info import NodeInfo, node_info_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.port_allocator import dynamic_ports
from lattice.scheduling.table.resource_fit import has_free_gpus, overflow_reason
from lattice.scheduling.table.workload_ask import WorkloadAsk

MAX_CACHED_ASKS = 1 << 12


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The monotonic and the wall-clock time of one moment."""

    monotonic: float  # seconds
    wall_time: datetime


@dataclass(slots=True)
class SchedulerCache:
    """The node table and the queue. The caller passes every node and workload that changed, in its current
    state; a repeated update changes nothing."""

    scheduler: CompositeScheduler
    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    node_uids: dict[str, str] = field(default_factory=dict)  # of the nodes in the table
    # Workloads with a reservation record in the store and without binding.
    reservation_records: dict[str, ReservationRecord] = field(default_factory=dict)
    # Nodes and workloads that the table leaves out, or counts with other amounts than the object states, with
    # the reason.
    problems: dict[str, str] = field(default_factory=dict)
    # Workloads that wait for a node: the stored object, and the ask made from it.
    pending: dict[str, tuple[LatticeWorkload, WorkloadAsk]] = field(default_factory=dict)
    _ask_by_spec: dict[tuple[object, ...], WorkloadAsk] = field(default_factory=dict)
    # By node that is not in the table: the workloads that are bound to the node.
    _orphans_by_node: dict[str, dict[str, None]] = field(default_factory=dict)
    _retry_heap: list[tuple[float, str]] = field(default_factory=list)

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def update_node(self, name: str, node: LatticeNode | None, now: float) -> list[str]:
        """Update or remove a node, and return the workloads that must be updated again."""
        if node is None:
            return self._remove_node(name, now)
        try:
            node_info = _schedulable_info(node)
            lost = []
            # A new uid is a new node of the same name, so the workloads of the previous node are not on it.
            if self.node_uids.get(name, node.metadata.uid) != node.metadata.uid:
                lost = self._remove_node(name, now)
            previous = self.table.node_infos[self.table.row_of[name]] if name in self.table.row_of else None
            if node_info != previous:
                self.table.put_node(node_info)
        except (LatticeError, ArithmeticError) as problem:
            self.problems[f"node {name}"] = str(problem)
            return self._remove_node(name, now)
        if conflicts := "; ".join(capacity_conflicts(node.status)):
            self.problems[f"node {name}"] = conflicts
        else:
            self.problems.pop(f"node {name}", None)
        self.node_uids[name] = node.metadata.uid
        for event in _node_events(previous, node_info) if node_info != previous else ():
            self.queue.wake(event, now)
        return lost if previous else [*lost, *self._orphans_by_node.pop(name, ())]

    def reflects_node(self, node: LatticeNode) -> bool:
        """Whether the table has the node in its current state."""
        row = self.table.row_of.get(node.metadata.name)
        return (
            row is not None
            and self.node_uids.get(node.metadata.name) == node.metadata.uid
            and self.table.node_infos[row] == _schedulable_info(node)
        )

    def _remove_node(self, name: str, now: float) -> list[str]:
        self.node_uids.pop(name, None)
        if name not in self.table.row_of:
            return []
        lost = self.scheduler.remove_node(name)
        self.queue.wake(ClusterEvent.NODE_UNAVAILABLE, now)
        return lost

    def update_workload(self, path: str, workload: LatticeWorkload | None, now: ClockReading) -> None:
        """Update or remove a workload. A workload that cannot be counted is recorded as a problem and leaves
        the queue."""
        try:
            record = reservation_record(workload) if workload and not workload.status.binding else None
            self._forget_reservation_record(path, now, record, workload.status.binding if workload else None)
            if workload is None:
                self._apply_unbound(path, now)
                self.queue.remove(path)
            # A succeeded workload stays bound for its log only: its resources are free.
            elif workload.status.binding and not has_succeeded(workload):
                self._apply_bound(workload, workload.status.binding, now)
            elif record is not None:
                self._remove_from_node(path, now)
                self.reservation_records[path] = record
                # The table already has the workload if this scheduler wrote the record. Otherwise another
                # scheduler or an earlier process reserved the node.
                if path not in self.table.placements and self.node_uids.get(record.node) == record.uid:
                    self.queue.remove(path)
                    self._admit(path, self.ask_of(workload), record.node, workload)
            else:
                self._apply_unbound(path, now)
                self._back_off_or_queue(path, workload, now)
        except LatticeError as problem:
            self.problems[f"workload {path}"] = str(problem)
            self.queue.remove(path)

    def in_doubt_gangs(self) -> set[str]:
        """Gangs of which another scheduler has reserved nodes for members. Whether these members will be
        bound is open, so the scheduler cannot decide further members yet."""
        gangs = set()
        for path, record in self.reservation_records.items():
            placement = self.table.placements.get(path)
            if placement and placement.ask.group and not self._is_own_reservation(record):
                gangs.add(placement.ask.group)
        return gangs

    def pop_due_retries(self, now: float) -> list[str]:
        """Remove the workloads whose retry back-off is over from the heap, and return them."""
        due = []
        while self._retry_heap and self._retry_heap[0][0] <= now:
            due.append(heappop(self._retry_heap)[1])
        return due

    def next_due_at(self) -> float | None:
        """The monotonic time at which the scheduler has work again if nothing changes; 0 means at once, None
        never."""
        times = (self.queue.next_ready_at(), self._retry_heap[0][0] if self._retry_heap else None)
        return min((time for time in times if time is not None), default=None)

    def has_placed_ask(self, workload: LatticeWorkload) -> bool:
        """Whether the table has the workload, placed with the ask that results from its present spec.

        If the scheduler decided on this very object, its ask need not be computed again.
        """
        path = path_of(workload)
        placement, pending = self.table.placements.get(path), self.pending.get(path)
        if placement is None:
            return False
        if pending is not None and pending[0] is workload and pending[1] is placement.ask:
            return True
        return self.ask_of(workload) == placement.ask

    def forget_pending(self, path: str) -> None:
        """Forget a workload that got its node."""
        self.pending.pop(path, None)

    def ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        """The ask of a workload. Workloads with equal spec and labels share one WorkloadAsk."""
        metadata = workload.metadata
        # Fields that do not influence scheduling get equal values, so that they do not separate asks.
        comparable = msgspec.structs.replace(workload.spec, slot=0, revision="", desired_state="Running")
        key = (metadata.namespace, encode(comparable), *metadata.labels.items())
        ask = self._ask_by_spec.get(key)
        if ask is None:
            drop_oldest_half(self._ask_by_spec, MAX_CACHED_ASKS)
            ask = self._ask_by_spec[key] = self.table.ask_of(workload)
        return replace(ask, name=f"{ask.demands.namespace}/{metadata.name}")

    def _apply_bound(self, workload: LatticeWorkload, binding: Binding, now: ClockReading) -> None:
        path = path_of(workload)
        self.forget_pending(path)
        self.queue.remove(path)
        # Bound to a node that is not in the table, or to a previous node of the same name.
        if self.node_uids.get(binding.node) != binding.uid:
            self._forget_bound(path)
            self._orphans_by_node.setdefault(binding.node, {})[path] = None
            return
        evictions = self.scheduler.evictions
        # The table does not count the resources of workloads being evicted.
        if (victim_node := evictions.node_of_victim(path)) == binding.node:
            return
        # Another scheduler has bound the victim to another node: the victim has left this node.
        if victim_node:
            evictions.remove_victim(path)
        ask, placement = self.ask_of(workload), self.table.placements.get(path)
        if placement and self.table.names[placement.row] == binding.node and placement.ask == ask:
            was_prepared = self.reservation_records.pop(path, None) is not None
            # Without a record there is nothing to do: the placement is bound already, or the attempt that
            # assumed the placement commits it.
            if placement.state != "bound" and was_prepared:
                self.table.commit(path)
            return
        if self._forget_bound(path):
            # The workload may now request less than before.
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)
        self._forget_reservation_record(path, now)
        if path in self.table.placements:
            return  # assumed on a different node: the attempt will fail at its commit
        if derive_eviction(workload).cause is EvictionCause.PREEMPTION:
            evictions.add_victim(binding.node, path)
        elif self._admit(path, ask, binding.node, workload):
            self.table.commit(path)
            self.queue.wake(ClusterEvent.WORKLOAD_ADDED, now.monotonic)

    def _admit(self, path: str, ask: WorkloadAsk, node: str, workload: LatticeWorkload) -> bool:
        row = self.table.row_of[node]
        reason = overflow_reason(ask, self.table, row)
        gpus = allocated_gpus(workload)
        if (
            not reason
            and ask.demands.gpu
            and not gpus
            and not has_free_gpus(ask.demands.gpu, self.table, row)
        ):
            reason = f"node {node} has too few free GPUs for the workload"
        if reason:
            self.problems[f"workload {path}"] = reason
            return False
        self.problems.pop(f"workload {path}", None)
        ports = dynamic_ports(workload.spec.containers, workload.status.allocated_ports)
        if ask.demands.gpu and gpus:
            self.table.restore(Placement(ask, row, "assumed", gpus, ports))
        else:
            self.table.admit(ask, row, ports)
        return True

    def _apply_unbound(self, path: str, now: ClockReading) -> None:
        """Update a workload that is on no node. An assumed placement stays: it belongs to an attempt, and the
        attempt removes it."""
        self.pending.pop(path, None)
        self.problems.pop(f"workload {path}", None)
        self._remove_from_node(path, now)

    def _remove_from_node(self, path: str, now: ClockReading) -> None:
        """Forget the bound placement of a workload, and finish its eviction."""
        self.scheduler.evictions.remove_victim(path)
        if self._forget_bound(path):
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)

    def _forget_bound(self, path: str) -> Placement | None:
        placement = self.table.placements.get(path)
        return self.table.forget(path) if placement and placement.state == "bound" else None

    def _forget_reservation_record(
        self,
        path: str,
        now: ClockReading,
        record: ReservationRecord | None = None,
        binding: Binding | None = None,
    ) -> None:
        """Forget the record of an aborted reservation, unless the store still has the record or the workload
        is bound to the node."""
        previous = self.reservation_records.get(path)
        if previous is None or (record and previous.id == record.id):
            return
        if binding and (binding.node, binding.uid) == (previous.node, previous.uid):
            return
        del self.reservation_records[path]
        placement = self.table.placements.get(path)
        if placement and placement.state == "assumed" and not self._is_own_reservation(previous):
            self.table.forget(path)
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)

    def _is_own_reservation(self, record: ReservationRecord) -> bool:
        return self.scheduler.reservations.get(record.id) is not None

    def _back_off_or_queue(self, path: str, workload: LatticeWorkload, now: ClockReading) -> None:
        spec, retry = workload.spec, workload.status.retry
        is_schedulable = spec.desired_state == "Running" and not workload.metadata.deletion_timestamp
        # A workload that was tried before is not scheduled during its back-off, nor after its final failure.
        if is_schedulable and retry is not None:
            decision = decide(
                WorkloadInput(
                    "Running",
                    spec.effective_revision,
                    now.wall_time,
                    node="None",
                    retry=retry,
                    is_service_replica=bool(spec.service),
                    restart_policy=spec.restart_policy,
                )
            )
            if decision.action is Action.BACKOFF_WAIT:
                heappush(self._retry_heap, (now.monotonic + (decision.requeue_after or 0.0), path))
            is_schedulable = decision.action is Action.ASSIGN
        if not is_schedulable:
            self.queue.remove(path)
            return
        ask = self.ask_of(workload)
        # An unchanged workload keeps its place in the queue and its back-off.
        if self.queue.current_ask(path) != ask:
            self.queue.add(ask)
            self.pending[path] = (workload, ask)
            # A further member may complete a waiting gang.
            if ask.group:
                self.queue.wake(ClusterEvent.WORKLOAD_ADDED, now.monotonic)


def _schedulable_info(node: LatticeNode) -> NodeInfo:
    """The node info; a node that is being deleted counts as cordoned."""
    node_info = node_info_of(node)
    return replace(node_info, is_cordoned=True) if node.metadata.deletion_timestamp else node_info


def _node_events(previous: NodeInfo | None, current: NodeInfo) -> Iterable[ClusterEvent]:
    """The cluster events of a changed node."""
    if previous is None:
        yield ClusterEvent.NODE_ADDED
        return
    has_more = any(amount > previous.allocatable.get(name, 0) for name, amount in current.allocatable.items())
    if has_more or (previous.gpus, previous.port_range, previous.taken_ports) != (
        current.gpus,
        current.port_range,
        current.taken_ports,
    ):
        yield ClusterEvent.NODE_GREW
    was_open, is_open = (
        info.is_ready and not info.is_cordoned and not info.is_draining for info in (previous, current)
    )
    if was_open != is_open:
        yield ClusterEvent.NODE_READY if is_open else ClusterEvent.NODE_UNAVAILABLE
    if any(
        getattr(previous, name) != getattr(current, name)
        for name in ("labels", "taints", "licences", "runtimes", "image", "price", "is_under_pressure")
    ):
        yield ClusterEvent.NODE_CHANGED
