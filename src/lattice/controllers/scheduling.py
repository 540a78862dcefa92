"""Workloads that need a node -> bindings: batches are decided on a table that follows the copies, and written in fenced commits."""

import asyncio
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import structlog

from lattice import metrics, traces
from lattice.controllers.batches import Batches, Group
from lattice.controllers.bindings import StoreLedger
from lattice.controllers.deeds import Draft
from lattice.controllers.loop import Again, Loop, Pace, Source
from lattice.controllers.office import Office
from lattice.controllers.refusals import Refusals
from lattice.engine.decide import decide
from lattice.engine.order import tie_rank
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.bind import Binder, BindEvent, BindingMode, BindRequest
from lattice.scheduling.change import Change as Wakes
from lattice.scheduling.grounds import Grounds, chosen
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.ports import allocated
from lattice.scheduling.preempt import Preemptor
from lattice.scheduling.profile import DEFAULT, PRESETS, ProfileSpec
from lattice.scheduling.roster import Moment, Roster
from lattice.scheduling.schedule import CompositeScheduler, Cycle, Placed, compose
from lattice.store.protocol import Change, Entry

KEY = "nodes"  # the one key: all nodes are one table
BATCH = 400  # workloads decided at once; the next are decided while these are written
MOST_BATCHES = 50  # in one look
IN_FLIGHT = 3  # batches that are being written at once
AT_ONCE = 16  # bindings of several steps that are under way at once
LEFTOVERS = 1.0  # seconds between looks at what an attempt that is no more has prepared

log = structlog.get_logger()


