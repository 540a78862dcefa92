"""Supply -> its status: what of each pool, cloud, data center and cluster is in use, what that costs, and what is wrong with it.

All of it at once, seldom: one look serves every object, and a busy fleet is looked at no more than every few seconds.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.services.aside import aside
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, path_of, with_status
from lattice.kinds.meta.base import Kind, Status
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.fleet import Fleet
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.status.supply_status import statuses, steadied, uses
from lattice.placement.model.world import World, key
from lattice.store.protocol import Write

ALL = "supply"  # the one key
PAUSE = 2.0  # seconds between two looks
SHARE = 20  # and at least so many times as long as the last one took: a large fleet must not be all there is to think about
MONEY_MOVES = 3600.0  # seconds after which spending is looked at, though nothing has changed
PLACES = (
    LatticePool,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticeNodeClass,
    LatticeCluster,
    LatticeLedger,
)


@dataclass
class Supply:
    """`adapters`: providers that machines can be had from here; `book`: the prices of the day."""

    office: Office
    adapters: frozenset[str]
    book: Callable[[], PriceBook] = PriceBook.builtin
    pause: float = PAUSE
    aside: Callable[[Callable[[], Fleet]], Awaitable[Fleet]] = (
        aside  # where to think: thousands of machines take a while
    )
    name: str = "supply"
    _looked: float = field(default=float("-inf"))
    _took: float = 0.0

    def loop(self) -> Loop:
        watched = (*PLACES, Secret, LatticeWorkload)
        sources = tuple(Source(self.office.copy(kind), lambda _: (ALL,)) for kind in watched)
        return Loop(
            self,
            self.office.clock,
            self.office.rng,
            lambda: (ALL,),
            sources,
            Pace(workers=1, resync=MONEY_MOVES),
        )

    async def reconcile(self, key: str) -> Again | None:
        now = self.office.clock.monotonic()
        if (wait := self._looked + max(self.pause, SHARE * self._took) - now) > 0:
            return Again(wait)
        self._looked = now
        world = self._world()
        fleet = await self.aside(world.fleet)
        used = uses(each for each in self.office.copy(LatticeWorkload).all() if each.spec.cluster)
        secrets = self.office.copy(Secret)
        found = statuses(world, fleet, lambda namespace, name: secrets.get(f"{namespace}/{name}"), used)
        groups = [[write] for each, status in found if (write := self._write(each, status)) is not None]
        self._took = (
            self.office.clock.monotonic() - now
        )  # thinking: a store that is slow for once is no reason to look seldom
        await self.office.commit_each(groups)
        return None

    def _world(self) -> World:
        objects = [each for kind in PLACES for each in self.office.copy(kind).all()]
        return World(
            {key(each): each for each in objects},
            self.book(),
            now=self.office.clock.now(),
            adapters=self.adapters,
        )

    def _write(self, each: Kind, status: Status) -> Write | None:
        before: Status = each.status  # type: ignore[attr-defined]
        if status.conditions is not before.conditions:
            status = msgspec.structs.replace(
                status, conditions=conditioned(before.conditions, status.conditions, self.office.now)
            )
        entry = self.office.copy(type(each)).entry(path_of(each))
        status = steadied(before, status)
        return None if entry is None or status == before else with_status(entry, status)
