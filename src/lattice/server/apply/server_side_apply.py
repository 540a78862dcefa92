"""Who owns which field after a write? Server-side apply and the bookkeeping of metadata.managedFields, as Kubernetes does them.

Everything takes and returns JSON-shaped values. Inputs are never changed; results share structure with them, so treat both as frozen.
"""

from collections.abc import Iterable, Mapping, Sequence
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
ManagedFieldsEntry = dict[str, Any]  # one element of metadata.managedFields

_MAX_UPDATE_ENTRIES = 10  # as Kubernetes: beyond it the oldest are folded into one
_FOLDED_MANAGER = "ancient-changes"
_UNTRACKED_MANAGER = "before-first-apply"  # owns what was there before anybody kept books


@dataclass(frozen=True, slots=True)
class FieldManager:
    """Who writes: field manager (without one, the user agent up to its first '/'), how, in which version, through which subresource."""

    name: str
    operation: Literal["Apply", "Update"]
    api_version: str
    subresource: str = ""
    force: bool = False  # take fields that others own, where an apply changes them

    def entry(self, fields: FieldSet, now: str) -> ManagedFieldsEntry:
        out = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version, "time": now}
        books = {**out, "fieldsType": "FieldsV1", "fieldsV1": fields}
        return {**books, "subresource": self.subresource} if self.subresource else books

    def owns_entry(self, entry: ManagedFieldsEntry) -> bool:
        """Is this entry ours? An applier stays itself across API versions."""
        return (
            entry.get("manager", "") == self.name
            and entry["operation"] == self.operation
            and entry.get("subresource", "") == self.subresource
            and (self.operation == "Apply" or entry["apiVersion"] == self.api_version)
        )


def track_update(
    live: Object | None, new: Object, types: TypeNode, manager: FieldManager, now: str
) -> list[ManagedFieldsEntry]:
    """managedFields after a create, update or patch made `new` of `live` (None: a create).

    The writer owns what it added or changed, nobody owns what is gone. Books that the client wrote itself count, but not through a
    subresource. An existing object without books stays without: its first apply opens them. Nothing changed: the very list that was there.
    """
    books = _starting_entries(live, new, manager)
    if live is not None and not books:
        return []
    taken, gone = (
        (fieldset.all_fields(new, types), {}) if live is None else fieldset.changed_fields(live, new, types)
    )
    if not taken and not gone:
        return books
    mine: FieldSet = {}
    mine_before: ManagedFieldsEntry | None = None
    out: list[ManagedFieldsEntry] = []
    for entry in books:
        left = difference(difference(entry["fieldsV1"], taken), gone)
        if manager.owns_entry(entry):
            mine_before, mine = entry, left
        elif left:
            out.append(_with_fields(entry, left))
    if taken:
        out.append(manager.entry(fieldset.format_fields(union(mine, taken)), now))
    elif mine and mine_before:
        out.append(_with_fields(mine_before, mine))
    return _sort_and_fold(out)


def _starting_entries(live: Object | None, new: Object, manager: FieldManager) -> list[ManagedFieldsEntry]:
    """The entries to start from: the live ones, unless the client sent readable ones of its own. `[]` and `[{}]` wipe them."""
    kept = managed_fields_of(live)
    given = (new.get("metadata") or {}).get("managedFields")
    if given is None or given is kept or given == kept or manager.subresource:
        return kept
    if given in ([], [{}]):
        return []
    try:
        return [_read_entry(entry) for entry in given]
    except (ValueError, TypeError):  # as Kubernetes: unreadable books are not worth losing the real ones for
        return kept


def managed_fields_of(obj: Object | None) -> list[ManagedFieldsEntry]:
    """The managedFields of an object, [] without."""
    return ((obj or {}).get("metadata") or {}).get("managedFields") or []


