"""Property tests of the scheduler on random small clusters: it agrees with the oracle, gives reasons, and
does not depend on history."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from build.node_tables import a_spread, nodes
from build.oracle import can_take, is_allowed, is_usable, nodes_of_matching, term_matches
from build.property_settings import PROPERTY_TIMEOUT_S, large
from build.random_clusters import (
    BYTES,
    ClusterHistory,
    World,
    assert_room_was_left,
    plain_world,
    plain_worlds,
    world_from_bytes,
    worlds,
)
from build.small_clusters import check_sums
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import REJECTED_TOTAL, Decision, decide
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.engine.explain import all_rejections, rejection_counts, summarize
from lattice.engine.plugin import Profile
from lattice.engine.table import RowSubset
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.profile import (
    FILTERS,
    PRESETS,
    SCORES,
    ProfileSpec,
    compile_preset,
    compile_profile,
)
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.plugins.filters.topology_spread import MaxSkewExceeded
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_table import NodeTable

pytestmark = pytest.mark.timeout(PROPERTY_TIMEOUT_S)

EVERYTHING = compile_profile(ProfileSpec("everything", dict.fromkeys(SCORES, 1.0)))
ROW_SCORES = [name for name, each in SCORES.items() if each.scope in ("fixed", "row")]
ROW_BY_ROW = compile_profile(ProfileSpec("row by row", dict.fromkeys(ROW_SCORES, 1.0)))

BALANCED = compile_preset(
    "balanced"
)  # every filter and few scores, for properties that do not depend on scores


def history_of(world: World, profile: Profile = BALANCED) -> ClusterHistory:
    return ClusterHistory(world, profile)


def fitting(decision: Decision) -> set[str]:
    return {name for name, row in decision.table.row_of.items() if decision.totals[row] != REJECTED_TOTAL}


def decision_facts(decision: Decision) -> tuple[object, ...]:
    """Everything visible in a decision, by node."""
    row_of = decision.table.row_of
    reasons = {
        reason.summary(): {name for name, row in row_of.items() if mask[row]}
        for reason, mask in decision.reasons.items()
    }
    runner_up = decision.table.names[decision.runner_up] if decision.runner_up >= 0 else ""
    totals = {name: float(decision.totals[row]) for name, row in row_of.items()}
    return decision.name, runner_up, totals, {reason: names for reason, names in reasons.items() if names}


@large
@given(worlds())
def test_feasible_nodes_equal_oracle_and_others_have_reasons(world: World) -> None:
    history = history_of(world)
    decision = decide(history.wanted(), history.table, BALANCED)
    able = fitting(decision)
    assert able == history.oracle.feasible(world.wanted)
    assert (decision.name in able) if able else not decision.fits
    refused = dict(all_rejections(decision))
    assert set(refused) == set(history.table.row_of) - able
    assert sum(count for _, count in rejection_counts(decision)) == len(refused)
    assert all(str(shortfall) for found in refused.values() for shortfall in found)
    assert summarize(decision)
    for term in (*world.wanted.node_terms, *(each.term for each in world.wanted.node_preferences)):
        assert all(
            term.matches(dict(each.labels)) == term_matches(term, each.labels)
            for each in history.oracle.nodes.values()
        )


@large
@given(worlds())
def test_allocations_equal_sum_of_placements(world: World) -> None:
    check_sums(history_of(world).table)


@large
@given(worlds())
def test_decision_is_independent_of_row_order(world: World) -> None:
    histories = history_of(world, EVERYTHING), ClusterHistory(world, EVERYTHING, backwards=True)
    assert histories[0].oracle.placed == histories[1].oracle.placed
    assert decision_facts(decide(histories[0].wanted(), histories[0].table, EVERYTHING)) == decision_facts(
        decide(histories[1].wanted(), histories[1].table, EVERYTHING)
    )


@large
@given(worlds())
def test_repeated_and_fresh_decisions_agree(world: World) -> None:
    history = history_of(world, EVERYTHING)
    first = decision_facts(decide(history.wanted(), history.table, EVERYTHING))
    assert decision_facts(decide(history.wanted(), history.table, EVERYTHING)) == first
    history.table.shape_caches.clear()
    assert decision_facts(decide(history.wanted(), history.table, EVERYTHING)) == first
    fresh = history.rebuilt_table()
    assert decision_facts(decide(fresh.make_ask("default/new", world.wanted), fresh, EVERYTHING)) == first


@large
@given(worlds())
def test_what_if_leaves_no_trace(world: World) -> None:
    history = history_of(world, EVERYTHING)
    first = decision_facts(decide(history.wanted(), history.table, EVERYTHING))
    before = dict(history.table.placements)
    with history.table.what_if():
        for name in before:
            history.table.forget(name)
            decide(history.wanted(), history.table, EVERYTHING)
        for number in range(3):
            again = decide(history.wanted(f"new{number}"), history.table, EVERYTHING)
            if again.fits:
                history.table.assume(history.wanted(f"new{number}"), again.chosen)
    assert history.table.placements == before
    check_sums(history.table)
    assert decision_facts(decide(history.wanted(), history.table, EVERYTHING)) == first


@large
@given(worlds(), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_row_subset_answers_equal_full_table(world: World, some: list[int]) -> None:
    history = history_of(world)
    table, asked = history.table, history.wanted()
    picked = np.array([row % table.count for row in some], np.intp)
    for each in (*FILTERS.values(), *SCORES.values()):
        if each.scope not in ("fixed", "row") or not each.applies(asked):
            continue
        if hasattr(each, "filter"):
            everywhere, here = each.filter(asked, table), each.filter(asked, RowSubset(table, picked))
            assert list(everywhere) == list(here)
            assert all(np.array_equal(everywhere[reason][picked], mask) for reason, mask in here.items())
        else:
            assert np.array_equal(
                each.score(asked, table)[picked], each.score(asked, RowSubset(table, picked))
            )


@large
@given(worlds(), st.sampled_from(sorted(PRESETS)))
def test_scores_are_normalised_and_presets_choose_feasible(world: World, preset: str) -> None:
    history = history_of(world)
    table, asked, able = history.table, history.wanted(), history.oracle.feasible(world.wanted)
    for each in SCORES.values():
        if each.applies(asked):
            values = each.score(asked, table)[[table.row_of[name] for name in able]]
            assert ((values >= -1e-6) & (values <= 1 + 1e-6)).all(), (each.name, values)
    decision = decide(asked, table, compile_preset(preset))
    assert decision.name in able if able else not decision.fits


@large
@given(worlds())
def test_fixed_scope_answers_ignore_placements(world: World) -> None:
    history = history_of(world)
    empty, full = nodes(*history.oracle.nodes.values()), history.table
    wanted = replace(world.wanted, affinity_terms=(), anti_affinity_terms=(), spread=())
    for each in FILTERS.values():
        asks = empty.make_ask("default/new", wanted), full.make_ask("default/new", wanted)
        if each.scope == "fixed" and each.applies(asks[0]):
            found = [each.filter(ask, table) for ask, table in zip(asks, (empty, full), strict=True)]
            answers = [
                {
                    reason.summary(): {name for name, row in table.row_of.items() if mask[row]}
                    for reason, mask in masks.items()
                }
                for masks, table in zip(found, (empty, full), strict=True)
            ]
            assert answers[0] == answers[1]


@large
@given(worlds(), st.integers(1, 12))
def test_batch_decision_equals_single_decisions(world: World, count: int) -> None:
    wanted = replace(
        world.wanted, gpu=None, host_ports=(), affinity_terms=(), anti_affinity_terms=(), spread=()
    )
    history = ClusterHistory(replace(world, wanted=wanted), ROW_BY_ROW)
    asks = [history.wanted(f"new{number}") for number in range(count)]
    if not can_batch(asks[0], ROW_BY_ROW, history.table):
        return
    together = decide_batch(asks[0], history.table, ROW_BY_ROW, count).rows
    alone = []
    for ask in asks:
        decision = decide(ask, history.table, ROW_BY_ROW)
        if decision.fits:
            history.table.assume(ask, decision.chosen)
            alone.append(decision.chosen)
    assert together == alone


GROUPED = (
    EVERYTHING,
    *map(compile_preset, sorted(PRESETS)),
    compile_profile(ProfileSpec("service first", {"SpreadService": 1000.0, "BinPacking": 0.001})),
    compile_profile(ProfileSpec("service last", {"SpreadService": 0.003, "LeastTaken": 777.7, "Price": 3.3})),
    compile_profile(
        ProfileSpec("all that can be grouped", {**dict.fromkeys(ROW_SCORES, 1.0), "SpreadService": 1.0})
    ),
)


@large
@given(worlds(), st.sampled_from(GROUPED), st.integers(2, 12))
def test_cycle_run_equals_runs_of_single_members(world: World, profile: Profile, count: int) -> None:
    outcomes = []
    for together in (True, False):
        history = history_of(world)
        run = [history.wanted(f"new{number}") for number in range(count)]
        cycle = CompositeScheduler(profile, Reservations(history.table)).cycle(
            [run] if together else [[each] for each in run], 0.0
        )
        check_sums(history.table)
        outcomes.append(
            (
                [(each.ask.name, each.node) for each in cycle.scheduled],
                [(each.ask.name, each.reason) for each in cycle.unschedulable],
            )
        )
    assert outcomes[0] == outcomes[1]


def place_gang(world: World, least: int, priorities: Sequence[int]) -> int:
    """Place a gang; return how many members were scheduled. Every victim has a lower priority than its
    preemptor."""
    history = history_of(world)
    before = dict(history.table.placements)
    gang = [
        replace(history.wanted(f"new{number}", priority), group="default/gang", min_member=least)
        for number, priority in enumerate(priorities)
    ]
    cycle = CompositeScheduler(
        BALANCED, Reservations(history.table), preemptor=Preemptor(history.table, BALANCED)
    ).cycle([gang], 0.0)
    assert not cycle.scheduled or len(cycle.scheduled) >= least
    assert len(cycle.scheduled) + len(cycle.unschedulable) == len(gang)
    assert all(each.reason for each in cycle.unschedulable)
    victims = {victim for victim, _ in cycle.evictions}
    assert {
        name: each for name, each in history.table.placements.items() if each.ask.group != "default/gang"
    } == {name: each for name, each in before.items() if name not in victims}
    importance = {ask.name: ask.priority for ask in gang}
    assert all(before[victim].ask.priority < importance[whom] for victim, whom in cycle.evictions)
    for each in cycle.scheduled:
        assert_room_was_left(history.table, history.table.row_of[each.node], each.ask)
    check_sums(history.table)
    return len(cycle.scheduled)


PRIORITIES = st.lists(st.sampled_from((0, 1, 2)), min_size=2, max_size=5)


@large
@given(plain_worlds(), st.integers(1, 5), PRIORITIES)
def test_gang_reaches_min_member_or_is_not_placed(world: World, least: int, priorities: list[int]) -> None:
    place_gang(world, least, priorities)


def makes_room(history: ClusterHistory, table: NodeTable, row: int, gone: set[str]) -> bool:
    """Whether the oracle accepts the workload on the node without the named placements."""
    kept = history.oracle.placed
    history.oracle.placed = {name: each for name, each in kept.items() if name not in gone}
    found = can_take(
        history.oracle.nodes[table.names[row]],
        list(history.oracle.nodes.values()),
        list(history.oracle.placed.values()),
        history.world.wanted,
    )
    history.oracle.placed = kept
    return found


def preempt_for(world: World, priority: int) -> int:
    """Find victims for a workload on a full cluster; return how many were found."""
    history = history_of(world)
    history.fill()
    table, newcomer = history.table, history.wanted("new", priority)
    decision = decide(newcomer, table, BALANCED)
    assert not decision.fits
    before = dict(table.placements)
    found = Preemptor(table, BALANCED).find(newcomer, decision)
    assert table.placements == before
    if found is None:
        for row in table.row_of.values():
            lower = {
                name for name, each in table.placements_by_row[row].items() if each.ask.priority < priority
            }
            assert not (lower and makes_room(history, table, row, lower)), (table.names[row], lower)
        return 0
    assert all(victim.ask.priority < priority and victim.row == found.row for victim in found.victims)
    assert makes_room(history, table, found.row, set(found.victim_names))
    for fewer in range(len(found.victim_names)):
        for spared in combinations(found.victim_names, fewer):
            assert not makes_room(history, table, found.row, set(spared)), "one too many"
    return len(found.victim_names)


@large
@given(worlds(), st.sampled_from((1, 2)))
def test_victims_have_lower_priority_and_are_minimal(world: World, priority: int) -> None:
    preempt_for(world, priority)


def place_spread(world: World, key: str, skew: int, count: int) -> bool:
    """Place spread replicas; return whether the spread rejected a node for one of them."""
    spread = a_spread(key, skew, labels={"app": "a"})
    wanted = replace(
        world.wanted, labels=(("app", "a"),), affinity_terms=(), anti_affinity_terms=(), spread=(spread,)
    )
    history = ClusterHistory(replace(world, wanted=wanted), BALANCED)
    table, refused = history.table, False
    for number in range(count):
        ask = history.wanted(f"new{number}")
        decision = decide(ask, table, BALANCED)
        if not decision.fits:
            break
        refused = refused or any(
            isinstance(reason, MaxSkewExceeded) and mask.any() for reason, mask in decision.reasons.items()
        )
        table.assume(ask, decision.chosen)
        history.oracle.place(ask.name, wanted, decision.name)
        domain = {name: facts.labels.get(key) for name, facts in history.oracle.nodes.items()}
        taken = [
            domain[name]
            for name in nodes_of_matching(
                list(history.oracle.placed.values()), wanted.namespace, LabelSelector({"app": "a"})
            )
        ]
        open_to_it = [
            facts.name
            for facts in history.oracle.nodes.values()
            if is_usable(facts) and is_allowed(facts, wanted)
        ]
        assert (
            taken.count(domain[decision.name])
            - min(taken.count(domain[name]) for name in open_to_it if domain[name])
            <= skew
        )
    return refused


@large
@given(plain_worlds(), st.sampled_from(("zone", "node", "rack")), st.sampled_from((1, 2)), st.integers(4, 8))
def test_topology_spread_keeps_max_skew(world: World, key: str, skew: int, count: int) -> None:
    place_spread(world, key, skew, count)


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param(
            lambda world, one: preempt_for(world(BYTES), one((1, 2))) > 0, id="preemption evicts a workload"
        ),
        pytest.param(
            lambda world, one: place_spread(
                plain_world(world(BYTES)), one(("zone", "node", "rack")), one((1, 2)), 6
            ),
            id="spread rejects a node",
        ),
        pytest.param(
            lambda world, one: place_gang(plain_world(world(BYTES)), 2, [one((0, 1, 2))] * 3) >= 2,
            id="a gang is placed",
        ),
    ],
)
def test_generated_worlds_exercise_their_features(counts: Any) -> None:
    rng = Random(7)
    found = [counts(lambda size: world_from_bytes(rng.randbytes(size)), rng.choice) for _ in range(60)]
    assert sum(found) >= 30, f"{sum(found)} of {len(found)}"
