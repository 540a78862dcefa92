"""What holds in every small world: the scheduler agrees with the obvious loops, says why, and is not swayed by how it got there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations as pairs
from itertools import pairwise, product
from typing import Any

import numpy as np
from build import a_node, a_spread, a_taint, a_toleration, a_workload, near, node_term, nodes, requirement
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import feasible

from lattice.engine.decide import RULED_OUT, decide
from lattice.engine.explain import counts, refusals, sentence
from lattice.engine.table import Some
from lattice.kinds.constraint import MachineImage, PreferredNodes, PreferredWorkloads, Volume
from lattice.scheduling.ask import Demands
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.profile import FILTERS, PRESETS, SCORES, ProfileSpec, compile_profile

settings.register_profile("short", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("short"), max_examples=10_000)
LONG = os.environ.get("LATTICE_LONG") == "1"
proved = settings(settings.get_profile("long" if LONG else "short"))

EVERYTHING = compile_profile(ProfileSpec("everything", dict.fromkeys(SCORES, 1.0)))
KEYS = ("zone", "node", "rack") * 4 + ("nowhere",)
TAINTS = (a_taint("t"), a_taint("t", "NoExecute"), a_taint("u", "NoSchedule", "1"), a_taint("u", "PreferNoSchedule", "1"))
TOLERATIONS = (
    a_toleration("t", "Exists"),
    a_toleration("t", effect="NoExecute"),
    a_toleration("u", value="1"),
    a_toleration(operator="Exists"),
)
REQUIREMENTS = (
    requirement("rack", "In", "r1", "r2"),
    requirement("rack", "NotIn", "r1"),
    requirement("rack", "Exists"),
    requirement("size", "DoesNotExist"),
    requirement("size", "Gt", "2"),
    requirement("size", "Lt", "3"),
)
NODE_TERMS = [node_term(*each) for each in (*pairs(REQUIREMENTS, 2), *((each,) for each in REQUIREMENTS), ())]
TERMS = [near(key, app=app) for key in KEYS for app in "ab"]
SPREADS = [
    a_spread(key, skew, soft=soft, labels=labels)
    for key, skew, soft, labels in product(KEYS, (1, 2), (False, False, True), (None, {"app": "a"}))
]


def some_of(choices: Sequence[Any], often: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    """None, one or two of them; none `often` times as often as one, two seldom."""
    ones: list[tuple[Any, ...]] = [(each,) for each in choices]
    twos = list(pairwise(choices))[::3]
    return st.sampled_from([()] * (often * len(ones)) + ones + twos)


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 4 * len(others) + list(others))


# One draw decides several things at once: drawing is what takes the time.
PLACES = [
    {key: value for key, value in zip(("zone", "rack", "size", "cluster"), values, strict=True) if value}
    for values in product(("x", "x", "y", "y", ""), ("r1", "r1", "r2", ""), ("1", "4", ""), ("c", "c", "d"))
]
ROOMS = [
    {"cpu": cpu, "memory": memory, "workloads": slots, "ports": 2, "fpga": fpga}
    for cpu, memory, slots, fpga in product((2, 4, 6), (2, 4, 6), (2, 4, 9), (0, 1, 2))
]
HEALTH = st.sampled_from([{}] * 30 + [{"ready": False}, {"cordoned": True}, {"draining": True}])
ABILITIES = [
    {"runtimes": frozenset(runtimes), "licences": frozenset(licences), "image": image, "price": price}
    for runtimes, licences, image, price in product(((), (), ("process",)), ((), ("pro",)), ("", "os-1.2", "os-2.0"), (0, 1, 3))
]
NODES = st.builds(
    lambda place, room, taints, gpus, rest: (place, room, taints, gpus, rest),
    st.sampled_from(PLACES),
    st.sampled_from(ROOMS),
    some_of(TAINTS, 6),
    st.sampled_from([(), (), ("v100",), ("v100", "v100"), ("a100",)]),
    st.tuples(HEALTH, st.sampled_from(ABILITIES)),
)


def as_nodes(drawn: list[Any]) -> list[NodeFacts]:
    return [
        a_node(f"n{number}", room, labels=place, taints=taints, gpus=gpus, **health, **abilities)
        for number, (place, room, taints, gpus, (health, abilities)) in enumerate(drawn)
    ]


REQUESTS = [{"cpu": cpu, "memory": memory, "fpga": fpga} for cpu, memory, fpga in product((0, 1, 2), (0, 1, 2), (0,) * 7 + (1,))]
WHO = [
    {"namespace": namespace, "labels": {"app": app}, "service": service}
    for namespace, app, service in product(("default", "default", "other"), "ab", ("", "s", "t"))
]
PORTS = [
    {"ports": ports, "host_ports": host_ports}
    for ports, host_ports in product((0, 0, 1), ((), (), (), (), ((80, "TCP"),), ((80, "UDP"), (443, "TCP"))))
]
LIKED_NODES = [PreferredNodes(weight=weight, term=term) for weight, term in zip((1, 50, 100) * 9, NODE_TERMS, strict=False)]
LIKED_COMPANY = [PreferredWorkloads(weight=weight, term=term) for weight, term in zip((1, 50, 100) * 3, TERMS, strict=False)]


ABOUT_NODES = {
    "gpu": mostly(None, 1, 2, "300m", "700m"),
    "runtime": mostly("", "process", "container"),
    "cluster": mostly("", "c"),
    "node_selector": mostly({}, {"rack": "r1"}),
    "node_terms": some_of(NODE_TERMS),
    "node_preferences": some_of(LIKED_NODES),
    "volumes": mostly((), (Volume(name="v", zone="x"),)),
    "licences": mostly((), ("pro", "max")),
    "image": mostly(None, MachineImage(pattern="os-*")),
}
ABOUT_NEIGHBOURS = {
    "near": some_of(TERMS),
    "near_preferences": some_of(LIKED_COMPANY),
    "far": some_of(TERMS, 1),
    "far_preferences": some_of(LIKED_COMPANY),
    "spread": some_of(SPREADS),
}
# Who asks for everything at once fits nowhere, and tells little about any single demand.
FOCUS = ({}, ABOUT_NODES, ABOUT_NEIGHBOURS, ABOUT_NEIGHBOURS, {**ABOUT_NODES, **ABOUT_NEIGHBOURS})


@st.composite
def some_demands(draw: st.DrawFn) -> Demands:
    focus = draw(st.sampled_from(range(len(FOCUS))))
    return a_workload(
        draw(st.sampled_from(REQUESTS)),
        **draw(st.sampled_from(WHO)),
        **draw(st.sampled_from(PORTS)),
        tolerations=draw(some_of(TOLERATIONS, 1)),
        **{name: draw(each) for name, each in FOCUS[focus].items()},
    )


@dataclass
class World:
    facts: list[NodeFacts]
    demands: list[Demands]  # arrive in this order
    gone: list[int]  # who of them leaves again, once all are there
    wanted: Demands


@st.composite
def worlds(draw: st.DrawFn) -> World:
    kinds = draw(st.lists(some_demands(), min_size=1, max_size=3))
    demands = draw(st.lists(st.sampled_from(kinds), min_size=draw(st.sampled_from([0, 3, 6])), max_size=8))
    gone = draw(st.lists(st.integers(0, max(0, len(demands) - 1)), max_size=2, unique=True)) if demands else []
    facts = as_nodes(draw(st.lists(NODES, min_size=1, max_size=6)))
    return World(facts, demands, gone, draw(st.one_of(st.sampled_from(kinds), some_demands())))


def settled(world: World, *, backwards: bool = False) -> tuple[NodeTable, list[tuple[Demands, str]]]:
    """A table where everything was decided and placed, and those who leave have left; and what the oracle knows of it."""
    facts = list(reversed(world.facts)) if backwards else world.facts
    table, placed = nodes(*facts, load=not backwards), {}
    for number, demands in enumerate(world.demands):
        asked = table.asked(f"{demands.namespace}/w{number}", demands)
        decision = decide(asked, table, EVERYTHING)
        assert ({decision.name} if decision.fits else set()) <= feasible(world.facts, list(placed.values()), demands)
        if decision.fits:
            table.assume(asked, decision.chosen)
            placed[number] = (demands, decision.name)
    for number in world.gone:
        if number in placed and placed[number][0].gpu is None:  # the oracle replays GPUs in order of arrival
            table.forget(f"{placed.pop(number)[0].namespace}/w{number}")
    return table, list(placed.values())


def fitting(table: NodeTable, wanted: Demands) -> set[str]:
    decision = decide(table.asked("default/new", wanted), table, EVERYTHING)
    return {name for name, row in table.row_of.items() if decision.totals[row] != RULED_OUT}


@proved
@given(worlds())
def test_the_same_nodes_fit_as_by_the_obvious_loops_and_every_other_has_a_reason(world: World) -> None:
    table, placed = settled(world)
    assert fitting(table, world.wanted) == feasible(world.facts, placed, world.wanted)
    assert_nothing_is_given_away_twice(world, table, placed)
    decision = decide(table.asked("default/new", world.wanted), table, EVERYTHING)
    refused = dict(refusals(decision))
    assert set(refused) == set(table.row_of) - fitting(table, world.wanted)
    assert sum(count for _, count in counts(decision)) == len(refused)
    assert all(str(shortfall) for found in refused.values() for shortfall in found)
    assert sentence(decision)


@proved
@given(worlds())
def test_the_order_of_rows_does_not_matter(world: World) -> None:
    (one, placed), (other, placed_too) = settled(world), settled(world, backwards=True)
    assert placed == placed_too
    decisions = [decide(table.asked("default/new", world.wanted), table, EVERYTHING) for table in (one, other)]
    assert decisions[0].name == decisions[1].name
    for name in one.row_of:
        assert decisions[0].totals[one.row_of[name]] == decisions[1].totals[other.row_of[name]]


@proved
@given(worlds())
def test_deciding_again_and_deciding_afresh_agree(world: World) -> None:
    table, placed = settled(world)
    asked = table.asked("default/new", world.wanted)
    first, again = decide(asked, table, EVERYTHING).freeze(), decide(asked, table, EVERYTHING)
    fresh = nodes(*world.facts)
    for number, (demands, name) in enumerate(placed):
        fresh.assume(fresh.asked(f"{demands.namespace}/p{number}", demands), fresh.row_of[name])
    anew = decide(fresh.asked("default/new", world.wanted), fresh, EVERYTHING)
    for other in (again, anew):
        assert (first.name, first.runner_up) == (other.name, other.runner_up)
        assert np.array_equal(first.totals, other.totals)
        assert {reason.summary(): mask.tolist() for reason, mask in first.reasons.items()} == {
            reason.summary(): mask.tolist() for reason, mask in other.reasons.items()
        }


@proved
@given(worlds(), st.data())
def test_a_few_rows_are_answered_like_all_of_them(world: World, data: st.DataObject) -> None:
    table, _ = settled(world)
    asked = table.asked("default/new", world.wanted)
    picked = np.array(data.draw(st.lists(st.integers(0, table.count - 1), min_size=1, max_size=8)), np.intp)
    some = Some(table, picked)
    for each in (*FILTERS.values(), *SCORES.values()):
        if each.scope not in ("fixed", "row") or not each.applies(asked):
            continue
        if hasattr(each, "filter"):
            everywhere, here = each.filter(asked, table), each.filter(asked, some)
            assert list(everywhere) == list(here)
            assert all(np.array_equal(everywhere[reason][picked], mask) for reason, mask in here.items())
        else:
            assert np.array_equal(each.score(asked, table)[picked], each.score(asked, some))


@proved
@given(worlds(), st.sampled_from(sorted(PRESETS)))
def test_scores_of_nodes_that_fit_are_between_nothing_and_one_and_presets_choose_among_them(world: World, preset: str) -> None:
    table, _ = settled(world)
    asked = table.asked("default/new", world.wanted)
    able = fitting(table, world.wanted)
    for each in SCORES.values():
        if each.applies(asked):
            values = each.score(asked, table)[[table.row_of[name] for name in able]]
            assert ((values >= -1e-6) & (values <= 1 + 1e-6)).all(), (each.name, values)
    decision = decide(asked, table, compile_profile(PRESETS[preset]))
    assert decision.name in able if able else not decision.fits


def assert_nothing_is_given_away_twice(world: World, table: NodeTable, placed: list[tuple[Demands, str]]) -> None:
    for facts in world.facts:
        here = [demands for demands, name in placed if name == facts.name]
        for resource, total in facts.totals.items():
            assert sum(dict(each.requests).get(resource, 0) for each in here) <= total
        assert (table.gpus.free(table.row_of[facts.name]) >= 0).all()


@proved
@given(worlds())
def test_fixed_answers_do_not_move_with_what_is_placed(world: World) -> None:
    empty, (full, _) = nodes(*world.facts), settled(world)
    wanted = replace(world.wanted, near=(), far=(), spread=())
    for each in FILTERS.values():
        asks = empty.asked("default/new", wanted), full.asked("default/new", wanted)
        if each.scope == "fixed" and each.applies(asks[0]):
            answers = [each.filter(ask, table) for ask, table in zip(asks, (empty, full), strict=True)]
            assert [mask.tolist() for mask in answers[0].values()] == [mask.tolist() for mask in answers[1].values()]
