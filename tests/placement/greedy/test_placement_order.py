"""Tests of the order of placement: dependencies before callers, priority, and independence of names."""

from collections.abc import Callable, Mapping
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest
from build.affinity import apart, near, preferred
from build.worlds import a_service, a_world
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.container import Container
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.placement_order import ordered_demands, placement_order

GANG = {"name": "g", "minMember": 2}


def calls(*names: str) -> dict[str, dict[str, str]]:
    return {name: {"type": "service", "direction": "outbound"} for name in names}


def order(*services: LatticeService) -> list[str]:
    demands = a_world(*services).demands.values()
    return [demand.name.removeprefix("default/") for demand in ordered_demands(demands)]


@pytest.mark.parametrize(("services", "expected"), [
    pytest.param([a_service("a", cores=1), a_service("b", cores=2)], ["b", "a"], id="the largest replica first"),
    pytest.param([a_service("a", cores=2), a_service("b", priority=1)], ["b", "a"], id="priority before size"),
    pytest.param([a_service("a", cores=9, dependencies=calls("b")), a_service("b")], ["b", "a"], id="a dependency before its caller"),
    pytest.param([a_service("z", cores=9, dependencies=calls("b")), a_service("b")], ["b", "z"], id="whatever their names"),
    pytest.param([a_service("a", priority=9, dependencies=calls("b")), a_service("b"), a_service("c", cores=9, priority=5)], ["b", "a", "c"],
                 id="a caller pulls its dependency before services of lower priority"),
    pytest.param([a_service("a", dependencies=calls("b")), a_service("b", cores=2, dependencies=calls("a")), a_service("c", dependencies=calls("a"))],
                 ["b", "a", "c"], id="a cycle follows itself directly, before its callers"),
    pytest.param([a_service("a", cores=9, dependencies=calls("b"), latency={"b": {"maxMs": 5}}), a_service("b"), a_service("c", cores=5)],
                 ["b", "a", "c"], id="a latency group has the size of its largest member"),
    pytest.param([a_service("a", cores=9, affinity=near("b", "node")), a_service("b")], ["b", "a"], id="a target of required affinity first"),
    pytest.param([a_service("a", cores=9, affinity=preferred("b", "zone")), a_service("b")], ["b", "a"], id="a target of preferred affinity first"),
    pytest.param([a_service("a", cores=9, affinity=apart("b")), a_service("b")], ["a", "b"], id="anti-affinity orders nothing"),
    pytest.param([a_service("a", priority=9, affinity=preferred("b", "zone")), a_service("b"), a_service("c", cores=9, priority=5)], ["b", "a", "c"],
                 id="a preferred target is pulled forward as a dependency is"),
    pytest.param([a_service("a"), a_service("b")], ["a", "b"], id="names between equals"),
])  # fmt: skip
def test_order(services: list[LatticeService], expected: list[str]) -> None:
    assert order(*services) == expected


def test_service_that_only_one_latency_group_calls_joins_it() -> None:
    db, api = (
        a_service("db", cores=2),
        {"dependencies": calls("db", "cache"), "latency": {"db": {"maxMs": 5}}},
    )
    alone = a_world(db, a_service("cache"), a_service(**api))
    shared = a_world(db, a_service("cache"), a_service(**api), a_service("web", dependencies=calls("cache")))
    assert [len(group) for group in placement_order(alone.demands)] == [3]
    assert sorted(len(group) for group in placement_order(shared.demands)) == [1, 1, 2]


@pytest.mark.parametrize(("first", "second", "groups"), [
    pytest.param({"affinity": near("b", "node")}, {}, 1, id="required affinity ties"),
    pytest.param({"affinity": preferred("b", "zone")}, {}, 2, id="preferred affinity does not"),
    pytest.param({"affinity": apart("b")}, {}, 2, id="anti-affinity does not"),
    pytest.param({"group": GANG}, {"group": GANG}, 1, id="a gang ties"),
])  # fmt: skip
def test_affinity_and_gangs_tie_services_to_a_group(
    first: dict[str, Any], second: dict[str, Any], groups: int
) -> None:
    world = a_world(a_service("a", **first), a_service("b", **second))
    assert len(list(placement_order(world.demands))) == groups


