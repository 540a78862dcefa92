"""One book: on random worlds and the real controllers, with price, limit and replica changes, every face of the
cost equals an independent recount of machines times price, and every grouping adds up to it."""

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from build.applied_plans import bind, observed_world, settle_fleet
from build.service_world import RunningFleet, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_pool, a_service, worlds
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lattice.controllers.services.ledger_upkeep import LedgerUpkeepController
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, cloud_ledger_spec, pool_ledger_spec
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import World
from lattice.placement.queries.dispatch import answer_query
from lattice.placement.status.fleet_status import sum_of_costs
from lattice.placement.status.supply_status import supply_statuses
from lattice.server.live.spend_history import SpendRates
from lattice.server.live.usage_tables import (
    UsageSnapshot,
    budget_rows,
    cluster_rows,
    node_rows,
    pool_rows,
    service_rows,
)

LONG = os.environ.get("LATTICE_LONG") == "1"
EXAMPLES = settings(
    max_examples=1500 if LONG else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
GROUPINGS = ("pool", "service", "node", "label:team")
prices = st.integers(0, 2_000_000)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("price"), st.sampled_from(["s", "m", "l"]), st.one_of(st.none(), prices)),
        st.tuples(st.just("limit"), st.sampled_from(["p1", "p2"]), st.integers(0, 2000)),
        st.tuples(st.just("replicas"), st.sampled_from(["api", "web"]), st.integers(0, 5)),
        st.tuples(st.just("bind"), st.just(""), st.just(0)),
        st.tuples(st.just("hour"), st.just(""), st.integers(1, 800)),
    ),
    min_size=1,
    max_size=6,
)


async def apply_change(fleet: RunningFleet, world: World, change: tuple[str, str, Any]) -> None:
    kind, name, value = change
    if kind == "price":
        node_class = fleet.context.cache(LatticeNodeClass).get(f"/{name}")
        if node_class is not None:
            price = (
                {}
                if value is None
                else dict.fromkeys(["aws", "gcp"], msgspec.json.decode(f"{value / 10**6}"))
            )
            await fleet.apply(
                msgspec.convert(
                    {
                        **msgspec.to_builtins(node_class),
                        "spec": {**msgspec.to_builtins(node_class.spec), "costPerHour": price},
                    },
                    LatticeNodeClass,
                )
            )
    elif kind == "limit":
        pool = fleet.context.cache(LatticePool).get(f"/{name}")
        if pool is not None:
            budget = a_pool(budget=value).spec.budget
            await fleet.apply(
                msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, budget=budget))
            )
    elif kind == "replicas":
        service = fleet.service(name)
        wanted = msgspec.structs.replace(service.spec.replicas, min=value, max=None)
        await fleet.apply(
            msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, replicas=wanted))
        )
    elif kind == "bind":
        await bind(fleet, world)
    else:
        await fleet.clock.advance(value * 3600)


async def reconcile(fleet: RunningFleet, world: World) -> None:
    await settle_fleet(fleet, world, binding=False)
    upkeep = LedgerUpkeepController(fleet.context, lambda: world.price_book)
    for key in upkeep.owner_keys():
        await upkeep.reconcile(key)
    await fleet.wait_for_caches()


