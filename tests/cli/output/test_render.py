"""Tables, YAML, JSON and ages as they reach the terminal."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.cli.output import render
from lattice.kinds.meta.yaml_manifest import load_documents


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0, "0s", id="just now"),
        pytest.param(-1, "0s", id="clocks that differ a little"),
        pytest.param(-60, "<invalid>", id="the future"),
        pytest.param(119, "119s", id="seconds up to two minutes"),
        pytest.param(125, "2m5s", id="minutes and seconds"),
        pytest.param(300, "5m", id="whole minutes"),
        pytest.param(659, "10m", id="minutes alone from ten on"),
        pytest.param(10_800, "3h", id="whole hours"),
        pytest.param(12_000, "3h20m", id="hours and minutes"),
        pytest.param(100_000, "27h", id="hours alone up to two days"),
        pytest.param(3 * 86_400 + 4 * 3_600, "3d4h", id="days and hours"),
        pytest.param(40 * 86_400, "40d", id="days alone from eight on"),
        pytest.param(2 * 365 * 86_400 + 86_400 * 10, "2y10d", id="years and days"),
        pytest.param(9 * 365 * 86_400, "9y", id="years alone from eight on"),
    ],
)
def test_ages(seconds, text):
    assert render.age(seconds) == text


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        pytest.param("2026-11-15T07:35:00Z", "5m", id="the API's form"),
        pytest.param("2026-11-15T07:39:55.123456Z", "4s", id="with microseconds"),
        pytest.param(None, "<unknown>", id="none"),
        pytest.param("soon", "<invalid>", id="not a time"),
    ],
)
def test_ages_of_timestamps(stamp, text):
    assert render.age_since(stamp, datetime(2026, 11, 15, 7, 40, tzinfo=UTC)) == text


def test_table_columns_are_separated_by_three_spaces():
    assert render.table([["NAME", "AGE"], ["long-name", "5m"], ["b", ""]]) == [
        "NAME        AGE",
        "long-name   5m",
        "b",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(None, "<none>", id="null"),
        pytest.param(True, "true", id="booleans"),
        pytest.param(Decimal("0.10"), "0.10", id="decimals"),
        pytest.param(["a", 1], '["a",1]', id="collections"),
        pytest.param("one\ntwo", "one...", id="only the first line"),
        pytest.param("\x1b[2Jgone", "?[2Jgone", id="escape sequences"),
        pytest.param("a\u202eb", "a?b", id="text that runs backwards"),
    ],
)
def test_cells(value, text):
    assert render.cell(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param({"a": "NO"}, "a: 'NO'\n", id="words that are booleans elsewhere are quoted"),
        pytest.param({"a": "1e3"}, "a: '1e3'\n", id="text that looks like a number is quoted"),
        pytest.param({"a": "0o17"}, "a: '0o17'\n", id="text that looks octal is quoted"),
        pytest.param({"a": "0899"}, "a: '0899'\n", id="digits with a leading zero are quoted"),
        pytest.param({"a": Decimal("1.50")}, "a: 1.50\n", id="decimals are plain numbers"),
        pytest.param({"a": Decimal("1E+3")}, "a: 1000\n", id="exponents are written out"),
        pytest.param({"a": Decimal("1E+30")}, "a: 1.0e+30\n", id="unless they are large"),
        pytest.param({"a": "x\ny\n"}, "a: |\n  x\n  y\n", id="long text as a block"),
        pytest.param({"a": ["x"]}, "a:\n- x\n", id="lists as kubectl writes them"),
    ],
)
def test_yaml(value, text):
    assert render.to_yaml(value) == text


def test_equal_values_are_written_without_yaml_anchors():
    shared = {"x": [1]}
    assert "&" not in render.to_yaml({"a": shared, "b": shared})


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.decimals(-(10**9), 10**9, places=3)
)
words = st.text() | st.from_regex(r"[-+.0-9eExo_:~<]{1,6}", fullmatch=True)
trees = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(alphabet="abc", min_size=1), trees, min_size=1))
def test_yaml_output_round_trips(value):
    text = render.to_yaml(value)
    (document,) = load_documents(text, expand_lists=False)
    assert document.value == value
    assert texts(yaml.safe_load(text)) == texts(value)


def texts(value):
    """The shape, with everything but text left out: numbers differ between YAML 1.1 and ours."""
    if isinstance(value, dict):
        return {k: texts(v) for k, v in value.items()}
    if isinstance(value, list):
        return [texts(v) for v in value]
    return value if isinstance(value, str) else None


def test_json_is_indented_by_four_spaces():
    assert render.to_json({"a": Decimal("1.50")}) == '{\n    "a": 1.50\n}'
