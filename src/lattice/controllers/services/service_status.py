"""Update the status of services: replica counts, phase and conditions from the workloads."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import merge_conditions
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.lifecycle.service_health import crash_report, service_health
from lattice.placement.status.fleet_status import status_with_health
from lattice.store.protocol import Change, Write

# The shortest time between two updates of one service: thousands of starting replicas cause few writes.
STATUS_INTERVAL_S = 0.5
# Added to the shortest time, in seconds per replica, because counting many replicas takes longer.
INTERVAL_PER_REPLICA_S = 0.0001


@dataclass
class ServiceStatusController:
    """Write the health of a service's replicas into the status of the service."""

    context: ControllerContext
    name: str = "status"

    def __post_init__(self) -> None:
        self._services = self.context.cache(LatticeService)
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder("services")
        # The monotonic time of the next update, by service.
        self._next_update_at: dict[str, float] = {}

    def loop(self) -> Loop:
        sources = (Source(self._services), Source(self._workloads, self.keys_for_workload))
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(service) for service in self._services.objects()],
            sources,
        )

    def keys_for_workload(self, change: Change) -> Iterable[str]:
        workload = self._workloads.get(change.key.path) or self._workloads.previous_object
        if workload is None or not workload.spec.service:
            return ()
        return (service_path(workload),)

    async def reconcile(self, key: str) -> Requeue | None:
        service, entry = self._services.get(key), self._services.entry(key)
        if service is None or entry is None:
            self._next_update_at.pop(key, None)
            return None
        now = self.context.clock.monotonic()
        # The requeue writes the latest counts once the interval is over.
        if (wait := self._next_update_at.get(key, now) - now) > 0:
            return Requeue(wait)
        replicas = self._workloads.by_index("service", key)
        health = service_health(service, replicas)
        crashes = crash_report(service, health, replicas)
        status = status_with_health(service, health, len(replicas))
        current = [*status.conditions, *([crashes.condition] if crashes else [])]
        conditions = merge_conditions(service.status.conditions, current, self.context.timestamp)
        status = msgspec.structs.replace(status, conditions=conditions)
        if status != service.status:
            self._next_update_at[key] = now + STATUS_INTERVAL_S + INTERVAL_PER_REPLICA_S * len(replicas)
            writes: list[Write] = [with_status(entry, status)]
            if crashes and crashes.event:
                writes.append(self._recorder.event(service, "ReplicaFailing", crashes.event, warning=True))
            await self.context.commit(writes)
        return None