def recount(fleet: RunningFleet) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Micro-dollars per hour by ledger, by cluster and by pool: paid machines times the price of their class now,
    or the last known price."""
    clusters = {cluster.metadata.name: cluster for cluster in fleet.all(LatticeCluster)}
    classes = {node_class.metadata.name: node_class for node_class in fleet.all(LatticeNodeClass)}
    by_ledger, by_cluster, by_pool = Counter[str](), Counter[str](), Counter[str]()
    counted: set[str] = set()
    for ledger in fleet.all(LatticeLedger):
        for name, lots in ledger.status.machines.items():
            cluster = clusters[name]
            for lot in lots:
                price = classes[lot.node_class].spec.cost_per_hour.get(cluster.spec.provider)
                assert lot.price_unknown == (price is None)
                micros = lot.micros if price is None else dollars_to_micros(price)
                by_ledger[ledger.metadata.name] += lot.count * micros
                if name not in counted:
                    by_cluster[name] += lot.count * micros
                    by_pool[cluster.spec.pool] += lot.count * micros
            counted.add(name)
    return by_ledger, by_cluster, by_pool


def check_faces(fleet: RunningFleet, world: World) -> None:
    by_ledger, by_cluster, by_pool = recount(fleet)
    total = sum(by_cluster.values())
    now = replace(observed_world(fleet, world), now=fleet.clock.now())
    snapshot = UsageSnapshot(
        fleet.clock.now(),
        *(fleet.all(kind) for kind in (LatticePool, LatticeCluster, LatticeNode, LatticeService)),
        fleet.all(LatticeWorkload),
        fleet.all(LatticeLedger),
        fleet.all(LatticeNodeClass),
    )
    for ledger in fleet.all(LatticeLedger):
        assert ledger.status.committed_micros == by_ledger[ledger.metadata.name]
        account = ledger.spec.budget
        owner = now.objects.get((account.kind, "", account.name))
        if isinstance(owner, LatticePool):
            assert ledger.spec == pool_ledger_spec(owner)
        elif owner is not None and account.kind == "CloudInfrastructure":
            assert ledger.spec == cloud_ledger_spec(owner, account.region)  # type: ignore[arg-type]
    # cost
    for by in GROUPINGS:
        document = answer_query({"ask": "cost", "by": by}, now)
        assert document["total"]["hourlyMicros"] == total
        assert sum(row["hourlyMicros"] for row in document["rows"]) == total
        idle = sum(document[state]["hourlyMicros"] for state in ("empty", "beingMade", "leaving"))
        assert idle == document["overhead"]["hourlyMicros"]
        if by == "pool":
            rows = {row["name"]: row["hourlyMicros"] for row in document["rows"]}
            assert {name: rate for name, rate in rows.items() if rate} == +by_pool
    services = answer_query({"ask": "cost", "by": "service"}, now)
    by_service = {row["name"]: row["hourlyMicros"] for row in services["rows"]}
    # top
    assert sum(row["hourlyMicros"] for row in pool_rows(snapshot)) == total
    for row in budget_rows(snapshot):
        assert row["hourlyMicros"] == by_ledger[row["ledger"]]
        check_budget(row)
    for row in cluster_rows(snapshot):
        assert row["hourlyMicros"] in ((by_cluster[row["name"]],) if row["isPriced"] else (None,))
    for row in service_rows(snapshot):
        if row["isPriced"]:
            assert row["hourlyMicros"] == by_service.get(f"default/{row['name']}", 0)
    if all(row["isPriced"] for row in node_rows(snapshot)):
        nodes = sum(row["hourlyMicros"] for row in node_rows(snapshot))
        assert nodes + services["beingMade"]["hourlyMicros"] >= total
        assert nodes <= total
    check_services(fleet, by_service)
    # The spend history.
    rates = SpendRates.of(snapshot)
    assert sum(rates.pools.values()) == total
    assert sum(rates.services.values()) == total - services["overhead"]["hourlyMicros"]
    # The status of clusters and pools, and the rate that plan compares with.
    for obj, status in supply_statuses(now, now.build_fleet(), lambda *_: None, {}):
        if isinstance(obj, LatticeCluster):
            cost = status.cost  # type: ignore[attr-defined]
            unpriced = snapshot.bill.unpriced_clusters.get(obj.metadata.name)
            shown = None if cost is None else dollars_to_micros(cost.hourly)
            assert shown == (None if unpriced else by_cluster[obj.metadata.name])
    pending = answer_query({"ask": "plan"}, now, [a_service("late", replicas=0)])["pending"]
    if pending is not None:
        assert pending["cost"]["before"]["hourlyMicros"] == total


def check_services(fleet: RunningFleet, by_service: dict[str, int]) -> None:
    """The status of a service states the same cost once all of its replicas are bound."""
    for service in fleet.all(LatticeService):
        name, placements = service.metadata.name, service.status.placements
        replicas = fleet.live(name)
        is_bound = len(replicas) == sum(placement.replicas or 0 for placement in placements) and all(
            replica.status.binding for replica in replicas
        )
        if (cost := sum_of_costs(placements)) is not None and is_bound:
            assert dollars_to_micros(cost.hourly) == by_service.get(f"default/{name}", 0)


def check_budget(row: dict[str, Any]) -> None:
    """The percentage is of the rule that binds."""
    if row["limitMicros"]:
        used = max(row["hourlyMicros"] * 720, row["projectedMicros"])
        assert abs(Fraction(row["usedMillionths"], 10**6) - Fraction(used, row["limitMicros"])) <= Fraction(
            2, 10**6
        )


@pytest.mark.timeout(3600 if LONG else 300)
@EXAMPLES
@given(world=worlds(), changed=changes)
async def test_every_face_equals_the_recount(world: World, changed: list[tuple[str, str, Any]]) -> None:
    async with running_fleet(
        *world.objects.values(),
        clock=VirtualClock(),
        pricing_tables=lambda: PricingTables(world.price_book),
    ) as fleet:
        for change in [("hour", "", 1), *changed]:
            await apply_change(fleet, world, change)
            await reconcile(fleet, world)
            check_faces(fleet, world)


async def test_faces_agree_while_machines_are_made_and_stand_empty() -> None:
    """M2 and bug 2: three totals for one bill while machines came, stood empty and left."""
    world = World.of([a_class(price=0.004), a_pool(), a_service(cores=4, replicas=3)], PriceBook({}))
    async with running_fleet(
        *world.objects.values(), clock=VirtualClock(), pricing_tables=lambda: PricingTables(world.price_book)
    ) as fleet:
        await reconcile(fleet, world)
        now = replace(observed_world(fleet, world), now=fleet.clock.now())
        document = answer_query({"ask": "cost", "by": "service"}, now)
        assert document["rows"][0]["name"] == "(nodes being made in p1)"
        assert document["beingMade"]["hourlyMicros"] == document["total"]["hourlyMicros"] == 12_000
        await fleet.make_nodes()
        check_faces(fleet, world)
        await bind(fleet, world)
        await fleet.apply(a_service(cores=4, replicas=1))
        await fleet.converge()
        await fleet.finish_deletions()
        check_faces(fleet, world)
        now = replace(observed_world(fleet, world), now=fleet.clock.now())
        document = answer_query({"ask": "cost", "by": "service"}, now)
        assert document["total"]["hourlyMicros"] == 12_000
        assert document["overhead"]["hourlyMicros"] == 8_000
