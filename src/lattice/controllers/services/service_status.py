"""Service -> how its replicas are: counts, a phase, a condition."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.loop import Again, Loop, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, path_of, with_status
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.status.health import with_health
from lattice.store.protocol import Change

PAUSE = 0.5  # seconds between two looks at one service: thousands of replicas that start are told of in a few
EACH = 0.0001  # seconds more for each of its replicas: that many take longer to count


@dataclass
class Statuses:
    office: Office
    name: str = "status"

    def __post_init__(self) -> None:
        self._services, self._workloads = self.office.copy(LatticeService), self.office.copy(LatticeWorkload)
        self._due: dict[str, float] = {}  # when a service may be looked at again

    def loop(self) -> Loop:
        sources = (Source(self._services), Source(self._workloads, self._of_workload))
        return Loop(
            self,
            self.office.clock,
            self.office.rng,
            lambda: [path_of(each) for each in self._services.all()],
            sources,
        )

    def _of_workload(self, change: Change) -> Iterable[str]:
        found = self._workloads.get(change.key.path) or self._workloads.before
        return (
            (f"{change.key.namespace}/{found.spec.service}",)
            if found is not None and found.spec.service
            else ()
        )

    async def reconcile(self, key: str) -> Again | None:
        service, entry = self._services.get(key), self._services.entry(key)
        if service is None or entry is None:
            self._due.pop(key, None)
            return None
        now = self.office.clock.monotonic()
        if (wait := self._due.get(key, now) - now) > 0:
            return Again(wait)
        replicas = self._workloads.by("service", key)
        found = with_health(service, replicas)
        status = msgspec.structs.replace(
            found, conditions=conditioned(service.status.conditions, found.conditions, self.office.now)
        )
        if status != service.status:
            self._due[key] = now + PAUSE + EACH * len(replicas)
            await self.office.commit([with_status(entry, status)])
        return None
