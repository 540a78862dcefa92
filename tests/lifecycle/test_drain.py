"""Tests of drains and NoExecute taints: which workloads leave the node now, and which wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.constraints import Taint, Toleration
from lattice.lifecycle.disruption import ServiceAvailability
from lattice.lifecycle.drain import (
    NodeEviction,
    NodeWorkload,
    drained_condition,
    max_toleration_seconds,
    plan_drain,
    taint_evictions,
)

DOWN = Taint(key="maintenance", effect="NoExecute")
SLOW = Taint(key="disk", value="slow", effect="NoExecute")
SOFT = Taint(key="busy", effect="NoSchedule")


def tolerates(taint: Taint, seconds: int | None = None) -> Toleration:
    return Toleration(key=taint.key, operator="Exists", toleration_seconds=seconds)


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        pytest.param([], 0.0, id="not tolerated: at once"),
        pytest.param([tolerates(DOWN)], None, id="tolerated for ever"),
        pytest.param([tolerates(DOWN, 60)], 60.0, id="tolerated for a time"),
        pytest.param(
            [tolerates(DOWN, 60), tolerates(DOWN, 300)], 300.0, id="the most patient toleration counts"
        ),
        pytest.param([tolerates(DOWN, 60), tolerates(DOWN)], None, id="for ever is the most patient"),
        pytest.param([tolerates(SLOW)], 0.0, id="another taint is tolerated, not this"),
    ],
)
def test_max_toleration_seconds(tolerations: list[Toleration], seconds: float | None) -> None:
    assert max_toleration_seconds(tolerations, DOWN) == seconds


def test_taint_evictions() -> None:
    residents = [
        NodeWorkload("patient", tolerations=(tolerates(DOWN, 60), tolerates(SLOW))),
        NodeWorkload("stays", tolerations=(tolerates(DOWN), tolerates(SLOW))),
        NodeWorkload("leaves", tolerations=(tolerates(DOWN),)),
        NodeWorkload("overdue", tolerations=(tolerates(DOWN, 20), tolerates(SLOW, 500))),
    ]
    assert taint_evictions(residents, {DOWN: 25.0, SLOW: 5.0, SOFT: 900.0}) == [
        NodeEviction("leaves", "no toleration covers taint disk=slow:NoExecute now"),
        NodeEviction("overdue", "no toleration covers taint maintenance:NoExecute now"),
        NodeEviction("patient", "no toleration covers taint maintenance:NoExecute now", 35.0),
    ]
    assert taint_evictions(residents, {SOFT: 5.0}) == []


def test_drain_evicts_lowest_priority_within_availability() -> None:
    residents = [
        NodeWorkload("web-0", "web"),
        NodeWorkload("web-1", "web"),
        NodeWorkload("db-0", "db", priority=10),
        NodeWorkload("batch", priority=-5),
        NodeWorkload("cache-0", "cache", is_available=False),
    ]
    services = {
        "web": ServiceAvailability(available=3, min_available=2),
        "db": ServiceAvailability(1, 1),
        "cache": ServiceAvailability(2, 2),
    }
    found = plan_drain(residents, services)
    assert [each.name for each in found.evictions] == ["cache-0", "batch", "web-0"]
    assert found.blocked == {
        "web-1": "1 replica of service web already being evicted",
        "db-0": "a replacement replica must start first: service db has 1 available and needs 1",
    }
    assert found.surge_services == ("db",)
    assert not found.is_done


def test_drain_proceeds_as_surge_replicas_become_ready() -> None:
    held = plan_drain([NodeWorkload("web-0", "web")], {"web": ServiceAvailability(1, 1)})
    assert (held.evictions, held.surge_services) == ((), ("web",))
    goes = plan_drain([NodeWorkload("web-0", "web")], {"web": ServiceAvailability(2, 1)})
    assert [each.name for each in goes.evictions] == ["web-0"]
    waits = plan_drain(
        [NodeWorkload("web-0", "web", is_evicting=True)], {"web": ServiceAvailability(1, 1, evicting=1)}
    )
    assert (waits.evictions, waits.blocked, waits.is_done) == (
        (),
        {"web-0": "the workload is being stopped"},
        False,
    )
    assert plan_drain([], {"web": ServiceAvailability(1, 1)}).is_done


crowd = st.lists(
    st.builds(
        NodeWorkload,
        name=st.uuids().map(str),
        service=st.sampled_from(["", "a", "b"]),
        priority=st.integers(-2, 2),
        is_available=st.booleans(),
        is_evicting=st.booleans(),
    ),
    max_size=8,
)


@given(crowd, st.integers(0, 5), st.integers(0, 5), st.integers(1, 3))
def test_drain_never_goes_below_min_available(
    residents: list[NodeWorkload], elsewhere: int, least: int, most: int
) -> None:
    services = {
        name: ServiceAvailability(
            available=elsewhere
            + sum(each.service == name and each.is_available and not each.is_evicting for each in residents),
            min_available=least,
            evicting=sum(each.service == name and each.is_evicting for each in residents),
        )
        for name in "ab"
    }
    found = plan_drain(residents, services, most)
    by_name = {each.name: each for each in residents}
    gone = [by_name[each.name] for each in found.evictions]
    for name, standing in services.items():
        healthy = sum(each.service == name and each.is_available for each in gone)
        assert healthy == 0 or standing.available - healthy >= standing.min_available
        assert healthy == 0 or standing.evicting + healthy <= most
    assert {*found.blocked, *(each.name for each in gone)} == set(by_name)
    assert found.is_done == (not residents)


def test_drain_waits_for_rollout_and_requests_no_surge() -> None:
    found = plan_drain(
        [NodeWorkload("web-0", "web"), NodeWorkload("alone")],
        {"web": ServiceAvailability(3, 2, is_changing=True)},
    )
    assert [each.name for each in found.evictions] == ["alone"]
    assert found.blocked == {"web-0": "waiting until service web has finished replacing or removing replicas"}
    assert drained_condition(found, 2).reason == "Leaving"


def test_drain_names_what_blocks_the_update_that_it_waits_for() -> None:
    paused = "Update to revision abc is paused: COMMAND_NOT_FOUND"
    found = plan_drain(
        [NodeWorkload("web-0", "web")],
        {"web": ServiceAvailability(3, 2, is_changing=True, change_blocker=paused)},
    )
    condition = drained_condition(found, 1)
    assert condition.reason == "UpdateBlocked"
    assert condition.message.endswith(paused)
    assert found.surge_services == ()
