"""Workloads that need a node -> bindings: batches are decided on a table that follows the copies, and written in fenced commits."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import structlog

from lattice import metrics, tracing as traces
from lattice.controllers.scheduler.bind_batches import Batches, Group
from lattice.controllers.scheduler.bindfailures import BindFailures
from lattice.controllers.scheduler.binding_store import StoreLedger
from lattice.controllers.scheduler.binding_records import Draft
from lattice.controllers.scheduler.disruption_budgets import Disruptions
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.scheduler.unschedulable import Refusals
from lattice.engine.decide import Decision
from lattice.engine.tie_order import tie_rank
from lattice.engine.batch_result import Picks
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.cycle.binder import Binder, BindEvent, BindingMode, BindRequest
from lattice.scheduling.plugins.cluster_events import Change as Wakes
from lattice.scheduling.table.node_info import NodeFacts
from lattice.scheduling.cycle.decision_record import Grounds, chosen
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.ports import allocated
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.cycle.two_phase import made_by
from lattice.scheduling.cycle.profile import DEFAULT, PRESETS, ProfileSpec
from lattice.scheduling.cycle.scheduler_cache import Moment, Roster
from lattice.scheduling.cycle.cycle import CompositeScheduler, Cycle, Placed, compose
from lattice.store.protocol import Change, Entry

KEY = "nodes"  # the one key: all nodes are one table
BATCH = 396  # workloads decided at once; the next are decided while these are written. Each on a node of its own, they fill 12 commits
MOST_BATCHES = 50  # in one look
IN_FLIGHT = 3  # batches that are being written at once
AT_ONCE = 16  # bindings of several steps that are under way at once
LEFTOVERS = 1.0  # seconds between looks at what an attempt that is no more has prepared

log = structlog.get_logger()


@dataclass
class SchedulingController:
    """Told that something changed; looks at what did, and binds all that can be bound. `before`: the table of the term before, if any.

    `plain`: how nodes are scored for workloads that belong to no service; None: as for all others.
    """

    office: Office
    profile: ProfileSpec = PRESETS[DEFAULT]
    before: NodeTable | None = None
    leaving: Callable[[LatticeWorkload], str] = lambda _: (
        ""
    )  # why a workload must leave its node, a drain for one
    plain: ProfileSpec | None = None
    name: ClassVar[str] = "scheduling"

    def __post_init__(self) -> None:
        office, term = self.office, self.office.term
        dice = random.Random(self.profile.seed)  # noqa: S311 - the same every time is the point
        holder, table = made_by(term.role, term.holder, term.number), NodeTable(self.profile.seed)
        self.scheduler: CompositeScheduler = compose(self.profile, table, dice, holder, self.plain)
        self.profiles = {self.scheduler.profile: self.profile}
        if self.scheduler.plain and self.plain:
            self.profiles[self.scheduler.plain] = self.plain
        self.disruptions = Disruptions(office, self._displaced, self.leaving)
        self.scheduler.preemptor = Preemptor(
            self.table, self.scheduler.profile, self.disruptions.allowance, self._age
        )
        self.scheduler.tell = self._note_grounds
        self.roster = Roster(self.scheduler)
        self.ledger = StoreLedger(office, self._draft, self._is_as_decided, self.roster.knows)
        mode = BindingMode(self.profile.binding)
        self.binder = Binder(self.ledger, self.scheduler.reservations, office.clock.monotonic, mode)
        self.batches = Batches(
            self.ledger,
            self.scheduler.reservations,
            self.binder.seen,
            self.roster.uids,
            self._bound,
            self._nodes_written,
        )
        self.refusals = Refusals(self.ledger.deeds, self.scheduler, self.profiles)
        self.failures = BindFailures(self.ledger.deeds)
        self._grounds: dict[str, Grounds] = {}
        self._open: dict[str, Placed] = {}  # decided, and being written
        self._held: dict[str, Placed] = {}  # decided, and waiting for others to leave
        self._nodes: dict[str, None] = {}  # changed since the last look
        self._workloads: dict[str, None] = {}
        self._early: set[str] = (
            set()
        )  # workloads that were looked at before what we wrote of them had come back to us
        self._recount: set[str] = set()  # nodes that somebody left
        self._reshaped: set[str] = set()  # nodes where somebody asks for something else
        self._odd: dict[str, str] = {}  # as logged
        self._is_filled = False

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def loop(self) -> Loop:
        nodes, workloads = self.office.copy(LatticeNode), self.office.copy(LatticeWorkload)
        kept = Source(
            self.office.copy(LatticeService), self._service_changed
        )  # before what a service keeps is known, nobody makes room
        sources = (Source(nodes, self._node_changed), Source(workloads, self._workload_changed), kept)
        return Loop(self, self.office.clock, self.office.rng, self._everything, sources, Pace(workers=1))

    def _everything(self) -> Iterable[str]:
        """All there is, the first time; then the copies tell of every change."""
        if not self._is_filled:
            names = [node.metadata.name for node in self.office.copy(LatticeNode).all()]
            self._nodes.update(dict.fromkeys(sorted(names, key=lambda name: tie_rank(self.table.seed, name))))
            each = self.office.copy(LatticeWorkload).all()
            self._workloads.update(
                dict.fromkeys(f"{one.metadata.namespace}/{one.metadata.name}" for one in each)
            )
        return (KEY,)

    def _node_changed(self, change: Change) -> Iterable[str]:
        name = change.key.name
        self.batches.copied(name, change.revision)
        if name in self.batches.writing or self.binder.seen.get(name) == change.revision:
            return ()  # we write that; whatever else it is shows when our answer comes
        self._nodes[name] = None
        return (KEY,)

    def _service_changed(self, change: Change) -> Iterable[str]:
        return (KEY,) if self.disruptions.note_service(change.key.path) else ()

    def _workload_changed(self, change: Change) -> Iterable[str]:
        path = change.key.path
        if path in self._open:
            return ()
        if self.ledger.written.get(path) == change.revision:
            del self.ledger.written[path]
            if path not in self._early:
                return ()
            self._early.discard(path)
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
        await self.failures.tell()
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
        self._overtaken(
            {
                name
                for name, entry in changed.items()
                if entry and entry.revision > self.binder.seen.get(name, 0)
            }
        )
        for name, entry in changed.items():
            self._absorb_node(name, entry, found[name], now)
        self._workloads.update(dict.fromkeys(self.roster.due(now.seconds)))
        self._absorb_workloads(now)
        self._spare(now)
        self._absorb_workloads(now)
        if self.disruptions.has_eased(self.roster.queue.is_awaited(Wakes.LIMITS_EASED)):
            self.roster.queue.wake(Wakes.LIMITS_EASED, now.seconds)
        self._tell_odd()
        if not self._is_filled:
            self._is_filled = True
            if self.before is not None:
                self.table.lessons.carry_over(self.before.lessons)
                self.before = None

    def _absorb_workloads(self, now: Moment) -> None:
        """Those that must be looked at again because of what others ask for now, too."""
        while self._workloads:
            changed = list(self._workloads)
            self._workloads.clear()
            for path in changed:
                self._absorb_workload(path, now)
        self._overtaken(self._reshaped)
        self._reshaped.clear()

    def _spare(self, now: Moment) -> None:
        """Who needs not make room any more has its place again, before anybody is given the room."""
        awaited = {name for each in self._held.values() for name in each.waits_for}
        for name in self.refusals.in_vain(self.roster.queue, awaited):
            self.scheduler.departed(name)
            self._absorb_workload(name, now)

    def _overtaken(self, nodes: set[str]) -> None:
        """What was decided before somebody else moved its node, and is not written yet, was decided on less than is known now."""
        for each in self._open.values() if nodes else ():
            if each.node in nodes and each.ask.name not in self.ledger.written:
                self.scheduler.reservations.withdraw(each.reservation.id)

    def _tell_odd(self) -> None:
        """What cannot be counted, once."""
        if self.roster.odd == self._odd:
            return
        for what, why in self.roster.odd.items():
            if self._odd.get(what) != why:
                log.warning("not counted as it is", what=what, why=why)
        self._odd = dict(self.roster.odd)

    def _absorb_node(self, name: str, entry: Entry | None, found: LatticeNode | None, now: Moment) -> None:
        seen = self.binder.seen
        if entry is None:
            seen.pop(name, None)
        elif seen.get(name, 0) > entry.revision:
            return  # what we wrote since is still on its way
        else:
            seen[name] = entry.revision
        before = self._facts(name)
        self._workloads.update(dict.fromkeys(self.roster.node(name, found, now.seconds)))
        if self._facts(name) != before:
            self._reconsider(name)

    def _facts(self, name: str) -> NodeFacts | None:
        return self.table.facts[self.table.row_of[name]] if name in self.table.row_of else None

    def _reconsider(self, node: str) -> None:
        """Who waits for others to leave it chose it as it was: smaller, fuller, cordoned or tainted, it may not be the one any more."""
        for each in [held for held in self._held.values() if held.node == node]:
            self._let_go(each.ask.name)
            self._workloads[each.ask.name] = None

    def _let_go(self, path: str) -> None:
        """Who waited for others to leave has its place in line again; and whoever found no room because of it."""
        self.scheduler.reservations.release(self._held.pop(path).reservation.id)
        self.roster.queue.done(
            path
        )  # or one that comes again under its name would wait for this one to be through
        self.roster.queue.wake(Wakes.WORKLOAD_GONE, self.office.clock.monotonic())

    def _absorb_workload(self, path: str, now: Moment) -> None:
        copy = self.office.copy(LatticeWorkload)
        if self._is_early(path):
            self._early.add(path)
            return
        self.ledger.written.pop(path, None)
        was, had, found = self._home(path), self._asked(path), copy.get(path)
        self.roster.workload(path, found, now)
        self.disruptions.note(found)
        if was and self._home(path) != was:
            self._recount.add(was)
        elif was and self._asked(path) is not had:
            self._reshaped.add(was)
            self._reconsider(was)
        if path in self._held and path not in self.roster.queue:
            self._let_go(path)

    def _asked(self, path: str) -> WorkloadAsk | None:
        """The same as long as it asks for the same."""
        there = self.table.placements.get(path)
        return there.ask if there is not None else None

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
        with (
            metrics.SCHEDULING_SECONDS.labels("decide").time(),
            traces.span("schedule", term=self.office.term.number) as span,
        ):
            cycle = self._decide_on(batch, now)
            if span.is_kept:
                span.tell(
                    workloads=traces.first([ask.name for run in batch for ask in run]),
                    placed=len(cycle.placed) if cycle else 0,
                )
            return cycle

    def _decide_on(self, batch: list[list[WorkloadAsk]], now: float) -> Cycle | None:
        queue = self.roster.queue
        revision = self.office.copy(LatticeNode).revision
        self.disruptions.renew()
        for run in batch:
            for ask in run:
                self._grounds.pop(ask.name, None)
            metrics.SCHEDULING_ATTEMPTS.inc(len(run))
        cycle = self.scheduler.cycle(batch, now)
        for held in cycle.expired:
            if self._held.pop(held.workload, None):
                queue.failed(held.workload, now)
                queue.wake(Wakes.WORKLOAD_GONE, now)
        self.refusals.note(cycle, queue, now, revision)
        self._held.update((each.ask.name, each) for each in cycle.placed)
        self._give_way()
        cycle.placed = [self._held.pop(each.ask.name) for each in self._free_to_go()]
        self._open.update((each.ask.name, each) for each in cycle.placed)
        return cycle if cycle.placed or batch else None

    def _give_way(self) -> None:
        """Who only waits for a place, and was chosen to make room on it, has nothing to leave."""
        for each in [
            held for held in self._held.values() if held.ask.name in self.table.leaving.get(held.node, ())
        ]:
            self.scheduler.departed(each.ask.name)
            self._let_go(each.ask.name)
            self._workloads[each.ask.name] = None

    def _note_grounds(self, asks: Sequence[WorkloadAsk], found: Decision | Picks) -> None:
        """Why each goes where it goes, as of its own turn."""
        grounds = chosen(found, self.profiles[found.profile], self.office.copy(LatticeNode).revision)
        self._grounds.update(zip((ask.name for ask in asks), grounds, strict=False))

    def _settled(self, batch: list[list[WorkloadAsk]], now: float) -> list[list[WorkloadAsk]]:
        """Without groups of which another attempt still has some: they wait until that is over."""
        unsettled = self.roster.unsettled() if self.roster.prepared else ()
        for ask in (ask for run in batch for ask in run if ask.group in unsettled):
            self.roster.queue.unschedulable(ask.name, {Wakes.WORKLOAD_GONE, Wakes.WORKLOAD_ADDED}, now)
        return [run for run in batch if run[0].group not in unsettled]

    def _free_to_go(self) -> list[Placed]:
        waiting = {
            each.ask.group or each.ask.name
            for each in self._held.values()
            if self.scheduler.still_waits_for(each)
        }
        return [each for each in self._held.values() if (each.ask.group or each.ask.name) not in waiting]

    async def _write(self, cycle: Cycle) -> None:
        try:
            with (
                metrics.SCHEDULING_SECONDS.labels("bind").time(),
                traces.span("bind", term=self.office.term.number) as span,
            ):
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
                self._conclude(
                    await self.binder.bind_together([each.reservation for each in group.members], group.least)
                )
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
                self._workloads[event.workload] = (
                    None  # who was found to be bound, its answer lost, may have been changed since
                )
            else:
                self.batches.hopeless.add(event.workload)
                self.batches.lost[event.workload] = event.reason

    def _bound(self, placed: Placed) -> None:
        """What happened to it while this was written is news."""
        name = placed.ask.name
        metrics.ATTEMPT_BOUND.inc()
        self._open.pop(name, None)
        self._grounds.pop(name, None)
        self.batches.lost.pop(name, None)
        self.roster.prepared.pop(name, None)
        self.roster.done(name)
        self.roster.queue.done(name)
        workload, written = self.office.copy(LatticeWorkload).entry(name), self.ledger.written.get(name, 0)
        if workload is None or workload.revision >= written:
            self.ledger.written.pop(name, None)
        if workload is None or workload.revision > written or name not in self.table.placements:
            self._workloads[name] = None

    def _nodes_written(self, names: Iterable[str]) -> None:
        for name in names:
            entry = self.office.copy(LatticeNode).entry(f"/{name}")
            if entry is None or entry.revision > self.binder.seen.get(name, 0):
                self._nodes[name] = None

    def _give_back(self, placed: Iterable[Placed]) -> None:
        """The room of those not bound is free again; they are looked at anew, with their nodes, but not at once if that is vain."""
        lost = [each for each in placed if self._open.pop(each.ask.name, None) is not None]
        for each in lost:
            name = each.ask.name
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_LOST.inc()
            self.failures.note(name, each.node, self.batches.lost.pop(name, "it was not written"))
            self.scheduler.reservations.release(each.reservation.id)
            if name in self.batches.hopeless:
                self.batches.hopeless.discard(name)
                self.roster.queue.failed(name, self.office.clock.monotonic())
            else:
                self.roster.queue.done(name)
            self._workloads[name] = None
            self._nodes[each.node] = None
            if self._is_early(name):
                self.binder.seen[each.node] = (
                    0  # as our copies know it: what we wrote there may count, and is not in the table now
                )
        if lost:
            self.roster.queue.wake(Wakes.WORKLOAD_GONE, self.office.clock.monotonic())

    def _is_early(self, path: str) -> bool:
        """What we wrote of it has not come back to us."""
        entry = self.office.copy(LatticeWorkload).entry(path)
        return entry is not None and entry.revision < self.ledger.written.get(path, 0)

    def _draft(self, request: BindRequest) -> Draft:
        """Its ports are those that the table chose when its room was taken."""
        there, found = (
            self.table.placements.get(request.workload),
            self.office.copy(LatticeWorkload).get(request.workload),
        )
        grounds = self._grounds.get(request.workload, {})
        if request.node not in grounds.get("best", (request.node,)):
            grounds = {}  # it came there by another way: with its group, or by making others leave
        if there is None or found is None:
            return Draft(grounds=grounds)
        ports = allocated(found.spec.containers, there.ports)
        return Draft(ports, {**grounds, "gpus": list(there.gpus)} if there.gpus else grounds)

    def _is_as_decided(self, workload: LatticeWorkload) -> bool:
        there = self.table.placements.get(f"{workload.metadata.namespace}/{workload.metadata.name}")
        return there is not None and self.roster.asks_as_before(workload, there.ask)

    async def _evict(self) -> None:
        """Who was told to make room is marked; whoever runs workloads stops it, and takes its node away."""
        if self.table.leaving:
            await self.refusals.mark(
                {name: node for node, names in self.table.leaving.items() for name in names}
            )

    async def _settle(self) -> None:
        """What attempts that are no more have left prepared is finished or given up."""
        now = self.office.clock.now()
        for path, held in list(self.roster.prepared.items()):
            if self.scheduler.reservations.get(held.reservation) is None and await self.ledger.settle(
                path, now
            ):
                self._workloads[path] = None
                self._nodes[held.node] = None

    async def _count(self) -> None:
        """Of nodes that somebody left, how many are there now. Whoever binds to one counts, too, so a rival is no trouble."""
        names = [name for name in sorted(self._recount) if name in self.table.row_of]
        self._recount.clear()
        await self.batches.count({name: len(self.table.on_row[self.table.row_of[name]]) for name in names})

    def _again(self) -> Again | None:
        now = self.office.clock.monotonic()
        dates = [when for when in (self.roster.next_at(), self.failures.next_at) if when is not None]
        dates += [each.reservation.expires_at for each in self._held.values()]
        dates += [now + LEFTOVERS] if self.roster.prepared else []
        dates += [now] if self._nodes or self._workloads else []
        return Again(max(0.0, min(dates) - now)) if dates else None

    def _displaced(self) -> set[str]:
        return {name for names in self.table.leaving.values() for name in names}

    def _age(self, name: str) -> float:
        found = self.office.copy(LatticeWorkload).get(name)
        made = found.metadata.creation_timestamp if found else None
        return (self.office.clock.now() - datetime.fromisoformat(made)).total_seconds() if made else 0.0
