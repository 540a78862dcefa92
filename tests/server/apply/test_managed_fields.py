"""Field sets agree with plain sets of paths, and objects have the paths that Kubernetes gives them."""

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.server.apply import managed_fields as fieldset
from lattice.server.apply.managed_fields import (
    FieldSet,
    all_fields,
    applied_fields,
    compile_types,
    format_fields,
    format_path,
    iter_paths,
    parse_fields,
)

TEXT = {"type": "string"}
ITEM = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "value": TEXT,
        "tags": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
    },
}
PORT = {
    "type": "object",
    "properties": {"port": {"type": "integer"}, "protocol": {**TEXT, "default": "TCP"}, "note": TEXT},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "image": TEXT,
                "size": {"x-kubernetes-int-or-string": True},
                "replicas": {
                    "type": "object",
                    "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
                },
                "env": {"type": "object", "additionalProperties": TEXT},
                "containers": {"type": "object", "additionalProperties": ITEM},
                "args": {"type": "array", "items": TEXT},
                "fixed": {"type": "object", "properties": {"a": TEXT}, "x-kubernetes-map-type": "atomic"},
                "zones": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
                "items": {
                    "type": "array",
                    "items": ITEM,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "ports": {
                    "type": "array",
                    "items": PORT,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["protocol", "port"],
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": TEXT}},
    },
}
TYPES = compile_types(SCHEMA)


def spec(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "Thing", "metadata": {"name": "a"}, "spec": fields}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param(
            spec(image="x"), {"f:spec": {"f:image": {}}}, id="a scalar is one path and its declared map none"
        ),
        pytest.param(spec(args=["a", "b"]), {"f:spec": {"f:args": {}}}, id="a list without a type is atomic"),
        pytest.param(spec(fixed={"a": "b"}), {"f:spec": {"f:fixed": {}}}, id="an atomic map is one path"),
        pytest.param(
            spec(zones=["b", 'q"']),
            {"f:spec": {"f:zones": {'v:"b"': {}, 'v:"q\\""': {}}}},
            id="a set owns value by value",
        ),
        pytest.param(
            spec(env={"A": "1"}), {"f:spec": {"f:env": {"f:A": {}}}}, id="a map of scalars owns key by key"
        ),
        pytest.param(
            spec(containers={"main": {"value": "v"}}),
            {"f:spec": {"f:containers": {"f:main": {".": {}, "f:value": {}}}}},
            id="a free key that holds a map is itself owned",
        ),
        pytest.param(
            spec(items=[{"name": "n", "value": "v"}]),
            {"f:spec": {"f:items": {'k:{"name":"n"}': {".": {}, "f:name": {}, "f:value": {}}}}},
            id="an item of a list-map is owned with its key field",
        ),
        pytest.param(
            spec(ports=[{"port": 80}]),
            {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}}}},
            id="keys are sorted and a missing one takes its default",
        ),
        pytest.param(spec(replicas={}), {"f:spec": {"f:replicas": {}}}, id="an empty map is a leaf"),
        pytest.param(spec(replicas=None), {"f:spec": {"f:replicas": {}}}, id="a null is a leaf"),
        pytest.param(spec(zones=[]), {"f:spec": {"f:zones": {}}}, id="an empty list is a leaf"),
        pytest.param(
            spec(free={"a": {"b": [1]}, "c": Decimal("1.5")}),
            {"f:spec": {"f:free": {"f:a": {".": {}, "f:b": {}}, "f:c": {}}}},
            id="free-form maps split by key and their lists do not",
        ),
        pytest.param(
            {
                "metadata": {
                    "name": "a",
                    "uid": "u",
                    "generation": 3,
                    "labels": {"x": "y"},
                    "finalizers": ["f/z"],
                }
            },
            {"f:metadata": {"f:labels": {"f:x": {}}, "f:finalizers": {'v:"f/z"': {}}}},
            id="server-managed metadata has no owner",
        ),
        pytest.param(
            {"metadata": {"ownerReferences": [{"uid": "1", "kind": "K"}]}},
            {"f:metadata": {"f:ownerReferences": {'k:{"uid":"1"}': {".": {}, "f:uid": {}, "f:kind": {}}}}},
            id="owner references are named by uid",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}},
            {},
            id="identity alone owns nothing",
        ),
    ],
)
def test_owned(obj: dict[str, Any], expected: FieldSet) -> None:
    assert applied_fields(obj, TYPES) == expected


