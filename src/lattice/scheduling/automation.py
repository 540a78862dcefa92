"""When does an automation rule act? Once for each object that crosses its mark; again only after the object was back below it.

Pure: what was measured comes in, what has crossed goes out. Which objects are beyond the mark already is remembered in the rule's
status, so that another server does not act on the same crossing once more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.kinds.automation import AutomationRule

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Measure:
    """One object and how far it is: millionths of what it has, or a count. `since`: how many seconds it has been beyond the mark."""

    object: str  # kind/name, kind/namespace/name
    amount: int
    words: str  # what is the case, for people
    since: float = float("inf")


@dataclass(frozen=True, slots=True)
class Firing:
    object: str
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which to act on now, which are beyond the mark after that, and in how many seconds time alone could change it."""

    fire: tuple[Firing, ...]
    crossed: Mapping[str, str]
    again: float | None = None


def mark(rule: AutomationRule) -> tuple[int, float]:
    """How much is too much, in millionths or as a count, and for how many seconds it must be."""
    when = rule.spec.when
    if when.node_cpu:
        return when.node_cpu.above_millionths + 1, when.node_cpu.for_ms / 1000
    if when.workload_failures:
        return when.workload_failures.count, 0.0
    if when.budget:
        return when.budget.above_millionths, 0.0
    return (when.capacity.above_millionths if when.capacity else MILLION), 0.0


def judge(rule: AutomationRule, measures: Iterable[Measure], now: datetime, written: str) -> Verdict:
    """`written` is the present time as status has it."""
    least, lasting = mark(rule)
    cooldown = timedelta(milliseconds=rule.spec.cooldown_ms)
    crossed: dict[str, str] = {}
    fire: list[Firing] = []
    waits: list[float] = []
    for each in sorted(measures, key=lambda measure: measure.object):
        if each.amount < least:
            continue
        if (known := rule.status.crossed.get(each.object)) is not None:
            crossed[each.object] = known
        elif each.since < lasting:
            waits.append(lasting - each.since)
        elif (left := _quiet(rule, each.object, cooldown, now)) > 0:
            waits.append(left)
        else:
            crossed[each.object] = written
            fire.append(Firing(each.object, each.words))
    return Verdict(() if rule.spec.suspend else tuple(fire), crossed, min(waits, default=None))


def _quiet(rule: AutomationRule, name: str, cooldown: timedelta, now: datetime) -> float:
    """Seconds left of the quiet time after it acted on this object."""
    last = rule.status.last_fired
    if not cooldown or last is None or rule.status.last_object != name:
        return 0.0
    return (datetime.fromisoformat(last) + cooldown - now).total_seconds()
