"""Bind many workloads in few commits: a workload that conflicts with another writer is dropped, the other
workloads are bound."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from lattice.controllers.scheduler.bind_units import LIMITS, BindUnit, make_unit, node_units, pack_waves
from lattice.controllers.scheduler.binding_store import PersistentBindingStore, node_key, workload_key
from lattice.errors import TooLarge
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.cycle import ScheduledWorkload
from lattice.scheduling.cycle.reservations import Reservations
from lattice.store.commit_packing import cost_of_writes, pack_commits
from lattice.store.protocol import Entry, Put, RevisionConflict

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Gang:
    """Scheduled members of a gang; fewer than `min_members` members are not bound at all."""

    members: tuple[ScheduledWorkload, ...]
    min_members: int


@dataclass
class BatchBinder:
    """Binds scheduled workloads in batches, with optimistic concurrency on nodes and workloads.

    `node_revisions` holds, by node, the revision that the table reflects; a node at another revision gets no
    binding (I-12).
    """

    binding_store: PersistentBindingStore
    reservations: Reservations
    node_revisions: dict[str, int]
    node_uids: Mapping[str, str]
    on_bound: Callable[[ScheduledWorkload], None]
    # Called with nodes whose write has ended.
    on_nodes_written: Callable[[Iterable[str]], None]
    # Workloads to requeue with back-off, because an immediate retry would fail again.
    needs_backoff: set[str] = field(default_factory=set)
    # Workloads that were not bound, with the reason.
    bind_failures: dict[str, str] = field(default_factory=dict)
    # Nodes whose next revision this server is writing.
    writing_nodes: set[str] = field(default_factory=set)
    _write_done: asyncio.Event = field(default_factory=asyncio.Event)
    # Nodes as this server wrote them, until the cache holds the write.
    _written_nodes: dict[str, Entry] = field(default_factory=dict)

    async def bind(self, alone: Iterable[ScheduledWorkload], groups: Iterable[Gang]) -> None:
        """Bind single workloads and gangs; `on_bound` is called for every bound workload.

        A conflict with another writer is no error; other errors of the store are raised.
        """
        gangs = list(groups)
        sizes: dict[str, int] = {}
        ready = [scheduled for scheduled in alone if self._measure(scheduled, sizes)]
        units = [*(self._unit(gang.members) for gang in gangs), *node_units(ready, sizes)]
        min_members = {gang.members[0].ask.group: gang.min_members for gang in gangs if gang.members}
        for wave in pack_waves(units):
            results = await asyncio.gather(
                *(self._commit(commit, min_members) for commit in wave), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def write_counts(self, bound: Mapping[str, int]) -> None:
        """Write the workload counts of nodes. If a commit conflicts, its counts are dropped: the node
        controller also counts the workloads of a node that a workload has left."""
        nodes = [(self._node(name), count) for name, count in bound.items()]
        puts = [
            put
            for entry, count in nodes
            if entry and (put := self.binding_store.records.set_count(entry, count))
        ]
        for part in pack_commits(puts, lambda put: cost_of_writes([put])):
            with suppress(RevisionConflict):
                self._record_commit(part, (), await self.binding_store.context.commit(part))

    def fits_in_one_commit(self, gang: Gang) -> bool:
        """Whether the bindings of the gang fit into one commit."""
        unit = self._unit(gang.members)
        return LIMITS.allow(unit.operations, unit.size_bytes)

    def _unit(self, members: Sequence[ScheduledWorkload]) -> BindUnit:
        sizes: dict[str, int] = {}
        for member in members:
            self._measure(member, sizes)
        return make_unit(members, sum(sizes.values()))

    def _measure(self, scheduled: ScheduledWorkload, sizes: dict[str, int]) -> bool:
        entry = self.binding_store.context.cache(LatticeWorkload).entry(scheduled.ask.name)
        sizes[scheduled.ask.name] = len(entry.value) if entry else 0
        return entry is not None

    async def _commit(self, units: Iterable[BindUnit], min_members: Mapping[str, int]) -> None:
        """Commit a batch of units. A node is written by one commit at a time, because the next commit expects
        the revision that this commit gives the node."""
        # A comprehension with two loops, for speed: this code runs once per binding.
        batch = [scheduled for unit in units for scheduled in unit.scheduled]
        nodes = dict.fromkeys(scheduled.node for scheduled in batch).keys()
        while self.writing_nodes & nodes:
            self._write_done.clear()
            await self._write_done.wait()
        self.writing_nodes |= nodes
        try:
            await self._bind_all(batch, min_members)
        finally:
            self.writing_nodes -= nodes
            self._write_done.set()
            # During the write, cache changes of these nodes were ignored: the callback compares the revisions
            # now.
            self.on_nodes_written(nodes)

    async def _bind_all(self, batch: list[ScheduledWorkload], min_members: Mapping[str, int]) -> None:
        """Commit the bindings, and drop workloads that conflict until the commit succeeds or no workload is
        left."""
        remaining = batch
        while remaining := self._complete_gangs(self._still_bindable(remaining), min_members):
            added = Counter(scheduled.node for scheduled in remaining)
            nodes = {name: self._node(name) for name in added}
            if stale_nodes := {name for name, entry in nodes.items() if entry is None}:
                remaining = self._drop(
                    remaining,
                    [scheduled for scheduled in remaining if scheduled.node not in stale_nodes],
                    "the node changed after the decision",
                )
                continue
            counts = [
                self.binding_store.records.add_to_count(entry, added[name])
                for name, entry in nodes.items()
                if entry
            ]
            # A comprehension with two loops, for speed: this code runs once per binding.
            puts = [put for scheduled in remaining for put in self._bind_writes(scheduled)]
            reservation_ids = {scheduled.reservation.id for scheduled in remaining}
            # A reservation in a running commit must not expire: the commit may still succeed.
            self.reservations.in_flight |= reservation_ids
            try:
                revision = await self.binding_store.context.commit([*counts, *puts])
            except RevisionConflict as conflict:
                affected = {
                    id(scheduled)
                    for scheduled in remaining
                    if conflict.key in (node_key(scheduled.node), workload_key(scheduled.ask.name))
                }
                # A conflict on neither a node nor a workload of the batch concerns every workload.
                unaffected = [scheduled for scheduled in remaining if id(scheduled) not in affected]
                remaining = self._drop(
                    remaining, unaffected if affected else (), f"another write of {conflict.key} came first"
                )
                await self._wait_for_rival_write(conflict)
            except TooLarge:
                await self._bind_in_halves(remaining, min_members)
                return
            else:
                self._record_commit(counts, remaining, revision)
                return
            finally:
                self.reservations.in_flight -= reservation_ids

    async def _bind_in_halves(self, batch: list[ScheduledWorkload], min_members: Mapping[str, int]) -> None:
        """Bind in two smaller commits after the store rejected a commit as too large. A batch with a gang, or
        of a single workload, is not split and fails."""
        # A gang is bound in one commit or not at all (I-15).
        if len(batch) == 1 or any(scheduled.ask.group for scheduled in batch):
            log.warning("binding exceeds the commit size limit", workload=batch[0].ask.name, of=len(batch))
            self.needs_backoff |= {scheduled.ask.name for scheduled in batch}
            self._drop(batch, (), "the binding exceeds the commit size limit")
            return
        middle = len(batch) // 2
        for part in (batch[:middle], batch[middle:]):
            await self._bind_all(part, min_members)

    def _still_bindable(self, placed: Iterable[ScheduledWorkload]) -> list[ScheduledWorkload]:
        """The workloads whose reservation holds and that are unchanged since the decision."""
        now, batch = self.binding_store.context.clock.monotonic(), list(placed)
        # An expired or withdrawn reservation holds no capacity any more: another workload may have got the
        # capacity (I-12).
        reserved = [
            scheduled
            for scheduled in batch
            if not self.reservations.rejection_reason(scheduled.reservation.id, now)
        ]
        self._drop(batch, reserved, "the reservation expired or was withdrawn")
        workloads, bindable = self.binding_store.context.cache(LatticeWorkload), []
        for scheduled in reserved:
            workload = workloads.get(scheduled.ask.name)
            if workload is not None and self.binding_store.is_bindable(workload):
                bindable.append(scheduled)
        return self._drop(reserved, bindable, "the workload was changed or bound meanwhile")

    def _complete_gangs(
        self, batch: list[ScheduledWorkload], min_members: Mapping[str, int]
    ) -> list[ScheduledWorkload]:
        """The batch without members of gangs that have too few members left (I-15)."""
        if not min_members:
            return batch
        count = Counter(scheduled.ask.group for scheduled in batch)
        complete = [
            scheduled
            for scheduled in batch
            if not scheduled.ask.group
            or count[scheduled.ask.group] >= max(1, min_members[scheduled.ask.group])
        ]
        return self._drop(batch, complete, "too few members of the gang could be bound")

    def _drop(
        self, batch: Sequence[ScheduledWorkload], remaining: Sequence[ScheduledWorkload], reason: str
    ) -> list[ScheduledWorkload]:
        """Return the remaining workloads and note the reason for the dropped workloads."""
        if len(remaining) < len(batch):
            remaining_ids = {id(scheduled) for scheduled in remaining}
            self.bind_failures.update(
                (scheduled.ask.name, reason) for scheduled in batch if id(scheduled) not in remaining_ids
            )
        return list(remaining)

    def _bind_writes(self, scheduled: ScheduledWorkload) -> list[Put]:
        reservation, entry = (
            scheduled.reservation,
            self.binding_store.context.cache(LatticeWorkload).entry(scheduled.ask.name),
        )
        if entry is None:
            return []
        request = BindRequest(
            reservation.workload, reservation.node, reservation.id, reservation.needs, reservation.expires_at
        )
        # The uid ties the binding to this node: a later node of the same name is another machine.
        binding = Binding(
            node=scheduled.node,
            uid=self.node_uids[scheduled.node],
            term=self.binding_store.context.term.number,
            reservation=reservation.id,
        )
        return self.binding_store.records.bind(entry, binding, self.binding_store.details_for(request))

    def _node(self, name: str) -> Entry | None:
        """The entry of the node at the revision that the table reflects; None if the node has another
        revision now."""
        reflected_revision = self.node_revisions.get(name)
        for entry in (
            self._written_nodes.get(name),
            self.binding_store.context.cache(LatticeNode).entry(f"/{name}"),
        ):
            if entry is not None and entry.revision == reflected_revision:
                return entry
        return None

    def on_node_cached(self, node: str, revision: int) -> None:
        """Forget our copy of a node once the cache holds the revision."""
        written = self._written_nodes.get(node)
        if written is not None and written.revision <= revision:
            del self._written_nodes[node]

    def _record_commit(
        self, counts: Sequence[Put], bound: Sequence[ScheduledWorkload], revision: int
    ) -> None:
        """Take over the new revisions of the nodes and report the bound workloads."""
        cache = self.binding_store.context.cache(LatticeNode)
        for put in counts:
            # Another revision means that the table already reflects a newer change than this write.
            if self.node_revisions.get(put.key.name) == put.expect:
                self.node_revisions[put.key.name] = revision
            cached = cache.entry(put.key.path)
            # Until the cache holds this write, the next commit on the node builds on this copy.
            if cached is None or cached.revision < revision:
                self._written_nodes[put.key.name] = Entry(put.key, put.value, revision)
        for scheduled in bound:
            self.binding_store.written_revisions[scheduled.ask.name] = revision
            self.reservations.confirm_bound(scheduled.reservation.id)
            self.on_bound(scheduled)

    async def _wait_for_rival_write(self, conflict: RevisionConflict) -> None:
        """Wait until the cache holds the conflicting write: a retry without the write would conflict
        again."""
        context = self.binding_store.context
        cache = (
            context.cache(LatticeNode)
            if conflict.key.resource == LatticeNode.resource.id
            else context.cache(LatticeWorkload)
        )
        # A deleted object has no revision: the current revision of the store includes the deletion.
        await cache.wait_for(conflict.actual or await context.store.revision())
