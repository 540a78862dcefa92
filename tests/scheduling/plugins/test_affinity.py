"""Tests of filters and scores that count other workloads: affinity, anti-affinity, spread."""

import pytest
from build.node_tables import (
    a_node_info,
    a_spread,
    ask,
    near,
    nodes,
    place,
    ruled_out,
    scores,
    workload_demands,
    workload_preference,
)

from lattice.kinds.constraints import WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity, WorkloadAntiAffinity
from lattice.scheduling.plugins.filters.topology_spread import TopologySpread
from lattice.scheduling.plugins.scores.preferred_affinity import PreferredAffinity, PreferredAntiAffinity
from lattice.scheduling.plugins.scores.service_spread import ServiceSpread
from lattice.scheduling.plugins.scores.soft_spread import SoftSpread
from lattice.scheduling.table.node_table import NodeTable

DB = workload_demands(labels={"app": "db"})
WEB = workload_demands(labels={"app": "web"})


def two_zones() -> NodeTable:
    """Nodes a1 and a2 in zone a, b1 in zone b, c1 in no zone."""
    return nodes(
        a_node_info("a1", zone="a"),
        a_node_info("a2", zone="a"),
        a_node_info("b1", zone="b"),
        a_node_info("c1"),
    )


def test_affinity_allows_domain_of_match() -> None:
    table = two_zones()
    place(table, DB, "a1")
    found = ruled_out(WorkloadAffinity(), table, workload_demands(affinity_terms=(near("zone", app="db"),)))
    assert found == {
        "b1": ["without a workload app=db in the same zone"],
        "c1": ["without topology key zone"],
    }


def test_affinity_by_node_allows_only_that_node() -> None:
    table = two_zones()
    place(table, DB, "a1")
    assert set(
        ruled_out(WorkloadAffinity(), table, workload_demands(affinity_terms=(near("node", app="db"),)))
    ) == {
        "a2",
        "b1",
        "c1",
    }


def test_affinity_requires_every_term() -> None:
    table = two_zones()
    place(table, DB, "a1")
    place(table, WEB, "b1")
    assert set(
        ruled_out(
            WorkloadAffinity(),
            table,
            workload_demands(affinity_terms=(near("zone", app="db"), near("zone", app="web"))),
        )
    ) == {
        "a1",
        "a2",
        "b1",
        "c1",
    }


def test_affinity_is_limited_to_own_namespace() -> None:
    table = two_zones()
    place(table, workload_demands(labels={"app": "db"}, namespace="other"), "a1")
    assert (
        len(ruled_out(WorkloadAffinity(), table, workload_demands(affinity_terms=(near("zone", app="db"),))))
        == 4
    )


def test_self_affinity_starts_on_any_node_with_topology_key() -> None:
    group = workload_demands(labels={"app": "db"}, affinity_terms=(near("zone", app="db"),))
    table = two_zones()
    assert set(ruled_out(WorkloadAffinity(), table, group)) == {"c1"}
    place(table, group, "b1")
    assert set(ruled_out(WorkloadAffinity(), table, group)) == {"a1", "a2", "c1"}


def test_affinity_to_absent_workload_rejects_all_nodes() -> None:
    assert (
        len(
            ruled_out(
                WorkloadAffinity(),
                two_zones(),
                workload_demands(labels={"app": "web"}, affinity_terms=(near("zone", app="db"),)),
            )
        )
        == 4
    )


@pytest.mark.parametrize(
    ("plugin", "demands"),
    [
        pytest.param(
            WorkloadAffinity(),
            workload_demands(labels={"app": "db"}, affinity_terms=(near("rack", app="db"),)),
            id="affinity",
        ),
        pytest.param(
            WorkloadAntiAffinity(),
            workload_demands(anti_affinity_terms=(near("rack", app="db"),)),
            id="anti-affinity",
        ),
        pytest.param(
            TopologySpread(), workload_demands(service="s", spread=(a_spread("rack"),)), id="spread"
        ),
    ],
)
def test_unknown_topology_key_rejects_all_nodes(plugin: object, demands: object) -> None:
    found = ruled_out(plugin, two_zones(), demands)  # type: ignore[arg-type]
    assert found == {
        key: ["without topology key rack, which no node has"] for key in ["a1", "a2", "b1", "c1"]
    }


