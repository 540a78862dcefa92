"""What the API serves: each kind with everything derived from its one schema, found by its address."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.schema import Schema, structural_schema
from lattice.kinds.meta.stored_encoding import value_prefix
from lattice.kinds.meta.validator import Validator, compile_schema
from lattice.server.apply.managed_fields import TypeNode, compile_types
from lattice.store.protocol import Key

EXTRA_SUBRESOURCES: dict[
    str, dict[str, tuple[str, ...]]
] = {  # besides status and scale: resource -> part -> verbs
    "latticeworkloads.lattice.dev": {"log": ("get",), "retry": ("create",)},
}


@dataclass(frozen=True, slots=True, eq=False)
class ServedKind:
    kind: type[Kind]
    resource: Resource
    schema: Schema
    validator: Validator
    types: TypeNode
    revision_offset: int  # where in stored bytes the revision goes

    def key(self, namespace: str, name: str) -> Key:
        return Key(self.resource.id, namespace, name)


class Catalog:
    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.served_kinds = [compile_kind(kind) for kind in kinds]
        self._by_address = {
            (each.resource.group, each.resource.version, each.resource.plural): each
            for each in self.served_kinds
        }
        self._by_id = {each.resource.id: each for each in self.served_kinds}

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(self.served_kinds)

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._by_address.get((group, version, plural))

    def by_id(self, identifier: str) -> ServedKind:
        """By its name in the store, such as `latticepools.lattice.dev`."""
        return self._by_id[identifier]


def compile_kind(kind: type[Kind]) -> ServedKind:
    schema = structural_schema(kind)
    return ServedKind(
        kind,
        kind.resource,
        schema,
        compile_schema(schema),
        compile_types(schema),
        len(value_prefix(kind.resource)),
    )


def extra_subresources(resource: Resource) -> dict[str, tuple[str, ...]]:
    return EXTRA_SUBRESOURCES.get(resource.id, {})


def has_subresource(resource: Resource, part: str) -> bool:
    return (
        (part == "status" and resource.has_status)
        or (part == "scale" and bool(resource.scale_path))
        or part in extra_subresources(resource)
    )
