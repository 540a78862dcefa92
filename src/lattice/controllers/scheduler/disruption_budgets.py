"""Which services can spare replicas so that others of higher priority get room, and since when can one spare more?"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lattice.controllers.runtime.context import Office
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.allowance import Allowance, may_displace
from lattice.lifecycle.eviction import path_of, service_of, standing


@dataclass
class Disruptions:
    """`displaced`: who was told to make room and may not be marked yet; `leaving`: why a workload must leave for another reason."""

    office: Office
    displaced: Callable[[], Collection[str]]
    leaving: Callable[[LatticeWorkload], str] = lambda _: ""
    _asked: dict[str, int] = field(
        default_factory=dict
    )  # services that somebody may wait for, and what they could spare
    _changed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.allowance = Allowance(self._ask)

    def renew(self) -> None:
        """What is decided from now on is decided by what is known now."""
        self.allowance.clear()

    def note(self, workload: LatticeWorkload | None) -> None:
        if self._asked and workload is not None and (service := service_of(workload)) in self._asked:
            self._changed.add(service)

    def note_service(self, service: str) -> bool:
        """It changed: whether anybody may wait for it."""
        if service in self._asked:
            self._changed.add(service)
        return service in self._asked

    def has_eased(self, is_awaited: bool) -> bool:
        """Can any of those that were asked about spare more than it could? What nobody waits for is forgotten."""
        if not is_awaited:
            self._asked.clear()
        before = {service: self._asked.get(service, 0) for service in self._changed if is_awaited}
        self._changed.clear()
        return any(
            now is None or now > spare for service, spare in before.items() for now in [self._ask(service)]
        )

    def _ask(self, service: str) -> int | None:
        found = self.office.copy(LatticeService).get(service)
        if found is None:
            return None
        replicas, displaced = self.office.copy(LatticeWorkload).by("service", service), self.displaced()
        told = {path for each in replicas if (path := path_of(each)) in displaced or self.leaving(each)}
        spare = self._asked[service] = may_displace(standing(found, replicas, told))
        return spare
