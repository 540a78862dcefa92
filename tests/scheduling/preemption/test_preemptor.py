"""Tests of the preemptor: victims have lower priority, free enough capacity, are no more than needed and as
cheap as possible."""

from typing import Any

import pytest
from build.small_clusters import ask, indifferent, nodes, nodes_by_workload, packing, put

from lattice.engine.decide import decide
from lattice.kinds.constraints import WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.preemption.preemptor import Preemption, Preemptor
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk

WEB = (("app", "web"),)
NOT_NEAR_WEB = (WorkloadTerm(selector=LabelSelector(match_labels={"app": "web"}), topology_key="node"),)


def preempt(table: NodeTable, newcomer: WorkloadAsk, **more: Any) -> Preemption | None:
    profile = packing()
    decision = decide(newcomer, table, profile)
    assert not decision.fits
    return Preemptor(table, profile, **more).find(newcomer, decision)


def victims(found: Preemption | None) -> list[str]:
    return [name.removeprefix("default/") for name in found.victim_names] if found else []


Small = tuple[int, str, int, int]  # node, name, cpu, priority


@pytest.mark.parametrize(
    ("there", "cpu", "priority", "gone"),
    [
        pytest.param(
            [(0, "a", 1000, 1), (1, "b", 1000, 2)],
            500,
            5,
            ["a"],
            id="the node with the lower-priority victim",
        ),
        pytest.param([(0, "a", 1000, 5), (1, "b", 1000, 6)], 500, 5, [], id="equal priority is not lower"),
        pytest.param(
            [(0, "a", 500, 0), (0, "b", 500, 0), (1, "c", 1000, 3)],
            1000,
            5,
            ["c"],
            id="one important one rather than two others",
        ),
        pytest.param(
            [(0, "a", 500, 1), (0, "b", 500, 0), (1, "c", 1000, 9)],
            500,
            5,
            ["b"],
            id="the least important of two",
        ),
        pytest.param(
            [(0, "a", 900, 9), (0, "b", 100, 0), (1, "c", 1000, 9)],
            500,
            5,
            [],
            id="no victims where eviction does not help",
        ),
        pytest.param(
            [(0, "a", 100, 0), (0, "b", 300, 0), (0, "c", 600, 0), (1, "d", 1000, 9)],
            600,
            5,
            ["c"],
            id="no victim that does not help",
        ),
        pytest.param(
            [(0, "a", 400, 2), (0, "b", 300, 1), (0, "c", 300, 1), (1, "d", 1000, 9)],
            600,
            5,
            ["b", "c"],
            id="cheapest pair",
        ),
        pytest.param([(0, "a", 1000, -5), (1, "b", 1000, 0)], 500, 1, ["a"], id="priorities below zero"),
        pytest.param([(0, "a", 1000, 0), (1, "b", 1000, 0)], 1500, 9, [], id="larger than any node"),
    ],
)
def test_victim_selection(there: list[Small], cpu: int, priority: int, gone: list[str]) -> None:
    table = nodes(1000, 1000)
    for node, name, size, important in there:
        put(table, f"n{node}", [ask(table, name, size, important)])
    before = nodes_by_workload(table)
    assert victims(preempt(table, ask(table, "new", cpu, priority))) == gone
    assert nodes_by_workload(table) == before


def test_youngest_of_equal_victims_is_chosen() -> None:
    table = nodes(1000, 1000)
    for name, node in (("old", "n0"), ("young", "n0"), ("middle", "n1"), ("older", "n1")):
        put(table, node, [ask(table, name, 500)])
    ages = {"default/old": 90.0, "default/young": 5.0, "default/middle": 30.0, "default/older": 99.0}
    assert victims(preempt(table, ask(table, "new", 500, 5), age_of=ages.__getitem__)) == ["young"]


