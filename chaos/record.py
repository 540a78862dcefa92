"""Recorded history of a chaos run: every revision of etcd, from the first member that reports it, and the
machines' logs."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import msgspec

from chaos.agent import read
from chaos.programs import Agent
from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.agent.runtimes.fake import RuntimeEvent
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.world.store import CommitRecord
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as rpc
from lattice.store.etcd.watch import KeyLayout
from lattice.store.protocol import Change, Key, Term

CONTROLLERS = "controllers"
WORKLOADS = LatticeWorkload.resource.id
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 2000),
]


@dataclass
class Written:
    """The events of a revision. `at` is the monotonic time of the first report; `by` is the reporting member,
    which alone adds events."""

    at: float
    by: str
    events: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass
class History:
    """Revisions and current values of etcd, filled by followers."""

    prefix: str
    written: dict[int, Written] = field(default_factory=dict)
    now: dict[bytes, bytes] = field(default_factory=dict)
    # Monotonic time of the report, and term.
    terms: list[tuple[float, int]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.keys = KeyLayout(f"/{self.prefix}")

    def take(self, by: str, revision: int, key: bytes, value: bytes | None) -> None:
        at = time.monotonic()
        with self._lock:
            written = self.written.setdefault(revision, Written(at, by))
            if written.by != by:
                return
            written.events.append((key, value))
            if value is None:
                self.now.pop(key, None)
            else:
                self.now[key] = value
            if key == self.keys.term_key(CONTROLLERS) and value:
                self.terms.append((at, int(value)))

    @property
    def leader(self) -> str:
        return self.now.get(self.keys.leader_key(CONTROLLERS), b"").decode()

    def objects(self, kind: type[Any]) -> list[Any]:
        start = self.keys.resource_key(kind.resource.id)
        with self._lock:
            values = [
                value for key, value in self.now.items() if key.startswith(start) and len(key) > len(start)
            ]
        return [msgspec.json.decode(value, type=kind) for value in values]

    def records(self) -> list[CommitRecord]:
        """Commits in the form of the simulator. Only a binding carries its term, so further commits have no
        writer."""
        with self._lock:
            revisions = sorted(self.written.items())
        current_term, records = 0, []
        bound: dict[str, tuple[str, str]] = {}
        for revision, written in revisions:
            request, term, changes = None, None, []
            for raw, value in written.events:
                if raw == self.keys.term_key(CONTROLLERS) and value:
                    current_term = int(value)
                elif raw.startswith(self.keys.request_key("")) and value is not None:
                    request = raw.removeprefix(self.keys.request_key("")).decode()
                elif (key := self.keys.parse_object_key(raw)) is not None:
                    changes.append(Change(revision, key, value, None))
                    term = _bound_in(key, value, bound) or term
            actor = f"the leader of term {term.number}" if term else ""
            records.append(
                CommitRecord(
                    revision, written.at, actor, CONTROLLERS, term, current_term, request, tuple(changes)
                )
            )
        return records


def _bound_in(key: Key, value: bytes | None, bound: dict[str, tuple[str, str]]) -> Term | None:
    """The term of a new binding of the workload, or None."""
    if key.resource != WORKLOADS:
        return None
    workload = msgspec.json.decode(value, type=LatticeWorkload) if value else None
    binding = workload.status.binding if workload else None
    previous = bound.pop(key.path, None)
    if workload is None or binding is None:
        return None
    current = bound[key.path] = (workload.metadata.uid, binding.node)
    return None if current == previous else Term(CONTROLLERS, binding.term, "")


class Follower(threading.Thread):
    """Watches a member of etcd from the first revision on and reconnects after every failure."""

    def __init__(self, name: str, endpoint: str, history: History) -> None:
        super().__init__(daemon=True)
        self._member, self._endpoint, self._history = name, endpoint, history
        self._last_revision = 0
        self._stop_requested = threading.Event()
        self._call: Any = None

    def run(self) -> None:
        while not self._stop_requested.is_set():
            with grpc.insecure_channel(self._endpoint, options=OPTIONS) as channel:
                try:
                    self._follow(channel)
                except grpc.RpcError:
                    self._stop_requested.wait(0.2)

    def stop(self) -> None:
        self._stop_requested.set()
        if self._call is not None:
            self._call.cancel()
        self.join(10)

    def _follow(self, channel: grpc.Channel) -> None:
        begin, end = self._history.keys.full_range()
        create = pb.WatchCreateRequest(key=begin, range_end=end, start_revision=self._last_revision + 1)
        self._call = rpc.WatchStub(channel).Watch(
            self._requests(pb.WatchRequest(create_request=create)), metadata=(("hasleader", "true"),)
        )
        for answer in self._call:
            if answer.compact_revision:
                self._history.troubles.append(
                    f"{self._member} had compacted revision {self._last_revision + 1}"
                )
                return
            if answer.canceled:
                return
            for event in answer.events:
                value = None if event.type == pb.Event.DELETE else event.kv.value
                self._history.take(self._member, event.kv.mod_revision, event.kv.key, value)
                self._last_revision = event.kv.mod_revision

    def _requests(self, create: Any) -> Iterator[Any]:
        yield create
        self._stop_requested.wait()


def etcd_leader(endpoints: dict[str, str]) -> str:
    """The member that reports itself as leader; empty if none does."""
    for name, endpoint in endpoints.items():
        with grpc.insecure_channel(endpoint) as channel:
            try:
                status = rpc.MaintenanceStub(channel).Status(pb.StatusRequest(), timeout=0.5)
            except grpc.RpcError:
                continue
            if status.leader == status.header.member_id:
                return name
    return ""


@dataclass
class Ground:
    """The instances of a machine in the form of the simulator."""

    history: list[RuntimeEvent] = field(default_factory=list)
    started_specs: list[RunSpec] = field(default_factory=list)

    def live_instances(self) -> Sequence[InstanceId]:
        return ()


def machine(agent: Agent) -> tuple[SimpleNamespace, list[tuple[float, str]]]:
    """The machine's instances by its log, and the times at which the agent was surely heard."""
    ground, contacts = Ground(), []
    running: dict[InstanceId, RunSpec] = {}
    last_contact = 0.0
    for note in read(agent.notes):
        if note.what == "heard":
            contacts.append((note.at, agent.name))
            last_contact = note.at
        elif note.what == "start" and note.spec is not None:
            running[note.spec.id] = note.spec
            ground.history.append(RuntimeEvent(note.at, "start", note.spec.id))
            ground.started_specs.append(note.spec)
        elif note.what == "stop" and note.which is not None:
            running.pop(note.which, None)
            ground.history.append(RuntimeEvent(note.at, "stop", note.which))
        elif note.what == "power":
            for instance_id, spec in running.items():
                # Without power no stop is logged: a strict copy ends at its deadline at the latest.
                deadline = (
                    note.at if spec.stop_after is None else min(note.at, last_contact + spec.stop_after)
                )
                ground.history.append(RuntimeEvent(deadline, "stop", instance_id))
            running.clear()
    return SimpleNamespace(
        name=agent.name, ground=ground, clock=SimpleNamespace(to_sim_time=lambda at: at)
    ), contacts
