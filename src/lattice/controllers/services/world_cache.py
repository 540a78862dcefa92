"""Maintain the input of placement from the caches: objects are refreshed as they change, and `world` returns
a snapshot."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind, path_of
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
# The price book, the round-trip times as CSV, and the source of the round-trip times.
PricingTables = tuple[PriceBook, str, str]


class WorldCache:
    """The objects that placement reads, refreshed from the caches.

    `tables` returns the current price and latency tables; `adapters` names the providers with an adapter,
    None for all providers.
    """

    def __init__(
        self, context: ControllerContext, tables: Callable[[], PricingTables], adapters: frozenset[str] | None
    ) -> None:
        self._context = context
        self._tables = tables
        self._adapters = adapters
        self._objects: dict[ObjectKey, Kind] = {}
        self._dirty: set[tuple[type[Kind], str]] = set()
        self._is_filled = False
        for kind in WORLD_KINDS:
            context.cache(kind).on_change(self._dirty_marker(kind))

    def _dirty_marker(self, kind: type[Kind]) -> Callable[[Change], None]:
        return lambda change: self._dirty.add((kind, change.key.path))

    @property
    def has_changes(self) -> bool:
        """Whether an object changed since the last snapshot."""
        return bool(self._dirty) or not self._is_filled

    async def catch_up(self) -> None:
        """Wait until the caches hold every object that is stored by now, so that a machine that is paid is
        not paid twice."""
        revision = await self._context.store.revision()
        for kind in WORLD_KINDS:
            await self._context.cache(kind).wait_for(revision)

    def world(self, now: datetime) -> World:
        """Refresh the changed objects and return a snapshot that later changes do not affect."""
        if not self._is_filled:
            self._dirty.clear()
            for kind in WORLD_KINDS:
                self._dirty.update((kind, path_of(obj)) for obj in self._context.cache(kind).objects())
            self._is_filled = True
        # Sorted, so that the order of the objects, and with it every decision, does not depend on hashes.
        for kind, path in sorted(self._dirty, key=lambda dirty: (dirty[0].resource.id, dirty[1])):
            namespace, _, name = path.partition("/")
            key = (kind.resource.kind, namespace, name)
            current = self._context.cache(kind).get(path)
            if current is None:
                self._objects.pop(key, None)
            else:
                self._objects[key] = current
        self._dirty.clear()
        return World(self._objects.copy(), *self._tables(), now=now, adapters=self._adapters)


class _Identity(msgspec.Struct, gc=False, rename="camel"):
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class _Named(msgspec.Struct, gc=False):
    metadata: _Identity


_decode = msgspec.json.Decoder(_Named).decode


def is_spec_or_metadata_change(change: Change) -> bool:
    """Whether a change creates, deletes or replaces the object, or changes its spec, labels or deletion mark;
    the status does not count."""
    if change.value is None or change.previous is None:
        return True
    previous, current = _decode(change.previous.value).metadata, _decode(change.value).metadata
    return (previous.uid, previous.generation, previous.labels, previous.deletion_timestamp) != (
        current.uid,
        current.generation,
        current.labels,
        current.deletion_timestamp,
    )
