"""Questions about the fleet: plan, why, fit, whatif, cost, optimise. Pure reads, answered by one process beside the server.

They take seconds, not milliseconds: on the server's own loop everybody else would wait for them.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from lattice import metrics
from lattice.errors import TooMany, Unavailable
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.core import Namespace
from lattice.server.resources.api import Api
from lattice.server.access.authorization import Deed, authorize
from lattice.server.requests.call import Reply, User
from lattice.server.fleet_queries.protocol import HEAD, Ask, Load, Row, Told, decode_told, framed
from lattice.server.fleet_queries.schema import APPLY, ASKS, LOOKED_AT, search_seconds
from lattice.server.fleet_queries.snapshot import Snapshot

ROOT = ("apis", GROUP, VERSION, "fleet")
MAX_QUESTION = 16 << 20  # bytes: a whole fleet of manifests
WAITING = 8  # questions that may wait for the one that is worked on
GLANCE = 0.2  # seconds between looks whether somebody still wants the answer
PARTING = 5.0  # seconds that a process may take to be gone once it does not answer
LAST_WORDS = 16 << 10  # bytes kept of what the process said, for when it ends
PIECE = 64 << 10  # bytes sent at a time: encrypting megabytes at once would keep others waiting
RESOURCES = (*(kind.resource.id for kind in LOOKED_AT), Namespace.resource.id)
log = structlog.get_logger()


class _EndedError(Exception):
    """The process is gone."""


@dataclass
class Beside:
    """The process, started when it is needed first, and again when it is gone. When it ends by itself, the log says why."""

    prices: str = ""
    latency: str = ""
    adapters: str = "*"  # providers that machines can be had from, separated by commas; * is all of them
    _process: asyncio.subprocess.Process | None = None
    _end: "asyncio.Task[str] | None" = None  # done when it is gone; answers why

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_running and self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        await self.end()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lattice.server.fleet_queries.worker", self.prices, self.latency, self.adapters,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._end = asyncio.create_task(self._watched(self._process))

    async def _watched(self, process: asyncio.subprocess.Process) -> str:
        said = await _last_words(process)
        why = _ending(await process.wait())
        if process is not self._process:  # we ended it ourselves
            if said:
                log.info("fleet process said", pid=process.pid, said=said)
            return why
        log.error("fleet process ended", pid=process.pid, why=why, exception=said)
        last = said.rstrip().rpartition("\n")[2]
        return f"{why}: {last}" if last else why

    async def why_ended(self) -> str:
        """Of a process that is gone, or that just closed its end and will be."""
        if self._end is None:
            return "it was not running"
        await asyncio.wait({self._end}, timeout=PARTING)
        return self._end.result() if self._end.done() else "it does not listen any more"

    async def send(self, message: Load | Ask) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise _EndedError
        try:
            process.stdin.write(framed(message))
            await process.stdin.drain()
        except ConnectionError as error:
            raise _EndedError from error

    async def receive(self) -> Told:
        process = self._process
        if process is None or process.stdout is None:
            raise _EndedError
        try:
            length = int.from_bytes(await process.stdout.readexactly(HEAD), "big")
            return decode_told(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _EndedError from error

    async def end(self) -> None:
        """Gone, and no zombie left of it."""
        process, self._process = self._process, None
        end, self._end = self._end, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if end is not None:
            await end


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """The end of what it says to people until it is gone."""
    assert process.stderr is not None  # noqa: S101 - it is a pipe, see start
    kept = b""
    while said := await process.stderr.read(PIECE):
        kept = (kept + said)[-LAST_WORDS:]
    return kept.decode(errors="replace")


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


class Since(NamedTuple):
    """What has changed. `is_vague`: everything was read again, and something that was there is gone."""

    rows: list[Row]
    is_vague: bool


@dataclass
class FleetQuestions:
    """One process, one question at a time, a few more waiting."""

    api: Api
    beside: Beside
    limit: float  # seconds that a question may wait, and that it may take
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _inside: int = 0  # waiting, or worked on
    _is_closed: bool = False
    _warming: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self._snapshot = Snapshot(self.api.store, self.api.clock, RESOURCES)

    def admit(self, user: User, ask: str) -> None:
        """Before the body is read: who may look may ask, if there is room for one more."""
        authorize(user, Deed("get", GROUP, "fleet", name=ask), None)
        if self._inside > WAITING:
            Account(ask, user.name, "busy").tell()
            raise _busy(self._inside)

    def warm(self) -> None:
        """Somebody looks at the page and may ask soon: the process takes a second or two to start."""
        if (
            not self.beside.is_running
            and not self._is_closed
            and (self._warming is None or self._warming.done())
        ):
            self._warming = asyncio.create_task(self._warmed())

    async def _warmed(self) -> None:
        with contextlib.suppress(TooMany):
            async with self.turn():
                if not self.beside.is_running and not self._is_closed:
                    self._snapshot.forget()
                    await self.beside.start()

    async def ask(self, user: User, ask: str, body: bytes) -> Reply:
        account = Account(ask, user.name)
        with account.kept():
            async with self.turn():
                account.begun = time.perf_counter()
                told = await self.told(ask, body, user, account)
            return Reply(told.body if len(told.body) <= PIECE else _pieces(told.body), told.status)

    async def told(self, ask: str, body: bytes, user: User, account: "Account") -> Told:
        """By who has the turn: what the process says of the newest state there is."""
        seconds = self.limit + (min(search_seconds(body), self.limit) if ask == "optimise" else 0)
        told = await self._told(Ask(ask, body, 0, user.name, self.limit), seconds)
        account.revision, account.outcome = (
            self._snapshot.revision,
            "answered" if told.status == 200 else "refused",
        )
        if ask == "optimise" and told.status == 200:
            metrics.PLAN_GAP.set(_gap(told.body))
        if told.broken:
            account.outcome = "failed"
            log.error("fleet question failed", ask=ask, exception=told.broken)
        return told

    async def catch_up(self) -> Since:
        """By who has the turn: what has changed since the answer; the process knows it, too, from here on."""
        revision, size = self._snapshot.revision, self._snapshot.size
        try:
            loads = [load async for load in self._snapshot.loads()]
            for load in loads:
                await self.beside.send(load)
        except _EndedError:
            await self.beside.why_ended()
            await self._abandon()
        except BaseException:
            await self._abandon()
            raise
        rows = [row for load in loads for row in load.rows if row.revision > revision]
        return Since(rows, any(load.anew for load in loads) and self._snapshot.size != size + len(rows))

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._inside > WAITING:
            raise _busy(self._inside)
        self._inside += 1
        try:
            try:
                async with asyncio.timeout(self.limit):
                    await self._turn.acquire()
            except TimeoutError as error:
                raise TooMany(
                    f"the questions before this one took more than {self.limit:g} s",
                    fix="ask again in a moment",
                ) from error
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._inside -= 1

    async def _told(self, ask: Ask, seconds: float) -> Told:
        """Whatever goes wrong, also that nobody wants the answer any more: a process in the middle of something is ended."""
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(ask)
        except TimeoutError as error:
            await self._abandon()
            fix = "ask about less, or let the server take longer with --fleet-time-limit"
            raise Unavailable(
                f"no answer was found within {seconds:g} s, the search was ended", fix=fix
            ) from error
        except _EndedError as error:
            try:
                why = await self.beside.why_ended()
            finally:
                await self._abandon()
            what = f"the process that answers about the fleet ended in the middle: {why}"
            raise Unavailable(what, fix="ask again; the server's log has all that it said") from error
        except BaseException:
            await self._abandon()
            raise

    async def _exchange(self, ask: Ask) -> Told:
        if self._is_closed:
            raise Unavailable("the server is stopping", fix="ask again when it is back")
        if not self.beside.is_running:
            self._snapshot.forget()
            await self.beside.start()
        async for load in self._snapshot.loads():
            await self.beside.send(load)
        ask.revision = self._snapshot.revision
        await self.beside.send(ask)
        return await self.beside.receive()

    async def _abandon(self) -> None:
        self._snapshot.forget()
        await self.beside.end()

    async def close(self) -> None:
        self._is_closed = True
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        await self._abandon()


@dataclass
class Account:
    """What is told about a question: once in the log, once in the metrics."""

    ask: str
    user: str
    outcome: str = "failed"
    revision: int = 0
    came: float = field(default_factory=time.perf_counter)
    begun: float = 0.0

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
        except TooMany:
            self.outcome = "busy"
            raise
        except Unavailable:
            self.outcome = "unanswered"
            raise
        finally:
            self.tell()

    def tell(self) -> None:
        seconds = time.perf_counter() - self.came
        waited = (self.begun or time.perf_counter()) - self.came
        metrics.FLEET_QUESTIONS.labels(self.ask, self.outcome).inc()
        metrics.FLEET_SECONDS.labels(self.ask).observe(seconds)
        log.info(
            "fleet question",
            ask=self.ask,
            user=self.user,
            outcome=self.outcome,
            revision=self.revision,
            seconds=round(seconds, 3),
            waited=round(waited, 3),
        )


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]
        await asyncio.sleep(0)


def _busy(inside: int) -> TooMany:
    return TooMany(
        f"{inside} questions about the fleet are being answered or wait for it", fix="ask again in a moment"
    )


def asked(parts: list[str]) -> str:
    """Which question a path means; none of ours: nothing."""
    return parts[4] if len(parts) == 5 and tuple(parts[:4]) == ROOT and parts[4] in {*ASKS, APPLY} else ""


async def while_wanted(answer: "asyncio.Task[Reply]", is_wanted: Callable[[], bool]) -> Reply:
    """The answer; given up when nobody listens any more."""
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=GLANCE)
            if not answer.done() and not is_wanted():
                raise ConnectionResetError("the client went away")
        return await answer
    finally:
        if not answer.done():
            answer.cancel()
            await asyncio.wait({answer})


class _Optimum(msgspec.Struct, rename="camel"):
    gap_millionths: int


def _gap(answer: bytes) -> float:
    """Of an optimised plan."""
    return msgspec.json.decode(answer, type=_Optimum).gap_millionths / 1_000_000
