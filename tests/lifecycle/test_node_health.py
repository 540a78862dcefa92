"""Tests of usage reports: a change of a node's usage is stored only if it is significant."""

import pytest

from lattice.kinds.node import NodeUsage
from lattice.lifecycle.node_health import is_usage_change_significant

ROOM = {"cpu": 1000, "memory": 1000, "storage": 1000}


def used(cpu: int, memory: int = 500, disk: int = 500) -> NodeUsage:
    return NodeUsage(cpu=cpu, memory=memory, disk=disk)


@pytest.mark.parametrize(
    ("before", "now", "age", "news"),
    [
        pytest.param(None, used(0), 0, True, id="the first"),
        pytest.param(used(100), used(290), 1e6, False, id="a machine breathes"),
        pytest.param(used(100), used(301), 60, True, id="much more"),
        pytest.param(used(301), used(100), 60, True, id="much less"),
        pytest.param(used(100), used(900), 59, False, id="not more than once a minute"),
        pytest.param(used(100), used(100, memory=900), 60, True, id="memory"),
        pytest.param(used(100), used(100, disk=900), 60, True, id="disk"),
    ],
)
def test_usage_change_significance(before: NodeUsage | None, now: NodeUsage, age: float, news: bool) -> None:
    assert is_usage_change_significant(before, now, ROOM, age) == news


def test_usage_change_without_capacity_is_relative() -> None:
    assert not is_usage_change_significant(used(100), used(119), {}, 60)
    assert is_usage_change_significant(used(100), used(130), {}, 60)
