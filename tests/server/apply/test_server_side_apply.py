"""Server-side apply and managedFields behave as on a Kubernetes API server."""

import copy
from typing import Any

import pytest
from build.server_side_apply import (
    LATER,
    NOW,
    TYPES,
    VERSION,
    apply,
    owners,
    thing,
    update,
    updater,
    with_spec,
)

from lattice.errors import Cause, Conflict, Malformed
from lattice.server.apply import managed_fields as fieldset
from lattice.server.apply.server_side_apply import (
    FieldManager,
    ManagedFieldsEntry,
    managed_fields_of,
    server_side_apply,
    track_update,
)


def test_apply_create_records_managed_fields() -> None:
    out = apply(None, thing({"image": "x"}, labels={"a": "b"}))
    assert out["spec"] == {"image": "x"}
    assert out["metadata"]["name"] == "a"
    assert managed_fields_of(out) == [
        {
            "manager": "ann",
            "operation": "Apply",
            "apiVersion": VERSION,
            "time": NOW,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:image": {}}},
        }
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            {"image": "a", "class": "c"},
            {"image": "b"},
            {"image": "b"},
            id="a field no longer applied vanishes",
        ),
        pytest.param(
            {"image": "a", "replicas": {"min": 1}},
            {"image": "a"},
            {"image": "a"},
            id="a map whose fields all go goes too",
        ),
        pytest.param(
            {"env": {"A": "1", "B": "2"}},
            {"env": {"B": "2"}},
            {"env": {"B": "2"}},
            id="a key of a map goes alone",
        ),
        pytest.param(
            {"zones": ["a", "b"]},
            {"zones": ["b", "c"]},
            {"zones": ["b", "c"]},
            id="values of a set come and go",
        ),
        pytest.param(
            {"items": [{"name": "x", "value": "1"}, {"name": "y"}]},
            {"items": [{"name": "y"}]},
            {"items": [{"name": "y"}]},
            id="an item goes whole",
        ),
        pytest.param(
            {"items": [{"name": "x", "value": "1"}]},
            {"items": [{"name": "x"}]},
            {"items": [{"name": "x"}]},
            id="a field of an item goes alone",
        ),
        pytest.param({"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}, id="an atomic list is replaced"),
        pytest.param(
            {"free": {"a": {"b": 1, "c": 2}}},
            {"free": {"a": {"c": 3}, "d": [1]}},
            {"free": {"a": {"c": 3}, "d": [1]}},
            id="free-form maps merge",
        ),
        pytest.param(
            {"containers": {"m": {"value": "1"}, "n": {"value": "2"}}},
            {"containers": {"m": {"value": "1"}}},
            {"containers": {"m": {"value": "1"}}},
            id="a free key goes with its map",
        ),
    ],
)
def test_dropped_fields_are_pruned(
    first: dict[str, Any], second: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert apply(apply(None, thing(first)), thing(second))["spec"] == expected


def test_fields_of_other_managers_survive_pruning() -> None:
    live = apply(
        apply(None, thing({"image": "a", "class": "c"})), thing({"class": "c", "env": {"A": "1"}}), "bob"
    )
    out = apply(live, thing({"image": "a"}))
    assert out["spec"] == {"image": "a", "class": "c", "env": {"A": "1"}}
    assert owners(out) == {"ann": [".spec.image"], "bob": [".spec.class", ".spec.env.A"]}


def test_default_is_pruned_with_its_unowned_map() -> None:
    live = apply(None, thing({"image": "a", "replicas": {"min": 1}}))
    defaulted = with_spec(live, replicas={"min": 1, "max": 9})
    assert apply(defaulted, thing({"image": "a"}))["spec"] == {"image": "a"}


def test_unowned_field_stays_while_its_map_is_owned() -> None:
    live = apply(None, thing({"replicas": {"min": 1}, "image": "a"}))
    defaulted = with_spec(live, **{"class": "default"})
    assert apply(defaulted, thing({"image": "a"}))["spec"] == {"image": "a", "class": "default"}


def test_list_item_is_pruned_despite_edited_field() -> None:
    live = apply(None, thing({"items": [{"name": "x", "value": "1"}, {"name": "y"}]}))
    edited = update(live, with_spec(live, items=[{"name": "x", "value": "1", "note": "hi"}, {"name": "y"}]))
    out = apply(edited, thing({"items": [{"name": "y"}]}))
    assert out["spec"]["items"] == [{"name": "y"}]
    assert list(owners(out)) == ["ann"]


def test_an_item_shared_with_another_applier_stays() -> None:
    live = apply(
        apply(None, thing({"items": [{"name": "x", "value": "1"}]})),
        thing({"items": [{"name": "x", "note": "n"}]}),
        "bob",
    )
    assert apply(live, thing({"image": "i"}))["spec"] == {"items": [{"name": "x", "note": "n"}], "image": "i"}


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        pytest.param(["a", "b", "c"], ["c", "a"], ["c", "a", "b"], id="the order applied wins"),
        pytest.param(
            ["x", "a", "y"], ["b", "a"], ["x", "b", "a", "y"], id="items of others keep their neighbours"
        ),
        pytest.param([], ["a"], ["a"], id="an empty list takes all"),
    ],
)
def test_order_of_merged_lists(live: list[str], applied: list[str], merged: list[str]) -> None:
    made = update(None, thing({"zones": live, "items": [{"name": name} for name in live]}))
    out = apply(made, thing({"zones": applied, "items": [{"name": name} for name in applied]}))
    assert out["spec"] == {"zones": merged, "items": [{"name": name} for name in merged]}


