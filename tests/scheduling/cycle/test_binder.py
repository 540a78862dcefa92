"""Tests of the three binding modes: one event per attempt, no overcommit, and an idempotent rollback."""

import asyncio
from itertools import cycle
from typing import Any

import pytest
from build.binding_store import SchedulerInstance, binding_store, interleave, scheduler_instance
from build.property_settings import many
from build.small_clusters import ask, check_capacity, nodes_by_workload
from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cycle.binder import BindEvent, BindingMode, ResourceUpdate
from lattice.scheduling.cycle.reservations import Reservation

MODES = list(BindingMode)


@pytest.mark.parametrize("mode", MODES)
async def test_bind_emits_one_event_with_resource_updates(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    one.reserve("before", 200)
    event = await one.binder.bind(one.reserve("w", 300))
    assert one.events == [event]
    assert (event.workload, event.node, event.reservation, event.mode, event.outcome) == (
        "default/w",
        "n0",
        "a-2",
        mode,
        "bound",
    )
    assert event.updates[0] == ResourceUpdate("cpu", used_before=200, used_after=500, total=1000)
    assert one.reservations.table.placements["default/w"].state == "bound"
    assert list(one.store.bound) == ["a-2"]
    assert not one.store.prepared
    assert not one.store.locks


@pytest.mark.parametrize("mode", MODES)
async def test_expired_reservation_is_rejected_and_released(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    reservation = one.reserve("w", 300)
    one.time = reservation.expires_at
    event = await one.binder.bind(reservation)
    assert (event.outcome, event.is_retriable) == ("failed", True)
    assert event.reason.startswith("reservation a-1 expired")
    assert nodes_by_workload(one.reservations.table) == {}
    assert not one.store.bound
    assert one.events == [event]


@pytest.mark.parametrize("mode", MODES)
async def test_unknown_reservation_is_rejected(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    event = await one.binder.bind(Reservation("x-9", "default/w", "n0", (), 99.0))
    assert (event.outcome, event.is_retriable) == ("failed", False)
    assert "reservation x-9 not found" in event.reason


@pytest.mark.parametrize("mode", MODES)
def test_reservation_released_before_write_leaves_no_trace(mode: BindingMode) -> None:
    one = SchedulerInstance(binding_store(1000), "a", (1000,), mode, knows=False)
    reservation = one.reserve("w", 300)
    step = one.binder.bind(reservation)
    step.send(None)
    one.reservations.release(reservation.id)
    event = interleave({"a": step}, lambda: "a")["a"]
    assert event.outcome == "failed"
    assert one.store.free["n0"]["cpu"] == 1000
    assert not one.store.locks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("how", ["released", "expired", "dropped"])
async def test_written_binding_stays_when_reservation_is_lost(
    mode: BindingMode, gang: bool, how: str
) -> None:
    """The node may already run the workload: undone and bound elsewhere, it would run twice."""
    one = scheduler_instance(mode, 1000)
    held = one.reserve("w", 300)
    lost = {
        "released": lambda: one.reservations.release(held.id),
        "expired": lambda: one.pass_time(99.0),
        "dropped": lambda: one.reservations.table.remove_node("n0"),
    }
    one.store.meanwhile = {"try_commit": lost[how], "commit_all": lost[how]}
    events = await one.binder.bind_gang([held], 1) if gang else [await one.binder.bind(held)]
    assert [each.outcome for each in events] == ["bound"]
    assert (list(one.store.bound), one.store.free["n0"]["cpu"]) == ([held.id], 700)
    assert nodes_by_workload(one.reservations.table) == ({"w": "n0"} if how == "expired" else {})


@pytest.mark.parametrize("mode", MODES)
async def test_changed_node_revision_is_a_conflict(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    one.store.revisions["n0"] = 7
    event = await one.binder.bind(one.reserve("w", 300))
    assert (event.reason, event.is_retriable) == ("node n0 changed after the decision", True)
    assert nodes_by_workload(one.reservations.table) == {}
    assert one.store.free["n0"]["cpu"] == 1000


async def test_locked_node_is_a_conflict() -> None:
    one = scheduler_instance(BindingMode.PESSIMISTIC, 1000)
    one.store.locks["n0"] = "other-1"
    event = await one.binder.bind(one.reserve("w", 300))
    assert (event.reason, event.is_retriable) == ("node n0 is locked by another scheduler", True)
    assert one.store.locks == {"n0": "other-1"}


async def test_pessimistic_mode_verifies_stored_capacity() -> None:
    one = scheduler_instance(BindingMode.PESSIMISTIC, 1000)
    one.store.free["n0"]["cpu"] = 200
    event = await one.binder.bind(one.reserve("w", 300))
    assert event.reason == "node n0 has 200m cpu free, 300m needed"
    assert not one.store.locks


async def test_removed_node_fails_the_bind() -> None:
    one = scheduler_instance(BindingMode.PESSIMISTIC, 1000)
    del one.store.free["n0"]
    assert (await one.binder.bind(one.reserve("w", 300))).reason == "node n0 was deleted"


NEEDED = {
    BindingMode.OPTIMISTIC: {"try_commit"},
    BindingMode.PESSIMISTIC: {"lock", "read", "try_commit"},
    BindingMode.TWO_PHASE: {"prepare", "commit_all"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", ["read", "try_commit", "lock", "prepare", "commit_all", "after commit_all"])
async def test_unavailable_store_is_one_failed_event_without_trace(mode: BindingMode, step: str) -> None:
    one = scheduler_instance(mode, 1000)
    one.store.fails = {step}
    event = await one.binder.bind(one.reserve("w", 300))
    assert one.events == [event]
    is_bound = event.outcome == "bound"
    assert is_bound or "store is away" in event.reason
    assert nodes_by_workload(one.reservations.table) == ({"w": "n0"} if is_bound else {})
    assert one.store.free["n0"]["cpu"] == (700 if is_bound else 1000)
    assert (len(one.store.bound), one.store.prepared) == (is_bound, {})
    assert is_bound == (step not in NEEDED[mode])


async def test_reservation_is_held_while_store_is_unavailable() -> None:
    one = scheduler_instance(BindingMode.OPTIMISTIC, 1000)
    one.store.fails = {"try_commit", "abort_all"}
    reservation = one.reserve("w", 300)
    assert (await one.binder.bind(reservation)).outcome == "failed"
    assert nodes_by_workload(one.reservations.table) == {"w": "n0"}
    assert one.reservations.expire(reservation.expires_at) == [reservation]


@pytest.mark.parametrize("mode", MODES)
async def test_rollback_is_idempotent(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    kept, undone = one.reserve("kept", 100), one.reserve("w", 300)
    await one.binder.bind(kept)
    assert await one.binder.rollback(undone)
    before = (dict(one.store.free["n0"]), dict(one.store.bound), nodes_by_workload(one.reservations.table))
    assert not await one.binder.rollback(undone)
    assert (
        dict(one.store.free["n0"]),
        dict(one.store.bound),
        nodes_by_workload(one.reservations.table),
    ) == before
    assert before[2] == {"kept": "n0"}
    assert not await one.binder.rollback(kept), "what is bound stays bound"
    assert (
        dict(one.store.free["n0"]),
        dict(one.store.bound),
        nodes_by_workload(one.reservations.table),
    ) == before


def state_of(one: SchedulerInstance) -> tuple[Any, ...]:
    """Everything in the store and in the table."""
    free = {node: dict(left) for node, left in one.store.free.items()}
    return (
        dict(one.store.bound),
        dict(one.store.prepared),
        free,
        dict(one.store.revisions),
        nodes_by_workload(one.reservations.table),
    )


PREPARING = [
    pytest.param(BindingMode.TWO_PHASE, "prepare", gang, id=f"prepare, gang {gang}") for gang in (False, True)
]
WRITING = [
    pytest.param(BindingMode.OPTIMISTIC, "try_commit", False, id="optimistic"),
    pytest.param(BindingMode.PESSIMISTIC, "try_commit", False, id="pessimistic"),
    pytest.param(BindingMode.PESSIMISTIC, "unlock", False, id="pessimistic, when all is done"),
    pytest.param(BindingMode.TWO_PHASE, "commit_all", False, id="two-phase"),
    pytest.param(BindingMode.TWO_PHASE, "commit_all", True, id="gang"),
]


async def attempt_bind(one: SchedulerInstance, held: list[Reservation], gang: bool) -> list[BindEvent]:
    return await one.binder.bind_gang(held, 1) if gang else [await one.binder.bind(held[0])]


@pytest.mark.parametrize(("mode", "step", "gang"), PREPARING)
async def test_error_after_prepare_rolls_back(mode: BindingMode, step: str, gang: bool) -> None:
    one = scheduler_instance(mode, 1000)
    held = one.reserve("w", 300)
    one.store.breaks[step] = OSError("connection reset")
    events = await attempt_bind(one, [held], gang)
    assert one.events == events
    assert [(each.outcome, each.reason, each.is_retriable) for each in events] == [
        ("failed", "OSError: connection reset", True)
    ]
    assert (
        nodes_by_workload(one.reservations.table),
        one.store.bound,
        one.store.prepared,
        one.store.locks,
    ) == (
        {},
        {},
        {},
        {},
    )
    assert len(one.reservations) == 0


@pytest.mark.parametrize(("mode", "step", "gang"), WRITING)
async def test_error_after_commit_keeps_the_binding(mode: BindingMode, step: str, gang: bool) -> None:
    """The answer is lost, not the binding: the node may already run the workload."""
    one = scheduler_instance(mode, 1000)
    held = one.reserve("w", 300)
    one.store.breaks[step] = OSError("connection reset")
    events = await attempt_bind(one, [held], gang)
    assert one.events == events
    assert [(each.outcome, each.reason) for each in events] == [("bound", "")]
    assert (nodes_by_workload(one.reservations.table), list(one.store.bound), one.store.prepared) == (
        {"w": "n0"},
        [held.id],
        {},
    )
    assert (len(one.reservations), one.reservations.in_flight, one.store.locks) == (0, set(), {})


@pytest.mark.parametrize(("mode", "step", "gang"), PREPARING)
async def test_cancellation_during_prepare_rolls_back(mode: BindingMode, step: str, gang: bool) -> None:
    one = scheduler_instance(mode, 1000)
    held = [one.reserve(name, 300) for name in "ab"]
    one.store.breaks[step] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await attempt_bind(one, held, gang)
    left = {} if gang else {"b": "n0"}
    assert (
        nodes_by_workload(one.reservations.table),
        one.store.bound,
        one.store.prepared,
        one.store.locks,
    ) == (
        left,
        {},
        {},
        {},
    )
    assert [(each.outcome, each.reason) for each in one.events] == [("failed", "binding was cancelled")] * (
        2 if gang else 1
    )


@pytest.mark.parametrize(("mode", "step", "gang"), WRITING)
async def test_cancellation_after_commit_keeps_the_binding(mode: BindingMode, step: str, gang: bool) -> None:
    one = scheduler_instance(mode, 1000)
    held = [one.reserve(name, 300) for name in "ab"]
    one.store.breaks[step] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await attempt_bind(one, held, gang)
    assert nodes_by_workload(one.reservations.table) == {"a": "n0", "b": "n0"}
    assert len(one.store.bound) == (2 if gang else 1)
    assert [each.outcome for each in one.events] == ["bound"] * (2 if gang else 1)
    assert not one.store.locks


@pytest.mark.parametrize(("mode", "step", "gang"), PREPARING + WRITING)
async def test_cancellation_during_rollback_emits_one_event(mode: BindingMode, step: str, gang: bool) -> None:
    one = scheduler_instance(mode, 1000)
    held = [one.reserve(name, 300) for name in "ab"]
    one.store.breaks = {step: OSError("reset"), "abort_all": asyncio.CancelledError()}
    with pytest.raises(asyncio.CancelledError):
        await attempt_bind(one, held, gang)
    assert [each.workload.partition("/")[2] or each.workload for each in one.events] == ["a", "b"][
        : 2 if gang else 1
    ]
    assert [each.outcome for each in one.events] == (
        ["bound"] * 2 if gang and step == "commit_all" else ["failed"] * len(one.events)
    )


@pytest.mark.parametrize("mode", MODES)
async def test_in_flight_binding_keeps_its_capacity(mode: BindingMode) -> None:
    """Neither expiry nor withdrawal frees the capacity, since the binding may already be committed."""
    one = scheduler_instance(mode, 1000)
    held = one.reserve("w", 600)
    there: list[dict[str, str]] = []

    def lose() -> None:
        one.pass_time(99.0)
        one.reservations.withdraw(held.id)
        assert one.reservations.expire(one.time) == []
        there.append(nodes_by_workload(one.reservations.table))

    one.store.meanwhile = {"try_commit": lose, "commit_all": lose}
    assert (await one.binder.bind(held)).outcome == "bound"
    assert there == [{"w": "n0"}]
    assert nodes_by_workload(one.reservations.table) == {"w": "n0"}
    assert (one.reservations.expire(999.0), len(one.reservations)) == ([], 0)


@pytest.mark.parametrize("mode", MODES)
def test_reservation_withdrawn_before_write_is_not_bound(mode: BindingMode) -> None:
    one = SchedulerInstance(binding_store(1000), "a", (1000,), mode, knows=False)
    held = one.reserve("w", 300)
    attempt = one.binder.bind(held)
    attempt.send(None)
    one.reservations.withdraw(held.id)
    assert nodes_by_workload(one.reservations.table) == {"w": "n0"}
    event = interleave({"a": attempt}, lambda: "a")["a"]
    assert (event.outcome, event.reason) == ("failed", f"reservation {held.id} was withdrawn")
    assert (nodes_by_workload(one.reservations.table), one.store.bound, one.store.prepared) == ({}, {}, {})


async def test_rollback_keeps_a_committed_binding() -> None:
    one = scheduler_instance(BindingMode.OPTIMISTIC, 1000)
    held = one.reserve("w", 300)
    one.store.fails = {"abort_all"}
    one.store.breaks["try_commit"] = OSError("reset")
    assert (await one.binder.bind(held)).outcome == "failed"
    one.store.fails.clear()
    assert not await one.binder.rollback(held), "the answer was lost, and it is bound"
    assert (
        nodes_by_workload(one.reservations.table),
        len(one.reservations),
        one.reservations.expire(999.0),
    ) == (
        {"w": "n0"},
        0,
        [],
    )


def test_abandoned_attempt_holds_capacity_until_expiry() -> None:
    one = scheduler_instance(BindingMode.OPTIMISTIC, 1000)
    attempt = one.binder.bind(one.reserve("w", 300))
    attempt.send(None)
    attempt.close()
    assert nodes_by_workload(one.reservations.table) == {"w": "n0"}
    assert one.reservations.expire(1000.0)


@pytest.mark.parametrize("mode", MODES)
async def test_second_bind_of_reservation_fails_harmlessly(mode: BindingMode) -> None:
    one = scheduler_instance(mode, 1000)
    reservation = one.reserve("w", 600)
    first = await one.binder.bind(reservation)
    before = state_of(one)
    second = await one.binder.bind(reservation)
    (third,) = await one.binder.bind_gang([reservation], 1)
    assert [each.outcome for each in (first, second, third)] == ["bound", "failed", "failed"]
    assert second.reason == "reservation a-1 not found: bound, released or never created"
    assert not second.is_retriable
    assert one.events == [first, second, third]
    assert state_of(one) == before
    assert list(before[0]) == ["a-1"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ahead", range(1, 6))
def test_concurrent_bind_does_not_disturb_first_attempt(mode: BindingMode, ahead: int) -> None:
    one = scheduler_instance(mode, 1000)
    reservation = one.reserve("w", 600)
    turns = iter("a" * ahead + "b" * 9)
    events = interleave(
        {"a": one.binder.bind(reservation), "b": one.binder.bind(reservation)}, lambda: next(turns, "a")
    )
    assert (events["a"].outcome, events["b"].outcome) == ("bound", "failed")
    assert list(one.store.bound) == ["a-1"]
    assert one.store.free["n0"]["cpu"] == 400
    assert nodes_by_workload(one.reservations.table) == {"w": "n0"}


@many
@given(
    mode=st.sampled_from(MODES),
    gang=st.booleans(),
    turns=st.lists(st.sampled_from("ab"), min_size=1, max_size=20),
)
def test_concurrent_rollback_keeps_store_and_table_equal(
    mode: BindingMode, gang: bool, turns: list[str]
) -> None:
    one, whose = scheduler_instance(mode, 1000), cycle(turns)
    reservation = one.reserve("w", 600)
    binding = one.binder.bind_gang([reservation], 1) if gang else one.binder.bind(reservation)
    interleave({"a": binding, "b": one.binder.rollback(reservation)}, lambda: next(whose))
    (event,) = one.events
    is_bound = event.outcome == "bound"
    assert one.store.free["n0"]["cpu"] == (400 if is_bound else 1000)
    assert len(one.store.bound) == len(one.reservations.table.placements) == is_bound
    assert not one.store.prepared


@many
@given(
    modes=st.tuples(st.sampled_from(MODES), st.sampled_from(MODES)),
    knows=st.booleans(),
    sizes=st.lists(st.tuples(st.integers(0, 1), st.integers(100, 900)), min_size=1, max_size=6),
    turns=st.lists(st.sampled_from("ab"), min_size=1, max_size=40),
)
def test_interleaved_binders_never_overcommit_a_node(
    modes: tuple[BindingMode, BindingMode], knows: bool, sizes: list[tuple[int, int]], turns: list[str]
) -> None:
    shared = binding_store(1000)
    schedulers = {
        name: SchedulerInstance(shared, name, (1000,), mode, knows)
        for name, mode in zip("ab", modes, strict=True)
    }
    whose = cycle(turns)

    async def bind_all(name: str) -> int:
        tried = 0
        for number, (owner, cpu) in enumerate(sizes):
            if "ab"[owner] == name:
                made = schedulers[name].reservations.reserve(
                    ask(schedulers[name].reservations.table, f"{name}{number}", cpu), 0, 0.0
                )
                if isinstance(made, Reservation):
                    await schedulers[name].binder.bind(made)
                    tried += 1
        return tried

    tried = interleave({name: bind_all(name) for name in "ab"}, lambda: next(whose))
    assert shared.free["n0"]["cpu"] >= 0
    assert not shared.prepared
    assert not shared.locks
    for name, each in schedulers.items():
        assert len(each.events) == tried[name]
        check_capacity(each.reservations.table)
        bound = {
            request.workload for request in shared.bound.values() if request.reservation.startswith(name)
        }
        assert (
            bound
            == {event.workload for event in each.events if event.outcome == "bound"}
            == set(each.reservations.table.placements)
        )
