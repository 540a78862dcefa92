"""Tests of the tie-breakers: each follows its rule, and equal input gives equal selections."""

from collections import Counter
from random import Random

import pytest
from build.property_settings import many
from build.small_clusters import ask, indifferent, nodes, packing, put, spreading
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import NO_ROW, decide
from lattice.kinds.constraints import NodeTerm, PreferredNodes, PreferredWorkloads, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.scheduling.cycle.tie_break import Selector, TieBreaker

LIKES_Z1 = PreferredNodes(
    weight=1, term=NodeTerm(match_expressions=(Requirement(key="zone", operator="In", values=("z1",)),))
)
WEB = WorkloadTerm(selector=LabelSelector(match_labels={"app": "web"}), topology_key="node")


def test_selection_without_candidates_has_a_problem() -> None:
    table = nodes(100, 100)
    selection = Selector().select(decide(ask(table, "big", 500), table, indifferent()))
    assert (selection.row, selection.fits, len(selection.candidates)) == (NO_ROW, False, 0)
    assert selection.problem == "no candidates: each of the 2 nodes is ruled out"
    empty = nodes()
    assert (
        Selector().select(decide(ask(empty, "any"), empty, indifferent())).problem
        == "no candidates: there are no nodes"
    )


def test_score_is_scaled_0_to_100() -> None:
    table = nodes(1000, 4000)
    put(table, "n1", [ask(table, "half", 2000)])
    selection = Selector().select(decide(ask(table, "any", 500), table, packing()))
    assert table.names[selection.row] == "n1"
    assert 0 < selection.score <= 100


@pytest.mark.parametrize(
    "tie_breaker", [each for each in TieBreaker if each is not TieBreaker.WEIGHTED_RANDOM]
)
def test_selection_draws_from_top_scores_only(tie_breaker: TieBreaker) -> None:
    table = nodes(1000, 1000, 4000, 4000)
    decision = decide(ask(table, "any", 500), table, spreading())
    selection = Selector(tie_breaker, Random(1)).select(decision)
    assert {table.names[row] for row in selection.candidates} == {"n2", "n3"}
    assert selection.row in selection.candidates


def test_fixed_tie_break_equals_engine_choice() -> None:
    table = nodes(*[1000] * 9)
    decision = decide(ask(table, "any"), table, indifferent())
    assert Selector(TieBreaker.FIXED).select(decision).row == decision.chosen


def test_least_loaded_selects_emptiest_tie() -> None:
    table = nodes(1000, 1000, 1000)
    put(table, "n0", [ask(table, "a", 500)])
    put(table, "n2", [ask(table, "b", 300)])
    selection = Selector(TieBreaker.LEAST_LOADED).select(decide(ask(table, "any"), table, indifferent()))
    assert table.names[selection.row] == "n1"


def test_random_is_seeded_and_reaches_every_tie() -> None:
    table = nodes(*[1000] * 4)
    decision = decide(ask(table, "any"), table, indifferent())
    drawn = [
        [Selector(TieBreaker.RANDOM, thrown).select(decision).row for _ in range(200)]
        for thrown in (Random(7), Random(7), Random(8))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {0, 1, 2, 3}


def test_weighted_random_prefers_higher_scores() -> None:
    table = nodes(1000, 2000, 8000, 8000)
    decision = decide(ask(table, "any", 900), table, spreading())
    selector = Selector(TieBreaker.WEIGHTED_RANDOM, Random(3), top=3)
    drawn = Counter(table.names[selector.select(decision).row] for _ in range(600))
    assert set(drawn) == {"n1", "n2", "n3"}
    assert drawn["n1"] < drawn["n2"]
    assert drawn["n1"] < drawn["n3"]


def test_weighted_random_without_scores_is_even() -> None:
    table = nodes(1000, 1000)
    decision = decide(ask(table, "any"), table, indifferent())
    selector = Selector(TieBreaker.WEIGHTED_RANDOM, Random(3))
    drawn = Counter(selector.select(decision).row for _ in range(200))
    assert min(drawn.values()) > 60


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        pytest.param({"node_preferences": (LIKES_Z1,)}, {"n1"}, id="a preferred label"),
        pytest.param(
            {"affinity_preferences": (PreferredWorkloads(weight=1, term=WEB),)},
            {"n0"},
            id="a preferred workload",
        ),
        pytest.param(
            {"anti_affinity_preferences": (PreferredWorkloads(weight=1, term=WEB),)},
            {"n1", "n2"},
            id="no anti-preferred workload",
        ),
        pytest.param({}, {"n0", "n1", "n2"}, id="without preferences all are equal"),
    ],
)
def test_affinity_selects_most_preferred_tie(more: dict[str, object], chosen: set[str]) -> None:
    table = nodes(1000, 1000, 1000)
    put(table, "n0", [ask(table, "web", 10, labels=(("app", "web"),))])
    selection = Selector(TieBreaker.AFFINITY).select(decide(ask(table, "any", **more), table, indifferent()))
    assert table.names[selection.row] in chosen


@many
@given(count=st.integers(1, 9), rounds=st.integers(1, 40))
def test_round_robin_is_even_over_ties(count: int, rounds: int) -> None:
    table = nodes(*[1000] * count)
    decision = decide(ask(table, "any"), table, indifferent())
    selector = Selector(TieBreaker.ROUND_ROBIN)
    drawn = Counter(dict.fromkeys(range(count), 0))
    drawn.update(selector.select(decision).row for _ in range(rounds))
    assert max(drawn.values()) - min(drawn.values()) <= 1


@many
@given(
    cpus=st.lists(st.integers(100, 500), min_size=1, max_size=8),
    tie=st.sampled_from(TieBreaker),
    seed=st.integers(0, 99),
)
def test_selection_is_independent_of_row_order(cpus: list[int], tie: TieBreaker, seed: int) -> None:
    chosen, facts = [], nodes(*cpus).node_infos
    for order in (sorted(range(len(cpus))), sorted(range(len(cpus)), reverse=True)):
        table = nodes()
        for number in order:
            table.put_node(facts[number])  # type: ignore[arg-type]
        selection = Selector(tie, Random(seed)).select(decide(ask(table, "any", 100), table, spreading()))
        chosen.append((table.names[selection.row], selection.score))
    assert chosen[0] == chosen[1]
