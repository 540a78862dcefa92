"""The agent's conversation with the control plane: it stays connected to whoever leads, says how its workloads are, and takes orders."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from lattice import __version__
from lattice.agent.transport import Link
from lattice.agent.log_server import LogDesk
from lattice.agent.host.runtime_protocol import Usage
from lattice.agent.executor import Work
from lattice.clock import Clock, within
from lattice.errors import Denied, LatticeError, Unavailable
from lattice.wire import agent_pb2 as pb
from lattice.wire.channel import PROTOCOL, AgentEnd

ANSWER_WITHIN = 10.0  # seconds for the first answer of a server
UNANSWERED = 3  # so many heartbeats without an answer, and the connection is given up
GATHER = 0.05  # seconds in which changes are gathered into one beat
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # between attempts to connect
STEADY = 10.0  # a connection that lasted so long was a good one
REFUSED_PAUSE = 30.0  # who was refused does not ask again at once
ASK_EVERY = 3  # so many failures in a row, and we ask where to connect
LARGE = 512 * 1024  # bytes: a beat that is larger goes without logs; servers take twice as much
KNOWN = 5  # addresses that are kept in mind
LOOK_EVERY = 600.0  # seconds between questions who else is there
DOUBTS = 4  # so often we do not follow who sends us back to one that has just not answered
HOPS = 5  # from server to server in a row, before we wait
JOIN_AGAIN = "make a token with `lattice tokens create`, and start the agent again with --server and --join"
log = structlog.get_logger()


class Removed(Denied):
    """This machine is no node any more: its node was deleted, or another machine is that node now. Only a leader says so."""


class _Elsewhere(Exception):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass
class Agent:
    """`addresses` are tried in turn; `look_up` asks anew where to connect when none answers."""

    work: Work
    link: Link
    clock: Clock
    rng: random.Random
    registration: Callable[[], pb.Registration]
    addresses: list[str]
    node_usage: Callable[[], Usage | None] = lambda: None
    is_part: bool = False  # of a machine that others share: what its own workloads use is what it uses
    look_up: Callable[[], Awaitable[list[str]]] | None = None
    connected_to: Callable[[str], None] = lambda address: None
    rejoin: Callable[[], Awaitable[bool]] | None = (
        None  # when the server knows no such node: whether it does now; raises to be asked again
    )
    is_connected: asyncio.Event = field(default_factory=asyncio.Event)
    renewed: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set to connect anew with another certificate
    removed: Removed | None = None  # set when somebody else was told so

    def __post_init__(self) -> None:
        self._failures = 0  # to connect, in a row
        self._silent = ""  # the address that did not answer last
        self._doubted = 0
        self._longest_pause = (
            LONGEST_PAUSE  # or a heartbeat, where that is less: who is silent for some of them is missed
        )

    async def find_server(self) -> None:
        """Ask where to connect before the first attempt: it may have changed while we were away."""
        if self.look_up is not None:
            with suppress(LatticeError):
                self.addresses = list(dict.fromkeys([*await self.look_up(), *self.addresses]))[:KNOWN]

    async def _keep_looking(self) -> None:
        """Servers come and go while we are with one of them: once it is gone, it is too late to ask it."""
        while self.look_up is not None:
            await self.clock.sleep(LOOK_EVERY * (0.5 + self.rng.random() / 2))
            with suppress(LatticeError):
                found, (now, *others) = await self.look_up(), self.addresses
                self.addresses = list(dict.fromkeys([now, *found, *others]))[:KNOWN]

    async def run(self) -> NoReturn:
        """Until cancelled; what runs is left running. Raises Removed once nothing runs any more that nobody wants."""
        await self.work.adopt()
        await self.work.look()  # what is said first must be true
        async with asyncio.TaskGroup() as tasks:
            meanwhile = [tasks.create_task(self.work.run()), tasks.create_task(self._keep_looking())]
            why = await self._stay_connected()
            for each in meanwhile:
                each.cancel()
        await self._leave(why)
        raise why

    async def _leave(self, why: Removed) -> None:
        """What still runs here is nobody's: whoever wanted it has it elsewhere, or does not want it any more."""
        left = sorted({each.workload for each in await self.work.runtime.list() if each.live})
        log.warning(
            "this machine is no node any more: what it runs is stopped", reason=why.what, workloads=left
        )
        while True:
            try:
                return await self.work.leave()
            except (LatticeError, OSError) as error:
                log.warning("cannot stop what runs here", reason=str(error))
                await self.clock.sleep(LONGEST_PAUSE)

    async def _stay_connected(self) -> Removed:
        """Until we are told that we are no node any more."""
        pause, hops = FIRST_PAUSE, 0
        while self.removed is None:
            began = self.clock.monotonic()
            try:
                await self._converse(self.addresses[0])
            except _Elsewhere as other:
                if not self._doubts(other.address):
                    hops += 1
                    if self._turn_to(other.address) and hops <= HOPS:
                        await self.clock.sleep(
                            FIRST_PAUSE * self.rng.random()
                        )  # a thousand others were told the same
                        continue
                    await self._next_address()
            except (LatticeError, TimeoutError) as error:
                log.warning(
                    "not connected", address=self.addresses[0], reason=str(error) or "no answer in time"
                )
                if isinstance(error, Denied):
                    pause = await self._refused(error)
                else:
                    self._silent = self.addresses[0]
                await self._next_address()
            hops = 0
            if self.clock.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            await self.clock.sleep(pause * (0.5 + self.rng.random() / 2))
            pause = min(self._longest_pause, pause * 2)
        return self.removed

    async def _refused(self, error: Denied) -> float:
        """How long to wait before we ask again. The token that we were started with may be for the node as it is now."""
        if not isinstance(error, Removed):
            return REFUSED_PAUSE
        try:
            is_back = self.rejoin is not None and await self.rejoin()
        except LatticeError as trouble:  # nobody could be asked: that says nothing
            log.warning("cannot join again yet", reason=str(trouble))
            return REFUSED_PAUSE
        self.removed = None if is_back else error
        return FIRST_PAUSE

    def _doubts(self, address: str) -> bool:
        """Whether that one has just not answered: whoever names it will soon know better, and is asked again."""
        if not address or address != self._silent or self._doubted >= DOUBTS:
            self._doubted = 0
            return False
        self._doubted += 1
        return True

    def _turn_to(self, address: str) -> bool:
        """False if there is nowhere to turn to."""
        if not address or address == self.addresses[0]:
            return False
        self.addresses = [address, *(each for each in self.addresses if each != address)][:KNOWN]
        return True

    async def _next_address(self) -> None:
        """A thousand agents that lost their server must not all ask the next one where to go, each time."""
        self.addresses = [*self.addresses[1:], self.addresses[0]]
        self._failures += 1
        if self._failures % ASK_EVERY == 0:
            await self.find_server()

    async def _converse(self, address: str) -> None:
        """One connection. Ends by raising, or when the server hung up."""
        self.work.connected()
        async with self.link.connect(address) as end:
            sent = self.clock.monotonic()
            hello = pb.Hello(
                protocol=PROTOCOL, version=__version__, term=self.work.term, registration=self.registration()
            )
            await within(self.clock, ANSWER_WITHIN, end.send(pb.FromAgent(hello=hello)))
            welcome = self._welcomed(await within(self.clock, ANSWER_WITHIN, end.receive()))
            await self.contact(sent)
            self.renewed.clear()
            self._failures, self._silent = 0, ""
            self._longest_pause = min(LONGEST_PAUSE, welcome.heartbeat or LONGEST_PAUSE)
            self.connected_to(address)
            log.info(
                "connected", address=address, node=welcome.node, term=welcome.term, server=welcome.version
            )
            self.is_connected.set()
            try:
                await Conversation(self, end, welcome).run()
            except Removed as error:  # who answers our hello reads the store itself: ask once more
                log.warning("not connected", address=address, reason=str(error))
            finally:
                self.is_connected.clear()

    def _welcomed(self, said: pb.ToAgent | None) -> pb.Welcome:
        if said is None:
            raise Unavailable("the server hung up")
        refuse_parting(said)
        if said.WhichOneof("said") != "welcome":
            raise Unavailable("the server did not say hello")
        welcome = said.welcome
        if welcome.protocol != PROTOCOL:
            raise Denied(
                f"server {welcome.version} speaks protocol {welcome.protocol}, this agent {__version__} speaks {PROTOCOL}",
                fix="run the same version of lattice on both",
            )
        if welcome.term < self.work.term:
            raise Unavailable(
                f"it leads in term {welcome.term}, and term {self.work.term} has begun",
                fix="another server leads",
            )
        return welcome

    async def contact(self, since: float) -> None:
        """A disk that is full is no reason to stop listening; what may not run without contact is then ended in time."""
        try:
            await self.work.runtime.contact(since)
        except OSError as error:
            log.warning("cannot note that the control plane was heard", reason=str(error))


