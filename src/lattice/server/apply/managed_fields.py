"""Field sets: sets of field paths in Kubernetes' fieldsV1 form, and the field paths of a value by its schema.

A set is the nested dict of the wire form: `{"f:spec": {".": {}, "f:image": {}}}`. Below the root, `{}` is a
member path without children; a node with children is a member only if the node holds "."; an empty root is
the empty set. Sets are values: no function changes an input, and results may share nodes with inputs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import IntEnum
from typing import Any

FieldSet = dict[str, Any]
# Labels such as "f:spec", 'k:{"type":"Ready"}', 'v:"x"'.
Path = tuple[str, ...]

# Printable ASCII without quote and backslash: the JSON text is the text itself.
_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]*").fullmatch
# Limit of the recursion; no object of the API nests deeper.
_MAX_DEPTH = 200


class Shape(IntEnum):
    """How values of a type split into owned parts."""

    # Scalars and atomic values: one owner for the complete value.
    LEAF = 0
    MAP = 1
    LIST_MAP = 2
    SET = 3
    # Fields that no manager owns: apiVersion, kind, and metadata that the server sets.
    IGNORED = 4


class TypeNode:
    """The type of the values at one place of a schema, as far as field ownership needs the type."""

    __slots__ = ("fields", "is_hidden", "is_untyped", "item", "keys", "shape", "undeclared")

    def __init__(
        self, shape: Shape, fields: dict[str, "TypeNode"] | None = None, undeclared: "TypeNode | None" = None
    ) -> None:
        self.shape = shape
        self.fields = fields if fields is not None else {}
        # The type of undeclared keys; None forbids undeclared keys.
        self.undeclared = undeclared
        # Name and default of the keys of a list-map.
        self.keys: tuple[tuple[str, Any], ...] = ()
        self.item: TypeNode = self
        # A hidden node is never a member itself, for example `metadata`.
        self.is_hidden = False
        # Any value is allowed: maps split by key, other values are atomic.
        self.is_untyped = False


LEAF = TypeNode(Shape.LEAF)
IGNORED = TypeNode(Shape.IGNORED)
UNTYPED = TypeNode(Shape.MAP)
# Values of untyped maps are untyped, too.
UNTYPED.undeclared, UNTYPED.is_untyped = UNTYPED, True

SERVER_OWNED_METADATA = (
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
METADATA_SCHEMA: dict[str, Any] = {
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
    """The types of an object by its structural schema. Compile once per schema and keep the result."""
    root = _compile(schema)
    # A new node: the shared nodes LEAF and UNTYPED must not get the fields of an object.
    if root.shape is not Shape.MAP or root.is_untyped:
        root = TypeNode(Shape.MAP, undeclared=UNTYPED)
    metadata = _compile(METADATA_SCHEMA)
    metadata.is_hidden = True
    metadata.fields.update(dict.fromkeys(SERVER_OWNED_METADATA, IGNORED))
    root.is_hidden = True
    root.fields.update(apiVersion=IGNORED, kind=IGNORED, metadata=metadata)
    return root


def _compile(schema: Mapping[str, Any]) -> TypeNode:
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") or kind not in ("object", "array", None):
        return LEAF
    if kind == "array":
        if schema.get("x-kubernetes-list-type") == "set":
            return TypeNode(Shape.SET)
        if schema.get("x-kubernetes-list-type") != "map":
            return LEAF
        items = schema.get("items") or {}
        declared_keys = items.get("properties", {})
        node = TypeNode(Shape.LIST_MAP)
        node.keys = tuple(
            (key, declared_keys.get(key, {}).get("default"))
            for key in sorted(schema.get("x-kubernetes-list-map-keys", ()))
        )
        node.item = _compile(items)
        return node
    if schema.get("x-kubernetes-map-type") == "atomic":
        return LEAF
    additional = schema.get("additionalProperties")
    undeclared = _compile(additional) if isinstance(additional, Mapping) else None
    if schema.get("x-kubernetes-preserve-unknown-fields") or additional is True:
        undeclared = UNTYPED
    properties = schema.get("properties")
    if properties is None and (undeclared is UNTYPED or (kind is None and undeclared is None)):
        return UNTYPED
    return TypeNode(Shape.MAP, {name: _compile(sub) for name, sub in (properties or {}).items()}, undeclared)


def json_text(value: Any) -> str:
    """Compact JSON with sorted keys: equal values give equal labels."""
    if isinstance(value, str):
        return f'"{value}"' if _PLAIN_TEXT(value) else json.dumps(value, ensure_ascii=False)
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, Decimal):
        # 1.0 equals 1; the bound keeps 1e999999999 from being written out.
        is_integer = abs(value.adjusted()) < 30 and value == value.to_integral_value()
        return str(int(value)) if is_integer else str(value)
    if isinstance(value, list):
        return f"[{','.join(map(json_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(k)}:{json_text(value[k])}" for k in sorted(value)) + "}"
    return str(value)


def label_of(item: Any, node: TypeNode) -> str:
    """The label of an item of a set or list-map in a path."""
    if node.shape is Shape.SET:
        return "v:" + json_text(item)
    fields = item if type(item) is dict else {}
    keys = node.keys
    if len(keys) == 1:
        name, default = keys[0]
        return f'k:{{"{name}":{json_text(fields.get(name, default))}}}'
    return (
        "k:{" + ",".join(f'"{name}":{json_text(fields.get(name, default))}' for name, default in keys) + "}"
    )


def by_label(items: list[Any], node: TypeNode) -> dict[str, Any]:
    """Items of a set or list-map by label, in order. Of duplicates, which validation rejects, the last item
    counts."""
    return {label_of(item, node): item for item in items}


def is_member(node: FieldSet) -> bool:
    """Whether the path of the node itself is in the set."""
    return not node or "." in node


def applied_fields(value: Any, types: TypeNode) -> FieldSet:
    """The paths that an applied object sets: leaves, items with their keys, undeclared map keys; declared
    maps and lists only if empty."""
    return _field_set(value, types, False) if type(value) is dict else {}


def all_fields(value: Any, types: TypeNode) -> FieldSet:
    """Every path of an object, maps and lists included: the fields owned by the creator of the object."""
    return _field_set(value, types, True) if type(value) is dict else {}


def _field_set(value: Any, node: TypeNode, include_containers: bool) -> FieldSet:
    """The subtree of a non-leaf value; `include_containers` adds the paths of declared maps and lists."""
    out: FieldSet = {}
    if node.shape is Shape.MAP:
        if type(value) is not dict:
            return out
        fields, undeclared = node.fields, node.undeclared
        for name, item_value in value.items():
            child = fields.get(name)
            declared = child is not None
            child = child or undeclared or UNTYPED
            if child is LEAF or (child.shape is Shape.MAP and item_value.__class__ is not dict):
                out["f:" + name] = {}
            elif child is not IGNORED:
                _add_child(
                    out,
                    "f:" + name,
                    _field_set(item_value, child, include_containers),
                    child,
                    include_containers or not declared,
                )
    elif type(value) is list:
        if node.shape is Shape.SET:
            return {"v:" + json_text(item): {} for item in value}
        for item in value:
            _add_child(
                out, label_of(item, node), _field_set(item, node.item, include_containers), node.item, True
            )
    return out


def _add_child(out: FieldSet, label: str, below: FieldSet, child: TypeNode, member: bool) -> None:
    if below and member and not child.is_hidden:
        below["."] = {}
    # An empty list is a member too: otherwise a repeated apply would differ from the first.
    if below or not child.is_hidden:
        out[label] = below


def changed_fields(
    old: Mapping[str, Any], new: Mapping[str, Any], types: TypeNode
) -> tuple[FieldSet, FieldSet]:
    """Compare two objects: the paths with a new or changed value, and the removed paths.

    Values compare as Python values: 1 equals true, but no typed field can hold both.
    """
    changed: FieldSet = {}
    removed: FieldSet = {}
    _compare_maps(old, new, types, (changed, removed))
    return changed, removed


def _compare_maps(
    old: Mapping[str, Any], new: Mapping[str, Any], node: TypeNode, out: tuple[FieldSet, FieldSet]
) -> None:
    fields, undeclared = node.fields, node.undeclared or UNTYPED
    for name, value in new.items():
        # `out` marks a missing key: no JSON value is this object.
        old_value = old.get(name, out)
        # Objects share unchanged parts, so identity answers most comparisons.
        if old_value is value or old_value == value:
            continue
        child = fields.get(name, undeclared)
        if child is not IGNORED:
            _compare("f:" + name, (old_value is not out, old_value), (True, value), child, out)
    for name, value in old.items():
        if name not in new and (child := fields.get(name, undeclared)) is not IGNORED:
            _compare("f:" + name, (True, value), (False, None), child, out)


# Whether the value exists, and the value.
_OptionalValue = tuple[bool, Any]


def _compare(
    label: str, old: _OptionalValue, new: _OptionalValue, node: TypeNode, out: tuple[FieldSet, FieldSet]
) -> None:
    """Record the difference between the old and the new value of one label; `out` collects the changed and
    the removed paths of the parent."""
    (was_present, old_value), (is_present, value) = old, new
    if not was_present:
        _record(out[0], label, value, node)
        return
    if not is_present:
        _record(out[1], label, old_value, node)
        return
    container: type[dict[str, Any]] | type[list[Any]] | None = None
    if node.shape is Shape.MAP:
        container = dict
    elif node.shape in (Shape.LIST_MAP, Shape.SET):
        container = list
    # A change between an empty container and null is a change of the value itself.
    if container is None or not (old_value or value):
        out[0][label] = {}
        return
    old_fits = old_value is None or type(old_value) is container
    new_fits = value is None or type(value) is container
    changed: FieldSet = {}
    removed: FieldSet = {}
    if old_fits and new_fits:
        _compare_children(old_value or container(), value or container(), node, (changed, removed))
    else:
        removed = _field_set(old_value, node, True)
        changed = {**_field_set(value, node, True), ".": {}}
    _attach(out[0], label, changed)
    _attach(out[1], label, removed)


def _compare_children(old: Any, new: Any, node: TypeNode, out: tuple[FieldSet, FieldSet]) -> None:
    if node.shape is Shape.MAP:
        _compare_maps(old, new, node, out)
        return
    old_items, new_items = by_label(old, node), by_label(new, node)
    child = LEAF if node.shape is Shape.SET else node.item
    for label, value in new_items.items():
        was_present = label in old_items
        if not was_present or (child is not LEAF and old_items[label] != value):
            _compare(label, (was_present, old_items.get(label)), (True, value), child, out)
    for label, value in old_items.items():
        if label not in new_items:
            _compare(label, (True, value), (False, None), child, out)


def _record(target: FieldSet, label: str, value: Any, node: TypeNode) -> None:
    _add_child(target, label, {} if node.shape is Shape.LEAF else _field_set(value, node, True), node, True)


def _attach(target: FieldSet, label: str, below: FieldSet) -> None:
    if below:
        target[label] = {} if below.keys() == {"."} else below


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """Paths that are in `a` or in `b`."""
    if not b or a is b:
        return a
    if not a:
        return b
    out = dict(a)
    for label, node_b in b.items():
        node_a = out.get(label)
        if node_a is None:
            out[label] = node_b
            continue
        below = union(node_a, node_b)
        # A node without children is a member of its set. Merged with a node of the other set that has
        # children, the path stays a member.
        if bool(node_a) != bool(node_b) and "." not in below:
            below = {**below, ".": {}}
        out[label] = below
    return out


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """Paths of `a` that are not in `b`; the object `a` itself if the sets share no path."""
    return a if not a or not b else _minus(a, b) or {}


def _minus(a: FieldSet, b: FieldSet) -> FieldSet | None:
    """The remaining labels, or None without remaining labels. `_minus_node` decides membership of the node
    itself."""
    out: FieldSet | None = None
    for label in a.keys() & b.keys():
        # An unchanged node is returned itself, so that callers can compare by identity.
        remaining = _minus_node(a[label], b[label]) if label != "." else None
        if remaining is a[label]:
            continue
        out = dict(a) if out is None else out
        if remaining is None:
            del out[label]
        else:
            out[label] = remaining
    return a if out is None else out or None


def _minus_node(a: FieldSet, b: FieldSet) -> FieldSet | None:
    # A member without children.
    if not a:
        return None if is_member(b) else a
    # `b` holds the node itself but no children.
    if not b:
        return {label: sub for label, sub in a.items() if label != "."} or None if "." in a else a
    remaining = _minus(a, b)
    return {} if remaining is not None and remaining.keys() == {"."} else remaining


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """Paths that are in `a` and in `b`."""
    out: FieldSet = {}
    for label in a.keys() & b.keys():
        node_a, node_b = a[label], b[label]
        below = intersection(node_a, node_b) if node_a and node_b else {}
        member = is_member(node_a) and is_member(node_b)
        if below and member:
            below["."] = {}
        if label != "." and (below or member):
            out[label] = below
    return out


def contains(fields: FieldSet, path: Path) -> bool:
    """Whether exactly this path is a member of the set."""
    node: FieldSet | None = fields
    for label in path:
        node = node.get(label) if node is not None else None
    return node is not None and bool(path) and is_member(node)


def iter_paths(fields: FieldSet, start: Path = ()) -> Iterator[Path]:
    """Yield every path of the set, parents before children, siblings in text order."""
    if is_member(fields) and start:
        yield start
    for label in sorted(fields):
        if label != ".":
            yield from iter_paths(fields[label], (*start, label))


def parse_fields(fields: Any) -> FieldSet:
    """A field set from fieldsV1 of a client; `ValueError` if malformed."""
    out = _parse(fields, 0)
    # The root itself is never a member.
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
        # Keys of clients are rewritten in canonical form, so that equal items have equal labels.
        value = json.loads(body, parse_float=Decimal, parse_constant=_reject_constant)
        if mark == "v:" or type(value) is dict:
            return mark + json_text(value)
    raise ValueError(f"fieldsV1 has no path element {label!r}")


def _reject_constant(name: str) -> Any:
    """Reject NaN and Infinity, which `json` would accept."""
    raise ValueError(f"{name} is not JSON")


def format_fields(fields: FieldSet) -> FieldSet:
    """The same set with labels in text order, so that equal sets have equal bytes."""
    return {label: format_fields(fields[label]) for label in sorted(fields)} if fields else {}


def format_path(path: Path) -> str:
    """A path as Kubernetes prints paths: `.spec.conditions[type="Ready"].status`,
    `.metadata.finalizers[="x"]`."""
    out = []
    for label in path:
        mark, body = label[:2], label[2:]
        if mark == "f:":
            out.append(f".{body}")
        elif mark == "k:":
            keys = json.loads(body, parse_float=Decimal)
            out.append("[" + ",".join(f"{name}={json_text(value)}" for name, value in keys.items()) + "]")
        elif mark == "v:":
            out.append(f"[={body}]")
        else:
            out.append(f"[{body}]")
    return "".join(out)
