"""Replacement of machines with gangs and affinity, and of what a second change finds under way: the real controllers in
virtual time. Afterwards every replica runs, every term holds, and the bill is what it was."""

from collections import Counter
from typing import Any

import pytest
from build.affinity import apart, near
from build.control_world import ControlWorld, Lie, control_world, run_virtual
from build.recount import existing_machines, recounted_bill
from build.world_histories import SIZES, HistoryPlayer, a_fake_pool, a_priced_class, with_command
from build.worlds import a_service

from lattice.kinds.meta.base import Kind
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

QUIET_S, LIMIT_S = 100.0, 900.0


def a_command(name: str, **fields: Any) -> LatticeService:
    return with_command(a_service(name, **({"cores": 1, "memory": 0.5} | fields)), 1, is_image=False)


def gang(*names: str, **fields: Any) -> list[LatticeService]:
    """Services of one gang of which each replica fills a machine of class tiny."""
    group = {"name": "crew", "minMember": len(names)}
    return [a_command(name, group=group, **fields) for name in names]


def supply(*classes: str, **pool: Any) -> list[Kind]:
    return [*map(a_priced_class, SIZES), a_fake_pool("p1", classes or ("tiny",), **pool)]


def ready(world: ControlWorld) -> Counter[str]:
    return Counter(workload.spec.service for workload in world.all(LatticeWorkload) if workload.status.ready)


def nodes_of(world: ControlWorld, service: str) -> list[str]:
    return sorted(
        workload.status.binding.node
        for workload in world.all(LatticeWorkload)
        if workload.spec.service == service and workload.status.binding
    )


def refusals(world: ControlWorld) -> list[str]:
    return [
        service.metadata.name
        for service in world.all(LatticeService)
        if any(record.refused for record in service.status.remediation)
    ]


async def rest(world: ControlWorld) -> None:
    assert not await world.rest(QUIET_S, LIMIT_S), "the world comes to rest"


@pytest.mark.parametrize("late", ["p1-001-tiny-1", "p1-001-tiny-2"])
def test_first_machine_of_a_gang_is_no_refusal(late: str) -> None:
    """The gang binds only when all its machines are there: an idle machine that waits for the others refuses nothing."""

    async def run() -> None:
        async with control_world() as world:
            world.boot_s[late] = 45.0
            await world.apply(*supply(), *gang("a", "b"))
            await rest(world)
            assert refusals(world) == []
            assert ready(world) == Counter(a=1, b=1)
            assert sum(world.created.values()) == 2

    run_virtual(run())


