"""Settings become the timeouts of the controllers."""

import pytest

from lattice.controllers.controller_set import concurrency, grace_periods, node_timeouts
from lattice.errors import Invalid
from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.workload import GracePeriods
from lattice.settings import Settings


def test_defaults_match_the_rules() -> None:
    assert node_timeouts(Settings()) == NodeTimeouts()
    assert grace_periods(Settings()) == GracePeriods()


def test_every_timeout_can_be_set() -> None:
    settings = Settings(
        heartbeat=1, node_lost_after=4, replace_after=12, evictions_per_second=2, retry_first=0.5, retry_longest=3, retry_attempts=2, retry_reset=6, retry_service_longest=7,
        missing_grace=1.5, start_grace=9, stop_grace=6, reconcile_workers=3,
    )  # fmt: skip
    times, waits = node_timeouts(settings), grace_periods(settings)
    assert (
        times.heartbeat_interval,
        times.not_ready_after,
        times.replace_after,
        times.eviction_interval,
    ) == (1, 4, 12, 0.5)
    assert (waits.missing, waits.start, waits.stop) == (1.5, 9, 6)
    assert (
        waits.retry.initial_backoff,
        waits.retry.max_backoff,
        waits.retry.max_attempts,
        waits.retry.reset_after,
        waits.retry.service_max_backoff,
    ) == (0.5, 3, 2, 6, 7)
    assert concurrency(settings).workers == 3


@pytest.mark.parametrize(("beat", "lost", "replaced"), [(0, 40, 120), (50, 40, 120), (10, 40, 40)])
def test_invalid_timeouts_are_refused(beat: float, lost: float, replaced: float) -> None:
    with pytest.raises(Invalid, match="each must be longer than the previous duration"):
        node_timeouts(Settings(heartbeat=beat, node_lost_after=lost, replace_after=replaced))
