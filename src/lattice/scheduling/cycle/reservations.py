"""Reservations hold the resources of a node for a workload between its scheduling decision and its binding."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from lattice.errors import Conflict
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import GPU, WorkloadAsk

RESERVATION_TIMEOUT_S = 30.0  # the default of the profile


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
    """Why a reservation was not made, or is no longer valid."""

    workload: str
    reason: str


@dataclass(slots=True)
class Reservations:
    """The reservations of one scheduler. Reserving allocates resources in the node table, releasing frees
    them.

    Reservation ids are unique among schedulers with different holder names.
    """

    table: NodeTable
    holder: str = "scheduler"
    timeout: float = RESERVATION_TIMEOUT_S
    # Reservations that are being written to the store; only the writer releases them.
    in_flight: set[str] = field(default_factory=set)
    # Reservations that were withdrawn while in flight; the writer releases them if its write fails.
    _withdrawn: set[str] = field(default_factory=set)
    _by_id: dict[str, tuple[Reservation, Placement]] = field(default_factory=dict)
    # (expiry, number, id), a heap; items of released reservations stay until their expiry.
    _by_expiry: list[tuple[float, int, str]] = field(default_factory=list)
    _last_number: int = 0

    def reserve(self, ask: WorkloadAsk, row: int, now: float) -> Reservation | ReservationRejection:
        """Reserve the resources of a node for a workload."""
        if ask.name in self.table.placements:
            where = self.table.names[self.table.placements[ask.name].row]
            return ReservationRejection(ask.name, f"resources are already reserved on node {where}")
        try:
            placement = self.table.assume(ask, row)
        except Conflict as problem:
            return ReservationRejection(ask.name, problem.message)
        needs = [(self.table.resources[resource], amount) for resource, amount in ask.needs]
        if ask.demands.gpu:
            needs.append((GPU, ask.demands.gpu.total_milli))
        self._last_number += 1
        reservation = Reservation(
            f"{self.holder}-{self._last_number}",
            ask.name,
            self.table.names[placement.row],
            tuple(needs),
            now + self.timeout,
        )
        self._by_id[reservation.id] = (reservation, placement)
        heappush(self._by_expiry, (reservation.expires_at, self._last_number, reservation.id))
        return reservation

    def get(self, reservation: str) -> Reservation | None:
        entry = self._by_id.get(reservation)
        return entry[0] if entry else None

    def confirm(self, reservation: str, now: float) -> Reservation | ReservationRejection:
        """Confirm a reservation: the resources stay with the workload. An expired reservation is rejected and
        released."""
        entry, reason = self.get(reservation), self.rejection_reason(reservation, now)
        if entry is None or reason:
            self.release(reservation)
            return ReservationRejection(entry.workload if entry else "", reason)
        del self._by_id[reservation]
        self.table.commit(entry.workload)
        return entry

    def confirm_bound(self, reservation: str) -> bool:
        """Confirm the reservation of a workload that is bound, even after its expiry; False if the resources
        are no longer reserved."""
        self._withdrawn.discard(reservation)
        entry, placement = self._by_id.pop(reservation, (None, None))
        if entry is None or placement is None or not self._is_current(placement):
            return False
        self.table.commit(entry.workload)
        return True

    def rejection_reason(self, reservation: str, now: float) -> str:
        """Why `confirm` would reject the reservation now; "" if it would not. Nothing changes."""
        entry = self._by_id.get(reservation)
        if entry is None:
            return f"reservation {reservation} not found: released, confirmed or never created"
        details, placement = entry
        if reservation in self._withdrawn:
            return f"reservation {reservation} was withdrawn"
        if details.is_expired(now):
            return f"reservation {reservation} expired {now - details.expires_at:.1f} s ago"
        return "" if self._is_current(placement) else f"node {details.node} or the workload was removed"

    def release(self, reservation: str) -> bool:
        """Release a reservation and free its resources; False if the reservation does not exist."""
        self._withdrawn.discard(reservation)
        entry = self._by_id.pop(reservation, None)
        if entry is None:
            return False
        if self._is_current(entry[1]):
            self.table.forget(entry[0].workload)
        return True

    def withdraw(self, reservation: str) -> None:
        """Release a reservation. If the reservation is in flight, the writer releases it after its write has
        failed, because until then the workload may be bound."""
        if reservation in self.in_flight:
            self._withdrawn.add(reservation)
        else:
            self.release(reservation)

    def expire(self, now: float) -> list[Reservation]:
        """Release the expired reservations, and return them in order of expiry. A reservation that is being
        written stays, because it may be bound."""
        expired, in_flight = [], []
        while self._by_expiry and self._by_expiry[0][0] <= now:
            entry = heappop(self._by_expiry)
            reservation = self.get(entry[2])
            if reservation is not None and reservation.id in self.in_flight:
                in_flight.append(entry)
            elif reservation is not None:
                self.release(reservation.id)
                expired.append(reservation)
        for entry in in_flight:
            heappush(self._by_expiry, entry)
        return expired

    def __len__(self) -> int:
        return len(self._by_id)

    def _is_current(self, placement: Placement) -> bool:
        """Whether the table still has this very placement. Otherwise the node is gone, or the workload was
        moved, evicted or bound by a different writer."""
        return self.table.placements.get(placement.ask.name) is placement
