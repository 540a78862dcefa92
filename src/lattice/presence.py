"""The last heartbeat of every node and its reported workloads, in memory, for one leadership term; shared by
the agent sessions of the server and the controllers.

A new leader has received no heartbeat yet and measures silence from its own election: create one Presence per
term.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lattice.clock import Clock
from lattice.kinds.workload import DesiredRun as DesiredRun

LIVENESS_CHECK_INTERVAL_S = 2.0
# A longer delay of a liveness check means that this process was paused or overloaded, and received nothing.
MAX_LIVENESS_DELAY_S = 8.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Measured usage: CPU in milli-cores, memory and disk in bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """The report of a node about one workload; `run` is the number of the run that the report is about."""

    uid: str
    state: str
    revision: str = ""
    run: int = 0
    ready: bool = False
    failure_reason: str = ""  # one word
    log: str = ""  # the last lines of the log
    failure_message: str = ""
    exit_code: int | None = None  # None: the run has not ended, or the agent reports no exit codes


class Session(NamedTuple):
    """One connection of one node; a later session of the node replaces the session."""

    node: str
    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One message of an agent; a value that the message omits is unchanged."""

    usage: Usage | None = None
    workload_usage: Mapping[str, Usage] | None = None  # by path
    # By path; None: the workload is no longer on the node.
    workloads: Mapping[str, WorkloadReport | None] = field(default_factory=dict)
    # A workload that a full report does not list is not on the node.
    is_full_report: bool = False
    # The number of the last message of assignments that the agent had applied when it sent the heartbeat.
    applied_sequence: int = 0


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The state of a node from its heartbeats in the leader's term."""

    session: int
    received_at: float  # monotonic
    usage: Usage = Usage()
    workload_usage: Mapping[str, Usage] = field(default_factory=dict)
    workloads: Mapping[str, WorkloadReport] = field(default_factory=dict)
    # A full report was received: a workload that is not listed is missing from the node.
    has_full_report: bool = False
    applied_sequence: int = 0
    is_connected: bool = True
    connected_at: float = 0.0  # monotonic: start of the current connection
    # A heartbeat arrived on the current connection: the workload reports are not from an earlier connection.
    has_reported: bool = False


@dataclass(slots=True)
class _SentAssignments:
    """The assignments sent to a node on its current connection: per workload the message number, and the
    number of the last full list."""

    sequence: int = 0
    full_list_sequence: int = 0
    by_path: dict[str, tuple[DesiredRun | None, int]] = field(default_factory=dict)


class PresenceChange(NamedTuple):
    """A change of what a node reports or of its connection: the node, and the paths of the changed workloads.
    A heartbeat that changes only its time is no change."""

    node: str
    workloads: tuple[str, ...]


