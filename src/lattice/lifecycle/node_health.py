"""Which nodes are silent, when may what they ran start elsewhere, and who must leave a node that is drained or tainted?

Silence is measured by the leader's monotonic clock, from the last heartbeat or from its own election, whichever came later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from lattice.kinds.constraint import Taint, Toleration
from lattice.kinds.container import REPLACE_AFTER_MS, Disconnect
from lattice.kinds.node import NodeUsage
from lattice.kinds.workload import LatticeWorkload

ROUNDING = 1e-9  # 0.55 of 100 is a little more than 55 here, and 0.55 of something else may be a little less
DRAIN_REASON = "its node is drained"


USAGE_CHANGE_SHARE = (
    0.2  # of what the node has; less is the breathing of a machine, and a system at rest writes nothing
)
USAGE_WRITE_INTERVAL_S = 60.0  # seconds at least between two writes


@dataclass(frozen=True, slots=True)
class NodeTimeouts:
    """Seconds, unless said otherwise."""

    heartbeat_interval: float = 10.0
    not_ready_after: float = 40.0
    replace_after: float = 120.0
    outage_share: float = 0.55  # of the nodes of a zone: above it the fault is likely between us and them
    outage_min_nodes: int = (
        3  # so many silent nodes make a mass: in a zone of one or two, each is lost by itself
    )
    evictions_per_second: float = 0.1  # nodes of one zone
    clock_error: float = (
        0.05  # share by which the rate of a clock may be wrong, of ours and of a node's alike
    )
    kill_grace: float = 10.0  # from a node's deadline until its copies are certainly dead
    max_stop_after: float = (
        REPLACE_AFTER_MS / 1000
    )  # of all that `stopAfter` may be, however soon nodes are given up

    @property
    def eviction_interval(self) -> float:
        return 1 / self.evictions_per_second if self.evictions_per_second > 0 else inf

    def certain_after(self, stop_after: float) -> float:
        """Silence, on our clock, after which a node that counts `stop_after` on its own clock has surely killed its copies.

        The node counts from when it sent the last heartbeat that a leader answered, which is never later than when the leader heard
        it. Its clock may run slow and ours fast, each by `clock_error`; hence the square. With 90 s: (90 + 10) · 1.05² = 110.25 s.
        """
        return (stop_after + self.kill_grace) * (1 + self.clock_error) ** 2


DEFAULT_TIMEOUTS = NodeTimeouts()


@dataclass(frozen=True, slots=True)
class NodeObservation:
    name: str
    zone: str
    heartbeat_age: float  # seconds
    is_ready: bool  # as stored
    has_joined: bool = True  # an agent has ever spoken for it
    is_heard_by_leader: bool = True  # by this leader
    quarantine: str = ""  # why nothing it says is believed
    is_quarantine_recorded: bool = False  # that it is quarantined


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`event` only when the state changes: NodeLost, NodeReady, NodeQuarantined. `again`: seconds until time alone could change it."""

    state: Literal["Ready", "NotReady", "Joining"]
    reason: str
    message: str
    event: str = ""
    requeue_after: float | None = None


def evaluate_node(node: NodeObservation, times: NodeTimeouts = DEFAULT_TIMEOUTS) -> NodeVerdict:
    if node.quarantine:
        return NodeVerdict(
            "NotReady",
            "Quarantined",
            node.quarantine,
            "" if node.is_quarantine_recorded else "NodeQuarantined",
        )
    if not node.has_joined:
        return NodeVerdict("Joining", "NotJoined", "no agent has joined for this node yet")
    was_lost = not node.is_heard_by_leader and not node.is_ready  # a new leader knows no better yet
    if was_lost or node.heartbeat_age >= times.not_ready_after:
        event = "NodeLost" if node.is_ready else ""
        return NodeVerdict(
            "NotReady", "HeartbeatMissed", f"nothing was heard of it for {times.not_ready_after:g} s", event
        )
    event = "" if node.is_ready else "NodeReady"
    return NodeVerdict(
        "Ready", "Heartbeat", "its agent reports", event, times.not_ready_after - node.heartbeat_age
    )


@dataclass(frozen=True, slots=True)
class ZoneOutage:
    """Most of a zone is silent: nothing of it is put elsewhere, since more likely we are cut off than they are dead."""

    zone: str
    silent: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.silent} of {self.nodes} nodes: {self.reason}"

    @property
    def reason(self) -> str:
        """Without the counts: what is said of each workload is not written anew with every node that comes or goes."""
        return f"most nodes of zone {self.zone or 'unnamed'} are silent at once, and nothing is moved until some are back"


