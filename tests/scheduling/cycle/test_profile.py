"""Tests of profiles: parsing, validation, presets and weights."""

import json
from decimal import Decimal
from typing import Any

import pytest
import yaml
from build.node_tables import a_node_info, ask, nodes, place, workload_demands

from lattice.engine.decide import decide
from lattice.errors import Invalid, NotFound
from lattice.kinds.meta import yaml_manifest as manifest
from lattice.scheduling.cycle.profile import (
    FILTERS,
    MIN_WEIGHT,
    PRESETS,
    SCORES,
    ProfileSpec,
    compile_preset,
    compile_profile,
    parse_profile,
    preset,
)


def test_parse_profile() -> None:
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
    assert spec == ProfileSpec(
        "mine", {"BinPacking": 2, "Price": 0.5}, ("Licence",), "round-robin", "two-phase", 60.0, 7
    )
    profile = compile_profile(spec)
    assert [(score.name, weight) for score, weight in profile.scores] == [("BinPacking", 2.0), ("Price", 0.5)]
    assert {each.name for each in profile.filters} == set(FILTERS) - {"Licence"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"scores": {"Packing": 1}},
            'scores.Packing: no score "Packing"; did you mean BinPacking?',
            id="unknown score",
        ),
        pytest.param({"scores": {"binpacking": 1}}, "; did you mean BinPacking?", id="a score in lower case"),
        pytest.param(
            {"scores": {"Price": -1}},
            "scores.Price: must be a number of 0 or more, got -1",
            id="negative weight",
        ),
        pytest.param(
            {"scores": {"Price": float("nan")}}, "must be a number of 0 or more, got nan", id="not a number"
        ),
        pytest.param(
            {"scores": {"Price": float("inf")}},
            "must be a number of 0 or more, got inf",
            id="infinite weight",
        ),
        pytest.param(
            {"scores": {"Price": True}}, "must be a number of 0 or more, got True", id="yes is not a weight"
        ),
        pytest.param(
            {"scores": ["Price"]}, "scores: must be a mapping of plugins to weights", id="weights missing"
        ),
        pytest.param({"disabled": ["Fits"]}, 'no filter "Fits"; did you mean Fit?', id="unknown filter"),
        pytest.param(
            {"disabled": ["Fit"]},
            "Fit cannot be disabled: nodes would be overcommitted",
            id="a filter that must stay",
        ),
        pytest.param(
            {"tieBreaker": "coin"},
            "tieBreaker: must be one of fixed, random, least-loaded, round-robin",
            id="unknown tie-breaker",
        ),
        pytest.param(
            {"binding": "hopeful"},
            "binding: must be one of optimistic, pessimistic, two-phase",
            id="unknown binding",
        ),
        pytest.param(
            {"reservationTimeout": 0},
            "reservationTimeout: must be above 0 seconds, got 0",
            id="no time at all",
        ),
        pytest.param(
            {"reservationTimeout": "soon"}, "reservationTimeout: must be a duration", id="no duration"
        ),
        pytest.param(
            {"reservationTimeout": Decimal("-0.5")},
            "must be above 0 seconds, got -0.5",
            id="less than no time",
        ),
        pytest.param(
            {"reservationTimeout": float("nan")},
            "must be above 0 seconds, got nan",
            id="a time that is no number",
        ),
        pytest.param(
            {"reservationTimeout": Decimal("sNaN")},
            "must be above 0 seconds, got sNaN",
            id="a decimal time that is no number",
        ),
        pytest.param(
            {"reservationTimeout": 86401},
            "reservationTimeout: must be at most 86400 seconds, got 86401",
            id="over a day",
        ),
        pytest.param(
            {"reservationTimeout": "25h"},
            "reservationTimeout: must be at most 86400 seconds, got 90000",
            id="25 hours",
        ),
        pytest.param(
            {"reservationTimeout": 10**400},
            "must be at most 86400 seconds, got a number of more than",
            id="a time beyond floats",
        ),
        pytest.param(
            {"reservationTimeout": [30]},
            "reservationTimeout: must be seconds or a duration",
            id="a list is no time",
        ),
        pytest.param(
            {"scores": {"Price": 1_000_001}},
            "scores.Price: must be at most 1000000, got 1000001",
            id="too heavy",
        ),
        pytest.param(
            {"scores": {"Price": Decimal("1e39")}},
            "scores.Price: must be at most 1000000, got 1E+39",
            id="far too heavy",
        ),
        pytest.param(
            {"scores": {"Price": 10**400}},
            "must be at most 1000000, got a number of more than 100 digits",
            id="beyond floats",
        ),
        pytest.param(
            {"scores": {"Price": 10**9999}},
            "must be at most 1000000, got a number of more than 100 digits",
            id="beyond printing",
        ),
        pytest.param(
            {"scores": {"Price": -(10**9999)}},
            "must be a number of 0 or more, got a number of more than",
            id="very negative",
        ),
        pytest.param(
            {"scores": {"Price": Decimal("NaN")}},
            "must be a number of 0 or more, got NaN",
            id="a decimal that is no number",
        ),
        pytest.param(
            {"scores": {"Price": Decimal("Infinity")}},
            "must be a number of 0 or more, got Infinity",
            id="an endless decimal",
        ),
        pytest.param(
            {"scores": {"Price": "1"}},
            "scores.Price: must be a number of 0 or more, got '1'",
            id="a weight in quotes",
        ),
        pytest.param(
            {"scores": {"Price": [10**9999]}},
            "scores.Price: must be a number of 0 or more, got a list",
            id="a list beyond printing",
        ),
        pytest.param(
            {"scores": {"Price": 1e-50}},
            "scores.Price: must be 0, or at least 0.000001, got 1e-50",
            id="nothing as a float32",
        ),
        pytest.param(
            {"scores": {"Price": Decimal("1E-7")}},
            "must be 0, or at least 0.000001, got 1E-7",
            id="too light",
        ),
        pytest.param({"scores": {}}, "scores: must give at least one score a weight above 0", id="no score"),
        pytest.param(
            {"scores": {"Price": 0, "BinPacking": Decimal("0.0")}},
            "scores: must give at least one score",
            id="no score that counts",
        ),
        pytest.param(
            {"disabled": [["Fit"]]},
            "disabled: must be a list of filter names, got ['Fit'] in it",
            id="a list in the list",
        ),
        pytest.param(
            {"disabled": [{"Fit": 1}, 3, None]},
            "disabled: must be a list of filter names, got 3 in it",
            id="no names",
        ),
        pytest.param(
            {"disabled": "Licence"},
            "disabled: must be a list of filter names, got 'Licence'",
            id="a name is not a list",
        ),
        pytest.param(
            {"seed": 1 << 63},
            "seed: must be from -9223372036854775808 to 9223372036854775807",
            id="seed beyond 64 bits",
        ),
        pytest.param(
            {"seed": -(1 << 63) - 1}, "seed: must be from -9223372036854775808 to", id="seed below 64 bits"
        ),
        pytest.param(
            {"seed": 10**9999}, "seed: must be from -9223372036854775808 to", id="seed beyond printing"
        ),
        pytest.param({"seed": Decimal("1.5")}, "seed: must be a whole number, got 1.5", id="half a seed"),
        pytest.param(
            {"tieBreaker": ["fixed"]},
            "tieBreaker: must be a string, got ['fixed']",
            id="a list of tie-breakers",
        ),
        pytest.param({"seed": "x"}, "seed: must be a whole number, got 'x'", id="no number"),
        pytest.param(
            {"weights": {}},
            "weights: is not a field of a profile\n  fix: known fields: name, scores",
            id="unknown field",
        ),
        pytest.param(
            {"tiebreak": "fixed"},
            "is not a field of a profile; did you mean tieBreaker?",
            id="nearly a field",
        ),
    ],
)
def test_invalid_profile_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile({"name": "mine", "scores": {"Price": 1}, **change})
    assert message in str(caught.value)
    assert "profile/mine" in str(caught.value)
    assert caught.value.causes