def refuse_parting(said: pb.ToAgent) -> None:
    """Raises what ends the conversation, if that was said."""
    if said.WhichOneof("said") == "elsewhere":
        raise _Elsewhere(said.elsewhere.address)
    if said.WhichOneof("said") == "refusal":
        refusal = said.refusal
        if refusal.reason == "UNKNOWN_NODE":
            raise Removed(f"{refusal.reason}: {refusal.message.partition(chr(10))[0]}", fix=JOIN_AGAIN)
        kind = Unavailable if refusal.reason == "UNAVAILABLE" else Denied
        raise kind(f"{refusal.reason}: {refusal.message}")


class Conversation:
    """A connection that was welcomed."""

    def __init__(self, agent: Agent, end: AgentEnd, welcome: pb.Welcome) -> None:
        self.agent = agent
        self.work = agent.work
        self.clock = agent.clock
        self.end = end
        self.term = welcome.term
        self.heartbeat = welcome.heartbeat or 10.0
        self.number = 0
        self.unanswered: dict[int, float] = {}  # beat -> when it was sent
        self.said: dict[str, pb.Report] | None = None  # None: nothing yet
        self.order = 0
        self.logs = LogDesk(agent.work, agent.clock, self._send)
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        tasks = [
            asyncio.ensure_future(each) for each in (self._listen(), self._speak(), self.agent.renewed.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            self.logs.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while (said := await self.end.receive()) is not None:
            refuse_parting(said)
            which = said.WhichOneof("said")
            if which == "orders":
                self._obey(said.orders)
            elif which == "heard":
                await self._heard(said.heard.beat)
            elif which == "log":
                self.logs.asked(said.log)

    def _obey(self, orders: pb.Orders) -> None:
        if orders.term < max(self.term, self.work.term):
            raise Unavailable(
                f"an order of term {orders.term}, and term {max(self.term, self.work.term)} has begun"
            )
        self.work.take(orders)

    async def _heard(self, beat: int) -> None:
        """Silence counts from when the beat was sent that was answered: the server cannot have heard us later than that."""
        sent = self.unanswered.get(beat)
        self.unanswered = {number: at for number, at in self.unanswered.items() if number > beat}
        if sent is not None:
            await self.agent.contact(sent)

    async def _speak(self) -> None:
        due = self.clock.monotonic()
        while True:
            now = self.clock.monotonic()
            is_due = now >= due
            if is_due:
                due = now + self.heartbeat
            self._refuse_silence(now)
            await self._beat(is_due)
            with suppress(TimeoutError):
                await within(self.clock, due - self.clock.monotonic(), self.work.changed.wait())
                await self.clock.sleep(GATHER)

    def _refuse_silence(self, now: float) -> None:
        oldest = min(self.unanswered.values(), default=now)
        if now - oldest >= UNANSWERED * self.heartbeat:
            raise Unavailable(f"no answer for {now - oldest:.0f} s")

    async def _beat(self, is_due: bool) -> None:
        self.work.changed.clear()
        spoken, order = dict(self.work.spoken), self.work.reflects
        before = self.said or {}
        changed = [report for path, report in spoken.items() if before.get(path) != report]
        gone = [path for path in before if path not in spoken]
        if not (is_due or changed or gone or order != self.order):
            return
        beat = pb.Beat(
            number=self.number + 1, order=order, is_whole=self.said is None, reports=changed, gone=gone
        )
        if beat.ByteSize() > LARGE:
            for report in beat.reports:
                report.ClearField("log")
        if is_due:
            await self._measure(beat)
        self.number, self.said, self.order = beat.number, spoken, order
        self.unanswered[beat.number] = self.clock.monotonic()
        await self._send(pb.FromAgent(beat=beat))

    async def _measure(self, beat: pb.Beat) -> None:
        if (node := self.agent.node_usage()) is not None:
            workloads = await self.work.usage()
            beat.usage.CopyFrom(_usage(_total(workloads.values()) if self.agent.is_part else node))
            for path, used in workloads.items():
                beat.workload_usage[path].CopyFrom(_usage(used))

    async def _send(self, said: pb.FromAgent) -> None:
        """A server that does not read is as good as none."""
        async with self._turn:
            await within(self.clock, UNANSWERED * self.heartbeat, self.end.send(said))


def _total(each: Iterable[Usage]) -> Usage:
    parts = list(each)
    return Usage(
        sum(one.cpu for one in parts), sum(one.memory for one in parts), sum(one.disk for one in parts)
    )


def _usage(used: Usage) -> pb.Usage:
    return pb.Usage(cpu=used.cpu, memory=used.memory, disk=used.disk)