def test_present_also_names_the_maps_and_lists() -> None:
    obj = spec(replicas={"min": 1}, zones=[]) | {"metadata": {"labels": {"a": "b"}}}
    assert all_fields(obj, TYPES) == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {".": {}, "f:replicas": {".": {}, "f:min": {}}, "f:zones": {}},
    }


@pytest.mark.parametrize(
    ("old", "new", "taken", "gone"),
    [
        pytest.param({"image": "a"}, {"image": "a"}, [], [], id="no change is no path"),
        pytest.param({"image": "a"}, {"image": "b"}, [".spec.image"], [], id="a new value is taken"),
        pytest.param({"image": "a"}, {}, [], [".spec.image"], id="a missing field is gone"),
        pytest.param(
            {},
            {"replicas": {"min": 1}},
            [".spec.replicas", ".spec.replicas.min"],
            [],
            id="a new map is taken with its fields",
        ),
        pytest.param(
            {"zones": ["a"]},
            {"zones": ["b"]},
            ['.spec.zones[="b"]'],
            ['.spec.zones[="a"]'],
            id="sets change value by value",
        ),
        pytest.param(
            {"zones": ["a", "b"]}, {"zones": ["b", "a"]}, [], [], id="the order of a set has no owner"
        ),
        pytest.param(
            {"items": [{"name": "x", "value": "1"}]},
            {"items": [{"name": "x", "value": "2"}]},
            ['.spec.items[name="x"].value'],
            [],
            id="list-maps change field by field",
        ),
        pytest.param({"args": ["a"]}, {"args": ["b"]}, [".spec.args"], [], id="atomic lists change whole"),
        pytest.param(
            {"replicas": None},
            {"replicas": {}},
            [".spec.replicas"],
            [],
            id="null to empty is a change of the thing itself",
        ),
        pytest.param(
            {"replicas": None},
            {"replicas": {"min": 1}},
            [".spec.replicas.min"],
            [],
            id="null to map takes the fields",
        ),
        pytest.param(
            {"free": {"a": {"b": 1}}},
            {"free": {"a": 1}},
            [".spec.free.a"],
            [".spec.free.a.b"],
            id="a map that becomes a number loses its keys",
        ),
    ],
)
def test_changes(old: dict[str, Any], new: dict[str, Any], taken: list[str], gone: list[str]) -> None:
    found = fieldset.changed_fields(spec(**old), spec(**new), TYPES)
    assert [[format_path(path) for path in iter_paths(each)] for each in found] == [taken, gone]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param(
            {}, {"data": {"a": "b"}}, {"f:data": {".": {}, "f:a": {}}}, id="no schema splits every map"
        ),
        pytest.param(
            {"type": "object", "properties": {"data": {"type": "object", "additionalProperties": True}}},
            {"data": {"a": {"b": 1}}},
            {"f:data": {"f:a": {".": {}, "f:b": {}}}},
            id="additionalProperties true is free-form",
        ),
        pytest.param(
            {"type": "object"}, {"odd": 1}, {"f:odd": {}}, id="an undeclared field is still tracked"
        ),
    ],
)
def test_compile_types(schema: dict[str, Any], value: dict[str, Any], expected: FieldSet) -> None:
    assert applied_fields(value, compile_types(schema)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"f:a": {".": {}}}, {"f:a": {}}, id="a lone dot is a leaf"),
        pytest.param({".": {}, "f:a": {}}, {"f:a": {}}, id="the root is no path"),
        pytest.param(
            {'k:{ "b": 1, "a": "x" }': {}}, {'k:{"a":"x","b":1}': {}}, id="keys are written one way"
        ),
        pytest.param({"v:1.0": {}}, {"v:1": {}}, id="one point nought is one"),
        pytest.param({"i:0": {}}, {"i:0": {}}, id="indexes are tolerated"),
        pytest.param({"v:1e999999999": {}}, {"v:1E+999999999": {}}, id="a huge number is not written out"),
    ],
)
def test_parse_fields(fields: Any, expected: FieldSet) -> None:
    assert parse_fields(fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="a list"),
        pytest.param({"f:a": None}, id="a null child"),
        pytest.param({"x:a": {}}, id="an unknown mark"),
        pytest.param({"k:[1]": {}}, id="a key that is no object"),
        pytest.param({"v:{": {}}, id="a value that is no JSON"),
        pytest.param({"v:NaN": {}}, id="not a number"),
        pytest.param({"i:x": {}}, id="an index that is no number"),
    ],
)
def test_parse_fields_refuses(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"fieldsV1|JSON|Expecting"):
        parse_fields(fields)


