"""Conversations with agents: who is connected, what each is told, what each says. Knows no gRPC, so that a simulator can hold them too.

Only the server that leads talks with agents; others say where it is. Orders are told from stored state and from nothing else. What changed
is kept as a set of paths per connection, so an agent that reads slowly costs nobody anything: it gets the latest state when it reads again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from lattice import __version__, metrics, tracing as traces
from lattice.clock import Clock, within
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.join_token import JOINED_KEY
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Session
from lattice.lifecycle.orders import wanted
from lattice.server.agents.leader_context import Elsewhere, Leading, Quarantined, Refused
from lattice.server.agents.log_requests import NodeLogs
from lattice.server.agents.registration import Registrar
from lattice.server.access.node_certificates import Peer
from lattice.server.agents.codec import beat_of, beat_problem, order_of
from lattice.store.protocol import Change
from lattice.wire import agent_pb2 as pb
from lattice.wire.channel import PROTOCOL, ServerEnd

HELLO_WITHIN = 10.0  # seconds
SWEEP = 5.0
SILENT_BEATS = 4  # so many missed, and the connection is given up
BURST, PER_SECOND = 500.0, 60.0  # messages of one agent; an honest one sends 20 a second at most, and logs
log = structlog.get_logger()

Environment = Callable[[LatticeWorkload], Mapping[str, str]]


@dataclass(eq=False)
class Line:
    """One connection of one node."""

    peer: Peer
    end: ServerEnd
    leading: Leading
    session: Session
    heard_at: float
    said_at: float
    heard: int = 0  # number of the last beat
    answered: int = 0
    is_whole_due: bool = True
    dirty: set[str] = field(default_factory=set)  # workloads that changed since the agent was told
    sent: dict[str, int] = field(default_factory=dict)  # by path: hash of what it was told
    patience: float = BURST  # messages that it may still send at once
    asks: list[pb.LogAsk] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: Exception | None = None  # why it is to end
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, why: Exception) -> None:
        self.over = self.over or why
        self.ending.set()

    def refuse_flood(self, now: float) -> None:
        """Every message counts; silence makes up for it. Call it with the time of each."""
        self.patience = min(BURST, self.patience + (now - self.said_at) * PER_SECOND) - 1
        self.said_at = now
        if self.patience < 0:
            raise Refused("TOO_MUCH", f"it sends more than {PER_SECOND:g} messages a second")

    def ask(self, asked: pb.LogAsk) -> None:
        self.asks.append(asked)
        self.wake.set()


@dataclass
class NodeLinks:
    """`leading` says None unless this server leads by its own clock; `leader` is the address at which the leader's agents connect."""

    clock: Clock
    leading: Callable[[], Leading | None]
    leader: Callable[[], str | None]
    heartbeat: float = 10.0
    environment: Environment = lambda workload: {}

    def __post_init__(self) -> None:
        self.lines: dict[str, Line] = {}  # by node
        self.logs = NodeLogs(self.lines)
        self._board: Leading | None = None  # the term that the lines are of
        self._homes: dict[str, str] = {}  # workload -> node that it was last seen bound to
        self._callers: set[str] = set()  # services that may call somebody who is elsewhere by now
        self._stop: Callable[[], None] = lambda: None
        self._registrar = Registrar(self.clock)

    async def run(self) -> None:
        """Until cancelled: ends connections that are silent, outlived their certificate or their node, or are of a former term."""
        while True:
            await self.clock.sleep(SWEEP)
            self.sweep()

    def sweep(self) -> None:
        self._leads(self._board)
        self._tell_callers()
        for line in list(self.lines.values()):
            if self.clock.monotonic() - line.heard_at > SILENT_BEATS * self.heartbeat:
                line.finish(Unavailable("silent"))
            elif (why := self._stranger(line)) is not None:
                line.finish(why)

    def leadership_changed(self) -> None:
        """Call it when a term begins or ends, and nobody has to wait for the next sweep."""
        self._leads(self._board)

    def touch(self, paths: Sequence[str]) -> None:
        """What these workloads are to be told may have changed, though they have not: their environment."""
        for path in paths:
            self._mark(path, self._homes.get(path, ""))

    async def serve(self, peer: Peer, end: ServerEnd) -> None:
        """One connection, from hello to its end."""
        try:
            line = await self._begin(peer, end)
        except (Refused, Elsewhere) as why:
            await self._part(end, peer, why)
            return
        except LatticeError as error:
            await self._part(end, peer, Refused("UNAVAILABLE", str(error)))
            return
        if line is None:
            end.close()
            return
        try:
            await self._talk(line)
        finally:
            line.leading.presence.end(line.session)
            self.logs.lost(line)
            if self.lines.get(peer.node) is line:
                del self.lines[peer.node]
            metrics.AGENTS.set(len(self.lines))
            end.close()

    async def _part(self, end: ServerEnd, peer: Peer, why: Exception) -> None:
        if isinstance(why, Elsewhere):
            last = pb.ToAgent(elsewhere=pb.Elsewhere(address=self.leader() or ""))
        elif isinstance(why, Refused):
            metrics.AGENTS_REFUSED.labels(why.reason).inc()
            log.warning("agent refused", node=peer.node, reason=why.reason, message=why.message)
            last = pb.ToAgent(refusal=pb.Refusal(reason=why.reason, message=why.message))
        else:
            end.close()
            return
        with suppress(Unavailable, TimeoutError):
            await within(self.clock, HELLO_WITHIN, end.send(last))
        end.close()

    async def _begin(self, peer: Peer, end: ServerEnd) -> Line | None:
        """None if the agent went away before it was known."""
        try:
            said = await within(self.clock, HELLO_WITHIN, end.receive())
        except TimeoutError:
            raise Refused("OUT_OF_TURN", f"nothing was said for {HELLO_WITHIN:g} s") from None
        if said is None:
            return None
        hello = said.hello
        if said.WhichOneof("said") != "hello":
            raise Refused("OUT_OF_TURN", "an agent says hello first")
        if hello.protocol != PROTOCOL:
            raise Refused(
                "PROTOCOL",
                f"agent {hello.version or 'of unknown version'} speaks protocol {hello.protocol}, server {__version__} speaks {PROTOCOL}:"
                " run the same version of lattice on both",
            )
        leading = self.leading()
        if (
            leading is None or hello.term > leading.term.number
        ):  # it obeyed a later leader already: we are not it any more
            raise Elsewhere
        try:
            revision = await self._registrar.register(leading, peer, hello)
        except Quarantined as refusal:
            if (former := self.lines.get(peer.node)) is not None:
                former.finish(refusal)
            raise
        await leading.copy(LatticeNode).wait_for(revision)
        await leading.copy(LatticeWorkload).wait_for()
        if not self._leads(leading):
            raise Elsewhere
        return self._admit(leading, peer, end)

    def _admit(self, leading: Leading, peer: Peer, end: ServerEnd) -> Line:
        former, now = self.lines.get(peer.node), self.clock.monotonic()
        line = Line(peer, end, leading, leading.presence.begin(peer.node), now, now)
        self.lines[peer.node] = line
        if former is not None:
            former.finish(Refused("REPLACED", "the node has connected anew"))
        metrics.AGENTS.set(len(self.lines))
        return line

    async def _talk(self, line: Line) -> None:
        welcome = pb.Welcome(
            protocol=PROTOCOL,
            version=__version__,
            term=line.leading.term.number,
            heartbeat=self.heartbeat,
            node=line.peer.node,
        )
        tasks = [
            asyncio.ensure_future(each)
            for each in (self._write(line, welcome), self._read(line), line.ending.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            why = line.over or next((error for each in done if (error := each.exception()) is not None), None)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if why is not None and not isinstance(why, Refused | Elsewhere | Unavailable):
            raise why
        if why is not None:
            await self._part(line.end, line.peer, why)

    async def _read(self, line: Line) -> None:
        while (said := await line.end.receive()) is not None:
            line.refuse_flood(self.clock.monotonic())
            which = said.WhichOneof("said")
            if which == "beat":
                self._hear(line, said.beat)
            elif which == "log":
                self.logs.heard(line, said.log)
            else:
                raise Refused("OUT_OF_TURN", "hello is said once")

    def _hear(self, line: Line, beat: pb.Beat) -> None:
        if not self._leads(line.leading):
            raise Elsewhere
        if why := self._stranger(line):
            raise why
        if wrong := beat_problem(beat):
            raise Refused("TOO_MUCH", wrong)
        if not line.leading.presence.hear(line.session, beat_of(beat)):
            raise Refused("REPLACED", "the node has connected anew, or was removed")
        line.heard_at = self.clock.monotonic()
        line.heard = max(line.heard, beat.number)
        line.wake.set()

    async def _write(self, line: Line, welcome: pb.Welcome) -> None:
        await line.end.send(pb.ToAgent(welcome=welcome))
        while True:
            if not self._leads(line.leading):
                raise Elsewhere
            if (orders := self._orders(line)) is not None:
                with traces.span(
                    "order", node=line.peer.node, term=orders.term, number=orders.number
                ) as span:
                    if span.is_kept:
                        span.tell(
                            workloads=traces.first(
                                [*(each.workload for each in orders.assignments), *orders.dropped]
                            )
                        )
                    await line.end.send(pb.ToAgent(orders=orders))
            elif line.heard > line.answered:
                line.answered = line.heard
                await line.end.send(pb.ToAgent(heard=pb.Heard(beat=line.heard)))
            elif line.asks:
                await line.end.send(pb.ToAgent(log=line.asks.pop(0)))
            else:
                line.wake.clear()
                await line.wake.wait()

    def _orders(self, line: Line) -> pb.Orders | None:
        """Everything the first time, then what changed; None if nothing did. Counted as sent from here on."""
        node, copy = line.peer.node, line.leading.copy(LatticeWorkload)
        is_whole, dirty = line.is_whole_due, line.dirty
        line.is_whole_due, line.dirty = False, set()
        if is_whole:
            mine = {f"{each.metadata.namespace}/{each.metadata.name}": each for each in copy.by("node", node)}
        else:
            mine = {path: copy.get(path) for path in sorted(dirty)}
        told, changed, dropped = {}, [], []
        for path, workload in mine.items():
            order = wanted(workload) if workload is not None and _is_bound_to(workload, line) else None
            made = None if order is None else order_of(path, workload, order, self.environment(workload))
            print_of = None if made is None else hash(made.SerializeToString(deterministic=True))
            if line.sent.get(path) == print_of:
                continue
            told[path] = order
            if made is None or print_of is None:
                line.sent.pop(path, None)
                dropped.append(path)
            else:
                line.sent[path] = print_of
                changed.append(made)
        if not told and not is_whole:
            return None
        number = line.leading.presence.order(line.session, told, is_whole)
        return pb.Orders(
            term=line.leading.term.number,
            number=number,
            is_whole=is_whole,
            assignments=changed,
            dropped=[] if is_whole else dropped,
        )

    def _leads(self, leading: Leading | None) -> bool:
        """Whether that is the term in which we lead now; when another has begun, everybody of the former is sent on."""
        now = self.leading()
        if now is not self._board:
            self._stop()
            self._stop = lambda: None
            for line in self.lines.values():
                if line.leading is not now:
                    line.finish(Elsewhere())
            self._board = now
            if now is not None:
                self._follow(now)
        return now is not None and now is leading

    def _follow(self, leading: Leading) -> None:
        copy = leading.copy(LatticeWorkload)
        self._homes = {
            f"{each.metadata.namespace}/{each.metadata.name}": _home(each)
            for each in copy.all()
            if _home(each)
        }
        stops = (copy.on_change(self._changed), leading.copy(LatticeAgreement).on_change(self._agreed))
        self._callers.clear()

        def stop() -> None:
            for each in stops:
                each()

        self._stop = stop

    def _agreed(self, change: Change) -> None:
        """Told at the next sweep: with the replicas of the other side an agreement changes many times a second."""
        agreements = self._board.copy(LatticeAgreement) if self._board is not None else None
        for each in (agreements.get(change.key.path), agreements.before) if agreements is not None else ():
            if each is not None:
                self._callers.add(
                    f"{each.spec.caller.namespace or each.metadata.namespace}/{each.spec.caller.name}"
                )

    def _tell_callers(self) -> None:
        callers, self._callers = self._callers, set()
        if self._board is None:
            return
        for caller in callers:
            replicas = self._board.copy(LatticeWorkload).by("service", caller)
            self.touch([f"{each.metadata.namespace}/{each.metadata.name}" for each in replicas])

    def _changed(self, change: Change) -> None:
        if self._board is None:
            return
        path = change.key.path
        workload = self._board.copy(LatticeWorkload).get(path)
        home, former = (_home(workload) if workload is not None else ""), self._homes.get(path, "")
        if home:
            self._homes[path] = home
        else:
            self._homes.pop(path, None)
        self._mark(path, home)
        if former != home:
            self._mark(path, former)

    def _mark(self, path: str, node: str) -> None:
        line = self.lines.get(node)
        if line is not None:
            line.dirty.add(path)
            line.wake.set()

    def _stranger(self, line: Line) -> Refused | None:
        """Why a connection may not go on: its certificate is over, its node was removed, or another machine joined as it."""
        if self.clock.now() >= line.peer.until:
            return Refused("EXPIRED", f"the certificate ended at {line.peer.until:%Y-%m-%dT%H:%M:%SZ}")
        node = line.leading.copy(LatticeNode).get(f"/{line.peer.node}")
        if node is None or node.metadata.annotations.get(JOINED_KEY) != line.peer.key:
            return Refused(
                "UNKNOWN_NODE", f"node {line.peer.node} was removed, or another machine has joined as it"
            )
        return None


def _home(workload: LatticeWorkload) -> str:
    return workload.status.binding.node if workload.status.binding else ""


def _is_bound_to(workload: LatticeWorkload, line: Line) -> bool:
    """To this very node: one that came back under the same name is another."""
    binding = workload.status.binding
    if binding is None or binding.node != line.peer.node:
        return False
    node: LatticeNode | None = line.leading.copy(LatticeNode).get(f"/{line.peer.node}")
    return node is not None and binding.uid in ("", node.metadata.uid)
