"""Agent sessions on the leader: handshake, heartbeats, assignments and log requests of every connected agent.

Only the leader serves agents; a follower replies with the leader's address. Assignments derive from stored
state only. A session keeps changes as a set of workload paths, so the memory for a slow agent is bounded, and
the agent receives the latest state at its next read. The module does not import gRPC: the simulator runs
sessions over connections in memory.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from lattice import __version__, metrics
from lattice import tracing as traces
from lattice.clock import Clock, with_timeout
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.join_token import AGENT_KEY_ANNOTATION
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.workload import desired_run
from lattice.presence import Session
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.codec import decode_heartbeat, encode_assignment, heartbeat_problem
from lattice.server.agents.leader_context import LeaderContext, NodeQuarantined, NotLeader, SessionRejected
from lattice.server.agents.node_logs import NodeLogReader
from lattice.server.agents.registration import Registrar
from lattice.store.protocol import Change
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION, ServerConnection

HELLO_TIMEOUT_S = 10.0
SWEEP_INTERVAL_S = 5.0
# The leader closes a session after this many heartbeat intervals without a heartbeat.
MAX_MISSED_HEARTBEATS = 4
# Token bucket of one agent's messages. A well-behaved agent sends at most 20 messages a second, plus logs.
MESSAGE_BURST = 500.0
MESSAGES_PER_SECOND = 60.0
log = structlog.get_logger()

Environment = Callable[[LatticeWorkload], Mapping[str, str]]


@dataclass(eq=False)
class AgentSession:
    """The state of one connection with one node's agent."""

    peer: NodeIdentity
    connection: ServerConnection
    leader_context: LeaderContext
    presence_session: Session
    last_heartbeat_at: float
    last_message_at: float
    # Number of the last heartbeat, as the agent counts its heartbeats.
    last_heartbeat: int = 0
    acknowledged_heartbeat: int = 0
    is_full_sync_due: bool = True
    # Paths of workloads that changed since the last assignments.
    changed_workloads: set[str] = field(default_factory=set)
    # Hash of the last assignment sent, by workload path.
    sent_hashes: dict[str, int] = field(default_factory=dict)
    # Remaining tokens of the message rate limit.
    message_tokens: float = MESSAGE_BURST
    pending_log_requests: list[pb.LogAsk] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    close_reason: Exception | None = None
    close_requested: asyncio.Event = field(default_factory=asyncio.Event)

    def request_close(self, reason: Exception) -> None:
        """Ask the session's task to close the connection; the first reason wins."""
        self.close_reason = self.close_reason or reason
        self.close_requested.set()

    def check_message_rate(self, now: float) -> None:
        """Count one message at the monotonic time `now`; raise `SessionRejected` beyond the message rate
        limit."""
        self.message_tokens = (
            min(MESSAGE_BURST, self.message_tokens + (now - self.last_message_at) * MESSAGES_PER_SECOND) - 1
        )
        self.last_message_at = now
        if self.message_tokens < 0:
            raise SessionRejected(
                "TOO_MUCH", f"the agent sends more than {MESSAGES_PER_SECOND:g} messages per second"
            )

    def send_log_request(self, request: pb.LogAsk) -> None:
        """Queue a log request for the agent and wake the send loop."""
        self.pending_log_requests.append(request)
        self.wake.set()


