"""What was, read from the record: the state before each commit, what each commit did to it, and what really ran where and when."""

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
from lattice.sim.world.client import OPERATION_ANNOTATION
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.store import CommitRecord
from lattice.store.protocol import Key

TRACKED_KINDS: tuple[type[Kind], ...] = (
    LatticeWorkload, LatticeNode, LatticeService, LatticePool, LatticeLedger, LatticeCluster, LatticeNodeClass, Lease,
)  # fmt: skip
K = TypeVar("K", bound=Kind)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.resource.id: msgspec.json.Decoder(kind) for kind in TRACKED_KINDS
}


MAX_FIELDS_SHOWN = 4  # fields that are told of one change
MAX_VALUE_CHARS = 40  # letters of a value
VOLATILE_FIELDS = frozenset(
    {"metadata.resourceVersion", "metadata.managedFields"}
)  # differ with every write and tell nothing


class ObjectChange(NamedTuple):
    """What a commit did to one object: before and after, None where it is not there. `raw` is what was written."""

    key: Key
    old: Any
    new: Any
    raw: bytes | None


@dataclass
class StateSnapshot:
    """The state at one revision, by kind and path."""

    objects: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {kind.resource.id: {} for kind in TRACKED_KINDS}
    )
    ready_at: dict[str, float] = field(
        default_factory=dict
    )  # by path of a workload: when it was last seen to be ready
    not_ready_at: dict[str, float] = field(default_factory=dict)  # and when it was last seen not to be
    bound_at: dict[str, float] = field(default_factory=dict)  # and when it was last seen to be bound
    bound_since: dict[str, float] = field(default_factory=dict)  # and when it got the room that it has
    reserved_at: dict[str, float] = field(default_factory=dict)  # and when it was last prepared
    locked_at: dict[str, float] = field(default_factory=dict)  # by path of a lease: when it was last written
    created_at: dict[str, float] = field(default_factory=dict)  # and when it was made
    desired_replicas: dict[str, list[tuple[float, int]]] = field(
        default_factory=dict
    )  # by path of a service: since when how many
    spec_changed_at: dict[str, float] = field(
        default_factory=dict
    )  # and when somebody last changed what is asked of it
    unschedulable_at: dict[str, float] = field(
        default_factory=dict
    )  # by path of a node: when it was last seen to be one to leave
    past_versions: dict[tuple[str, str], list[tuple[float, Any]]] = field(
        default_factory=dict
    )  # what was there, and until when

    @property
    def workloads(self) -> dict[str, LatticeWorkload]:
        return self.objects[LatticeWorkload.resource.id]

    @property
    def all_workload_paths(self) -> list[str]:
        """Paths of those that are, and that were."""
        resource = LatticeWorkload.resource.id
        return [
            *self.workloads,
            *(path for known, path in self.past_versions if known == resource and path not in self.workloads),
        ]

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
        """That object as it is, and as it was at any time from then on."""
        now = self.objects[kind.resource.id].get(path)
        before = takewhile(
            lambda each: each[0] >= since, reversed(self.past_versions.get((kind.resource.id, path), []))
        )
        return [*([now] if now is not None else []), *(each for _, each in before)]

    def versions_between(self, kind: type[K], path: str, since: float, until: float) -> list[K]:
        """That object as it was at any time in that span."""
        ended = [(at, each) for at, each in self.past_versions.get((kind.resource.id, path), [])]
        now = self.objects[kind.resource.id].get(path)
        spans = zip([0.0, *(at for at, _ in ended)], [*ended, (float("inf"), now)], strict=True)
        return [
            each for begins, (ends, each) in spans if each is not None and begins <= until and ends >= since
        ]

    def workloads_on(self, node: str) -> list[LatticeWorkload]:
        """Whoever has room there: bound, or prepared."""
        return [each for each in self.workloads.values() if node in (node_of(each), reserved_node(each))]

    def replicas_of(self, service: str) -> list[LatticeWorkload]:
        namespace, _, name = service.partition("/")
        return [
            each
            for each in self.workloads.values()
            if (each.metadata.namespace, each.spec.service) == (namespace, name)
        ]

    def changes_in(self, record: CommitRecord) -> list[ObjectChange]:
        found = []
        for change in record.changes:
            decoder = _DECODERS.get(change.key.resource)
            if decoder is None:
                found.append(ObjectChange(change.key, None, None, change.value))
                continue
            old = self.objects[change.key.resource].get(change.key.path)
            found.append(
                ObjectChange(
                    change.key,
                    old,
                    None if change.value is None else decoder.decode(change.value),
                    change.value,
                )
            )
        return found

    def apply(self, moves: list[ObjectChange], at: float) -> None:
        for move in moves:
            shelf = self.objects.get(move.key.resource)
            if shelf is None:
                continue
            if move.old is not None:
                self.past_versions.setdefault((move.key.resource, move.key.path), []).append((at, move.old))
            if move.new is None:
                shelf.pop(move.key.path, None)
            else:
                shelf[move.key.path] = move.new
            for each in (move.old, move.new):
                self._record_state(move.key.path, each, at)
            if isinstance(move.new, Lease):
                self.locked_at[move.key.path] = at
            if isinstance(move.new, LatticeWorkload):
                self._record_binding(move, at)
            if isinstance(move.new, LatticeService):
                self.desired_replicas.setdefault(move.key.path, []).append(
                    (at, move.new.spec.desired_replicas())
                )
                if move.old is None or move.old.metadata.generation != move.new.metadata.generation:
                    self.spec_changed_at[move.key.path] = at

    def _record_binding(self, move: ObjectChange, at: float) -> None:
        if move.old is None:
            self.created_at[move.key.path] = at
        if node_of(move.new) and not node_of(move.old):
            self.bound_since[move.key.path] = at
        held = reservation_record(move.new)
        if held is not None and (move.old is None or reservation_record(move.old) != held):
            self.reserved_at[move.key.path] = at

    def _record_state(self, path: str, each: Any, at: float) -> None:
        if isinstance(each, LatticeWorkload):
            (self.ready_at if each.status.ready else self.not_ready_at)[path] = at
        if isinstance(each, LatticeWorkload) and each.status.binding:
            self.bound_at[path] = at
        if isinstance(each, LatticeNode) and (
            each.spec.unschedulable or each.spec.taints or each.metadata.deletion_timestamp
        ):
            self.unschedulable_at[path] = at

    def min_desired_replicas(self, service: str, since: float) -> int:
        """The smallest number of replicas that was asked for since then."""
        known = self.desired_replicas.get(service, [])
        before = [count for at, count in known if at < since][-1:]
        return min([*before, *(count for at, count in known if at >= since)], default=0)


