"""The agent's conversation with the control plane: it stays connected to whoever leads, says how its workloads are, and takes orders."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from lattice import __version__
from lattice.agent.executor import Executor
from lattice.agent.host.runtime_protocol import Usage
from lattice.agent.log_server import LogServer
from lattice.agent.transport import Transport
from lattice.clock import Clock, with_timeout
from lattice.errors import Denied, LatticeError, Unavailable
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION, AgentConnection

HANDSHAKE_TIMEOUT_S = 10.0  # seconds for the first answer of a server
MAX_UNANSWERED_HEARTBEATS = 3  # so many heartbeats without an answer, and the connection is given up
REPORT_BATCH_S = 0.05  # seconds in which changes are gathered into one beat
FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.5, 10.0  # between attempts to connect
STABLE_CONNECTION_S = 10.0  # a connection that lasted so long was a good one
DENIED_RETRY_DELAY_S = 30.0  # who was refused does not ask again at once
FAILURES_PER_DISCOVERY = 3  # so many failures in a row, and we ask where to connect
MAX_HEARTBEAT_BYTES = 512 * 1024  # bytes: a beat that is larger goes without logs; servers take twice as much
MAX_ADDRESSES = 5  # addresses that are kept in mind
DISCOVERY_INTERVAL_S = 600.0  # seconds between questions who else is there
MAX_IGNORED_REDIRECTS = 4  # so often we do not follow who sends us back to one that has just not answered
MAX_REDIRECTS = 5  # from server to server in a row, before we wait
REJOIN_FIX = "make a token with `lattice tokens create`, and start the agent again with --server and --join"
log = structlog.get_logger()


class NodeRemoved(Denied):
    """This machine is no node any more: its node was deleted, or another machine is that node now. Only a leader says so."""


class _NotLeader(Exception):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass
class Agent:
    """`addresses` are tried in turn; `look_up` asks anew where to connect when none answers."""

    executor: Executor
    transport: Transport
    clock: Clock
    rng: random.Random
    registration: Callable[[], pb.Registration]
    addresses: list[str]
    node_usage: Callable[[], Usage | None] = lambda: None
    shares_machine: bool = False  # of a machine that others share: what its own workloads use is what it uses
    discover_addresses: Callable[[], Awaitable[list[str]]] | None = None
    on_connected: Callable[[str], None] = lambda address: None
    rejoin: Callable[[], Awaitable[bool]] | None = (
        None  # when the server knows no such node: whether it does now; raises to be asked again
    )
    is_connected: asyncio.Event = field(default_factory=asyncio.Event)
    certificate_renewed: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set to connect anew with another certificate
    removal: NodeRemoved | None = None  # set when somebody else was told so

    def __post_init__(self) -> None:
        self._connect_failures = 0  # to connect, in a row
        self._unresponsive_address = ""  # the address that did not answer last
        self._ignored_redirects = 0
        self._max_reconnect_delay = MAX_RECONNECT_DELAY_S  # or a heartbeat, where that is less: who is silent for some of them is missed

    async def discover_servers(self) -> None:
        """Ask where to connect before the first attempt: it may have changed while we were away."""
        if self.discover_addresses is not None:
            with suppress(LatticeError):
                self.addresses = list(dict.fromkeys([*await self.discover_addresses(), *self.addresses]))[
                    :MAX_ADDRESSES
                ]

    async def _discover_periodically(self) -> None:
        """Servers come and go while we are with one of them: once it is gone, it is too late to ask it."""
        while self.discover_addresses is not None:
            await self.clock.sleep(DISCOVERY_INTERVAL_S * (0.5 + self.rng.random() / 2))
            with suppress(LatticeError):
                found, (now, *others) = await self.discover_addresses(), self.addresses
                self.addresses = list(dict.fromkeys([now, *found, *others]))[:MAX_ADDRESSES]

    async def run(self) -> NoReturn:
        """Until cancelled; what runs is left running. Raises Removed once nothing runs any more that nobody wants."""
        await self.executor.adopt()
        await self.executor.reconcile()  # what is said first must be true
        async with asyncio.TaskGroup() as tasks:
            meanwhile = [
                tasks.create_task(self.executor.run()),
                tasks.create_task(self._discover_periodically()),
            ]
            why = await self._stay_connected()
            for each in meanwhile:
                each.cancel()
        await self._stop_workloads(why)
        raise why

    async def _stop_workloads(self, why: NodeRemoved) -> None:
        """What still runs here is nobody's: whoever wanted it has it elsewhere, or does not want it any more."""
        left = sorted({each.workload for each in await self.executor.runtime.list() if each.is_live})
        log.warning(
            "this machine is no node any more: what it runs is stopped", reason=why.message, workloads=left
        )
        while True:
            try:
                return await self.executor.stop_and_remove_all()
            except (LatticeError, OSError) as error:
                log.warning("cannot stop what runs here", reason=str(error))
                await self.clock.sleep(MAX_RECONNECT_DELAY_S)

    async def _stay_connected(self) -> NodeRemoved:
        """Until we are told that we are no node any more."""
        pause, hops = FIRST_RECONNECT_DELAY_S, 0
        while self.removal is None:
            began = self.clock.monotonic()
            try:
                await self._run_session(self.addresses[0])
            except _NotLeader as other:
                if not self._should_ignore_redirect(other.address):
                    hops += 1
                    if self._follow_redirect(other.address) and hops <= MAX_REDIRECTS:
                        await self.clock.sleep(
                            FIRST_RECONNECT_DELAY_S * self.rng.random()
                        )  # a thousand others were told the same
                        continue
                    await self._rotate_addresses()
            except (LatticeError, TimeoutError) as error:
                log.warning(
                    "not connected", address=self.addresses[0], reason=str(error) or "no answer in time"
                )
                if isinstance(error, Denied):
                    pause = await self._handle_denied(error)
                else:
                    self._unresponsive_address = self.addresses[0]
                await self._rotate_addresses()
            hops = 0
            if self.clock.monotonic() - began > STABLE_CONNECTION_S:
                pause = FIRST_RECONNECT_DELAY_S
            await self.clock.sleep(pause * (0.5 + self.rng.random() / 2))
            pause = min(self._max_reconnect_delay, pause * 2)
        return self.removal

    async def _handle_denied(self, error: Denied) -> float:
        """How long to wait before we ask again. The token that we were started with may be for the node as it is now."""
        if not isinstance(error, NodeRemoved):
            return DENIED_RETRY_DELAY_S
        try:
            is_back = self.rejoin is not None and await self.rejoin()
        except LatticeError as trouble:  # nobody could be asked: that says nothing
            log.warning("cannot join again yet", reason=str(trouble))
            return DENIED_RETRY_DELAY_S
        self.removal = None if is_back else error
        return FIRST_RECONNECT_DELAY_S

    def _should_ignore_redirect(self, address: str) -> bool:
        """Whether that one has just not answered: whoever names it will soon know better, and is asked again."""
        if (
            not address
            or address != self._unresponsive_address
            or self._ignored_redirects >= MAX_IGNORED_REDIRECTS
        ):
            self._ignored_redirects = 0
            return False
        self._ignored_redirects += 1
        return True

    def _follow_redirect(self, address: str) -> bool:
        """False if there is nowhere to turn to."""
        if not address or address == self.addresses[0]:
            return False
        self.addresses = [address, *(each for each in self.addresses if each != address)][:MAX_ADDRESSES]
        return True

    async def _rotate_addresses(self) -> None:
        """A thousand agents that lost their server must not all ask the next one where to go, each time."""
        self.addresses = [*self.addresses[1:], self.addresses[0]]
        self._connect_failures += 1
        if self._connect_failures % FAILURES_PER_DISCOVERY == 0:
            await self.discover_servers()

    async def _run_session(self, address: str) -> None:
        """One connection. Ends by raising, or when the server hung up."""
        self.executor.reset_order_numbers()
        async with self.transport.connect(address) as end:
            sent = self.clock.monotonic()
            hello = pb.Hello(
                protocol=PROTOCOL_VERSION,
                version=__version__,
                term=self.executor.term,
                registration=self.registration(),
            )
            await with_timeout(self.clock, HANDSHAKE_TIMEOUT_S, end.send(pb.FromAgent(hello=hello)))
            welcome = self._check_welcome(await with_timeout(self.clock, HANDSHAKE_TIMEOUT_S, end.receive()))
            await self.record_contact(sent)
            self.certificate_renewed.clear()
            self._connect_failures, self._unresponsive_address = 0, ""
            self._max_reconnect_delay = min(MAX_RECONNECT_DELAY_S, welcome.heartbeat or MAX_RECONNECT_DELAY_S)
            self.on_connected(address)
            log.info(
                "connected", address=address, node=welcome.node, term=welcome.term, server=welcome.version
            )
            self.is_connected.set()
            try:
                await AgentSession(self, end, welcome).run()
            except NodeRemoved as error:  # who answers our hello reads the store itself: ask once more
                log.warning("not connected", address=address, reason=str(error))
            finally:
                self.is_connected.clear()

    def _check_welcome(self, said: pb.ToAgent | None) -> pb.Welcome:
        if said is None:
            raise Unavailable("the server hung up")
        raise_on_session_end(said)
        if said.WhichOneof("said") != "welcome":
            raise Unavailable("the server did not say hello")
        welcome = said.welcome
        if welcome.protocol != PROTOCOL_VERSION:
            raise Denied(
                f"server {welcome.version} speaks protocol {welcome.protocol}, this agent {__version__} speaks {PROTOCOL_VERSION}",
                fix="run the same version of lattice on both",
            )
        if welcome.term < self.executor.term:
            raise Unavailable(
                f"it leads in term {welcome.term}, and term {self.executor.term} has begun",
                fix="another server leads",
            )
        return welcome

    async def record_contact(self, since: float) -> None:
        """A disk that is full is no reason to stop listening; what may not run without contact is then ended in time."""
        try:
            await self.executor.runtime.record_contact(since)
        except OSError as error:
            log.warning("cannot note that the control plane was heard", reason=str(error))


