"""GPUs one by one and ports by number: what is taken is taken, whatever the node says it has, and comes back exactly."""

from typing import Any

import pytest

from lattice.engine.decide import decide
from lattice.scheduling.ask import Demands, GpuNeed
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.profile import compile_preset

PROFILE = compile_preset("balanced")


def table(**facts: Any) -> NodeTable:
    found = NodeTable()
    found.put(NodeFacts("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, **facts))
    return found


def place(nodes: NodeTable, name: str, **demands: Any) -> bool:
    """Whether it found room."""
    ask = nodes.asked(name, Demands(**demands))
    decision = decide(ask, nodes, PROFILE)
    if decision.fits:
        nodes.assume(ask, decision.chosen)
    return decision.fits


def gpu(milli: int, *models: str) -> dict[str, Any]:
    return {"gpu": GpuNeed(1, milli, models)}


def test_each_gpu_of_a_node_counts_for_its_own_model() -> None:
    nodes = table(gpus=(("a100", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(1000, "a100"))
    assert not place(nodes, "two", **gpu(1000, "a100"))
    assert place(nodes, "three", **gpu(1000, "t4"))


def test_a_part_of_a_gpu_comes_from_a_model_that_was_named() -> None:
    nodes = table(gpus=(("a100", 500), ("t4", 1000)))
    assert not place(nodes, "one", **gpu(600, "a100"))
    assert place(nodes, "two", **gpu(500, "a100"))
    assert nodes.placements["two"].gpus == (0,)


def test_the_fullest_gpu_that_still_fits_is_taken() -> None:
    nodes = table(gpus=(("t4", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(300))
    assert place(nodes, "two", **gpu(300))
    assert nodes.placements["one"].gpus == nodes.placements["two"].gpus


def test_a_gpu_that_shrinks_under_a_workload_gives_back_no_more_than_it_has() -> None:
    nodes = table(gpus=(("t4", 1000),))
    assert place(nodes, "one", **gpu(600))
    nodes.put(NodeFacts("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, gpus=(("t4", 500),)))
    nodes.forget("one")
    assert not place(nodes, "two", **gpu(600))
    assert place(nodes, "three", **gpu(500))


def test_what_was_on_a_gpu_that_is_gone_can_still_be_forgotten_and_restored() -> None:
    nodes = table(gpus=(("t4", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(1000))
    assert place(nodes, "two", **gpu(1000))
    nodes.put(NodeFacts("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, gpus=(("t4", 1000),)))
    before = dict(nodes.placements)
    with nodes.what_if():
        for name in before:
            nodes.forget(name)
    assert nodes.placements == before
    assert not place(nodes, "three", **gpu(100))


def test_a_chosen_port_cannot_be_taken_by_number() -> None:
    nodes = table(ports=(1000, 1001))
    assert place(nodes, "chooses", ports=1)
    assert nodes.placements["chooses"].ports == (1000,)
    assert not place(nodes, "fixed", host_ports=((1000, "TCP"),))
    assert place(nodes, "other", host_ports=((1001, "TCP"),))


def test_a_fixed_port_inside_the_range_is_one_fewer_to_choose() -> None:
    nodes = table(ports=(80, 81))
    assert place(nodes, "fixed", host_ports=((80, "TCP"),))
    assert not place(nodes, "two", ports=2)
    assert place(nodes, "one", ports=1)
    assert nodes.placements["one"].ports == (81,)
    nodes.forget("fixed")
    assert place(nodes, "again", ports=1)
    assert nodes.placements["again"].ports == (80,)


def test_a_port_asked_for_by_number_only_later_is_known_to_be_in_use() -> None:
    nodes = table(ports=(30000, 30010))
    assert place(nodes, "chooses", ports=2)
    assert not place(nodes, "late", host_ports=((30001, "UDP"),))


@pytest.mark.parametrize("name", ["ports", "workloads"])
def test_a_request_that_names_what_we_count_ourselves_adds_to_it(name: str) -> None:
    nodes = NodeTable()
    nodes.put(NodeFacts("a", {"cpu": 8000, "memory": 1 << 34, "ports": 6, "workloads": 6}, {"node": "a"}, ports=(1, 6)))
    assert not place(nodes, "greedy", requests=((name, 6),), ports=1)
    assert place(nodes, "modest", requests=((name, 5),), ports=1)