@pytest.mark.parametrize(
    ("services", "steps", "bought"),
    [
        pytest.param(gang("a", "b"), [("silence", (0,))], 1, id="one machine of a gang is lost"),
        pytest.param(
            gang("a", "b"),
            [("silence", (0,)), ("silence", (0,))],
            2,
            id="every machine of a gang is lost",
        ),
        pytest.param(gang("a", "b"), [("drain", (0,))], 1, id="a machine of a gang is drained"),
        pytest.param(gang("a", "b"), [("update", ("a",))], 1, id="a member of a gang is updated"),
        pytest.param(
            gang("a", "b"), [("update", ("a",)), ("update", ("b",))], 2, id="all members are updated at once"
        ),
        pytest.param(
            [a_command("db", cores=0.5), a_command("app", cores=0.5, affinity=near("db", "node"))],
            [("silence", (0,))],
            1,
            id="a service and the one it must share a machine with are lost together",
        ),
        pytest.param(
            [
                a_command("db", cores=0.4),
                a_command("app", cores=0.6, affinity=near("db", "node")),
                a_command("web", cores=0.6),
            ],
            [("silence", (0,)), ("silence", (0,))],
            2,
            id="beside a service that could take the place of the partner",
        ),
        pytest.param(
            [a_command("a", cores=0.4, affinity=apart("b")), a_command("b", cores=0.4)],
            [("silence", (0,))],
            1,
            id="services that exclude one another, one machine is lost",
        ),
        pytest.param(
            [a_command("a", cores=0.4, affinity=apart("b")), a_command("b", cores=0.4)],
            [("silence", (0,)), ("silence", (0,))],
            2,
            id="services that exclude one another, both machines are lost",
        ),
        pytest.param(
            [a_command("a", cores=0.4, affinity=apart("b")), a_command("b", cores=0.4)],
            [("drain", (0,))],
            1,
            id="services that exclude one another, a machine is drained",
        ),
        pytest.param(
            [a_command("a", cores=0.4, affinity=apart("b")), a_command("b", cores=0.4)],
            [("update", ("a",)), ("update", ("b",))],
            2,
            id="services that exclude one another are updated",
        ),
        *(
            pytest.param(
                [a_command("a", affinity=apart("a", key=key))],
                [("update", ("a",))],
                1,
                id=f"an update of a service that is apart from itself over {key}",
            )
            for key in ("node", "cluster", "region")
        ),
        pytest.param(
            [
                a_command("db", cores=0.5),
                a_command("app", cores=0.4, affinity=near("db", "node")),
            ],
            [("drain", (0,))],
            1,
            id="neighbours on a drained machine",
        ),
        pytest.param(
            [a_command(name, cores=0.5) for name in "abcdefgh"],
            [("update", (name,)) for name in "abcdefgh"],
            4,
            id="eight updates at once",
        ),
    ],
)
def test_world_returns(
    services: list[LatticeService], steps: list[tuple[str, tuple[Any, ...]]], bought: int
) -> None:
    async def run() -> None:
        async with control_world(*supply(), *services) as world:
            await rest(world)
            bill, before = sum(recounted_bill(world).values()), sum(world.created.values())
            player = HistoryPlayer(world)
            for what, arguments in steps:
                await getattr(player, what)(*arguments)
            await rest(world)
            await player.heal()
            await rest(world)
            wanted = {
                service.metadata.name: service.spec.desired_replicas()
                for service in world.all(LatticeService)
            }
            assert ready(world) == Counter(wanted)
            assert refusals(world) == []
            assert sum(recounted_bill(world).values()) <= bill, existing_machines(world)
            assert sum(world.created.values()) - before <= bought, world.created_at
            for service in world.all(LatticeService):
                name, affinity = service.metadata.name, service.spec.affinity
                for term in affinity.workload.required if affinity else ():
                    assert set(nodes_of(world, name)) <= set(nodes_of(world, term.service))
                for term in affinity.anti_workload.required if affinity else ():
                    if term.service != name:
                        assert not set(nodes_of(world, name)) & set(nodes_of(world, term.service))

    run_virtual(run())


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        pytest.param("update", ("a",), id="updated again"),
        pytest.param("scale", ("a", 2), id="scaled up"),
        pytest.param("scale", ("a", 0), id="scaled to nothing"),
    ],
)
def test_surge_machine_is_given_back_after_another_change(change: str, arguments: tuple[Any, ...]) -> None:
    """The change comes while the machine for the surge replica of the first update is on its way."""

    async def run() -> None:
        async with control_world(
            *supply(), *(a_command(name, cores=0.25, memory=0.4) for name in "abcd")
        ) as world:
            await rest(world)
            assert sum(existing_machines(world).values()) == 1
            player = HistoryPlayer(world)
            await player.update("a")
            while not any(
                record.surge_machines for record in world.all(LatticeService)[0].status.remediation
            ):
                await world.sleep(0.2)
            await getattr(player, change)(*arguments)
            await rest(world)
            replicas = arguments[1] if change == "scale" else 1
            assert ready(world) == Counter(a=replicas, b=1, c=1, d=1) + Counter()
            assert sum(existing_machines(world).values()) == (2 if replicas == 2 else 1)
            assert all(
                not record.surge_machines for record in world.all(LatticeService)[0].status.remediation
            )

    run_virtual(run())


def test_equal_services_share_a_refusal() -> None:
    """Machines with a taint that their class does not state: one can be an accident, two are none, for all services of one shape."""

    async def run() -> None:
        async with control_world() as world:
            world.lies["tiny"] = Lie(is_tainted=True)
            await world.apply(
                *supply(capacity={"maxNodes": 30}), *[a_command(name, cores=0.25) for name in "abcdefgh"]
            )
            await world.sleep(900)
            assert sum(world.created.values()) <= 4, world.created_at
            bought = sum(world.created.values())
            await HistoryPlayer(world).scale("a", 2)
            await world.sleep(300)
            assert sum(world.created.values()) == bought, world.created_at

    run_virtual(run())
