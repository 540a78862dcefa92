"""The only loop: which key of a controller is worked on when, by how many at once, and what follows from how that ended."""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from lattice import metrics
from lattice import tracing as traces
from lattice.clock import Clock, Timer, format_timestamp
from lattice.controllers.runtime.workqueue import (
    CONFLICT_BACKOFF,
    ERROR_BACKOFF,
    Priority,
    Requeue,
    WorkQueue,
)
from lattice.errors import Conflict, Fenced, LatticeError, Unavailable
from lattice.store.cache import Cache
from lattice.store.protocol import Change

__all__ = ["Concurrency", "Controller", "Loop", "Priority", "Requeue", "Source", "run_all"]

WORKERS = 8
RESYNC_INTERVAL_S = 30.0  # seconds between looks at everything, changed or not
RECONCILE_TIMEOUT_S = 60.0  # seconds after which work on one key is broken off and counts as trouble
STOP_TIMEOUT_S = 0.5  # seconds to finish what is in hand: a role must be free within one

log = structlog.get_logger()


class Controller(Protocol):
    """Told which key to look at, never what happened to it. A key is a path in a cache: `namespace/name`."""

    @property
    def name(self) -> str:
        """In metrics and in the log."""
        ...

    async def reconcile(self, key: str) -> Requeue | None: ...


def own_path(change: Change) -> Iterable[str]:
    return (change.key.path,)


@dataclass(frozen=True)
class Source:
    """Where wake-ups come from: changes in a copy, and which keys of the controller each is about."""

    cache: Cache[Any]
    keys: Callable[[Change], Iterable[str]] = own_path


@dataclass(frozen=True, slots=True)
class Concurrency:
    workers: int = WORKERS
    resync_s: float = RESYNC_INTERVAL_S  # math.inf: none
    timeout_s: float = RECONCILE_TIMEOUT_S