class Presence:
    """The heartbeats of all nodes in one leadership term, and the assignments sent to the nodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_heartbeats: dict[str, LastHeartbeat] = {}
        self._listeners: list[Callable[[PresenceChange], None]] = []
        self._usage_listeners: list[Callable[[str], None]] = []
        self._sent: dict[str, _SentAssignments] = {}
        self._session_count = 0
        # No node can have been silent for longer than this leader has listened.
        self._listening_since = clock.monotonic()
        self._last_liveness_check: float | None = None

    def get(self, node: str) -> LastHeartbeat | None:
        return self._last_heartbeats.get(node)

    def nodes(self) -> list[str]:
        return list(self._last_heartbeats)

    def heartbeat_age(self, node: str) -> float:
        """Seconds since the last heartbeat of the node, or since this leader began to listen; a pause of the
        leader process does not count as silence."""
        self._detect_own_pause()
        last = self._last_heartbeats.get(node)
        return self._clock.monotonic() - max(
            self._listening_since, last.received_at if last else self._listening_since
        )

    def on_change(self, listener: Callable[[PresenceChange], None]) -> Callable[[], None]:
        """Register a listener, called synchronously for every change; the listener must not block. Returns a
        function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_usage(self, listener: Callable[[str], None]) -> None:
        """Register a listener, called synchronously with the node of every heartbeat that carries usage; the
        listener must not block."""
        self._usage_listeners.append(listener)

    def start_session(self, node: str) -> Session:
        """Start the session of a node that has connected; reports of earlier connections stay valid until the
        agent reports a change."""
        self._session_count += 1
        now, previous = self._clock.monotonic(), self._last_heartbeats.get(node)
        current = LastHeartbeat(self._session_count, now, connected_at=now)
        # Messages of assignments are numbered per connection: a new connection begins with the full list.
        if previous is not None:
            current = replace(
                previous,
                session=self._session_count,
                received_at=now,
                connected_at=now,
                applied_sequence=0,
                is_connected=True,
                has_reported=False,
            )
        self._last_heartbeats[node] = current
        self._sent[node] = _SentAssignments()
        self._notify(PresenceChange(node, ()))
        return Session(node, self._session_count)

    def record_assignments(
        self, session: Session, desired_runs: Mapping[str, DesiredRun | None], is_full_list: bool = False
    ) -> int:
        """Record a message of assignments and return its number. `desired_runs` holds the desired run of each
        workload by path, or None for a workload that the message drops. The first message of a connection is
        the full list.

        Returns 0 if a later session replaced this session or the node was forgotten: the message will get no
        answer.
        """
        last, sent = self._last_heartbeats.get(session.node), self._sent.get(session.node)
        if last is None or sent is None or last.session != session.number:
            return 0
        sent.sequence += 1
        if is_full_list:
            sent.full_list_sequence, sent.by_path = sent.sequence, {}
        sent.by_path.update(
            (path, (desired_run, sent.sequence)) for path, desired_run in desired_runs.items()
        )
        return sent.sequence

    def has_applied(self, node: str, path: str, expected_run: DesiredRun | None) -> bool:
        """Whether the node had applied this desired run at its last heartbeat; if not, the report of the node
        may be older than the assignment."""
        last_heartbeat, sent = self._last_heartbeats.get(node), self._sent.get(node)
        if last_heartbeat is None or sent is None:
            return False
        desired_run, number = sent.by_path.get(path, (None, sent.full_list_sequence))
        return desired_run == expected_run and 0 < number <= last_heartbeat.applied_sequence

    def was_sent(self, node: str, path: str) -> bool:
        """Whether a message of assignments on the node's current connection named this workload."""
        sent = self._sent.get(node)
        return sent is not None and path in sent.by_path

    def record_heartbeat(self, session: Session, heartbeat: Heartbeat) -> bool:
        """Record a heartbeat. Return False if a later session replaced this session or the node was
        forgotten; the caller must then close the connection.

        The server may answer a heartbeat only while it leads: a node measures its own silence from the time
        it sent the last answered heartbeat (I-13).
        """
        last = self._last_heartbeats.get(session.node)
        if last is None or last.session != session.number:
            return False
        changed = _changed_workloads(last.workloads, heartbeat)
        self._last_heartbeats[session.node] = LastHeartbeat(
            session.number,
            self._clock.monotonic(),
            heartbeat.usage or last.usage,
            last.workload_usage if heartbeat.workload_usage is None else heartbeat.workload_usage,
            _merge_workloads(last.workloads, heartbeat) if changed else last.workloads,
            last.has_full_report or heartbeat.is_full_report,
            max(last.applied_sequence, heartbeat.applied_sequence),
            connected_at=last.connected_at,
            has_reported=True,
        )
        if (
            changed
            or heartbeat.applied_sequence > last.applied_sequence
            or heartbeat.is_full_report > last.has_full_report
            or not last.has_reported
        ):
            self._notify(PresenceChange(session.node, changed))
        if heartbeat.usage is not None:
            for listener in self._usage_listeners:
                listener(session.node)
        return True

    def end_session(self, session: Session) -> None:
        """Mark the node as disconnected; the node counts as silent only by the age of its heartbeat, since an
        agent may reconnect in time."""
        last = self._last_heartbeats.get(session.node)
        if last is not None and last.session == session.number:
            self._last_heartbeats[session.node] = replace(last, is_connected=False)
            self._notify(PresenceChange(session.node, ()))

    def forget_node(self, node: str) -> None:
        """Drop the state of a removed node."""
        self._last_heartbeats.pop(node, None)
        self._sent.pop(node, None)

    async def run(self) -> None:
        """Detect pauses of this process, until cancelled: a leader that was paused received no heartbeat and
        must not count that time as silence of nodes.

        Not a controller on `Loop`: the interval between two checks is the measurement, and no work may delay
        a check.
        """
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

    def _notify(self, change: PresenceChange) -> None:
        for listener in tuple(self._listeners):
            listener(change)


def _changed_workloads(previous: Mapping[str, WorkloadReport], heartbeat: Heartbeat) -> tuple[str, ...]:
    if heartbeat.is_full_report:
        gone = (path for path in previous if path not in heartbeat.workloads)
        return (
            *gone,
            *(path for path, report in heartbeat.workloads.items() if previous.get(path) != report),
        )
    return tuple(path for path, report in heartbeat.workloads.items() if previous.get(path) != report)


def _merge_workloads(
    previous: Mapping[str, WorkloadReport], heartbeat: Heartbeat
) -> dict[str, WorkloadReport]:
    merged = {**({} if heartbeat.is_full_report else previous), **heartbeat.workloads}
    return {path: report for path, report in merged.items() if report is not None}
