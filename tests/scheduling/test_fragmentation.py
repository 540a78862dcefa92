"""GPU fragmentation: where a workload should go so that what comes next finds GPUs it can use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.scheduling.ask import Demands, GpuNeed, WorkloadAsk
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.mix import STARVED, Kind, Mix, States, count_kinds, left_over, placed
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.plugins.fit import Fit
from lattice.scheduling.plugins.fragmentation import GpuFragmentation, Landscape
from lattice.scheduling.plugins.gpu import Gpu
from tests.scheduling.small import many

MODELS = ("T4", "G2")


def cluster(*nodes: tuple[int, int, str], seed: int = 0) -> NodeTable:
    """(cpu, GPUs, model) each; n0, n1 …"""
    table = NodeTable(seed)
    for number, (cpu, gpus, model) in enumerate(nodes):
        table.put(NodeFacts(f"n{number}", {"cpu": cpu * 1000, "memory": 1 << 40}, gpus=((model, 1000),) * gpus))
    return table


def asks(table: NodeTable, name: str, cpu: int, gpu: int = 0, models: tuple[str, ...] = ()) -> WorkloadAsk:
    """gpu in thousandths."""
    need = None
    if gpu:
        need = GpuNeed(1, gpu, models) if gpu < 1000 else GpuNeed(gpu // 1000, 1000, models)
    requests = (("cpu", cpu * 1000), ("memory", 1)) if cpu else (("memory", 1),)
    return table.asked(name, Demands(requests=requests, gpu=need))


def profile() -> Profile:
    return Profile("gpu", (Fit(), Gpu()), ((GpuFragmentation(), 1.0),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "seen", "new", "chosen"),
    [
        pytest.param([(96, 8, "G2"), (64, 0, "")], [(0, 12, 1000)], (32, 0), "n1", id="a CPU job goes where there are no GPUs to strand"),
        pytest.param([(24, 2, "G2"), (100, 2, "T4")], [(0, 10, 1000)], (8, 0), "n1", id="a CPU job goes where cpu is left over"),
        pytest.param([(16, 2, "G2"), (100, 2, "G2")], [(1, 8, 1000)], (14, 1000), "n1", id="who needs much cpu goes where enough stays"),
        pytest.param(
            [(96, 8, "G2"), (96, 9, "G2")], [(1, 8, 8000)], (4, 1000), "n1", id="eight free together are kept for who needs eight"
        ),
        pytest.param([(96, 2, "G2"), (96, 2, "G2")], [(1, 4, 500), (1, 4, 1000)], (4, 500), "n1", id="a part joins another part"),
    ],
)
def test_prefers(nodes: list[tuple[int, int, str]], seen: list[tuple[int, int, int]], new: tuple[int, int], chosen: str) -> None:
    table = cluster(*nodes)
    for number, (row, cpu, gpu) in enumerate(seen):
        table.assume(asks(table, f"seen{number}", cpu, gpu), row)
    assert decide(asks(table, "new", *new), table, profile()).name == chosen


@pytest.mark.parametrize("seed", range(5))
def test_who_takes_any_model_spares_the_scarce_one(seed: int) -> None:
    table = cluster((96, 4, "T4"), (96, 8, "G2"), (96, 8, "G2"), seed=seed)
    table.assume(asks(table, "picky", 8, 1000, ("T4",)), 0)
    table.assume(asks(table, "easy", 8, 1000), 1)
    assert decide(asks(table, "new", 8, 1000), table, profile()).name != "n0"


def test_without_gpus_every_node_is_as_good() -> None:
    table = cluster((4, 0, ""), (8, 0, ""))
    assert set(GpuFragmentation().score(asks(table, "a", 1), table)) == {np.float32(0.5)}


def test_before_anything_is_placed_it_decides_nevertheless() -> None:
    table = cluster((8, 1, "T4"), (8, 2, "G2"))
    assert decide(asks(table, "a", 1, 1000), table, profile()).fits


def test_a_part_that_nothing_fits_into_is_left_over() -> None:
    left = left_over([(Kind(1, 1, 810, ()), 3), (Kind(1, 1, 160, ()), 1)])
    assert left[150] == 150
    assert left[190] == pytest.approx(30, abs=0.1)
    assert left[0] == 0


placements = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from((0, 1, 3, 8)), st.sampled_from((0, 110, 500, 810, 1000, 2000)), st.sampled_from(("", *MODELS))
    ),
    max_size=12,
)
machines = st.lists(st.tuples(st.sampled_from((4, 12, 32)), st.integers(0, 3), st.sampled_from(MODELS)), min_size=4, max_size=4)


def filled(nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]) -> NodeTable:
    """Those of the placements for which there is room."""
    table = cluster(*nodes)
    for number, (row, cpu, gpu, model) in enumerate(given_to):
        ask = asks(table, f"w{number}", cpu, gpu, (model,) if model and gpu else ())
        if np.isfinite(decide(ask, table, Profile("fits", (Fit(), Gpu()), ())).totals[row]):  # type: ignore[arg-type]
            table.assume(ask, row)
    return table


def slow_loss(mix: Mix, kinds: list[tuple[Kind, int]], node: tuple[int, list[int], str]) -> float:
    """One node, one kind, one GPU at a time."""
    cpu, gpus, model = node
    left = left_over(kinds)
    lost = sum(float(left[free]) for free in gpus)
    for weight, (kind, _) in zip(mix.weight, kinds, strict=True):
        fitting = [free for free in gpus if free >= kind.milli]
        usable = min(sum(fitting), cpu // kind.cpu * kind.count * kind.milli if kind.cpu else 10**9)
        if len(fitting) < kind.count or (kind.models and model not in kind.models):
            usable = 0
        lost += weight * (sum(gpus) - usable)
    used, along = (sum(times * amount(kind) for kind, times in kinds) for amount in (lambda k: k.count * k.milli, lambda k: k.cpu))
    return lost + (STARVED * max(0.0, sum(gpus) - cpu * used / along) if along else 0)


@many
@given(nodes=machines, given_to=placements)
def test_the_loss_agrees_with_the_obvious_loop(nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]) -> None:
    table = filled(nodes, given_to)
    kinds = count_kinds(placement.ask for placement in table.placements.values())
    mix = Mix(kinds, table.gpus.models)
    gpus = table.gpus.matrix().T.clip(0).astype(np.int64)
    states = States(table.free(0).astype(np.float64), gpus, table.column("gpu_model").astype(np.int64))
    mix.weigh(states, np.ones(table.count, np.int64))
    slow = [slow_loss(mix, kinds, (int(table.free(0)[row]), gpus[row].tolist(), nodes[row][2])) for row in range(table.count)]
    assert mix.loss(states) == pytest.approx(slow, abs=1e-6)


@many
@given(nodes=machines, given_to=placements, cpu=st.sampled_from((0, 2, 4)), gpu=st.sampled_from((0, 300, 1000, 2000)))
def test_scores_are_shares_and_asking_twice_changes_nothing(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]], cpu: int, gpu: int
) -> None:
    table, plugin = filled(nodes, given_to), GpuFragmentation()
    ask = asks(table, "new", cpu, gpu)
    first = plugin.score(ask, table).copy()
    assert ((first >= 0) & (first <= 1)).all()
    assert (plugin.score(ask, table) == first).all()
    assert (GpuFragmentation().score(ask, table) == first).all()


@many
@given(nodes=machines, given_to=placements)
def test_row_order_does_not_matter(nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]]) -> None:
    there, back = filled(nodes, given_to), cluster(*reversed(nodes))
    for name, placement in there.placements.items():
        demands = placement.ask.demands
        back.assume(back.asked(name, demands), len(nodes) - 1 - placement.row)
    new = [GpuFragmentation().score(asks(table, "new", 2, 500), table) for table in (there, back)]
    assert (new[0] == new[1][::-1]).all()


@many
@given(nodes=machines, given_to=placements, more=placements)
def test_following_changes_costs_the_same_as_looking_at_all_rows(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]], more: list[tuple[int, int, int, str]]
) -> None:
    table = filled(nodes, given_to)
    landscape = Landscape(table)
    landscape.patience = 1_000_000
    ask = asks(table, "new", 2, 500)
    landscape.costs(ask)
    for number, (row, cpu, gpu, model) in enumerate(more):
        extra = asks(table, f"more{number}", cpu, gpu, (model,) if model and gpu else ())
        if np.isfinite(decide(extra, table, Profile("fits", (Fit(), Gpu()), ())).totals[row]):  # type: ignore[arg-type]
            table.assume(extra, row)
            landscape.follow(table)
    followed = landscape.costs(ask)
    landscape.recode(table)
    assert (landscape.costs(ask) == followed).all()


@many
@given(nodes=machines, given_to=placements, cpu=st.sampled_from((0, 2)), gpu=st.sampled_from((0, 300, 1000, 2000)))
def test_what_is_scored_is_what_the_table_does(
    nodes: list[tuple[int, int, str]], given_to: list[tuple[int, int, int, str]], cpu: int, gpu: int
) -> None:
    table = filled(nodes, given_to)
    ask = asks(table, "new", cpu, gpu)
    decision = decide(ask, table, profile())
    if not decision.fits:
        return
    row = decision.chosen
    before = States(table.free(0)[[row]].astype(float), table.gpus.matrix().T[[row]].clip(0).astype(np.int64), np.zeros(1, np.int64))
    table.assume(ask, row)
    after = placed(before, cpu * 1000, ask.demands.gpu)
    assert sorted(after.gpus[0]) == sorted(table.gpus.matrix().T[row].clip(0))
    assert after.cpu[0] == table.free(0)[row]
