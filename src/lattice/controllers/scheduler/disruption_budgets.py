"""Disruption budgets of services for preemption: how many replicas a service can lose, and whether a service
allows more disruptions than before."""

from dataclasses import dataclass, field

from lattice.controllers.runtime.context import ControllerContext
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.lifecycle.disruption import DisruptionBudget, disruptions_allowed, service_availability
from lattice.lifecycle.eviction import DecidedEvictions


@dataclass
class DisruptionBudgets:
    """The allowed disruptions of services, from caches and from evictions that are not stored yet.

    No eviction depends on the remembered services and numbers. They only determine when the workloads that
    wait for more disruptions wake.
    """

    context: ControllerContext
    evictions: DecidedEvictions
    # Services that preemption asked about, with the disruptions that were allowed then: a workload may wait
    # for further disruptions.
    _queried: dict[str, int] = field(default_factory=dict)
    _changed_services: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = DisruptionBudget(self._allowed_disruptions)

    def reset(self) -> None:
        """Forget cached budgets, so that the next cycle decides on current state."""
        self.budget.clear()

    def note_workload(self, workload: LatticeWorkload | None) -> None:
        """Note a change of a workload whose service preemption asked about."""
        if self._queried and workload is not None and (service := service_path(workload)) in self._queried:
            self._changed_services.add(service)

    def note_service(self, service: str) -> bool:
        """Note a change of a service; return whether preemption asked about the service."""
        if service in self._queried:
            self._changed_services.add(service)
        return service in self._queried

    def has_eased(self, is_awaited: bool) -> bool:
        """Whether a changed service allows more disruptions than before. `is_awaited` says whether a workload
        waits for that; if none does, all services are forgotten."""
        if not is_awaited:
            self._queried.clear()
        previous = {
            service: self._queried.get(service, 0) for service in self._changed_services if is_awaited
        }
        self._changed_services.clear()
        for service, previous_spare in previous.items():
            spare = self._allowed_disruptions(service)
            # None: the service is deleted, and its limit with it.
            if spare is None or spare > previous_spare:
                return True
        return False

    def _allowed_disruptions(self, service: str) -> int | None:
        """The number of replicas that the service can lose now; None if the service does not exist."""
        current = self.context.cache(LatticeService).get(service)
        if current is None:
            return None
        replicas = self.context.cache(LatticeWorkload).by_index("service", service)
        availability = service_availability(current, replicas, self.evictions)
        spare = self._queried[service] = disruptions_allowed(availability)
        return spare
