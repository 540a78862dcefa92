"""Tests of query messages: closed pools, overflow shortfalls, unplaced dependencies, and suggestions for
misspelt names."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, make_valid_object

from lattice.errors import Invalid, NotFound
from lattice.kinds.ledger import Account, LedgerSpec
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.latency import Place, validate_latency_csv
from lattice.placement.inputs.ledger_math import judge_budget, open_ledger
from lattice.placement.model.world import NOMINAL_MONTH_START, World
from lattice.placement.queries.dispatch import answer_query, require_namespace
from lattice.placement.queries.plan_diff import plan_differences
from lattice.placement.queries.plan_document import Document

API = "default/api"
THREE = a_service(cores=4, replicas=3)


def why(world: World, service: str = API) -> Document:
    return answer_query({"ask": "why", "service": service}, world)


def rejections_of_pool(document: Document, pool: str) -> list[tuple[str, str, str, str]]:
    (found,) = (each for each in document["pools"] if each["name"] == pool)
    return [(each["what"], each["need"], each["have"], each["missing"]) for each in found["reasons"]]


# --- overflow ---


def a_data_center_with_overflow(**overflow: Any) -> Kind:
    """Two machines of four cores, with overflow to a cloud."""
    return a_static(nodes=2, cores=8, memory="32Gi", overflow={"target": "cloud", **overflow})


@pytest.mark.parametrize(
    ("overflow", "reason", "row"),
    [
        pytest.param(
            {"enabled": False},
            "1 closed because overflow of dc is not enabled",
            ("overflow of dc", "enabled: true", "enabled: false", "enabled: true"),
            id="off",
        ),
        pytest.param(
            {"enabled": True, "limits": {"maxClusters": 0}},
            "1 full for overflow from dc",
            ("overflow clusters of dc", "1 more", "0 of maxClusters 0", "1"),
            id="without clusters",
        ),
    ],
)
def test_closed_overflow_has_reason_and_numbers(
    overflow: dict[str, Any], reason: str, row: tuple[str, ...]
) -> None:
    found = why(a_world(a_class(), a_data_center_with_overflow(**overflow), a_cloud(), THREE))
    assert found["reason"] == f"replica 3 of 3: 0 of 2 pools: 1 full; {reason}"
    assert rejections_of_pool(found, "cloud/r1")[-1] == row


@pytest.mark.parametrize(
    ("is_enabled", "told"),
    [
        pytest.param(False, "overflow of dc to be enabled", id="off"),
        pytest.param(True, "dc to reach the overflow trigger", id="not full"),
    ],
)
def test_service_waits_for_overflow_trigger(is_enabled: bool, told: str) -> None:
    """A hard spread keeps the second replica out of the data center, and the overflow rule keeps the cloud
    closed."""
    even = a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})
    world = a_world(
        a_class(),
        a_data_center_with_overflow(enabled=is_enabled),
        a_cloud(),
        even,
        a_service(cores=1, replicas=2),
    )
    assert why(world)["waits"] == [told]


# --- closed pools ---


def test_closed_pool_has_cause_and_fix() -> None:
    foreign = {
        "provider": {"type": "aws", "region": "r1"},
        "nodeClasses": ["m"],
        "budget": {"maxMonthlyCost": 100, "currency": "EUR"},
    }
    found = why(a_world(make_valid_object(LatticePool, "p1", foreign), a_service()))
    assert found["reason"] == "0 of 1 pool: 1 closed (state the budget in USD)"
    assert rejections_of_pool(found, "p1") == [
        ("open", "an open pool", "budget is in EUR, prices are in USD", "state the budget in USD")
    ]


def test_closed_pools_are_counted_by_cause() -> None:
    login = {"type": "aws", "region": "r1", "credentials": {"secretRef": "login"}}
    twin = make_valid_object(LatticePool, "twin", {"provider": login, "nodeClasses": ["m"]})
    foreign = make_valid_object(
        LatticePool,
        "far",
        {"provider": {"type": "aws", "region": "r2"}, "nodeClasses": ["m"], "budget": {"currency": "EUR"}},
    )
    cloud = a_cloud(
        "aaa",
        credentialsRef={"name": "login", "namespace": "lattice-system"},
        regions={"r1": {"quotas": {"maxClusters": 0}}},
    )
    found = why(a_world(twin, foreign, cloud, a_service()))
    assert "1 closed (give one of the two its own credentials, or delete one of the two)" in found["reason"]
    assert "1 closed (state the budget in USD)" in found["reason"]


def test_provider_without_adapter_lists_available_ones() -> None:
    world = World({**a_world(a_pool(), a_service()).objects}, adapters={"local": None, "manual": None})
    assert (
        why(world)["reason"]
        == "0 of 1 pool: 1 closed (name a provider of this server's --providers: local, manual)"
    )


# --- dependencies ---


def needing(name: str, *others: str) -> Kind:
    return a_service(name, latency={each: {"maxMs": 5} for each in others})


TOGETHER = "depend on each other: Lattice places all of them or none"


@pytest.mark.parametrize(
    ("services", "told"),
    [
        pytest.param(
            ["a b", "b a ghost"],
            f"; ghost, which b needs, is not defined; a and b {TOGETHER}",
            id="behind a circle",
        ),
        pytest.param(
            ["a b ghost", "b a"], f"; ghost is not defined; a and b {TOGETHER}", id="beside a circle"
        ),
        pytest.param(
            ["a b", "b c", "c a ghost"],
            f"; ghost, which c needs, is not defined; a, b and c {TOGETHER}",
            id="a wider circle",
        ),
        pytest.param(["a b", "b ghost"], "; ghost, which b needs, is not defined", id="without a circle"),
        pytest.param(["a ghost"], "; ghost is not defined", id="its own dependency"),
    ],
)
def test_undefined_dependency_behind_cycle_is_named(services: list[str], told: str) -> None:
    world = a_world(a_pool(), *(needing(*each.split()) for each in services))
    reason = why(world, "default/a")["reason"]
    assert reason == f"0 of 1 pool: 1 waiting for {services[0].split()[1]}, which is not placed{told}"


def test_unplaced_dependency_is_named_without_cause() -> None:
    world = a_world(a_pool(), needing("a", "b"), a_service("b", cores=99))
    assert why(world, "default/a")["reason"] == "0 of 1 pool: 1 waiting for b, which is not placed"


# --- names ---


@pytest.mark.parametrize(
    ("asked", "services", "fix"),
    [
        pytest.param(
            "default/nope", ["api", "cache"], "use one of: default/api, default/cache", id="nothing like it"
        ),
        pytest.param(
            "default/cahce", ["api", "cache"], "did you mean default/cache?", id="two letters changed places"
        ),
        pytest.param(
            "shop/api",
            ["api", "cache"],
            "did you mean default/api?",
            id="the name exists in another namespace",
        ),
        pytest.param("default/nope", ["api"], "use one of: default/api", id="the only one"),
        pytest.param("default/nope", [], "no services exist here", id="none at all"),
    ],
)
def test_unknown_service_suggests_a_name(asked: str, services: list[str], fix: str) -> None:
    with pytest.raises(NotFound) as refused:
        why(a_world(a_pool(), *map(a_service, services)), asked)
    assert (refused.value.message, refused.value.fix) == (f"there is no service {asked}", fix)


def test_long_name_list_is_truncated() -> None:
    with pytest.raises(NotFound) as refused:
        why(a_world(a_pool(), *(a_service(f"web-{number:02}") for number in range(15))), "default/nope")
    assert refused.value.fix.endswith("default/web-09 and 5 more; `lattice get services` lists all")


def test_undeclared_namespace_is_not_found() -> None:
    require_namespace("shop", {"default", "shop"})
    with pytest.raises(NotFound, match="there is no namespace nope") as refused:
        require_namespace("nope", {"default", "shop"})
    assert refused.value.fix == "use one of: default, shop"


PLACES = [Place("us-east", "aws", "us-east-1"), Place("dc", "vsphere", "here", "", "hall")]


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        pytest.param("", "rtt.csv", "is empty", id="nothing in it"),
        pytest.param("from,to,ms\n", "rtt.csv", "has a header, but no round trips", id="only a header"),
        pytest.param(
            "from,to,ms\nus-east,hall,3\nus-esat,hall,3\n",
            "rtt.csv line 3",
            '"us-esat" is no place that is offered',
            id="a typing error",
        ),
    ],
)
def test_meaningless_latency_csv_is_rejected_with_line(lines: str, where: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        validate_latency_csv(lines, "rtt.csv", PLACES)
    assert (refused.value.where, refused.value.message) == (where, what)


def test_latency_csv_accepts_aliases_and_unused_regions() -> None:
    validate_latency_csv(
        "from,to,ms\nus-east,dc,3\naws-us-east-1,hall,4\nus-east-1,here,5\neu-west-1,gcp-us-central1,90\n",
        "rtt.csv",
        PLACES,
    )


# --- changed declarations ---


def declared(document: Document) -> list[tuple[str, str, list[tuple[str, Any, Any]]]]:
    return [
        (
            each["mark"],
            each["name"],
            [(part["path"], part["before"], part["after"]) for part in each["fields"]],
        )
        for each in document["declared"]
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            a_pool(budget=700), ("~", "p1", [("spec.budget.maxMonthlyCost", 600, 700)]), id="a budget"
        ),
        pytest.param(
            a_service(labels={"team": "a"}),
            ("~", "api", [("metadata.labels.team", None, "a")]),
            id="a label that no rule looks at",
        ),
        pytest.param(a_class("spare"), ("+", "spare", []), id="a class without an offer"),
    ],
)
def test_changed_declaration_is_listed_without_moves(change: Kind, told: tuple[str, str, list[Any]]) -> None:
    world = a_world(a_class(), a_pool(budget=600), a_service())
    found = answer_query({"ask": "plan"}, world, [change])
    assert declared(found) == [told]
    assert (found["isEmpty"], found["services"], found["clusters"]) == (False, [], [])


def test_identical_declaration_is_no_change() -> None:
    world = a_world(a_class(), a_pool(budget=600), a_service())
    found = answer_query({"ask": "plan"}, world, [a_pool(budget=600), a_service()])
    assert (found["isEmpty"], found["declared"]) == (True, [])


def test_deletion_without_effect_is_a_change() -> None:
    world = a_world(a_class(), a_class("spare"), a_pool(), a_service())
    found = answer_query({"ask": "plan"}, world, [], [("LatticeNodeClass", "", "spare")])
    assert (found["isEmpty"], declared(found)) == (False, [("-", "spare", [])])


@pytest.mark.parametrize(
    "ask",
    [{"ask": "plan"}, {"ask": "optimise"}, {"ask": "whatif", "priceMillionths": 1_100_000}],
    ids=lambda each: each["ask"],
)
def test_current_cost_is_the_same_in_every_query(ask: dict[str, Any]) -> None:
    """Neither the declared services nor those of the manifests run yet."""
    world = a_world(a_pool(), a_service(cores=3, replicas=2))
    found = answer_query(ask, world, [a_service("more", cores=3)])
    assert found["pending"]["cost"]["before"]["hourlyMicros"] == 0


# --- numbers ---


def test_money_text_has_cents_and_thousands() -> None:
    terms = LedgerSpec(budget=Account(kind="LatticePool", name="p1"), limit_micros=1_382_400_000, hard=True)
    ledger = open_ledger(terms, None, NOMINAL_MONTH_START)
    status = msgspec.structs.replace(ledger.status, spent_micros=91_200_000)
    verdict = judge_budget(msgspec.structs.replace(ledger, status=status), NOMINAL_MONTH_START)
    assert verdict.message == "calendar month: $91.20 of $1,382.40 (6.5 %)"


def test_replica_counts_have_thousands_separators() -> None:
    found = why(a_world(a_pool(capacity={"maxNodes": 300}), a_service(cores=0.1, replicas=100_000)))
    assert found["reason"] == "replica 4,801 of 100,000: 0 of 1 pool: 1 full"


def test_plan_names_accrued_month() -> None:
    world = a_world(a_pool(budget=200), a_service())
    assert answer_query({"ask": "plan"}, world)["month"] is None
    assert (
        answer_query({"ask": "plan"}, replace(world, now=datetime(2026, 11, 16, tzinfo=UTC)))["month"]
        == "2026-11"
    )


def test_plan_difference_names_lost_replicas() -> None:
    then = answer_query({"ask": "plan"}, a_world(a_pool()), [a_service(cores=3, replicas=2)])
    now = answer_query(
        {"ask": "plan"}, a_world(a_pool(capacity={"maxNodes": 1})), [a_service(cores=3, replicas=2)]
    )
    assert any("placement was complete, now not complete" in each for each in plan_differences(then, now))