@dataclass
class SchedulingController:
    """Told that something changed; looks at what did, and binds all that can be bound. `before`: the table of the term before, if any."""

    office: Office
    profile: ProfileSpec = PRESETS[DEFAULT]
    before: NodeTable | None = None
    name: ClassVar[str] = "scheduling"

    def __post_init__(self) -> None:
        office, term = self.office, self.office.term
        dice = random.Random(self.profile.seed)  # noqa: S311 - the same every time is the point
        self.scheduler: CompositeScheduler = compose(self.profile, NodeTable(self.profile.seed), dice, f"{term.holder}.{term.number}")
        self.scheduler.preemptor = Preemptor(self.table, self.scheduler.profile, age=self._age)
        self.roster = Roster(self.scheduler)
        self.ledger = StoreLedger(office, self._draft, self._is_as_decided)
        mode = BindingMode(self.profile.binding)
        self.binder = Binder(self.ledger, self.scheduler.reservations, office.clock.monotonic, mode)
        self.batches = Batches(
            self.ledger, self.scheduler.reservations, self.binder.seen, self.roster.uids, self._bound, self._nodes_written
        )
        self.refusals = Refusals(self.ledger.deeds, self.scheduler, self.profile)
        self._grounds: dict[str, Grounds] = {}
        self._open: dict[str, Placed] = {}  # decided, and being written
        self._held: dict[str, Placed] = {}  # decided, and waiting for others to leave
        self._nodes: dict[str, None] = {}  # changed since the last look
        self._workloads: dict[str, None] = {}
        self._recount: set[str] = set()  # nodes that somebody left
        self._odd: dict[str, str] = {}  # as logged
        self._is_filled = False

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def loop(self) -> Loop:
        nodes, workloads = self.office.copy(LatticeNode), self.office.copy(LatticeWorkload)
        sources = (Source(nodes, self._node_changed), Source(workloads, self._workload_changed))
        return Loop(self, self.office.clock, self.office.rng, self._everything, sources, Pace(workers=1))

    def _everything(self) -> Iterable[str]:
        """All there is, the first time; then the copies tell of every change."""
        if not self._is_filled:
            names = [node.metadata.name for node in self.office.copy(LatticeNode).all()]
            self._nodes.update(dict.fromkeys(sorted(names, key=lambda name: tie_rank(self.table.seed, name))))
            each = self.office.copy(LatticeWorkload).all()
            self._workloads.update(dict.fromkeys(f"{one.metadata.namespace}/{one.metadata.name}" for one in each))
        return (KEY,)

    def _node_changed(self, change: Change) -> Iterable[str]:
        name = change.key.name
        if name in self.batches.writing or self.binder.seen.get(name) == change.revision:
            return ()  # we write that; whatever else it is shows when our answer comes
        self._nodes[name] = None
        return (KEY,)

    def _workload_changed(self, change: Change) -> Iterable[str]:
        path = change.key.path
        if path in self._open:
            return ()
        if self.ledger.written.get(path) == change.revision:
            del self.ledger.written[path]
            return ()
        self._workloads[path] = None
        return (KEY,)

    async def reconcile(self, key: str) -> Again | None:
        """Batches are decided on top of one another while those before are written."""
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as writing:
            for _ in range(MOST_BATCHES):
                await self._absorb()
                decided = self._decide()
                if decided is None:
                    break
                under_way.add(writing.create_task(self._write(decided)))
                await asyncio.sleep(0)
                if len(under_way) == IN_FLIGHT:
                    _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        await self._settle()
        await self._evict()
        await self.refusals.tell(self.roster.queue)
        await self._count()
        return self._again()

    async def _absorb(self) -> None:
        """The table takes up what changed. A node's revision counts as seen only with every binding that moved it."""
        nodes, workloads = self.office.copy(LatticeNode), self.office.copy(LatticeWorkload)
        changed = {name: nodes.entry(f"/{name}") for name in self._nodes}
        found = {name: nodes.get(f"/{name}") for name in changed}
        self._nodes.clear()
        await workloads.wait_for(max((entry.revision for entry in changed.values() if entry), default=0))
        now = Moment(self.office.clock.monotonic(), self.office.clock.now())
        for name, entry in changed.items():
            self._absorb_node(name, entry, found[name], now)
        for path in [*self._workloads, *self.roster.due(now.seconds)]:
            self._absorb_workload(path, now)
        self._workloads.clear()
        self._tell_odd()
        if not self._is_filled:
            self._is_filled = True
            if self.before is not None:
                self.table.lessons.carry_over(self.before.lessons)
                self.before = None

    def _tell_odd(self) -> None:
        """What cannot be counted, once."""
        if self.roster.odd == self._odd:
            return
        for what, why in self.roster.odd.items():
            if self._odd.get(what) != why:
                log.warning("left out of scheduling", what=what, why=why)
        self._odd = dict(self.roster.odd)

    def _absorb_node(self, name: str, entry: Entry | None, found: LatticeNode | None, now: Moment) -> None:
        seen = self.binder.seen
        if entry is None:
            seen.pop(name, None)
        elif seen.get(name, 0) > entry.revision:
            return  # what we wrote since is still on its way
        else:
            seen[name] = entry.revision
        self._workloads.update(dict.fromkeys(self.roster.node(name, found, now.seconds)))

    def _absorb_workload(self, path: str, now: Moment) -> None:
        copy = self.office.copy(LatticeWorkload)
        entry, written = copy.entry(path), self.ledger.written.get(path, 0)
        if entry is not None and entry.revision < written:
            return
        self.ledger.written.pop(path, None)
        was = self._home(path)
        self.roster.workload(path, copy.get(path), now)
        if was and self._home(path) != was:
            self._recount.add(was)
        if path in self._held and path not in self.roster.queue:
            self.scheduler.reservations.release(self._held.pop(path).reservation.id)

    def _home(self, path: str) -> str:
        there = self.table.placements.get(path)
        if there is not None and there.state == "bound":
            return self.table.names[there.row]
        return next((node for node, names in self.table.leaving.items() if path in names), "")

    def _decide(self) -> Cycle | None:
        """The next batch, and whoever waited for others to leave; None: there is nothing to do."""
        now, queue = self.office.clock.monotonic(), self.roster.queue
        batch = self._settled(queue.pop_batch(now, BATCH), now)
        if not batch and not self._held:
            return None
        with metrics.SCHEDULING_SECONDS.labels("decide").time(), traces.span("schedule", term=self.office.term.number) as span:
            cycle = self._decide_on(batch, now)
            if span.is_kept:
                span.tell(workloads=traces.first([ask.name for run in batch for ask in run]), placed=len(cycle.placed) if cycle else 0)
            return cycle

    def _decide_on(self, batch: list[list[WorkloadAsk]], now: float) -> Cycle | None:
        queue = self.roster.queue
        revision = self.office.copy(LatticeNode).revision
        for run in batch:
            decision = decide(run[0], self.table, self.scheduler.profile)
            grounds = chosen(decision, self.profile, revision) if decision.fits else {}
            self._grounds.update((ask.name, grounds) for ask in run)
            metrics.SCHEDULING_ATTEMPTS.inc(len(run))
        cycle = self.scheduler.cycle(batch, now)
        for held in cycle.expired:
            if self._held.pop(held.workload, None):
                queue.failed(held.workload, now)
        self.refusals.note(cycle, queue, now, revision)
        self._held.update((each.ask.name, each) for each in cycle.placed)
        cycle.placed = [self._held.pop(each.ask.name) for each in self._free_to_go()]
        self._open.update((each.ask.name, each) for each in cycle.placed)
        return cycle if cycle.placed or batch else None

    def _settled(self, batch: list[list[WorkloadAsk]], now: float) -> list[list[WorkloadAsk]]:
        """Without groups of which another attempt still has some: they wait until that is over."""
        unsettled = self.roster.unsettled() if self.roster.prepared else ()
        for ask in (ask for run in batch for ask in run if ask.group in unsettled):
            self.roster.queue.unschedulable(ask.name, {Wakes.WORKLOAD_GONE, Wakes.WORKLOAD_ADDED}, now)
        return [run for run in batch if run[0].group not in unsettled]

    def _free_to_go(self) -> list[Placed]:
        waiting = {each.ask.group or each.ask.name for each in self._held.values() if self.scheduler.still_waits_for(each)}
        return [each for each in self._held.values() if (each.ask.group or each.ask.name) not in waiting]

    async def _write(self, cycle: Cycle) -> None:
        try:
            with metrics.SCHEDULING_SECONDS.labels("bind").time(), traces.span("bind", term=self.office.term.number) as span:
                if span.is_kept:
                    span.tell(workloads=traces.first([each.ask.name for each in cycle.placed]))
                await self._bind(cycle.placed)
        finally:
            self._give_back(cycle.placed)

    async def _bind(self, placed: Iterable[Placed]) -> None:
        gangs = list(self._gangs(placed))
        alone = [each for each in placed if not each.ask.group]
        optimistic = self.binder.mode is BindingMode.OPTIMISTIC
        small = [group for group in gangs if optimistic and self.batches.fits(group)]
        await self.batches.bind(alone if optimistic else (), small)
        for group in gangs:
            if group not in small:
                self._conclude(await self.binder.bind_together([each.reservation for each in group.members], group.least))
        if not optimistic:
            await self._bind_by_steps(alone)
        if self.ledger.fenced is not None:
            raise self.ledger.fenced

    async def _bind_by_steps(self, alone: Iterable[Placed]) -> None:
        """Node by node, several nodes at once; each binding waits for the one before it on the same node."""
        turns = asyncio.Semaphore(AT_ONCE)
        by_node: dict[str, list[Placed]] = {}
        for each in alone:
            by_node.setdefault(each.node, []).append(each)

        async def bind(here: list[Placed]) -> None:
            async with turns:
                for each in here:
                    self._conclude([await self.binder.bind(each.reservation)])

        async with asyncio.TaskGroup() as group:
            for here in by_node.values():
                group.create_task(bind(here))

    def _gangs(self, placed: Iterable[Placed]) -> Iterator[Group]:
        by_name: dict[str, list[Placed]] = {}
        for each in placed:
            if each.ask.group:
                by_name.setdefault(each.ask.group, []).append(each)
        for members in by_name.values():
            yield Group(tuple(members), self.scheduler.still_needed(members[0].ask, of_which=len(members)))

    def _conclude(self, events: Iterable[BindEvent]) -> None:
        for event in events:
            if event.outcome == "bound":
                self._bound(self._open[event.workload])
            else:
                self.batches.hopeless.add(event.workload)

    def _bound(self, placed: Placed) -> None:
        """What happened to it while this was written is news."""
        name = placed.ask.name
        self._open.pop(name, None)
        self._grounds.pop(name, None)
        self.roster.prepared.pop(name, None)
        self.roster.queue.done(name)
        workload, written = self.office.copy(LatticeWorkload).entry(name), self.ledger.written.get(name, 0)
        if workload is None or workload.revision >= written:
            self.ledger.written.pop(name, None)
        if workload is None or workload.revision > written:
            self._workloads[name] = None

    def _nodes_written(self, names: Iterable[str]) -> None:
        for name in names:
            entry = self.office.copy(LatticeNode).entry(f"/{name}")
            if entry is None or entry.revision > self.binder.seen.get(name, 0):
                self._nodes[name] = None

    def _give_back(self, placed: Iterable[Placed]) -> None:
        """The room of those not bound is free again; they are looked at anew, with their nodes, but not at once if that is vain."""
        for each in placed:
            name = each.ask.name
            if self._open.pop(name, None) is None:
                continue
            metrics.SCHEDULING_FAILURES.inc()
            self.scheduler.reservations.release(each.reservation.id)
            if name in self.batches.hopeless:
                self.batches.hopeless.discard(name)
                self.roster.queue.failed(name, self.office.clock.monotonic())
            else:
                self.roster.queue.done(name)
            self._workloads[name] = None
            self._nodes[each.node] = None

    def _draft(self, request: BindRequest) -> Draft:
        """Its ports are those that the table chose when its room was taken."""
        there, found = self.table.placements.get(request.workload), self.office.copy(LatticeWorkload).get(request.workload)
        grounds = self._grounds.get(request.workload, {})
        if there is None or found is None:
            return Draft(grounds=grounds)
        ports = allocated(found.spec.containers, there.ports)
        return Draft(ports, {**grounds, "gpus": list(there.gpus)} if there.gpus else grounds)

    def _is_as_decided(self, workload: LatticeWorkload) -> bool:
        there = self.table.placements.get(f"{workload.metadata.namespace}/{workload.metadata.name}")
        return there is not None and self.roster.ask_of(workload) == there.ask

    async def _evict(self) -> None:
        """Who was told to make room is marked; whoever runs workloads stops it, and takes its node away."""
        if self.table.leaving:
            await self.refusals.mark({name: node for node, names in self.table.leaving.items() for name in names})

    async def _settle(self) -> None:
        """What attempts that are no more have left prepared is finished or given up."""
        now = self.office.clock.now()
        for path, held in list(self.roster.prepared.items()):
            if self.scheduler.reservations.get(held.reservation) is None and await self.ledger.settle(path, now):
                self._workloads[path] = None
                self._nodes[held.node] = None

    async def _count(self) -> None:
        """Of nodes that somebody left, how many are there now. Whoever binds to one counts, too, so a rival is no trouble."""
        names = [name for name in self._recount if name in self.table.row_of]
        self._recount.clear()
        await self.batches.count({name: len(self.table.on_row[self.table.row_of[name]]) for name in names})

    def _again(self) -> Again | None:
        now = self.office.clock.monotonic()
        dates = [when for when in (self.roster.next_at(),) if when is not None]
        dates += [each.reservation.expires_at for each in self._held.values()]
        dates += [now + LEFTOVERS] if self.roster.prepared else []
        dates += [now] if self._nodes or self._workloads else []
        return Again(max(0.0, min(dates) - now)) if dates else None

    def _age(self, name: str) -> float:
        found = self.office.copy(LatticeWorkload).get(name)
        made = found.metadata.creation_timestamp if found else None
        return (self.office.clock.now() - datetime.fromisoformat(made)).total_seconds() if made else 0.0
