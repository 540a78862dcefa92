"""Modes, tie-breakers and groups in the running controller: what the profile names is what happens."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from scheduling_world import World, a_node, a_workload, acting
from store.virtual import VirtualClock

from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.bind import BindingMode
from lattice.scheduling.prepared import prepared
from lattice.scheduling.profile import DEFAULT, PRESETS, ProfileSpec, parse_profile
from lattice.scheduling.select import TieBreaker
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Check, Term, Write

Script = Callable[[World, VirtualClock], Coroutine[Any, Any, None]]


class Mortal(MemoryStore):
    """Its writer dies after so many fenced commits."""

    left: int | None = None

    async def commit(
        self, writes: Sequence[Write], *, checks: Sequence[Check] = (), fence: Term | None = None, request_id: str | None = None
    ) -> int:
        if fence is not None and self.left is not None:
            if self.left == 0:
                raise ConnectionError("the process is gone")
            self.left -= 1
        return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)


def play(script: Script) -> None:
    clock = VirtualClock()
    asyncio.run(script(World(Mortal(clock), clock), clock))


def profile(**fields: Any) -> ProfileSpec:
    return parse_profile({"name": "mine", "scores": dict(PRESETS[DEFAULT].scores), **fields})


def a_group(name: str, size: int, least: int, cpu: int = 100) -> list[LatticeWorkload]:
    return [a_workload(f"{name}-{number}", cpu, group={"name": name, "minMember": least}) for number in range(size)]


@pytest.mark.parametrize("mode", list(BindingMode))
def test_each_mode_binds_through_the_profile_and_leaves_nothing_behind(mode: BindingMode) -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        await world.add(a_node("n1", 2000), a_node("n2", 2000), *(a_workload(f"w{number}", ports=("http",)) for number in range(5)))
        async with acting(world.store, clock, profile(binding=mode.value)) as one:
            assert one.controller.binder.mode is mode
            await one.look()
            before = await world.revision()
            await one.look()
            assert await world.revision() == before
        bound = await world.bindings()
        assert sorted(bound.values()) == ["n1", "n1", "n2", "n2"]
        assert [(await world.node(name)).status.workloads for name in ("n1", "n2")] == [2, 2]
        assert not any([prepared(await world.workload(name)) for name in bound])
        assert [reason for reason, _ in await world.events()].count("WorkloadScheduled") == 4

    play(script)


@pytest.mark.parametrize("breaker", list(TieBreaker))
def test_each_tie_breaker_is_used_by_the_controller(breaker: TieBreaker) -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        await world.add(*(a_node(f"n{number}") for number in range(4)), *(a_workload(f"w{number}") for number in range(8)))
        async with acting(world.store, clock, profile(tieBreaker=breaker.value, seed=3)) as one:
            assert one.controller.scheduler.selector.tie_breaker is breaker
            await one.look()
        assert len(await world.bindings()) == 8

    play(script)


@pytest.mark.parametrize("mode", list(BindingMode))
def test_a_group_is_bound_whole_or_not_at_all(mode: BindingMode) -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        await world.add(a_node("n1", 300), a_node("n2", 300), *a_group("fits", 4, 4), *a_group("large", 4, 4))
        async with acting(world.store, clock, profile(binding=mode.value)) as one:
            await one.look()
            bound = await world.bindings()
            assert sorted(bound) == [f"fits-{number}" for number in range(4)]
            found = await world.workload("large-0")
            assert "2 of 4 would fit, minMember is 4" in next(each for each in found.status.conditions if each.type == "Scheduled").message
            await world.add(a_node("n3", 300))
            await clock.advance(2)
            await one.look()
        assert len(await world.bindings()) == 8

    play(script)


def test_a_group_waits_for_its_members_and_that_is_told_once() -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        members = a_group("slow", 4, 4)
        await world.add(a_node("n1"))
        async with acting(world.store, clock) as one:
            for member in members[:3]:
                await world.add(member)
                await one.look()
                await clock.advance(70)
                await one.look()
            assert await world.bindings() == {}
            assert await world.events() == [("FailedScheduling", f"slow-{number}") for number in range(3)]
            await world.add(members[3])
            await one.look()
        assert len(await world.bindings()) == 4

    play(script)


@pytest.mark.parametrize("touched", ["workload", "node"])
def test_a_group_that_loses_a_place_to_a_rival_is_decided_anew_as_a_whole(touched: str) -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        await world.add(a_node("n1", 300), a_node("n2", 300), *a_group("g", 4, 4))
        async with acting(world.store, clock) as one:
            await one.caught_up()
            if touched == "workload":
                await world.set_status(LatticeWorkload, "g-1", last_log="somebody wrote here")
            else:
                await world.put(a_node("n1", 200))
            await one.controller.reconcile("nodes")
            await one.look()
        assert len(await world.bindings()) == 4

    play(script)


LARGE = 70  # with an event each that is more than one commit


@pytest.mark.parametrize("commits", [1, 30, 70, 71, 72, 73])
def test_a_crash_never_leaves_a_large_group_half_bound(commits: int) -> None:
    async def script(world: World, clock: VirtualClock) -> None:
        assert isinstance(world.store, Mortal)
        await world.add(a_node("n1", 100_000), *a_group("g", LARGE, LARGE))
        async with acting(world.store, clock) as dying:
            world.store.left = commits
            await asyncio.gather(dying.look(), return_exceptions=True)
        world.store.left = None
        async with acting(world.store, clock) as following:
            for _ in range(4):
                await following.look()
                assert len(await world.bindings()) in (0, LARGE)
                await clock.advance(31)
        assert len(await world.bindings()) == LARGE
        assert (await world.node("n1")).status.workloads == LARGE

    play(script)