def _read_entry(entry: Any) -> ManagedFieldsEntry:
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
    """Appliers first, then by time; too many updaters fold, oldest first."""
    entries.sort(key=_sort_key)
    updates = [entry for entry in entries if entry["operation"] == "Update"]
    if len(updates) <= _MAX_UPDATE_ENTRIES:
        return entries
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
    """The object after `manager` declared `applied`, its full intent, over `live` (None: a create), managedFields included.

    Malformed if `applied` does not have the shape of its type, Conflict if it changes what others own and may not force. The server's own
    metadata in `applied` counts on create only; checking name, uid and resourceVersion is the caller's, and so is validating the result.
    """
    _validate_types(applied, types)
    books = managed_fields_of(live)
    if live is not None and not books:
        books = [
            FieldManager(_UNTRACKED_MANAGER, "Update", manager.api_version, manager.subresource).entry(
                fieldset.all_fields(live, types), now
            )
        ]
    before = next((entry for entry in books if manager.owns_entry(entry)), None)
    others = [entry for entry in books if entry is not before and entry.get("fieldsV1")]
    mine = fieldset.applied_fields(applied, types)
    base = live if live is not None else _server_owned_base(applied)
    merged: Object = _merge(base, applied, types)
    if before is not None:
        merged = _prune(merged, before["fieldsV1"], _still_owned(mine, others), types)
    taken, gone = fieldset.changed_fields(live or {}, merged, types)
    if not manager.force:
        _reject_conflicts(others, taken)
    rest = [
        _with_fields(entry, left)
        for entry in others
        if (left := difference(difference(entry["fieldsV1"], taken), gone))
    ]
    if (
        before is not None
        and merged == live
        and before["fieldsV1"] == mine
        and before["apiVersion"] == manager.api_version
    ):
        return merged
    if mine:
        rest.append(manager.entry(fieldset.format_fields(mine), now))
    return _with_managed_fields(merged, _sort_and_fold(rest))


def _server_owned_base(applied: Object) -> Object:
    """What a create takes over although nobody owns it."""
    metadata = applied.get("metadata") or {}
    own = {
        name: metadata[name] for name in fieldset.SERVER_OWNED if name in metadata and name != "managedFields"
    }
    return {**{name: applied[name] for name in ("apiVersion", "kind") if name in applied}, "metadata": own}


def _with_managed_fields(obj: Object, entries: list[ManagedFieldsEntry]) -> Object:
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    return {**obj, "metadata": {**metadata, "managedFields": entries} if entries else metadata}


def _still_owned(mine: FieldSet, others: Iterable[ManagedFieldsEntry]) -> FieldSet:
    """All that is still wanted by somebody; metadata itself always is."""
    out = union(mine, {"f:metadata": {}})
    for entry in others:
        out = union(out, entry["fieldsV1"])
    return out


def _merge(live: Any, applied: Any, node: TypeNode) -> Any:
    """`applied` over `live`, part by part where the type splits, whole where it does not."""
    if node.shape is Shape.MAP and type(live) is dict:
        return (
            _merge_maps(live, applied, node)
            if type(applied) is dict
            else live
            if applied is None and not node.is_untyped
            else applied
        )
    if node.shape in (Shape.LIST_MAP, Shape.SET) and type(live) is list:
        return (
            _merge_lists(live, applied, node)
            if type(applied) is list
            else live
            if applied is None
            else applied
        )
    return applied


def _merge_maps(live: Object, applied: Object, node: TypeNode) -> Object:
    out = dict(live)
    for name, value in applied.items():
        child = node.fields.get(name) or node.undeclared or UNTYPED
        if child is not IGNORED:
            out[name] = _merge(live[name], value, child) if name in live else value
    return out


def _merge_lists(live: list[Any], applied: list[Any], node: TypeNode) -> list[Any]:
    """Items in the order applied; those of others stay behind the item they followed."""
    ours = [(label_of(item, node), item) for item in applied]
    place = {label: i for i, (label, _) in enumerate(ours)}
    theirs = by_label(live, node)
    out: list[Any] = []
    done = 0

    def give_until(end: int) -> None:
        out.extend(
            _merge(theirs[label], item, node.item) if label in theirs and node.item is not node else item
            for label, item in ours[done:end]
        )

    for label, item in theirs.items():
        if label not in place:
            out.append(item)
        elif place[label] >= done:
            give_until(place[label] + 1)
            done = place[label] + 1
    give_until(len(ours))
    return out


def _prune(value: Any, last: FieldSet, kept: FieldSet, node: TypeNode) -> Any:
    """`value` without what was declared last time and is wanted by nobody now; an item goes whole, keys and all."""
    if node.shape is Shape.MAP and type(value) is dict:
        drop, inner = _removed_labels({"f:" + name: name in node.fields for name in value}, last, kept)
        left = {name: held for name, held in value.items() if "f:" + name not in drop}
        for label in inner:
            name = label[2:]
            left[name] = _prune(
                left[name],
                last[label],
                kept.get(label, {}),
                node.fields.get(name) or node.undeclared or UNTYPED,
            )
        return left
    if node.shape in (Shape.LIST_MAP, Shape.SET) and type(value) is list:
        return _prune_list(value, last, kept, node)
    return value


