"""Dependencies of the REST verbs: the store, the catalog of kinds, the clock and generators of names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.server.event_versions.event_store import V1_RESOURCE as EVENT_V1_RESOURCE
from lattice.server.event_versions.event_store import EventV1Store
from lattice.server.requests.catalog import Catalog, ServedKind
from lattice.server.resources.watch_frames import WatchFrameCache
from lattice.server.resources.write_retries import WriteLocks
from lattice.store.protocol import Store


@dataclass
class Api:
    """The objects that verb handlers use; `app` and the simulator build an Api."""

    store: Store
    catalog: Catalog
    clock: Clock
    new_uid: Callable[[], str]
    new_suffix: Callable[[], str]
    # 0 to 1; spreads the ends of long watches over time.
    jitter: Callable[[], float] = lambda: 1.0
    # Stores of resources that the API serves but never writes, by resource.
    read_only_stores: Mapping[str, Store] = field(default_factory=dict)
    watch_frames: WatchFrameCache = field(default_factory=WatchFrameCache)
    # The last read revision of a namespace, by name; the commit of a new object checks the revision.
    namespace_revisions: dict[str, int] = field(default_factory=dict)

    # Built in `__post_init__`, with the clock and the jitter of this Api.
    write_locks: WriteLocks = field(init=False)

    def __post_init__(self) -> None:
        self.write_locks = WriteLocks(self.clock, lambda: self.jitter())

    def store_of(self, served: ServedKind) -> Store:
        """The store that holds the objects of a kind, in the form of the kind."""
        if served.resource.id == EVENT_V1_RESOURCE:
            return EventV1Store(self.store)
        return self.read_only_stores.get(served.resource.id, self.store)

    def now(self) -> str:
        return format_timestamp(self.clock.now())
