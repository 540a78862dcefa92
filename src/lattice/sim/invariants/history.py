"""Recorded history: the state before every commit, the changes of a commit, and the instances that really ran
on machines."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import msgspec

from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Lease
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.recording_client import OPERATION_ANNOTATION
from lattice.sim.world.store import CommitRecord
from lattice.store.protocol import Key

TRACKED_KINDS: tuple[type[Kind], ...] = (
    LatticeWorkload, LatticeNode, LatticeService, LatticePool, LatticeLedger, LatticeCluster, LatticeNodeClass, Lease,
)  # fmt: skip
K = TypeVar("K", bound=Kind)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.resource.id: msgspec.json.Decoder(kind) for kind in TRACKED_KINDS
}


# Limit of fields that a description of a change shows.
MAX_FIELDS_SHOWN = 4
# Limit of characters of a value that a description shows.
MAX_VALUE_CHARS = 40
# Fields that differ with every write and explain no change.
VOLATILE_FIELDS = frozenset({"metadata.resourceVersion", "metadata.managedFields"})


class ObjectChange(NamedTuple):
    """The change of an object by a commit: old and new value, None where the object does not exist.

    `raw` is the stored JSON.
    """

    key: Key
    old: Any
    new: Any
    raw: bytes | None


@dataclass
class StateSnapshot:
    """The state at a revision, by kind and path. Times are seconds of simulation time."""

    objects: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {kind.resource.id: {} for kind in TRACKED_KINDS}
    )
    # By workload path: the last time at which the workload was ready, was not ready, or was bound.
    ready_at: dict[str, float] = field(default_factory=dict)
    not_ready_at: dict[str, float] = field(default_factory=dict)
    bound_at: dict[str, float] = field(default_factory=dict)
    # By workload path: the time of the current binding, and of the last reservation.
    bound_since: dict[str, float] = field(default_factory=dict)
    reserved_at: dict[str, float] = field(default_factory=dict)
    # By lease path: the time of the last write.
    locked_at: dict[str, float] = field(default_factory=dict)
    # By workload path: the time of creation.
    created_at: dict[str, float] = field(default_factory=dict)
    # By service path: desired replica counts with the time from which a count holds, and the time of the last
    # change of the spec.
    desired_replicas: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    spec_changed_at: dict[str, float] = field(default_factory=dict)
    # By node path: the last time at which the node was cordoned, tainted or marked for deletion.
    unschedulable_at: dict[str, float] = field(default_factory=dict)
    # By kind and path: replaced versions with the time at which the version ended.
    past_versions: dict[tuple[str, str], list[tuple[float, Any]]] = field(default_factory=dict)

    @property
    def workloads(self) -> dict[str, LatticeWorkload]:
        return self.objects[LatticeWorkload.resource.id]

    def workload_versions(self, since: float) -> list[LatticeWorkload]:
        """The versions of all existing and deleted workloads that were current at or after `since`."""
        paths = list(self.workloads)
        for kind_id, path in self.past_versions:
            if kind_id == LatticeWorkload.resource.id and path not in self.workloads:
                paths.append(path)
        versions: list[LatticeWorkload] = []
        for path in paths:
            versions += self.versions(LatticeWorkload, path, since)
        return versions

    @property
    def nodes(self) -> dict[str, LatticeNode]:
        return self.objects[LatticeNode.resource.id]

    @property
    def services(self) -> dict[str, LatticeService]:
        return self.objects[LatticeService.resource.id]

    @property
    def ledgers(self) -> dict[str, LatticeLedger]:
        return self.objects[LatticeLedger.resource.id]

    @property
    def clusters(self) -> dict[str, LatticeCluster]:
        return self.objects[LatticeCluster.resource.id]

    @property
    def pools(self) -> dict[str, LatticePool]:
        return self.objects[LatticePool.resource.id]

    @property
    def leases(self) -> dict[str, Lease]:
        return self.objects[Lease.resource.id]

    def versions(self, kind: type[K], path: str, since: float) -> list[K]:
        """The current version of the object and the versions that ended at or after `since`, newest first."""
        current = self.objects[kind.resource.id].get(path)
        past = takewhile(
            lambda version: version[0] >= since,
            reversed(self.past_versions.get((kind.resource.id, path), [])),
        )
        return [*([current] if current is not None else []), *(version for _, version in past)]

    def versions_between(self, kind: type[K], path: str, since: float, until: float) -> list[K]:
        """The versions of the object that existed at any time between `since` and `until`, oldest first."""
        ended = self.past_versions.get((kind.resource.id, path), [])
        current = self.objects[kind.resource.id].get(path)
        spans = zip([0.0, *(at for at, _ in ended)], [*ended, (float("inf"), current)], strict=True)
        return [
            version
            for begins, (ends, version) in spans
            if version is not None and begins <= until and ends >= since
        ]

    def workloads_on(self, node: str) -> list[LatticeWorkload]:
        """Workloads that are bound to the node or have a reservation on the node."""
        return [
            workload
            for workload in self.workloads.values()
            if node in (node_of(workload), reserved_node(workload))
        ]

    def replicas_of(self, service: str) -> list[LatticeWorkload]:
        namespace, _, name = service.partition("/")
        return [
            workload
            for workload in self.workloads.values()
            if (workload.metadata.namespace, workload.spec.service) == (namespace, name)
        ]

    def changes_in(self, record: CommitRecord) -> list[ObjectChange]:
        changes = []
        for change in record.changes:
            decoder = _DECODERS.get(change.key.resource)
            if decoder is None:
                changes.append(ObjectChange(change.key, None, None, change.value))
                continue
            old = self.objects[change.key.resource].get(change.key.path)
            changes.append(
                ObjectChange(
                    change.key,
                    old,
                    None if change.value is None else decoder.decode(change.value),
                    change.value,
                )
            )
        return changes

    def apply(self, changes: list[ObjectChange], at: float) -> None:
        for change in changes:
            objects, path = self.objects.get(change.key.resource), change.key.path
            if objects is None:
                continue
            if change.old is not None:
                self.past_versions.setdefault((change.key.resource, path), []).append((at, change.old))
            if change.new is None:
                objects.pop(path, None)
            else:
                objects[path] = change.new
            # A state that this commit ends was true until now, so the old version counts as well.
            for version in (change.old, change.new):
                if isinstance(version, LatticeWorkload):
                    (self.ready_at if version.status.ready else self.not_ready_at)[path] = at
                    if version.status.binding:
                        self.bound_at[path] = at
                if isinstance(version, LatticeNode) and (
                    version.spec.unschedulable or version.spec.taints or version.metadata.deletion_timestamp
                ):
                    self.unschedulable_at[path] = at
            if isinstance(change.new, Lease):
                self.locked_at[path] = at
            if isinstance(change.new, LatticeWorkload):
                if change.old is None:
                    self.created_at[path] = at
                # The time of the binding counts, not the time of later status writes.
                if node_of(change.new) and not node_of(change.old):
                    self.bound_since[path] = at
                reservation = reservation_record(change.new)
                if reservation is not None and (
                    change.old is None or reservation_record(change.old) != reservation
                ):
                    self.reserved_at[path] = at
            if isinstance(change.new, LatticeService):
                self.desired_replicas.setdefault(path, []).append((at, change.new.spec.desired_replicas()))
                if change.old is None or change.old.metadata.generation != change.new.metadata.generation:
                    self.spec_changed_at[path] = at

    def min_desired_replicas(self, service: str, since: float) -> int:
        """The smallest desired replica count of the service since a simulation time."""
        counts = self.desired_replicas.get(service, [])
        at_start = [count for at, count in counts if at < since][-1:]
        return min([*at_start, *(count for at, count in counts if at >= since)], default=0)


def is_bound_to_former_node(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """Report whether the workload is bound to an earlier node with the name of `node`."""
    binding = workload.status.binding
    return binding is not None and binding.uid not in ("", node.metadata.uid)


def node_of(workload: LatticeWorkload | None) -> str:
    return workload.status.binding.node if workload is not None and workload.status.binding else ""


def reserved_node(workload: LatticeWorkload | None) -> str:
    reservation = (
        reservation_record(workload) if workload is not None and workload.status.binding is None else None
    )
    return reservation.node if reservation else ""


class InstanceRun(NamedTuple):
    """The run of an instance on a machine, in simulation time; `end` is infinite while the instance runs."""

    node: str
    instance_id: InstanceId
    spec: RunSpec
    start: float
    end: float


def instance_runs(machine: SimMachine) -> Iterator[InstanceRun]:
    """Runs of instances on a machine, ordered by the end of the run, then the instances that still run."""
    # Let the machine record the instances that have ended by now.
    machine.ground.live_instances()
    to_sim_time = machine.clock.to_sim_time
    running: dict[InstanceId, tuple[RunSpec, float]] = {}
    specs = iter(machine.ground.started_specs)
    for event in machine.ground.history:
        if event.action == "start":
            # If the instance was started twice, the first run never ended (I-19).
            if event.instance_id in running:
                spec, began = running[event.instance_id]
                yield InstanceRun(machine.name, event.instance_id, spec, to_sim_time(began), float("inf"))
            running[event.instance_id] = (next(specs), event.at)
        elif event.instance_id in running:
            spec, began = running.pop(event.instance_id)
            yield InstanceRun(
                machine.name, event.instance_id, spec, to_sim_time(began), to_sim_time(event.at)
            )
    for instance_id, (spec, began) in running.items():
        yield InstanceRun(machine.name, instance_id, spec, to_sim_time(began), float("inf"))


class _AnnotationsMetadata(msgspec.Struct):
    annotations: dict[str, str] = {}


class _AnnotatedObject(msgspec.Struct, rename="camel"):
    metadata: _AnnotationsMetadata


class _DeletionMetadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None


class _DeletableObject(msgspec.Struct):
    metadata: _DeletionMetadata


def operation_in(raw: bytes) -> str:
    # A search in the bytes avoids decoding most objects.
    if OPERATION_ANNOTATION.encode() not in raw:
        return ""
    return msgspec.json.decode(raw, type=_AnnotatedObject).metadata.annotations.get(OPERATION_ANNOTATION, "")


def is_being_deleted(raw: bytes | None) -> bool:
    return (
        raw is None or msgspec.json.decode(raw, type=_DeletableObject).metadata.deletion_timestamp is not None
    )


def describe_change(old_raw: bytes | None, new_raw: bytes | None) -> str:
    """The changed fields of an object as text, such as `status.ready: true → false`, at most MAX_FIELDS_SHOWN
    of them."""
    if old_raw is None or new_raw is None:
        return "deleted" if new_raw is None else "made"
    changes = [
        f"{path}: {_shorten(old)} → {_shorten(new)}"
        for path, old, new in _changed_fields("", msgspec.json.decode(old_raw), msgspec.json.decode(new_raw))
    ]
    remainder = [f"{len(changes) - MAX_FIELDS_SHOWN} more"] if len(changes) > MAX_FIELDS_SHOWN else []
    return "; ".join([*changes[:MAX_FIELDS_SHOWN], *remainder]) or "nothing changed"


def _changed_fields(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new or path in VOLATILE_FIELDS:
        return
    # Descend to the smallest changed field.
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _changed_fields(f"{path}.{name}" if path else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _changed_fields(f"{path}[{number}]", old_item, new_item)
    else:
        yield path, old, new


def _shorten(value: Any) -> str:
    text = "none" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
