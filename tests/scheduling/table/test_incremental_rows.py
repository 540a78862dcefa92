"""Tests of incremental updates of the node table: a changed node touches its row only, results equal a fresh
table, and unused caches are evicted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from build.decision_facts import batch_facts
from build.decision_facts import decision_facts as single_facts
from build.node_tables import a_node_info, a_spread, a_taint, near, node_term, requirement, workload_demands
from build.node_tables import nodes as table_of
from build.property_settings import EXAMPLES, LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.engine.decide import REJECTED_TOTAL, decide
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.engine.derived_columns import MAX_CACHED_COLUMNS
from lattice.engine.plugin import Profile
from lattice.engine.table import RowSubset
from lattice.kinds.constraints import MachineImage, PreferredNodes
from lattice.scheduling.cycle.profile import PRESETS, SCORES, ProfileSpec, compile_profile
from lattice.scheduling.plugins.scores.service_spread import NodeSpread, ServiceSpread
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import MAX_NUMBERED_SHAPES, NodeTable
from lattice.scheduling.table.workload_ask import Demands
from lattice.scheduling.table.workload_index import MAX_IDLE_CLASSES

WITHOUT_LESSONS = {
    name: 1.0 for name in SCORES if name != "GpuFragmentation"
}  # its demand model depends on earlier placements
EVERYTHING = compile_profile(ProfileSpec("everything", WITHOUT_LESSONS))
BALANCED = compile_profile(PRESETS["balanced"])
NODES = 9  # enough that one changed row is evaluated alone

LABELS = [
    {},
    {"zone": "x"},
    {"zone": "y", "disk": "ssd"},
    {"zone": "z", "disk": "hdd", "cluster": "c"},
    {"disk": "ssd", "cluster": "c"},
]
CHANGES: list[dict[str, Any]] = [
    {},
    {"is_cordoned": True},
    {"is_ready": False},
    {"taints": (a_taint("t"),)},
    {"taints": (a_taint("t"), a_taint("u", "PreferNoSchedule"))},
    {"gpus": ("v100", "v100")},
    {"gpus": ("a100",), "price": 5},
    {"price": 9, "runtimes": frozenset({"process"}), "licences": frozenset({"pro"}), "image": "os-1.2"},
]
ROOMS = ({"cpu": 4, "memory": 8}, {"cpu": 6, "memory": 4, "fpga": 2}, {"cpu": 9, "memory": 9, "workloads": 3})
DEMANDS = (
    workload_demands({"cpu": 1, "memory": 1}),
    workload_demands({"cpu": 1}, service="s"),
    workload_demands({"cpu": 1, "fpga": 1}, service="s", labels={"app": "a"}),
    workload_demands({"cpu": 1}, labels={"app": "a"}, anti_affinity_terms=(near("zone", app="a"),)),
    workload_demands(
        {"cpu": 1},
        labels={"app": "a"},
        affinity_terms=(near("disk", app="a"),),
        spread=(a_spread("zone", labels={"app": "a"}, soft=True),),
    ),
    workload_demands({"cpu": 1}, labels={"app": "b"}, spread=(a_spread("zone", labels={"app": "b"}),)),
    workload_demands(
        {"cpu": 1}, node_selector={"disk": "ssd"}, node_terms=(node_term(requirement("zone", "NotIn", "x")),)
    ),
    workload_demands(
        {"cpu": 1},
        cluster="c",
        node_preferences=(PreferredNodes(weight=5, term=node_term(requirement("disk", "In", "hdd"))),),
    ),
    workload_demands({"cpu": 1}, runtime="container", licences=("pro",), image=MachineImage(pattern="os-*")),
    workload_demands({"cpu": 1}, gpu="500m", models=("v100",), ports=1),
    workload_demands({}, host_ports=((80, "TCP"),)),
)

most = settings(max_examples=EXAMPLES if LONG else EXAMPLES // 3, deadline=None)


def a_fact(number: int, labels: int, change: int) -> NodeInfo:
    return a_node_info(
        f"n{number}",
        ROOMS[(number + change) % 3],
        labels=LABELS[labels % len(LABELS)],
        **CHANGES[change % len(CHANGES)],
    )


STEP = st.tuples(
    st.sampled_from(["put", "put", "drop", "place", "place", "forget", "decide"]),
    st.integers(0, NODES + 1),
    st.integers(0, len(LABELS) - 1),
    st.integers(0, len(CHANGES) - 1),
)


class World:
    """A table under test, beside plain lists of its expected content."""

    def __init__(self) -> None:
        self.facts = {f"n{number}": a_fact(number, number, number) for number in range(NODES)}
        self.placed: dict[str, tuple[Demands, str]] = {}
        self.table = table_of(*self.facts.values())
        self.count = 0

    def step(self, what: str, which: int, labels: int, change: int) -> None:
        name, demands = f"n{which}", DEMANDS[(which + labels * 3 + change) % len(DEMANDS)]
        if what == "put":
            room = self.table.row_of.get(name)
            self.facts[name] = facts = a_fact(which, labels, change)
            if room is not None and self.table.placements_by_row[room]:  # GPUs and ports in use stay assigned
                self.facts[name] = facts = replace(facts, gpus=self.table.node_infos[room].gpus)  # type: ignore[union-attr]
            self.table.put_node(facts)
        elif what == "drop" and name in self.facts:
            del self.facts[name]
            for lost in self.table.remove_node(name):
                del self.placed[lost.ask.name]
        elif what == "forget" and self.placed:
            gone = sorted(self.placed)[which % len(self.placed)]
            self.table.forget(gone)
            del self.placed[gone]
        elif what in ("place", "decide"):
            self.count += 1
            ask = self.table.make_ask(f"{demands.namespace}/w{self.count}", demands)
            decision = decide(ask, self.table, EVERYTHING)
            if what == "place" and decision.fits:
                self.table.assume(ask, decision.chosen)
                self.placed[ask.name] = (demands, decision.name)

    def afresh(self) -> NodeTable:
        """The same nodes and placements in a new table."""
        table = table_of(*self.facts.values())
        for name, (demands, node) in self.placed.items():
            placement = self.table.placements[name]
            ask = table.make_ask(name, demands)
            table.restore(replace(placement, ask=ask, row=table.row_of[node]))
        return table


def decision_facts(
    table: NodeTable, demands: Demands
) -> tuple[str, str, dict[str, float], dict[str, set[str]]]:
    """Everything in a decision, by name."""
    decision = decide(table.make_ask("default/new", demands), table, EVERYTHING)
    runner_up = table.names[decision.runner_up] if decision.runner_up >= 0 else ""
    totals = {name: float(decision.totals[row]) for name, row in table.row_of.items()}
    reasons = {
        reason.summary(): {name for name, row in table.row_of.items() if mask[row]}
        for reason, mask in decision.reasons.items()
    }
    return decision.name, runner_up, totals, reasons


@most
@given(st.lists(STEP, max_size=25))
def test_decisions_after_changes_equal_fresh_table(
    steps: list[tuple[str, int, int, int]],
) -> None:
    world = World()
    for demands in DEMANDS:  # cached first, so that the caches must be kept up to date
        for _ in range(2):
            decision_facts(world.table, demands)
    for step in steps:
        world.step(*step)
    fresh = world.afresh()
    for demands in DEMANDS:
        assert decision_facts(world.table, demands) == decision_facts(fresh, demands)


@pytest.mark.parametrize("demands", DEMANDS[:3], ids=["plain", "of a service", "of a service, with labels"])
def test_changed_node_is_reevaluated_alone(demands: Demands) -> None:
    table = table_of(*(a_fact(number, number, 0) for number in range(40)))
    asked = []

    class Witness:
        name, scope = "Witness", "fixed"

        def applies(self, ask: Any) -> bool:
            return True

        def filter(self, ask: Any, rows: Any) -> Any:
            asked.append(rows.count)
            return {}

    profile: Any = Profile("watched", (*EVERYTHING.filters, Witness()), EVERYTHING.scores)
    for _ in range(2):
        decide(table.make_ask("default/a", demands), table, profile)
    asked.clear()
    for change in (
        lambda: table.put_node(a_fact(3, 3, 1)),
        lambda: table.remove_node("n7"),
        lambda: table.put_node(a_fact(50, 1, 0)),
    ):
        change()
        decide(table.make_ask("default/a", demands), table, profile)
    assert asked == [1, 1, 1]


@most
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "x", "y", "z"]), st.booleans()), max_size=20)
)
def test_label_codes_and_counts_equal_fresh_table(
    changes: list[tuple[int, str, bool]],
) -> None:
    table = table_of(*(a_node_info(f"n{number}", zone="x") for number in range(4)))
    selector = near("zone", app="a").selector
    for number, (which, zone, more) in enumerate(changes):
        table.put_node(a_node_info(f"n{which}", labels={"zone": zone} if zone else {}))
        if more:
            table.assume(
                table.make_ask(f"default/w{number}", workload_demands({}, labels={"app": "a"})),
                table.row_of[f"n{which}"],
            )
        codes, names, counts = (
            table.domain_codes("zone"),
            table.domain_names("zone"),
            table.topology_counts("default", selector).by_domain(table, "zone"),
        )
        zones = {name: table.node_infos[row].labels.get("zone") for name, row in table.row_of.items()}  # type: ignore[union-attr]
        assert {
            name: names[codes[row]] if codes[row] >= 0 else None for name, row in table.row_of.items()
        } == zones
        there = {
            zone: sum(
                len(table.placements_by_row[table.row_of[name]]) for name in zones if zones[name] == zone
            )
            for zone in {*zones.values()} - {None}
        }
        assert table.domain_count("zone") == len(there)
        assert {
            zone: int(counts[table.label_codes("zone").code_by_value[zone]]) for zone in there if zone
        } == there


ROOM = 32 << 20  # KiB


def zoned(number: int, kibibytes: int, zones: int) -> NodeInfo:
    return a_node_info(f"n{number}", {"cpu": 4, "memory": f"{kibibytes}Ki"}, zone=f"z{number % zones}")


REPLICAS = st.tuples(st.integers(0, NODES - 1), st.sampled_from(["s", "t"]))


def together_and_apart(
    table: NodeTable, demands: Demands, count: int, profile: Profile = BALANCED
) -> tuple[list[Any], list[Any]]:
    asks = [table.make_ask(f"default/new-{number}", demands) for number in range(count)]
    assert can_batch(asks[0], profile, table)
    together = batch_facts(decide_batch(asks[0], table, profile, count))
    apart = []
    for ask in asks:
        decision = decide(ask, table, profile)
        if not decision.fits:
            break
        apart.append(single_facts(decision))
        table.assume(ask, decision.chosen)
    return together, apart


@most
@given(
    st.lists(
        st.tuples(st.sampled_from(["x", "y", "z", ""]), st.integers(1, 9), st.booleans()),
        min_size=1,
        max_size=NODES,
    ),
    st.lists(REPLICAS, max_size=8),
    st.integers(1, 30),
    st.sampled_from([{}, {"zone": "x"}]),
    st.booleans(),
)
def test_batched_replicas_equal_single_decisions(
    drawn: list[tuple[str, int, bool]],
    there: list[tuple[int, str]],
    count: int,
    selector: dict[str, str],
    zones: bool,
) -> None:
    facts = [
        a_node_info(
            f"n{number}",
            {"cpu": cpu, "memory": 9},
            labels={"zone": zone} if zone and zones else {},
            is_cordoned=cordoned and cpu > 5,
        )
        for number, (zone, cpu, cordoned) in enumerate(drawn)
    ]
    table = table_of(*facts)
    for number, (node, service) in enumerate(there):
        ask = table.make_ask(f"default/old-{number}", workload_demands({"cpu": "100m"}, service=service))
        table.assume(ask, node % table.count)
    demands = workload_demands({"cpu": "700m", "memory": 1}, service="s", node_selector=selector)
    together, apart = together_and_apart(table, demands, count)
    assert together == apart


SPREADING = [
    BALANCED,
    compile_profile(
        ProfileSpec(
            "high weights", {"BalancedResources": 20_000.0, "SpreadService": 10_000.0, "BinPacking": 5_000.0}
        )
    ),
    compile_profile(ProfileSpec("odd weights", {"BalancedResources": 777.7, "SpreadService": 300.3})),
    compile_profile(ProfileSpec("rising", {"SpreadService": 0.5, "BinPacking": 1_000_000.0})),
    compile_profile(PRESETS["high-availability"]),
]


@most
@given(
    st.lists(st.integers(0, 7), min_size=24, max_size=40),
    st.sampled_from([4, 1, 32]),
    st.sampled_from([0.6, 0.5, 0.7, 0.0]),
    st.tuples(st.integers(5, 20), st.integers(1, 3)),
    st.sampled_from(SPREADING),
)
def test_float_ties_break_alike_in_batch_and_singly(
    drawn: list[int], kibibytes: int, full: float, counts: tuple[int, int], profile: Profile
) -> None:
    """A few KiB of 32 GiB vanish in a 32-bit sum once the zone score is added; then the tie order decides."""
    count, zones = counts
    table = table_of(*(zoned(number, ROOM - kibibytes * less, zones) for number, less in enumerate(drawn)))
    filler = Demands(requests=(("cpu", int(4000 * full)), ("memory", int(1024 * ROOM * full))))
    for row in range(table.count if full else 0):
        table.assume(table.make_ask(f"default/old-{row}", filler), row)
    together, apart = together_and_apart(
        table, workload_demands({"cpu": "100m", "memory": "500Mi"}, service="s"), count, profile
    )
    assert together == apart


def test_large_batch_over_many_zones_equals_singly() -> None:
    table = table_of(
        *(
            a_node_info(f"n{number}", {"cpu": 3 + number % 5, "memory": 40}, zone=f"z{number % 17}")
            for number in range(300)
        )
    )
    asks = [
        table.make_ask(f"default/new-{number}", workload_demands({"cpu": "300m", "memory": 1}, service="s"))
        for number in range(900)
    ]
    picks, apart = decide_batch(asks[0], table, BALANCED, len(asks)), []
    for ask in asks:
        decision = decide(ask, table, BALANCED)
        apart.append((decision.chosen, decision.runner_up))
        table.assume(ask, decision.chosen)
    assert [(pick.row, pick.runner_up) for pick in picks.picks] == apart


@pytest.mark.parametrize("zone", [{}, {"zone": "x"}], ids=["without zones", "with zones"])
def test_node_spread_counts_assumed_replicas(zone: dict[str, str]) -> None:
    table = table_of(a_node_info("n0", labels=zone), a_node_info("n1", labels=zone))
    demands = workload_demands(service="s")
    ask, rows = table.make_ask("default/a", demands), np.array([0, 1, 1])
    supposed = NodeSpread().score(ask, RowSubset(table, rows, ask.needs, np.array([2, 1, 0]))).tolist()
    for number, row in enumerate((0, 0, 1)):
        table.assume(table.make_ask(f"default/{number}", demands), row)
    real = NodeSpread().score(ask, table).tolist()
    table.forget("default/2")
    assert supposed == [real[0], real[1], NodeSpread().score(ask, table)[1]]
    assert (ServiceSpread().score(ask, table)[:2] >= NodeSpread().score(ask, table)[:2]).all()


def test_unused_shapes_and_counts_are_evicted() -> None:
    table = table_of(*(a_node_info(f"n{number}", zone=f"z{number % 3}") for number in range(5)))
    for number in range(50_000):
        labels = {"app": f"a{number}"}
        far = (near("zone", **labels),) if number % 50 == 0 else ()
        demands = workload_demands(
            {"cpu": 1, f"odd-{number % 5000}": 0},
            service=f"s{number}",
            labels=labels,
            anti_affinity_terms=far,
        )
        ask = table.make_ask(f"default/w{number}", demands)
        if number % 25 == 0:
            assert decide(ask, table, BALANCED).fits
        table.assume(ask, number % 5)
        table.forget(ask.name)
    sizes = table._workload_index.sizes
    assert sizes["tallies"] <= MAX_CACHED_COLUMNS
    assert sizes["kinds"] <= MAX_IDLE_CLASSES + 1
    assert sizes["repelled"] == 0
    assert len(table._shapes) <= MAX_NUMBERED_SHAPES
    assert len(table._fixed_shapes) <= MAX_NUMBERED_SHAPES
    assert len(table._total) <= 16
    assert len(table.shapes_seen_once) + len(table.shape_caches) <= 2 * MAX_CACHED_COLUMNS


def test_evicted_topology_count_is_recomputed() -> None:
    table = table_of(a_node_info("n0", zone="x"), a_node_info("n1", zone="y"))
    kept = workload_demands({"cpu": 1}, service="kept", labels={"app": "kept"})
    table.assume(table.make_ask("default/kept", kept), table.row_of["n1"])
    rule = workload_demands(
        {"cpu": 1}, service="kept", labels={"app": "kept"}, anti_affinity_terms=(near("node", app="kept"),)
    )
    before = decision_facts(table, rule)
    for number in range(2 * MAX_CACHED_COLUMNS):
        table.topology_counts("default", near("node", app=f"other-{number}").selector)
    assert decision_facts(table, rule) == before
    assert before[2]["n1"] == REJECTED_TOTAL


def test_evicted_shape_gets_a_fresh_number() -> None:
    table = table_of(a_node_info())
    first = table.make_ask("default/a", workload_demands({"cpu": 1}))
    numbers = {
        table.make_ask("default/a", workload_demands({"cpu": f"{1000 + number}m"})).shape
        for number in range(2 * MAX_NUMBERED_SHAPES)
    }
    again = table.make_ask("default/a", workload_demands({"cpu": 1}))
    assert len(numbers) == 2 * MAX_NUMBERED_SHAPES
    assert first.shape not in {again.shape, *numbers - {first.shape}}
    assert decide(again, table, BALANCED).name == "n1"
