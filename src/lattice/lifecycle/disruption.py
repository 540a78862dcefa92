"""Availability and disruption budgets of services: how many replicas may be evicted at the same time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.service import PLACED_CONDITION, PROGRESSING_CONDITION, ROLLOUT_COMPLETE, LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import DecidedEvictions, is_available
from lattice.lifecycle.workload import desired_state


@dataclass(frozen=True, slots=True)
class ServiceAvailability:
    """Availability of a service over all nodes."""

    # Ready replicas that are not being evicted.
    available: int
    # The number of replicas that must stay available.
    min_available: int
    # Replicas that leave their nodes or are about to.
    evicting: int = 0
    # More replicas exist than were placed: a rollout or scale-down is about to remove some.
    is_changing: bool = False
    # Why the update or the scale-down does not go on, if it does not.
    change_blocker: str = ""
    # The reason why a replica of the service is unschedulable, if there is such a replica.
    unschedulable_reason: str = ""


def service_availability(
    service: LatticeService | None,
    replicas: Iterable[LatticeWorkload],
    evictions: DecidedEvictions,
    *,
    is_surged: bool = False,
) -> ServiceAvailability:
    """Count the available and the evicting replicas of a service; no replica counts as both.

    `is_surged`: a surge replica was requested for a drain, and does not count as a replica to remove.
    """
    available = evicting_count = live = 0
    for replica in replicas:
        live += desired_state(replica) != "Deleted"
        eviction = evictions.eviction_of(replica)
        if not eviction.is_active:
            available += is_available(replica)
        # The eviction of a replica that does not run is withdrawn if the replica recovers. Such an eviction
        # disrupts nothing, and counts only once the stop of the replica is ordered.
        elif not eviction.is_withdrawn_if_available:
            evicting_count += 1
    expected = _expected_replicas(service) if service else None
    is_changing = expected is not None and live > expected + is_surged
    progress = find_condition(service.status.conditions, PROGRESSING_CONDITION) if service else None
    is_blocked = progress is not None and progress.status == "False" and progress.reason != ROLLOUT_COMPLETE
    return ServiceAvailability(
        available,
        service.spec.min_replicas if service else 0,
        evicting_count,
        is_changing,
        progress.message if progress and is_changing and is_blocked else "",
    )


def _expected_replicas(service: LatticeService) -> int | None:
    """The number of replicas that remain once the placement of the service is carried out; None for a service
    without placement decisions.

    If the service has changed since its placement was decided, the result is the lower of the placed and the
    desired count, because placement has not chosen yet which replicas to remove (I-28). The replicas of a
    service that placement cannot place stay on their nodes, up to the desired count.
    """
    placed = sum(placement.replicas or 0 for placement in service.status.placements)
    condition = find_condition(service.status.conditions, PLACED_CONDITION)
    is_decided = condition is None or condition.observed_generation == service.metadata.generation
    if not placed:
        return None if condition is None else service.spec.desired_replicas()
    return placed if is_decided else min(placed, service.spec.desired_replicas())


def disruptions_allowed(availability: ServiceAvailability) -> int:
    """Return how many replicas of the service may be evicted now without falling below its minimum (I-28).

    No replica may be evicted while a rollout or scale-down replaces or removes replicas.
    """
    return 0 if availability.is_changing else max(0, availability.available - availability.min_available)


class DisruptionBudget(dict[str, int]):
    """Remaining disruptions by service path: looked up from `source` on first use, then counted down by the
    scheduler until cleared.

    `source` returns None for a service without a limit; such a service is not contained. An empty budget is
    truthy, because further services can be looked up.
    """

    def __init__(self, source: Callable[[str], int | None]) -> None:
        super().__init__()
        self._source = source

    def __bool__(self) -> bool:
        return True

    def __contains__(self, service: object) -> bool:
        if not isinstance(service, str) or not service:
            return False
        if not super().__contains__(service):
            limit = self._source(service)
            if limit is None:
                return False
            self[service] = limit
        return True
