"""Which nodes are silent, when may what they ran start elsewhere, and who must leave a node that is drained or tainted?

Silence is measured by the leader's monotonic clock, from the last heartbeat or from its own election, whichever came later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from lattice.kinds.constraint import Taint, Toleration
from lattice.kinds.container import ABANDONED_AFTER_MS, Disconnect
from lattice.kinds.workload import LatticeWorkload

ROUNDING = 1e-9  # 0.55 of 100 is a little more than 55 here, and 0.55 of something else may be a little less
FOR_A_DRAIN = "its node is drained"


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Seconds, unless said otherwise."""

    heartbeat: float = 10.0
    not_ready_after: float = 40.0
    replace_after: float = 120.0
    mass_share: float = 0.55  # of the nodes of a zone: above it the fault is likely between us and them
    mass_least: int = 3  # so many silent nodes make a mass: in a zone of one or two, each is lost by itself
    evictions_per_second: float = 0.1  # nodes of one zone
    clock_error: float = (
        0.05  # share by which the rate of a clock may be wrong, of ours and of a node's alike
    )
    kill_grace: float = 10.0  # from a node's deadline until its copies are certainly dead
    longest_stop: float = (
        ABANDONED_AFTER_MS / 1000
    )  # of all that `stopAfter` may be, however soon nodes are given up

    @property
    def eviction_pause(self) -> float:
        return 1 / self.evictions_per_second if self.evictions_per_second > 0 else inf

    def certain_after(self, stop_after: float) -> float:
        """Silence, on our clock, after which a node that counts `stop_after` on its own clock has surely killed its copies.

        The node counts from when it sent the last heartbeat that a leader answered, which is never later than when the leader heard
        it. Its clock may run slow and ours fast, each by `clock_error`; hence the square. With 90 s: (90 + 10) · 1.05² = 110.25 s.
        """
        return (stop_after + self.kill_grace) * (1 + self.clock_error) ** 2


TIMES = NodeTimes()


@dataclass(frozen=True, slots=True)
class NodeSeen:
    name: str
    zone: str
    silence: float  # seconds
    is_ready: bool  # as stored
    has_joined: bool = True  # an agent has ever spoken for it
    is_heard: bool = True  # by this leader
    quarantine: str = ""  # why nothing it says is believed
    is_told: bool = False  # that it is quarantined


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`event` only when the state changes: NodeLost, NodeReady, NodeQuarantined. `again`: seconds until time alone could change it."""

    state: Literal["Ready", "NotReady", "Joining"]
    reason: str
    message: str
    event: str = ""
    again: float | None = None


def judge(node: NodeSeen, times: NodeTimes = TIMES) -> NodeVerdict:
    if node.quarantine:
        return NodeVerdict(
            "NotReady", "Quarantined", node.quarantine, "" if node.is_told else "NodeQuarantined"
        )
    if not node.has_joined:
        return NodeVerdict("Joining", "NotJoined", "no agent has joined for this node yet")
    was_lost = not node.is_heard and not node.is_ready  # a new leader knows no better yet
    if was_lost or node.silence >= times.not_ready_after:
        event = "NodeLost" if node.is_ready else ""
        return NodeVerdict(
            "NotReady", "HeartbeatMissed", f"nothing was heard of it for {times.not_ready_after:g} s", event
        )
    event = "" if node.is_ready else "NodeReady"
    return NodeVerdict("Ready", "Heartbeat", "its agent reports", event, times.not_ready_after - node.silence)


@dataclass(frozen=True, slots=True)
class Halt:
    """Most of a zone is silent: nothing of it is put elsewhere, since more likely we are cut off than they are dead."""

    zone: str
    silent: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.silent} of {self.nodes} nodes: {self.words}"

    @property
    def words(self) -> str:
        """Without the counts: what is said of each workload is not written anew with every node that comes or goes."""
        return f"most nodes of zone {self.zone or 'unnamed'} are silent at once, and nothing is moved until some are back"


def halts(nodes: Iterable[NodeSeen], times: NodeTimes = TIMES) -> dict[str, Halt]:
    """Zones in which re-placement is halted."""
    joined = [node for node in nodes if node.has_joined]
    total = Counter(node.zone for node in joined)
    silent = Counter(node.zone for node in joined if node.silence >= times.not_ready_after)
    return {
        zone: Halt(zone, count, total[zone])
        for zone, count in sorted(silent.items())
        if count >= times.mass_least and count > times.mass_share * total[zone] + ROUNDING
    }


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one leader keeps in memory between looks. `next_at`: when a zone may lose another node, on the monotonic clock."""

    released: frozenset[str] = frozenset()
    next_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Releases:
    """Nodes whose workloads may be put elsewhere, as each workload's own policy allows, and why others may not yet."""

    allowance: Allowance
    held: Mapping[str, str]
    halted: Mapping[str, Halt]
    again: float | None = None

    @property
    def released(self) -> frozenset[str]:
        return self.allowance.released


