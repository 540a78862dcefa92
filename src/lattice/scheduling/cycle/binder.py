"""The binder makes bindings durable in one of three modes; every attempt ends with one event, and a second
rollback changes nothing."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from lattice.errors import LatticeError
from lattice.kinds.container import format_amount
from lattice.scheduling.cycle.reservations import Reservation, Reservations
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import GPU

NODE_LOCK_TTL_S = 10.0  # a lock of a scheduler that died is free after this time


class BindingMode(StrEnum):
    OPTIMISTIC = "optimistic"  # commit at once; if the node has changed, the attempt fails
    PESSIMISTIC = "pessimistic"  # lock the node, verify, commit, unlock
    TWO_PHASE = "two-phase"  # prepare a durable record of the reservation, then commit it


@dataclass(frozen=True, slots=True)
class BindRequest:
    workload: str
    node: str
    reservation: str
    needs: tuple[tuple[str, int], ...]  # by resource name
    expires_at: float  # end of the reservation: from then on, a prepared record may be removed


@dataclass(frozen=True, slots=True)
class StoredNodeState:
    """The state of a node in the binding store."""

    revision: int  # grows with every binding to the node
    free: Mapping[str, int]  # by resource name


class BindingStore(Protocol):
    """The durable side of binding. Every method is one atomic step."""

    async def read(self, node: str) -> StoredNodeState | None: ...

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        """Bind if the node is still at the expected revision, and return its new revision; else write nothing
        and return None."""
        ...

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        """Lock the node until the time `until`, and return a token; None while a different holder has the
        lock."""
        ...

    async def unlock(self, node: str, token: str) -> None:
        """Free the lock. A second or late call changes nothing."""
        ...

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        """Reserve the resources in a durable record without binding; expect and return node revisions as
        `try_commit` does."""
        ...

    async def commit_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """Bind all prepared requests in one write, and return an empty collection.

        If records are missing, write nothing and return the reservations without a record.
        """
        ...

    async def abort_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """Cancel the prepared reservations, and return the reservations that are bound.

        If the commit that decides for a gang has succeeded, the other members of the gang are bound, not
        cancelled. A bound reservation stays: its node may run the workload already, and a workload that is
        bound to a second node would run twice. A second call changes nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class ResourceUpdate:
    """The allocated amount of one resource of the node, without the workload and with it."""

    resource: str
    used_before: int
    used_after: int
    total: int


@dataclass(frozen=True, slots=True)
class BindEvent:
    """The outcome of one bind attempt. Every attempt has exactly one event."""

    workload: str
    node: str
    reservation: str
    mode: BindingMode
    outcome: Literal["bound", "failed"]
    at: float
    reason: str = ""
    is_retriable: bool = False  # selecting a node again may help, as after a concurrent write
    updates: tuple[ResourceUpdate, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.workload}.{self.reservation}"


class _BindFailed(Exception):
    """The failure of one bind attempt. The exception does not leave the module; callers get the failure as an
    event."""

    def __init__(self, reason: str, *, is_retriable: bool = False) -> None:
        super().__init__(reason)
        self.is_retriable = is_retriable


@dataclass(slots=True)
class _Member:
    """A gang member during the bind attempt; a member with a problem takes no further part."""

    reservation: Reservation
    request: BindRequest
    problem: Exception | None = None
    event: BindEvent | None = None


