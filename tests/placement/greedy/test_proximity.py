"""Tests of proximity: services that call each other share a cluster if possible, then a pool, a zone, a
region."""

import pytest
from build.worlds import a_policy, a_pool, a_service, a_world

from lattice.kinds.meta.base import Kind
from lattice.placement.greedy.machine_choice import assign_in_offer as settle_one
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan

CALLS = {"db": {"type": "service", "direction": "outbound"}}
CALLED = {"web": {"type": "service", "direction": "outbound"}}
SMALL_FULL_CLUSTERS = {"maxNodes": 2, "binPackingThreshold": 1}


def clusters(world: World, *changes: Kind, of: str = "web") -> dict[str, int]:
    after = plan(world, changes).state_after
    assert after is not None
    found: dict[str, int] = {}
    for (_, cluster, _), count in after.replica_counts[f"default/{of}"].items():
        found[cluster] = found.get(cluster, 0) + count
    return found


def world_with_full_cluster(*services: Kind, rules: Kind = a_policy(clusters=SMALL_FULL_CLUSTERS)) -> World:  # noqa: B008
    """A world in which aaa fills most of the two machines of p1-001, so that db starts p1-002."""
    return converge(
        a_world(a_pool(), rules, a_service("aaa", cores=3, replicas=2, priority=9), *services)
    ).resulting_world()


@pytest.mark.parametrize(
    "limit", [{}, {"latency": {"db": {"maxMs": 1}}}], ids=["without a limit", "with one"]
)
@pytest.mark.parametrize(("cores", "expected"), [
    pytest.param(1, {"p1-002": 1}, id="on the machine that is there"),
    pytest.param(3, {"p1-002": 1}, id="on one more machine"),
])  # fmt: skip
def test_caller_joins_cluster_of_its_callee(
    limit: dict[str, object], cores: int, expected: dict[str, int]
) -> None:
    base = world_with_full_cluster(a_service("db", cores=2))
    assert clusters(base, a_service("web", cores=cores, dependencies=CALLS, **limit)) == expected
    assert clusters(base, a_service("web", cores=1)) == {"p1-001": 1}, "else the fullest that has room"


def test_callee_joins_cluster_of_its_caller() -> None:
    base = world_with_full_cluster(a_service("db", cores=2, dependencies=CALLED))
    assert clusters(base, a_service("web")) == {"p1-002": 1}


def test_cluster_with_most_neighbours_grows() -> None:
    rules = a_policy(clusters={"maxNodes": 3, "binPackingThreshold": 1})
    base = world_with_full_cluster(
        a_service("aab", cores=3, priority=8), a_service("db", cores=4), rules=rules
    )
    assert clusters(base, of="db") == {"p1-002": 1}
    assert clusters(base, a_service("web", cores=4, replicas=2, dependencies=CALLS)) == {"p1-002": 2}


def test_full_cluster_falls_back_to_another_of_the_pool() -> None:
    base = world_with_full_cluster(a_service("db", cores=4, replicas=2))
    assert clusters(base, a_service("web", dependencies=CALLS)) == {"p1-001": 1}


def test_pool_with_shareable_cluster_is_preferred() -> None:
    """db runs in both pools; in p1 under cluster rules that have changed since."""
    strict = a_policy("strict", selector={"env": "old"}, clusters={"minNodes": 2})
    db = a_service("db", labels={"env": "old"}, pools={"matchLabels": {"first": "yes"}})
    first, second = a_pool("p1", labels={"first": "yes"}), a_pool("p2", classes=["m"])
    base = converge(a_world(first, second, strict, db)).resulting_world()
    moved = a_service("db", replicas=2, requiredRegions=["p1", "p2"])
    after = plan(base, [moved, a_service("web", dependencies=CALLS)]).state_after
    assert after is not None
    assert {cluster for _, cluster, _ in after.replica_counts["default/web"]} == {"p2-001"}


def test_settle_one_agrees_with_batch_placement() -> None:
    world = world_with_full_cluster(a_service("db", cores=2)).with_objects(
        [a_service("web", dependencies=CALLS)]
    )
    fleet = world.build_fleet()
    seat = settle_one(ReplicaAsk(world.demands["default/web"]), fleet, fleet.row("p1"))
    assert fleet.machines.cluster[seat.machine].name == "p1-002"
