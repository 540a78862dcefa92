"""Binding modes, tie-breakers and groups in the running controller follow the profile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import World, a_scheduling_profile, running_scheduler
from build.stored_forms import STORED_FORMS
from build.virtual import VirtualClock

from lattice.controllers.runtime.object_writes import with_metadata
from lattice.errors import Fenced, Unavailable
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindingMode, BindRequest
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.store.memory import MemoryStore
from lattice.store.protocol import MAX_EMBEDDED_COMMIT_BYTES, Check, Put, Term, Write

NEVER = "2100-01-01T00:00:00+00:00"


class DyingStore(MemoryStore):
    """A store whose writer dies after so many fenced commits."""

    left: int | None = None
    away: int = 0  # so many commits raise Unavailable, though every other one is written

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        if fence is not None and self.left is not None:
            if self.left == 0:
                raise ConnectionError("the process is gone")
            self.left -= 1
        if fence is not None and self.away:
            self.away -= 1
            if self.away % 2:
                await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
            raise Unavailable("no answer")
        return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)


class LostResponseStore(DyingStore):
    """A store that makes the first binding commit and loses the response."""

    hushed: bool = False

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
        if not self.hushed and any(
            isinstance(write, Put) and b'"binding"' in write.value for write in writes
        ):
            self.hushed = True
            raise Unavailable("no answer")
        return revision


class ContestedStore(DyingStore):
    """A store in which another write happens during the binding commit."""

    lose: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        if self.lose is not None and any(
            isinstance(write, Put) and b'"binding"' in write.value for write in writes
        ):
            meanwhile, self.lose = self.lose, None
            await meanwhile()
        return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)


@asynccontextmanager
async def open_world(store: type[DyingStore] = DyingStore) -> AsyncIterator[tuple[World, VirtualClock]]:
    clock = VirtualClock()
    yield World(store(clock), clock), clock


def a_group(name: str, size: int, least: int, cpu: int = 100) -> list[LatticeWorkload]:
    return [
        a_workload(f"{name}-{number}", cpu, group={"name": name, "minMember": least})
        for number in range(size)
    ]


@pytest.mark.parametrize("mode", list(BindingMode))
async def test_each_binding_mode_binds_and_leaves_no_records(mode: BindingMode) -> None:
    async with open_world() as (world, clock):
        await world.add(
            a_node("n1", 2000),
            a_node("n2", 2000),
            *(a_workload(f"w{number}", ports=("http",)) for number in range(5)),
        )
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            assert scheduler.controller.binding_cycle.binder.mode is mode
            await scheduler.run_cycle()
            revision_before = await world.revision()
            await scheduler.run_cycle()
            assert await world.revision() == revision_before
        bound = await world.bindings()
        assert sorted(bound.values()) == ["n1", "n1", "n2", "n2"]
        assert [(await world.node(name)).status.workloads for name in ("n1", "n2")] == [2, 2]
        assert not any([reservation_record(await world.workload(name)) for name in bound])
        assert [reason for reason, _ in await world.events()].count("WorkloadScheduled") == 4


@pytest.mark.parametrize("mode", list(BindingMode))
@pytest.mark.parametrize("large", [False, True], ids=["alone", "a large group"])
async def test_fenced_bind_writes_nothing_in_any_mode(mode: BindingMode, large: bool) -> None:
    async with open_world() as (world, clock):
        await world.add(a_node("n1", 100_000), *(a_group("g", LARGE, LARGE) if large else [a_workload("w")]))
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            await scheduler.caught_up()
            await clock.advance(20)
            assert await world.store.campaign("leader", "another", 15.0)
            revision_before = await world.revision()
            with pytest.raises(ExceptionGroup) as told:
                await scheduler.controller.reconcile("nodes")
            assert told.value.subgroup(Fenced)
            assert await world.revision() == revision_before


async def test_oversized_workload_backs_off_and_blocks_no_other() -> None:
    async with open_world() as (world, clock):
        await world.add(
            a_node("n1"), _heavy(a_workload("huge", 100), MAX_EMBEDDED_COMMIT_BYTES - 1_576), a_workload("w")
        )
        async with running_scheduler(world.store, clock) as scheduler:
            for wait in (1, 2, 4):
                await scheduler.run_cycle()
                again = await scheduler.run_cycle()
                assert again is not None
                assert again.after == pytest.approx(wait), "each time it waits longer"
                await clock.advance(again.after)
        assert await world.bindings() == {"w": "n1"}


@pytest.mark.parametrize("mode", list(BindingMode))
@pytest.mark.parametrize(
    "now",
    [a_workload("w", 3000), a_workload("w", desiredState="Stopped")],
    ids=["asks for more", "is to be stopped"],
)
async def test_workload_changed_after_decision_is_rescheduled(
    mode: BindingMode, now: LatticeWorkload
) -> None:
    async with open_world() as (world, clock):
        await world.add(a_node("n1", 2000), a_workload("w"))
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            await scheduler.caught_up()
            await scheduler.controller._apply_changes()
            decided = scheduler.controller._decide()
            assert decided is not None
            assert [decision.node for decision in decided.scheduled] == ["n1"]
            await world.put(now)
            await scheduler.caught_up()
            await scheduler.controller._bind_cycle(decided)
            for _ in range(3):
                await scheduler.run_cycle()
                await clock.advance(70)
        assert await world.bindings() == {}


@pytest.mark.parametrize("mode", list(BindingMode))
async def test_group_is_bound_all_or_nothing(mode: BindingMode) -> None:
    async with open_world() as (world, clock):
        await world.add(a_node("n1", 300), a_node("n2", 300), *a_group("fits", 4, 4), *a_group("large", 4, 4))
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            await scheduler.run_cycle()
            bound = await world.bindings()
            assert sorted(bound) == [f"fits-{number}" for number in range(4)]
            workload = await world.workload("large-0")
            assert (
                "2 of 4 group members fit, minMember is 4"
                in next(
                    condition for condition in workload.status.conditions if condition.type == "Scheduled"
                ).message
            )
            await world.add(a_node("n3", 300))
            await clock.advance(2)
            await scheduler.run_cycle()
        assert len(await world.bindings()) == 8


async def test_incomplete_group_waits_and_reports_once() -> None:
    async with open_world() as (world, clock):
        members = a_group("slow", 4, 4)
        await world.add(a_node("n1"))
        async with running_scheduler(world.store, clock) as scheduler:
            for member in members[:3]:
                await world.add(member)
                await scheduler.run_cycle()
                await clock.advance(70)
                await scheduler.run_cycle()
            assert await world.bindings() == {}
            assert await world.events() == [("FailedScheduling", f"slow-{number}") for number in range(3)]
            await world.add(members[3])
            await scheduler.run_cycle()
        assert len(await world.bindings()) == 4


@pytest.mark.parametrize("touched", ["workload", "node"])
async def test_group_losing_a_race_is_rescheduled_as_a_whole(touched: str) -> None:
    async with open_world() as (world, clock):
        await world.add(a_node("n1", 300), a_node("n2", 300), *a_group("g", 4, 4))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.caught_up()
            if touched == "workload":
                await world.set_status(LatticeWorkload, "g-1", last_log="another writer")
            else:
                await world.put(a_node("n1", 200))
            await scheduler.controller.reconcile("nodes")
            await scheduler.run_cycle()
        assert len(await world.bindings()) == 4


LARGE = 70  # with an event each that is more than one commit


@pytest.mark.parametrize("commits", [1, 30, 70, 71, 72, 73])
async def test_crash_never_leaves_group_half_bound(commits: int) -> None:
    await _crash_while_binding(a_group("g", LARGE, LARGE), commits)


@pytest.mark.parametrize("commits", range(1, 14))
async def test_crash_never_leaves_group_of_large_records_half_bound(commits: int) -> None:
    """The size of the records splits this group: two members fit into one commit."""
    await _crash_while_binding([_heavy(member, 400_000) for member in a_group("g", 5, 5)], commits)


async def _crash_while_binding(group: list[LatticeWorkload], commits: int) -> None:
    async with open_world() as (world, clock):
        assert isinstance(world.store, DyingStore)
        await world.add(a_node("n1", 100_000), *group)
        async with running_scheduler(world.store, clock) as dying:
            world.store.left = commits
            await asyncio.gather(dying.run_cycle(), return_exceptions=True)
        world.store.left = None
        async with running_scheduler(world.store, clock) as following:
            for _ in range(4):
                await following.run_cycle()
                assert len(await world.bindings()) in (0, len(group))
                await clock.advance(31)
        assert len(await world.bindings()) == len(group)
        assert (await world.node("n1")).status.workloads == len(group)


@pytest.mark.parametrize("mode", [BindingMode.PESSIMISTIC, BindingMode.TWO_PHASE])
async def test_locks_of_earlier_term_are_released_despite_clock_skew(
    mode: BindingMode,
) -> None:
    async with open_world() as (world, clock):
        assert isinstance(world.store, DyingStore)
        await world.add(a_node("n1"), a_workload("w"))
        async with running_scheduler(world.store, clock, a_scheduling_profile(binding=mode.value)) as dying:
            world.store.left = 1
            await asyncio.gather(dying.run_cycle(), return_exceptions=True)
        world.store.left = None
        assert await world.bindings() == {}
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as following:
            for _ in range(3):
                await following.run_cycle()
        assert await world.bindings() == {"w": "n1"}
        assert reservation_record(await world.workload("w")) is None
        assert (await world.node("n1")).status.workloads == 1


async def test_many_workloads_are_bound_in_few_commits() -> None:
    async with open_world() as (world, clock):
        await world.add(
            *(a_node(f"n{number}") for number in range(20)),
            *(a_workload(f"w{number}", 100) for number in range(700)),
        )
        revision_before = await world.revision()
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        assert len(await world.bindings()) == 700
        assert await world.revision() - revision_before <= 40
        assert sum([(await world.node(f"n{number}")).status.workloads or 0 for number in range(20)]) == 700


async def test_large_records_are_bound_in_separate_commits() -> None:
    async with open_world() as (world, clock):
        await world.add(a_node("n1"), *(_heavy(a_workload(f"w{number}", 100)) for number in range(4)))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        assert len(await world.bindings()) == 4


def _heavy(workload: LatticeWorkload, size: int = 450_000) -> LatticeWorkload:
    container = msgspec.structs.replace(workload.spec.containers["main"], env={"LARGE": "x" * size})
    return msgspec.structs.replace(
        workload, spec=msgspec.structs.replace(workload.spec, containers={"main": container})
    )


@pytest.mark.parametrize("mode", list(BindingMode))
@pytest.mark.parametrize("away", [1, 2, 3, 6])
async def test_unavailable_store_only_delays_binding(mode: BindingMode, away: int) -> None:
    async with open_world() as (world, clock):
        assert isinstance(world.store, DyingStore)
        await world.add(
            a_node("n1", 2000), *(a_workload(f"w{number}", ports=("http",)) for number in range(3))
        )
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            world.store.away = away
            for _ in range(30):
                await asyncio.gather(scheduler.run_cycle(), return_exceptions=True)
                await clock.advance(5)
            assert len(await world.bindings()) == 2
            assert (await world.node("n1")).status.workloads == 2
            ports = [
                (await world.workload(name)).status.allocated_ports["http"] for name in await world.bindings()
            ]
            assert len(set(ports)) == 2


@pytest.mark.parametrize("mode", list(BindingMode))
@pytest.mark.parametrize("members", [0, 3, 300], ids=["alone", "a group", "a large group"])
async def test_binding_survives_lost_response(mode: BindingMode, members: int) -> None:
    """Its node may run the workload already: rolled back and bound elsewhere, it would run twice."""
    async with open_world(LostResponseStore) as (world, clock):
        await world.add(
            a_node("n1", 100_000),
            a_node("n2", 100_000),
            *(a_group("g", members, members) if members else [a_workload("w")]),
        )
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            await asyncio.gather(scheduler.run_cycle(), return_exceptions=True)
            first = await world.bindings()
            assert len(first) == (members or 1)
            for _ in range(30):
                await asyncio.gather(scheduler.run_cycle(), return_exceptions=True)
                await clock.advance(5)
                now = await world.bindings()
                assert {name: now.get(name) for name in first} == first
            assert len(now) == (members or 1)
            counts = [(await world.node(name)).status.workloads for name in ("n1", "n2")]
            assert sum(count or 0 for count in counts) == len(now)


@pytest.mark.parametrize("stored_form", list(STORED_FORMS))
async def test_bound_group_gives_up_only_terminating_members(stored_form: str) -> None:
    """The binding of the group's leader decides for all members; the remaining members are bound."""
    reserved, bound = STORED_FORMS[stored_form]
    async with open_world() as (world, clock):
        await world.add(a_node("n1", 4000), *(a_workload(name) for name in ("lead", "goes", "stays")))
        uid = (await world.node("n1")).metadata.uid
        held = {"node": "n1", "uid": uid, "until": NEVER, "gang": "together", "lead": "default/lead"}
        async with running_scheduler(world.store, clock) as scheduler:
            binding = Binding(node="n1", uid=uid, term=1)
            await world.set_status(LatticeWorkload, "lead", **bound(binding, "r-lead", "together"))
            for name in ("goes", "stays"):
                await world.set_status(LatticeWorkload, name, **reserved(f"r-{name}", held))
            await world.store.commit([await _doomed(world, "goes")])
            await world.set_status(LatticeNode, "n1", workloads=3)
            asked = [
                BindRequest(f"default/{name}", "n1", f"r-{name}", (), 0.0)
                for name in ("lead", "goes", "stays")
            ]
            assert sorted(await scheduler.controller.binding_cycle.binding_store.abort_all(asked)) == [
                "r-lead",
                "r-stays",
            ]
        assert await world.bindings() == {"lead": "n1", "stays": "n1"}
        assert reservation_record(await world.workload("goes")) is None
        assert (await world.node("n1")).status.workloads == 2


