"""Service -> how its replicas are: counts, a phase, a condition."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.loop import Again, Loop, Source
from lattice.controllers.office import Office
from lattice.controllers.record import conditioned, path_of, with_status
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.health import with_health
from lattice.store.protocol import Change

PAUSE = 0.5  # seconds between two writes about one service: thousands of replicas that start are told of in a few


@dataclass
class Statuses:
    office: Office
    name: str = "status"

    def __post_init__(self) -> None:
        self._services, self._workloads = self.office.copy(LatticeService), self.office.copy(LatticeWorkload)
        self._written: dict[str, float] = {}

    def loop(self) -> Loop:
        sources = (Source(self._services), Source(self._workloads, self._of_workload))
        return Loop(self, self.office.clock, self.office.rng, lambda: [path_of(each) for each in self._services.all()], sources)

    def _of_workload(self, change: Change) -> Iterable[str]:
        now = self._workloads.get(change.key.path)
        found = now or (msgspec.json.decode(change.previous.value, type=LatticeWorkload) if change.previous else None)
        return (f"{change.key.namespace}/{found.spec.service}",) if found is not None and found.spec.service else ()

    async def reconcile(self, key: str) -> Again | None:
        service, entry = self._services.get(key), self._services.entry(key)
        if service is None or entry is None:
            self._written.pop(key, None)
            return None
        now = self.office.clock.monotonic()
        if (wait := self._written.get(key, -PAUSE) + PAUSE - now) > 0:
            return Again(wait)
        found = with_health(service, self._workloads.by("service", key))
        status = msgspec.structs.replace(found, conditions=conditioned(service.status.conditions, found.conditions, self.office.now))
        if status != service.status:
            self._written[key] = now
            await self.office.commit([with_status(entry, status)])
        return None
