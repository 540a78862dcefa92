"""Evict workloads from nodes that are draining or carry a NoExecute taint.

A replica that its service needs is evicted only after a replacement is ready.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.services.services import UNSCHEDULABLE_GRACE_S
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, merge_conditions
from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.node import DRAINED_CONDITION, LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import (
    DRAIN_BLOCKED_REASON,
    drained_condition,
    eviction_reasons,
    is_available,
    is_draining,
    is_evicting,
    needs_eviction_check,
    node_workload,
    preemption_reason,
    service_availability,
    taint_ages,
    taints_first_seen,
    without_drained_condition,
)
from lattice.lifecycle.node_health import DRAIN_REASON, DrainPlan, NodeWorkload, plan_drain, taint_evictions
from lattice.lifecycle.replica_observation import (
    SchedulingTimeout,
    has_joined,
    is_unschedulable,
    unschedulable_reason,
)
from lattice.store.protocol import Change, Write

# A drained node is reconciled again after so long, so that workloads that need not leave any more stay.
SPARED_RECHECK_S = 1.0
# A drain that makes no progress gives the surge replica to another drain after so long.
SURGE_TURN_S = 300.0


class SurgeTurn(NamedTuple):
    """The node whose drain gets the surge replica of a service, of several draining nodes."""

    node: str
    ends_at: float


@dataclass
class EvictionController:
    """Decide which workloads of a node are evicted now; the key is `/node`.

    Every decision follows from stored objects, so that a new leader continues a drain.
    """

    context: ControllerContext
    concurrency: Concurrency = field(default_factory=Concurrency)
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    name: str = "departures"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._workloads = self.context.cache(LatticeWorkload)
        self._services = self.context.cache(LatticeService)
        self._recorder = self.context.recorder("nodes")
        # By path of the node: paths of the evicted workloads, with the reason.
        self._evictions: dict[str, Mapping[str, str]] = {}
        # Evicted because they do not run: these workloads stay if they are available before the eviction is
        # stored.
        self._unavailable_evictions: dict[str, set[str]] = {}
        self._draining: set[str] = set()
        # By path of the node: services that need a surge replica, with the workload that waits for the surge.
        self._surges: dict[str, Mapping[str, str]] = {}
        # By path of the service.
        self._surge_turns: dict[str, SurgeTurn] = {}
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self._surge_listeners: list[Callable[[Iterable[str]], None]] = []

    def loop(self) -> Loop:
        sources = (
            Source(self._nodes, self._keys_for_node),
            Source(self._workloads, self._keys_for_change),
            Source(self._services, self._keys_for_change),
        )
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(node) for node in self._nodes.objects() if needs_eviction_check(node)],
            sources,
            self.concurrency,
        )

    def on_change(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call the listener with the paths of workloads whose eviction starts or is withdrawn; the listener
        must not block."""
        self._listeners.append(listener)

    def on_surge_change(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call the listener with the paths of services whose entry in `surges` changes; the listener must not
        block."""
        self._surge_listeners.append(listener)

    @property
    def surges(self) -> Mapping[str, str]:
        """Services, by path, that need a surge replica before a drain can go on, each with a workload that
        waits for the surge.

        Of several draining nodes, one node keeps the surge until its drain ends, so that the surge is not
        given up for another node.
        """
        return {service: self._surges[turn.node][service] for service, turn in self._surge_turns.items()}

    def eviction_reason(self, workload: LatticeWorkload, *, is_up: bool = False) -> str:
        """The reason to evict the workload, or empty; `is_up` states that the node reports the workload as
        ready, which may not be stored yet."""
        binding, path = workload.status.binding, path_of(workload)
        if binding is None:
            return ""
        key = f"/{binding.node}"
        # A workload evicted as unavailable stays if it recovers before the eviction is stored.
        is_back = (
            path in self._unavailable_evictions.get(key, ())
            and (is_up or is_available(workload))
            and not is_evicting(workload)
        )
        return ("" if is_back else self._evictions.get(key, {}).get(path, "")) or preemption_reason(workload)

    async def reconcile(self, key: str) -> Requeue | None:
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None or not needs_eviction_check(node):
            self._record_evictions(key, None, {})
            return None
        now = self.context.clock.now()
        times = taints_first_seen(node, format_micro_time(now))
        # Workloads evicted for a taint stay if the taint is gone by now.
        spared = {path for path, reason in self._evictions.get(key, {}).items() if reason != DRAIN_REASON}
        residents = self._residents(node, self._evicted_paths() - spared)
        by_taint = taint_evictions(residents, taint_ages(node, times, now))
        drain = self._drain(residents) if is_draining(node) else None
        if drain is None:
            self._draining.discard(key)
        else:
            self._draining.add(key)
        surges: dict[str, str] = {}
        for resident in residents:
            if drain and resident.service in drain.surge_services and resident.name in drain.blocked:
                surges[resident.service] = resident.name
        self._record_evictions(
            key,
            eviction_reasons(residents, by_taint, drain),
            surges,
            is_surge_unschedulable=drain is not None and drain.is_surge_unschedulable,
        )
        # After `_record_evictions`, which clears the entry of the node. A replica that a taint evicts now
        # leaves even if the replica recovers: a user wants that (I-24).
        self._unavailable_evictions[key] = {
            resident.name
            for resident in residents
            if resident.service and not (resident.is_available or resident.is_evicting)
        } - {eviction.name for eviction in by_taint if eviction.delay <= 0}
        status = replace(without_drained_condition(node.status), taints_since=times)
        events: list[Write] = []
        if drain is not None:
            condition = drained_condition(drain, len(residents))
            status = replace(
                status,
                conditions=merge_conditions(node.status.conditions, [condition], self.context.timestamp),
            )
            events += self._drain_events(node, condition, len(residents))
        if status != node.status:
            await self.context.commit([with_status(entry, status), *events])
        delays = [eviction.delay for eviction in by_taint if eviction.delay > 0]
        if drain is not None and drain.surge_services:
            # A replica counts as unschedulable only after the grace period.
            delays.append(
                SURGE_TURN_S if drain.is_surge_unschedulable else max(1.0, self.unschedulable_grace_s)
            )
        if drain is not None and not spared <= {eviction.name for eviction in by_taint}:
            delays.append(SPARED_RECHECK_S)
        return Requeue(min(delays)) if delays else None

    def _keys_for_node(self, change: Change) -> Iterable[str]:
        node, path = self._nodes.get(change.key.path), change.key.path
        return (path,) if path in self._evictions or (node is not None and needs_eviction_check(node)) else ()

    def _keys_for_change(self, change: Change) -> Iterable[str]:
        """Wake the nodes that a workload or service concerns.

        A drain depends on replicas on any node; a taint concerns the workloads that are on the node or have
        just left the node.
        """
        # No node drains or carries a taint: almost every change of a workload ends here.
        if not self._evictions:
            return ()
        workload = None
        if change.key.resource == LatticeWorkload.resource.id:
            workload = self._workloads.get(change.key.path)
        binding = workload.status.binding if workload else None
        node_key = f"/{binding.node}" if binding else ""
        return [
            key
            for key, paths in self._evictions.items()
            if key == node_key or key in self._draining or change.key.path in paths
        ]

    def _residents(self, node: LatticeNode, evicted: Collection[str]) -> list[NodeWorkload]:
        """The workloads that are bound to this node; a binding to an earlier node of the same name does not
        count."""
        bound = self._workloads.by_index("node", node.metadata.name)
        return [
            node_workload(workload, evicted)
            for workload in bound
            if workload.status.binding and workload.status.binding.uid in ("", node.metadata.uid)
        ]

    def _drain(self, residents: list[NodeWorkload]) -> DrainPlan:
        """Plan the drain of a node within the disruption budgets of the services (I-24)."""
        evicted, surges = self._evicted_paths(), self.surges
        services = {}
        for name in {resident.service for resident in residents if resident.service}:
            availability = service_availability(
                self._services.get(name),
                self._workloads.by_index("service", name),
                evicted,
                is_surged=name in surges,
            )
            services[name] = dataclasses.replace(availability, unschedulable_reason=self._blocker(name))
        plan = plan_drain(residents, services)
        awaiting_machine = {
            name
            for name in plan.surge_services
            if any(map(self._has_pending_machine, self._unschedulable_replicas(name)))
        }
        blocked = dict(plan.blocked)
        for resident in residents:
            is_waiting = resident.name in plan.blocked and not resident.is_evicting
            if is_waiting and resident.service in awaiting_machine:
                blocked[resident.name] = f"{plan.blocked[resident.name]}; a machine is being made"
        return dataclasses.replace(plan, blocked=blocked)

    def _unschedulable_replicas(self, service: str) -> list[LatticeWorkload]:
        replicas = self._workloads.by_index("service", service)
        return [replica for replica in replicas if unschedulable_reason(replica)]

    def _has_pending_machine(self, workload: LatticeWorkload) -> bool:
        """Whether a node of the workload's cluster has not joined yet."""
        nodes = self._nodes.by_index("cluster", workload.spec.cluster)
        return any(not node.metadata.deletion_timestamp and not has_joined(node) for node in nodes)

    def _blocker(self, service: str) -> str:
        """The reason why no node accepts a replica of the service, and whether the pool is full; empty if no
        replica is stuck.

        Placement grows the cluster after the grace period. A replica is stuck after twice the grace period,
        if no machine is being made.
        """
        timeout = SchedulingTimeout(
            self.context.clock.now(), timedelta(seconds=2 * self.unschedulable_grace_s)
        )
        for replica in self._unschedulable_replicas(service):
            if is_unschedulable(replica, timeout) and not self._has_pending_machine(replica):
                break
        else:
            return ""
        reason = unschedulable_reason(replica)
        cluster = self.context.cache(LatticeCluster).get(f"/{replica.spec.cluster}")
        pool = self.context.cache(LatticePool).get(f"/{cluster.spec.pool}") if cluster else None
        full = _full_pool_message(pool) if pool else ""
        return f"{reason}; {full}" if full else reason

    def _drain_events(self, node: LatticeNode, condition: Condition, residents: int) -> Iterator[Write]:
        previous = find_condition(node.status.conditions, DRAINED_CONDITION)
        if condition.status == "True":
            if previous is None or previous.status != "True":
                yield self._recorder.event(node, "NodeDrained", condition.message)
            return
        if previous is None or previous.status == "True":
            yield self._recorder.event(node, "NodeDraining", f"{residents} to move elsewhere")
        if condition.reason == DRAIN_BLOCKED_REASON and (
            previous is None or previous.reason != DRAIN_BLOCKED_REASON
        ):
            yield self._recorder.event(node, "NodeDrainStuck", condition.message, warning=True)

    def _evicted_paths(self) -> set[str]:
        """Paths of the workloads that are evicted on any node, stored or not; unavailable workloads may still
        recover and do not count."""
        evicted: set[str] = set()
        for key, paths in self._evictions.items():
            unavailable = self._unavailable_evictions.get(key, ())
            evicted.update(path for path in paths if path not in unavailable)
        return evicted

    def _record_evictions(
        self,
        key: str,
        evictions: Mapping[str, str] | None,
        surges: Mapping[str, str],
        *,
        is_surge_unschedulable: bool = False,
    ) -> None:
        """Replace the evictions and surges of a node and notify the listeners of changes; None clears the
        node."""
        previous = self._evictions.pop(key, {})
        previous_surges, previous_node_surges = {**self.surges}, self._surges.pop(key, {})
        self._unavailable_evictions.pop(key, None)
        if evictions is None:
            self._draining.discard(key)
        else:
            self._evictions[key], self._surges[key] = evictions, surges
        for service in {**previous_node_surges, **surges}:
            # A drain whose surge replica fits nowhere makes no progress, so the turn is not extended and
            # passes on.
            self._assign_surge_turn(service, "" if is_surge_unschedulable else key)
        _notify(self._listeners, {*previous} ^ {*(evictions or {})})
        reassigned = {
            service for service, path in self.surges.items() if previous_surges.get(service) != path
        }
        _notify(self._surge_listeners, {*previous_node_surges} ^ {*surges} | reassigned)

    def _assign_surge_turn(self, service: str, active_node: str) -> None:
        """Give the surge replica of a service to the next draining node, once the current drain ends or its
        turn expires.

        `active_node` is a node whose drain makes progress, which extends the turn of the node.
        """
        now = self.context.clock.monotonic()
        waiting = sorted(key for key, services in self._surges.items() if service in services)
        turn = self._surge_turns.pop(service, SurgeTurn("", now))
        # A later drain must not take over a running turn: its surge replica would move between clusters
        # (I-33).
        if turn.node in waiting and (now < turn.ends_at or turn.node == active_node):
            if turn.node == active_node:
                turn = SurgeTurn(turn.node, now + SURGE_TURN_S)
            self._surge_turns[service] = turn
        elif waiting:
            # The next node by name, then from the first name on: every draining node gets a turn.
            self._surge_turns[service] = SurgeTurn(
                next((key for key in waiting if key > turn.node), waiting[0]), now + SURGE_TURN_S
            )


def _full_pool_message(pool: LatticePool) -> str:
    usage, max_nodes = pool.status.capacity, pool.spec.capacity.max_nodes
    used = usage.allocated_nodes if usage else None
    if used is None or max_nodes is None or used < max_nodes:
        return ""
    return f"pool {pool.metadata.name} has {used} of {max_nodes} nodes"


def _notify(listeners: Iterable[Callable[[Iterable[str]], None]], paths: set[str]) -> None:
    if paths:
        for listener in listeners:
            listener(sorted(paths))
