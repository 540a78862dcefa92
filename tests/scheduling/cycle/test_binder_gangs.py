"""Tests of `bind_gang`: a gang is bound whole or not at all, whatever fails."""

import pytest
from build.binding_store import SchedulerInstance, interleave, scheduler_instance
from build.small_clusters import nodes_by_workload

from lattice.scheduling.cycle.binder import BindingMode
from lattice.scheduling.cycle.reservations import Reservation


@pytest.mark.parametrize(
    ("least", "outcomes"),
    [
        pytest.param(2, ["bound", "bound", "failed"], id="enough of them: those that can are bound"),
        pytest.param(3, ["failed", "failed", "failed"], id="too few: none leaves a trace"),
    ],
)
async def test_gang_is_bound_all_or_nothing(least: int, outcomes: list[str]) -> None:
    one = scheduler_instance(BindingMode.OPTIMISTIC, 1000, 1000, 1000)
    one.store.revisions["n2"] = 5
    reservations = [one.reserve(f"w{row}", 300, row) for row in range(3)]
    events = await one.binder.bind_gang(reservations, least)
    assert [event.outcome for event in events] == outcomes
    assert one.events == events
    assert len(one.store.bound) == outcomes.count("bound") == len(nodes_by_workload(one.reservations.table))
    assert not one.store.prepared
    if least == 3:
        assert events[0].reason == "only 2 members of the group could be bound, at least 3 are needed"


def gang_of(one: SchedulerInstance, size: int) -> list[Reservation]:
    return [one.reserve(f"w{row}", 300, row) for row in range(size)]


@pytest.mark.parametrize("least", [1, 2, 3])
async def test_gang_with_unanswered_commit_is_bound_whole(least: int) -> None:
    one = scheduler_instance(BindingMode.TWO_PHASE, 1000, 1000, 1000)
    one.store.fails = {"after commit_all"}
    events = await one.binder.bind_gang(gang_of(one, 3), least)
    assert [event.outcome for event in events] == ["bound"] * 3
    assert (len(one.store.bound), len(nodes_by_workload(one.reservations.table)), len(one.reservations)) == (
        3,
        3,
        0,
    )


@pytest.mark.parametrize("least", [1, 2, 3])
async def test_gang_with_failed_commit_is_not_bound(least: int) -> None:
    one = scheduler_instance(BindingMode.TWO_PHASE, 1000, 1000, 1000)
    one.store.fails = {"commit_all"}
    events = await one.binder.bind_gang(gang_of(one, 3), least)
    assert [event.outcome for event in events] == ["failed"] * 3
    assert all("store is away" in event.reason and event.is_retriable for event in events)
    assert (one.store.bound, one.store.prepared, nodes_by_workload(one.reservations.table)) == ({}, {}, {})


@pytest.mark.parametrize("step", ["commit_all", "after commit_all"])
async def test_gang_is_whole_in_store_when_abort_fails(step: str) -> None:
    one = scheduler_instance(BindingMode.TWO_PHASE, 1000, 1000, 1000)
    one.store.fails = {step, "abort_all"}
    events = await one.binder.bind_gang(gang_of(one, 3), 3)
    assert [event.outcome for event in events] == ["failed"] * 3
    assert len(one.store.bound) in (0, 3)
    assert len(nodes_by_workload(one.reservations.table)) == 3, "the room stays held until it expires"


@pytest.mark.parametrize(
    ("least", "outcomes"),
    [
        pytest.param(2, ["bound", "failed", "bound"], id="enough are left: these are bound"),
        pytest.param(3, ["failed", "failed", "failed"], id="too few are left: none is bound"),
    ],
)
@pytest.mark.parametrize(
    ("lost", "when"),
    [
        pytest.param("record", 2, id="its record, before all are prepared"),
        pytest.param("record", 3, id="its record, once they are"),
        pytest.param("reservation", 2, id="its reservation"),
        pytest.param("node", 2, id="its node"),
    ],
)
def test_gang_member_lost_during_bind(lost: str, when: int, least: int, outcomes: list[str]) -> None:
    one = scheduler_instance(BindingMode.TWO_PHASE, 1000, 1000, 1000)
    gang = gang_of(one, 3)
    step = one.binder.bind_gang(gang, least)
    while len(one.store.prepared) < when:
        step.send(None)
    if lost == "record":
        one.store._take(one.store.prepared.pop(gang[1].id), -1)
    elif lost == "reservation":
        one.reservations.release(gang[1].id)
    else:
        one.reservations.table.remove_node("n1")
    events = interleave({"a": step}, lambda: "a")["a"]
    assert [event.outcome for event in events] == outcomes
    assert len(one.store.bound) == outcomes.count("bound") == len(nodes_by_workload(one.reservations.table))
    assert not one.store.prepared
    assert [left["cpu"] for left in one.store.free.values()] == [
        1000 - 300 * (outcome == "bound") for outcome in outcomes
    ]


async def test_duplicate_reservation_in_gang_counts_once() -> None:
    one = scheduler_instance(BindingMode.TWO_PHASE, 1000)
    reservation = one.reserve("w", 300)
    events = await one.binder.bind_gang([reservation, reservation], 1)
    assert [event.outcome for event in events] == ["bound", "failed"]
    assert events[1].reason == "reservation a-1 is already being bound"
    assert one.store.free["n0"]["cpu"] == 700
    other = one.reserve("v", 300)
    assert [event.outcome for event in await one.binder.bind_gang([other, other], 2)] == ["failed", "failed"]
    assert (list(one.store.bound), one.store.prepared) == (["a-1"], {})
