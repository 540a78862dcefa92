"""Tests that plan, why and fit agree about the same manifests."""

import msgspec
import pytest
from build.placed_worlds import a_placed_world
from build.property_settings import LONG
from build.worlds import (
    EXAMPLES,
    a_policy,
    a_pool,
    a_service,
    a_static,
    a_world,
    policies,
    pools,
    services,
    worlds,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.placement.fit.fit import fit
from lattice.placement.model.object_changes import apply_changes
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan
from lattice.placement.queries.dispatch import answer_query
from lattice.placement.queries.plan_document import Document

API = "default/api"
GDPR = {"compliance": ["gdpr"]}
ONE = {"maxNodes": 1}
NO_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking a world takes minutes


def ask_all(world: World, changes: list[Kind], name: str = API) -> tuple[Document, Document, Document]:
    planned = answer_query({"ask": "plan"}, world, changes)
    return (
        planned,
        answer_query({"ask": "why", "service": name}, world, changes),
        answer_query({"ask": "fit", "service": name}, world, changes),
    )


def unplaced_services(planned: Document) -> set[str]:
    moving = {each["name"] for each in planned["wouldMove"] if each["to"] is None}
    return moving | {each["name"] for each in planned["unplaced"]}


CASES = [
    pytest.param(a_placed_world(a_pool(capacity=ONE), a_service(cores=3)), [a_service(cores=8)], id="it asks for more than a machine has"),
    pytest.param(a_placed_world(a_pool(capacity=ONE), a_service(cores=2), a_service("db", cores=2)), [a_service(cores=3)],
                 id="it asks for more than is left on its machine"),
    pytest.param(a_placed_world(a_pool(labels=GDPR), a_service(compliance=["gdpr"])), [a_pool()], id="its pool loses compliance"),
    pytest.param(a_placed_world(a_pool(), a_service()), [a_policy(compliance=["gdpr"])], id="a policy asks for more"),
    pytest.param(a_world(a_pool(capacity=ONE), a_service("zzz", cores=3)), [a_service(cores=3)],
                 id="what is declared already has its place before what is new"),
]  # fmt: skip


@pytest.mark.parametrize(("world", "changes"), CASES)
def test_service_unplaced_in_plan_does_not_fit(world: World, changes: list[Kind]) -> None:
    planned, why, fitted = ask_all(world, changes)
    assert unplaced_services(planned) == {API}
    assert (why["isPlaced"], fitted["isPlaced"]) == (False, False)
    assert (why["verdict"], why["reason"]) == (fitted["verdict"], fitted["reason"])
    assert fitted["suggestions"], "something would help"


def test_fit_suggestion_places_misplaced_service() -> None:
    world = a_placed_world(a_pool(labels=GDPR), a_service(compliance=["gdpr"]))
    found = answer_query({"ask": "fit", "service": API}, world, [a_pool()])["suggestions"]
    assert [each["sentence"] for each in found] == [
        "add compliance gdpr to p1",
        "do not require compliance gdpr",
    ]
    assert {each["cost"]["hourlyMicros"] for each in found} == {0}, "its machine is paid already"
    wanted = world.with_objects([a_pool()])
    for each in fit(wanted.with_objects([], [("LatticeCluster", "", "p1-001")]), API):
        made = plan(wanted, apply_changes(wanted.objects, each.edits))
        assert not made.unplaced
        assert not made.would_move


@settings(
    max_examples=EXAMPLES if LONG else 8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=NO_SHRINKING,
)
@given(
    worlds(),
    st.lists(
        st.one_of(pools("p1"), services("api", ["db"]), services("new"), policies("rules0")),
        min_size=1,
        max_size=2,
    ),
    st.booleans(),
)
def test_plan_why_and_fit_agree(world: World, changes: list[Kind], is_settled: bool) -> None:
    changes = list({(each.resource.kind, each.metadata.name): each for each in changes}.values())
    before = converge(world).resulting_world() if is_settled else world
    planned = answer_query({"ask": "plan"}, before, changes)
    for name in sorted(before.with_objects(changes).services):
        why, fitted = (answer_query({"ask": ask, "service": name}, before, changes) for ask in ("why", "fit"))
        assert why["isPlaced"] == fitted["isPlaced"], name
        assert (why["verdict"], why["reason"]) == (fitted["verdict"], fitted["reason"] or why["reason"]), name
        if name in unplaced_services(planned):
            assert not fitted["isPlaced"], name
        told = next((each for each in planned["unplaced"] if each["name"] == name), None)
        assert told is None or told["verdict"] == fitted["verdict"], name


def test_queries_do_not_change_the_world() -> None:
    world = a_placed_world(a_pool(), a_service())
    before = msgspec.json.encode(sorted(map(repr, world.objects.values())))
    ask_all(world, [a_pool(capacity={"maxNodes": 0}), a_service(cores=8)])
    assert msgspec.json.encode(sorted(map(repr, world.objects.values()))) == before


def test_fit_changes_each_latency_limit_once() -> None:
    """From one offer the RTT to db is the longest known, from another there are longer ones; both relax the
    same limit."""
    world = a_world(
        a_pool("p2", region="us-east-1", labels={"compliance": ["gdpr"], "capabilities": ["gpu"]}),
        a_static(nodes=3, cores=12, memory="48Gi", region="eu-west-1", compliance=["gdpr"]),
        a_policy(minRegions=2, selector={"env": "prod"}),
        a_service("db", compliance=["gdpr"]),
        a_service(
            replicas=3,
            cores=4,
            labels={"env": "prod"},
            latency={"db": {"maxMs": 5}},
            capabilities=["gpu"],
            dataResidency="eu",
        ),
    )
    found = answer_query({"ask": "fit", "service": API}, world)["suggestions"]
    assert found
    assert all(each["sentence"].count(" to db") <= 1 for each in found)
