"""An event loop that owns time and order: the same seed gives the same run. Processes in it are paused and killed as real ones are.

Whatever is ready at one moment runs in an order drawn from the seed. A killed process runs nothing any more, no `finally` and no `except`:
what it had under way is kept in a graveyard, so that no destructor runs it either.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
MAX_ROUNDS_PER_INSTANT, INSTANT_S = (
    1000,
    1e-6,
)  # after so many rounds at one moment, so many seconds have passed


class ProcessState(Enum):
    ALIVE = "alive"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """What runs under one name on one host: a server, or an agent. A restart is another process."""

    name: str
    host: str
    state: ProcessState = ProcessState.ALIVE
    deferred: list[asyncio.Handle] = field(default_factory=list)  # what it would have run while it was paused

    def __post_init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(CURRENT_PROCESS.set, self)

    @property
    def is_alive(self) -> bool:
        return self.state is not ProcessState.DEAD


CURRENT_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
NO_PROCESS = contextvars.Context()  # what happens in no process: messages arrive, clouds make machines


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class SimTask(asyncio.Task[T]):
    """Sets of tasks are walked through in the order in which they were made, not by their addresses."""

    number: int
    process: Process | None

    def __hash__(self) -> int:
        return self.number


class SimTimer(asyncio.TimerHandle):
    """Costs as little as it can: a run makes tens of thousands."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: "SimLoop",
        context: contextvars.Context,
    ) -> None:
        self._when, self._callback, self._args, self._loop, self._context = (
            when,
            callback,
            args,
            loop,
            context,
        )
        self._cancelled, self._scheduled, self._repr, self._source_traceback = False, True, None, None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimLoop(asyncio.BaseEventLoop):
    """Not the base class's own ways of calling soon and later: they ask each time whether they are closed, debugged, or slow."""

    _ready: deque[Any]  # handles, of the base class, with what it keeps in them
    _scheduled: list[tuple[float, int, Any]]  # when, a number, a handle: compared without asking the handles

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.steps = 0
        self.unhandled_errors: list[str] = []  # what nobody handled
        self.killed_work: list[Any] = []
        self._now = 0.0
        self._rounds = 0  # since time last passed
        self._numbers = itertools.count(1)
        self.set_exception_handler(self._note)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimTimer:
        handle = SimTimer(
            self._now, callback, args, self, contextvars.copy_context() if context is None else context
        )
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimTimer:
        handle = SimTimer(
            when, callback, args, self, contextvars.copy_context() if context is None else context
        )
        heapq.heappush(self._scheduled, (when, next(self._numbers), handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimTimer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> SimTask[Any]:
        task: Any = SimTask.__new__(SimTask)
        task.number = next(self._numbers)  # hashed while it is made
        task.process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        task.__init__(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False
        made: SimTask[Any] = task
        return made

    def time(self) -> float:
        return self._now

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of that process, whoever asks for it."""
        return self.create_task(
            coro, context=(contextvars.Context() if process is None else process.context.copy())
        )

    def schedule_external(
        self, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Something that happens in no process."""
        return self.call_at(max(when, self._now), callback, *args, context=NO_PROCESS)

    def kill(self, process: Process) -> None:
        process.state = ProcessState.DEAD
        self.killed_work += [
            each for each in asyncio.all_tasks(self) if isinstance(each, SimTask) and each.process is process
        ]
        self.killed_work += process.deferred
        process.deferred = []

    def pause(self, process: Process) -> None:
        if process.state is ProcessState.ALIVE:
            process.state = ProcessState.PAUSED

    def resume(self, process: Process) -> None:
        if process.state is ProcessState.PAUSED:
            process.state = ProcessState.ALIVE
            held, process.deferred = process.deferred, []
            self._ready.extend(held)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """Threads would bring an order of their own: done at once, here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, as a thread would
            future.set_exception(error)
        return future

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unhandled_errors.append(f"{context.get('message', '')}: {error!r}")

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        return None

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self.killed_work.append(agen)

    def _process_events(self, event_list: Any) -> None:
        return None

    def _run_once(self) -> None:
        """Work takes time: who is busy without end at one moment would wait for ever for the least part of a second to pass."""
        self._rounds = self._rounds + 1 if self._ready else 0
        if not self._ready:
            self._advance()
        elif self._rounds % MAX_ROUNDS_PER_INSTANT == 0:
            self._now += INSTANT_S
        ready = list(self._ready)
        self._ready.clear()
        if len(ready) > 1:
            self._shuffle(ready)
        self.steps += len(ready)
        for handle in ready:
            if handle._cancelled:
                continue
            context = handle._context
            process = context.get(CURRENT_PROCESS)
            if process is None or process.state is ProcessState.ALIVE:
                try:
                    context.run(handle._callback, *handle._args)
                except Exception as error:  # noqa: BLE001 - as the base class does: told, and everybody else goes on
                    self.call_exception_handler({"message": f"in {handle._callback}", "exception": error})
            elif process.state is ProcessState.PAUSED:
                process.deferred.append(handle)
            else:
                self.killed_work.append(handle)

    def _shuffle(self, ready: list[Any]) -> None:
        draw = self.rng.random
        for last in range(len(ready) - 1, 0, -1):
            other = int(draw() * (last + 1))
            ready[last], ready[other] = ready[other], ready[last]

    def _advance(self) -> None:
        """To the next moment at which something is due; all that is due then becomes ready."""
        scheduled = self._scheduled
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not scheduled:
            raise Deadlock(f"at {self._now:.3f} s everybody waits and no timer runs")
        now = self._now = max(self._now, scheduled[0][0])
        while scheduled and scheduled[0][0] <= now:
            timer = heapq.heappop(scheduled)[2]
            if not timer._cancelled:
                self._ready.append(timer)
