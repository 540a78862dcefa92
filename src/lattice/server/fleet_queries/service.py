"""Fleet queries on the server: plan, why, fit, whatif, cost and optimise, answered by a query process beside
the server.

A fleet query only reads. A query takes seconds, not milliseconds, and would block the event loop of the
server.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from lattice import metrics
from lattice.errors import TooManyRequests, Unavailable
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.feed.placement_input import PLACEMENT_KINDS
from lattice.placement.model.supply import Adapters
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
    QUERY_TYPES,
    search_seconds,
)
from lattice.server.fleet_queries.store_feed import Snapshot
from lattice.server.requests.call import Reply, User
from lattice.server.resources.api import Api

FLEET_PATH_PREFIX = ("apis", GROUP, VERSION, "fleet")
# A request body may hold the manifests of a large fleet.
MAX_QUERY_BYTES = 16 << 20
# Queries that may wait while the process answers another query.
MAX_WAITING_QUERIES = 8
QUERY_CLIENT_CHECK_INTERVAL_S = 0.2
# How long the server waits for the exit of a process that closed its pipes.
EXIT_TIMEOUT_S = 5.0
# Tail of the standard error of the process that the log gets when the process exits.
MAX_STDERR_BYTES = 16 << 10
# Encrypting megabytes in one step would block the event loop.
RESPONSE_CHUNK_BYTES = 64 << 10
SNAPSHOT_RESOURCES = (*(kind.resource.id for kind in PLACEMENT_KINDS), Namespace.resource.id)
log = structlog.get_logger()


class _ProcessExitedError(Exception):
    """The query process exited or closed a pipe."""


@dataclass
class QueryProcess:
    """The query process, started by the first query and restarted after an exit. The log records an
    unexpected exit."""

    prices: str = ""
    latency: str = ""
    # Returns the providers that can create machines, with the runtimes of the machines; None admits every
    # provider.
    adapters: Callable[[], Awaitable[Adapters]] | None = None
    _process: asyncio.subprocess.Process | None = None
    # The providers that the process was started with.
    _started_with: Adapters | None = None
    # Done when the process has exited; the result describes the exit.
    _exit_task: "asyncio.Task[str] | None" = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_running and self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def is_current(self) -> bool:
        """Whether the process runs with the present providers: the runtimes of a provider may be detected after
        the start."""
        return self.is_running and (self.adapters is None or await self.adapters() == self._started_with)

    async def start(self) -> None:
        await self.stop()
        adapters = self._started_with = None if self.adapters is None else await self.adapters()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "lattice.server.fleet_queries.worker",
            self.prices,
            self.latency,
            msgspec.json.encode(adapters).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self._exit_task = asyncio.create_task(self._watch_exit(self._process))

    async def _watch_exit(self, process: asyncio.subprocess.Process) -> str:
        assert process.stderr is not None  # noqa: S101 - `start` opens the pipe
        tail = b""
        while chunk := await process.stderr.read(RESPONSE_CHUNK_BYTES):
            tail = (tail + chunk)[-MAX_STDERR_BYTES:]
        stderr = tail.decode(errors="replace")
        code = await process.wait()
        if code >= 0:
            reason = f"the process exited with code {code}"
        else:
            try:
                reason = f"the process was killed by {signal.Signals(-code).name}"
            except ValueError:
                reason = f"the process was killed by signal {-code}"
        # `stop` forgets the process before killing it, so another process here means an intended exit.
        if process is not self._process:
            if stderr:
                log.info("fleet process wrote to stderr", pid=process.pid, said=stderr)
            return reason
        log.error("fleet process ended", pid=process.pid, why=reason, exception=stderr)
        last_line = stderr.rstrip().rpartition("\n")[2]
        return f"{reason}: {last_line}" if last_line else reason

    async def exit_reason(self) -> str:
        """Describe the exit of a process that has exited, or that closed its pipes and will exit within
        EXIT_TIMEOUT_S."""
        if self._exit_task is None:
            return "the process was not running"
        await asyncio.wait({self._exit_task}, timeout=EXIT_TIMEOUT_S)
        return self._exit_task.result() if self._exit_task.done() else "the process no longer reads its input"

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
        """Kill the process and wait for its exit, so that no zombie remains."""
        process, self._process = self._process, None
        exit_task, self._exit_task = self._exit_task, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if exit_task is not None:
            await exit_task


class ChangesSince(NamedTuple):
    """The objects that changed since a query was answered.

    `is_incomplete`: the snapshot was read in full and an object was deleted, so the rows do not name every
    change.
    """

    rows: list[ObjectRow]
    is_incomplete: bool


@dataclass
class FleetQueryService:
    """Admits fleet queries, runs them one at a time on the query process, and lets MAX_WAITING_QUERIES
    wait."""

    api: Api
    process: QueryProcess
    # Seconds that a query may wait in the queue; the query may then run for as many seconds.
    time_limit_s: float
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Queries that wait or run.
    _active_queries: int = 0
    _is_closed: bool = False
    _warm_up_task: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self._snapshot = Snapshot(self.api.store, self.api.clock, SNAPSHOT_RESOURCES)

    def admit(self, user: User, query: str) -> None:
        """Authorize the user and reject the query with TooManyRequests if the queue is full, before the
        server reads the body."""
        authorize(user, RequestAttributes("get", GROUP, "fleet", name=query), None)
        if self._active_queries > MAX_WAITING_QUERIES:
            QueryRecord(query, user.name, "busy").record()
            raise _busy(self._active_queries)

    def warm_up(self) -> None:
        """Start the query process in the background, because a start takes one or two seconds and an open
        page may soon send a query."""
        if (
            not self.process.is_running
            and not self._is_closed
            and (self._warm_up_task is None or self._warm_up_task.done())
        ):
            self._warm_up_task = asyncio.create_task(self._warm_up_process())

    async def _warm_up_process(self) -> None:
        with contextlib.suppress(TooManyRequests):
            async with self.exclusive():
                # A query may have started the process while the warm-up waited.
                if not self.process.is_running and not self._is_closed:
                    self._snapshot.reset()
                    await self.process.start()

    async def answer(self, user: User, query: str, body: bytes) -> Reply:
        """Run the query of a client and return the reply; large bodies are streamed in chunks."""
        record = QueryRecord(query, user.name)
        with record.recorded():
            async with self.exclusive():
                record.started_at = time.perf_counter()
                result = await self.run_query(query, body, user, record)
            if len(result.body) <= RESPONSE_CHUNK_BYTES:
                return Reply(result.body, result.status)
            return Reply(_chunks(result.body), result.status)

    async def run_query(self, query: str, body: bytes, user: User, record: "QueryRecord") -> QueryResult:
        """Run a query against the newest snapshot; the caller holds `exclusive`."""
        seconds = self.time_limit_s
        if query == "optimise":
            # The search of the optimiser has its own limit, on top of preparing the model.
            seconds += min(search_seconds(body), self.time_limit_s)
        request = QueryRequest(query, body, 0, user.name, self.time_limit_s)
        result = await self._run_with_timeout(request, seconds)
        record.revision = self._snapshot.revision
        record.outcome = "answered" if result.status == 200 else "refused"
        if query == "optimise" and result.status == 200:
            optimum = msgspec.json.decode(result.body, type=_Optimum)
            metrics.PLAN_GAP.set(optimum.gap_millionths / MILLIONTHS)
        if result.broken:
            record.outcome = "failed"
            log.error("fleet query failed", ask=query, exception=result.broken)
        return result

    async def catch_up(self) -> ChangesSince:
        """Return the changes since the last answer and send the changes to the query process; the caller
        holds `exclusive`."""
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
        rows: list[ObjectRow] = []
        for load in loads:
            rows.extend(row for row in load.rows if row.revision > revision)
        is_incomplete = any(load.anew for load in loads) and self._snapshot.size != size + len(rows)
        return ChangesSince(rows, is_incomplete)

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the query process for one query; raise TooManyRequests if the queue is full or the wait
        exceeds the limit."""
        # Checked again: other queries may have arrived while the server read the body.
        if self._active_queries > MAX_WAITING_QUERIES:
            raise _busy(self._active_queries)
        self._active_queries += 1
        try:
            try:
                async with asyncio.timeout(self.time_limit_s):
                    await self._lock.acquire()
            except TimeoutError as error:
                raise TooManyRequests(
                    f"the query waited more than {self.time_limit_s:g} s in the queue",
                    fix="retry in a few seconds",
                ) from error
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._active_queries -= 1

    async def _run_with_timeout(self, request: QueryRequest, seconds: float) -> QueryResult:
        """Send the request and receive the result within the limit; kill the process on every failure.

        A process that was interrupted in the middle of a message, also by a client that disconnected, cannot
        be reused.
        """
        try:
            async with asyncio.timeout(seconds):
                if self._is_closed:
                    raise Unavailable("the server is stopping", fix="retry when the server runs again")
                if not await self.process.is_current():
                    # A new process has no objects, so the feed begins with a full load.
                    self._snapshot.reset()
                    await self.process.start()
                async for load in self._snapshot.loads():
                    await self.process.send(load)
                request.revision = self._snapshot.revision
                await self.process.send(request)
                return await self.process.receive()
        except TimeoutError as error:
            await self._reset_process()
            fix = "reduce the scope of the query, or increase --fleet-time-limit of the server"
            raise Unavailable(f"the query exceeded its time limit of {seconds:g} s", fix=fix) from error
        except _ProcessExitedError as error:
            try:
                reason = await self.process.exit_reason()
            finally:
                await self._reset_process()
            problem = f"the fleet query process ended during the query: {reason}"
            raise Unavailable(problem, fix="retry; the server's log has the output of the process") from error
        except BaseException:
            await self._reset_process()
            raise

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
    """The record of one query: one log line and the metrics, written when the query ends."""

    query: str
    user: str
    outcome: str = "failed"
    revision: int = 0
    received_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the query at the end of the block, with the outcome that an exception implies."""
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
            "fleet query",
            ask=self.query,
            user=self.user,
            outcome=self.outcome,
            revision=self.revision,
            seconds=round(seconds, 3),
            waited=round(waited, 3),
        )


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), RESPONSE_CHUNK_BYTES):
        yield body[start : start + RESPONSE_CHUNK_BYTES]
        # Lets other requests run between two chunks.
        await asyncio.sleep(0)


def _busy(active_queries: int) -> TooManyRequests:
    return TooManyRequests(
        f"{active_queries} fleet queries are running or waiting",
        fix="retry in a few seconds",
    )


def query_of_path(parts: list[str]) -> str:
    """Return the fleet query that the parts of a path name, or "" for every other path."""
    if len(parts) != 5 or tuple(parts[:4]) != FLEET_PATH_PREFIX:
        return ""
    return parts[4] if parts[4] in {*QUERY_TYPES, APPLY_QUERY} else ""


async def await_while_connected(task: "asyncio.Task[Reply]", is_connected: Callable[[], bool]) -> Reply:
    """Wait for the answer; cancel the task and raise ConnectionResetError when the client disconnects."""
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=QUERY_CLIENT_CHECK_INTERVAL_S)
            if not task.done() and not is_connected():
                raise ConnectionResetError("the client disconnected")
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


class _Optimum(msgspec.Struct, rename="camel"):
    """The optimality gap in the answer to an optimise query."""

    gap_millionths: int
