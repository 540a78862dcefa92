"""Gangs of services: all of the minimum number of replicas are placed, or none."""

import pytest
from build.worlds import a_class, a_pool, a_service, a_world
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.service import LatticeService
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.greedy.place_all import place_all
from lattice.placement.model.fleet import Fleet


def group(min_member: int, name: str = "g") -> dict:
    return {"name": name, "minMember": min_member}


def placed(*services: LatticeService, nodes: int = 2) -> tuple[Fleet, dict[str, Verdict]]:
    """The fleet after all services are placed on at most `nodes` machines of 2 cores, and the verdicts of the
    unplaced services."""
    world = a_world(a_pool(capacity={"maxNodes": nodes}), a_class(cores=2), *services)
    fleet = world.build_fleet()
    placements = place_all(world.demands.values(), fleet)
    verdicts = {
        name.partition("/")[2]: judge(placement, fleet, world.services)
        for name, placement in placements.items()
        if placement.missing
    }
    return fleet, verdicts


def counts(fleet: Fleet) -> dict[str, int]:
    return {name.partition("/")[2]: len(replicas) for name, replicas in fleet.assignments.items()}


@pytest.mark.parametrize(
    ("services", "expected"),
    [
        pytest.param(
            [a_service("a", replicas=2, group=group(4)), a_service("b", replicas=2, group=group(4))],
            {"a": 2, "b": 2},
            id="two services that fit together",
        ),
        pytest.param(
            [a_service("a", replicas=3, group=group(5)), a_service("b", replicas=2, group=group(5))],
            {},
            id="four of five replicas fit, so none is placed",
        ),
        pytest.param(
            [a_service("a", replicas=3, group=group(4)), a_service("b", replicas=2, group=group(4))],
            {"a": 3, "b": 1},
            id="as many as fit above the minimum",
        ),
        pytest.param(
            [
                a_service("a", replicas=3, priority=9, group=group(5)),
                a_service("b", replicas=2, priority=9, group=group(5)),
                a_service("c", replicas=4),
            ],
            {"c": 4},
            id="an unplaced gang leaves its capacity to others",
        ),
    ],
)
def test_gang_is_placed_whole_or_not_at_all(services: list[LatticeService], expected: dict[str, int]) -> None:
    fleet, _ = placed(*services)
    assert counts(fleet) == expected


def test_verdict_of_an_unplaced_gang_says_what_is_missing() -> None:
    _, verdicts = placed(
        a_service("a", replicas=3, memory=5, group=group(5)), a_service("b", replicas=2, group=group(5))
    )
    assert verdicts["a"].kind == verdicts["b"].kind == "NotNow"
    assert verdicts["a"].reason == "group g: need 5 replicas together, 4 fit, missing 1 (b 1 of 2)"


def test_group_that_its_services_cannot_fill_says_so() -> None:
    _, verdicts = placed(a_service("a", replicas=2, group=group(3)))
    assert "missing 1: its services want no more replicas" in verdicts["a"].reason


@settings(max_examples=100, deadline=None)
@given(
    replicas=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    gangs=st.lists(st.sampled_from(["", "g", "h"]), min_size=3, max_size=3),
    minimum=st.integers(1, 8),
    nodes=st.integers(0, 5),
)
def test_no_gang_has_replicas_below_its_minimum(
    replicas: list[int], gangs: list[str], minimum: int, nodes: int
) -> None:
    services = [
        a_service(name, replicas=count, group=group(minimum, gang) if gang else None)
        for name, count, gang in zip("abc", replicas, gangs, strict=True)
    ]
    fleet, _ = placed(*services, nodes=nodes)
    for gang in {*gangs} - {""}:
        members = [name for name, other in zip("abc", gangs, strict=True) if other == gang]
        total = sum(counts(fleet).get(name, 0) for name in members)
        assert total == 0 or total >= minimum
