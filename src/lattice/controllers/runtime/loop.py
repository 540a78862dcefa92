"""The reconcile loop: take keys from the work queue, reconcile several keys at a time, alone or in batches,
requeue failures with back-off."""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import structlog

from lattice import metrics
from lattice import tracing as traces
from lattice.clock import Clock, Timer
from lattice.controllers.runtime.workqueue import (
    CONFLICT_BACKOFF,
    ERROR_BACKOFF,
    Priority,
    Requeue,
    WorkQueue,
)
from lattice.errors import Conflict, Fenced, LatticeError, Unavailable
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.cache import Cache
from lattice.store.protocol import Change

__all__ = ["BatchController", "Concurrency", "Controller", "Loop", "Priority", "Requeue", "Source", "run_all"]

WORKERS = 8
# The interval at which every key is reconciled, changed or not.
RESYNC_INTERVAL_S = 30.0
# Time limit of one reconcile; a longer reconcile is cancelled and counts as a failure of its keys.
RECONCILE_TIMEOUT_S = 60.0
# Time that running reconciles have to end after a stop; a server that stops must release its role within a
# second.
STOP_TIMEOUT_S = 0.5

log = structlog.get_logger()


class Controller(Protocol):
    """Reconciles the key that the loop passes; the loop never passes the change. A key is the path of an
    object, `namespace/name`, or a fixed word such as `fleet`."""

    @property
    def name(self) -> str:
        """The name of the controller in metrics and logs."""
        ...

    async def reconcile(self, key: str) -> Requeue | None: ...


