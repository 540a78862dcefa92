"""How soon each fault was recovered from, beside the figure to reach."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.judge import Evidence, is_alone
from chaos.nemesis import Fault
from lattice.kinds.node import LatticeNode
from lattice.sim.past import Snap
from lattice.sim.settings import LEASE, TIMES

ALONE = 3.0  # seconds around a fault in which no other befell the control plane: only such are measured
NOT_READY = TIMES.nodes.not_ready_after * 1.5  # seconds
REFUSED_WITHIN = 2.0  # seconds
AFTER = 20.0  # seconds after a fault was healed in which recovery is looked for


@dataclass
class Figure:
    what: str
    aim: float  # seconds at most
    seen: list[float] = field(default_factory=list)

    @property
    def row(self) -> str:
        if not self.seen:
            return f"| {self.what} | {self.aim:g} | 0 | | | | not seen |"
        low, middle, high = min(self.seen), statistics.median(self.seen), max(self.seen)
        verdict = "met" if high <= self.aim else f"missed {sum(each > self.aim for each in self.seen)} times"
        return f"| {self.what} | {self.aim:g} | {len(self.seen)} | {low:.2f} | {middle:.2f} | {high:.2f} | {verdict} |"


def figures(evidence: Evidence) -> list[Figure]:
    faults = evidence.faults

    def measured(names: Sequence[str], target: str, ask: Callable[[Fault], float | None]) -> list[float]:
        alike = [each for each in faults if each.strike.kind.name in names and each.strike.kind.target == target and each.lane != "nodes"]
        found = [ask(fault) for fault in alike if is_alone(fault, faults, ALONE)]
        return [each for each in found if each is not None]

    def next_term(fault: Fault) -> float | None:
        after = [at - fault.at for at, _ in evidence.history.terms if fault.at < at < fault.healed + AFTER]
        if fault.leader not in fault.victims:
            return None
        return after[0] if after else fault.healed + AFTER - fault.at  # nobody came: that counts, too

    def longest_gap(fault: Fault) -> float:
        last = max((each.told_at for each in evidence.crowd.told if each.method == "PATCH"), default=fault.at)
        ends = max(fault.at, min(fault.healed + ALONE, last))  # silence up to the end counts, until people go home
        times = evidence.crowd.acknowledged(fault.at, ends)
        return max(later - earlier for earlier, later in itertools.pairwise([fault.at, *times, ends]))

    def first_answer(fault: Fault) -> float | None:
        times = evidence.crowd.acknowledged(fault.healed, fault.healed + 3 * AFTER)
        return times[0] - fault.healed if times else 3 * AFTER

    def refused_after(fault: Fault) -> float | None:
        """The longest that a probe waited for any answer, of those that asked when most had been lost and were so for a while yet."""
        waits = [
            each.told_at - each.asked_at
            for each in evidence.crowd.told
            if each.client.startswith("probe") and fault.at + 0.1 < each.asked_at < fault.healed - REFUSED_WITHIN
        ]
        return max(waits) if waits else None

    return [
        Figure("leader killed: another leads", LEASE + 2, measured(["kill -9"], "leader", next_term)),
        Figure("leader paused: another leads", LEASE + 2, measured(["pause"], "leader", next_term)),
        Figure("leader told to end: another leads", 1, measured(["SIGTERM"], "leader", next_term)),
        Figure("leader cut from etcd: another leads", LEASE + 2, measured(["cut from etcd", "deaf", "dumb"], "leader", next_term)),
        Figure(
            "etcd's leader lost: longest time without a write",
            5,
            measured(["kill -9", "pause", "cut from peers", "deaf"], "etcd leader", longest_gap),
        ),
        Figure("most of etcd lost: a write is refused", REFUSED_WITHIN, measured(["kill -9"], "most of etcd", refused_after)),
        Figure("most of etcd back: first write", 10, measured(["kill -9"], "most of etcd", first_answer)),
        Figure("all servers back: first write", 10, measured(["kill -9"], "all servers", first_answer)),
        Figure("group of nodes cut off: the first is not ready", NOT_READY, _not_ready(evidence)),
    ]


def _not_ready(evidence: Evidence) -> list[float]:
    """From the cut to the store's word, where nothing befell the control plane meanwhile."""
    found = []
    lost = _losses(evidence)
    for fault in evidence.faults:
        if (fault.strike.kind.name, fault.strike.kind.target) != ("cut", "group") or not is_alone(fault, evidence.faults, 0):
            continue
        names = [agent.name for agent in evidence.agents if agent.part in fault.victims]
        after = [at - fault.at for name in names for at in lost.get(name, []) if fault.at < at < fault.healed]
        if after or fault.healed - fault.at > NOT_READY:
            found.append(min(after, default=fault.healed - fault.at))
    return found


def _losses(evidence: Evidence) -> dict[str, list[float]]:
    """By node: when it was said to be not ready."""
    snap = Snap()
    found: dict[str, list[float]] = {}
    for record in evidence.history.records():
        moves = snap.moves(record)
        for move in moves:
            if isinstance(move.old, LatticeNode) and isinstance(move.new, LatticeNode) and _is_ready(move.old) and not _is_ready(move.new):
                found.setdefault(move.key.name, []).append(record.at)
        snap.apply(moves, record.at)
    return found


def _is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
