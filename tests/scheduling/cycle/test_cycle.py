"""Tests of a scheduling cycle: filter, score, select, reserve, preempt and bind; gangs whole, and batches
that equal single decisions."""

import asyncio
from random import Random
from typing import Any

import pytest
from build.binding_store import FakeBindingStore, binding_store
from build.property_settings import many
from build.small_clusters import ask, check_capacity, nodes, nodes_by_workload, packing, put, spreading
from hypothesis import given
from hypothesis import strategies as st

from lattice import scheduling
from lattice.scheduling import (
    CompositeScheduler,
    CycleResult,
    Preemptor,
    Profile,
    Reservations,
    SchedulingQueue,
    Selector,
    TieBreaker,
)
from lattice.scheduling.cycle.binder import Binder, BindingMode
from lattice.scheduling.cycle.cycle import compose
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk


def scheduler(
    table: NodeTable, profile: Profile | None = None, *, evicts: bool = False, **limits: int
) -> CompositeScheduler:
    profile = profile or packing()
    preemptor = (
        Preemptor(table, profile, {f"default/{name}": left for name, left in limits.items()})
        if evicts
        else None
    )
    return CompositeScheduler(profile, Reservations(table), preemptor=preemptor)


def scheduled_nodes(cycle: CycleResult) -> dict[str, str]:
    return {each.ask.name.removeprefix("default/"): each.node for each in cycle.scheduled}


def reasons(cycle: CycleResult) -> dict[str, str]:
    return {each.ask.name.removeprefix("default/"): each.reason for each in cycle.unschedulable}


def test_batch_is_scheduled_and_reserved() -> None:
    table = nodes(1000, 500)
    cycle = scheduler(table).cycle([[ask(table, "a", 800)], [ask(table, "b", 400)]], now=10.0)
    assert scheduled_nodes(cycle) == nodes_by_workload(table) == {"a": "n0", "b": "n1"}
    assert [each.reservation.expires_at for each in cycle.scheduled] == [40.0, 40.0]
    assert all(each.score is not None and 0 <= each.score <= 100 for each in cycle.scheduled)


def test_unschedulable_workload_has_reason_and_wake_events() -> None:
    table = nodes(1000, 500)
    cycle = scheduler(table).cycle(
        [[ask(table, "a", 2000)], [ask(table, "b", 100, node_selector=(("zone", "z9"),))]], 0.0
    )
    assert reasons(cycle)["a"] == "0 of 2 nodes: 2 without 2 cpu free"
    wakes = {each.ask.name: each.wakes_on for each in cycle.unschedulable}
    assert ClusterEvent.WORKLOAD_GONE in wakes["default/a"]
    assert ClusterEvent.WORKLOAD_GONE not in wakes["default/b"]
    assert ClusterEvent.NODE_CHANGED in wakes["default/b"]


def test_cycle_expires_reservations_first() -> None:
    table = nodes(1000)
    one = scheduler(table)
    one.cycle([[ask(table, "a", 1000)]], 0.0)
    assert reasons(one.cycle([[ask(table, "b", 1000)]], 29.0))
    late = one.cycle([[ask(table, "b", 1000)]], 30.0)
    assert scheduled_nodes(late) == {"b": "n0"}
    assert [each.workload for each in late.expired] == ["default/a"]


def test_placed_workload_is_not_scheduled_again() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "a")])
    cycle = scheduler(table).cycle([[ask(table, "a"), ask(table, "b")]], 0.0)
    assert reasons(cycle) == {"a": "already placed on node n0"}
    assert scheduled_nodes(cycle) == {"b": "n0"}


def test_reservation_rejects_overcommit_of_lax_profile() -> None:
    table = nodes(100)
    cycle = scheduler(table, Profile("careless", (), ())).cycle([[ask(table, "a", 500)]], 0.0)
    assert reasons(cycle) == {"a": "node n0 has 100m cpu free, 500m needed"}


