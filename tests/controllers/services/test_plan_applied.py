"""A plan that is applied gives the same placements, and the same cost to the micro-dollar: random worlds, random changes, the real controllers."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from build.service_world import Town, a_town
from build.virtual import VirtualClock
from build.worlds import a_class, a_policy, a_pool, a_service, a_static, policies, pools, services, worlds
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.controllers.services.services import FLEET_KEY
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import LatticeNode
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.lifecycle.replica_template import NODE_CLASS_LABEL
from lattice.placement.model.costs import releases_due
from lattice.placement.model.supply import pool_account
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.plan.plan import FleetState, plan

LONG = os.environ.get("LATTICE_LONG") == "1"
EXAMPLES = settings(
    max_examples=1500 if LONG else 40,
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
Placed = dict[tuple[str, str, str], int]  # replicas by pool, cluster and class
KINDS: dict[str, type[Kind]] = {
    each.resource.kind: each for each in (LatticeService, LatticePool, LatticePlacementPolicy)
}


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[Kind], list[ObjectKey], int]:
    """Objects that come or are different, objects that go, and how many replicas api is to have then; 0: as before."""
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


async def bind(town: Town, world: World) -> None:
    """Each to the emptiest machine of its cluster and class that has the room, large ones before small ones, which find room beside them."""
    await town.make_nodes()
    fleet = seen(town, world).build_fleet()
    machines, taken = fleet.machines, {name: Counter[str]() for name in fleet.machines.row_of}
    asked = {name: Counter(dict(seats[0].needs)) for name, seats in fleet.assignments.items() if seats}
    every = [
        (each, f"default/{each.spec.service}")
        for each in town.all(LatticeWorkload)
        if not each.metadata.deletion_timestamp
    ]
    for each, service in every:
        if each.status.binding and each.status.binding.node in taken:
            taken[each.status.binding.node] += asked[service]

    def fits(node: str, needs: Counter[str]) -> bool:
        row, index = machines.row_of[node], machines.resource_index
        return all(
            taken[node][name] + count <= machines.total(index[name])[row] for name, count in needs.items()
        )

    waiting = [(each, service) for each, service in every if not each.status.binding and service in asked]
    for each, service in sorted(
        waiting, key=lambda found: (-asked[found[1]]["cpu"], -asked[found[1]]["memory"])
    ):
        cell = (each.spec.cluster, each.spec.constraints.node_selector[NODE_CLASS_LABEL])
        nodes = [
            n.metadata.name for n in town.all(LatticeNode) if (n.spec.cluster, n.spec.node_class) == cell
        ]
        free = [name for name in nodes if name in taken and fits(name, asked[service])]
        if free:
            node = min(free, key=lambda name: (taken[name]["cpu"], name))
            taken[node] += asked[service]
            await town.change(
                each, binding=Binding(node=node), ready=True, actual_state="Running", conditions=()
            )


async def vanish(town: Town) -> None:
    """Machines that nobody wants any more are gone, and not paid any more."""
    wanted = {each.metadata.name: Counter(each.spec.nodes) for each in town.all(LatticeCluster)}
    for node in reversed(town.all(LatticeNode)):
        cluster, kind = node.spec.cluster, node.spec.node_class
        alike = [
            each
            for each in town.all(LatticeNode)
            if (each.spec.cluster, each.spec.node_class) == (cluster, kind)
        ]
        if len(alike) > wanted[cluster][kind] and not any(
            _is_on(each, node) for each in town.all(LatticeWorkload)
        ):
            await town.remove(LatticeNode, node.metadata.name)
    books = town.all(LatticeLedger)
    cells = sorted(
        {
            (cluster, lot.node_class)
            for book in books
            for cluster, lots in book.status.machines.items()
            for lot in lots
        }
    )
    back = [
        each for cell in cells for each in releases_due(books, cell, wanted.get(cell[0], Counter())[cell[1]])
    ]
    if back:
        await LedgerCommitter(town.store, town.clock).commit_with_charges(Payment([], releases=back))
        await town.caught_up()


def _is_on(workload: LatticeWorkload, node: LatticeNode) -> bool:
    return workload.status.binding is not None and workload.status.binding.node == node.metadata.name


async def settled(town: Town, world: World, *, binding: bool) -> None:
    """Until nobody has anything to do: what is to go is gone, and everything bound if it is to be."""
    for _ in range(8):
        before = await town.store.revision()
        await town.look()
        if binding:
            await bind(town, world)
        await town.finish()
        await vanish(town)
        if await town.store.revision() == before:
            return


def has_stuck(town: Town) -> bool:
    """Has one a place, and no node with room for it? It gets a machine more, or another place, after a while: nothing is settled before."""
    return any(each.status.binding is None for each in town.all(LatticeWorkload))


def where(town: Town) -> dict[str, Placed]:
    return {
        f"default/{each.metadata.name}": {
            (at.pool, at.cluster, at.node): at.replicas for at in each.status.placements
        }
        for each in town.all(LatticeService)
        if each.status.placements
    }


def costs(town: Town) -> dict[str, int]:
    """Micro-dollars per hour of each service, as its status says."""
    found: dict[str, int] = {}
    for each in town.all(LatticeService):
        if each.status.placements:
            found[f"default/{each.metadata.name}"] = sum(
                dollars_to_micros(at.cost.hourly) for at in each.status.placements if at.cost
            )
    return found


def machines(town: Town) -> dict[str, dict[str, int]]:
    return {
        each.metadata.name: dict(each.spec.nodes)
        for each in town.all(LatticeCluster)
        if any(each.spec.nodes.values())
    }


def ledgers(town: Town) -> dict[str, int]:
    """Micro-dollars per hour that each pays for machines that are wanted; what is not is paid until it is confirmed to be gone."""
    left = {each.metadata.name: dict(each.spec.nodes) for each in town.all(LatticeCluster)}
    found = {}
    for book in town.all(LatticeLedger):
        lots = [
            (lot, left.get(cluster, {}).get(lot.node_class, 0))
            for cluster, several in book.status.machines.items()
            for lot in several
        ]
        found[book.metadata.name] = sum(min(lot.count, wanted) * lot.micros for lot, wanted in lots)
    return {name: rate for name, rate in found.items() if rate}


def seen(town: Town, world: World) -> World:
    objects = [each for copy in town.office.caches for each in copy.objects()]
    return replace(World.of(objects, world.price_book), now=town.clock.now())


def is_in_use(town: Town, gone: ObjectKey) -> bool:
    """A pool with clusters; those have a test of their own."""
    return gone[0] == LatticePool.resource.kind and any(
        each.spec.pool == gone[2] for each in town.all(LatticeCluster)
    )


def check_places(town: Town, said: FleetState, before: dict[str, tuple[Placed, int]]) -> None:
    """Who stays as it is may be told its new share later: while others of its cluster come and go, the one it had stands."""
    places, shares = where(town), costs(town)
    assert places == {name: dict(each) for name, each in said.replica_counts.items()}
    for name, share in shares.items():
        had = before.get(name)
        stays = had is not None and had[0] == places[name]
        assert share == said.service_rates.get(name, 0) or (stays and had is not None and share == had[1]), (
            name
        )


def stated(town: Town) -> dict[str, tuple[Placed, int]]:
    shares = costs(town)
    return {name: (places, shares[name]) for name, places in where(town).items()}


def by_cell(clusters: Mapping[str, Mapping[str, int]]) -> Counter[tuple[str, str]]:
    return Counter({(name, kind): count for name, kinds in clusters.items() for kind, count in kinds.items()})


def crossed(before: dict[str, tuple[Placed, int]], said: FleetState) -> set[tuple[str, str]]:
    """Clusters and classes that some leave while others come: a node that was left stays if the scheduler chooses it for who comes."""
    names = {*before, *said.replica_counts}
    old = {name: Counter(before[name][0]) if name in before else Counter() for name in names}
    new = {name: Counter(said.replica_counts.get(name, {})) for name in names}
    left = {(cluster, kind) for name in names for _, cluster, kind in old[name] - new[name]}
    return left & {(cluster, kind) for name in names for _, cluster, kind in new[name] - old[name]}


def check_machines(town: Town, said: FleetState, before: dict[str, tuple[Placed, int]]) -> None:
    """Machines that nobody needs any more go once every replica of their cluster is bound; those of a pool that is gone stay, and are paid, while somebody is in their cluster."""
    assert where(town) == {name: dict(each) for name, each in said.replica_counts.items()}
    found, told = by_cell(machines(town)), by_cell(said.clusters)
    assert not told - found
    assert (found - told).keys() <= crossed(before, said)
    if found != told:
        return
    paid = Counter(said.fleet.committed)
    paid.update({pool_account(pool).ledger_name: rate for pool, rate in said.orphaned.offer_rates.items()})
    assert ledgers(town) == {name: rate for name, rate in paid.items() if rate}


@EXAMPLES
@given(world=worlds(), change=changes())
def test_applied_plan_matches_planned_state(
    world: World, change: tuple[list[Kind], list[ObjectKey], int]
) -> None:
    async def script() -> None:
        clock = VirtualClock()
        async with a_town(
            *world.objects.values(), clock=clock, pricing_tables=lambda: (world.price_book, "", "")
        ) as town:
            await settled(town, world, binding=True)
            if has_stuck(town):
                return
            now, before = seen(town, world), stated(town)
            wanted, gone = (
                list(change[0]),
                [each for each in change[1] if each in now.objects and not is_in_use(town, each)],
            )
            wanted += [scaled(now.services["default/api"], change[2])] if change[2] else []
            note(f"{[(each.resource.kind, each.metadata.name) for each in wanted]} and without {gone}")
            said = plan(now, wanted, gone).state_after
            assert said is not None
            for kind, namespace, name in gone:
                await town.remove(KINDS[kind], name, namespace)
            await town.apply(*wanted)
            await settled(town, world, binding=False)
            check_places(town, said, before)
            await settled(town, world, binding=True)
            check_machines(town, said, before)

    asyncio.run(script())


@EXAMPLES
@given(world=worlds(), going=st.sampled_from(["p1", "p2"]), replicas=st.integers(0, 4))
def test_deleted_pool_removes_nothing_as_planned(world: World, going: str, replicas: int) -> None:
    async def script() -> None:
        async with a_town(
            *world.objects.values(), clock=VirtualClock(), pricing_tables=lambda: (world.price_book, "", "")
        ) as town:
            await settled(town, world, binding=True)
            if has_stuck(town):
                return
            now, before = seen(town, world), stated(town)
            gone = [("LatticePool", "", going)] if ("LatticePool", "", going) in now.objects else []
            wanted: list[Kind] = [a_service("late", replicas=replicas)] if replicas else []
            made = plan(now, wanted, gone)
            said, moving = (
                made.state_after,
                {
                    each.name
                    for each in made.would_move
                    if f"{going}: is not offered any more" in each.reasons
                },
            )
            assert said is not None
            for _, _, name in gone:
                await town.remove(LatticePool, name)
            await town.apply(*wanted)
            await settled(town, world, binding=False)
            check_places(town, said, before)
            await settled(town, world, binding=True)
            check_machines(town, said, before)
            stranded = {
                f"default/{each.metadata.name}"
                for each in town.all(LatticeService)
                if gone and _is_in(each, going)
            }
            assert stranded == moving

    asyncio.run(script())


def _is_in(service: LatticeService, pool: str) -> bool:
    return any(each.pool == pool for each in service.status.placements)


async def test_unbound_replicas_leave_capacity_to_bound_ones() -> None:
    """Two machines are paid for, and there is no money for a third: eight replicas of one core have room there, and the ninth has none."""
    async with a_town(
        a_class(), a_pool(budget=400), a_service(replicas=1), a_service("db", replicas=3)
    ) as town:
        await settled(town, World.of([]), binding=True)
        await town.apply(a_service(replicas=4), a_service("new", replicas=2))
        for _ in range(3):
            await town.look()
        assert {name: sum(each.values()) for name, each in where(town).items()} == {
            "default/api": 4,
            "default/db": 3,
            "default/new": 1,
        }


async def bound_to(town: Town, service: str, *numbers: int) -> None:
    """Its replicas, to these machines of the one cluster."""
    await town.make_nodes()
    for each, number in zip(town.live(service), numbers, strict=True):
        node = f"{each.spec.cluster}-{each.spec.constraints.node_selector[NODE_CLASS_LABEL]}-{number}"
        await town.change(each, binding=Binding(node=node), ready=True, actual_state="Running")


async def comes_out(town: Town, *wanted: Kind, gone: str = "") -> FleetState:
    """What the plan of these, and without that service, says, and is so when they are applied."""
    before, without = stated(town), [("LatticeService", "default", gone)] if gone else []
    said = plan(seen(town, World.of([])), wanted, without).state_after
    assert said is not None
    for _, namespace, name in without:
        await town.remove(LatticeService, name, namespace)
    await town.apply(*wanted)
    await settled(town, World.of([]), binding=False)
    check_places(town, said, before)
    await settled(town, World.of([]), binding=True)
    check_machines(town, said, before)
    return said


async def test_new_replica_takes_machine_of_removed_one() -> None:
    """The data center is full, and the one cluster that is rented is left with nobody by the same change that brings a replica."""
    supply = a_class(), a_pool("rented"), a_static(nodes=1, cores=4, memory="16Gi")
    async with a_town(*supply, a_service(replicas=2, cores=4)) as town:
        await settled(town, World.of([]), binding=True)
        said = await comes_out(town, a_service(replicas=1, cores=4), a_service("new", replicas=1))
        assert said.replica_counts["default/new"] == {("rented", "rented-001", "m"): 1}


@pytest.mark.parametrize(
    ("fewest", "machines_left"),
    [
        pytest.param(1, 1, id="a machine is given up"),
        pytest.param(2, 2, id="a cluster that keeps its machines keeps them in use"),
    ],
)
async def test_removed_replicas_are_those_planned(fewest: int, machines_left: int) -> None:
    """Of three, two are on one machine and one on another."""
    rules = a_policy(clusters={"minNodes": fewest})
    async with a_town(a_class("s", 2, 8), a_pool(classes=["s"]), rules, a_service(replicas=3)) as town:
        await settled(town, World.of([]), binding=True)
        await comes_out(town, a_service(replicas=2))
        assert len({each.status.binding.node for each in town.live()}) == machines_left


async def test_deleted_service_holds_no_machine() -> None:
    """Two of api are on one machine, the third is beside web on another: without web, that one goes, and its machine."""
    async with a_town(
        a_class("s", 2, 4),
        a_pool(classes=["s"]),
        a_service(replicas=3, memory=2),
        a_service("web", memory=2),
    ) as town:
        await settled(town, World.of([]), binding=True)
        await comes_out(town, a_service(replicas=2, memory=2), gone="web")
        assert machines(town) == {"p1-001": {"s": 1}}


async def test_terminating_service_holds_no_machine() -> None:
    """As above, but web was deleted before anybody thought of api, and still runs."""
    async with a_town(
        a_class("s", 2, 4),
        a_pool(classes=["s"]),
        a_service(replicas=3, memory=2),
        a_service("web", memory=2),
    ) as town:
        await settled(town, World.of([]), binding=True)
        await town.remove(LatticeService, "web", "default")
        await town.look()
        await comes_out(town, a_service(replicas=2, memory=2))
        assert machines(town) == {"p1-001": {"s": 1}}


@pytest.mark.parametrize(
    ("priority", "machines_left"),
    [
        pytest.param(0, 1, id="the first leaves the other alone, which gives its machine up"),
        pytest.param(1, 2, id="the first leaves the most crowded machine, which the other shares"),
    ],
)
async def test_higher_priority_service_scales_down_first(priority: int, machines_left: int) -> None:
    """Of api one is on each machine; of web two are on one machine, and one on another."""
    supply = a_class("l", 3, 12), a_pool(classes=["l"])
    async with a_town(
        *supply, a_service(replicas=2), a_service("web", replicas=3, priority=priority)
    ) as town:
        await town.look()
        await bound_to(town, "api", 1, 2)
        await bound_to(town, "web", 1, 1, 2)
        await settled(town, World.of([]), binding=True)
        await comes_out(town, a_service(replicas=1), a_service("web", replicas=2, priority=priority))
        assert machines(town) == {"p1-001": {"l": machines_left}}


async def test_second_scale_down_counts_victims_of_the_first() -> None:
    """Though that is not written yet: the one of api on the second machine goes, and with that of web nobody is left there."""
    async with a_town(
        a_class("l", 3, 12), a_pool(classes=["l"]), a_service(replicas=2), a_service("web", replicas=3)
    ) as town:
        await town.look()
        await bound_to(town, "api", 1, 2)
        await bound_to(town, "web", 1, 1, 2)
        await settled(town, World.of([]), binding=True)
        await town.apply(a_service(replicas=1), a_service("web", replicas=2))
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        await asyncio.gather(*(town.replicas.reconcile(f"default/{name}") for name in ("api", "web")))
        assert {each.status.binding.node for name in ("api", "web") for each in town.live(name)} == {
            "p1-001-l-1"
        }


async def test_removed_replicas_free_capacity_for_waiting_one() -> None:
    """Three small ones are on both machines before the large one comes, which has its place and finds no node until two of them go."""
    async with a_town(a_class(cores=8), a_pool(), a_service(replicas=3), a_service("db", cores=8)) as town:
        await town.look()
        await bound_to(town, "api", 1, 2, 1)
        await settled(town, World.of([]), binding=True)
        assert has_stuck(town)
        await comes_out(town, a_service(replicas=1))
        assert not has_stuck(town)