def zone_outages(
    nodes: Iterable[NodeObservation], times: NodeTimeouts = DEFAULT_TIMEOUTS
) -> dict[str, ZoneOutage]:
    """Zones in which re-placement is halted."""
    joined = [node for node in nodes if node.has_joined]
    total = Counter(node.zone for node in joined)
    silent = Counter(node.zone for node in joined if node.heartbeat_age >= times.not_ready_after)
    return {
        zone: ZoneOutage(zone, count, total[zone])
        for zone, count in sorted(silent.items())
        if count >= times.outage_min_nodes and count > times.outage_share * total[zone] + ROUNDING
    }


@dataclass(frozen=True, slots=True)
class EvictionRateLimiter:
    """What one leader keeps in memory between looks. `next_at`: when a zone may lose another node, on the monotonic clock."""

    evicted_nodes: frozenset[str] = frozenset()
    next_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SilentNodeEvictions:
    """Nodes whose workloads may be put elsewhere, as each workload's own policy allows, and why others may not yet."""

    rate_limiter: EvictionRateLimiter
    blocked: Mapping[str, str]
    outages: Mapping[str, ZoneOutage]
    requeue_after: float | None = None

    @property
    def evicted_nodes(self) -> frozenset[str]:
        return self.rate_limiter.evicted_nodes


def evict_silent_nodes(
    nodes: Sequence[NodeObservation],
    before: EvictionRateLimiter,
    now: float,
    times: NodeTimeouts = DEFAULT_TIMEOUTS,
) -> SilentNodeEvictions:
    """At most so many nodes of a zone per second, the longest silent first; none where most are silent; a node that is back is not."""
    halted = zone_outages(nodes, times)
    overdue = {
        node.name: node for node in nodes if node.has_joined and node.heartbeat_age >= times.replace_after
    }
    held = {name: halted[node.zone].reason for name, node in overdue.items() if node.zone in halted}
    released = {name for name in before.evicted_nodes if name in overdue and name not in held}
    next_at = dict(before.next_at)
    waits = [
        times.replace_after - node.heartbeat_age
        for node in nodes
        if node.has_joined and node.heartbeat_age < times.replace_after
    ]
    for node in sorted(overdue.values(), key=lambda each: (-each.heartbeat_age, each.name)):
        if node.name in released or node.name in held:
            continue
        if (free := next_at.get(node.zone, now)) <= now:
            released.add(node.name)
            next_at[node.zone] = now + times.eviction_interval
        else:
            held[node.name] = (
                f"only {times.evictions_per_second:g} nodes a second are given up in zone {node.zone or 'unnamed'}"
            )
            waits.append(free - now)
    return SilentNodeEvictions(
        EvictionRateLimiter(frozenset(released), next_at), held, halted, min(waits, default=None)
    )


def effective_disconnect(
    workload: LatticeWorkload, times: NodeTimeouts = DEFAULT_TIMEOUTS
) -> Disconnect | None:
    """What the copy on its node goes by: what was asked of it when that last said which revision it runs, or, before it has said so, at
    worst, unless nothing else was ever asked of it. None: it runs on without contact, though by now it must not."""
    asked, status, metadata = workload.spec.disconnect, workload.status, workload.metadata
    is_as_made = metadata.generation == (2 if metadata.deletion_timestamp else 1)
    if asked.policy != "stop" or status.applied_revision == workload.spec.effective_revision or is_as_made:
        return asked
    if status.applied_revision and not status.strict:
        return None
    return Disconnect(policy="stop", stop_after=f"{times.max_stop_after:g}s")


@dataclass(frozen=True, slots=True)
class Failover:
    """May a workload of a silent node start elsewhere? If not, `again` says after how many seconds it might, should that be known."""

    is_allowed: bool
    reason: str
    requeue_after: float | None = None


def decide_failover(
    disconnect: Disconnect,
    node: NodeObservation,
    releases: SilentNodeEvictions,
    times: NodeTimeouts = DEFAULT_TIMEOUTS,
) -> Failover:
    after = times.replace_after
    if disconnect.policy == "stop":
        after = max(after, times.certain_after(disconnect.stop_after_ms / 1000))
    if node.heartbeat_age < after:
        return Failover(
            False,
            f"its node may be back within {after:g} s of its last heartbeat",
            after - node.heartbeat_age,
        )
    if node.name not in releases.evicted_nodes:
        return Failover(
            False,
            releases.blocked.get(node.name, "its node has not been given up yet"),
            releases.requeue_after,
        )
    if disconnect.policy == "stop":
        return Failover(True, f"its node was silent for {after:g} s and has surely stopped it")
    return Failover(
        True, f"its node was silent for {after:g} s; should it come back, the surplus copy is stopped"
    )


@dataclass(frozen=True, slots=True)
class NodeWorkload:
    """A workload on a node, as far as leaving it is concerned."""

    name: str
    service: str = ""
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    is_available: bool = True  # runs and is ready
    is_evicting: bool = False  # was told to leave, and is not gone yet