def test_equal_values_share_ownership() -> None:
    live = apply(apply(None, thing({"image": "a"})), thing({"image": "a"}), "bob")
    assert owners(live) == {"ann": [".spec.image"], "bob": [".spec.image"]}
    out = apply(live, thing())
    assert out["spec"] == {"image": "a"}
    assert owners(out) == {"bob": [".spec.image"]}


def test_a_conflict_names_the_field_and_the_manager() -> None:
    live = update(None, thing({"replicas": {"min": 1}}), "kubectl-edit")
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"replicas": {"min": 2}}))
    who = 'conflict with "kubectl-edit" using lattice.dev/v1alpha1'
    assert str(caught.value) == f"Apply failed with 1 conflict: {who}: .spec.replicas.min"
    assert caught.value.causes == (Cause(".spec.replicas.min", who, "FieldManagerConflict"),)


def test_many_conflicts_are_listed_by_manager() -> None:
    live = apply(
        apply(None, thing({"image": "a", "class": "c"}), "bob"),
        thing({"items": [{"name": "x", "value": "1"}]}),
        "cat",
    )
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"image": "b", "class": "d", "items": [{"name": "x", "value": "2"}]}))
    assert str(caught.value) == (
        'Apply failed with 3 conflicts: conflicts with "bob":\n- .spec.class\n- .spec.image\n'
        'conflicts with "cat":\n- .spec.items[name="x"].value'
    )
    assert [cause.message for cause in caught.value.causes] == ['conflict with "bob"'] * 2 + [
        'conflict with "cat"'
    ]


def test_a_conflict_with_a_subresource_says_so() -> None:
    live = update(None, thing({"image": "a"}))
    scaled = update(live, with_spec(live, replicas={"min": 3}), "kubectl", subresource="scale")
    with pytest.raises(
        Conflict, match=r'conflict with "kubectl" with subresource "scale" using lattice\.dev/v1alpha1'
    ):
        apply(scaled, thing({"replicas": {"min": 2}}))


def test_force_takes_ownership_away() -> None:
    live = apply(None, thing({"image": "a", "class": "c"}), "bob")
    out = apply(live, thing({"image": "b"}), force=True)
    assert out["spec"] == {"image": "b", "class": "c"}
    assert owners(out) == {"ann": [".spec.image"], "bob": [".spec.class"]}


def test_apply_and_update_are_separate_managers() -> None:
    live = update(None, thing({"image": "a"}), "ann")
    with pytest.raises(Conflict, match='"ann" using'):
        apply(live, thing({"image": "b"}), "ann")


def test_applier_keeps_entry_across_api_versions() -> None:
    live = apply(None, thing({"image": "a", "class": "c"}))
    newer = FieldManager("ann", "Apply", "lattice.dev/v1beta1")
    out = server_side_apply(live, thing({"image": "a"}), TYPES, newer, LATER)
    assert out["spec"] == {"image": "a"}
    assert [(entry["apiVersion"], entry["time"]) for entry in managed_fields_of(out)] == [
        ("lattice.dev/v1beta1", LATER)
    ]


