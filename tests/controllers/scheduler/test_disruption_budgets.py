"""Preemption never takes more replicas than the disruption budget of their service allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload, make_object
from build.scheduling_world import RunningScheduler, World, a_context, a_virtual_world, running_scheduler
from build.virtual import VirtualClock

from lattice.controllers.runtime.object_writes import with_metadata, with_status
from lattice.controllers.scheduler.scheduler import SchedulingController
from lattice.errors import Unavailable
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import DecidedEviction, EvictionCause
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS

HEAD = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeService"}


def a_budgeted_service(least: int, placed: int) -> LatticeService:
    """The service web with a minimum and so many placed replicas."""
    spec = {"containers": {"main": {"command": ["run"]}}, "replicas": {"min": least}}
    placements = [{"pool": "p", "cluster": "c", "node": "m", "replicas": placed}]
    return make_object(LatticeService, "web", "default", spec=spec, status={"placements": placements})


@asynccontextmanager
async def a_full_cluster(
    least: int, placed: int, **more: Any
) -> AsyncIterator[tuple[World, VirtualClock, RunningScheduler]]:
    """Three full nodes, each with one ready replica of `web`."""
    async with (
        a_virtual_world() as (world, clock),
        running_scheduler(world.store, clock, **more) as scheduler,
    ):
        feed = asyncio.create_task(scheduler.context.cache(LatticeService).run())
        await world.add(
            a_budgeted_service(least, placed), *(a_node(f"n{number}", 1000) for number in range(3))
        )
        for slot in range(3):
            await world.add(a_workload(f"web-{slot}", service="web", slot=slot))
        await scheduler.run_cycle()
        for slot in range(3):
            await set_ready(world, slot)
        await scheduler.context.cache(LatticeService).wait_for(await world.revision())
        try:
            yield world, clock, scheduler
        finally:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)


async def set_ready(world: World, slot: int, *, is_ready: bool = True) -> None:
    await world.set_status(
        LatticeWorkload, f"web-{slot}", ready=is_ready, actual_state="Running" if is_ready else "Starting"
    )


async def set_placed_generation(world: World, decided: int, *, generation: int) -> None:
    """`web` has this generation, and a placement of the generation `decided`."""
    entry = await world.entry(LatticeService, "web")
    status = msgspec.json.decode(entry.value, type=LatticeService).status
    condition = Condition(type="Placed", status="True", reason="Placed", observed_generation=decided)
    put = with_status(
        entry,
        msgspec.structs.replace(status, conditions=(condition,)),
        lambda metadata: metadata | {"generation": generation},
    )
    await world.store.commit([put])


async def marked_victims(world: World) -> list[str]:
    found = [await world.workload(f"web-{slot}") for slot in range(3)]
    return [
        each.metadata.name for each in found if any(said.type == "Leaving" for said in each.status.conditions)
    ]


def unschedulable_message(workload: LatticeWorkload) -> str:
    found: Condition | None = next(
        (condition for condition in workload.status.conditions if condition.type == "Scheduled"), None
    )
    return found.message if found else ""


@pytest.mark.parametrize(
    ("least", "gone"),
    [
        pytest.param(3, 0, id="budget allows none"),
        pytest.param(2, 1, id="budget allows one of three preemptors"),
        pytest.param(0, 3, id="budget allows all"),
    ],
)
async def test_preemption_respects_disruption_budget(least: int, gone: int) -> None:
    async with a_full_cluster(least, 3) as (world, clock, scheduler):
        await world.add(*(a_workload(f"high-{number}", priority=10) for number in range(3)))
        for _ in range(3):
            await scheduler.run_cycle()
            await clock.advance(70)
        assert len(await marked_victims(world)) == gone


async def test_blocked_preemption_resumes_when_replica_is_ready() -> None:
    async with a_full_cluster(2, 3) as (world, clock, scheduler):
        await set_ready(world, 2, is_ready=False)
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        why = "1 workload of lower priority on node"
        assert why in unschedulable_message(await world.workload("high"))
        assert "disruption limits allow only 0 more of service default/web" in unschedulable_message(
            await world.workload("high")
        )
        await set_ready(world, 2)
        await scheduler.run_cycle()
        await clock.advance(1)
        await scheduler.run_cycle()
        assert len(await marked_victims(world)) == 1


async def test_no_preemption_during_rollout() -> None:
    async with a_full_cluster(2, 2) as (world, _, scheduler):
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        assert await marked_victims(world) == []


async def test_no_preemption_before_scale_down_is_placed() -> None:
    async with a_full_cluster(2, 3) as (world, clock, scheduler):
        await set_placed_generation(world, 1, generation=2)
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        assert await marked_victims(world) == [], "one of three goes as it is, and two must stay"
        assert "disruption limits allow only 0 more of service default/web" in unschedulable_message(
            await world.workload("high")
        )
        await set_placed_generation(world, 2, generation=2)
        await scheduler.run_cycle()
        await clock.advance(1)
        await scheduler.run_cycle()
        assert len(await marked_victims(world)) == 1, (
            "three are placed: the budget allows one, and the preemptor is woken"
        )


async def test_no_eviction_for_preemptor_deleted_before_marking() -> None:
    async with a_full_cluster(0, 3) as (world, clock, scheduler):
        commit = world.store.commit

        async def away(writes: Any, **rest: Any) -> int:
            if any(b"Preempted on node" in write.value for write in writes if hasattr(write, "value")):
                raise Unavailable("the store does not answer", where="store", fix="wait")
            revision: int = await commit(writes, **rest)
            return revision

        world.store.commit = away  # type: ignore[method-assign]
        await world.add(a_workload("high", priority=10))
        with pytest.raises(Unavailable):
            await scheduler.run_cycle()
        world.store.commit = commit  # type: ignore[method-assign]
        await world.delete(LatticeWorkload, "high")
        await scheduler.run_cycle()
        assert await marked_victims(world) == []
        await world.add(a_workload("higher", priority=20))
        await scheduler.run_cycle()
        await clock.advance(1)
        assert len(await marked_victims(world)) == 1, "they are known to be there, and one of them makes room"


async def test_terminating_victim_is_not_marked() -> None:
    async with a_full_cluster(0, 3) as (world, _, scheduler):
        chosen: dict[str, str] = {}
        mark = scheduler.controller.unschedulable_reporter.mark_evicted

        async def deleted_first(leaving: Any) -> None:
            if not chosen:
                chosen.update(leaving)
                entry = await world.entry(LatticeWorkload, next(iter(chosen)).removeprefix("default/"))
                await world.store.commit(
                    [
                        with_metadata(
                            entry,
                            lambda metadata: metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                        )
                    ]
                )
                await scheduler.caught_up()
            await mark(leaving)

        scheduler.controller.unschedulable_reporter.mark_evicted = deleted_first  # type: ignore[method-assign]
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        assert len(chosen) == 1
        assert await marked_victims(world) == []


@pytest.mark.parametrize(
    ("priority", "gone"),
    [pytest.param(20, 1, id="higher priority"), pytest.param(0, 0, id="equal priority")],
)
async def test_successor_of_deleted_preemptor_waits_for_victims(priority: int, gone: int) -> None:
    async with a_full_cluster(0, 3) as (world, clock, scheduler):
        marked, mark = [], scheduler.controller.unschedulable_reporter.mark_evicted

        async def not_yet(leaving: Any) -> None:
            if marked:
                await mark(leaving)
            marked.append(leaving)

        scheduler.controller.unschedulable_reporter.mark_evicted = not_yet  # type: ignore[method-assign]
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        assert marked, "one was chosen"
        await world.delete(LatticeWorkload, "high")
        await world.add(a_workload("next", priority=priority))
        for _ in range(3):
            await scheduler.run_cycle()
            await clock.advance(1)
        assert (await world.workload("next")).status.binding is None
        assert len(await marked_victims(world)) == gone


async def test_replica_evicted_elsewhere_counts_against_budget() -> None:
    async with a_full_cluster(2, 3) as (world, _, scheduler):
        drained = DecidedEviction(EvictionCause.DRAIN, "the node is being drained")
        binding = (await world.workload("web-1")).status.binding
        assert binding is not None
        scheduler.controller.evictions.decide_for_node(binding.node, {"default/web-1": drained})
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        assert await marked_victims(world) == []


async def test_standalone_workloads_have_no_budget() -> None:
    async with a_virtual_world() as (world, clock), running_scheduler(world.store, clock) as scheduler:
        await world.add(a_node("n1", 1000), a_workload("low"))
        await scheduler.run_cycle()
        await world.add(a_workload("high", priority=10))
        await scheduler.run_cycle()
        workload = await world.workload("low")
        assert [
            condition.type for condition in workload.status.conditions if condition.type == "Leaving"
        ] == ["Leaving"]


async def test_new_leader_preempts_only_after_services_are_cached() -> None:
    async with a_full_cluster(2, 3) as (world, clock, _):
        await world.add(a_workload("high", priority=10))
        term = await world.store.campaign("two", "server-two", 15.0)
        assert term is not None
        context = a_context(world.store, clock, term)
        acts = SchedulingController(context, PRESETS[DEFAULT_PROFILE]).loop().run()
        tasks = [
            asyncio.create_task(replica)
            for replica in (context.cache(LatticeNode).run(), context.cache(LatticeWorkload).run(), acts)
        ]
        await clock.advance(20)
        assert await marked_victims(world) == []
        tasks.append(asyncio.create_task(context.cache(LatticeService).run()))
        await clock.advance(20)
        assert len(await marked_victims(world)) == 1
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
