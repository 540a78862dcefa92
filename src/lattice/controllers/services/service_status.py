"""Service -> how its replicas are: counts, a phase, a condition."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import merge_conditions, path_of, with_status
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.status.service_status import status_with_health
from lattice.store.protocol import Change

STATUS_INTERVAL_S = (
    0.5  # seconds between two looks at one service: thousands of replicas that start are told of in a few
)
INTERVAL_PER_REPLICA_S = 0.0001  # seconds more for each of its replicas: that many take longer to count


@dataclass
class ServiceStatusController:
    context: ControllerContext
    name: str = "status"

    def __post_init__(self) -> None:
        self._services, self._workloads = (
            self.context.cache(LatticeService),
            self.context.cache(LatticeWorkload),
        )
        self._next_update_at: dict[str, float] = {}  # when a service may be looked at again

    def loop(self) -> Loop:
        sources = (Source(self._services), Source(self._workloads, self._keys_for_workload))
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(each) for each in self._services.objects()],
            sources,
        )

    def _keys_for_workload(self, change: Change) -> Iterable[str]:
        found = self._workloads.get(change.key.path) or self._workloads.previous_object
        return (
            (f"{change.key.namespace}/{found.spec.service}",)
            if found is not None and found.spec.service
            else ()
        )

    async def reconcile(self, key: str) -> Requeue | None:
        service, entry = self._services.get(key), self._services.entry(key)
        if service is None or entry is None:
            self._next_update_at.pop(key, None)
            return None
        now = self.context.clock.monotonic()
        if (wait := self._next_update_at.get(key, now) - now) > 0:
            return Requeue(wait)
        replicas = self._workloads.by_index("service", key)
        found = status_with_health(service, replicas)
        status = msgspec.structs.replace(
            found,
            conditions=merge_conditions(service.status.conditions, found.conditions, self.context.timestamp),
        )
        if status != service.status:
            self._next_update_at[key] = now + STATUS_INTERVAL_S + INTERVAL_PER_REPLICA_S * len(replicas)
            await self.context.commit([with_status(entry, status)])
        return None
