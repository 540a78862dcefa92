"""Tests of the solver against an exhaustive search: its bound is never above the optimum, its cost never
below, and every rule holds."""

import itertools
import random
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Invalid
from lattice.placement.optimise.problem import (
    Load,
    MachineMinimum,
    MachineModel,
    MachineSource,
    PlacementProblem,
    ProximityRule,
    ReplicaCap,
    Solution,
    SpreadRule,
)
from lattice.placement.optimise.solve import cost_lower_bound, solve

RESOURCES = ("cpu", "memory")
TO_OPTIMALITY = {"time_limit": 60.0, "gap": 0.0}

# ---- exhaustive search


@cache
def fewest_machines(size: tuple[int, ...], items: tuple[tuple[int, ...], ...]) -> int:
    """Exact bin packing: each item in each open machine or a new one."""
    best = len(items)

    def go(at: int, free: tuple[tuple[int, ...], ...]) -> None:
        nonlocal best
        if len(free) >= best and at < len(items):
            return
        if at == len(items):
            best = min(best, len(free))
            return
        for i in {have: i for i, have in enumerate(free)}.values():
            left = tuple(have - need for have, need in zip(free[i], items[at], strict=True))
            if min(left) >= 0:
                go(at + 1, (*free[:i], left, *free[i + 1 :]))
        go(at + 1, (*free, tuple(have - need for have, need in zip(size, items[at], strict=True))))

    go(0, ())
    return best


def true_optimum(program: PlacementProblem) -> int | None:
    """The least total over every assignment; None if no assignment keeps the rules."""
    sources = {source.name: source for source in program.sources}
    models = {(source.name, model.name): model for source in program.sources for model in source.models}
    options = [
        [spots for spots in every_spread(load, models) if rules_hold(load, spots, sources)]
        for load in program.loads
    ]
    totals = (total_of(program, sources, models, choice) for choice in itertools.product(*options))
    return min((total for total in totals if total is not None), default=None)


def every_spread(load, models):
    able = [
        key
        for key in sorted(models)
        if key[1] in load.usable_models.get(key[0], ())
        and all(n <= s for n, s in zip(load.needs, models[key].size, strict=True))
    ]
    return [Counter(spots) for spots in itertools.combinations_with_replacement(able, load.replicas)]


def rules_hold(load, spots, sources) -> bool:
    per_source, per_region = Counter(), Counter()
    for (source, _), count in spots.items():
        per_source[source] += count
        per_region[sources[source].region] += count
    return load.replicas == 0 or (
        len(per_region) >= load.min_regions
        and all(any(per_source[source] for source in group) for group in load.required_source_groups)
        and all(sum(per_source[source] for source in cap.sources) <= cap.max_replicas for cap in load.caps)
        and all(
            max(counts) - min(counts) <= rule.max_skew
            for rule in load.spreads
            for counts in [[sum(per_source[source] for source in domain) for domain in rule.domains]]
        )
    )


def proximity_holds(loads, choice) -> bool:
    """Whether every replica of a load with a proximity rule has a replica of the other load beside it."""
    where = {
        load.name: {source for (source, _), count in spots.items() if count}
        for load, spots in zip(loads, choice, strict=True)
    }
    return all(
        any(other in near.reachable_sources[source] for other in where[near.target_load])
        for load in loads
        for near in load.proximity_rules
        for source in where[load.name]
        if source in near.reachable_sources
    )


def moves_of(load, spots, program) -> int:
    able = {
        (s.name, m.name)
        for s in program.sources
        for m in s.models
        if m.name in load.usable_models.get(s.name, ())
        and all(n <= z for n, z in zip(load.needs, m.size, strict=True))
    }
    stay = {key: count for key, count in load.current_counts.items() if key in able}
    return max(
        0, sum(max(0, n - spots[key]) for key, n in stay.items()) - max(0, sum(stay.values()) - load.replicas)
    )


