"""Released capacity is reused only once it is known to be free, and its release wakes unschedulable
workloads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import RunningScheduler, World, a_scheduling_profile, running_scheduler
from build.virtual import VirtualClock, settle

from lattice.controllers.runtime.object_writes import with_metadata
from lattice.controllers.scheduler import scheduler as scheduling
from lattice.controllers.scheduler.table_updater import NODE_TABLE_KEY
from lattice.errors import Unavailable
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.binder import BindingMode
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Check, Entry, Key, Put, Term, Write

FAR = {
    "affinity": {
        "antiWorkload": {"required": [{"topologyKey": "node", "selector": {"matchLabels": {"app": "x"}}}]}
    }
}


class InterruptedStore(MemoryStore):
    """A store that calls `before` or `after` at the first commit that contains `word`, and that may be
    unavailable."""

    word: bytes = b'"binding"'
    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], None] | None = None
    after_all: Callable[[], Awaitable[None]] | None = None  # and its response is lost
    away: bool = False

    async def get(self, key: Key) -> Entry | None:
        if self.away:
            raise Unavailable("no answer")
        return await super().get(key)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        if self.away:
            raise Unavailable("no answer")
        is_it = any(isinstance(write, Put) and self.word in write.value for write in writes)
        if is_it and self.before is not None:
            before, self.before = self.before, None
            await before()
        revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
        if is_it and self.after is not None:
            after, self.after = self.after, None
            after()
            await settle()
        if is_it and self.after_all is not None:
            then, self.after_all = self.after_all, None
            await settle()
            await then()
            raise Unavailable("no answer")
        if self.away:
            raise Unavailable("no answer")
        return revision


@asynccontextmanager
async def open_world() -> AsyncIterator[tuple[World, InterruptedStore, VirtualClock]]:
    clock = VirtualClock()
    store = InterruptedStore(clock)
    yield World(store, clock), store, clock


async def seconds_until_bound(
    world: World, scheduler: RunningScheduler, clock: VirtualClock, name: str
) -> float:
    begun = clock.monotonic()
    while name not in await world.bindings() and clock.monotonic() - begun < 400:
        await scheduler.run_cycle()
        await clock.advance(5)
    return clock.monotonic() - begun


def stop_caches(scheduler: RunningScheduler) -> None:
    """Stop the caches of the scheduler."""
    for feed in scheduler.feeds:
        feed.cancel()


async def test_unconfirmed_binding_keeps_capacity_while_cache_lags() -> None:
    """The workload is prepared and bound; the response is lost, and the store is unavailable."""
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("x", 600))
        async with running_scheduler(
            store, clock, a_scheduling_profile(binding=BindingMode.TWO_PHASE.value)
        ) as scheduler:
            await scheduler.caught_up()

            async def another() -> None:
                await world.add(a_workload("y", 600))
                await settle()

            def prepared_it() -> None:
                stop_caches(scheduler)
                store.word, store.after = b'"binding"', bound_it

            def bound_it() -> None:
                store.away = True

            store.word, store.before, store.after = b'"reservation":{', another, prepared_it
            with pytest.raises(Unavailable):
                await scheduler.controller.reconcile(NODE_TABLE_KEY)
            store.away = False
            assert await world.bindings() == {"x": "n1"}
            for _ in range(3):
                task = asyncio.create_task(scheduler.controller.reconcile(NODE_TABLE_KEY))
                await settle()
                await clock.advance(5)
                task.cancel()
                await settle()
            assert (await world.bindings(), reservation_record(await world.workload("y"))) == (
                {"x": "n1"},
                None,
            )


@pytest.mark.parametrize("mode", BindingMode)
async def test_cancelled_bind_ends_though_caches_are_stalled(
    mode: BindingMode,
) -> None:
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("x", 600))
        async with running_scheduler(store, clock, a_scheduling_profile(binding=mode.value)) as scheduler:
            await scheduler.caught_up()
            task = asyncio.create_task(scheduler.controller.reconcile(NODE_TABLE_KEY))

            def end() -> None:
                stop_caches(scheduler)
                task.cancel()

            store.after = end
            for _ in range(10):
                await clock.advance(5)
            assert task.cancelled()
            assert await world.bindings() == {"x": "n1"}


@pytest.mark.parametrize("mode", BindingMode)
async def test_deletion_during_bind_wakes_unschedulable_workload(
    mode: BindingMode,
) -> None:
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("x", 1000, priority=5), a_workload("y", 1000))
        async with running_scheduler(store, clock, a_scheduling_profile(binding=mode.value)) as scheduler:

            async def gone() -> None:
                await world.delete(LatticeWorkload, "x")

            store.before = gone
            assert await seconds_until_bound(world, scheduler, clock, "y") <= 30


async def test_reduced_request_wakes_unschedulable_workload() -> None:
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("stays", 800))
        async with running_scheduler(store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.add(a_workload("y", 500))
            await scheduler.run_cycle()
            await world.resize("stays", 300)
            assert await seconds_until_bound(world, scheduler, clock, "y") <= 30


async def test_preemptor_respects_anti_affinity_added_meanwhile() -> None:
    async with open_world() as (world, store, clock), running_scheduler(store, clock) as scheduler:
        await world.add(a_node("n1", 1500), a_workload("stays", 500, priority=20), a_workload("low", 1000))
        await scheduler.run_cycle()
        await world.add(a_workload("high", 1000, priority=10, constraints=FAR))
        await scheduler.run_cycle()
        assert set(scheduler.controller.awaiting_victims.by_path) == {"default/high"}
        entry = await world.entry(LatticeWorkload, "stays")
        await store.commit([with_metadata(entry, lambda metadata: metadata | {"labels": {"app": "x"}})])
        await scheduler.run_cycle()
        await world.set_status(LatticeWorkload, "low", binding=None, allocated_ports={}, decision={})
        for _ in range(3):
            await scheduler.run_cycle()
            await clock.advance(3)
        assert "high" not in await world.bindings()


@pytest.mark.parametrize("mode", [BindingMode.OPTIMISTIC, BindingMode.TWO_PHASE], ids=str)
async def test_grown_request_invalidates_unwritten_decision(
    mode: BindingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "BATCH_SIZE", 1)
    monkeypatch.setattr(scheduling, "MAX_BATCHES_IN_FLIGHT", 60)

    def on(name: str) -> dict[str, Any]:
        return {"constraints": {"nodeSelector": {"k": name}}}

    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 3000, labels={"k": "1"}), a_node("n2", 30000, labels={"k": "2"}))
        await world.add(a_workload("stays", 1000, **on("1")))
        async with running_scheduler(store, clock, a_scheduling_profile(binding=mode.value)) as scheduler:
            await scheduler.run_cycle()
            await world.add(
                a_workload("a", 1000, priority=9, **on("1")), a_workload("x", 1000, priority=8, **on("1"))
            )
            await world.add(*(a_workload(f"z{number}", 10, **on("2")) for number in range(20)))

            async def grow() -> None:
                await world.resize("stays", 2000)
                for _ in range(12):
                    await asyncio.sleep(0)

            store.before = grow
            await scheduler.run_cycle()
            assert sorted(name for name, node in (await world.bindings()).items() if node == "n1") == [
                "a",
                "stays",
            ]


async def test_binding_does_not_clear_uncertainty_of_node() -> None:
    """Another binding to that node may have been committed with a lost response: only the caches know."""
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("x", 600))
        async with running_scheduler(store, clock) as scheduler:
            await scheduler.caught_up()

            async def doubt() -> None:
                stop_caches(scheduler)
                scheduler.controller.binding_cycle.binder.node_revisions["n1"] = 0

            store.before = doubt
            task = asyncio.create_task(scheduler.controller.reconcile(NODE_TABLE_KEY))
            await clock.advance(5)
            task.cancel()
            assert await world.bindings() == {"x": "n1"}
            assert scheduler.controller.binding_cycle.binder.node_revisions["n1"] == 0


@pytest.mark.parametrize("mode", BindingMode)
async def test_confirmed_binding_counts_current_request(mode: BindingMode) -> None:
    """The response is lost, and the workload grows before the scheduler reads it again."""
    async with open_world() as (world, store, clock):
        await world.add(a_node("n1", 1000), a_workload("x", 300))
        async with running_scheduler(store, clock, a_scheduling_profile(binding=mode.value)) as scheduler:
            store.after_all = lambda: world.resize("x", 900)
            with suppress(ExceptionGroup):
                await scheduler.run_cycle()
            await world.add(a_workload("y", 600))
            for _ in range(5):
                await clock.advance(10)
                await scheduler.run_cycle()
            assert await world.bindings() == {"x": "n1"}


@pytest.mark.parametrize("mode", BindingMode)
async def test_preempted_waiter_does_not_block_preemptor(mode: BindingMode) -> None:
    """One of the two victims of `high` outlives its reservation; `low`, which is nominated for the rest
    meanwhile, is preempted."""
    async with (
        open_world() as (world, store, clock),
        running_scheduler(store, clock, a_scheduling_profile(binding=mode.value)) as scheduler,
    ):
        await world.add(a_node("n1", 1000), *(a_workload(name, 500, priority=5) for name in ("v1", "v2")))
        await scheduler.run_cycle()
        for each in (a_workload("high", 1000, priority=10), a_workload("low", 500)):
            await world.add(each)
            await scheduler.run_cycle()
        await world.delete(LatticeWorkload, "v1")
        for _ in range(150):
            await clock.advance(1)
            await scheduler.run_cycle()
        await world.delete(LatticeWorkload, "v2")
        for _ in range(60):
            await clock.advance(1)
            await scheduler.run_cycle()
        assert await world.bindings() == {"high": "n1"}
