"""The input of placement: the kinds that placement reads, and the collection of their objects that builds the
World.

Three callers put and delete objects: the controllers from watch events, the query process from messages of
the server, the command line from files.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.observed_machines import placement_records
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.supply import Adapters
from lattice.placement.model.world import ObjectKey, World, object_key

# Kinds that users write, apart from the status.
CONFIG_KINDS: tuple[type[Kind], ...] = (
    LatticePool,
    LatticeNodeClass,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticePlacementPolicy,
)
DECLARED_KINDS: tuple[type[Kind], ...] = (*CONFIG_KINDS, LatticeService)
# Kinds that only Lattice and its agents write.
SYSTEM_KINDS: tuple[type[Kind], ...] = (LatticeCluster, LatticeLedger, LatticeNode)
# Workloads are written by Lattice and by users.
PLACEMENT_KINDS: tuple[type[Kind], ...] = (*DECLARED_KINDS, *SYSTEM_KINDS, LatticeWorkload)
KINDS_BY_NAME = {kind.resource.kind: kind for kind in PLACEMENT_KINDS}
KINDS_BY_RESOURCE = {kind.resource.id: kind for kind in PLACEMENT_KINDS}
_decoders = {
    kind.resource.id: msgspec.json.Decoder(kind, float_hook=Decimal).decode for kind in PLACEMENT_KINDS
}


class PricingTables(NamedTuple):
    """The price book and the latency table in CSV; an empty latency table means no latencies."""

    book: PriceBook
    latency_csv: str = ""
    latency_source: str = ""


def decode_object(resource_id: str, value: bytes) -> Kind:
    """Decode the stored value of an object that placement reads."""
    return _decoders[resource_id](value)


class PlacementInput:
    """The objects of the kinds that placement reads, with the last World built from these objects.

    A World is a snapshot: later changes do not affect it. The next World reuses all derived values (supply,
    latencies, demands) whose kinds have not changed. `adapters` names the providers with an adapter, None for
    every provider.
    """

    def __init__(
        self, adapters: Adapters | None = None, kinds: Sequence[type[Kind]] = PLACEMENT_KINDS
    ) -> None:
        # A later change counts from the next World on.
        self.adapters = adapters
        self._objects: dict[type[Kind], dict[ObjectKey, Kind]] = {kind: {} for kind in kinds}
        # The kinds of which an object changed since the last World.
        self._changed_kinds: set[type[Kind]] = set()
        # The kinds of which an object was created, deleted, or changed in more than its status.
        self._redeclared_kinds: set[type[Kind]] = set()
        self._world: World | None = None

    def put(self, obj: Kind) -> None:
        """Add the object, or replace the object of the same key."""
        kind, key = type(obj), object_key(obj)
        objects = self._objects[kind]
        # Compare only kinds that users declare: only values derived from these kinds can be reused after a
        # change of the status. For workloads the comparison would be wasted time.
        previous = objects.get(key) if kind in DECLARED_KINDS else None
        if previous is not None and _is_same_declaration(previous, obj):
            # Demands are cached by the identity of the spec.
            obj = msgspec.structs.replace(obj, spec=previous.spec)  # type: ignore[attr-defined]
        else:
            self._redeclared_kinds.add(kind)
        objects[key] = obj
        self._changed_kinds.add(kind)

    def delete(self, kind: type[Kind], namespace: str, name: str) -> None:
        """Remove the object, if the input has the object."""
        if self._objects[kind].pop((kind.resource.kind, namespace, name), None) is not None:
            self._changed_kinds.add(kind)
            self._redeclared_kinds.add(kind)

    def world(self, tables: PricingTables, now: datetime | None) -> World:
        """Build the World of the present objects at the time; without a time, money already spent this month
        is not counted."""
        previous = self._world
        objects: Mapping[ObjectKey, Kind]
        if previous is not None and not self._changed_kinds:
            objects = previous.objects
        else:
            merged: dict[ObjectKey, Kind] = {}
            for objects_of_kind in self._objects.values():
                merged.update(objects_of_kind)
            objects = merged
        world = World(objects, *tables, now=now, adapters=self.adapters)
        if previous is not None:
            changed = {kind: tuple(self._objects[kind].values()) for kind in self._changed_kinds}
            world.reuse_derived(previous, changed, self._redeclared_kinds)
        self._world = world
        self._changed_kinds, self._redeclared_kinds = set(), set()
        return world


def _is_same_declaration(previous: Kind, current: Kind) -> bool:
    """Whether two versions of an object are equal apart from the status and the bookkeeping fields of the
    metadata."""
    old, new = previous.metadata, current.metadata
    return (
        (old.uid, old.labels, old.creation_timestamp, old.deletion_timestamp)
        == (new.uid, new.labels, new.creation_timestamp, new.deletion_timestamp)
        and old.annotations == new.annotations
        and previous.spec == current.spec  # type: ignore[attr-defined]
        # What real machines offer and refuse decides placement, although Lattice writes it.
        and placement_records(previous) == placement_records(current)
    )