def total_of(program, sources, models, choice) -> int | None:
    items = {key: [] for key in models}
    for load, spots in zip(program.loads, choice, strict=True):
        for key, count in spots.items():
            items[key] += [load.needs] * count
    needed = {
        key: fewest_machines(models[key].size, tuple(sorted(listed, reverse=True)))
        for key, listed in items.items()
        if listed
    }
    moves = [moves_of(load, spots, program) for load, spots in zip(program.loads, choice, strict=True)]
    if (program.max_moves is not None and sum(moves) > program.max_moves) or not proximity_holds(
        program.loads, choice
    ):
        return None
    allowed = [
        machines for machines in every_top_up(program, needed) if within_limits(program, models, machines)
    ]
    moving = sum(
        -(-load.move_cost // program.payback_hours) * count
        for load, count in zip(program.loads, moves, strict=True)
    )
    return min(
        (moving + sum(models[key].price * count for key, count in each.items()) for each in allowed),
        default=None,
    )


def every_top_up(program, needed):
    """Every choice of the empty machines that minimum counts require."""
    ways = [
        [
            [(source.name, model) for model in extra]
            for extra in itertools.combinations_with_replacement(
                least.models, max(0, least.min_machines - there)
            )
        ]
        for source in program.sources
        for least in source.minimums
        if (there := sum(needed.get((source.name, model), 0) for model in least.models))
    ]
    return [Counter(needed) + Counter(itertools.chain(*choice)) for choice in itertools.product(*ways)]


def within_limits(program, models, machines) -> bool:
    spent, committed = Counter(), Counter()
    if any(
        model.max_machines is not None and machines.get(key, 0) > model.max_machines
        for key, model in models.items()
    ):
        return False
    for source in program.sources:
        for least in source.minimums:
            if 0 < sum(machines.get((source.name, model), 0) for model in least.models) < least.min_machines:
                return False
    for source in program.sources:
        here = [(model, machines.get((source.name, model.name), 0)) for model in source.models]
        if source.max_machines is not None and sum(n for _, n in here) > max(
            source.max_machines, sum(m.existing for m, _ in here)
        ):
            return False
        for r, limit in enumerate(source.resource_limits):
            if limit is not None and sum(m.size[r] * n for m, n in here) > max(
                limit, sum(m.size[r] * m.existing for m, _ in here)
            ):
                return False
        for ledger in source.ledgers:
            spent[ledger] += sum(m.price * n for m, n in here)
            committed[ledger] += sum(m.price * m.existing for m, _ in here)
    return all(
        amount <= max(program.ledger_limits.get(ledger, 1 << 60), committed[ledger])
        for ledger, amount in spent.items()
    )


# ---- small random programs


@st.composite
def programs(draw: st.DrawFn, alone: bool = False) -> PlacementProblem:
    """Up to three loads and four models; `alone`: no two replicas fit on a priced machine."""
    sources = []
    for i in range(draw(st.integers(1, 3))):
        models = tuple(
            MachineModel(
                f"m{k}",
                draw(st.tuples(st.integers(2, 9), st.integers(2, 9))) + ((1,) if alone else ()),
                draw(st.integers(0, 12)),
                existing := draw(st.sampled_from([0, 0, 1, 2])),
                None if alone else draw(st.sampled_from([None, None, None, existing])),
            )
            for k in range(draw(st.integers(1, 2 if i < 2 else 1)))
        )
        most = draw(st.sampled_from([(), (), (12, None), (None, 15)]))
        sources.append(
            MachineSource(
                f"s{i}",
                draw(st.sampled_from(["east", "west", "north"])),
                models,
                draw(st.sampled_from([None, None, None, 2, 3])),
                most + ((None,) if alone and most else ()),
                draw(st.sampled_from([(), ("team",), ("team", "firm")])),
                ()
                if alone
                else draw(
                    st.sampled_from(
                        [
                            (),
                            (),
                            (MachineMinimum(tuple(model.name for model in models), 2),),
                            (MachineMinimum(("m0",), 3),),
                        ]
                    )
                ),
            )
        )
    names = [f"l{i}" for i in range(draw(st.integers(1, 3)))]
    loads = tuple(draw(load_of(name, sources, alone, names)) for name in names)
    return PlacementProblem(
        (*RESOURCES, "slot") if alone else RESOURCES,
        tuple(sources),
        loads,
        draw(st.sampled_from([{}, {}, {"team": 25}, {"team": 15, "firm": 30}])),
        draw(st.integers(1, 5)),
        draw(st.sampled_from([None, None, 0, 1, 2])),
    )


@st.composite
def load_of(draw: st.DrawFn, name: str, sources: list[MachineSource], alone: bool, others: list[str]) -> Load:
    names = [source.name for source in sources]
    models = [(source.name, model.name) for source in sources for model in source.models]
    places = [frozenset(names[:1]), frozenset(names[-1:]), frozenset(names)]
    caps = st.lists(st.builds(ReplicaCap, st.sampled_from(places), st.sampled_from([1, 2])), max_size=2).map(
        tuple
    )
    beside = st.dictionaries(st.sampled_from(names), st.frozensets(st.sampled_from(names)), min_size=1)
    near = st.builds(ProximityRule, st.sampled_from(others), beside).filter(
        lambda near: near.target_load != name
    )
    replicas = draw(st.integers(0, 3))
    eligible = draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    plain = draw(st.booleans())
    return Load(
        name,
        replicas,
        (*draw(st.tuples(st.integers(0, 5), st.integers(1, 5))), *((1,) if alone else ())),
        {
            source: draw(st.sampled_from([("m0", "m1"), ("m0", "m1"), ("m0",), ("m1",)]))
            for source in eligible
        },
        ()
        if plain
        else draw(
            st.sampled_from([(), (frozenset(names[:1]),), (frozenset(names[-1:]), frozenset(names[:2]))])
        ),
        1 if plain else min(max(1, replicas), draw(st.sampled_from([1, 2, 3]))),
        () if plain else draw(caps),
        () if plain or len(others) == 1 else draw(st.lists(near, max_size=1).map(tuple)),
        draw(st.dictionaries(st.sampled_from(models), st.integers(1, 3), max_size=2)),
        draw(st.sampled_from([0, 3, 40])),
        ()
        if plain
        else draw(st.sampled_from([(), (SpreadRule(tuple(frozenset({name}) for name in names), 1),)])),
    )


def spots_of(outcome: Solution, load: Load) -> Counter:
    return Counter(
        {
            (share.source, share.model): share.replicas
            for share in outcome.allocations
            if share.load == load.name
        }
    )


def placed_only(program: PlacementProblem, outcome: Solution) -> PlacementProblem:
    return replace(
        program,
        loads=tuple(
            replace(load, replicas=load.replicas - outcome.unplaced.get(load.name, 0))
            for load in program.loads
        ),
    )


def check(program: PlacementProblem, outcome: Solution) -> None:
    """The solution is valid: counts, rules, limits, packing and sums are computed again here."""
    models = {(source.name, model.name): model for source in program.sources for model in source.models}
    sources = {source.name: source for source in program.sources}
    reduced = placed_only(program, outcome)
    spots = [spots_of(outcome, load) for load in reduced.loads]
    for load, here in zip(reduced.loads, spots, strict=True):
        assert sum(here.values()) == load.replicas
        assert rules_hold(load, here, sources)
        assert all(model in load.usable_models.get(source, ()) for source, model in here)
    assert proximity_holds(reduced.loads, spots)
    machines = {(fill.source, fill.model): fill.machines for fill in outcome.machines}
    items = {
        key: tuple(
            sorted(
                (
                    load.needs
                    for load, here in zip(reduced.loads, spots, strict=True)
                    for _ in range(here[key])
                ),
                reverse=True,
            )
        )
        for key in models
    }
    for key, listed in items.items():
        assert (fewest_machines(models[key].size, listed) if listed else 0) <= machines.get(key, 0)
    assert within_limits(program, models, machines)
    assert outcome.cost == sum(models[key].price * count for key, count in machines.items())
    moves = [moves_of(load, here, program) for load, here in zip(reduced.loads, spots, strict=True)]
    assert outcome.moves == sum(moves)
    assert outcome.move_penalty == sum(
        program.move_price(load) * n for load, n in zip(program.loads, moves, strict=True)
    )
    assert program.max_moves is None or outcome.moves <= program.max_moves


@settings(max_examples=700 if LONG else 50, deadline=None)
@given(programs())
def test_bound_and_cost_enclose_true_optimum(program: PlacementProblem) -> None:
    outcome = solve(program, **TO_OPTIMALITY)
    check(program, outcome)
    truth = true_optimum(placed_only(program, outcome))
    assert truth is not None
    assert outcome.bound <= truth <= outcome.total, (
        "a bound above the truth is a model that forbids what may be done"
    )
    if outcome.status == "optimal":
        assert outcome.total == truth
    if not outcome.unplaced:
        assert (bound := cost_lower_bound(program)) is not None
        assert bound <= truth


@settings(max_examples=500 if LONG else 40, deadline=None)
@given(programs(alone=True))
def test_one_replica_per_machine_is_solved_exactly(program: PlacementProblem) -> None:
    outcome = solve(program, **TO_OPTIMALITY)
    check(program, outcome)
    truth = true_optimum(program)
    assert (truth is not None) == (not outcome.unplaced)
    if truth is not None:
        assert outcome.total == outcome.bound == truth
        assert outcome.status == "optimal"


@settings(max_examples=300 if LONG else 50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=4, max_size=9),
    st.tuples(st.integers(12, 20), st.integers(12, 20)),
)
def test_packing_many_sizes_keeps_bound_valid(needs: list[tuple[int, int]], size: tuple[int, int]) -> None:
    loads = tuple(Load(f"l{i}", 1, need, {"a": ("vm",)}) for i, need in enumerate(needs))
    outcome = solve(
        PlacementProblem(RESOURCES, (MachineSource("a", "a", (MachineModel("vm", size, 10),)),), loads), gap=0
    )
    truth = 10 * fewest_machines(size, tuple(sorted(needs, reverse=True)))
    assert outcome.bound <= truth <= outcome.cost <= truth + 10
    assert outcome.status == ("optimal" if outcome.bound == outcome.cost else "packed")


