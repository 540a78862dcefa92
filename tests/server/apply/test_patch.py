"""The three kinds of patch follow their RFCs and Kubernetes."""

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Invalid, LatticeError, Malformed, TooLarge
from lattice.server.apply.patch import (
    MAX_OPERATIONS,
    json_patch,
    merge_patch,
    same_json,
    strategic_merge_patch,
)


def op(kind: str, path: str, **rest: Any) -> dict[str, Any]:
    return {"op": kind, "path": path, **rest}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="a value replaces a value"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="a new name is added"),
        pytest.param({"a": "b"}, {"a": None}, {}, id="null removes"),
        pytest.param({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}, id="null removes only its name"),
        pytest.param({"a": ["b"]}, {"a": "c"}, {"a": "c"}, id="a scalar replaces a list"),
        pytest.param({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}, id="a list replaces a scalar"),
        pytest.param(
            {"a": {"b": "c"}},
            {"a": {"b": "d", "c": None}},
            {"a": {"b": "d"}},
            id="objects merge inside and absent names stay absent",
        ),
        pytest.param({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}, id="lists are replaced whole"),
        pytest.param(["a", "b"], ["c", "d"], ["c", "d"], id="a list at the root replaces"),
        pytest.param({"a": "b"}, ["c"], ["c"], id="a patch that is no object replaces the target"),
        pytest.param({"a": "foo"}, None, None, id="null replaces the target"),
        pytest.param({"a": "foo"}, "bar", "bar", id="text replaces the target"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="nulls of the target stay"),
        pytest.param(
            [1, 2], {"a": "b", "c": None}, {"a": "b"}, id="an object patch makes an object of a list"
        ),
        pytest.param(
            {}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="nulls inside new objects are dropped"
        ),
        pytest.param(
            {"a": [None]},
            {"b": [{"c": None}]},
            {"a": [None], "b": [{"c": None}]},
            id="nulls inside lists are kept",
        ),
    ],
)
def test_merge_patch(target: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == expected
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("target", "operations", "expected"),
    [
        pytest.param(
            {"foo": "bar"}, [op("add", "/baz", value="qux")], {"foo": "bar", "baz": "qux"}, id="add a member"
        ),
        pytest.param(
            {"foo": ["bar", "baz"]},
            [op("add", "/foo/1", value="qux")],
            {"foo": ["bar", "qux", "baz"]},
            id="add inside a list",
        ),
        pytest.param(
            {"foo": ["bar"]},
            [op("add", "/foo/1", value="q")],
            {"foo": ["bar", "q"]},
            id="add at the end by index",
        ),
        pytest.param(
            {"foo": ["bar"]},
            [op("add", "/foo/-", value=["abc"])],
            {"foo": ["bar", ["abc"]]},
            id="add a list as one item at the end",
        ),
        pytest.param(
            {"foo": "bar"}, [op("add", "/foo", value=1)], {"foo": 1}, id="add replaces a member that exists"
        ),
        pytest.param(
            {"foo": "bar"},
            [op("add", "/child", value={"g": {}})],
            {"foo": "bar", "child": {"g": {}}},
            id="add a nested object",
        ),
        pytest.param({"foo": 1}, [op("add", "/baz", value=None)], {"foo": 1, "baz": None}, id="add null"),
        pytest.param(
            {"foo": 1}, [op("add", "", value={"a": 1})], {"a": 1}, id="add at the root replaces all"
        ),
        pytest.param(
            {"baz": "qux", "foo": "bar"}, [op("remove", "/baz")], {"foo": "bar"}, id="remove a member"
        ),
        pytest.param(
            {"foo": ["bar", "qux", "baz"]},
            [op("remove", "/foo/1")],
            {"foo": ["bar", "baz"]},
            id="remove from a list",
        ),
        pytest.param(
            {"baz": "qux"}, [op("replace", "/baz", value="boo")], {"baz": "boo"}, id="replace a member"
        ),
        pytest.param({"a": [1, 2]}, [op("replace", "/a/0", value=3)], {"a": [3, 2]}, id="replace an item"),
        pytest.param({"a": 1}, [op("replace", "", value=[1])], [1], id="replace the root"),
        pytest.param(
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
            id="move a member",
        ),
        pytest.param(
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
            id="move inside a list counts after the removal",
        ),
        pytest.param(
            {"a": 1},
            [{"op": "move", "from": "/a", "path": "/a"}],
            {"a": 1},
            id="a move to where it is changes nothing",
        ),
        pytest.param(
            {"a": {"x": [1]}},
            [{"op": "copy", "from": "/a", "path": "/b"}, op("add", "/b/x/-", value=2)],
            {"a": {"x": [1]}, "b": {"x": [1, 2]}},
            id="a copy is independent of its source",
        ),
        pytest.param(
            {"baz": "q", "foo": ["a", 2]},
            [op("test", "/baz", value="q"), op("test", "/foo/1", value=2)],
            {"baz": "q", "foo": ["a", 2]},
            id="test holds",
        ),
        pytest.param(
            {"/": 9, "~1": 10},
            [op("test", "/~01", value=10), op("test", "/~1", value=9)],
            {"/": 9, "~1": 10},
            id="escapes are read in order",
        ),
        pytest.param({"": 1}, [op("replace", "/", value=2)], {"": 2}, id="the empty name is a name"),
        pytest.param(
            {"a": Decimal("1.0")},
            [op("test", "/a", value=1)],
            {"a": Decimal("1.0")},
            id="numbers compare by value",
        ),
        pytest.param({"a": 1}, [op("test", "/b", value=None)], {"a": 1}, id="what is absent tests as null"),
        pytest.param(
            {"a": 1}, [op("add", "/b", value=2, xyz=123)], {"a": 1, "b": 2}, id="unknown members are ignored"
        ),
        pytest.param({"a": 1}, [], {"a": 1}, id="no operations change nothing"),
        pytest.param(
            {"m": {"f": ["a", "b"]}},
            [op("test", "/m/f/0", value="a"), op("remove", "/m/f/0")],
            {"m": {"f": ["b"]}},
            id="test then remove a finalizer",
        ),
    ],
)
def test_json_patch(target: Any, operations: Any, expected: Any) -> None:
    before = copy.deepcopy((target, operations))
    assert same_json(json_patch(target, operations), expected)
    assert (target, operations) == before


