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
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.server.agents.join import node_key
from lattice.sim.invariants import agents as ran
from lattice.sim.invariants import binding as bound
from lattice.sim.invariants import lifecycle as stopped
from lattice.sim.invariants import money as paid
from lattice.sim.invariants import placement as placed
from lattice.sim.invariants.context import CONTROLLERS, CheckerContext, Findings
from lattice.sim.invariants.history import (
    InstanceRun,
    ObjectChange,
    instance_runs,
    is_being_deleted,
    node_of,
    operation_in,
    path_of,
    reserved_node,
)
from lattice.sim.world.client import OperationRecord
from lattice.sim.world.run import Run, cache_difference
from lattice.sim.world.store import CommitRecord
from lattice.store.protocol import Key

QUIET_PERIOD_S = 60.0  # seconds at the end in which nothing may be written: so everything wanted runs 80 s after there is room for it at the latest
MAX_INFORMED_REJECTIONS = 5  # rejections in a row of the same plan by who knew what it clashes with
MAX_REJECTIONS = 60  # and of who is told of changes seconds later, while they go on
LEADER_DISRUPTING_FAULTS = frozenset(
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
    invariant: str
    message: str
    at: float
    revision: int = 0


@dataclass
class Checker:
    run: Run
    violations: list[Violation] = field(default_factory=list)
    observation_delay_s: ClassVar[float] = 0.0  # seconds in which the history hears of what was done

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.context = CheckerContext(self.run)
        self.snapshot = self.context.snapshot
        self.last_revision = 0
        self.writers_by_term: dict[int, str] = {}  # term -> who wrote in it
        self.operation_revisions: dict[str, int] = {}  # operation -> revision that wrote it first
        elsewhere = (
            bound.check_bindings, bound.check_gangs, bound.check_binding_modes, bound.check_preemption, placed.check_placement, paid.check_ledgers, paid.check_machine_limits,
            stopped.check_silent_nodes, stopped.check_disruption, stopped.check_replacement, stopped.check_node_removal,
        )  # fmt: skip
        self.commit_checks: list[Callable[[CommitRecord, list[ObjectChange]], Findings]] = [
            self.check_revisions, self.check_leadership, *(partial(each, self.context) for each in elsewhere), self.check_join_scope,
        ]  # fmt: skip

    def check(self) -> list[Violation]:
        if self.run.error:
            self.violations.append(
                Violation("I-00", f"the run broke off: {self.run.error}", self.world.loop.time())
            )
        self.violations += [
            Violation("I-00", f"nobody handled: {each}", self.world.loop.time())
            for each in self.world.loop.unhandled_errors[:3]
        ]
        for record in self.world.store.history:
            self.context.replay_heartbeats(record.at)
            moves = self.snapshot.changes_in(record)
            for step in self.commit_checks:
                self.violations += [
                    Violation(number, words, record.at, record.revision)
                    for number, words in step(record, moves)
                ]
            self.snapshot.apply(moves, record.at)
            self.violations += [
                Violation(number, words, record.at, record.revision)
                for number, words in paid.check_machines_paid(self.context, record)
            ]
        for part in (
            self.check_clients,
            self.check_elections,
            self.check_instances,
            self.check_agents,
            self.check_caches,
            self.check_final_state,
            self.check_rejections,
        ):
            self.violations += [Violation(number, words, self.world.loop.time()) for number, words in part()]
        return self.violations

    def check_instances(self) -> Findings:
        return stopped.check_instances(self.context)

    def check_agents(self) -> Findings:
        yield from ran.check_assignments_obeyed(self.context)
        yield from ran.check_restart_backoff(self.context)

    # --- the store ---

    def check_revisions(self, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
        """I-05: revisions grow. I-01: nobody writes over what they have not seen."""
        if record.blind_writes and record.actor:
            yield (
                "I-01",
                f"{record.actor} wrote over {', '.join(map(str, record.blind_writes[:3]))} without having seen what was there",
            )
        if record.revision <= self.last_revision:
            yield "I-05", f"revision {record.revision} after {self.last_revision}"
        self.last_revision = record.revision
        for move in moves:
            if move.raw is not None and (operation := operation_in(move.raw)):
                self.operation_revisions.setdefault(operation, record.revision)

    def check_clients(self) -> Findings:
        """I-01: what was acknowledged is there. I-03: what was refused is not. I-04: who asks later is told no less."""
        written: dict[Any, list[tuple[int, float, bytes | None]]] = defaultdict(list)
        for record in self.world.store.history:
            for change in record.changes:
                written[change.key].append((record.revision, record.at, change.value))
        for told in self.world.operations:
            line = written.get(told.key, [])
            before = [entry for entry in line if entry[1] < told.started_at][-1:]
            during = [
                entry
                for entry in line
                if told.started_at <= entry[1] <= told.finished_at + self.observation_delay_s
            ]
            what = f"{told.method} {told.key} by {told.operation}"
            if told.outcome == "refused" and told.operation in self.operation_revisions:
                yield (
                    "I-03",
                    f"{what} was refused ({told.error[:80]}) and written at revision {self.operation_revisions[told.operation]}",
                )
            if (
                told.was_not_found
                and told.method != "POST"
                and any(entry[2] for entry in before)
                and all(entry[2] for entry in during)
            ):
                yield "I-04", f"{what} was told that there is none, and revision {before[0][0]} was there"
            if told.outcome != "ok":
                continue
            if (
                told.method in ("PATCH", "POST", "PUT")
                and (told.revision or told.carries_operation)
                and (words := _unwritten_reason(told, {entry[0]: entry[2] for entry in line}))
            ):
                yield "I-01", f"{what} was acknowledged at revision {told.revision}, {words}"
            if told.expected_revision and told.revision in (written_at := [entry[0] for entry in line]):
                former = written_at[: written_at.index(told.revision)][-1:]
                if former != [told.expected_revision]:
                    yield (
                        "I-01",
                        f"{what} was written over revision {former}, and was meant for {told.expected_revision}",
                    )
            if told.method == "DELETE" and not any(
                is_being_deleted(entry[2]) for entry in (*before, *during)
            ):
                yield "I-01", f"{what} was acknowledged and nothing was deleted"
            if told.method == "GET" and before and told.revision < before[0][0]:
                yield "I-04", f"{what} saw revision {told.revision} after {before[0][0]} was written"

    def check_caches(self) -> Findings:
        """I-06: at any time a leader's copies are what was stored at the revision that they claim, and in the end what is stored."""
        for at, words in self.run.cache_mismatches[:5]:
            yield "I-06", f"at {at:.1f} s {words}"
        host = self.world.leader()
        office = host.server.leadership.context if host is not None and host.server is not None else None
        if office is None:
            yield "I-32", "nobody leads in the end"
            return
        for copy in office.caches:
            if words := cache_difference(copy, self.world.store.revisions_by_path(copy.resource)):
                yield "I-06", words

    # --- leadership ---

    def check_leadership(self, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
        """I-08: one writer in a term, and terms grow. I-09: what controllers write is fenced, by the term that is."""
        if record.term is None:
            if record.actor and record.origin == CONTROLLERS:
                yield "I-09", f"{record.actor} wrote {_keys(moves)} as a controller, without a fence"
            return
        number = record.term.number
        if number != record.current_term:
            yield (
                "I-09",
                f"{record.actor} wrote {_keys(moves)} in term {number} while term {record.current_term} had begun",
            )
        if self.writers_by_term.setdefault(number, record.actor) != record.actor:
            yield "I-08", f"{record.actor} wrote in term {number}, which is {self.writers_by_term[number]}'s"
        if number < max(self.writers_by_term):
            yield "I-08", f"{record.actor} wrote in term {number} after term {max(self.writers_by_term)}"

    def check_elections(self) -> Findings:
        """I-10: wall clocks do not depose anybody."""
        if (
            not LEADER_DISRUPTING_FAULTS & set(self.run.fault_plan.kinds)
            and len(self.world.store.elections) > 1
        ):
            when = ", ".join(f"{each.at:.1f} s" for each in self.world.store.elections)
            yield "I-10", f"leadership changed though nothing disturbed it: elections at {when}"

    def check_join_scope(self, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
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

    def check_final_state(self) -> Findings:
        """I-16, I-32: everything wanted runs, nothing else does. I-33: and nobody writes any more."""
        living = [
            life
            for machine in self.world.machines.values()
            for life in instance_runs(machine)
            if life.end == inf
        ]
        running = {(life.node, life.instance_id.uid) for life in living}
        wanted, waiting = set(), set()
        for path, each in self.snapshot.workloads.items():
            if reserved_node(each):
                yield "I-16", f"{path} is still prepared on {reserved_node(each)}: {reservation_record(each)}"
            if each.metadata.deletion_timestamp:
                yield (
                    "I-32",
                    f"{path} is being deleted still: {each.status.last_action}, {each.status.actual_state} on {node_of(each)}",
                )
            if each.spec.desired_state != "Running":
                continue
            if self._waits_for_gang(each) or self._surge_is_blocked(each) or self._has_no_capacity(each):
                yield from self._check_explained(path, each)
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
        uids = {each.metadata.uid for each in self.snapshot.services.values()}
        for path, each in self.snapshot.workloads.items():
            if each.spec.service and not any(owner.uid in uids for owner in each.metadata.owner_references):
                yield "I-32", f"{path} is left of a service that is gone"
        yield from self._outdated_instances(living, waiting)
        for node, uid in sorted(running - wanted):
            yield "I-32", f"{node} runs a copy of {uid} that nobody wants"
        for key, service in self.snapshot.services.items():
            ready = sum(bool(each.status.ready) for each in self.snapshot.replicas_of(key))
            if service.metadata.deletion_timestamp or ready != service.spec.desired_replicas():
                placed = next((one for one in service.status.conditions if one.type == "Placed"), None)
                yield (
                    "I-32",
                    f"{key} has {ready} ready and wants {service.spec.desired_replicas()}: {placed.message[:200] if placed else 'not placed'}",
                )
        late = [
            record
            for record in self.world.store.history
            if record.at > self.world.loop.time() - QUIET_PERIOD_S and record.actor
        ]
        written = Counter(
            change.key for record in late for change in record.changes if change.key.resource != "events"
        )
        allowed = (
            Counter({Key(LatticeWorkload.resource.id, *path.split("/")): 1 for path in waiting})
            + self._month_changes()
        )
        if written - allowed:
            most = ", ".join(f"{key} x{count}" for key, count in written.most_common(4))
            yield "I-33", f"{len(late)} commits in the last {QUIET_PERIOD_S:g} s: {most}"

    def _outdated_instances(self, living: list[InstanceRun], waiting: set[str]) -> Findings:
        """I-32: what runs is what is asked for now, unless the update waits for room."""
        for life in living:
            workload = self.snapshot.workloads.get(life.spec.workload)
            if workload is None or workload.metadata.uid != life.instance_id.uid:
                continue
            key = f"{workload.metadata.namespace}/{workload.spec.service}"
            service = self.snapshot.services.get(key)
            if service is not None and any(
                path_of(each) in waiting for each in self.snapshot.replicas_of(key)
            ):
                continue
            asked = (service or workload).spec.containers.get(life.instance_id.container)
            if asked is None or asked.command != life.spec.container.command:
                words = " ".join(asked.command) if asked else "nothing of that name"
                yield (
                    "I-32",
                    f"{life.spec.workload} on {life.node} runs {' '.join(life.spec.container.command)}, and is to run {words}",
                )

    def _month_changes(self) -> Counter[Key]:
        """Pools that begin to count anew: by a clock that is behind the month may end at any time."""
        found: Counter[Key] = Counter()
        for path, now in self.snapshot.pools.items():
            lately = self.snapshot.versions(LatticePool, path, self.world.loop.time() - QUIET_PERIOD_S)
            costs = [each.status.budget.current_month_cost or 0 for each in lately if each.status.budget]
            found[Key(now.resource.id, "", now.metadata.name)] += sum(
                new < old for new, old in pairwise(costs)
            )
        return found

    def _surge_is_blocked(self, workload: LatticeWorkload) -> bool:
        """The one more that an update needs finds no room on any node, and its service says so: as many as are wanted run meanwhile."""
        service = self.snapshot.services.get(f"{workload.metadata.namespace}/{workload.spec.service}")
        said = (
            next((each for each in service.status.conditions if each.type == "Progressing"), None)
            if service
            else None
        )
        if node_of(workload) or said is None or said.reason != "NoRoomForSurge":
            return False
        everybody = list(self.snapshot.workloads.values())
        nodes = [each for each in self.snapshot.nodes.values() if not bound.infeasible_reason(workload, each)]
        return all(bound.shortfalls(workload, each.metadata.name, each, everybody) for each in nodes)

    def _has_no_capacity(self, workload: LatticeWorkload) -> bool:
        """For one that is no service's no machine is made: it, or its group, waits while there is no room beside who need not go."""
        if workload.spec.service or node_of(workload):
            return False
        return bound.are_unschedulable(self._members(workload), self.snapshot)

    def _check_explained(self, path: str, workload: LatticeWorkload) -> Findings:
        """I-34: who cannot run says why."""
        said = next((each for each in workload.status.conditions if each.type == "Scheduled"), None)
        if said is None or said.status != "False" or not said.message:
            yield "I-34", f"{path} waits and does not say for what"

    def _waits_for_gang(self, workload: LatticeWorkload) -> bool:
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
            for each in self.snapshot.workloads.values()
            if each.metadata.namespace == namespace and each.spec.group
        ]
        return [each for each in known if each.spec.group and each.spec.group.name == group.name]

    def check_rejections(self) -> Findings:
        """I-35: nobody tries the same in vain for ever, least of all who knows that it is in vain."""
        for client in self.world.store_clients:
            worst, who = client.worst_rejection, client.process.name
            if worst.informed_attempts > MAX_INFORMED_REJECTIONS:
                yield (
                    "I-35",
                    f"{who} wrote the same {worst.informed_attempts} times in a row in vain, knowing what was there: {worst.keys}",
                )
            elif worst.attempts > MAX_REJECTIONS:
                yield "I-35", f"{who} wrote the same {worst.attempts} times in a row in vain: {worst.keys}"


def _unwritten_reason(told: OperationRecord, line: dict[int, bytes | None]) -> str:
    """Why the revision at which it was acknowledged is not what was asked for; empty if it is. `line`: what was written, by revision.

    What is sent carries its operation's name, so that it changes something each time, unless it arrives twice: then its name is there.
    """
    value = line.get(told.revision)
    if value is None:
        return "which never wrote it"
    if told.carries_operation and operation_in(value) != told.operation:
        return f"at which {operation_in(value) or 'nobody'} had written last"
    if (
        told.replicas is not None
        and (found := msgspec.json.decode(value, type=LatticeService).spec.min_replicas) != told.replicas
    ):
        return f"which asks for {found} replicas, not {told.replicas}"
    return ""


def _keys(moves: list[ObjectChange]) -> str:
    return ", ".join(str(move.key) for move in moves[:3])
