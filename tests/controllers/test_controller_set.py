"""Settings choose the controllers and become their timeouts."""

import pytest
from build.control_plane import ControlPlane

from lattice.controllers.controller_set import (
    ControllerDependencies,
    ControllerSet,
    concurrency,
    enabled_controllers,
    grace_periods,
    node_timeouts,
)
from lattice.controllers.garbage.collector import GarbageCollector
from lattice.errors import Invalid
from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.workload import GracePeriods
from lattice.placement.feed.placement_input import PricingTables
from lattice.settings import CONTROLLER_NAMES, Settings


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


@pytest.mark.parametrize("words", ["*", "garbage", "*,-nodes", "nodes, replicas", ""])
def test_controllers_can_be_chosen_by_name(words: str) -> None:
    assert enabled_controllers(Settings(controllers=words)) == words


@pytest.mark.parametrize("words", ["nope", "*,-nope", "garbage,schedulin", "-*"])
def test_unknown_controller_is_refused_with_the_list_of_names(words: str) -> None:
    with pytest.raises(Invalid, match="there is no controller") as raised:
        enabled_controllers(Settings(controllers=words))
    assert all(name in raised.value.fix for name in CONTROLLER_NAMES)


def test_misspelt_controller_gets_a_suggestion() -> None:
    with pytest.raises(Invalid, match="did you mean scheduling"):
        enabled_controllers(Settings(controllers="schedulin"))


async def test_names_of_controllers_are_complete() -> None:
    plane = ControlPlane()
    dependencies = ControllerDependencies(
        mint_token=None,  # type: ignore[arg-type]
        pricing_tables=PricingTables,
        webhook_client=None,  # type: ignore[arg-type]
    )
    controllers = ControllerSet(await plane.new_term(), dependencies)
    running = {loop.controller.name for loop in controllers.loops} | {GarbageCollector.name}
    # A controller that is missing in the list could not be chosen, and the help would not name it.
    assert sorted(running) == list(CONTROLLER_NAMES)
