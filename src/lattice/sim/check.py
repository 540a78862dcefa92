"""The checker: what must hold at every revision, on every machine and in the end, by the numbers of the list of invariants.

Nothing here asks the code under test what it thinks: it reads the store's whole history, what clients were told, and what really ran.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple

from lattice.kinds.base import Condition
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.prepared import prepared
from lattice.server.joining import node_key
from lattice.sim.past import Life, Move, Snap, is_going, lives, node_of, operation_in, path_of, prepared_on
from lattice.sim.run import Run
from lattice.sim.settings import TIMES
from lattice.sim.stores import Record

STALE = 12.0  # seconds by which what a leader decides from may be behind: lag, pauses shorter than its lease
QUIET = 15.0  # seconds at the end in which nothing may be written
IN_A_ROW, IN_A_ROW_BEHIND = 12, 60  # rejections of the same plan; of who is told of changes seconds later, and they go on
UNSETTLING = frozenset(
    {"crash", "kill server", "pause server", "stop server", "cut store", "cut one way", "store away", "loss", "slow", "clock rate"}
)
MONTH_HOURS = 720
HOUR = 3_600_000_000  # microseconds
CONTROLLERS = "controllers"


class Violation(NamedTuple):
    number: str
    words: str
    at: float
    revision: int = 0


Found = Iterator[tuple[str, str]]  # number and words


@dataclass
class Checker:
    run: Run
    found: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.snap = Snap()
        self.revision = 0
        self.writers: dict[int, str] = {}  # term -> who wrote in it
        self.requests: set[str] = set()
        self.operations: dict[str, int] = {}  # operation -> revision that wrote it first
        self.heard = iter(sorted(self.world.heard))
        self.next_heard: tuple[float, str] | None = next(self.heard, None)
        self.last_heard: dict[str, float] = {}
        self.steps: list[Callable[[Record, list[Move]], Found]] = [
            self.revisions, self.leadership, self.bindings, self.gangs, self.modes, self.preemption, self.silence, self.money,
            self.disruption, self.removal, self.writers_scope,
        ]  # fmt: skip

    def check(self) -> list[Violation]:
        if self.run.trouble:
            self.found.append(Violation("I-00", f"the run broke off: {self.run.trouble}", self.world.loop.time()))
        self.found += [Violation("I-00", f"nobody handled: {each}", self.world.loop.time()) for each in self.world.loop.errors[:3]]
        for record in self.world.store.history:
            self._hear(record.at)
            moves = self.snap.moves(record)
            for step in self.steps:
                self.found += [Violation(number, words, record.at, record.revision) for number, words in step(record, moves)]
            self.snap.apply(moves, record.at)
            self.found += [Violation(number, words, record.at, record.revision) for number, words in self.paid(record)]
        for part in (self.clients, self.elections, self.ground, self.copies, self.rest, self.rejections):
            self.found += [Violation(number, words, self.world.loop.time()) for number, words in part()]
        return self.found

    def _hear(self, until: float) -> None:
        while self.next_heard is not None and self.next_heard[0] <= until:
            self.last_heard[self.next_heard[1]] = self.next_heard[0]
            self.next_heard = next(self.heard, None)

    # --- the store ---

    def revisions(self, record: Record, moves: list[Move]) -> Found:
        """I-05: revisions grow. I-02: a request is applied once. I-01: nobody writes over what they have not seen."""
        if record.blind and record.actor:
            yield "I-01", f"{record.actor} wrote over {', '.join(map(str, record.blind[:3]))} without having seen what was there"
        if record.revision <= self.revision:
            yield "I-05", f"revision {record.revision} after {self.revision}"
        self.revision = record.revision
        if record.request_id is not None:
            if record.request_id in self.requests:
                yield "I-02", f"request {record.request_id} was applied twice"
            self.requests.add(record.request_id)
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
            during = [entry for entry in line if told.asked_at <= entry[1] <= told.told_at]
            what = f"{told.method} {told.key} by {told.operation}"
            if told.outcome == "refused" and told.operation in self.operations:
                yield "I-03", f"{what} was refused ({told.why[:80]}) and written at revision {self.operations[told.operation]}"
            if told.outcome != "ok":
                continue
            if told.method in ("PATCH", "POST") and told.revision and told.revision not in {entry[0] for entry in line}:
                yield "I-01", f"{what} was acknowledged at revision {told.revision}, which never wrote it"
            if told.method == "DELETE" and not any(is_going(entry[2]) for entry in (*before, *during)):
                yield "I-01", f"{what} was acknowledged and nothing was deleted"
            if told.method == "GET" and before and told.revision < before[0][0]:
                yield "I-04", f"{what} saw revision {told.revision} after {before[0][0]} was written"

    def copies(self) -> Found:
        """I-06: in the end the leader's copies are what is stored."""
        host = self.world.leader()
        office = host.server.lead.office if host is not None and host.server is not None else None
        if office is None:
            yield "I-32", "nobody leads in the end"
            return
        for copy in office.copies:
            stored = self.world.store.contents(copy.resource)
            known = {path: entry.revision for path in stored if (entry := copy.entry(path)) is not None}
            if known != stored or len(copy) != len(stored):
                odd = sorted(path for path in {*stored, *known} if stored.get(path) != known.get(path))[:3]
                yield "I-06", f"the leader's copy of {copy.resource} differs from the store: {odd or f'{len(copy)} and {len(stored)}'}"

    # --- leadership ---

    def leadership(self, record: Record, moves: list[Move]) -> Found:
        """I-08: one writer in a term, and terms grow. I-09: what controllers write is fenced, by the term that is."""
        if record.term is None:
            if record.actor and record.origin == CONTROLLERS:
                yield "I-09", f"{record.actor} wrote {_keys(moves)} as a controller, without a fence"
            return
        number = record.term.number
        if number != record.led:
            yield "I-09", f"{record.actor} wrote {_keys(moves)} in term {number} while term {record.led} had begun"
        if self.writers.setdefault(number, record.actor) != record.actor:
            yield "I-08", f"{record.actor} wrote in term {number}, which is {self.writers[number]}'s"
        if number < max(self.writers):
            yield "I-08", f"{record.actor} wrote in term {number} after term {max(self.writers)}"

    def elections(self) -> Found:
        """I-10: wall clocks do not depose anybody."""
        if not UNSETTLING & set(self.run.swarm.kinds) and len(self.world.store.elections) > 1:
            when = ", ".join(f"{each.at:.1f} s" for each in self.world.store.elections)
            yield "I-10", f"leadership changed though nothing disturbed it: elections at {when}"

    # --- binding and capacity ---

    def bindings(self, record: Record, moves: list[Move]) -> Found:
        """I-11: bound once. I-12: never more than there is room. I-14: only where it may go."""
        after = {**self.snap.workloads, **{move.key.path: move.new for move in moves if isinstance(move.new, LatticeWorkload)}}
        for move in _workload_moves(moves):
            old, new = node_of(move.old), node_of(move.new)
            if old and new and (old, move.old.status.binding.uid) != (new, move.new.status.binding.uid):
                yield "I-11", f"{move.key.path} moved from {old} to {new} in one step"
            fresh = new if new and not old else ""
            taken = fresh or (prepared_on(move.new) if not prepared_on(move.old) else "")
            if not taken or (fresh and prepared_on(move.old) == fresh):
                continue
            node = next((each.new for each in moves if each.key == node_key(taken)), None) or self.snap.nodes.get(f"/{taken}")
            yield from self._fits(move.new, taken, node, after)
            if why := infeasible(move.new, self.snap.nodes.get(f"/{taken}")):
                yield "I-14", f"{move.key.path} was bound to {taken}: {why}"
            if clash := _same_port(move.new, taken, after):
                yield "I-14", f"{move.key.path} was bound to {taken}: {clash}"
        slots = Counter(
            (each.metadata.namespace, each.spec.service, each.spec.slot) for each in after.values() if each and each.spec.service
        )
        for (namespace, service, slot), count in slots.items():
            if count > 1:
                yield "I-11", f"{count} replicas have slot {slot} of {namespace}/{service}"

    def _fits(self, workload: LatticeWorkload, name: str, node: LatticeNode | None, after: dict[str, Any]) -> Found:
        room = node.status.allocatable if node else {}
        there = [each for each in after.values() if each is not None and name in (node_of(each), prepared_on(each))]
        for resource in workload.spec.request_amounts:
            asked = sum(each.spec.request_amounts.get(resource, 0) for each in there)
            if asked > room.get(resource, 0):
                yield "I-12", f"{name} has {room.get(resource, 0)} {resource} and {len(there)} on it ask for {asked}"

    def gangs(self, record: Record, moves: list[Move]) -> Found:
        """I-15: a group is bound together, or not at all."""
        after = {**self.snap.workloads, **{move.key.path: move.new for move in moves if move.new is not None}}
        for move in _workload_moves(moves):
            group = move.new.spec.group if move.new is not None else None
            if group is None or not node_of(move.new) or node_of(move.old):
                continue
            members = [
                each
                for each in after.values()
                if isinstance(each, LatticeWorkload)
                and each.spec.group
                and (each.metadata.namespace, each.spec.group.name) == (move.new.metadata.namespace, group.name)
            ]
            lately = record.at - STALE  # whoever has just lost its node was there when this was decided
            bound = sum(bool(node_of(each)) or self.snap.bound_at.get(path_of(each), -inf) >= lately for each in members)
            if bound < group.min_member:
                yield "I-15", f"{bound} of group {group.name} are bound, which needs {group.min_member}"

    def modes(self, record: Record, moves: list[Move]) -> Found:
        """I-16: committed only what was prepared. I-17: bound under the lock of its node."""
        mode = self.run.swarm.shape.binding
        for move in _workload_moves(moves):
            if not node_of(move.new) or node_of(move.old):
                continue
            if mode == "two-phase" and prepared_on(move.old) != node_of(move.new):
                yield "I-16", f"{move.key.path} was bound to {node_of(move.new)} without having been prepared there"
            lock = self.snap.leases.get(f"lattice-system/node.{node_of(move.new)}")
            if mode == "pessimistic" and move.new.spec.group is None and lock is None:
                yield "I-17", f"{move.key.path} was bound to {node_of(move.new)}, which nobody had locked"

    def preemption(self, record: Record, moves: list[Move]) -> Found:
        """I-18: who is told to make room is less important than somebody who waits."""
        for move in _workload_moves(moves):
            if move.old is None or move.new is None or not _preempted(move.new) or _preempted(move.old):
                continue
            waiting = [each.spec.priority for each in self.snap.workloads.values() if not node_of(each)]
            if not any(priority > move.new.spec.priority for priority in waiting):
                yield "I-18", f"{move.key.path} of priority {move.new.spec.priority} must make room, and nobody more important waits"

    def silence(self, record: Record, moves: list[Move]) -> Found:
        """I-13: what ran on a silent node is bound anew only when the time is up, on any clock."""
        for move in _workload_moves(moves):
            node = self.snap.nodes.get(f"/{node_of(move.old)}") if node_of(move.old) and not node_of(move.new) else None
            if node is None or move.new is None or _is_ready(node) or node.metadata.uid != move.old.status.binding.uid:
                continue
            quiet = record.at - self.last_heard.get(node.metadata.name, -inf)
            least = TIMES.nodes.replace_after / (1 + TIMES.nodes.clock_error)
            if quiet < least:
                yield (
                    "I-13",
                    f"{move.key.path} was taken from {node.metadata.name} {quiet:.1f} s after that was heard, before {least:.1f} s",
                )

    def ground(self) -> Found:
        """I-13: a strict single copy never runs twice. I-19: a node runs a workload once at a time."""
        by_uid: dict[str, list[Life]] = defaultdict(list)
        for machine in [*self.world.gone, *self.world.machines.values()]:
            for life in lives(machine):
                by_uid[life.which.uid].append(life)
        for every in by_uid.values():
            every.sort(key=lambda life: life.start)
            for index, life in enumerate(every):
                for other in every[index + 1 :]:
                    if other.start >= life.end or other.which.container != life.which.container:
                        continue
                    words = f"{life.spec.workload} ran on {life.node} from {life.start:.2f} to {life.end:.2f} s"
                    if other.node == life.node:
                        yield "I-19", f"{words}, and once more there from {other.start:.2f} s"
                    elif life.spec.stop_after is not None:
                        yield "I-13", f"{words}, and on {other.node} from {other.start:.2f} s"

    # --- money ---

    def money(self, record: Record, moves: list[Move]) -> Found:
        """I-20: no commitment beyond a hard limit. I-22: what is spent is price times time, to the last part."""
        for move in moves:
            if not isinstance(move.new, LatticeLedger):
                continue
            new, old = move.new.status, move.old.status if move.old is not None else None
            lots = sum(lot.count * lot.micros for each in new.machines.values() for lot in each)
            if lots != new.committed_micros:
                yield "I-22", f"{move.key.name} commits {new.committed_micros} and its machines cost {lots}"
            if old is not None and old.month == new.month:
                passed = max(0, _micros(_time(new.as_of) - _time(old.as_of)))
                due = old.spent_micros * HOUR + old.remainder + old.committed_micros * passed
                if due != new.spent_micros * HOUR + new.remainder:
                    yield "I-22", f"{move.key.name} has spent {new.spent_micros}, and price times time is {due // HOUR}"
            pool = next(
                (each.new for each in moves if each.key.name == move.new.spec.budget.name and each.key.resource.startswith("latticepools")),
                None,
            )
            pool = pool or self.snap.pools.get(f"/{move.new.spec.budget.name}")
            if new.committed_micros > (old.committed_micros if old else 0) and pool is not None and pool.spec.budget is not None:
                yield from _over(move.new, int(Decimal(str(pool.spec.budget.max_monthly_cost)) * 1_000_000))

    def paid(self, record: Record) -> Found:
        """I-22: there is no machine that nobody pays for."""
        for cluster, kind, count in self.world.cloud.standing(record.at):
            ledgers = [each for each in self.snap.ledgers.values() if cluster in each.status.machines]
            paid = min((_lots(each, cluster, kind) for each in ledgers), default=0)
            if count > paid:
                yield "I-22", f"{count} machines of class {kind} stand in {cluster}, and {paid} are paid for"

    # --- disruption ---

    def disruption(self, record: Record, moves: list[Move]) -> Found:
        """I-24: nobody who is needed is stopped by choice."""
        if record.origin != CONTROLLERS:
            return
        gone: set[str] = set()
        for move in _workload_moves(moves):
            if move.old is None or not _is_stopped_by_choice(move) or not move.old.status.ready:
                continue
            gone.add(move.key.path)
            key = f"{move.key.namespace}/{move.old.spec.service}"
            service = self.snap.services.get(key)
            if service is None or service.metadata.deletion_timestamp or not _owned(move.old, service.metadata.uid):
                continue
            since = record.at - STALE
            others = [
                each
                for each in self.snap.replicas(key)
                if path_of(each) not in gone
                and not each.metadata.deletion_timestamp
                and (each.status.ready or self.snap.ready_at.get(path_of(each), -inf) >= since)
            ]
            least = self.snap.least_wanted(key, since)
            if len(others) < least:
                yield "I-24", f"{move.key.path} was stopped while it was needed: {len(others)} others are ready and {least} are wanted"

    def removal(self, record: Record, moves: list[Move]) -> Found:
        """I-27: a machine's node is deleted only when nothing is bound to it, unless the machine itself is gone."""
        for move in moves:
            if isinstance(move.old, LatticeNode) and move.new is None and move.old.spec.cluster:
                uid = move.old.metadata.uid
                left = [path_of(each) for each in self.snap.on(move.key.name) if each.status.binding and each.status.binding.uid == uid]
                if left and not self.world.cloud.was_lost(move.key.name, record.at):
                    yield "I-27", f"node {move.key.name} was deleted with {', '.join(left)} on it"

    def writers_scope(self, record: Record, moves: list[Move]) -> Found:
        """I-38: a machine that joins writes its own node and its token, nothing else."""
        if record.origin.startswith("join "):
            name = record.origin.removeprefix("join ")
            odd = [str(move.key) for move in moves if move.key != node_key(name) and not move.key.name.startswith("join-")]
            if odd:
                yield "I-38", f"{name} wrote {', '.join(odd)} when it joined"

    # --- the end ---

    def rest(self) -> Found:
        """I-16, I-32: everything wanted runs, nothing else does. I-33: and nobody writes any more."""
        running = {(life.node, life.which.uid) for machine in self.world.machines.values() for life in lives(machine) if life.end == inf}
        wanted = set()
        for path, each in self.snap.workloads.items():
            if prepared_on(each):
                yield "I-16", f"{path} is still prepared on {prepared_on(each)}: {prepared(each)}"
            if each.metadata.deletion_timestamp:
                yield "I-32", f"{path} is being deleted still: {each.status.last_action}, {each.status.actual_state} on {node_of(each)}"
            if each.spec.desired_state != "Running" or self._waits_for_others(each) or self._surges_in_vain(each):
                continue
            where = (node_of(each), each.metadata.uid)
            wanted.add(where)
            if not each.status.ready or where not in running:
                why = next((one.message for one in each.status.conditions if one.type == "Scheduled"), "")
                yield "I-32", f"{path} is {each.status.actual_state} on {where[0] or 'no node'} ({each.status.last_action}): {why[:200]}"
        uids = {each.metadata.uid for each in self.snap.services.values()}
        for path, each in self.snap.workloads.items():
            if each.spec.service and not any(owner.uid in uids for owner in each.metadata.owner_references):
                yield "I-32", f"{path} is left of a service that is gone"
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
        late = [record for record in self.world.store.history if record.at > self.world.loop.time() - QUIET and record.actor]
        if late:
            written = Counter(str(change.key) for record in late for change in record.changes if change.key.resource != "events")
            yield (
                "I-33",
                f"{len(late)} commits in the last {QUIET:g} s: {', '.join(f'{key} x{count}' for key, count in written.most_common(4))}",
            )

    def _surges_in_vain(self, workload: LatticeWorkload) -> bool:
        """I-34: the one more that an update needs finds no room, and its service says so: as many as are wanted run meanwhile."""
        service = self.snap.services.get(f"{workload.metadata.namespace}/{workload.spec.service}")
        said = next((each for each in service.status.conditions if each.type == "Progressing"), None) if service else None
        return not node_of(workload) and said is not None and said.reason == "NoRoomForSurge"

    def _waits_for_others(self, workload: LatticeWorkload) -> bool:
        """Of its group there are too few: none of them is to run, but what runs may."""
        group = workload.spec.group
        if group is None or node_of(workload):
            return False
        namespace = workload.metadata.namespace
        members = [each for each in self.snap.workloads.values() if each.spec.group and each.metadata.namespace == namespace]
        return sum(each.spec.group.name == group.name for each in members if each.spec.group) < group.min_member

    def rejections(self) -> Found:
        """I-35: nobody tries the same in vain for ever."""
        for client in self.world.store_clients:
            if client.worst > (IN_A_ROW_BEHIND if "lag" in self.run.swarm.kinds else IN_A_ROW):
                yield "I-35", f"{client.process.name} wrote the same {client.worst} times in a row in vain: {client.worst_plan}"