@dataclass
class AgentSessions:
    """The sessions of one server.

    `leader_context` returns the current term of this server, or None if the server does not lead or its lease
    has expired by the clock of this server. `leader_address` returns the address at which the current leader
    accepts agents.
    """

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    leader_address: Callable[[], str | None]
    heartbeat_interval_s: float = 10.0
    environment: Environment = lambda workload: {}

    def __post_init__(self) -> None:
        # The current session of every node, by node name.
        self.sessions: dict[str, AgentSession] = {}
        self.logs = NodeLogReader(self.sessions)
        # The leader's term that the sessions belong to.
        self._current_context: LeaderContext | None = None
        # The node of every bound workload, by workload path.
        self._node_by_workload: dict[str, str] = {}
        # Calling services whose LatticeAgreement changed: the environment of their replicas holds addresses of
        # the called service, which may differ now.
        self._changed_callers: set[str] = set()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._registrar = Registrar(self.clock)

    async def run(self) -> None:
        """Sweep sessions at an interval until cancelled.

        This is not a controller on `Loop`: a sweep reads sessions in memory, also on a server that does not
        lead, and has no key that could be requeued.
        """
        while True:
            await self.clock.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        """Close sessions that are silent, whose certificate expired, whose node was removed, or that belong
        to a former term.

        The sweep also marks replicas of callers whose agreements changed.
        """
        self._is_current_leader(self._current_context)
        callers, self._changed_callers = self._changed_callers, set()
        if self._current_context is not None:
            workloads = self._current_context.cache(LatticeWorkload)
            for caller in callers:
                self.mark_changed([path_of(replica) for replica in workloads.by_index("service", caller)])
        silence_limit_s = MAX_MISSED_HEARTBEATS * self.heartbeat_interval_s
        for session in list(self.sessions.values()):
            if self.clock.monotonic() - session.last_heartbeat_at > silence_limit_s:
                session.request_close(Unavailable("silent"))
            elif (problem := self._session_problem(session)) is not None:
                session.request_close(problem)

    def leadership_changed(self) -> None:
        """Close sessions of a former term at once, at the start or end of a term, without waiting for the
        next sweep."""
        self._is_current_leader(self._current_context)

    def mark_changed(self, paths: Sequence[str]) -> None:
        """Send the assignments of these workloads again if their environment differs, although the workloads
        did not change."""
        for path in paths:
            self._mark_workload(path, self._node_by_workload.get(path, ""))

    async def serve(self, peer: NodeIdentity, connection: ServerConnection) -> None:
        """Serve one connection from the handshake to its end."""
        try:
            session = await self._handshake(peer, connection)
        except (SessionRejected, NotLeader) as rejection:
            await self._close_with_reason(connection, peer, rejection)
            return
        except LatticeError as error:
            await self._close_with_reason(connection, peer, SessionRejected("UNAVAILABLE", str(error)))
            return
        if session is None:
            connection.close()
            return
        try:
            await self._run_session(session)
        finally:
            session.leader_context.presence.end_session(session.presence_session)
            self.logs.session_closed(session)
            # A later session of the node may have replaced this session.
            if self.sessions.get(peer.node) is session:
                del self.sessions[peer.node]
            metrics.AGENTS_CONNECTED.set(len(self.sessions))
            connection.close()

    async def _close_with_reason(
        self, connection: ServerConnection, peer: NodeIdentity, reason: Exception
    ) -> None:
        if isinstance(reason, NotLeader):
            message = pb.ToAgent(elsewhere=pb.Elsewhere(address=self.leader_address() or ""))
        elif isinstance(reason, SessionRejected):
            metrics.AGENTS_REFUSED.labels(reason.reason).inc()
            log.warning("agent rejected", node=peer.node, reason=reason.reason, message=reason.message)
            message = pb.ToAgent(refusal=pb.Refusal(reason=reason.reason, message=reason.message))
        else:
            connection.close()
            return
        with suppress(Unavailable, TimeoutError):
            await with_timeout(self.clock, HELLO_TIMEOUT_S, connection.send(message))
        connection.close()

    async def _handshake(self, peer: NodeIdentity, connection: ServerConnection) -> AgentSession | None:
        """Check the agent's hello and register the node. None if the agent disconnected before its hello."""
        try:
            message = await with_timeout(self.clock, HELLO_TIMEOUT_S, connection.receive())
        except TimeoutError:
            raise SessionRejected(
                "OUT_OF_TURN", f"the agent sent no message for {HELLO_TIMEOUT_S:g} s"
            ) from None
        if message is None:
            return None
        hello = message.hello
        if message.WhichOneof("said") != "hello":
            raise SessionRejected("OUT_OF_TURN", "the first message of an agent must be hello")
        if hello.protocol != PROTOCOL_VERSION:
            raise SessionRejected(
                "PROTOCOL",
                f"agent {hello.version or 'of unknown version'} speaks protocol {hello.protocol},"
                f" server {__version__} speaks {PROTOCOL_VERSION}:"
                " run the same version of lattice on both",
            )
        leader = self.leader_context()
        # A higher term in the hello proves a later leader: this server's term is over (I-19).
        if leader is None or hello.term > leader.term.number:
            raise NotLeader
        try:
            revision = await self._registrar.register(leader, peer, hello)
        except NodeQuarantined as rejection:
            # An earlier session of a quarantined node must not go on.
            if (previous_session := self.sessions.get(peer.node)) is not None:
                previous_session.request_close(rejection)
            raise
        # The caches must include the registration and all workloads, or the first assignments would be
        # incomplete.
        await leader.cache(LatticeNode).wait_for(revision)
        await leader.cache(LatticeWorkload).wait_for()
        # The term may have ended while the handshake waited.
        if not self._is_current_leader(leader):
            raise NotLeader
        # A later session of a node replaces the earlier session, because the agent has connected again.
        previous_session, now = self.sessions.get(peer.node), self.clock.monotonic()
        session = AgentSession(peer, connection, leader, leader.presence.start_session(peer.node), now, now)
        self.sessions[peer.node] = session
        if previous_session is not None:
            previous_session.request_close(SessionRejected("REPLACED", "the node has reconnected"))
        metrics.AGENTS_CONNECTED.set(len(self.sessions))
        return session

    async def _run_session(self, session: AgentSession) -> None:
        welcome = pb.Welcome(
            protocol=PROTOCOL_VERSION,
            version=__version__,
            term=session.leader_context.term.number,
            heartbeat=self.heartbeat_interval_s,
            node=session.peer.node,
        )
        tasks = [
            asyncio.ensure_future(self._send_loop(session, welcome)),
            asyncio.ensure_future(self._receive_loop(session)),
            asyncio.ensure_future(session.close_requested.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            errors = (error for task in done if (error := task.exception()) is not None)
            reason = session.close_reason or next(errors, None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if reason is not None and not isinstance(reason, SessionRejected | NotLeader | Unavailable):
            raise reason
        if reason is not None:
            await self._close_with_reason(session.connection, session.peer, reason)

    async def _receive_loop(self, session: AgentSession) -> None:
        while (message := await session.connection.receive()) is not None:
            session.check_message_rate(self.clock.monotonic())
            field_name = message.WhichOneof("said")
            if field_name == "log":
                self.logs.deliver(session, message.log)
                continue
            if field_name != "beat":
                raise SessionRejected("OUT_OF_TURN", "an agent may send hello only once")
            if not self._is_current_leader(session.leader_context):
                raise NotLeader
            if rejection := self._session_problem(session):
                raise rejection
            heartbeat = message.beat
            if problem := heartbeat_problem(heartbeat):
                raise SessionRejected("TOO_MUCH", problem)
            presence = session.leader_context.presence
            if not presence.record_heartbeat(session.presence_session, decode_heartbeat(heartbeat)):
                raise SessionRejected("REPLACED", "the node has reconnected or was deleted")
            if heartbeat.leaving:
                await self._registrar.leave(session.leader_context, session.peer)
            session.last_heartbeat_at = self.clock.monotonic()
            session.last_heartbeat = max(session.last_heartbeat, heartbeat.number)
            session.wake.set()

    async def _send_loop(self, session: AgentSession, welcome: pb.Welcome) -> None:
        await session.connection.send(pb.ToAgent(welcome=welcome))
        while True:
            if not self._is_current_leader(session.leader_context):
                raise NotLeader
            if (assignments := self._pending_assignments(session)) is not None:
                with traces.span(
                    "order", node=session.peer.node, term=assignments.term, number=assignments.number
                ) as span:
                    if span.is_recording:
                        paths = [assignment.workload for assignment in assignments.assignments]
                        span.set_attributes(workloads=traces.first_paths([*paths, *assignments.dropped]))
                    await session.connection.send(pb.ToAgent(orders=assignments))
            elif session.last_heartbeat > session.acknowledged_heartbeat:
                session.acknowledged_heartbeat = session.last_heartbeat
                await session.connection.send(pb.ToAgent(heard=pb.Heard(beat=session.last_heartbeat)))
            elif session.pending_log_requests:
                await session.connection.send(pb.ToAgent(log=session.pending_log_requests.pop(0)))
            else:
                session.wake.clear()
                await session.wake.wait()

    def _pending_assignments(self, session: AgentSession) -> pb.Orders | None:
        """The next assignments for the agent: the full list first, then changes; None without changes.

        The assignments count as sent when this method returns.
        """
        node, cache = session.peer.node, session.leader_context.cache(LatticeWorkload)
        is_full_list, changed_paths = session.is_full_sync_due, session.changed_workloads
        session.is_full_sync_due, session.changed_workloads = False, set()
        if is_full_list:
            workloads = {path_of(workload): workload for workload in cache.by_index("node", node)}
        else:
            # Sorted, because the order of a set differs between processes, and the same seed must give the same
            # simulation run (I-36).
            workloads = {path: cache.get(path) for path in sorted(changed_paths)}
        sent, assignments, dropped = {}, [], []
        for path, workload in workloads.items():
            run, assignment, digest = None, None, None
            if workload is not None and _is_bound_to(workload, session):
                run = desired_run(workload)
            if run is not None:
                assignment = encode_assignment(path, workload, run, self.environment(workload))
                digest = hash(assignment.SerializeToString(deterministic=True))
            if session.sent_hashes.get(path) == digest:
                continue
            sent[path] = run
            if assignment is None or digest is None:
                session.sent_hashes.pop(path, None)
                dropped.append(path)
            else:
                session.sent_hashes[path] = digest
                assignments.append(assignment)
        # An empty full list is sent too: an agent acts only after it has received assignments (I-19).
        if not sent and not is_full_list:
            return None
        presence = session.leader_context.presence
        return pb.Orders(
            term=session.leader_context.term.number,
            number=presence.record_assignments(session.presence_session, sent, is_full_list),
            is_whole=is_full_list,
            assignments=assignments,
            dropped=[] if is_full_list else dropped,
        )

    def _is_current_leader(self, leader: LeaderContext | None) -> bool:
        """Whether this server leads now, in the term of `leader`. If the term has changed, the method closes
        the sessions of the former term."""
        current = self.leader_context()
        if current is not self._current_context:
            self._unsubscribe()
            self._unsubscribe = lambda: None
            for session in self.sessions.values():
                if session.leader_context is not current:
                    session.request_close(NotLeader())
            self._current_context = current
            if current is not None:
                self._subscribe(current)
        return current is not None and current is leader

    def _subscribe(self, leader: LeaderContext) -> None:
        workloads = leader.cache(LatticeWorkload)
        self._node_by_workload = {
            path_of(workload): _bound_node(workload)
            for workload in workloads.objects()
            if _bound_node(workload)
        }
        unsubscribers = (
            workloads.on_change(self.on_workload_change),
            leader.cache(LatticeAgreement).on_change(self.on_agreement_change),
        )
        self._changed_callers.clear()

        def unsubscribe_all() -> None:
            for unsubscribe in unsubscribers:
                unsubscribe()

        self._unsubscribe = unsubscribe_all

    def on_agreement_change(self, change: Change) -> None:
        """Record the calling service of a changed agreement for the next sweep, because an agreement may change
        many times a second with the replicas of the called service."""
        if self._current_context is None:
            return
        agreements = self._current_context.cache(LatticeAgreement)
        for agreement in (agreements.get(change.key.path), agreements.previous_object):
            if agreement is not None:
                caller = agreement.spec.caller
                namespace = caller.namespace or agreement.metadata.namespace
                self._changed_callers.add(f"{namespace}/{caller.name}")

    def on_workload_change(self, change: Change) -> None:
        if self._current_context is None:
            return
        path = change.key.path
        workload = self._current_context.cache(LatticeWorkload).get(path)
        node = _bound_node(workload) if workload is not None else ""
        previous_node = self._node_by_workload.get(path, "")
        if node:
            self._node_by_workload[path] = node
        else:
            self._node_by_workload.pop(path, None)
        self._mark_workload(path, node)
        # The previous node must stop the workload.
        if previous_node != node:
            self._mark_workload(path, previous_node)

    def _mark_workload(self, path: str, node: str) -> None:
        session = self.sessions.get(node)
        if session is not None:
            session.changed_workloads.add(path)
            session.wake.set()

    def _session_problem(self, session: AgentSession) -> SessionRejected | None:
        """The rejection of a session whose certificate expired, whose node was removed, or whose node a
        different machine joined; None otherwise."""
        if self.clock.now() >= session.peer.expires_at:
            return SessionRejected(
                "EXPIRED", f"the certificate expired at {format_timestamp(session.peer.expires_at)}"
            )
        node = session.leader_context.cache(LatticeNode).get(f"/{session.peer.node}")
        if node is None or node.metadata.annotations.get(AGENT_KEY_ANNOTATION) != session.peer.key_digest:
            return SessionRejected(
                "UNKNOWN_NODE",
                f"node {session.peer.node} was deleted, or another machine has joined as this node",
            )
        return None


def _bound_node(workload: LatticeWorkload) -> str:
    return workload.status.binding.node if workload.status.binding else ""


def _is_bound_to(workload: LatticeWorkload, session: AgentSession) -> bool:
    """Whether the workload is bound to the session's node. A new node under the same name has a different
    UID."""
    binding = workload.status.binding
    if binding is None or binding.node != session.peer.node:
        return False
    node: LatticeNode | None = session.leader_context.cache(LatticeNode).get(f"/{session.peer.node}")
    return node is not None and binding.uid in ("", node.metadata.uid)
