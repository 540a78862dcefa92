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
from lattice.errors import TooManyRequests, Unavailable
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.fleet_queries.protocol import (
    LENGTH_PREFIX_BYTES,
    Load,
    ObjectRow,
    QueryRequest,
    QueryResult,
    decode_result,
    encode_frame,
)
from lattice.server.fleet_queries.query_schema import (
    APPLY_QUERY,
    PLACEMENT_INPUT_KINDS,
    QUERY_TYPES,
    search_seconds,
)
from lattice.server.fleet_queries.store_feed import Snapshot
from lattice.server.requests.call import Reply, User
from lattice.server.resources.api import Api

FLEET_PATH_PREFIX = ("apis", GROUP, VERSION, "fleet")
MAX_QUERY_BYTES = 16 << 20  # bytes: a whole fleet of manifests
MAX_WAITING_QUERIES = 8  # questions that may wait for the one that is worked on
QUERY_CLIENT_CHECK_INTERVAL_S = 0.2  # seconds between looks whether somebody still wants the answer
EXIT_TIMEOUT_S = 5.0  # seconds that a process may take to be gone once it does not answer
MAX_STDERR_BYTES = 16 << 10  # bytes kept of what the process said, for when it ends
RESPONSE_CHUNK_BYTES = (
    64 << 10
)  # bytes sent at a time: encrypting megabytes at once would keep others waiting
SNAPSHOT_RESOURCES = (*(kind.resource.id for kind in PLACEMENT_INPUT_KINDS), Namespace.resource.id)
log = structlog.get_logger()


class _ProcessExitedError(Exception):
    """The process is gone."""


