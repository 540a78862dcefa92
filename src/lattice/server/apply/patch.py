"""Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and the strategic merge patch of core kinds.

No function changes its inputs. A result shares its unchanged parts with the target, and its lists with the
patch: treat results as frozen.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from lattice.errors import Invalid, LatticeError, Malformed, TooLarge
from lattice.server.apply.managed_fields import json_text

MAX_OPERATIONS = 10_000
# Limit of the JSON bytes, estimated, that the copy operations of a patch add: doubling copies must not fill
# memory (CVE-2019-1002100).
MAX_COPIED_BYTES = 3 * 1024 * 1024

_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")
_NESTED = "the patch nests too deeply"
_REJECTED = "the server rejected our request due to an error in our request"


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386).

    A patch other than an object replaces the target, so a caller that needs an object must check the result.
    """
    try:
        return _merge(target, patch)
    except RecursionError as e:
        raise Malformed(_NESTED, fix="send a flatter patch") from e


def _merge(target: Any, patch: Any) -> Any:
    if type(patch) is not dict:
        return patch
    out = dict(target) if type(target) is dict else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = _merge(out.get(name), value) if type(value) is dict else value
    return out


def json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902): every operation or none.

    `Malformed` for unreadable operations, `Invalid` for an operation that does not fit the target, `TooLarge`
    beyond the limits.
    """
    if type(operations) is not list:
        raise Malformed(
            "a JSON patch must be a list of operations",
            fix="send a list, or use application/merge-patch+json for an object",
        )
    if len(operations) > MAX_OPERATIONS:
        raise TooLarge(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
            fix="split the patch",
        )
    # Every operation is parsed before the first is applied: a malformed operation changes nothing.
    parsed = [_parse_operation(i, operation) for i, operation in enumerate(operations)]
    document = _Document(target)
    for operation in parsed:
        try:
            _apply_operation(document, operation)
        except LookupError as e:
            raise Invalid(f"{_REJECTED}: {operation.name}: {e.args[0]}") from e
        except RecursionError as e:
            raise Malformed(_NESTED, where=operation.name, fix="send a flatter patch") from e
    return document.root


@dataclass(frozen=True, slots=True)
class _Operation:
    op: str
    # For messages, for example "operation 2 (test /spec/image)".
    name: str
    path: tuple[str, ...]
    source: tuple[str, ...] = ()
    value: Any = None


def _parse_operation(i: int, operation: Any) -> _Operation:
    if type(operation) is not dict:
        raise _unreadable(i, "must be an object", 'write {"op": ..., "path": ...}')
    op = operation.get("op")
    if type(op) is not str or op not in _OPERATIONS:
        raise _unreadable(i, f"has an unknown op: {str(op)[:40]!r}", f"use one of {', '.join(_OPERATIONS)}")
    source: tuple[str, ...] = ()
    if op in ("move", "copy"):
        source = _pointer(i, operation, "from")
    elif op in ("add", "replace", "test") and "value" not in operation:
        raise _unreadable(i, f"({op}) has no value", 'add "value"')
    path = _pointer(i, operation, "path")
    return _Operation(
        op, f"operation {i} ({op} {operation['path'][:200]})", path, source, operation.get("value")
    )


def _pointer(i: int, operation: dict[str, Any], name: str) -> tuple[str, ...]:
    text = operation.get(name)
    if type(text) is not str or (text and text[0] != "/"):
        raise _unreadable(
            i,
            f"needs a JSON pointer as {name}, got {str(text)[:80]!r}",
            "write the pointer as /metadata/labels/app, with ~1 for / and ~0 for ~",
        )
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def _unreadable(i: int, problem: str, fix: str) -> LatticeError:
    return Malformed(f"JSON patch operation {i} {problem}", fix=fix)


@dataclass(slots=True)
class _Document:
    """The object under the patch. A container is copied before its first change, so the target stays
    unchanged."""

    root: Any
    copied_bytes: int = 0
    # Containers copied by this document, by id. The references keep Python from reusing the ids.
    owned_containers: dict[int, Any] = field(default_factory=dict)

    def get(self, path: tuple[str, ...]) -> Any:
        node = self.root
        for part in path:
            node = _child(node, part)
        return node

    def parent(self, path: tuple[str, ...]) -> Any:
        """The container of the last part of `path`, copied if necessary, so that the caller may change the
        container."""
        self.root = node = self._ensure_owned(self.root)
        for part in path[:-1]:
            child = self._ensure_owned(_child(node, part))
            node[_existing_key(node, part)] = child
            node = child
        if type(node) not in (dict, list):
            raise LookupError("the parent is neither an object nor a list")
        return node

    def _ensure_owned(self, node: Any) -> Any:
        if type(node) not in (dict, list) or id(node) in self.owned_containers:
            return node
        copy = node.copy()
        self.owned_containers[id(copy)] = copy
        return copy

    def deep_copy(self, value: Any) -> Any:
        """A deep copy, counted against the byte limit of copy operations."""
        # An estimate of the JSON size: text with its quotes, else 8 bytes.
        self.copied_bytes += len(value) + 2 if type(value) is str else 8
        if self.copied_bytes > MAX_COPIED_BYTES:
            raise TooLarge(
                f"the copy operations of this JSON patch add more than {MAX_COPIED_BYTES} bytes",
                fix="send the values instead of copies, or split the patch",
            )
        if type(value) is list:
            return [self.deep_copy(item) for item in value]
        if type(value) is not dict:
            return value
        self.copied_bytes += sum(map(len, value)) + 4 * len(value)
        return {name: self.deep_copy(item) for name, item in value.items()}


def _existing_key(node: Any, part: str) -> Any:
    """The dict key or list index of `part` in a container. `LookupError` if the container has no such
    part."""
    if type(node) is dict and part in node:
        return part
    if (
        type(node) is list
        and part.isascii()
        and part.isdigit()
        # RFC 6901 forbids leading zeros in an array index.
        and (part == "0" or part[0] != "0")
        # A longer number exceeds the length of any list.
        and len(part) < 10
        and int(part) < len(node)
    ):
        return int(part)
    raise LookupError(f"the path element does not exist: {part!r}")


def _child(node: Any, part: str) -> Any:
    return node[_existing_key(node, part)]


def _put(document: _Document, path: tuple[str, ...], value: Any) -> None:
    if not path:
        document.root = value
        return
    parent, last = document.parent(path), path[-1]
    if type(parent) is dict:
        parent[last] = value
    elif last in ("-", str(len(parent))):
        parent.append(value)
    else:
        parent.insert(_existing_key(parent, last), value)


def _take(document: _Document, path: tuple[str, ...]) -> Any:
    if not path:
        raise LookupError("the whole object cannot be removed")
    parent = document.parent(path)
    return parent.pop(_existing_key(parent, path[-1]))


def _apply_operation(document: _Document, operation: _Operation) -> None:
    """Apply one operation to the document. `LookupError` if the operation does not fit the document."""
    path, source = operation.path, operation.source
    match operation.op:
        case "add":
            _put(document, path, operation.value)
        case "remove":
            _take(document, path)
        case "replace" if not path:
            document.root = operation.value
        case "replace":
            parent = document.parent(path)
            parent[_existing_key(parent, path[-1])] = operation.value
        case "move" if path == source:
            # A move to the same place changes nothing, but the value must exist.
            document.get(source)
        case "move" if path[: len(source)] == source:
            raise LookupError("a value cannot be moved into itself")
        case "move":
            _put(document, path, _take(document, source))
        case "copy":
            _put(document, path, document.deep_copy(document.get(source)))
        case "test":
            try:
                value = document.get(path)
            except LookupError:
                # As in Kubernetes, a missing field of an existing object counts as null.
                if operation.value is not None or type(document.get(path[:-1])) is not dict:
                    raise
                value = None
            if not same_json(value, operation.value):
                # The stored value is not shown: permission to patch is not permission to read.
                raise LookupError("the existing value is different")


def same_json(a: Any, b: Any) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0 but not true."""
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(same_json(value, b[name]) for name, value in a.items())
    if type(a) is list and type(b) is list:
        return len(a) == len(b) and all(map(same_json, a, b))
    numbers = (int, Decimal, float)
    return (type(a) is type(b) or (type(a) in numbers and type(b) in numbers)) and bool(a == b)