@pytest.mark.parametrize("name", ["", "  "])
def test_profile_requires_a_name(name: str) -> None:
    with pytest.raises(Invalid, match="profile/profile: name: must not be empty"):
        parse_profile({"name": name, "scores": {"Price": 1}})
    with pytest.raises(Invalid, match="name: must not be empty"):
        ProfileSpec(name, {"Price": 1.0})


def test_minimum_weight_still_counts() -> None:
    spec = parse_profile({"name": "light", "scores": {"Price": MIN_WEIGHT}})
    assert [weight for _, weight in compile_profile(spec).scores_by_reach["fixed"]] == [
        pytest.approx(MIN_WEIGHT)
    ]


def test_all_profile_errors_are_reported_together() -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile({"scores": {"X": 1, "Price": -2}, "binding": "no", "zzz": 1})
    assert [cause.field for cause in caught.value.causes] == ["zzz", "scores.X", "scores.Price", "binding"]
    assert caught.value.fix.startswith("known scores: BalancedResources, ")
    assert caught.value.fix.endswith(
        "; known fields: name, scores, disabled, tieBreaker, binding, reservationTimeout, seed"
    )


def as_written(spec: ProfileSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "scores": dict(spec.scores),
        "disabled": list(spec.disabled),
        "tieBreaker": spec.tie_breaker,
        "binding": spec.binding,
        "reservationTimeout": spec.reservation_timeout,
        "seed": spec.seed,
    }


