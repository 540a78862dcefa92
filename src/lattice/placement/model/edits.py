"""One change to one object: what it says, what it makes of the object, and how far it may be taken."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from lattice.kinds.meta.base import Kind
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import Key, key

_encoder = msgspec.json.Encoder(decimal_format="number")
Who = Literal["team", "platform"]


@dataclass(frozen=True)
class Change:
    """`path` of the object goes from `before` to `after`. Equal if they say the same."""

    who: Who
    object: Key
    path: str
    before: Any = field(hash=False)
    after: Any = field(hash=False)
    sentence: str
    rewrite: Callable[[Any], Kind] | None = field(
        default=None, compare=False, repr=False
    )  # None: nothing is written
    adds_property: bool = False  # a certificate, label or the like: nothing is asked less, nothing is bought

    @property
    def subject(self) -> str:
        kind, namespace, name = self.object
        return f"{kind}/{namespace}/{name}" if namespace else f"{kind}/{name}"


@dataclass(frozen=True)
class Option:
    """A kind of change that may be made more or less strongly, from 1 to `strongest`; most are made or not."""

    name: tuple[str, ...]  # equal options have equal names
    make: Callable[[int], Change] = field(compare=False, repr=False)
    strongest: int = 1
    measure: Callable[[Fleet], int] | None = field(
        default=None, compare=False, repr=False
    )  # how strongly it was needed


def once(change: Change) -> Option:
    return Option((*change.object, change.path, repr(change.after)), lambda _: change)


def changed(objects: Mapping[Key, Kind], changes: Iterable[Change]) -> list[Kind]:
    """The objects as they would be, each once."""
    found: dict[Key, Kind] = {}
    for each in changes:
        if each.rewrite is not None:
            found[each.object] = each.rewrite(found.get(each.object) or objects.get(each.object))
    return list(found.values())


def respecified(kind: Any, **fields: Any) -> Any:
    """With these fields of its spec."""
    return msgspec.structs.replace(kind, spec=msgspec.structs.replace(kind.spec, **fields))


def within(part: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(part, **fields)


def plain(value: Any) -> Any:
    """As JSON has it."""
    return msgspec.json.decode(_encoder.encode(value))


def written(kind: Kind, who: Who, path: str, sentence: str, rewrite: Callable[[Any], Any]) -> Change:
    """`before` and `after` are read off the object at the path itself."""
    after = rewrite(kind)
    return Change(who, key(kind), path, _at(kind, path), _at(after, path), sentence, rewrite)


def _at(kind: Kind, path: str) -> Any:
    found: Any = plain(kind)
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found
