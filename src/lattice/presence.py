"""Who was heard when, and what did they say? In memory, for one term: shared by the agents' server side and the nodes controller.

A new leader has heard nobody yet, and counts silence from its own election: make one of these per term.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lattice.clock import Clock
from lattice.kinds.workload import DesiredRun as DesiredRun

LIVENESS_CHECK_INTERVAL_S = 2.0  # seconds between signs of our own life
MAX_LIVENESS_DELAY_S = 8.0  # so many seconds without one, and we were not listening: paused, or far too busy


@dataclass(frozen=True, slots=True)
class Usage:
    """As measured: milli-cores, bytes, bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """What a node says of one workload; `run` is the number of the start that it speaks of."""

    uid: str
    state: str
    revision: str = ""
    run: int = 0
    ready: bool = False
    failure_reason: str = ""  # why it failed, in one word
    log: str = ""  # its last lines
    failure_message: str = ""  # it failed, in words


class Session(NamedTuple):
    """One connection of one node. A later one of the same node silences the earlier."""

    node: str
    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One message of an agent. What it leaves out is as it was."""

    usage: Usage | None = None
    workload_usage: Mapping[str, Usage] | None = None  # by path
    workloads: Mapping[str, WorkloadReport | None] = field(
        default_factory=dict
    )  # by path; None: it is not there any more
    is_full_report: bool = False  # whatever `workloads` does not list is not there
    applied_sequence: int = 0  # number of the last order that the agent had carried out when it said this


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last that was heard of a node in this term."""

    session: int
    received_at: float  # monotonic
    usage: Usage = Usage()
    workload_usage: Mapping[str, Usage] = field(default_factory=dict)
    workloads: Mapping[str, WorkloadReport] = field(default_factory=dict)
    has_full_report: bool = False  # all its workloads were listed once: what is not there is missing
    applied_sequence: int = 0
    is_connected: bool = True
    connected_at: float = 0.0  # monotonic: when the present connection began
    has_reported: bool = False  # on the present connection: what is known is of now, not of before


@dataclass(slots=True)
class _SentAssignments:
    """What a node was sent on its present connection: per workload, in which message, and the message that listed them all."""

    sequence: int = 0
    full_list_sequence: int = 0
    by_path: dict[str, tuple[DesiredRun | None, int]] = field(default_factory=dict)


class PresenceChange(NamedTuple):
    """Something changed that is more than the time: which node, and of which workloads, by path."""

    node: str
    workloads: tuple[str, ...]