@pytest.mark.parametrize(
    ("sizes", "least", "running", "seated", "why"),
    [
        pytest.param([500, 500], 2, 0, 2, "", id="the whole gang"),
        pytest.param(
            [500, 500, 700], 2, 0, 2, "0 of 2 nodes", id="enough of it; the rest says its own reason"
        ),
        pytest.param(
            [500, 500, 700],
            3,
            0,
            0,
            "2 of 3 group members fit, minMember is 3; the next member: 0 of 2 nodes",
            id="too few",
        ),
        pytest.param(
            [500], 3, 0, 0, "the group waits for 2 more members: minMember is 3", id="not all are here yet"
        ),
        pytest.param([500], 3, 2, 1, "", id="running members count"),
    ],
)
def test_gangs(sizes: list[int], least: int, running: int, seated: int, why: str) -> None:
    table = nodes(600, 600)
    put(table, "n1", [ask(table, f"there{number}", 10, group="g", least=least) for number in range(running)])
    before = len(table.placements)
    members = [ask(table, f"m{number}", size, group="g", least=least) for number, size in enumerate(sizes)]
    cycle = scheduler(table).cycle([[each] for each in members], 0.0)
    assert len(cycle.scheduled) == len(table.placements) - before == seated
    assert len(cycle.unschedulable) == len(sizes) - seated
    assert not why or cycle.unschedulable[0].reason.startswith(why)


def test_victims_are_evicted_and_their_capacity_is_kept() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "low1", 500), ask(table, "low2", 500)])
    cycle = scheduler(table, evicts=True).cycle(
        [[ask(table, "high", 700, 5)], [ask(table, "later", 400)]], 0.0
    )
    assert scheduled_nodes(cycle) == {"high": "n0"}
    assert sorted(cycle.evictions) == [("default/low1", "default/high"), ("default/low2", "default/high")]
    assert list(reasons(cycle)) == ["later"]
    assert nodes_by_workload(table) == {"high": "n0"}


async def test_later_workload_waits_for_terminating_victims() -> None:
    table = nodes(1000, 300)
    put(table, "n0", [ask(table, "low", 1000)])
    one = bound_by(scheduler(table, evicts=True), binding_store(1000, 300), BindingMode.OPTIMISTIC)
    first = one.cycle([[ask(table, "high", 500, 5)]], 0.0)
    assert [(each.victims, each.waits_for) for each in first.scheduled] == [
        (("default/low",), ("default/low",))
    ]
    second = one.cycle([[ask(table, "mid", 400)], [ask(table, "else", 300)]], 1.0)
    assert {each.ask.name: each.waits_for for each in second.scheduled} == {
        "default/mid": ("default/low",),
        "default/else": (),
    }
    assert [[event.workload for event in await one.bind(cycle)] for cycle in (first, second)] == [
        [],
        ["default/else"],
    ]
    one.evictions.remove_victim("default/low", "n1")
    assert await one.bind(first) == []
    one.evictions.remove_victim("default/low", "n0")
    events = [
        [(event.workload, event.outcome) for event in await one.bind(cycle)] for cycle in (first, second)
    ]
    assert events == [[("default/high", "bound")], [("default/mid", "bound")]]
    assert [await one.bind(cycle) for cycle in (first, second)] == [[], []]
    third = one.cycle([[ask(table, "last", 100)]], 2.0)
    assert [each.waits_for for each in third.scheduled] == [()]


def test_victims_of_removed_node_are_not_waited_for() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "low", 1000)])
    one = scheduler(table, evicts=True)
    one.cycle([[ask(table, "high", 500, 5)]], 0.0)
    facts = table.node_infos[0]
    assert facts
    assert one.remove_node("n0") == ["default/high", "default/low"]
    table.put_node(facts)
    (placed,) = one.cycle([[ask(table, "mid", 400)]], 1.0).scheduled
    assert placed.waits_for == ()


def test_disruption_budget_blocks_preemption_until_eased() -> None:
    table, queue = nodes(1000), SchedulingQueue()
    put(table, "n0", [ask(table, "low", 800, service="s")])
    one = scheduler(table, evicts=True, s=0)
    queue.add(ask(table, "high", 800, 5))
    (refused,) = one.cycle(queue.pop_batch(0.0, 9), 0.0).unschedulable
    assert refused.reason == (
        "0 of 1 node: 1 without 800m cpu free; "
        "1 workload of lower priority on node n0 could be preempted, but disruption limits allow only 0 more of service default/s"
    )
    assert ClusterEvent.DISRUPTION_LIMITS_EASED in refused.wakes_on
    queue.requeue_unschedulable(refused.ask.name, refused.wakes_on, 0.0)
    assert one.preemptor
    one.preemptor.disruptions_allowed["default/s"] = 1
    assert queue.wake(ClusterEvent.DISRUPTION_LIMITS_EASED, 2.0) == 1
    assert scheduled_nodes(one.cycle(queue.pop_batch(2.0, 9), 2.0)) == {"high": "n0"}