@pytest.mark.parametrize(
    ("operations", "error", "message"),
    [
        pytest.param(
            [op("test", "/a", value=2)],
            Invalid,
            "operation 0 (test /a): the existing value is different",
            id="a test fails",
        ),
        pytest.param([op("test", "/a", value=True)], Invalid, "different", id="true is not one"),
        pytest.param(
            [op("test", "/b", value=1)],
            Invalid,
            "the path element does not exist: 'b'",
            id="a test of what is absent",
        ),
        pytest.param(
            [op("test", "/l/9", value=None)],
            Invalid,
            "the path element does not exist: '9'",
            id="lists have no nulls beyond their end",
        ),
        pytest.param(
            [op("add", "/b/c", value=1)],
            Invalid,
            "the path element does not exist: 'b'",
            id="add below nothing",
        ),
        pytest.param(
            [op("add", "/a/c", value=1)], Invalid, "neither an object nor a list", id="add inside a number"
        ),
        pytest.param(
            [op("add", "/l/3", value=1)],
            Invalid,
            "the path element does not exist: '3'",
            id="add past the end",
        ),
        pytest.param(
            [op("add", "/l/01", value=1)],
            Invalid,
            "the path element does not exist: '01'",
            id="an index with a leading nought",
        ),
        pytest.param(
            [op("add", "/l/-1", value=1)],
            Invalid,
            "the path element does not exist: '-1'",
            id="a negative index",
        ),
        pytest.param(
            [op("add", "/l/1e0", value=1)],
            Invalid,
            "the path element does not exist: '1e0'",
            id="an index that is no integer",
        ),
        pytest.param(
            [op("remove", "/l/-")], Invalid, "the path element does not exist: '-'", id="remove past the end"
        ),
        pytest.param(
            [op("remove", "/z")],
            Invalid,
            "operation 0 (remove /z): the path element does not exist: 'z'",
            id="remove what is absent",
        ),
        pytest.param([op("remove", "")], Invalid, "whole object", id="remove the root"),
        pytest.param(
            [op("replace", "/z", value=1)],
            Invalid,
            "the path element does not exist: 'z'",
            id="replace what is absent",
        ),
        pytest.param(
            [{"op": "move", "from": "/o", "path": "/o/x"}], Invalid, "into itself", id="move into itself"
        ),
        pytest.param(
            [{"op": "copy", "from": "/z", "path": "/y"}],
            Invalid,
            "the path element does not exist: 'z'",
            id="copy what is absent",
        ),
        pytest.param({"a": 1}, Malformed, "must be a list", id="an object instead of a list"),
        pytest.param(["x"], Malformed, "operation 0 must be an object", id="text instead of an operation"),
        pytest.param([op("frob", "/a")], Malformed, "unknown op: 'frob'", id="an unknown op"),
        pytest.param([op("add", "/a")], Malformed, "(add) has no value", id="add without a value"),
        pytest.param([{"op": "add", "value": 1}], Malformed, "needs a JSON pointer as path", id="no path"),
        pytest.param(
            [op("add", "a", value=1)],
            Malformed,
            "needs a JSON pointer as path, got 'a'",
            id="a path without its slash",
        ),
        pytest.param([op("move", "/a")], Malformed, "needs a JSON pointer as from", id="move without from"),
        pytest.param(
            [op("test", "/a", value=1)] * (MAX_OPERATIONS + 1),
            TooLarge,
            "10000, got 10001",
            id="too many operations",
        ),
    ],
)
def test_json_patch_refuses(operations: Any, error: type[LatticeError], message: str) -> None:
    target = {"a": 1, "l": [1, 2], "o": {"p": 1}}
    before = copy.deepcopy(target)
    with pytest.raises(error) as caught:
        json_patch(target, operations)
    assert message in str(caught.value)
    assert target == before