@dataclass(frozen=True, slots=True)
class Eviction:
    name: str
    reason: str
    delay: float = 0.0  # seconds from now


def max_toleration_seconds(tolerations: Iterable[Toleration], taint: Taint) -> float | None:
    """Seconds that a NoExecute taint is put up with, by the most patient toleration; None: for ever."""
    limits = [each.toleration_seconds for each in tolerations if each.tolerates(taint)]
    if None in limits:
        return None
    return float(max((seconds for seconds in limits if seconds is not None), default=0))


def taint_evictions(residents: Iterable[NodeWorkload], taints: Mapping[Taint, float]) -> list[Eviction]:
    """Who must leave because of NoExecute taints, each of which came so many seconds ago; soonest first."""
    marks = sorted(
        (taint for taint in taints if taint.effect == "NoExecute"), key=lambda each: (each.key, each.value)
    )
    found = []
    for resident in residents:
        limits = [
            (limit - taints[taint], taint)
            for taint in marks
            if (limit := max_toleration_seconds(resident.tolerations, taint)) is not None
        ]
        if limits:
            left, taint = min(limits, key=lambda each: each[0])
            mark = f"{taint.key}={taint.value}" if taint.value else taint.key
            found.append(
                Eviction(
                    resident.name, f"it does not tolerate taint {mark}:NoExecute any longer", max(0.0, left)
                )
            )
    return sorted(found, key=lambda each: (each.delay, each.name))


@dataclass(frozen=True, slots=True)
class ServiceAvailability:
    """How a service is, over all nodes: ready replicas that stay, how many it must keep, and how many were told to leave and still run."""

    available: int
    min_available: int
    evicting: int = 0
    is_changing: bool = (
        False  # there are more than were placed: whoever updates or scales it is about to take some away
    )
    unschedulable_reason: str = ""  # why no node takes one of its replicas, if there is such a one


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Who leaves now, who must wait and why, and which services need a replica elsewhere before they can give one up."""

    evictions: tuple[Eviction, ...]
    blocked: Mapping[str, str]
    surge_services: tuple[str, ...]
    is_surge_unschedulable: bool = False  # such a replica is there, and no node takes it

    @property
    def is_done(self) -> bool:
        return not self.evictions and not self.blocked


def plan_drain(
    residents: Iterable[NodeWorkload], services: Mapping[str, ServiceAvailability], max_evicting: int = 1
) -> DrainPlan:
    """The least important first, at most `most` of a service on the way at once, and never below what the service must keep."""
    here = sorted(residents, key=lambda each: (each.is_available, each.priority, each.name))
    leave: list[Eviction] = []
    held = {each.name: "it is being stopped" for each in here if each.is_evicting}
    surge: dict[str, None] = {}
    going = Counter({name: standing.evicting for name, standing in services.items()})
    spare = {name: standing.available - standing.min_available for name, standing in services.items()}
    for each in here:
        standing = services.get(each.service)
        if each.is_evicting:
            continue
        if standing is None or not each.is_available:
            leave.append(Eviction(each.name, DRAIN_REASON))
        elif going[each.service] >= max_evicting:
            held[each.name] = f"{going[each.service]} of service {each.service} already leave"
        elif standing.is_changing:
            held[each.name] = (
                f"replicas of service {each.service} are being replaced or removed: it waits until that is done"
            )
        elif spare[each.service] < 1:
            held[each.name] = _surge_reason(each.service, standing)
            surge[each.service] = None
        else:
            going[each.service] += 1
            spare[each.service] -= 1
            leave.append(Eviction(each.name, DRAIN_REASON))
    return DrainPlan(
        tuple(leave), held, tuple(surge), any(services[name].unschedulable_reason for name in surge)
    )


def _surge_reason(service: str, standing: ServiceAvailability) -> str:
    stuck = (
        f", and no node takes it: {standing.unschedulable_reason}" if standing.unschedulable_reason else ""
    )
    return f"service {service} has {standing.available} available and needs {standing.min_available}: one more must run first{stuck}"


def is_usage_change_significant(
    before: NodeUsage | None, now: NodeUsage, capacity: Mapping[str, int], age: float
) -> bool:
    """`age`: seconds since it was last written, by this server."""
    if before is None:
        return True
    if age < USAGE_WRITE_INTERVAL_S:
        return False
    return any(
        abs((new or 0) - (old or 0)) > USAGE_CHANGE_SHARE * (room or max(old or 0, new or 0))
        for old, new, room in (
            (before.cpu, now.cpu, capacity.get("cpu")),
            (before.memory, now.memory, capacity.get("memory")),
            (before.disk, now.disk, capacity.get("storage")),
        )
    )
