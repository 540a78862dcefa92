"""A failed binding is reported with its reason, and many lost races make few events."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from build.scheduling_world import World, a_node, a_workload, running_scheduler
from build.virtual import VirtualClock

from lattice.controllers.scheduler.unschedulable import EVENT_INTERVAL_S
from lattice.kinds.core import Event
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Check, Term, Write


async def bind_failure_events(world: World) -> list[tuple[str, str, str]]:
    page = await world.store.list(Event.resource.id)
    found = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
    return [
        (each.type, each.involved_object.name, each.message)
        for each in found
        if each.reason == "BindingFailed"
    ]


class ContestedStore(MemoryStore):
    """Another writer commits right before a commit of the controller, unseen by any cache."""

    rival: Callable[[], Awaitable[None]] | None = None

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        if fence is not None and self.rival is not None:
            rival, self.rival = self.rival, None
            await rival()
        return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)


def a_world() -> tuple[World, ContestedStore, VirtualClock]:
    clock = VirtualClock()
    store = ContestedStore(clock)
    return World(store, clock), store, clock


@pytest.mark.parametrize(
    ("rival", "why"),
    [
        pytest.param("node", "somebody else wrote latticenodes.lattice.dev/n1 first", id="the node moved"),
        pytest.param(
            "workload",
            "somebody else wrote latticeworkloads.lattice.dev/default/w first",
            id="the workload moved",
        ),
        pytest.param(
            "gone", "somebody else wrote latticenodes.lattice.dev/n1 first", id="the node was deleted"
        ),
    ],
)
async def test_lost_race_is_reported_once_then_bound(rival: str, why: str) -> None:
    world, store, clock = a_world()
    await world.add(a_node("n1"), a_workload("w"))

    async def writes() -> None:
        match rival:
            case "node":
                await world.set_status(LatticeNode, "n1", workloads=1)
            case "workload":
                await world.set_status(LatticeWorkload, "w", last_log="another writer")
            case "gone":
                await world.delete(LatticeNode, "n1")

    async with running_scheduler(store, clock) as scheduler:
        store.rival = writes
        for _ in range(3):
            await scheduler.run_cycle()
    assert await bind_failure_events(world) == [("Warning", "w", f"not bound to node n1: {why}")]
    assert await world.bindings() == ({} if rival == "gone" else {"w": "n1"})


async def test_repeated_lost_races_are_reported_once_a_minute() -> None:
    world, store, clock = a_world()
    await world.add(a_node("n1"), a_workload("w"))
    number = 0

    async def writes() -> None:
        nonlocal number
        number += 1
        await world.set_status(LatticeWorkload, "w", last_log=f"{number}")

    async with running_scheduler(store, clock) as scheduler:
        for _ in range(20):
            await scheduler.caught_up()
            await scheduler.controller._apply_changes()
            store.rival = writes
            decided = scheduler.controller._decide()
            assert decided is not None
            await scheduler.controller._bind_cycle(decided)
            await scheduler.controller.bind_failure_reporter.report()
            await clock.advance(0 if number < 20 else EVENT_INTERVAL_S)
        assert len(await bind_failure_events(world)) == 1
        store.rival = writes
        await scheduler.run_cycle()
        first, second = await bind_failure_events(world)
        assert "(20 times)" not in first[2]
        assert second[2].endswith("first (20 times)")


async def test_many_lost_races_are_reported_in_batched_commits() -> None:
    world, store, clock = a_world()
    await world.add(a_node("n1", 100_000), *(a_workload(f"w{number}", 100) for number in range(130)))
    async with running_scheduler(store, clock) as scheduler:
        store.rival = lambda: world.set_status(LatticeNode, "n1", workloads=1)
        for _ in range(5):
            await scheduler.run_cycle()
            await clock.advance(1)
    assert len(await world.bindings()) == 130
    assert len({name for _, name, _ in await bind_failure_events(world)}) == 130