def test_reapplying_same_manifest_keeps_timestamp() -> None:
    live = apply(None, thing({"image": "a", "zones": ["z"]}, labels={"a": "b"}))
    assert apply(live, thing({"image": "a", "zones": ["z"]}, labels={"a": "b"}), now=LATER) == live


def test_a_manager_that_owns_nothing_has_no_entry() -> None:
    out = apply(apply(None, thing({"image": "a"})), thing(), now=LATER)
    assert "managedFields" not in out["metadata"]
    assert "spec" not in out


def test_object_without_managed_fields_is_before_first_apply() -> None:
    live = thing({"image": "a", "class": "c"})
    with pytest.raises(Conflict, match='conflict with "before-first-apply" using'):
        apply(live, thing({"image": "b"}))
    assert owners(apply(live, thing({"image": "a"})))["before-first-apply"] == [
        ".spec",
        ".spec.class",
        ".spec.image",
    ]


def test_server_metadata_is_not_applied() -> None:
    live = update(None, thing({"image": "a"}, uid="u1", resourceVersion="7", creationTimestamp=NOW))
    out = apply(
        live, thing({"image": "a"}, uid="forged", creationTimestamp=None, generation=99, managedFields=None)
    )
    kept = {name: value for name, value in out["metadata"].items() if name != "managedFields"}
    assert kept == {"name": "a", "uid": "u1", "resourceVersion": "7", "creationTimestamp": NOW}


