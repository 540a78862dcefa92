"""Tests of offline simulation with bound workloads, including overcommitted nodes."""

import pytest
from build.simulation import (
    GIB,
    an_offline_node,
    an_offline_workload,
    reasons,
    run_simulation,
    warnings_of,
    with_gpus,
)

from lattice.errors import NotFound


def test_bound_workloads_occupy_their_nodes():
    report = run_simulation(
        [an_offline_node("n1", cpu=1000), an_offline_node("n2", cpu=1000)],
        [an_offline_workload("new"), an_offline_workload("old", on="n1")],
    )
    assert (report.placements, report.bound_count) == ({"default/new": "n2"}, 1)
    assert next(each.used_before for each in report.usage if each.resource == "cpu") == 1000


def test_bound_workloads_may_overcommit_a_node():
    report = run_simulation(
        [an_offline_node("n1", cpu=1000)],
        [an_offline_workload("a", on="n1"), an_offline_workload("b", on="n1"), an_offline_workload("c")],
    )
    assert report.bound_count == 2
    assert "without 1 cpu free" in reasons(report)["default/c"]


def test_binding_to_unknown_node_is_not_found():
    with pytest.raises(NotFound, match=r"default/a: is bound to node gone, which is not in the input"):
        run_simulation([an_offline_node("n1")], [an_offline_workload("a", on="gone")])


def test_bound_workload_without_gpu_room_is_left_out():
    report = run_simulation(
        [with_gpus("n1")], [an_offline_workload(name, requests={"gpu": 1}, on="n1") for name in "ab"]
    )
    (told,) = warnings_of(report)
    expected = "workload default/b is bound to node n1, which cannot hold the requested 1 gpu beside its bound workloads"
    assert told == f"{expected} (free per GPU: 0): the workload is ignored"
    assert report.bound_count == 1
    assert next(each.used_after for each in report.usage if each.resource == "cpu") == 1000


def test_bound_workload_beyond_counting_is_left_out():
    huge = "8Pi"
    bound = [an_offline_workload(f"w{number}", cpu="1m", memory=huge, on="n1") for number in range(514)]
    report = run_simulation(
        [an_offline_node("n1", memory=1 << 53)],
        [*bound, an_offline_workload("high", cpu="3800m", priority=9)],
    )
    left_out = [told for told in warnings_of(report) if "is ignored" in told]
    assert len(left_out) == 2
    assert left_out[0].startswith("workload default/w512 is bound to node n1; node n1 would have ")
    assert (
        "memory allocated, above the maximum of 4611686018427387904: the workload is ignored" in left_out[0]
    )
    assert (report.bound_count, report.placements["default/high"]) == (512, "n1")


def test_bound_gpu_shares_are_assigned_largest_first():
    shares = ["300m", "400m", "700m", "600m"]
    bound = [
        an_offline_workload(f"w{number}", cpu="100m", requests={"gpu": share}, on="n1")
        for number, share in enumerate(shares)
    ]
    report = run_simulation([with_gpus("n1", 2)], bound)
    assert (warnings_of(report), report.bound_count) == ([], 4)


def test_overcommitted_node_is_warned_about_once():
    bound = [an_offline_workload(f"w{number}", cpu="3", memory="20Gi", on="n1") for number in range(2)]
    report = run_simulation([an_offline_node("n1"), an_offline_node("n2")], bound)
    (told,) = warnings_of(report)
    over, *consequences = told.split("; ")
    assert over == "node n1 is overcommitted: its bound workloads request 6 of 4 cpu, 40Gi of 32Gi memory"
    assert consequences == [
        "too little cpu slows the workloads down",
        "too little memory ends workloads in this order: default/w0, default/w1",
    ]


def test_overcommitted_node_lists_eviction_order():
    limits = {"limits": {"cpu": "1", "memory": "20Gi"}}
    bound = [
        an_offline_workload("guaranteed", memory="20Gi", on="n1", **limits),
        an_offline_workload("important", memory="20Gi", on="n1", priority=9),
        an_offline_workload("burstable", memory="20Gi", on="n1"),
        an_offline_workload("cpu-only", memory="0", on="n1"),
    ]
    report = run_simulation([an_offline_node("n1", cpu=9000)], bound)
    assert warnings_of(report)[0].endswith(
        "; too little memory ends workloads in this order: default/burstable, default/important, default/guaranteed"
    )


def test_overcommitted_slots_evict_no_workload():
    told = warnings_of(
        run_simulation(
            [
                an_offline_node(
                    "n1", status={"allocatable": {"cpu": 4000, "memory": 32 * GIB, "workloads": 1}}
                )
            ],
            two_on("n1"),
        )
    )
    assert told == ["node n1 is overcommitted: its bound workloads request 2 of 1 workloads"]


def two_on(node):
    return [an_offline_workload(name, on=node) for name in "ab"]


@pytest.mark.parametrize(
    ("tolerations", "when"),
    [
        pytest.param(
            [], "immediately: the workload does not tolerate taint broken:NoExecute", id="untolerated"
        ),
        pytest.param(
            [{"key": "broken", "operator": "Exists", "tolerationSeconds": 60}],
            "60 s after taint broken:NoExecute was added: the toleration ends then",
            id="tolerated for a while",
        ),
        pytest.param([{"key": "broken", "operator": "Exists"}], "", id="tolerated"),
    ],
)
def test_taint_eviction_is_warned_about(tolerations, when):
    node = an_offline_node("n1", taints=[{"key": "broken", "effect": "NoExecute"}])
    told = warnings_of(
        run_simulation(
            [node, an_offline_node("n2")],
            [an_offline_workload("a", on="n1", constraints={"tolerations": tolerations})],
        )
    )
    assert told == ([f"workload default/a is evicted from node n1 {when}"] if when else [])