def test_anti_affinity_rejects_domain_of_match() -> None:
    table = two_zones()
    place(table, DB, "a1")
    found = ruled_out(
        WorkloadAntiAffinity(), table, workload_demands(anti_affinity_terms=(near("zone", app="db"),))
    )
    assert found == {
        "a1": ["with a workload app=db in the same zone"],
        "a2": ["with a workload app=db in the same zone"],
        "c1": ["without topology key zone"],
    }


def test_anti_affinity_rejects_node_without_domain() -> None:
    loner = workload_demands(labels={"app": "db"}, anti_affinity_terms=(near("zone", app="db"),))
    table = two_zones()
    assert ruled_out(WorkloadAntiAffinity(), table, loner) == {"c1": ["without topology key zone"]}
    place(table, loner, "c1")
    assert set(ruled_out(WorkloadAntiAffinity(), table, loner)) == {"c1"}
    assert ruled_out(WorkloadAntiAffinity(), table, DB) == {}, "who is in no domain keeps nobody away"


def test_anti_affinity_of_placed_workload_is_symmetric() -> None:
    table = two_zones()
    place(
        table, workload_demands(labels={"app": "loner"}, anti_affinity_terms=(near("zone", app="web"),)), "a1"
    )
    found = ruled_out(WorkloadAntiAffinity(), table, WEB)
    assert found == {
        key: ["with a workload in the same zone whose anti-affinity excludes workloads app=web"]
        for key in ["a1", "a2"]
    }
    assert ruled_out(WorkloadAntiAffinity(), table, DB) == {}
    table.forget("default/placed-0")
    assert ruled_out(WorkloadAntiAffinity(), table, WEB) == {}


def test_anti_affinity_with_empty_selector_text() -> None:
    table = two_zones()
    place(table, DB, "b1")
    everybody = WorkloadTerm(selector=LabelSelector(), topology_key="node")
    assert ruled_out(WorkloadAntiAffinity(), table, workload_demands(anti_affinity_terms=(everybody,))) == {
        "b1": ["with a workload of any kind in the same node"]
    }


def test_anti_affinity_without_terms_rejects_nothing() -> None:
    table = two_zones()
    place(table, DB, "a1")
    assert WorkloadAntiAffinity().filter(ask(table, WEB), table) == {}


def spread_over(a: int, b: int, **demands: object) -> dict[str, list[str]]:
    table = nodes(
        a_node_info("a1", zone="a", room={"cpu": 64}),
        a_node_info("b1", zone="b", room={"cpu": 64}),
        a_node_info("c1", room={"cpu": 64}),
    )
    wanted = workload_demands({"cpu": 1}, service="s", **demands)
    place(table, wanted, *["a1"] * a, *["b1"] * b)
    return ruled_out(TopologySpread(), table, wanted)


@pytest.mark.parametrize(
    ("a", "b", "skew", "refused"),
    [
        pytest.param(3, 1, 1, ["a1"], id="3 against 1 with skew 1: no more for the 3"),
        pytest.param(3, 1, 2, ["a1"], id="3 against 1 with skew 2: a fourth would make 3 more"),
        pytest.param(3, 1, 3, [], id="3 against 1 with skew 3: a fourth is just allowed"),
        pytest.param(1, 1, 1, [], id="even: either will do"),
        pytest.param(1, 0, 1, ["a1"], id="an empty zone counts"),
    ],
)
def test_topology_spread(a: int, b: int, skew: int, refused: list[str]) -> None:
    found = spread_over(a, b, spread=(a_spread("zone", skew),))
    assert found.pop("c1") == ["without topology key zone"]
    assert sorted(found) == refused


