"""Tests of `removals_by_machine`: the machines that lose replicas on scale-down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.lifecycle.rollout import removals_by_machine


@pytest.mark.parametrize(
    ("held", "shared", "count", "least", "going"),
    [
        pytest.param({"a": 2, "b": 1}, "", 1, 1, {"b": 1}, id="the machine that becomes empty"),
        pytest.param(
            {"a": 1, "b": 2}, "", 1, 1, {"a": 1}, id="the machine that becomes empty, in any name order"
        ),
        pytest.param(
            {"a": 2, "b": 1}, "b", 1, 1, {"a": 1}, id="others on a machine keep it: the fullest is left"
        ),
        pytest.param(
            {"a": 3, "b": 2}, "", 1, 1, {"a": 1}, id="too few to give a machine up: the fullest is left"
        ),
        pytest.param({"a": 2, "b": 2}, "", 1, 1, {"b": 1}, id="the last of equal machines"),
        pytest.param(
            {"a": 2, "b": 2}, "", 3, 1, {"b": 2, "a": 1}, id="one whole, and of the others the rest"
        ),
        pytest.param(
            {"a": 3, "b": 1, "c": 1},
            "",
            2,
            1,
            {"b": 1, "c": 1},
            id="as many machines as possible are emptied",
        ),
        pytest.param(
            {"a": 3, "b": 1, "c": 1},
            "",
            2,
            2,
            {"c": 1, "a": 1},
            id="replicas stay on the minimum of machines",
        ),
        pytest.param({"a": 2, "b": 1}, "", 1, 2, {"a": 1}, id="a machine that stays anyhow is used"),
        pytest.param({"a": 1, "b": 1}, "", 2, 2, {"a": 1, "b": 1}, id="when none is wanted all go"),
        pytest.param({"a": 1}, "", 0, 1, {}, id="nothing to remove"),
    ],
)
def test_removals_by_machine(
    held: dict[str, int], shared: str, count: int, least: int, going: dict[str, int]
) -> None:
    assert removals_by_machine(held, shared.__contains__, count, least) == going


@given(
    held=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1),
    shared=st.sets(st.sampled_from("abcdef")),
    part=st.floats(0, 1),
    least=st.integers(0, 4),
)
def test_removals_match_count_and_held_replicas(
    held: dict[str, int], shared: set[str], part: float, least: int
) -> None:
    count = int(part * sum(held.values()))
    going = removals_by_machine(held, shared.__contains__, count, least)
    assert going.total() == count
    assert all(0 < many <= held[name] for name, many in going.items())
