"""Tests of victim search against an exhaustive search: the fewest victims, then the cheapest, then the
youngest."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random
from typing import Any

import numpy as np
import pytest
from build.property_settings import many
from build.small_clusters import ask, nodes, packing, put
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.kinds.constraints import Spread, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity
from lattice.scheduling.plugins.filters.topology_spread import TopologySpread
from lattice.scheduling.plugins.reasons import StaticReason
from lattice.scheduling.preemption import preemptor as preempting
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import Demands, GpuNeed, WorkloadAsk

NEAR_DB = (WorkloadTerm(selector=LabelSelector(match_labels={"app": "db"}), topology_key="node"),)

exhaustive_settings = settings(
    many,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


# --- exhaustive search ---


@dataclass
class World:
    facts: list[NodeInfo]
    there: list[Placement]
    new: WorkloadAsk
    limits: dict[str, int]
    ages: dict[str, float]

    def cheapest(self, rank: dict[str, int]) -> tuple[int, int, float, int] | None:
        costs = []
        for row, facts in enumerate(self.facts):
            for gone in self.sets_of_victims(row):
                left = [each for each in self.there if each not in gone]
                if self.is_allowed(gone) and has_place(
                    facts, [e for e in left if e.row == row], self.there_in(row, left), self.new.demands
                ):
                    sums = (
                        len(gone),
                        sum(each.ask.priority for each in gone),
                        sum(self.ages[each.ask.name] for each in gone),
                    )
                    costs.append((*sums, rank[facts.name]))
        return min(costs, default=None)

    def sets_of_victims(self, row: int) -> Iterator[list[Placement]]:
        here = [each for each in self.there if each.row == row]
        for size in range(1, len(here) + 1):
            for some in combinations(here, size):
                yield self.with_their_gangs(some)

    def with_their_gangs(self, some: Sequence[Placement]) -> list[Placement]:
        gone = list(some)
        for gang, count in Counter(each.ask.group for each in some if each.ask.group).items():
            members = [each for each in self.there if each.ask.group == gang]
            if len(members) - count < members[0].ask.min_member:
                gone += [each for each in members if each not in gone]
        return gone

    def is_allowed(self, gone: list[Placement]) -> bool:
        services = Counter(f"default/{each.ask.demands.service}" for each in gone)
        if any(services[service] > left for service, left in self.limits.items()):
            return False
        return all(
            each.ask.priority < self.new.priority and (not self.new.group or each.ask.group != self.new.group)
            for each in gone
        )

    def there_in(self, row: int, left: list[Placement]) -> list[Placement]:
        return [
            each for each in left if self.facts[each.row].labels["zone"] == self.facts[row].labels["zone"]
        ]


def has_place(facts: NodeInfo, here: list[Placement], in_zone: list[Placement], wanted: Demands) -> bool:
    for resource, amount in wanted.requests:
        if sum(
            dict(each.ask.demands.requests).get(resource, 0) for each in here
        ) + amount > facts.allocatable.get(resource, 0):
            return False
    if len(here) >= facts.allocatable["workloads"]:
        return False
    if any(set(each.ask.demands.host_ports) & set(wanted.host_ports) for each in here):
        return False
    for each in here:
        if keeps_away(each.ask.demands, wanted, "node") or keeps_away(wanted, each.ask.demands, "node"):
            return False
    for each in in_zone:
        if keeps_away(each.ask.demands, wanted, "zone") or keeps_away(wanted, each.ask.demands, "zone"):
            return False
    return wanted.gpu is None or has_gpus(facts, here, wanted.gpu)


def keeps_away(one: Demands, other: Demands, key: str) -> bool:
    return any(
        term.topology_key == key and term.selector.matches(dict(other.labels))
        for term in one.anti_affinity_terms
    )


def has_gpus(facts: NodeInfo, here: list[Placement], need: GpuNeed) -> bool:
    free = [milli for _, milli in facts.gpus]
    for each in here:
        for number in each.gpus:
            free[number] -= each.ask.demands.gpu.milli if each.ask.demands.gpu else 0
    will_do = [not need.models or model in need.models for model, _ in facts.gpus]
    return (
        sum(usable and left >= need.milli for usable, left in zip(will_do, free, strict=True)) >= need.count
    )


# --- random clusters ---

GPUS = ((), ("T4",), ("T4", "A100"), ("A100", "A100", "T4"))
ROOMS = [
    ({"cpu": cpu, "memory": memory, "fpga": fpga, "workloads": slots}, tuple((model, 1000) for model in gpus))
    for cpu, memory, fpga, slots, gpus in product((5, 7, 9), (5, 7, 9), (2, 3), (4, 5, 9), GPUS)
]
SIZES = [
    tuple((name, amount) for name, amount in (("cpu", cpu), ("memory", memory), ("fpga", fpga)) if amount)
    for cpu, memory, fpga in product((1, 2, 3), (0, 1, 2, 3), (0, 0, 1))
]
LARGE = [
    (("cpu", cpu), ("memory", memory), ("fpga", fpga))
    for cpu, memory, fpga in product((2, 4, 5), (2, 4, 5), (0, 1, 2))
]
PARTS = [GpuNeed(1, milli) for milli in (300, 300, 500, 700)]
NEEDS = [None] * 4 + [*PARTS, GpuNeed(1, 1000), GpuNeed(2, 1000), GpuNeed(1, 400, ("A100",))]
NET = [
    {"host_ports": ports, "labels": (("app", app),), "anti_affinity_terms": far}
    for ports, app, far in product(
        [()] * 4 + [((80, "TCP"),), ((80, "TCP"), (443, "UDP"))],
        "ab",
        [()] * 12
        + [
            (WorkloadTerm(selector=LabelSelector(match_labels={"app": app}), topology_key=key),)
            for app in "ab"
            for key in ("node", "zone")
        ],
    )
]
SERVICES = ("", "", "s", "t")
WORKLOADS = st.tuples(
    st.sampled_from((0, 0, 0, 1, 1, 2)),  # node
    st.sampled_from(SIZES),
    st.sampled_from(NEEDS),
    st.sampled_from(NET),
    st.sampled_from(list(product(SERVICES, (0, 0, 1, 2, 9), (0.0, 1.0, 5.0), ("", "", "", "g", "h")))),
)
LIMITS = [{}, {}, {"default/s": 0}, {"default/s": 1}, {"default/s": 2, "default/t": 0}, {"default/t": 1}]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NodeTable, World]:
    rooms = draw(st.lists(st.sampled_from(ROOMS), min_size=2, max_size=3))
    least = draw(st.sampled_from([{"g": a, "h": b} for a, b in product((1, 2, 3), (1, 2))]))
    table = NodeTable()
    facts = []
    for number, (totals, gpus) in enumerate(rooms):
        facts.append(
            NodeInfo(f"n{number}", totals, {"node": f"n{number}", "zone": f"z{number // 2}"}, gpus=gpus)
        )
        table.put_node(facts[-1])
    new = draw(WORKLOADS)
    world = World(
        facts,
        [],
        asked(table, "new", (0, draw(st.sampled_from(LARGE)), *new[2:]), 5),
        draw(st.sampled_from(LIMITS)),
        {},
    )
    for number, drawn in enumerate(draw(st.lists(WORKLOADS, min_size=7, max_size=11))):
        _, priority, age, gang = drawn[4]
        each = replace(asked(table, f"w{number}", drawn, priority), group=gang, min_member=least.get(gang, 0))
        row = drawn[0] % len(facts)
        here = [other for other in world.there if other.row == row]
        if has_place(facts[row], here, [], each.demands):
            world.there.append(table.assume(each, row))
            world.ages[each.name] = age
    return table, world


def asked(table: NodeTable, name: str, drawn: tuple[Any, ...], priority: int) -> WorkloadAsk:
    _, size, gpu, net, (service, *_) = drawn
    return table.make_ask(
        f"default/{name}", Demands(requests=size, gpu=gpu, service=service, **net), priority
    )


@pytest.mark.timeout(3600)
@exhaustive_settings
@given(worlds())
def test_victims_equal_exhaustive_search_optimum(made: tuple[NodeTable, World]) -> None:
    table, world = made
    ranks = {name: int(table.column("rank")[row]) for name, row in table.row_of.items()}
    decision = decide(world.new, table, packing())
    assume(not decision.fits)
    before = dict(table.placements)
    found = Preemptor(table, packing(), dict(world.limits), world.ages.__getitem__).find(world.new, decision)
    assert table.placements == before
    assert (found.cost if found else None) == world.cheapest(ranks)
    if found:
        assert found.is_exact
        assert (
            found.victim_names
            == Preemptor(table, packing(), dict(world.limits), world.ages.__getitem__)
            .find(world.new, decision)
            .victim_names
        )  # type: ignore[union-attr]


# --- beyond amounts, GPUs, ports and anti-affinity ---


def spread(key: str) -> tuple[Spread, ...]:
    return (Spread(topology_key=key, max_skew=1, selector=LabelSelector(match_labels={"app": "web"})),)


@pytest.mark.parametrize(
    ("there", "wanted", "gone"),
    [
        pytest.param(
            {"n0": ["x", "web", "x", "web"], "n1": []},
            {"spread": spread("node")},
            ["n0.1", "n0.3"],
            id="an uneven spread",
        ),
        pytest.param(
            {"n0": ["x", "db"], "n1": ["x", "x"]},
            {"affinity_terms": NEAR_DB},
            ["n0.0"],
            id="not the neighbour that it needs",
        ),
    ],
)
def test_victim_search_runs_all_filters(
    there: dict[str, list[str]], wanted: dict[str, Any], gone: list[str]
) -> None:
    """The second node has no capacity with any victims, or is no better."""
    table = nodes(1000, 1000)
    for node, apps in there.items():
        put(
            table,
            node,
            [
                ask(table, f"{node}.{n}", 250, 0 if app != "x" else 1, labels=(("app", app),))
                for n, app in enumerate(apps)
            ],
        )
    put(table, "n1", [ask(table, "full", 1000 - 250 * len(there["n1"]), 9)])
    new = ask(table, "new", 250 if "spread" in wanted else 750, 5, labels=(("app", "web"),), **wanted)
    profile = Profile("asks", (*packing().filters, TopologySpread(), WorkloadAffinity()), ())
    found = Preemptor(table, profile).find(new, decide(new, table, profile))
    assert found
    assert sorted(name.removeprefix("default/") for name in found.victim_names) == gone
    assert found.is_exact


class AcceptsOnly:
    """A filter that accepts only certain workloads on its node."""

    name = "Fussy"
    scope = "row"

    def __init__(self, bears: frozenset[str]) -> None:
        self.bears = bears

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def filter(self, ask: WorkloadAsk, rows: Any) -> dict[Any, Any]:
        company = [
            {each.ask.labels["app"] for each in rows.table.placements_by_row[row].values()}
            for row in rows_of(rows)
        ]
        return {
            StaticReason(self.name, "with bad company"): np.array(
                [not each <= self.bears for each in company]
            )
        }


def rows_of(rows: Any) -> Sequence[int]:
    found: Sequence[int] = getattr(rows, "rows", range(rows.count))
    return found


def test_victim_search_satisfies_custom_filter() -> None:
    table = nodes(1000)
    put(
        table,
        "n0",
        [ask(table, f"w{number}", 100, number, labels=(("app", f"{number}"),)) for number in range(8)],
    )
    fussy: Any = AcceptsOnly(frozenset("013457"))
    profile = Profile("fussy", (*packing().filters, fussy), ())
    new = ask(table, "new", 100, 9)
    found = Preemptor(table, profile).find(new, decide(new, table, profile))
    assert found
    assert found.victim_names == ("default/w2", "default/w6")


# --- step limit ---


@pytest.mark.parametrize("steps", [0, 1, 40])
def test_truncated_search_is_feasible_and_marked_inexact(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, rng = nodes(10_000, 10_000), Random(3)
    for node in ("n0", "n1"):
        each = [ask(table, f"{node}.{n}", rng.randint(100, 400), rng.randint(0, 4)) for n in range(40)]
        put(table, node, each)
    new = ask(table, "new", 4000, 5)
    decision = decide(new, table, packing())
    proved = Preemptor(table, packing()).find(new, decision)
    monkeypatch.setattr(preempting, "MAX_STEPS_PER_NODE", steps)
    found, again = (Preemptor(table, packing()).find(new, decision) for _ in range(2))
    assert found
    assert found == again
    assert not found.is_exact
    with table.what_if():
        for name in found.victim_names:
            table.forget(name)
        assert decide(new, table, packing()).fits
    assert not proved or proved.cost <= found.cost


def test_truncated_search_satisfies_custom_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    table = nodes(800)
    put(
        table,
        "n0",
        [ask(table, f"w{number}", 100, number, labels=(("app", f"{number}"),)) for number in range(8)],
    )
    fussy: Any = AcceptsOnly(frozenset("013457"))
    profile = Profile("fussy", (*packing().filters, fussy), ())
    monkeypatch.setattr(preempting, "MAX_STEPS_PER_NODE", 0)
    new = ask(table, "new", 100, 9)
    found = Preemptor(table, profile).find(new, decide(new, table, profile))
    assert found
    assert {"default/w2", "default/w6"} <= set(found.victim_names)
    assert not found.is_exact