@dataclass
class QueryProcess:
    """The process, started when it is needed first, and again when it is gone. When it ends by itself, the log says why."""

    prices: str = ""
    latency: str = ""
    providers: str = "*"  # providers that machines can be had from, separated by commas; * is all of them
    _process: asyncio.subprocess.Process | None = None
    _exit_task: "asyncio.Task[str] | None" = None  # done when it is gone; answers why

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_running and self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        await self.stop()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lattice.server.fleet_queries.worker", self.prices, self.latency, self.providers,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._exit_task = asyncio.create_task(self._watch_exit(self._process))

    async def _watch_exit(self, process: asyncio.subprocess.Process) -> str:
        said = await _read_stderr_tail(process)
        why = _exit_description(await process.wait())
        if process is not self._process:  # we ended it ourselves
            if said:
                log.info("fleet process said", pid=process.pid, said=said)
            return why
        log.error("fleet process ended", pid=process.pid, why=why, exception=said)
        last = said.rstrip().rpartition("\n")[2]
        return f"{why}: {last}" if last else why

    async def exit_reason(self) -> str:
        """Of a process that is gone, or that just closed its end and will be."""
        if self._exit_task is None:
            return "it was not running"
        await asyncio.wait({self._exit_task}, timeout=EXIT_TIMEOUT_S)
        return self._exit_task.result() if self._exit_task.done() else "it does not listen any more"

    async def send(self, message: Load | QueryRequest) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise _ProcessExitedError
        try:
            process.stdin.write(encode_frame(message))
            await process.stdin.drain()
        except ConnectionError as error:
            raise _ProcessExitedError from error

    async def receive(self) -> QueryResult:
        process = self._process
        if process is None or process.stdout is None:
            raise _ProcessExitedError
        try:
            length = int.from_bytes(await process.stdout.readexactly(LENGTH_PREFIX_BYTES), "big")
            return decode_result(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _ProcessExitedError from error

    async def stop(self) -> None:
        """Gone, and no zombie left of it."""
        process, self._process = self._process, None
        end, self._exit_task = self._exit_task, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if end is not None:
            await end


async def _read_stderr_tail(process: asyncio.subprocess.Process) -> str:
    """The end of what it says to people until it is gone."""
    assert process.stderr is not None  # noqa: S101 - it is a pipe, see start
    kept = b""
    while said := await process.stderr.read(RESPONSE_CHUNK_BYTES):
        kept = (kept + said)[-MAX_STDERR_BYTES:]
    return kept.decode(errors="replace")


def _exit_description(code: int) -> str:
    if code >= 0:
        return f"it ended with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


class ChangesSince(NamedTuple):
    """What has changed. `is_vague`: everything was read again, and something that was there is gone."""

    rows: list[ObjectRow]
    is_incomplete: bool


@dataclass
class FleetQueryService:
    """One process, one question at a time, a few more waiting."""

    api: Api
    process: QueryProcess
    time_limit_s: float  # seconds that a question may wait, and that it may take
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _active_queries: int = 0  # waiting, or worked on
    _is_closed: bool = False
    _warm_up_task: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self._snapshot = Snapshot(self.api.store, self.api.clock, SNAPSHOT_RESOURCES)

    def admit(self, user: User, ask: str) -> None:
        """Before the body is read: who may look may ask, if there is room for one more."""
        authorize(user, RequestAttributes("get", GROUP, "fleet", name=ask), None)
        if self._active_queries > MAX_WAITING_QUERIES:
            QueryRecord(ask, user.name, "busy").record()
            raise _busy(self._active_queries)

    def warm_up(self) -> None:
        """Somebody looks at the page and may ask soon: the process takes a second or two to start."""
        if (
            not self.process.is_running
            and not self._is_closed
            and (self._warm_up_task is None or self._warm_up_task.done())
        ):
            self._warm_up_task = asyncio.create_task(self._warm_up_process())

    async def _warm_up_process(self) -> None:
        with contextlib.suppress(TooManyRequests):
            async with self.exclusive():
                if not self.process.is_running and not self._is_closed:
                    self._snapshot.reset()
                    await self.process.start()

    async def answer(self, user: User, ask: str, body: bytes) -> Reply:
        account = QueryRecord(ask, user.name)
        with account.recorded():
            async with self.exclusive():
                account.started_at = time.perf_counter()
                told = await self.run_query(ask, body, user, account)
            return Reply(
                told.body if len(told.body) <= RESPONSE_CHUNK_BYTES else _pieces(told.body), told.status
            )

    async def run_query(self, ask: str, body: bytes, user: User, account: "QueryRecord") -> QueryResult:
        """By who has the turn: what the process says of the newest state there is."""
        seconds = self.time_limit_s + (
            min(search_seconds(body), self.time_limit_s) if ask == "optimise" else 0
        )
        told = await self._run_with_timeout(QueryRequest(ask, body, 0, user.name, self.time_limit_s), seconds)
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

    async def catch_up(self) -> ChangesSince:
        """By who has the turn: what has changed since the answer; the process knows it, too, from here on."""
        revision, size = self._snapshot.revision, self._snapshot.size
        try:
            loads = [load async for load in self._snapshot.loads()]
            for load in loads:
                await self.process.send(load)
        except _ProcessExitedError:
            await self.process.exit_reason()
            await self._reset_process()
        except BaseException:
            await self._reset_process()
            raise
        rows = [row for load in loads for row in load.rows if row.revision > revision]
        return ChangesSince(
            rows, any(load.anew for load in loads) and self._snapshot.size != size + len(rows)
        )

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        if self._active_queries > MAX_WAITING_QUERIES:
            raise _busy(self._active_queries)
        self._active_queries += 1
        try:
            try:
                async with asyncio.timeout(self.time_limit_s):
                    await self._lock.acquire()
            except TimeoutError as error:
                raise TooManyRequests(
                    f"the questions before this one took more than {self.time_limit_s:g} s",
                    fix="ask again in a moment",
                ) from error
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._active_queries -= 1

    async def _run_with_timeout(self, ask: QueryRequest, seconds: float) -> QueryResult:
        """Whatever goes wrong, also that nobody wants the answer any more: a process in the middle of something is ended."""
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(ask)
        except TimeoutError as error:
            await self._reset_process()
            fix = "ask about less, or let the server take longer with --fleet-time-limit"
            raise Unavailable(
                f"no answer was found within {seconds:g} s, the search was ended", fix=fix
            ) from error
        except _ProcessExitedError as error:
            try:
                why = await self.process.exit_reason()
            finally:
                await self._reset_process()
            what = f"the process that answers about the fleet ended in the middle: {why}"
            raise Unavailable(what, fix="ask again; the server's log has all that it said") from error
        except BaseException:
            await self._reset_process()
            raise

    async def _exchange(self, ask: QueryRequest) -> QueryResult:
        if self._is_closed:
            raise Unavailable("the server is stopping", fix="ask again when it is back")
        if not self.process.is_running:
            self._snapshot.reset()
            await self.process.start()
        async for load in self._snapshot.loads():
            await self.process.send(load)
        ask.revision = self._snapshot.revision
        await self.process.send(ask)
        return await self.process.receive()

    async def _reset_process(self) -> None:
        self._snapshot.reset()
        await self.process.stop()

    async def close(self) -> None:
        self._is_closed = True
        if self._warm_up_task is not None:
            self._warm_up_task.cancel()
            await asyncio.wait({self._warm_up_task})
        await self._reset_process()


@dataclass
class QueryRecord:
    """What is told about a question: once in the log, once in the metrics."""

    query: str
    user: str
    outcome: str = "failed"
    revision: int = 0
    received_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
        except TooManyRequests:
            self.outcome = "busy"
            raise
        except Unavailable:
            self.outcome = "unanswered"
            raise
        finally:
            self.record()

    def record(self) -> None:
        seconds = time.perf_counter() - self.received_at
        waited = (self.started_at or time.perf_counter()) - self.received_at
        metrics.FLEET_QUERIES.labels(self.query, self.outcome).inc()
        metrics.FLEET_QUERY_SECONDS.labels(self.query).observe(seconds)
        log.info(
            "fleet question",
            ask=self.query,
            user=self.user,
            outcome=self.outcome,
            revision=self.revision,
            seconds=round(seconds, 3),
            waited=round(waited, 3),
        )


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), RESPONSE_CHUNK_BYTES):
        yield body[start : start + RESPONSE_CHUNK_BYTES]
        await asyncio.sleep(0)


def _busy(inside: int) -> TooManyRequests:
    return TooManyRequests(
        f"{inside} questions about the fleet are being answered or wait for it", fix="ask again in a moment"
    )


def query_of_path(parts: list[str]) -> str:
    """Which question a path means; none of ours: nothing."""
    return (
        parts[4]
        if len(parts) == 5
        and tuple(parts[:4]) == FLEET_PATH_PREFIX
        and parts[4] in {*QUERY_TYPES, APPLY_QUERY}
        else ""
    )


async def await_while_connected(answer: "asyncio.Task[Reply]", is_wanted: Callable[[], bool]) -> Reply:
    """The answer; given up when nobody listens any more."""
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=QUERY_CLIENT_CHECK_INTERVAL_S)
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