class _Timer:
    """One at a time: set to an earlier hour it is wound anew, to a later one it rings in vain once."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = ring
        self._at = math.inf
        self._alarm: Timer | None = None

    def set(self, at: float) -> None:
        if at >= self._at:
            return
        self.stop()
        self._at = at
        self._alarm = self._clock.call_later(max(0.0, at - self._clock.monotonic()), self._fire)

    def stop(self) -> None:
        self._at = math.inf
        if self._alarm is not None:
            self._alarm.cancel()

    def _fire(self) -> None:
        self._at = math.inf
        self._callback()


class _InFlight(NamedTuple):
    task: asyncio.Task[None]
    deadline: float


@dataclass
class Loop:
    """Runs one controller. `everything` lists its keys, for the first look and for each resync; the caches are run by somebody else."""

    controller: Controller
    clock: Clock
    rng: random.Random
    list_keys: Callable[[], Iterable[str]]
    sources: Sequence[Source] = ()
    concurrency: Concurrency = field(default_factory=Concurrency)

    def __post_init__(self) -> None:
        self._queue = WorkQueue(self.clock, self.rng)
        self._in_flight: dict[str, _InFlight] = {}
        self._overdue: set[str] = set()
        self._woken = asyncio.Event()
        self._timer = _Timer(self.clock, self._woken.set)
        self._resync_at = math.inf
        self._stop_at: float | None = None  # no key is begun any more, and none worked on after this
        self._fenced: Fenced | None = None
        self._unsubscribers: list[Callable[[], None]] = []
        self._metrics = metrics.ReconcileMetrics(self.controller.name)
        self._reconciled_at: datetime | None = None

    @property
    def pending(self) -> int:
        return self._queue.pending

    @property
    def last_reconciled_at(self) -> str | None:
        return None if self._reconciled_at is None else format_timestamp(self._reconciled_at)

    @property
    def in_flight(self) -> tuple[str, ...]:
        return tuple(self._in_flight)

    def wake(self, keys: Iterable[str], lane: Priority = Priority.NORMAL) -> None:
        for key in keys:
            self._queue.wake(key, lane)
        self._woken.set()

    def stop(self, within: float = STOP_TIMEOUT_S) -> None:
        """Begin nothing more, finish what is in hand within so many seconds; `run` then returns. To kill it, cancel `run`."""
        self._stop_at = self.clock.monotonic() + within
        self._woken.set()

    async def run(self, needs: Iterable[Cache[Any]] = ()) -> None:
        """Until stopped or cancelled. Raises Fenced once a write is refused because the term is over.

        `needs`: nothing is looked at before these copies are filled. What is not known yet must not be taken for not there."""
        filling = asyncio.create_task(self._begin(needs))
        filling.add_done_callback(lambda _: self._woken.set())
        try:
            while not self._is_finished():
                if filling.done():
                    filling.result()
                    self._start_reconciles()
                self._timer.set(self._next_wakeup())
                await self._woken.wait()
                self._woken.clear()
        finally:
            await self._shut_down(filling)
        if self._fenced is not None:
            raise self._fenced

    async def _begin(self, needs: Iterable[Cache[Any]]) -> None:
        for cache in (*needs, *(source.cache for source in self.sources)):
            await cache.wait_for()
        for source in (
            self.sources
        ):  # nothing waits from here on: no change is between hearing of them and the first look
            self._unsubscribers.append(source.cache.on_change(partial(self._on_change, source)))
        self.wake(self.list_keys())
        self._resync_at = self.clock.monotonic() + self.concurrency.resync_s * (
            0.5 + self.rng.random() / 2
        )  # controllers do not look all at once

    def _on_change(self, source: Source, change: Change) -> None:
        try:
            if keys := source.keys(change):
                self.wake(keys)
        except Exception as error:  # noqa: BLE001 - one odd object must not deafen everybody who reads the copy; the resync finds it
            log.error(
                "change not understood",
                controller=self.controller.name,
                object=str(change.key),
                why=repr(error),
            )

    def _is_finished(self) -> bool:
        if self._fenced is not None:
            return True
        return self._stop_at is not None and (not self._in_flight or self.clock.monotonic() >= self._stop_at)

    def _next_wakeup(self) -> float:
        patience = (
            next(iter(self._in_flight.values())).deadline if self._in_flight else math.inf
        )  # begun first, over first
        if self._stop_at is not None:
            return min(self._stop_at, patience)
        due = self._queue.next_due() if len(self._in_flight) < self.concurrency.workers else math.inf
        return min(self._resync_at, patience, due)

    def _start_reconciles(self) -> None:
        now = self.clock.monotonic()
        self._cancel_overdue(now)
        if self._stop_at is not None:
            return
        if now >= self._resync_at:
            self._resync_at = now + self.concurrency.resync_s
            self.wake(self.list_keys(), Priority.BACKGROUND)
        while len(self._in_flight) < self.concurrency.workers and (key := self._queue.take()) is not None:
            task = asyncio.create_task(self._reconcile_and_measure(key))
            self._in_flight[key] = _InFlight(task, now + self.concurrency.timeout_s)
            task.add_done_callback(partial(self._on_task_done, key))
        self._metrics.set_queue_depth(self._queue.ready)

    def _cancel_overdue(self, now: float) -> None:
        for key, work in self._in_flight.items():
            if work.deadline > now:
                return
            if key not in self._overdue:
                self._overdue.add(key)
                work.task.cancel()

    def _on_task_done(self, key: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step, or by what it waited for
            self._forget_in_flight(key)
            if not self._is_finished():
                self._queue.failed(key, ERROR_BACKOFF)
        self._woken.set()

    def _forget_in_flight(self, key: str) -> None:
        """Before it can be taken up again, which may be at once."""
        del self._in_flight[key]
        self._overdue.discard(key)

    async def _reconcile_and_measure(self, key: str) -> None:
        began = self.clock.monotonic()
        with traces.span("look", controller=self.controller.name, key=key) as span:
            result = await self._reconcile(key)
            span.set_attributes(result=result)
        now = self.clock.monotonic()
        self._reconciled_at = self.clock.now()
        self._metrics.record_reconcile(result, now - began)

    async def _reconcile(self, key: str) -> str:
        """What became of it."""
        try:
            again = await self.controller.reconcile(key)
        except asyncio.CancelledError:
            if key not in self._overdue:
                raise
            self._forget_in_flight(key)
            slow = Unavailable(
                f"took longer than {self.concurrency.timeout_s:g} s",
                where=key,
                fix="see what it waits for; it is tried again",
            )
            return self._handle_error(key, slow)
        except Exception as error:  # noqa: BLE001 - one bad key must not stop the others; it is logged there
            self._forget_in_flight(key)
            return self._handle_error(key, error)
        self._forget_in_flight(key)
        self._queue.done(key, again)
        return "done" if again is None else "again"

    def _handle_error(self, key: str, error: Exception) -> str:
        kind = _root_error(error)
        if isinstance(kind, Fenced):
            self._fenced = kind
            return "fenced"
        if isinstance(kind, Conflict):
            self._queue.failed(key, CONFLICT_BACKOFF)
            return "conflict"
        seconds = self._queue.failed(key, ERROR_BACKOFF)
        words = {
            "controller": self.controller.name,
            "key": key,
            "failures": self._queue.failures(key),
            "again_in": round(seconds, 3),
        }
        if isinstance(kind, LatticeError):
            log.warning("reconcile failed", **words, why=str(kind))
        else:
            log.error("reconcile failed", **words, why=repr(error), exc_info=error)
        return "failed"

    async def _shut_down(self, filling: asyncio.Task[None]) -> None:
        for stop_hearing in self._unsubscribers:
            stop_hearing()
        self._timer.stop()
        left = [filling, *(work.task for work in self._in_flight.values())]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._metrics.set_queue_depth(0)


def _root_error(error: Exception) -> Exception:
    """What a group of errors comes to: fenced if any is, a conflict if all are."""
    if not isinstance(error, ExceptionGroup):
        return error
    parts = [_root_error(each) for each in error.exceptions]
    fenced = [each for each in parts if isinstance(each, Fenced)]
    other = [each for each in parts if not isinstance(each, Conflict)]
    return (fenced or other or parts)[0]


async def run_all(loops: Iterable[Loop], caches: Iterable[Cache[Any]] = ()) -> bool:
    """All loops of one term, and the copies that they read: until all are stopped, or until one is fenced, which ends them all.

    Says whether that was why."""
    is_fenced, copies = False, tuple(caches)
    try:
        async with asyncio.TaskGroup() as feeding:
            feeds = [feeding.create_task(cache.run()) for cache in copies]
            async with asyncio.TaskGroup() as acting:
                for loop in loops:
                    acting.create_task(loop.run(copies))
            for feed in feeds:
                feed.cancel()
    except* Fenced as over:
        is_fenced = True
        log.info("controllers end", why=str(_root_error(over)))
    return is_fenced
