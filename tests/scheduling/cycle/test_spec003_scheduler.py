"""Tests of spec 003 on the composed scheduler: replaceable phases, order, safe concurrency, and one event per
attempt."""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from build.binding_store import SchedulerInstance, binding_store, scheduler_instance
from build.node_tables import a_node_info, near, workload_demands
from build.node_tables import nodes as table_of
from build.small_clusters import ask, nodes, nodes_by_workload, packing, put

from lattice.engine.decide import Decision, decide
from lattice.engine.plugin import Profile
from lattice.scheduling import CompositeScheduler, Preemptor, Reservations, Selection, Selector, TieBreaker
from lattice.scheduling.cycle.binder import Binder, BindEvent, BindingMode
from lattice.scheduling.cycle.cycle import compose
from lattice.scheduling.cycle.profile import FILTERS, ProfileSpec, compile_preset

FIT: Any = (FILTERS["Fit"],)


def test_round_robin_without_scores_distributes_evenly() -> None:
    table = nodes(1000, 1000, 1000)
    one = compose(ProfileSpec("simple", {}, tie_breaker="round-robin"), table, Random(1))
    cycle = one.cycle([[ask(table, f"w{number}", 100) for number in range(6)]], 0.0)
    assert sorted(each.node for each in cycle.scheduled) == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_without_nodes_the_reason_says_so() -> None:
    table = nodes()
    cycle = compose(ProfileSpec("simple", {}), table, Random(1)).cycle(
        [[ask(table, "a"), ask(table, "b")]], 0.0
    )
    assert [each.reason for each in cycle.unschedulable] == ["0 of 0 nodes: no nodes exist"] * 2


@dataclass
class RunnerUpSelector(Selector):
    """A custom selector that chooses the runner-up."""

    def select(self, decision: Decision) -> Selection:
        return Selection(decision.runner_up, 50.0)


def test_selector_is_replaceable() -> None:
    table = nodes(1000, 4000)
    cycle = CompositeScheduler(packing(), Reservations(table), RunnerUpSelector()).cycle(
        [[ask(table, "a", 500)]], 0.0
    )
    assert [(each.node, each.score) for each in cycle.scheduled] == [("n1", 50.0)]


def test_profile_filters_reject_nodes() -> None:
    table = table_of(a_node_info("a", zone="x"), a_node_info("b", zone="x"), a_node_info("c", zone="y"))
    far = workload_demands(labels={"app": "web"}, anti_affinity_terms=(near("zone", app="web"),))
    asks = [table.make_ask(f"default/w{number}", far) for number in range(3)]
    cycle = CompositeScheduler(compile_preset(), Reservations(table)).cycle([asks], 0.0)
    assert (
        len({table.domain_codes("zone")[table.row_of[each.node]] for each in cycle.scheduled})
        == len(cycle.scheduled)
        == 2
    )
    assert cycle.unschedulable[0].reason == "0 of 3 nodes: 3 with a workload app=web in the same zone"


def test_profile_scores_decide() -> None:
    table = table_of(
        a_node_info("a", zone="x"),
        a_node_info("b", zone="x"),
        a_node_info("c", zone="y"),
        a_node_info("d", zone="y"),
    )
    asks = [
        table.make_ask(f"default/w{number}", workload_demands({"cpu": "100m"}, service="s"))
        for number in range(4)
    ]
    cycle = CompositeScheduler(compile_preset("high-availability"), Reservations(table)).cycle([asks], 0.0)
    assert sorted(each.node for each in cycle.scheduled) == ["a", "b", "c", "d"]


def test_selected_node_is_reserved() -> None:
    table = nodes(*[1000] * 4)
    rows = [Selector(TieBreaker.RANDOM, Random(seed)) for seed in range(8)]
    taken = set()
    for number, selector in enumerate(rows):
        cycle = CompositeScheduler(Profile("indifferent", FIT, ()), Reservations(table), selector).cycle(
            [[ask(table, f"w{number}", 1)]], 0.0
        )
        taken.add(cycle.scheduled[0].node)
    assert len(taken) > 1


