"""Tests of `may_fit`: a demand that it rejects is infeasible, and every feasible demand passes."""

from dataclasses import replace

import pytest
from build.worlds import EXAMPLES, a_class, a_pool, a_service, a_static, a_world, arranged, worlds
from hypothesis import HealthCheck, given, settings

from lattice.kinds.meta.base import Kind
from lattice.placement.explain.blockers import (
    IGNORABLE_LIMITS,
    find_blockers,
    resize_assignments,
    without_blockers,
)
from lattice.placement.greedy.place import place
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge

API = "default/api"


@pytest.mark.parametrize(("objects", "fits"), [
    pytest.param([a_pool(), a_service(replicas=1000)], True, id="no limit"),
    pytest.param([a_pool(capacity={"maxNodes": 2}), a_service(replicas=8)], True, id="as many as there is capacity for"),
    pytest.param([a_pool(capacity={"maxNodes": 2}), a_service(replicas=9)], False, id="one too many for the machines"),
    pytest.param([a_pool(capacity={"maxCores": 8}), a_service(replicas=9)], False, id="one too many for the cores"),
    pytest.param([a_pool(capacity={"maxMemoryGi": 32}), a_service(memory=4, replicas=9)], False, id="one too many for the memory"),
    pytest.param([a_pool(budget=300), a_service(replicas=9)], False, id="one too many for the money"),
    pytest.param([a_class(price=None), a_pool(), a_service(replicas=1000)], True, id="a price that is not known is no limit"),
    pytest.param([a_pool("p1", capacity={"maxNodes": 1}), a_pool("p2", capacity={"maxNodes": 1}), a_service(replicas=8)], True, id="two pools together"),
    pytest.param([a_static(nodes=2, cores=8), a_service(replicas=9)], False, id="one too many for a data center"),
    pytest.param([a_pool(), a_service(compliance=["gdpr"])], False, id="no pool that it may go to"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_service("busy", cores=3), a_service(replicas=1)], True, id="room beside another"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_service("busy", cores=3), a_service(replicas=2)], False, id="too little beside another"),
])  # fmt: skip
def test_may_fit(objects: list[Kind], fits: bool) -> None:
    world = a_world(*objects)
    assert may_fit(world.demands[API], arranged(world, API)) == fits


@pytest.mark.parametrize(
    ("cores", "fits"),
    [pytest.param(0.5, True, id="half as large"), pytest.param(0.9, False, id="not small enough")],
)
def test_may_fit_counts_capacity_freed_by_smaller_requests(cores: float, fits: bool) -> None:
    settled = converge(a_world(a_pool(capacity={"maxNodes": 1}), a_service(replicas=8)))
    smaller = a_world(a_pool(capacity={"maxNodes": 1}), a_service(cores=cores, replicas=8)).demands[API]
    assert len(settled.fleet.assignments[API]) == 4
    assert may_fit(smaller, settled.fleet) == fits


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_may_fit_never_rejects_a_feasible_demand(world: World) -> None:
    fleet = converge(world).fleet
    for demand in world.demands.values():
        asked = [
            demand,
            *(without_blockers(demand, [each]) for each in find_blockers(demand, fleet)),
            replace(demand, ignored_limits=frozenset(IGNORABLE_LIMITS)),
        ]
        for each in asked:
            with fleet.what_if():
                resize_assignments(each, fleet)
                is_placed = place(each, fleet).is_complete
            assert may_fit(each, fleet) or not is_placed
