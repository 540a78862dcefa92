"""A change of an object is described by its fields, briefly."""

from typing import Any

import msgspec
import pytest

from lattice.sim.invariants.history import MAX_VALUE_CHARS, describe_change


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param(None, {"a": 1}, "made", id="it was not there"),
        pytest.param({"a": 1}, None, "deleted", id="it is not there any more"),
        pytest.param({"a": 1}, {"a": 1}, "nothing changed", id="written though it is the same"),
        pytest.param(
            {"status": {"ready": True, "on": "n1"}},
            {"status": {"ready": False, "on": "n1"}},
            "status.ready: true → false",
            id="one field",
        ),
        pytest.param({"a": {"b": 1}}, {"a": {}}, "a.b: 1 → none", id="a field that is gone"),
        pytest.param(
            {"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}, {"x": 3}]}, "a[1].x: 2 → 3", id="one of a list"
        ),
        pytest.param({"a": [1]}, {"a": [1, 2]}, "a: [1] → [1,2]", id="a list that grew"),
        pytest.param({"a": ""}, {"a": "x" * 90}, f'a: "" → "{"x" * (MAX_VALUE_CHARS - 1)}…', id="cut short"),
        pytest.param(
            {},
            dict.fromkeys("abcdef", 1),
            "a: none → 1; b: none → 1; c: none → 1; d: none → 1; 2 more",
            id="many fields",
        ),
        pytest.param(
            {"metadata": {"resourceVersion": "1"}},
            {"metadata": {"resourceVersion": "2"}},
            "nothing changed",
            id="what each write changes",
        ),
    ],
)
def test_describe_change(before: Any, after: Any, told: str) -> None:
    written = [None if each is None else msgspec.json.encode(each) for each in (before, after)]
    assert describe_change(*written) == told
