"""Tests of GPUs counted individually and ports counted by number: allocations are exact, also when the node
shrinks."""

from typing import Any

import pytest
from build.small_clusters import check_sums

from lattice.engine.decide import NO_ROW, decide
from lattice.engine.explain import all_rejections, rejection_counts
from lattice.errors import Conflict, Invalid
from lattice.scheduling.cycle.profile import compile_preset
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.resource_fit import unfit_reason
from lattice.scheduling.table.workload_ask import Demands, GpuNeed

PROFILE = compile_preset("balanced")


def table(**facts: Any) -> NodeTable:
    found = NodeTable()
    found.put_node(NodeInfo("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, **facts))
    return found


def place(nodes: NodeTable, name: str, **demands: Any) -> bool:
    """Place the workload if a node fits; return whether one did."""
    ask = nodes.make_ask(name, Demands(**demands))
    decision = decide(ask, nodes, PROFILE)
    if decision.fits:
        nodes.assume(ask, decision.chosen)
    return decision.fits


def gpu(milli: int, *models: str) -> dict[str, Any]:
    return {"gpu": GpuNeed(1, milli, models)}


def test_gpus_are_counted_by_model() -> None:
    nodes = table(gpus=(("a100", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(1000, "a100"))
    assert not place(nodes, "two", **gpu(1000, "a100"))
    assert place(nodes, "three", **gpu(1000, "t4"))


def test_gpu_share_comes_from_named_model() -> None:
    nodes = table(gpus=(("a100", 500), ("t4", 1000)))
    assert not place(nodes, "one", **gpu(600, "a100"))
    assert place(nodes, "two", **gpu(500, "a100"))
    assert nodes.placements["two"].gpus == (0,)


def test_gpu_shares_are_packed_on_fullest_gpu() -> None:
    nodes = table(gpus=(("t4", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(300))
    assert place(nodes, "two", **gpu(300))
    assert nodes.placements["one"].gpus == nodes.placements["two"].gpus


def test_shrunken_gpu_frees_no_more_than_its_size() -> None:
    nodes = table(gpus=(("t4", 1000),))
    assert place(nodes, "one", **gpu(600))
    nodes.put_node(NodeInfo("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, gpus=(("t4", 500),)))
    nodes.forget("one")
    assert not place(nodes, "two", **gpu(600))
    assert place(nodes, "three", **gpu(500))


def test_placement_on_removed_gpu_is_restored_after_what_if() -> None:
    nodes = table(gpus=(("t4", 1000), ("t4", 1000)))
    assert place(nodes, "one", **gpu(1000))
    assert place(nodes, "two", **gpu(1000))
    nodes.put_node(NodeInfo("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, gpus=(("t4", 1000),)))
    before = dict(nodes.placements)
    with nodes.what_if():
        for name in before:
            nodes.forget(name)
    assert nodes.placements == before
    assert not place(nodes, "three", **gpu(100))


def test_allocated_dynamic_port_rejects_host_port() -> None:
    nodes = table(port_range=(1000, 1001))
    assert place(nodes, "chooses", ports=1)
    assert nodes.placements["chooses"].ports == (1000,)
    assert not place(nodes, "fixed", host_ports=((1000, "TCP"),))
    assert place(nodes, "other", host_ports=((1001, "TCP"),))


def test_host_port_in_range_reduces_dynamic_ports() -> None:
    nodes = table(port_range=(80, 81))
    assert place(nodes, "fixed", host_ports=((80, "TCP"),))
    assert not place(nodes, "two", ports=2)
    assert place(nodes, "one", ports=1)
    assert nodes.placements["one"].ports == (81,)
    nodes.forget("fixed")
    assert place(nodes, "again", ports=1)
    assert nodes.placements["again"].ports == (80,)


def test_dynamic_port_is_in_use_for_later_host_port() -> None:
    nodes = table(port_range=(30000, 30010))
    assert place(nodes, "chooses", ports=2)
    assert not place(nodes, "late", host_ports=((30001, "UDP"),))


@pytest.mark.parametrize("name", ["ports", "workloads"])
def test_explicit_ports_request_adds_to_counted_ports(name: str) -> None:
    nodes = NodeTable()
    nodes.put_node(
        NodeInfo(
            "a",
            {"cpu": 8000, "memory": 1 << 34, "ports": 6, "workloads": 6},
            {"node": "a"},
            port_range=(1, 6),
        )
    )
    assert not place(nodes, "greedy", requests=((name, 6),), ports=1)
    assert place(nodes, "modest", requests=((name, 5),), ports=1)


def test_moved_port_range_releases_host_port() -> None:
    table = NodeTable()
    table.put_node(NodeInfo("a", {"cpu": 1000, "memory": 1}, {"node": "a"}, port_range=(80, 90)))
    table.assume(table.make_ask("default/w", Demands(host_ports=((80, "TCP"),))), 0)
    table.put_node(NodeInfo("a", {"cpu": 1000, "memory": 1}, {"node": "a"}, port_range=(100, 110)))
    assert int(table.free(table.resource_index["ports"])[0]) == 11
    table.forget("default/w")
    assert int(table.free(table.resource_index["ports"])[0]) == 11


BOTH = ((30000, "TCP"), (30000, "UDP"))
TCP, UDP = ((30000, "TCP"),), ((30000, "UDP"),)


@pytest.mark.parametrize(
    ("ports", "room", "comes", "fit", "free"),
    [
        pytest.param(
            (30000, 30009),
            {},
            [(1, TCP)],
            [(30001,)],
            8,
            id="its own fixed port is not chosen for it once more",
        ),
        pytest.param(
            (30000, 30000), {}, [(1, TCP)], [None], 1, id="a fixed port may be the last one of the range"
        ),
        pytest.param(
            (30000, 30000),
            {},
            [(0, TCP), (0, UDP)],
            [(), ()],
            0,
            id="one number, two protocols, two workloads: it counts once",
        ),
        pytest.param(
            (30000, 30001),
            {},
            [(0, BOTH), (1, ())],
            [(), (30001,)],
            0,
            id="one number, two protocols, one workload: counts once",
        ),
        pytest.param(
            (30000, 30001),
            {"ports": 5},
            [(1, ())] * 3,
            [(30000,), (30001,), None],
            0,
            id="never more than the range has",
        ),
        pytest.param(
            (30000, 30009),
            {"ports": 1},
            [(1, TCP)],
            [None],
            1,
            id="fixed ones inside the range count against the limit",
        ),
        pytest.param(
            (30000, 30009),
            {"ports": 1},
            [(1, ((80, "TCP"),))],
            [(30000,)],
            0,
            id="fixed ones outside the range do not",
        ),
        pytest.param(
            (30009, 30000), {}, [(1, ())], [None], 0, id="a range that ends before it begins has none"
        ),
    ],
)
def test_range_ports_are_counted_by_number(
    ports: tuple[int, int],
    room: dict[str, int],
    comes: list[Any],
    fit: list[tuple[int, ...] | None],
    free: int,
) -> None:
    nodes = NodeTable()
    nodes.put_node(NodeInfo("a", {"cpu": 8000, "memory": 1 << 34, **room}, {"node": "a"}, port_range=ports))
    for number, (chosen, fixed) in enumerate(comes):
        ask = nodes.make_ask(f"w{number}", Demands(ports=chosen, host_ports=fixed))
        assert bool(unfit_reason(ask, nodes, 0)) == (fit[number] is None)
        assert place(nodes, f"w{number}", ports=chosen, host_ports=fixed) == (fit[number] is not None)
        if fit[number] is not None:
            assert nodes.placements[f"w{number}"].ports == fit[number]
    assert int(nodes.free(nodes.resource_index["ports"])[0]) == free
    check_sums(nodes)
    for name in list(nodes.placements):
        nodes.forget(name)
    check_sums(nodes)


def test_shrunken_port_range_rejects_host_ports() -> None:
    nodes = table(port_range=(90, 99))
    assert place(nodes, "chooses", ports=3)
    nodes.put_node(NodeInfo("a", {"cpu": 8000, "memory": 1 << 34}, {"node": "a"}, port_range=(80, 81)))
    assert not place(nodes, "fixed", host_ports=((80, "TCP"),))
    assert place(nodes, "outside", host_ports=((79, "TCP"),))


def test_port_range_exhausted_by_host_ports_has_reason() -> None:
    nodes = table(port_range=(30000, 30000))
    decision = decide(nodes.make_ask("w", Demands(ports=1, host_ports=TCP)), nodes, compile_preset())
    assert [reason.summary() for reason, count in rejection_counts(decision)] == [
        "without free ports in the port range for 30000 and 1 more"
    ]
    ((_, (told,)),) = all_rejections(decision)
    assert (told.what, told.need, told.have, told.missing) == ("ports", "2", "1", "1")


@pytest.mark.parametrize(
    ("demands", "why"),
    [
        pytest.param(
            {"requests": (("cpu", 8001),)}, "node a has 8 cpu free, 8001m needed", id="too much cpu"
        ),
        pytest.param({"host_ports": ((80, "TCP"),)}, "port 80/TCP of node a is in use", id="a port in use"),
        pytest.param({"ports": 3}, "node a has 2 ports free, 3 needed", id="too many ports"),
        pytest.param({"gpu": GpuNeed(1, 1000)}, "node a has 0 gpu free, 1 needed", id="no GPU"),
    ],
)
def test_assume_without_capacity_is_a_conflict(demands: dict[str, Any], why: str) -> None:
    nodes = table(port_range=(30000, 30001))
    nodes.assume(nodes.make_ask("there", Demands(host_ports=((80, "TCP"),))), 0)
    with pytest.raises(Conflict, match=why):
        nodes.assume(nodes.make_ask("new", Demands(**demands)), 0)
    assert list(nodes.placements) == ["there"]
    check_sums(nodes)


def test_assume_and_restore_reject_removed_node() -> None:
    nodes = table()
    was = nodes.assume(nodes.make_ask("w", Demands()), 0)
    assert nodes.remove_node("a") == [was]
    for row in (0, NO_ROW):
        with pytest.raises(Conflict, match="the node was deleted"):
            nodes.assume(nodes.make_ask("w", Demands()), row)
    with pytest.raises(Invalid, match="the node was deleted"):
        nodes.restore(was)
    assert not nodes.placements


def test_what_if_rejects_node_changes() -> None:
    nodes = table()
    nodes.assume(nodes.make_ask("w", Demands(requests=(("cpu", 1000),))), 0)
    with nodes.what_if():
        with pytest.raises(Conflict, match="node a: nodes cannot change inside what_if"):
            nodes.remove_node("a")
        with pytest.raises(Conflict, match="node b: nodes cannot change inside what_if"):
            nodes.put_node(NodeInfo("b", {"cpu": 1}, {"node": "b"}))
    assert (list(nodes.row_of), list(nodes.placements)) == (["a"], ["w"])
    check_sums(nodes)


def test_out_of_range_amounts_are_rejected_without_effect() -> None:
    nodes = table()
    with pytest.raises(Invalid, match=r"workload w: memory must be from 0 to 2\^53, got"):
        nodes.make_ask("w", Demands(requests=(("memory", (1 << 53) + 1),)))
    with pytest.raises(Invalid, match=r"node b: memory must be from 0 to 2\^53, got -1"):
        nodes.put_node(NodeInfo("b", {"memory": -1}, {"node": "b"}))
    assert list(nodes.row_of) == ["a"]
    for number in range(512):
        nodes.admit(nodes.make_ask(f"w{number}", Demands(requests=(("memory", 1 << 53),))), 0)
    one_more = nodes.make_ask("last", Demands(requests=(("memory", 1 << 53),), host_ports=((80, "TCP"),)))
    with pytest.raises(Invalid, match="memory allocated, above the maximum of 4611686018427387904"):
        nodes.admit(one_more, 0)
    assert "last" not in nodes.placements
    check_sums(nodes)
