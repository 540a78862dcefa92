"""Bindings that came to nothing: told on the workload with the reason, once in a while, so that a storm of rivals is no storm of events."""

from dataclasses import dataclass, field

from lattice.controllers.scheduler.binding_records import Deeds
from lattice.kinds.workload import LatticeWorkload
from lattice.store.protocol import MAX_OPERATIONS

QUIET = 60.0  # seconds between two events about one workload; the second says how often it failed meanwhile

PAUSE = 1.0  # seconds between two commits of such events
MOST = 1000  # workloads that wait to be told of; those beyond are only counted


@dataclass(slots=True)
class _Lost:
    why: str = ""
    count: int = 0  # since it was told of
    told: float = float("-inf")  # monotonic


@dataclass
class BindFailures:
    deeds: Deeds
    _lost: dict[str, _Lost] = field(default_factory=dict)
    _due: dict[str, None] = field(default_factory=dict)
    _last: float = float("-inf")  # when something was told, monotonic

    def note(self, workload: str, node: str, why: str) -> None:
        lost = self._lost.setdefault(workload, _Lost())
        lost.why, lost.count = f"not bound to node {node}: {why}", lost.count + 1
        if lost.told + QUIET <= self.deeds.office.clock.monotonic() and len(self._due) < MOST:
            self._due[workload] = None

    @property
    def waiting(self) -> int:
        """Workloads that are still to be told of."""
        return len(self._due)

    @property
    def next_at(self) -> float | None:
        """When there is something to tell, on the monotonic clock; None: there is nothing."""
        return max(self._last + PAUSE, self.deeds.office.clock.monotonic()) if self._due else None

    async def tell(self) -> None:
        """As many as one commit takes, once a second; the others the next time."""
        office, now = self.deeds.office, self.deeds.office.clock.monotonic()
        if not self._due or now < self._last + PAUSE:
            return
        self._last = now
        names = list(self._due)[:MAX_OPERATIONS]
        copy = office.copy(LatticeWorkload)
        found = {name: workload for name in names if (workload := copy.get(name)) is not None}
        if found:
            await office.commit(
                [
                    self.deeds.binding_failed(each, self._lost[name].why, self._lost[name].count)
                    for name, each in found.items()
                ]
            )
        for name in names:
            del self._due[name]
            self._lost[name].count, self._lost[name].told = 0, now
        if not self._due:
            self._lost = {name: lost for name, lost in self._lost.items() if lost.told + QUIET > now}
