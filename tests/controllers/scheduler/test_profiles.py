"""Two profiles on one table: one for replicas of services, one for standalone workloads."""

import random
from typing import Any

import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import a_virtual_world, running_scheduler
from build.virtual import VirtualClock

from lattice.app.leadership import build_dependencies
from lattice.controllers.controller_set import ControllerSet as Controllers
from lattice.controllers.runtime.context import ControllerContext
from lattice.presence import Presence
from lattice.scheduling.cycle.profile import PRESETS, ProfileSpec
from lattice.server.access.certificate_authority import new_authority
from lattice.settings import Settings
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Term

FULLEST, EMPTIEST = PRESETS["fullest-first"], PRESETS["lowest-utilisation"]


async def bound(plain: ProfileSpec | None, *workloads: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The node and the profile of each workload, with a half-full node in the cluster."""
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    async with (
        a_virtual_world() as (world, clock),
        running_scheduler(world.store, clock, FULLEST, plain=plain) as scheduler,
    ):
        await world.add(a_node("full", 9000), a_workload("there", 4000))
        await scheduler.run_cycle()
        await world.add(a_node("empty", 9000), *workloads)
        await scheduler.run_cycle()
        for workload in workloads:
            name = workload.metadata.name
            record = await world.workload(name)
            assert record.status.binding is not None
            found[0][name], found[1][name] = record.status.binding.node, record.status.decision["profile"]
    return found


async def test_each_workload_is_scheduled_by_its_own_profile() -> None:
    where, why = await bound(EMPTIEST, a_workload("bare"), a_workload("web-0", service="web"))
    assert where == {"bare": "empty", "web-0": "full"}
    assert why == {"bare": "lowest-utilisation", "web-0": "fullest-first"}


async def test_profiles_apply_per_workload_within_one_batch() -> None:
    bare = [a_workload(f"bare-{number}", 100) for number in range(5)]
    served = [a_workload(f"web-{number}", 100, service="web", slot=number) for number in range(5)]
    where, _ = await bound(EMPTIEST, *(each for pair in zip(bare, served, strict=True) for each in pair))
    assert {name: node for name, node in where.items() if name.startswith("web")} == {
        f"web-{n}": "full" for n in range(5)
    }
    assert {name: node for name, node in where.items() if name.startswith("bare")} == {
        f"bare-{n}": "empty" for n in range(5)
    }


async def test_single_profile_applies_to_all_workloads() -> None:
    where, why = await bound(None, a_workload("bare"), a_workload("web-0", service="web"))
    assert (set(where.values()), set(why.values())) == ({"full"}, {"fullest-first"})


async def test_rejection_names_profile_of_workload() -> None:
    async with (
        a_virtual_world() as (world, clock),
        running_scheduler(world.store, clock, FULLEST, plain=EMPTIEST) as scheduler,
    ):
        await world.add(a_node("n1", 500), a_workload("bare"), a_workload("web-0", service="web"))
        await scheduler.run_cycle()
        told = {name: (await world.workload(name)).status.decision["profile"] for name in ("bare", "web-0")}
        assert told == {"bare": "lowest-utilisation", "web-0": "fullest-first"}


@pytest.mark.parametrize(
    ("said", "profiles"),
    [
        pytest.param(
            "", ("balanced", "lowest-utilisation"), id="unset: one for services, one for standalone workloads"
        ),
        pytest.param(
            "balanced",
            ("balanced", "balanced"),
            id="set: for all, also when equal to the default for services",
        ),
        pytest.param("gpu", ("gpu", "gpu"), id="another"),
    ],
)
def test_configured_profile_applies_to_all_workloads(said: str, profiles: tuple[str, str]) -> None:
    clock = VirtualClock()
    context = ControllerContext(
        MemoryStore(clock), clock, Term("controllers", 1, "me"), random.Random(1), Presence(clock)
    )
    scheduling = Controllers(
        context, build_dependencies(Settings(profile=said), new_authority()[0], clock, {})
    ).scheduling
    asks = [scheduling.scheduler_cache.ask_of(a_workload("w", service=service)) for service in ("web", "")]
    assert tuple(scheduling.profiles[scheduling.scheduler.profile_of(ask)].name for ask in asks) == profiles
