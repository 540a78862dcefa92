"""The surge replica of a service, of which several draining nodes can need one at the same time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# A drain that makes no progress gives the surge replica to another drain after so long.
SURGE_TURN_S = 300.0


class SurgeTurn(NamedTuple):
    """The node whose drain gets the surge replica of a service, of several draining nodes."""

    node: str
    ends_at: float


@dataclass
class SurgeTurns:
    """Which draining node gets the surge replica of a service.

    This is a queue of drains and no state of an eviction: the workload that waits for the surge replica stays
    until the drain may evict it.
    """

    monotonic: Callable[[], float]
    # By path of the node: services that need a surge replica, with the workload that waits for the surge.
    _waiting: dict[str, Mapping[str, str]] = field(default_factory=dict)
    # By path of the service.
    _turns: dict[str, SurgeTurn] = field(default_factory=dict)

    def surges(self) -> dict[str, str]:
        """Services, by path, that need a surge replica before a drain can go on, each with a workload that
        waits for the surge.

        Of several draining nodes, one node keeps the surge until its drain ends, so that the surge is not
        given up for another node.
        """
        return {service: self._waiting[turn.node][service] for service, turn in self._turns.items()}

    def update(self, node: str, surges: Mapping[str, str] | None, *, is_unschedulable: bool) -> set[str]:
        """Replace the surges that the node waits for, and return the services whose surge changes; None: the
        node waits for nothing any more."""
        previous, previous_of_node = self.surges(), self._waiting.pop(node, {})
        if surges is not None:
            self._waiting[node] = surges
        for service in {**previous_of_node, **(surges or {})}:
            # A drain whose surge replica fits nowhere makes no progress, so the turn is not extended and
            # passes on.
            self._assign(service, "" if is_unschedulable else node)
        reassigned = {service for service, path in self.surges().items() if previous.get(service) != path}
        return ({*previous_of_node} ^ {*(surges or {})}) | reassigned

    def _assign(self, service: str, active_node: str) -> None:
        """Give the surge replica of a service to the next draining node, once the current drain ends or its
        turn expires.

        `active_node` is a node whose drain makes progress, which extends the turn of the node.
        """
        now = self.monotonic()
        waiting = sorted(key for key, services in self._waiting.items() if service in services)
        turn = self._turns.pop(service, SurgeTurn("", now))
        # A later drain must not take over a running turn: its surge replica would move between clusters
        # (I-33).
        if turn.node in waiting and (now < turn.ends_at or turn.node == active_node):
            if turn.node == active_node:
                turn = SurgeTurn(turn.node, now + SURGE_TURN_S)
            self._turns[service] = turn
        elif waiting:
            # The next node by name, then from the first name on: every draining node gets a turn.
            self._turns[service] = SurgeTurn(
                next((key for key in waiting if key > turn.node), waiting[0]), now + SURGE_TURN_S
            )