@given(st.permutations(["a", "b", "c", "d"]), st.sampled_from([near, preferred]))
def test_order_by_affinity_does_not_depend_on_names(names: list[str], affinity: Callable[..., Any]) -> None:
    """The services are equal but for their affinity, so only the digests tell them apart."""
    first, second, third, last = names
    services = [
        a_service(first, affinity=affinity(second, "zone")),
        a_service(second),
        a_service(third, affinity=apart(last)),
        a_service(last, group=GANG),
    ]
    expected = [
        a_service("a", affinity=affinity("b", "zone")),
        a_service("b"),
        a_service("c", affinity=apart("d")),
        a_service("d", group=GANG),
    ]
    new = dict(zip("abcd", names, strict=True))
    assert order(*services) == [new[name] for name in order(*expected)]


def test_services_that_differ_in_one_property_are_ordered_by_it() -> None:
    """The first two limit the latency to the same services, in the opposite way; the last needs no image."""

    def services(first: str, second: str, third: str, last: str) -> list[LatticeService]:
        limits = {"db": {"maxMs": 5}, "cache": {"maxMs": 50}}
        swapped = {"db": {"maxMs": 50}, "cache": {"maxMs": 5}}
        called, plain = calls("db", "cache"), a_service(last)
        process = {"main": Container(command=("run",))}
        return [
            a_service(first, dependencies=called, latency=limits),
            a_service(second, dependencies=called, latency=swapped),
            a_service("db", cores=4),
            a_service("cache", cores=3),
            a_service(third),
            msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, containers=process)),
        ]

    plain = order(*services(*"abcd"))
    for names in permutations("abcd"):
        new = dict(zip("abcd", names, strict=True))
        assert order(*services(*names)) == [new.get(name, name) for name in plain]


def test_chain_of_latency_limits_may_be_long() -> None:
    """Every service depends on the next one, so all are one group."""
    count = 1200
    services = [
        a_service(
            f"s{number}", dependencies=calls(f"s{number + 1}"), latency={f"s{number + 1}": {"maxMs": 5}}
        )
        for number in range(count)
    ]
    assert order(*services) == [f"s{number}" for number in reversed(range(count))]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[int, int, dict[str, int]]]:
    """By service: priority, cores, and the limit in milliseconds per called service; 0: no limit."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 7)))]
    links = st.dictionaries(st.sampled_from(names), st.sampled_from([0, 0, 5]), max_size=3)
    return {name: (draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(links)) for name in names}


def services_of(
    graph: Mapping[str, tuple[int, int, dict[str, int]]], new: Mapping[str, str]
) -> list[LatticeService]:
    return [
        a_service(
            new[name],
            priority=priority,
            cores=cores,
            dependencies=calls(*(new[target] for target in links)),
            latency={new[target]: {"maxMs": limit} for target, limit in links.items() if limit},
        )
        for name, (priority, cores, links) in graph.items()
    ]


def reachable(links: Mapping[str, set[str]], start: str) -> set[str]:
    found, pending = set(), [start]
    while pending:
        for target in links[pending.pop()] - found:
            found.add(target)
            pending.append(target)
    return found


@given(graphs())
def test_dependencies_come_before_callers_unless_in_a_cycle(
    graph: dict[str, tuple[int, int, dict[str, int]]],
) -> None:
    found = order(*services_of(graph, {name: name for name in graph}))
    assert sorted(found) == sorted(graph)
    links = {name: set(called) - {name} for name, (_, _, called) in graph.items()}
    reach = {name: reachable(links, name) for name in graph}
    for name in graph:
        # Members of a latency group are placed together, so that a limit may tie a caller to a later group.
        if any(limit for _, _, called in graph.values() for limit in called.values()):
            continue
        for target in links[name]:
            assert name in reach[target] or found.index(target) < found.index(name)


@given(graphs(), st.integers(0, 1 << 30))
def test_order_does_not_depend_on_names(graph: dict[str, tuple[int, int, dict[str, int]]], seed: int) -> None:
    names = sorted(graph)
    new = dict(zip(names, Random(seed).sample(names, len(names)), strict=True))
    shapes = {name: (priority, cores) for name, (priority, cores, _) in graph.items()}
    plain = order(*services_of(graph, {name: name for name in names}))
    renamed = order(*services_of(graph, new))
    back = {there: here for here, there in new.items()}
    assert [shapes[name] for name in plain] == [shapes[back[name]] for name in renamed]
