"""Who must leave a node that is drained or has a mark that expels, and who may only leave once another runs elsewhere?"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import merge_conditions, path_of, with_status
from lattice.controllers.services.services import UNSCHEDULABLE_GRACE_S
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import (
    DRAIN_BLOCKED_REASON,
    DRAINED_CONDITION,
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

SPARED_RECHECK_S = 1.0  # seconds until those that need not leave any more are known to stay
SURGE_TURN_S = 300.0  # seconds after which a drain that nothing comes of lets another one try


class SurgeTurn(NamedTuple):
    """Whose drain one replica more is for, of several that wait for it."""

    node: str
    ends_at: float


@dataclass
class EvictionController:
    """LatticeNode -> which of its workloads must go now. Told anew from what is stored, so that a new leader goes on where it was."""

    context: ControllerContext
    concurrency: Concurrency = field(default_factory=Concurrency)
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    name: str = "departures"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._workloads = self.context.cache(LatticeWorkload)
        self._services = self.context.cache(LatticeService)
        self._recorder = self.context.recorder("nodes")
        self._evictions: dict[str, Mapping[str, str]] = {}  # by path of the node: paths of workloads, and why
        self._unavailable_evictions: dict[
            str, set[str]
        ] = {}  # and those of them that go because they do not run: not if they are back before they are told
        self._draining: set[str] = set()
        self._surges: dict[
            str, Mapping[str, str]
        ] = {}  # by path of the node: services, and who waits for one more of them
        self._surge_turns: dict[str, SurgeTurn] = {}  # by service
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self._surge_listeners: list[Callable[[Iterable[str]], None]] = []

    def loop(self) -> Loop:
        sources = (
            Source(self._nodes, self._keys_for_node),
            Source(self._workloads, self._keys_for_change),
            Source(self._services, self._keys_for_change),
        )
        return Loop(self, self.context.clock, self.context.rng, self._list_keys, sources, self.concurrency)

    def on_change(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear which workloads must leave, or need not any more; must not wait."""
        self._listeners.append(told)

    def on_surge_change(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear for which services `surges` changed, by path."""
        self._surge_listeners.append(told)

    @property
    def surges(self) -> Mapping[str, str]:
        """Services, by path, that need one replica more than they want before a drain can go on, and a workload that waits for it: of
        several it is for the same node until that is through, so that what is made for it is not given up for another."""
        return {service: self._surges[turn.node][service] for service, turn in self._surge_turns.items()}

    def eviction_reason(self, workload: LatticeWorkload, *, is_up: bool = False) -> str:
        """`is_up`: its node says that it is ready, which may not be stored yet."""
        binding, path = workload.status.binding, path_of(workload)
        if binding is None:
            return ""
        key = f"/{binding.node}"
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
        spared = {
            path for path, why in self._evictions.get(key, {}).items() if why != DRAIN_REASON
        }  # unless that mark is still there
        here = self._residents(node, self._evicted_paths() - spared)
        expelled = taint_evictions(here, taint_ages(node, times, now))
        found = self._drain(here) if is_draining(node) else None
        (self._draining.discard if found is None else self._draining.add)(key)
        self._record_evictions(
            key,
            eviction_reasons(here, expelled, found),
            {
                each.service: each.name
                for each in here
                if found and each.service in found.surge_services and each.name in found.blocked
            },
            is_stuck=found is not None and found.is_surge_unschedulable,
        )
        driven = {each.name for each in expelled if each.delay <= 0}
        self._unavailable_evictions[key] = {
            each.name for each in here if each.service and not (each.is_available or each.is_evicting)
        } - driven
        status = replace(without_drained_condition(node.status), taints_since=times)
        news: list[Write] = []
        if found is not None:
            said = drained_condition(found, len(here))
            status = replace(
                status, conditions=merge_conditions(node.status.conditions, [said], self.context.timestamp)
            )
            news += self._drain_events(node, said, len(here))
        if status != node.status:
            await self.context.commit([with_status(entry, status), *news])
        later = [each.delay for each in expelled if each.delay > 0]
        later += (
            [SURGE_TURN_S if found.is_surge_unschedulable else max(1.0, self.unschedulable_grace_s)]
            if found is not None and found.surge_services
            else []
        )
        later += (
            [SPARED_RECHECK_S] if found is not None and not spared <= {each.name for each in expelled} else []
        )
        return Requeue(min(later)) if later else None

    def _list_keys(self) -> list[str]:
        return [path_of(node) for node in self._nodes.objects() if needs_eviction_check(node)]

    def _keys_for_node(self, change: Change) -> Iterable[str]:
        node, path = self._nodes.get(change.key.path), change.key.path
        return (path,) if path in self._evictions or (node is not None and needs_eviction_check(node)) else ()

    def _keys_for_change(self, change: Change) -> Iterable[str]:
        """A drain waits for replicas anywhere; other marks are about who is on the node, or has just left it."""
        if not self._evictions:
            return ()
        found = (
            self._workloads.get(change.key.path)
            if change.key.resource == LatticeWorkload.resource.id
            else None
        )
        binding = found.status.binding if found else None
        here = f"/{binding.node}" if binding else ""
        return [
            key
            for key, paths in self._evictions.items()
            if key == here or key in self._draining or change.key.path in paths
        ]

    def _residents(self, node: LatticeNode, told: Collection[str]) -> list[NodeWorkload]:
        bound = self._workloads.by_index("node", node.metadata.name)
        return [
            node_workload(each, told)
            for each in bound
            if each.status.binding and each.status.binding.uid in ("", node.metadata.uid)
        ]

    def _drain(self, here: list[NodeWorkload]) -> DrainPlan:
        services, told, surged = (
            {each.service for each in here if each.service},
            self._evicted_paths(),
            self.surges,
        )
        found = {
            name: service_availability(
                self._services.get(name),
                self._workloads.by_index("service", name),
                told,
                is_surged=name in surged,
            )
            for name in services
        }
        made = plan_drain(
            here,
            {
                name: dataclasses.replace(each, unschedulable_reason=self._blocker(name))
                for name, each in found.items()
            },
        )
        awaited = {
            name
            for name in made.surge_services
            if any(self._has_pending_machine(each) for each in self._unschedulable_replicas(name))
        }
        waiting = {each.name for each in here if each.name in made.blocked and not each.is_evicting}
        held = {
            each.name: f"{made.blocked[each.name]}; a machine is being made"
            for each in here
            if each.service in awaited and each.name in waiting
        }
        return dataclasses.replace(made, blocked={**made.blocked, **held})

    def _unschedulable_replicas(self, service: str) -> list[LatticeWorkload]:
        return [each for each in self._workloads.by_index("service", service) if unschedulable_reason(each)]

    def _has_pending_machine(self, workload: LatticeWorkload) -> bool:
        """Is a machine on its way to where it waits?"""
        nodes = self._nodes.by_index("cluster", workload.spec.cluster)
        return any(not each.metadata.deletion_timestamp and not has_joined(each) for each in nodes)

    def _blocker(self, service: str) -> str:
        """Why no node takes one of its replicas, and whether its pool may have another machine. Its cluster grows for it after the
        grace: only what has waited for as long again, with no machine on its way, is stuck."""
        patience = SchedulingTimeout(
            self.context.clock.now(), timedelta(seconds=2 * self.unschedulable_grace_s)
        )
        stuck = (
            each
            for each in self._unschedulable_replicas(service)
            if is_unschedulable(each, patience) and not self._has_pending_machine(each)
        )
        waiting = next(stuck, None)
        if waiting is None:
            return ""
        why, cluster = (
            unschedulable_reason(waiting),
            self.context.cache(LatticeCluster).get(f"/{waiting.spec.cluster}"),
        )
        pool = self.context.cache(LatticePool).get(f"/{cluster.spec.pool}") if cluster else None
        full = _full_pool_message(pool) if pool else ""
        return f"{why}; {full}" if full else why

    def _drain_events(self, node: LatticeNode, said: Condition, residents: int) -> Iterator[Write]:
        before = next((each for each in node.status.conditions if each.type == DRAINED_CONDITION), None)
        if said.status == "True":
            if before is None or before.status != "True":
                yield self._recorder.event(node, "NodeDrained", said.message)
            return
        if before is None or before.status == "True":
            yield self._recorder.event(node, "NodeDraining", f"{residents} to move elsewhere")
        if said.reason == DRAIN_BLOCKED_REASON and (before is None or before.reason != DRAIN_BLOCKED_REASON):
            yield self._recorder.event(node, "NodeDrainStuck", said.message, warning=True)

    def _evicted_paths(self) -> set[str]:
        """Who was found to have to leave, on whichever node; it may not be stored yet. Who is down may be back before it is told."""
        return {
            path
            for key, paths in self._evictions.items()
            for path in paths
            if path not in self._unavailable_evictions.get(key, ())
        }

    def _record_evictions(
        self, key: str, leaving: Mapping[str, str] | None, surge: Mapping[str, str], *, is_stuck: bool = False
    ) -> None:
        before, surges, surged = self._evictions.pop(key, {}), {**self.surges}, self._surges.pop(key, {})
        self._unavailable_evictions.pop(key, None)
        if leaving is None:
            self._draining.discard(key)
        else:
            self._evictions[key], self._surges[key] = leaving, surge
        for service in {**surged, **surge}:
            self._assign_surge_turn(service, "" if is_stuck else key)
        _notify(self._listeners, {*before} ^ {*(leaving or {})})
        others = {service for service, path in self.surges.items() if surges.get(service) != path}
        _notify(self._surge_listeners, {*surged} ^ {*surge} | others)

    def _assign_surge_turn(self, service: str, goes_on: str) -> None:
        """To the next node that waits for one more, when the one that had it is through, or nothing came of it for too long."""
        now, waiting = (
            self.context.clock.monotonic(),
            sorted(key for key, services in self._surges.items() if service in services),
        )
        turn = self._surge_turns.pop(service, SurgeTurn("", now))
        if turn.node in waiting and (now < turn.ends_at or turn.node == goes_on):
            self._surge_turns[service] = (
                SurgeTurn(turn.node, now + SURGE_TURN_S) if turn.node == goes_on else turn
            )
        elif waiting:
            self._surge_turns[service] = SurgeTurn(
                next((key for key in waiting if key > turn.node), waiting[0]), now + SURGE_TURN_S
            )


def _full_pool_message(pool: LatticePool) -> str:
    usage, most = pool.status.capacity, pool.spec.capacity.max_nodes
    used = usage.allocated_nodes if usage else None
    return (
        f"pool {pool.metadata.name} has {used} of {most} nodes"
        if used is not None and most is not None and used >= most
        else ""
    )


def _notify(ears: Iterable[Callable[[Iterable[str]], None]], paths: set[str]) -> None:
    if paths:
        for ear in ears:
            ear(sorted(paths))
