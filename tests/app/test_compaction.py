"""The leader compacts old revisions of the store; a follower only samples revisions."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from build.virtual import VirtualClock

from lattice.app.compaction import HistoryCompactor
from lattice.errors import Unavailable
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put

HISTORY_S, INTERVAL_S = 100.0, 60.0


async def test_compaction_keeps_the_history_of_the_setting() -> None:
    clock, election = VirtualClock(), SimpleNamespace(term=1)
    store = MemoryStore(clock)
    running = asyncio.create_task(compactor(store, clock, election).run())
    await write(store, "first")
    await clock.advance(INTERVAL_S)
    assert store.compacted_revision == 0
    await write(store, "second")
    await clock.advance(INTERVAL_S)
    # The sample after the first write is 60 seconds old, and the sample before it 120 seconds.
    assert store.compacted_revision < await store.revision()
    await clock.advance(2 * INTERVAL_S)
    assert store.compacted_revision == await store.revision()
    running.cancel()


async def test_new_leader_compacts_in_its_first_interval() -> None:
    clock, election = VirtualClock(), SimpleNamespace(term=None)
    store = MemoryStore(clock)
    await write(store, "first")
    running = asyncio.create_task(compactor(store, clock, election).run())
    await clock.advance(10 * INTERVAL_S)
    assert store.compacted_revision == 0
    election.term = 1
    await clock.advance(INTERVAL_S)
    assert store.compacted_revision == await store.revision()
    running.cancel()


async def test_failed_request_does_not_end_compaction() -> None:
    clock, election = VirtualClock(), SimpleNamespace(term=1)
    store = FailingStore(clock)
    await write(store, "first")
    running = asyncio.create_task(compactor(store, clock, election).run())
    await clock.advance(INTERVAL_S)
    store.is_failing = False
    await clock.advance(3 * INTERVAL_S)
    assert store.compacted_revision == await store.revision()
    running.cancel()


class FailingStore(MemoryStore):
    is_failing = True

    async def revision(self) -> int:
        if self.is_failing:
            raise Unavailable("no answer")
        return await super().revision()


def compactor(store: MemoryStore, clock: VirtualClock, election: Any) -> HistoryCompactor:
    return HistoryCompactor(store, clock, cast("Any", election), HISTORY_S, INTERVAL_S)


async def write(store: MemoryStore, name: str) -> None:
    await store.commit([Put(Key("configmaps", "default", name), b"{}")])
