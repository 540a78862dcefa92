"""The durable side of binding: nodes, locks and reservations in the store, one commit per step.

A gang that fits into one commit is bound by that commit, all members or none (I-15). A larger gang is bound
in several commits. First every reservation gets the name of the attempt and of its lead, the member that is
bound first. The commit that binds the lead decides for the gang. After that commit, any leader that finds
remaining reservations binds their members. Before that commit, any leader that finds expired reservations
cancels them, the lead's first. No crash leaves a gang half bound.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from math import ceil

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import key_of, put_new
from lattice.controllers.scheduler.bind_units import LIMITS
from lattice.controllers.scheduler.binding_records import BindingDetails, BindingRecords
from lattice.errors import Conflict, Fenced
from lattice.kinds.core import Lease, LeaseSpec
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Metadata, path_of
from lattice.kinds.meta.timestamps import format_exact_time, parse_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, ReservationRecord
from lattice.scheduling.cycle.binder import BindRequest, StoredNodeState
from lattice.scheduling.cycle.reservation_record import (
    binding_reservation,
    gang_attempt_of,
    reservation_record,
    term_of,
)
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import dynamic_ports
from lattice.scheduling.table.resource_fit import has_free_gpus
from lattice.scheduling.table.workload_ask import GPU
from lattice.store.commit_packing import CommitCost, pack_commits
from lattice.store.protocol import Delete, Entry, Key, Put, RevisionConflict, Write

# Limit of attempts of one write; every conflict means that another writer has committed.
MAX_WRITE_ATTEMPTS = 16

_decode_node = msgspec.json.Decoder(LatticeNode).decode
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode
_decode_lease = msgspec.json.Decoder(Lease).decode


def _always(_: object) -> bool:
    return True


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def workload_key(path: str) -> Key:
    namespace, _, name = path.partition("/")
    return Key(LatticeWorkload.resource.id, namespace, name)


@dataclass
class PersistentBindingStore:
    """Implements the protocol `BindingStore` of `scheduling.cycle.binder` on the object store.

    `details_for` returns ports, GPUs and decision record of a binding. `is_workload_unchanged` states whether
    a workload still asks for the resources that were reserved; `is_node_unchanged` states whether a node is
    the same as when it was chosen.
    """

    context: ControllerContext
    details_for: Callable[[BindRequest], BindingDetails] = lambda _: BindingDetails()
    is_workload_unchanged: Callable[[LatticeWorkload], bool] = _always
    is_node_unchanged: Callable[[LatticeNode], bool] = _always
    # By workload: the revision of our last write.
    written_revisions: dict[str, int] = field(default_factory=dict)
    # Set when the store has fenced a write: the term is over, and no commit can succeed, however the binder
    # handles the failure.
    fenced: Fenced | None = None

    @cached_property
    def records(self) -> BindingRecords:
        """The builder of the scheduler's writes."""
        return BindingRecords(self.context)

    async def read(self, node: str) -> StoredNodeState | None:
        """The revision of a node, and the capacity that neither bound nor reserved workloads use. Every later
        binding moves the revision, so a commit that expects this revision then conflicts."""
        entry = await self.context.store.get(node_key(node))
        if entry is None:
            return None
        workloads = self.context.cache(LatticeWorkload)
        # Every binding counted in this revision of the node must be in the cache (I-12).
        await workloads.wait_for(entry.revision)
        assigned = [*workloads.by_index("node", node), *workloads.by_index("prepared", node)]
        return StoredNodeState(entry.revision, _free_capacity(_decode_node(entry.value), assigned))

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        """Bind a workload if the node is at the expected revision; None if node or workload has changed."""
        node, workload = await self._read_node_and_workload(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_decode_workload(workload.value))
        ):
            return None
        # The node may be cordoned, tainted or decommissioned by now: free capacity alone does not make it
        # feasible (I-14).
        if not self.is_node_unchanged(_decode_node(node.value)):
            return None
        binding = Binding(
            node=node.key.name,
            uid=_uid(node),
            term=self.context.term.number,
            reservation=request.reservation,
        )
        puts = self.records.bind(workload, binding, self.details_for(request))
        return await self._try_write([self.records.add_to_count(node, 1), *puts])

    def is_bindable(self, workload: LatticeWorkload) -> bool:
        """Whether the workload is unbound, should run, and still asks for the reserved resources."""
        return (
            _is_unbound(workload)
            and workload.spec.desired_state == "Running"
            and self.is_workload_unchanged(workload)
        )

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        """Lock a node with a Lease until a monotonic time and return the token; None if another holder has
        the lock (I-17)."""
        token = f"{holder} {self.context.new_uid()}"
        # A Lease counts whole seconds, and a lock of zero seconds would have expired at once.
        now, seconds = self.context.clock.now(), max(1, ceil(until - self.context.clock.monotonic()))
        spec = LeaseSpec(
            holder_identity=token,
            acquire_time=format_exact_time(now),
            renew_time=format_exact_time(now),
            lease_duration_seconds=seconds,
        )
        lease = _lock_lease(node, spec)
        existing = await self.context.store.get(key_of(lease))
        if existing is not None:
            current = _decode_lease(existing.value).spec
            duration = timedelta(seconds=current.lease_duration_seconds or 0)
            # By wall time, because the holder may be another process. A Lease without renew time has expired.
            has_expired = current.renew_time is None or now >= parse_timestamp(current.renew_time) + duration
            if not has_expired and not self._is_from_earlier_term(current.holder_identity or ""):
                return None
        put = put_new(lease, uid=self.context.new_uid(), now=self.context.timestamp)
        revision = await self._try_write(
            [put if existing is None else Put(put.key, put.value, existing.revision)]
        )
        return None if revision is None else token

    async def unlock(self, node: str, token: str) -> None:
        """Delete the Lease of the node if the token still holds the lock."""
        existing = await self.context.store.get(key_of(_lock_lease(node, LeaseSpec())))
        # The lock may have expired and belong to another holder by now (I-17).
        if existing is not None and _decode_lease(existing.value).spec.holder_identity == token:
            await self._try_write([Delete(existing.key, existing.revision)])

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        """Reserve a node for a workload if the node is at the expected revision; None if node or workload has
        changed."""
        node, workload = await self._read_node_and_workload(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_decode_workload(workload.value))
        ):
            return None
        reservation = ReservationRecord(
            node=request.node,
            uid=_uid(node),
            id=request.reservation,
            until=self.records.wall_time(request.expires_at),
        )
        return await self._try_write(
            [
                self.records.add_to_count(node, 1),
                self.records.reserve(workload, reservation, self.details_for(request)),
            ]
        )

    async def commit_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """Bind the reserved members of a gang; return the reservations that are missing, in which case no
        member is bound."""
        # A binding takes two writes: the workload and its event.
        parts = self._parts(requests, writes_per_request=2)
        if len(parts) <= 1:
            return await self._commit_together(requests)
        attempt = f"{requests[0].reservation} {self.context.new_uid()}"
        for part in self._parts(requests, writes_per_request=1):
            if missing := await self._adopt(part, attempt, lead=requests[0].workload):
                return missing
        # The first part contains the lead: its commit decides about the gang.
        first, *remaining = parts
        if missing := await self._commit_together(first, attempt):
            return missing
        # The lead is bound. A missing member was deleted, or bound by another leader.
        for part in remaining:
            for _ in range(MAX_WRITE_ATTEMPTS):
                reserved, _ = await self._read_reservations(part)
                if await self._bind(reserved):
                    break
            else:
                raise _contended(part[0].workload)
        return ()

    def _parts(self, requests: Sequence[BindRequest], writes_per_request: int) -> list[list[BindRequest]]:
        """Split requests into parts that fit into one commit, by the sizes of the cached workloads."""
        cache = self.context.cache(LatticeWorkload)

        def cost_of(request: BindRequest) -> CommitCost:
            entry = cache.entry(request.workload)
            return CommitCost(writes_per_request, len(entry.value) if entry else 0)

        return list(pack_commits(requests, cost_of, LIMITS))

    async def abort_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        """Cancel the reservations and return the reservations that were bound before the abort."""
        # A cancelled reservation takes up to two writes: the workload and the count of its node.
        for part in self._parts(requests, writes_per_request=2):
            await self._write_with_retries(partial(self._abort_writes, part))
        entries = await asyncio.gather(
            *(self.context.store.get(workload_key(request.workload)) for request in requests)
        )
        bound: list[str] = []
        for request, entry in zip(requests, entries, strict=True):
            # A reservation may be bound although the reply of its commit was lost.
            if entry and binding_reservation(_decode_workload(entry.value)) == request.reservation:
                # The scheduler ignores states of the workload in the cache that are older than this revision.
                self.written_revisions[request.workload] = entry.revision
                bound.append(request.reservation)
        return bound

    async def settle_reservation(self, path: str, now: datetime) -> bool:
        """Bind or cancel the reservation of an attempt that has ended; return whether anything was written.

        A reservation is cancelled after its expiry, or at once if an earlier term made the reservation
        (I-16).
        """
        entry = await self.context.store.get(workload_key(path))
        reservation = reservation_record(_decode_workload(entry.value)) if entry else None
        if (
            entry is None
            or reservation is None
            or not _is_unbound(_decode_workload(entry.value), reservation.id)
        ):
            return False
        # A member of the gang is bound, so the attempt has succeeded: bind this member as well (I-15).
        if reservation.gang and self._is_gang_bound(
            reservation, await self.context.store.get(workload_key(reservation.lead))
        ):
            return await self._try_write(self.records.bind_reserved(entry, reservation)) is not None
        if not self._is_from_earlier_term(reservation.id) and not reservation.is_expired(now):
            return False
        # Cancel the lead first: a cancelled lead can no longer decide for the gang (I-15).
        if reservation.gang and reservation.lead != path:
            lead_entry = await self.context.store.get(workload_key(reservation.lead))
            lead = reservation_record(_decode_workload(lead_entry.value)) if lead_entry else None
            if lead_entry and lead and lead.gang == reservation.gang:
                if await self._try_write([self.records.cancel_reservation(lead_entry)]) is None:
                    return False
            elif lead_entry and self._is_gang_bound(reservation, lead_entry):
                return False
        request = BindRequest(path, reservation.node, reservation.id, (), 0.0)
        return await self._write_with_retries(partial(self._abort_writes, [request]))

    def _is_from_earlier_term(self, holder: str) -> bool:
        """Whether an earlier term made the reservation or lock: its leader is fenced and cannot write,
        whatever the clocks say."""
        role, number = term_of(holder) or ("", 0)
        return role == self.context.term.role and number < self.context.term.number

    def _is_gang_bound(self, reservation: ReservationRecord, lead: Entry | None) -> bool:
        """Whether a member of the attempt is bound: the lead, or another member if the lead is deleted."""
        if lead is not None and gang_attempt_of(_decode_workload(lead.value)) == reservation.gang:
            return True
        return any(
            gang_attempt_of(workload) == reservation.gang
            for workload in self.context.cache(LatticeWorkload).by_index("gang", reservation.gang)
        )

    async def _adopt(self, requests: Sequence[BindRequest], attempt: str, lead: str) -> Collection[str]:
        """Assign the reservations to the attempt; return the missing reservations."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            reserved, missing = await self._read_reservations(requests)
            if missing:
                return missing
            puts = [
                self.records.adopt(entry, msgspec.structs.replace(reservation, gang=attempt, lead=lead))
                for entry, reservation in reserved
            ]
            if await self._try_write(puts) is not None:
                return ()
        raise _contended(requests[0].workload)

    async def _commit_together(self, requests: Sequence[BindRequest], attempt: str = "") -> Collection[str]:
        """Bind the members in one commit; return the reservations that are missing or belong to another
        attempt."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            reserved, missing = await self._read_reservations(requests)
            missing += [
                reservation.id
                for entry, reservation in reserved
                if reservation.gang != attempt
                or not self.is_workload_unchanged(_decode_workload(entry.value))
            ]
            if missing or await self._bind(reserved):
                return missing
        raise _contended(requests[0].workload)

    async def _bind(self, reserved: Iterable[tuple[Entry, ReservationRecord]]) -> bool:
        puts: list[Put] = []
        for entry, reservation in reserved:
            puts += self.records.bind_reserved(entry, reservation)
        return not puts or await self._try_write(puts) is not None

    async def _read_reservations(
        self, requests: Sequence[BindRequest]
    ) -> tuple[list[tuple[Entry, ReservationRecord]], list[str]]:
        """The stored reservations of the requests, and the missing reservations; a reservation that is bound
        is neither."""
        entries = await asyncio.gather(
            *(self.context.store.get(workload_key(request.workload)) for request in requests)
        )
        reserved, missing = [], []
        for request, entry in zip(requests, entries, strict=True):
            workload = _decode_workload(entry.value) if entry else None
            reservation = reservation_record(workload) if workload else None
            if entry and reservation and reservation.id == request.reservation:
                reserved.append((entry, reservation))
            elif workload is None or binding_reservation(workload) != request.reservation:
                missing.append(request.reservation)
        return reserved, missing

    async def _abort_writes(self, requests: Sequence[BindRequest]) -> list[Write]:
        """The writes that cancel reservations and free their capacity, or bind the members of a decided gang;
        empty if none is left.

        A bound workload is never unbound here: the agent may run the workload already.
        """
        reserved, _ = await self._read_reservations(requests)
        leads = {reservation.lead for _, reservation in reserved if reservation.gang}
        lead_entries = dict(
            zip(
                leads,
                await asyncio.gather(*(self.context.store.get(workload_key(lead)) for lead in leads)),
                strict=True,
            )
        )
        writes: list[Write] = []
        cancelled: list[tuple[Entry, ReservationRecord]] = []
        for entry, reservation in reserved:
            is_decided = (
                reservation.gang
                and self._is_gang_bound(reservation, lead_entries[reservation.lead])
                # A workload that is being deleted gets no binding, even if its gang is bound.
                and not _decode_workload(entry.value).metadata.deletion_timestamp
            )
            if is_decided:
                writes += self.records.bind_reserved(entry, reservation)
            else:
                cancelled.append((entry, reservation))
        writes += [self.records.cancel_reservation(entry) for entry, _ in cancelled]
        freed = Counter(reservation.node for _, reservation in cancelled)
        nodes = await asyncio.gather(*(self.context.store.get(node_key(name)) for name in freed))
        writes += [self.records.add_to_count(node, -freed[node.key.name]) for node in nodes if node]
        return writes

    async def _write_with_retries(self, build_writes: Callable[[], Awaitable[list[Write]]]) -> bool:
        """Build and commit writes until the commit succeeds; return whether there was anything to write."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            writes = await build_writes()
            if not writes:
                return False
            if await self._try_write(writes) is not None:
                return True
        raise _contended(str(writes[0].key))

    async def _read_node_and_workload(self, request: BindRequest) -> tuple[Entry | None, Entry | None]:
        get = self.context.store.get
        node, workload = await asyncio.gather(
            get(node_key(request.node)), get(workload_key(request.workload))
        )
        return node, workload

    async def _try_write(self, writes: Sequence[Write]) -> int | None:
        """Commit writes and return the revision; None after a conflict, with nothing written."""
        try:
            revision = await self.context.commit(writes)
        except RevisionConflict:
            return None
        except Fenced as error:
            self.fenced = error
            raise
        workload_resource = LatticeWorkload.resource.id
        self.written_revisions.update(
            {write.key.path: revision for write in writes if write.key.resource == workload_resource}
        )
        return revision


def _uid(node: Entry) -> str:
    return _decode_node(node.value).metadata.uid


def _is_unbound(workload: LatticeWorkload, reservation: str = "") -> bool:
    """Whether the workload may be bound: not bound, not deleted, and not reserved by another attempt
    (I-11)."""
    record = reservation_record(workload)
    is_ours = record is None or record.id == reservation
    return is_ours and workload.status.binding is None and not workload.metadata.deletion_timestamp


def _free_capacity(node: LatticeNode, assigned: Iterable[LatticeWorkload]) -> dict[str, int]:
    """The part of the node's capacity that the assigned workloads do not use, by resource."""
    table = NodeTable()
    row = table.put_node(node_info_of(node))
    # A workload that is bound after its reservation may be in both indexes: count it once.
    unique = {path_of(workload): workload for workload in assigned}
    for workload in unique.values():
        ask = table.ask_of(workload)
        has_room = ask.demands.gpu is None or has_free_gpus(ask.demands.gpu, table, row)
        # The index also has workloads on an earlier node of the same name.
        assignment = workload.status.binding or reservation_record(workload)
        uid = assignment.uid if assignment else ""
        if uid == node.metadata.uid and has_room:
            table.admit(ask, row, dynamic_ports(workload.spec.containers, workload.status.allocated_ports))
    free = {name: int(table.free(number)[row]) for name, number in table.resource_index.items()}
    return {**free, GPU: int(table.gpus.free(row).clip(0).sum())}


def _lock_lease(node: str, spec: LeaseSpec) -> Lease:
    resource = Lease.resource
    metadata = Metadata(namespace=SYSTEM_NAMESPACE, name=f"node.{node}")
    return Lease(api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=spec)


def _contended(where: str) -> Conflict:
    return Conflict(
        f"{MAX_WRITE_ATTEMPTS} attempts in a row conflicted with other writes", where=where, fix="retry later"
    )
