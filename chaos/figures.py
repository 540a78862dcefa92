"""Recovery times by kind of fault, beside the required times."""

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

# Seconds around a fault without a further fault of the control plane: only such faults are measured.
ISOLATION_S = 3.0
NOT_READY_S = TIMEOUTS.nodes.not_ready_after * 1.5
REFUSED_WITHIN_S = 2.0
# Seconds in which agents finish accepted assignments.
SETTLING_S = 2.0
# Seconds after the healing in which the recovery is searched.
RECOVERY_WINDOW_S = 20.0


@dataclass
class Figure:
    """A row of the recovery table: required maximum and measured values."""

    what: str
    # Required maximum.
    aim: float
    seen: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def row(self) -> str:
        if not self.seen:
            return f"| {self.what} | {self.aim:g} {self.unit} | 0 | | | | not seen |"
        low, middle, high = min(self.seen), statistics.median(self.seen), max(self.seen)
        missed = sum(value > self.aim for value in self.seen)
        verdict = "met" if high <= self.aim else f"missed {missed} times"
        return (
            f"| {self.what} | {self.aim:g} {self.unit} | {len(self.seen)}"
            f" | {low:.2f} | {middle:.2f} | {high:.2f} | {verdict} |"
        )


def figures(evidence: Evidence) -> list[Figure]:
    faults = evidence.faults

    def measured(names: Sequence[str], target: str, measure: Callable[[Fault], float | None]) -> list[float]:
        matching = [
            fault
            for fault in faults
            if fault.strike.kind.name in names
            and fault.strike.kind.target == target
            and fault.lane != "nodes"
        ]
        values = [measure(fault) for fault in matching if is_alone(fault, faults, ISOLATION_S)]
        return [value for value in values if value is not None]

    def next_term(fault: Fault) -> float | None:
        elected = [
            at - fault.at
            for at, _ in evidence.history.terms
            if fault.at < at < fault.healed + RECOVERY_WINDOW_S
        ]
        if fault.leader not in fault.victims:
            return None
        # No new leader counts as the longest time.
        return elected[0] if elected else fault.healed + RECOVERY_WINDOW_S - fault.at

    def longest_gap(fault: Fault) -> float:
        last = max(
            (operation.finished_at for operation in evidence.crowd.told if operation.method == "PATCH"),
            default=fault.at,
        )
        # Silence up to the end counts, until the users stop.
        ends = max(fault.at, min(fault.healed + ISOLATION_S, last))
        times = evidence.crowd.acknowledged(fault.at, ends)
        return max(later - earlier for earlier, later in itertools.pairwise([fault.at, *times, ends]))

    def first_answer(fault: Fault) -> float | None:
        times = evidence.crowd.acknowledged(fault.healed, fault.healed + 3 * RECOVERY_WINDOW_S)
        return times[0] - fault.healed if times else 3 * RECOVERY_WINDOW_S

    def refused_after(fault: Fault) -> float | None:
        """The longest wait of a probe for a reply, of probes that were sent well inside the fault."""
        waits = [
            operation.finished_at - operation.started_at
            for operation in evidence.crowd.told
            if operation.client.startswith("probe")
            and fault.at + 0.1 < operation.started_at < fault.healed - REFUSED_WITHIN_S
        ]
        return max(waits) if waits else None

    def accepted_late(fault: Fault) -> float | None:
        """Writes of a paused leader that the store accepted in an ended term."""
        elected = [at for at, _ in evidence.history.terms if fault.at < at < fault.healed]
        if fault.leader not in fault.victims or not elected:
            return None
        written = [
            record
            for record in evidence.history.records()
            if elected[0] < record.at < fault.healed + RECOVERY_WINDOW_S and record.term
        ]
        return float(sum(record.term.number != record.current_term for record in written if record.term))

    def started_meanwhile(fault: Fault) -> float:
        """Starts during the fault, after agents had time to finish accepted assignments."""
        return float(sum(fault.at + SETTLING_S < at < fault.healed for at in starts))

    starts: list[float] = []
    for agent in evidence.agents:
        starts += (event.at for event in machine(agent)[0].ground.history if event.action == "start")
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
            REFUSED_WITHIN_S,
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
        Figure("group of nodes cut off: the last of them is not ready", NOT_READY_S, _not_ready(evidence)),
        Figure(
            "half of the nodes cut off: given up each second",
            TIMEOUTS.nodes.evictions_per_second,
            _eviction_rates(evidence),
            "nodes",
        ),
    ]


