"""Settings become the times of the rules."""

import pytest

from lattice.controllers.times import graces, node_times, pace
from lattice.errors import Invalid
from lattice.lifecycle.workload import Graces
from lattice.lifecycle.node_health import NodeTimes
from lattice.settings import Settings


def test_what_is_not_set_is_as_the_rules_have_it() -> None:
    assert node_times(Settings()) == NodeTimes()
    assert graces(Settings()) == Graces()


def test_everything_can_be_set() -> None:
    settings = Settings(
        heartbeat=1, node_lost_after=4, replace_after=12, evictions_per_second=2, retry_first=0.5, retry_longest=3, retry_attempts=2,
        missing_grace=1.5, start_grace=9, stop_grace=6, reconcile_workers=3,
    )  # fmt: skip
    times, waits = node_times(settings), graces(settings)
    assert (times.heartbeat, times.not_ready_after, times.replace_after, times.eviction_pause) == (
        1,
        4,
        12,
        0.5,
    )
    assert (waits.missing, waits.start, waits.stop) == (1.5, 9, 6)
    assert (waits.retry.first, waits.retry.longest, waits.retry.attempts, waits.retry.steady) == (
        0.5,
        3,
        2,
        6,
    )
    assert pace(settings).workers == 3


@pytest.mark.parametrize(("beat", "lost", "replaced"), [(0, 40, 120), (50, 40, 120), (10, 40, 40)])
def test_times_that_cannot_be_are_refused(beat: float, lost: float, replaced: float) -> None:
    with pytest.raises(Invalid, match="each must be longer than the one before"):
        node_times(Settings(heartbeat=beat, node_lost_after=lost, replace_after=replaced))