@pytest.mark.parametrize(
    ("left", "gone"),
    [
        pytest.param({}, ["a1"], id="no limit"),
        pytest.param({"default/a": 0}, ["b1", "b2"], id="a service that may not be disrupted is spared"),
        pytest.param({"default/a": 0, "default/b": 1}, [], id="a limit that leaves too few"),
        pytest.param({"default/a": 0, "default/b": 2}, ["b1", "b2"], id="a limit that leaves just enough"),
    ],
)
def test_disruption_budget_limits_victims(left: dict[str, int], gone: list[str]) -> None:
    table = nodes(1000, 1000)
    put(table, "n0", [ask(table, "a1", 1000, service="a")])
    put(table, "n1", [ask(table, name, 500, service="b") for name in ("b1", "b2")])
    assert victims(preempt(table, ask(table, "new", 800, 5), disruptions_allowed=left)) == gone


@pytest.mark.parametrize(
    ("least", "cpu", "gone"),
    [
        pytest.param(3, 300, ["g0", "g1", "g2"], id="a gang without a member to spare goes as a whole"),
        pytest.param(2, 300, ["g0"], id="a gang with one to spare"),
        pytest.param(2, 600, ["g0", "g1", "g2"], id="one to spare is not enough, so all go"),
        pytest.param(1, 600, ["g0", "g1"], id="two to spare"),
    ],
)
def test_gang_keeps_min_member_or_is_preempted_whole(least: int, cpu: int, gone: list[str]) -> None:
    table = nodes(900)
    put(table, "n0", [ask(table, f"g{number}", 300, group="g", least=least) for number in range(3)])
    assert victims(preempt(table, ask(table, "new", cpu, 5))) == gone


def gang_on(table: NodeTable, *priorities: int, least: int, **more: Any) -> None:
    """Place one member on each node."""
    for number, priority in enumerate(priorities):
        put(table, f"n{number}", [ask(table, f"g{number}", 300, priority, group="g", least=least, **more)])


@pytest.mark.parametrize(
    ("priorities", "least", "more", "gone"),
    [
        pytest.param((0, 0, 0), 2, {}, 1, id="one to spare, wherever"),
        pytest.param((0, 0, 0), 3, {}, 3, id="none to spare: all, on all nodes"),
        pytest.param((0, 0, 5), 3, {}, 0, id="one of equal priority saves them all"),
        pytest.param((0, 0, 5), 2, {}, 1, id="a surplus member may still be a victim"),
        pytest.param((0, 0, 0), 3, {"service": "limited"}, 0, id="a limit saves them all"),
        pytest.param((0, 0, 0), 2, {"service": "limited"}, 1, id="what the limit allows may be spared"),
    ],
)
def test_gang_over_many_nodes_is_preempted_whole(
    priorities: tuple[int, ...], least: int, more: dict[str, Any], gone: int
) -> None:
    table = nodes(300, 300, 300)
    gang_on(table, *priorities, least=least, **more)
    found = preempt(table, ask(table, "new", 300, 5), disruptions_allowed={"default/limited": 2})
    assert len(victims(found)) == gone
    assert not found or found.row in {victim.row for victim in found.victims}


@pytest.mark.parametrize(
    ("others", "gone"),
    [
        pytest.param([3, 3], ["a0", "a1"], id="two others rather than three of a gang"),
        pytest.param([3, 3, 3], ["g0", "g1", "g2"], id="among equal counts the lower priority, on any node"),
        pytest.param([0, 0, 0, 0], ["g0", "g1", "g2"], id="three of a gang rather than four others"),
    ],
)
def test_all_gang_members_count_as_victims(others: list[int], gone: list[str]) -> None:
    table = nodes(300, 300, 300, 300)
    gang_on(table, 1, 1, 1, least=3)
    put(
        table,
        "n3",
        [ask(table, f"a{number}", 300 // len(others), priority) for number, priority in enumerate(others)],
    )
    assert victims(preempt(table, ask(table, "new", 300, 5))) == gone


def test_victims_are_charged_to_disruption_budget() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "a1", 1000, service="a")])
    preemptor = Preemptor(table, packing(), disruptions_allowed={"default/a": 3})
    preemptor.charge(table.placements.values())
    assert preemptor.disruptions_allowed == {"default/a": 2}


