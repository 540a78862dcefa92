"""Tests of wake events: for each filter a rejection, a change that makes a node feasible, and the event that
wakes the workload."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from build.node_tables import (
    a_node_info,
    a_spread,
    a_taint,
    ask,
    near,
    node_term,
    nodes,
    place,
    requirement,
    ruled_out,
    workload_demands,
)
from build.property_settings import many
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraints import MachineImage, PlannedNodes, Volume
from lattice.scheduling.cycle.cycle import wakes_on
from lattice.scheduling.cycle.profile import FILTERS, compile_preset
from lattice.scheduling.cycle.scheduling_queue import UNSCHEDULABLE_RETRY_S, SchedulingQueue
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands

BALANCED = compile_preset()


@dataclass(frozen=True)
class Case:
    filter: str
    change: ClusterEvent
    wants: Demands
    table: Callable[[], NodeTable]
    apply: Callable[[NodeTable], object]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.filter} - {self.change.value}{self.note and f', {self.note}'}"


ONE_NODE: list[tuple[str, Demands, dict[str, Any], dict[ClusterEvent, dict[str, Any]]]] = [
    ("Ready", workload_demands(), {"is_cordoned": True}, {ClusterEvent.NODE_READY: {"is_cordoned": False}}),
    ("Ready", workload_demands(), {"is_ready": False}, {ClusterEvent.NODE_READY: {"is_ready": True}}),
    ("Ready", workload_demands(), {"is_draining": True}, {ClusterEvent.NODE_READY: {"is_draining": False}}),
    (
        "InCluster",
        workload_demands(cluster="c"),
        {"cluster": "b"},
        {ClusterEvent.NODE_CHANGED: {"cluster": "c"}},
    ),
    (
        "Kept",
        workload_demands(),
        {"labels": {RESERVE_LABEL: "dc"}},
        {ClusterEvent.NODE_CHANGED: {"labels": {}}},
    ),
    (
        "NodeSelector",
        workload_demands(node_selector={"disk": "ssd"}),
        {},
        {ClusterEvent.NODE_CHANGED: {"labels": {"disk": "ssd"}}},
    ),
    (
        "NodeAffinity",
        workload_demands(node_terms=(node_term(requirement("disk", "Exists")),)),
        {},
        {ClusterEvent.NODE_CHANGED: {"labels": {"disk": "ssd"}}},
    ),
    ("Taints", workload_demands(), {"taints": (a_taint("t"),)}, {ClusterEvent.NODE_CHANGED: {"taints": ()}}),
    (
        "Runtime",
        workload_demands(runtime="container"),
        {"runtimes": frozenset({"process"})},
        {ClusterEvent.NODE_CHANGED: {"runtimes": frozenset({"container"})}},
    ),
    (
        "MachineImage",
        workload_demands(image=MachineImage(pattern="b*")),
        {"image": "a-1"},
        {ClusterEvent.NODE_CHANGED: {"image": "b-1"}},
    ),
    (
        "NodePressure",
        workload_demands(is_best_effort=True),
        {"is_under_pressure": True},
        {ClusterEvent.NODE_CHANGED: {"is_under_pressure": False}},
    ),
    (
        "Licence",
        workload_demands(licences=("pro",)),
        {},
        {ClusterEvent.NODE_CHANGED: {"licences": frozenset({"pro"})}},
    ),
    (
        "VolumeZone",
        workload_demands(volumes=(Volume(name="v", zone="a"),)),
        {"zone": "b"},
        {ClusterEvent.NODE_CHANGED: {"zone": "a"}},
    ),
    (
        "Fit",
        workload_demands({"cpu": 8}),
        {},
        {ClusterEvent.NODE_GREW: {"room": {"cpu": 8, "memory": "16Gi"}}},
    ),
    ("Fit", workload_demands({"fpga": 1}), {}, {ClusterEvent.NODE_GREW: {"room": {"cpu": 4, "fpga": 1}}}),
    (
        "Fit",
        workload_demands(ports=3),
        {"port_range": (1, 2)},
        {ClusterEvent.NODE_GREW: {"port_range": (1, 3)}},
    ),
    ("Gpu", workload_demands(gpu=2), {"gpus": ("T4",)}, {ClusterEvent.NODE_GREW: {"gpus": ("T4", "T4")}}),
    (
        "Gpu",
        workload_demands(gpu=1, models=("A100",)),
        {"gpus": ("T4",)},
        {ClusterEvent.NODE_CHANGED: {"gpus": ("A100",)}},
    ),
    (
        "HostPorts",
        workload_demands(host_ports=((80, "TCP"),), ports=1),
        {"port_range": (80, 80)},
        {ClusterEvent.NODE_GREW: {"port_range": (80, 81)}},
    ),
]


def one_node_cases() -> Iterator[Case]:
    """The node changes to fit the workload, or another node that fits is added."""
    for name, wants, bad, changes in ONE_NODE:
        for change, good in changes.items():
            yield Case(
                name,
                change,
                wants,
                lambda bad=bad: nodes(a_node_info("n", **bad)),
                lambda table, good=good: table.put_node(a_node_info("n", **good)),
            )
            yield Case(
                name,
                ClusterEvent.NODE_ADDED,
                wants,
                lambda bad=bad: nodes(a_node_info("n", **bad)),
                lambda table, good=good: table.put_node(a_node_info("new", **good)),
            )


def with_one(wants: Demands, **facts: Any) -> Callable[[], NodeTable]:
    def made() -> NodeTable:
        table = nodes(a_node_info("n", **facts))
        place(table, wants, "n")
        return table

    return made


def first_leaves(table: NodeTable) -> object:
    return table.forget("default/placed-0")


PORT = workload_demands(host_ports=((80, "TCP"),))
SPREAD = workload_demands(labels={"app": "a"}, spread=(a_spread("zone", labels={"app": "a"}),))
FAR = workload_demands(labels={"app": "a"}, anti_affinity_terms=(near("zone", app="a"),))
NEAR = workload_demands(affinity_terms=(near("zone", app="a"),))
NEAR_ITS_OWN = workload_demands(labels={"app": "a"}, affinity_terms=(near("zone", app="a"),))
PLAIN = workload_demands(labels={"app": "a"})
ONE_A_NODE = workload_demands(service="s", planned_nodes=PlannedNodes(count=2, per_node=1))


def two_zones(
    *placed: str, unready: tuple[str, ...] = (), demands: Demands = PLAIN
) -> Callable[[], NodeTable]:
    """Nodes x1 and x2 in zone x, y1 in zone y, and a workload on each named node."""

    def made() -> NodeTable:
        table = nodes(
            *(a_node_info(name, zone=name[0], is_ready=name not in unready) for name in ("x1", "x2", "y1"))
        )
        place(table, demands, *placed)
        return table

    return made


TWO_ZONES = [
    Case(
        "Fit",
        ClusterEvent.WORKLOAD_GONE,
        workload_demands({"cpu": 3}),
        with_one(workload_demands({"cpu": 3})),
        first_leaves,
    ),
    Case(
        "Gpu",
        ClusterEvent.WORKLOAD_GONE,
        workload_demands(gpu=1),
        with_one(workload_demands(gpu="500m"), gpus=("T4",)),
        first_leaves,
    ),
    Case("HostPorts", ClusterEvent.WORKLOAD_GONE, PORT, with_one(PORT), first_leaves),
    Case(
        "HostPorts",
        ClusterEvent.NODE_ADDED,
        PORT,
        with_one(PORT),
        lambda table: table.put_node(a_node_info("new")),
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_UNAVAILABLE,
        SPREAD,
        two_zones("x1"),
        lambda table: table.remove_node("y1"),
        "of the emptiest domain",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_UNAVAILABLE,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y1", zone="y", is_cordoned=True)),
        "cordon",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_UNAVAILABLE,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y1", zone="y", is_ready=False)),
        "unready",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_UNAVAILABLE,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y1", zone="y", is_draining=True)),
        "drain",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_UNAVAILABLE,
        SPREAD,
        two_zones("x1"),
        lambda table: table.remove_node("x1"),
        "with what was on it",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_CHANGED,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("x2", zone="y")),
        "into another zone",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_CHANGED,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y1", zone="x")),
        "the emptiest ends",
    ),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_ADDED,
        SPREAD,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y2", zone="y")),
    ),
    Case(
        "TopologySpread",
        ClusterEvent.WORKLOAD_ADDED,
        SPREAD,
        two_zones("x1"),
        lambda table: place(table, PLAIN, "y1"),
    ),
    Case("TopologySpread", ClusterEvent.WORKLOAD_GONE, SPREAD, two_zones("x1"), first_leaves),
    Case(
        "TopologySpread",
        ClusterEvent.NODE_READY,
        SPREAD,
        two_zones("x1", "y1", unready=("x1", "x2", "y1")),
        lambda table: table.put_node(a_node_info("x1", zone="x")),
    ),
    Case(
        "WorkloadAffinity",
        ClusterEvent.WORKLOAD_ADDED,
        NEAR,
        two_zones(),
        lambda table: place(table, PLAIN, "y1"),
    ),
    Case(
        "WorkloadAffinity",
        ClusterEvent.NODE_ADDED,
        NEAR,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("x3", zone="x")),
    ),
    Case(
        "WorkloadAffinity",
        ClusterEvent.NODE_CHANGED,
        NEAR,
        two_zones("x1"),
        lambda table: table.put_node(a_node_info("y1", zone="x")),
    ),
    Case(
        "WorkloadAffinity",
        ClusterEvent.WORKLOAD_GONE,
        NEAR_ITS_OWN,
        two_zones("x1"),
        first_leaves,
        "so it is the first of them",
    ),
    Case(
        "WorkloadAffinity",
        ClusterEvent.NODE_UNAVAILABLE,
        NEAR_ITS_OWN,
        two_zones("x1"),
        lambda table: table.remove_node("x1"),
        "so it is the first of them",
    ),
    Case("WorkloadAntiAffinity", ClusterEvent.WORKLOAD_GONE, FAR, two_zones("x1", "y1"), first_leaves),
    Case(
        "WorkloadAntiAffinity",
        ClusterEvent.NODE_UNAVAILABLE,
        FAR,
        two_zones("x1", "y1"),
        lambda table: table.remove_node("x1"),
        "with whom it kept away",
    ),
    Case(
        "WorkloadAntiAffinity",
        ClusterEvent.NODE_ADDED,
        FAR,
        two_zones("x1", "y1"),
        lambda table: table.put_node(a_node_info("z1", zone="z")),
    ),
    Case(
        "WorkloadAntiAffinity",
        ClusterEvent.NODE_CHANGED,
        FAR,
        two_zones("x1", "y1"),
        lambda table: table.put_node(a_node_info("x2", zone="z")),
    ),
    Case(
        "NodeShare", ClusterEvent.WORKLOAD_GONE, ONE_A_NODE, two_zones("x1", demands=ONE_A_NODE), first_leaves
    ),
    Case(
        "NodeShare",
        ClusterEvent.NODE_ADDED,
        ONE_A_NODE,
        two_zones("x1", "x2", "y1", demands=ONE_A_NODE),
        lambda table: table.put_node(a_node_info("z1", zone="z")),
    ),
]
CASES = [*one_node_cases(), *TWO_ZONES]


def feasible_nodes(case: Case, table: NodeTable) -> set[str]:
    return set(table.row_of) - set(ruled_out(FILTERS[case.filter], table, case.wants))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_filter_wakes_on_change_that_makes_node_feasible(case: Case) -> None:
    table = case.table()
    before = feasible_nodes(case, table)
    case.apply(table)
    assert feasible_nodes(case, table) - before, "it is no help"
    assert case.change in FILTERS[case.filter].wakes_on


def test_filters_wake_on_helpful_changes_only() -> None:
    assert {name: set(each.wakes_on) for name, each in FILTERS.items()} == {
        name: {case.change for case in CASES if case.filter == name} for name in FILTERS
    }


def test_loss_of_emptiest_zone_wakes_spread_workload() -> None:
    table, queue = (
        nodes(a_node_info("x", zone="x"), a_node_info("y", {"cpu": "10m"}, zone="y")),
        SchedulingQueue(),
    )
    place(table, SPREAD, "x")
    asked = ask(table, SPREAD)
    queue.add(asked)
    queue.pop(0.0)
    decision = decide(asked, table, BALANCED)
    assert not decision.fits
    queue.requeue_unschedulable(asked.name, wakes_on(decision), 0.0)
    table.put_node(a_node_info("y", {"cpu": "10m"}, zone="y", is_cordoned=True))
    assert queue.wake(ClusterEvent.NODE_UNAVAILABLE, 2.0) == 1
    assert queue.pop(2.0) == asked, f"not after {UNSCHEDULABLE_RETRY_S} seconds"
    assert decide(asked, table, BALANCED).name == "x"


def changes(before: NodeInfo | None, after: NodeInfo | None) -> set[ClusterEvent]:
    """The events of a node's change from `before` to `after`."""
    if before is None or after is None:
        return {ClusterEvent.NODE_ADDED if before is None else ClusterEvent.NODE_UNAVAILABLE}
    could, can = (each.is_ready and not each.is_cordoned and not each.is_draining for each in (before, after))
    found = (
        {ClusterEvent.NODE_READY}
        if can and not could
        else {ClusterEvent.NODE_UNAVAILABLE}
        if could and not can
        else set()
    )
    if any(after.allocatable.get(name, 0) > before.allocatable.get(name, 0) for name in after.allocatable):
        found.add(ClusterEvent.NODE_GREW)
    same = replace(
        after,
        allocatable=before.allocatable,
        is_ready=before.is_ready,
        is_cordoned=before.is_cordoned,
        is_draining=before.is_draining,
    )
    return found if same == before else found | {ClusterEvent.NODE_CHANGED}


