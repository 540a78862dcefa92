"""Is each node well, as far as its agent is heard, and what does its silence mean for what runs on it?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import merge_conditions, path_of, with_metadata, with_status
from lattice.kinds.container import Disconnect
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import NODE_FINALIZER, QUARANTINED, LatticeNode, NodeHeartbeat, NodeStatus, NodeUsage
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.lifecycle.eviction import is_draining
from lattice.lifecycle.node_health import (
    EvictionRateLimiter,
    NodeObservation,
    NodeTimeouts,
    NodeVerdict,
    SilentNodeEvictions,
    decide_failover,
    effective_disconnect,
    evaluate_node,
    evict_silent_nodes,
    is_usage_change_significant,
)
from lattice.lifecycle.workload import BoundNodeState
from lattice.presence import PresenceChange, Usage
from lattice.scheduling.table.port_allocator import add_taken_ports, dynamic_ports, unexpired_taken_ports
from lattice.store.protocol import Change, Delete, Entry, Key, Put, Write

ZONES_KEY = "*"  # the key under which whole zones are looked at
NOT_JOINED = "NotJoined"
MAY_STILL_RUN_MESSAGE = "it was started there to run on without contact, and must not run twice by now: only its node can say that it has ended"
RECOUNT_DELAY_S = (
    1.0  # seconds from when a workload left until those that are left are counted: many may leave at once
)

log = structlog.get_logger()


class NodeState(NamedTuple):
    """What a workload stands on."""

    state: BoundNodeState
    is_fully_reported: bool = True  # False: silent only in so far as this server has not heard all of it yet
    reason: str = ""
    recheck_after_s: float | None = None  # seconds after which time alone may change it


@dataclass
class NodeHealthController:
    """LatticeNode -> its conditions, phase and heartbeat; tells whose workloads may go elsewhere."""

    context: ControllerContext
    timeouts: NodeTimeouts = field(default_factory=NodeTimeouts)
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "nodes"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._recorder = self.context.recorder(self.name)
        self._releases = SilentNodeEvictions(EvictionRateLimiter(), {}, {})
        self._workloads = self.context.cache(LatticeWorkload)
        self._recount_at: dict[
            str, float
        ] = {}  # nodes that workloads have left, and when to count what is left, monotonic
        self._removed_since: dict[
            tuple[str, str], float
        ] = {}  # nodes that workloads are bound to though they are gone, and since when
        self._usage_written_at: dict[str, float] = {}  # when usage was last written, monotonic
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            self._list_keys,
            (Source(self._nodes, self._keys_for_node),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(self._on_presence_change)
        return loop

    def on_change(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear which workloads stand on something else than before; must not wait."""
        self._listeners.append(told)

    def usage(self) -> dict[str, Usage]:
        """As measured last, by node: live, not what is stored."""
        presence = self.context.presence
        return {name: heard.usage for name in presence.nodes() if (heard := presence.get(name)) is not None}

    def workload_usage(self) -> dict[str, Usage]:
        """The same by path of the workload."""
        presence = self.context.presence
        return {
            path: used
            for name in presence.nodes()
            if (heard := presence.get(name)) is not None
            for path, used in heard.workload_usage.items()
        }

    def note_workload_left(self, name: str) -> None:
        """A workload has left that node."""
        self._recount_at.setdefault(name, self.context.clock.monotonic() + RECOUNT_DELAY_S)
        self._wake((f"/{name}",))

    def taken_port_writes(self, workload: LatticeWorkload) -> list[Write]:
        """Another program has a port that was chosen for it: which one is not known, so none of them is given out for a while."""
        binding = workload.status.binding
        path = f"/{binding.node}" if binding else ""
        entry, node = self._nodes.entry(path), self._nodes.get(path)
        ports = dynamic_ports(workload.spec.containers, workload.status.allocated_ports)
        if (
            binding is None
            or entry is None
            or node is None
            or binding.uid not in ("", node.metadata.uid)
            or not ports
        ):
            return []
        taken = add_taken_ports(node.status.taken_ports, ports, self.context.clock.now())
        return [with_status(entry, replace(node.status, taken_ports=taken))]

    def node_state(self, workload: LatticeWorkload) -> NodeState:
        binding = workload.status.binding
        if binding is None:
            return NodeState("None")
        node = self._nodes.get(f"/{binding.node}")
        if node is None or (binding.uid and node.metadata.uid != binding.uid):
            return self._removed_node_state(workload, binding)
        seen = self._observe(node)
        if evaluate_node(seen, self.timeouts).state != "Ready":
            disconnect = effective_disconnect(workload, self.timeouts)
            if disconnect is None:
                return NodeState("Silent", True, MAY_STILL_RUN_MESSAGE)
            found = decide_failover(disconnect, seen, self._releases, self.timeouts)
            return NodeState(
                "Abandoned" if found.is_allowed else "Silent", True, found.reason, found.requeue_after
            )
        heard = self.context.presence.get(binding.node)
        return (
            NodeState("Ready") if heard is not None and heard.has_full_report else NodeState("Silent", False)
        )

    def _removed_node_state(self, workload: LatticeWorkload, binding: Binding) -> NodeState:
        """Its node was removed. A strict copy may live on there until the machine, which nobody answers any more, has ended it."""
        now, disconnect = (
            self.context.clock.monotonic(),
            effective_disconnect(workload, self.timeouts) or Disconnect(),
        )
        since = self._removed_since.setdefault((binding.node, binding.uid), now)
        left = (
            since + self.timeouts.certain_after(disconnect.stop_after_ms / 1000) - now
            if disconnect.policy == "stop"
            else 0.0
        )
        if left > 0:
            return NodeState("Silent", True, "its node was removed and may not have stopped it yet", left)
        return NodeState("Gone")

    async def reconcile(self, key: str) -> Requeue | None:
        if key == ZONES_KEY:
            return self._release()
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None:
            await self._forget_if_deleted(key)
            return None
        verdict = evaluate_node(self._observe(node), self.timeouts)
        if self._may_remove(entry, node, verdict):
            await self.context.commit(
                [
                    _remove_finalizer(entry, node),
                    self._recorder.event(node, "NodeRemoved", "nothing is left on it"),
                ]
            )
            return None
        status = replace(self._status(node, verdict), workloads=self._count_workloads(entry, node))
        if status != node.status:
            await self.context.commit([with_status(entry, status), *self._events(node, verdict)])
            self._on_status_written(node, status, verdict)
        # a node that was silent may speak again without anything to tell, which wakes nobody
        again = (
            self.timeouts.heartbeat_interval / 2
            if verdict.state == "NotReady"
            else verdict.requeue_after or self.concurrency.resync_s
        )
        return Requeue(min(again, RECOUNT_DELAY_S) if node.metadata.name in self._recount_at else again)

    def _list_keys(self) -> list[str]:
        return [*(path_of(node) for node in self._nodes.objects()), ZONES_KEY]

    def _keys_for_node(self, change: Change) -> Iterable[str]:
        """Not when only the number of its workloads is another: with thousands bound that would be all there is to look at."""
        before, after = self._nodes.previous_object, self._nodes.get(change.key.path)
        if before is None or after is None or after.metadata.deletion_timestamp:
            return (change.key.path,)
        is_same = before.metadata == after.metadata and before.spec == after.spec
        counted = replace(before.status, workloads=after.status.workloads)
        return () if is_same and counted == after.status else (change.key.path,)

    def _on_presence_change(self, told: PresenceChange) -> None:
        path = f"/{told.node}"
        node = self._nodes.get(path)
        if node is None or not _is_ready(node):
            self._wake((path,))

    def _observe(self, node: LatticeNode) -> NodeObservation:
        presence, name = self.context.presence, node.metadata.name
        ready, is_heard = _ready_condition(node), presence.get(name) is not None
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
        return NodeObservation(
            name, zone, presence.heartbeat_age(name), _is_ready(node), has_joined, is_heard, mark, is_told
        )

    def _status(self, node: LatticeNode, verdict: NodeVerdict) -> NodeStatus:
        before, now = node.status, self.context.timestamp
        ready = Condition(
            type="Ready",
            status="True" if verdict.state == "Ready" else "False",
            reason=verdict.reason,
            message=verdict.message,
        )
        status = replace(
            before,
            phase="Draining" if verdict.state == "Ready" and is_draining(node) else verdict.state,
            conditions=merge_conditions(before.conditions, [ready], now),
            usage=self._usage(node),
            taken_ports=unexpired_taken_ports(before.taken_ports, self.context.clock.now()),
        )
        if verdict.event:
            by = "heartbeat" if verdict.state == "Ready" else "monitor"
            status = replace(status, heartbeat=NodeHeartbeat(reason=verdict.reason, by=by, at=now))
        return status

    def _usage(self, node: LatticeNode) -> NodeUsage | None:
        name, before = node.metadata.name, node.status.usage
        heard = self.context.presence.get(name)
        if heard is None or heard.usage == Usage():
            return before
        now = NodeUsage(cpu=heard.usage.cpu, memory=heard.usage.memory, disk=heard.usage.disk)
        monotonic = self.context.clock.monotonic()
        age = monotonic - self._usage_written_at.setdefault(name, monotonic)
        return now if is_usage_change_significant(before, now, node.status.capacity, age) else before

    def _count_workloads(self, entry: Entry, node: LatticeNode) -> int | None:
        """Whoever binds counts up in the same commit; what left is counted here, from a copy that knows all that was bound."""
        name = node.metadata.name
        if (
            self._recount_at.get(name, 0.0) > self.context.clock.monotonic()
            or self._workloads.revision < entry.revision
        ):
            return node.status.workloads
        self._recount_at.pop(name, None)
        return len(self._workloads.by_index("node", name)) + len(
            self._workloads.by_index("prepared", name)
        ) or (None if node.status.workloads is None else 0)

    def _may_remove(self, entry: Entry, node: LatticeNode, verdict: NodeVerdict) -> bool:
        """It is to be removed: one that is heard once nothing is left on it, one that is silent at once, for it cannot be emptied."""
        if not node.metadata.deletion_timestamp or NODE_FINALIZER not in node.metadata.finalizers:
            return False
        name, is_known = node.metadata.name, self._workloads.revision >= entry.revision
        is_empty = (
            is_known
            and not self._workloads.by_index("node", name)
            and not self._workloads.by_index("prepared", name)
        )
        return is_empty or verdict.state != "Ready"

    def _events(self, node: LatticeNode, verdict: NodeVerdict) -> list[Put]:
        if not verdict.event:
            return []
        return [
            self._recorder.event(node, verdict.event, verdict.message, warning=verdict.event != "NodeReady")
        ]

    def _on_status_written(self, node: LatticeNode, status: NodeStatus, verdict: NodeVerdict) -> None:
        if status.usage != node.status.usage:
            self._usage_written_at[node.metadata.name] = self.context.clock.monotonic()
        if verdict.event == "NodeLost":
            metrics.NODES_UNHEALTHY.inc()
        if verdict.event:
            log.info("node changed", node=node.metadata.name, state=verdict.state, why=verdict.message)
            self._notify([node.metadata.name])
            self._wake((ZONES_KEY,))

    def _release(self) -> Requeue:
        """Which silent nodes are given up now."""
        seen = [self._observe(node) for node in self._nodes.objects()]
        self._removed_since = {
            key: since
            for key, since in self._removed_since.items()
            if self._workloads.by_index("node", key[0])
        }
        before, found = (
            self._releases,
            evict_silent_nodes(
                seen, self._releases.rate_limiter, self.context.clock.monotonic(), self.timeouts
            ),
        )
        self._releases = found
        for zone, halt in found.outages.items():
            if zone not in before.outages:
                log.warning("re-placement halted", zone=zone, why=str(halt))
        held = {name for name, why in found.blocked.items() if before.blocked.get(name) != why}
        self._notify(sorted(found.evicted_nodes - before.evicted_nodes | held))
        return Requeue(
            max(found.requeue_after if found.requeue_after is not None else self.concurrency.resync_s, 0.01)
        )

    def _notify(self, names: Iterable[str]) -> None:
        paths = [path_of(each) for name in names for each in self._workloads.by_index("node", name)]
        for ear in self._listeners:
            ear(paths)

    async def _forget_if_deleted(self, key: str) -> None:
        """Asked of the store, since a node that has just registered may not be in the copy yet."""
        name = key.removeprefix("/")
        if await self.context.store.get(Key(LatticeNode.resource.id, "", name)) is None:
            self.context.presence.forget_node(name)
            self._usage_written_at.pop(name, None)
            self._notify([name])


def _remove_finalizer(entry: Entry, node: LatticeNode) -> Write:
    """The record goes, unless somebody else holds it."""
    others = [each for each in node.metadata.finalizers if each != NODE_FINALIZER]
    return (
        with_metadata(entry, lambda metadata: metadata | {"finalizers": others})
        if others
        else Delete(entry.key, entry.revision)
    )


def _ready_condition(node: LatticeNode) -> Condition | None:
    return next((each for each in node.status.conditions if each.type == "Ready"), None)


def _is_ready(node: LatticeNode) -> bool:
    ready = _ready_condition(node)
    return ready is not None and ready.status == "True"
