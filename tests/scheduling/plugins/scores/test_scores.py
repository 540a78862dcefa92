"""Tests of scores that evaluate one node at a time."""

from typing import Any

import pytest
from build.node_tables import (
    a_node_info,
    a_taint,
    a_toleration,
    ask,
    node_preference,
    nodes,
    place,
    requirement,
    scores,
    workload_demands,
)

from lattice.scheduling.plugins.scores.balanced_resources import BalancedResources
from lattice.scheduling.plugins.scores.bin_packing import BinPacking
from lattice.scheduling.plugins.scores.least_allocated import LeastAllocated
from lattice.scheduling.plugins.scores.node_preference import NodePreference
from lattice.scheduling.plugins.scores.price import Price
from lattice.scheduling.plugins.scores.taint_preference import TaintPreference
from lattice.scheduling.plugins.scores.tightest_fit import TightestFit

TEN = {"cpu": 10, "memory": "10Gi"}


def half_full() -> Any:
    """n1 is empty; n2 has 5 of 10 cpu allocated and no memory."""
    table = nodes(a_node_info("n1", TEN), a_node_info("n2", TEN))
    place(table, workload_demands({"cpu": 5}), "n2")
    return table


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param(
            {"cpu": 1, "memory": "1Gi"},
            {"n1": 1.0, "n2": 0.5},
            id="an even node scores full, a lopsided one less",
        ),
        pytest.param(
            {"cpu": 1, "memory": "6Gi"}, {"n1": 0.5, "n2": 1.0}, id="what evens a node out is liked"
        ),
    ],
)
def test_balanced_resources(requests: dict[str, Any], expected: dict[str, float]) -> None:
    assert scores(BalancedResources(), half_full(), workload_demands(requests)) == expected


def test_balance_uses_fullest_and_emptiest_resource() -> None:
    table = nodes(a_node_info("n1", {**TEN, "fpga": 10}))
    assert scores(BalancedResources(), table, workload_demands({"cpu": 1, "memory": "5Gi", "fpga": 9})) == {
        "n1": 0.2
    }


def test_balance_counts_gpus_and_skips_single_resource() -> None:
    table = nodes(a_node_info("n1", TEN, gpus=("v100", "v100")))
    assert scores(BalancedResources(), table, workload_demands({"cpu": 5}, gpu=1)) == {"n1": 1.0}
    assert scores(BalancedResources(), table, workload_demands({"cpu": 5}, gpu="500m")) == {"n1": 0.75}
    assert not BalancedResources().applies(ask(table, workload_demands({"cpu": 1})))


def test_bin_packing_is_opposite_of_least_allocated() -> None:
    demands = workload_demands({"cpu": 1, "memory": "1Gi"})
    assert scores(BinPacking(), half_full(), demands) == {"n1": 0.1, "n2": 0.35}
    assert scores(LeastAllocated(), half_full(), demands) == {"n1": 0.9, "n2": 0.65}


def test_empty_request_scores_current_cpu_and_memory() -> None:
    assert scores(BinPacking(), half_full(), workload_demands({})) == {"n1": 0.0, "n2": 0.25}


def test_bin_packing_ignores_gpus_for_cpu_workload() -> None:
    table = nodes(a_node_info("n1", TEN), a_node_info("n2", TEN, gpus=("v100",) * 8))
    place(table, workload_demands({"cpu": 5}), "n2")
    assert scores(BinPacking(), table, workload_demands({"cpu": 1})) == {"n1": 0.1, "n2": 0.6}


def test_bin_packing_counts_requested_gpus() -> None:
    table = nodes(a_node_info("n1", TEN, gpus=("v100", "v100")), a_node_info("n2", TEN, gpus=("v100",)))
    assert scores(BinPacking(), table, workload_demands({"cpu": 1}, gpu=1)) == {"n1": 0.3, "n2": 0.55}


def test_tightest_fit_scales_leftover_by_largest_node() -> None:
    table = nodes(a_node_info("small", {"cpu": 4}), a_node_info("large", {"cpu": 16}))
    assert scores(TightestFit(), table, workload_demands({"cpu": 4})) == {"large": 0.625, "small": 1.0}


def test_tightest_fit_avoids_stranding_gpus() -> None:
    table = nodes(a_node_info("plain", {"cpu": 8}), a_node_info("gpus", {"cpu": 8}, gpus=("v100", "v100")))
    found = scores(TightestFit(), table, workload_demands({"cpu": 1}))
    assert found["plain"] > found["gpus"]


def test_preferred_nodes_count_by_weight() -> None:
    liked = (
        node_preference(30, requirement("disk", "In", "ssd")),
        node_preference(10, requirement("gpu", "Exists")),
    )
    table = nodes(
        a_node_info("n1", labels={"disk": "ssd"}), a_node_info("n2", labels={"gpu": "1"}), a_node_info("n3")
    )
    assert scores(NodePreference(), table, workload_demands(node_preferences=liked)) == {
        "n1": 0.75,
        "n2": 0.25,
        "n3": 0.0,
    }


def test_soft_taints_count_unless_tolerated() -> None:
    soft = [a_taint(key, "PreferNoSchedule") for key in "ab"]
    table = nodes(
        a_node_info("n0"),
        a_node_info("n1", taints=tuple(soft[:1])),
        a_node_info("n2", taints=tuple(soft)),
        a_node_info("n3", taints=(a_taint("c"),)),
    )
    assert scores(TaintPreference(), table, workload_demands()) == {
        "n0": 1.0,
        "n1": 0.5,
        "n2": 0.3333,
        "n3": 1.0,
    }
    patient = workload_demands(tolerations=(a_toleration("a", "Exists"),))
    assert scores(TaintPreference(), table, patient) == {"n0": 1.0, "n1": 1.0, "n2": 0.5, "n3": 1.0}


def test_cheaper_nodes_are_better() -> None:
    table = nodes(a_node_info("n1", price=100), a_node_info("n2", price=25), a_node_info("n3"))
    assert scores(Price(), table, workload_demands()) == {"n1": 0.0, "n2": 0.75, "n3": 1.0}
    assert scores(Price(), nodes(a_node_info("n1")), workload_demands()) == {"n1": 1.0}
