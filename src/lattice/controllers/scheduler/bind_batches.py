"""Many bindings in few commits: who lost its place to a rival is dropped, everybody else is bound."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from lattice.controllers.scheduler.binding_store import PersistentBindingStore, node_key, workload_key
from lattice.errors import TooLarge
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.commit_batches import (
    BindUnit,
    CommitLimits,
    make_unit,
    node_units,
    pack_commit_batches,
)
from lattice.scheduling.cycle.cycle import ScheduledWorkload
from lattice.scheduling.cycle.reservations import Reservations
from lattice.store.protocol import Entry, Put, RevisionConflict

LIMITS = CommitLimits()

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Gang:
    """Members that are bound together, or fewer than `least` of them not at all."""

    members: tuple[ScheduledWorkload, ...]
    min_members: int


@dataclass
class BatchBinder:
    """`seen`: the revision of each node that the table reflects. Whatever else a node is at by now, nothing is bound to it."""

    binding_store: PersistentBindingStore
    reservations: Reservations
    node_revisions: dict[str, int]
    node_uids: Mapping[str, str]
    on_bound: Callable[[ScheduledWorkload], None]
    on_nodes_written: Callable[[Iterable[str]], None]  # these nodes were being written, and are no longer
    needs_backoff: set[str] = field(default_factory=set)  # workloads that trying again at once would not help
    bind_failures: dict[str, str] = field(
        default_factory=dict
    )  # workloads that were not bound after all, and why
    writing_nodes: set[str] = field(default_factory=set)  # nodes whose next revision is on its way to us
    _write_done: asyncio.Event = field(default_factory=asyncio.Event)
    _written_nodes: dict[str, Entry] = field(
        default_factory=dict
    )  # as we wrote them, until the copy has that

    async def bind(self, alone: Iterable[ScheduledWorkload], groups: Iterable[Gang]) -> None:
        """Those that are bound are told of by `on_bound`. A rival's doing is no error; what the store raises otherwise is."""
        together = list(groups)
        sizes: dict[str, int] = {}
        ready = [each for each in alone if self._measure(each, sizes)]
        units = [*(self._unit(group.members) for group in together), *node_units(ready, sizes, LIMITS)]
        needed = {each.ask.group: group.min_members for group in together for each in group.members[:1]}
        for wave in pack_commit_batches(units, LIMITS):
            done = await asyncio.gather(
                *(self._commit(commit, needed) for commit in wave), return_exceptions=True
            )
            for problem in done:
                if isinstance(problem, BaseException):
                    raise problem

    async def write_counts(self, bound: Mapping[str, int]) -> None:
        """So many are bound to each of these nodes. What a rival writes at the same time is counted by the rival."""
        nodes = [(self._node(name), count) for name, count in bound.items()]
        puts = [
            put
            for entry, count in nodes
            if entry and (put := self.binding_store.records.set_count(entry, count))
        ]
        for start in range(0, len(puts), LIMITS.max_operations):
            part = puts[start : start + LIMITS.max_operations]
            with suppress(RevisionConflict):
                self._record_commit(part, (), await self.binding_store.context.commit(part))

    def fits_in_one_commit(self, group: Gang) -> bool:
        """Does it go into one commit?"""
        return self._unit(group.members).fits(LIMITS)

    def _unit(self, members: Sequence[ScheduledWorkload]) -> BindUnit:
        sizes: dict[str, int] = {}
        for each in members:
            self._measure(each, sizes)
        return make_unit(members, sum(sizes.values()))

    def _measure(self, each: ScheduledWorkload, sizes: dict[str, int]) -> bool:
        entry = self.binding_store.context.cache(LatticeWorkload).entry(each.ask.name)
        sizes[each.ask.name] = len(entry.value) if entry else 0
        return entry is not None

    async def _commit(self, units: Iterable[BindUnit], needed: Mapping[str, int]) -> None:
        """Each node is written by one commit at a time: the next one builds on its revision."""
        placed = [each for unit in units for each in unit.scheduled]
        nodes = dict.fromkeys(each.node for each in placed).keys()
        while self.writing_nodes & nodes:
            self._write_done.clear()
            await self._write_done.wait()
        self.writing_nodes |= nodes
        try:
            await self._bind_all(placed, needed)
        finally:
            self.writing_nodes -= nodes
            self._write_done.set()
            self.on_nodes_written(nodes)

    async def _bind_all(self, placed: list[ScheduledWorkload], needed: Mapping[str, int]) -> None:
        left = placed
        while left := self._complete_gangs(self._still_bindable(left), needed):
            more = Counter(each.node for each in left)
            nodes = {name: self._node(name) for name in more}
            if gone := {name for name, entry in nodes.items() if entry is None}:
                left = self._drop(
                    left,
                    [each for each in left if each.node not in gone],
                    "the node has changed since it was chosen",
                )
                continue
            counts = [
                self.binding_store.records.add_to_count(entry, more[name])
                for name, entry in nodes.items()
                if entry
            ]
            puts = [put for each in left for put in self._bind_writes(each)]
            ours = {each.reservation.id for each in left}
            self.reservations.in_flight |= ours
            try:
                revision = await self.binding_store.context.commit([*counts, *puts])
            except RevisionConflict as clash:
                left = self._drop(left, _unaffected(left, clash), f"somebody else wrote {clash.key} first")
                await self._wait_for_rival_write(clash)
            except TooLarge:
                await self._bind_in_halves(left, needed)
                return
            else:
                self._record_commit(counts, left, revision)
                return
            finally:
                self.reservations.in_flight -= ours

    async def _bind_in_halves(self, left: list[ScheduledWorkload], needed: Mapping[str, int]) -> None:
        if len(left) == 1 or any(each.ask.group for each in left):
            log.warning("binding is too large to be written", workload=left[0].ask.name, of=len(left))
            self.needs_backoff |= {each.ask.name for each in left}
            self._drop(left, (), "it is too large to be written")
            return
        middle = len(left) // 2
        for part in (left[:middle], left[middle:]):
            await self._bind_all(part, needed)

    def _still_bindable(self, placed: Iterable[ScheduledWorkload]) -> list[ScheduledWorkload]:
        """Whose room is still kept, and who still wants it."""
        now, ours, before = self.binding_store.context.clock.monotonic(), self.reservations, list(placed)
        kept = self._drop(
            before,
            [each for each in before if not ours.rejection_reason(each.reservation.id, now)],
            "its room was given up",
        )
        return self._drop(
            kept, [each for each in kept if self._is_bindable(each)], "it was changed or bound meanwhile"
        )

    def _complete_gangs(
        self, placed: list[ScheduledWorkload], needed: Mapping[str, int]
    ) -> list[ScheduledWorkload]:
        return (
            self._drop(
                placed, _without_incomplete_gangs(placed, needed), "too few of its group could be bound"
            )
            if needed
            else placed
        )

    def _drop(
        self, before: Sequence[ScheduledWorkload], left: Sequence[ScheduledWorkload], why: str
    ) -> list[ScheduledWorkload]:
        """Those that are left; why the others are not is remembered."""
        if len(left) < len(before):
            kept = {id(each) for each in left}
            self.bind_failures.update((each.ask.name, why) for each in before if id(each) not in kept)
        return list(left)

    def _is_bindable(self, each: ScheduledWorkload) -> bool:
        """As copied; one that is bound, to be deleted or changed by now is not."""
        found = self.binding_store.context.cache(LatticeWorkload).get(each.ask.name)
        return found is not None and self.binding_store.is_bindable(found)

    def _bind_writes(self, each: ScheduledWorkload) -> list[Put]:
        held, entry = each.reservation, self.binding_store.context.cache(LatticeWorkload).entry(each.ask.name)
        if entry is None:
            return []
        request = BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)
        to = Binding(
            node=each.node, uid=self.node_uids[each.node], term=self.binding_store.context.term.number
        )
        return self.binding_store.records.bind(entry, to, request, self.binding_store.details_for(request))

    def _node(self, name: str) -> Entry | None:
        """At the revision that the table reflects; None: it is elsewhere by now."""
        wanted = self.node_revisions.get(name)
        for entry in (
            self._written_nodes.get(name),
            self.binding_store.context.cache(LatticeNode).entry(f"/{name}"),
        ):
            if entry is not None and entry.revision == wanted:
                return entry
        return None

    def on_node_cached(self, node: str, revision: int) -> None:
        """The copy has that by now."""
        ours = self._written_nodes.get(node)
        if ours is not None and ours.revision <= revision:
            del self._written_nodes[node]

    def _record_commit(
        self, counts: Sequence[Put], bound: Sequence[ScheduledWorkload], revision: int
    ) -> None:
        copy = self.binding_store.context.cache(LatticeNode)
        for put in counts:
            if (
                self.node_revisions.get(put.key.name) == put.expect
            ):  # else there was news that this says nothing of
                self.node_revisions[put.key.name] = revision
            copied = copy.entry(put.key.path)
            if copied is None or copied.revision < revision:
                self._written_nodes[put.key.name] = Entry(put.key, put.value, revision)
        for each in bound:
            self.binding_store.written_revisions[each.ask.name] = revision
            self.reservations.confirm_bound(each.reservation.id)
            self.on_bound(each)

    async def _wait_for_rival_write(self, clash: RevisionConflict) -> None:
        """Until the copy knows what the rival wrote: deciding on less would end the same way."""
        office = self.binding_store.context
        copy = (
            office.cache(LatticeNode)
            if clash.key.resource == LatticeNode.resource.id
            else office.cache(LatticeWorkload)
        )
        await copy.wait_for(clash.actual or await office.store.revision())


def _unaffected(placed: Sequence[ScheduledWorkload], clash: RevisionConflict) -> list[ScheduledWorkload]:
    """Those that have nothing to do with what a rival wrote; nobody, if that is neither a node nor a workload of theirs."""
    harmed = {id(each) for each in placed if clash.key in (node_key(each.node), workload_key(each.ask.name))}
    return [each for each in placed if id(each) not in harmed] if harmed else []


def _without_incomplete_gangs(
    placed: list[ScheduledWorkload], needed: Mapping[str, int]
) -> list[ScheduledWorkload]:
    """Without the members of groups of which too few are left."""
    if not needed:
        return placed
    count = Counter(each.ask.group for each in placed)
    return [
        each
        for each in placed
        if not each.ask.group or count[each.ask.group] >= max(1, needed[each.ask.group])
    ]