def is_bound_to_former_node(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """Bound to another node that had this name."""
    binding = workload.status.binding
    return binding is not None and binding.uid not in ("", node.metadata.uid)


def node_of(workload: LatticeWorkload | None) -> str:
    return workload.status.binding.node if workload is not None and workload.status.binding else ""


def reserved_node(workload: LatticeWorkload | None) -> str:
    held = reservation_record(workload) if workload is not None and workload.status.binding is None else None
    return held.node if held else ""


def path_of(workload: LatticeWorkload) -> str:
    return f"{workload.metadata.namespace}/{workload.metadata.name}"


class InstanceRun(NamedTuple):
    """One copy that really ran, in the time of the simulation; `end` is infinite while it runs."""

    node: str
    instance_id: InstanceId
    spec: RunSpec
    start: float
    end: float


def instance_runs(machine: SimMachine) -> Iterator[InstanceRun]:
    """In the order of their starts. Whatever should have ended by now is looked at first."""
    machine.ground.live_instances()
    truth = machine.clock.to_sim_time
    running: dict[InstanceId, tuple[RunSpec, float]] = {}
    specs = iter(machine.ground.started_specs)
    for happening in machine.ground.history:
        if happening.action == "start":
            if happening.instance_id in running:  # started once more while it ran
                spec, began = running[happening.instance_id]
                yield InstanceRun(machine.name, happening.instance_id, spec, truth(began), float("inf"))
            running[happening.instance_id] = (next(specs), happening.at)
        elif happening.instance_id in running:
            spec, began = running.pop(happening.instance_id)
            yield InstanceRun(machine.name, happening.instance_id, spec, truth(began), truth(happening.at))
    for which, (spec, began) in running.items():
        yield InstanceRun(machine.name, which, spec, truth(began), float("inf"))


class _AnnotationsMetadata(msgspec.Struct):
    annotations: dict[str, str] = {}


class _AnnotatedObject(msgspec.Struct, rename="camel"):
    metadata: _AnnotationsMetadata


class _DeletionMetadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None


class _DeletableObject(msgspec.Struct):
    metadata: _DeletionMetadata


def operation_in(raw: bytes) -> str:
    return (
        msgspec.json.decode(raw, type=_AnnotatedObject).metadata.annotations.get(OPERATION_ANNOTATION, "")
        if OPERATION_ANNOTATION.encode() in raw
        else ""
    )


def is_being_deleted(raw: bytes | None) -> bool:
    return (
        raw is None or msgspec.json.decode(raw, type=_DeletableObject).metadata.deletion_timestamp is not None
    )


def describe_change(before: bytes | None, after: bytes | None) -> str:
    """Such as `status.ready: true → false`; of more than a few, how many more."""
    if before is None or after is None:
        return "deleted" if after is None else "made"
    found = [
        f"{path}: {_short(old)} → {_short(new)}"
        for path, old, new in _fields("", msgspec.json.decode(before), msgspec.json.decode(after))
    ]
    more = [f"{len(found) - MAX_FIELDS_SHOWN} more"] if len(found) > MAX_FIELDS_SHOWN else []
    return "; ".join([*found[:MAX_FIELDS_SHOWN], *more]) or "nothing changed"


def _fields(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new or path in VOLATILE_FIELDS:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _fields(f"{path}.{name}" if path else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _fields(f"{path}[{number}]", one, other)
    else:
        yield path, old, new


def _short(value: Any) -> str:
    text = "none" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
