"""Many bindings in few commits: who lost its place to a rival is dropped, everybody else is bound."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from lattice.controllers.scheduler.binding_store import StoreLedger, node_key, workload_key
from lattice.errors import TooLarge
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.cycle.cycle import Placed
from lattice.scheduling.cycle.commit_batches import Limits, Unit, a_unit, singles, waves
from lattice.store.protocol import Clash, Entry, Put

LIMITS = Limits()

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Group:
    """Members that are bound together, or fewer than `least` of them not at all."""

    members: tuple[Placed, ...]
    least: int


@dataclass
class Batches:
    """`seen`: the revision of each node that the table reflects. Whatever else a node is at by now, nothing is bound to it."""

    ledger: StoreLedger
    reservations: Reservations
    seen: dict[str, int]
    uids: Mapping[str, str]
    on_bound: Callable[[Placed], None]
    on_written: Callable[[Iterable[str]], None]  # these nodes were being written, and are no longer
    hopeless: set[str] = field(default_factory=set)  # workloads that trying again at once would not help
    lost: dict[str, str] = field(default_factory=dict)  # workloads that were not bound after all, and why
    writing: set[str] = field(default_factory=set)  # nodes whose next revision is on its way to us
    _written: asyncio.Event = field(default_factory=asyncio.Event)
    _nodes: dict[str, Entry] = field(default_factory=dict)  # as we wrote them, until the copy has that

    async def bind(self, alone: Iterable[Placed], groups: Iterable[Group]) -> None:
        """Those that are bound are told of by `on_bound`. A rival's doing is no error; what the store raises otherwise is."""
        together = list(groups)
        sizes: dict[str, int] = {}
        ready = [each for each in alone if self._measured(each, sizes)]
        units = [*(self._unit(group.members) for group in together), *singles(ready, sizes, LIMITS)]
        needed = {each.ask.group: group.least for group in together for each in group.members[:1]}
        for wave in waves(units, LIMITS):
            done = await asyncio.gather(
                *(self._commit(commit, needed) for commit in wave), return_exceptions=True
            )
            for problem in done:
                if isinstance(problem, BaseException):
                    raise problem

    async def count(self, bound: Mapping[str, int]) -> None:
        """So many are bound to each of these nodes. What a rival writes at the same time is counted by the rival."""
        nodes = [(self._node(name), count) for name, count in bound.items()]
        puts = [put for entry, count in nodes if entry and (put := self.ledger.deeds.recounted(entry, count))]
        for start in range(0, len(puts), LIMITS.operations):
            part = puts[start : start + LIMITS.operations]
            with suppress(Clash):
                self._note(part, (), await self.ledger.office.commit(part))

    def fits(self, group: Group) -> bool:
        """Does it go into one commit?"""
        return self._unit(group.members).fits(LIMITS)

    def _unit(self, members: Sequence[Placed]) -> Unit:
        sizes: dict[str, int] = {}
        for each in members:
            self._measured(each, sizes)
        return a_unit(members, sum(sizes.values()))

    def _measured(self, each: Placed, sizes: dict[str, int]) -> bool:
        entry = self.ledger.office.copy(LatticeWorkload).entry(each.ask.name)
        sizes[each.ask.name] = len(entry.value) if entry else 0
        return entry is not None

    async def _commit(self, units: Iterable[Unit], needed: Mapping[str, int]) -> None:
        """Each node is written by one commit at a time: the next one builds on its revision."""
        placed = [each for unit in units for each in unit.placed]
        nodes = dict.fromkeys(each.node for each in placed).keys()
        while self.writing & nodes:
            self._written.clear()
            await self._written.wait()
        self.writing |= nodes
        try:
            await self._bind_all(placed, needed)
        finally:
            self.writing -= nodes
            self._written.set()
            self.on_written(nodes)

    async def _bind_all(self, placed: list[Placed], needed: Mapping[str, int]) -> None:
        left = placed
        while left := self._enough(self._held(left), needed):
            more = Counter(each.node for each in left)
            nodes = {name: self._node(name) for name in more}
            if gone := {name for name, entry in nodes.items() if entry is None}:
                left = self._without(
                    left,
                    [each for each in left if each.node not in gone],
                    "the node has changed since it was chosen",
                )
                continue
            counts = [self.ledger.deeds.counted(entry, more[name]) for name, entry in nodes.items() if entry]
            puts = [put for each in left for put in self._puts(each)]
            ours = {each.reservation.id for each in left}
            self.reservations.in_hand |= ours
            try:
                revision = await self.ledger.office.commit([*counts, *puts])
            except Clash as clash:
                left = self._without(left, _unharmed(left, clash), f"somebody else wrote {clash.key} first")
                await self._catch_up(clash)
            except TooLarge:
                await self._halve(left, needed)
                return
            else:
                self._note(counts, left, revision)
                return
            finally:
                self.reservations.in_hand -= ours

    async def _halve(self, left: list[Placed], needed: Mapping[str, int]) -> None:
        if len(left) == 1 or any(each.ask.group for each in left):
            log.warning("binding is too large to be written", workload=left[0].ask.name, of=len(left))
            self.hopeless |= {each.ask.name for each in left}
            self._without(left, (), "it is too large to be written")
            return
        middle = len(left) // 2
        for part in (left[:middle], left[middle:]):
            await self._bind_all(part, needed)

    def _held(self, placed: Iterable[Placed]) -> list[Placed]:
        """Whose room is still kept, and who still wants it."""
        now, ours, before = self.ledger.office.clock.monotonic(), self.reservations, list(placed)
        kept = self._without(
            before,
            [each for each in before if not ours.refusal(each.reservation.id, now)],
            "its room was given up",
        )
        return self._without(
            kept, [each for each in kept if self._is_bindable(each)], "it was changed or bound meanwhile"
        )

    def _enough(self, placed: list[Placed], needed: Mapping[str, int]) -> list[Placed]:
        return (
            self._without(placed, _enough(placed, needed), "too few of its group could be bound")
            if needed
            else placed
        )

    def _without(self, before: Sequence[Placed], left: Sequence[Placed], why: str) -> list[Placed]:
        """Those that are left; why the others are not is remembered."""
        if len(left) < len(before):
            kept = {id(each) for each in left}
            self.lost.update((each.ask.name, why) for each in before if id(each) not in kept)
        return list(left)

    def _is_bindable(self, each: Placed) -> bool:
        """As copied; one that is bound, to be deleted or changed by now is not."""
        found = self.ledger.office.copy(LatticeWorkload).get(each.ask.name)
        return found is not None and self.ledger.is_bindable(found)

    def _puts(self, each: Placed) -> list[Put]:
        held, entry = each.reservation, self.ledger.office.copy(LatticeWorkload).entry(each.ask.name)
        if entry is None:
            return []
        request = BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)
        to = Binding(node=each.node, uid=self.uids[each.node], term=self.ledger.office.term.number)
        return self.ledger.deeds.bound(entry, to, request, self.ledger.draft(request))

    def _node(self, name: str) -> Entry | None:
        """At the revision that the table reflects; None: it is elsewhere by now."""
        wanted = self.seen.get(name)
        for entry in (self._nodes.get(name), self.ledger.office.copy(LatticeNode).entry(f"/{name}")):
            if entry is not None and entry.revision == wanted:
                return entry
        return None

    def copied(self, node: str, revision: int) -> None:
        """The copy has that by now."""
        ours = self._nodes.get(node)
        if ours is not None and ours.revision <= revision:
            del self._nodes[node]

    def _note(self, counts: Sequence[Put], bound: Sequence[Placed], revision: int) -> None:
        copy = self.ledger.office.copy(LatticeNode)
        for put in counts:
            if self.seen.get(put.key.name) == put.expect:  # else there was news that this says nothing of
                self.seen[put.key.name] = revision
            copied = copy.entry(put.key.path)
            if copied is None or copied.revision < revision:
                self._nodes[put.key.name] = Entry(put.key, put.value, revision)
        for each in bound:
            self.ledger.written[each.ask.name] = revision
            self.reservations.keep(each.reservation.id)
            self.on_bound(each)

    async def _catch_up(self, clash: Clash) -> None:
        """Until the copy knows what the rival wrote: deciding on less would end the same way."""
        office = self.ledger.office
        copy = (
            office.copy(LatticeNode)
            if clash.key.resource == LatticeNode.resource.id
            else office.copy(LatticeWorkload)
        )
        await copy.wait_for(clash.found or await office.store.revision())


def _unharmed(placed: Sequence[Placed], clash: Clash) -> list[Placed]:
    """Those that have nothing to do with what a rival wrote; nobody, if that is neither a node nor a workload of theirs."""
    harmed = {id(each) for each in placed if clash.key in (node_key(each.node), workload_key(each.ask.name))}
    return [each for each in placed if id(each) not in harmed] if harmed else []


def _enough(placed: list[Placed], needed: Mapping[str, int]) -> list[Placed]:
    """Without the members of groups of which too few are left."""
    if not needed:
        return placed
    count = Counter(each.ask.group for each in placed)
    return [
        each
        for each in placed
        if not each.ask.group or count[each.ask.group] >= max(1, needed[each.ask.group])
    ]
