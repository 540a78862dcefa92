"""Status of pools, clouds and data centers: each condition, and no writes without a change."""

from collections.abc import Callable
from typing import Any

import pytest
from build.cluster_world import a_cluster
from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import make_object

from lattice.controllers.services.supply_status import SupplyStatusController
from lattice.controllers.services.world_cache import AdapterLookup
from lattice.kinds import KINDS
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.fleet import Fleet


async def here() -> dict[str, None]:
    return {"local": None, "aws": None}


NANO = make_object(
    LatticeNodeClass,
    "nano",
    spec={
        "providers": {"local": {}, "aws": {}},
        "resources": {"cores": 1, "memoryGi": 1},
        "costPerHour": {"local": 0.1, "aws": 0.1},
    },
)


def the_north_pool(provider: str = "local", **spec: Any) -> LatticePool:
    place = {"type": provider, "region": "north", **spec.pop("login", {})}
    return make_object(LatticePool, "north", spec={"provider": place, "nodeClasses": ["nano"], **spec})


LOGIN = {"login": {"credentials": {"secretRef": "keys"}}}
KEYS = make_object(
    Secret, "keys", "lattice-system", data={"AWS_ACCESS_KEY_ID": "YQ==", "AWS_SECRET_ACCESS_KEY": "YQ=="}
)
CLOUD = make_object(
    CloudInfrastructure, "aws", spec={"provider": "aws", "regions": {"us-east-1": {}, "eu-west-1": {}}}
)
DATA_CENTER = {"provider": "local", "location": {"name": "dc", "region": "dc"}, "capacity": {"nodes": 4}}

CASES: dict[str, tuple[list[Kind], str, str, str, str]] = {
    "usable": ([the_north_pool(), NANO], "Ready", "True", "Usable", ""),
    "no adapter": (
        [the_north_pool("gcp"), NANO],
        "Ready",
        "False",
        "ProviderUnavailable",
        "no adapter for provider gcp is configured",
    ),
    "a class that is not there": (
        [the_north_pool()],
        "ReferencesResolved",
        "False",
        "NodeClassNotFound",
        "nano",
    ),
    "all resolved": ([the_north_pool(), NANO], "ReferencesResolved", "True", "Resolved", ""),
    "needs no login": ([the_north_pool(), NANO], "CredentialsValid", "True", "NotNeeded", ""),
    "no such secret": (
        [the_north_pool("aws", **LOGIN), NANO],
        "CredentialsValid",
        "False",
        "SecretNotFound",
        "lattice-system/keys",
    ),
    "secret without the keys": (
        [
            the_north_pool("aws", **LOGIN),
            NANO,
            make_object(Secret, "keys", "lattice-system", data={"AWS_ACCESS_KEY_ID": "YQ=="}),
        ],
        "CredentialsValid",
        "False",
        "KeysMissing",
        "lacks AWS_SECRET_ACCESS_KEY",
    ),
    "secret with the keys": (
        [the_north_pool("aws", **LOGIN), NANO, KEYS],
        "CredentialsValid",
        "True",
        "KeysFound",
        "",
    ),
    "nearly full": (
        [the_north_pool(capacity={"maxNodes": 5}), NANO, a_cluster(4)],
        "CapacityPressure",
        "True",
        "NearlyFull",
        "20% capacity available",
    ),
    "room left": (
        [the_north_pool(capacity={"maxNodes": 5}), NANO, a_cluster(3)],
        "CapacityPressure",
        "False",
        "RoomLeft",
        "40%",
    ),
    "within budget": (
        [the_north_pool(budget={"maxMonthlyCost": 1000}), NANO, a_cluster(1)],
        "BudgetExceeded",
        "False",
        "WithinBudget",
        "",
    ),
    "over budget": (
        [the_north_pool(budget={"maxMonthlyCost": 10}), NANO, a_cluster(1)],
        "BudgetExceeded",
        "True",
        "HardLimit",
        "of $10",
    ),
}


async def at_once(think: Callable[[], Fleet]) -> Fleet:
    return think()


async def reconcile_supply(plane: ControlPlane, adapters: AdapterLookup = here) -> None:
    supply = SupplyStatusController(
        await plane.new_term(), adapters, min_interval_s=0, run_in_background=at_once
    )
    async with running_loops(supply.context, supply.loop()):
        for _ in range(20):
            await plane.clock.advance(0.1)


def condition_of(conditions: tuple[Condition, ...], kind: str) -> Condition:
    return next(condition for condition in conditions if condition.type == kind)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_pool_conditions(case: str) -> None:
    objects, kind, status, reason, words = CASES[case]

    plane = ControlPlane()
    await plane.put(*objects)
    await reconcile_supply(plane)
    pool = await plane.get(LatticePool, "north")
    assert pool is not None
    found = condition_of(pool.status.conditions, kind)
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message
    assert found.last_transition_time == "2026-01-01T00:00:00Z"


async def test_cloud_with_unusable_regions_is_degraded() -> None:
    plane = ControlPlane()
    pool = make_object(
        LatticePool,
        "aaa",
        spec={"provider": {"type": "aws", "region": "eu-west-1"}, "nodeClasses": ["nano"]},
    )
    await plane.put(NANO, pool, CLOUD)
    await reconcile_supply(plane)
    cloud = await plane.get(CloudInfrastructure, "aws")
    assert cloud is not None
    assert (
        condition_of(cloud.status.conditions, "Degraded").message == "no replica can be placed in eu-west-1"
    )
    assert condition_of(cloud.status.conditions, "Overlaps").status == "True"
    assert cloud.status.phase == "Degraded"


