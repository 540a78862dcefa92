"""Tests of `decide_stages`: the stages together equal `plan`, and each stage is complete in itself."""

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from build.joined_machines import a_joined_machine
from build.objects import make_object
from build.placed_worlds import a_replica_on_node
from build.worlds import EXAMPLES, a_pool, a_service, a_world, worlds
from hypothesis import given, settings

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import Remediation
from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.commit_stages import decide_stages
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.model.current_state import EMPTY_LAYOUT
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World, placed_counts
from lattice.placement.plan.plan import converge


def placements_by_service(world: World, fleet: Fleet) -> dict[str, Counter[tuple[str, str, str]]]:
    return {name: placed_counts(fleet, name) for name in world.services}


@settings(max_examples=EXAMPLES, deadline=None)
@given(worlds())
def test_stages_equal_plan(world: World) -> None:
    planned, decided = converge(world), decide_stages(world, ReplicaObservation())
    assert placements_by_service(world, decided.fleet) == placements_by_service(world, planned.fleet)
    assert decided.desired_machines == planned.clusters
    assert {name: each.missing for name, each in decided.placements.items()} == {
        name: each.missing for name, each in planned.placements.items()
    }
    assert decided.fleet.ledgers.committed == planned.fleet.ledgers.committed


@settings(max_examples=EXAMPLES, deadline=None)
@given(worlds())
def test_each_stage_includes_machines_of_its_services(world: World) -> None:
    decided = decide_stages(world, ReplicaObservation())
    made: dict[str, Counter[str]] = {}
    written: set[str] = set()
    for stage in decided.stages:
        made |= stage.clusters
        assert not written & set(stage.services), "written twice"
        written |= set(stage.services)
        for name in stage.services:
            for seat in decided.fleet.assignments.get(name, ()):
                cluster, kind = (
                    decided.fleet.machines.cluster[seat.machine],
                    decided.fleet.machines.machine_type[seat.machine],
                )
                assert made[cluster.name][kind.name] > 0
    assert made == {name: class_counts(decided.fleet, each) for name, each in decided.fleet.clusters.items()}


def test_excluded_service_is_not_placed() -> None:
    world = a_world(a_pool(), a_service("api", replicas=2), a_service("web", replicas=2))
    decided = decide_stages(world, ReplicaObservation(), excluded_services={"default/api": "over budget"})
    assert "default/api" not in decided.fleet.assignments
    assert len(decided.fleet.assignments["default/web"]) == 2


def test_unsettled_cluster_keeps_its_machines() -> None:
    world = converge(a_world(a_pool(), a_service("api", replicas=2, cores=4))).resulting_world()
    service = a_service("api", replicas=1, cores=4)
    fewer = world.with_objects([service])
    decided = decide_stages(fewer, ReplicaObservation(unsettled_clusters=frozenset({"p1-001"})))
    assert decided.desired_machines == {"p1-001": Counter(m=2)}
    assert len(decided.fleet.assignments["default/api"]) == 1


def test_abandoned_cluster_keeps_its_number() -> None:
    applied = converge(a_world(a_pool(), a_service("api"))).resulting_world()
    cluster = applied.objects["LatticeCluster", "", "p1-001"]
    assert isinstance(cluster, LatticeCluster)
    empty = msgspec.structs.replace(
        cluster, spec=msgspec.structs.replace(cluster.spec, nodes={}, min_nodes=0)
    )
    world = a_world(a_pool(), a_service("web")).with_objects([empty], with_status=True)
    assert set(decide_stages(world, ReplicaObservation()).desired_machines) == {"p1-002"}


READY = {"conditions": [{"type": "Ready", "status": "True", "reason": "Heard"}]}


def with_nodes(
    world: World, cluster: str, node_class: str, count: int = 1, status: dict[str, Any] | None = None
) -> World:
    """The world after so many machines of the cluster have joined."""
    spec = {"cluster": cluster, "nodeClass": node_class}
    nodes = [
        make_object(LatticeNode, f"{cluster}-{number}", spec=spec, status=READY if status is None else status)
        for number in range(count)
    ]
    return world.with_objects(nodes, with_status=True)


def test_node_without_a_condition_counts_as_coming() -> None:
    """The node was created a moment ago: a second machine for its replicas would be too many."""
    world = converge(a_world(a_pool(), a_service("api"), a_service("web"))).resulting_world()
    cell: NodeGroupKey = ("p1-001", "m")
    waiting = {name: Counter({cell: 1}) for name in ("default/api", "default/web")}
    fresh = with_nodes(world, "p1-001", "m", status={})
    decided = decide_stages(fresh, ReplicaObservation(unschedulable=waiting))
    assert decided.desired_machines == {"p1-001": Counter(m=1)}


def test_unschedulable_replicas_add_machine_after_all_joined() -> None:
    world = converge(a_world(a_pool(), a_service("api", replicas=2, cores=1))).resulting_world()
    cell: NodeGroupKey = ("p1-001", "m")
    waiting = ReplicaObservation(unschedulable={"default/api": Counter({cell: 1})}, joined_nodes=Counter())
    assert decide_stages(world, waiting).desired_machines == {"p1-001": Counter(m=1)}
    seen = ReplicaObservation(
        unschedulable={"default/api": Counter({cell: 1})}, joined_nodes=Counter({cell: 1})
    )
    decided = decide_stages(with_nodes(world, "p1-001", "m"), seen)
    assert decided.desired_machines == {"p1-001": Counter(m=2)}
    assert len(decided.fleet.assignments["default/api"]) == 2


