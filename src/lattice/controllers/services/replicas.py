"""Reconcile the workloads of services: create and delete replicas as placed, and roll out template changes
step by step."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.garbage.ownership import deletion_write
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import (
    owner_reference,
    put_new,
    with_metadata,
    with_spec,
    with_status,
)
from lattice.diagnosis.blocker import facts_from
from lattice.diagnosis.machines import capacity_text
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, merge_conditions
from lattice.kinds.meta.quantity import without_amounts
from lattice.kinds.service import (
    NO_SURGE_CAPACITY,
    PLACED_CONDITION,
    PROGRESSING_CONDITION,
    ROLLOUT_COMPLETE,
    SCALE_DOWN_WAITS,
    LatticeService,
)
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec, service_path
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.lifecycle.replica_observation import (
    holds_machine,
    is_owned,
    is_terminating,
    purchase_blocker,
    unschedulable_reason,
)
from lattice.lifecycle.replica_template import (
    NodeGroupKey,
    build_workload,
    desired_node_groups,
    free_slots,
    in_node_group,
    labels_for,
    node_group_of,
    planned_machines,
    workload_template,
)
from lattice.lifecycle.retry import FINAL_SERVICE_FAILURES
from lattice.lifecycle.rollout import Replica, RolloutSteps, ScaleDownLimits, next_steps
from lattice.lifecycle.service_health import is_failing
from lattice.store.protocol import Change, Write

ROLLING_OUT = "RollingOut"


@dataclass
class ReplicaController:
    """Create, update and delete the workloads of a service; the key is the service, `namespace/name`."""

    context: ControllerContext
    workers: int = 8
    resync_s: float = 30.0
    name: str = "replicas"
    # Services that need a surge replica during a drain, each with the replica that waits for the surge.
    surges: Callable[[], Mapping[str, str]] = dict
    # The evictions that this leader has decided: a replica that is being evicted does not count as ready.
    evictions: DecidedEvictions = field(default_factory=DecidedEvictions)
    # Services whose rollout waits for a replica to become ready.
    _awaiting_ready: set[str] = field(default_factory=set)
    # Replicas whose deletion is in a running commit and not in the cache yet.
    _being_stopped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._services = self.context.cache(LatticeService)
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder("services")

    def loop(self) -> Loop:
        sources = (
            Source(self._services, self.keys_for_service),
            Source(self._workloads, self.keys_for_workload),
        )
        concurrency = Concurrency(workers=self.workers, resync_s=self.resync_s)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: map(path_of, self._services.objects()),
            sources,
            concurrency,
        )

    def keys_for_service(self, change: Change) -> Iterable[str]:
        """Wake the service only if an input of its replicas changed: health updates of the status are
        frequent."""
        previous, current = self._services.previous_object, self._services.get(change.key.path)
        if previous is None or current is None or _replica_inputs(previous) != _replica_inputs(current):
            return (change.key.path,)
        return ()

    def keys_for_workload(self, change: Change) -> Iterable[str]:
        """Wake the service of a replica that terminates, or changes health while a rollout waits."""
        previous = self._workloads.previous_object
        current = self._workloads.get(change.key.path) if change.value else None
        workload = current or previous
        if workload is None or not workload.spec.service:
            return ()
        key = service_path(workload)
        has_left = current is None or (
            bool(current.metadata.deletion_timestamp)
            and not (previous and previous.metadata.deletion_timestamp)
        )
        is_awaited = key in self._awaiting_ready and (
            previous is None or current is None or _health_of(previous) != _health_of(current)
        )
        return (key,) if has_left or is_awaited else ()

    async def reconcile(self, key: str) -> Requeue | None:
        service = self._services.get(key)
        # The garbage collector deletes the replicas of a deleted service through the owner reference.
        if service is None or service.metadata.deletion_timestamp:
            self._awaiting_ready.discard(key)
            return None
        placed = find_condition(service.status.conditions, PLACED_CONDITION)
        # Placement has not decided for the current generation of the service yet.
        if placed is None or placed.observed_generation != service.metadata.generation:
            self._awaiting_ready.discard(key)
            return None
        workloads = self._workloads.by_index("service", key)
        owned = [workload for workload in workloads if is_owned(workload, service)]
        spec = workload_template(service)
        # A terminating replica on an unreachable node does not block the rollout.
        replicas = [
            self._replica(workload, service)
            for workload in owned
            if not (is_terminating(workload) and workload.status.actual_state == "Unknown")
        ]
        steps = next_steps(
            self._desired_replicas(service),
            spec.revision,
            replicas,
            service.spec.min_replicas,
            self._scale_down_limits(key),
            _final_failure(service, spec.revision),
        )
        progressing = find_condition(service.status.conditions, PROGRESSING_CONDITION)
        if steps.is_rolling or steps.is_waiting or is_under_way(progressing, steps):
            self._awaiting_ready.add(key)
        else:
            self._awaiting_ready.discard(key)
        groups = [
            self._progress_writes(service, spec.revision, steps, owned),
            *self._stop_writes(owned, steps.stop),
        ]
        # The slot is part of the name of a workload. Therefore a slot is free only if no workload of a
        # service of this name has the slot, not even a workload of an earlier service.
        slots, owner = free_slots([workload.spec.slot for workload in workloads]), owner_reference(service)
        machines = planned_machines(service)
        specs = {
            node_group: in_node_group(spec, node_group, machines.get(node_group))
            for node_group in set(steps.start)
        }
        for node_group in steps.start:
            workload = build_workload(service, specs[node_group], next(slots), owner)
            groups.append([put_new(workload, uid=self.context.new_uid(), now=self.context.timestamp)])
        groups += self._update_writes(service, spec, owned, steps.stop)
        stopping = {f"{service.metadata.namespace}/{name}" for name in steps.stop}
        self._being_stopped |= stopping
        try:
            # The next reconcile must see these writes in the cache, or it would start the replicas twice.
            await self._workloads.wait_for(
                await self.context.commit_groups_concurrently(group for group in groups if group)
            )
        finally:
            self._being_stopped -= stopping
        return None

    def _desired_replicas(self, service: LatticeService) -> Counter[NodeGroupKey]:
        """Replicas per node group as placed, plus a surge replica while a drain waits for a replacement."""
        node_groups = desired_node_groups(service)
        waiting = self._workloads.get(self.surges().get(path_of(service), ""))
        if waiting is not None and node_groups:
            # Add the surge also while the waiting replica moves to another node group: the drain and the
            # rollout need one surge replica each.
            node_group = node_group_of(waiting)
            node_groups[node_group if node_group in node_groups else min(node_groups)] += 1
        return node_groups

    def _scale_down_limits(self, key: str) -> ScaleDownLimits:
        """What the choice of surplus replicas must know: which nodes also run workloads of other services,
        and how many machines each cluster keeps.

        A replica that a running commit deletes does not count as a workload on its node; placement does not
        count replicas that it has decided to stop either.
        """
        clusters, services, workloads = self.context.cache(LatticeCluster), self._services, self._workloads

        def is_shared(node: str) -> bool:
            neighbours = [
                workload
                for workload in workloads.by_index("node", node)
                if service_path(workload) != key and path_of(workload) not in self._being_stopped
            ]
            return any(
                holds_machine(workload, services.get(service_path(workload))) for workload in neighbours
            )

        def min_nodes(name: str) -> int:
            cluster = clusters.get(f"/{name}")
            return cluster.spec.min_nodes if cluster else 0

        return ScaleDownLimits(is_shared, min_nodes)

    def _replica(self, workload: LatticeWorkload, service: LatticeService) -> Replica:
        status, retry = workload.status, workload.status.retry
        unschedulable = unschedulable_reason(workload)
        if unschedulable and (blocker := purchase_blocker(service, workload.spec.cluster)):
            unschedulable = blocker
        return Replica(
            name=workload.metadata.name,
            slot=workload.spec.slot,
            node_group=node_group_of(workload),
            revision=workload.spec.revision,
            is_ready=status.ready is True and not self.evictions.eviction_of(workload).is_active,
            is_terminating=is_terminating(workload),
            node=status.binding.node if status.binding else "",
            failure=(status.failure_reason or "Failed") if is_failing(workload) else "",
            unschedulable_reason=unschedulable,
            has_failed_finally=retry is not None
            and retry.final
            and retry.revision == workload.spec.effective_revision,
        )

    def _stop_writes(self, owned: Iterable[LatticeWorkload], names: Sequence[str]) -> Iterator[list[Write]]:
        stopping, now = set(names), self.context.timestamp
        for workload in owned:
            entry = self._workloads.entry(path_of(workload)) if workload.metadata.name in stopping else None
            write = deletion_write(LatticeWorkload.resource, entry, now) if entry else None
            if write is not None:
                yield [write]

    def _update_writes(
        self,
        service: LatticeService,
        spec: WorkloadSpec,
        owned: Iterable[LatticeWorkload],
        stopping: Sequence[str],
    ) -> Iterator[list[Write]]:
        """Writes for changes that need no restart: constraints, priority, labels."""
        labels, stopping_names = labels_for(service), set(stopping)
        machines = planned_machines(service)
        for workload in owned:
            entry = self._workloads.entry(path_of(workload))
            if entry is None or is_terminating(workload) or workload.metadata.name in stopping_names:
                continue
            if workload.spec.revision != spec.revision:
                # The rollout replaces replicas of another revision; no write changes them in place. Only their
                # gang changes: a surge replica is a member of the same gang as the replica that it replaces.
                if workload.spec.group != spec.group:
                    yield [with_spec(entry, msgspec.structs.replace(workload.spec, group=spec.group))]
                continue
            desired_spec = msgspec.structs.replace(
                in_node_group(spec, node_group_of(workload), machines.get(node_group_of(workload))),
                slot=workload.spec.slot,
                desired_state=workload.spec.desired_state,
            )
            if desired_spec != workload.spec:
                yield [with_spec(entry, desired_spec)]
            elif workload.metadata.labels != labels:
                yield [with_metadata(entry, lambda metadata: metadata | {"labels": labels})]

    def _progress_writes(
        self, service: LatticeService, revision: str, steps: RolloutSteps, owned: Sequence[LatticeWorkload]
    ) -> list[Write]:
        """The writes of the condition Progressing and of its events; only the events of scaling if the
        condition is unchanged."""
        previous = find_condition(service.status.conditions, PROGRESSING_CONDITION)
        steps = dataclasses.replace(steps, unschedulable_reason=self._surge_blocker(steps, owned))
        condition = _progress(previous, revision, steps)
        entry = self._services.entry(path_of(service))
        events: list[Write] = []
        live = sum(not is_terminating(workload) for workload in owned)
        target = live + len(steps.start) - len(steps.stop)
        if target != live and not steps.is_rolling:
            reason = "ScaledUp" if target > live else "ScaledDown"
            events.append(self._recorder.event(service, reason, f"Scaling from {live} to {target} replicas"))
        if condition is None or entry is None:
            return events
        conditions = merge_conditions(service.status.conditions, [condition], self.context.timestamp)
        if conditions == service.status.conditions:
            return events
        if condition.reason != SCALE_DOWN_WAITS and (previous is None or revision not in previous.message):
            events.append(self._recorder.event(service, "RolloutStarted", condition.message))
        is_scaled_down = previous is not None and previous.reason == SCALE_DOWN_WAITS
        if condition.reason == ROLLOUT_COMPLETE and not is_scaled_down:
            events.append(self._recorder.event(service, "RolloutDone", condition.message))
        elif (
            condition.status == "False"
            and condition.reason != ROLLOUT_COMPLETE
            # A rollout that is paused for the same reason as before, with other amounts, is no news.
            and not (
                previous is not None
                and previous.reason == condition.reason
                and without_amounts(previous.message) == without_amounts(condition.message)
            )
        ):
            events.append(self._recorder.event(service, "RolloutPaused", condition.message, warning=True))
        return [with_status(entry, msgspec.structs.replace(service.status, conditions=conditions)), *events]

    def _surge_blocker(self, steps: RolloutSteps, owned: Sequence[LatticeWorkload]) -> str:
        """Why no node accepts a replica that the steps wait for, with what keeps Lattice from adding a machine,
        such as a budget."""
        if not steps.unschedulable_reason:
            return ""
        for workload in owned:
            if unschedulable_reason(workload) == steps.unschedulable_reason:
                cluster, node_class = node_group_of(workload)
                text = capacity_text(
                    cluster, node_class, facts_from(self.context.cache, self.context.clock.now())
                )
                return "; ".join(filter(None, (text, steps.unschedulable_reason)))
        return steps.unschedulable_reason


def _replica_inputs(service: LatticeService) -> tuple[object, ...]:
    """The fields of a service that its replicas depend on."""
    metadata, status = service.metadata, service.status
    conditions = [
        condition
        for condition in status.conditions
        if condition.type in (PLACED_CONDITION, PROGRESSING_CONDITION)
    ]
    return (
        metadata.uid,
        metadata.generation,
        metadata.deletion_timestamp,
        metadata.labels,
        status.placements,
        conditions,
        status.remediation,
    )


def _final_failure(service: LatticeService, revision: str) -> str:
    """The reason for which the surge replica of this revision failed for good, from the condition Progressing;
    empty for every other state."""
    progress = find_condition(service.status.conditions, PROGRESSING_CONDITION)
    if progress is None or progress.status != "False" or revision not in progress.message:
        return ""
    return progress.reason if progress.reason in FINAL_SERVICE_FAILURES else ""


def _health_of(workload: LatticeWorkload) -> tuple[object, ...]:
    status = workload.status
    return (status.ready, status.actual_state, status.failure_reason, unschedulable_reason(workload))


def is_under_way(progressing: Condition | None, steps: RolloutSteps) -> bool:
    """Whether a rollout has replaced all replicas, and waits until the new replicas are ready."""
    return (
        progressing is not None
        and progressing.reason not in (ROLLOUT_COMPLETE, SCALE_DOWN_WAITS)
        and not steps.is_ready
    )


def _progress(previous: Condition | None, revision: str, steps: RolloutSteps) -> Condition | None:
    """The condition Progressing for the steps of a rollout; None if the service never had a rollout."""
    is_rolling = steps.is_rolling or is_under_way(previous, steps)
    if is_rolling and steps.failure:
        message = f"Update to revision {revision} is paused until its replicas become ready: {steps.failure}"
        return Condition(type=PROGRESSING_CONDITION, status="False", reason=steps.failure, message=message)
    if is_rolling and steps.unschedulable_reason:
        message = (
            f"Update to revision {revision} waits for capacity for 1 surge replica: "
            f"{steps.unschedulable_reason}. "
            "Add a node, remove other workloads, or lower replicas.min"
        )
        return Condition(
            type=PROGRESSING_CONDITION, status="False", reason=NO_SURGE_CAPACITY, message=message
        )
    if is_rolling:
        return Condition(
            type=PROGRESSING_CONDITION,
            status="True",
            reason=ROLLING_OUT,
            message=f"Replacing replicas with revision {revision}",
        )
    if steps.is_waiting and (cause := steps.failure or steps.unschedulable_reason):
        return Condition(
            type=PROGRESSING_CONDITION,
            status="False",
            reason=SCALE_DOWN_WAITS,
            message=f"Surplus replicas run on until the other replicas are ready: {cause}",
        )
    if previous is None:
        return None
    return Condition(
        type=PROGRESSING_CONDITION,
        status="False",
        reason=ROLLOUT_COMPLETE,
        message=f"All replicas have revision {revision}",
    )
