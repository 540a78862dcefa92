"""Which services can spare replicas so that others of higher priority get room, and since when can one spare more?"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lattice.controllers.runtime.context import ControllerContext
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import (
    DisruptionBudget,
    disruptions_allowed,
    service_availability,
    service_path,
    workload_path,
)


@dataclass
class DisruptionBudgets:
    """`displaced`: who was told to make room and may not be marked yet; `leaving`: why a workload must leave for another reason."""

    context: ControllerContext
    victims: Callable[[], Collection[str]]
    eviction_reason: Callable[[LatticeWorkload], str] = lambda _: ""
    _queried: dict[str, int] = field(
        default_factory=dict
    )  # services that somebody may wait for, and what they could spare
    _changed_services: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = DisruptionBudget(self._allowed_disruptions)

    def reset(self) -> None:
        """What is decided from now on is decided by what is known now."""
        self.budget.clear()

    def note_workload(self, workload: LatticeWorkload | None) -> None:
        if self._queried and workload is not None and (service := service_path(workload)) in self._queried:
            self._changed_services.add(service)

    def note_service(self, service: str) -> bool:
        """It changed: whether anybody may wait for it."""
        if service in self._queried:
            self._changed_services.add(service)
        return service in self._queried

    def has_eased(self, is_awaited: bool) -> bool:
        """Can any of those that were asked about spare more than it could? What nobody waits for is forgotten."""
        if not is_awaited:
            self._queried.clear()
        before = {service: self._queried.get(service, 0) for service in self._changed_services if is_awaited}
        self._changed_services.clear()
        return any(
            now is None or now > spare
            for service, spare in before.items()
            for now in [self._allowed_disruptions(service)]
        )

    def _allowed_disruptions(self, service: str) -> int | None:
        found = self.context.cache(LatticeService).get(service)
        if found is None:
            return None
        replicas, displaced = self.context.cache(LatticeWorkload).by_index("service", service), self.victims()
        told = {
            path
            for each in replicas
            if (path := workload_path(each)) in displaced or self.eviction_reason(each)
        }
        spare = self._queried[service] = disruptions_allowed(service_availability(found, replicas, told))
        return spare
