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

from lattice.controllers.scheduler.binding_records import Deeds, Draft
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import created, key_of
from lattice.errors import Conflict, Fenced
from lattice.kinds.meta.base import Metadata
from lattice.kinds.core import Lease, LeaseSpec
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.table.ask import GPU
from lattice.scheduling.cycle.binder import BindRequest, NodeState
from lattice.scheduling.table.node_info import facts_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.ports import chosen_of
from lattice.scheduling.cycle.two_phase import Prepared, bound_by, gang_of, prepared, term_of
from lattice.scheduling.table.resource_fit import has_gpus
from lattice.store.protocol import MAX_OPERATIONS, Clash, Delete, Entry, Key, Put, Write

LOCKS = "lattice-system"  # the namespace of the Leases that lock nodes
TRIES = 16  # to write what a rival writes, too; each one lost is one that somebody else won

_node = msgspec.json.Decoder(LatticeNode).decode
_workload = msgspec.json.Decoder(LatticeWorkload).decode
_lease = msgspec.json.Decoder(Lease).decode


def _no_draft(request: BindRequest) -> Draft:
    return Draft()


def _any(_: object) -> bool:
    return True


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def workload_key(path: str) -> Key:
    namespace, _, name = path.partition("/")
    return Key(LatticeWorkload.resource.id, namespace, name)


