"""The comparison with a fresh plan: what it counts as given, and the move that it names."""

from dataclasses import replace

from build.affinity import near
from build.joined_machines import a_joined_machine
from build.placed_worlds import a_placed_world, a_pool_node, a_replica_on_node
from build.worlds import a_class, a_pool, a_service

from lattice.kinds.meta.base import Kind
from lattice.placement.greedy.fresh_plan import CostComparison, compare_with_fresh_plan, is_comparable
from lattice.placement.model.current_state import EMPTY_LAYOUT
from lattice.placement.model.world import World


def shrunk(*objects: Kind) -> World:
    """Services that fill a machine of 4 cores each, after their requests were lowered to the objects."""
    wide = [a_service(name, cores=3) for name in ("a", "b")]
    world = a_placed_world(a_pool(), a_class(), *wide)
    return world.with_objects(objects)


def compared(world: World) -> CostComparison:
    fleet = world.build_fleet()
    assert is_comparable(fleet)
    return compare_with_fresh_plan(world, fleet)


def test_move_that_releases_a_machine_is_named() -> None:
    comparison = compared(shrunk(a_service("a", cores=1), a_service("b", cores=2)))
    assert (comparison.present, comparison.fresh) == (400_000, 200_000)
    (name,) = comparison.messages
    assert comparison.messages[name].startswith(
        "a fresh plan costs $0.20/h, this one $0.40/h; moving 1 replica of default/"
    )
    assert "would release machine p1-001/m/" in comparison.messages[name]


def test_layout_of_a_fresh_plan_has_no_message() -> None:
    assert compared(shrunk()).messages == {}


def test_move_that_would_part_neighbours_is_not_named() -> None:
    """The machine of d has room for a, but c must run in the pool of a."""
    world = a_placed_world(
        a_pool(),
        a_pool("p2"),
        a_class(),
        a_service("a", cores=3, requiredRegions=["p1"]),
        a_service("c", cores=4, affinity=near("a", "pool")),
        a_service("d", cores=3, requiredRegions=["p2"]),
    )
    comparison = compared(world.with_objects([a_service("a", cores=1), a_service("d", cores=3)]))
    assert (comparison.present, comparison.fresh) == (600_000, 400_000)
    assert list(comparison.messages) == ["default/d"]


def test_joined_machines_count_for_the_fresh_plan_too() -> None:
    """A joined machine that came after the purchase could run everything."""
    world = a_placed_world(a_pool(), a_class(), a_service("a", cores=3))
    world = world.with_objects([a_joined_machine(cores=8)], with_status=True)
    comparison = compared(world)
    assert (comparison.present, comparison.fresh) == (200_000, 0)
    assert list(comparison.messages) == ["default/a"]


def test_machine_of_a_bare_workload_stays_in_the_fresh_plan() -> None:
    """Two machines at a third of their capacity; a workload without a service stays on one of them."""
    world = shrunk(a_service("a", cores=1), a_service("b", cores=1))
    nodes = [a_pool_node(f"p1-001-m-{number}") for number in (1, 2)]
    bound = [
        a_replica_on_node("a-0", "p1-001-m-1", "a"),
        a_replica_on_node("b-0", "p1-001-m-2", "b"),
        a_replica_on_node("alone", "p1-001-m-2"),
    ]
    world = replace(world, layout=EMPTY_LAYOUT).with_objects([*nodes, *bound], with_status=True)
    comparison = compared(world)
    assert (comparison.present, comparison.fresh) == (400_000, 200_000)
    assert list(comparison.messages) == ["default/a"]
