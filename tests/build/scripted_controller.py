"""A controller with scripted results, in a loop in virtual time."""

import asyncio
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from build.virtual import VirtualClock
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.errors import Conflict

Answer = Requeue | None | Exception


@dataclass
class ScriptedController:
    """Takes `seconds` for each key, then returns or raises the scripted answers; records when each reconcile
    began and ended."""

    clock: VirtualClock
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    name: str = "scripted"
    begun: list[tuple[str, float]] = field(default_factory=list)
    ended: list[tuple[str, float]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    most: int = 0

    async def reconcile(self, key: str) -> Requeue | None:
        assert key not in self.running, f"two workers on {key}"
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        self.begun.append((key, self.clock.monotonic()))
        try:
            if pause := self.seconds.get(key, 0.0):
                await self.clock.sleep(pause)
        finally:
            self.running.discard(key)
        self.ended.append((key, self.clock.monotonic()))
        answer = self.answers[key].pop(0) if self.answers.get(key) else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def times(self, key: str) -> list[float]:
        return [round(when, 3) for name, when in self.begun if name == key]


@dataclass
class ScriptedBatchController:
    """Records its batches and answers every batch with the next scripted outcome, or raises it."""

    clock: VirtualClock
    outcomes: list[Mapping[str, Requeue | Conflict] | Exception] = field(default_factory=list)
    batch_size: int = 3
    name: str = "batches"
    batches: list[tuple[float, str]] = field(default_factory=list)

    async def reconcile_batch(self, keys: Sequence[str]) -> Mapping[str, Requeue | Conflict]:
        self.batches.append((round(self.clock.monotonic(), 3), "".join(keys)))
        await self.clock.sleep(1.0)
        outcome = self.outcomes.pop(0) if self.outcomes else {}
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def a_loop(
    controller: ScriptedController | ScriptedBatchController,
    keys: Iterable[str] = (),
    sources: tuple[Source, ...] = (),
    concurrency: Concurrency | None = None,
) -> Loop:
    everything = tuple(keys)
    return Loop(
        controller,
        controller.clock,
        random.Random(7),
        lambda: everything,
        sources,
        concurrency or Concurrency(workers=4, resync_s=math.inf),
    )


async def cancel_and_wait(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
