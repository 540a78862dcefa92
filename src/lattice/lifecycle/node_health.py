"""Decide the health of nodes from their heartbeats: which silent nodes lose their workloads, and which workload
a node short of memory or disk evicts.

The leader measures silence by its monotonic clock, from the last heartbeat or from its election, whichever
came later.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from lattice.kinds.container import REPLACE_AFTER_MS, Disconnect, format_amount
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.node import (
    DISK_PRESSURE_CONDITION,
    MEMORY_PRESSURE_CONDITION,
    NOT_JOINED,
    NodeStatus,
    NodeUsage,
)
from lattice.kinds.qos import eviction_order, qos_of
from lattice.kinds.workload import LatticeWorkload

# Tolerance for the rounding of floats: 0.55 * 100 is slightly more than 55, and 0.55 of another total may be
# slightly less than the exact product.
SHARE_TOLERANCE = 1e-9
# How an event and the message of an eviction begin.
PRESSURE_REASON = "NodePressure"
PRESSURE_CONDITIONS = (MEMORY_PRESSURE_CONDITION, DISK_PRESSURE_CONDITION)
# Share of the node's capacity. A smaller change of usage is ordinary fluctuation and is not written, so that
# an idle system writes no status.
USAGE_CHANGE_SHARE = 0.2
# The shortest time between two writes of the usage.
USAGE_WRITE_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeTimeouts:
    """Timeouts and limits of node health; durations are in seconds."""

    heartbeat_interval: float = 10.0
    not_ready_after: float = 40.0
    replace_after: float = 120.0
    # If more than this share of the nodes of a zone is silent, the fault is likely in the network between
    # leader and zone.
    outage_share: float = 0.55
    # The fewest silent nodes that count as an outage, so that a zone of one or two nodes never has an outage.
    outage_min_nodes: int = 3
    # Limit of nodes whose workloads fail over, per zone and second.
    evictions_per_second: float = 0.1
    # The largest error of the rate of a clock, as a share; the same for the clocks of leaders and of nodes.
    clock_error: float = 0.05
    # Seconds from the time at which a node must stop its copies until the node has certainly killed them.
    kill_grace: float = 10.0
    # The limit of `stopAfter` in a manifest; it does not change with the setting `replace_after`.
    max_stop_after: float = REPLACE_AFTER_MS / 1000

    @property
    def eviction_interval(self) -> float:
        return 1 / self.evictions_per_second if self.evictions_per_second > 0 else inf

    def certain_after(self, stop_after: float) -> float:
        """Return the seconds of silence, by the leader's clock, after which the node has certainly killed its
        copies; the node counts `stop_after` by its own clock (I-13).

        The node counts from the time at which it sent the last heartbeat that a leader answered. The leader
        counts from the time at which the heartbeat arrived, which is never earlier. The node's clock may
        run slow and the leader's clock fast, both by `clock_error`; hence the square. With 90 s: (90 + 10) ·
        1.05² = 110.25 s.
        """
        return (stop_after + self.kill_grace) * (1 + self.clock_error) ** 2


DEFAULT_TIMEOUTS = NodeTimeouts()


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """A node as the leader sees it; `is_ready` is the stored condition."""

    name: str
    zone: str
    # Seconds since the last heartbeat, or since the election of the leader if that was later.
    heartbeat_age: float
    is_ready: bool
    has_joined: bool = True
    # Whether the present leader has received a heartbeat of the node.
    is_heard_by_leader: bool = True
    # The reason why the leader ignores reports of the node.
    quarantine: str = ""
    # Whether the stored condition shows the quarantine.
    is_quarantine_recorded: bool = False


@dataclass(frozen=True, slots=True)
class NodeReadiness:
    """The readiness of a node, with its reason.

    `event` is set only when the state changes: NodeLost, NodeReady, NodeQuarantined. `requeue_after` is the
    number of seconds after which the passage of time alone can change the readiness.
    """

    state: Literal["Ready", "NotReady", "Joining"]
    reason: str
    message: str
    event: str = ""
    requeue_after: float | None = None


def evaluate_node(node: NodeObservation, timeouts: NodeTimeouts = DEFAULT_TIMEOUTS) -> NodeReadiness:
    """Decide from heartbeats and quarantine whether the node is ready."""
    if node.quarantine:
        return NodeReadiness(
            "NotReady",
            "Quarantined",
            node.quarantine,
            "" if node.is_quarantine_recorded else "NodeQuarantined",
        )
    if not node.has_joined:
        return NodeReadiness("Joining", NOT_JOINED, "No agent has joined yet")
    # This leader has received no heartbeat of the node yet, and the stored condition is not ready: the node
    # stays not ready.
    was_lost = not node.is_heard_by_leader and not node.is_ready
    if was_lost or node.heartbeat_age >= timeouts.not_ready_after:
        event = "NodeLost" if node.is_ready else ""
        return NodeReadiness(
            "NotReady",
            "HeartbeatMissed",
            f"No heartbeat for {timeouts.not_ready_after:g} s",
            event,
        )
    event = "" if node.is_ready else "NodeReady"
    return NodeReadiness(
        "Ready",
        "Heartbeat",
        "The agent sends heartbeats",
        event,
        timeouts.not_ready_after - node.heartbeat_age,
    )


@dataclass(frozen=True, slots=True)
class ZoneOutage:
    """A zone in which most nodes are silent. No workload of the zone fails over, because a network fault
    between leader and zone is more likely than the loss of so many nodes."""

    zone: str
    silent: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.silent} of {self.nodes} nodes without a heartbeat: {self.reason}"

    @property
    def reason(self) -> str:
        """The reason without counts, so that workload statuses are not rewritten whenever a node of the zone
        changes."""
        return (
            f"failover in zone {self.zone or 'unnamed'} is halted until more of its nodes send heartbeats, "
            "because most nodes of the zone are silent"
        )


def zone_outages(
    nodes: Iterable[NodeObservation], timeouts: NodeTimeouts = DEFAULT_TIMEOUTS
) -> dict[str, ZoneOutage]:
    """Return the zones in which failover is halted because most nodes are silent."""
    joined = [node for node in nodes if node.has_joined]
    total = Counter(node.zone for node in joined)
    silent = Counter(node.zone for node in joined if node.heartbeat_age >= timeouts.not_ready_after)
    return {
        zone: ZoneOutage(zone, count, total[zone])
        for zone, count in sorted(silent.items())
        if count >= timeouts.outage_min_nodes
        and count > timeouts.outage_share * total[zone] + SHARE_TOLERANCE
    }


@dataclass(frozen=True, slots=True)
class EvictionRateLimiter:
    """State that one leader keeps in memory between evictions of silent nodes.

    `next_at` holds, by zone, the monotonic time from which workloads of one more silent node may fail over.
    """

    evicted_nodes: frozenset[str] = frozenset()
    next_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SilentNodeEvictions:
    """Silent nodes whose workloads may fail over, and the reasons that block failover for other nodes.

    The result concerns nodes. `decide_failover` also reads the disconnect policy of a workload, and decides
    whether this workload is evicted with the cause NodeLost.
    """

    rate_limiter: EvictionRateLimiter
    blocked: Mapping[str, str]
    outages: Mapping[str, ZoneOutage]
    requeue_after: float | None = None

    @property
    def evicted_nodes(self) -> frozenset[str]:
        return self.rate_limiter.evicted_nodes


def evict_silent_nodes(
    nodes: Sequence[NodeObservation],
    previous: EvictionRateLimiter,
    now: float,
    timeouts: NodeTimeouts = DEFAULT_TIMEOUTS,
) -> SilentNodeEvictions:
    """Select the silent nodes whose workloads may fail over at the monotonic time `now`.

    The nodes that have been silent longest come first, within the eviction rate of their zone. In a zone
    outage no node is selected. A node that sends heartbeats again is no longer selected.
    """
    outages = zone_outages(nodes, timeouts)
    overdue = {
        node.name: node for node in nodes if node.has_joined and node.heartbeat_age >= timeouts.replace_after
    }
    blocked = {name: outages[node.zone].reason for name, node in overdue.items() if node.zone in outages}
    evicted = {name for name in previous.evicted_nodes if name in overdue and name not in blocked}
    next_at = dict(previous.next_at)
    waits = [
        timeouts.replace_after - node.heartbeat_age
        for node in nodes
        if node.has_joined and node.heartbeat_age < timeouts.replace_after
    ]
    for node in sorted(overdue.values(), key=lambda node: (-node.heartbeat_age, node.name)):
        if node.name in evicted or node.name in blocked:
            continue
        if (next_slot := next_at.get(node.zone, now)) <= now:
            evicted.add(node.name)
            next_at[node.zone] = now + timeouts.eviction_interval
        else:
            blocked[node.name] = (
                f"failover in zone {node.zone or 'unnamed'} is limited to "
                f"{timeouts.evictions_per_second:g} nodes per second"
            )
            waits.append(next_slot - now)
    return SilentNodeEvictions(
        EvictionRateLimiter(frozenset(evicted), next_at), blocked, outages, min(waits, default=None)
    )


def effective_disconnect(
    workload: LatticeWorkload, timeouts: NodeTimeouts = DEFAULT_TIMEOUTS
) -> Disconnect | None:
    """Return the disconnect policy that the copy of the workload on its node follows.

    A changed policy holds once the agent has reported the current revision. Before the report the leader
    assumes the longest `stopAfter` (I-13). None: the agent applied a policy under which the copy keeps
    running without contact, although the present policy forbids that.
    """
    desired, status, metadata = workload.spec.disconnect, workload.status, workload.metadata
    # The spec never changed if the generation is still 1, or 2 for an object that is marked for deletion.
    is_unchanged = metadata.generation == (2 if metadata.deletion_timestamp else 1)
    if (
        desired.policy != "stop"
        or status.applied_revision == workload.spec.effective_revision
        or is_unchanged
    ):
        return desired
    if status.applied_revision and not status.strict:
        return None
    return Disconnect(policy="stop", stop_after=f"{timeouts.max_stop_after:g}s")


@dataclass(frozen=True, slots=True)
class Failover:
    """Whether a workload of a silent node may start on another node; otherwise `requeue_after` is the number
    of seconds after which failover may be allowed, if known."""

    is_allowed: bool
    reason: str
    requeue_after: float | None = None


def decide_failover(
    disconnect: Disconnect,
    node: NodeObservation,
    evictions: SilentNodeEvictions,
    timeouts: NodeTimeouts = DEFAULT_TIMEOUTS,
) -> Failover:
    """Decide whether the workload may start on another node while its node is silent.

    Under the policy `stop` the silence must also last until the node has certainly killed its copy (I-13).
    """
    required_silence = timeouts.replace_after
    if disconnect.policy == "stop":
        required_silence = max(required_silence, timeouts.certain_after(disconnect.stop_after_ms / 1000))
    if node.heartbeat_age < required_silence:
        return Failover(
            False,
            f"failover starts {required_silence:g} s after the last heartbeat",
            required_silence - node.heartbeat_age,
        )
    if node.name not in evictions.evicted_nodes:
        return Failover(
            False,
            evictions.blocked.get(node.name, "failover has not started yet"),
            evictions.requeue_after,
        )
    if disconnect.policy == "stop":
        return Failover(
            True,
            f"No heartbeat from the node for {required_silence:g} s; the node has certainly stopped the workload",
        )
    return Failover(
        True,
        f"No heartbeat from the node for {required_silence:g} s; "
        "if the node returns, Lattice stops the surplus copy",
    )


def is_usage_change_significant(
    previous: NodeUsage | None, now: NodeUsage, capacity: Mapping[str, int], age: float
) -> bool:
    """Whether the usage differs enough from the stored usage to be written; `age` is the number of seconds
    since this server wrote the stored usage."""
    if previous is None:
        return True
    if age < USAGE_WRITE_INTERVAL_S:
        return False
    # If the capacity is unknown, the change is compared with the larger of the two amounts.
    for old, new, size in (
        (previous.cpu, now.cpu, capacity.get("cpu")),
        (previous.memory, now.memory, capacity.get("memory")),
        (previous.disk, now.disk, capacity.get("storage")),
    ):
        if abs((new or 0) - (old or 0)) > USAGE_CHANGE_SHARE * (size or max(old or 0, new or 0)):
            return True
    return False


@dataclass(frozen=True, slots=True)
class PressureThresholds:
    """The shares of a node's memory and disk below which the available amount is pressure, and the time for
    which the condition stays after the last report of a shortage, so that it does not flap."""

    memory_share: float = 0.05
    disk_share: float = 0.02
    clear_after_s: float = 60.0


DEFAULT_THRESHOLDS = PressureThresholds()


class _Resource(NamedTuple):
    condition: str
    # In the capacity of a node, and in requests.
    name: str
    requests: tuple[str, ...]
    share: float


def _resources(thresholds: PressureThresholds) -> tuple[_Resource, _Resource]:
    return (
        _Resource(MEMORY_PRESSURE_CONDITION, "memory", ("memory",), thresholds.memory_share),
        _Resource(
            DISK_PRESSURE_CONDITION, "storage", ("storage", "ephemeral-storage"), thresholds.disk_share
        ),
    )


def _is_short(resource: _Resource, status: NodeStatus, usage: NodeUsage) -> bool:
    """Whether less than the threshold of the resource is available now."""
    capacity = status.capacity.get(resource.name, 0)
    used = (usage.memory if resource.name == "memory" else usage.disk) or 0
    return bool(capacity) and capacity - used < resource.share * capacity


def short_resources(
    status: NodeStatus, usage: NodeUsage, thresholds: PressureThresholds = DEFAULT_THRESHOLDS
) -> list[str]:
    """List the pressure conditions of which the node is short now."""
    return [resource.condition for resource in _resources(thresholds) if _is_short(resource, status, usage)]


def pressure_conditions(
    status: NodeStatus,
    usage: NodeUsage,
    since_shortage: Mapping[str, float],
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS,
) -> Iterator[Condition]:
    """Yield the conditions MemoryPressure and DiskPressure that hold, and those that end; a node that never
    was under pressure has neither.

    `since_shortage` holds, by condition, the seconds since this leader last observed the shortage; without an
    entry the shortage counts as just observed.
    """
    for resource in _resources(thresholds):
        condition, name = resource.condition, resource.name
        previous = find_condition(status.conditions, condition)
        was_true = previous is not None and previous.status == "True"
        if _is_short(resource, status, usage):
            total = format_amount(name, status.capacity[name])
            message = f"Less than {resource.share:.0%} of {total} {name} is available"
            yield Condition(type=condition, status="True", reason="ThresholdExceeded", message=message)
        elif was_true and since_shortage.get(condition, 0.0) >= thresholds.clear_after_s:
            message = f"Enough {name} is available"
            yield Condition(type=condition, status="False", reason="Sufficient", message=message)
        elif previous is not None:
            yield previous


def has_pressure_change(
    status: NodeStatus,
    usage: NodeUsage,
    since_shortage: Mapping[str, float],
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS,
) -> bool:
    """Whether the pressure conditions of the node differ from the usage that the node reports."""
    for condition in pressure_conditions(status, usage, since_shortage, thresholds):
        previous = find_condition(status.conditions, condition.type)
        if previous is None or previous.status != condition.status:
            return True
    return False


@dataclass(frozen=True, slots=True)
class PressureVictim:
    """The workload that leaves a node under pressure next, by path, with the reason."""

    path: str
    reason: str


def next_victim(
    node: tuple[NodeStatus, NodeUsage],
    workloads: Iterable[LatticeWorkload],
    usage: Mapping[str, tuple[int, int]],
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS,
) -> PressureVictim | None:
    """Return the workload to evict from a node under pressure: the first in eviction order that uses more than
    it requests. A workload within its request is never evicted.

    `node` is the stored status of the node, and the usage that it reports now: the condition outlasts the
    shortage. `usage` holds the bytes of memory and disk of each workload, by path.
    """
    status, node_usage = node
    residents = [workload for workload in workloads if path_of(workload) in usage]
    for resource in _resources(thresholds):
        pressure, name = find_condition(status.conditions, resource.condition), resource.name
        if pressure is None or pressure.status != "True" or not _is_short(resource, status, node_usage):
            continue
        excess: dict[str, int] = {}
        requested: dict[str, int] = {}
        for workload in residents:
            path, amounts = path_of(workload), workload.spec.request_amounts
            requested[path] = sum(amounts.get(requested_name, 0) for requested_name in resource.requests)
            excess[path] = usage[path][0 if name == "memory" else 1] - requested[path]
        over = [workload for workload in residents if excess[path_of(workload)] > 0]
        order = eviction_order(
            [(path_of(workload), qos_of(workload.spec), workload.spec.priority) for workload in over], excess
        )
        if order:
            path = order[0]
            used, need = excess[path] + requested[path], requested[path]
            text = (
                f"{PRESSURE_REASON}: {pressure.message}; the workload uses {format_amount(name, used)} "
                f"{name} and requests {format_amount(name, need) if need else 'none'}"
            )
            return PressureVictim(path, text)
    return None


def is_under_pressure(status: NodeStatus) -> bool:
    """Whether the node is short of memory or disk."""
    conditions = (find_condition(status.conditions, name) for name in PRESSURE_CONDITIONS)
    return any(condition is not None and condition.status == "True" for condition in conditions)