def test_parse_fields_refuses_endless_nesting() -> None:
    deep: FieldSet = {}
    for _ in range(5000):
        deep = {"f:a": deep}
    with pytest.raises(ValueError, match="nested"):
        parse_fields(deep)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(("f:spec", "f:replicas", "f:min"), ".spec.replicas.min", id="fields"),
        pytest.param(
            ("f:c", 'k:{"port":80,"protocol":"TCP"}', "f:x"), '.c[port=80,protocol="TCP"].x', id="keys"
        ),
        pytest.param(("f:metadata", 'v:"a/b"'), '.metadata[="a/b"]', id="values"),
        pytest.param(("f:a", "i:3"), ".a[3]", id="indexes"),
    ],
)
def test_format_path(path: fieldset.Path, text: str) -> None:
    assert format_path(path) == text


labels = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"n":"x"}', 'v:"y"'])
path_sets = st.frozensets(st.lists(labels, min_size=1, max_size=4).map(tuple), max_size=8)


def trie(members: frozenset[fieldset.Path]) -> FieldSet:
    """The reference implementation: insert every path, mark its end, then drop marks on leaves."""
    root: FieldSet = {}
    for path in members:
        node = root
        for label in path:
            node = node.setdefault(label, {})
        node["."] = {}
    return parse_fields(root)


def members(fields: FieldSet) -> frozenset[fieldset.Path]:
    found = list(iter_paths(fields))
    assert len(found) == len(set(found))
    return frozenset(found)


@given(path_sets, path_sets)
def test_set_algebra_agrees_with_sets_of_paths(
    a: frozenset[fieldset.Path], b: frozenset[fieldset.Path]
) -> None:
    left, right = trie(a), trie(b)
    kept = copy.deepcopy((left, right))
    assert fieldset.union(left, right) == trie(a | b)
    assert fieldset.difference(left, right) == trie(a - b)
    assert fieldset.intersection(left, right) == trie(a & b)
    assert all(fieldset.contains(left, path) == (path in a) for path in a | b)
    assert (left, right) == kept


@given(path_sets)
def test_format_then_parse_gives_the_same_set(a: frozenset[fieldset.Path]) -> None:
    fields = trie(a)
    assert members(fields) == a
    assert parse_fields(format_fields(fields)) == fields
    assert list(format_fields(fields)) == sorted(fields)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
)


@given(values, values)
def test_labels_are_equal_exactly_for_equal_values(a: Any, b: Any) -> None:
    same = a == b and isinstance(a, bool) == isinstance(b, bool)
    assert (fieldset.json_text(a) == fieldset.json_text(b)) == same
    assert parse_fields({"v:" + fieldset.json_text(a): {}}) == {"v:" + fieldset.json_text(a): {}}