def release(nodes: Sequence[NodeSeen], before: Allowance, now: float, times: NodeTimes = TIMES) -> Releases:
    """At most so many nodes of a zone per second, the longest silent first; none where most are silent; a node that is back is not."""
    halted = halts(nodes, times)
    overdue = {node.name: node for node in nodes if node.has_joined and node.silence >= times.replace_after}
    held = {name: halted[node.zone].words for name, node in overdue.items() if node.zone in halted}
    released = {name for name in before.released if name in overdue and name not in held}
    next_at = dict(before.next_at)
    waits = [
        times.replace_after - node.silence
        for node in nodes
        if node.has_joined and node.silence < times.replace_after
    ]
    for node in sorted(overdue.values(), key=lambda each: (-each.silence, each.name)):
        if node.name in released or node.name in held:
            continue
        if (free := next_at.get(node.zone, now)) <= now:
            released.add(node.name)
            next_at[node.zone] = now + times.eviction_pause
        else:
            held[node.name] = (
                f"only {times.evictions_per_second:g} nodes a second are given up in zone {node.zone or 'unnamed'}"
            )
            waits.append(free - now)
    return Releases(Allowance(frozenset(released), next_at), held, halted, min(waits, default=None))


def obeyed(workload: LatticeWorkload, times: NodeTimes = TIMES) -> Disconnect | None:
    """What the copy on its node goes by: what was asked of it when that last said which revision it runs, or, before it has said so, at
    worst, unless nothing else was ever asked of it. None: it runs on without contact, though by now it must not."""
    asked, status, metadata = workload.spec.disconnect, workload.status, workload.metadata
    is_as_made = metadata.generation == (2 if metadata.deletion_timestamp else 1)
    if asked.policy != "stop" or status.applied_revision == workload.spec.runs or is_as_made:
        return asked
    if status.applied_revision and not status.strict:
        return None
    return Disconnect(policy="stop", stop_after=f"{times.longest_stop:g}s")


@dataclass(frozen=True, slots=True)
class Failover:
    """May a workload of a silent node start elsewhere? If not, `again` says after how many seconds it might, should that be known."""

    may_go: bool
    reason: str
    again: float | None = None


def failover(
    disconnect: Disconnect, node: NodeSeen, releases: Releases, times: NodeTimes = TIMES
) -> Failover:
    after = times.replace_after
    if disconnect.policy == "stop":
        after = max(after, times.certain_after(disconnect.stop_after_ms / 1000))
    if node.silence < after:
        return Failover(
            False, f"its node may be back within {after:g} s of its last heartbeat", after - node.silence
        )
    if node.name not in releases.released:
        return Failover(
            False, releases.held.get(node.name, "its node has not been given up yet"), releases.again
        )
    if disconnect.policy == "stop":
        return Failover(True, f"its node was silent for {after:g} s and has surely stopped it")
    return Failover(
        True, f"its node was silent for {after:g} s; should it come back, the surplus copy is stopped"
    )


