"""Service -> its workloads: as many as were placed, where they were placed, one after the other when they are to run something else."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.garbage.ownership import removal
from lattice.controllers.runtime.object_writes import (
    conditioned,
    created,
    owned_by,
    path_of,
    with_metadata,
    with_spec,
    with_status,
)
from lattice.kinds.meta.base import Condition
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.lifecycle.replica_template import (
    Cell,
    cell_of,
    free_slots,
    in_cell,
    labels_for,
    template,
    wanted_cells,
    workload,
)
from lattice.lifecycle.rollout import Around, Replica, Steps, next_steps
from lattice.lifecycle.replica_state import is_going, is_owned, is_staying, no_room
from lattice.placement.status.placement_conditions import PLACED_CONDITION
from lattice.lifecycle.eviction import is_leaving, service_of
from lattice.store.protocol import Change, Write

PROGRESSING = "Progressing"
ROLLING, COMPLETE, NO_ROOM = "RollingOut", "Complete", "NoRoomForSurge"


@dataclass
class Replicas:
    office: Office
    workers: int = 8
    resync: float = 30.0
    name: str = "replicas"
    surges: Callable[[], Mapping[str, str]] = (
        dict  # services that need one more while a node is drained, and who waits for it
    )
    leaving: Callable[[LatticeWorkload], str] = lambda _: (
        ""
    )  # why a replica must leave its node: it counts no more
    _watched: set[str] = field(default_factory=set)  # services that wait for a replica to be ready
    _told: set[str] = field(default_factory=set)  # replicas that are to go by what is being written

    def __post_init__(self) -> None:
        self._services, self._workloads = self.office.copy(LatticeService), self.office.copy(LatticeWorkload)
        self._teller = self.office.teller("services")

    def loop(self) -> Loop:
        sources = (Source(self._services, self._of_service), Source(self._workloads, self._of_workload))
        pace = Pace(workers=self.workers, resync=self.resync)
        return Loop(
            self,
            self.office.clock,
            self.office.rng,
            lambda: map(path_of, self._services.all()),
            sources,
            pace,
        )

    def _of_service(self, change: Change) -> Iterable[str]:
        """Not when only how its replicas are is another: that is told of thousands many times over."""
        before, after = self._services.before, self._services.get(change.key.path)
        return (
            ()
            if before is not None and after is not None and _asked(before) == _asked(after)
            else (change.key.path,)
        )

    def _of_workload(self, change: Change) -> Iterable[str]:
        """Those that go; and while others wait for it, those that become ready or fail."""
        before, after = self._workloads.before, self._workloads.get(change.key.path) if change.value else None
        found = after or before
        if found is None or not found.spec.service:
            return ()
        key = f"{change.key.namespace}/{found.spec.service}"
        is_leaving = after is None or (
            bool(after.metadata.deletion_timestamp) and not (before and before.metadata.deletion_timestamp)
        )
        is_better = key in self._watched and (before is None or after is None or _how(before) != _how(after))
        return (key,) if is_leaving or is_better else ()

    async def reconcile(self, key: str) -> Again | None:
        service = self._services.get(key)
        if service is None or service.metadata.deletion_timestamp or not _is_decided(service):
            self._watched.discard(key)
            return None
        found = self._workloads.by("service", key)
        mine = [each for each in found if is_owned(each, service)]
        spec = template(service)
        replicas = [self._replica(each) for each in mine if not _is_lost(each)]
        steps = next_steps(
            self._wanted(service), spec.revision, replicas, service.spec.least, self._around(key)
        )
        (self._watched.add if steps.is_rolling or steps.is_waiting else self._watched.discard)(key)
        groups = [
            self._telling(service, spec.revision, steps, mine),
            *self._stopping(mine, steps.stop),
            *self._starting(service, spec, steps.start, [each.spec.slot for each in found]),
            *self._reshaping(service, spec, mine, steps.stop),
        ]
        told = {f"{service.metadata.namespace}/{name}" for name in steps.stop}
        self._told |= told
        try:
            await self._workloads.wait_for(await self.office.commit_many(group for group in groups if group))
        finally:
            self._told -= told
        return None

    def _wanted(self, service: LatticeService) -> Counter[Cell]:
        """As placed; and one more where a replica can only leave its node once another is ready."""
        cells = wanted_cells(service)
        waiting = self._workloads.get(self.surges().get(path_of(service), ""))
        if waiting is not None and cells:
            where = cell_of(waiting)
            cells[where if where in cells else min(cells)] += (
                1  # also while it is to go elsewhere: a drain and an update count on one each
            )
        return cells

    def _around(self, key: str) -> Around:
        """Those whose places were written before have chosen by now, as in `plan`."""
        clusters, services, workloads = self.office.copy(LatticeCluster), self._services, self._workloads

        def is_shared(node: str) -> bool:
            others = [
                each
                for each in workloads.by("node", node)
                if service_of(each) != key and path_of(each) not in self._told
            ]
            return any(is_staying(each, services.get(service_of(each))) for each in others)

        def least(name: str) -> int:
            cluster = clusters.get(f"/{name}")
            return cluster.spec.min_nodes if cluster else 0

        return Around(is_shared, least)

    def _replica(self, each: LatticeWorkload) -> Replica:
        status = each.status
        return Replica(
            name=each.metadata.name,
            slot=each.spec.slot,
            cell=cell_of(each),
            revision=each.spec.revision,
            is_ready=status.ready is True and not is_leaving(each) and not self.leaving(each),
            is_going=is_going(each),
            node=status.binding.node if status.binding else "",
            failure=(status.failure_reason or "Failed") if status.actual_state == "Failed" else "",
            no_room=no_room(each),
        )

    def _starting(
        self, service: LatticeService, spec: WorkloadSpec, cells: Sequence[Cell], taken: Sequence[int]
    ) -> Iterator[list[Write]]:
        slots, owner, now = free_slots(taken), owned_by(service), self.office.now
        shapes = {cell: in_cell(spec, cell) for cell in set(cells)}
        for cell in cells:
            made = workload(service, shapes[cell], next(slots), owner)
            yield [created(made, uid=self.office.new_uid(), now=now)]

    def _stopping(self, mine: Iterable[LatticeWorkload], names: Sequence[str]) -> Iterator[list[Write]]:
        going, now = set(names), self.office.now
        for each in mine:
            entry = self._workloads.entry(path_of(each)) if each.metadata.name in going else None
            write = removal(LatticeWorkload.resource, entry, now) if entry else None
            if write is not None:
                yield [write]

    def _reshaping(
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
                or is_going(each)
                or each.metadata.name in leaving
                or each.spec.revision != spec.revision
            ):
                continue
            wanted = msgspec.structs.replace(
                in_cell(spec, cell_of(each)), slot=each.spec.slot, desired_state=each.spec.desired_state
            )
            if wanted != each.spec:
                yield [with_spec(entry, wanted)]
            elif each.metadata.labels != labels:
                yield [with_metadata(entry, lambda metadata: metadata | {"labels": labels})]

    def _telling(
        self, service: LatticeService, revision: str, steps: Steps, mine: Sequence[LatticeWorkload]
    ) -> list[Write]:
        before = next((each for each in service.status.conditions if each.type == PROGRESSING), None)
        condition = _progress(before, revision, steps)
        entry, told = self._services.entry(path_of(service)), list(self._scaling(service, steps, mine))
        if condition is None or entry is None:
            return told
        said = conditioned(service.status.conditions, [condition], self.office.now)
        if said == service.status.conditions:
            return told
        if before is None or revision not in before.message:
            told.append(self._teller.event(service, "RolloutStarted", condition.message))
        if condition.reason == COMPLETE:
            told.append(self._teller.event(service, "RolloutDone", condition.message))
        elif condition.status == "False":
            told.append(self._teller.event(service, "RolloutPaused", condition.message, warning=True))
        return [with_status(entry, msgspec.structs.replace(service.status, conditions=said)), *told]

    def _scaling(
        self, service: LatticeService, steps: Steps, mine: Sequence[LatticeWorkload]
    ) -> Iterator[Write]:
        live = sum(not is_going(each) for each in mine)
        if steps.is_rolling or steps.is_none:
            return
        after = live + len(steps.start) - len(steps.stop)
        if after > live:
            yield self._teller.event(service, "ScaledUp", f"from {live} to {after} replicas")
        elif after < live:
            yield self._teller.event(service, "ScaledDown", f"from {live} to {after} replicas")


def _is_decided(service: LatticeService) -> bool:
    """Is where it goes decided for what is asked now?"""
    said = next((each for each in service.status.conditions if each.type == PLACED_CONDITION), None)
    return said is not None and said.observed_generation == service.metadata.generation


def _asked(service: LatticeService) -> tuple[object, ...]:
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


def _how(each: LatticeWorkload) -> tuple[object, ...]:
    status = each.status
    return (status.ready, status.actual_state, status.failure_reason, no_room(each))


def _is_lost(each: LatticeWorkload) -> bool:
    """On its way out on a node that is not heard of: nobody waits for it."""
    return is_going(each) and each.status.actual_state == "Unknown"


def _progress(before: Condition | None, revision: str, steps: Steps) -> Condition | None:
    """Said of updates only: who never had one has nothing to tell."""
    if steps.is_rolling and steps.failure:
        words = f"revision {revision} does not come up: {steps.failure}; no more replicas are replaced until it does"
        return Condition(type=PROGRESSING, status="False", reason=steps.failure, message=words)
    if steps.is_rolling and steps.no_room:
        words = (
            f"revision {revision} needs room for one replica more before it can take the place of another: {steps.no_room}; "
            "it goes on once there is: a machine more, other workloads fewer, or a lower replicas.min would help"
        )
        return Condition(type=PROGRESSING, status="False", reason=NO_ROOM, message=words)
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
