"""What verbs need of the world: the store, the kinds, time and new names, all handed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.clock import Clock, stamp
from lattice.server.requests.catalog import Catalog, Served
from lattice.server.resources.watch_frames import Frames
from lattice.store.protocol import Store


@dataclass
class Api:
    store: Store
    catalog: Catalog
    clock: Clock
    new_uid: Callable[[], str]
    new_suffix: Callable[[], str]
    jitter: Callable[[], float] = lambda: 1.0  # 0..1, so that what could happen all at once does not
    fixed: Mapping[str, Store] = field(
        default_factory=dict
    )  # resource -> store of what is served but never written here
    frames: Frames = field(default_factory=Frames)
    namespaces: dict[str, int] = field(
        default_factory=dict
    )  # name -> revision last seen; the commit checks it

    def store_of(self, served: Served) -> Store:
        return self.fixed.get(served.resource.id, self.store)

    def now(self) -> str:
        return stamp(self.clock.now())
