"""Tests of `optimise`: it never costs more, keeps every rule, respects the move limit and is idempotent."""

import pytest
from build.fleet_violations import new_violations
from build.joined_machines import a_joined_machine
from build.property_settings import LONG
from build.random_worlds import random_world
from build.worlds import a_class, a_pool, a_service, a_static, a_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.placement.model.world import World
from lattice.placement.optimise.fleet_problem import useful_types
from lattice.placement.optimise.optimise import FleetPlan, OptimiserOptions, optimise
from lattice.placement.plan.plan import FleetState, converge, plan

SOME = settings(max_examples=3000 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.integers(0, 1 << 40)
TIME_LIMIT_S = 2.0  # seconds; these worlds take milliseconds


def planned_state(made: FleetPlan) -> FleetState:
    assert made.plan.state_after is not None
    return made.plan.state_after


def state_with_reopened_pool(number: int) -> FleetState:
    """Services were placed while the first pool was closed; now it is open."""
    world = random_world(number)
    closed = world.with_objects([a_pool("p1", capacity={"maxNodes": 0})])
    return converge(converge(closed).resulting_world().with_objects([world.objects["LatticePool", "", "p1"]]))


@SOME
@given(numbers, st.sampled_from([None, 0, 1, 3]))
def test_optimise_never_costs_more_and_keeps_rules(number: int, most: int | None) -> None:
    settled = state_with_reopened_pool(number)
    found = optimise(settled, OptimiserOptions(max_moves=most, time_limit_s=TIME_LIMIT_S))
    end = planned_state(found)
    assert found.lower_bound <= found.total, "a bound above what was done forbids something that may be done"
    assert found.bound <= found.rate_after <= found.rate_before
    assert 0 <= found.gap <= 1
    assert found.moves <= (1 << 30 if most is None else most)
    assert (sum(settled.offer_rates.values()), sum(end.offer_rates.values())) == (
        found.rate_before,
        found.rate_after,
    )
    assert {name: counts.total() for name, counts in end.replica_counts.items()} == {
        name: counts.total() for name, counts in settled.replica_counts.items()
    }
    assert new_violations(settled, end) == []


@SOME
@given(numbers)
def test_optimise_is_idempotent(number: int) -> None:
    """A moved replica is not moved back."""
    once = optimise(state_with_reopened_pool(number), OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    twice = optimise(planned_state(once), OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    assert twice.moves == 0
    assert twice.rate_after == once.rate_after


def scattered_world() -> World:
    """Two services on machines of their own, placed while the cheaper pool was full; now it is not."""
    first = converge(a_world(a_class("dear", price=1), a_class(), a_pool("p1", capacity={"maxNodes": 0}), a_pool("p2", classes=["dear"]),
                           a_service("a", cores=2), a_service("b", cores=2, replicas=2)))  # fmt: skip
    return converge(plan(first.resulting_world(), [a_pool("p1")]).state_after.world).resulting_world()  # type: ignore[union-attr]


def test_optimise_moves_to_cheaper_pool() -> None:
    found = optimise(converge(scattered_world()))
    assert (found.rate_before, found.rate_after, found.moves) == (2_000_000, 400_000, 3)
    assert found.saving == 1_600_000
    assert {offer for counts in planned_state(found).replica_counts.values() for offer, _, _ in counts} == {
        "p1"
    }


@pytest.mark.parametrize(("effort", "cost"), [
    pytest.param(OptimiserOptions(max_moves=0), 2_000_000, id="no moves: nothing changes"),
    pytest.param(OptimiserOptions(max_moves=1), 1_200_000, id="one move: the one that empties a machine"),
    pytest.param(OptimiserOptions(max_moves=3), 400_000, id="enough moves"),
    pytest.param(OptimiserOptions(move_cost=10**9, payback_hours=1), 2_000_000, id="moves that do not pay back are not made"),
    pytest.param(OptimiserOptions(move_cost=10**9, payback_hours=10**6), 400_000, id="moves pay back over a longer time"),
])  # fmt: skip
def test_moves_are_limited_and_must_pay_back(effort: OptimiserOptions, cost: int) -> None:
    assert optimise(converge(scattered_world()), effort).rate_after == cost


@pytest.mark.parametrize("objects", [
    pytest.param([], id="an empty world"),
    pytest.param([a_pool()], id="no services"),
    pytest.param([a_service()], id="no pools"),
    pytest.param([a_static(), a_service()], id="what costs nothing"),
    pytest.param([a_class(price=None), a_pool(), a_service()], id="what has no price"),
])  # fmt: skip
def test_nothing_moves_without_savings(objects: list[Kind]) -> None:
    found = optimise(converge(a_world(*objects)))
    assert (found.moves, found.rate_before, found.rate_after, found.gap) == (0, 0, 0, 0.0)
    assert found.plan.is_empty


def test_unplaced_service_does_not_block_moves_of_others() -> None:
    world = scattered_world().with_objects([a_service("a", cores=2, replicas=1), a_service("huge", cores=99)])
    assert optimise(converge(world)).rate_after == 400_000


def test_optimise_does_not_change_its_input() -> None:
    settled = converge(scattered_world())
    before = {name: dict(each) for name, each in settled.replica_counts.items()}
    optimise(settled)
    assert {
        name: dict(each) for name, each in FleetState(settled.world, settled.fleet, {}).replica_counts.items()
    } == before


def test_dominated_classes_are_dropped_unless_in_use() -> None:
    world = a_world(
        a_class("m"),
        a_class("worse", 4, 16, 0.3),
        a_class("big", 8, 32, 0.5),
        a_pool(classes=["m", "worse", "big"]),
    )
    offer = world.supply.offers[0]
    assert [each.name for each in useful_types(offer, ("cpu", "memory"))] == ["big", "m"]
    assert [each.name for each in useful_types(offer, ("cpu", "memory"), {"worse"})] == ["big", "m", "worse"]


def test_bound_includes_reserved_machines() -> None:
    labelled = a_service("x", replicas=2, cores=4, memory=4, labels={"env": "prod"})
    before = converge(a_world(a_class(price=1), a_pool("p1"), labelled)).resulting_world()
    reserve = {"reserved": {"nodes": 2}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}
    found = optimise(
        converge(before.with_objects([a_static("dc", 2, 8, "32Gi", reservation=reserve)])),
        OptimiserOptions(time_limit_s=TIME_LIMIT_S),
    )
    assert found.bound == 0


def test_bound_considers_classes_using_scarce_resource() -> None:
    services = [a_service(name, cores=4, memory=4) for name in ("a", "b")]
    classes = [a_class("small", 4, 16, 0.2), a_class("wide", 4, 32, 0.2), a_class("dear", 4, 16, 5)]
    before = converge(a_world(*classes, a_pool("p2", classes=["dear"]), *services)).resulting_world()
    settled = converge(
        before.with_objects([a_pool("p1", classes=["small", "wide"], capacity={"maxMemoryGi": 32})])
    )
    assert optimise(settled, OptimiserOptions(time_limit_s=TIME_LIMIT_S)).bound <= 400_000


# --- time limits ---


class TickingClock:
    """A clock that advances by one second per read."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


def one_service_per_machine() -> FleetState:
    """Twelve services, each alone on a machine of the only pool of that time."""
    world = a_world(
        a_class("s", 1, 4, 0.1),
        a_class("l", 16, 64, 0.4),
        a_pool("p1", classes=["s"]),
        *(a_service(f"s{n:02}") for n in range(12)),
    )
    return converge(converge(world).resulting_world().with_objects([a_pool("p2", classes=["l"])]))


@pytest.mark.parametrize("seconds", [0, 1, 3, 6, 10])
def test_one_deadline_covers_all_rounds(seconds: int) -> None:
    clock = TickingClock()
    found = optimise(
        one_service_per_machine(), OptimiserOptions(time_limit_s=seconds, move_cost=0, gap=0.0), clock
    )
    assert clock.looks <= seconds + 8, "looked at the clock again and again after the time was over"
    assert found.rate_after <= found.rate_before
    assert found.status in ("optimal", "time limit")


def test_zero_time_limit_moves_nothing() -> None:
    found = optimise(
        one_service_per_machine(), OptimiserOptions(time_limit_s=0, move_cost=0, gap=0.0), TickingClock()
    )
    assert (found.moves, found.status) == (0, "time limit")


def test_clock_does_not_matter_within_time_limit() -> None:
    with_clock, without = (
        optimise(one_service_per_machine(), OptimiserOptions(move_cost=0, time_limit_s=1000), clock)
        for clock in (TickingClock(), lambda: 0.0)
    )
    assert (with_clock.rate_after, with_clock.moves, with_clock.status) == (
        without.rate_after,
        without.moves,
        without.status,
    )
    assert without.rate_after < without.rate_before


def test_idle_joined_machine_is_a_cheaper_place() -> None:
    """It belongs to no cluster yet: without it the proof that nothing costs less would be wrong."""
    settled = converge(a_world(a_class(), a_pool(), a_service(replicas=2)))
    world = settled.resulting_world().with_objects([a_joined_machine(cores=8)], with_status=True)
    found = optimise(converge(world), OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    assert found.moves == 2
    assert found.lower_bound <= found.total < 1000, "only the price of two moves is left of $0.20/h"
