"""Joined machines in the trial fleet: capacity of their own size, claimed by a cluster when used."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from build.affinity import apart, near
from build.joined_machines import GIB, a_joined_machine, a_manual_world
from build.objects import make_object
from build.worlds import a_class, a_policy, a_pool, a_service
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import PINNED_CLUSTER_ANNOTATION, LatticeNode
from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.placement.greedy.commit_stages import decide_stages
from lattice.placement.greedy.machine_choice import class_counts, machine_counts, remove_empty_machines
from lattice.placement.greedy.place_all import place_all
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan


def placed_nodes(fleet: Fleet, service: str = "default/api") -> list[str]:
    return sorted(
        fleet.machines.names[assignment.machine] for assignment in fleet.assignments.get(service, ())
    )


def placed(world: World) -> Fleet:
    fleet = world.build_fleet()
    place_all(world.demands.values(), fleet)
    return fleet


RACK = {"provider": "metal", "classes": []}


def test_replica_claims_the_smallest_joined_machine_that_fits() -> None:
    fleet = placed(
        a_manual_world(
            a_pool(**RACK),
            a_joined_machine("large", 16),
            a_joined_machine("small", 2),
            a_service(replicas=1, cores=1.5),
        )
    )
    (cluster,) = fleet.clusters.values()
    assert placed_nodes(fleet) == ["small"]
    assert machine_counts(fleet, cluster) == {"joined-2c-8g": 1}
    assert class_counts(fleet, cluster) == {}, "Lattice must not make a machine for it"
    assert [fleet.machines.names[row] for row in fleet.inventory.unclaimed[0].machines] == ["large"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, id="not ready"),
        pytest.param({"status": {"allocatable": {}}}, id="not registered yet"),
        pytest.param({"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="being deleted"),
        pytest.param({"spec": {"taints": [{"key": "lattice.dev/draining", "effect": "NoSchedule"}]}}, id="draining"),
        pytest.param({"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}}, id="tainted"),
        pytest.param({"spec": {"pool": "elsewhere"}}, id="of another pool"),
        pytest.param({"status": {"runtimes": ["process"]}}, id="without the runtime of the image"),
    ],
)  # fmt: skip
def test_joined_machine_is_no_capacity_when(change: dict[str, Any]) -> None:
    world = a_manual_world(a_pool(**RACK), a_joined_machine(**change), a_service(replicas=1))
    assert placed_nodes(placed(world)) == []


def test_joined_machines_are_used_before_machines_are_bought() -> None:
    fleet = placed(
        a_manual_world(
            a_class(), a_pool(), a_joined_machine(cores=2), a_service(replicas=3, cores=1, memory=1)
        )
    )
    assert sorted(kind.rate for kind in fleet.machines.machine_type.values()) == [0, 200_000]
    assert placed_nodes(fleet).count("box") == 2


def test_gpus_of_a_joined_machine_are_capacity() -> None:
    """An agent reports its GPUs one by one, not among the amounts of the machine."""
    gpus = {"status": {"gpus": [{"model": "a100", "milliFree": 1000}]}}
    world = a_manual_world(
        a_pool(**RACK), a_joined_machine(**gpus), a_service(replicas=2, gpu=1, gpuModel="a100")
    )
    assert placed_nodes(placed(world)) == ["box"]


def test_equal_joined_machines_are_chosen_by_name_only() -> None:
    """Of two machines with equal cores and memory, exchanged names choose the same machine."""
    chosen = set()
    for names in (("a", "b"), ("b", "a")):
        storage = {"cpu": 4000, "memory": 16 * GIB, "storage": 512 * GIB}
        world = a_manual_world(
            a_pool(**RACK),
            a_joined_machine(names[0]),
            a_joined_machine(names[1], status={"allocatable": storage}),
            a_service(replicas=1),
        )
        chosen.add(names.index(placed_nodes(placed(world))[0]))
    assert len(chosen) == 1


def test_limits_of_the_pool_bound_only_what_lattice_makes() -> None:
    pool = a_pool(capacity={"maxNodes": 0})
    assert placed_nodes(
        placed(a_manual_world(a_class(), pool, a_joined_machine(), a_service(replicas=1)))
    ) == ["box"]


def test_services_of_unequal_rules_share_the_joined_machines() -> None:
    fleet = placed(
        a_manual_world(
            a_pool(**RACK),
            a_joined_machine("a", 2),
            a_joined_machine("b", 2),
            a_policy(selector={"app": "x"}, clusters={"minNodes": 2}),
            a_service("x", replicas=1, labels={"app": "x"}),
            a_service("y", replicas=1),
        )
    )
    assert [len(cluster.machines) for cluster in fleet.clusters.values()] == [1, 1]
    assert placed_nodes(fleet, "default/x") != placed_nodes(fleet, "default/y")


def a_claimed(name: str = "box", cluster: str = "p1-001", **parts: Any) -> LatticeNode:
    return a_joined_machine(name, spec={"cluster": cluster, "nodeClass": "joined-4c-16g"}, **parts)


def a_cluster(**nodes: int) -> LatticeCluster:
    rules = a_manual_world(a_service()).demands["default/api"].rules.hash
    spec = {"pool": "p1", "provider": "metal", "region": "p1-1", "nodes": nodes, "policyHash": rules}
    return make_object(LatticeCluster, "p1-001", spec=spec)


@pytest.mark.parametrize(
    ("pinned", "others", "unclaimed"),
    [
        pytest.param(False, 1, ["box"], id="an idle machine goes back to its pool"),
        pytest.param(True, 1, [], id="a machine whose token names the cluster stays beside replicas"),
        pytest.param(True, 0, ["box"], id="and goes back with the last replica"),
    ],
)
def test_idle_machine(pinned: bool, others: int, unclaimed: list[str]) -> None:
    annotations = {PINNED_CLUSTER_ANNOTATION: "p1-001"} if pinned else {}
    world = a_manual_world(
        a_pool(**RACK), a_cluster(), a_claimed(meta={"annotations": annotations}), a_claimed("zbusy")
    )
    fleet = world.build_fleet()
    if others:
        service = a_service(replicas=1)
        demand = a_manual_world(a_pool(**RACK), service).demands["default/api"]
        fleet.assign_replica(demand, fleet.machines.row_of["zbusy"])
    remove_empty_machines(fleet, ["p1-001"])
    idle = fleet.inventory.unclaimed_cluster(0).machines
    assert [name for row in idle if (name := fleet.machines.names[row]) == "box"] == unclaimed


def test_machine_of_an_absent_cluster_is_unclaimed() -> None:
    world = a_manual_world(a_pool(**RACK), a_claimed(cluster="p1-009"), a_service(replicas=1))
    assert placed_nodes(placed(world)) == ["box"]


def test_undo_returns_a_claimed_machine() -> None:
    world = a_manual_world(a_pool(**RACK), a_joined_machine(), a_service(replicas=1))
    fleet = world.build_fleet()
    with fleet.what_if():
        place_all(world.demands.values(), fleet)
        assert fleet.clusters
    assert not fleet.clusters
    assert fleet.inventory.unclaimed[0].size == {"cpu": 4000, "memory": 16 * GIB}
    assert fleet.inventory.unclaimed[0].used == {"cpu": 0, "memory": 0}


def test_plan_shows_the_claim_and_costs_nothing() -> None:
    world = a_manual_world(a_pool(**RACK), a_joined_machine())
    result = plan(world, [a_service(replicas=1)])
    assert [(change.name, change.nodes_after) for change in result.clusters] == [
        ("p1-001", {"joined-4c-16g": 1})
    ]
    assert [(change.cost_before, change.cost_after) for change in result.services] == [(0, 0)]


def test_resulting_world_of_a_plan_keeps_the_claim() -> None:
    world = a_manual_world(a_pool(**RACK), a_joined_machine(), a_service(replicas=2, cores=1))
    again = converge(world).resulting_world().build_fleet()
    assert placed_nodes(again) == ["box", "box"]
    assert list(again.clusters) == ["p1-001"]


def test_full_manual_pool_says_to_join_a_machine() -> None:
    world = a_manual_world(
        a_pool(**RACK), a_joined_machine(cores=1), a_service(replicas=2, cores=1, memory=1)
    )
    fleet = world.build_fleet()
    (placement,) = place_all(world.demands.values(), fleet, keep_decisions=1).values()
    (reason,) = (reason for reason, mask in placement.decisions[-1].reasons.items() if mask[0])
    assert "lattice tokens create --pool p1" in reason.detail(fleet.table, 0).missing


@settings(max_examples=30, deadline=None)
@given(
    cores=st.lists(st.integers(1, 6), max_size=5),
    replicas=st.integers(1, 8),
    need=st.integers(1, 3),
    max_nodes=st.integers(0, 2),
)
def test_replicas_fit_exactly_on_whole_machines_with_capacity(
    cores: list[int], replicas: int, need: int, max_nodes: int
) -> None:
    """One service places as many replicas as the joined and made machines hold together."""
    machines = [a_joined_machine(f"box{number}", count) for number, count in enumerate(cores)]
    pool = a_pool(capacity={"maxNodes": max_nodes})
    service = a_service(replicas=replicas, cores=need, memory=1)
    policy = a_policy(clusters={"binPackingThreshold": 1})
    world = a_manual_world(a_class(cores=4), pool, policy, *machines, service)
    fleet = placed(world)
    holds = sum(count // need for count in cores) + max_nodes * (4 // need)
    assert len(placed_nodes(fleet)) == min(replicas, holds)
    bought = len(fleet.machines.machine_type) - len(cores)
    assert bought == min(
        max_nodes, -(-max(0, replicas - sum(count // need for count in cores)) // (4 // need))
    )


def test_unschedulable_replica_moves_to_another_joined_machine() -> None:
    """A drained machine: the replacement is scheduled on the class of the machine that leaves, and fits on
    another joined machine of the same cluster."""
    service = a_service(replicas=1)
    placements = [{"pool": "p1", "cluster": "p1-001", "node": "joined-4c-16g", "replicas": 1}]
    placed_service = msgspec.convert(
        {**msgspec.to_builtins(service), "status": {"placements": placements}}, type(service), strict=False
    )
    drained = a_joined_machine(
        "small", spec={"cluster": "p1-001", "nodeClass": "joined-4c-16g", "unschedulable": True}
    )
    other = a_joined_machine("large", 8, spec={"cluster": "p1-001", "nodeClass": "joined-8c-32g"})
    world = a_manual_world(a_pool(**RACK), a_cluster(), drained, other, placed_service)
    waiting = {"default/api": Counter({("p1-001", "joined-4c-16g"): 1})}
    decided = decide_stages(world, ReplicaObservation(unschedulable=waiting))
    assert placed_nodes(decided.fleet) == ["large"]


@pytest.mark.parametrize(("affinity", "clusters"), [
    pytest.param(near("db", "cluster"), 1, id="the cluster of the target claims it"),
    pytest.param(apart("db", key="cluster"), 2, id="a new cluster claims it, apart from the target"),
])  # fmt: skip
def test_affinity_decides_which_cluster_claims_a_machine(affinity: dict[str, Any], clusters: int) -> None:
    fleet = placed(
        a_manual_world(
            a_pool(**RACK),
            a_joined_machine("one", 2),
            a_joined_machine("two", 2),
            a_service("db", replicas=1, cores=1.5),
            a_service("api", replicas=1, cores=1.5, affinity=affinity),
        )
    )
    assert len(placed_nodes(fleet)) == len(placed_nodes(fleet, "default/db")) == 1
    assert len(fleet.clusters) == clusters