# Lists of core kinds that merge item by item, with the merge key; "" for lists of plain values. Lists without
# an entry are replaced.
_MERGED_LISTS: dict[tuple[str, ...], str] = {
    ("metadata", "finalizers"): "",
    ("metadata", "ownerReferences"): "uid",
    ("status", "conditions"): "type",
}


def strategic_merge_patch(target: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Apply Kubernetes' strategic merge patch to an object of a core kind.

    Core kinds have maps and three merged lists only. Directives such as `$patch` are obeyed and never stored.
    """
    if type(patch) is not dict:
        raise Malformed(
            "a strategic merge patch must be an object", fix="send the fields to change, as in the manifest"
        )
    try:
        return _strategic(target, patch, ())
    except RecursionError as e:
        raise Malformed(_NESTED, fix="send a flatter patch") from e


def _strategic(target: dict[str, Any], patch: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    match patch.get("$patch", "merge"):
        case "delete":
            return {}
        case "replace":
            target = {}
        case "merge":
            pass
        case directive:
            raise Malformed(
                f"$patch has no directive {str(directive)[:40]!r}",
                where=".".join(path),
                fix="use merge, replace or delete",
            )
    out = dict(target)
    if type(retain_keys := patch.get("$retainKeys")) is list:
        retained = {name for name in retain_keys if type(name) is str}
        out = {name: value for name, value in target.items() if name in retained}
    for name, value in patch.items():
        # Directives are never stored.
        if name[:1] == "$":
            continue
        old, name_path = out.get(name), (*path, name)
        if value is None:
            out.pop(name, None)
        elif type(value) is dict:
            out[name] = _strategic(old if type(old) is dict else {}, value, name_path)
        elif type(value) is list and name_path in _MERGED_LISTS:
            items = old if type(old) is list else []
            out[name] = _merge_list(items, value, _MERGED_LISTS[name_path], name_path)
        else:
            out[name] = value
    return _with_list_directives(out, patch, path)


def _merge_list(old: list[Any], new: list[Any], key: str, path: tuple[str, ...]) -> list[Any]:
    # An item `{"$patch": "replace"}` without the merge key replaces the complete list.
    if any(type(item) is dict and item.get("$patch") == "replace" and key not in item for item in new):
        return [item for item in new if not (type(item) is dict and "$patch" in item)]
    if not key:
        return list(
            {**{json_text(item): item for item in old}, **{json_text(item): item for item in new}}.values()
        )
    out = {_key(item, key, path): item for item in old}
    for item in new:
        name = _key(item, key, path)
        if item.get("$patch") == "delete":
            out.pop(name, None)
        else:
            out[name] = _strategic(out.get(name, {}), item, (*path, "[]"))
    return list(out.values())


def _key(item: Any, key: str, path: tuple[str, ...]) -> str:
    name = item.get(key) if type(item) is dict else None
    if type(name) is not str:
        raise Malformed(
            f"map: {str(item)[:80]} does not contain declared merge key: {key}",
            where=".".join(path),
            fix=f"add {key} to every item",
        )
    return name


def _with_list_directives(
    out: dict[str, Any], patch: dict[str, Any], path: tuple[str, ...]
) -> dict[str, Any]:
    """Apply deletions from plain lists, then the requested order; items without a place in the order come
    last."""
    for directive, argument in patch.items():
        operation, _, name = directive.partition("/")
        items = out.get(name)
        # Deletions come first: the order applies to the remaining items.
        if operation == "$deleteFromPrimitiveList" and type(argument) is list and type(items) is list:
            deleted = set(map(json_text, argument))
            out[name] = [item for item in items if json_text(item) not in deleted]
    for directive, argument in patch.items():
        operation, _, name = directive.partition("/")
        items, key = out.get(name), _MERGED_LISTS.get((*path, name))
        if (
            operation == "$setElementOrder"
            and type(argument) is list
            and type(items) is list
            and key is not None
        ):
            position = {_order_key(item, key): i for i, item in enumerate(argument)}
            ranks = [position.get(_order_key(item, key), len(argument)) for item in items]
            # The sort is stable and never compares the items themselves.
            out[name] = [items[i] for i in sorted(range(len(items)), key=ranks.__getitem__)]
    return out


def _order_key(item: Any, key: str) -> str:
    return json_text(item.get(key) if key and type(item) is dict else item)
