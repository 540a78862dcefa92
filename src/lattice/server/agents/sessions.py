"""Conversations with agents: who is connected, what each is told, what each says. Knows no gRPC, so that a simulator can hold them too.

Only the server that leads talks with agents; others say where it is. Orders are told from stored state and from nothing else. What changed
is kept as a set of paths per connection, so an agent that reads slowly costs nobody anything: it gets the latest state when it reads again.
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

HELLO_TIMEOUT_S = 10.0  # seconds
SWEEP_INTERVAL_S = 5.0
MAX_MISSED_HEARTBEATS = 4  # so many missed, and the connection is given up
MESSAGE_BURST, MESSAGES_PER_SECOND = (
    500.0,
    60.0,
)  # messages of one agent; an honest one sends 20 a second at most, and logs
log = structlog.get_logger()

Environment = Callable[[LatticeWorkload], Mapping[str, str]]


@dataclass(eq=False)
class AgentSession:
    """One connection of one node."""

    peer: NodeIdentity
    stream: ServerConnection
    leader_context: LeaderContext
    presence_session: Session
    last_heartbeat_at: float
    last_message_at: float
    last_heartbeat: int = 0  # number of the last beat
    acknowledged_heartbeat: int = 0
    is_full_sync_due: bool = True
    changed_workloads: set[str] = field(
        default_factory=set
    )  # workloads that changed since the agent was told
    sent_hashes: dict[str, int] = field(default_factory=dict)  # by path: hash of what it was told
    message_tokens: float = MESSAGE_BURST  # messages that it may still send at once
    pending_log_requests: list[pb.LogAsk] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    close_reason: Exception | None = None  # why it is to end
    close_requested: asyncio.Event = field(default_factory=asyncio.Event)

    def request_close(self, why: Exception) -> None:
        self.close_reason = self.close_reason or why
        self.close_requested.set()

    def check_message_rate(self, now: float) -> None:
        """Every message counts; silence makes up for it. Call it with the time of each."""
        self.message_tokens = (
            min(MESSAGE_BURST, self.message_tokens + (now - self.last_message_at) * MESSAGES_PER_SECOND) - 1
        )
        self.last_message_at = now
        if self.message_tokens < 0:
            raise SessionRejected("TOO_MUCH", f"it sends more than {MESSAGES_PER_SECOND:g} messages a second")

    def send_log_request(self, asked: pb.LogAsk) -> None:
        self.pending_log_requests.append(asked)
        self.wake.set()


@dataclass
class AgentSessions:
    """`leading` says None unless this server leads by its own clock; `leader` is the address at which the leader's agents connect."""

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    leader_address: Callable[[], str | None]
    heartbeat_interval_s: float = 10.0
    environment: Environment = lambda workload: {}

    def __post_init__(self) -> None:
        self.sessions: dict[str, AgentSession] = {}  # by node
        self.logs = NodeLogReader(self.sessions)
        self._current_context: LeaderContext | None = None  # the term that the lines are of
        self._node_by_workload: dict[str, str] = {}  # workload -> node that it was last seen bound to
        self._changed_callers: set[str] = set()  # services that may call somebody who is elsewhere by now
        self._unsubscribe: Callable[[], None] = lambda: None
        self._registrar = Registrar(self.clock)

    async def run(self) -> None:
        """Until cancelled: ends connections that are silent, outlived their certificate or their node, or are of a former term."""
        while True:
            await self.clock.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        self._is_current_leader(self._current_context)
        self._mark_changed_callers()
        for line in list(self.sessions.values()):
            if (
                self.clock.monotonic() - line.last_heartbeat_at
                > MAX_MISSED_HEARTBEATS * self.heartbeat_interval_s
            ):
                line.request_close(Unavailable("silent"))
            elif (why := self._session_problem(line)) is not None:
                line.request_close(why)

    def leadership_changed(self) -> None:
        """Call it when a term begins or ends, and nobody has to wait for the next sweep."""
        self._is_current_leader(self._current_context)

    def mark_changed(self, paths: Sequence[str]) -> None:
        """What these workloads are to be told may have changed, though they have not: their environment."""
        for path in paths:
            self._mark_workload(path, self._node_by_workload.get(path, ""))

    async def serve(self, peer: NodeIdentity, end: ServerConnection) -> None:
        """One connection, from hello to its end."""
        try:
            line = await self._handshake(peer, end)
        except (SessionRejected, NotLeader) as why:
            await self._close_with_reason(end, peer, why)
            return
        except LatticeError as error:
            await self._close_with_reason(end, peer, SessionRejected("UNAVAILABLE", str(error)))
            return
        if line is None:
            end.close()
            return
        try:
            await self._run_session(line)
        finally:
            line.leader_context.presence.end_session(line.presence_session)
            self.logs.session_closed(line)
            if self.sessions.get(peer.node) is line:
                del self.sessions[peer.node]
            metrics.AGENTS_CONNECTED.set(len(self.sessions))
            end.close()

    async def _close_with_reason(self, end: ServerConnection, peer: NodeIdentity, why: Exception) -> None:
        if isinstance(why, NotLeader):
            last = pb.ToAgent(elsewhere=pb.Elsewhere(address=self.leader_address() or ""))
        elif isinstance(why, SessionRejected):
            metrics.AGENTS_REFUSED.labels(why.reason).inc()
            log.warning("agent refused", node=peer.node, reason=why.reason, message=why.message)
            last = pb.ToAgent(refusal=pb.Refusal(reason=why.reason, message=why.message))
        else:
            end.close()
            return
        with suppress(Unavailable, TimeoutError):
            await with_timeout(self.clock, HELLO_TIMEOUT_S, end.send(last))
        end.close()

    async def _handshake(self, peer: NodeIdentity, end: ServerConnection) -> AgentSession | None:
        """None if the agent went away before it was known."""
        try:
            said = await with_timeout(self.clock, HELLO_TIMEOUT_S, end.receive())
        except TimeoutError:
            raise SessionRejected("OUT_OF_TURN", f"nothing was said for {HELLO_TIMEOUT_S:g} s") from None
        if said is None:
            return None
        hello = said.hello
        if said.WhichOneof("said") != "hello":
            raise SessionRejected("OUT_OF_TURN", "an agent says hello first")
        if hello.protocol != PROTOCOL_VERSION:
            raise SessionRejected(
                "PROTOCOL",
                f"agent {hello.version or 'of unknown version'} speaks protocol {hello.protocol}, server {__version__} speaks {PROTOCOL_VERSION}:"
                " run the same version of lattice on both",
            )
        leading = self.leader_context()
        if (
            leading is None or hello.term > leading.term.number
        ):  # it obeyed a later leader already: we are not it any more
            raise NotLeader
        try:
            revision = await self._registrar.register(leading, peer, hello)
        except NodeQuarantined as refusal:
            if (former := self.sessions.get(peer.node)) is not None:
                former.request_close(refusal)
            raise
        await leading.cache(LatticeNode).wait_for(revision)
        await leading.cache(LatticeWorkload).wait_for()
        if not self._is_current_leader(leading):
            raise NotLeader
        return self._add_session(leading, peer, end)

    def _add_session(self, leading: LeaderContext, peer: NodeIdentity, end: ServerConnection) -> AgentSession:
        former, now = self.sessions.get(peer.node), self.clock.monotonic()
        line = AgentSession(peer, end, leading, leading.presence.start_session(peer.node), now, now)
        self.sessions[peer.node] = line
        if former is not None:
            former.request_close(SessionRejected("REPLACED", "the node has connected anew"))
        metrics.AGENTS_CONNECTED.set(len(self.sessions))
        return line

    async def _run_session(self, line: AgentSession) -> None:
        welcome = pb.Welcome(
            protocol=PROTOCOL_VERSION,
            version=__version__,
            term=line.leader_context.term.number,
            heartbeat=self.heartbeat_interval_s,
            node=line.peer.node,
        )
        tasks = [
            asyncio.ensure_future(each)
            for each in (
                self._send_loop(line, welcome),
                self._receive_loop(line),
                line.close_requested.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            why = line.close_reason or next(
                (error for each in done if (error := each.exception()) is not None), None
            )
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if why is not None and not isinstance(why, SessionRejected | NotLeader | Unavailable):
            raise why
        if why is not None:
            await self._close_with_reason(line.stream, line.peer, why)

    async def _receive_loop(self, line: AgentSession) -> None:
        while (said := await line.stream.receive()) is not None:
            line.check_message_rate(self.clock.monotonic())
            which = said.WhichOneof("said")
            if which == "beat":
                self._handle_heartbeat(line, said.beat)
            elif which == "log":
                self.logs.deliver(line, said.log)
            else:
                raise SessionRejected("OUT_OF_TURN", "hello is said once")

    def _handle_heartbeat(self, line: AgentSession, beat: pb.Beat) -> None:
        if not self._is_current_leader(line.leader_context):
            raise NotLeader
        if why := self._session_problem(line):
            raise why
        if wrong := heartbeat_problem(beat):
            raise SessionRejected("TOO_MUCH", wrong)
        if not line.leader_context.presence.record_heartbeat(line.presence_session, decode_heartbeat(beat)):
            raise SessionRejected("REPLACED", "the node has connected anew, or was removed")
        line.last_heartbeat_at = self.clock.monotonic()
        line.last_heartbeat = max(line.last_heartbeat, beat.number)
        line.wake.set()

    async def _send_loop(self, line: AgentSession, welcome: pb.Welcome) -> None:
        await line.stream.send(pb.ToAgent(welcome=welcome))
        while True:
            if not self._is_current_leader(line.leader_context):
                raise NotLeader
            if (orders := self._pending_assignments(line)) is not None:
                with traces.span(
                    "order", node=line.peer.node, term=orders.term, number=orders.number
                ) as span:
                    if span.is_recording:
                        span.set_attributes(
                            workloads=traces.first_paths(
                                [*(each.workload for each in orders.assignments), *orders.dropped]
                            )
                        )
                    await line.stream.send(pb.ToAgent(orders=orders))
            elif line.last_heartbeat > line.acknowledged_heartbeat:
                line.acknowledged_heartbeat = line.last_heartbeat
                await line.stream.send(pb.ToAgent(heard=pb.Heard(beat=line.last_heartbeat)))
            elif line.pending_log_requests:
                await line.stream.send(pb.ToAgent(log=line.pending_log_requests.pop(0)))
            else:
                line.wake.clear()
                await line.wake.wait()

    def _pending_assignments(self, line: AgentSession) -> pb.Orders | None:
        """Everything the first time, then what changed; None if nothing did. Counted as sent from here on."""
        node, copy = line.peer.node, line.leader_context.cache(LatticeWorkload)
        is_whole, dirty = line.is_full_sync_due, line.changed_workloads
        line.is_full_sync_due, line.changed_workloads = False, set()
        if is_whole:
            mine = {
                f"{each.metadata.namespace}/{each.metadata.name}": each
                for each in copy.by_index("node", node)
            }
        else:
            mine = {path: copy.get(path) for path in sorted(dirty)}
        told, changed, dropped = {}, [], []
        for path, workload in mine.items():
            order = desired_run(workload) if workload is not None and _is_bound_to(workload, line) else None
            made = (
                None
                if order is None
                else encode_assignment(path, workload, order, self.environment(workload))
            )
            print_of = None if made is None else hash(made.SerializeToString(deterministic=True))
            if line.sent_hashes.get(path) == print_of:
                continue
            told[path] = order
            if made is None or print_of is None:
                line.sent_hashes.pop(path, None)
                dropped.append(path)
            else:
                line.sent_hashes[path] = print_of
                changed.append(made)
        if not told and not is_whole:
            return None
        number = line.leader_context.presence.record_assignments(line.presence_session, told, is_whole)
        return pb.Orders(
            term=line.leader_context.term.number,
            number=number,
            is_whole=is_whole,
            assignments=changed,
            dropped=[] if is_whole else dropped,
        )

    def _is_current_leader(self, leading: LeaderContext | None) -> bool:
        """Whether that is the term in which we lead now; when another has begun, everybody of the former is sent on."""
        now = self.leader_context()
        if now is not self._current_context:
            self._unsubscribe()
            self._unsubscribe = lambda: None
            for line in self.sessions.values():
                if line.leader_context is not now:
                    line.request_close(NotLeader())
            self._current_context = now
            if now is not None:
                self._subscribe(now)
        return now is not None and now is leading

    def _subscribe(self, leading: LeaderContext) -> None:
        copy = leading.cache(LatticeWorkload)
        self._node_by_workload = {
            f"{each.metadata.namespace}/{each.metadata.name}": _bound_node(each)
            for each in copy.objects()
            if _bound_node(each)
        }
        stops = (
            copy.on_change(self._on_workload_change),
            leading.cache(LatticeAgreement).on_change(self._on_agreement_change),
        )
        self._changed_callers.clear()

        def stop() -> None:
            for each in stops:
                each()

        self._unsubscribe = stop

    def _on_agreement_change(self, change: Change) -> None:
        """Told at the next sweep: with the replicas of the other side an agreement changes many times a second."""
        agreements = (
            self._current_context.cache(LatticeAgreement) if self._current_context is not None else None
        )
        for each in (
            (agreements.get(change.key.path), agreements.previous_object) if agreements is not None else ()
        ):
            if each is not None:
                self._changed_callers.add(
                    f"{each.spec.caller.namespace or each.metadata.namespace}/{each.spec.caller.name}"
                )

    def _mark_changed_callers(self) -> None:
        callers, self._changed_callers = self._changed_callers, set()
        if self._current_context is None:
            return
        for caller in callers:
            replicas = self._current_context.cache(LatticeWorkload).by_index("service", caller)
            self.mark_changed([f"{each.metadata.namespace}/{each.metadata.name}" for each in replicas])

    def _on_workload_change(self, change: Change) -> None:
        if self._current_context is None:
            return
        path = change.key.path
        workload = self._current_context.cache(LatticeWorkload).get(path)
        home, former = (
            (_bound_node(workload) if workload is not None else ""),
            self._node_by_workload.get(path, ""),
        )
        if home:
            self._node_by_workload[path] = home
        else:
            self._node_by_workload.pop(path, None)
        self._mark_workload(path, home)
        if former != home:
            self._mark_workload(path, former)

    def _mark_workload(self, path: str, node: str) -> None:
        line = self.sessions.get(node)
        if line is not None:
            line.changed_workloads.add(path)
            line.wake.set()

    def _session_problem(self, line: AgentSession) -> SessionRejected | None:
        """Why a connection may not go on: its certificate is over, its node was removed, or another machine joined as it."""
        if self.clock.now() >= line.peer.expires_at:
            return SessionRejected(
                "EXPIRED", f"the certificate ended at {line.peer.expires_at:%Y-%m-%dT%H:%M:%SZ}"
            )
        node = line.leader_context.cache(LatticeNode).get(f"/{line.peer.node}")
        if node is None or node.metadata.annotations.get(AGENT_KEY_ANNOTATION) != line.peer.key_digest:
            return SessionRejected(
                "UNKNOWN_NODE", f"node {line.peer.node} was removed, or another machine has joined as it"
            )
        return None


def _bound_node(workload: LatticeWorkload) -> str:
    return workload.status.binding.node if workload.status.binding else ""


def _is_bound_to(workload: LatticeWorkload, line: AgentSession) -> bool:
    """To this very node: one that came back under the same name is another."""
    binding = workload.status.binding
    if binding is None or binding.node != line.peer.node:
        return False
    node: LatticeNode | None = line.leader_context.cache(LatticeNode).get(f"/{line.peer.node}")
    return node is not None and binding.uid in ("", node.metadata.uid)
