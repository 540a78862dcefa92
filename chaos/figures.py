"""How soon each fault was recovered from, beside the figure to reach."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.judge import Evidence, is_alone
from chaos.nemesis import Fault
from chaos.plan import CALM, chosen, disturbed
from chaos.record import machine
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.history import StateSnapshot, node_of
from lattice.sim.world.settings import LEASE_TTL_S, TIMEOUTS

ALONE = 3.0  # seconds around a fault in which no other befell the control plane: only such are measured
NOT_READY = TIMEOUTS.nodes.not_ready_after * 1.5  # seconds
REFUSED_WITHIN = 2.0  # seconds
SETTLING = 2.0  # seconds in which what agents had been told is done
AFTER = 20.0  # seconds after a fault was healed in which recovery is looked for


@dataclass
class Figure:
    what: str
    aim: float  # at most
    seen: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def row(self) -> str:
        if not self.seen:
            return f"| {self.what} | {self.aim:g} {self.unit} | 0 | | | | not seen |"
        low, middle, high = min(self.seen), statistics.median(self.seen), max(self.seen)
        verdict = "met" if high <= self.aim else f"missed {sum(each > self.aim for each in self.seen)} times"
        return f"| {self.what} | {self.aim:g} {self.unit} | {len(self.seen)} | {low:.2f} | {middle:.2f} | {high:.2f} | {verdict} |"


def figures(evidence: Evidence) -> list[Figure]:
    faults = evidence.faults

    def measured(names: Sequence[str], target: str, ask: Callable[[Fault], float | None]) -> list[float]:
        alike = [
            each
            for each in faults
            if each.strike.kind.name in names and each.strike.kind.target == target and each.lane != "nodes"
        ]
        found = [ask(fault) for fault in alike if is_alone(fault, faults, ALONE)]
        return [each for each in found if each is not None]

    def next_term(fault: Fault) -> float | None:
        after = [at - fault.at for at, _ in evidence.history.terms if fault.at < at < fault.healed + AFTER]
        if fault.leader not in fault.victims:
            return None
        return after[0] if after else fault.healed + AFTER - fault.at  # nobody came: that counts, too

    def longest_gap(fault: Fault) -> float:
        last = max(
            (each.finished_at for each in evidence.crowd.told if each.method == "PATCH"), default=fault.at
        )
        ends = max(
            fault.at, min(fault.healed + ALONE, last)
        )  # silence up to the end counts, until people go home
        times = evidence.crowd.acknowledged(fault.at, ends)
        return max(later - earlier for earlier, later in itertools.pairwise([fault.at, *times, ends]))

    def first_answer(fault: Fault) -> float | None:
        times = evidence.crowd.acknowledged(fault.healed, fault.healed + 3 * AFTER)
        return times[0] - fault.healed if times else 3 * AFTER

    def refused_after(fault: Fault) -> float | None:
        """The longest that a probe waited for any answer, of those that asked when most had been lost and were so for a while yet."""
        waits = [
            each.finished_at - each.started_at
            for each in evidence.crowd.told
            if each.client.startswith("probe")
            and fault.at + 0.1 < each.started_at < fault.healed - REFUSED_WITHIN
        ]
        return max(waits) if waits else None

    def accepted_late(fault: Fault) -> float | None:
        """Of those that were paused and went on: what they wrote in a term that was over."""
        after = [at for at, _ in evidence.history.terms if fault.at < at < fault.healed]
        if fault.leader not in fault.victims or not after:
            return None
        written = [
            each
            for each in evidence.history.records()
            if after[0] < each.at < fault.healed + AFTER and each.term
        ]
        return float(sum(each.term.number != each.current_term for each in written if each.term))

    def started_meanwhile(fault: Fault) -> float:
        """What was under way when they went is let finish."""
        return float(sum(fault.at + SETTLING < at < fault.healed for at in starts))

    starts = [
        happening.at
        for agent in evidence.agents
        for happening in machine(agent)[0].ground.history
        if happening.action == "start"
    ]
    return [
        Figure("leader killed: another leads", LEASE_TTL_S + 2, measured(["kill -9"], "leader", next_term)),
        Figure("leader paused: another leads", LEASE_TTL_S + 2, measured(["pause"], "leader", next_term)),
        Figure("leader told to end: another leads", 1, measured(["SIGTERM"], "leader", next_term)),
        Figure(
            "leader cut from etcd: another leads",
            LEASE_TTL_S + 2,
            measured(["cut from etcd", "deaf", "dumb"], "leader", next_term),
        ),
        Figure(
            "etcd's leader lost: longest time without a write",
            5,
            measured(["kill -9", "pause", "cut from peers", "deaf"], "etcd leader", longest_gap),
        ),
        Figure(
            "most of etcd lost: a write is refused",
            REFUSED_WITHIN,
            measured(["kill -9"], "most of etcd", refused_after),
        ),
        Figure("most of etcd back: first write", 10, measured(["kill -9"], "most of etcd", first_answer)),
        Figure("all servers back: first write", 10, measured(["kill -9"], "all servers", first_answer)),
        Figure(
            "leader paused: writes of its term accepted once it goes on",
            0,
            measured(["pause"], "leader", accepted_late),
            "writes",
        ),
        Figure(
            "all servers down: copies started meanwhile",
            0,
            measured(["kill -9"], "all servers", started_meanwhile),
            "starts",
        ),
        Figure("group of nodes cut off: the last of them is not ready", NOT_READY, _not_ready(evidence)),
        Figure(
            "half of the nodes cut off: given up each second",
            TIMEOUTS.nodes.evictions_per_second,
            _given_up(evidence),
            "nodes",
        ),
    ]


def left_out(evidence: Evidence, seconds: float, only: str, found: Sequence[Figure]) -> list[str]:
    """How long it was calm, and what a run of this length and these faults has not shown."""
    last = max((fault.healed for fault in evidence.faults), default=0.0)
    lines = [
        f"the last {evidence.ended - last:.0f} s were without a fault"
        if evidence.faults
        else "no fault struck: nothing was put to the test"
    ]
    if (calm := seconds - disturbed(seconds)) < CALM:
        lines.append(
            f"too short for the whole calm: {calm:g} s were planned for it, not {CALM:g}; --seconds {2 * CALM:g} is enough"
        )
    struck = {fault.name for fault in evidence.faults}
    if missing := [kind.title for kind in chosen(only) if kind.title not in struck]:
        lines.append(
            f"{len(missing)} of {len(chosen(only))} sorts of fault did not strike: {'; '.join(missing)}"
        )
    if unseen := [figure.what for figure in found if not figure.seen]:
        lines.append(f"{len(unseen)} of {len(found)} recoveries were not seen: {'; '.join(unseen)}")
    return lines


def _not_ready(evidence: Evidence) -> list[float]:
    """From the cut to the store's word, where nothing befell the control plane meanwhile."""
    found = []
    lost = _losses(evidence)
    for fault in evidence.faults:
        if (fault.strike.kind.name, fault.strike.kind.target) != ("cut", "group") or not is_alone(
            fault, evidence.faults, 0
        ):
            continue
        names = [agent.name for agent in evidence.agents if agent.part in fault.victims]
        lasted = fault.healed - fault.at
        after = [
            min((at - fault.at for at in lost.get(name, []) if fault.at < at < fault.healed), default=lasted)
            for name in names
        ]
        if after and lasted > NOT_READY:
            found.append(max(after))
    return found


