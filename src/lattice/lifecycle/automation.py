"""When does an automation rule act? Once for each object that crosses its mark; again only after the object was back below it.

Pure: what was measured comes in, what has crossed goes out. Which objects are beyond the mark already is remembered in the rule's
status, so that another server does not act on the same crossing once more.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.kinds.automation import AutomationRule

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """One object and how far it is: millionths of what it has, or a count. `since`: how many seconds it has been beyond the mark."""

    object: str  # kind/name, kind/namespace/name
    amount: int
    message: str  # what is the case, for people
    seconds_beyond: float = float("inf")


@dataclass(frozen=True, slots=True)
class Firing:
    object: str
    message: str


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """Which to act on now, which are beyond the mark after that, which are left alone until when, and when time alone could change it."""

    firings: tuple[Firing, ...]
    crossed: Mapping[str, str]
    cooling_down: Mapping[str, str]
    requeue_after: float | None = None  # in seconds


def threshold(rule: AutomationRule) -> tuple[int, float]:
    """How much is too much, in millionths or as a count, and for how many seconds it must be."""
    when = rule.spec.when
    if when.node_cpu:
        return when.node_cpu.above_millionths + 1, when.node_cpu.for_ms / 1000
    if when.workload_failures:
        return when.workload_failures.count, 0.0
    if when.budget:
        return when.budget.above_millionths, 0.0
    return (when.capacity.above_millionths if when.capacity else MILLION), 0.0


def evaluate_rule(
    rule: AutomationRule,
    measures: Iterable[Measurement],
    now: datetime,
    written: str,
    unmeasured: Container[str] = (),
) -> RuleDecision:
    """`written` is the present time as status has it; `unmeasured` is what is there though nobody can say how far: what was known of
    it stands."""
    least, lasting = threshold(rule)
    cooldown = timedelta(milliseconds=rule.spec.cooldown_ms)
    crossed = {name: since for name, since in rule.status.crossed.items() if name in unmeasured}
    quiet = {
        name: last for name, last in rule.status.quiet.items() if _cooldown_left(last, cooldown, now) > 0
    }
    fire: list[Firing] = []
    waits: list[float] = []
    for each in sorted(measures, key=lambda measure: measure.object):
        if each.amount < least:
            continue
        if (known := rule.status.crossed.get(each.object)) is not None:
            crossed[each.object] = known
        elif each.seconds_beyond < lasting:
            waits.append(lasting - each.seconds_beyond)
        elif each.object in quiet:
            waits.append(_cooldown_left(quiet[each.object], cooldown, now))
        else:
            crossed[each.object] = written
            fire.append(Firing(each.object, each.message))
    if rule.spec.suspend:
        return RuleDecision((), crossed, quiet, min(waits, default=None))
    if cooldown:
        quiet |= {each.object: written for each in fire}
    return RuleDecision(tuple(fire), crossed, quiet, min(waits, default=None))


def _cooldown_left(last: str, cooldown: timedelta, now: datetime) -> float:
    """Seconds of the quiet time after it acted."""
    return (datetime.fromisoformat(last) + cooldown - now).total_seconds()


def split_decision(verdict: RuleDecision, most: int) -> list[RuleDecision]:
    """So many firings at a time, each with as much of what is remembered as belongs to it and to those before it."""
    fires = [verdict.firings[index : index + most] for index in range(0, len(verdict.firings), most)] or [()]
    later = {each.object for each in verdict.firings}
    found = []
    for fire in fires:
        later -= {each.object for each in fire}
        crossed = {name: since for name, since in verdict.crossed.items() if name not in later}
        quiet = {name: last for name, last in verdict.cooling_down.items() if name not in later}
        found.append(RuleDecision(fire, crossed, quiet, verdict.requeue_after))
    return found
