"""Victims are of lower priority, make room, are no more than needed and as cheap as can be."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import ask, indifferent, many, nodes, packing, put, where

from lattice.engine.decide import decide
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.selector import LabelSelector
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.nodes import NodeTable, Placement
from lattice.scheduling.preempt import Preemption, Preemptor, fits_on

WEB = (("app", "web"),)
NOT_NEAR_WEB = (WorkloadTerm(selector=LabelSelector(match_labels={"app": "web"}), topology_key="node"),)


def preempt(table: NodeTable, newcomer: WorkloadAsk, **more: Any) -> Preemption | None:
    profile = packing()
    decision = decide(newcomer, table, profile)
    assert not decision.fits
    return Preemptor(table, profile, **more).find(newcomer, decision)


def victims(found: Preemption | None) -> list[str]:
    return [name.removeprefix("default/") for name in found.names] if found else []


Small = tuple[int, str, int, int]  # node, name, cpu, priority


@pytest.mark.parametrize(
    ("there", "cpu", "priority", "gone"),
    [
        pytest.param([(0, "a", 1000, 1), (1, "b", 1000, 2)], 500, 5, ["a"], id="of two nodes the one with the less important victim"),
        pytest.param([(0, "a", 1000, 5), (1, "b", 1000, 6)], 500, 5, [], id="equal priority is not lower"),
        pytest.param(
            [(0, "a", 500, 0), (0, "b", 500, 0), (1, "c", 1000, 3)], 1000, 5, ["c"], id="one important one rather than two others"
        ),
        pytest.param([(0, "a", 500, 1), (0, "b", 500, 0), (1, "c", 1000, 9)], 500, 5, ["b"], id="the least important of two"),
        pytest.param([(0, "a", 900, 9), (0, "b", 100, 0), (1, "c", 1000, 9)], 500, 5, [], id="nobody goes where that makes no room"),
        pytest.param(
            [(0, "a", 100, 0), (0, "b", 300, 0), (0, "c", 600, 0), (1, "d", 1000, 9)], 600, 5, ["c"], id="nobody who does not help"
        ),
        pytest.param([(0, "a", 400, 2), (0, "b", 300, 1), (0, "c", 300, 1), (1, "d", 1000, 9)], 600, 5, ["b", "c"], id="cheapest pair"),
        pytest.param([(0, "a", 1000, -5), (1, "b", 1000, 0)], 500, 1, ["a"], id="priorities below zero"),
        pytest.param([(0, "a", 1000, 0), (1, "b", 1000, 0)], 1500, 9, [], id="larger than any node"),
    ],
)
def test_who_goes(there: list[Small], cpu: int, priority: int, gone: list[str]) -> None:
    table = nodes(1000, 1000)
    for node, name, size, important in there:
        put(table, f"n{node}", [ask(table, name, size, important)])
    before = where(table)
    assert victims(preempt(table, ask(table, "new", cpu, priority))) == gone
    assert where(table) == before


def test_of_equals_the_youngest_goes() -> None:
    table = nodes(1000, 1000)
    for name, node in (("old", "n0"), ("young", "n0"), ("middle", "n1"), ("older", "n1")):
        put(table, node, [ask(table, name, 500)])
    ages = {"default/old": 90.0, "default/young": 5.0, "default/middle": 30.0, "default/older": 99.0}
    assert victims(preempt(table, ask(table, "new", 500, 5), age=ages.__getitem__)) == ["young"]


@pytest.mark.parametrize(
    ("left", "gone"),
    [
        pytest.param({}, ["a1"], id="no limit"),
        pytest.param({"default/a": 0}, ["b1", "b2"], id="a service that may not be disrupted is spared"),
        pytest.param({"default/a": 0, "default/b": 1}, [], id="a limit that leaves too few"),
        pytest.param({"default/a": 0, "default/b": 2}, ["b1", "b2"], id="a limit that leaves just enough"),
    ],
)
def test_disruption_limits(left: dict[str, int], gone: list[str]) -> None:
    table = nodes(1000, 1000)
    put(table, "n0", [ask(table, "a1", 1000, service="a")])
    put(table, "n1", [ask(table, name, 500, service="b") for name in ("b1", "b2")])
    assert victims(preempt(table, ask(table, "new", 800, 5), may_disrupt=left)) == gone


@pytest.mark.parametrize(
    ("least", "cpu", "gone"),
    [
        pytest.param(3, 300, [], id="a gang without a member to spare"),
        pytest.param(2, 300, ["g0"], id="a gang with one to spare"),
        pytest.param(2, 600, [], id="one to spare is not enough"),
        pytest.param(1, 600, ["g0", "g1"], id="two to spare"),
    ],
)
def test_a_gang_keeps_as_many_as_it_needs(least: int, cpu: int, gone: list[str]) -> None:
    table = nodes(900)
    put(table, "n0", [ask(table, f"g{number}", 300, group="g", least=least) for number in range(3)])
    assert victims(preempt(table, ask(table, "new", cpu, 5))) == gone


def test_a_gang_over_many_nodes_is_counted_whole() -> None:
    table = nodes(300, 300, 300)
    for number in range(3):
        put(table, f"n{number}", [ask(table, f"g{number}", 300, group="g", least=2)])
    preemptor = Preemptor(table, packing())
    for name, goes in (("new", 1), ("newer", 0)):
        newcomer = ask(table, name, 300, 5)
        found = preemptor.find(newcomer, decide(newcomer, table, packing()))
        assert len(victims(found)) == goes
        for victim in found.names if found else ():
            table.forget(victim)
            put(table, table.names[found.row] if found else "", [newcomer])


def test_stopped_ones_are_charged_to_their_service() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "a1", 1000, service="a")])
    preemptor = Preemptor(table, packing(), may_disrupt={"default/a": 3})
    preemptor.charge(table.placements.values())
    assert preemptor.may_disrupt == {"default/a": 2}


@pytest.mark.parametrize(
    ("there", "new", "gone"),
    [
        pytest.param({"gpu": 1000}, {"gpu": 1000}, ["x"], id="a GPU is freed"),
        pytest.param({"gpu": 600}, {"gpu": 500}, ["x"], id="a part of a GPU is freed"),
        pytest.param({"host_ports": ((80, "TCP"),)}, {"host_ports": ((80, "TCP"),)}, ["x"], id="a port is freed"),
        pytest.param({"labels": WEB}, {"far": NOT_NEAR_WEB}, ["x"], id="a neighbour that it cannot bear leaves"),
        pytest.param({"far": NOT_NEAR_WEB}, {"labels": WEB}, ["x"], id="a neighbour that cannot bear it leaves"),
        pytest.param({}, {"node_selector": (("zone", "z9"),)}, [], id="nobody's leaving changes a label"),
    ],
)
def test_more_than_amounts(there: dict[str, Any], new: dict[str, Any], gone: list[str]) -> None:
    table = nodes(1000, gpus=(1,))
    put(table, "n0", [ask(table, "bystander", 10), ask(table, "x", 10, **there)])
    taken = table.gpus.free(0).tolist()
    assert victims(preempt(table, ask(table, "new", 10, 5, **new))) == gone
    assert table.gpus.free(0).tolist() == taken


def test_members_of_its_own_group_never_give_way() -> None:
    table = nodes(1000)
    put(table, "n0", [ask(table, "m1", 1000, 0, group="g")])
    assert preempt(table, ask(table, "m2", 1000, 5, group="g")) is None


def test_sums_follow_new_nodes_and_resources() -> None:
    table, profile = nodes(1000), indifferent()
    preemptor = Preemptor(table, profile)
    put(table, "n0", [ask(table, "a", 1000, 3)])
    new = ask(table, "new", 1000, 5)
    assert victims(preemptor.find(new, decide(new, table, profile))) == ["a"]
    table.add_resource("fpga")
    other = nodes(1000, 1000)
    assert other.facts[1]
    table.put(other.facts[1])
    put(table, "n1", [ask(table, "b", 1000, 1)])
    assert victims(preemptor.find(new, decide(new, table, profile))) == ["b"]


def needed(table: NodeTable, newcomer: WorkloadAsk, row: int, gone: tuple[Placement, ...]) -> bool:
    with table.what_if():
        for each in gone:
            table.forget(each.ask.name)
        return fits_on(newcomer, table, packing(), row)


SOMEBODY = st.tuples(st.integers(0, 2), st.integers(50, 600), st.integers(0, 4), st.sampled_from(["", "a", "b"]), st.booleans())


@many
@given(
    st.lists(SOMEBODY, max_size=9),
    st.integers(100, 1000),
    st.booleans(),
    st.dictionaries(st.sampled_from(["default/a", "default/b"]), st.integers(0, 2)),
)
def test_against_trying_every_set_of_victims(
    somebody: list[tuple[int, int, int, str, bool]], cpu: int, wants_gpu: bool, limits: dict[str, int]
) -> None:
    table = nodes(1000, 700, 1000, gpus=(1, 1, 0))
    for number, (node, size, priority, service, gpu) in enumerate(somebody):
        each = ask(table, f"w{number}", size, priority, service=service, gpu=1000 if gpu and node < 2 else 0)
        if fits_on(each, table, indifferent(), node):
            put(table, f"n{node}", [each])
    newcomer = ask(table, "new", cpu, 3, gpu=1000 if wants_gpu else 0)
    profile = packing()
    decision = decide(newcomer, table, profile)
    if decision.fits:
        return
    found = Preemptor(table, profile, dict(limits)).find(newcomer, decision)
    possible = []
    for row in range(3):
        lower = [each for each in table.on_row[row].values() if each.ask.priority < 3]
        for size in range(1, len(lower) + 1):
            for gone in combinations(lower, size):
                services = [f"default/{each.ask.demands.service}" for each in gone]
                allowed = all(services.count(service) <= left for service, left in limits.items())
                if allowed and needed(table, newcomer, row, gone):
                    possible.append((len(gone), sum(each.ask.priority for each in gone)))
    assert (found is None) == (not possible), possible
    if found is None:
        return
    assert all(victim.ask.priority < newcomer.priority for victim in found.victims)
    assert needed(table, newcomer, found.row, found.victims)
    for spared in found.victims:
        assert not needed(table, newcomer, found.row, tuple(each for each in found.victims if each is not spared)), "one too many"
    assert found.cost[:2] >= min(possible)
    if not wants_gpu and not limits:
        assert found.cost[0] == min(possible)[0], "fewer would do"
    if not wants_gpu and not limits and min(possible)[0] == 1:
        assert found.cost[:2] == min(possible), "one is enough somewhere, and the cheapest one goes"
    assert found == Preemptor(table, profile, dict(limits)).find(newcomer, decide(newcomer, table, profile))