@dataclass
class StoreLedger:
    """scheduling.bind.Ledger over the store. `draft` tells what a binding says besides who goes where.

    `is_as_decided`: whether a workload still asks for what its room was taken for; it may have been changed since.
    """

    office: Office
    draft: Callable[[BindRequest], Draft] = _no_draft
    is_as_decided: Callable[[LatticeWorkload], bool] = _any
    is_as_chosen: Callable[[LatticeNode], bool] = _any  # whether a node is as it was when it was chosen
    written: dict[str, int] = field(default_factory=dict)  # by workload, the revision of what we wrote last

    fenced: Fenced | None = (
        None  # since then nothing is written any more, whatever a binder makes of the failure
    )

    @cached_property
    def deeds(self) -> Deeds:
        return Deeds(self.office)

    async def read(self, node: str) -> NodeState | None:
        """What is free beside all that is bound to it or prepared. Whoever binds to it later moves its revision."""
        entry = await self.office.store.get(node_key(node))
        if entry is None:
            return None
        workloads = self.office.copy(LatticeWorkload)
        await workloads.wait_for(entry.revision)
        there = [*workloads.by("node", node), *workloads.by("prepared", node)]
        return NodeState(entry.revision, _free(_node(entry.value), there))

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        node, workload = await self._both(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_workload(workload.value))
        ):
            return None
        if not self.is_as_chosen(_node(node.value)):
            return None  # cordoned, tainted or given up since: its room alone does not make it fit
        puts = self.deeds.bound(workload, self._binding(node), request, self.draft(request))
        return await self._write([self.deeds.counted(node, 1), *puts])

    def is_bindable(self, workload: LatticeWorkload) -> bool:
        return (
            _is_free(workload) and workload.spec.desired_state == "Running" and self.is_as_decided(workload)
        )

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        token = f"{holder} {self.office.new_uid()}"
        now, seconds = self.office.clock.now(), max(1, ceil(until - self.office.clock.monotonic()))
        held = LeaseSpec(
            holder_identity=token,
            acquire_time=now.isoformat(),
            renew_time=now.isoformat(),
            lease_duration_seconds=seconds,
        )
        lease = _a_lock(node, held)
        found = await self.office.store.get(key_of(lease))
        if (
            found is not None
            and not self._is_of_the_past(_lease(found.value).spec.holder_identity or "")
            and not _is_over(found, now)
        ):
            return None
        put = created(lease, uid=self.office.new_uid(), now=self.office.now)
        taken = await self._write([put if found is None else Put(put.key, put.value, found.revision)])
        return None if taken is None else token

    async def unlock(self, node: str, token: str) -> None:
        found = await self.office.store.get(key_of(_a_lock(node, LeaseSpec())))
        if found is not None and _lease(found.value).spec.holder_identity == token:
            await self._write([Delete(found.key, found.revision)])

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        node, workload = await self._both(request)
        if (
            node is None
            or workload is None
            or node.revision != expected
            or not self.is_bindable(_workload(workload.value))
        ):
            return None
        held = Prepared(
            node=request.node,
            uid=_uid(node),
            reservation=request.reservation,
            until=self.deeds.until(request.expires_at),
        )
        return await self._write(
            [self.deeds.counted(node, 1), self.deeds.prepared(workload, held, self.draft(request))]
        )

    async def commit_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        if 2 * len(requests) <= MAX_OPERATIONS:
            return await self._commit_together(requests)
        attempt = f"{requests[0].reservation} {self.office.new_uid()}"
        for part in _parts(requests, MAX_OPERATIONS):
            if missing := await self._adopt(part, attempt, lead=requests[0].workload):
                return missing
        first, *others = _parts(requests, MAX_OPERATIONS // 2)
        if missing := await self._commit_together(first, attempt):
            return missing
        for part in others:
            await self._finish(part)
        return ()

    async def abort_all(self, requests: Sequence[BindRequest]) -> Collection[str]:
        for part in _parts(requests, MAX_OPERATIONS // 2):
            await self._until_written(partial(self._undoing, part))
        return await self._bound(requests)

    async def settle(self, path: str, now: datetime) -> bool:
        """Finish, or give up after its time, what an attempt that is no more has left prepared. Whether anything was written."""
        entry = await self.office.store.get(workload_key(path))
        held = prepared(_workload(entry.value)) if entry else None
        if entry is None or held is None or not _is_free(_workload(entry.value), held.reservation):
            return False
        if held.gang and self._is_decided(held, await self.office.store.get(workload_key(held.lead))):
            return await self._write(self.deeds.together(entry, _to(held, self.office), held)) is not None
        if not self._is_of_the_past(held.reservation) and not held.is_over(now):
            return False
        if held.gang and held.lead != path and not await self._is_called_off(held):
            return False
        return await self._until_written(partial(self._undoing, [_request_of(path, held)]))

    def _is_of_the_past(self, held: str) -> bool:
        """Whoever held it in an earlier term can write no more: that is certain, whatever its clock and ours say."""
        role, number = term_of(held) or ("", 0)
        return role == self.office.term.role and number < self.office.term.number

    async def _is_called_off(self, held: Prepared) -> bool:
        """The lead decides for all: once it is given up the others can be."""
        entry = await self.office.store.get(workload_key(held.lead))
        lead = prepared(_workload(entry.value)) if entry else None
        if entry is None or lead is None or lead.gang != held.gang:
            return entry is None or not self._is_decided(held, entry)
        return await self._write([self.deeds.given_up(entry)]) is not None

    def _is_decided(self, held: Prepared, lead: Entry | None) -> bool:
        """Is any of its attempt bound? The lead, or, should that be gone by now, another that was bound along with it."""
        if lead is not None and gang_of(_workload(lead.value)) == held.gang:
            return True
        return any(
            gang_of(each) == held.gang for each in self.office.copy(LatticeWorkload).by("gang", held.gang)
        )

    async def _adopt(self, requests: Sequence[BindRequest], attempt: str, lead: str) -> Collection[str]:
        for _ in range(TRIES):
            found, missing = await self._prepared(requests)
            if missing:
                return missing
            held = [msgspec.structs.replace(each, gang=attempt, lead=lead) for _, each in found]
            puts = [self.deeds.adopted(entry, each) for (entry, _), each in zip(found, held, strict=True)]
            if await self._write(puts) is not None:
                return ()
        raise _contended(requests[0].workload)

    async def _commit_together(self, requests: Sequence[BindRequest], attempt: str = "") -> Collection[str]:
        for _ in range(TRIES):
            found, missing = await self._prepared(requests)
            missing += [
                each.reservation
                for entry, each in found
                if each.gang != attempt or not self.is_as_decided(_workload(entry.value))
            ]
            if missing or await self._bind(found):
                return missing
        raise _contended(requests[0].workload)

    async def _finish(self, requests: Sequence[BindRequest]) -> None:
        """It is decided: what is missing now was deleted, or finished by somebody else."""
        for _ in range(TRIES):
            found, _ = await self._prepared(requests)
            if await self._bind(found):
                return
        raise _contended(requests[0].workload)

    async def _bind(self, found: Iterable[tuple[Entry, Prepared]]) -> bool:
        puts = [
            put for entry, held in found for put in self.deeds.together(entry, _to(held, self.office), held)
        ]
        return not puts or await self._write(puts) is not None

    async def _prepared(
        self, requests: Sequence[BindRequest]
    ) -> tuple[list[tuple[Entry, Prepared]], list[str]]:
        """Those with a record as they are now; and the reservations of the others, unless they are bound by it already."""
        entries = await asyncio.gather(
            *(self.office.store.get(workload_key(each.workload)) for each in requests)
        )
        found, missing = [], []
        for request, entry in zip(requests, entries, strict=True):
            workload = _workload(entry.value) if entry else None
            held = prepared(workload) if workload else None
            if entry and held and held.reservation == request.reservation:
                found.append((entry, held))
            elif workload is None or bound_by(workload) != request.reservation:
                missing.append(request.reservation)
        return found, missing

    async def _bound(self, requests: Sequence[BindRequest]) -> list[str]:
        """The reservations that have bound their workload, though the answer may be lost; what the copy says of them before is old."""
        entries = await asyncio.gather(
            *(self.office.store.get(workload_key(each.workload)) for each in requests)
        )
        both = zip(requests, entries, strict=True)
        found = [
            (each, entry)
            for each, entry in both
            if entry and bound_by(_workload(entry.value)) == each.reservation
        ]
        self.written.update({each.workload: entry.revision for each, entry in found})
        return [each.reservation for each, _ in found]

    async def _undoing(self, requests: Sequence[BindRequest]) -> list[Write]:
        """What takes back whatever these prepared, with the room that they took, or binds it if that is decided; empty if there is none.

        What is bound is left alone: its node may have it already.
        """
        found, _ = await self._prepared(requests)
        leads = {held.lead for _, held in found if held.gang}
        heads = dict(
            zip(
                leads,
                await asyncio.gather(*(self.office.store.get(workload_key(each)) for each in leads)),
                strict=True,
            )
        )
        decided = [
            (entry, held)
            for entry, held in found
            if held.gang and self._is_decided(held, heads[held.lead]) and _is_live(entry)
        ]
        bound = [
            put for entry, held in decided for put in self.deeds.together(entry, _to(held, self.office), held)
        ]
        left = [each for each in found if each not in decided]
        fewer = Counter(held.node for _, held in left)
        nodes = await asyncio.gather(*(self.office.store.get(node_key(name)) for name in fewer))
        counts = [self.deeds.counted(node, -fewer[node.key.name]) for node in nodes if node]
        return [*bound, *(self.deeds.given_up(entry) for entry, _ in left), *counts]

    async def _until_written(self, make: Callable[[], Awaitable[list[Write]]]) -> bool:
        """Made anew each time that somebody was faster. Whether there was anything to write."""
        for _ in range(TRIES):
            writes = await make()
            if not writes:
                return False
            if await self._write(writes) is not None:
                return True
        raise _contended(str(writes[0].key))

    async def _both(self, request: BindRequest) -> tuple[Entry | None, Entry | None]:
        get = self.office.store.get
        node, workload = await asyncio.gather(
            get(node_key(request.node)), get(workload_key(request.workload))
        )
        return node, workload

    def _binding(self, node: Entry) -> Binding:
        return Binding(node=node.key.name, uid=_uid(node), term=self.office.term.number)

    async def _write(self, writes: Sequence[Write]) -> int | None:
        """None: somebody was faster, and nothing was written."""
        try:
            revision = await self.office.commit(writes)
        except Clash:
            return None
        except Fenced as over:
            self.fenced = over
            raise
        ours = LatticeWorkload.resource.id
        self.written.update({write.key.path: revision for write in writes if write.key.resource == ours})
        return revision


def _to(held: Prepared, office: Office) -> Binding:
    return Binding(node=held.node, uid=held.uid, term=office.term.number)


def _request_of(path: str, held: Prepared) -> BindRequest:
    return BindRequest(path, held.node, held.reservation, (), 0.0)


def _uid(node: Entry) -> str:
    return _node(node.value).metadata.uid


def _is_free(workload: LatticeWorkload, reservation: str = "") -> bool:
    """May it be bound? Not twice, not while somebody else has prepared it, and not while it is being deleted."""
    held = prepared(workload)
    is_ours = held is None or held.reservation == reservation
    return is_ours and workload.status.binding is None and not workload.metadata.deletion_timestamp


def _is_live(entry: Entry) -> bool:
    return not _workload(entry.value).metadata.deletion_timestamp


def _free(node: LatticeNode, there: Iterable[LatticeWorkload]) -> dict[str, int]:
    table = NodeTable()
    row = table.put(facts_of(node))
    for each in {f"{each.metadata.namespace}/{each.metadata.name}": each for each in there}.values():
        ask = table.ask(each)
        if _is_on(each, node) and (ask.demands.gpu is None or has_gpus(ask.demands.gpu, table, row)):
            table.admit(ask, row, chosen_of(each.spec.containers, each.status.allocated_ports))
    free = {name: int(table.free(number)[row]) for name, number in table.index.items()}
    return {**free, GPU: int(table.gpus.free(row).clip(0).sum())}


def _is_on(workload: LatticeWorkload, node: LatticeNode) -> bool:
    binding, held = workload.status.binding, prepared(workload)
    uid = binding.uid if binding else held.uid if held else ""
    return uid == node.metadata.uid


def _a_lock(node: str, spec: LeaseSpec) -> Lease:
    resource = Lease.resource
    metadata = Metadata(namespace=LOCKS, name=f"node.{node}")
    return Lease(api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=spec)


def _is_over(lease: Entry, now: datetime) -> bool:
    """By wall time: the holder may be another process. One without a time never held."""
    spec = _lease(lease.value).spec
    seconds = timedelta(seconds=spec.lease_duration_seconds or 0)
    return spec.renew_time is None or now >= datetime.fromisoformat(spec.renew_time) + seconds


def _parts(requests: Sequence[BindRequest], most: int) -> list[Sequence[BindRequest]]:
    return [requests[start : start + most] for start in range(0, len(requests), most)]


def _contended(where: str) -> Conflict:
    return Conflict(f"others were first {TRIES} times in a row", where=where, fix="it is tried again")
