"""Decide when an automation rule fires: once for every object that crosses the rule's threshold.

A rule fires again for the same object only after the object was below the threshold. The rule's status
records the objects beyond the threshold, so that a new leader does not fire again for the same crossing.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.kinds.automation import AutomationRule
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.kinds.meta.timestamps import parse_timestamp


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured amount of one object, in millionths of its capacity or as a count."""

    # kind/name or kind/namespace/name
    object: str
    amount: int
    # The measured state in words, for users.
    message: str
    # How long the object has been beyond the threshold.
    seconds_beyond: float = float("inf")


@dataclass(frozen=True, slots=True)
class Firing:
    """An object for which the rule's action runs now."""

    object: str
    message: str


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """The firings of a rule, and the rule's status after them.

    `crossed` holds the objects beyond the threshold with the timestamps of their crossings; `cooling_down`
    holds the objects in their cooldown with the timestamps of their last firings.
    """

    firings: tuple[Firing, ...]
    crossed: Mapping[str, str]
    cooling_down: Mapping[str, str]
    # Seconds until the passage of time alone can change the decision; None: only a new measurement can.
    requeue_after: float | None = None


def threshold(rule: AutomationRule) -> tuple[int, float]:
    """Return the smallest amount at which the rule fires, in millionths or as a count, and the seconds that
    the amount must last."""
    when = rule.spec.when
    if when.node_cpu:
        return when.node_cpu.above_millionths + 1, when.node_cpu.for_ms / 1000
    if when.workload_failures:
        return when.workload_failures.count, 0.0
    if when.budget:
        return when.budget.above_millionths, 0.0
    return (when.capacity.above_millionths if when.capacity else MILLIONTHS), 0.0


def evaluate_rule(
    rule: AutomationRule,
    measures: Iterable[Measurement],
    now: datetime,
    written: str,
    unmeasured: Container[str] = (),
) -> RuleDecision:
    """Decide which of the measured objects the rule fires for at the time `now`.

    `written` is `now` in the format of stored timestamps. `unmeasured` holds objects that exist without a
    measurement: a recorded crossing of such an object stays recorded. A suspended rule fires for no object,
    but records crossings.
    """
    minimum, required_seconds = threshold(rule)
    cooldown = timedelta(milliseconds=rule.spec.cooldown_ms)
    crossed = {name: since for name, since in rule.status.crossed.items() if name in unmeasured}
    recent = rule.status.quiet.items()
    cooling_down = {name: last for name, last in recent if _cooldown_left(last, cooldown, now) > 0}
    firings: list[Firing] = []
    waits: list[float] = []
    for measurement in sorted(measures, key=lambda measure: measure.object):
        if measurement.amount < minimum:
            continue
        if (crossed_at := rule.status.crossed.get(measurement.object)) is not None:
            crossed[measurement.object] = crossed_at
        elif measurement.seconds_beyond < required_seconds:
            waits.append(required_seconds - measurement.seconds_beyond)
        elif measurement.object in cooling_down:
            waits.append(_cooldown_left(cooling_down[measurement.object], cooldown, now))
        else:
            crossed[measurement.object] = written
            firings.append(Firing(measurement.object, measurement.message))
    if rule.spec.suspend:
        return RuleDecision((), crossed, cooling_down, min(waits, default=None))
    if cooldown:
        for firing in firings:
            cooling_down[firing.object] = written
    return RuleDecision(tuple(firings), crossed, cooling_down, min(waits, default=None))


def _cooldown_left(last: str, cooldown: timedelta, now: datetime) -> float:
    """Return the seconds until the cooldown ends; `last` is the timestamp of the last firing."""
    return (parse_timestamp(last) + cooldown - now).total_seconds()


def split_decision(decision: RuleDecision, most: int) -> list[RuleDecision]:
    """Split a decision into decisions with at most `most` firings.

    The status of a part covers the firings of that part and of all earlier parts. The controller can
    therefore commit the parts in order: a part that is not committed is decided again.
    """
    # A decision without firings still has a status to commit.
    starts = range(0, len(decision.firings) or 1, most)
    batches = [decision.firings[start : start + most] for start in starts]
    later = {firing.object for firing in decision.firings}
    parts = []
    for batch in batches:
        later -= {firing.object for firing in batch}
        crossed = {name: since for name, since in decision.crossed.items() if name not in later}
        cooling_down = {name: last for name, last in decision.cooling_down.items() if name not in later}
        parts.append(RuleDecision(batch, crossed, cooling_down, decision.requeue_after))
    return parts