def raise_on_session_end(said: pb.ToAgent) -> None:
    """Raises what ends the conversation, if that was said."""
    if said.WhichOneof("said") == "elsewhere":
        raise _NotLeader(said.elsewhere.address)
    if said.WhichOneof("said") == "refusal":
        refusal = said.refusal
        if refusal.reason == "UNKNOWN_NODE":
            raise NodeRemoved(f"{refusal.reason}: {refusal.message.partition(chr(10))[0]}", fix=REJOIN_FIX)
        kind = Unavailable if refusal.reason == "UNAVAILABLE" else Denied
        raise kind(f"{refusal.reason}: {refusal.message}")


class AgentSession:
    """A connection that was welcomed."""

    def __init__(self, agent: Agent, end: AgentConnection, welcome: pb.Welcome) -> None:
        self.agent = agent
        self.executor = agent.executor
        self.clock = agent.clock
        self.connection = end
        self.term = welcome.term
        self.heartbeat_interval = welcome.heartbeat or 10.0
        self.heartbeat_number = 0
        self.unanswered_heartbeats: dict[int, float] = {}  # beat -> when it was sent
        self.sent_reports: dict[str, pb.Report] | None = None  # None: nothing yet
        self.sent_order = 0
        self.log_server = LogServer(agent.executor, agent.clock, self._send)
        self._send_lock = asyncio.Lock()

    async def run(self) -> None:
        tasks = [
            asyncio.ensure_future(each)
            for each in (self._receive_loop(), self._heartbeat_loop(), self.agent.certificate_renewed.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            self.log_server.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_loop(self) -> None:
        while (said := await self.connection.receive()) is not None:
            raise_on_session_end(said)
            which = said.WhichOneof("said")
            if which == "orders":
                self._accept_orders(said.orders)
            elif which == "heard":
                await self._on_heartbeat_ack(said.heard.beat)
            elif which == "log":
                self.log_server.handle_request(said.log)

    def _accept_orders(self, orders: pb.Orders) -> None:
        if orders.term < max(self.term, self.executor.term):
            raise Unavailable(
                f"an order of term {orders.term}, and term {max(self.term, self.executor.term)} has begun"
            )
        self.executor.accept_orders(orders)

    async def _on_heartbeat_ack(self, beat: int) -> None:
        """Silence counts from when the beat was sent that was answered: the server cannot have heard us later than that."""
        sent = self.unanswered_heartbeats.get(beat)
        self.unanswered_heartbeats = {
            number: at for number, at in self.unanswered_heartbeats.items() if number > beat
        }
        if sent is not None:
            await self.agent.record_contact(sent)

    async def _heartbeat_loop(self) -> None:
        due = self.clock.monotonic()
        while True:
            now = self.clock.monotonic()
            is_due = now >= due
            if is_due:
                due = now + self.heartbeat_interval
            self._check_unanswered(now)
            await self._send_heartbeat(is_due)
            with suppress(TimeoutError):
                await with_timeout(
                    self.clock, due - self.clock.monotonic(), self.executor.reports_changed.wait()
                )
                await self.clock.sleep(REPORT_BATCH_S)

    def _check_unanswered(self, now: float) -> None:
        oldest = min(self.unanswered_heartbeats.values(), default=now)
        if now - oldest >= MAX_UNANSWERED_HEARTBEATS * self.heartbeat_interval:
            raise Unavailable(f"no answer for {now - oldest:.0f} s")

    async def _send_heartbeat(self, is_due: bool) -> None:
        self.executor.reports_changed.clear()
        spoken, order = dict(self.executor.reports), self.executor.reported_order
        before = self.sent_reports or {}
        changed = [report for path, report in spoken.items() if before.get(path) != report]
        gone = [path for path in before if path not in spoken]
        if not (is_due or changed or gone or order != self.sent_order):
            return
        beat = pb.Beat(
            number=self.heartbeat_number + 1,
            order=order,
            is_whole=self.sent_reports is None,
            reports=changed,
            gone=gone,
        )
        if beat.ByteSize() > MAX_HEARTBEAT_BYTES:
            for report in beat.reports:
                report.ClearField("log")
        if is_due:
            await self._add_usage(beat)
        self.heartbeat_number, self.sent_reports, self.sent_order = beat.number, spoken, order
        self.unanswered_heartbeats[beat.number] = self.clock.monotonic()
        await self._send(pb.FromAgent(beat=beat))

    async def _add_usage(self, beat: pb.Beat) -> None:
        if (node := self.agent.node_usage()) is not None:
            workloads = await self.executor.usage()
            beat.usage.CopyFrom(_usage(_sum_usage(workloads.values()) if self.agent.shares_machine else node))
            for path, used in workloads.items():
                beat.workload_usage[path].CopyFrom(_usage(used))

    async def _send(self, said: pb.FromAgent) -> None:
        """A server that does not read is as good as none."""
        async with self._send_lock:
            await with_timeout(
                self.clock, MAX_UNANSWERED_HEARTBEATS * self.heartbeat_interval, self.connection.send(said)
            )


def _sum_usage(each: Iterable[Usage]) -> Usage:
    parts = list(each)
    return Usage(
        sum(one.cpu for one in parts), sum(one.memory for one in parts), sum(one.disk for one in parts)
    )


def _usage(used: Usage) -> pb.Usage:
    return pb.Usage(cpu=used.cpu, memory=used.memory, disk=used.disk)
