"""What was, read from the record: the state before each commit, what each commit did to it, and what really ran where and when."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import msgspec

from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Lease
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.two_phase import prepared
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.store import Record
from lattice.sim.world.users import OPERATION
from lattice.store.protocol import Key

KINDS: tuple[type[Kind], ...] = (
    LatticeWorkload, LatticeNode, LatticeService, LatticePool, LatticeLedger, LatticeCluster, LatticeNodeClass, Lease,
)  # fmt: skip
K = TypeVar("K", bound=Kind)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.resource.id: msgspec.json.Decoder(kind) for kind in KINDS
}


class Move(NamedTuple):
    """What a commit did to one object: before and after, None where it is not there. `raw` is what was written."""

    key: Key
    old: Any
    new: Any
    raw: bytes | None


@dataclass
class Snap:
    """The state at one revision, by kind and path."""

    objects: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {kind.resource.id: {} for kind in KINDS}
    )
    ready_at: dict[str, float] = field(
        default_factory=dict
    )  # by path of a workload: when it was last seen to be ready
    missed_at: dict[str, float] = field(default_factory=dict)  # and when it was last seen not to be
    bound_at: dict[str, float] = field(default_factory=dict)  # and when it was last seen to be bound
    placed_at: dict[str, float] = field(default_factory=dict)  # and when it got the room that it has
    prepared_at: dict[str, float] = field(default_factory=dict)  # and when it was last prepared
    locked_at: dict[str, float] = field(default_factory=dict)  # by path of a lease: when it was last written
    made_at: dict[str, float] = field(default_factory=dict)  # and when it was made
    wanted: dict[str, list[tuple[float, int]]] = field(
        default_factory=dict
    )  # by path of a service: since when how many
    stated_at: dict[str, float] = field(
        default_factory=dict
    )  # and when somebody last changed what is asked of it
    marked_at: dict[str, float] = field(
        default_factory=dict
    )  # by path of a node: when it was last seen to be one to leave
    former: dict[tuple[str, str], list[tuple[float, Any]]] = field(
        default_factory=dict
    )  # what was there, and until when

    @property
    def workloads(self) -> dict[str, LatticeWorkload]:
        return self.objects[LatticeWorkload.resource.id]

    @property
    def known_workloads(self) -> list[str]:
        """Paths of those that are, and that were."""
        resource = LatticeWorkload.resource.id
        return [
            *self.workloads,
            *(path for known, path in self.former if known == resource and path not in self.workloads),
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
            lambda each: each[0] >= since, reversed(self.former.get((kind.resource.id, path), []))
        )
        return [*([now] if now is not None else []), *(each for _, each in before)]

    def between(self, kind: type[K], path: str, since: float, until: float) -> list[K]:
        """That object as it was at any time in that span."""
        ended = [(at, each) for at, each in self.former.get((kind.resource.id, path), [])]
        now = self.objects[kind.resource.id].get(path)
        spans = zip([0.0, *(at for at, _ in ended)], [*ended, (float("inf"), now)], strict=True)
        return [
            each for begins, (ends, each) in spans if each is not None and begins <= until and ends >= since
        ]

    def on(self, node: str) -> list[LatticeWorkload]:
        """Whoever has room there: bound, or prepared."""
        return [each for each in self.workloads.values() if node in (node_of(each), prepared_on(each))]

    def replicas(self, service: str) -> list[LatticeWorkload]:
        namespace, _, name = service.partition("/")
        return [
            each
            for each in self.workloads.values()
            if (each.metadata.namespace, each.spec.service) == (namespace, name)
        ]

    def moves(self, record: Record) -> list[Move]:
        found = []
        for change in record.changes:
            decoder = _DECODERS.get(change.key.resource)
            if decoder is None:
                found.append(Move(change.key, None, None, change.value))
                continue
            old = self.objects[change.key.resource].get(change.key.path)
            found.append(
                Move(
                    change.key,
                    old,
                    None if change.value is None else decoder.decode(change.value),
                    change.value,
                )
            )
        return found

    def apply(self, moves: list[Move], at: float) -> None:
        for move in moves:
            shelf = self.objects.get(move.key.resource)
            if shelf is None:
                continue
            if move.old is not None:
                self.former.setdefault((move.key.resource, move.key.path), []).append((at, move.old))
            if move.new is None:
                shelf.pop(move.key.path, None)
            else:
                shelf[move.key.path] = move.new
            for each in (move.old, move.new):
                self._note(move.key.path, each, at)
            if isinstance(move.new, Lease):
                self.locked_at[move.key.path] = at
            if isinstance(move.new, LatticeWorkload):
                self._note_room(move, at)
            if isinstance(move.new, LatticeService):
                self.wanted.setdefault(move.key.path, []).append((at, move.new.spec.wanted()))
                if move.old is None or move.old.metadata.generation != move.new.metadata.generation:
                    self.stated_at[move.key.path] = at

    def _note_room(self, move: Move, at: float) -> None:
        if move.old is None:
            self.made_at[move.key.path] = at
        if node_of(move.new) and not node_of(move.old):
            self.placed_at[move.key.path] = at
        held = prepared(move.new)
        if held is not None and (move.old is None or prepared(move.old) != held):
            self.prepared_at[move.key.path] = at

    def _note(self, path: str, each: Any, at: float) -> None:
        if isinstance(each, LatticeWorkload):
            (self.ready_at if each.status.ready else self.missed_at)[path] = at
        if isinstance(each, LatticeWorkload) and each.status.binding:
            self.bound_at[path] = at
        if isinstance(each, LatticeNode) and (
            each.spec.unschedulable or each.spec.taints or each.metadata.deletion_timestamp
        ):
            self.marked_at[path] = at

    def least_wanted(self, service: str, since: float) -> int:
        """The smallest number of replicas that was asked for since then."""
        known = self.wanted.get(service, [])
        before = [count for at, count in known if at < since][-1:]
        return min([*before, *(count for at, count in known if at >= since)], default=0)


def is_on_former(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """Bound to another node that had this name."""
    binding = workload.status.binding
    return binding is not None and binding.uid not in ("", node.metadata.uid)


def node_of(workload: LatticeWorkload | None) -> str:
    return workload.status.binding.node if workload is not None and workload.status.binding else ""


def prepared_on(workload: LatticeWorkload | None) -> str:
    held = prepared(workload) if workload is not None and workload.status.binding is None else None
    return held.node if held else ""


def path_of(workload: LatticeWorkload) -> str:
    return f"{workload.metadata.namespace}/{workload.metadata.name}"


class Life(NamedTuple):
    """One copy that really ran, in the time of the simulation; `end` is infinite while it runs."""

    node: str
    which: InstanceId
    spec: RunSpec
    start: float
    end: float


def lives(machine: SimMachine) -> Iterator[Life]:
    """In the order of their starts. Whatever should have ended by now is looked at first."""
    machine.ground.live()
    truth = machine.clock.truth
    running: dict[InstanceId, tuple[RunSpec, float]] = {}
    specs = iter(machine.ground.begun)
    for happening in machine.ground.history:
        if happening.what == "start":
            if happening.which in running:  # started once more while it ran
                spec, began = running[happening.which]
                yield Life(machine.name, happening.which, spec, truth(began), float("inf"))
            running[happening.which] = (next(specs), happening.at)
        elif happening.which in running:
            spec, began = running.pop(happening.which)
            yield Life(machine.name, happening.which, spec, truth(began), truth(happening.at))
    for which, (spec, began) in running.items():
        yield Life(machine.name, which, spec, truth(began), float("inf"))


class _Named(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Written(msgspec.Struct, rename="camel"):
    metadata: _Named


class _Dying(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None


class _Doomed(msgspec.Struct):
    metadata: _Dying


def operation_in(raw: bytes) -> str:
    return (
        msgspec.json.decode(raw, type=_Written).metadata.annotations.get(OPERATION, "")
        if OPERATION.encode() in raw
        else ""
    )


def is_going(raw: bytes | None) -> bool:
    return raw is None or msgspec.json.decode(raw, type=_Doomed).metadata.deletion_timestamp is not None
