"""How long is too long, and how often is often enough? The settings, in the words of the rules that use them."""

from lattice.controllers.runtime.loop import Pace
from lattice.errors import Invalid
from lattice.lifecycle.workload import Graces
from lattice.lifecycle.node_health import NodeTimes
from lattice.lifecycle.retry import RetryRules
from lattice.settings import Settings


def node_times(settings: Settings) -> NodeTimes:
    beat, lost, replaced = settings.heartbeat, settings.node_lost_after, settings.replace_after
    if not 0 < beat < lost < replaced:
        raise Invalid(
            f"heartbeat {beat:g} s, node-lost-after {lost:g} s, replace-after {replaced:g} s: each must be longer than the one before",
            where="--heartbeat",
            fix="keep their proportions when you change them: 10, 40, 120",
        )
    return NodeTimes(beat, lost, replaced, evictions_per_second=settings.evictions_per_second)


def graces(settings: Settings) -> Graces:
    retry = RetryRules(
        settings.retry_first, settings.retry_longest, settings.retry_attempts, 2 * settings.retry_longest
    )
    return Graces(settings.missing_grace, settings.start_grace, settings.stop_grace, retry)


def pace(settings: Settings) -> Pace:
    return Pace(workers=settings.reconcile_workers)