@settings(max_examples=300 if LONG else 40, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_solution_is_independent_of_input_order(program: PlacementProblem, rng: random.Random) -> None:
    first = solve(program, **TO_OPTIMALITY)
    assert solve(program, **TO_OPTIMALITY) == first
    loads, sources = list(program.loads), list(program.sources)
    rng.shuffle(loads)
    rng.shuffle(sources)
    assert solve(replace(program, loads=tuple(loads), sources=tuple(sources)), **TO_OPTIMALITY) == first


@settings(max_examples=300 if LONG else 40, deadline=None)
@given(programs())
def test_undoing_moves_of_a_load_is_never_cheaper(program: PlacementProblem) -> None:
    """Undoing the moves of any one load is not cheaper."""
    outcome = solve(program, **TO_OPTIMALITY)
    reduced = placed_only(program, outcome)
    sources = {source.name: source for source in program.sources}
    models = {(source.name, model.name): model for source in program.sources for model in source.models}
    for load in reduced.loads:
        if moves_of(load, spots_of(outcome, load), program) and outcome.status == "optimal":
            for back in every_spread(load, models):
                if not moves_of(load, back, program) and rules_hold(load, back, sources):
                    choice = [back if other is load else spots_of(outcome, other) for other in reduced.loads]
                    total = total_of(reduced, sources, models, choice)
                    assert total is None or total >= outcome.total


# ---- named cases


def cloud(name: str, price: int, **more) -> MachineSource:
    return MachineSource(name, name, (MachineModel("vm", (4, 16), price),), **more)


def a_load(name: str = "api", replicas: int = 2, **more) -> Load:
    serves = more.pop("usable_models", {"a": ("vm",), "b": ("vm",)})
    return Load(name, replicas, more.pop("needs", (4, 8)), serves, **more)


def a_program(*loads: Load, **more) -> PlacementProblem:
    return PlacementProblem(RESOURCES, more.pop("sources", (cloud("a", 100), cloud("b", 60))), loads, **more)


@pytest.mark.parametrize(
    ("move_cost", "moves", "cost"),
    [
        pytest.param(
            40 * 720, 0, 200, id="what it saves in the payback time is just what it costs: it stays"
        ),
        pytest.param(39 * 720, 2, 120, id="a little cheaper to move, and it goes"),
        pytest.param(39 * 720 + 1, 0, 200, id="a part of a micro-dollar counts as a whole one"),
    ],
)
def test_moves_pay_back(move_cost: int, moves: int, cost: int) -> None:
    outcome = solve(a_program(a_load(current_counts={("a", "vm"): 2}, move_cost=move_cost)))
    assert (outcome.moves, outcome.cost) == (moves, cost)


def test_unprofitable_move_is_undone_in_greedy_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    light, heavy = (
        a_load("light", current_counts={("a", "vm"): 2}),
        a_load("heavy", current_counts={("a", "vm"): 2}, move_cost=41 * 720),
    )
    outcome = solve(a_program(light, heavy))
    assert {(share.load, share.source) for share in outcome.allocations} == {("light", "b"), ("heavy", "a")}


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_max_moves_is_respected(most: int) -> None:
    outcome = solve(
        a_program(
            a_load("x", current_counts={("a", "vm"): 2}),
            a_load("y", current_counts={("a", "vm"): 2}),
            max_moves=most,
        ),
        gap=0,
    )
    assert (outcome.moves, outcome.cost, outcome.status) == (most, 400 - 40 * most, "optimal")


def test_ledger_limit_holds_with_unplaced_replicas() -> None:
    sources = (cloud("a", 100, ledgers=("team",)), cloud("b", 60, ledgers=("team",)))
    outcome = solve(a_program(a_load(replicas=5), sources=sources, ledger_limits={"team": 199}))
    assert outcome.cost == 180
    assert outcome.unplaced == {"api": 2}


def test_exceeded_ledger_keeps_machines_and_does_not_grow() -> None:
    sources = (MachineSource("a", "a", (MachineModel("vm", (4, 16), 100, existing=2),), ledgers=("team",)),)
    outcome = solve(
        a_program(
            a_load(replicas=3, usable_models={"a": ("vm",)}), sources=sources, ledger_limits={"team": 50}
        )
    )
    assert outcome.cost == 200
    assert outcome.unplaced == {"api": 1}


def test_replicas_share_machines_and_static_ones_come_first() -> None:
    owned = MachineSource("dc", "dc", (MachineModel("node", (8, 16), 0),), max_machines=1)
    serves = {"dc": ("node",), "a": ("vm",)}
    outcome = solve(
        a_program(a_load(replicas=5, needs=(2, 4), usable_models=serves), sources=(owned, cloud("a", 100)))
    )
    assert [(fill.source, fill.machines) for fill in outcome.machines] == [("a", 1), ("dc", 1)]
    assert (outcome.cost, outcome.bound, outcome.status) == (100, 100, "optimal")


def test_bound_is_tight_for_loads_above_half_a_machine() -> None:
    outcome = solve(
        a_program(a_load("x", 1, needs=(3, 1)), a_load("y", 1, needs=(3, 2)), a_load("z", 1, needs=(3, 3))),
        gap=0,
    )
    assert (outcome.cost, outcome.bound) == (180, 180)


def test_min_regions_uses_the_dearer_region_once() -> None:
    outcome = solve(a_program(a_load(replicas=4, min_regions=2)))
    assert [(share.source, share.replicas) for share in outcome.allocations] == [("a", 1), ("b", 3)]


def test_solver_is_exact_for_real_units() -> None:
    gib = 1 << 30
    sources = (
        MachineSource("a", "a", (MachineModel("vm", (4000, 16 * gib), 192_000),)),
        MachineSource("b", "b", (MachineModel("vm", (4000, 16 * gib - 1), 96_000),)),
    )
    outcome = solve(a_program(a_load(replicas=3, needs=(1000, 16 * gib)), sources=sources), gap=0)
    assert [(share.source, share.replicas) for share in outcome.allocations] == [("a", 3)]
    assert outcome.cost == outcome.bound == 576_000


def test_missing_solver_falls_back_to_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    outcome = solve(a_program(a_load(replicas=3, needs=(2, 8))))
    assert (outcome.cost, outcome.status, outcome.note) == (120, "greedy", "highspy is not installed")
    assert outcome.bound == 90
    assert cost_lower_bound(a_program(a_load(replicas=3, needs=(2, 8)))) == 90


@pytest.mark.parametrize(
    ("make", "what"),
    [
        pytest.param(
            lambda: a_program(a_load(), a_load()), "load: 2 loads are named api", id="two loads of one name"
        ),
        pytest.param(
            lambda: a_program(a_load(needs=(1,))), "api: 1 amounts for 2 resources", id="a need too few"
        ),
        pytest.param(
            lambda: a_program(a_load(), payback_hours=0), "1 hour or more, got 0", id="no time to pay back"
        ),
    ],
)
def test_invalid_problem_is_rejected(make, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        make()