@dataclass(slots=True)
class Binder:
    """Bind reservations through the binding store.

    `node_revisions` are the revisions of nodes that the node table reflects; the owner of the binder updates
    them as nodes change.
    """

    binding_store: BindingStore
    reservations: Reservations
    now: Callable[[], float]
    mode: BindingMode = BindingMode.OPTIMISTIC
    node_revisions: dict[str, int] = field(default_factory=dict)
    emit: Callable[[BindEvent], None] = lambda event: None

    async def bind(self, reservation: Reservation) -> BindEvent:
        """Bind one reservation in the mode of the binder, and return the event. A failed attempt is rolled
        back."""
        request = _bind_request(reservation)
        if rejection := self._claim(request):
            return self._emit_event(self._failed_event(request, self.mode, rejection))
        try:
            self._verify(request)
            match self.mode:
                case BindingMode.OPTIMISTIC:
                    expected = await self._expected_revision(request)
                    # The reservation may have been withdrawn or expired while the store was read.
                    self._verify(request)
                    revision = await self.binding_store.try_commit(request, expected)
                    self._advance_revision(request, expected, revision)
                case BindingMode.PESSIMISTIC:
                    await self._pessimistic(request)
                case BindingMode.TWO_PHASE:
                    await self._prepare(request)
                    # The reservation may have been withdrawn or expired while the store wrote.
                    self._verify(request)
                    if await self.binding_store.commit_all([request]):
                        raise _record_lost(request)
        except Exception as problem:  # noqa: BLE001 - the store may have written before it raised any error
            return await self._abort_failed(reservation, problem)
        except GeneratorExit:
            # Nothing can be awaited any more, so the resources stay reserved until the reservation expires.
            raise
        except BaseException:
            await self._abort_failed(reservation, _cancelled())
            raise
        finally:
            self.reservations.in_flight.discard(request.reservation)
        return self._emit_event(self._bound_event(request, self.mode))

    async def _abort_failed(self, reservation: Reservation, problem: Exception) -> BindEvent:
        """Roll a failed attempt back and emit its event, also when the rollback is cancelled. A reservation
        that is bound stays bound."""
        bound: Collection[str] = ()
        try:
            bound = await self._abort([reservation])
        finally:
            request = _bind_request(reservation)
            event = self._emit_event(
                self._bound_event(request, self.mode)
                if bound
                else self._failed_event(request, self.mode, problem)
            )
        return event

    async def bind_gang(self, reservations: Sequence[Reservation], least: int) -> list[BindEvent]:
        """Bind at least `least` members in one write, or none: prepare every member, then commit all prepared
        members together."""
        members = [_Member(reservation, _bind_request(reservation)) for reservation in reservations]
        for member in members:
            member.problem = self._claim(member.request)
        claimed = [member for member in members if member.problem is None]
        try:
            for member in claimed:
                try:
                    self._verify(member.request)
                    await self._prepare(member.request)
                except Exception as problem:  # noqa: BLE001 - as in bind
                    member.problem = problem
            # All members are prepared before the first is bound (I-15: gangs are bound together).
            await self._commit_gang(claimed, least)
            await self._abort_members([member for member in claimed if member.problem])
        except GeneratorExit:
            raise
        except BaseException:
            try:
                # Members that are bound by now stay bound.
                unbound = [member for member in claimed if member.event is None]
                for member in unbound:
                    member.problem = member.problem or _cancelled()
                await self._abort_members(unbound)
            finally:
                self._emit_events(members)
            raise
        finally:
            self.reservations.in_flight -= {member.request.reservation for member in claimed}
        return self._emit_events(members)

    async def _abort_members(self, members: Sequence[_Member]) -> None:
        bound = await self._abort([member.reservation for member in members])
        self._mark_bound(member for member in members if member.request.reservation in bound)

    def _mark_bound(self, members: Iterable[_Member]) -> None:
        for member in members:
            member.event = self._bound_event(member.request, BindingMode.TWO_PHASE)

    def _emit_events(self, members: Sequence[_Member]) -> list[BindEvent]:
        events = []
        for member in members:
            event = member.event or self._failed_event(member.request, BindingMode.TWO_PHASE, member.problem)
            events.append(self._emit_event(event))
        return events

    async def _commit_gang(self, members: Sequence[_Member], least: int) -> None:
        """Commit the prepared members. Members whose record is lost drop out, and the commit is tried again
        while enough members remain."""
        while ready := self._ready_if_enough(members, least, self.now()):
            try:
                missing = await self.binding_store.commit_all([member.request for member in ready])
            except Exception as problem:  # noqa: BLE001 - as in bind
                for member in ready:
                    member.problem = problem
                return
            if not missing:
                self._mark_bound(ready)
                return
            for member in ready:
                if member.request.reservation in missing:
                    member.problem = _record_lost(member.request)

    def _ready_if_enough(self, members: Sequence[_Member], least: int, now: float) -> list[_Member]:
        """The members without a problem if there are at least `least`; else give these members a problem and
        return none."""
        for member in members:
            if member.problem is None:
                reason = self.reservations.rejection_reason(member.request.reservation, now)
                if reason:
                    member.problem = _BindFailed(reason, is_retriable=True)
        ready = [member for member in members if member.problem is None]
        if len(ready) >= least:
            return ready
        for member in ready:
            member.problem = _BindFailed(
                f"only {len(ready)} members of the group could be bound, at least {least} are needed",
                is_retriable=True,
            )
        return []

    async def rollback(self, reservation: Reservation) -> bool:
        """Undo a reservation in the table and in the binding store, and return whether it was undone.

        A second call, a call after the binding, or a call while the reservation is being bound changes
        nothing.
        """
        if self._claim(_bind_request(reservation)):
            return False
        try:
            if await self._abort([reservation]):
                self.reservations.confirm_bound(reservation.id)
                return False
        finally:
            self.reservations.in_flight.discard(reservation.id)
        return self.reservations.get(reservation.id) is None

    def _claim(self, request: BindRequest) -> _BindFailed | None:
        """Claim a reservation for an attempt to write or undo; return the reason if the reservation cannot be
        claimed."""
        if request.reservation in self.reservations.in_flight:
            return _BindFailed(f"reservation {request.reservation} is already being bound")
        if self.reservations.get(request.reservation) is None:
            return _unknown_reservation(request)
        # From now on only this attempt releases the reservation.
        self.reservations.in_flight.add(request.reservation)
        return None

    async def _abort(self, reservations: Sequence[Reservation]) -> Collection[str]:
        """Abort reservations in the store, release the resources, and return the reservations that are bound.

        If the store fails, the resources stay reserved until the reservation expires: the store may have
        written the binding.
        """
        if not reservations:
            return ()
        try:
            bound = await self.binding_store.abort_all(
                [_bind_request(reservation) for reservation in reservations]
            )
        except Exception:  # noqa: BLE001 - the event reports the first problem; the store may or may not have written
            return ()
        for reservation in reservations:
            if reservation.id not in bound:
                self.reservations.release(reservation.id)
        return bound

    def _emit_event(self, event: BindEvent) -> BindEvent:
        self.emit(event)
        return event

    async def _pessimistic(self, request: BindRequest) -> None:
        token = await self.binding_store.lock(
            request.node, self.reservations.holder, self.now() + NODE_LOCK_TTL_S
        )
        if token is None:
            raise _BindFailed(f"node {request.node} is locked by another scheduler", is_retriable=True)
        try:
            state = await self._read_node(request)
            _verify_capacity(request, state)
            if self.node_revisions.get(request.node, state.revision) != state.revision:
                # The capacity may suffice, but the chosen ports may be in use.
                raise _node_changed(request)
            self._verify(request)
            self._advance_revision(
                request, state.revision, await self.binding_store.try_commit(request, state.revision)
            )
        finally:
            await self.binding_store.unlock(request.node, token)

    async def _prepare(self, request: BindRequest) -> None:
        expected = await self._expected_revision(request)
        self._advance_revision(request, expected, await self.binding_store.prepare(request, expected))

    async def _expected_revision(self, request: BindRequest) -> int:
        """The node revision that the decision was based on; if `node_revisions` has none, the current
        revision of the node, provided that the node has enough free capacity."""
        if request.node in self.node_revisions:
            return self.node_revisions[request.node]
        state = await self._read_node(request)
        _verify_capacity(request, state)
        return state.revision

    async def _read_node(self, request: BindRequest) -> StoredNodeState:
        state = await self.binding_store.read(request.node)
        if state is None:
            raise _BindFailed(f"node {request.node} was deleted", is_retriable=True)
        return state

    def _advance_revision(self, request: BindRequest, expected: int, revision: int | None) -> None:
        """Record the node revision that the binder's own write created, but only if the table reflects every
        earlier revision. Without a revision, the store has rejected the write because the node changed: raise
        _BindFailed."""
        if revision is None:
            raise _node_changed(request)
        if self.node_revisions.get(request.node) == expected:
            self.node_revisions[request.node] = revision

    def _verify(self, request: BindRequest) -> None:
        if self.reservations.get(request.reservation) is None:
            raise _unknown_reservation(request)
        if reason := self.reservations.rejection_reason(request.reservation, self.now()):
            raise _BindFailed(reason, is_retriable=True)

    def _bound_event(self, request: BindRequest, mode: BindingMode) -> BindEvent:
        """The event of a binding that the store has written, even if its reservation has expired.

        If the table has released the reservation, the binding reaches the table like a binding of a different
        scheduler.
        """
        is_current = self.reservations.confirm_bound(request.reservation)
        updates = resource_updates(request, self.reservations.table) if is_current else ()
        return BindEvent(
            request.workload, request.node, request.reservation, mode, "bound", self.now(), updates=updates
        )

    def _failed_event(self, request: BindRequest, mode: BindingMode, problem: Exception | None) -> BindEvent:
        is_retriable = problem.is_retriable if isinstance(problem, _BindFailed) else True
        is_expected = isinstance(problem, _BindFailed | LatticeError)
        reason = str(problem) if is_expected else f"{type(problem).__name__}: {problem}"
        return BindEvent(
            request.workload,
            request.node,
            request.reservation,
            mode,
            "failed",
            self.now(),
            reason,
            is_retriable,
        )


