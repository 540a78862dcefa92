"""The checker: what must hold at every revision, on every machine and in the end, by the numbers of the list of invariants.

Nothing here asks the code under test what it thinks: it reads the store's whole history, what clients were told, and what really ran.
What must hold of bindings, of what is stopped and of money is in `promises`; of the store, of leadership and of the end, here.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, NamedTuple

import msgspec

from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.two_phase import prepared
from lattice.server.agents.join import node_key
from lattice.sim.invariants.history import (
    Life,
    Move,
    is_going,
    lives,
    node_of,
    operation_in,
    path_of,
    prepared_on,
)
from lattice.sim.invariants import (
    binding as bound,
    money as paid,
    placement as placed,
    agents as ran,
    lifecycle as stopped,
)
from lattice.sim.invariants.context import CONTROLLERS, Found, Seen
from lattice.sim.world.run import Run, difference
from lattice.sim.world.store import Record
from lattice.sim.world.users import Told
from lattice.store.protocol import Key

QUIET = 60.0  # seconds at the end in which nothing may be written: so everything wanted runs 80 s after there is room for it at the latest
KNOWING = 5  # rejections in a row of the same plan by who knew what it clashes with
IN_A_ROW = 60  # and of who is told of changes seconds later, while they go on
UNSETTLING = frozenset(
    {
        "crash",
        "kill server",
        "pause server",
        "stop server",
        "cut store",
        "cut one way",
        "store away",
        "loss",
        "slow",
        "clock rate",
    }
)


class Violation(NamedTuple):
    number: str
    words: str
    at: float
    revision: int = 0


@dataclass
class Checker:
    run: Run
    found: list[Violation] = field(default_factory=list)
    heard_within: ClassVar[float] = 0.0  # seconds in which the history hears of what was done

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.seen = Seen(self.run)
        self.snap = self.seen.snap
        self.revision = 0
        self.writers: dict[int, str] = {}  # term -> who wrote in it
        self.operations: dict[str, int] = {}  # operation -> revision that wrote it first
        elsewhere = (
            bound.bindings, bound.gangs, bound.modes, bound.preemption, placed.placing, paid.money, paid.crowded,
            stopped.silence, stopped.disruption, stopped.replacement, stopped.removal,
        )  # fmt: skip
        self.steps: list[Callable[[Record, list[Move]], Found]] = [
            self.revisions, self.leadership, *(partial(each, self.seen) for each in elsewhere), self.writers_scope,
        ]  # fmt: skip

    def check(self) -> list[Violation]:
        if self.run.trouble:
            self.found.append(
                Violation("I-00", f"the run broke off: {self.run.trouble}", self.world.loop.time())
            )
        self.found += [
            Violation("I-00", f"nobody handled: {each}", self.world.loop.time())
            for each in self.world.loop.errors[:3]
        ]
        for record in self.world.store.history:
            self.seen.hear(record.at)
            moves = self.snap.moves(record)
            for step in self.steps:
                self.found += [
                    Violation(number, words, record.at, record.revision)
                    for number, words in step(record, moves)
                ]
            self.snap.apply(moves, record.at)
            self.found += [
                Violation(number, words, record.at, record.revision)
                for number, words in paid.paid(self.seen, record)
            ]
        for part in (
            self.clients,
            self.elections,
            self.ground,
            self.agents,
            self.copies,
            self.rest,
            self.rejections,
        ):
            self.found += [Violation(number, words, self.world.loop.time()) for number, words in part()]
        return self.found

    def ground(self) -> Found:
        return stopped.ground(self.seen)

    def agents(self) -> Found:
        yield from ran.obedience(self.seen)
        yield from ran.patience(self.seen)

    # --- the store ---

    def revisions(self, record: Record, moves: list[Move]) -> Found:
        """I-05: revisions grow. I-01: nobody writes over what they have not seen."""
        if record.blind and record.actor:
            yield (
                "I-01",
                f"{record.actor} wrote over {', '.join(map(str, record.blind[:3]))} without having seen what was there",
            )
        if record.revision <= self.revision:
            yield "I-05", f"revision {record.revision} after {self.revision}"
        self.revision = record.revision
        for move in moves:
            if move.raw is not None and (operation := operation_in(move.raw)):
                self.operations.setdefault(operation, record.revision)

    def clients(self) -> Found:
        """I-01: what was acknowledged is there. I-03: what was refused is not. I-04: who asks later is told no less."""
        written: dict[Any, list[tuple[int, float, bytes | None]]] = defaultdict(list)
        for record in self.world.store.history:
            for change in record.changes:
                written[change.key].append((record.revision, record.at, change.value))
        for told in self.world.told:
            line = written.get(told.key, [])
            before = [entry for entry in line if entry[1] < told.asked_at][-1:]
            during = [
                entry for entry in line if told.asked_at <= entry[1] <= told.told_at + self.heard_within
            ]
            what = f"{told.method} {told.key} by {told.operation}"
            if told.outcome == "refused" and told.operation in self.operations:
                yield (
                    "I-03",
                    f"{what} was refused ({told.why[:80]}) and written at revision {self.operations[told.operation]}",
                )
            if (
                told.is_missing
                and told.method != "POST"
                and any(entry[2] for entry in before)
                and all(entry[2] for entry in during)
            ):
                yield "I-04", f"{what} was told that there is none, and revision {before[0][0]} was there"
            if told.outcome != "ok":
                continue
            if (
                told.method in ("PATCH", "POST", "PUT")
                and (told.revision or told.is_named)
                and (words := _unwritten(told, {entry[0]: entry[2] for entry in line}))
            ):
                yield "I-01", f"{what} was acknowledged at revision {told.revision}, {words}"
            if told.over and told.revision in (written_at := [entry[0] for entry in line]):
                former = written_at[: written_at.index(told.revision)][-1:]
                if former != [told.over]:
                    yield "I-01", f"{what} was written over revision {former}, and was meant for {told.over}"
            if told.method == "DELETE" and not any(is_going(entry[2]) for entry in (*before, *during)):
                yield "I-01", f"{what} was acknowledged and nothing was deleted"
            if told.method == "GET" and before and told.revision < before[0][0]:
                yield "I-04", f"{what} saw revision {told.revision} after {before[0][0]} was written"

    def copies(self) -> Found:
        """I-06: at any time a leader's copies are what was stored at the revision that they claim, and in the end what is stored."""
        for at, words in self.run.odd_copies[:5]:
            yield "I-06", f"at {at:.1f} s {words}"
        host = self.world.leader()
        office = host.server.lead.office if host is not None and host.server is not None else None
        if office is None:
            yield "I-32", "nobody leads in the end"
            return
        for copy in office.copies:
            if words := difference(copy, self.world.store.contents(copy.resource)):
                yield "I-06", words

    # --- leadership ---

    def leadership(self, record: Record, moves: list[Move]) -> Found:
        """I-08: one writer in a term, and terms grow. I-09: what controllers write is fenced, by the term that is."""
        if record.term is None:
            if record.actor and record.origin == CONTROLLERS:
                yield "I-09", f"{record.actor} wrote {_keys(moves)} as a controller, without a fence"
            return
        number = record.term.number
        if number != record.led:
            yield (
                "I-09",
                f"{record.actor} wrote {_keys(moves)} in term {number} while term {record.led} had begun",
            )
        if self.writers.setdefault(number, record.actor) != record.actor:
            yield "I-08", f"{record.actor} wrote in term {number}, which is {self.writers[number]}'s"
        if number < max(self.writers):
            yield "I-08", f"{record.actor} wrote in term {number} after term {max(self.writers)}"

    def elections(self) -> Found:
        """I-10: wall clocks do not depose anybody."""
        if not UNSETTLING & set(self.run.swarm.kinds) and len(self.world.store.elections) > 1:
            when = ", ".join(f"{each.at:.1f} s" for each in self.world.store.elections)
            yield "I-10", f"leadership changed though nothing disturbed it: elections at {when}"

    def writers_scope(self, record: Record, moves: list[Move]) -> Found:
        """I-38: a machine that joins writes its own node and its token, nothing else."""
        if record.origin.startswith("join "):
            name = record.origin.removeprefix("join ")
            odd = [
                str(move.key)
                for move in moves
                if move.key != node_key(name) and not move.key.name.startswith("join-")
            ]
            if odd:
                yield "I-38", f"{name} wrote {', '.join(odd)} when it joined"

    # --- the end ---

    def rest(self) -> Found:
        """I-16, I-32: everything wanted runs, nothing else does. I-33: and nobody writes any more."""
        living = [
            life for machine in self.world.machines.values() for life in lives(machine) if life.end == inf
        ]
        running = {(life.node, life.which.uid) for life in living}
        wanted, waiting = set(), set()
        for path, each in self.snap.workloads.items():
            if prepared_on(each):
                yield "I-16", f"{path} is still prepared on {prepared_on(each)}: {prepared(each)}"
            if each.metadata.deletion_timestamp:
                yield (
                    "I-32",
                    f"{path} is being deleted still: {each.status.last_action}, {each.status.actual_state} on {node_of(each)}",
                )
            if each.spec.desired_state != "Running":
                continue
            if self._waits_for_others(each) or self._surges_in_vain(each) or self._finds_no_room(each):
                yield from self._says_why(path, each)
                waiting.add(path)
                continue
            where = (node_of(each), each.metadata.uid)
            wanted.add(where)
            if not each.status.ready or where not in running:
                why = next((one.message for one in each.status.conditions if one.type == "Scheduled"), "")
                yield (
                    "I-32",
                    f"{path} is {each.status.actual_state} on {where[0] or 'no node'} ({each.status.last_action}): {why[:200]}",
                )
        uids = {each.metadata.uid for each in self.snap.services.values()}
        for path, each in self.snap.workloads.items():
            if each.spec.service and not any(owner.uid in uids for owner in each.metadata.owner_references):
                yield "I-32", f"{path} is left of a service that is gone"
        yield from self._outdated(living, waiting)
        for node, uid in sorted(running - wanted):
            yield "I-32", f"{node} runs a copy of {uid} that nobody wants"
        for key, service in self.snap.services.items():
            ready = sum(bool(each.status.ready) for each in self.snap.replicas(key))
            if service.metadata.deletion_timestamp or ready != service.spec.wanted():
                placed = next((one for one in service.status.conditions if one.type == "Placed"), None)
                yield (
                    "I-32",
                    f"{key} has {ready} ready and wants {service.spec.wanted()}: {placed.message[:200] if placed else 'not placed'}",
                )
        late = [
            record
            for record in self.world.store.history
            if record.at > self.world.loop.time() - QUIET and record.actor
        ]
        written = Counter(
            change.key for record in late for change in record.changes if change.key.resource != "events"
        )
        allowed = (
            Counter({Key(LatticeWorkload.resource.id, *path.split("/")): 1 for path in waiting})
            + self._months_turned()
        )
        if written - allowed:
            most = ", ".join(f"{key} x{count}" for key, count in written.most_common(4))
            yield "I-33", f"{len(late)} commits in the last {QUIET:g} s: {most}"

    def _outdated(self, living: list[Life], waiting: set[str]) -> Found:
        """I-32: what runs is what is asked for now, unless the update waits for room."""
        for life in living:
            workload = self.snap.workloads.get(life.spec.workload)
            if workload is None or workload.metadata.uid != life.which.uid:
                continue
            key = f"{workload.metadata.namespace}/{workload.spec.service}"
            service = self.snap.services.get(key)
            if service is not None and any(path_of(each) in waiting for each in self.snap.replicas(key)):
                continue
            asked = (service or workload).spec.containers.get(life.which.container)
            if asked is None or asked.command != life.spec.container.command:
                words = " ".join(asked.command) if asked else "nothing of that name"
                yield (
                    "I-32",
                    f"{life.spec.workload} on {life.node} runs {' '.join(life.spec.container.command)}, and is to run {words}",
                )

    def _months_turned(self) -> Counter[Key]:
        """Pools that begin to count anew: by a clock that is behind the month may end at any time."""
        found: Counter[Key] = Counter()
        for path, now in self.snap.pools.items():
            lately = self.snap.versions(LatticePool, path, self.world.loop.time() - QUIET)
            costs = [each.status.budget.current_month_cost or 0 for each in lately if each.status.budget]
            found[Key(now.resource.id, "", now.metadata.name)] += sum(
                new < old for new, old in pairwise(costs)
            )
        return found

    def _surges_in_vain(self, workload: LatticeWorkload) -> bool:
        """The one more that an update needs finds no room on any node, and its service says so: as many as are wanted run meanwhile."""
        service = self.snap.services.get(f"{workload.metadata.namespace}/{workload.spec.service}")
        said = (
            next((each for each in service.status.conditions if each.type == "Progressing"), None)
            if service
            else None
        )
        if node_of(workload) or said is None or said.reason != "NoRoomForSurge":
            return False
        everybody = list(self.snap.workloads.values())
        nodes = [each for each in self.snap.nodes.values() if not bound.infeasible(workload, each)]
        return all(bound.lacking(workload, each.metadata.name, each, everybody) for each in nodes)

    def _finds_no_room(self, workload: LatticeWorkload) -> bool:
        """For one that is no service's no machine is made: it, or its group, waits while there is no room beside who need not go."""
        if workload.spec.service or node_of(workload):
            return False
        return bound.fit_nowhere(self._members(workload), self.snap)

    def _says_why(self, path: str, workload: LatticeWorkload) -> Found:
        """I-34: who cannot run says why."""
        said = next((each for each in workload.status.conditions if each.type == "Scheduled"), None)
        if said is None or said.status != "False" or not said.message:
            yield "I-34", f"{path} waits and does not say for what"

    def _waits_for_others(self, workload: LatticeWorkload) -> bool:
        """Of its group there are too few: none of them is to run, but what runs may."""
        group = workload.spec.group
        return group is not None and not node_of(workload) and len(self._members(workload)) < group.min_member

    def _members(self, workload: LatticeWorkload) -> list[LatticeWorkload]:
        """All of its group; of one without, itself."""
        group, namespace = workload.spec.group, workload.metadata.namespace
        if group is None:
            return [workload]
        known = [
            each
            for each in self.snap.workloads.values()
            if each.metadata.namespace == namespace and each.spec.group
        ]
        return [each for each in known if each.spec.group and each.spec.group.name == group.name]

    def rejections(self) -> Found:
        """I-35: nobody tries the same in vain for ever, least of all who knows that it is in vain."""
        for client in self.world.store_clients:
            worst, who = client.worst, client.process.name
            if worst.knowing > KNOWING:
                yield (
                    "I-35",
                    f"{who} wrote the same {worst.knowing} times in a row in vain, knowing what was there: {worst.plan}",
                )
            elif worst.times > IN_A_ROW:
                yield "I-35", f"{who} wrote the same {worst.times} times in a row in vain: {worst.plan}"


def _unwritten(told: Told, line: dict[int, bytes | None]) -> str:
    """Why the revision at which it was acknowledged is not what was asked for; empty if it is. `line`: what was written, by revision.

    What is sent carries its operation's name, so that it changes something each time, unless it arrives twice: then its name is there.
    """
    value = line.get(told.revision)
    if value is None:
        return "which never wrote it"
    if told.is_named and operation_in(value) != told.operation:
        return f"at which {operation_in(value) or 'nobody'} had written last"
    if (
        told.replicas is not None
        and (found := msgspec.json.decode(value, type=LatticeService).spec.least) != told.replicas
    ):
        return f"which asks for {found} replicas, not {told.replicas}"
    return ""


def _keys(moves: list[Move]) -> str:
    return ", ".join(str(move.key) for move in moves[:3])