def _given_up(evidence: Evidence) -> list[float]:
    """Nodes from which something was taken while half of all were silent, by the second from the first of them to the last."""
    taken = _takings(evidence)
    found = []
    for fault in evidence.faults:
        if (fault.strike.kind.name, fault.strike.kind.target) == ("cut", "half of the groups"):
            firsts = sorted(
                min(times)
                for times in ([at for at in each if fault.at < at < fault.healed] for each in taken.values())
                if times
            )
            found.append((len(firsts) - 1) / (firsts[-1] - firsts[0]) if len(firsts) > 1 else 0.0)
    return found


def _takings(evidence: Evidence) -> dict[str, list[float]]:
    """By node: when something was taken from it that was to run on, while it was not ready."""
    snap = StateSnapshot()
    found: dict[str, list[float]] = {}
    for record in evidence.history.records():
        moves = snap.changes_in(record)
        for move in moves:
            if (
                not isinstance(move.old, LatticeWorkload)
                or not node_of(move.old)
                or move.new is None
                or node_of(move.new)
            ):
                continue
            node = snap.nodes.get(f"/{node_of(move.old)}")
            if node is not None and not _is_ready(node):
                found.setdefault(node.metadata.name, []).append(record.at)
        snap.apply(moves, record.at)
    return found


def _losses(evidence: Evidence) -> dict[str, list[float]]:
    """By node: when it was said to be not ready."""
    snap = StateSnapshot()
    found: dict[str, list[float]] = {}
    for record in evidence.history.records():
        moves = snap.changes_in(record)
        for move in moves:
            if (
                isinstance(move.old, LatticeNode)
                and isinstance(move.new, LatticeNode)
                and _is_ready(move.old)
                and not _is_ready(move.new)
            ):
                found.setdefault(move.key.name, []).append(record.at)
        snap.apply(moves, record.at)
    return found


def _is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
