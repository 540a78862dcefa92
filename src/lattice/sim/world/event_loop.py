"""Deterministic event loop with virtual time: the same seed gives the same run.

Callbacks that are ready at the same instant run in an order drawn from the seed. Processes can be paused and
killed. A killed process runs no further code, neither `finally` nor `except`: the loop keeps references to
the process's tasks, so that no destructor runs their code.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
# After MAX_ROUNDS_PER_INSTANT rounds without a timer, virtual time advances by INSTANT_S seconds.
MAX_ROUNDS_PER_INSTANT, INSTANT_S = (1000, 1e-6)
# The busiest second of a simulated world takes about 1,600 steps; beyond this limit something repeats itself.
MAX_STEPS_PER_SECOND = 100_000
# Steps after the limit whose tasks the error names.
NAMED_STEPS = 1_000


class ProcessState(Enum):
    ALIVE = "alive"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """A server or an agent on a host. A restart creates another process."""

    name: str
    host: str
    state: ProcessState = ProcessState.ALIVE
    # Callbacks that became ready while the process was paused.
    deferred: list[asyncio.Handle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(CURRENT_PROCESS.set, self)

    @property
    def is_alive(self) -> bool:
        return self.state is not ProcessState.DEAD


CURRENT_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
# Context of events outside of every process: deliveries of the network, new machines of the provider.
NO_PROCESS = contextvars.Context()


class Deadlock(Exception):
    """Every task waits and no timer is scheduled."""


class BusyLoop(Exception):
    """Tasks run on and on while virtual time hardly advances."""


class SimTask(asyncio.Task[T]):
    """A task that hashes by creation order, so that iteration over sets of tasks does not depend on
    addresses."""

    number: int
    process: Process | None

    def __hash__(self) -> int:
        return self.number


class SimTimer(asyncio.TimerHandle):
    """A timer handle with a minimal constructor, because a run creates tens of thousands of timers."""

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
    """Event loop with virtual time; overrides call_soon and call_at without the checks of the base class, for
    speed."""

    # Handles; the attribute belongs to the base class.
    _ready: deque[Any]
    # Time, sequence number and handle: the number decides ties, so handles are never compared.
    _scheduled: list[tuple[float, int, Any]]

    def __init__(self, rng: random.Random, max_steps_per_second: int = MAX_STEPS_PER_SECOND) -> None:
        super().__init__()
        self.rng, self.max_steps_per_second = rng, max_steps_per_second
        self.steps = 0
        self.unhandled_errors: list[str] = []
        # Tasks, handles and generators of killed processes, kept from destruction.
        self.killed_work: list[Any] = []
        self._now = 0.0
        # Consecutive rounds in which callbacks were ready.
        self._rounds = 0
        # The virtual second that the loop is in, and the steps before it.
        self._second, self._steps_before_second = 0, 0
        self._busy_tasks: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self.set_exception_handler(
            lambda _, context: self.unhandled_errors.append(
                f"{context.get('message', '')}: {context.get('exception')!r}"
            )
        )

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
        # The constructor of the base class hashes the task.
        task.number = next(self._numbers)
        task.process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        task.__init__(coro, loop=self, name=name, context=context)
        # Tasks of killed processes never end, and asyncio would log each of them.
        task._log_destroy_pending = False
        created: SimTask[Any] = task
        return created

    def time(self) -> float:
        return self._now

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Create a task of `process`, whichever process calls."""
        return self.create_task(
            coro, context=(contextvars.Context() if process is None else process.context.copy())
        )

    def schedule_external(
        self, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Schedule an event outside of every process."""
        return self.call_at(max(when, self._now), callback, *args, context=NO_PROCESS)

    def kill(self, process: Process) -> None:
        process.state = ProcessState.DEAD
        self.killed_work += [
            task for task in asyncio.all_tasks(self) if isinstance(task, SimTask) and task.process is process
        ]
        # No destructor may run code of the killed process.
        self.killed_work += process.deferred
        process.deferred = []

    def pause(self, process: Process) -> None:
        if process.state is ProcessState.ALIVE:
            process.state = ProcessState.PAUSED

    def resume(self, process: Process) -> None:
        if process.state is ProcessState.PAUSED:
            process.state = ProcessState.ALIVE
            deferred, process.deferred = process.deferred, []
            # Deferred callbacks become ready together and run in a random order, like all ready callbacks.
            self._ready.extend(deferred)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """Run `func` at once in the loop, because threads would make the order nondeterministic."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets the exception, as from a thread
            future.set_exception(error)
        return future

    # The base class would close abandoned generators and so run code of killed processes.
    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        return None

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self.killed_work.append(agen)

    def _process_events(self, event_list: Any) -> None:
        return None

    def _run_once(self) -> None:
        """Run all ready callbacks in a random order.

        Many consecutive rounds also advance virtual time a little. Otherwise a process that retries without a
        sleep would keep virtual time at one instant forever.
        """
        self._rounds = self._rounds + 1 if self._ready else 0
        if not self._ready:
            self._advance()
        # A retry loop without a sleep must not stop the clock.
        elif self._rounds % MAX_ROUNDS_PER_INSTANT == 0:
            self._now += INSTANT_S
        ready = list(self._ready)
        self._ready.clear()
        # A Fisher-Yates shuffle by hand, because `random.shuffle` draws other numbers, which would change the
        # run of every seed.
        draw = self.rng.random
        for index in range(len(ready) - 1, 0, -1):
            swap = int(draw() * (index + 1))
            ready[index], ready[swap] = ready[swap], ready[index]
        self.steps += len(ready)
        if self.steps - self._steps_before_second > self.max_steps_per_second:
            self._check_progress(ready)
        for handle in ready:
            if handle._cancelled:
                continue
            context = handle._context
            process = context.get(CURRENT_PROCESS)
            if process is None or process.state is ProcessState.ALIVE:
                try:
                    context.run(handle._callback, *handle._args)
                except Exception as error:  # noqa: BLE001 - as the base class: report, and continue
                    self.call_exception_handler({"message": f"in {handle._callback}", "exception": error})
            elif process.state is ProcessState.PAUSED:
                process.deferred.append(handle)
            else:
                self.killed_work.append(handle)

    def _check_progress(self, ready: list[Any]) -> None:
        """Raise BusyLoop with the tasks that run most if virtual time stays in one second."""
        if int(self._now) != self._second:
            self._second, self._steps_before_second = int(self._now), self.steps
            self._busy_tasks.clear()
            return
        for handle in ready:
            owner = getattr(handle._callback, "__self__", None)
            work = owner.get_coro() if isinstance(owner, asyncio.Task) else handle._callback
            self._busy_tasks[getattr(work, "__qualname__", repr(work))] += 1
        if self._busy_tasks.total() > NAMED_STEPS:
            names = ", ".join(f"{name} {count:,} times" for name, count in self._busy_tasks.most_common(3))
            raise BusyLoop(
                f"at {self._now:.3f} s more than {self.max_steps_per_second:,} steps ran within one virtual second;"
                f" of the last {self._busy_tasks.total():,}: {names}"
            )

    def _advance(self) -> None:
        """Advance virtual time to the next timer; all timers that are due become ready."""
        scheduled = self._scheduled
        # A cancelled timer must not advance the clock.
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not scheduled:
            raise Deadlock(f"at {self._now:.3f} s every task waits and no timer is scheduled")
        now = self._now = max(self._now, scheduled[0][0])
        while scheduled and scheduled[0][0] <= now:
            timer = heapq.heappop(scheduled)[2]
            if not timer._cancelled:
                self._ready.append(timer)
