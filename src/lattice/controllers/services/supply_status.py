"""Update the status of supply objects (pools, infrastructure, node classes and clusters): usage, cost and
conditions.

One reconcile updates every object; the interval between reconciles limits the load of a busy fleet.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.automation.webhook_queue import WebhookCall
from lattice.controllers.runtime.background import run_in_background
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.services.placement import MIN_IDLE_RATIO
from lattice.controllers.services.world_cache import AdapterLookup, WorldCache
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind, Status, path_of
from lattice.kinds.meta.conditions import merge_conditions
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.webhook import Notify
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.fleet import Fleet
from lattice.placement.status.crossings import Crossing, find_crossings
from lattice.placement.status.supply_status import supply_statuses, usage_by_cluster, without_minor_spend
from lattice.store.commit_packing import pack_writes
from lattice.store.protocol import Key, Write

# The single key of the controller.
SUPPLY_KEY = "supply"
# The shortest time between two reconciles.
SUPPLY_INTERVAL_S = 2.0
# The duration that a run counts with at first; the counted duration at most doubles from run to run.
FIRST_DURATION_S = 0.1
# Interval of the resync, because spending grows without a change of any object.
SPEND_RESYNC_S = 3600.0
SUPPLY_KINDS: tuple[type[Kind], ...] = (
    LatticePool,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticeNodeClass,
    LatticeCluster,
    LatticeLedger,
)


@dataclass
class SupplyStatusController:
    """Write the status of supply objects; `adapters` returns the providers with an adapter, `price_book`
    current prices."""

    context: ControllerContext
    adapters: AdapterLookup
    price_book: Callable[[], PriceBook] = PriceBook.builtin
    min_interval_s: float = SUPPLY_INTERVAL_S
    # Building the trial fleet, the model of all machines, takes long for thousands of machines and therefore
    # runs off the event loop.
    run_in_background: Callable[[Callable[[], Fleet]], Awaitable[Fleet]] = run_in_background
    # Queues a webhook call.
    notify: Callable[[WebhookCall], None] = lambda _: None
    name: str = "supply"
    _last_run_at: float = field(default=float("-inf"))
    _last_duration_s: float = 0.0

    def __post_init__(self) -> None:
        self._recorder = self.context.recorder("supply")
        self._world_cache = WorldCache(
            self.context, lambda: PricingTables(self.price_book()), self.adapters, SUPPLY_KINDS
        )

    def loop(self) -> Loop:
        watched: tuple[type[Kind], ...] = (*SUPPLY_KINDS, Secret, LatticeWorkload)
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
        interval_s = max(self.min_interval_s, MIN_IDLE_RATIO * self._last_duration_s)
        if (wait := self._last_run_at + interval_s - now) > 0:
            return Requeue(wait)
        self._last_run_at = now
        world = await self._world_cache.world(self.context.clock.now())
        fleet = await self.run_in_background(world.build_fleet)
        used = usage_by_cluster(
            workload for workload in self.context.cache(LatticeWorkload).objects() if workload.spec.cluster
        )
        secrets = self.context.cache(Secret)
        statuses = supply_statuses(
            world, fleet, lambda namespace, name: secrets.get(f"{namespace}/{name}"), used
        )
        groups: list[list[Write]] = []
        # By the key of the written object: the webhook calls that follow its commit.
        notices: dict[Key, list[WebhookCall]] = {}
        has_skipped = False
        for obj, status in statuses:
            previous: Status = obj.status  # type: ignore[attr-defined]
            cache = self.context.cache(type(obj))
            current, entry = cache.get(path_of(obj)), cache.entry(path_of(obj))
            if current is not obj and current != obj:
                # Another controller, or an earlier reconcile whose write arrived late, has written the object since
                # the world was read: a write would undo that, and report a crossing again.
                has_skipped = True
                continue
            if status.conditions is not previous.conditions:
                conditions = merge_conditions(previous.conditions, status.conditions, self.context.timestamp)
                status = msgspec.structs.replace(status, conditions=conditions)
            # Fractions of a cent accrue all the time and are no reason to write (I-33).
            status = without_minor_spend(previous, status)
            if entry is not None and status != previous:
                crossings = list(find_crossings(previous, status))
                # The events are in the commit of the status: no crossing is lost, and none is reported twice.
                events = [
                    self._recorder.event(obj, crossing.reason, crossing.message, warning=crossing.is_up)
                    for crossing in crossings
                ]
                groups.append([with_status(entry, status), *events])
                notices[entry.key] = list(self._notices(obj, crossings))
        # Measure the decision only: one slow commit is no reason for longer intervals.
        # One slow run, such as the first one of a busy server, must not lengthen the next interval to a minute.
        duration_s = self.context.clock.monotonic() - now
        self._last_duration_s = min(duration_s, 2 * self._last_duration_s + FIRST_DURATION_S)
        for batch in pack_writes(groups):
            # If the commit fails, the next reconcile finds its crossings again; those of earlier batches are stored
            # and therefore already queued.
            await self.context.commit(batch)
            for write in batch:
                for notice in notices.get(write.key, ()):
                    self.notify(notice)
        return Requeue(self.min_interval_s) if has_skipped else None

    def _notices(self, obj: Kind, crossings: Iterable[Crossing]) -> Iterator[WebhookCall]:
        """The calls of the webhook that the object names, one for each crossing."""
        notify: Notify | None = getattr(getattr(obj, "spec", None), "notify", None)
        if notify is None or notify.webhook is None:
            return
        path = f"{obj.resource.singular}/{obj.metadata.name}"
        for crossing in crossings:
            body = {
                "object": path,
                "region": crossing.region,
                "reason": crossing.reason,
                "condition": crossing.condition,
                "isCrossed": crossing.is_up,
                "message": crossing.message,
                "time": self.context.timestamp,
            }
            yield WebhookCall(obj, path, notify.webhook, body)
