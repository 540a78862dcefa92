"""Judges a chaos run with the simulator's checker, and checks invariants that only real processes show."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

from chaos.nemesis import Fault
from chaos.people import Crowd
from chaos.programs import Agent
from chaos.record import History, machine
from lattice.server.live.spend_recorder import SPENDING_KEY as SPENT
from lattice.sim.invariants.checker import Checker, Findings, Violation
from lattice.sim.invariants.history import describe_change
from lattice.sim.world.run import Run
from lattice.sim.world.store import CommitRecord
from lattice.store.protocol import Key

# Revisions shown before and after a violation.
CONTEXT_REVISIONS = 6
# Seconds at the end without writes (I-33).
QUIET_PERIOD_S = 60.0
# Seconds after a jump of a wall clock in which no leader may be deposed (I-10).
CLOCK_GRACE_S = 8.0
# Resources that are written in an idle installation.
STEADY_RESOURCES = {"leases.coordination.k8s.io", "events"}
# Spending before the quiet period is recorded up to a minute later, once.
ALLOWED_LATE_WRITES = Counter({str(SPENT): 1})


class RealChecker(Checker):
    """The checker without invariants that a record of etcd does not hold: caches, rejections, provider
    machines, agent assignments."""

    # Seconds by which the watchers may receive a write late.
    observation_delay_s = 30.0
    faults: Sequence[Fault] = ()
    terms: Sequence[tuple[float, int]] = ()

    def check_elections(self) -> Findings:
        """I-10: a jump of a wall clock deposes no leader."""
        for fault in self.faults:
            if (
                fault.strike.kind.name != "clock"
                or fault.lane != "servers"
                or not is_alone(fault, self.faults, CLOCK_GRACE_S)
            ):
                continue
            when = [at for at, _ in self.terms if fault.at < at < fault.healed + CLOCK_GRACE_S]
            if when:
                yield (
                    "I-10",
                    (
                        f"a new term began {when[0] - fault.at:.1f} s after the wall clock"
                        f" of {', '.join(fault.victims)} was set"
                    ),
                )

    def check_caches(self) -> Findings:
        return iter(())

    def check_book(self) -> Findings:
        # The machines of the run are made once and charged to no ledger of a pool of the fake cloud.
        return iter(())

    def check_agents(self) -> Findings:
        return iter(())

    def check_rejections(self) -> Findings:
        return iter(())


def is_alone(fault: Fault, faults: Sequence[Fault], around: float) -> bool:
    """Report whether no further fault struck servers or etcd within `around` seconds of the fault."""
    begins, ends = fault.at - around, fault.healed + around
    control_faults = [
        candidate for candidate in faults if candidate is not fault and candidate.lane != "nodes"
    ]
    return not any(candidate.at < ends and candidate.healed > begins for candidate in control_faults)


@dataclass
class Evidence:
    """The recorded data of a run."""

    history: History
    crowd: Crowd
    agents: Sequence[Agent]
    faults: Sequence[Fault]
    # Monotonic time of the last observation.
    ended: float


def judge(evidence: Evidence) -> tuple[list[Violation], list[CommitRecord]]:
    machines, heard = {}, []
    for agent in evidence.agents:
        machines[agent.name], beats = machine(agent)
        heard += beats
    records = evidence.history.records()
    checker = RealChecker(cast("Run", run_of(evidence, machines, heard, records)))
    checker.faults, checker.terms = evidence.faults, evidence.history.terms
    violations = checker.check()
    violations += [Violation("I-06", words, evidence.ended) for words in evidence.history.troubles]
    return violations + list(unquiet(records, evidence.ended)), records


def run_of(
    evidence: Evidence, machines: dict[str, Any], heard: list[tuple[float, str]], records: list[CommitRecord]
) -> SimpleNamespace:
    """The recorded data in the form of a simulated run."""
    world = SimpleNamespace(
        store=SimpleNamespace(history=records, elections=[]),
        operations=evidence.crowd.told,
        heartbeats=heard,
        other_messages=[],
        hosts=[],
        machines=machines,
        removed_machines=[],
        loop=SimpleNamespace(time=lambda: evidence.ended, unhandled_errors=[]),
        # No machine is created or removed during a run.
        cloud=SimpleNamespace(machine_counts=lambda at: [], was_lost=lambda node, at: False),
    )
    return SimpleNamespace(
        world=world,
        error="",
        fault_plan=SimpleNamespace(kinds=(), world_config=SimpleNamespace(binding="optimistic")),
    )


def written_lately(records: Sequence[CommitRecord], ended: float) -> Counter[str]:
    late = chain.from_iterable(record.changes for record in records if record.at > ended - QUIET_PERIOD_S)
    written = Counter(str(change.key) for change in late if change.key.resource not in STEADY_RESOURCES)
    return written - ALLOWED_LATE_WRITES


def unquiet(records: Sequence[CommitRecord], ended: float) -> list[Violation]:
    """I-33: no component writes during the quiet period."""
    written = written_lately(records, ended)
    words = ", ".join(f"{key} x{count}" for key, count in written.most_common(4))
    message = f"written in the last {QUIET_PERIOD_S:g} s: {words}"
    return [Violation("I-33", message, ended)] if written else []


def _described(
    selected: Sequence[CommitRecord], records: Sequence[CommitRecord]
) -> Iterator[tuple[CommitRecord, str]]:
    """Records with a description of their changes; the previous values come from earlier records, because
    etcd's events have none."""
    revisions, current = {record.revision for record in selected}, dict[Key, bytes | None]()
    for record in records:
        if record.revision in revisions:
            yield (
                record,
                ", ".join(
                    f"{change.key} ({describe_change(current.get(change.key), change.value)})"
                    for change in record.changes
                ),
            )
        current |= {change.key: change.value for change in record.changes}


def stretch(
    violation: Violation, records: Sequence[CommitRecord], faults: Sequence[Fault], began: float
) -> list[str]:
    """The part of the history that explains a violation: nearby commits, or commits of the named objects, and
    active faults."""
    if violation.revision:
        nearby = [
            record for record in records if abs(record.revision - violation.revision) <= CONTEXT_REVISIONS
        ]
    else:
        nearby = []
        named = set(re.findall(r"[\w.-]+(?:/[\w.-]+)+", violation.message))
        for record in records:
            paths = {change.key.path for change in record.changes}
            if named & (paths | {str(change.key) for change in record.changes}):
                nearby.append(record)
    nearby = nearby[-2 * CONTEXT_REVISIONS - 1 :]
    lines = [
        f"  {record.at - began:8.2f} s  revision {record.revision}: {words}"
        for record, words in _described(nearby, records)
    ]
    first, last = (nearby[0].at, nearby[-1].at) if nearby else (violation.at, violation.at)
    broken = [fault for fault in faults if fault.at < last and (not fault.healed or fault.healed > first)]
    words = [
        f"  {fault.at - began:8.2f} s  {fault.name}: {', '.join(fault.victims)},"
        f" until {fault.healed - began:.2f} s"
        for fault in broken
    ]
    return lines + words[-2 * CONTEXT_REVISIONS :]
