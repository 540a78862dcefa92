"""An applied plan gives the planned placements and cost, to the micro-dollar: random worlds and changes on
the real controllers."""

import asyncio
import os

import msgspec
import pytest
from build.applied_plans import (
    check_machines,
    check_placements,
    current_placements,
    has_unschedulable,
    machines,
    observed_world,
    placements_of,
    settle_fleet,
)
from build.service_world import RunningFleet, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_policy, a_pool, a_service, a_static, policies, pools, services, worlds
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from lattice.controllers.services.placement import FLEET_KEY
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import NODE_CLASS_LABEL
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.plan.plan import FleetState, plan

LONG = os.environ.get("LATTICE_LONG") == "1"
EXAMPLES = settings(
    max_examples=1500 if LONG else 15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
GOING = (
    ("LatticeService", "default", "web"),
    ("LatticePool", "", "p2"),
    ("LatticePlacementPolicy", "", "rules0"),
    ("LatticeService", "default", "db"),
)
KINDS: dict[str, type[Kind]] = {
    each.resource.kind: each for each in (LatticeService, LatticePool, LatticePlacementPolicy)
}


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[Kind], list[ObjectKey], int]:
    """Created or changed objects, deleted objects, and the new number of replicas of api; 0: unchanged."""
    some = st.one_of(pools("p1"), pools("p9"), services("new", ["db"]), services("new"), policies("rules0"))
    found = draw(st.lists(some, max_size=2))
    unique = {(each.resource.kind, each.metadata.name): each for each in found}
    return (
        list(unique.values()),
        draw(st.lists(st.sampled_from(GOING), unique=True, max_size=1)),
        draw(st.integers(0, 4)),
    )


def scaled(service: LatticeService, replicas: int) -> LatticeService:
    wanted = msgspec.structs.replace(service.spec.replicas, min=replicas, max=None)
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, replicas=wanted))


def is_in_use(fleet: RunningFleet, gone: ObjectKey) -> bool:
    """Is it a pool with clusters? Those have a test of their own."""
    return gone[0] == LatticePool.resource.kind and any(
        cluster.spec.pool == gone[2] for cluster in fleet.all(LatticeCluster)
    )


@EXAMPLES
@given(world=worlds(), change=changes())
async def test_applied_plan_matches_planned_state(
    world: World, change: tuple[list[Kind], list[ObjectKey], int]
) -> None:
    clock = VirtualClock()
    async with running_fleet(
        *world.objects.values(), clock=clock, pricing_tables=lambda: PricingTables(world.price_book)
    ) as fleet:
        await settle_fleet(fleet, world, binding=True)
        if has_unschedulable(fleet):
            return
        now, before = observed_world(fleet, world), current_placements(fleet)
        wanted, gone = (
            list(change[0]),
            [each for each in change[1] if each in now.objects and not is_in_use(fleet, each)],
        )
        wanted += [scaled(now.services["default/api"], change[2])] if change[2] else []
        note(f"{[(each.resource.kind, each.metadata.name) for each in wanted]} and without {gone}")
        planned = plan(now, wanted, gone).state_after
        assert planned is not None
        for kind, namespace, name in gone:
            await fleet.remove(KINDS[kind], name, namespace)
        await fleet.apply(*wanted)
        await settle_fleet(fleet, world, binding=False)
        check_placements(fleet, planned, before)
        await settle_fleet(fleet, world, binding=True)
        check_machines(fleet, planned, before)


@EXAMPLES
@given(world=worlds(), going=st.sampled_from(["p1", "p2"]), replicas=st.integers(0, 4))
async def test_deleted_pool_removes_nothing_as_planned(world: World, going: str, replicas: int) -> None:
    async with running_fleet(
        *world.objects.values(),
        clock=VirtualClock(),
        pricing_tables=lambda: PricingTables(world.price_book),
    ) as fleet:
        await settle_fleet(fleet, world, binding=True)
        if has_unschedulable(fleet):
            return
        now, before = observed_world(fleet, world), current_placements(fleet)
        gone = [("LatticePool", "", going)] if ("LatticePool", "", going) in now.objects else []
        wanted: list[Kind] = [a_service("late", replicas=replicas)] if replicas else []
        made = plan(now, wanted, gone)
        said, moving = (
            made.state_after,
            {move.name for move in made.would_move if f"{going} is no longer offered" in move.reasons},
        )
        assert said is not None
        for _, _, name in gone:
            await fleet.remove(LatticePool, name)
        await fleet.apply(*wanted)
        await settle_fleet(fleet, world, binding=False)
        check_placements(fleet, said, before)
        await settle_fleet(fleet, world, binding=True)
        check_machines(fleet, said, before)
        stranded = {
            f"default/{each.metadata.name}"
            for each in fleet.all(LatticeService)
            if gone and _is_in(each, going)
        }
        assert stranded == moving


