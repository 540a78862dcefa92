"""The session of an agent with the leader: stay connected, send heartbeats with workload reports, and receive
assignments."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from lattice import __version__
from lattice.agent.executor import Executor
from lattice.agent.host.runtime_protocol import Usage
from lattice.agent.log_streams import LogStreams
from lattice.agent.transport import Transport
from lattice.clock import Clock, with_timeout
from lattice.errors import Denied, LatticeError, Unavailable
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import MAY_NOT_LEAVE, PROTOCOL_VERSION, AgentConnection

HANDSHAKE_TIMEOUT_S = 10.0  # until the first answer of a server
MAX_UNANSWERED_HEARTBEATS = 3  # then the connection is closed
REPORT_BATCH_S = 0.05  # changes within this time share one heartbeat
FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.5, 10.0
# A connection that lasted longer resets the reconnect back-off.
STABLE_CONNECTION_S = 10.0
# The delay before the next attempt of an agent that a server has rejected, for example because another
# machine with the same key has connected (decision 0020).
DENIED_RETRY_DELAY_S = 30.0
FAILURES_PER_DISCOVERY = 3  # consecutive connect failures before a discovery of servers
# A larger heartbeat is sent without logs; servers accept twice this size.
MAX_HEARTBEAT_BYTES = 512 * 1024
MAX_ADDRESSES = 5
DISCOVERY_INTERVAL_S = 600.0
# Redirects to the address that failed last are ignored up to this count.
MAX_IGNORED_REDIRECTS = 4
MAX_REDIRECTS = 5  # consecutive redirects before a reconnect delay
REJOIN_FIX = "create a token with `lattice tokens create`, then start the agent with --server and --join"
log = structlog.get_logger()


class NodeRemoved(Denied):
    """The machine is no longer a node: the node was deleted, or another machine has taken over the node. Only
    a leader reports the removal."""


class LeaveRejected(Denied):
    """The server does not let the machine leave; its agent goes on."""


class _NotLeader(Exception):
    """Raised when a server redirects the agent to the leader at `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass
class Agent:
    """The agent process of a node; `addresses` are tried in turn, and `discover_addresses` queries servers
    for current addresses."""

    executor: Executor
    transport: Transport
    clock: Clock
    rng: random.Random
    registration: Callable[[], pb.Registration]
    addresses: list[str]
    node_usage: Callable[[], Usage | None] = lambda: None
    # Several agents share the machine: the node's usage is the sum of its workloads' usage.
    shares_machine: bool = False
    discover_addresses: Callable[[], Awaitable[list[str]]] | None = None
    on_connected: Callable[[str], None] = lambda address: None
    # Called after a server has reported that the node does not exist: joins again, and returns whether the
    # join succeeded. After an error, the agent calls the function again later.
    rejoin: Callable[[], Awaitable[bool]] | None = None
    is_connected: asyncio.Event = field(default_factory=asyncio.Event)
    # Set to reconnect with a new certificate.
    certificate_renewed: asyncio.Event = field(default_factory=asyncio.Event)
    removal: NodeRemoved | None = None  # also set by the certificate renewal
    # The owner takes the machine back: the server drains and deletes the node.
    is_leaving: bool = False
    # Why the server did not let the machine leave; empty: no request was rejected.
    leave_rejection: str = ""

    def __post_init__(self) -> None:
        self._connect_failures = 0  # consecutive
        self._unresponsive_address = ""  # the last address without an answer
        self._ignored_redirects = 0
        # The longest delay before a reconnect. After the first handshake it is at most one heartbeat
        # interval, because the leader marks a node not ready after a few missed heartbeats.
        self._max_reconnect_delay = MAX_RECONNECT_DELAY_S

    async def discover_servers(self) -> None:
        """Query the server addresses before the first connection, since servers may have changed while the
        agent was down."""
        if self.discover_addresses is not None:
            with suppress(LatticeError):
                self.addresses = list(dict.fromkeys([*await self.discover_addresses(), *self.addresses]))[
                    :MAX_ADDRESSES
                ]

    def leave(self) -> None:
        """Ask the server to drain and delete the node; the agent then ends like the agent of a removed
        node."""
        self.is_leaving = True
        self.executor.reports_changed.set()

    async def _discover_periodically(self) -> None:
        """Refresh the server addresses periodically: once the connection is lost, there may be no server to
        ask."""
        while self.discover_addresses is not None:
            await self.clock.sleep(DISCOVERY_INTERVAL_S * (0.5 + self.rng.random() / 2))
            with suppress(LatticeError):
                discovered, (current, *older) = await self.discover_addresses(), self.addresses
                # The current address stays first: a discovery must not move a connected agent.
                self.addresses = list(dict.fromkeys([current, *discovered, *older]))[:MAX_ADDRESSES]

    async def run(self) -> NoReturn:
        """Run the agent until cancelled; cancellation leaves workloads running. Raises NodeRemoved after the
        workloads of a removed node have stopped."""
        await self.executor.adopt()
        # The first heartbeat must report the actual instances.
        await self.executor.reconcile()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self.executor.run()),
                tasks.create_task(self._discover_periodically()),
            ]
            removal = await self._stay_connected()
            for task in background:
                task.cancel()
        # The control plane runs the workloads of a removed node elsewhere or has deleted the workloads.
        workloads = sorted(
            {instance.workload for instance in await self.executor.runtime.list() if instance.is_live}
        )
        log.warning(
            "this machine is no longer a node: stopping its workloads",
            reason=removal.message,
            workloads=workloads,
        )
        while True:
            try:
                await self.executor.stop_and_remove_all()
            except (LatticeError, OSError) as error:
                log.warning("cannot stop the workloads of this node", reason=str(error))
                await self.clock.sleep(MAX_RECONNECT_DELAY_S)
            else:
                raise removal

    async def _stay_connected(self) -> NodeRemoved:
        """Connect to servers until a leader reports the removal of the node."""
        delay, redirects = FIRST_RECONNECT_DELAY_S, 0
        while self.removal is None:
            began = self.clock.monotonic()
            try:
                await self._run_session(self.addresses[0])
            except _NotLeader as redirect:
                address = redirect.address
                if not self._should_ignore_redirect(address):
                    redirects += 1
                    if address and address != self.addresses[0]:
                        other_addresses = [
                            known_address for known_address in self.addresses if known_address != address
                        ]
                        self.addresses = [address, *other_addresses][:MAX_ADDRESSES]
                        if redirects <= MAX_REDIRECTS:
                            # Spread the reconnects: the leader may have redirected a thousand agents at once.
                            await self.clock.sleep(FIRST_RECONNECT_DELAY_S * self.rng.random())
                            continue
                    await self._rotate_addresses()
            except (LatticeError, TimeoutError) as error:
                log.warning(
                    "not connected", address=self.addresses[0], reason=str(error) or "no response in time"
                )
                if isinstance(error, Denied):
                    delay = await self._handle_denied(error)
                else:
                    self._unresponsive_address = self.addresses[0]
                await self._rotate_addresses()
            redirects = 0
            if self.clock.monotonic() - began > STABLE_CONNECTION_S:
                delay = FIRST_RECONNECT_DELAY_S
            await self.clock.sleep(delay * (0.5 + self.rng.random() / 2))
            delay = min(self._max_reconnect_delay, delay * 2)
        return self.removal

    async def _handle_denied(self, error: Denied) -> float:
        """The delay before the next attempt after a rejection. The agent of a removed node first tries to
        join again, with the token that it was started with."""
        if isinstance(error, LeaveRejected):
            self.is_leaving, self.leave_rejection = False, error.message
            return FIRST_RECONNECT_DELAY_S
        if not isinstance(error, NodeRemoved):
            return DENIED_RETRY_DELAY_S
        try:
            has_joined = self.rejoin is not None and not self.is_leaving and await self.rejoin()
        # No server answered the join: the removal is not confirmed.
        except LatticeError as join_error:
            log.warning("rejoin failed", reason=str(join_error))
            return DENIED_RETRY_DELAY_S
        self.removal = None if has_joined else error
        return FIRST_RECONNECT_DELAY_S

    def _should_ignore_redirect(self, address: str) -> bool:
        """Whether to ignore a redirect to the address that failed last, because the redirecting server will
        soon learn of a new leader."""
        if (
            not address
            or address != self._unresponsive_address
            or self._ignored_redirects >= MAX_IGNORED_REDIRECTS
        ):
            self._ignored_redirects = 0
            return False
        self._ignored_redirects += 1
        return True

    async def _rotate_addresses(self) -> None:
        """Try the next address; only every third failure triggers a discovery, so that a thousand
        disconnected agents do not overload the servers."""
        self.addresses = [*self.addresses[1:], self.addresses[0]]
        self._connect_failures += 1
        if self._connect_failures % FAILURES_PER_DISCOVERY == 0:
            await self.discover_servers()

    async def _run_session(self, address: str) -> None:
        """Run one connection until an error occurs or the server ends the connection."""
        self.executor.reset_order_numbers()
        async with self.transport.connect(address) as connection:
            # Contact counts from the send time of the hello, not from the answer.
            sent = self.clock.monotonic()
            hello = pb.Hello(
                protocol=PROTOCOL_VERSION,
                version=__version__,
                term=self.executor.term,
                registration=self.registration(),
            )
            await with_timeout(self.clock, HANDSHAKE_TIMEOUT_S, connection.send(pb.FromAgent(hello=hello)))
            welcome = self._check_welcome(
                await with_timeout(self.clock, HANDSHAKE_TIMEOUT_S, connection.receive())
            )
            await self.record_contact(sent)
            # This connection already uses the renewed certificate.
            self.certificate_renewed.clear()
            self._connect_failures, self._unresponsive_address = 0, ""
            self._max_reconnect_delay = min(MAX_RECONNECT_DELAY_S, welcome.heartbeat or MAX_RECONNECT_DELAY_S)
            self.on_connected(address)
            log.info(
                "connected", address=address, node=welcome.node, term=welcome.term, server=welcome.version
            )
            self.is_connected.set()
            try:
                await AgentSession(self, connection, welcome).run()
            # During a session, a server looks for the node in its cache only; a handshake reads the store. So
            # the agent reconnects once, and the handshake confirms the removal.
            except NodeRemoved as error:
                log.warning("not connected", address=address, reason=str(error))
            finally:
                self.is_connected.clear()

    def _check_welcome(self, message: pb.ToAgent | None) -> pb.Welcome:
        """The welcome message; raises an error for a redirect, a rejection, another protocol version, or a
        leader of an older term."""
        if message is None:
            raise Unavailable("the server closed the connection")
        raise_on_session_end(message)
        if message.WhichOneof("said") != "welcome":
            raise Unavailable("the server did not send a welcome message")
        welcome = message.welcome
        if welcome.protocol != PROTOCOL_VERSION:
            raise Denied(
                f"server {welcome.version} speaks protocol {welcome.protocol}, "
                f"this agent {__version__} speaks {PROTOCOL_VERSION}",
                fix="run the same version of lattice on both",
            )
        # A deposed leader may not know of the next term yet: the agent obeys no older leader (I-19).
        if welcome.term < self.executor.term:
            raise Unavailable(
                f"the server leads in term {welcome.term}, but term {self.executor.term} has begun",
                fix="wait for the redirect to the current leader",
            )
        return welcome

    async def record_contact(self, since: float) -> None:
        """Record the last contact for the watchdog. An error, such as a full disk, must not end the session:
        without a newer record, the watchdog stops every workload that has a `stop_after`, in time."""
        try:
            await self.executor.runtime.record_contact(since)
        except OSError as error:
            log.warning("cannot record the contact with the control plane", reason=str(error))


def raise_on_session_end(message: pb.ToAgent) -> None:
    """Raise the error for a redirect or a rejection by the server."""
    if message.WhichOneof("said") == "elsewhere":
        raise _NotLeader(message.elsewhere.address)
    if message.WhichOneof("said") == "refusal":
        rejection = message.refusal
        if rejection.reason == "UNKNOWN_NODE":
            raise NodeRemoved(
                f"{rejection.reason}: {rejection.message.partition(chr(10))[0]}", fix=REJOIN_FIX
            )
        if rejection.reason == MAY_NOT_LEAVE:
            raise LeaveRejected(rejection.message)
        kind = Unavailable if rejection.reason == "UNAVAILABLE" else Denied
        raise kind(f"{rejection.reason}: {rejection.message}")


class AgentSession:
    """The exchange over one connection after the welcome."""

    def __init__(self, agent: Agent, connection: AgentConnection, welcome: pb.Welcome) -> None:
        self.agent = agent
        self.executor = agent.executor
        self.clock = agent.clock
        self.connection = connection
        self.term = welcome.term
        self.heartbeat_interval = welcome.heartbeat or 10.0
        self.heartbeat_number = 0
        self.unanswered_heartbeats: dict[int, float] = {}  # number -> send time, monotonic
        self.sent_reports: dict[str, pb.Report] | None = None  # None: no heartbeat sent yet
        self.sent_order = 0
        self.sent_leaving = False
        self.log_streams = LogStreams(agent.executor, agent.clock, self._send)
        self._send_lock = asyncio.Lock()

    async def run(self) -> None:
        """Run the session until the connection ends, an error occurs, or a new certificate requires a
        reconnect."""
        coroutines = (self._receive_loop(), self._heartbeat_loop(), self.agent.certificate_renewed.wait())
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            self.log_streams.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_loop(self) -> None:
        while (message := await self.connection.receive()) is not None:
            raise_on_session_end(message)
            message_type = message.WhichOneof("said")
            if message_type == "orders":
                self._accept_orders(message.orders)
            elif message_type == "heard":
                await self._on_heartbeat_ack(message.heard.beat)
            elif message_type == "log":
                self.log_streams.handle_request(message.log)

    def _accept_orders(self, orders: pb.Orders) -> None:
        """Accept orders; raise Unavailable for orders of a term older than the newest known term (I-19)."""
        if orders.term < max(self.term, self.executor.term):
            raise Unavailable(
                f"received assignments of term {orders.term}, but term {max(self.term, self.executor.term)} has begun"
            )
        self.executor.accept_orders(orders)

    async def _on_heartbeat_ack(self, acknowledged: int) -> None:
        """Record contact as of the send time of the acknowledged heartbeat, the last message that the server
        is known to have received. The leader measures the silence of the node from the receipt of that
        heartbeat, which is never before the send time (I-13)."""
        sent = self.unanswered_heartbeats.get(acknowledged)
        self.unanswered_heartbeats = {
            number: sent_at for number, sent_at in self.unanswered_heartbeats.items() if number > acknowledged
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
            oldest = min(self.unanswered_heartbeats.values(), default=now)
            if now - oldest >= MAX_UNANSWERED_HEARTBEATS * self.heartbeat_interval:
                raise Unavailable(f"no heartbeat acknowledgement for {now - oldest:.0f} s")
            await self._send_heartbeat(is_due)
            with suppress(TimeoutError):
                await with_timeout(
                    self.clock, due - self.clock.monotonic(), self.executor.reports_changed.wait()
                )
                await self.clock.sleep(REPORT_BATCH_S)

    async def _send_heartbeat(self, is_due: bool) -> None:
        """Send the changed reports; without changes, only send when the heartbeat is due."""
        self.executor.reports_changed.clear()
        # The event is cleared first: a change after the copy sets the event again.
        reports, order = dict(self.executor.reports), self.executor.reported_order
        sent_reports = self.sent_reports or {}
        changed = [report for path, report in reports.items() if sent_reports.get(path) != report]
        gone = [path for path in sent_reports if path not in reports]
        leaving = self.agent.is_leaving
        if not (is_due or changed or gone or order != self.sent_order or leaving != self.sent_leaving):
            return
        heartbeat = pb.Beat(
            number=self.heartbeat_number + 1,
            order=order,
            is_whole=self.sent_reports is None,
            reports=changed,
            gone=gone,
            # Repeated, because the server may lose the race for the node against another writer.
            leaving=leaving,
        )
        if heartbeat.ByteSize() > MAX_HEARTBEAT_BYTES:
            for report in heartbeat.reports:
                report.ClearField("log")
        # A heartbeat that is due also carries the measured usage of the node and its workloads.
        if is_due and (node := self.agent.node_usage()) is not None:
            workloads = await self.executor.usage()
            if self.agent.shares_machine:
                parts = workloads.values()
                node = Usage(
                    cpu=sum(usage.cpu for usage in parts),
                    memory=sum(usage.memory for usage in parts),
                    disk=sum(usage.disk for usage in parts),
                )
            heartbeat.usage.CopyFrom(_usage(node))
            for path, usage in workloads.items():
                heartbeat.workload_usage[path].CopyFrom(_usage(usage))
        self.heartbeat_number, self.sent_reports, self.sent_order = heartbeat.number, reports, order
        self.sent_leaving = leaving
        # Recorded before the send, since the acknowledgement may arrive during the send.
        self.unanswered_heartbeats[heartbeat.number] = self.clock.monotonic()
        await self._send(pb.FromAgent(beat=heartbeat))

    async def _send(self, message: pb.FromAgent) -> None:
        """Send one message; raise TimeoutError if the server reads nothing for MAX_UNANSWERED_HEARTBEATS
        heartbeat intervals."""
        # The heartbeat loop and the log streams share the connection.
        async with self._send_lock:
            await with_timeout(
                self.clock, MAX_UNANSWERED_HEARTBEATS * self.heartbeat_interval, self.connection.send(message)
            )


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(cpu=usage.cpu, memory=usage.memory, disk=usage.disk)