def _prune_list(value: list[Any], last: FieldSet, kept: FieldSet, node: TypeNode) -> list[Any]:
    items = by_label(value, node)
    drop, inner = _removed_labels(dict.fromkeys(items, False), last, kept)
    keys = {"f:" + name for name, _ in node.keys}
    for label in inner:
        below = {
            name: sub for name, sub in last[label].items() if name not in keys
        }  # an item that stays keeps its name
        items[label] = _prune(items[label], below, kept.get(label, {}), node.item)
    return [item for label, item in items.items() if label not in drop]


def _removed_labels(
    declared: Mapping[str, bool], last: FieldSet, kept: FieldSet
) -> tuple[set[str], list[str]]:
    """(labels that go, labels to look into): a declared field stays while anything beneath is wanted, all else only for itself."""
    drop: set[str] = set()
    inner: list[str] = []
    for label in last.keys() & declared.keys():
        wanted = kept.get(label)
        unwanted = (
            wanted is None
            if declared[label]
            else fieldset.is_member(last[label]) and (wanted is None or not fieldset.is_member(wanted))
        )
        if unwanted:
            drop.add(label)
        elif last[label]:
            inner.append(label)
    return drop, inner


def _reject_conflicts(others: Sequence[ManagedFieldsEntry], taken: FieldSet) -> None:
    found = [
        (_manager_description(entry), path)
        for entry in others
        for path in fieldset.iter_paths(fieldset.intersection(entry["fieldsV1"], taken))
    ]
    if not found:
        return
    found.sort()
    causes = [Cause(format_path(path), f"conflict with {who}", "FieldManagerConflict") for who, path in found]
    raise Conflict(_conflict_message(found), causes=causes)


def _manager_description(entry: ManagedFieldsEntry) -> str:
    who = fieldset.json_text(entry.get("manager", ""))
    if entry.get("subresource"):
        who += f" with subresource {fieldset.json_text(entry['subresource'])}"
    return f"{who} using {entry['apiVersion']}" if entry["operation"] == "Update" else who


def _conflict_message(found: Sequence[tuple[str, Path]]) -> str:
    if len(found) == 1:
        return f"Apply failed with 1 conflict: conflict with {found[0][0]}: {format_path(found[0][1])}"
    lines: list[str] = []
    for who in dict.fromkeys(who for who, _ in found):
        lines += [
            f"conflicts with {who}:",
            *(f"- {format_path(path)}" for other, path in found if other == who),
        ]
    return f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)


def _validate_types(applied: Object, types: TypeNode) -> None:
    """Apply never prunes: a field outside the schema has no merge rule, so the whole request is refused."""
    wrong: list[Cause] = []
    _find_mistyped(applied, types, (), wrong)
    if wrong:
        raise Malformed(f"failed to create typed patch object: {'; '.join(map(str, wrong))}", causes=wrong)


def _find_mistyped(value: Any, node: TypeNode, path: Path, wrong: list[Cause]) -> None:
    if (
        node.shape in (Shape.LEAF, Shape.IGNORED)
        or value is None
        or (node.is_untyped and type(value) is not dict)
    ):
        return
    if node.shape is not Shape.MAP and type(value) is list:
        _find_mistyped_items(value, node, path, wrong)
        return
    if node.shape is not Shape.MAP or type(value) is not dict:
        expected = "map" if node.shape is Shape.MAP else "list"
        wrong.append(Cause(format_path(path), f"expected {expected}, got {fieldset.json_text(value)[:80]}"))
        return
    for name, held in value.items():
        child = node.fields.get(name) or node.undeclared
        if child is None:
            wrong.append(
                Cause(
                    format_path((*path, "f:" + name)),
                    "field not declared in schema",
                    "FieldValueNotSupported",
                )
            )
        else:
            _find_mistyped(held, child, (*path, "f:" + name), wrong)


def _find_mistyped_items(items: list[Any], node: TypeNode, path: Path, wrong: list[Cause]) -> None:
    seen: set[str] = set()
    for i, item in enumerate(items):
        lacking = [
            name
            for name, default in node.keys
            if default is None and (type(item) is not dict or item.get(name) is None)
        ]
        if lacking:
            wrong.append(
                Cause(
                    format_path((*path, f"i:{i}")),
                    f"element must have the key field(s) {', '.join(lacking)}",
                    "FieldValueRequired",
                )
            )
            continue
        label = label_of(item, node)
        if label in seen:
            wrong.append(
                Cause(
                    format_path(path),
                    f"duplicate entries for key {format_path((label,))}",
                    "FieldValueDuplicate",
                )
            )
        seen.add(label)
        if node.shape is Shape.LIST_MAP:
            _find_mistyped(item, node.item, (*path, label), wrong)