async def _doomed(world: World, name: str) -> Put:
    entry = await world.entry(LatticeWorkload, name)
    return with_metadata(entry, lambda metadata: metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize("mode", list(BindingMode))
async def test_binding_after_lost_reservation_is_in_table_again(mode: BindingMode) -> None:
    async with open_world(ContestedStore) as (world, clock):
        assert isinstance(world.store, ContestedStore)
        await world.add(a_node("n1", 1000), a_workload("w"))
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:

            async def forget() -> None:
                scheduler.controller.table.forget("default/w")

            world.store.lose = forget
            await scheduler.run_cycle()
            assert await world.bindings() == {"w": "n1"}
            for _ in range(2):
                await scheduler.run_cycle()
            assert scheduler.controller.table.placements["default/w"].state == "bound"


@pytest.mark.parametrize("mode", list(BindingMode))
async def test_slow_bind_keeps_capacity_after_reservation_expires(
    mode: BindingMode,
) -> None:
    async with open_world(ContestedStore) as (world, clock):
        assert isinstance(world.store, ContestedStore)
        await world.add(a_node("n1", 1000), a_workload("w", 1000))
        async with running_scheduler(
            world.store, clock, a_scheduling_profile(binding=mode.value)
        ) as scheduler:
            control = scheduler.controller
            later: list[str] = []

            async def decide_on_another() -> None:
                await world.add(a_workload("y", 1000))
                await scheduler.caught_up()
                await clock.advance(31)
                await control._apply_changes()
                decided = control._decide()
                later.extend(decision.ask.name for decision in (decided.scheduled if decided else ()))

            world.store.lose = decide_on_another
            await scheduler.run_cycle()
            assert later == []
            for _ in range(4):
                await scheduler.run_cycle()
                await clock.advance(5)
        assert await world.bindings() == {"w": "n1"}
        assert "BindingFailed" not in [reason for reason, _ in await world.events()]
