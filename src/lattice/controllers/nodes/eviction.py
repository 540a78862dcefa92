"""Evict workloads from nodes that are draining or carry a NoExecute taint.

If a service needs a replica, a drain evicts the replica only after a replacement is ready; a NoExecute taint
does not wait for a replacement.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from lattice.controllers.nodes.surge_queue import SURGE_HOLD_S, SurgeQueue
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.services.placement import UNSCHEDULABLE_GRACE_S
from lattice.diagnosis.blocker import facts_from
from lattice.diagnosis.machines import capacity_text
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, merge_conditions
from lattice.kinds.meta.quantity import pluralize, without_amounts
from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.node import DRAINED_CONDITION, LatticeNode, NodeUsage
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.disruption import service_availability
from lattice.lifecycle.drain import (
    STUCK_DRAIN_REASONS,
    DrainPlan,
    NodeWorkload,
    drained_condition,
    is_draining,
    needs_eviction_check,
    node_evictions,
    node_workload,
    plan_drain,
    taint_ages,
    taint_evictions,
    taints_first_seen,
    without_drained_condition,
)
from lattice.lifecycle.eviction import DecidedEviction, DecidedEvictions, EvictionCause
from lattice.lifecycle.node_health import (
    DEFAULT_THRESHOLDS,
    PressureThresholds,
    is_under_pressure,
    next_victim,
)
from lattice.lifecycle.replica_observation import (
    SchedulingTimeout,
    has_joined,
    is_unschedulable,
    purchase_blocker,
    unschedulable_reason,
)
from lattice.lifecycle.replica_template import node_group_of
from lattice.store.protocol import Change, Write

# If a taint no longer evicts a workload of a draining node, the drain is planned again after this delay.
SPARED_RECHECK_S = 1.0
# The interval of checks of a node under pressure, and the time after an eviction in which heartbeats show its
# effect.
PRESSURE_CHECK_S, PRESSURE_SETTLE_S = 10.0, 30.0


class _PressureEvictions(NamedTuple):
    """The evictions from a node under pressure by path, and the events of new evictions."""

    evictions: dict[str, DecidedEviction]
    events: list[Write]


@dataclass
class EvictionController:
    """Decide which workloads of a node are evicted now; the key is `/` and the node's name.

    Every decision follows from stored objects, so a new leader continues a drain. `evictions` holds the
    decisions. Flags and metrics name this controller `departures`.
    """

    context: ControllerContext
    evictions: DecidedEvictions
    concurrency: Concurrency = field(default_factory=Concurrency)
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS
    name: str = "departures"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._workloads = self.context.cache(LatticeWorkload)
        self._services = self.context.cache(LatticeService)
        self._recorder = self.context.recorder("nodes")
        # Nodes with a drain or a NoExecute taint at their last reconcile; True for a drain. A change of a
        # workload wakes only these nodes.
        self._checked_nodes: dict[str, bool] = {}
        # By node: the monotonic time of the last eviction by pressure.
        self._pressure_evicted_at: dict[str, float] = {}
        self._surge_queue = SurgeQueue(self.context.clock.monotonic)
        self._surge_listeners: list[Callable[[Iterable[str]], None]] = []

    def loop(self) -> Loop:
        sources = (
            Source(self._nodes, self.keys_for_node),
            Source(self._workloads, self.keys_for_change),
            Source(self._services, self.keys_for_change),
        )
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(node) for node in self._nodes.objects() if needs_eviction_check(node)],
            sources,
            self.concurrency,
        )

    def on_surge_change(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call the listener with the paths of services whose entry in `surges` changes; the listener must not
        block."""
        self._surge_listeners.append(listener)

    @property
    def surges(self) -> Mapping[str, str]:
        """Services, by path, that need a surge replica before a drain can go on, each with a workload that
        waits for the surge."""
        return self._surge_queue.surges()

    async def reconcile(self, key: str) -> Requeue | None:
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None or not needs_eviction_check(node):
            self._checked_nodes.pop(key, None)
            self.evictions.decide_for_node(key.removeprefix("/"), {})
            self._update_surges(key, None)
            return None
        now = self.context.clock.now()
        times = taints_first_seen(node, format_micro_time(now))
        evicted_by_taint = {
            path
            for path, eviction in self.evictions.of_node(node.metadata.name).items()
            if eviction.cause is EvictionCause.NO_EXECUTE_TAINT
        }
        # A binding to an earlier node of the same name does not count.
        residents = [
            node_workload(workload, self.evictions.eviction_of(workload))
            for workload in self._workloads.by_index("node", node.metadata.name)
            if workload.status.binding and workload.status.binding.uid in ("", node.metadata.uid)
        ]
        by_taint = taint_evictions(residents, taint_ages(node, times, now))
        drain = self._drain(residents) if is_draining(node) else None
        # Pop and add again: the node that was reconciled longest ago stays first, and a change of a workload
        # wakes the nodes in this order.
        self._checked_nodes.pop(key, None)
        self._checked_nodes[key] = drain is not None
        surges: dict[str, str] = {}
        for resident in residents:
            if drain and resident.service in drain.surge_services and resident.name in drain.blocked:
                surges[resident.service] = resident.name
        decided = node_evictions(residents, by_taint, drain)
        by_pressure = self._pressure_evictions(node, decided)
        self.evictions.decide_for_node(node.metadata.name, decided | by_pressure.evictions)
        self._update_surges(key, surges, is_unschedulable=drain is not None and drain.is_surge_unschedulable)
        status = replace(without_drained_condition(node.status), taints_since=times)
        events: list[Write] = list(by_pressure.events)
        if drain is not None:
            condition = drained_condition(drain, len(residents))
            status = replace(
                status,
                conditions=merge_conditions(node.status.conditions, [condition], self.context.timestamp),
            )
            events += self._drain_events(node, condition, len(residents))
        if status != node.status:
            events = [with_status(entry, status), *events]
        if events:
            await self.context.commit(events)
        delays = [PRESSURE_CHECK_S] if is_under_pressure(node.status) else []
        delays += [eviction.delay for eviction in by_taint if eviction.delay > 0]
        if drain is not None and drain.surge_services:
            # A replica counts as unschedulable only after the grace period.
            delays.append(
                SURGE_HOLD_S if drain.is_surge_unschedulable else max(1.0, self.unschedulable_grace_s)
            )
        if drain is not None and not evicted_by_taint <= {eviction.name for eviction in by_taint}:
            delays.append(SPARED_RECHECK_S)
        return Requeue(min(delays)) if delays else None

    def _pressure_evictions(
        self, node: LatticeNode, decided: Mapping[str, DecidedEviction]
    ) -> "_PressureEvictions":
        """Evict one workload at a time from a node under pressure, outside of disruption budgets, until the
        usage that the node reports shows the effect of the last eviction."""
        name, result = node.metadata.name, _PressureEvictions({}, [])
        if not is_under_pressure(node.status):
            self._pressure_evicted_at.pop(name, None)
            return result
        residents = [
            workload
            for workload in self._workloads.by_index("node", name)
            if workload.status.binding and workload.status.binding.uid in ("", node.metadata.uid)
        ]
        # A victim stays evicted until it has left the node.
        present = {path_of(workload) for workload in residents}
        for path, eviction in self.evictions.of_node(name).items():
            if eviction.cause is EvictionCause.NODE_PRESSURE and path in present:
                result.evictions[path] = eviction
        now = self.context.clock.monotonic()
        is_settled = now - self._pressure_evicted_at.get(name, -PRESSURE_SETTLE_S) >= PRESSURE_SETTLE_S
        heartbeat = self.context.presence.get(name)
        if result.evictions or not is_settled or heartbeat is None:
            return result
        staying = [
            workload
            for workload in residents
            if path_of(workload) not in decided and not self.evictions.eviction_of(workload).is_active
        ]
        usage = {path: (used.memory, used.disk) for path, used in heartbeat.workload_usage.items()}
        total = heartbeat.usage
        reported = NodeUsage(cpu=total.cpu, memory=total.memory, disk=total.disk)
        victim = next_victim((node.status, reported), staying, usage, self.thresholds)
        if victim is not None:
            self._pressure_evicted_at[name] = now
            result.evictions[victim.path] = DecidedEviction(EvictionCause.NODE_PRESSURE, victim.reason)
            workload = next(workload for workload in staying if path_of(workload) == victim.path)
            result.events.append(self._recorder.event(workload, "Evicted", victim.reason, warning=True))
        return result

    def keys_for_node(self, change: Change) -> Iterable[str]:
        node, path = self._nodes.get(change.key.path), change.key.path
        is_concerned = path in self._checked_nodes or (node is not None and needs_eviction_check(node))
        return (path,) if is_concerned else ()

    def keys_for_change(self, change: Change) -> Iterable[str]:
        """Return the keys of the nodes that a changed workload or service concerns.

        A drain depends on replicas on any node; a taint concerns the workloads that are on the node or have
        just left the node.
        """
        # No node drains or carries a taint: almost every change of a workload ends here.
        if not self._checked_nodes:
            return ()
        workload = None
        if change.key.resource == LatticeWorkload.resource.id:
            workload = self._workloads.get(change.key.path)
        binding = workload.status.binding if workload else None
        node_key = f"/{binding.node}" if binding else ""
        return [
            key
            for key, is_draining_node in self._checked_nodes.items()
            if is_draining_node
            or key == node_key
            or change.key.path in self.evictions.of_node(key.removeprefix("/"))
        ]

    def _drain(self, residents: list[NodeWorkload]) -> DrainPlan:
        """Plan the drain of a node within the disruption budgets of the services (I-24)."""
        surges = self.surges
        services = {}
        for name in {resident.service for resident in residents if resident.service}:
            availability = service_availability(
                self._services.get(name),
                self._workloads.by_index("service", name),
                self.evictions,
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
                blocked[resident.name] = f"{plan.blocked[resident.name]}; a new machine is starting"
        return dataclasses.replace(plan, blocked=blocked)

    def _unschedulable_replicas(self, service: str) -> list[LatticeWorkload]:
        replicas = self._workloads.by_index("service", service)
        return [replica for replica in replicas if unschedulable_reason(replica)]

    def _has_pending_machine(self, workload: LatticeWorkload) -> bool:
        """Whether a node of the workload's cluster has not joined yet."""
        nodes = self._nodes.by_index("cluster", workload.spec.cluster)
        return any(not node.metadata.deletion_timestamp and not has_joined(node) for node in nodes)

    def _blocker(self, service: str) -> str:
        """Why no node accepts a replica of the service, as text, with what keeps Lattice from adding a machine,
        such as a budget; empty if no replica is stuck.

        Placement grows the cluster after the grace period. A replica is stuck if it is still unschedulable
        after twice the grace period and no machine of its cluster is being created.
        """
        timeout = SchedulingTimeout(
            self.context.clock.now(), timedelta(seconds=2 * self.unschedulable_grace_s)
        )
        for replica in self._unschedulable_replicas(service):
            if is_unschedulable(replica, timeout) and not self._has_pending_machine(replica):
                break
        else:
            return ""
        cluster, node_class = node_group_of(replica)
        owner = self._services.get(service)
        # The scheduler knows nodes only; a budget or a limit that keeps a new machine away is on the service.
        if owner is not None and (blocker := purchase_blocker(owner, cluster)):
            return blocker
        # What refuses the machine comes first: the reasons of all nodes together can be long.
        texts = (
            capacity_text(cluster, node_class, facts_from(self.context.cache, self.context.clock.now())),
            unschedulable_reason(replica),
        )
        return "; ".join(filter(None, texts))

    def _drain_events(self, node: LatticeNode, condition: Condition, residents: int) -> Iterator[Write]:
        previous = find_condition(node.status.conditions, DRAINED_CONDITION)
        if condition.status == "True":
            if previous is None or previous.status != "True":
                yield self._recorder.event(node, "NodeDrained", condition.message)
            return
        if previous is None or previous.status == "True":
            yield self._recorder.event(node, "NodeDraining", f"{pluralize(residents, 'workload')} to evict")
        # Reported again only for another blocker: other amounts are no news.
        is_news = (
            previous is None
            or previous.reason not in STUCK_DRAIN_REASONS
            or without_amounts(previous.message) != without_amounts(condition.message)
        )
        if condition.reason in STUCK_DRAIN_REASONS and is_news:
            yield self._recorder.event(node, "NodeDrainStuck", condition.message, warning=True)

    def _update_surges(
        self, key: str, surges: Mapping[str, str] | None, *, is_unschedulable: bool = False
    ) -> None:
        """Record the surge replicas that the drain of a node waits for now, and notify the listeners of
        changes.

        `surges` holds the waiting workload by service; None if no workload of the node needs an eviction any more.
        """
        if changed := self._surge_queue.update(key, surges, is_unschedulable=is_unschedulable):
            for listener in self._surge_listeners:
                listener(sorted(changed))
