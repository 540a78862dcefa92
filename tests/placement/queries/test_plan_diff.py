"""Tests of `plan_differences`: only the differences between two plans of the same manifests are listed."""

import copy
from typing import Any

import pytest
from build.worlds import a_class, a_pool, a_service, a_world

from lattice.errors import Malformed
from lattice.placement.queries.dispatch import answer_query
from lattice.placement.queries.plan_diff import plan_differences

WORLD = a_world(a_class(), a_pool(capacity={"maxNodes": 1}), a_service("old", cores=2, replicas=1))
CHANGE = [a_service("new", cores=2, replicas=1), a_service("wide", cores=3, replicas=1)]


def planned() -> dict[str, Any]:
    return answer_query({"ask": "plan"}, WORLD, CHANGE)


def edited(section: str, **fields: Any) -> dict[str, Any]:
    document = copy.deepcopy(planned())
    document[section][0] |= fields
    return document


def costing(section: str, when: str, micros: int) -> dict[str, Any]:
    document = copy.deepcopy(planned())
    each = document[section][0]
    each["cost"][when]["hourlyMicros"] = micros
    return document


CASES = [
    pytest.param(planned(), ["the manifests differ from the planned manifests"], id="nothing"),
    pytest.param(
        edited("services", after=[{"pool": "p1", "cluster": "p1-002", "class": "m", "replicas": 3}]),
        ["service default/new: was 1 in p1-001 (m), now 3 in p1-002 (m)"],
        id="where a service goes",
    ),
    pytest.param(
        costing("services", "after", 250_000), ["service default/new: cost was $0.10/h, now $0.25/h"], id="its cost alone, and not where it is"
    ),
    pytest.param({**planned(), "services": []}, None, id="services that are gone"),
    pytest.param(edited("unplaced", isNew=False, waits=["rain"]), ["the manifests differ from the planned manifests"],
                 id="what no plan is known by"),
    pytest.param(edited("unplaced", missing=5), ["verdict on default/wide: the number of unplaced replicas was 1, now 5"], id="replicas without a place"),
]  # fmt: skip


@pytest.mark.parametrize(("now", "told"), CASES)
def test_plan_differences(now: dict[str, Any], told: list[str] | None) -> None:
    wanted = (
        [f"service {each['name']}: is no longer in the plan" for each in planned()["services"]]
        if told is None
        else told
    )
    assert plan_differences(planned(), now) == wanted


def test_non_plan_is_rejected() -> None:
    with pytest.raises(Malformed, match="is not a plan"):
        plan_differences({"services": [{"name": "x"}]}, planned())
