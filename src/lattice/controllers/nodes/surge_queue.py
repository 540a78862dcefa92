"""The queue for the surge replica of a service: if several draining nodes need it, one drain after another may
use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# A drain without progress loses the surge replica after this time.
SURGE_HOLD_S = 300.0


class SurgeHolder(NamedTuple):
    """Which of several draining nodes may use the service's surge replica now."""

    node: str
    ends_at: float


@dataclass
class SurgeQueue:
    """The drains that wait for the surge replica of a service, and the drain that may use it now.

    The class only orders the drains and decides no eviction: the workload that waits for the surge replica
    stays until the drain may evict it.
    """

    monotonic: Callable[[], float]
    # By path of the node: services that need a surge replica, with the workload that waits for the surge.
    _waiting: dict[str, Mapping[str, str]] = field(default_factory=dict)
    # By path of the service: the drain that may use the surge replica now.
    _holders: dict[str, SurgeHolder] = field(default_factory=dict)

    def surges(self) -> dict[str, str]:
        """Services, by path, that need a surge replica before a drain can go on, each with a workload that
        waits for the surge.

        Of several draining nodes, one node keeps the surge until its drain ends or its hold expires.
        """
        return {service: self._waiting[holder.node][service] for service, holder in self._holders.items()}

    def update(self, node: str, surges: Mapping[str, str] | None, *, is_unschedulable: bool) -> set[str]:
        """Record the surge replicas that the node waits for now. Return the services that the node starts or
        stops to wait for, and the services whose surge replica passes to another workload.

        `surges` holds the waiting workload by service; None if the node no longer waits.
        """
        previous, previous_of_node = self.surges(), self._waiting.pop(node, {})
        if surges is not None:
            self._waiting[node] = surges
        for service in {**previous_of_node, **(surges or {})}:
            now = self.monotonic()
            waiting = sorted(key for key, services in self._waiting.items() if service in services)
            holder = self._holders.pop(service, SurgeHolder("", now))
            # A drain whose surge replica fits nowhere makes no progress: its hold is not extended, and
            # another drain gets the surge replica next.
            is_extended = holder.node == node and not is_unschedulable
            # A later drain must not take over a running hold: otherwise the surge replica would move between
            # clusters (I-33).
            if holder.node in waiting and (is_extended or now < holder.ends_at):
                self._holders[service] = (
                    SurgeHolder(holder.node, now + SURGE_HOLD_S) if is_extended else holder
                )
            elif waiting:
                # The next node by name, and after the last name the first: every draining node is served.
                next_node = next((key for key in waiting if key > holder.node), waiting[0])
                self._holders[service] = SurgeHolder(next_node, now + SURGE_HOLD_S)
        reassigned = {service for service, path in self.surges().items() if previous.get(service) != path}
        return ({*previous_of_node} ^ {*(surges or {})}) | reassigned
