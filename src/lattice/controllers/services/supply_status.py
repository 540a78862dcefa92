"""Supply -> its status: what of each pool, cloud, data center and cluster is in use, what that costs, and what is wrong with it.

All of it at once, seldom: one look serves every object, and a busy fleet is looked at no more than every few seconds.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.runtime.background import run_in_background
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import merge_conditions, path_of, with_status
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind, Status
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World, object_key
from lattice.placement.status.supply_status import supply_statuses, usage_by_cluster, without_minor_spend
from lattice.store.protocol import Write

SUPPLY_KEY = "supply"  # the one key
SUPPLY_INTERVAL_S = 2.0  # seconds between two looks
MIN_IDLE_RATIO = 20  # and at least so many times as long as the last one took: a large fleet must not be all there is to think about
SPEND_RESYNC_S = 3600.0  # seconds after which spending is looked at, though nothing has changed
SUPPLY_KINDS = (
    LatticePool,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticeNodeClass,
    LatticeCluster,
    LatticeLedger,
)


@dataclass
class SupplyStatusController:
    """`adapters`: providers that machines can be had from here; `book`: the prices of the day."""

    context: ControllerContext
    adapters: frozenset[str]
    price_book: Callable[[], PriceBook] = PriceBook.builtin
    min_interval_s: float = SUPPLY_INTERVAL_S
    run_in_background: Callable[[Callable[[], Fleet]], Awaitable[Fleet]] = (
        run_in_background  # where to think: thousands of machines take a while
    )
    name: str = "supply"
    _last_run_at: float = field(default=float("-inf"))
    _last_duration_s: float = 0.0

    def loop(self) -> Loop:
        watched = (*SUPPLY_KINDS, Secret, LatticeWorkload)
        sources = tuple(Source(self.context.cache(kind), lambda _: (SUPPLY_KEY,)) for kind in watched)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: (SUPPLY_KEY,),
            sources,
            Concurrency(workers=1, resync_s=SPEND_RESYNC_S),
        )

    async def reconcile(self, key: str) -> Requeue | None:
        now = self.context.clock.monotonic()
        if (
            wait := self._last_run_at + max(self.min_interval_s, MIN_IDLE_RATIO * self._last_duration_s) - now
        ) > 0:
            return Requeue(wait)
        self._last_run_at = now
        world = self._world()
        fleet = await self.run_in_background(world.build_fleet)
        used = usage_by_cluster(
            each for each in self.context.cache(LatticeWorkload).objects() if each.spec.cluster
        )
        secrets = self.context.cache(Secret)
        found = supply_statuses(
            world, fleet, lambda namespace, name: secrets.get(f"{namespace}/{name}"), used
        )
        groups = [[write] for each, status in found if (write := self._write(each, status)) is not None]
        self._last_duration_s = (
            self.context.clock.monotonic() - now
        )  # thinking: a store that is slow for once is no reason to look seldom
        await self.context.commit_groups(groups)
        return None

    def _world(self) -> World:
        objects = [each for kind in SUPPLY_KINDS for each in self.context.cache(kind).objects()]
        return World(
            {object_key(each): each for each in objects},
            self.price_book(),
            now=self.context.clock.now(),
            adapters=self.adapters,
        )

    def _write(self, each: Kind, status: Status) -> Write | None:
        before: Status = each.status  # type: ignore[attr-defined]
        if status.conditions is not before.conditions:
            status = msgspec.structs.replace(
                status,
                conditions=merge_conditions(before.conditions, status.conditions, self.context.timestamp),
            )
        entry = self.context.cache(type(each)).entry(path_of(each))
        status = without_minor_spend(before, status)
        return None if entry is None or status == before else with_status(entry, status)
