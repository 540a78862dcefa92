"""The durable side of binding: nodes, locks and prepared bindings in the store, each step one commit.

A group that goes into one commit is bound by it, all or none. A larger one is bound in several: what is prepared first gets the
name of the attempt and of its lead, then the commit that binds the lead decides. From then on whoever finds what is left of it
finishes it; before that, whoever finds it after its time gives it up, the lead first. So no crash leaves a group half bound.
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
from lattice.controllers.scheduler.binding_records import BindingDetails, BindingRecords
from lattice.errors import Conflict, Fenced
from lattice.kinds.core import Lease, LeaseSpec
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest, StoredNodeState
from lattice.scheduling.cycle.reservation_record import (
    ReservationRecord,
    binding_reservation,
    gang_attempt_of,
    reservation_record,
    term_of,
)
from lattice.scheduling.table.ask import GPU
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import dynamic_ports
from lattice.scheduling.table.resource_fit import has_gpus
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Delete, Entry, Key, Put, RevisionConflict, Write

LOCK_NAMESPACE = "lattice-system"  # the namespace of the Leases that lock nodes
MAX_WRITE_ATTEMPTS = 16  # to write what a rival writes, too; each one lost is one that somebody else won

_decode_node = msgspec.json.Decoder(LatticeNode).decode
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode
_decode_lease = msgspec.json.Decoder(Lease).decode


def _no_details(request: BindRequest) -> BindingDetails:
    return BindingDetails()


def _always(_: object) -> bool:
    return True


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def workload_key(path: str) -> Key:
    namespace, _, name = path.partition("/")
    return Key(LatticeWorkload.resource.id, namespace, name)


@dataclass
class PersistentBindingStore:
    """scheduling.bind.Ledger over the store. `draft` tells what a binding says besides who goes where.

    `is_as_decided`: whether a workload still asks for what its room was taken for; it may have been changed since.
    """

    context: ControllerContext
    details_for: Callable[[BindRequest], BindingDetails] = _no_details
    is_workload_unchanged: Callable[[LatticeWorkload], bool] = _always
    is_node_unchanged: Callable[[LatticeNode], bool] = (
        _always  # whether a node is as it was when it was chosen
    )
    written_revisions: dict[str, int] = field(
        default_factory=dict
    )  # by workload, the revision of what we wrote last

    fenced: Fenced | None = (
        None  # since then nothing is written any more, whatever a binder makes of the failure
    )

    @cached_property
    def records(self) -> BindingRecords:
        return BindingRecords(self.context)

    async def read(self, node: str) -> StoredNodeState | None:
        """What is free beside all that is bound to it or prepared. Whoever binds to it later moves its revision."""
        entry = await self.context.store.get(node_key(node))
        if entry is None:
            return None
        workloads = self.context.cache(LatticeWorkload)
        await workloads.wait_for(entry.revision)
        there = [*workloads.by_index("node", node), *workloads.by_index("prepared", node)]
        return StoredNodeState(entry.revision, _free_capacity(_decode_node(entry.value), there))

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        node, workload = await self._read_node_and_workload(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_decode_workload(workload.value))
        ):
            return None
        if not self.is_node_unchanged(_decode_node(node.value)):
            return None  # cordoned, tainted or given up since: its room alone does not make it fit
        puts = self.records.bind(workload, self._binding(node), request, self.details_for(request))
        return await self._try_write([self.records.add_to_count(node, 1), *puts])

    def is_bindable(self, workload: LatticeWorkload) -> bool:
        return (
            _is_unbound(workload)
            and workload.spec.desired_state == "Running"
            and self.is_workload_unchanged(workload)
        )

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        token = f"{holder} {self.context.new_uid()}"
        now, seconds = self.context.clock.now(), max(1, ceil(until - self.context.clock.monotonic()))
        held = LeaseSpec(
            holder_identity=token,
            acquire_time=now.isoformat(),
            renew_time=now.isoformat(),
            lease_duration_seconds=seconds,
        )
        lease = _lock_lease(node, held)
        found = await self.context.store.get(key_of(lease))
        if (
            found is not None
            and not self._is_from_earlier_term(_decode_lease(found.value).spec.holder_identity or "")
            and not _is_lease_expired(found, now)
        ):
            return None
        put = put_new(lease, uid=self.context.new_uid(), now=self.context.timestamp)
        taken = await self._try_write([put if found is None else Put(put.key, put.value, found.revision)])
        return None if taken is None else token

    async def unlock(self, node: str, token: str) -> None:
        found = await self.context.store.get(key_of(_lock_lease(node, LeaseSpec())))
        if found is not None and _decode_lease(found.value).spec.holder_identity == token:
            await self._try_write([Delete(found.key, found.revision)])

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        node, workload = await self._read_node_and_workload(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_decode_workload(workload.value))
        ):
            return None
        held = ReservationRecord(
            node=request.node,
            uid=_uid(node),
            reservation=request.reservation,
            until=self.records.wall_time(request.expires_at),
        )
        return await self._try_write(
            [
                self.records.add_to_count(node, 1),
                self.records.reserve(workload, held, self.details_for(request)),
            ]
        )

    async def commit_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        if 2 * len(requests) <= MAX_COMMIT_OPERATIONS:
            return await self._commit_together(requests)
        attempt = f"{requests[0].reservation} {self.context.new_uid()}"
        for part in _parts(requests, MAX_COMMIT_OPERATIONS):
            if missing := await self._adopt(part, attempt, lead=requests[0].workload):
                return missing
        first, *others = _parts(requests, MAX_COMMIT_OPERATIONS // 2)
        if missing := await self._commit_together(first, attempt):
            return missing
        for part in others:
            await self._finish(part)
        return ()

    async def abort_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        for part in _parts(requests, MAX_COMMIT_OPERATIONS // 2):
            await self._write_with_retries(partial(self._abort_writes, part))
        return await self._bound_reservations(requests)

    async def settle_reservation(self, path: str, now: datetime) -> bool:
        """Finish, or give up after its time, what an attempt that is no more has left prepared. Whether anything was written."""
        entry = await self.context.store.get(workload_key(path))
        held = reservation_record(_decode_workload(entry.value)) if entry else None
        if entry is None or held is None or not _is_unbound(_decode_workload(entry.value), held.reservation):
            return False
        if held.gang and self._is_gang_bound(held, await self.context.store.get(workload_key(held.lead))):
            return (
                await self._try_write(
                    self.records.bind_reserved(entry, _reserved_binding(held, self.context), held)
                )
                is not None
            )
        if not self._is_from_earlier_term(held.reservation) and not held.is_expired(now):
            return False
        if held.gang and held.lead != path and not await self._cancel_lead(held):
            return False
        return await self._write_with_retries(partial(self._abort_writes, [_request_of(path, held)]))

    def _is_from_earlier_term(self, held: str) -> bool:
        """Whoever held it in an earlier term can write no more: that is certain, whatever its clock and ours say."""
        role, number = term_of(held) or ("", 0)
        return role == self.context.term.role and number < self.context.term.number

    async def _cancel_lead(self, held: ReservationRecord) -> bool:
        """The lead decides for all: once it is given up the others can be."""
        entry = await self.context.store.get(workload_key(held.lead))
        lead = reservation_record(_decode_workload(entry.value)) if entry else None
        if entry is None or lead is None or lead.gang != held.gang:
            return entry is None or not self._is_gang_bound(held, entry)
        return await self._try_write([self.records.cancel_reservation(entry)]) is not None

    def _is_gang_bound(self, held: ReservationRecord, lead: Entry | None) -> bool:
        """Is any of its attempt bound? The lead, or, should that be gone by now, another that was bound along with it."""
        if lead is not None and gang_attempt_of(_decode_workload(lead.value)) == held.gang:
            return True
        return any(
            gang_attempt_of(each) == held.gang
            for each in self.context.cache(LatticeWorkload).by_index("gang", held.gang)
        )

    async def _adopt(self, requests: Sequence[BindRequest], attempt: str, lead: str) -> Collection[str]:
        for _ in range(MAX_WRITE_ATTEMPTS):
            found, missing = await self._read_reservations(requests)
            if missing:
                return missing
            held = [msgspec.structs.replace(each, gang=attempt, lead=lead) for _, each in found]
            puts = [self.records.adopt(entry, each) for (entry, _), each in zip(found, held, strict=True)]
            if await self._try_write(puts) is not None:
                return ()
        raise _contended(requests[0].workload)

    async def _commit_together(self, requests: Sequence[BindRequest], attempt: str = "") -> Collection[str]:
        for _ in range(MAX_WRITE_ATTEMPTS):
            found, missing = await self._read_reservations(requests)
            missing += [
                each.reservation
                for entry, each in found
                if each.gang != attempt or not self.is_workload_unchanged(_decode_workload(entry.value))
            ]
            if missing or await self._bind(found):
                return missing
        raise _contended(requests[0].workload)

    async def _finish(self, requests: Sequence[BindRequest]) -> None:
        """It is decided: what is missing now was deleted, or finished by somebody else."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            found, _ = await self._read_reservations(requests)
            if await self._bind(found):
                return
        raise _contended(requests[0].workload)

    async def _bind(self, found: Iterable[tuple[Entry, ReservationRecord]]) -> bool:
        puts = [
            put
            for entry, held in found
            for put in self.records.bind_reserved(entry, _reserved_binding(held, self.context), held)
        ]
        return not puts or await self._try_write(puts) is not None

    async def _read_reservations(
        self, requests: Sequence[BindRequest]
    ) -> tuple[list[tuple[Entry, ReservationRecord]], list[str]]:
        """Those with a record as they are now; and the reservations of the others, unless they are bound by it already."""
        entries = await asyncio.gather(
            *(self.context.store.get(workload_key(each.workload)) for each in requests)
        )
        found, missing = [], []
        for request, entry in zip(requests, entries, strict=True):
            workload = _decode_workload(entry.value) if entry else None
            held = reservation_record(workload) if workload else None
            if entry and held and held.reservation == request.reservation:
                found.append((entry, held))
            elif workload is None or binding_reservation(workload) != request.reservation:
                missing.append(request.reservation)
        return found, missing

    async def _bound_reservations(self, requests: Sequence[BindRequest]) -> list[str]:
        """The reservations that have bound their workload, though the answer may be lost; what the copy says of them before is old."""
        entries = await asyncio.gather(
            *(self.context.store.get(workload_key(each.workload)) for each in requests)
        )
        both = zip(requests, entries, strict=True)
        found = [
            (each, entry)
            for each, entry in both
            if entry and binding_reservation(_decode_workload(entry.value)) == each.reservation
        ]
        self.written_revisions.update({each.workload: entry.revision for each, entry in found})
        return [each.reservation for each, _ in found]

    async def _abort_writes(self, requests: Sequence[BindRequest]) -> list[Write]:
        """What takes back whatever these prepared, with the room that they took, or binds it if that is decided; empty if there is none.

        What is bound is left alone: its node may have it already.
        """
        found, _ = await self._read_reservations(requests)
        leads = {held.lead for _, held in found if held.gang}
        heads = dict(
            zip(
                leads,
                await asyncio.gather(*(self.context.store.get(workload_key(each)) for each in leads)),
                strict=True,
            )
        )
        decided = [
            (entry, held)
            for entry, held in found
            if held.gang and self._is_gang_bound(held, heads[held.lead]) and _is_live(entry)
        ]
        bound = [
            put
            for entry, held in decided
            for put in self.records.bind_reserved(entry, _reserved_binding(held, self.context), held)
        ]
        left = [each for each in found if each not in decided]
        fewer = Counter(held.node for _, held in left)
        nodes = await asyncio.gather(*(self.context.store.get(node_key(name)) for name in fewer))
        counts = [self.records.add_to_count(node, -fewer[node.key.name]) for node in nodes if node]
        return [*bound, *(self.records.cancel_reservation(entry) for entry, _ in left), *counts]

    async def _write_with_retries(self, make: Callable[[], Awaitable[list[Write]]]) -> bool:
        """Made anew each time that somebody was faster. Whether there was anything to write."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            writes = await make()
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

    def _binding(self, node: Entry) -> Binding:
        return Binding(node=node.key.name, uid=_uid(node), term=self.context.term.number)

    async def _try_write(self, writes: Sequence[Write]) -> int | None:
        """None: somebody was faster, and nothing was written."""
        try:
            revision = await self.context.commit(writes)
        except RevisionConflict:
            return None
        except Fenced as over:
            self.fenced = over
            raise
        ours = LatticeWorkload.resource.id
        self.written_revisions.update(
            {write.key.path: revision for write in writes if write.key.resource == ours}
        )
        return revision


def _reserved_binding(held: ReservationRecord, office: ControllerContext) -> Binding:
    return Binding(node=held.node, uid=held.uid, term=office.term.number)


def _request_of(path: str, held: ReservationRecord) -> BindRequest:
    return BindRequest(path, held.node, held.reservation, (), 0.0)


def _uid(node: Entry) -> str:
    return _decode_node(node.value).metadata.uid


def _is_unbound(workload: LatticeWorkload, reservation: str = "") -> bool:
    """May it be bound? Not twice, not while somebody else has prepared it, and not while it is being deleted."""
    held = reservation_record(workload)
    is_ours = held is None or held.reservation == reservation
    return is_ours and workload.status.binding is None and not workload.metadata.deletion_timestamp


def _is_live(entry: Entry) -> bool:
    return not _decode_workload(entry.value).metadata.deletion_timestamp


def _free_capacity(node: LatticeNode, there: Iterable[LatticeWorkload]) -> dict[str, int]:
    table = NodeTable()
    row = table.put_node(node_info_of(node))
    for each in {f"{each.metadata.namespace}/{each.metadata.name}": each for each in there}.values():
        ask = table.ask_of(each)
        if _is_assigned_to(each, node) and (ask.demands.gpu is None or has_gpus(ask.demands.gpu, table, row)):
            table.admit(ask, row, dynamic_ports(each.spec.containers, each.status.allocated_ports))
    free = {name: int(table.free(number)[row]) for name, number in table.resource_index.items()}
    return {**free, GPU: int(table.gpus.free(row).clip(0).sum())}


def _is_assigned_to(workload: LatticeWorkload, node: LatticeNode) -> bool:
    binding, held = workload.status.binding, reservation_record(workload)
    uid = binding.uid if binding else held.uid if held else ""
    return uid == node.metadata.uid


def _lock_lease(node: str, spec: LeaseSpec) -> Lease:
    resource = Lease.resource
    metadata = Metadata(namespace=LOCK_NAMESPACE, name=f"node.{node}")
    return Lease(api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=spec)


def _is_lease_expired(lease: Entry, now: datetime) -> bool:
    """By wall time: the holder may be another process. One without a time never held."""
    spec = _decode_lease(lease.value).spec
    seconds = timedelta(seconds=spec.lease_duration_seconds or 0)
    return spec.renew_time is None or now >= datetime.fromisoformat(spec.renew_time) + seconds


def _parts(requests: Sequence[BindRequest], most: int) -> list[Sequence[BindRequest]]:
    return [requests[start : start + most] for start in range(0, len(requests), most)]


def _contended(where: str) -> Conflict:
    return Conflict(
        f"others were first {MAX_WRITE_ATTEMPTS} times in a row", where=where, fix="it is tried again"
    )
