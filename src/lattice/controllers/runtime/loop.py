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

from lattice import metrics, tracing as traces
from lattice.clock import Alarm, Clock, stamp
from lattice.controllers.runtime.workqueue import RIVALRY, TROUBLE, Again, Lane, Turns
from lattice.errors import Conflict, Fenced, LatticeError, Unavailable
from lattice.store.cache import Cache
from lattice.store.protocol import Change

__all__ = ["Again", "Controller", "Lane", "Loop", "Pace", "Source", "run_all"]

WORKERS = 8
RESYNC = 30.0  # seconds between looks at everything, changed or not
PATIENCE = 60.0  # seconds after which work on one key is broken off and counts as trouble
HAND_OVER = 0.5  # seconds to finish what is in hand: a role must be free within one

log = structlog.get_logger()


class Controller(Protocol):
    """Told which key to look at, never what happened to it. A key is a path in a cache: `namespace/name`."""

    @property
    def name(self) -> str:
        """In metrics and in the log."""
        ...

    async def reconcile(self, key: str) -> Again | None: ...


def own_path(change: Change) -> Iterable[str]:
    return (change.key.path,)


@dataclass(frozen=True)
class Source:
    """Where wake-ups come from: changes in a copy, and which keys of the controller each is about."""

    cache: Cache[Any]
    keys: Callable[[Change], Iterable[str]] = own_path


@dataclass(frozen=True, slots=True)
class Pace:
    workers: int = WORKERS
    resync: float = RESYNC  # math.inf: none
    patience: float = PATIENCE


