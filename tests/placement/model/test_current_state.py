"""Property test of the current state: placed replicas without a binding are counted on the machines that a
plain loop predicts."""

from typing import TypeVar

import msgspec
from build.property_settings import LONG
from build.worlds import a_class, a_pool, a_service, a_world, make_valid_object
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.placement.greedy.machine_choice import pick_machine
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World

K = TypeVar("K", bound=Kind)
EXAMPLES = settings(max_examples=600 if LONG else 30, deadline=None)


def world_with_cluster(nodes: list[tuple[int, bool]], replicas: int) -> World:
    """A world with one cluster, whose nodes have the given cores and readiness, and a service placed there."""
    service = a_service(replicas=replicas)
    placed = [{"pool": "p1", "cluster": "p1-001", "node": "m", "replicas": replicas}]
    cluster = make_valid_object(
        LatticeCluster,
        "p1-001",
        {"pool": "p1", "provider": "aws", "region": "p1-1", "nodes": {"m": len(nodes)}},
    )
    found = [
        make_valid_object(LatticeNode, f"n{number}", {"cluster": "p1-001", "nodeClass": "m"})
        for number in range(len(nodes))
    ]
    ready = [
        _with(
            node,
            {
                "allocatable": {"cpu": 1000 * cores, "memory": 64 << 30},
                "conditions": [{"type": "Ready", "status": str(is_ready)}],
            },
        )
        for node, (cores, is_ready) in zip(found, nodes, strict=True)
    ]
    return a_world(
        a_class(cores=8, memory=64), a_pool(), cluster, *ready, _with(service, {"placements": placed})
    )


def _with(obj: K, status: dict[str, object]) -> K:
    return msgspec.convert({**msgspec.to_builtins(obj), "status": status}, type(obj), strict=False)


def assign_naively(fleet: Fleet, world: World) -> None:
    demand, machines = world.demands["default/api"], fleet.clusters["p1-001"].machines
    free, names = fleet.machines.free, fleet.machines.names
    for _ in range(demand.replicas):
        machine = pick_machine(demand, fleet, machines)
        if machine is None:
            machine = min(machines, key=lambda each: (-int(free(0)[each]), -int(free(1)[each]), names[each]))
        fleet.assign_replica(demand, machine)


@EXAMPLES
@given(
    nodes=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=8),
    replicas=st.integers(1, 30),
)
def test_unbound_replicas_are_counted_on_predicted_machines(
    nodes: list[tuple[int, bool]], replicas: int
) -> None:
    world = world_with_cluster(nodes, replicas)
    guessed = world.build_fleet()
    expected = World(
        {key: each for key, each in world.objects.items() if key[0] != "LatticeService"}, world.price_book
    ).build_fleet()
    assign_naively(expected, world)
    assert [seat.machine for seat in guessed.assignments["default/api"]] == [
        seat.machine for seat in expected.assignments["default/api"]
    ]
