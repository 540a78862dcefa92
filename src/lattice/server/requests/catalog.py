"""The catalog of served kinds: every kind with the schema, validator and types derived from its class."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.schema import Schema, structural_schema
from lattice.kinds.meta.stored_encoding import value_prefix
from lattice.kinds.meta.validator import Validator, compile_schema
from lattice.server.apply.managed_fields import TypeNode, compile_types
from lattice.store.protocol import Key

# Subresources besides status and scale: resource id -> subresource -> verbs.
EXTRA_SUBRESOURCES: dict[str, dict[str, tuple[str, ...]]] = {
    "namespaces": {"finalize": ("update",)},
    "latticeworkloads.lattice.dev": {"log": ("get",), "retry": ("create",)},
}


@dataclass(frozen=True, slots=True, eq=False)
class ServedKind:
    """A kind of the API with its compiled schema."""

    kind: type[Kind]
    resource: Resource
    schema: Schema
    validator: Validator
    types: TypeNode
    # Offset in stored bytes at which the revision is inserted.
    revision_offset: int

    def key(self, namespace: str, name: str) -> Key:
        return Key(self.resource.id, namespace, name)


class Catalog:
    """The served kinds, found by API path or by resource id."""

    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.served_kinds = [compile_kind(kind) for kind in kinds]
        self._by_address = {}
        self._by_id = {}
        for served in self.served_kinds:
            resource = served.resource
            self._by_address[resource.group, resource.version, resource.plural] = served
            self._by_id[resource.id] = served

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(self.served_kinds)

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._by_address.get((group, version, plural))

    def by_id(self, resource_id: str) -> ServedKind:
        """The kind with the resource id of the store, for example `latticepools.lattice.dev`."""
        return self._by_id[resource_id]


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


def has_subresource(resource: Resource, subresource: str) -> bool:
    return (
        (subresource == "status" and resource.has_status)
        or (subresource == "scale" and bool(resource.scale_path))
        or subresource in extra_subresources(resource)
    )
