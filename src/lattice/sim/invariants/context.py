"""What a checker knows when it looks at a commit: the state before it, who was heard when, and how much its writer could know."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.history import Move, Snap
from lattice.sim.world.run import Run
from lattice.sim.world.store import Record

STALE = 12.0  # seconds by which what a leader decides from may be behind, where nobody noted what it had been told
PONDER = 2.0  # seconds from what a leader knows to what it asks the store for
CONTROLLERS = "controllers"

Found = Iterator[tuple[str, str]]  # number and words


@dataclass
class Seen:
    run: Run
    snap: Snap = field(default_factory=Snap)

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.last_heard: dict[str, float] = {}
        self._heard = iter(sorted(self.world.heard))
        self._next_heard: tuple[float, str] | None = next(self._heard, None)
        self._revisions = [record.revision for record in self.world.store.history]
        self._elected = {each.term.number: each.at for each in self.world.store.elections}

    def hear(self, until: float) -> None:
        while self._next_heard is not None and self._next_heard[0] <= until:
            self.last_heard[self._next_heard[1]] = self._next_heard[0]
            self._next_heard = next(self._heard, None)

    def since(self, record: Record) -> float:
        """What was written from then on may be news to whoever wrote this."""
        if record.seen is None:
            return record.at - STALE
        first_news = bisect_right(self._revisions, record.seen)
        news_at = [each.at for each in self.world.store.history[first_news : first_news + 1]]
        return min([record.at, *news_at]) - PONDER

    def on_its_way(self, record: Record) -> Iterator[Record]:
        """What the same writer writes so soon after that it may have decided both together."""
        for each in islice(self.world.store.history, bisect_right(self._revisions, record.revision), None):
            if each.at > record.at + PONDER:
                return
            if (each.actor, each.term) == (record.actor, record.term):
                yield each

    def elected_at(self, record: Record) -> float:
        """When the term began in which that was written."""
        return self._elected.get(record.term.number, 0.0) if record.term else 0.0

    def rate(self, record: Record) -> float:
        """How fast the clock of its writer runs; 1 if nobody knows."""
        hosts = {host.name: host.clock.rate for host in self.world.hosts}
        return hosts.get(record.actor.partition("#")[0], 1.0)


def workload_moves(moves: list[Move]) -> Iterator[Move]:
    return (
        move
        for move in moves
        if isinstance(move.new, LatticeWorkload) or isinstance(move.old, LatticeWorkload)
    )


def is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)


def is_preempted(workload: LatticeWorkload) -> bool:
    return any(each.reason == "Preempted" and each.status == "True" for each in workload.status.conditions)