def test_weighted_random_without_scores_reaches_all_nodes() -> None:
    table, selector = nodes(*[1000] * 3), Selector(TieBreaker.WEIGHTED_RANDOM, Random(3))
    decision = decide(ask(table, "any"), table, Profile("indifferent", FIT, ()))
    assert {selector.select(decision).row for _ in range(50)} == {0, 1, 2}


async def test_scheduled_workload_is_bound() -> None:
    table, told = nodes(1000), list[BindEvent]()
    reservations = Reservations(table)
    binder = Binder(
        binding_store(1000), reservations, lambda: 5.0, BindingMode.OPTIMISTIC, {"n0": 0}, told.append
    )
    one = CompositeScheduler(packing(), reservations, binder=binder)
    events = await one.bind(one.cycle([[ask(table, "a", 100)]], 5.0))
    assert told == events
    assert [(event.workload, event.node, event.outcome, event.at) for event in events] == [
        ("default/a", "n0", "bound", 5.0)
    ]


async def test_own_write_does_not_set_unknown_node_revision() -> None:
    one = SchedulerInstance(binding_store(1000), "a", (1000,), BindingMode.PESSIMISTIC, knows=False)
    one.store.revisions["n0"] = 7
    assert (await one.binder.bind(one.reserve("w", 100))).outcome == "bound"
    assert one.binder.node_revisions == {}, "what else is on the node has not been heard of"


async def test_binding_mode_is_used() -> None:
    seen = []
    for mode in BindingMode:
        one = scheduler_instance(mode, 1000)
        one.store.locks["n0"] = "other-1"
        seen.append((await one.binder.bind(one.reserve("w", 100))).outcome)
    assert seen == ["bound", "failed", "bound"]


async def test_each_bind_attempt_emits_its_own_event() -> None:
    one = scheduler_instance(BindingMode.OPTIMISTIC, 1000)
    one.store.revisions["n0"] = 7
    for time in (1.0, 2.0):
        one.time = time
        await one.binder.bind(one.reserve("w", 100))
    assert [event.id for event in one.events] == ["default/w.a-1", "default/w.a-2"]
    assert [event.at for event in one.events] == [1.0, 2.0]


def test_equal_priority_is_never_preempted() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "a", 250), ask(table, "b", 250), ask(table, "equal", 500, 5)])
    one = CompositeScheduler(packing(), Reservations(table), preemptor=Preemptor(table, packing()))
    cycle = one.cycle([[ask(table, "new", 500, 5)]], 0.0)
    assert sorted(victim for victim, _ in cycle.evictions) == ["default/a", "default/b"]
    assert nodes_by_workload(table) == {"equal": "n0", "new": "n0"}


def test_cycle_keeps_batch_order() -> None:
    table = nodes(1000)
    one = CompositeScheduler(packing(), Reservations(table))
    cycle = one.cycle(
        [[ask(table, "first", 700)], [ask(table, "second", 600)], [ask(table, "third", 300)]], 0.0
    )
    assert [each.ask.name for each in cycle.scheduled] == ["default/first", "default/third"]
    assert [(each.ask.name, each.reason) for each in cycle.unschedulable] == [
        ("default/second", "0 of 1 node: 1 without 600m cpu free")
    ]


@pytest.mark.parametrize(
    ("cpus", "gone"),
    [
        pytest.param((1000,), ["low"], id="room is made on the only node"),
        pytest.param((1000, 1000), [], id="no eviction while another node has capacity"),
    ],
)
def test_preemption_is_the_last_resort(cpus: tuple[int, ...], gone: list[str]) -> None:
    table = nodes(*cpus)
    put(table, "n0", [ask(table, "low", 800)])
    one = CompositeScheduler(packing(), Reservations(table), preemptor=Preemptor(table, packing()))
    cycle = one.cycle([[ask(table, "high", 500, 1)]], 0.0)
    assert [victim.removeprefix("default/") for victim, _ in cycle.evictions] == gone
