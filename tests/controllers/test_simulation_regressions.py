"""Bugs that simulation seeds found first, each as its smallest scenario."""

import asyncio
from typing import Any

import pytest
from build.cluster_world import a_bound_workload, miss_heartbeats, running_cluster_controller
from build.objects import a_node, a_workload
from build.scheduling_world import (
    RunningScheduler,
    World,
    a_scheduling_profile,
    a_virtual_world,
    running_scheduler,
)
from build.stored_forms import STORED_FORMS
from build.virtual import settle

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload

FIRST = "north-001-nano-1"
TWO_PHASE = a_scheduling_profile(binding="two-phase")
PESSIMISTIC = a_scheduling_profile(binding="pessimistic")
LONG_AGO = "2020-01-01T00:00:00+00:00"
PREPARED = {"node": FIRST, "uid": "any", "until": LONG_AGO}


async def high_waits_for_low(world: World, scheduler: RunningScheduler) -> None:
    """`low` runs on n1 and is marked as the victim of `high`."""
    await world.add(a_node("n1", 1000), a_workload("low"))
    await scheduler.run_cycle()
    await world.add(a_workload("high", priority=10))
    await scheduler.run_cycle()
    assert "default/high" in scheduler.controller.awaiting_victims.by_path


async def leave(world: World, name: str) -> None:
    await world.set_status(LatticeWorkload, name, binding=None, allocated_ports={}, decision={})


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(a_node("n1", 1000, spec={"unschedulable": True}), id="cordoned"),
        pytest.param(a_node("n1", 500), id="capacity shrank"),
        pytest.param(
            a_node("n1", 1000, spec={"taints": [{"key": "mine", "effect": "NoSchedule"}]}), id="tainted"
        ),
    ],
)
async def test_preemptor_skips_node_that_no_longer_fits(node: LatticeNode) -> None:
    async with a_virtual_world() as (world, clock):
        async with running_scheduler(world.store, clock) as scheduler:
            await high_waits_for_low(world, scheduler)
            await world.put(node)
            await scheduler.run_cycle()
            await leave(world, "low")
            await scheduler.run_cycle()
        assert await world.bindings() == {}


async def test_preemptor_group_waits_when_neighbour_grows() -> None:
    """The group of waiting preemptors is scheduled again, and bound once it fits."""
    async with a_virtual_world() as (world, clock):
        group = {"name": "g", "minMember": 2}
        async with running_scheduler(world.store, clock) as scheduler:
            await world.add(
                a_node("n1", 1500), a_workload("stays", 500, priority=20), a_workload("low", 1000)
            )
            await scheduler.run_cycle()
            await world.add(a_node("n2", 1000))
            await world.add(
                *(a_workload(f"g-{number}", 1000, priority=10, group=group) for number in range(2))
            )
            await scheduler.run_cycle()
            assert set(scheduler.controller.awaiting_victims.by_path) == {"default/g-0", "default/g-1"}
            await world.resize("stays", 1000)
            await scheduler.run_cycle()
            await leave(world, "low")
            for _ in range(4):
                await scheduler.run_cycle()
                await clock.advance(30)
            assert {"g-0", "g-1"}.isdisjoint(await world.bindings())
            await world.delete(LatticeWorkload, "low")
            await world.resize("stays", 500)
            for _ in range(4):
                await scheduler.run_cycle()
                await clock.advance(30)
            assert set(await world.bindings()) >= {"g-0", "g-1"}


async def test_locked_node_cordoned_after_decision_gets_nothing() -> None:
    """Free capacity under the lock is not enough for the node to fit."""
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        async with running_scheduler(world.store, clock, PESSIMISTIC) as scheduler:
            await scheduler.caught_up()
            await scheduler.controller._apply_changes()
            decided = scheduler.controller._decide()
            assert decided is not None
            await world.put(a_node("n1", 1000, spec={"unschedulable": True}))
            await scheduler.controller._bind_cycle(decided)
        assert await world.bindings() == {}


async def test_recreated_preemptor_gets_freed_capacity() -> None:
    async with a_virtual_world() as (world, clock):
        async with running_scheduler(world.store, clock) as scheduler:
            await high_waits_for_low(world, scheduler)
            await world.delete(LatticeWorkload, "high")
            await scheduler.run_cycle()
            await world.add(a_workload("high", priority=10))
            await leave(world, "low")
            await scheduler.run_cycle()
            await clock.advance(60)
            await scheduler.run_cycle()
        assert (await world.bindings()).get("high") == "n1"


async def _stop_copies(scheduler: RunningScheduler) -> None:
    for feed in scheduler.feeds:
        feed.cancel()
    await asyncio.gather(*scheduler.feeds, return_exceptions=True)


@pytest.mark.parametrize("stored_form", list(STORED_FORMS))
async def test_rolled_back_prepare_is_bound_despite_stale_caches(stored_form: str) -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        node = await world.node("n1")
        reserved, _ = STORED_FORMS[stored_form]
        left_behind = {"node": "n1", "uid": node.metadata.uid, "until": LONG_AGO}
        await world.set_status(LatticeWorkload, "w", **reserved("of-another-term", left_behind))
        async with running_scheduler(world.store, clock, TWO_PHASE) as scheduler:
            await scheduler.caught_up()
            await _stop_copies(scheduler)
            revision_before = await world.revision()
            await scheduler.controller.reconcile("nodes")
            assert await world.revision() > revision_before, (
                "the expired reservation of another term is released"
            )
            await scheduler.controller.reconcile("nodes")
            scheduler.feeds = [asyncio.create_task(copy.run()) for copy in scheduler.context.caches]
            await settle()
            for _ in range(3):
                await clock.advance(5)
                await scheduler.run_cycle()
        assert await world.bindings() == {"w": "n1"}


@pytest.mark.parametrize(
    "status",
    [
        {"reservation": {"id": "r", **PREPARED}},
        {"decision": {"prepared": {"reservation": "r", **PREPARED}}},
    ],
    ids=["in its field", "in the decision record"],
)
async def test_released_node_waits_for_prepared_binding(status: dict[str, Any]) -> None:

    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.join(FIRST)
        await world.plane.put(a_bound_workload("w", status))
        await world.scale(0)
        await world.plane.clock.advance(60)
        node = await world.node()
        assert node is not None, "a workload is about to be bound there"
        assert node.metadata.deletion_timestamp
        await world.plane.remove(a_bound_workload("w"))
        await world.plane.clock.advance(60)
        assert await world.node() is None


async def test_released_node_goes_once_its_machine_has_ended() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(1)
        await world.scale(1)
        await world.join(FIRST)
        await world.plane.put(a_bound_workload("w"))
        await world.scale(0)
        await world.plane.clock.advance(60)
        assert await world.node() is not None, "not with work on it"
        world.provider.end_machine(FIRST)
        await miss_heartbeats(world, FIRST)
        await world.plane.clock.advance(60)
        assert (await world.node(), await world.paid(), list(await world.provider.list())) == (None, 0, [])
