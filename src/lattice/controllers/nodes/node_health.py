"""Is each node well, as far as its agent is heard, and what does its silence mean for what runs on it?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, path_of, with_metadata, with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.container import Disconnect
from lattice.kinds.node import FINALIZER, QUARANTINED, LatticeNode, NodeHeartbeat, NodeStatus, NodeUsage
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.presence import Told, Usage
from lattice.lifecycle.eviction import is_draining
from lattice.lifecycle.workload import NodeState
from lattice.lifecycle.measured import is_news
from lattice.lifecycle.node_health import (
    Allowance,
    NodeSeen,
    NodeTimes,
    NodeVerdict,
    Releases,
    failover,
    judge,
    obeyed,
    release,
)
from lattice.scheduling.table.ports import chosen_of, still_taken, with_taken
from lattice.store.protocol import Change, Delete, Entry, Key, Put, Write

ZONES = "*"  # the key under which whole zones are looked at
NOT_JOINED = "NotJoined"
RUNS_ON = "it was started there to run on without contact, and must not run twice by now: only its node can say that it has ended"
COUNT_AFTER = (
    1.0  # seconds from when a workload left until those that are left are counted: many may leave at once
)

log = structlog.get_logger()


class Footing(NamedTuple):
    """What a workload stands on."""

    node: NodeState
    is_heard: bool = True  # False: silent only in so far as this server has not heard all of it yet
    reason: str = ""
    again: float | None = None  # seconds after which time alone may change it


@dataclass
class Nodes:
    """LatticeNode -> its conditions, phase and heartbeat; tells whose workloads may go elsewhere."""

    office: Office
    times: NodeTimes = field(default_factory=NodeTimes)
    pace: Pace = field(default_factory=Pace)
    name: str = "nodes"

    def __post_init__(self) -> None:
        self._nodes = self.office.copy(LatticeNode)
        self._teller = self.office.teller(self.name)
        self._releases = Releases(Allowance(), {}, {})
        self._workloads = self.office.copy(LatticeWorkload)
        self._left: dict[
            str, float
        ] = {}  # nodes that workloads have left, and when to count what is left, monotonic
        self._removed: dict[
            tuple[str, str], float
        ] = {}  # nodes that workloads are bound to though they are gone, and since when
        self._measured: dict[str, float] = {}  # when usage was last written, monotonic
        self._ears: list[Callable[[Iterable[str]], None]] = []
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.office.clock,
            self.office.rng,
            self._everything,
            (Source(self._nodes, self._concerned),),
            self.pace,
        )
        self._wake = loop.wake
        self.office.presence.on_change(self._hear)
        return loop

    def on_change(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear which workloads stand on something else than before; must not wait."""
        self._ears.append(told)

    def usage(self) -> dict[str, Usage]:
        """As measured last, by node: live, not what is stored."""
        presence = self.office.presence
        return {name: heard.usage for name in presence.nodes() if (heard := presence.get(name)) is not None}

    def workload_usage(self) -> dict[str, Usage]:
        """The same by path of the workload."""
        presence = self.office.presence
        return {
            path: used
            for name in presence.nodes()
            if (heard := presence.get(name)) is not None
            for path, used in heard.workload_usage.items()
        }

    def left(self, name: str) -> None:
        """A workload has left that node."""
        self._left.setdefault(name, self.office.clock.monotonic() + COUNT_AFTER)
        self._wake((f"/{name}",))

    def taking(self, workload: LatticeWorkload) -> list[Write]:
        """Another program has a port that was chosen for it: which one is not known, so none of them is given out for a while."""
        binding = workload.status.binding
        path = f"/{binding.node}" if binding else ""
        entry, node = self._nodes.entry(path), self._nodes.get(path)
        ports = chosen_of(workload.spec.containers, workload.status.allocated_ports)
        if (
            binding is None
            or entry is None
            or node is None
            or binding.uid not in ("", node.metadata.uid)
            or not ports
        ):
            return []
        taken = with_taken(node.status.taken_ports, ports, self.office.clock.now())
        return [with_status(entry, replace(node.status, taken_ports=taken))]

    def footing(self, workload: LatticeWorkload) -> Footing:
        binding = workload.status.binding
        if binding is None:
            return Footing("None")
        node = self._nodes.get(f"/{binding.node}")
        if node is None or (binding.uid and node.metadata.uid != binding.uid):
            return self._off(workload, binding)
        seen = self._seen(node)
        if judge(seen, self.times).state != "Ready":
            disconnect = obeyed(workload, self.times)
            if disconnect is None:
                return Footing("Silent", True, RUNS_ON)
            found = failover(disconnect, seen, self._releases, self.times)
            return Footing("Abandoned" if found.may_go else "Silent", True, found.reason, found.again)
        heard = self.office.presence.get(binding.node)
        return Footing("Ready") if heard is not None and heard.is_complete else Footing("Silent", False)

    def _off(self, workload: LatticeWorkload, binding: Binding) -> Footing:
        """Its node was removed. A strict copy may live on there until the machine, which nobody answers any more, has ended it."""
        now, disconnect = self.office.clock.monotonic(), obeyed(workload, self.times) or Disconnect()
        since = self._removed.setdefault((binding.node, binding.uid), now)
        left = (
            since + self.times.certain_after(disconnect.stop_after_ms / 1000) - now
            if disconnect.policy == "stop"
            else 0.0
        )
        if left > 0:
            return Footing("Silent", True, "its node was removed and may not have stopped it yet", left)
        return Footing("Gone")

    async def reconcile(self, key: str) -> Again | None:
        if key == ZONES:
            return self._release()
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None:
            await self._gone(key)
            return None
        verdict = judge(self._seen(node), self.times)
        if self._may_go(entry, node, verdict):
            await self.office.commit(
                [_let_go(entry, node), self._teller.event(node, "NodeRemoved", "nothing is left on it")]
            )
            return None
        status = replace(self._status(node, verdict), workloads=self._count(entry, node))
        if status != node.status:
            await self.office.commit([with_status(entry, status), *self._events(node, verdict)])
            self._changed(node, status, verdict)
        # a node that was silent may speak again without anything to tell, which wakes nobody
        again = self.times.heartbeat / 2 if verdict.state == "NotReady" else verdict.again or self.pace.resync
        return Again(min(again, COUNT_AFTER) if node.metadata.name in self._left else again)

    def _everything(self) -> list[str]:
        return [*(path_of(node) for node in self._nodes.all()), ZONES]

    def _concerned(self, change: Change) -> Iterable[str]:
        """Not when only the number of its workloads is another: with thousands bound that would be all there is to look at."""
        before, after = self._nodes.before, self._nodes.get(change.key.path)
        if before is None or after is None or after.metadata.deletion_timestamp:
            return (change.key.path,)
        is_same = before.metadata == after.metadata and before.spec == after.spec
        counted = replace(before.status, workloads=after.status.workloads)
        return () if is_same and counted == after.status else (change.key.path,)

    def _hear(self, told: Told) -> None:
        path = f"/{told.node}"
        node = self._nodes.get(path)
        if node is None or not _is_ready(node):
            self._wake((path,))

    def _seen(self, node: LatticeNode) -> NodeSeen:
        presence, name = self.office.presence, node.metadata.name
        ready, is_heard = _ready(node), presence.get(name) is not None
        has_joined = is_heard or (ready is not None and ready.reason != NOT_JOINED)
        zone = "/".join(part for part in (node.spec.region, node.spec.zone) if part)
        mark = next(
            (
                each.message
                for each in node.status.conditions
                if each.type == QUARANTINED and each.status == "True"
            ),
            "",
        )
        is_told = ready is not None and ready.reason == "Quarantined"
        return NodeSeen(
            name, zone, presence.silence(name), _is_ready(node), has_joined, is_heard, mark, is_told
        )

    def _status(self, node: LatticeNode, verdict: NodeVerdict) -> NodeStatus:
        before, now = node.status, self.office.now
        ready = Condition(
            type="Ready",
            status="True" if verdict.state == "Ready" else "False",
            reason=verdict.reason,
            message=verdict.message,
        )
        status = replace(
            before,
            phase="Draining" if verdict.state == "Ready" and is_draining(node) else verdict.state,
            conditions=conditioned(before.conditions, [ready], now),
            usage=self._usage(node),
            taken_ports=still_taken(before.taken_ports, self.office.clock.now()),
        )
        if verdict.event:
            by = "heartbeat" if verdict.state == "Ready" else "monitor"
            status = replace(status, heartbeat=NodeHeartbeat(reason=verdict.reason, by=by, at=now))
        return status

    def _usage(self, node: LatticeNode) -> NodeUsage | None:
        name, before = node.metadata.name, node.status.usage
        heard = self.office.presence.get(name)
        if heard is None or heard.usage == Usage():
            return before
        now = NodeUsage(cpu=heard.usage.cpu, memory=heard.usage.memory, disk=heard.usage.disk)
        monotonic = self.office.clock.monotonic()
        age = monotonic - self._measured.setdefault(name, monotonic)
        return now if is_news(before, now, node.status.capacity, age) else before

    def _count(self, entry: Entry, node: LatticeNode) -> int | None:
        """Whoever binds counts up in the same commit; what left is counted here, from a copy that knows all that was bound."""
        name = node.metadata.name
        if (
            self._left.get(name, 0.0) > self.office.clock.monotonic()
            or self._workloads.revision < entry.revision
        ):
            return node.status.workloads
        self._left.pop(name, None)
        return len(self._workloads.by("node", name)) + len(self._workloads.by("prepared", name)) or (
            None if node.status.workloads is None else 0
        )

    def _may_go(self, entry: Entry, node: LatticeNode, verdict: NodeVerdict) -> bool:
        """It is to be removed: one that is heard once nothing is left on it, one that is silent at once, for it cannot be emptied."""
        if not node.metadata.deletion_timestamp or FINALIZER not in node.metadata.finalizers:
            return False
        name, is_known = node.metadata.name, self._workloads.revision >= entry.revision
        is_empty = (
            is_known and not self._workloads.by("node", name) and not self._workloads.by("prepared", name)
        )
        return is_empty or verdict.state != "Ready"

    def _events(self, node: LatticeNode, verdict: NodeVerdict) -> list[Put]:
        if not verdict.event:
            return []
        return [
            self._teller.event(node, verdict.event, verdict.message, warning=verdict.event != "NodeReady")
        ]

    def _changed(self, node: LatticeNode, status: NodeStatus, verdict: NodeVerdict) -> None:
        if status.usage != node.status.usage:
            self._measured[node.metadata.name] = self.office.clock.monotonic()
        if verdict.event == "NodeLost":
            metrics.NODES_UNHEALTHY.inc()
        if verdict.event:
            log.info("node changed", node=node.metadata.name, state=verdict.state, why=verdict.message)
            self._tell([node.metadata.name])
            self._wake((ZONES,))

    def _release(self) -> Again:
        """Which silent nodes are given up now."""
        seen = [self._seen(node) for node in self._nodes.all()]
        self._removed = {
            key: since for key, since in self._removed.items() if self._workloads.by("node", key[0])
        }
        before, found = (
            self._releases,
            release(seen, self._releases.allowance, self.office.clock.monotonic(), self.times),
        )
        self._releases = found
        for zone, halt in found.halted.items():
            if zone not in before.halted:
                log.warning("re-placement halted", zone=zone, why=str(halt))
        held = {name for name, why in found.held.items() if before.held.get(name) != why}
        self._tell(sorted(found.released - before.released | held))
        return Again(max(found.again if found.again is not None else self.pace.resync, 0.01))

    def _tell(self, names: Iterable[str]) -> None:
        paths = [path_of(each) for name in names for each in self._workloads.by("node", name)]
        for ear in self._ears:
            ear(paths)

    async def _gone(self, key: str) -> None:
        """Asked of the store, since a node that has just registered may not be in the copy yet."""
        name = key.removeprefix("/")
        if await self.office.store.get(Key(LatticeNode.resource.id, "", name)) is None:
            self.office.presence.forget(name)
            self._measured.pop(name, None)
            self._tell([name])


def _let_go(entry: Entry, node: LatticeNode) -> Write:
    """The record goes, unless somebody else holds it."""
    others = [each for each in node.metadata.finalizers if each != FINALIZER]
    return (
        with_metadata(entry, lambda metadata: metadata | {"finalizers": others})
        if others
        else Delete(entry.key, entry.revision)
    )


def _ready(node: LatticeNode) -> Condition | None:
    return next((each for each in node.status.conditions if each.type == "Ready"), None)


def _is_ready(node: LatticeNode) -> bool:
    ready = _ready(node)
    return ready is not None and ready.status == "True"