def facts(name: str) -> st.SearchStrategy[NodeInfo]:
    return st.builds(
        lambda cpu, zone, cordoned, unready, taint: a_node_info(
            name,
            {"cpu": cpu, "memory": "16Gi"},
            zone=zone,
            is_cordoned=cordoned,
            is_ready=not unready,
            taints=(a_taint("t"),) * taint,
        ),
        st.integers(1, 3),
        st.sampled_from("xyz"),
        *([st.sampled_from([False, False, False, True])] * 3),
    )


WANTS = st.sampled_from(
    [
        SPREAD,
        FAR,
        NEAR,
        NEAR_ITS_OWN,
        PORT,
        PLAIN,
        workload_demands({"cpu": 2}, spread=SPREAD.spread, labels={"app": "a"}),
    ]
)
NAMES = ("n0", "n1", "n2", "n3")


@many
@given(
    there=st.tuples(*(facts(name) for name in NAMES)),
    placed=st.lists(st.tuples(st.sampled_from(NAMES), WANTS), max_size=5),
    wants=WANTS,
    news=st.one_of(
        st.sampled_from(NAMES),
        st.sampled_from([*NAMES, "new"]).flatmap(facts),
        st.tuples(st.sampled_from(NAMES), WANTS),
        st.integers(0, 4),
    ),
)
def test_every_helpful_change_is_a_wake_event(
    there: tuple[NodeInfo, ...],
    placed: list[tuple[str, Demands]],
    wants: Demands,
    news: str | NodeInfo | tuple[str, Demands] | int,
) -> None:
    table = nodes(*there)
    for node, demands in placed:
        place(table, demands, node)
    asked = ask(table, wants)
    decision = decide(asked, table, BALANCED)
    if decision.fits:
        return
    hears, happened = wakes_on(decision), apply(table, news)
    assert not decide(asked, table, BALANCED).fits or hears & happened, f"{happened} helps, and is not heard"


def apply(table: NodeTable, news: str | NodeInfo | tuple[str, Demands] | int) -> set[ClusterEvent]:
    """Apply one change: a node is removed, added or changed, or a workload is added or removed."""
    match news:
        case str():
            table.remove_node(news)
            return {ClusterEvent.NODE_UNAVAILABLE}
        case NodeInfo():
            before = table.node_infos[table.row_of[news.name]] if news.name in table.row_of else None
            table.put_node(news)
            return changes(before, news)
        case (node, demands):
            place(table, demands, node)
            return {ClusterEvent.WORKLOAD_ADDED}
        case int():
            if news < len(table.placements):
                table.forget(list(table.placements)[news])
            return {ClusterEvent.WORKLOAD_GONE}
