"""The history of a store on etcd, revision by revision, and a checker of its invariants."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import msgspec

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as rpc

WORKLOADS = "objects/latticeworkloads.lattice.dev/"
NODES = "objects/latticenodes.lattice.dev//"
TERM = "terms/controllers"
LEADER = "leaders/controllers"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 500)]


@dataclass(frozen=True)
class KeyChange:
    """One key at one revision. Without a value it was deleted. `at`: when we heard of it, by the monotonic clock."""

    revision: int
    key: str  # below the prefix
    value: bytes | None
    at: float = 0.0


class History(threading.Thread):
    """Follows etcd itself, from the first revision, on whichever member answers."""

    def __init__(self, endpoints: Sequence[str], prefix: str) -> None:
        super().__init__(daemon=True)
        self.everything: list[KeyChange] = []
        self.now: dict[str, KeyChange] = {}
        self._endpoints = itertools.cycle(endpoints)
        self._prefix = f"/{prefix}/"
        self._seen = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._call: Any = None

    def run(self) -> None:
        while not self._over.is_set():
            with grpc.insecure_channel(next(self._endpoints), options=OPTIONS) as channel:
                try:
                    self._follow(channel)
                except grpc.RpcError:
                    self._over.wait(0.05)

    def stop(self) -> None:
        self._over.set()
        if self._call is not None:
            self._call.cancel()
        self.join(10)

    @property
    def term(self) -> int:
        result = self.now.get(TERM)
        return int(result.value) if result and result.value else 0

    @property
    def leader(self) -> str:
        result = self.now.get(LEADER)
        return result.value.decode() if result and result.value else ""

    def began(self, term: int) -> KeyChange | None:
        """How that term began, if it did."""
        return next(
            (item for item in self.everything if item.key == TERM and item.value and int(item.value) == term),
            None,
        )

    def first_binding(self, term: int) -> KeyChange | None:
        mark = f'"term":{term}'.encode()
        results = (
            item
            for item in self.everything
            if item.key.startswith(WORKLOADS) and item.value and mark in item.value
        )
        return next(
            (
                item
                for item in results
                if (held := _workload(item.value).status.binding) and held.term == term
            ),
            None,
        )

    def bound(self) -> dict[str, Binding]:
        """By path: what is bound now."""
        with self._lock:
            results = {
                key.removeprefix(WORKLOADS): item.value
                for key, item in self.now.items()
                if key.startswith(WORKLOADS)
            }
        return {
            path: held
            for path, value in results.items()
            if value and (held := _workload(value).status.binding)
        }

    def _follow(self, channel: grpc.Channel) -> None:
        create = pb.WatchCreateRequest(
            key=self._prefix.encode(),
            range_end=f"{self._prefix[:-1]}0".encode(),
            start_revision=self._seen + 1,
        )
        self._call = rpc.WatchStub(channel).Watch(
            self._ask(pb.WatchRequest(create_request=create)), metadata=(("hasleader", "true"),)
        )
        for answer in self._call:
            assert not answer.compact_revision, "history was compacted"
            if answer.canceled:
                return
            self._take(answer.events)

    def _ask(self, create: Any) -> Iterator[Any]:
        yield create
        self._over.wait()

    def _take(self, events: Sequence[Any]) -> None:
        at = time.monotonic()
        for event in events:
            value = None if event.type == pb.Event.DELETE else event.kv.value
            happened = KeyChange(
                event.kv.mod_revision, event.kv.key.decode().removeprefix(self._prefix), value, at
            )
            self.everything.append(happened)
            with self._lock:
                self.now[happened.key] = happened
            self._seen = event.kv.mod_revision


@dataclass
class HistoryChecker:
    """Give it every revision in turn; `faults` is what must never be."""

    term: int = 0
    highest: int = 0  # of any binding
    bindings: int = 0  # made so far
    nodes: dict[str, LatticeNode] = field(default_factory=dict)
    bound: dict[str, LatticeWorkload] = field(default_factory=dict)  # by path
    faults: list[str] = field(default_factory=list)

    def judge(self, everything: Sequence[KeyChange]) -> "HistoryChecker":
        for revision, changes in itertools.groupby(everything, key=lambda item: item.revision):
            self.see(revision, list(changes))
        return self

    def see(self, revision: int, changes: Sequence[KeyChange]) -> None:
        touched: set[str] = set()
        for change in changes:
            if change.key == TERM:
                self._begin(change)
            elif change.key.startswith(NODES):
                self._node(change.key.removeprefix(NODES), change)
            elif change.key.startswith(WORKLOADS):
                touched |= self._bind(change.key.removeprefix(WORKLOADS), change)
        for name in touched:
            self._refuse_overcommit(revision, name)

    def _begin(self, change: KeyChange) -> None:
        number = int(change.value or 0)
        if number != self.term + 1:
            self.faults.append(f"{change.revision}: term {number} follows term {self.term}")
        self.term = number

    def _node(self, name: str, change: KeyChange) -> None:
        former = self.nodes.pop(name, None)
        if change.value is not None:
            node = self.nodes[name] = msgspec.json.decode(change.value, type=LatticeNode)
            if former is not None and _is_ready(former) and not _is_ready(node):
                self.faults.append(f"{change.revision}: {name} is taken for lost, and its agent lives")

    def _bind(self, path: str, change: KeyChange) -> set[str]:
        """The nodes that it is on now and was on before."""
        former = self.bound.pop(path, None)
        workload = _workload(change.value) if change.value else None
        before = former.status.binding if former else None
        after = workload.status.binding if workload else None
        if after is not None and workload is not None:
            self.bound[path] = workload
            is_same = former is not None and former.metadata.uid == workload.metadata.uid
            if before is None or not is_same or before != after:
                self._judge_binding(change.revision, path, before if is_same else None, after)
        return {held.node for held in (before, after) if held is not None}

    def _judge_binding(self, revision: int, path: str, before: Binding | None, after: Binding) -> None:
        """No node is lost here, so nothing has a reason to move: whatever does could be on two."""
        self.bindings += 1
        if before is not None:
            self.faults.append(f"{revision}: {path} is bound to {before.node} and to {after.node}")
        if after.term < self.highest:
            self.faults.append(f"{revision}: {path} is bound in term {after.term}, after term {self.highest}")
        if after.term != self.term:
            self.faults.append(
                f"{revision}: {path} is bound in term {after.term}, while term {self.term} lasts"
            )
        self.highest = max(self.highest, after.term)

    def _refuse_overcommit(self, revision: int, name: str) -> None:
        here = [
            item for item in self.bound.values() if item.status.binding and item.status.binding.node == name
        ]
        node = self.nodes.get(name)
        if node is None:
            self.faults.extend([f"{revision}: bound to {name}, which is not there"] if here else [])
            return
        for resource, room in node.status.allocatable.items():
            used = sum(item.spec.request_amounts.get(resource, 0) for item in here)
            if used > room:
                self.faults.append(f"{revision}: {name} has {room} of {resource}, {used} are bound")


def _is_ready(node: LatticeNode) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions
    )


def _workload(value: bytes | None) -> LatticeWorkload:
    return msgspec.json.decode(value or b"", type=LatticeWorkload)