def test_failed_test_does_not_leak_current_value() -> None:
    with pytest.raises(Invalid) as caught:
        json_patch({"data": {"key": "hunter2"}}, [op("test", "/data/key", value="guess")])
    assert "hunter2" not in str(caught.value)


def test_exponential_copies_are_rejected() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60
    with pytest.raises(TooLarge, match="copy operations"):
        json_patch({"a": ["x" * 1000]}, doubling)


def test_deeply_nested_patches_are_rejected() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for attempt in (
        lambda: merge_patch({}, deep),
        lambda: strategic_merge_patch({}, deep),
        lambda: json_patch(deep, [op("test", "", value=deep)]),
    ):
        with pytest.raises(Malformed, match="nests too deeply"):
            attempt()


CORE: dict[str, Any] = {
    "metadata": {
        "labels": {"a": "1", "b": "2"},
        "finalizers": ["x", "y"],
        "ownerReferences": [{"uid": "1", "name": "one"}, {"uid": "2", "name": "two"}],
    },
    "data": {"k": "v", "l": "w"},
    "spec": {"finalizers": ["kubernetes"]},
}


@pytest.mark.parametrize(
    ("patch", "where", "expected"),
    [
        pytest.param({"data": {"k": "n", "l": None}}, "data", {"k": "n"}, id="maps merge and null removes"),
        pytest.param(
            {"data": {"$patch": "replace", "z": "1"}}, "data", {"z": "1"}, id="a map can be replaced"
        ),
        pytest.param({"data": {"$patch": "delete"}}, "data", {}, id="a map can be emptied"),
        pytest.param(
            {"data": {"$retainKeys": ["k", "z"], "z": "1"}},
            "data",
            {"k": "v", "z": "1"},
            id="keys not retained go",
        ),
        pytest.param(
            {"data": {"$unheard": 1, "z": "1"}},
            "data",
            {"k": "v", "l": "w", "z": "1"},
            id="directives are never stored",
        ),
        pytest.param(
            {"fresh": {"a": None, "b": {"$retainKeys": []}}},
            "fresh",
            {"b": {}},
            id="a new map is stored without nulls and directives",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["y", "z"]}},
            "metadata.finalizers",
            ["x", "y", "z"],
            id="finalizers merge as a set",
        ),
        pytest.param(
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}},
            "metadata.finalizers",
            ["y"],
            id="finalizers can be deleted by value",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/finalizers": ["z", "y"], "finalizers": ["z"]}},
            "metadata.finalizers",
            ["z", "y", "x"],
            id="an order is obeyed",
        ),
        pytest.param(
            {"metadata": {"ownerReferences": [{"uid": "2", "kind": "K"}, {"uid": "3"}]}},
            "metadata.ownerReferences",
            [{"uid": "1", "name": "one"}, {"uid": "2", "name": "two", "kind": "K"}, {"uid": "3"}],
            id="owner references merge by uid",
        ),
        pytest.param(
            {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}},
            "metadata.ownerReferences",
            [{"uid": "2", "name": "two"}],
            id="an owner reference can be deleted",
        ),
        pytest.param(
            {"metadata": {"ownerReferences": [{"$patch": "replace"}, {"uid": "9"}]}},
            "metadata.ownerReferences",
            [{"uid": "9"}],
            id="a list can be replaced",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/ownerReferences": [{"uid": "2"}, {"uid": "1"}]}},
            "metadata.ownerReferences",
            [{"uid": "2", "name": "two"}, {"uid": "1", "name": "one"}],
            id="owner references can be reordered",
        ),
        pytest.param(
            {"spec": {"finalizers": ["other"]}}, "spec.finalizers", ["other"], id="other lists are replaced"
        ),
    ],
)
def test_strategic_merge_patch(patch: dict[str, Any], where: str, expected: Any) -> None:
    before = copy.deepcopy((CORE, patch))
    found: Any = strategic_merge_patch(CORE, patch)
    for name in where.split("."):
        found = found[name]
    assert found == expected
    assert (CORE, patch) == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        pytest.param([], "must be an object", id="a list"),
        pytest.param({"data": {"$patch": "burn"}}, "no directive 'burn'", id="an unknown directive"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"name": "x"}]}},
            "does not contain declared merge key: uid",
            id="an item without its key",
        ),
    ],
)
def test_strategic_merge_patch_refuses(patch: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        strategic_merge_patch(CORE, patch)


names = st.sampled_from(["a", "b", "c~", "d/"])
scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["x", "y"]))
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
without_nulls = st.recursive(
    st.one_of(st.booleans(), st.integers(0, 2), st.sampled_from(["x", "y"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(names, without_nulls, max_size=4)


def difference(old: Any, new: Any) -> Any:
    """The merge patch from one value to another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {
        name: difference(old[name], value)
        for name, value in new.items()
        if name in old and not same_json(old[name], value)
    }
    return {
        **changed,
        **dict.fromkeys(old.keys() - new.keys()),
        **{name: new[name] for name in new.keys() - old.keys()},
    }


@given(objects, objects)
def test_merging_a_difference_gives_the_new_object(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = difference(old, new)
    before = copy.deepcopy((old, patch))
    assert same_json(merge_patch(old, patch), new)
    assert (old, patch) == before


@given(documents, documents)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert same_json(merge_patch(once, patch), once)


@given(objects, objects)
def test_strategic_merge_of_plain_maps_is_merge_patch(old: dict[str, Any], patch: dict[str, Any]) -> None:
    assert same_json(strategic_merge_patch(old, patch), merge_patch(old, patch))


def slow_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """The reference implementation of add, remove, replace and copy, on deep copies, for existing pointers."""
    root = {"root": copy.deepcopy(target)}
    for operation in operations:
        *way, last = [
            "root",
            *(part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]),
        ]
        node: Any = root
        for part in way:
            node = node[int(part)] if isinstance(node, list) else node[part]
        key: Any = int(last) if isinstance(node, list) else last
        if operation["op"] == "remove":
            del node[key]
        elif operation["op"] == "add" and isinstance(node, list):
            node.insert(key, copy.deepcopy(operation["value"]))
        else:
            node[key] = copy.deepcopy(operation["value"])
    return root["root"]


def pointers(value: Any, start: str = "") -> list[str]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [
        start,
        *(
            p
            for name, held in inside
            for p in pointers(held, f"{start}/{str(name).replace('~', '~0').replace('/', '~1')}")
        ),
    ]


@given(documents, st.data())
def test_json_patch_agrees_with_the_slow_way(target: Any, data: st.DataObject) -> None:
    operations: list[dict[str, Any]] = []
    expected = target
    for _ in range(data.draw(st.integers(0, 5))):
        path = data.draw(st.sampled_from(pointers(expected)))
        kind = data.draw(st.sampled_from(["add", "replace", *(["remove"] if path else [])]))
        operations.append(op(kind, path, value=data.draw(documents)))
        expected = slow_patch(target, operations)
    before = copy.deepcopy((target, operations))
    assert same_json(json_patch(target, operations), expected)
    assert (target, operations) == before
