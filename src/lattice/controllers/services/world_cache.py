"""Maintain the input of placement from the caches: changed objects are noted, and `world` refreshes them and
returns a snapshot."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.kinds.meta.base import Kind, path_of
from lattice.placement.feed.placement_input import PLACEMENT_KINDS, PlacementInput, PricingTables
from lattice.placement.model.supply import Adapters
from lattice.placement.model.world import World
from lattice.store.protocol import Change

AdapterLookup = Callable[[], Awaitable[Adapters]]


class WorldCache:
    """The objects that placement reads, refreshed from the caches.

    `tables` returns the current price and latency tables; `adapters` returns the providers with an adapter
    and the runtimes of their machines, None for all providers.
    """

    def __init__(
        self,
        context: ControllerContext,
        tables: Callable[[], PricingTables],
        adapters: AdapterLookup | None,
        kinds: Sequence[type[Kind]] = PLACEMENT_KINDS,
    ) -> None:
        self._context = context
        self._tables = tables
        self._kinds = kinds
        self._adapters = adapters
        self._input = PlacementInput(None, kinds)
        # The changed objects, in the order of the changes: the order of the objects, and with it every
        # decision, must not depend on hashes.
        self._dirty: dict[tuple[type[Kind], str], None] = {}
        self._is_filled = False
        for kind in kinds:
            context.cache(kind).on_change(self._dirty_marker(kind))

    def _dirty_marker(self, kind: type[Kind]) -> Callable[[Change], None]:
        return lambda change: self._dirty.setdefault((kind, change.key.path))

    @property
    def has_changes(self) -> bool:
        """Whether an object changed since the last snapshot."""
        return bool(self._dirty) or not self._is_filled

    async def catch_up(self) -> None:
        """Wait until the caches hold every object that is stored by now. With older objects, placement could
        pay again for a machine that it has already paid for."""
        revision = await self._context.store.revision()
        for kind in self._kinds:
            await self._context.cache(kind).wait_for(revision)

    async def world(self, now: datetime) -> World:
        """Refresh the changed objects and return a snapshot that later changes do not affect."""
        if self._adapters is not None:
            self._input.adapters = await self._adapters()
        if not self._is_filled:
            self._dirty.clear()
            for kind in self._kinds:
                for obj in self._context.cache(kind).objects():
                    self._dirty[kind, path_of(obj)] = None
            self._is_filled = True
        for kind, path in self._dirty:
            current = self._context.cache(kind).get(path)
            if current is None:
                namespace, _, name = path.partition("/")
                self._input.delete(kind, namespace, name)
            else:
                self._input.put(current)
        self._dirty.clear()
        return self._input.world(self._tables(), now)


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
