"""Service -> its workloads: as many as were placed, where they were placed, one after the other when they are to run something else."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.garbage.ownership import deletion_write
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import (
    merge_conditions,
    owner_reference,
    path_of,
    put_new,
    with_metadata,
    with_spec,
    with_status,
)
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.lifecycle.eviction import is_evicting, service_path
from lattice.lifecycle.replica_observation import (
    holds_machine,
    is_owned,
    is_terminating,
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
    template,
)
from lattice.lifecycle.rollout import Replica, RolloutSteps, ScaleDownLimits, next_steps
from lattice.placement.status.placement_conditions import PLACED_CONDITION
from lattice.store.protocol import Change, Write

PROGRESSING = "Progressing"
ROLLING, COMPLETE, NO_SURGE_CAPACITY = "RollingOut", "Complete", "NoRoomForSurge"


@dataclass
class ReplicaController:
    context: ControllerContext
    workers: int = 8
    resync_s: float = 30.0
    name: str = "replicas"
    surges: Callable[[], Mapping[str, str]] = (
        dict  # services that need one more while a node is drained, and who waits for it
    )
    eviction_reason: Callable[[LatticeWorkload], str] = lambda _: (
        ""
    )  # why a replica must leave its node: it counts no more
    _awaiting_ready: set[str] = field(default_factory=set)  # services that wait for a replica to be ready
    _being_stopped: set[str] = field(default_factory=set)  # replicas that are to go by what is being written

    def __post_init__(self) -> None:
        self._services, self._workloads = (
            self.context.cache(LatticeService),
            self.context.cache(LatticeWorkload),
        )
        self._recorder = self.context.recorder("services")

    def loop(self) -> Loop:
        sources = (
            Source(self._services, self._keys_for_service),
            Source(self._workloads, self._keys_for_workload),
        )
        pace = Concurrency(workers=self.workers, resync_s=self.resync_s)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: map(path_of, self._services.objects()),
            sources,
            pace,
        )

    def _keys_for_service(self, change: Change) -> Iterable[str]:
        """Not when only how its replicas are is another: that is told of thousands many times over."""
        before, after = self._services.previous_object, self._services.get(change.key.path)
        return (
            ()
            if before is not None and after is not None and _replica_inputs(before) == _replica_inputs(after)
            else (change.key.path,)
        )

    def _keys_for_workload(self, change: Change) -> Iterable[str]:
        """Those that go; and while others wait for it, those that become ready or fail."""
        before, after = (
            self._workloads.previous_object,
            self._workloads.get(change.key.path) if change.value else None,
        )
        found = after or before
        if found is None or not found.spec.service:
            return ()
        key = f"{change.key.namespace}/{found.spec.service}"
        is_leaving = after is None or (
            bool(after.metadata.deletion_timestamp) and not (before and before.metadata.deletion_timestamp)
        )
        is_better = key in self._awaiting_ready and (
            before is None or after is None or _health_of(before) != _health_of(after)
        )
        return (key,) if is_leaving or is_better else ()

    async def reconcile(self, key: str) -> Requeue | None:
        service = self._services.get(key)
        if service is None or service.metadata.deletion_timestamp or not _is_placement_current(service):
            self._awaiting_ready.discard(key)
            return None
        found = self._workloads.by_index("service", key)
        mine = [each for each in found if is_owned(each, service)]
        spec = template(service)
        replicas = [self._replica(each) for each in mine if not _is_unreachable_terminating(each)]
        steps = next_steps(
            self._desired_replicas(service),
            spec.revision,
            replicas,
            service.spec.min_replicas,
            self._rollout_environment(key),
        )
        (self._awaiting_ready.add if steps.is_rolling or steps.is_waiting else self._awaiting_ready.discard)(
            key
        )
        groups = [
            self._progress_writes(service, spec.revision, steps, mine),
            *self._stop_writes(mine, steps.stop),
            *self._start_writes(service, spec, steps.start, [each.spec.slot for each in found]),
            *self._update_writes(service, spec, mine, steps.stop),
        ]
        told = {f"{service.metadata.namespace}/{name}" for name in steps.stop}
        self._being_stopped |= told
        try:
            await self._workloads.wait_for(
                await self.context.commit_groups_concurrently(group for group in groups if group)
            )
        finally:
            self._being_stopped -= told
        return None

    def _desired_replicas(self, service: LatticeService) -> Counter[NodeGroupKey]:
        """As placed; and one more where a replica can only leave its node once another is ready."""
        cells = desired_node_groups(service)
        waiting = self._workloads.get(self.surges().get(path_of(service), ""))
        if waiting is not None and cells:
            where = node_group_of(waiting)
            cells[where if where in cells else min(cells)] += (
                1  # also while it is to go elsewhere: a drain and an update count on one each
            )
        return cells

    def _rollout_environment(self, key: str) -> ScaleDownLimits:
        """Those whose places were written before have chosen by now, as in `plan`."""
        clusters, services, workloads = self.context.cache(LatticeCluster), self._services, self._workloads

        def is_shared(node: str) -> bool:
            others = [
                each
                for each in workloads.by_index("node", node)
                if service_path(each) != key and path_of(each) not in self._being_stopped
            ]
            return any(holds_machine(each, services.get(service_path(each))) for each in others)

        def least(name: str) -> int:
            cluster = clusters.get(f"/{name}")
            return cluster.spec.min_nodes if cluster else 0

        return ScaleDownLimits(is_shared, least)

    def _replica(self, each: LatticeWorkload) -> Replica:
        status = each.status
        return Replica(
            name=each.metadata.name,
            slot=each.spec.slot,
            node_group=node_group_of(each),
            revision=each.spec.revision,
            is_ready=status.ready is True and not is_evicting(each) and not self.eviction_reason(each),
            is_terminating=is_terminating(each),
            node=status.binding.node if status.binding else "",
            failure=(status.failure_reason or "Failed") if status.actual_state == "Failed" else "",
            unschedulable_reason=unschedulable_reason(each),
        )

    def _start_writes(
        self, service: LatticeService, spec: WorkloadSpec, cells: Sequence[NodeGroupKey], taken: Sequence[int]
    ) -> Iterator[list[Write]]:
        slots, owner, now = free_slots(taken), owner_reference(service), self.context.timestamp
        shapes = {cell: in_node_group(spec, cell) for cell in set(cells)}
        for cell in cells:
            made = build_workload(service, shapes[cell], next(slots), owner)
            yield [put_new(made, uid=self.context.new_uid(), now=now)]

    def _stop_writes(self, mine: Iterable[LatticeWorkload], names: Sequence[str]) -> Iterator[list[Write]]:
        going, now = set(names), self.context.timestamp
        for each in mine:
            entry = self._workloads.entry(path_of(each)) if each.metadata.name in going else None
            write = deletion_write(LatticeWorkload.resource, entry, now) if entry else None
            if write is not None:
                yield [write]

    def _update_writes(
        self,
        service: LatticeService,
        spec: WorkloadSpec,
        mine: Iterable[LatticeWorkload],
        stopping: Sequence[str],
    ) -> Iterator[list[Write]]:
        """What changes without another start: which nodes it may use, what goes before what, labels."""
        labels, leaving = labels_for(service), set(stopping)
        for each in mine:
            entry = self._workloads.entry(path_of(each))
            if (
                entry is None
                or is_terminating(each)
                or each.metadata.name in leaving
                or each.spec.revision != spec.revision
            ):
                continue
            wanted = msgspec.structs.replace(
                in_node_group(spec, node_group_of(each)),
                slot=each.spec.slot,
                desired_state=each.spec.desired_state,
            )
            if wanted != each.spec:
                yield [with_spec(entry, wanted)]
            elif each.metadata.labels != labels:
                yield [with_metadata(entry, lambda metadata: metadata | {"labels": labels})]

    def _progress_writes(
        self, service: LatticeService, revision: str, steps: RolloutSteps, mine: Sequence[LatticeWorkload]
    ) -> list[Write]:
        before = next((each for each in service.status.conditions if each.type == PROGRESSING), None)
        condition = _progress(before, revision, steps)
        entry, told = self._services.entry(path_of(service)), list(self._scaling(service, steps, mine))
        if condition is None or entry is None:
            return told
        said = merge_conditions(service.status.conditions, [condition], self.context.timestamp)
        if said == service.status.conditions:
            return told
        if before is None or revision not in before.message:
            told.append(self._recorder.event(service, "RolloutStarted", condition.message))
        if condition.reason == COMPLETE:
            told.append(self._recorder.event(service, "RolloutDone", condition.message))
        elif condition.status == "False":
            told.append(self._recorder.event(service, "RolloutPaused", condition.message, warning=True))
        return [with_status(entry, msgspec.structs.replace(service.status, conditions=said)), *told]

    def _scaling(
        self, service: LatticeService, steps: RolloutSteps, mine: Sequence[LatticeWorkload]
    ) -> Iterator[Write]:
        live = sum(not is_terminating(each) for each in mine)
        if steps.is_rolling or steps.is_empty:
            return
        after = live + len(steps.start) - len(steps.stop)
        if after > live:
            yield self._recorder.event(service, "ScaledUp", f"from {live} to {after} replicas")
        elif after < live:
            yield self._recorder.event(service, "ScaledDown", f"from {live} to {after} replicas")


def _is_placement_current(service: LatticeService) -> bool:
    """Is where it goes decided for what is asked now?"""
    said = next((each for each in service.status.conditions if each.type == PLACED_CONDITION), None)
    return said is not None and said.observed_generation == service.metadata.generation


def _replica_inputs(service: LatticeService) -> tuple[object, ...]:
    """What of a service its replicas follow from."""
    metadata, status = service.metadata, service.status
    said = [each for each in status.conditions if each.type in (PLACED_CONDITION, PROGRESSING)]
    return (
        metadata.uid,
        metadata.generation,
        metadata.deletion_timestamp,
        metadata.labels,
        status.placements,
        said,
    )


def _health_of(each: LatticeWorkload) -> tuple[object, ...]:
    status = each.status
    return (status.ready, status.actual_state, status.failure_reason, unschedulable_reason(each))


def _is_unreachable_terminating(each: LatticeWorkload) -> bool:
    """On its way out on a node that is not heard of: nobody waits for it."""
    return is_terminating(each) and each.status.actual_state == "Unknown"


def _progress(before: Condition | None, revision: str, steps: RolloutSteps) -> Condition | None:
    """Said of updates only: who never had one has nothing to tell."""
    if steps.is_rolling and steps.failure:
        words = f"revision {revision} does not come up: {steps.failure}; no more replicas are replaced until it does"
        return Condition(type=PROGRESSING, status="False", reason=steps.failure, message=words)
    if steps.is_rolling and steps.unschedulable_reason:
        words = (
            f"revision {revision} needs room for one replica more before it can take the place of another: {steps.unschedulable_reason}; "
            "it goes on once there is: a machine more, other workloads fewer, or a lower replicas.min would help"
        )
        return Condition(type=PROGRESSING, status="False", reason=NO_SURGE_CAPACITY, message=words)
    if steps.is_rolling:
        return Condition(
            type=PROGRESSING,
            status="True",
            reason=ROLLING,
            message=f"replicas are replaced by revision {revision}",
        )
    if before is None:
        return None
    return Condition(
        type=PROGRESSING, status="False", reason=COMPLETE, message=f"all replicas have revision {revision}"
    )
