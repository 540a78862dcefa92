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


class State(Enum):
    ALIVE = "alive"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """What runs under one name on one host: a server, or an agent. A restart is another process."""

    name: str
    host: str
    state: State = State.ALIVE
    held: list[asyncio.Handle] = field(default_factory=list)  # what it would have run while it was paused

    def __post_init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
NOBODY = contextvars.Context()  # what happens in no process: messages arrive, clouds make machines


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class SimTask(asyncio.Task[T]):
    """Sets of tasks are walked through in the order in which they were made, not by their addresses."""

    def __init__(self, coro: Coroutine[Any, Any, T], number: int, **rest: Any) -> None:
        self.number = number
        context = rest.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coro, **rest)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    _ready: deque[Any]  # handles, of the base class, with what it keeps in them
    _scheduled: list[Any]

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.steps = 0
        self.errors: list[str] = []  # what nobody handled
        self.graveyard: list[Any] = []
        self._now = 0.0
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of that process, whoever asks for it."""
        return self.create_task(coro, context=(contextvars.Context() if process is None else process.context.copy()))

    def post(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Something that happens in no process."""
        return self.call_at(max(when, self._now), callback, *args, context=NOBODY)

    def kill(self, process: Process) -> None:
        process.state = State.DEAD
        self.graveyard += [each for each in asyncio.all_tasks(self) if isinstance(each, SimTask) and each.process is process]
        self.graveyard += process.held
        process.held = []

    def pause(self, process: Process) -> None:
        if process.state is State.ALIVE:
            process.state = State.PAUSED

    def resume(self, process: Process) -> None:
        if process.state is State.PAUSED:
            process.state = State.ALIVE
            held, process.held = process.held, []
            self._ready.extend(held)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """Threads would bring an order of their own: done at once, here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, as a thread would
            future.set_exception(error)
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], **rest: Any) -> SimTask[T]:
        return SimTask(coro, next(self._numbers), loop=loop, **rest)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message', '')}: {error!r}")

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        return None

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self.graveyard.append(agen)

    def _process_events(self, event_list: Any) -> None:
        return None

    def _run_once(self) -> None:
        if not self._ready:
            self._advance()
        ready = list(self._ready)
        self._ready.clear()
        if len(ready) > 1:
            self.rng.shuffle(ready)
        self.steps += len(ready)
        for handle in ready:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is None or process.state is State.ALIVE:
                handle._run()
            elif process.state is State.PAUSED:
                process.held.append(handle)
            else:
                self.graveyard.append(handle)

    def _advance(self) -> None:
        """To the next moment at which something is due; all that is due then becomes ready."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if not scheduled:
            raise Deadlock(f"at {self._now:.3f} s everybody waits and no timer runs")
        self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)
