"""What verbs need of the world: the store, the kinds, time and new names, all handed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.clock import Clock, format_timestamp
from lattice.server.requests.catalog import Catalog, ServedKind
from lattice.server.resources.watch_frames import WatchFrameCache
from lattice.store.protocol import Store


@dataclass
class Api:
    store: Store
    catalog: Catalog
    clock: Clock
    new_uid: Callable[[], str]
    new_suffix: Callable[[], str]
    jitter: Callable[[], float] = lambda: 1.0  # 0..1, so that what could happen all at once does not
    read_only_stores: Mapping[str, Store] = field(
        default_factory=dict
    )  # resource -> store of what is served but never written here
    watch_frames: WatchFrameCache = field(default_factory=WatchFrameCache)
    namespace_revisions: dict[str, int] = field(
        default_factory=dict
    )  # name -> revision last seen; the commit checks it

    def store_of(self, served: ServedKind) -> Store:
        return self.read_only_stores.get(served.resource.id, self.store)

    def now(self) -> str:
        return format_timestamp(self.clock.now())