def infeasible(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    """Why that workload may not go to that node; said by somebody who does not know the scheduler."""
    if node is None:
        return "there is no such node"
    spec, tolerations = node.spec, workload.spec.constraints.tolerations
    bearable = all(taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations) for taint in spec.taints)
    labels = {**node.metadata.labels, "zone": spec.zone, "region": spec.region, "cluster": spec.cluster, "pool": spec.pool}
    reasons = {
        "it is not ready": _is_ready(node),
        "it is cordoned": not spec.unschedulable,
        "it is being removed": not node.metadata.deletion_timestamp,
        "it has a taint": bearable,
        "it is of another cluster": workload.spec.cluster in ("", spec.cluster),
        "it has other labels": all(labels.get(key) == value for key, value in workload.spec.constraints.node_selector.items()),
        "the workload is being deleted": not workload.metadata.deletion_timestamp,
        "the workload is not to run": workload.spec.desired_state == "Running",
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def _over(ledger: LatticeLedger, limit: int) -> Found:
    status = ledger.status
    if status.committed_micros * MONTH_HOURS > limit:
        yield "I-20", f"{ledger.metadata.name} commits {status.committed_micros} an hour, {MONTH_HOURS} of which are more than {limit}"
    now = _time(status.as_of)
    ends = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    due = status.spent_micros * HOUR + status.remainder + status.committed_micros * _micros(ends - now)
    if due > limit * HOUR:
        yield "I-20", f"{ledger.metadata.name} would have spent {due // HOUR} by the end of the month, and may spend {limit}"


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _lots(ledger: LatticeLedger, cluster: str, kind: str) -> int:
    return sum(lot.count for lot in ledger.status.machines.get(cluster, ()) if lot.node_class == kind)


def _workload_moves(moves: list[Move]) -> Iterator[Move]:
    return (move for move in moves if isinstance(move.new, LatticeWorkload) or isinstance(move.old, LatticeWorkload))


def _is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)


