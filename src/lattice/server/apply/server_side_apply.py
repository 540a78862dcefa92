"""Server-side apply and the tracking of field ownership in `metadata.managedFields`, as in Kubernetes.

Functions take and return JSON values. No public function changes its inputs; results share structure with
inputs, so treat both as frozen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lattice.errors import Cause, Conflict, Malformed
from lattice.server.apply import managed_fields as fieldset
from lattice.server.apply.managed_fields import (
    IGNORED,
    UNTYPED,
    FieldSet,
    Path,
    Shape,
    TypeNode,
    by_label,
    difference,
    format_path,
    label_of,
    union,
)

Object = dict[str, Any]
# One element of metadata.managedFields.
ManagedFieldsEntry = dict[str, Any]

# As in Kubernetes: beyond this count the oldest entries of updates are folded into one entry.
_MAX_UPDATE_ENTRIES = 10
_FOLDED_MANAGER = "ancient-changes"
# The field managers of the two command lines; kubectl's other commands are `kubectl-edit` and so on.
LATTICE_MANAGER = "lattice"
KUBECTL_MANAGER = "kubectl"
# Owns the fields that existed before the first tracked write.
_UNTRACKED_MANAGER = "before-first-apply"


@dataclass(frozen=True, slots=True)
class FieldManager:
    """The writer of a request: manager name, operation, API version and subresource.

    Without a field manager, the name is the user agent up to the first '/'.
    """

    name: str
    operation: Literal["Apply", "Update"]
    api_version: str
    subresource: str = ""
    # With `force`, an apply takes over the fields of other managers that it changes.
    force: bool = False

    def entry(self, fields: FieldSet, now: str) -> ManagedFieldsEntry:
        """The managedFields entry of this manager with the given field set."""
        entry = {
            "manager": self.name,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry

    def takes_over(self, entry: ManagedFieldsEntry) -> bool:
        """Whether an apply of this manager takes over the fields of the entry without --force-conflicts.

        `lattice` and `kubectl` are two tools of the same people: what one tool wrote, the other may change.
        Controllers and GitOps programs have other names, and conflict.
        """
        owner = str(entry.get("manager", ""))
        if self.name == LATTICE_MANAGER:
            return owner == KUBECTL_MANAGER or owner.startswith(f"{KUBECTL_MANAGER}-")
        return self.name == KUBECTL_MANAGER and owner == LATTICE_MANAGER

    def owns_entry(self, entry: ManagedFieldsEntry) -> bool:
        """Whether the entry belongs to this manager. An applier stays the same manager across API
        versions."""
        return (
            entry.get("manager", "") == self.name
            and entry["operation"] == self.operation
            and entry.get("subresource", "") == self.subresource
            and (self.operation == "Apply" or entry["apiVersion"] == self.api_version)
        )


def track_update(
    live: Object | None, new: Object, types: TypeNode, manager: FieldManager, now: str
) -> list[ManagedFieldsEntry]:
    """managedFields after a create, update or patch turned `live` (None for a create) into `new`.

    The writer owns added and changed fields; removed fields lose their owners. Entries that the client sends
    replace the stored entries, except in a write to a subresource. An existing object without entries stays
    without entries until its first apply. If the write changes no field, the starting entries are returned as
    they are.
    """
    entries = _starting_entries(live, new, manager)
    if live is not None and not entries:
        return []
    removed: FieldSet = {}
    if live is None:
        changed = fieldset.all_fields(new, types)
    else:
        changed, removed = fieldset.changed_fields(live, new, types)
    if not changed and not removed:
        return entries
    own_fields: FieldSet = {}
    own_entry: ManagedFieldsEntry | None = None
    out: list[ManagedFieldsEntry] = []
    for entry in entries:
        remaining = difference(difference(entry["fieldsV1"], changed), removed)
        if manager.owns_entry(entry):
            own_entry, own_fields = entry, remaining
        elif remaining:
            out.append(_with_fields(entry, remaining))
    if changed:
        out.append(manager.entry(fieldset.format_fields(union(own_fields, changed)), now))
    elif own_fields and own_entry:
        out.append(_with_fields(own_entry, own_fields))
    return _sort_and_fold(out)


def _starting_entries(live: Object | None, new: Object, manager: FieldManager) -> list[ManagedFieldsEntry]:
    """The entries to start from: the entries of the live object, unless the client sent readable entries.
    `[]` and `[{}]` delete the entries."""
    stored = managed_fields_of(live)
    sent = (new.get("metadata") or {}).get("managedFields")
    if sent is None or sent is stored or sent == stored or manager.subresource:
        return stored
    if sent in ([], [{}]):
        return []
    try:
        return [_read_entry(entry) for entry in sent]
    except (ValueError, TypeError):
        # As in Kubernetes: unreadable entries of a client do not replace the stored entries.
        return stored


def managed_fields_of(obj: Object | None) -> list[ManagedFieldsEntry]:
    """The managedFields of an object; an empty list without."""
    return ((obj or {}).get("metadata") or {}).get("managedFields") or []


def _read_entry(entry: Any) -> ManagedFieldsEntry:
    """A validated managedFields entry of a client; `ValueError` if malformed."""
    if (
        type(entry) is not dict
        or entry.get("operation") not in ("Apply", "Update")
        or entry.get("fieldsType") != "FieldsV1"
    ):
        raise ValueError("a managedFields entry needs operation Apply or Update and fieldsType FieldsV1")
    texts = [entry.get(name, "") for name in ("manager", "apiVersion", "time", "subresource")]
    if not all(type(text) is str for text in texts) or not entry.get("apiVersion"):
        raise ValueError(
            "a managedFields entry needs an apiVersion, and text for manager, time and subresource"
        )
    return {**entry, "fieldsV1": fieldset.parse_fields(entry.get("fieldsV1", {}))}


def _with_fields(entry: ManagedFieldsEntry, fields: FieldSet) -> ManagedFieldsEntry:
    return entry if entry["fieldsV1"] is fields else {**entry, "fieldsV1": fields}


def _sort_key(entry: ManagedFieldsEntry) -> tuple[str, ...]:
    return (
        entry["operation"],
        entry.get("time", ""),
        entry.get("manager", ""),
        entry["apiVersion"],
        entry.get("subresource", ""),
    )


def _sort_and_fold(entries: list[ManagedFieldsEntry]) -> list[ManagedFieldsEntry]:
    """Sort entries, appliers first, then by time; fold the oldest updates beyond `_MAX_UPDATE_ENTRIES` into
    one entry."""
    entries.sort(key=_sort_key)
    updates = [entry for entry in entries if entry["operation"] == "Update"]
    if len(updates) <= _MAX_UPDATE_ENTRIES:
        return entries
    # Entries fold only within one API version.
    for version in dict.fromkeys(entry["apiVersion"] for entry in updates):
        oldest = [entry for entry in updates if entry["apiVersion"] == version][
            : len(updates) - _MAX_UPDATE_ENTRIES + 1
        ]
        if len(oldest) > 1:
            fields: FieldSet = {}
            for entry in oldest:
                fields = union(fields, entry["fieldsV1"])
            folded = FieldManager(_FOLDED_MANAGER, "Update", version).entry(
                fields, oldest[-1].get("time", "")
            )
            return sorted([folded, *(entry for entry in entries if entry not in oldest)], key=_sort_key)
    return entries


def server_side_apply(
    live: Object | None, applied: Object, types: TypeNode, manager: FieldManager, now: str
) -> Object:
    """The object after `manager` applied `applied`, the manager's complete intent, to `live` (None for a
    create).

    `Malformed` if `applied` does not match its type, `Conflict` if the apply, without force, changes fields
    that other managers own. Server-owned metadata in `applied` counts on create only. The caller checks name,
    uid and resourceVersion and validates the result.
    """
    _validate_types(applied, types)
    entries = managed_fields_of(live)
    if live is not None and not entries:
        entries = [
            FieldManager(_UNTRACKED_MANAGER, "Update", manager.api_version, manager.subresource).entry(
                fieldset.all_fields(live, types), now
            )
        ]
    previous_entry = next((entry for entry in entries if manager.owns_entry(entry)), None)
    other_entries = [entry for entry in entries if entry is not previous_entry and entry.get("fieldsV1")]
    own_fields = fieldset.applied_fields(applied, types)
    # A create takes server-owned metadata, such as the name, from the applied object.
    base = live if live is not None else _server_owned_base(applied)
    merged: Object = _merge(base, applied, types)
    if previous_entry is not None:
        # Fields that the manager no longer declares are removed unless another manager owns them.
        owned = union(own_fields, {"f:metadata": {}})
        for entry in other_entries:
            owned = union(owned, entry["fieldsV1"])
        merged = _prune(merged, previous_entry["fieldsV1"], owned, types)
    changed, removed = fieldset.changed_fields(live or {}, merged, types)
    if not manager.force:
        rivals = [entry for entry in other_entries if not manager.takes_over(entry)]
        _reject_conflicts(rivals, changed)
    updated_entries = [
        _with_fields(entry, remaining)
        for entry in other_entries
        if (remaining := difference(difference(entry["fieldsV1"], changed), removed))
    ]
    # A repeated apply without changes writes nothing, not even a new time.
    if (
        previous_entry is not None
        and merged == live
        and previous_entry["fieldsV1"] == own_fields
        and previous_entry["apiVersion"] == manager.api_version
    ):
        return merged
    if own_fields:
        updated_entries.append(manager.entry(fieldset.format_fields(own_fields), now))
    updated_entries = _sort_and_fold(updated_entries)
    metadata = {
        name: value for name, value in (merged.get("metadata") or {}).items() if name != "managedFields"
    }
    if updated_entries:
        metadata["managedFields"] = updated_entries
    return {**merged, "metadata": metadata}


def _server_owned_base(applied: Object) -> Object:
    """Server-owned fields that a create takes from the applied object although no manager owns them."""
    metadata = applied.get("metadata") or {}
    server_owned = {
        name: metadata[name]
        for name in fieldset.SERVER_OWNED_METADATA
        if name in metadata and name != "managedFields"
    }
    return {
        **{name: applied[name] for name in ("apiVersion", "kind") if name in applied},
        "metadata": server_owned,
    }


def _merge(live: Any, applied: Any, node: TypeNode) -> Any:
    """Merge `applied` over `live`, part by part where the type splits, else as one value."""
    if node.shape is Shape.MAP and type(live) is dict:
        if type(applied) is not dict:
            return live if applied is None and not node.is_untyped else applied
        merged = dict(live)
        for name, value in applied.items():
            child = node.fields.get(name) or node.undeclared or UNTYPED
            if child is not IGNORED:
                merged[name] = _merge(live[name], value, child) if name in live else value
        return merged
    if node.shape in (Shape.LIST_MAP, Shape.SET) and type(live) is list:
        if type(applied) is list:
            return _merge_lists(live, applied, node)
        return live if applied is None else applied
    return applied


def _merge_lists(live: list[Any], applied: list[Any], node: TypeNode) -> list[Any]:
    """Merge two lists. The applied items come in their applied order; every other live item stays behind the
    item that it followed."""
    applied_items = [(label_of(item, node), item) for item in applied]
    position = {label: i for i, (label, _) in enumerate(applied_items)}
    live_items = by_label(live, node)
    out: list[Any] = []
    merged_count = 0

    def append_until(end: int) -> None:
        out.extend(
            _merge(live_items[label], item, node.item)
            if label in live_items and node.item is not node
            else item
            for label, item in applied_items[merged_count:end]
        )

    for label, item in live_items.items():
        if label not in position:
            out.append(item)
        elif position[label] >= merged_count:
            append_until(position[label] + 1)
            merged_count = position[label] + 1
    append_until(len(applied_items))
    return out


def _prune(value: Any, previous: FieldSet, owned: FieldSet, node: TypeNode) -> Any:
    """`value` without fields that the previous apply declared and no manager owns now. An item is removed
    together with its key fields."""
    if node.shape is Shape.MAP and type(value) is dict:
        drop, inner = _removed_labels({"f:" + name: name in node.fields for name in value}, previous, owned)
        remaining = {name: field_value for name, field_value in value.items() if "f:" + name not in drop}
        for label in inner:
            name = label[2:]
            remaining[name] = _prune(
                remaining[name],
                previous[label],
                owned.get(label, {}),
                node.fields.get(name) or node.undeclared or UNTYPED,
            )
        return remaining
    if node.shape in (Shape.LIST_MAP, Shape.SET) and type(value) is list:
        items = by_label(value, node)
        drop, inner = _removed_labels(dict.fromkeys(items, False), previous, owned)
        keys = {"f:" + name for name, _ in node.keys}
        for label in inner:
            # An item that stays keeps its key fields.
            below = {name: sub for name, sub in previous[label].items() if name not in keys}
            items[label] = _prune(items[label], below, owned.get(label, {}), node.item)
        return [item for label, item in items.items() if label not in drop]
    return value


def _removed_labels(
    declared: Mapping[str, bool], previous: FieldSet, owned: FieldSet
) -> tuple[set[str], list[str]]:
    """(Labels to remove, labels to descend into). A declared field stays while a field beneath is owned; an
    undeclared key or item stays only while owned itself."""
    removed: set[str] = set()
    inner: list[str] = []
    for label in previous.keys() & declared.keys():
        owned_node = owned.get(label)
        if declared[label]:
            is_removed = owned_node is None
        else:
            is_removed = fieldset.is_member(previous[label]) and (
                owned_node is None or not fieldset.is_member(owned_node)
            )
        if is_removed:
            removed.add(label)
        elif previous[label]:
            inner.append(label)
    return removed, inner


def _reject_conflicts(other_entries: Sequence[ManagedFieldsEntry], changed: FieldSet) -> None:
    """Raise `Conflict` if the apply changes fields that other managers own; the message lists the fields by
    manager."""
    conflicts: list[tuple[str, Path]] = []
    for entry in other_entries:
        description = fieldset.json_text(entry.get("manager", ""))
        if entry.get("subresource"):
            description += f" with subresource {fieldset.json_text(entry['subresource'])}"
        if entry["operation"] == "Update":
            description += f" using {entry['apiVersion']}"
        paths = fieldset.iter_paths(fieldset.intersection(entry["fieldsV1"], changed))
        conflicts.extend((description, path) for path in paths)
    if not conflicts:
        return
    conflicts.sort()
    causes = [
        Cause(format_path(path), f"conflict with {manager}", "FieldManagerConflict")
        for manager, path in conflicts
    ]
    if len(causes) == 1:
        raise Conflict(f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}", causes=causes)
    lines: list[str] = []
    for manager in dict.fromkeys(manager for manager, _ in conflicts):
        lines.append(f"conflicts with {manager}:")
        lines += [f"- {format_path(path)}" for owner, path in conflicts if owner == manager]
    raise Conflict(f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines), causes=causes)


def _validate_types(applied: Object, types: TypeNode) -> None:
    """Raise `Malformed` if the object does not match its type. A field outside of the schema has no merge
    rule, so apply rejects the request."""
    problems: list[Cause] = []
    _find_mistyped(applied, types, (), problems)
    if problems:
        raise Malformed(
            f"failed to create typed patch object: {'; '.join(map(str, problems))}", causes=problems
        )


def _find_mistyped(value: Any, node: TypeNode, path: Path, problems: list[Cause]) -> None:
    if (
        node.shape in (Shape.LEAF, Shape.IGNORED)
        or value is None
        or (node.is_untyped and type(value) is not dict)
    ):
        return
    if node.shape is not Shape.MAP and type(value) is list:
        _find_mistyped_items(value, node, path, problems)
        return
    if node.shape is not Shape.MAP or type(value) is not dict:
        expected = "map" if node.shape is Shape.MAP else "list"
        problems.append(
            Cause(format_path(path), f"expected {expected}, got {fieldset.json_text(value)[:80]}")
        )
        return
    for name, field_value in value.items():
        child = node.fields.get(name) or node.undeclared
        if child is None:
            problems.append(
                Cause(
                    format_path((*path, "f:" + name)),
                    "field not declared in schema",
                    "FieldValueNotSupported",
                )
            )
        else:
            _find_mistyped(field_value, child, (*path, "f:" + name), problems)


def _find_mistyped_items(items: list[Any], node: TypeNode, path: Path, problems: list[Cause]) -> None:
    labels: set[str] = set()
    for i, item in enumerate(items):
        missing = [
            name
            for name, default in node.keys
            if default is None and (type(item) is not dict or item.get(name) is None)
        ]
        if missing:
            problems.append(
                Cause(
                    format_path((*path, f"i:{i}")),
                    f"element must have the key field(s) {', '.join(missing)}",
                    "FieldValueRequired",
                )
            )
            continue
        label = label_of(item, node)
        if label in labels:
            problems.append(
                Cause(
                    format_path(path),
                    f"duplicate entries for key {format_path((label,))}",
                    "FieldValueDuplicate",
                )
            )
        labels.add(label)
        if node.shape is Shape.LIST_MAP:
            _find_mistyped(item, node.item, (*path, label), problems)
