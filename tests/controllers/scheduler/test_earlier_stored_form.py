"""A scheduler takes over a store that an earlier version wrote: reservations, attempts and GPUs are in the
decision records."""

from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import World, a_scheduling_profile, a_virtual_world, running_scheduler
from build.stored_forms import STORED_FORMS

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.reservation_record import scheduling_status

RESERVED, BOUND = STORED_FORMS["decision record"]
GPUS = {"gpus": [{"model": "T4"}, {"model": "T4"}]}
LATER = "2100-01-01T00:00:00+00:00"
TWO_PHASE = a_scheduling_profile(binding="two-phase")


def a_gpu_workload(name: str) -> LatticeWorkload:
    workload = a_workload(name, requests={"gpu": 1})
    container = msgspec.structs.replace(workload.spec.containers["main"], resources=None)
    spec = msgspec.structs.replace(workload.spec, containers={"main": container})
    return msgspec.structs.replace(workload, spec=spec)


async def reserve(world: World, name: str, reservation: str, **fields: str) -> None:
    """The workload is reserved on n1, and n1 counts the workload."""
    node = await world.node("n1")
    record = {"node": "n1", "uid": node.metadata.uid, "until": LATER, **fields}
    await world.set_status(LatticeWorkload, name, **RESERVED(reservation, record))
    await world.set_status(LatticeNode, "n1", workloads=(node.status.workloads or 0) + 1)


@pytest.mark.parametrize("profile", [TWO_PHASE, a_scheduling_profile()], ids=["two-phase", "optimistic"])
async def test_reservation_of_an_earlier_term_is_bound_again(profile: Any) -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        term = await world.store.campaign("leader", "old", 15.0)
        assert term is not None
        await reserve(world, "w", "leader/old.1-7")
        await world.store.resign(term)
        async with running_scheduler(world.store, clock, profile) as scheduler:
            for _ in range(3):
                await scheduler.run_cycle()
                await clock.advance(5)
        assert await world.bindings() == {"w": "n1"}
        status = (await world.workload("w")).status
        assert status.reservation is None
        assert status.binding
        assert status.binding.reservation.startswith("leader/server-leader.2-")
        assert not {"prepared", "reservation", "gang", "gpus"} & status.decision.keys()
        assert (await world.node("n1")).status.workloads == 1


async def test_reservation_of_another_scheduler_holds_capacity() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("reserved"), a_workload("new"))
        await reserve(world, "reserved", "other/one.1-1")
        async with running_scheduler(world.store, clock, TWO_PHASE) as scheduler:
            for _ in range(3):
                await scheduler.run_cycle()
                await clock.advance(5)
        assert await world.bindings() == {}
        assert (await world.workload("new")).status.conditions[0].reason == "NoNodeFits"
        assert scheduling_status(await world.workload("reserved")).reservation


async def test_members_of_a_decided_gang_are_bound() -> None:
    """The lead is bound, so the remaining members follow, with the GPUs that the table chose for them."""
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 4000, status=GPUS), a_workload("lead"), a_workload("member"))
        uid, attempt = (await world.node("n1")).metadata.uid, "other/one.1-1 a"
        await world.set_status(
            LatticeWorkload,
            "lead",
            **BOUND(Binding(node="n1", uid=uid, term=1), "other/one.1-1", attempt),
        )
        await world.set_status(LatticeNode, "n1", workloads=1)
        await reserve(world, "member", "other/one.1-2", gang=attempt, lead="default/lead")
        decision = (await world.workload("member")).status.decision | {"gpus": [1], "profile": "balanced"}
        await world.set_status(LatticeWorkload, "member", decision=decision)
        async with running_scheduler(world.store, clock, TWO_PHASE) as scheduler:
            for _ in range(2):
                await scheduler.run_cycle()
        assert await world.bindings() == {"lead": "n1", "member": "n1"}
        status = (await world.workload("member")).status
        assert status.binding
        assert (status.binding.reservation, status.binding.gang) == ("other/one.1-2", attempt)
        assert (status.allocated_gpus, status.reservation) == ((1,), None)
        assert status.decision == {"profile": "balanced"}
        assert (await world.node("n1")).status.workloads == 2


async def test_bound_workload_keeps_its_gpus() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 4000, status=GPUS), *(a_gpu_workload(name) for name in ("old", "new")))
        uid = (await world.node("n1")).metadata.uid
        status = BOUND(Binding(node="n1", uid=uid, term=1), "other/one.1-1", "")
        status["decision"]["gpus"] = [1]
        await world.set_status(LatticeWorkload, "old", **status)
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            placements = scheduler.controller.table.placements
            assert {name: placement.gpus for name, placement in placements.items()} == {
                "default/old": (1,),
                "default/new": (0,),
            }
        assert (await world.workload("new")).status.allocated_gpus == (0,)
