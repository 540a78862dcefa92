"""Profiles as users write them, and the ones that come with the product."""

from typing import Any

import pytest
from build import a_node, a_workload, ask, nodes, place

from lattice.engine.decide import decide
from lattice.errors import Invalid, NotFound
from lattice.scheduling.profile import FILTERS, PRESETS, SCORES, ProfileSpec, compile_preset, compile_profile, parse_profile, preset


def test_a_profile_is_read_from_what_a_user_wrote() -> None:
    given = {
        "name": "mine",
        "scores": {"BinPacking": 2, "Price": 0.5},
        "disabled": ["Licence"],
        "tieBreaker": "round-robin",
        "binding": "two-phase",
        "reservationTimeout": "1m",
        "seed": 7,
    }
    spec = parse_profile(given)
    assert spec == ProfileSpec("mine", {"BinPacking": 2, "Price": 0.5}, ("Licence",), "round-robin", "two-phase", 60.0, 7)
    profile = compile_profile(spec)
    assert [(score.name, weight) for score, weight in profile.scores] == [("BinPacking", 2.0), ("Price", 0.5)]
    assert {each.name for each in profile.filters} == set(FILTERS) - {"Licence"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"scores": {"Packing": 1}}, 'scores.Packing: no score "Packing"; known are BalancedResources, BinPacking', id="unknown score"
        ),
        pytest.param({"scores": {"Price": -1}}, "scores.Price: must be a number of 0 or more, got -1", id="negative weight"),
        pytest.param({"scores": {"Price": float("nan")}}, "must be a number of 0 or more, got nan", id="not a number"),
        pytest.param({"scores": {"Price": float("inf")}}, "must be a number of 0 or more, got inf", id="infinite weight"),
        pytest.param({"scores": {"Price": True}}, "must be a number of 0 or more, got True", id="yes is not a weight"),
        pytest.param({"scores": ["Price"]}, "scores: must be a list of plugin: weight", id="weights missing"),
        pytest.param({"disabled": ["Fits"]}, 'no filter "Fits"; known are Ready, InCluster', id="unknown filter"),
        pytest.param(
            {"disabled": ["Fit"]}, "Fit cannot be disabled: nodes would be given more than they have", id="a filter that must stay"
        ),
        pytest.param(
            {"tieBreaker": "coin"}, "tieBreaker: must be one of fixed, random, least-loaded, round-robin", id="unknown tie-breaker"
        ),
        pytest.param({"binding": "hopeful"}, "binding: must be one of optimistic, pessimistic, two-phase", id="unknown binding"),
        pytest.param({"reservationTimeout": 0}, "reservationTimeout: must be above 0 seconds, got 0.0", id="no time at all"),
        pytest.param({"reservationTimeout": "soon"}, "reservationTimeout: must be a duration", id="no duration"),
        pytest.param({"seed": "x"}, "seed: must be a whole number, got 'x'", id="no number"),
        pytest.param({"weights": {}}, "weights: is not a field of a profile; known are name, scores", id="unknown field"),
    ],
)
def test_what_is_wrong_with_a_profile_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile({"name": "mine", "scores": {"Price": 1}, **change})
    assert message in str(caught.value)
    assert "profile/mine" in str(caught.value)
    assert caught.value.causes


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile({"scores": {"X": 1, "Price": -2}, "binding": "no", "zzz": 1})
    assert [cause.field for cause in caught.value.causes] == ["zzz", "scores.X", "scores.Price", "binding"]
    assert "TopologySpread" in caught.value.fix


def test_a_profile_made_in_code_is_checked_too() -> None:
    with pytest.raises(Invalid, match='no score "Nope"'):
        ProfileSpec("mine", {"Nope": 1.0})


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(NotFound) as caught:
        preset("fastest")
    assert "balanced, high-availability, resource-efficiency, gpu, lowest-utilisation, fullest-first" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("balanced", {"BalancedResources": 2, "SpreadService": 1, "BinPacking": 0.5, "PreferredNodes": 1}),
        ("high-availability", {"BalancedResources": 0.5, "SpreadService": 2, "PreferredNodes": 1}),
        ("resource-efficiency", {"BalancedResources": 0.5, "TightestFit": 2, "PreferredNodes": 1}),
    ],
)
def test_presets_weigh_as_the_seed_says(name: str, weights: dict[str, float]) -> None:
    found = PRESETS[name].scores
    assert {plugin: found[plugin] for plugin in weights} == weights
    assert set(found) - set(weights) <= {"SoftSpread", "PreferredWorkloads", "AntiPreferred", "TaintPreference"}


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        pytest.param("high-availability", "n2", id="high-availability spreads a service"),
        pytest.param("resource-efficiency", "n1", id="resource-efficiency fills a node up"),
        pytest.param("lowest-utilisation", "n2", id="lowest-utilisation takes the emptiest"),
        pytest.param("fullest-first", "n1", id="fullest-first takes the fullest"),
        pytest.param("balanced", "n2", id="balanced spreads a service softly"),
    ],
)
def test_presets_choose_as_their_names_say(name: str, chosen: str) -> None:
    table = nodes(a_node("n1"), a_node("n2"))
    place(table, a_workload({"cpu": 1, "memory": "4Gi"}, service="s"), "n1")
    assert decide(ask(table, a_workload({"cpu": 1, "memory": "4Gi"}, service="s")), table, compile_preset(name)).name == chosen


def test_a_weight_change_reorders_as_predicted() -> None:
    table = nodes(a_node("cheap", price=1), a_node("full", price=2))
    place(table, a_workload(), "full")
    for weights, chosen in (({"Price": 1, "BinPacking": 0.1}, "cheap"), ({"Price": 0.1, "BinPacking": 1}, "full")):
        assert decide(ask(table, a_workload()), table, compile_profile(ProfileSpec("x", weights))).name == chosen


def test_every_plugin_can_be_named_and_names_itself() -> None:
    assert all(each.name == name for name, each in (*FILTERS.items(), *SCORES.items()))
    compile_profile(ProfileSpec("all", dict.fromkeys(SCORES, 1.0)))
