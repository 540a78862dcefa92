"""The committed placements equal those of `plan`, also after a crash at any commit."""

from dataclasses import replace
from typing import Any

import pytest
from build.property_settings import LONG
from build.service_world import RunningFleet, contents, puts, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_pool, a_service, a_static, worlds
from hypothesis import given, settings

from lattice.controllers.services.placement import FLEET_KEY
from lattice.errors import Unavailable
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.model.costs import unpriced_groups
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan
from lattice.store.memory import MemoryStore

PLAIN = (LatticeService, LatticeCluster, LatticeLedger, LatticeWorkload)


def stored_objects(world: World) -> list[Kind]:
    return [*world.objects.values()]


async def committed(fleet: RunningFleet) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Placements and cost of services, machines, and the rate of each ledger."""
    where = {
        f"default/{each.metadata.name}": {
            (placed.pool, placed.cluster, placed.node): placed.replicas for placed in each.status.placements
        }
        for each in fleet.all(LatticeService)
    }
    machines = {
        cluster.metadata.name: dict(cluster.spec.nodes)
        for cluster in fleet.all(LatticeCluster)
        if cluster.spec.nodes
    }
    rates = {
        ledger.metadata.name: ledger.status.committed_micros
        for ledger in fleet.all(LatticeLedger)
        if ledger.status.committed_micros
    }
    return where, machines, rates


def shares(fleet: RunningFleet) -> dict[str, int | None]:
    """The cost of each placed service, None if the price of one of its machines is unknown."""
    results: dict[str, int | None] = {}
    for service in fleet.all(LatticeService):
        costs = [placed.cost and placed.cost.hourly for placed in service.status.placements]
        if costs:
            known = [dollars_to_micros(cost) for cost in costs if cost is not None]
            results[f"default/{service.metadata.name}"] = sum(known) if len(known) == len(costs) else None
    return results


@settings(max_examples=400 if LONG else 15, deadline=None)
@given(world=worlds())
async def test_committed_placements_match_plan(world: World) -> None:
    clock = VirtualClock()
    planned = converge(replace(world, now=clock.now()))
    async with running_fleet(
        *stored_objects(world), clock=clock, pricing_tables=lambda: PricingTables(world.price_book)
    ) as fleet:
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        where, machines, rates = await committed(fleet)
        assert {name: each for name, each in where.items() if each} == {
            name: dict(each) for name, each in planned.replica_counts.items()
        }
        assert machines == {name: dict(each) for name, each in planned.clusters.items()}
        assert rates == {name: rate for name, rate in planned.fleet.ledgers.committed.items() if rate}
        assert shares(fleet) == {
            name: None if unpriced_groups(planned.fleet, name) else planned.service_rates.get(name, 0)
            for name in planned.replica_counts
        }


@settings(max_examples=400 if LONG else 15, deadline=None)
@given(world=worlds())
async def test_added_service_matches_plan_and_cost(world: World) -> None:
    """All other replicas are bound by then, so that plan and controller see the same machines."""
    clock = VirtualClock()
    late = world.services["default/web"]
    rest = [each for each in stored_objects(world) if each is not late]
    async with running_fleet(
        *rest, clock=clock, pricing_tables=lambda: PricingTables(world.price_book)
    ) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.converge()
        objects = [each for copy in fleet.context.caches for each in copy.objects()]
        now = replace(World.of(objects, world.price_book), now=clock.now())
        planned = plan(now, [late])
        assert planned.state_after is not None
        await fleet.apply(late)
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        where, machines, rates = await committed(fleet)
        assert {name: each for name, each in where.items() if each} == {
            name: dict(each) for name, each in planned.state_after.replica_counts.items()
        }
        assert machines == {name: dict(each) for name, each in planned.state_after.clusters.items()}
        assert rates == {
            name: rate for name, rate in planned.state_after.fleet.ledgers.committed.items() if rate
        }


class FailingStore:
    """A store whose nth commit is made with a lost response, or not made at all; it is unavailable from then
    on."""

    def __init__(self, store: MemoryStore, at: int, *, lost: bool) -> None:
        self._store, self._left, self._lost = store, at, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any, **more: Any) -> int:
        self._left -= 1
        if self._left == 0 and not self._lost:
            await self._store.commit(*arguments, **more)
        if self._left <= 0:
            raise Unavailable("the store does not answer", fix="try again")
        return await self._store.commit(*arguments, **more)


WORLD = (
    a_class(),
    a_pool("p1", budget=400),
    a_pool("p2"),
    a_static(),
    a_service("api", replicas=150),
    a_service("web", replicas=4, cores=3),
)


async def _stored_world() -> tuple[MemoryStore, VirtualClock]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    await store.commit(puts(WORLD))
    return store, clock


async def _run_to_the_end(store: MemoryStore, clock: VirtualClock) -> dict[str, Any]:
    async with running_fleet(store=store, clock=clock) as fleet:
        await fleet.converge()
    return await contents(store, *PLAIN)


@pytest.mark.parametrize("lost", [False, True], ids=["committed with lost response", "not committed"])
async def test_crash_at_any_commit_ends_in_same_state(*, lost: bool) -> None:
    expected, at, crashed = await _run_to_the_end(*await _stored_world()), 0, True
    while crashed:
        at += 1
        store, clock = await _stored_world()
        try:
            async with running_fleet(store=FailingStore(store, at, lost=lost), clock=clock) as fleet:
                await fleet.converge()
            crashed = False
        except Unavailable:
            assert await _run_to_the_end(store, clock) == expected, f"after commit {at}"
    assert at >= 3