def left_out(evidence: Evidence, seconds: float, only: str, measured: Sequence[Figure]) -> list[str]:
    """Lines about the calm at the end, and about faults and recoveries that the run did not show."""
    last = max((fault.healed for fault in evidence.faults), default=0.0)
    lines = [
        f"the last {evidence.ended - last:.0f} s were without a fault"
        if evidence.faults
        else "no fault struck: nothing was put to the test"
    ]
    if (calm := seconds - disturbed(seconds)) < CALM:
        lines.append(
            f"too short for the whole calm: {calm:g} s were planned for it, not {CALM:g};"
            f" --seconds {2 * CALM:g} is enough"
        )
    struck = {fault.name for fault in evidence.faults}
    if missing := [kind.title for kind in chosen(only) if kind.title not in struck]:
        lines.append(
            f"{len(missing)} of {len(chosen(only))} sorts of fault did not strike: {'; '.join(missing)}"
        )
    if unseen := [figure.what for figure in measured if not figure.seen]:
        lines.append(f"{len(unseen)} of {len(measured)} recoveries were not seen: {'; '.join(unseen)}")
    return lines


def _not_ready(evidence: Evidence) -> list[float]:
    """Seconds from a cut of a group to the last NotReady condition, for cuts without a fault of the control
    plane."""
    values = []
    not_ready_times = _losses(evidence)
    for fault in evidence.faults:
        if (fault.strike.kind.name, fault.strike.kind.target) != ("cut", "group") or not is_alone(
            fault, evidence.faults, 0
        ):
            continue
        names = [agent.name for agent in evidence.agents if agent.part in fault.victims]
        duration = fault.healed - fault.at
        delays = [
            min(
                (at - fault.at for at in not_ready_times.get(name, []) if fault.at < at < fault.healed),
                default=duration,
            )
            for name in names
        ]
        if delays and duration > NOT_READY_S:
            values.append(max(delays))
    return values


def _eviction_rates(evidence: Evidence) -> list[float]:
    """Nodes per second from which workloads were evicted while half of the groups were silent."""
    evictions = _evictions(evidence)
    rates = []
    for fault in evidence.faults:
        if (fault.strike.kind.name, fault.strike.kind.target) != ("cut", "half of the groups"):
            continue
        firsts = []
        for node_times in evictions.values():
            times = [at for at in node_times if fault.at < at < fault.healed]
            if times:
                firsts.append(min(times))
        firsts.sort()
        rates.append((len(firsts) - 1) / (firsts[-1] - firsts[0]) if len(firsts) > 1 else 0.0)
    return rates


def _evictions(evidence: Evidence) -> dict[str, list[float]]:
    """Times at which a running workload was taken from a node that was not ready, by node."""
    snapshot = StateSnapshot()
    times: dict[str, list[float]] = {}
    for record in evidence.history.records():
        changes = snapshot.changes_in(record)
        for change in changes:
            if (
                not isinstance(change.old, LatticeWorkload)
                or not node_of(change.old)
                or change.new is None
                or node_of(change.new)
            ):
                continue
            node = snapshot.nodes.get(f"/{node_of(change.old)}")
            if node is not None and not _is_ready(node):
                times.setdefault(node.metadata.name, []).append(record.at)
        snapshot.apply(changes, record.at)
    return times


def _losses(evidence: Evidence) -> dict[str, list[float]]:
    """Times at which a node became not ready, by node."""
    snapshot = StateSnapshot()
    times: dict[str, list[float]] = {}
    for record in evidence.history.records():
        changes = snapshot.changes_in(record)
        for change in changes:
            if (
                isinstance(change.old, LatticeNode)
                and isinstance(change.new, LatticeNode)
                and _is_ready(change.old)
                and not _is_ready(change.new)
            ):
                times.setdefault(change.key.name, []).append(record.at)
        snapshot.apply(changes, record.at)
    return times


def _is_ready(node: LatticeNode) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions
    )
