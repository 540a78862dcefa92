"""What do people declare otherwise than before, whatever comes of it: which objects, and which of their fields?"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lattice.kinds.meta.base import Kind
from lattice.kinds.service import LatticeService
from lattice.placement.model.edits import plain
from lattice.placement.model.demand import key_of
from lattice.lifecycle.replica_template import template
from lattice.placement.model.world import Key, World, key

Field = tuple[str, Any, Any]  # path, before and after


@dataclass(frozen=True, slots=True)
class Declared:
    """`mark`: + is new, - is gone, ~ has other fields than it had."""

    mark: str
    object: Key
    fields: tuple[Field, ...] = ()
    is_restarted: bool = (
        False  # its replicas run something else than before: they are replaced one after the other
    )


def declared(
    before: World, changes: Iterable[Kind], gone: Iterable[Key], placed: Container[str] = ()
) -> Iterator[Declared]:
    """By kind and name. What is applied as it is already is not among them. `placed`: services that have replicas before."""
    found = [Declared("-", each) for each in gone if each in before.objects]
    for each in changes:
        known = before.objects.get(key(each))
        if known is None:
            found.append(Declared("+", key(each)))
        elif fields := tuple(_fields(known, each)):
            found.append(Declared("~", key(each), fields, _is_restarted(known, each, placed)))
    yield from sorted(found, key=lambda each: each.object)


def _is_restarted(before: Kind, after: Kind, placed: Container[str]) -> bool:
    if not (isinstance(before, LatticeService) and isinstance(after, LatticeService)):
        return False
    return key_of(before) in placed and template(before).revision != template(after).revision


def _fields(before: Kind, after: Kind) -> Iterator[Field]:
    labels = before.metadata.labels or {}, after.metadata.labels or {}
    if labels[0] != labels[1]:
        yield from _differing("metadata.labels", *labels)
    specs = getattr(before, "spec", None), getattr(after, "spec", None)
    if specs[0] != specs[1]:
        yield from _differing("spec", *map(plain, specs))


def _differing(path: str, before: Any, after: Any) -> Iterator[Field]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield from _differing(f"{path}.{name}", before.get(name), after.get(name))
    else:
        yield path, before, after
