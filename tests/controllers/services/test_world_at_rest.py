"""What is bought, charged and shown is what is: random worlds and faults on the real controllers in virtual time, compared at
rest with an independent recount, a fresh plan and a bound of purchases."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from build.control_world import ControlWorld, Lie, control_world, run_virtual
from build.property_settings import LONG, PROPERTY_TIMEOUT_S
from build.recount import differing_figures, existing_machines, fresh_plan, machine_count, recounted_bill
from build.world_histories import (
    NAMES,
    SIZES,
    HistoryPlayer,
    Step,
    WorldHistory,
    a_fake_pool,
    a_priced_class,
    faults,
    histories,
    with_command,
    worlds_at_start,
)
from build.worlds import a_policy, a_service
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.conditions import find_condition, is_true
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import PLACED_CONDITION, STALE_CONDITION, LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.plan.plan import FleetState

EXAMPLES = settings(
    max_examples=int(os.environ.get("EXAMPLES", "10000" if LONG else "12")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if LONG else [])],
)
# Virtual seconds without a write, and the limit after which the world counts as restless.
QUIET_S, LIMIT_S = 100.0, 700.0
# Purchases of a class whose machines differ beside those of the first plan, before the difference is known: a machine that
# a user may have changed proves nothing alone.
PURCHASES_BEFORE_KNOWN = 2

pytestmark = pytest.mark.timeout(PROPERTY_TIMEOUT_S)


def placed_replicas(world: ControlWorld) -> Counter[str]:
    return Counter(
        {
            f"default/{service.metadata.name}": sum(
                placement.replicas or 0 for placement in service.status.placements
            )
            for service in world.all(LatticeService)
        }
    )


def is_explained(world: ControlWorld) -> bool:
    return any(is_true(service.status.conditions, STALE_CONDITION) for service in world.all(LatticeService))


def book_problems(world: ControlWorld) -> list[str]:
    return [f"one book: {words}" for words in differing_figures(world)]


def untrue_statuses(world: ControlWorld) -> list[str]:
    """Services that say Placed and do not run."""
    wrong = []
    for service in world.all(LatticeService):
        replicas = world.context.cache(LatticeWorkload).by_index(
            "service", f"default/{service.metadata.name}"
        )
        ready, desired = (
            sum(bool(replica.status.ready) for replica in replicas),
            service.spec.desired_replicas(),
        )
        placed = find_condition(service.status.conditions, PLACED_CONDITION)
        if ready != desired and (placed is None or placed.status == "True"):
            wrong.append(
                f"untrue status: {service.metadata.name} says Placed and has {ready} of {desired} ready"
            )
    return wrong


def unexplained_bill(world: ControlWorld) -> list[str]:
    """The bill is at most that of a fresh plan that runs as many replicas, or PlacementStale says why not."""
    fresh, bill = fresh_plan(world), sum(recounted_bill(world).values())
    fresh_bill = sum(fresh.offer_rates.values())
    if any(fresh.placed_replicas(name) < count for name, count in placed_replicas(world).items()):
        return []
    if bill <= fresh_bill or is_explained(world):
        return []
    words = f"unexplained bill: {bill} for {dict(existing_machines(world))}, a fresh plan costs {fresh_bill}"
    return [f"{words} for {shown(fresh)}, and no service is PlacementStale"]


def excess_purchases(world: ControlWorld, allowed: int) -> list[str]:
    bought = sum(world.created.values())
    return (
        [f"purchases: {bought} machines were bought, {allowed} can be explained"] if bought > allowed else []
    )


def tied_replicas(world: ControlWorld) -> int:
    """Replicas that have to share a node with another service: the scheduler may have filled the node that placement
    meant for them."""
    services = [service for service in world.all(LatticeService) if service.spec.affinity is not None]
    return sum(
        service.spec.desired_replicas()
        for service in services
        if any(term.topology_key == "node" for term in service.spec.affinity.workload.required)
    )


def shown(state: FleetState) -> dict[str, dict[str, int]]:
    return {name: dict(kinds) for name, kinds in state.clusters.items()}


async def settle(world: ControlWorld, player: HistoryPlayer) -> list[str]:
    """Heal what does not heal by itself and wait for rest; the writes that do not end."""
    await player.heal()
    restless = await world.rest(QUIET_S, LIMIT_S)
    return [f"no rest: {key} was written {count} times" for key, count in restless.most_common(4)]


async def play(history: WorldHistory) -> list[str]:
    """What is wrong in the world at rest after the history."""
    async with control_world() as world:
        world.lies.update(history.lies)
        await world.apply(*history.objects)
        player, allowed, most = HistoryPlayer(world), 0, 0
        for step in [*history.steps, None]:
            await world.sleep(0.5)
            # Machines that the world may need now, if all of them are new.
            needed = machine_count(fresh_plan(world, with_observed=False))
            allowed, most = allowed + needed + tied_replicas(world), max(most, needed)
            if step is not None:
                await player.play([step])
        problems = await settle(world, player)
        allowed += player.lost_machines + player.updates
        # The class may be tried in every pool.
        allowed += (PURCHASES_BEFORE_KNOWN + most * len(world.all(LatticePool))) * len(history.lies)
        return [
            *problems,
            *excess_purchases(world, allowed),
            *untrue_statuses(world),
            *unexplained_bill(world),
            *book_problems(world),
        ]


async def play_undone(objects: Sequence[Kind], steps: Sequence[tuple[str, tuple[Any, ...]]]) -> list[str]:
    """What differs after faults or updates that leave the world as it was."""
    async with control_world(*objects) as world:
        player = HistoryPlayer(world)
        await settle(world, player)
        before, bought = sum(recounted_bill(world).values()), sum(world.created.values())
        for what, arguments in steps:
            await getattr(player, what)(*arguments)
        # Cordons end only after the drains.
        await world.rest(QUIET_S, LIMIT_S)
        problems = await settle(world, player)
        if (bill := sum(recounted_bill(world).values())) > before and not is_explained(world):
            problems.append(f"the bill was {before} and is {bill}: {dict(existing_machines(world))}")
        allowed = bought + player.lost_machines + player.updates
        return [*problems, *excess_purchases(world, allowed), *untrue_statuses(world), *book_problems(world)]


def a_small_world(
    *services: LatticeService, classes: Sequence[str] = ("tiny",), **pool: Any
) -> tuple[Kind, ...]:
    return (*map(a_priced_class, SIZES), a_fake_pool("p1", classes, **pool), *services)


def tiny_services(count: int, *, is_image: bool = False, **needs: Any) -> list[LatticeService]:
    return [
        with_command(a_service(name, **({"cores": 0.1, "memory": 0.25} | needs)), 1, is_image=is_image)
        for name in ("api", "batch", "cache", "db", "edge")[:count]
    ]


NO_GPU, NO_CONTAINERS = Lie(has_gpus=False), Lie(runtimes=("process",))


@pytest.mark.parametrize(
    ("objects", "steps"),
    [
        pytest.param(
            a_small_world(*tiny_services(5)),
            [("silence", (0,))],
            id="five services on one lost machine are one machine",
        ),
        pytest.param(
            a_small_world(*tiny_services(5)),
            [("drain", (0,))],
            id="five services on a drained machine are one machine",
        ),
        pytest.param(
            a_small_world(*tiny_services(1, cores=1)),
            [("update", ("api",))],
            id="the machine of the surge replica is given back",
        ),
        pytest.param(
            a_small_world(*tiny_services(1, cores=1), budget=25),
            [("silence", (0,))],
            id="a lost machine is replaced although the budget pays for no second one",
        ),
        pytest.param(
            (
                *a_small_world(classes=["small"], capacity={"maxNodes": 3}),
                a_policy("rules", clusters={"maxNodes": 2}),
                *tiny_services(1, memory=1),
                with_command(a_service("edge", replicas=2, cores=0.1, memory=3), 1, is_image=False),
                with_command(a_service("batch", replicas=2, cores=0.1, memory=0.5), 1, is_image=False),
            ),
            [("update", ("edge",))],
            id="an update ends in another cluster although its own has all its nodes",
        ),
    ],
)
def test_world_returns_to_what_it_was(
    objects: tuple[Kind, ...], steps: list[tuple[str, tuple[Any, ...]]]
) -> None:
    assert run_virtual(play_undone(objects, steps)) == []


@pytest.mark.parametrize(
    ("objects", "lie"),
    [
        pytest.param(
            a_small_world(*tiny_services(1, gpu=1), classes=["accelerated"]),
            ("accelerated", NO_GPU),
            id="a class that promises a GPU it does not have is bought once",
        ),
        pytest.param(
            a_small_world(*tiny_services(1, is_image=True)),
            ("tiny", NO_CONTAINERS),
            id="an image on machines without a container runtime is bought for once",
        ),
        pytest.param(
            a_small_world(*tiny_services(1, memory=1)),
            ("tiny", Lie(memory_percent=10)),
            id="a class that promises memory it does not have is bought once",
        ),
    ],
)
def test_machines_that_do_not_fit_are_bought_once(objects: tuple[Kind, ...], lie: tuple[str, Lie]) -> None:
    async def run() -> list[str]:
        async with control_world() as world:
            world.lies.update([lie])
            await world.apply(*objects)
            problems = await settle(world, HistoryPlayer(world))
            idle = [f"{sum(existing_machines(world).values())} machines are left"] if world.machines else []
            return [
                *problems,
                *idle,
                *excess_purchases(world, 1),
                *untrue_statuses(world),
                *book_problems(world),
            ]

    assert run_virtual(run()) == []


def a_process(name: str, replicas: int, cores: float, memory: float, **needs: Any) -> LatticeService:
    return with_command(
        a_service(name, replicas=replicas, cores=cores, memory=memory, **needs), 1, is_image=False
    )


TWO_SMALL_POOLS = tuple(a_fake_pool(name, ["tiny"], capacity={"maxNodes": 3}) for name in ("p1", "p2"))
FOUR_SERVICES = (
    a_process("batch", 1, 0.1, 0.25),
    a_process("db", 1, 0.1, 1),
    a_process("edge", 1, 0.5, 1),
    a_process("web", 1, 1, 0.5),
)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            WorldHistory(
                a_small_world(*tiny_services(1, cores=1)),
                (),
                (Step(100.0, "apply", (a_priced_class("tiny", 5.0),)), Step(30.0, "scale", ("api", 3))),
            ),
            id="a changed price is on every face",
        ),
        pytest.param(
            WorldHistory(
                (*map(a_priced_class, SIZES), *TWO_SMALL_POOLS, *FOUR_SERVICES),
                (("tiny", Lie(is_tainted=True)),),
                (),
            ),
            id="two full pools do not take turns in buying machines that accept no replica",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["medium", "large"], budget=150),
                    a_process("db", 1, 0.1, 3),
                    a_process("cache", 1, 2, 0.25),
                    a_process("api", 1, 2, 1, gpu=1),
                    a_process("batch", 2, 0.25, 1),
                    a_process("web", 1, 1, 0.5),
                ),
                (),
                (
                    Step(60.0, "silence", (0,)),
                    Step(60.0, "drain", (4,)),
                    Step(1.0, "apply", (a_fake_pool("p1", ["tiny", "medium", "accelerated"], budget=150),)),
                    Step(30.0, "scale", ("web", 1)),
                ),
            ),
            id="a service without a place does not hide that the others cost more than a fresh plan",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["medium", "large"]),
                    a_process("batch", 1, 0.25, 1),
                ),
                (),
                (
                    Step(7.0, "lose", (0,)),
                    Step(1.0, "drain", (0,)),
                    Step(120.0, "drain", (0,)),
                    Step(7.0, "silence", (0,)),
                    Step(30.0, "silence", (0,)),
                ),
            ),
            id="a replica that ends on a silent node does not keep its machine",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["tiny"], capacity={"maxNodes": 3}),
                    *(a_process(name, 1, 1, 0.5) for name in ("api", "db", "web")),
                ),
                (),
                (Step(30.0, "silence", (0,)), Step(0.0, "silence", (0,))),
            ),
            id="two of three machines are lost for good in a pool that allows three",
        ),
        pytest.param(
            WorldHistory(
                a_small_world(a_process("crew", 3, 0.5, 0.5)),
                (),
                (
                    Step(
                        30.0,
                        "apply",
                        (a_process("crew", 3, 0.25, 0.25, group={"name": "crew", "minMember": 3}),),
                    ),
                ),
            ),
            id="an update makes a gang of a service",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["small", "large"]),
                    a_fake_pool(
                        "p2", ["tiny", "medium", "accelerated"], capacity={"maxNodes": 3}, budget=2000
                    ),
                    a_process("cache", 3, 2, 0.5),
                    a_process("batch", 2, 1, 0.5),
                    a_process("edge", 3, 0.1, 0.5),
                    a_process("api", 3, 0.25, 1),
                ),
                (),
                (),
            ),
            id="small replicas leave the machines that were bought for large ones",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["medium", "large"], capacity={"maxNodes": 3}, budget=400),
                    a_process("cache", 3, 2, 0.5),
                    a_process("api", 3, 0.1, 1),
                    a_process("db", 3, 2, 0.5),
                ),
                (),
                (
                    Step(120.0, "apply", (a_priced_class("large", 1.3),)),
                    Step(0.0, "update", ("cache",)),
                    Step(7.0, "apply", (a_priced_class("large", 0.5),)),
                ),
            ),
            id="the verdict about a refused surge machine ends with the update",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["small"], capacity={"maxNodes": 3}),
                    a_process("web", 2, 2, 0.5),
                    a_process("batch", 1, 2, 0.25),
                ),
                (("small", Lie(is_tainted=True)),),
                (),
            ),
            id="a full pool of machines that accept no replica is given back",
        ),
        pytest.param(
            WorldHistory(
                (
                    *map(a_priced_class, SIZES),
                    a_fake_pool("p1", ["medium"]),
                    a_process("api", 1, 2, 0.5),
                    a_process("db", 1, 3, 0.5),
                ),
                (),
                (Step(30.0, "apply", (a_process("api", 1, 2, 0.5, gpu=1),)),),
            ),
            id="replicas that outlive an impossible update explain their machine",
        ),
    ],
)
def test_history_ends_at_rest(history: WorldHistory) -> None:
    assert run_virtual(play(history)) == []


def test_bill_is_explained_beside_a_service_that_fits_nowhere() -> None:
    """A larger threshold makes a machine unnecessary; no machine has the GPU that batch needs."""
    services = [
        with_command(a_service("api", cores=0.1, memory=3, replicas=3), 1, is_image=False),
        with_command(a_service("cache", cores=1, memory=0.5, replicas=3), 1, is_image=False),
        with_command(a_service("web", cores=1, memory=0.25, replicas=2), 1, is_image=False),
        with_command(a_service("batch", cores=0.5, memory=0.25, gpu=1), 1, is_image=False),
    ]
    pools = [a_fake_pool("p1", ["medium", "large"]), a_fake_pool("p2", ["small"], budget=150)]
    rules = a_policy("rules", clusters={"binPackingThreshold": 1})
    history = WorldHistory(
        (*map(a_priced_class, SIZES), *pools, *services), (), (Step(0.0, "apply", (rules,)),)
    )
    assert run_virtual(play(history)) == []


@EXAMPLES
@given(history=histories())
def test_world_at_rest(history: WorldHistory) -> None:
    assert run_virtual(play(history)) == []


@EXAMPLES
@given(objects=worlds_at_start(), lost=st.lists(faults(), min_size=1, max_size=2))
def test_lost_machines_are_replaced_together(
    objects: tuple[Kind, ...], lost: list[tuple[str, tuple[int]]]
) -> None:
    """However many services ran on a lost machine, at most one replaces it, and the bill returns."""
    assert run_virtual(play_undone(objects, lost)) == []


@EXAMPLES
@given(objects=worlds_at_start(), updated=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
def test_updates_give_their_machines_back(objects: tuple[Kind, ...], updated: list[str]) -> None:
    assert run_virtual(play_undone(objects, [("update", (name,)) for name in updated])) == []