@dataclass(frozen=True, slots=True)
class Resident:
    """A workload on a node, as far as leaving it is concerned."""

    name: str
    service: str = ""
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    is_available: bool = True  # runs and is ready
    is_leaving: bool = False  # was told to leave, and is not gone yet


@dataclass(frozen=True, slots=True)
class Leave:
    name: str
    reason: str
    after: float = 0.0  # seconds from now


def patience(tolerations: Iterable[Toleration], taint: Taint) -> float | None:
    """Seconds that a NoExecute taint is put up with, by the most patient toleration; None: for ever."""
    limits = [each.toleration_seconds for each in tolerations if each.tolerates(taint)]
    if None in limits:
        return None
    return float(max((seconds for seconds in limits if seconds is not None), default=0))


def driven_out(residents: Iterable[Resident], taints: Mapping[Taint, float]) -> list[Leave]:
    """Who must leave because of NoExecute taints, each of which came so many seconds ago; soonest first."""
    marks = sorted(
        (taint for taint in taints if taint.effect == "NoExecute"), key=lambda each: (each.key, each.value)
    )
    found = []
    for resident in residents:
        limits = [
            (limit - taints[taint], taint)
            for taint in marks
            if (limit := patience(resident.tolerations, taint)) is not None
        ]
        if limits:
            left, taint = min(limits, key=lambda each: each[0])
            mark = f"{taint.key}={taint.value}" if taint.value else taint.key
            found.append(
                Leave(
                    resident.name, f"it does not tolerate taint {mark}:NoExecute any longer", max(0.0, left)
                )
            )
    return sorted(found, key=lambda each: (each.after, each.name))


@dataclass(frozen=True, slots=True)
class Standing:
    """How a service is, over all nodes: ready replicas that stay, how many it must keep, and how many were told to leave and still run."""

    available: int
    least: int
    leaving: int = 0
    is_changing: bool = (
        False  # there are more than were placed: whoever updates or scales it is about to take some away
    )
    no_room: str = ""  # why no node takes one of its replicas, if there is such a one


@dataclass(frozen=True, slots=True)
class Drain:
    """Who leaves now, who must wait and why, and which services need a replica elsewhere before they can give one up."""

    leave: tuple[Leave, ...]
    held: Mapping[str, str]
    surge: tuple[str, ...]
    is_stuck: bool = False  # such a replica is there, and no node takes it

    @property
    def is_done(self) -> bool:
        return not self.leave and not self.held


def drain(residents: Iterable[Resident], services: Mapping[str, Standing], most: int = 1) -> Drain:
    """The least important first, at most `most` of a service on the way at once, and never below what the service must keep."""
    here = sorted(residents, key=lambda each: (each.is_available, each.priority, each.name))
    leave: list[Leave] = []
    held = {each.name: "it is being stopped" for each in here if each.is_leaving}
    surge: dict[str, None] = {}
    going = Counter({name: standing.leaving for name, standing in services.items()})
    spare = {name: standing.available - standing.least for name, standing in services.items()}
    for each in here:
        standing = services.get(each.service)
        if each.is_leaving:
            continue
        if standing is None or not each.is_available:
            leave.append(Leave(each.name, FOR_A_DRAIN))
        elif going[each.service] >= most:
            held[each.name] = f"{going[each.service]} of service {each.service} already leave"
        elif standing.is_changing:
            held[each.name] = (
                f"replicas of service {each.service} are being replaced or removed: it waits until that is done"
            )
        elif spare[each.service] < 1:
            held[each.name] = _needs_one_more(each.service, standing)
            surge[each.service] = None
        else:
            going[each.service] += 1
            spare[each.service] -= 1
            leave.append(Leave(each.name, FOR_A_DRAIN))
    return Drain(tuple(leave), held, tuple(surge), any(services[name].no_room for name in surge))


def _needs_one_more(service: str, standing: Standing) -> str:
    stuck = f", and no node takes it: {standing.no_room}" if standing.no_room else ""
    return f"service {service} has {standing.available} available and needs {standing.least}: one more must run first{stuck}"
