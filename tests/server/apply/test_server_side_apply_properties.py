"""Properties of server-side apply: random objects, managers and operations."""

import copy
from typing import Any

from build.server_side_apply import (
    LATER,
    TYPES,
    apply,
    thing,
    update,
    updater,
)
from hypothesis import given
from hypothesis import strategies as st

from lattice.server.apply import managed_fields as fieldset
from lattice.server.apply.managed_fields import iter_paths
from lattice.server.apply.server_side_apply import (
    managed_fields_of,
    track_update,
)

names = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["1", "2"])
items = st.fixed_dictionaries({}, optional={"value": texts, "note": texts})
item_lists = st.dictionaries(names, items, max_size=3).map(
    lambda by_name: [{"name": name, **rest} for name, rest in by_name.items()]
)
free = st.recursive(
    st.one_of(st.integers(0, 2), texts),
    lambda inner: st.dictionaries(names, inner, max_size=2) | st.lists(inner, max_size=2),
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "image": texts,
        "class": texts,
        "replicas": st.fixed_dictionaries({}, optional={"min": st.integers(0, 2), "max": st.integers(0, 2)}),
        "env": st.dictionaries(names, texts, max_size=3),
        "containers": st.dictionaries(names, items, max_size=2),
        "args": st.lists(texts, max_size=2),
        "zones": st.lists(names, unique=True, max_size=3),
        "items": item_lists,
        "free": st.dictionaries(names, free, max_size=2),
    },
)
things = st.builds(
    lambda spec, labels: thing(spec, labels=labels), specs, st.dictionaries(names, texts, max_size=2)
)


@given(things, things, things)
def test_applying_twice_is_applying_once(
    made: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    live = apply(update(None, made), first, force=True)
    once = apply(live, second, force=True, now=LATER)
    assert apply(once, second, now="2026-03-03T00:00:00Z") == once


@given(things, things)
def test_forced_apply_owns_all_and_never_conflicts(made: dict[str, Any], applied: dict[str, Any]) -> None:
    out = apply(update(None, made), applied, force=True)
    mine = next((each["fieldsV1"] for each in managed_fields_of(out) if each["operation"] == "Apply"), {})
    assert mine == fieldset.applied_fields(applied, TYPES)
    merged = fieldset.all_fields(out, TYPES)
    assert all(fieldset.contains(merged, path) for path in iter_paths(mine))
    apply(out, applied)


@given(things, things, things)
def test_absent_fields_have_no_owner(
    made: dict[str, Any], applied: dict[str, Any], new: dict[str, Any]
) -> None:
    live = apply(update(None, made), applied, force=True)
    out = update(live, new)
    there = fieldset.all_fields(out, TYPES)
    for each in managed_fields_of(out):
        assert fieldset.difference(each["fieldsV1"], there) == {}
        assert each["fieldsV1"]


@given(things, things)
def test_untouched_fields_keep_their_owner(made: dict[str, Any], new: dict[str, Any]) -> None:
    live = update(None, made, "first")
    out = update(live, new, "second")
    union: fieldset.FieldSet = {}
    for each in managed_fields_of(out):
        union = fieldset.union(union, each["fieldsV1"])
    assert union == fieldset.all_fields(new, TYPES)


@given(things)
def test_tracking_no_change_gives_an_equal_list(made: dict[str, Any]) -> None:
    live = update(None, made)
    assert track_update(live, copy.deepcopy(live), TYPES, updater("other"), LATER) == managed_fields_of(live)


@given(things, things, st.booleans())
def test_disjoint_managers_never_conflict(one: dict[str, Any], two: dict[str, Any], again: bool) -> None:
    mine = thing({k: v for k, v in one["spec"].items() if k in ("image", "env", "items", "free")})
    theirs = thing(
        {k: v for k, v in two["spec"].items() if k not in mine["spec"]}, labels=two["metadata"]["labels"]
    )
    out = apply(apply(None, mine), theirs, "bob")
    if again:
        out = apply(out, mine)
    assert out["spec"] == {**mine["spec"], **theirs["spec"]}
    expected = {by: fieldset.applied_fields(obj, TYPES) for by, obj in (("ann", mine), ("bob", theirs))}
    assert {each["manager"]: each["fieldsV1"] for each in managed_fields_of(out)} == {
        by: fields for by, fields in expected.items() if fields
    }


def item_label(item: Any) -> str:
    return f'k:{{"name":"{item["name"]}"}}' if isinstance(item, dict) else ""


def value_at(obj: Any, path: fieldset.Path) -> Any:
    """The value under a path, by the reference implementation; LookupError if there is none."""
    for label in path:
        if label.startswith("f:"):
            obj = obj[label[2:]]
        else:
            obj = next(
                (item for item in obj if label in (f"v:{fieldset.json_text(item)}", item_label(item))), None
            )
    return obj


@given(things, things)
def test_changes_are_added_removed_or_modified_paths(old: dict[str, Any], new: dict[str, Any]) -> None:
    taken, gone = (frozenset(iter_paths(each)) for each in fieldset.changed_fields(old, new, TYPES))
    before, after = (frozenset(iter_paths(fieldset.all_fields(each, TYPES))) for each in (old, new))
    leaves = {
        path
        for path in before & after
        if not any(other[: len(path)] == path for other in (before | after) - {path})
    }
    changed = {path for path in leaves if value_at(old, path) != value_at(new, path)}
    turned = {
        path
        for path in before & after
        if isinstance(value_at(old, path), dict) != isinstance(value_at(new, path), dict)
    }
    assert taken == (after - before) | changed | turned
    assert gone == before - after