def test_spread_counts_workloads_matching_selector() -> None:
    table = nodes(a_node_info("a1", zone="a"), a_node_info("b1", zone="b"))
    place(table, DB, "a1")
    wanted = workload_demands(labels={"app": "web"}, spread=(a_spread("zone", labels={"app": "db"}),))
    assert (
        ruled_out(TopologySpread(), table, wanted) == {}
    )  # the workload itself is not counted, so the skew stays
    itself = workload_demands(labels={"app": "db"}, spread=(a_spread("zone", labels={"app": "db"}),))
    assert list(ruled_out(TopologySpread(), table, itself)) == ["a1"]


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"is_ready": False}, id="not ready"),
        pytest.param({"is_cordoned": True}, id="cordoned"),
        pytest.param({"labels": {"disk": "hdd"}}, id="not selected"),
    ],
)
def test_spread_ignores_unusable_zones(facts: dict[str, object]) -> None:
    table = nodes(
        a_node_info("a1", zone="a", labels={"disk": "ssd"}),
        a_node_info("b1", **{"zone": "b", "labels": {"disk": "ssd"}, **facts}),
    )
    wanted = workload_demands(service="s", node_selector={"disk": "ssd"}, spread=(a_spread("zone"),))
    place(table, wanted, "a1")
    assert "a1" not in ruled_out(TopologySpread(), table, wanted)


def test_spread_shortfall_includes_counts() -> None:
    table = nodes(a_node_info("a1", zone="a"), a_node_info("b1", zone="b"))
    wanted = workload_demands(service="s", spread=(a_spread("zone"),))
    place(table, wanted, "a1")
    (reason,) = [
        reason for reason, mask in TopologySpread().filter(ask(table, wanted), table).items() if mask.any()
    ]
    assert reason.summary() == "in a zone where a workload would exceed skew 1"
    assert str(reason.detail(table, table.row_of["a1"])) == (
        "skew over zone: need at most 1, have 2 (2 in zone a with this one, 0 in zone b), missing 1 fewer"
    )


def test_service_spread_prefers_nodes_and_zones_with_fewer() -> None:
    table = nodes(a_node_info("a1", zone="a"), a_node_info("a2", zone="a"), a_node_info("b1", zone="b"))
    service = workload_demands(service="s")
    place(table, service, "a1")
    assert scores(ServiceSpread(), table, service) == {"a1": 0.5, "a2": 0.75, "b1": 1.0}
    assert not ServiceSpread().applies(ask(table, workload_demands()))


def test_service_spread_without_zones_uses_nodes() -> None:
    table = nodes(a_node_info("n1"), a_node_info("n2"))
    place(table, workload_demands(service="s"), "n1")
    assert scores(ServiceSpread(), table, workload_demands(service="s")) == {"n1": 0.5, "n2": 1.0}


def test_preferred_affinity_scales_with_match_count() -> None:
    table = two_zones()
    place(table, DB, "a1", "a2", "b1")
    drawn = scores(
        PreferredAffinity(),
        table,
        workload_demands(affinity_preferences=(workload_preference(10, "zone", app="db"),)),
    )
    assert drawn == {"a1": 0.6667, "a2": 0.6667, "b1": 0.5, "c1": 0.0}
    repelled = scores(
        PreferredAntiAffinity(),
        table,
        workload_demands(anti_affinity_preferences=(workload_preference(10, "zone", app="db"),)),
    )
    assert repelled == {"a1": 0.3333, "a2": 0.3333, "b1": 0.5, "c1": 1.0}


def test_workload_preferences_count_by_weight() -> None:
    table = two_zones()
    place(table, DB, "a1")
    both = (workload_preference(30, "zone", app="db"), workload_preference(10, "nowhere", app="db"))
    assert scores(PreferredAffinity(), table, workload_demands(affinity_preferences=both))["a1"] == 0.375
    assert (
        scores(PreferredAntiAffinity(), table, workload_demands(anti_affinity_preferences=both))["a1"]
        == 0.625
    )


def test_soft_spread_prefers_emptiest_domain_without_reject() -> None:
    table = two_zones()
    wanted = workload_demands(service="s", spread=(a_spread("zone", soft=True),))
    place(table, wanted, "a1", "a2")
    assert scores(SoftSpread(), table, wanted) == {"a1": 0.3333, "a2": 0.3333, "b1": 1.0, "c1": 0.0}
    assert not TopologySpread().applies(ask(table, wanted))