LIES = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from([{"cpu": cores * 500, "memory": memory << 29}, {"cpu": 100, "memory": 1 << 30}])
        for name, cores, memory in (("s", 2, 4), ("m", 4, 16), ("l", 16, 64))
    },
)


@EXAMPLES
@given(world=worlds(), lies=LIES, replicas=st.integers(1, 4))
async def test_applied_plan_matches_with_classes_that_lie(
    world: World, lies: dict[str, dict[str, int]], replicas: int
) -> None:
    """Machines of some classes have half of what is stated, or next to nothing."""
    clock = VirtualClock()
    async with running_fleet(
        *world.objects.values(), clock=clock, pricing_tables=lambda: PricingTables(world.price_book)
    ) as fleet:
        fleet.reports = lies
        for _ in range(20):
            await settle_fleet(fleet, world, binding=True)
            waiting = [replica for replica in fleet.all(LatticeWorkload) if replica.status.binding is None]
            if not waiting:
                break
            for replica in waiting:
                await fleet.mark_unschedulable(replica)
            clock.jump(60)
        assert not waiting, "a replica is bound, or has a verdict instead of a machine"
        now, before = observed_world(fleet, world), current_placements(fleet)
        api = scaled(now.services["default/api"], replicas)
        planned = plan(now, [api], []).state_after
        assert planned is not None
        await fleet.apply(api)
        await settle_fleet(fleet, world, binding=False)
        if any(fleet.reports.get(name) for kinds in planned.clusters.values() for name in kinds):
            known = {record.offer for kind in fleet.all(LatticeNodeClass) for record in kind.status.observed}
            if not known >= {pool for placed in planned.replica_counts.values() for pool, _, _ in placed}:
                # A class is new in an offer: what its machines have is not known before one has come.
                return
        check_placements(fleet, planned, before)
        await settle_fleet(fleet, world, binding=True)
        check_machines(fleet, planned, before)


def _is_in(service: LatticeService, pool: str) -> bool:
    return any(placement.pool == pool for placement in service.status.placements)


async def test_unbound_replicas_leave_capacity_to_bound_ones() -> None:
    """Two machines are paid, and the budget has no room for a third: eight replicas of one core fit, the
    ninth does not."""
    async with running_fleet(
        a_class(), a_pool(budget=400), a_service(replicas=1, priority=1), a_service("db", replicas=3)
    ) as fleet:
        await settle_fleet(fleet, World.of([]), binding=True)
        await fleet.apply(a_service(replicas=4, priority=1), a_service("new", replicas=2))
        for _ in range(3):
            await fleet.converge()
        placed = {name: sum(counts.values()) for name, counts in placements_of(fleet).items()}
        # Which of the two services waits for the ninth core does not matter here.
        assert placed["default/db"] == 3
        assert placed["default/api"] + placed["default/new"] == 5


async def bound_to(fleet: RunningFleet, service: str, *numbers: int) -> None:
    """Bind the replicas of the service to these machines of the only cluster."""
    await fleet.make_nodes()
    for each, number in zip(fleet.live(service), numbers, strict=True):
        node = f"{each.spec.cluster}-{each.spec.constraints.node_selector[NODE_CLASS_LABEL]}-{number}"
        await fleet.change(each, binding=Binding(node=node), ready=True, actual_state="Running")


async def assert_plan_holds(fleet: RunningFleet, *wanted: Kind, gone: str = "") -> FleetState:
    """Plan and apply these objects and the deletion of `gone`, and assert that the fleet matches the plan."""
    before, without = current_placements(fleet), [("LatticeService", "default", gone)] if gone else []
    planned = plan(observed_world(fleet, World.of([])), wanted, without).state_after
    assert planned is not None
    for _, namespace, name in without:
        await fleet.remove(LatticeService, name, namespace)
    await fleet.apply(*wanted)
    await settle_fleet(fleet, World.of([]), binding=False)
    check_placements(fleet, planned, before)
    await settle_fleet(fleet, World.of([]), binding=True)
    check_machines(fleet, planned, before)
    return planned


async def test_new_replica_takes_machine_of_removed_one() -> None:
    """The data center is full, and one change both empties the only rented cluster and adds a replica."""
    supply = a_class(), a_pool("rented"), a_static(nodes=1, cores=4, memory="16Gi")
    async with running_fleet(*supply, a_service(replicas=2, cores=4)) as fleet:
        await settle_fleet(fleet, World.of([]), binding=True)
        said = await assert_plan_holds(fleet, a_service(replicas=1, cores=4), a_service("new", replicas=1))
        assert said.replica_counts["default/new"] == {("rented", "rented-001", "m"): 1}


