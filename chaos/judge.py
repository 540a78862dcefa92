"""The simulator's checker on what real processes did, and what only they can show: who recovers how soon."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

AROUND = 6  # revisions on either side that are shown
QUIET = 60.0  # seconds at the end in which nothing may be written
FLAP = 8.0  # seconds after a wall clock was set in which nobody may be deposed by it
STEADY = {"leases.coordination.k8s.io", "events"}  # written while nothing happens
LATE = Counter(
    {str(SPENT): 1}
)  # what was spent before the rest began is written down up to a minute later, once


class RealChecker(Checker):
    """Left out is what a record of etcd does not hold: leaders' copies, rejected writes, machines made by a provider,
    and what agents were told and tried."""

    heard_within = 30.0  # seconds in which our watchers hear of what was done
    faults: Sequence[Fault] = ()
    terms: Sequence[tuple[float, int]] = ()

    def elections(self) -> Findings:
        """I-10: a wall clock that was set wrong deposes nobody."""
        for fault in self.faults:
            if (
                fault.strike.kind.name != "clock"
                or fault.lane != "servers"
                or not is_alone(fault, self.faults, FLAP)
            ):
                continue
            when = [at for at, _ in self.terms if fault.at < at < fault.healed + FLAP]
            if when:
                yield (
                    "I-10",
                    f"a new term began {when[0] - fault.at:.1f} s after the wall clock of {', '.join(fault.victims)} was set",
                )

    def copies(self) -> Findings:
        return iter(())

    def agents(self) -> Findings:
        return iter(())

    def rejections(self) -> Findings:
        return iter(())


def is_alone(fault: Fault, faults: Sequence[Fault], around: float) -> bool:
    """Whether nothing else befell servers or etcd so long before it and after."""
    begins, ends = fault.at - around, fault.healed + around
    others = [each for each in faults if each is not fault and each.lane != "nodes"]
    return not any(each.at < ends and each.healed > begins for each in others)


@dataclass
class Evidence:
    """Everything that was recorded."""

    history: History
    crowd: Crowd
    agents: Sequence[Agent]
    faults: Sequence[Fault]
    ended: float  # when the last look was taken


def judge(evidence: Evidence) -> tuple[list[Violation], list[CommitRecord]]:
    machines, heard = {}, []
    for agent in evidence.agents:
        machines[agent.name], beats = machine(agent)
        heard += beats
    records = evidence.history.records()
    checker = RealChecker(cast("Run", run_of(evidence, machines, heard, records)))
    checker.faults, checker.terms = evidence.faults, evidence.history.terms
    found = checker.check()
    found += [Violation("I-06", words, evidence.ended) for words in evidence.history.troubles]
    return found + list(unquiet(records, evidence.ended)), records


def run_of(
    evidence: Evidence, machines: dict[str, Any], heard: list[tuple[float, str]], records: list[CommitRecord]
) -> SimpleNamespace:
    """What was recorded, in the form that the simulator's checker reads."""
    world = SimpleNamespace(
        store=SimpleNamespace(history=records, elections=[]),
        told=evidence.crowd.told,
        heard=heard,
        greeted=[],
        hosts=[],
        machines=machines,
        gone=[],
        loop=SimpleNamespace(time=lambda: evidence.ended, errors=[]),
        cloud=SimpleNamespace(
            standing=lambda at: [], was_lost=lambda node, at: False
        ),  # machines are there all the time
    )
    return SimpleNamespace(
        world=world, trouble="", swarm=SimpleNamespace(kinds=(), shape=SimpleNamespace(binding="optimistic"))
    )


def written_lately(records: Sequence[CommitRecord], ended: float) -> Counter[str]:
    late = [change for record in records if record.at > ended - QUIET for change in record.changes]
    return Counter(str(change.key) for change in late if change.key.resource not in STEADY) - LATE


def unquiet(records: Sequence[CommitRecord], ended: float) -> list[Violation]:
    """I-33: when everything is as it should be, nobody writes."""
    written = written_lately(records, ended)
    words = ", ".join(f"{key} x{count}" for key, count in written.most_common(4))
    return [Violation("I-33", f"written in the last {QUIET:g} s: {words}", ended)] if written else []


def _told(
    around: Sequence[CommitRecord], records: Sequence[CommitRecord]
) -> Iterator[tuple[CommitRecord, str]]:
    """Each with what it changed: etcd's record does not hold what was there before, the revisions before it do."""
    wanted, now = {record.revision for record in around}, dict[Key, bytes | None]()
    for record in records:
        if record.revision in wanted:
            yield (
                record,
                ", ".join(
                    f"{each.key} ({describe_change(now.get(each.key), each.value)})"
                    for each in record.changes
                ),
            )
        now |= {each.key: each.value for each in record.changes}


def stretch(
    violation: Violation, records: Sequence[CommitRecord], faults: Sequence[Fault], began: float
) -> list[str]:
    """The shortest telling part of the history: what was written around it, or to whom it names, and what was broken then."""
    if violation.revision:
        around = [record for record in records if abs(record.revision - violation.revision) <= AROUND]
    else:
        named = set(re.findall(r"[\w.-]+(?:/[\w.-]+)+", violation.message))
        around = [
            record
            for record in records
            if named & {name for each in record.changes for name in (each.key.path, str(each.key))}
        ]
    around = around[-2 * AROUND - 1 :]
    lines = [
        f"  {each.at - began:8.2f} s  revision {each.revision}: {words}"
        for each, words in _told(around, records)
    ]
    first, last = (around[0].at, around[-1].at) if around else (violation.at, violation.at)
    broken = [fault for fault in faults if fault.at < last and (not fault.healed or fault.healed > first)]
    words = [
        f"  {each.at - began:8.2f} s  {each.name}: {', '.join(each.victims)}, until {each.healed - began:.2f} s"
        for each in broken
    ]
    return lines + words[-2 * AROUND :]