def resource_updates(request: BindRequest, table: NodeTable) -> tuple[ResourceUpdate, ...]:
    """Allocated amounts of the node without and with the workload. The table already includes the
    workload."""
    row = table.row_of[request.node]
    updates = []
    for name, amount in request.needs:
        if name == GPU:
            node_info = table.node_infos[row]
            total = sum(milli for _, milli in node_info.gpus) if node_info else 0
            free = int(table.gpus.free(row).sum())
        else:
            resource = table.resource_index[name]
            free, total = int(table.free(resource)[row]), int(table.total(resource)[row])
        updates.append(ResourceUpdate(name, total - free - amount, total - free, total))
    return tuple(updates)


def _unknown_reservation(request: BindRequest) -> _BindFailed:
    return _BindFailed(f"reservation {request.reservation} not found: bound, released or never created")


def _node_changed(request: BindRequest) -> _BindFailed:
    return _BindFailed(f"node {request.node} changed after the decision", is_retriable=True)


def _cancelled() -> _BindFailed:
    return _BindFailed("binding was cancelled", is_retriable=True)


def _record_lost(request: BindRequest) -> _BindFailed:
    return _BindFailed(
        f"the prepared record of reservation {request.reservation} is missing", is_retriable=True
    )


def _bind_request(reservation: Reservation) -> BindRequest:
    return BindRequest(
        reservation.workload,
        reservation.node,
        reservation.id,
        reservation.needs,
        reservation.expires_at,
    )


def _verify_capacity(request: BindRequest, state: StoredNodeState) -> None:
    for resource, amount in request.needs:
        free = state.free.get(resource, 0)
        if amount > free:
            have, need = format_amount(resource, free), format_amount(resource, amount)
            raise _BindFailed(
                f"node {request.node} has {have} {resource} free, {need} needed", is_retriable=True
            )
