"""What placement looks at, kept from the copies: object by object as they change, and one frozen world whenever somebody asks."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import path_of
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
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import ObjectKey, World
from lattice.store.protocol import Change

CONFIG_KINDS: tuple[type[Kind], ...] = (
    LatticePool,
    LatticeNodeClass,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticePlacementPolicy,
)
STATE_KINDS: tuple[type[Kind], ...] = (LatticeCluster, LatticeLedger, LatticeNode, LatticeWorkload)
WORLD_KINDS: tuple[type[Kind], ...] = (*CONFIG_KINDS, LatticeService, *STATE_KINDS)
PricingTables = tuple[PriceBook, str, str]  # prices, round trips as CSV, and where those come from


class WorldCache:
    """`tables`: the files beside the objects, as they are now; `adapters`: providers that machines can be had from here, None: all."""

    def __init__(
        self, office: ControllerContext, tables: Callable[[], PricingTables], adapters: frozenset[str] | None
    ) -> None:
        self._context = office
        self._tables = tables
        self._adapters = adapters
        self._objects: dict[ObjectKey, Kind] = {}
        self._dirty: set[tuple[type[Kind], str]] = set()
        self._is_filled = False
        for kind in WORLD_KINDS:
            office.cache(kind).on_change(self._dirty_marker(kind))

    def _dirty_marker(self, kind: type[Kind]) -> Callable[[Change], None]:
        return lambda change: self._dirty.add((kind, change.key.path))

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty) or not self._is_filled

    async def catch_up(self) -> None:
        """Until the copies have everything that is written by now: what was paid a moment ago must not be paid again."""
        revision = await self._context.store.revision()
        for kind in WORLD_KINDS:
            await self._context.cache(kind).wait_for(revision)

    def world(self, now: datetime) -> World:
        if not self._is_filled:
            self._dirty = {
                (kind, path_of(each)) for kind in WORLD_KINDS for each in self._context.cache(kind).objects()
            }
            self._is_filled = True
        for kind, path in sorted(self._dirty, key=lambda each: (each[0].resource.id, each[1])):
            self._refresh(kind, path)
        self._dirty.clear()
        return World(self._objects.copy(), *self._tables(), now=now, adapters=self._adapters)

    def _refresh(self, kind: type[Kind], path: str) -> None:
        namespace, _, name = path.partition("/")
        key = (kind.resource.kind, namespace, name)
        found = self._context.cache(kind).get(path)
        if found is None:
            self._objects.pop(key, None)
            return
        self._objects[key] = found


class _Identity(msgspec.Struct, gc=False, rename="camel"):
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class _Named(msgspec.Struct, gc=False):
    metadata: _Identity


_decode = msgspec.json.Decoder(_Named).decode


def is_spec_or_metadata_change(change: Change) -> bool:
    """Is anything but the status another?"""
    if change.value is None or change.previous is None:
        return True
    before, after = _decode(change.previous.value).metadata, _decode(change.value).metadata
    return (before.uid, before.generation, before.labels, before.deletion_timestamp) != (
        after.uid,
        after.generation,
        after.labels,
        after.deletion_timestamp,
    )
