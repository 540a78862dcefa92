"""Which nodes are there, who is on them, and who still needs one? The table and the queue, kept in step with what is stored."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from lattice.engine.derived_columns import drop_oldest_half
from lattice.errors import LatticeError
from lattice.kinds.meta.json_body import encode
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import EVICTED, Binding, LatticeWorkload
from lattice.lifecycle.workload import Action, WorkloadInput, decide
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.input_checks import capacity_conflicts
from lattice.scheduling.cycle.reservation_record import ReservationRecord, reservation_record
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_info import NodeInfo, node_info_of
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.port_allocator import dynamic_ports
from lattice.scheduling.table.resource_fit import has_gpus, overflow_reason

MAX_CACHED_ASKS = 1 << 12  # of asks that are read once for all that are alike


@dataclass(frozen=True, slots=True)
class ClockReading:
    monotonic: float  # monotonic
    wall_time: datetime


@dataclass(slots=True)
class SchedulerCache:
    """Told of each node and workload that changed, as it is now. Told the same twice it changes nothing."""

    scheduler: CompositeScheduler
    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    node_uids: dict[str, str] = field(default_factory=dict)  # of the nodes in the table
    reservation_records: dict[str, ReservationRecord] = field(
        default_factory=dict
    )  # workloads whose room is taken and whose binding is not made yet
    problems: dict[str, str] = field(
        default_factory=dict
    )  # what cannot be counted, or not as it says, and why
    pending: dict[str, tuple[LatticeWorkload, WorkloadAsk]] = field(
        default_factory=dict
    )  # those that wait for a node, as they were read
    _ask_by_spec: dict[tuple[object, ...], WorkloadAsk] = field(default_factory=dict)
    _orphans_by_node: dict[str, dict[str, None]] = field(
        default_factory=dict
    )  # workloads by a node that is not there
    _retry_heap: list[tuple[float, str]] = field(default_factory=list)

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def update_node(self, name: str, found: LatticeNode | None, now: float) -> list[str]:
        """A node is now like this, or gone. Which workloads must be looked at again?"""
        if found is None:
            return self._remove_node(name, now)
        try:
            facts = _schedulable_info(found)
            again = (
                self._remove_node(name, now)
                if self.node_uids.get(name, found.metadata.uid) != found.metadata.uid
                else []
            )
            before = self.table.node_infos[self.table.row_of[name]] if name in self.table.row_of else None
            if facts != before:
                self.table.put_node(facts)
        except (LatticeError, ArithmeticError) as problem:
            self.problems[f"node {name}"] = str(problem)
            return self._remove_node(name, now)
        self._record_problem(f"node {name}", "; ".join(capacity_conflicts(found.status)))
        self.node_uids[name] = found.metadata.uid
        for change in _node_events(before, facts) if facts != before else ():
            self.queue.wake(change, now)
        return again if before else [*again, *self._orphans_by_node.pop(name, ())]

    def _record_problem(self, what: str, why: str) -> None:
        if why:
            self.problems[what] = why
        else:
            self.problems.pop(what, None)

    def reflects_node(self, node: LatticeNode) -> bool:
        """Is the node as those are told of it who choose nodes?"""
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
        lost = self.table.remove_node(name)
        self.queue.wake(ClusterEvent.NODE_UNAVAILABLE, now)
        return [placement.ask.name for placement in lost]

    def update_workload(self, path: str, found: LatticeWorkload | None, now: ClockReading) -> None:
        """A workload is now like this, or gone."""
        try:
            self._apply_workload(path, found, now)
        except LatticeError as problem:
            self.problems[f"workload {path}"] = str(problem)
            self.queue.remove(path)

    def _apply_workload(self, path: str, found: LatticeWorkload | None, now: ClockReading) -> None:
        held = reservation_record(found) if found and not found.status.binding else None
        self._forget_reservation_record(path, now, held, found.status.binding if found else None)
        if found is None:
            self._apply_unbound(path, now)
            self.queue.remove(path)
        elif found.status.binding:
            self._apply_bound(found, found.status.binding, now)
        elif held is not None:
            self._remove_from_node(path, now)
            self._apply_reservation_record(path, found, held)
        else:
            self._apply_unbound(path, now)
            self._back_off_or_queue(path, found, now)

    def in_doubt_gangs(self) -> set[str]:
        """Groups of which somebody else has prepared members: they are neither bound nor not, so the others cannot be decided yet."""
        theirs = [
            path for path, held in self.reservation_records.items() if not self._is_own_reservation(held)
        ]
        return {
            there.ask.group
            for path in theirs
            if (there := self.table.placements.get(path)) and there.ask.group
        }

    def pop_due_retries(self, now: float) -> list[str]:
        """Those whose wait for another attempt is over."""
        over = []
        while self._retry_heap and self._retry_heap[0][0] <= now:
            over.append(heappop(self._retry_heap)[1])
        return over

    def next_due_at(self) -> float | None:
        """When there is something to do, if nothing changes: 0 at once, None never."""
        known = [
            when
            for when in (self.queue.next_ready_at(), self._retry_heap[0][0] if self._retry_heap else None)
            if when is not None
        ]
        return min(known, default=None)

    def has_same_ask(self, workload: LatticeWorkload, ask: WorkloadAsk) -> bool:
        """Does it still ask for this? One that was not changed since it was read does."""
        known = self.pending.get(f"{workload.metadata.namespace}/{workload.metadata.name}")
        return (known is not None and known[0] is workload and known[1] is ask) or self.ask_of(
            workload
        ) == ask

    def forget_pending(self, path: str) -> None:
        """It has its node."""
        self.pending.pop(path, None)

    def ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        """Most of many workloads ask for what others ask for: those are read once."""
        metadata = workload.metadata
        plain = msgspec.structs.replace(workload.spec, slot=0, revision="", desired_state="Running")
        key = (metadata.namespace, encode(plain), *metadata.labels.items())
        like = self._ask_by_spec.get(key)
        if like is None:
            drop_oldest_half(self._ask_by_spec, MAX_CACHED_ASKS)
            like = self._ask_by_spec[key] = self.table.ask_of(workload)
        return replace(like, name=f"{like.demands.namespace}/{metadata.name}")

    def _apply_bound(self, found: LatticeWorkload, binding: Binding, now: ClockReading) -> None:
        path = f"{found.metadata.namespace}/{found.metadata.name}"
        self.forget_pending(path)
        self.queue.remove(path)
        if self.node_uids.get(binding.node) != binding.uid:
            self._forget_bound(path)
            self._orphans_by_node.setdefault(binding.node, {})[path] = None
            return
        if path in self.table.evicting.get(binding.node, ()):
            return
        ask, there = self.ask_of(found), self.table.placements.get(path)
        if there and self.table.names[there.row] == binding.node and there.ask == ask:
            was_prepared = self.reservation_records.pop(path, None) is not None
            if (
                there.state != "bound" and was_prepared
            ):  # else it is known; or assumed, and whoever assumes it will hear of it
                self.table.commit(path)
            return
        if self._forget_bound(path):
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)  # it may ask for less
        self._forget_reservation_record(path, now)
        if path in self.table.placements:
            return  # assumed elsewhere: that attempt will find out
        if is_evicted(found):
            self.table.evicting.setdefault(binding.node, {})[path] = None
        elif self._admit(path, ask, binding.node, found):
            self.table.commit(path)
            self.queue.wake(ClusterEvent.WORKLOAD_ADDED, now.monotonic)

    def _apply_reservation_record(self, path: str, found: LatticeWorkload, held: ReservationRecord) -> None:
        """By us, and then its room is taken already; or by another, or before a restart."""
        self.reservation_records[path] = held
        if path in self.table.placements or self.node_uids.get(held.node) != held.uid:
            return
        self.queue.remove(path)
        self._admit(path, self.ask_of(found), held.node, found)

    def _admit(self, path: str, ask: WorkloadAsk, node: str, found: LatticeWorkload) -> bool:
        row = self.table.row_of[node]
        why = overflow_reason(ask, self.table, row)
        told = found.status.decision.get("gpus")
        if not why and ask.demands.gpu and not told and not has_gpus(ask.demands.gpu, self.table, row):
            why = f"node {node} has not the GPUs that it is bound to"
        if why:
            self.problems[f"workload {path}"] = why
            return False
        self.problems.pop(f"workload {path}", None)
        ports = dynamic_ports(found.spec.containers, found.status.allocated_ports)
        if ask.demands.gpu and told:
            self.table.restore(Placement(ask, row, "assumed", tuple(told), ports))
        else:
            self.table.admit(ask, row, ports)
        return True

    def _apply_unbound(self, path: str, now: ClockReading) -> None:
        """It is on no node. What is only assumed is in the hand of an attempt, which will find out."""
        self.pending.pop(path, None)
        self.problems.pop(f"workload {path}", None)
        self._remove_from_node(path, now)

    def _remove_from_node(self, path: str, now: ClockReading) -> None:
        """The node that it was bound to, if it was."""
        self.scheduler.finish_eviction(path)
        if self._forget_bound(path):
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)

    def _forget_bound(self, path: str) -> Placement | None:
        there = self.table.placements.get(path)
        return self.table.forget(path) if there and there.state == "bound" else None

    def _forget_reservation_record(
        self,
        path: str,
        now: ClockReading,
        held: ReservationRecord | None = None,
        binding: Binding | None = None,
    ) -> None:
        """What was prepared was given up; unless it is still, or is bound there now."""
        before = self.reservation_records.get(path)
        is_same = before and held and before.reservation == held.reservation
        if (
            before is None
            or is_same
            or (binding and (binding.node, binding.uid) == (before.node, before.uid))
        ):
            return
        del self.reservation_records[path]
        there = self.table.placements.get(path)
        if there and there.state == "assumed" and not self._is_own_reservation(before):
            self.table.forget(path)
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now.monotonic)

    def _is_own_reservation(self, held: ReservationRecord) -> bool:
        return self.scheduler.reservations.get(held.reservation) is not None

    def _back_off_or_queue(self, path: str, found: LatticeWorkload, now: ClockReading) -> None:
        is_wanted = found.spec.desired_state == "Running" and not found.metadata.deletion_timestamp
        if not is_wanted or (found.status.retry is not None and not self._may_retry_now(path, found, now)):
            self.queue.remove(path)
            return
        ask = self.ask_of(found)
        if self.queue.current_ask(path) != ask:
            self.queue.add(ask)
            self.pending[path] = (found, ask)
            if ask.group:
                self.queue.wake(ClusterEvent.WORKLOAD_ADDED, now.monotonic)

    def _may_retry_now(self, path: str, found: LatticeWorkload, now: ClockReading) -> bool:
        """One that was tried before may have to wait, or has failed for good."""
        decision = decide(
            WorkloadInput(
                "Running", found.spec.effective_revision, now.wall_time, node="None", retry=found.status.retry
            )
        )
        if decision.action is Action.BACKOFF_WAIT:
            heappush(self._retry_heap, (now.monotonic + (decision.requeue_after or 0.0), path))
        return decision.action is Action.ASSIGN


def _schedulable_info(node: LatticeNode) -> NodeInfo:
    """One that is being deleted takes nothing new."""
    facts = node_info_of(node)
    return replace(facts, is_cordoned=True) if node.metadata.deletion_timestamp else facts


def is_evicted(workload: LatticeWorkload) -> bool:
    return any(each.type == EVICTED and each.status == "True" for each in workload.status.conditions)


def _node_events(before: NodeInfo | None, after: NodeInfo) -> Iterable[ClusterEvent]:
    """What a node's change could mean to those that wait."""
    if before is None:
        yield ClusterEvent.NODE_ADDED
        return
    has_more = any(amount > before.allocatable.get(name, 0) for name, amount in after.allocatable.items())
    if has_more or (before.gpus, before.port_range, before.taken_ports) != (
        after.gpus,
        after.port_range,
        after.taken_ports,
    ):
        yield ClusterEvent.NODE_GREW
    was, now = (each.is_ready and not each.is_cordoned and not each.is_draining for each in (before, after))
    if was != now:
        yield ClusterEvent.NODE_READY if now else ClusterEvent.NODE_UNAVAILABLE
    if any(
        getattr(before, name) != getattr(after, name)
        for name in ("labels", "taints", "licences", "runtimes", "image", "price")
    ):
        yield ClusterEvent.NODE_CHANGED
