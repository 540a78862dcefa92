"""Tests of spec 003 on each score, and on how weights combine scores."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from build.node_tables import (
    a_node_info,
    a_spread,
    a_taint,
    ask,
    node_preference,
    nodes,
    place,
    requirement,
    scores,
    workload_demands,
    workload_preference,
)

from lattice.engine.decide import decide
from lattice.engine.explain import top_candidates
from lattice.engine.plugin import Profile
from lattice.scheduling.cycle.profile import FILTERS, PRESETS, SCORES, ProfileSpec, compile_profile
from lattice.scheduling.cycle.tie_break import score_of

WEB = {"app": "web"}


@pytest.mark.parametrize("name", list(SCORES))
def test_every_score_can_be_used_in_a_profile(name: str) -> None:
    assert [each.name for each, _ in compile_profile(ProfileSpec("mine", {name: 2.0})).scores] == [name]


def test_specified_scores_exist() -> None:
    wanted = "BalancedResources BinPacking LeastTaken SpreadService SoftSpread PreferredNodes PreferredWorkloads AntiPreferred"
    assert set(wanted.split()) | {"TaintPreference", "Price"} <= set(SCORES)


@pytest.mark.parametrize(
    ("preset", "chosen"),
    [
        pytest.param("fullest-first", "full", id="packing fills what is begun"),
        pytest.param("lowest-utilisation", "empty", id="the emptiest first"),
        pytest.param("high-availability", "empty", id="spreading avoids its own replicas"),
    ],
)
def test_preset_decides_by_its_weights(preset: str, chosen: str) -> None:
    table = nodes(a_node_info("full"), a_node_info("empty"))
    place(table, workload_demands({"cpu": 2, "memory": "8Gi"}, service="s"), "full")
    assert (
        decide(ask(table, workload_demands(service="s")), table, compile_profile(PRESETS[preset])).name
        == chosen
    )


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        pytest.param({"BinPacking": 3.0, "LeastTaken": 1.0}, "full", id="the heavier wins"),
        pytest.param({"BinPacking": 1.0, "LeastTaken": 3.0}, "empty", id="the other way round"),
    ],
)
def test_weights(weights: dict[str, float], chosen: str) -> None:
    table = nodes(a_node_info("full"), a_node_info("empty"))
    place(table, workload_demands({"cpu": 2}), "full")
    assert (
        decide(
            ask(table, workload_demands({"cpu": 1})), table, compile_profile(ProfileSpec("mine", weights))
        ).name
        == chosen
    )


def test_candidates_are_ranked_with_score_parts() -> None:
    table = nodes(a_node_info("a", {"cpu": 8}), a_node_info("b", {"cpu": 4}), a_node_info("c", {"cpu": 2}))
    profile = compile_profile(ProfileSpec("mine", {"BinPacking": 3.0, "LeastTaken": 1.0}))
    found = top_candidates(decide(ask(table, workload_demands({"cpu": 1})), table, profile))
    assert [(each.name, each.score) for each in found] == [("c", 50.0), ("b", 37.5), ("a", 31.25)]
    assert [(part.plugin, part.score, part.weight) for part in found[1].parts] == [
        ("BinPacking", 25.0, 3.0),
        ("LeastTaken", 75.0, 1.0),
    ]


def test_score_is_weighted_mean_from_0_to_100() -> None:
    table = nodes(a_node_info("n", {"cpu": 4}))
    decision = decide(
        ask(table, workload_demands({"cpu": 3})),
        table,
        compile_profile(ProfileSpec("mine", {"BinPacking": 5.0, "Price": 3.0})),
    )
    assert score_of(decision, decision.chosen) == pytest.approx((5 * 75 + 3 * 100) / 8)
    silent = decide(
        ask(table, workload_demands({"cpu": 3})),
        table,
        compile_profile(ProfileSpec("mine", {"SoftSpread": 5.0})),
    )
    assert score_of(silent, silent.chosen) == 0


@pytest.mark.parametrize(
    ("used", "score"),
    [
        pytest.param({"cpu": 1, "memory": "4Gi"}, 1.0, id="both in step"),
        pytest.param({"cpu": 3}, 0.25, id="cpu used up, memory idle"),
        pytest.param({"memory": "12Gi"}, 0.25, id="memory used up, cpu idle"),
    ],
)
def test_balanced_resources(used: Any, score: float) -> None:
    table = nodes(a_node_info("n", {"cpu": 4, "memory": "16Gi"}))
    place(table, workload_demands(used), "n")
    assert scores(SCORES["BalancedResources"], table, workload_demands({"cpu": "1", "memory": "4Gi"})) == {
        "n": score
    }


def test_service_spread_counts_nodes_and_zones() -> None:
    table = nodes(a_node_info("a", zone="x"), a_node_info("b", zone="x"), a_node_info("c", zone="y"))
    place(table, workload_demands(service="s"), "a")
    place(table, workload_demands(service="other"), "c", "c")
    assert scores(SCORES["SpreadService"], table, workload_demands(service="s")) == {
        "a": 0.5,
        "b": 0.75,
        "c": 1.0,
    }


def test_bin_packing_counts_requested_resources() -> None:
    table = nodes(a_node_info("a", {"cpu": 4}), a_node_info("b", {"cpu": 2, "memory": "64Gi"}))
    assert scores(SCORES["BinPacking"], table, workload_demands({"cpu": 1})) == {"a": 0.25, "b": 0.5}


def test_node_preferences_count_by_weight() -> None:
    table = nodes(
        a_node_info("a", labels={"disk": "ssd"}), a_node_info("b", labels={"gen": "2"}), a_node_info("c")
    )
    wishes = (
        node_preference(3, requirement("disk", "In", "ssd")),
        node_preference(1, requirement("gen", "Gt", "1")),
    )
    assert scores(SCORES["PreferredNodes"], table, workload_demands(node_preferences=wishes)) == {
        "a": 0.75,
        "b": 0.25,
        "c": 0.0,
    }


@pytest.mark.parametrize(
    ("plugin", "wish", "expected"),
    [
        pytest.param(
            "PreferredWorkloads",
            "affinity_preferences",
            {"a": 0.6667, "b": 0.6667, "c": 0.0},
            id="preferred workloads attract it",
        ),
        pytest.param(
            "AntiPreferred",
            "anti_affinity_preferences",
            {"a": 0.3333, "b": 0.3333, "c": 1.0},
            id="anti-preferred workloads repel it",
        ),
    ],
)
def test_preferred_workload_affinity(plugin: str, wish: str, expected: dict[str, float]) -> None:
    table = nodes(a_node_info("a", zone="x"), a_node_info("b", zone="x"), a_node_info("c", zone="y"))
    place(table, workload_demands(labels=WEB), "a", "b")
    assert (
        scores(SCORES[plugin], table, workload_demands(**{wish: (workload_preference(10, "zone", **WEB),)}))
        == expected
    )


def test_soft_spread_prefers_emptier_domains() -> None:
    table = nodes(
        a_node_info("a", zone="x"), a_node_info("b", zone="y"), a_node_info("c", zone="z"), a_node_info("d")
    )
    place(table, workload_demands(labels=WEB), "a", "a", "a", "b", "b", "c")
    wanted = workload_demands(labels=WEB, spread=(a_spread("zone", soft=True, labels=WEB),))
    assert scores(SCORES["SoftSpread"], table, wanted) == {"a": 0.3333, "b": 0.5, "c": 1.0, "d": 0.0}


def test_soft_taints_and_prices_only_affect_score() -> None:
    table = nodes(
        a_node_info("a", taints=(a_taint("t", "PreferNoSchedule"),), price=2),
        a_node_info("b", price=4),
        a_node_info("c"),
    )
    assert scores(SCORES["TaintPreference"], table, workload_demands()) == {"a": 0.5, "b": 1.0, "c": 1.0}
    assert scores(SCORES["Price"], table, workload_demands()) == {"a": 0.5, "b": 0.0, "c": 1.0}


@dataclass(frozen=True)
class ByNumber:
    name: ClassVar[str] = "ByNumber"
    scope: ClassVar[Any] = "table"

    def applies(self, ask: object) -> bool:
        return True

    def score(self, ask: object, rows: Any) -> Any:
        return np.array([int(name[1:]) / 10 for name in rows.table.names], np.float32)


@pytest.mark.parametrize("scope", ["fixed", "table"])
def test_custom_score(scope: str) -> None:
    table = nodes(*(a_node_info(f"n{number}") for number in range(4)), load=False)
    plugin: Any = type("ByNumber", (ByNumber,), {"scope": scope})()
    decision = decide(ask(table), table, Profile("mine", (FILTERS["Fit"],), ((plugin, 1.0),)))  # type: ignore[arg-type]
    assert (decision.name, table.names[decision.runner_up]) == ("n3", "n2")
