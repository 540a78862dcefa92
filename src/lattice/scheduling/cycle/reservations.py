"""Whose is this room, and until when? Reservations hold it between deciding and binding."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from lattice.errors import Conflict
from lattice.scheduling.table.ask import GPU, WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement

RESERVATION_TIMEOUT_S = 30.0  # seconds a reservation lasts unless the profile says otherwise


@dataclass(frozen=True, slots=True)
class Reservation:
    id: str
    workload: str
    node: str
    needs: tuple[tuple[str, int], ...]  # by resource name
    expires_at: float

    def is_expired(self, now: float) -> bool:
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class ReservationRejection:
    """Why a reservation was not made, or is worth nothing any more."""

    workload: str
    reason: str


@dataclass(slots=True)
class Reservations:
    """Reserving takes room in the table, releasing gives it back. Ids are unique among all holders, if these have different names."""

    table: NodeTable
    holder: str = "scheduler"
    timeout: float = RESERVATION_TIMEOUT_S
    in_flight: set[str] = field(
        default_factory=set
    )  # being written: nobody but whoever writes them gives their room back
    _withdrawn: set[str] = field(default_factory=set)
    _by_id: dict[str, tuple[Reservation, Placement]] = field(default_factory=dict)
    _by_expiry: list[tuple[float, int, str]] = field(default_factory=list)
    _last_number: int = 0

    def reserve(self, ask: WorkloadAsk, row: int, now: float) -> Reservation | ReservationRejection:
        if ask.name in self.table.placements:
            where = self.table.names[self.table.placements[ask.name].row]
            return ReservationRejection(ask.name, f"it has room on node {where} already")
        try:
            return self._record(self.table.assume(ask, row), now)
        except Conflict as problem:
            return ReservationRejection(ask.name, problem.message)

    def _record(self, placement: Placement, now: float) -> Reservation:
        self._last_number += 1
        ask, node = placement.ask, self.table.names[placement.row]
        held = Reservation(
            f"{self.holder}-{self._last_number}",
            ask.name,
            node,
            named_needs(ask, self.table),
            now + self.timeout,
        )
        self._by_id[held.id] = (held, placement)
        heappush(self._by_expiry, (held.expires_at, self._last_number, held.id))
        return held

    def get(self, reservation: str) -> Reservation | None:
        found = self._by_id.get(reservation)
        return found[0] if found else None

    def confirm(self, reservation: str, now: float) -> Reservation | ReservationRejection:
        """The room is its workload's for good. Too late is refused, and the room is free again."""
        held, why = self.get(reservation), self.rejection_reason(reservation, now)
        if held is None or why:
            self.release(reservation)
            return ReservationRejection(held.workload if held else "", why)
        del self._by_id[reservation]
        self.table.commit(held.workload)
        return held

    def confirm_bound(self, reservation: str) -> bool:
        """As `confirm`, of what is bound already, whatever the time. False: the room is not held any more."""
        self._withdrawn.discard(reservation)
        held, placement = self._by_id.pop(reservation, (None, None))
        if held is None or placement is None or not self._is_current(placement):
            return False
        self.table.commit(held.workload)
        return True

    def rejection_reason(self, reservation: str, now: float) -> str:
        """Why confirming it would be refused now; "" if it would not be. Changes nothing."""
        found = self._by_id.get(reservation)
        if found is None:
            return f"no reservation {reservation}: it was released, confirmed or never made"
        held, placement = found
        if reservation in self._withdrawn:
            return f"reservation {reservation} was withdrawn"
        if held.is_expired(now):
            return f"reservation {reservation} expired {now - held.expires_at:.1f} s ago"
        return "" if self._is_current(placement) else f"node {held.node} or the workload is gone"

    def release(self, reservation: str) -> bool:
        """Give the room back. Once more changes nothing and says so."""
        self._withdrawn.discard(reservation)
        found = self._by_id.pop(reservation, None)
        if found is None:
            return False
        if self._is_current(found[1]):
            self.table.forget(found[0].workload)
        return True

    def withdraw(self, reservation: str) -> None:
        """Give the room back, or have that done by whoever writes it: until it is known to have failed it may be bound there."""
        if reservation in self.in_flight:
            self._withdrawn.add(reservation)
        else:
            self.release(reservation)

    def expire(self, now: float) -> list[Reservation]:
        """Those whose time is over, released, in the order in which it ran out; but not what is being written, which may be bound."""
        over, busy = [], []
        while self._by_expiry and self._by_expiry[0][0] <= now:
            first = heappop(self._by_expiry)
            held = self.get(first[2])
            if held is not None and held.id in self.in_flight:
                busy.append(first)
            elif held is not None:
                self.release(held.id)
                over.append(held)
        for each in busy:
            heappush(self._by_expiry, each)
        return over

    def __len__(self) -> int:
        return len(self._by_id)

    def _is_current(self, placement: Placement) -> bool:
        """The very same placement: the node may have gone meanwhile, or the workload may have been moved, evicted or bound by others."""
        return self.table.placements.get(placement.ask.name) is placement


def named_needs(ask: WorkloadAsk, table: NodeTable) -> tuple[tuple[str, int], ...]:
    needs = [(table.resources[resource], amount) for resource, amount in ask.needs]
    if ask.demands.gpu:
        needs.append((GPU, ask.demands.gpu.total_milli))
    return tuple(needs)