async def test_usage_and_cost_of_pools_clouds_and_data_centers() -> None:
    plane = ControlPlane()
    workload = {
        "containers": {"main": {"command": ["true"]}},
        "cluster": "north-001",
        "service": "web",
        "requests": {"cpu": "500m"},
    }
    await plane.put(
        NANO,
        the_north_pool(capacity={"maxNodes": 8}),
        a_cluster(2),
        make_object(LatticeWorkload, "web-0", "default", spec=workload),
    )
    await plane.put(make_object(StaticInfrastructure, "dc", spec=DATA_CENTER), a_cluster(3, "dc"))
    await reconcile_supply(plane)
    pool, cluster = await plane.get(LatticePool, "north"), await plane.get(LatticeCluster, "north-001")
    static, kind = await plane.get(StaticInfrastructure, "dc"), await plane.get(LatticeNodeClass, "nano")
    assert pool is not None
    assert cluster is not None
    assert static is not None
    assert kind is not None
    assert pool.status.capacity is not None
    assert (
        pool.status.capacity.allocated_nodes,
        pool.status.clusters[0].services,
        pool.status.next_cluster_sequence,
    ) == (2, 1, 2)
    assert (cluster.status.workloads, cluster.status.services, str(cluster.status.cost.hourly)) == (
        1,
        1,
        "0.2",
    )  # type: ignore[union-attr]
    assert str(cluster.status.utilization.cores) == "0.25"  # type: ignore[union-attr]
    assert static.status.utilization.nodes.used == 3  # type: ignore[union-attr]
    assert kind.status.nodes == 5


async def test_passing_time_and_accruing_cost_write_nothing() -> None:
    plane = ControlPlane()
    spending = {"committedMicros": 100_000, "month": "2026-01", "asOf": "2026-01-01T00:00:00.000000Z"}
    machines = {"north-001": [{"nodeClass": "nano", "count": 1, "micros": 100_000}]}
    budget = {
        "budget": {"kind": "LatticePool", "name": "north"},
        "limitMicros": 1_000_000_000,
        "hard": True,
    }
    ledger = make_object(LatticeLedger, "pool.north", spec=budget, status={**spending, "machines": machines})
    await plane.put(NANO, the_north_pool(budget={"maxMonthlyCost": 1000}), a_cluster(1), ledger)
    supply = SupplyStatusController(await plane.new_term(), here, min_interval_s=0, run_in_background=at_once)
    async with running_loops(supply.context, supply.loop()):
        for _ in range(20):
            await plane.clock.advance(0.1)
        first, *later = await revision_after(plane, [60] * 20)
        assert set(later) == {first}
        for _ in range(30):
            await plane.clock.advance(3600)
        pool = await plane.get(LatticePool, "north")
        assert pool is not None
        assert pool.status.budget is not None
        assert pool.status.budget.current_month_cost  # by then it is worth telling


async def test_one_slow_store_call_does_not_slow_polling() -> None:
    plane = ControlPlane()
    await plane.put(NANO, the_north_pool(capacity={"maxNodes": 5}))
    supply = SupplyStatusController(await plane.new_term(), here, run_in_background=at_once)
    commit = supply.context.store.commit

    async def slow(*words: Any, **rest: Any) -> int:
        await plane.clock.sleep(5)
        revision: int = await commit(*words, **rest)
        return revision

    supply.context.store.commit = slow  # type: ignore[method-assign]
    async with running_loops(supply.context, supply.loop()):
        await plane.clock.advance(6)
        supply.context.store.commit = commit  # type: ignore[method-assign]
        await plane.put(a_cluster(4))
        for _ in range(50):
            await plane.clock.advance(0.1)
        pool = await plane.get(LatticePool, "north")
        assert pool is not None
        assert condition_of(pool.status.conditions, "CapacityPressure").status == "True"


async def test_slow_first_decision_does_not_delay_the_next_status() -> None:
    plane = ControlPlane()
    await plane.put(NANO, the_north_pool(capacity={"maxNodes": 5}))
    delays = [3.0]

    async def cold(build: Any) -> Any:
        if delays:
            await plane.clock.sleep(delays.pop())
        return build()

    supply = SupplyStatusController(await plane.new_term(), here, run_in_background=cold)
    async with running_loops(supply.context, supply.loop()):
        await plane.clock.advance(4)
        await plane.put(a_cluster(4))
        for _ in range(50):
            await plane.clock.advance(0.1)
        pool = await plane.get(LatticePool, "north")
        assert pool is not None
        assert condition_of(pool.status.conditions, "CapacityPressure").status == "True"


async def test_status_reveals_no_credentials() -> None:
    """The status names the present keys; their values are only in the Secret."""
    opens = "k3Zq-this-opens-the-cloud"

    plane = ControlPlane()
    login = make_object(
        Secret,
        "keys",
        "lattice-system",
        data={"AWS_ACCESS_KEY_ID": opens, "odd": opens},
        stringData={"more": opens},
    )
    cloud = make_object(
        CloudInfrastructure,
        "aws",
        spec={"provider": "aws", "regions": {"us-east-1": {}}, "credentialsRef": {"name": "keys"}},
    )
    await plane.put(the_north_pool("aws", **LOGIN), NANO, login, cloud)
    context = await plane.new_term()
    async with running_loops(
        context, SupplyStatusController(context, here, min_interval_s=0, run_in_background=at_once).loop()
    ):
        await plane.clock.advance(60)
    for kind in KINDS:
        if kind is not Secret:
            assert opens.encode() not in b"".join(
                entry.value for entry in (await plane.store.list(kind.resource.id)).entries
            )
    pool = await plane.get(LatticePool, "north")
    assert pool is not None
    found = next(condition for condition in pool.status.conditions if condition.type == "CredentialsValid")
    assert (found.status, found.reason, "lacks AWS_SECRET_ACCESS_KEY" in found.message) == (
        "False",
        "KeysMissing",
        True,
    )