@pytest.mark.parametrize(
    ("fewest", "machines_left"),
    [
        pytest.param(1, 1, id="a machine is given up"),
        pytest.param(2, 2, id="a cluster that keeps its machines keeps them in use"),
    ],
)
async def test_removed_replicas_are_those_planned(fewest: int, machines_left: int) -> None:
    """Of three replicas, two share a machine and one has another."""
    rules = a_policy(clusters={"minNodes": fewest})
    async with running_fleet(
        a_class("s", 2, 8), a_pool(classes=["s"]), rules, a_service(replicas=3)
    ) as fleet:
        await settle_fleet(fleet, World.of([]), binding=True)
        await assert_plan_holds(fleet, a_service(replicas=2))
        assert len({replica.status.binding.node for replica in fleet.live()}) == machines_left


async def test_deleted_service_holds_no_machine() -> None:
    """Two replicas of api share a machine, the third is beside web: without web, the third goes with its
    machine."""
    async with running_fleet(
        a_class("s", 2, 4),
        a_pool(classes=["s"]),
        a_service(replicas=3, memory=2),
        a_service("web", memory=2),
    ) as fleet:
        await settle_fleet(fleet, World.of([]), binding=True)
        await assert_plan_holds(fleet, a_service(replicas=2, memory=2), gone="web")
        assert machines(fleet) == {"p1-001": {"s": 1}}


async def test_terminating_service_holds_no_machine() -> None:
    """As above, but web was deleted before the change of api, and still runs."""
    async with running_fleet(
        a_class("s", 2, 4),
        a_pool(classes=["s"]),
        a_service(replicas=3, memory=2),
        a_service("web", memory=2),
    ) as fleet:
        await settle_fleet(fleet, World.of([]), binding=True)
        await fleet.remove(LatticeService, "web", "default")
        await fleet.converge()
        await assert_plan_holds(fleet, a_service(replicas=2, memory=2))
        assert machines(fleet) == {"p1-001": {"s": 1}}


@pytest.mark.parametrize(
    ("first", "machines_left"),
    [
        pytest.param("api", 1, id="the first leaves the other alone, which gives its machine up"),
        pytest.param("web", 2, id="the first leaves the most crowded machine, which the other shares"),
    ],
)
async def test_higher_priority_service_scales_down_first(first: str, machines_left: int) -> None:
    """One replica of api is on each machine; two replicas of web share a machine, and one has another."""
    supply = a_class("l", 3, 12), a_pool(classes=["l"])
    api, web = {"priority": int(first == "api")}, {"priority": int(first == "web")}
    async with running_fleet(
        *supply, a_service(replicas=2, **api), a_service("web", replicas=3, **web)
    ) as fleet:
        await fleet.converge()
        await bound_to(fleet, "api", 1, 2)
        await bound_to(fleet, "web", 1, 1, 2)
        await settle_fleet(fleet, World.of([]), binding=True)
        await assert_plan_holds(fleet, a_service(replicas=1, **api), a_service("web", replicas=2, **web))
        assert machines(fleet) == {"p1-001": {"l": machines_left}}


async def test_second_scale_down_counts_victims_of_the_first() -> None:
    """The first choice is not written yet: the replica of api on the second machine goes, and with that of
    web the machine is empty."""
    async with running_fleet(
        a_class("l", 3, 12), a_pool(classes=["l"]), a_service(replicas=2), a_service("web", replicas=3)
    ) as fleet:
        await fleet.converge()
        await bound_to(fleet, "api", 1, 2)
        await bound_to(fleet, "web", 1, 1, 2)
        await settle_fleet(fleet, World.of([]), binding=True)
        await fleet.apply(a_service(replicas=1), a_service("web", replicas=2))
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        await asyncio.gather(*(fleet.replicas.reconcile(f"default/{name}") for name in ("api", "web")))
        assert {replica.status.binding.node for name in ("api", "web") for replica in fleet.live(name)} == {
            "p1-001-l-1"
        }


async def test_removed_replicas_free_capacity_for_waiting_one() -> None:
    """Three small replicas occupy both machines; the large replica is placed and finds no node until two of
    them go."""
    async with running_fleet(
        a_class(cores=8), a_pool(), a_service(replicas=3), a_service("db", cores=8)
    ) as fleet:
        await fleet.converge()
        await bound_to(fleet, "api", 1, 2, 1)
        await settle_fleet(fleet, World.of([]), binding=True)
        assert has_unschedulable(fleet)
        await assert_plan_holds(fleet, a_service(replicas=1))
        assert not has_unschedulable(fleet)
