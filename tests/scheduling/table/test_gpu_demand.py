"""Tests of the GPU fragmentation score: placements keep GPUs usable for expected demand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from build.property_settings import EXAMPLES, LONG, PROPERTY_TIMEOUT_S
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.engine.explain import top_candidates
from lattice.engine.plugin import Profile
from lattice.scheduling.plugins.filters.fit import Fit
from lattice.scheduling.plugins.filters.gpu import Gpu
from lattice.scheduling.plugins.scores.gpu_fragmentation import FragmentationCache, GpuFragmentation
from lattice.scheduling.preemption.preemptor import fits_on
from lattice.scheduling.table.gpu_demand import (
    CPU_STARVATION_WEIGHT,
    RELEARN_EACH_CHANGE_UP_TO,
    GpuDemandClass,
    GpuDemandModel,
    GpuNodeStates,
    demand_class_of,
    leftover_by_free,
    most_frequent_classes,
    states_after,
)
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands, GpuNeed, WorkloadAsk

pytestmark = pytest.mark.timeout(PROPERTY_TIMEOUT_S)
MODELS = ("T4", "G2")
FITS = Profile("fits", (Fit(), Gpu()), ())  # type: ignore[arg-type]


def cluster(*nodes: tuple[int, int, str], seed: int = 0) -> NodeTable:
    """Nodes n0, n1 … of (cpu, GPUs, model) each."""
    table = NodeTable(seed)
    for number, (cpu, gpus, model) in enumerate(nodes):
        table.put_node(
            NodeInfo(f"n{number}", {"cpu": cpu * 1000, "memory": 1 << 40}, gpus=((model, 1000),) * gpus)
        )
    return table


def asks(table: NodeTable, name: str, cpu: int, gpu: int = 0, models: tuple[str, ...] = ()) -> WorkloadAsk:
    """An ask with gpu in thousandths."""
    need = None
    if gpu:
        need = GpuNeed(1, gpu, models) if gpu < 1000 else GpuNeed(gpu // 1000, 1000, models)
    requests = (("cpu", cpu * 1000), ("memory", 1)) if cpu else (("memory", 1),)
    return table.make_ask(name, Demands(requests=requests, gpu=need))


def profile() -> Profile:
    return Profile("gpu", (Fit(), Gpu()), ((GpuFragmentation(), 1.0),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "seen", "new", "chosen"),
    [
        pytest.param(
            [(96, 8, "G2"), (64, 0, "")],
            [(0, 12, 1000)],
            (32, 0),
            "n1",
            id="a CPU job goes where there are no GPUs to strand",
        ),
        pytest.param(
            [(24, 2, "G2"), (100, 2, "T4")],
            [(0, 10, 1000)],
            (8, 0),
            "n1",
            id="a CPU job goes where cpu is left over",
        ),
        pytest.param(
            [(16, 2, "G2"), (100, 2, "G2")],
            [(1, 8, 1000)],
            (14, 1000),
            "n1",
            id="a CPU-heavy GPU workload goes where enough cpu stays",
        ),
        pytest.param(
            [(96, 8, "G2"), (96, 9, "G2")],
            [(1, 8, 8000)],
            (4, 1000),
            "n1",
            id="eight free GPUs together are kept for an eight-GPU workload",
        ),
        pytest.param(
            [(96, 2, "G2"), (96, 2, "G2")],
            [(1, 4, 500), (1, 4, 1000)],
            (4, 500),
            "n1",
            id="a part joins another part",
        ),
    ],
)
def test_fragmentation_score_preferences(
    nodes: list[tuple[int, int, str]], seen: list[tuple[int, int, int]], new: tuple[int, int], chosen: str
) -> None:
    table = cluster(*nodes)
    for number, (row, cpu, gpu) in enumerate(seen):
        table.assume(asks(table, f"seen{number}", cpu, gpu), row)
    assert decide(asks(table, "new", *new), table, profile()).name == chosen


@pytest.mark.parametrize("seed", range(5))
def test_workload_of_any_model_spares_scarce_model(seed: int) -> None:
    table = cluster((96, 4, "T4"), (96, 8, "G2"), (96, 8, "G2"), seed=seed)
    table.assume(asks(table, "picky", 8, 1000, ("T4",)), 0)
    table.assume(asks(table, "easy", 8, 1000), 1)
    assert decide(asks(table, "new", 8, 1000), table, profile()).name != "n0"


def test_nodes_without_gpus_score_equal() -> None:
    table = cluster((4, 0, ""), (8, 0, ""))
    assert set(GpuFragmentation().score(asks(table, "a", 1), table)) == {np.float32(0.5)}


def test_empty_table_is_scored() -> None:
    table = cluster((8, 1, "T4"), (8, 2, "G2"))
    assert decide(asks(table, "a", 1, 1000), table, profile()).fits


def test_leftover_of_gpu_shares() -> None:
    left = leftover_by_free([(GpuDemandClass(1, 1, 810, ()), 3), (GpuDemandClass(1, 1, 160, ()), 1)])
    assert left[150] == 150
    assert left[190] == pytest.approx(30, abs=0.1)
    assert left[0] == 0


placements = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from((0, 1, 3, 8)),
        st.sampled_from((0, 110, 500, 810, 1000, 2000)),
        st.sampled_from(("", *MODELS)),
    ),
    max_size=12,
)
machines = st.lists(
    st.tuples(st.sampled_from((4, 12, 32)), st.integers(0, 3), st.sampled_from(MODELS)),
    min_size=4,
    max_size=4,
)


def table_with_placements(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]
) -> NodeTable:
    """The table with the placements that fit."""
    table = cluster(*nodes)
    for number, (row, cpu, gpu, model) in enumerate(given_to):
        ask = asks(table, f"w{number}", cpu, gpu, (model,) if model and gpu else ())
        if np.isfinite(decide(ask, table, FITS).totals[row]):
            table.assume(ask, row)
    return table


def naive_loss(
    mix: GpuDemandModel, kinds: list[tuple[GpuDemandClass, int]], node: tuple[int, list[int], str]
) -> float:
    """The expected loss of a node, computed one class and one GPU at a time."""
    cpu, gpus, model = node
    left = leftover_by_free(kinds)
    lost = sum(float(left[free]) for free in gpus)
    for weight, (kind, _) in zip(mix.weights, kinds, strict=True):
        fitting = [free for free in gpus if free >= kind.milli]
        usable = min(sum(fitting), cpu // kind.cpu * kind.count * kind.milli if kind.cpu else 10**9)
        if len(fitting) < kind.count or (kind.models and model not in kind.models):
            usable = 0
        lost += weight * (sum(gpus) - usable)
    used, along = (
        sum(times * amount(kind) for kind, times in kinds)
        for amount in (lambda k: k.count * k.milli, lambda k: k.cpu)
    )
    return lost + (CPU_STARVATION_WEIGHT * max(0.0, sum(gpus) - cpu * used / along) if along else 0)


most = settings(max_examples=EXAMPLES if LONG else EXAMPLES // 3, deadline=None)
some = settings(
    max_examples=EXAMPLES if LONG else EXAMPLES // 10, deadline=None
)  # for tests that build and compare two tables


@most
@given(nodes=machines, given_to=placements)
def test_expected_loss_agrees_with_naive_loop(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]
) -> None:
    table = table_with_placements(nodes, given_to)
    kinds = most_frequent_classes(
        Counter(filter(None, (demand_class_of(placement.ask) for placement in table.placements.values())))
    )
    mix = GpuDemandModel(kinds, table.gpus.models)
    gpus = table.gpus.sorted_free_milli(slice(None)).astype(np.int64)
    states = GpuNodeStates(table.free(0).astype(np.float64), gpus, table.column("gpu_model").astype(np.int64))
    mix.update_weights(states, np.ones(table.count, np.int64))
    slow = [
        naive_loss(mix, kinds, (int(table.free(0)[row]), gpus[row].tolist(), nodes[row][2]))
        for row in range(table.count)
    ]
    assert mix.expected_loss(states) == pytest.approx(slow, abs=1e-6)
    assert (table.gpu_demand.latest_snapshot.model.expected_loss(states) == mix.expected_loss(states)).all()


@most
@given(
    nodes=machines,
    given_to=placements,
    cpu=st.sampled_from((0, 2, 4)),
    gpu=st.sampled_from((0, 300, 1000, 2000)),
)
def test_scores_are_within_bounds_and_repeatable(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]], cpu: int, gpu: int
) -> None:
    table, plugin = table_with_placements(nodes, given_to), GpuFragmentation()
    ask = asks(table, "new", cpu, gpu)
    first = plugin.score(ask, table).copy()
    assert ((first >= 0) & (first <= 1)).all()
    assert (plugin.score(ask, table) == first).all()
    assert (GpuFragmentation().score(ask, table) == first).all()


@most
@given(nodes=machines, given_to=placements)
def test_scores_are_independent_of_row_order(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]
) -> None:
    there, back = table_with_placements(nodes, given_to), cluster(*reversed(nodes))
    for name, placement in there.placements.items():
        demands = placement.ask.demands
        back.assume(back.make_ask(name, demands), len(nodes) - 1 - placement.row)
    new = [GpuFragmentation().score(asks(table, "new", 2, 500), table) for table in (there, back)]
    assert (new[0] == new[1][::-1]).all()


@most
@given(
    nodes=machines,
    given_to=placements,
    cpu=st.sampled_from((0, 2)),
    gpu=st.sampled_from((0, 300, 1000, 2000)),
)
def test_scored_state_equals_state_after_placement(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]], cpu: int, gpu: int
) -> None:
    table = table_with_placements(nodes, given_to)
    ask = asks(table, "new", cpu, gpu)
    decision = decide(ask, table, profile())
    if not decision.fits:
        return
    row = decision.chosen
    before = GpuNodeStates(
        table.free(0)[[row]].astype(float),
        table.gpus.sorted_free_milli([row]).astype(np.int64),
        np.zeros(1, np.int64),
    )
    table.assume(ask, row)
    after = states_after(before, cpu * 1000, ask.demands.gpu)
    assert sorted(after.free_gpu_milli[0]) == table.gpus.sorted_free_milli([row])[0].tolist()
    assert after.free_cpu[0] == table.free(0)[row]


# Events: workloads are placed on node `where` and removed; nodes change and are removed.
changes = st.lists(
    st.tuples(
        st.sampled_from(("comes", "comes", "comes", "goes", "goes", "cordoned", "has GPUs", "is gone")),
        st.integers(0, 11),
        st.sampled_from((0, 1, 3)),
        st.sampled_from((0, 110, 500, 810, 1000, 2000)),
        st.sampled_from(("", *MODELS)),
    ),
    min_size=10,
    max_size=20,
)
Step = tuple[str, int, int, int, str]
crowds = st.sampled_from(
    (0, RELEARN_EACH_CHANGE_UP_TO - 4, RELEARN_EACH_CHANGE_UP_TO + 10, RELEARN_EACH_CHANGE_UP_TO + 10)
)


def table_with_small_workloads(nodes: list[tuple[int, int, str]], crowd: int) -> NodeTable:
    """Twelve nodes with `crowd` small workloads."""
    table = cluster(*nodes * 3)
    for number in range(crowd):
        row = number % table.count
        ask = asks(table, f"small{number}", 0, 30 if nodes[row % 4][1] else 0)
        table.assume(ask, row)
    return table


def apply_step(table: NodeTable, number: int, step: Step) -> None:
    what, where, cpu, gpu, model = step
    name = f"n{where}"
    if what == "goes":
        here = sorted(table.placements)
        if here:
            table.forget(here[where % len(here)])
    elif name not in table.row_of:
        return
    elif what == "comes":
        ask = asks(table, f"w{number}", cpu, gpu, (model,) if model and gpu else ())
        if fits_on(ask, table, FITS, table.row_of[name]):
            table.assume(ask, table.row_of[name])
    elif what == "is gone":
        table.remove_node(name)
    else:
        facts = table.node_infos[table.row_of[name]]
        assert facts
        changed = (
            {"is_cordoned": not facts.is_cordoned}
            if what == "cordoned"
            else {"gpus": ((model or "new", 1000), *facts.gpus)[:3]}
        )
        table.put_node(replace(facts, **changed))


def sample_scores(table: NodeTable) -> list[list[float]]:
    plugin = GpuFragmentation()
    return [
        plugin.score(asks(table, "new", cpu, gpu), table).tolist()
        for cpu, gpu in ((2, 0), (1, 500), (1, 1000), (1, 2000))
    ]


@some
@given(
    nodes=machines,
    crowd=crowds,
    steps=changes,
    idle=st.lists(st.sampled_from(("decide", "explain", "what if")), min_size=10, max_size=10),
)
def test_queries_in_between_change_no_decision(
    nodes: list[tuple[int, int, str]], crowd: int, steps: list[Step], idle: list[str]
) -> None:
    quiet, busy, used = (
        table_with_small_workloads(nodes, crowd),
        table_with_small_workloads(nodes, crowd),
        profile(),
    )
    new = asks(busy, "new", 1, 500)
    for number, step in enumerate(steps):
        apply_step(quiet, number, step)
        apply_step(busy, number, step)
        match idle[number % 10]:
            case "decide":
                first = decide(new, busy, used).copy()
                assert decide(new, busy, used).totals.tolist() == first.totals.tolist()
            case "explain":
                top_candidates(decide(new, busy, used), 3)
            case "what if":
                with busy.what_if():
                    for later, other in enumerate(steps[:10]):
                        if other[0] in ("comes", "goes"):
                            apply_step(busy, 1000 + later, other)
                            decide(new, busy, used)
    last = [decide(asks(table, "new", 1, 500), table, used) for table in (quiet, busy)]
    assert last[0].name == last[1].name
    assert last[0].totals.tolist() == last[1].totals.tolist()
    assert sample_scores(quiet) == sample_scores(busy)


@some
@given(nodes=machines, crowd=crowds, steps=changes)
def test_what_if_scores_equal_scores_after_placement(
    nodes: list[tuple[int, int, str]], crowd: int, steps: list[Step]
) -> None:
    imagined, real = table_with_small_workloads(nodes, crowd), table_with_small_workloads(nodes, crowd)
    before = sample_scores(imagined)
    placing = [step for step in steps if step[0] in ("comes", "goes")]
    with imagined.what_if():
        for number, step in enumerate(placing):
            apply_step(imagined, number, step)
            apply_step(real, number, step)
        assert sample_scores(imagined) == sample_scores(real)
    assert sample_scores(imagined) == before == sample_scores(table_with_small_workloads(nodes, crowd))


@some
@given(nodes=machines, steps=changes)
def test_rebuilt_small_table_scores_the_same(nodes: list[tuple[int, int, str]], steps: list[Step]) -> None:
    old = table_with_small_workloads(nodes, 0)
    for number, step in enumerate(steps):
        apply_step(old, number, step)
    assert named_scores(rebuilt_table(old)) == named_scores(old)


@some
@given(nodes=machines, crowd=crowds, steps=changes)
def test_incremental_costs_equal_full_recomputation(
    nodes: list[tuple[int, int, str]], crowd: int, steps: list[Step]
) -> None:
    table = table_with_small_workloads(nodes, crowd)
    landscape = FragmentationCache(table)
    ask = asks(table, "new", 2, 500)
    for number, step in enumerate(steps):
        apply_step(table, number, step)
        landscape.update(table)
        assert (landscape.costs(ask) == FragmentationCache(table).costs(ask)).all()


def rebuilt_table(old: NodeTable) -> NodeTable:
    """A table rebuilt from the same nodes and placements in another order."""
    new = NodeTable()
    for name in sorted(old.row_of, reverse=True):
        facts = old.node_infos[old.row_of[name]]
        assert facts
        new.put_node(facts)
    for name, placement in reversed(old.placements.items()):
        new.restore(
            replace(
                placement,
                ask=new.make_ask(name, placement.ask.demands),
                row=new.row_of[old.names[placement.row]],
            )
        )
    return new


def named_scores(table: NodeTable) -> dict[str, list[float]]:
    found = sample_scores(table)
    return {name: [scores[row] for scores in found] for name, row in table.row_of.items()}


@some
@given(nodes=machines, crowd=crowds, steps=changes, later=changes)
def test_copied_demand_model_continues_identically(
    nodes: list[tuple[int, int, str]], crowd: int, steps: list[Step], later: list[Step]
) -> None:
    old = table_with_small_workloads(nodes, crowd)
    for number, step in enumerate(steps):
        apply_step(old, number, step)
    new = rebuilt_table(old)
    new.gpu_demand.copy_progress_from(old.gpu_demand)
    assert named_scores(new) == named_scores(old)
    for number, step in enumerate(later):
        apply_step(old, 100 + number, step)
        apply_step(new, 100 + number, step)
        assert named_scores(new) == named_scores(old)


def test_large_table_differs_without_copied_demand_model() -> None:
    old = table_with_small_workloads([(8, 1, "T4")] * 4, RELEARN_EACH_CHANGE_UP_TO + 10)
    for number in range(3):
        apply_step(old, number, ("comes", number, 1, 500, ""))
    new = rebuilt_table(old)
    assert named_scores(new) != named_scores(old)
    new.gpu_demand.copy_progress_from(old.gpu_demand)
    assert named_scores(new) == named_scores(old)
