"""Is the binding durable? Three ways to write one down, each with one event at the end and a rollback that may run twice."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from lattice.errors import LatticeError
from lattice.kinds.container import format_amount
from lattice.scheduling.cycle.reservations import Reservation, Reservations
from lattice.scheduling.table.ask import GPU
from lattice.scheduling.table.node_table import NodeTable

NODE_LOCK_TTL_S = 10.0  # a lock whose holder died is free again after this


class BindingMode(StrEnum):
    OPTIMISTIC = "optimistic"  # commit at once; who finds the node changed steps back and selects anew
    PESSIMISTIC = "pessimistic"  # lock the node, verify, commit, unlock
    TWO_PHASE = "two-phase"  # prepare a durable record of the reservation, then commit it


@dataclass(frozen=True, slots=True)
class BindRequest:
    workload: str
    node: str
    reservation: str
    needs: tuple[tuple[str, int], ...]  # by resource name
    expires_at: float  # of the reservation: what is only prepared then may be swept away


@dataclass(frozen=True, slots=True)
class StoredNodeState:
    """What the durable side knows of a node."""

    revision: int  # grows with each binding to it
    free: Mapping[str, int]  # by resource name


class BindingStore(Protocol):
    """The durable side of binding. Each method is one atomic step."""

    async def read(self, node: str) -> StoredNodeState | None: ...

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        """Bind, if the node is still at that revision; its new revision. None: it is not, and nothing was written."""
        ...

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        """A token, or None while somebody else holds the node."""
        ...

    async def unlock(self, node: str, token: str) -> None:
        """Once more, or too late, changes nothing."""
        ...

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        """Take the room and write the reservation down, binding nothing yet; like try_commit otherwise."""
        ...

    async def commit_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """What was prepared is bound, all of it in one write. Else the reservations without a record, and nothing was written."""
        ...

    async def abort_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """Whatever these reservations prepared is as if it never was, unless it is decided that all of them are bound. Once more changes
        nothing. Returns the reservations that are bound by now: they stay, since a node may run them already, and who is bound elsewhere
        then runs twice."""
        ...


@dataclass(frozen=True, slots=True)
class ResourceUpdate:
    resource: str
    used_before: int
    used_after: int
    total: int


@dataclass(frozen=True, slots=True)
class BindEvent:
    """What became of one attempt; each attempt has exactly one."""

    workload: str
    node: str
    reservation: str
    mode: BindingMode
    outcome: Literal["bound", "failed"]
    at: float
    reason: str = ""
    is_retriable: bool = False  # somebody was faster: selecting anew may help
    updates: tuple[ResourceUpdate, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.workload}.{self.reservation}"


class _BindFailed(Exception):
    """One attempt is over. Stays inside this module: outside, failure is an event."""

    def __init__(self, why: str, *, is_retriable: bool = False) -> None:
        super().__init__(why)
        self.is_retriable = is_retriable


@dataclass(slots=True)
class _Member:
    """One of a group on its way; with a problem it is on its way no more."""

    reservation: Reservation
    request: BindRequest
    problem: Exception | None = None
    event: BindEvent | None = None


def _ignore(event: BindEvent) -> None:
    return None


@dataclass(slots=True)
class Binder:
    """`seen`: the revision of each node that the table reflects; its owner keeps it up as news of nodes arrives."""

    binding_store: BindingStore
    reservations: Reservations
    now: Callable[[], float]
    mode: BindingMode = BindingMode.OPTIMISTIC
    node_revisions: dict[str, int] = field(default_factory=dict)
    emit: Callable[[BindEvent], None] = _ignore

    async def bind(self, reservation: Reservation) -> BindEvent:
        request = _bind_request(reservation)
        if not_ours := self._claim(request):
            return self._emit_event(self._failed_event(request, self.mode, not_ours))
        try:
            self._verify(request)
            await self._bind_strategy()(request)
        except Exception as problem:  # noqa: BLE001 - whatever a ledger raises, it may have written before
            return await self._abort_failed(reservation, problem)
        except GeneratorExit:
            raise  # nothing can be awaited any more: the room stays held until it expires
        except BaseException:
            await self._abort_failed(reservation, _cancelled())
            raise
        finally:
            self.reservations.in_flight.discard(request.reservation)
        return self._emit_event(self._bound_event(request, self.mode))

    async def _abort_failed(self, reservation: Reservation, problem: Exception) -> BindEvent:
        """Undone, if nobody cancels that and it is not bound; told of either way."""
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
        """All or nothing: every one is prepared, then all are committed in one write. Fewer than `least`, and none leaves a trace."""
        members = [_Member(each, _bind_request(each)) for each in reservations]
        for each in members:
            each.problem = self._claim(each.request)
        ours = [each for each in members if each.problem is None]
        try:
            for each in ours:
                await self._prepare_member(each)
            await self._commit_gang(ours, least)
            await self._abort_members([each for each in ours if each.problem])
        except GeneratorExit:
            raise
        except BaseException:
            try:
                await self._cancel_gang(ours)
            finally:
                self._emit_events(members)
            raise
        finally:
            self.reservations.in_flight -= {each.request.reservation for each in ours}
        return self._emit_events(members)

    async def _cancel_gang(self, members: Sequence[_Member]) -> None:
        """The attempt was cancelled while it was under way; those that are bound by then stay bound."""
        left = [each for each in members if each.event is None]
        for each in left:
            each.problem = each.problem or _cancelled()
        await self._abort_members(left)

    async def _abort_members(self, members: Sequence[_Member]) -> None:
        bound = await self._abort([each.reservation for each in members])
        self._mark_bound(each for each in members if each.request.reservation in bound)

    def _mark_bound(self, members: Iterable[_Member]) -> None:
        for each in members:
            each.event = self._bound_event(each.request, BindingMode.TWO_PHASE)

    def _emit_events(self, members: Sequence[_Member]) -> list[BindEvent]:
        return [
            self._emit_event(
                each.event or self._failed_event(each.request, BindingMode.TWO_PHASE, each.problem)
            )
            for each in members
        ]

    async def _prepare_member(self, member: _Member) -> None:
        try:
            self._verify(member.request)
            await self._prepare(member.request)
        except Exception as problem:  # noqa: BLE001 - as in bind
            member.problem = problem

    async def _commit_gang(self, members: Sequence[_Member], least: int) -> None:
        """Who has lost its record drops out, and the others are tried again while they are enough."""
        while ready := self._ready_if_enough(members, least, self.now()):
            try:
                missing = await self.binding_store.commit_all([each.request for each in ready])
            except Exception as problem:  # noqa: BLE001 - as in bind
                for each in ready:
                    each.problem = problem
                return
            if not missing:
                self._mark_bound(ready)
                return
            for each in ready:
                if each.request.reservation in missing:
                    each.problem = _record_lost(each.request)

    def _ready_if_enough(self, members: Sequence[_Member], least: int, now: float) -> list[_Member]:
        """Those with nothing against them if they are at least so many; else nobody, and that is what is against them."""
        for each in members:
            if each.problem is None and (
                why := self.reservations.rejection_reason(each.request.reservation, now)
            ):
                each.problem = _BindFailed(why, is_retriable=True)
        left = [each for each in members if each.problem is None]
        ready = len(left)
        if ready < least:
            for each in left:
                each.problem = _BindFailed(
                    f"only {ready} of its group could be bound, at least {least} are needed",
                    is_retriable=True,
                )
            return []
        return left

    async def rollback(self, reservation: Reservation) -> bool:
        """As if never tried, here and in the ledger. Once more, after it was concluded or while it is being bound, changes nothing."""
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
        """Why it is not for a new attempt to write, and so to undo, anything for this reservation; None: it is, from now on."""
        if request.reservation in self.reservations.in_flight:
            return _BindFailed(f"reservation {request.reservation} is being bound already")
        if self.reservations.get(request.reservation) is None:
            return _unknown_reservation(request)
        self.reservations.in_flight.add(request.reservation)
        return None

    async def _abort(self, reservations: Sequence[Reservation]) -> Collection[str]:
        """Those that are bound after all. If the ledger cannot be asked the room stays held until it expires: it may have been written."""
        if not reservations:
            return ()
        try:
            bound = await self.binding_store.abort_all([_bind_request(each) for each in reservations])
        except Exception:  # noqa: BLE001 - what made undoing necessary is told; whether the ledger wrote is not known
            return ()
        for each in reservations:
            if each.id not in bound:
                self.reservations.release(each.id)
        return bound

    def _emit_event(self, event: BindEvent) -> BindEvent:
        self.emit(event)
        return event

    def _bind_strategy(self) -> Callable[[BindRequest], Coroutine[Any, Any, None]]:
        match self.mode:
            case BindingMode.OPTIMISTIC:
                return self._optimistic
            case BindingMode.PESSIMISTIC:
                return self._pessimistic
            case BindingMode.TWO_PHASE:
                return self._two_phase

    async def _optimistic(self, request: BindRequest) -> None:
        expected = await self._expected_revision(request)
        self._verify(request)
        self._advance_revision(request, expected, await self.binding_store.try_commit(request, expected))

    async def _pessimistic(self, request: BindRequest) -> None:
        token = await self.binding_store.lock(
            request.node, self.reservations.holder, self.now() + NODE_LOCK_TTL_S
        )
        if token is None:
            raise _BindFailed(f"node {request.node} is locked by somebody else", is_retriable=True)
        try:
            state = await self._read_node(request)
            _verify_capacity(request, state)
            if self.node_revisions.get(request.node, state.revision) != state.revision:
                raise _node_changed(request)  # there may be room, and its ports another's
            self._verify(request)
            self._advance_revision(
                request, state.revision, await self.binding_store.try_commit(request, state.revision)
            )
        finally:
            await self.binding_store.unlock(request.node, token)

    async def _two_phase(self, request: BindRequest) -> None:
        await self._prepare(request)
        self._verify(request)
        await self._commit(request)

    async def _prepare(self, request: BindRequest) -> None:
        expected = await self._expected_revision(request)
        self._advance_revision(request, expected, await self.binding_store.prepare(request, expected))

    async def _commit(self, request: BindRequest) -> None:
        if await self.binding_store.commit_all([request]):
            raise _record_lost(request)

    async def _expected_revision(self, request: BindRequest) -> int:
        """The revision that deciding was based on; of a node never heard of, what it is now, provided that there is room."""
        if request.node in self.node_revisions:
            return self.node_revisions[request.node]
        state = await self._read_node(request)
        _verify_capacity(request, state)
        return state.revision

    async def _read_node(self, request: BindRequest) -> StoredNodeState:
        state = await self.binding_store.read(request.node)
        if state is None:
            raise _BindFailed(f"node {request.node} is gone", is_retriable=True)
        return state

    def _advance_revision(self, request: BindRequest, expected: int, revision: int | None) -> None:
        """Our own write is news we have, but only on top of all the news before it."""
        if revision is None:
            raise _node_changed(request)
        if self.node_revisions.get(request.node) == expected:
            self.node_revisions[request.node] = revision

    def _verify(self, request: BindRequest) -> None:
        held = self.reservations.get(request.reservation)
        if held is None:
            raise _unknown_reservation(request)
        if why := self.reservations.rejection_reason(request.reservation, self.now()):
            raise _BindFailed(why, is_retriable=True)

    def _bound_event(self, request: BindRequest, mode: BindingMode) -> BindEvent:
        """It is written, too late for its reservation or not. If the table has lost its room it hears of this binding as of any other."""
        updates = (
            resource_updates(request, self.reservations.table)
            if self.reservations.confirm_bound(request.reservation)
            else ()
        )
        return BindEvent(
            request.workload, request.node, request.reservation, mode, "bound", self.now(), updates=updates
        )

    def _failed_event(self, request: BindRequest, mode: BindingMode, problem: Exception | None) -> BindEvent:
        again = problem.is_retriable if isinstance(problem, _BindFailed) else True
        known = isinstance(problem, _BindFailed | LatticeError)
        why = str(problem) if known else f"{type(problem).__name__}: {problem}"
        return BindEvent(
            request.workload, request.node, request.reservation, mode, "failed", self.now(), why, again
        )


def resource_updates(request: BindRequest, table: NodeTable) -> tuple[ResourceUpdate, ...]:
    """What the node had taken without and has with the workload, which is in the table by now."""
    row = table.row_of[request.node]
    updates = []
    for name, amount in request.needs:
        if name == GPU:
            free, total = int(table.gpus.free(row).sum()), sum(milli for _, milli in _gpus(table, row))
        else:
            free, total = (
                int(table.free(table.resource_index[name])[row]),
                int(table.total(table.resource_index[name])[row]),
            )
        updates.append(ResourceUpdate(name, total - free - amount, total - free, total))
    return tuple(updates)


def _gpus(table: NodeTable, row: int) -> Sequence[tuple[str, int]]:
    facts = table.node_infos[row]
    return facts.gpus if facts else ()


def _unknown_reservation(request: BindRequest) -> _BindFailed:
    return _BindFailed(f"no reservation {request.reservation}: it was bound, released or never made")


def _node_changed(request: BindRequest) -> _BindFailed:
    return _BindFailed(f"node {request.node} changed since it was chosen", is_retriable=True)


def _cancelled() -> _BindFailed:
    return _BindFailed("binding was cancelled", is_retriable=True)


def _record_lost(request: BindRequest) -> _BindFailed:
    return _BindFailed(f"what was prepared for reservation {request.reservation} is gone", is_retriable=True)


def _bind_request(held: Reservation) -> BindRequest:
    return BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)


def _verify_capacity(request: BindRequest, state: StoredNodeState) -> None:
    for resource, amount in request.needs:
        have = state.free.get(resource, 0)
        if amount > have:
            left, need = format_amount(resource, have), format_amount(resource, amount)
            raise _BindFailed(
                f"node {request.node} has {left} {resource} free, {need} needed", is_retriable=True
            )
