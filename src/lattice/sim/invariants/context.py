"""Checker context: the state before a commit, the last heartbeats, and how current the writer's cache could
be."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from lattice.kinds.meta.conditions import READY_CONDITION, is_true
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.history import ObjectChange, StateSnapshot
from lattice.sim.world.run import Run
from lattice.sim.world.store import CommitRecord

# Longest time by which the cache of a leader may be stale; assumed if no record says which revision the
# leader had received.
MAX_STALENESS_S = 12.0
# Longest time between the newest revision that a leader has received and the commit that the leader sends.
MAX_DECISION_S = 2.0
CONTROLLERS = "controllers"

# Invariant number and message.
Findings = Iterator[tuple[str, str]]


@dataclass
class CheckerContext:
    """Input of the invariant checks: the recorded run and the state before the commit that is being checked."""

    run: Run
    snapshot: StateSnapshot = field(default_factory=StateSnapshot)

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.last_heartbeats: dict[str, float] = {}
        self._heartbeats = iter(sorted(self.world.heartbeats))
        self._next_heartbeat: tuple[float, str] | None = next(self._heartbeats, None)
        self._revisions = [record.revision for record in self.world.store.history]
        self._election_times = {election.term.number: election.at for election in self.world.store.elections}

    def replay_heartbeats(self, until: float) -> None:
        """Record heartbeats up to and including `until`, in seconds of simulation time."""
        while self._next_heartbeat is not None and self._next_heartbeat[0] <= until:
            self.last_heartbeats[self._next_heartbeat[1]] = self._next_heartbeat[0]
            self._next_heartbeat = next(self._heartbeats, None)

    def unseen_since(self, record: CommitRecord) -> float:
        """The simulation time from which writes may have been unknown to the writer of `record`."""
        # Real processes (`make chaos`) do not record the revision that a writer had received.
        if record.writer_revision is None:
            return record.at - MAX_STALENESS_S
        # The first commit after the revision of the writer's cache is the oldest commit that the writer may
        # not know.
        first_unseen = bisect_right(self._revisions, record.writer_revision)
        unseen_at = [unseen.at for unseen in self.world.store.history[first_unseen : first_unseen + 1]]
        return min([record.at, *unseen_at]) - MAX_DECISION_S

    def following_commits(self, record: CommitRecord) -> Iterator[CommitRecord]:
        """Later commits of the same writer and term within MAX_DECISION_S, which the writer may have decided
        together with `record`."""
        for commit in islice(self.world.store.history, bisect_right(self._revisions, record.revision), None):
            if commit.at > record.at + MAX_DECISION_S:
                return
            if (commit.actor, commit.term) == (record.actor, record.term):
                yield commit

    def elected_at(self, record: CommitRecord) -> float:
        """The simulation time at which the term of the commit began; 0 for a commit without a term."""
        return self._election_times.get(record.term.number, 0.0) if record.term else 0.0

    def clock_rate(self, record: CommitRecord) -> float:
        """The rate of the clock on the writer's host; 1 if the host is unknown."""
        hosts = {host.name: host.clock.rate for host in self.world.hosts}
        # The actor is a process name: host and start count.
        return hosts.get(record.actor.partition("#")[0], 1.0)


def workload_changes(changes: list[ObjectChange]) -> Iterator[ObjectChange]:
    return (
        change
        for change in changes
        if isinstance(change.new, LatticeWorkload) or isinstance(change.old, LatticeWorkload)
    )


def is_ready(node: LatticeNode) -> bool:
    return is_true(node.status.conditions, READY_CONDITION)


def is_preempted(workload: LatticeWorkload) -> bool:
    return any(
        condition.reason == "Preempted" and condition.status == "True"
        for condition in workload.status.conditions
    )