def test_budget_is_no_wake_event_when_not_the_blocker() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "low", 800, service="s")])
    (refused,) = scheduler(table, evicts=True, s=0).cycle([[ask(table, "high", 1200, 5)]], 0.0).unschedulable
    assert refused.reason == "0 of 1 node: 1 without 1200m cpu free"
    assert ClusterEvent.DISRUPTION_LIMITS_EASED not in refused.wakes_on


def test_reservation_rejects_overcommitted_gang_whole() -> None:
    table = nodes(1000)
    members = [ask(table, f"m{number}", 600, group="g", least=2) for number in range(2)]
    cycle = scheduler(table, Profile("careless", (), ())).cycle([members], 0.0)
    why = "1 of 2 group members fit, minMember is 2; the next member: node n0 has 400m cpu free, 600m needed"
    assert (scheduled_nodes(cycle), reasons(cycle), nodes_by_workload(table)) == (
        {},
        {"m0": why, "m1": why},
        {},
    )


def test_no_eviction_without_preemptor() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "low", 1000)])
    assert list(reasons(scheduler(table).cycle([[ask(table, "high", 700, 5)]], 0.0))) == ["high"]


def test_disruption_budget_holds_over_whole_cycle() -> None:
    table = nodes(1000, 1000, 1000)
    for number in range(3):
        put(table, f"n{number}", [ask(table, f"low{number}", 1000, service="a")])
    cycle = scheduler(table, evicts=True, a=2).cycle(
        [[ask(table, f"high{number}", 700, 5) for number in range(3)]], 0.0
    )
    assert len(cycle.scheduled) == len(cycle.evictions) == 2
    assert len(cycle.unschedulable) == 1


@pytest.mark.parametrize(
    ("limit", "seated", "evicted"),
    [
        pytest.param(9, 3, 3, id="a gang may evict if that seats enough of it"),
        pytest.param(2, 0, 0, id="a gang evicts nothing if too few members fit"),
    ],
)
def test_gang_preempts_for_all_members_or_none(limit: int, seated: int, evicted: int) -> None:
    table = nodes(1000, 1000, 1000)
    for number in range(3):
        put(table, f"n{number}", [ask(table, f"low{number}", 1000, service="a")])
    one = scheduler(table, evicts=True, a=limit)
    members = [ask(table, f"m{number}", 700, 5, group="g", least=3) for number in range(3)]
    cycle = one.cycle([members], 0.0)
    assert (len(cycle.scheduled), len(cycle.evictions)) == (seated, evicted)
    assert one.preemptor
    assert one.preemptor.disruptions_allowed == {"default/a": limit - evicted}
    check_capacity(table)


def bound_by(one: CompositeScheduler, store: FakeBindingStore, mode: BindingMode) -> CompositeScheduler:
    one.binder = Binder(store, one.reservations, lambda: 0.0, mode, dict.fromkeys(store.free, 0))
    return one


@pytest.mark.parametrize("mode", list(BindingMode))
async def test_cycle_is_bound_in_every_mode(mode: BindingMode) -> None:
    table = nodes(1000, 1000)
    one = bound_by(scheduler(table, spreading()), binding_store(1000, 1000), mode)
    gang = [ask(table, f"m{number}", 100, group="g", least=2) for number in range(2)]
    cycle = one.cycle([[ask(table, "a"), ask(table, "b")], gang], 0.0)
    events = await one.bind(cycle)
    assert [event.outcome for event in events] == ["bound"] * 4
    assert all(each.state == "bound" for each in table.placements.values())


async def test_next_cycle_reselects_after_conflict() -> None:
    table, store = nodes(1000, 900), binding_store(1000, 900)
    one = bound_by(scheduler(table, spreading()), store, BindingMode.OPTIMISTIC)
    queue = SchedulingQueue()
    queue.add(ask(table, "mine", 800))
    store.revisions["n0"], store.free["n0"] = 4, {"cpu": 100, "workloads": 9}
    first = one.cycle(queue.pop_batch(0.0, 9), 0.0)
    (event,) = await one.bind(first)
    assert (event.node, event.outcome, event.is_retriable) == ("n0", "failed", True)
    assert nodes_by_workload(table) == {}
    queue.requeue_failed("default/mine", 0.0)
    put(table, "n0", [ask(table, "theirs", 900)])
    second = one.cycle(queue.pop_batch(1.0, 9), 1.0)
    (event,) = await one.bind(second)
    assert (event.node, event.outcome) == ("n1", "bound")