def test_null_map_keeps_entries_of_other_managers() -> None:
    live = update(None, thing({"env": {"A": "1"}, "zones": ["z"]}))
    assert apply(live, thing({"env": None, "zones": None}))["spec"] == {"env": {"A": "1"}, "zones": ["z"]}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"nope": 1}, ".spec.nope: field not declared in schema", id="an unknown field"),
        pytest.param(
            {"items": [{"name": "x", "odd": 1}]},
            '.spec.items[name="x"].odd: field not declared',
            id="an unknown field of an item",
        ),
        pytest.param({"zones": "a"}, '.spec.zones: expected list, got "a"', id="text for a list"),
        pytest.param({"replicas": 3}, ".spec.replicas: expected map, got 3", id="a number for a map"),
        pytest.param(
            {"items": [{"value": "x"}]},
            r".spec.items[0]: element must have the key field(s) name",
            id="an item without its key",
        ),
        pytest.param(
            {"zones": ["a", "a"]}, '.spec.zones: duplicate entries for key [="a"]', id="a value twice"
        ),
        pytest.param(
            {"items": [{"name": "x"}, {"name": "x"}]},
            '.spec.items: duplicate entries for key [name="x"]',
            id="an item twice",
        ),
    ],
)
def test_apply_rejects_what_the_schema_does_not_allow(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        apply(None, thing(spec))
    assert message in str(caught.value)


def test_create_owns_all_its_fields() -> None:
    out = update(None, thing({"image": "a", "replicas": {"min": 1}}, labels={"a": "b"}))
    assert owners(out) == {
        "edit": [
            ".metadata.labels",
            ".metadata.labels.a",
            ".spec",
            ".spec.image",
            ".spec.replicas",
            ".spec.replicas.min",
        ],
    }


def test_update_takes_ownership_of_changed_fields() -> None:
    live = apply(None, thing({"image": "a", "class": "c", "env": {"A": "1", "B": "2"}}))
    out = update(live, with_spec(live, image="b", env={"B": "2", "C": "3"}), now=LATER)
    assert owners(out) == {"ann": [".spec.class", ".spec.env.B"], "edit": [".spec.env.C", ".spec.image"]}
    assert [entry["time"] for entry in managed_fields_of(out)] == [NOW, LATER]


def test_manager_without_fields_is_removed() -> None:
    live = apply(None, thing({"image": "a"}))
    assert list(owners(update(live, with_spec(live, image="b")))) == ["edit"]


def test_each_subresource_keeps_its_own_entry() -> None:
    live = update(None, thing({"image": "a"}))
    out = update(live, {**live, "status": {"phase": "Up"}}, subresource="status")
    assert [(entry["manager"], entry.get("subresource")) for entry in managed_fields_of(out)] == [
        ("edit", None),
        ("edit", "status"),
    ]


def test_removal_takes_no_ownership_and_keeps_time() -> None:
    live = update(None, thing({"image": "a", "class": "c"}))
    out = update(live, thing({"image": "a"}), now=LATER)
    assert owners(out) == {"edit": [".spec", ".spec.image"]}
    assert managed_fields_of(out)[0]["time"] == NOW


def test_no_change_returns_identical_managed_fields() -> None:
    live = update(None, thing({"image": "a"}))
    assert track_update(live, copy.deepcopy(live), TYPES, updater("other"), LATER) is managed_fields_of(live)
    assert track_update(live, thing({"image": "a"}), TYPES, updater("other"), LATER) is managed_fields_of(
        live
    )


def test_update_without_managed_fields_adds_none() -> None:
    assert track_update(thing({"image": "a"}), thing({"image": "b"}), TYPES, updater(), NOW) == []


def entry(**over: Any) -> ManagedFieldsEntry:
    books = {
        "manager": "m",
        "operation": "Apply",
        "apiVersion": VERSION,
        "time": NOW,
        "fieldsType": "FieldsV1",
    }
    return {**books, "fieldsV1": {"f:spec": {"f:image": {}}}, **over}


@pytest.mark.parametrize(
    ("given_books", "managers"),
    [
        pytest.param([entry(manager="mine")], ["mine"], id="books the client wrote replace the old"),
        pytest.param([], [], id="an empty list wipes"),
        pytest.param([{}], [], id="a list of one empty entry wipes"),
        pytest.param(None, ["edit"], id="no books keep the old"),
        pytest.param("junk", ["edit"], id="text keeps the old"),
        pytest.param(7, ["edit"], id="a number keeps the old"),
        pytest.param([entry(operation="Steal")], ["edit"], id="an unknown operation keeps the old"),
        pytest.param([entry(fieldsType="V9")], ["edit"], id="an unknown fields type keeps the old"),
        pytest.param([entry(fieldsV1={"q:x": {}})], ["edit"], id="unreadable fields keep the old"),
        pytest.param([entry(apiVersion="")], ["edit"], id="a missing version keeps the old"),
        pytest.param([entry(time=3)], ["edit"], id="a time that is no text keeps the old"),
        pytest.param([entry(), "x"], ["edit"], id="one bad entry spoils all"),
    ],
)
def test_managed_fields_in_client_updates(given_books: Any, managers: list[str]) -> None:
    live = update(None, thing({"image": "a"}))
    new = {**live, "metadata": {**live["metadata"], "managedFields": given_books}}
    assert [each["manager"] for each in track_update(live, new, TYPES, updater("other"), LATER)] == managers


def test_managed_fields_sent_to_subresource_are_ignored() -> None:
    live = update(None, thing({"image": "a"}))
    new = {**live, "metadata": {**live["metadata"], "managedFields": [entry(manager="mine")]}}
    assert track_update(live, new, TYPES, updater("other", "status"), LATER) == managed_fields_of(live)


def test_client_side_apply_fields_migrate_to_applier() -> None:
    made = update(None, thing({"image": "a", "class": "c"}), "kubectl-client-side-apply")
    moved = [{**managed_fields_of(made)[0], "manager": "kubectl", "operation": "Apply"}]
    live = update(made, {**made, "metadata": {**made["metadata"], "managedFields": moved}}, "kubectl")
    assert apply(live, thing({"image": "b"}), "kubectl")["spec"] == {"image": "b"}


def test_the_oldest_updaters_fold_into_one() -> None:
    live = update(None, thing({"env": {}}), "m00", now="2026-01-01T00:00:00Z")
    for i in range(1, 15):
        env = {**live["spec"]["env"], f"K{i:02}": "x"}
        live = update(live, with_spec(live, env=env), f"m{i:02}", now=f"2026-01-01T00:00:{i:02}Z")
    assert len(managed_fields_of(live)) == 10
    assert managed_fields_of(live)[0]["manager"] == "ancient-changes"
    union: fieldset.FieldSet = {}
    for each in managed_fields_of(live):
        union = fieldset.union(union, each["fieldsV1"])
    assert union == fieldset.all_fields(live, TYPES)