class Presence:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_heartbeats: dict[str, LastHeartbeat] = {}
        self._listeners: list[Callable[[PresenceChange], None]] = []
        self._sent: dict[str, _SentAssignments] = {}
        self._session_count = 0
        self._listening_since = clock.monotonic()  # nobody can be silent for longer
        self._last_liveness_check: float | None = None

    def get(self, node: str) -> LastHeartbeat | None:
        return self._last_heartbeats.get(node)

    def nodes(self) -> list[str]:
        return list(self._last_heartbeats)

    def heartbeat_age(self, node: str) -> float:
        """Seconds since it was heard; since we listen, if it never was. Times at which we were away ourselves do not count."""
        self._detect_own_pause()
        heard = self._last_heartbeats.get(node)
        return self._clock.monotonic() - max(
            self._listening_since, heard.received_at if heard else self._listening_since
        )

    def on_change(self, told: Callable[[PresenceChange], None]) -> Callable[[], None]:
        """Hear of each change, at once; must not wait. Returns how to stop."""
        self._listeners.append(told)
        return lambda: self._listeners.remove(told)

    def start_session(self, node: str) -> Session:
        """An agent connects: it is heard, and what it said on earlier connections stands until it says otherwise."""
        self._session_count += 1
        now, known = self._clock.monotonic(), self._last_heartbeats.get(node)
        fresh = LastHeartbeat(self._session_count, now, connected_at=now)
        # what it has carried out is counted per connection, since orders are sent anew on each
        if known is not None:
            fresh = replace(
                known,
                session=self._session_count,
                received_at=now,
                connected_at=now,
                applied_sequence=0,
                is_connected=True,
                has_reported=False,
            )
        self._last_heartbeats[node] = fresh
        self._sent[node] = _SentAssignments()
        self._notify(PresenceChange(node, ()))
        return Session(node, self._session_count)

    def record_assignments(
        self, session: Session, wanted: Mapping[str, DesiredRun | None], is_full_list: bool = False
    ) -> int:
        """The number of a message that is now sent: what is wanted by path, None for nothing. The first of a connection lists all.

        0 if a later connection has taken over, or the node was forgotten: nobody will answer that message.
        """
        known, orders = self._last_heartbeats.get(session.node), self._sent.get(session.node)
        if known is None or orders is None or known.session != session.number:
            return 0
        orders.sequence += 1
        if is_full_list:
            orders.full_list_sequence, orders.by_path = orders.sequence, {}
        orders.by_path.update((path, (each, orders.sequence)) for path, each in wanted.items())
        return orders.sequence

    def has_applied(self, node: str, path: str, wanted: DesiredRun | None) -> bool:
        """Had the node carried out this order when it last spoke? If not, what it says may be older than the order."""
        heard, orders = self._last_heartbeats.get(node), self._sent.get(node)
        if heard is None or orders is None:
            return False
        last, number = orders.by_path.get(path, (None, orders.full_list_sequence))
        return last == wanted and 0 < number <= heard.applied_sequence

    def was_sent(self, node: str, path: str) -> bool:
        """Was the node sent anything about this one workload on its present connection?"""
        orders = self._sent.get(node)
        return orders is not None and path in orders.by_path

    def record_heartbeat(self, session: Session, beat: Heartbeat) -> bool:
        """False if a later connection of this node has taken over, or the node was forgotten: end this one.

        Answer a beat only while we lead: a node counts its own silence from when it sent the last beat that was answered.
        """
        known = self._last_heartbeats.get(session.node)
        if known is None or known.session != session.number:
            return False
        changed = _changed_workloads(known.workloads, beat)
        self._last_heartbeats[session.node] = LastHeartbeat(
            session.number,
            self._clock.monotonic(),
            beat.usage or known.usage,
            known.workload_usage if beat.workload_usage is None else beat.workload_usage,
            _merge_workloads(known.workloads, beat) if changed else known.workloads,
            known.has_full_report or beat.is_full_report,
            max(known.applied_sequence, beat.applied_sequence),
            connected_at=known.connected_at,
            has_reported=True,
        )
        if (
            changed
            or beat.applied_sequence > known.applied_sequence
            or beat.is_full_report > known.has_full_report
            or not known.has_reported
        ):
            self._notify(PresenceChange(session.node, changed))
        return True

    def end_session(self, session: Session) -> None:
        """The connection is gone. That is no silence yet: it may be back on another before anybody misses it."""
        known = self._last_heartbeats.get(session.node)
        if known is not None and known.session == session.number:
            self._last_heartbeats[session.node] = replace(known, is_connected=False)
            self._notify(PresenceChange(session.node, ()))

    def forget_node(self, node: str) -> None:
        """The node was removed."""
        self._last_heartbeats.pop(node, None)
        self._sent.pop(node, None)

    async def run(self) -> None:
        """Until cancelled: notices when we were away. Whoever is paused for a minute has not heard anybody, and may blame nobody."""
        while True:
            self._detect_own_pause()
            self._last_liveness_check = self._clock.monotonic()
            await self._clock.sleep(LIVENESS_CHECK_INTERVAL_S)

    def _detect_own_pause(self) -> None:
        now = self._clock.monotonic()
        if (
            self._last_liveness_check is not None
            and now - self._last_liveness_check > LIVENESS_CHECK_INTERVAL_S + MAX_LIVENESS_DELAY_S
        ):
            self._listening_since = self._last_liveness_check = now

    def _notify(self, told: PresenceChange) -> None:
        for ear in tuple(self._listeners):
            ear(told)


def _changed_workloads(known: Mapping[str, WorkloadReport], beat: Heartbeat) -> tuple[str, ...]:
    if beat.is_full_report:
        gone = (path for path in known if path not in beat.workloads)
        return (*gone, *(path for path, spoken in beat.workloads.items() if known.get(path) != spoken))
    return tuple(path for path, spoken in beat.workloads.items() if known.get(path) != spoken)


def _merge_workloads(known: Mapping[str, WorkloadReport], beat: Heartbeat) -> dict[str, WorkloadReport]:
    merged = {**({} if beat.is_full_report else known), **beat.workloads}
    return {path: spoken for path, spoken in merged.items() if spoken is not None}
