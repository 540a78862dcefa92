"""What the API serves: each kind with everything derived from its one schema, found by its address."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.schema import Schema, structural_schema
from lattice.kinds.meta.stored import head
from lattice.kinds.meta.validator import Walk, compile_schema
from lattice.server.apply.managed_fields import TypeNode, compile_types
from lattice.store.protocol import Key


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    kind: type[Kind]
    resource: Resource
    schema: Schema
    walk: Walk
    types: TypeNode
    head: int  # where in stored bytes the revision goes

    def key(self, namespace: str, name: str) -> Key:
        return Key(self.resource.id, namespace, name)


class Catalog:
    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.served = [serve(kind) for kind in kinds]
        self._by_address = {
            (each.resource.group, each.resource.version, each.resource.plural): each for each in self.served
        }
        self._by_id = {each.resource.id: each for each in self.served}

    def __iter__(self) -> Iterator[Served]:
        return iter(self.served)

    def find(self, group: str, version: str, plural: str) -> Served | None:
        return self._by_address.get((group, version, plural))

    def by_id(self, identifier: str) -> Served:
        """By its name in the store, such as `latticepools.lattice.dev`."""
        return self._by_id[identifier]


def serve(kind: type[Kind]) -> Served:
    schema = structural_schema(kind)
    return Served(
        kind, kind.resource, schema, compile_schema(schema), compile_types(schema), len(head(kind.resource))
    )
