"""Tests of spec 003 on each filter: the nodes it rejects and the text of its reason."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from build.node_tables import (
    a_node_info,
    a_spread,
    a_taint,
    a_toleration,
    ask,
    near,
    node_term,
    nodes,
    place,
    requirement,
    ruled_out,
    workload_demands,
)

from lattice.engine.decide import decide
from lattice.engine.explain import rejection_counts, rejections_of, summarize
from lattice.engine.plugin import Profile, Shortfall
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraints import MachineImage, Volume
from lattice.scheduling.cycle.profile import FILTERS, compile_preset
from lattice.scheduling.plugins.reasons import StaticReason
from lattice.scheduling.table.workload_ask import Demands

EVERYTHING = compile_preset()
WEB = {"app": "web"}


def summary_of(demands: Demands, *facts: Any) -> str:
    table = nodes(*facts)
    return summarize(decide(ask(table, demands), table, EVERYTHING))


@pytest.mark.parametrize(
    ("demands", "unfit", "fit", "why"),
    [
        pytest.param({}, {"is_ready": False}, {}, "not ready", id="Ready"),
        pytest.param(
            {"cluster": "c"}, {"cluster": "d"}, {"cluster": "c"}, "outside cluster c", id="InCluster"
        ),
        pytest.param({}, {"labels": {RESERVE_LABEL: "dc"}}, {}, "reserved for certain services", id="Kept"),
        pytest.param(
            {"node_selector": {"a": "1"}}, {}, {"labels": {"a": "1"}}, "without label a=1", id="NodeSelector"
        ),
        pytest.param(
            {"node_terms": (node_term(requirement("a", "Exists")),)},
            {},
            {"labels": {"a": "x"}},
            "without labels a",
            id="NodeAffinity",
        ),
        pytest.param({}, {"taints": (a_taint("t"),)}, {}, "with untolerated taint t:NoSchedule", id="Taints"),
        pytest.param(
            {"runtime": "container"},
            {"runtimes": frozenset({"process"})},
            {},
            "without a container runtime",
            id="Runtime",
        ),
        pytest.param(
            {"image": MachineImage(pattern="os-*", min_version="2.0")},
            {"image": "os-1.9"},
            {"image": "os-2.0.1"},
            "with a machine image below version 2.0",
            id="MachineImage",
        ),
        pytest.param(
            {"licences": ("pro",)}, {}, {"licences": frozenset({"pro"})}, "without licence pro", id="Licence"
        ),
        pytest.param(
            {"volumes": (Volume(name="v", zone="z"),)},
            {"zone": "y"},
            {"zone": "z"},
            "outside zone z of volume v",
            id="VolumeZone",
        ),
        pytest.param(
            {"requests": {"cpu": 2}},
            {"room": {"cpu": 1}},
            {"room": {"cpu": 2}},
            "without 2 cpu free",
            id="Fit",
        ),
        pytest.param({"gpu": 1}, {}, {"gpus": ("a100",)}, "without a GPU", id="Gpu"),
    ],
)
def test_every_filter_is_in_the_default_profile(demands: Any, unfit: Any, fit: Any, why: str) -> None:
    wanted = workload_demands(**demands)
    assert (
        summary_of(wanted, a_node_info("no", **unfit), a_node_info("yes", **fit))
        == f"yes: best of 1 that fit, of 2 nodes (1 {why})"
    )


def test_all_nodes_are_evaluated() -> None:
    assert summary_of(
        workload_demands({"cpu": 3}), *(a_node_info(f"n{cpu}", {"cpu": cpu}) for cpu in (1, 2, 3))
    ).startswith("n3: best of 1 that fit, of 3")


def test_feasible_and_rejected_nodes_are_counted() -> None:
    small = {"cpu": 1}
    well, unwell = (
        [a_node_info("a"), a_node_info("b"), a_node_info("c", small), a_node_info("d", small)],
        [a_node_info("e", is_ready=False)],
    )
    table = nodes(*well, *unwell, a_node_info("f", small, is_ready=False))
    decision = decide(ask(table, workload_demands({"cpu": 2})), table, EVERYTHING)
    assert "best of 2 that fit, of 6 nodes" in summarize(decision)
    assert [(reason.summary(), count) for reason, count in rejection_counts(decision)] == [
        ("not ready", 2),
        ("without 2 cpu free", 2),
    ]


@pytest.mark.parametrize(
    ("operator", "values", "left"),
    [
        pytest.param("In", ("1", "5"), ["one"], id="In"),
        pytest.param("NotIn", ("1",), ["none", "three"], id="NotIn: a node without the label passes"),
        pytest.param("Exists", (), ["one", "three"], id="Exists"),
        pytest.param("DoesNotExist", (), ["none"], id="DoesNotExist"),
        pytest.param("Gt", ("1",), ["three"], id="Gt"),
        pytest.param("Lt", ("3",), ["one"], id="Lt"),
    ],
)
def test_node_affinity(operator: str, values: tuple[str, ...], left: list[str]) -> None:
    table = nodes(
        a_node_info("one", labels={"size": "1"}),
        a_node_info("three", labels={"size": "3"}),
        a_node_info("none"),
    )
    out = ruled_out(
        FILTERS["NodeAffinity"],
        table,
        workload_demands(node_terms=(node_term(requirement("size", operator, *values)),)),
    )
    assert sorted(set(table.row_of) - set(out)) == sorted(left)


@pytest.mark.parametrize(
    ("toleration", "welcome"),
    [
        pytest.param(a_toleration("t", value="1"), True, id="equal key and value"),
        pytest.param(a_toleration("t", value="2"), False, id="another value"),
        pytest.param(a_toleration("t", "Exists"), True, id="the key is enough"),
        pytest.param(a_toleration("u", "Exists"), False, id="another key"),
        pytest.param(a_toleration(operator="Exists"), True, id="everything is tolerated"),
        pytest.param(a_toleration("t", "Exists", effect="NoSchedule"), False, id="another effect"),
    ],
)
def test_tolerations(toleration: Any, welcome: bool) -> None:
    table = nodes(a_node_info("n", taints=(a_taint("t", "NoExecute", "1"),)))
    assert (not ruled_out(FILTERS["Taints"], table, workload_demands(tolerations=(toleration,)))) is welcome


@pytest.mark.parametrize(
    ("effect", "out"),
    [
        pytest.param("NoSchedule", True, id="NoSchedule keeps it away"),
        pytest.param("NoExecute", True, id="NoExecute too"),
        pytest.param("PreferNoSchedule", False, id="PreferNoSchedule only moves the score"),
    ],
)
def test_taints(effect: str, out: bool) -> None:
    table = nodes(a_node_info("n", taints=(a_taint("t", effect),)), a_node_info("free"))
    assert set(ruled_out(FILTERS["Taints"], table, workload_demands())) == ({"n"} if out else set())


@pytest.mark.parametrize(
    ("used", "fits"),
    [
        pytest.param(5, True, id="just as much as is left fits"),
        pytest.param(6, False, id="8 Gi of which 6 are used have no room for 3"),
    ],
)
def test_resource_fit(used: int, fits: bool) -> None:
    table = nodes(a_node_info("n", {"cpu": 8, "memory": "8Gi"}))
    place(table, workload_demands({"memory": f"{used}Gi"}), "n")
    asked = ask(table, workload_demands({"memory": "3Gi"}))
    decision = decide(asked, table, EVERYTHING)
    assert decision.fits is fits
    assert rejections_of(decision, "n") == ([] if fits else [Shortfall("memory", "3Gi", "2Gi", "1Gi")])


@dataclass(frozen=True)
class OnlyEven:
    name: ClassVar[str] = "OnlyEven"
    scope: ClassVar[Any] = "table"

    def applies(self, ask: object) -> bool:
        return True

    def filter(self, ask: object, rows: Any) -> Any:
        return {
            StaticReason(self.name, "odd"): np.array([int(name[1:]) % 2 == 1 for name in rows.table.names])
        }


@pytest.mark.parametrize("scope", ["fixed", "table"])
def test_custom_filter(scope: str) -> None:
    table = nodes(*(a_node_info(f"n{number}") for number in range(4)), load=False)
    plugin: Any = type("OnlyEven", (OnlyEven,), {"scope": scope})()
    decision = decide(ask(table), table, Profile("mine", (plugin,), ()))
    assert decision.name in ("n0", "n2")
    assert [(reason.summary(), count) for reason, count in rejection_counts(decision)] == [("odd", 2)]


@pytest.mark.parametrize(
    ("term", "left"),
    [
        pytest.param(near("zone", **WEB), ["a", "b"], id="the whole zone of the neighbour"),
        pytest.param(near("node", **WEB), ["a"], id="the very node"),
        pytest.param(near("zone", app="db"), [], id="there is no such neighbour"),
    ],
)
def test_workload_affinity(term: Any, left: list[str]) -> None:
    table = nodes(
        a_node_info("a", zone="x"), a_node_info("b", zone="x"), a_node_info("c", zone="y"), a_node_info("d")
    )
    place(table, workload_demands(labels=WEB), "a")
    assert (
        sorted(
            set(table.row_of)
            - set(ruled_out(FILTERS["WorkloadAffinity"], table, workload_demands(affinity_terms=(term,))))
        )
        == left
    )


def test_self_affinity_starts_on_any_node_with_topology_key() -> None:
    table = nodes(a_node_info("a", zone="x"), a_node_info("b"))
    assert set(
        ruled_out(
            FILTERS["WorkloadAffinity"],
            table,
            workload_demands(labels=WEB, affinity_terms=(near("zone", **WEB),)),
        )
    ) == {"b"}


@pytest.mark.parametrize(
    ("there", "new"),
    [
        pytest.param(
            {"labels": WEB}, {"anti_affinity_terms": (near("zone", **WEB),)}, id="it avoids a placed workload"
        ),
        pytest.param(
            {"anti_affinity_terms": (near("zone", **WEB),)}, {"labels": WEB}, id="a placed workload repels it"
        ),
    ],
)
def test_workload_anti_affinity(there: Any, new: Any) -> None:
    table = nodes(a_node_info("a", zone="x"), a_node_info("b", zone="x"), a_node_info("c", zone="y"))
    place(table, workload_demands(**there), "a")
    assert set(ruled_out(FILTERS["WorkloadAntiAffinity"], table, workload_demands(**new))) == {"a", "b"}


@pytest.mark.parametrize(
    ("skew", "itself", "left"),
    [
        pytest.param(1, True, ["c"], id="three against one: only the emptier zone"),
        pytest.param(2, True, ["c"], id="two ahead is as far as it goes: one more is too many"),
        pytest.param(3, True, ["a", "b", "c"], id="a skew that allows it"),
        pytest.param(2, False, ["a", "b", "c"], id="one that is not counted itself makes nothing worse"),
    ],
)
def test_topology_spread(skew: int, itself: bool, left: list[str]) -> None:
    table = nodes(
        a_node_info("a", zone="x"),
        a_node_info("b", zone="x"),
        a_node_info("c", zone="y"),
        a_node_info("nowhere"),
    )
    place(table, workload_demands(labels=WEB), "a", "a", "b", "c")
    wanted = workload_demands(labels=WEB if itself else {}, spread=(a_spread("zone", skew, labels=WEB),))
    assert sorted(set(table.row_of) - set(ruled_out(FILTERS["TopologySpread"], table, wanted))) == left


def test_spread_ignores_zones_without_ready_nodes() -> None:
    table = nodes(
        a_node_info("a", zone="x"), a_node_info("b", zone="y"), a_node_info("c", zone="z", is_ready=False)
    )
    place(table, workload_demands(labels=WEB), "a", "b")
    wanted = workload_demands(labels=WEB, spread=(a_spread("zone", labels=WEB),))
    assert ruled_out(FILTERS["TopologySpread"], table, wanted) == {}
    table.put_node(replace(a_node_info("c", zone="z"), is_ready=True))
    assert set(ruled_out(FILTERS["TopologySpread"], table, wanted)) == {"a", "b"}


def test_unknown_topology_key_is_named() -> None:
    table = nodes(a_node_info("a"))
    assert ruled_out(
        FILTERS["TopologySpread"], table, workload_demands(service="s", spread=(a_spread("planet"),))
    ) == {"a": ["without topology key planet, which no node has"]}


@pytest.mark.parametrize(
    ("volume", "left"),
    [
        pytest.param(Volume(name="v", zone="x"), ["a"], id="its zone"),
        pytest.param(Volume(name="v", region="r"), ["a", "b"], id="its region, if no zone is known"),
        pytest.param(Volume(name="v"), ["a", "b", "c"], id="a volume that is everywhere"),
    ],
)
def test_volume_zone(volume: Volume, left: list[str]) -> None:
    table = nodes(
        a_node_info("a", zone="x", region="r"),
        a_node_info("b", zone="y", region="r"),
        a_node_info("c", zone="z", region="q"),
    )
    assert (
        sorted(
            set(table.row_of)
            - set(ruled_out(FILTERS["VolumeZone"], table, workload_demands(volumes=(volume,))))
        )
        == left
    )


def test_host_port_in_use_rejects_node() -> None:
    table = nodes(a_node_info("a"), a_node_info("b"))
    wanted = workload_demands(host_ports=((80, "TCP"),))
    place(table, wanted, "a")
    assert ruled_out(FILTERS["HostPorts"], table, wanted) == {"a": ["with port 80/TCP in use"]}