class _Alarm:
    """One at a time: set to an earlier hour it is wound anew, to a later one it rings in vain once."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at = math.inf
        self._wound: Alarm | None = None

    def set(self, at: float) -> None:
        if at >= self._at:
            return
        self.stop()
        self._at = at
        self._wound = self._clock.alarm(max(0.0, at - self._clock.monotonic()), self._rings)

    def stop(self) -> None:
        self._at = math.inf
        if self._wound is not None:
            self._wound.cancel()

    def _rings(self) -> None:
        self._at = math.inf
        self._ring()


class _Work(NamedTuple):
    task: asyncio.Task[None]
    until: float


@dataclass
class Loop:
    """Runs one controller. `everything` lists its keys, for the first look and for each resync; the caches are run by somebody else."""

    controller: Controller
    clock: Clock
    rng: random.Random
    everything: Callable[[], Iterable[str]]
    sources: Sequence[Source] = ()
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._turns = Turns(self.clock, self.rng)
        self._work: dict[str, _Work] = {}
        self._overdue: set[str] = set()
        self._woken = asyncio.Event()
        self._alarm = _Alarm(self.clock, self._woken.set)
        self._resync_at = math.inf
        self._stop_at: float | None = None  # no key is begun any more, and none worked on after this
        self._fenced: Fenced | None = None
        self._deaf: list[Callable[[], None]] = []
        self._count = metrics.Reconciles(self.controller.name)
        self._looked: datetime | None = None

    @property
    def pending(self) -> int:
        return self._turns.pending

    @property
    def last_look(self) -> str | None:
        return None if self._looked is None else stamp(self._looked)

    @property
    def in_hand(self) -> tuple[str, ...]:
        return tuple(self._work)

    def wake(self, keys: Iterable[str], lane: Lane = Lane.ORDINARY) -> None:
        for key in keys:
            self._turns.wake(key, lane)
        self._woken.set()

    def stop(self, within: float = HAND_OVER) -> None:
        """Begin nothing more, finish what is in hand within so many seconds; `run` then returns. To kill it, cancel `run`."""
        self._stop_at = self.clock.monotonic() + within
        self._woken.set()

    async def run(self, needs: Iterable[Cache[Any]] = ()) -> None:
        """Until stopped or cancelled. Raises Fenced once a write is refused because the term is over.

        `needs`: nothing is looked at before these copies are filled. What is not known yet must not be taken for not there."""
        filling = asyncio.create_task(self._begin(needs))
        filling.add_done_callback(lambda _: self._woken.set())
        try:
            while not self._is_over():
                if filling.done():
                    filling.result()
                    self._step()
                self._alarm.set(self._next_hour())
                await self._woken.wait()
                self._woken.clear()
        finally:
            await self._end(filling)
        if self._fenced is not None:
            raise self._fenced

    async def _begin(self, needs: Iterable[Cache[Any]]) -> None:
        for cache in (*needs, *(source.cache for source in self.sources)):
            await cache.wait_for()
        for source in (
            self.sources
        ):  # nothing waits from here on: no change is between hearing of them and the first look
            self._deaf.append(source.cache.on_change(partial(self._hear, source)))
        self.wake(self.everything())
        self._resync_at = self.clock.monotonic() + self.pace.resync * (
            0.5 + self.rng.random() / 2
        )  # controllers do not look all at once

    def _hear(self, source: Source, change: Change) -> None:
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

    def _is_over(self) -> bool:
        if self._fenced is not None:
            return True
        return self._stop_at is not None and (not self._work or self.clock.monotonic() >= self._stop_at)

    def _next_hour(self) -> float:
        patience = (
            next(iter(self._work.values())).until if self._work else math.inf
        )  # begun first, over first
        if self._stop_at is not None:
            return min(self._stop_at, patience)
        due = self._turns.next_due() if len(self._work) < self.pace.workers else math.inf
        return min(self._resync_at, patience, due)

    def _step(self) -> None:
        now = self.clock.monotonic()
        self._break_off(now)
        if self._stop_at is not None:
            return
        if now >= self._resync_at:
            self._resync_at = now + self.pace.resync
            self.wake(self.everything(), Lane.BACKGROUND)
        while len(self._work) < self.pace.workers and (key := self._turns.take()) is not None:
            task = asyncio.create_task(self._attempt(key))
            self._work[key] = _Work(task, now + self.pace.patience)
            task.add_done_callback(partial(self._finished, key))
        self._count.depth(self._turns.ready)

    def _break_off(self, now: float) -> None:
        for key, work in self._work.items():
            if work.until > now:
                return
            if key not in self._overdue:
                self._overdue.add(key)
                work.task.cancel()

    def _finished(self, key: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step, or by what it waited for
            self._lay_down(key)
            if not self._is_over():
                self._turns.failed(key, TROUBLE)
        self._woken.set()

    def _lay_down(self, key: str) -> None:
        """Before it can be taken up again, which may be at once."""
        del self._work[key]
        self._overdue.discard(key)

    async def _attempt(self, key: str) -> None:
        began = self.clock.monotonic()
        with traces.span("look", controller=self.controller.name, key=key) as span:
            result = await self._look(key)
            span.tell(result=result)
        now = self.clock.monotonic()
        self._looked = self.clock.now()
        self._count.attempt(result, now - began)

    async def _look(self, key: str) -> str:
        """What became of it."""
        try:
            again = await self.controller.reconcile(key)
        except asyncio.CancelledError:
            if key not in self._overdue:
                raise
            self._lay_down(key)
            slow = Unavailable(
                f"took longer than {self.pace.patience:g} s",
                where=key,
                fix="see what it waits for; it is tried again",
            )
            return self._fail(key, slow)
        except Exception as error:  # noqa: BLE001 - one bad key must not stop the others; it is logged there
            self._lay_down(key)
            return self._fail(key, error)
        self._lay_down(key)
        self._turns.done(key, again)
        return "done" if again is None else "again"

    def _fail(self, key: str, error: Exception) -> str:
        kind = _meaning(error)
        if isinstance(kind, Fenced):
            self._fenced = kind
            return "fenced"
        if isinstance(kind, Conflict):
            self._turns.failed(key, RIVALRY)
            return "conflict"
        seconds = self._turns.failed(key, TROUBLE)
        words = {
            "controller": self.controller.name,
            "key": key,
            "failures": self._turns.failures(key),
            "again_in": round(seconds, 3),
        }
        if isinstance(kind, LatticeError):
            log.warning("reconcile failed", **words, why=str(kind))
        else:
            log.error("reconcile failed", **words, why=repr(error), exc_info=error)
        return "failed"

    async def _end(self, filling: asyncio.Task[None]) -> None:
        for stop_hearing in self._deaf:
            stop_hearing()
        self._alarm.stop()
        left = [filling, *(work.task for work in self._work.values())]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._count.depth(0)


def _meaning(error: Exception) -> Exception:
    """What a group of errors comes to: fenced if any is, a conflict if all are."""
    if not isinstance(error, ExceptionGroup):
        return error
    parts = [_meaning(each) for each in error.exceptions]
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
        log.info("controllers end", why=str(_meaning(over)))
    return is_fenced
