"""Which fields of an object does somebody own? Sets of field paths in Kubernetes' fieldsV1 form, and how a schema makes paths of values.

A set is the nested dict that goes over the wire: `{"f:spec": {".": {}, "f:image": {}}}`. Below the root, `{}` is a path in the set with
nothing beneath; a node with children is itself in the set only if it holds "."; the empty root is the empty set. Sets are values: no
function here changes one it was given, and results may share nodes with their inputs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import IntEnum
from typing import Any

FieldSet = dict[str, Any]
Path = tuple[str, ...]  # labels such as "f:spec", 'k:{"type":"Ready"}', 'v:"x"'

_PLAIN = re.compile(
    r"[ !#-\[\]-~]*"
).fullmatch  # printable ASCII without the quote and the backslash: JSON text is the text itself
_MAX_DEPTH = 200  # deeper sets are nobody's objects; the walk is recursive


class Shape(IntEnum):
    LEAF = 0  # scalars and whatever is atomic: one owner for the whole
    MAP = 1
    LIST_MAP = 2
    SET = 3
    IGNORED = 4  # the server's own: nobody owns it


class TypeNode:
    """How values at one place of a schema split into owned parts."""

    __slots__ = ("fields", "hidden", "is_untyped", "item", "keys", "shape", "undeclared")

    def __init__(
        self, shape: Shape, fields: dict[str, "TypeNode"] | None = None, undeclared: "TypeNode | None" = None
    ) -> None:
        self.shape = shape
        self.fields = fields if fields is not None else {}
        self.undeclared = undeclared  # what undeclared keys are; None: there may be none
        self.keys: tuple[tuple[str, Any], ...] = ()  # of a list-map: name and default
        self.item: TypeNode = self
        self.hidden = False  # never itself a member, as metadata
        self.is_untyped = False  # any value will do: maps split, all else is whole


LEAF = TypeNode(Shape.LEAF)
IGNORED = TypeNode(Shape.IGNORED)
UNTYPED = TypeNode(Shape.MAP)
UNTYPED.undeclared, UNTYPED.is_untyped = UNTYPED, True

SERVER_OWNED = (
    *(
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
    ),
    *("deletionGracePeriodSeconds", "selfLink", "managedFields"),
)
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_OWNER = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("apiVersion", "kind", "name", "uid")},
        **{name: {"type": "boolean"} for name in ("controller", "blockOwnerDeletion")},
    },
}
METADATA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "labels": _STRINGS,
        "annotations": _STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "ownerReferences": {
            "type": "array",
            "items": _OWNER,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
        },
    },
}


def compile_types(schema: Mapping[str, Any]) -> TypeNode:
    """The types of a whole object from its structural schema; compile once per schema and keep the result."""
    root = _compile(schema)
    if root.shape is not Shape.MAP or root.is_untyped:
        root = TypeNode(Shape.MAP, undeclared=UNTYPED)
    metadata = _compile(METADATA)
    metadata.hidden = True
    metadata.fields.update(dict.fromkeys(SERVER_OWNED, IGNORED))
    root.hidden = True
    root.fields.update(apiVersion=IGNORED, kind=IGNORED, metadata=metadata)
    return root


def _compile(schema: Mapping[str, Any]) -> TypeNode:
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") or kind not in ("object", "array", None):
        return LEAF
    if kind == "array":
        return _compile_list(schema)
    if schema.get("x-kubernetes-map-type") == "atomic":
        return LEAF
    rest = schema.get("additionalProperties")
    undeclared = _compile(rest) if isinstance(rest, Mapping) else None
    if schema.get("x-kubernetes-preserve-unknown-fields") or rest is True:
        undeclared = UNTYPED
    properties = schema.get("properties")
    if properties is None and (undeclared is UNTYPED or (kind is None and undeclared is None)):
        return UNTYPED
    return TypeNode(Shape.MAP, {name: _compile(sub) for name, sub in (properties or {}).items()}, undeclared)


def _compile_list(schema: Mapping[str, Any]) -> TypeNode:
    items = schema.get("items") or {}
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return TypeNode(Shape.SET)
        case "map":
            node = TypeNode(Shape.LIST_MAP)
            properties = items.get("properties", {})
            node.keys = tuple(
                (key, properties.get(key, {}).get("default"))
                for key in sorted(schema.get("x-kubernetes-list-map-keys", ()))
            )
            node.item = _compile(items)
            return node
    return LEAF


def json_text(value: Any) -> str:
    """Compact JSON with sorted keys: equal values give equal labels."""
    if isinstance(value, str):
        return f'"{value}"' if _PLAIN(value) else json.dumps(value, ensure_ascii=False)
    if value is True or value is False or value is None:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, Decimal):  # 1.0 is 1; the bound keeps 1e999999999 from being written out
        return (
            str(int(value))
            if abs(value.adjusted()) < 30 and value == value.to_integral_value()
            else str(value)
        )
    if isinstance(value, list):
        return f"[{','.join(map(json_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(k)}:{json_text(value[k])}" for k in sorted(value)) + "}"
    return str(value)


def label_of(item: Any, node: TypeNode) -> str:
    """How an item of a set or list-map is called in a path."""
    if node.shape is Shape.SET:
        return "v:" + json_text(item)
    found = item if type(item) is dict else {}
    keys = node.keys
    if len(keys) == 1:
        name, default = keys[0]
        return f'k:{{"{name}":{json_text(found.get(name, default))}}}'
    return "k:{" + ",".join(f'"{name}":{json_text(found.get(name, default))}' for name, default in keys) + "}"


def by_label(items: list[Any], node: TypeNode) -> dict[str, Any]:
    """Items of a set or list-map under their labels, in order; of duplicates, which validation refuses, the last counts."""
    return {label_of(item, node): item for item in items}


def is_member(node: FieldSet) -> bool:
    return not node or "." in node


def applied_fields(value: Any, types: TypeNode) -> FieldSet:
    """Every path that an applied object sets: leaves, items with their keys, free map keys; declared maps and lists only where empty."""
    return _field_set(value, types, False) if type(value) is dict else {}


def all_fields(value: Any, types: TypeNode) -> FieldSet:
    """Every path there is, maps and lists themselves included: what a writer owns who made it all."""
    return _field_set(value, types, True) if type(value) is dict else {}


def _field_set(value: Any, node: TypeNode, whole: bool) -> FieldSet:
    """The subtree of one non-leaf value; `whole` adds the declared maps and lists themselves."""
    out: FieldSet = {}
    if node.shape is Shape.MAP:
        if type(value) is not dict:
            return out
        fields, rest = node.fields, node.undeclared
        for name, held in value.items():
            child = fields.get(name)
            declared = child is not None
            child = child or rest or UNTYPED
            if child is LEAF or (child.shape is Shape.MAP and held.__class__ is not dict):
                out["f:" + name] = {}
            elif child is not IGNORED:
                _add_child(out, "f:" + name, _field_set(held, child, whole), child, whole or not declared)
    elif type(value) is list:
        if node.shape is Shape.SET:
            return {"v:" + json_text(item): {} for item in value}
        for item in value:
            _add_child(out, label_of(item, node), _field_set(item, node.item, whole), node.item, True)
    return out


def _add_child(out: FieldSet, label: str, below: FieldSet, child: TypeNode, member: bool) -> None:
    if below and member and not child.hidden:
        below["."] = {}
    if below or not child.hidden:  # an empty list counts too, or applying it twice would differ from once
        out[label] = below


def changed_fields(
    old: Mapping[str, Any], new: Mapping[str, Any], types: TypeNode
) -> tuple[FieldSet, FieldSet]:
    """(paths that are new or have a new value, paths that are gone) on the way from one object to another.

    Values compare as Python compares them: 1 and true count as equal, which no typed field can hold both of.
    """
    taken: FieldSet = {}
    gone: FieldSet = {}
    _compare_maps(old, new, types, (taken, gone))
    return taken, gone


def _compare_maps(
    old: Mapping[str, Any], new: Mapping[str, Any], node: TypeNode, out: tuple[FieldSet, FieldSet]
) -> None:
    fields, rest = node.fields, node.undeclared or UNTYPED
    for name, value in new.items():
        before = old.get(name, out)  # `out` stands for absent: no JSON value is this object
        if before is value or before == value:
            continue
        child = fields.get(name, rest)
        if child is not IGNORED:
            _compare("f:" + name, (before is not out, before), (True, value), child, out)
    for name, value in old.items():
        if name not in new and (child := fields.get(name, rest)) is not IGNORED:
            _compare("f:" + name, (True, value), (False, None), child, out)


_Maybe = tuple[bool, Any]  # is it there, and the value


def _compare(label: str, old: _Maybe, new: _Maybe, node: TypeNode, out: tuple[FieldSet, FieldSet]) -> None:
    """What changed under one label, where something did; `out` is (taken, gone) of the parent."""
    (was, before), (is_now, value) = old, new
    if not was:
        _record(out[0], label, value, node)
        return
    if not is_now:
        _record(out[1], label, before, node)
        return
    split = dict if node.shape is Shape.MAP else list if node.shape in (Shape.LIST_MAP, Shape.SET) else None
    if split is None or not (before or value):  # empty against null is a change of the thing itself
        out[0][label] = {}
        return
    fits_before, fits_now = before is None or type(before) is split, value is None or type(value) is split
    taken: FieldSet = {}
    gone: FieldSet = {}
    if fits_before and fits_now:
        _compare_children(before or split(), value or split(), node, (taken, gone))
    else:
        gone = _field_set(before, node, True)
        taken = {**_field_set(value, node, True), ".": {}}
    _attach(out[0], label, taken)
    _attach(out[1], label, gone)


def _compare_children(old: Any, new: Any, node: TypeNode, out: tuple[FieldSet, FieldSet]) -> None:
    if node.shape is Shape.MAP:
        _compare_maps(old, new, node, out)
        return
    before, after = by_label(old, node), by_label(new, node)
    child = LEAF if node.shape is Shape.SET else node.item
    for label, value in after.items():
        found = label in before
        if not found or (child is not LEAF and before[label] != value):
            _compare(label, (found, before.get(label)), (True, value), child, out)
    for label, value in before.items():
        if label not in after:
            _compare(label, (True, value), (False, None), child, out)


def _record(into: FieldSet, label: str, value: Any, node: TypeNode) -> None:
    _add_child(into, label, {} if node.shape is Shape.LEAF else _field_set(value, node, True), node, True)


def _attach(into: FieldSet, label: str, below: FieldSet) -> None:
    if below:
        into[label] = {} if below.keys() == {"."} else below


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    if not b or a is b:
        return a
    if not a:
        return b
    out = dict(a)
    for label, theirs in b.items():
        ours = out.get(label)
        out[label] = theirs if ours is None else _union_nodes(ours, theirs)
    return out


def _union_nodes(a: FieldSet, b: FieldSet) -> FieldSet:
    if not a and not b:
        return a
    both = union(a, b)
    return both if "." in both or (a and b) else {**both, ".": {}}


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """Paths of `a` that are not in `b`; `a` itself if none is."""
    return a if not a or not b else _minus(a, b) or {}


def _minus(a: FieldSet, b: FieldSet) -> FieldSet | None:
    """None when nothing is left; the labels alone decide here, callers settle the node itself."""
    out: FieldSet | None = None
    for label in a.keys() & b.keys():
        left = _minus_node(a[label], b[label]) if label != "." else None
        if left is a[label]:
            continue
        out = dict(a) if out is None else out
        if left is None:
            del out[label]
        else:
            out[label] = left
    return a if out is None else out or None


def _minus_node(a: FieldSet, b: FieldSet) -> FieldSet | None:
    if not a:  # a lone member
        return None if is_member(b) else a
    if not b:  # takes the node, leaves its children
        return {label: sub for label, sub in a.items() if label != "."} or None if "." in a else a
    left = _minus(a, b)
    return {} if left is not None and left.keys() == {"."} else left


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    out: FieldSet = {}
    for label in a.keys() & b.keys():
        ours, theirs = a[label], b[label]
        below = intersection(ours, theirs) if ours and theirs else {}
        member = is_member(ours) and is_member(theirs)
        if below and member:
            below["."] = {}
        if label != "." and (below or member):
            out[label] = below
    return out


def contains(fields: FieldSet, path: Path) -> bool:
    """Is this very path in the set?"""
    node: FieldSet | None = fields
    for label in path:
        node = node.get(label) if node is not None else None
    return node is not None and bool(path) and is_member(node)


def iter_paths(fields: FieldSet, start: Path = ()) -> Iterator[Path]:
    """Every path in the set, parents before children, siblings in text order."""
    if is_member(fields) and start:
        yield start
    for label in sorted(fields):
        if label != ".":
            yield from iter_paths(fields[label], (*start, label))


def parse_fields(fields: Any) -> FieldSet:
    """A set from foreign fieldsV1; ValueError if it is none."""
    out = _parse(fields, 0)
    out.pop(".", None)
    return out


def _parse(fields: Any, depth: int) -> FieldSet:
    if type(fields) is not dict or depth > _MAX_DEPTH:
        raise ValueError("fieldsV1 must be nested objects")
    out: FieldSet = {}
    for label, below in fields.items():
        node = _parse(below, depth + 1)
        out[_canonical(label)] = {} if node.keys() == {"."} else node
    return out


def _canonical(label: str) -> str:
    mark, body = label[:2], label[2:]
    if label == "." or mark == "f:":
        return label
    if mark == "i:" and body.lstrip("-").isdigit():
        return label
    if mark in ("k:", "v:"):
        value = json.loads(body, parse_float=Decimal, parse_constant=_refuse)
        if mark == "v:" or type(value) is dict:
            return mark + json_text(value)
    raise ValueError(f"fieldsV1 has no path element {label!r}")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def format_fields(fields: FieldSet) -> FieldSet:
    """The same set with its labels in text order, so that equal sets are equal bytes."""
    return {label: format_fields(fields[label]) for label in sorted(fields)} if fields else {}


def format_path(path: Path) -> str:
    """As Kubernetes prints it: `.spec.conditions[type="Ready"].status`, `.metadata.finalizers[="x"]`."""
    return "".join(map(_format_label, path))


def _format_label(label: str) -> str:
    mark, body = label[:2], label[2:]
    if mark == "f:":
        return f".{body}"
    if mark == "k:":
        return (
            "["
            + ",".join(
                f"{name}={json_text(value)}" for name, value in json.loads(body, parse_float=Decimal).items()
            )
            + "]"
        )
    return f"[={body}]" if mark == "v:" else f"[{body}]"
