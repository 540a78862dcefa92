"""Turns for the surge replica of a service: if several draining nodes need it, one drain after another may
use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# A drain without progress loses the surge replica after this time.
SURGE_TURN_S = 300.0


class SurgeTurn(NamedTuple):
    """Which of several draining nodes may use the service's surge replica now."""

    node: str
    ends_at: float


@dataclass
class SurgeTurns:
    """The drains that wait for the surge replica of a service, and the drain that may use it now.

    The class only orders the drains and decides no eviction: the workload that waits for the surge replica
    stays until the drain may evict it.
    """

    monotonic: Callable[[], float]
    # By path of the node: services that need a surge replica, with the workload that waits for the surge.
    _waiting: dict[str, Mapping[str, str]] = field(default_factory=dict)
    # By path of the service: the drain that may use the surge replica now.
    _turns: dict[str, SurgeTurn] = field(default_factory=dict)

    def surges(self) -> dict[str, str]:
        """Services, by path, that need a surge replica before a drain can go on, each with a workload that
        waits for the surge.

        Of several draining nodes, one node keeps the surge until its drain ends or its turn expires.
        """
        return {service: self._waiting[turn.node][service] for service, turn in self._turns.items()}

    def update(self, node: str, surges: Mapping[str, str] | None, *, is_unschedulable: bool) -> set[str]:
        """Record the surge replicas that the node waits for now. Return the services that the node starts or
        stops to wait for, and the services whose turn passes to another workload.

        `surges` holds the waiting workload by service; None if the node no longer waits.
        """
        previous, previous_of_node = self.surges(), self._waiting.pop(node, {})
        if surges is not None:
            self._waiting[node] = surges
        for service in {**previous_of_node, **(surges or {})}:
            now = self.monotonic()
            waiting = sorted(key for key, services in self._waiting.items() if service in services)
            turn = self._turns.pop(service, SurgeTurn("", now))
            # A drain whose surge replica fits nowhere makes no progress: its turn is not extended, and
            # another drain gets the next turn.
            is_extended = turn.node == node and not is_unschedulable
            # A later drain must not take over a running turn: otherwise the surge replica would move between
            # clusters (I-33).
            if turn.node in waiting and (is_extended or now < turn.ends_at):
                self._turns[service] = SurgeTurn(turn.node, now + SURGE_TURN_S) if is_extended else turn
            elif waiting:
                # The next node by name, and after the last name the first: every draining node gets a turn.
                next_node = next((key for key in waiting if key > turn.node), waiting[0])
                self._turns[service] = SurgeTurn(next_node, now + SURGE_TURN_S)
        reassigned = {service for service, path in self.surges().items() if previous.get(service) != path}
        return ({*previous_of_node} ^ {*(surges or {})}) | reassigned
