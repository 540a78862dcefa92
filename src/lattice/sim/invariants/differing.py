"""What a commit changed of an object, in a few words: each field with what it was and what it is."""

from collections.abc import Iterator
from typing import Any

import msgspec

MOST = 4  # fields that are told of one change
LONGEST = 40  # letters of a value
ALWAYS = frozenset(
    {"metadata.resourceVersion", "metadata.managedFields"}
)  # differ with every write and tell nothing


def differing(before: bytes | None, after: bytes | None) -> str:
    """Such as `status.ready: true → false`; of more than a few, how many more."""
    if before is None or after is None:
        return "deleted" if after is None else "made"
    found = [
        f"{path}: {_short(old)} → {_short(new)}"
        for path, old, new in _fields("", msgspec.json.decode(before), msgspec.json.decode(after))
    ]
    more = [f"{len(found) - MOST} more"] if len(found) > MOST else []
    return "; ".join([*found[:MOST], *more]) or "nothing changed"


def _fields(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new or path in ALWAYS:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _fields(f"{path}.{name}" if path else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _fields(f"{path}[{number}]", one, other)
    else:
        yield path, old, new


def _short(value: Any) -> str:
    text = "none" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