def with_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_decimals(each) for key, each in value.items()}
    return Decimal(repr(value)) if isinstance(value, float) else value


ODD = ProfileSpec(
    "odd",
    {"Price": 0.1, "BinPacking": 1e6, "LeastTaken": 1e-3},
    ("Licence",),
    "random",
    "two-phase",
    0.25,
    -(1 << 63),
)


@pytest.mark.parametrize("spec", [*PRESETS.values(), ODD], ids=lambda spec: spec.name)
def test_profile_round_trips_through_yaml_and_json(spec: ProfileSpec) -> None:
    written = as_written(spec)
    texts = (yaml.safe_dump(written), json.dumps(written))
    read = [parse_profile(document.value) for text in texts for document in manifest.load_documents(text)]
    assert read == [spec, spec]
    assert parse_profile(written) == parse_profile(with_decimals(written)) == spec
    for each in (*read, parse_profile(with_decimals(written))):
        assert all(type(weight) is float for weight in each.scores.values())
        assert type(each.reservation_timeout) is float
        compile_profile(each)


@pytest.mark.parametrize("given", [{}, None, [], "balanced", 3])
def test_non_profile_is_rejected_with_known_scores(given: Any) -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile(given)
    assert "profile/profile" in str(caught.value)
    assert "scores: must give at least one score" in str(caught.value) or "a profile is a mapping" in str(
        caught.value
    )
    assert "known scores: BalancedResources" in caught.value.fix
    assert "apiVersion" not in str(caught.value)


def test_profile_spec_is_validated_in_code() -> None:
    with pytest.raises(Invalid, match="seed: must be from"):
        ProfileSpec("mine", {"Price": 1.0}, seed=1 << 64)
    with pytest.raises(Invalid, match='no score "Nope"'):
        ProfileSpec("mine", {"Nope": 1.0})


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        pytest.param(
            {"scores": {"Magic": 1, "Tragic": 1}}, f"known scores: {', '.join(SCORES)}", id="scores"
        ),
        pytest.param({"disabled": ["Magic"]}, f"known filters: {', '.join(FILTERS)}", id="filters"),
        pytest.param({"scores": {}}, f"known scores: {', '.join(SCORES)}", id="none chosen"),
        pytest.param(
            {"seed": "x", "scores": {"Price": -1}, "disabled": ["Fit"]}, "", id="nothing to choose from"
        ),
    ],
)
def test_fix_lists_choices_only_where_helpful(change: dict[str, Any], fix: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_profile({"scores": {"Price": 1}, **change})
    assert caught.value.fix == fix


def test_unknown_preset_lists_known_presets() -> None:
    with pytest.raises(NotFound) as caught:
        preset("fastest")
    assert "balanced, high-availability, resource-efficiency, gpu, lowest-utilisation, fullest-first" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("balanced", {"BalancedResources": 2, "SpreadService": 1, "BinPacking": 0.5, "PreferredNodes": 1}),
        ("high-availability", {"BalancedResources": 0.5, "SpreadService": 2, "PreferredNodes": 1}),
        ("resource-efficiency", {"BalancedResources": 0.5, "TightestFit": 2, "PreferredNodes": 1}),
    ],
)
def test_preset_weights(name: str, weights: dict[str, float]) -> None:
    found = PRESETS[name].scores
    assert {plugin: found[plugin] for plugin in weights} == weights
    assert set(found) - set(weights) <= {
        "SoftSpread",
        "PreferredWorkloads",
        "AntiPreferred",
        "TaintPreference",
        "PlannedNodes",
    }


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
def test_preset_choices_match_their_names(name: str, chosen: str) -> None:
    table = nodes(a_node_info("n1"), a_node_info("n2"))
    place(table, workload_demands({"cpu": 1, "memory": "4Gi"}, service="s"), "n1")
    assert (
        decide(
            ask(table, workload_demands({"cpu": 1, "memory": "4Gi"}, service="s")),
            table,
            compile_preset(name),
        ).name
        == chosen
    )


def test_weight_change_reorders_candidates() -> None:
    table = nodes(a_node_info("cheap", price=1), a_node_info("full", price=2))
    place(table, workload_demands(), "full")
    for weights, chosen in (
        ({"Price": 1, "BinPacking": 0.1}, "cheap"),
        ({"Price": 0.1, "BinPacking": 1}, "full"),
    ):
        assert (
            decide(ask(table, workload_demands()), table, compile_profile(ProfileSpec("x", weights))).name
            == chosen
        )


def test_plugins_are_registered_under_their_own_name() -> None:
    assert all(each.name == name for name, each in (*FILTERS.items(), *SCORES.items()))
    compile_profile(ProfileSpec("all", dict.fromkeys(SCORES, 1.0)))