def test_excluded_service_is_not_remediated() -> None:
    """A service that is excluded because a budget rejected it gets no remediation, which would be rejected
    again."""
    world = converge(a_world(a_pool(), a_service("api", replicas=2, cores=1))).resulting_world()
    cell: NodeGroupKey = ("p1-001", "m")
    decided = decide_stages(
        world,
        ReplicaObservation(
            unschedulable={"default/api": Counter({cell: 1})}, joined_nodes=Counter({cell: 1})
        ),
        excluded_services={"default/api": "over budget"},
    )
    assert (decided.desired_machines, decided.remediations) == ({"p1-001": Counter(m=1)}, {})


def test_unschedulable_replicas_move_from_full_pool() -> None:
    world = converge(
        a_world(a_pool("p1", capacity={"maxNodes": 1}), a_service("api", replicas=2))
    ).resulting_world()
    world = with_nodes(world.with_objects([a_pool("p2")]), "p1-001", "m")
    cell: NodeGroupKey = ("p1-001", "m")
    decided = decide_stages(
        world,
        ReplicaObservation(
            unschedulable={"default/api": Counter({cell: 1})}, joined_nodes=Counter({cell: 1})
        ),
    )
    assert dict(placed_counts(decided.fleet, "default/api")) == {
        ("p1", "p1-001", "m"): 1,
        ("p2", "p2-001", "m"): 1,
    }
    assert [(each.replicas, each.machines) for each in decided.remediations["default/api"]] == [(1, 0)]


def test_unschedulable_replicas_stay_without_alternative() -> None:
    world = converge(
        a_world(a_pool("p1", capacity={"maxNodes": 1}), a_service("api", replicas=2))
    ).resulting_world()
    cell: NodeGroupKey = ("p1-001", "m")
    decided = decide_stages(
        with_nodes(world, "p1-001", "m"),
        ReplicaObservation(
            unschedulable={"default/api": Counter({cell: 1})}, joined_nodes=Counter({cell: 1})
        ),
    )
    assert dict(placed_counts(decided.fleet, "default/api")) == {("p1", "p1-001", "m"): 2}
    assert not decided.remediations


def test_successor_machine_is_paid_in_advance_within_budget() -> None:
    """A leaving machine is paid until it is gone. With budget for both, its successor is created early;
    otherwise the replicas move elsewhere."""
    service, cell = a_service("api", replicas=2), ("p1-001", "m")
    world = converge(a_world(a_pool("p1", budget=10_000), service)).resulting_world()
    seen = ReplicaObservation(unschedulable={"default/api": Counter({cell: 1})}, blocked=frozenset({cell}))
    decided = decide_stages(world, seen)
    assert (decided.paid_in_advance, decided.desired_machines, decided.remediations) == (
        {cell},
        {"p1-001": Counter(m=1)},
        {},
    )
    on_its_way = decide_stages(world, ReplicaObservation(unschedulable=seen.unschedulable))
    assert (on_its_way.paid_in_advance, on_its_way.remediations) == (frozenset(), {})
    price = next(iter(world.build_fleet().offers[0].types)).rate
    tight = world.with_objects([a_pool("p1", budget=price * 720 // 1_000_000 + 1), a_pool("p2")])
    decided = decide_stages(tight, seen)
    assert (
        decided.paid_in_advance,
        [(each.replicas, each.machines) for each in decided.remediations["default/api"]],
    ) == (frozenset(), [(1, 0)])


def after_a_surge(*conditions: Condition) -> World:
    """A machine that was bought for a surge replica, and the machine of the owner, which has the stated class
    of the bought machine and runs fewer replicas."""
    world = converge(a_world(a_pool(), a_service("api", replicas=3, cores=1))).resulting_world()
    service = world.services["default/api"]
    record = Remediation(
        offer="p1", node_class="m", cluster="p1-001", surge_machines=1, generation=service.metadata.generation
    )
    status = msgspec.structs.replace(service.status, remediation=(record,), conditions=conditions)
    service = msgspec.structs.replace(service, status=status)
    box = a_joined_machine("box", spec={"cluster": "p1-001", "nodeClass": "m"})
    bound = [
        a_replica_on_node(f"api-{slot}", node, "api")
        for slot, node in enumerate(["p1-001-0", "p1-001-0", "box"])
    ]
    world = replace(with_nodes(world, "p1-001", "m"), layout=EMPTY_LAYOUT)
    return world.with_objects([service, box, *bound], with_status=True)


def test_joined_machine_is_not_given_back_after_a_surge() -> None:
    decided = decide_stages(after_a_surge(), ReplicaObservation(rolled_out=frozenset({"default/api"})))
    assert [returned.node for returned in decided.surge_returns] == ["p1-001-0"]


@pytest.mark.parametrize(
    ("reason", "returned"),
    [
        pytest.param("COMMAND_NOT_FOUND", ["p1-001-0"], id="a paused update needs no surge machine"),
        pytest.param("ScaleDownWaits", [], id="a scale-down that waits is no paused update"),
        pytest.param("Complete", [], id="the replicas are not ready yet"),
    ],
)
def test_surge_machine_stays_until_the_update_ends_or_pauses(reason: str, returned: list[str]) -> None:
    world = after_a_surge(Condition(type="Progressing", status="False", reason=reason))
    decided = decide_stages(world, ReplicaObservation())
    assert [each.node for each in decided.surge_returns] == returned