@pytest.mark.parametrize(
    ("there", "new", "gone"),
    [
        pytest.param({"gpu": 1000}, {"gpu": 1000}, ["x"], id="a GPU is freed"),
        pytest.param({"gpu": 600}, {"gpu": 500}, ["x"], id="a part of a GPU is freed"),
        pytest.param(
            {"host_ports": ((80, "TCP"),)}, {"host_ports": ((80, "TCP"),)}, ["x"], id="a port is freed"
        ),
        pytest.param(
            {"labels": WEB},
            {"anti_affinity_terms": NOT_NEAR_WEB},
            ["x"],
            id="a workload it has anti-affinity to is evicted",
        ),
        pytest.param(
            {"anti_affinity_terms": NOT_NEAR_WEB},
            {"labels": WEB},
            ["x"],
            id="a workload with anti-affinity to it is evicted",
        ),
        pytest.param({}, {"node_selector": (("zone", "z9"),)}, [], id="no eviction changes a label"),
    ],
)
def test_preemption_frees_gpus_ports_and_anti_affinity(
    there: dict[str, Any], new: dict[str, Any], gone: list[str]
) -> None:
    table = nodes(1000, gpus=(1,))
    put(table, "n0", [ask(table, "bystander", 10), ask(table, "x", 10, **there)])
    taken = table.gpus.free(0).tolist()
    assert victims(preempt(table, ask(table, "new", 10, 5, **new))) == gone
    assert table.gpus.free(0).tolist() == taken


def test_own_gang_members_are_never_victims() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "m1", 1000, 0, group="g")])
    assert preempt(table, ask(table, "m2", 1000, 5, group="g")) is None


def test_preemptor_follows_new_nodes_and_resources() -> None:
    table, profile = nodes(1000), indifferent()
    preemptor = Preemptor(table, profile)
    put(table, "n0", [ask(table, "a", 1000, 3)])
    new = ask(table, "new", 1000, 5)
    assert victims(preemptor.find(new, decide(new, table, profile))) == ["a"]
    table.add_resource("fpga")
    other = nodes(1000, 1000)
    assert other.node_infos[1]
    table.put_node(other.node_infos[1])
    put(table, "n1", [ask(table, "b", 1000, 1)])
    assert victims(preemptor.find(new, decide(new, table, profile))) == ["b"]


def test_only_helpful_node_among_many_is_found() -> None:
    table, port = nodes(*[100] * 400), ((80, "TCP"),)
    for row in range(400):
        put(
            table,
            f"n{row}",
            [
                ask(table, f"equal{row}", 10, 5 if row != 397 else 4, host_ports=port),
                ask(table, f"low{row}", 10),
            ],
        )
    assert victims(preempt(table, ask(table, "new", 10, 5, host_ports=port))) == ["equal397"]


@pytest.mark.parametrize(
    ("there", "cpu", "gone"),
    [
        pytest.param(
            [(1, 0)] * 4 + [(2, 1), (2, 1), (3, 9)],
            4,
            [4, 5],
            id="the cheapest pair is neither of the smallest nor of the largest",
        ),
        pytest.param(
            [(4, 3), (3, 1), (3, 1), (2, 0)], 6, [1, 2], id="the largest one is not among the cheapest two"
        ),
        pytest.param([(5, 8), (3, 3), (3, 4), (2, 0), (2, 0)], 7, [0, 3], id="a dear one and a cheap one"),
    ],
)
def test_cheapest_pair_by_size_and_priority(there: list[tuple[int, int]], cpu: int, gone: list[int]) -> None:
    table = nodes(sum(size for size, _ in there))
    put(
        table,
        "n0",
        [ask(table, f"w{number}", size, priority) for number, (size, priority) in enumerate(there)],
    )
    found = preempt(table, ask(table, "new", cpu, 10))
    assert sorted(victims(found)) == [f"w{number}" for number in gone]


def test_preemption_frees_port_of_dynamic_range() -> None:
    table = NodeTable()
    table.put_node(NodeInfo("n0", {"cpu": 1000, "memory": 1}, {"node": "n0"}, port_range=(9000, 9001)))
    put(table, "n0", [ask(table, "fixed", 10, 1, host_ports=((9000, "TCP"),)), ask(table, "other", 10, 0)])
    assert victims(preempt(table, ask(table, "new", 10, 5, ports=2))) == ["fixed"]