def _leaving(workload: LatticeWorkload) -> Condition | None:
    return next((each for each in workload.status.conditions if each.reason == "Preempted" and each.status == "True"), None)


def _preempted(workload: LatticeWorkload) -> bool:
    return _leaving(workload) is not None


def _is_stopped_by_choice(move: Move) -> bool:
    """Marked for removal, or told to leave its node while it is wanted; not one that makes room for somebody more important."""
    old, new = move.old, move.new
    if new is None or _preempted(old) or old.metadata.deletion_timestamp or not old.spec.service:
        return False
    is_told = new.status.last_action == "ApplyStopped" != old.status.last_action and new.spec.desired_state == "Running"
    return bool(new.metadata.deletion_timestamp) or (is_told and not new.metadata.deletion_timestamp)


def _owned(workload: LatticeWorkload, uid: str) -> bool:
    return any(each.uid == uid for each in workload.metadata.owner_references)


def _same_port(workload: LatticeWorkload, node: str, after: dict[str, Any]) -> str:
    mine = set(workload.status.allocated_ports.values())
    for other in after.values():
        if other is None or path_of(other) == path_of(workload) or node not in (node_of(other), prepared_on(other)):
            continue
        if both := mine & set(other.status.allocated_ports.values()):
            return f"port {min(both)} is {path_of(other)}'s"
    return ""


def _keys(moves: list[Move]) -> str:
    return ", ".join(str(move.key) for move in moves[:3])