def test_compose_builds_scheduler_from_profile() -> None:
    table = nodes(1000, 1000)
    spec = ProfileSpec("mine", {"BinPacking": 1.0}, tie_breaker="round-robin", reservation_timeout=7.0)
    one = compose(spec, table, Random(1), "me")
    assert (one.selector.tie_breaker, one.profile.name) == (TieBreaker.ROUND_ROBIN, "mine")
    cycle = one.cycle([[ask(table, "a")]], 1.0)
    assert (cycle.scheduled[0].reservation.id, cycle.scheduled[0].reservation.expires_at) == ("me-1", 8.0)


SHAPES = st.tuples(st.integers(1, 4), st.sampled_from([100, 150, 400]))
FREE = st.lists(st.integers(100, 900), min_size=1, max_size=5)


@many
@given(
    free=FREE,
    runs=st.lists(SHAPES, min_size=1, max_size=4),
    packs=st.booleans(),
    evicts=st.booleans(),
    there=st.integers(0, 6),
)
def test_grouped_scheduling_equals_one_at_a_time(
    free: list[int], runs: list[tuple[int, int]], packs: bool, evicts: bool, there: int
) -> None:
    results = []
    for together in (True, False):
        table = nodes(*free)
        one = scheduler(table, packing() if packs else spreading(), evicts=evicts)
        for number in range(there):
            one.cycle([[ask(table, f"low{number}", 120, -1)]], 0.0)
        batch = [
            [ask(table, f"w{row}.{number}", cpu) for number in range(count)]
            for row, (count, cpu) in enumerate(runs)
        ]
        cycle = one.cycle(batch if together else [[each] for run in batch for each in run], 0.0)
        check_capacity(table)
        results.append((scheduled_nodes(cycle), reasons(cycle), cycle.evictions, nodes_by_workload(table)))
    assert results[0] == results[1]


STEP = st.tuples(
    st.sampled_from(["schedule", "schedule", "gang", "bind", "rollback", "forget", "expire"]),
    st.integers(1, 500),
    st.integers(0, 3),
    st.integers(1, 3),
)


@many
@given(st.lists(STEP, max_size=14), st.sampled_from(list(BindingMode)), st.sampled_from(list(TieBreaker)))
def test_capacity_is_never_exceeded_in_any_sequence(
    steps: list[tuple[str, int, int, int]], mode: BindingMode, tie: TieBreaker
) -> None:
    table = nodes(1000, 700, 300, gpus=(2, 0, 1))
    one = bound_by(scheduler(table, evicts=True, a=2), binding_store(1000, 700, 300), mode)
    one.selector = Selector(tie, Random(5))
    made: list[Any] = []
    for now, (what, size, priority, count) in enumerate(steps):
        more = (
            {"gpu": 500 * count}
            if size % 3 == 0
            else {"host_ports": ((80, "TCP"),)}
            if size % 3 == 1
            else {"service": "a"}
        )
        batch: list[WorkloadAsk] = [
            ask(table, f"w{now}.{number}", size, priority, **more) for number in range(count)
        ]
        if what == "gang":
            batch = [
                ask(table, f"w{now}.{number}", size, priority, group=f"g{now}", least=count, **more)
                for number in range(count)
            ]
        if what in ("schedule", "gang"):
            cycle = one.cycle([batch], now)
            made.append(cycle)
            assert what != "gang" or len(cycle.scheduled) in (0, count)
            assert len(cycle.scheduled) + len(cycle.unschedulable) == count
        elif what == "bind" and made:
            asyncio.run(one.bind(made[-1]))
        elif what == "rollback" and made:
            for each in made[-1].scheduled:
                assert one.binder
                asyncio.run(one.binder.rollback(each.reservation))
        elif what == "forget" and table.placements:
            table.forget(next(iter(table.placements)))
        elif what == "expire":
            one.reservations.expire(now + 30 * (size % 2))
        check_capacity(table)


def test_package_exports_public_names() -> None:
    wanted = "Filter Score Profile Reason Decision decide Selector TieBreaker Selection Reservation Reservations Binder BindingMode"
    wanted += " BindRequest BindEvent BindingStore CompositeScheduler CycleResult SchedulingQueue Preemptor NodeTable WorkloadAsk"
    wanted += " ProfileSpec compile_preset parse_profile compose summarize as_json"
    for name in wanted.split():
        assert getattr(scheduling, name).__name__ == name
    assert "balanced" in scheduling.PRESETS
    assert dir(scheduling) == sorted([*wanted.split(), "PRESETS"])
    with pytest.raises(AttributeError, match="has no Rescheduler"):
        _ = scheduling.Rescheduler
