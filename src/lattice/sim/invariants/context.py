"""What a checker knows when it looks at a commit: the state before it, who was heard when, and how much its writer could know."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.history import ObjectChange, StateSnapshot
from lattice.sim.world.run import Run
from lattice.sim.world.store import CommitRecord

MAX_STALENESS_S = 12.0  # seconds by which what a leader decides from may be behind, where nobody noted what it had been told
MAX_DECISION_S = 2.0  # seconds from what a leader knows to what it asks the store for
CONTROLLERS = "controllers"

Findings = Iterator[tuple[str, str]]  # number and words


@dataclass
class CheckerContext:
    run: Run
    snapshot: StateSnapshot = field(default_factory=StateSnapshot)

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.last_heartbeats: dict[str, float] = {}
        self._heartbeats = iter(sorted(self.world.heartbeats))
        self._next_heartbeat: tuple[float, str] | None = next(self._heartbeats, None)
        self._revisions = [record.revision for record in self.world.store.history]
        self._election_times = {each.term.number: each.at for each in self.world.store.elections}

    def replay_heartbeats(self, until: float) -> None:
        while self._next_heartbeat is not None and self._next_heartbeat[0] <= until:
            self.last_heartbeats[self._next_heartbeat[1]] = self._next_heartbeat[0]
            self._next_heartbeat = next(self._heartbeats, None)

    def unseen_since(self, record: CommitRecord) -> float:
        """What was written from then on may be news to whoever wrote this."""
        if record.writer_revision is None:
            return record.at - MAX_STALENESS_S
        first_news = bisect_right(self._revisions, record.writer_revision)
        news_at = [each.at for each in self.world.store.history[first_news : first_news + 1]]
        return min([record.at, *news_at]) - MAX_DECISION_S

    def following_commits(self, record: CommitRecord) -> Iterator[CommitRecord]:
        """What the same writer writes so soon after that it may have decided both together."""
        for each in islice(self.world.store.history, bisect_right(self._revisions, record.revision), None):
            if each.at > record.at + MAX_DECISION_S:
                return
            if (each.actor, each.term) == (record.actor, record.term):
                yield each

    def elected_at(self, record: CommitRecord) -> float:
        """When the term began in which that was written."""
        return self._election_times.get(record.term.number, 0.0) if record.term else 0.0

    def clock_rate(self, record: CommitRecord) -> float:
        """How fast the clock of its writer runs; 1 if nobody knows."""
        hosts = {host.name: host.clock.rate for host in self.world.hosts}
        return hosts.get(record.actor.partition("#")[0], 1.0)


def workload_changes(moves: list[ObjectChange]) -> Iterator[ObjectChange]:
    return (
        move
        for move in moves
        if isinstance(move.new, LatticeWorkload) or isinstance(move.old, LatticeWorkload)
    )


def is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)


def is_preempted(workload: LatticeWorkload) -> bool:
    return any(each.reason == "Preempted" and each.status == "True" for each in workload.status.conditions)
