"""Reconcile the health of nodes from heartbeats, and decide when workloads of a silent node fail over."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_metadata, with_status
from lattice.kinds.container import Disconnect
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, is_true, merge_conditions
from lattice.kinds.node import (
    NODE_FINALIZER,
    NOT_JOINED,
    QUARANTINED,
    LatticeNode,
    NodeHeartbeat,
    NodeStatus,
    NodeUsage,
)
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.lifecycle.drain import is_draining
from lattice.lifecycle.eviction import DecidedEviction, EvictionCause
from lattice.lifecycle.node_health import (
    DEFAULT_THRESHOLDS,
    PRESSURE_CONDITIONS,
    EvictionRateLimiter,
    NodeObservation,
    NodeReadiness,
    NodeTimeouts,
    PressureThresholds,
    SilentNodeEvictions,
    decide_failover,
    effective_disconnect,
    evaluate_node,
    evict_silent_nodes,
    has_pressure_change,
    is_usage_change_significant,
    pressure_conditions,
    short_resources,
)
from lattice.lifecycle.workload import BoundNodeState
from lattice.presence import PresenceChange, Usage
from lattice.scheduling.table.port_allocator import add_taken_ports, dynamic_ports, unexpired_taken_ports
from lattice.store.protocol import Change, Delete, Entry, Key, Write

# The key of the reconcile that looks at silent nodes of all zones together.
ZONES_KEY = "*"
MAY_STILL_RUN_MESSAGE = (
    "no failover: the copy on the silent node still follows an earlier disconnect policy, which lets it run "
    "without contact; the current policy forbids a second copy, so Lattice waits until the node reports that "
    "the copy has ended"
)
EMPTIED_MESSAGE = "No workloads are left on the node"
NOT_READY_MESSAGE = "The node was not ready, so its removal did not wait for its workloads"
# Delay between the departure of a workload and the new count: many workloads may leave at once.
RECOUNT_DELAY_S = 1.0

log = structlog.get_logger()


class NodeState(NamedTuple):
    """The state of the node that a workload is bound to."""

    state: BoundNodeState
    # False: the node counts as silent only because this server has not received its full report yet.
    is_fully_reported: bool = True
    reason: str = ""
    # Seconds after which the state may change even without an event.
    recheck_after_s: float | None = None
    # Set if the workload of a silent node may start elsewhere.
    failover: DecidedEviction | None = None


@dataclass
class NodeHealthController:
    """Write conditions, phase and usage of nodes, and decide which workloads fail over.

    A key is `/` and the name of a node, or ZONES_KEY for all zones together.
    """

    context: ControllerContext
    timeouts: NodeTimeouts = field(default_factory=NodeTimeouts)
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "nodes"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._recorder = self.context.recorder(self.name)
        self._silent_evictions = SilentNodeEvictions(EvictionRateLimiter(), {}, {})
        self._workloads = self.context.cache(LatticeWorkload)
        # Nodes that workloads have left: the monotonic time at which to count the remaining workloads.
        self._recount_at: dict[str, float] = {}
        # By name and uid of a removed node with bound workloads: the monotonic time at which this leader
        # first observed the removal.
        self._removed_since: dict[tuple[str, str], float] = {}
        # By node: the monotonic time of the last write of usage.
        self._usage_written_at: dict[str, float] = {}
        # By node and pressure condition: the monotonic time of the last usage that shows the shortage.
        self._shortage_at: dict[str, dict[str, float]] = {}
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [*(path_of(node) for node in self._nodes.objects()), ZONES_KEY],
            (Source(self._nodes, self.keys_for_node),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(self.on_presence_change)
        self.context.presence.on_usage(self.on_usage)
        return loop

    def on_change(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call the listener with the paths of workloads whose node state changes; the listener must not
        block."""
        self._listeners.append(listener)

    def usage(self) -> dict[str, Usage]:
        """The latest usage by node, from heartbeats and not from the store."""
        presence = self.context.presence
        return {
            name: heartbeat.usage
            for name in presence.nodes()
            if (heartbeat := presence.get(name)) is not None
        }

    def workload_usage(self) -> dict[str, Usage]:
        """The latest usage by path of the workload, from heartbeats and not from the store."""
        presence = self.context.presence
        usage: dict[str, Usage] = {}
        for name in presence.nodes():
            if (heartbeat := presence.get(name)) is not None:
                usage.update(heartbeat.workload_usage)
        return usage

    def note_workload_left(self, name: str) -> None:
        """Schedule a new count of the workloads on the node, because a workload has left the node."""
        self._recount_at.setdefault(name, self.context.clock.monotonic() + RECOUNT_DELAY_S)
        self._wake((f"/{name}",))

    def taken_port_writes(self, workload: LatticeWorkload) -> list[Write]:
        """Return the writes that mark the dynamic ports of a workload as taken, because another program uses
        one of them.

        The agent does not report which port is taken, so none of the ports is allocated on this node for a
        while.
        """
        binding = workload.status.binding
        path = f"/{binding.node}" if binding else ""
        entry, node = self._nodes.entry(path), self._nodes.get(path)
        ports = dynamic_ports(workload.spec.containers, workload.status.allocated_ports)
        if (
            binding is None
            or entry is None
            or node is None
            # A binding to an earlier node of the same name: its ports were on another machine.
            or binding.uid not in ("", node.metadata.uid)
            or not ports
        ):
            return []
        taken_ports = add_taken_ports(node.status.taken_ports, ports, self.context.clock.now())
        return [with_status(entry, replace(node.status, taken_ports=taken_ports))]

    def node_state(self, workload: LatticeWorkload) -> NodeState:
        """The state of the node that the workload is bound to, according to heartbeats."""
        binding = workload.status.binding
        if binding is None:
            return NodeState("None")
        node = self._nodes.get(f"/{binding.node}")
        if node is None or (binding.uid and node.metadata.uid != binding.uid):
            return self._removed_node_state(workload, binding)
        observation = self._observe(node)
        # The state is evaluated now: the stored condition of the node may be older than its heartbeat.
        if evaluate_node(observation, self.timeouts).state != "Ready":
            disconnect = effective_disconnect(workload, self.timeouts)
            # The policy that the copy follows never stops the copy, so silence never proves that the copy has
            # ended (I-13).
            if disconnect is None:
                return NodeState("Silent", True, MAY_STILL_RUN_MESSAGE)
            failover = decide_failover(disconnect, observation, self._silent_evictions, self.timeouts)
            return NodeState(
                "Silent",
                True,
                failover.reason,
                failover.requeue_after,
                DecidedEviction(EvictionCause.NODE_LOST, failover.reason) if failover.is_allowed else None,
            )
        heartbeat = self.context.presence.get(binding.node)
        if heartbeat is None or not heartbeat.has_full_report:
            return NodeState("Silent", False)
        return NodeState("Ready")

    def _removed_node_state(self, workload: LatticeWorkload, binding: Binding) -> NodeState:
        """The state of a removed node. A workload with the disconnect policy `stop` may still run until its
        agent, which gets no answers from the leader, has stopped it (I-13)."""
        now = self.context.clock.monotonic()
        disconnect = effective_disconnect(workload, self.timeouts) or Disconnect()
        # Count from this leader's first observation, on its own monotonic clock: clocks of other servers are
        # not trusted.
        since = self._removed_since.setdefault((binding.node, binding.uid), now)
        remaining_s = 0.0
        if disconnect.policy == "stop":
            remaining_s = since + self.timeouts.certain_after(disconnect.stop_after_ms / 1000) - now
        if remaining_s > 0:
            return NodeState(
                "Silent", True, "the node was removed and may still run the workload", remaining_s
            )
        return NodeState("Gone")

    async def reconcile(self, key: str) -> Requeue | None:
        if key == ZONES_KEY:
            return self._reconcile_zones()
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None:
            name = key.removeprefix("/")
            # Read from the store: the cache may not hold a node that has just registered.
            if await self.context.store.get(Key(LatticeNode.resource.id, "", name)) is None:
                self.context.presence.forget_node(name)
                self._usage_written_at.pop(name, None)
                self._shortage_at.pop(name, None)
                self._notify([name])
            return None
        readiness = evaluate_node(self._observe(node), self.timeouts)
        if self._may_remove(entry, node, readiness):
            removal: Write = Delete(entry.key, entry.revision)
            if finalizers := [name for name in node.metadata.finalizers if name != NODE_FINALIZER]:
                # Another finalizer holds the object: only ours is removed.
                removal = with_metadata(entry, lambda metadata: metadata | {"finalizers": finalizers})
            message = EMPTIED_MESSAGE if self._is_empty(entry, node) else NOT_READY_MESSAGE
            event = self._recorder.event(node, "NodeRemoved", message)
            await self.context.commit([removal, event])
            return None
        status = replace(self._status(node, readiness), workloads=self._count_workloads(entry, node))
        if status != node.status:
            writes: list[Write] = [with_status(entry, status)]
            writes += self._pressure_events(node, status)
            if readiness.event:
                is_warning = readiness.event != "NodeReady"
                writes.append(
                    self._recorder.event(node, readiness.event, readiness.message, warning=is_warning)
                )
            await self.context.commit(writes)
            if status.usage != node.status.usage:
                self._usage_written_at[node.metadata.name] = self.context.clock.monotonic()
            if readiness.event == "NodeLost":
                metrics.NODES_UNHEALTHY.inc()
            if readiness.event:
                log.info(
                    "node state changed",
                    node=node.metadata.name,
                    state=readiness.state,
                    why=readiness.message,
                )
                self._notify([node.metadata.name])
                self._wake((ZONES_KEY,))
        if readiness.state == "NotReady":
            # A heartbeat without changes wakes no controller: poll the node.
            delay_s = self.timeouts.heartbeat_interval / 2
        else:
            delay_s = readiness.requeue_after or self.concurrency.resync_s
        return Requeue(min(delay_s, RECOUNT_DELAY_S) if node.metadata.name in self._recount_at else delay_s)

    def keys_for_node(self, change: Change) -> Iterable[str]:
        """Wake the node, unless only its workload count changed: with thousands of bindings such changes are
        frequent."""
        previous, current = self._nodes.previous_object, self._nodes.get(change.key.path)
        if previous is None or current is None or current.metadata.deletion_timestamp:
            return (change.key.path,)
        is_same = previous.metadata == current.metadata and previous.spec == current.spec
        recounted = replace(previous.status, workloads=current.status.workloads)
        return () if is_same and recounted == current.status else (change.key.path,)

    def on_presence_change(self, change: PresenceChange) -> None:
        path = f"/{change.node}"
        node = self._nodes.get(path)
        # A ready node needs no wake-up: its reconcile repeats before the last heartbeat is too old.
        if node is None or not is_true(node.status.conditions, READY_CONDITION):
            self._wake((path,))

    def on_usage(self, name: str) -> None:
        """Wake the node if the usage that it reports begins or ends pressure; every report of a shortage counts,
        so that a short relief ends no condition."""
        node, heartbeat = self._nodes.get(f"/{name}"), self.context.presence.get(name)
        if node is None or heartbeat is None:
            return
        usage = NodeUsage(cpu=heartbeat.usage.cpu, memory=heartbeat.usage.memory, disk=heartbeat.usage.disk)
        since_shortage = self._since_shortage(node, usage)
        if has_pressure_change(node.status, usage, since_shortage, self.thresholds):
            self._wake((f"/{name}",))

    def _observe(self, node: LatticeNode) -> NodeObservation:
        presence, name = self.context.presence, node.metadata.name
        ready, has_heartbeat = (
            find_condition(node.status.conditions, READY_CONDITION),
            presence.get(name) is not None,
        )
        # A new leader has no heartbeats yet, so the stored condition shows whether an agent ever joined.
        has_joined = has_heartbeat or (ready is not None and ready.reason != NOT_JOINED)
        zone = "/".join(part for part in (node.spec.region, node.spec.zone) if part)
        quarantine = find_condition(node.status.conditions, QUARANTINED)
        quarantine_reason = quarantine.message if quarantine and quarantine.status == "True" else ""
        is_quarantine_reported = ready is not None and ready.reason == QUARANTINED
        return NodeObservation(
            name,
            zone,
            presence.heartbeat_age(name),
            ready is not None and ready.status == "True",
            has_joined,
            has_heartbeat,
            quarantine_reason,
            is_quarantine_reported,
        )

    def _status(self, node: LatticeNode, readiness: NodeReadiness) -> NodeStatus:
        previous, now, name = node.status, self.context.timestamp, node.metadata.name
        heartbeat, usage = self.context.presence.get(name), previous.usage
        current: NodeUsage | None = None
        if heartbeat is not None and heartbeat.usage != Usage():
            current = NodeUsage(
                cpu=heartbeat.usage.cpu, memory=heartbeat.usage.memory, disk=heartbeat.usage.disk
            )
            monotonic = self.context.clock.monotonic()
            # A new leader does not know the time of the last write: the interval starts at its first
            # observation.
            age = monotonic - self._usage_written_at.setdefault(name, monotonic)
            if is_usage_change_significant(previous.usage, current, previous.capacity, age):
                usage = current
        pressure: list[Condition] = []
        if current is not None and readiness.state == "Ready":
            since_shortage = self._since_shortage(node, current)
            pressure += pressure_conditions(previous, current, since_shortage, self.thresholds)
        ready = Condition(
            type=READY_CONDITION,
            status="True" if readiness.state == "Ready" else "False",
            reason=readiness.reason,
            message=readiness.message,
        )
        status = replace(
            previous,
            phase="Draining" if readiness.state == "Ready" and is_draining(node) else readiness.state,
            conditions=merge_conditions(previous.conditions, [ready, *pressure], now),
            usage=usage,
            taken_ports=unexpired_taken_ports(previous.taken_ports, self.context.clock.now()),
        )
        if readiness.event:
            source = "heartbeat" if readiness.state == "Ready" else "monitor"
            status = replace(status, heartbeat=NodeHeartbeat(reason=readiness.reason, by=source, at=now))
        return status

    def _since_shortage(self, node: LatticeNode, usage: NodeUsage) -> dict[str, float]:
        """Record a shortage that the usage shows; return, by pressure condition, the seconds since the last
        one. A condition of an earlier leader counts as a shortage when this leader first observes it."""
        now, short = self.context.clock.monotonic(), short_resources(node.status, usage, self.thresholds)
        last = self._shortage_at.get(node.metadata.name, {})
        for name in PRESSURE_CONDITIONS:
            if name in short or (name not in last and is_true(node.status.conditions, name)):
                last[name] = now
        if last:
            self._shortage_at[node.metadata.name] = last
        return {name: now - at for name, at in last.items()}

    def _pressure_events(self, node: LatticeNode, status: NodeStatus) -> Iterator[Write]:
        """An event for every pressure condition that begins or ends."""
        for name in PRESSURE_CONDITIONS:
            previous, current = (
                find_condition(node.status.conditions, name),
                find_condition(status.conditions, name),
            )
            was_true = previous is not None and previous.status == "True"
            if current is None or (current.status == "True") == was_true:
                continue
            if was_true:
                yield self._recorder.event(node, "NodePressureEnded", current.message)
            else:
                yield self._recorder.event(node, "NodePressure", current.message, warning=True)

    def _count_workloads(self, entry: Entry, node: LatticeNode) -> int | None:
        """The number of workloads on the node.

        The scheduler raises the count in the commit that binds. This method lowers the count after workloads
        have left, but only once the workload cache holds every binding that the stored count includes.
        """
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

    def _may_remove(self, entry: Entry, node: LatticeNode, readiness: NodeReadiness) -> bool:
        """Whether the node object may be deleted: a ready node when no workload is left on the node (I-27),
        every other node at once."""
        if not node.metadata.deletion_timestamp or NODE_FINALIZER not in node.metadata.finalizers:
            return False
        # A silent node reports no stop, so do not wait for its workloads: `_removed_node_state` waits until
        # their copies have certainly ended.
        return self._is_empty(entry, node) or readiness.state != "Ready"

    def _is_empty(self, entry: Entry, node: LatticeNode) -> bool:
        """Whether no workload is bound or reserved on the node.

        A workload cache that is older than the node may miss a binding that this revision of the node counts
        (I-27).
        """
        name = node.metadata.name
        return (
            self._workloads.revision >= entry.revision
            and not self._workloads.by_index("node", name)
            and not self._workloads.by_index("prepared", name)
        )

    def _reconcile_zones(self) -> Requeue:
        """Decide from which silent nodes workloads may fail over, within the eviction rate and the outage
        limits of zones."""
        observations = [self._observe(node) for node in self._nodes.objects()]
        # Removed nodes without bound workloads need no timer any more.
        self._removed_since = {
            key: since
            for key, since in self._removed_since.items()
            if self._workloads.by_index("node", key[0])
        }
        previous = self._silent_evictions
        current = evict_silent_nodes(
            observations, previous.rate_limiter, self.context.clock.monotonic(), self.timeouts
        )
        self._silent_evictions = current
        for zone, outage in current.outages.items():
            if zone not in previous.outages:
                log.warning("failover halted", zone=zone, why=str(outage))
        changed = {name for name, reason in current.blocked.items() if previous.blocked.get(name) != reason}
        self._notify(sorted(current.evicted_nodes - previous.evicted_nodes | changed))
        delay_s = current.requeue_after if current.requeue_after is not None else self.concurrency.resync_s
        # A delay of zero would make the controller spin.
        return Requeue(max(delay_s, 0.01))

    def _notify(self, names: Iterable[str]) -> None:
        paths: list[str] = []
        for name in names:
            paths += map(path_of, self._workloads.by_index("node", name))
        for listener in self._listeners:
            listener(paths)