@runtime_checkable
class BatchController(Protocol):
    """Reconciles up to `batch_size` keys in one call, so that the writes about the keys share commits."""

    @property
    def name(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    async def reconcile_batch(self, keys: Sequence[str]) -> Mapping[str, Requeue | Conflict]:
        """Reconcile the keys and return the keys that are not done; an error that is raised fails every
        key."""
        ...


@dataclass(frozen=True, slots=True)
class _SingleKeyController:
    """Adapts a controller of single keys to BatchController: every batch has one key."""

    controller: Controller
    batch_size: int = 1

    @property
    def name(self) -> str:
        return self.controller.name

    async def reconcile_batch(self, keys: Sequence[str]) -> Mapping[str, Requeue | Conflict]:
        (key,) = keys
        requeue = await self.controller.reconcile(key)
        return {} if requeue is None else {key: requeue}


def own_path(change: Change) -> Iterable[str]:
    """The path of the changed object: the key of a controller that reconciles the kind of the cache."""
    return (change.key.path,)


@dataclass(frozen=True)
class Source:
    """A cache whose changes wake keys of the controller; `keys` maps a change to the keys to reconcile."""

    cache: Cache[Any]
    keys: Callable[[Change], Iterable[str]] = own_path


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limits of one loop: parallel reconciles, resync interval and timeout of one reconcile in seconds."""

    workers: int = WORKERS
    # math.inf: no resync
    resync_s: float = RESYNC_INTERVAL_S
    timeout_s: float = RECONCILE_TIMEOUT_S


class _Timer:
    """A timer with one deadline: an earlier deadline replaces the current deadline, a later deadline is
    ignored."""

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._deadline = math.inf
        self._handle: Timer | None = None

    def set(self, deadline: float) -> None:
        if deadline >= self._deadline:
            return
        self.stop()
        self._deadline = deadline
        self._handle = self._clock.call_later(max(0.0, deadline - self._clock.monotonic()), self._fire)

    def stop(self) -> None:
        self._deadline = math.inf
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._deadline = math.inf
        self._callback()


class _InFlight(NamedTuple):
    task: asyncio.Task[None]
    deadline: float


@dataclass
class Loop:
    """Run one controller: reconcile a key when a change wakes it, and every key at the start and at each
    resync.

    `list_keys` lists every key. The loop does not run the caches of its sources: `run_all` does.
    """

    controller: Controller | BatchController
    clock: Clock
    rng: random.Random
    list_keys: Callable[[], Iterable[str]]
    sources: Sequence[Source] = ()
    concurrency: Concurrency = field(default_factory=Concurrency)

    def __post_init__(self) -> None:
        self._queue = WorkQueue(self.clock, self.rng)
        controller = self.controller
        self._batch_controller: BatchController = (
            controller if isinstance(controller, BatchController) else _SingleKeyController(controller)
        )
        # Running reconciles by the keys of their batch, in the order in which they started.
        self._in_flight: dict[tuple[str, ...], _InFlight] = {}
        self._overdue: set[tuple[str, ...]] = set()
        self._woken = asyncio.Event()
        self._timer = _Timer(self.clock, self._woken.set)
        self._resync_at = math.inf
        # Set by `stop`: the loop starts no more reconciles, and cancels the running reconciles at this
        # monotonic time.
        self._stop_at: float | None = None
        self._fenced: Fenced | None = None
        self._unsubscribers: list[Callable[[], None]] = []
        self._metrics = metrics.ReconcileMetrics(self.controller.name)
        self._reconciled_at: datetime | None = None

    @property
    def pending(self) -> int:
        """The number of keys that are ready, in progress or backing off."""
        return self._queue.pending

    @property
    def last_reconciled_at(self) -> str | None:
        return None if self._reconciled_at is None else format_timestamp(self._reconciled_at)

    @property
    def in_flight(self) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(self._in_flight))

    def wake(self, keys: Iterable[str], priority: Priority = Priority.NORMAL) -> None:
        """Wake keys: the loop reconciles the keys in the order of their priority."""
        for key in keys:
            self._queue.wake(key, priority)
        self._woken.set()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Start no more reconciles and give running reconciles `timeout_s` seconds to end; `run` then
        returns.

        Cancel `run` to end the loop at once.
        """
        self._stop_at = self.clock.monotonic() + timeout_s
        self._woken.set()

    async def run(self, needs: Iterable[Cache[Any]] = ()) -> None:
        """Run until stopped or cancelled; raise Fenced once the store rejects a write because the term is
        over.

        No key is reconciled before the caches in `needs` are filled: an object that is missing in an empty
        cache may exist in the store.
        """
        # A task, so that `stop` also ends a loop whose caches are not filled yet.
        startup = asyncio.create_task(self._start(needs))
        startup.add_done_callback(lambda _: self._woken.set())
        try:
            while not self._is_finished():
                if startup.done():
                    startup.result()
                    self._start_reconciles()
                # All reconciles have the same timeout, so the first to start is the first to time out.
                deadline = next(iter(self._in_flight.values())).deadline if self._in_flight else math.inf
                if self._stop_at is not None:
                    self._timer.set(min(self._stop_at, deadline))
                else:
                    # Without a free worker no due key can start; the end of a reconcile wakes the loop.
                    has_free_worker = len(self._in_flight) < self.concurrency.workers
                    due = self._queue.next_due() if has_free_worker else math.inf
                    self._timer.set(min(self._resync_at, deadline, due))
                await self._woken.wait()
                self._woken.clear()
        finally:
            for unsubscribe in self._unsubscribers:
                unsubscribe()
            self._timer.stop()
            tasks = [startup, *(work.task for work in self._in_flight.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._metrics.set_queue_depth(0)
        if self._fenced is not None:
            raise self._fenced

    async def _start(self, needs: Iterable[Cache[Any]]) -> None:
        for cache in (*needs, *(source.cache for source in self.sources)):
            await cache.wait_for()
        # Subscribe before listing: a change between the two would otherwise wake no key.
        for source in self.sources:
            self._unsubscribers.append(source.cache.on_change(partial(self._on_change, source)))
        self.wake(self.list_keys())
        if self.concurrency.resync_s < math.inf:
            # The random phase spreads the resyncs of the controllers over time.
            phase = 0.5 + self.rng.random() / 2
            self._resync_at = self.clock.monotonic() + self.concurrency.resync_s * phase

    def _on_change(self, source: Source, change: Change) -> None:
        try:
            if keys := source.keys(change):
                self.wake(keys)
        # One malformed object must not break the other subscribers of the cache; the resync wakes the key.
        except Exception as error:  # noqa: BLE001
            log.error(
                "change of an object failed to wake its controller",
                controller=self.controller.name,
                object=str(change.key),
                why=repr(error),
            )

    def _is_finished(self) -> bool:
        if self._fenced is not None:
            return True
        return self._stop_at is not None and (not self._in_flight or self.clock.monotonic() >= self._stop_at)

    def _start_reconciles(self) -> None:
        now = self.clock.monotonic()
        for running_keys, running in self._in_flight.items():
            if running.deadline > now:
                break
            # Cancel once: a second cancellation would interrupt the clean-up of the reconcile.
            if running_keys not in self._overdue:
                self._overdue.add(running_keys)
                running.task.cancel()
        # A stopping loop starts no reconcile, and a resync would only fill the queue.
        if self._stop_at is not None:
            return
        if now >= self._resync_at:
            self._resync_at = now + self.concurrency.resync_s
            self.wake(self.list_keys(), Priority.BACKGROUND)
        limit = self._batch_controller.batch_size
        while len(self._in_flight) < self.concurrency.workers and (keys := self._queue.take_batch(limit)):
            task = asyncio.create_task(self._reconcile_and_measure(keys))
            self._in_flight[keys] = _InFlight(task, now + self.concurrency.timeout_s)
            task.add_done_callback(partial(self._on_task_done, keys))
        self._metrics.set_queue_depth(self._queue.ready)

    def _on_task_done(self, keys: tuple[str, ...], task: asyncio.Task[None]) -> None:
        # A task may be cancelled before its first step, or by the call that it awaits.
        if task.cancelled():
            self._forget_in_flight(keys)
            if not self._is_finished():
                for key in keys:
                    self._queue.failed(key, ERROR_BACKOFF)
        self._woken.set()

    def _forget_in_flight(self, keys: tuple[str, ...]) -> None:
        """Remove the keys from the running reconciles; must precede the requeue, which may start a key at
        once."""
        del self._in_flight[keys]
        self._overdue.discard(keys)

    async def _reconcile_and_measure(self, keys: tuple[str, ...]) -> None:
        began = self.clock.monotonic()
        # A trace of a batch names the first key.
        with traces.span("look", controller=self.controller.name, key=keys[0]) as span:
            results = await self._reconcile(keys)
            span.set_attributes(result=", ".join(dict.fromkeys(results)))
        now = self.clock.monotonic()
        self._reconciled_at = self.clock.now()
        self._metrics.record_reconcile(results, now - began)

    async def _reconcile(self, keys: tuple[str, ...]) -> Sequence[str]:
        """Reconcile keys, report the outcomes to the work queue, and return the outcomes as metrics
        labels."""
        try:
            outcomes = await self._batch_controller.reconcile_batch(keys)
        except asyncio.CancelledError:
            # Only the timeout of this loop counts as a failure; any other cancellation ends the task.
            if keys not in self._overdue:
                raise
            self._forget_in_flight(keys)
            timeout = Unavailable(
                f"reconcile took longer than {self.concurrency.timeout_s:g} s",
                where=keys[0],
                fix="read the server log for the cause; the controller retries",
            )
            return self._handle_error(keys, timeout)
        # One failing key must not stop the loop; _handle_error logs the error.
        except Exception as error:  # noqa: BLE001
            self._forget_in_flight(keys)
            return self._handle_error(keys, error)
        self._forget_in_flight(keys)
        return [self._record_outcome(key, outcomes.get(key)) for key in keys]

    def _record_outcome(self, key: str, outcome: Requeue | Conflict | None) -> str:
        # Another writer committed first, which is normal: no log line and a short back-off.
        if isinstance(outcome, Conflict):
            self._queue.failed(key, CONFLICT_BACKOFF)
            return "conflict"
        self._queue.done(key, outcome)
        return "done" if outcome is None else "again"

    def _handle_error(self, keys: tuple[str, ...], error: Exception) -> Sequence[str]:
        root = _root_error(error)
        # Another server leads: no write of this term can succeed any more (I-09), so no key is requeued.
        if isinstance(root, Fenced):
            self._fenced = root
            return ["fenced"] * len(keys)
        if isinstance(root, Conflict):
            return [self._record_outcome(key, root) for key in keys]
        delays_s = [self._queue.failed(key, ERROR_BACKOFF) for key in keys]
        fields = {
            "controller": self.controller.name,
            "key": keys[0],
            "failures": self._queue.failures(keys[0]),
            "again_in": round(delays_s[0], 3),
        }
        if len(keys) > 1:
            fields["keys"] = len(keys)
        if isinstance(root, LatticeError):
            log.warning("reconcile failed", **fields, why=str(root))
        else:
            log.error("reconcile failed", **fields, why=repr(error), exc_info=error)
        return ["failed"] * len(keys)


def _root_error(error: Exception) -> Exception:
    """Return the error that decides how a group of errors is handled: Fenced if any error is Fenced, and
    Conflict only if every error is a Conflict."""
    if not isinstance(error, ExceptionGroup):
        return error
    parts = [_root_error(part) for part in error.exceptions]
    fenced = [part for part in parts if isinstance(part, Fenced)]
    unexpected = [part for part in parts if not isinstance(part, Conflict)]
    return (fenced or unexpected or parts)[0]


async def run_all(loops: Iterable[Loop], caches: Iterable[Cache[Any]] = ()) -> bool:
    """Run the loops of one term and the caches that the loops read, until all loops are stopped or a loop is
    fenced.

    A fenced loop ends every loop. Returns True if a loop was fenced.
    """
    is_fenced, cache_list = False, tuple(caches)
    try:
        async with asyncio.TaskGroup() as cache_group:
            cache_tasks = [cache_group.create_task(cache.run()) for cache in cache_list]
            # The loops are the inner group and end first: a running reconcile may still wait for a cache.
            async with asyncio.TaskGroup() as loop_group:
                for loop in loops:
                    loop_group.create_task(loop.run(cache_list))
            # The loops have ended: the caches have no readers any more.
            for cache_task in cache_tasks:
                cache_task.cancel()
    except* Fenced as group:
        is_fenced = True
        log.info("controllers stopped", why=str(_root_error(group)))
    return is_fenced
