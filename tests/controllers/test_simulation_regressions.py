"""Bugs that seeds of the simulation found first, each as the smallest story in which it shows."""

import asyncio

import pytest
from build.cluster_yard import a_resident, running_cluster_controller, silent
from build.scheduling_world import Acting, World, a_node, a_workload, a_world, acting
from build.virtual import settle
from msgspec.structs import replace

from lattice.controllers.runtime.object_writes import with_spec
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, parse_profile

FIRST = "north-001-nano-1"
TWO_PHASE = parse_profile(
    {"name": "mine", "scores": dict(PRESETS[DEFAULT_PROFILE].scores), "binding": "two-phase"}
)
PESSIMISTIC = parse_profile(
    {"name": "mine", "scores": dict(PRESETS[DEFAULT_PROFILE].scores), "binding": "pessimistic"}
)
LONG_AGO = "2020-01-01T00:00:00+00:00"


async def high_waits_for_low(world: World, one: Acting) -> None:
    """`low` is on n1 and told to make room for `high`."""
    await world.add(a_node("n1", 1000), a_workload("low"))
    await one.look()
    await world.add(a_workload("high", priority=10))
    await one.look()
    assert "default/high" in one.controller._awaiting_victims


async def resize(world: World, name: str, cpu: int) -> None:
    spec = (await world.workload(name)).spec
    asked = replace(spec, containers=a_workload(name, cpu).spec.containers)
    await world.store.commit([with_spec(await world.entry(LatticeWorkload, name), asked)])


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
    async with a_world() as (world, clock):
        async with acting(world.store, clock) as one:
            await high_waits_for_low(world, one)
            await world.put(node)
            await one.look()
            await leave(world, "low")
            await one.look()
        assert await world.bindings() == {}


async def test_preemptor_group_waits_when_neighbour_grows() -> None:
    """The group of those that wait is decided anew, and bound once it fits."""
    async with a_world() as (world, clock):
        group = {"name": "g", "minMember": 2}
        async with acting(world.store, clock) as one:
            await world.add(
                a_node("n1", 1500), a_workload("stays", 500, priority=20), a_workload("low", 1000)
            )
            await one.look()
            await world.add(a_node("n2", 1000))
            await world.add(
                *(a_workload(f"g-{number}", 1000, priority=10, group=group) for number in range(2))
            )
            await one.look()
            assert set(one.controller._awaiting_victims) == {"default/g-0", "default/g-1"}
            await resize(world, "stays", 1000)
            await one.look()
            await leave(world, "low")
            for _ in range(4):
                await one.look()
                await clock.advance(30)
            assert {"g-0", "g-1"}.isdisjoint(await world.bindings())
            await world.delete(LatticeWorkload, "low")
            await resize(world, "stays", 500)
            for _ in range(4):
                await one.look()
                await clock.advance(30)
            assert set(await world.bindings()) >= {"g-0", "g-1"}


async def test_locked_node_cordoned_after_decision_gets_nothing() -> None:
    """Its room alone, looked at under the lock, does not make it fit."""
    async with a_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        async with acting(world.store, clock, PESSIMISTIC) as one:
            await one.caught_up()
            await one.controller._apply_changes()
            decided = one.controller._decide()
            assert decided is not None
            await world.put(a_node("n1", 1000, spec={"unschedulable": True}))
            await one.controller._bind_cycle(decided)
        assert await world.bindings() == {}


async def test_recreated_preemptor_gets_freed_capacity() -> None:
    async with a_world() as (world, clock):
        async with acting(world.store, clock) as one:
            await high_waits_for_low(world, one)
            await world.delete(LatticeWorkload, "high")
            await one.look()
            await world.add(a_workload("high", priority=10))
            await leave(world, "low")
            await one.look()
            await clock.advance(60)
            await one.look()
        assert (await world.bindings()).get("high") == "n1"


async def _stop_copies(one: Acting) -> None:
    for feed in one.feeds:
        feed.cancel()
    await asyncio.gather(*one.feeds, return_exceptions=True)


async def test_rolled_back_prepare_is_bound_despite_stale_caches() -> None:
    async with a_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        node = await world.node("n1")
        left_behind = {
            "node": "n1",
            "uid": node.metadata.uid,
            "reservation": "of-somebody-else",
            "until": LONG_AGO,
        }
        await world.set_status(LatticeWorkload, "w", decision={"prepared": left_behind})
        async with acting(world.store, clock, TWO_PHASE) as one:
            await one.caught_up()
            await _stop_copies(one)
            before = await world.revision()
            await one.controller.reconcile("nodes")
            assert await world.revision() > before, "what somebody else prepared is over, and given up"
            await one.controller.reconcile("nodes")
            one.feeds = [asyncio.create_task(copy.run()) for copy in one.office.caches]
            await settle()
            for _ in range(3):
                await clock.advance(5)
                await one.look()
        assert await world.bindings() == {"w": "n1"}


async def test_released_node_waits_for_prepared_binding() -> None:
    prepared = {"node": FIRST, "uid": "any", "reservation": "r", "until": LONG_AGO}

    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.joined(FIRST)
        await yard.scene.put(a_resident("w", {"decision": {"prepared": prepared}}))
        await yard.wants(0)
        await yard.scene.clock.advance(60)
        node = await yard.node()
        assert node is not None, "somebody is about to be bound there"
        assert node.metadata.deletion_timestamp
        await yard.scene.remove(a_resident("w"))
        await yard.scene.clock.advance(60)
        assert await yard.node() is None


async def test_released_node_goes_once_its_machine_has_ended() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(1)
        await yard.wants(1)
        await yard.joined(FIRST)
        await yard.scene.put(a_resident("w"))
        await yard.wants(0)
        await yard.scene.clock.advance(60)
        assert await yard.node() is not None, "not with work on it"
        yard.provider.end_machine(FIRST)
        await silent(yard, FIRST)
        await yard.scene.clock.advance(60)
        assert (await yard.node(), await yard.paid(), list(await yard.provider.list())) == (None, 0, [])
