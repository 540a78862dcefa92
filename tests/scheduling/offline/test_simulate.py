"""Tests of offline simulation: placements, utilisation, reasons of unschedulable workloads, and warnings."""

import msgspec
import pytest
from build.simulation import (
    GIB,
    an_offline_node,
    an_offline_workload,
    near,
    reasons,
    run_simulation,
    warnings_of,
    with_gpus,
)

from lattice.errors import NotFound
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.input_checks import node_problems, workload_problems


def test_feasible_workloads_are_placed_and_counted():
    report = run_simulation(
        [an_offline_node("n1"), an_offline_node("n2")], [an_offline_workload(f"w{i}") for i in range(4)]
    )
    assert sorted(report.placements) == [f"default/w{i}" for i in range(4)]
    assert sorted(report.placements.values()) == ["n1", "n1", "n2", "n2"], "balanced spreads"
    cpu = next(each for each in report.usage if each.resource == "cpu")
    assert (cpu.total, cpu.used_before, cpu.used_after, cpu.mean, cpu.highest) == (8000, 0, 4000, 0.5, 0.5)
    assert (report.node_count, report.decided_count, report.unschedulable) == (2, 4, ())


def test_unschedulable_workloads_are_grouped_by_reason():
    report = run_simulation(
        [an_offline_node("n1")], [an_offline_workload(f"w{i}", cpu="3") for i in range(5)]
    )
    assert len(report.placements) == 1
    (only,) = report.unschedulable
    assert len(only.names) == 4
    assert only.reason == "0 of 1 node: 1 without 3 cpu free"


def test_higher_priority_is_placed_first():
    nodes = [an_offline_node("n1", cpu=1000)]
    report = run_simulation(
        nodes,
        [
            an_offline_workload("low"),
            an_offline_workload("high", priority=10),
            an_offline_workload("middle", priority=5),
        ],
    )
    assert report.placements == {"default/high": "n1"}


def test_usage_sums_are_exact_for_large_amounts():
    many = [an_offline_node(f"n{number}", memory=1 << 53) for number in range(1100)]
    report = run_simulation(
        many,
        [
            an_offline_workload(f"w{number}", cpu="1m", memory="8Pi", on=f"n{number}")
            for number in range(1100)
        ],
    )
    usage = next(each for each in report.usage if each.resource == "memory")
    assert (usage.total, usage.used_after) == (1100 << 53, 1100 << 53)


def test_ports_are_limited_by_port_range_of_node():
    node = an_offline_node(
        "n",
        status={
            "capacity": {"cpu": 4000, "memory": GIB * 32, "ports": 5},
            "portRange": {"first": 30000, "last": 30001},
        },
    )
    asking = [
        an_offline_workload(
            f"w{n}", cpu="1m", containers={"c": {"command": ["x"], "ports": [{"name": "http"}]}}
        )
        for n in range(5)
    ]
    report = run_simulation([node], asking)
    assert len(report.placements) == 2
    assert set(reasons(report).values()) == {"0 of 1 node: 1 without a free port"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(
            [("5", "1Gi")],
            "default/w0 requests more than any empty node has: 5 cpu of at most 4",
            id="too much cpu",
        ),
        pytest.param(
            [("4", "20Gi")] * 3,
            "default/w0 requests more than any empty node has (as do 2 other workloads): no node has 4 cpu and 20Gi memory together",
            id="no node has both",
        ),
        pytest.param([("4", "1Gi")] * 2, "", id="a full node would do if it were empty"),
    ],
)
def test_workload_larger_than_any_node_is_warned_about(asked, told):
    nodes = [
        an_offline_node("broad", cpu=4000, memory=GIB),
        an_offline_node("tall", cpu=1000, memory=32 * GIB),
    ]
    report = run_simulation(
        nodes, [an_offline_workload(f"w{number}", *each) for number, each in enumerate(asked)]
    )
    assert warnings_of(report) == ([f"workload {told}"] if told else [])


def needing(name, *others, **more):
    return an_offline_workload(
        name,
        labels={"app": name},
        constraints={
            "affinity": {
                "workload": {
                    "required": [
                        {"selector": {"matchLabels": {"app": other}}, "topologyKey": "node"}
                        for other in others
                    ]
                }
            }
        },
        **more,
    )


@pytest.mark.parametrize(
    ("workloads", "told"),
    [
        pytest.param(
            [needing("a", "b"), needing("b", "a")],
            "default/a waits for default/b, which waits for default/a",
            id="two",
        ),
        pytest.param(
            [needing("a", "b"), needing("b", "c"), needing("c", "a")],
            "default/a waits for default/b, which waits for default/c, which waits for default/a",
            id="three",
        ),
        pytest.param([needing("a", "b"), an_offline_workload("b", labels={"app": "b"})], "", id="no circle"),
        pytest.param([needing("a", "a")], "", id="the first of its kind may start"),
        pytest.param(
            [needing("a", "b"), needing("b", "a"), an_offline_workload("c", labels={"app": "b"})],
            "",
            id="another workload satisfies the affinity",
        ),
        pytest.param(
            [needing("a", "b"), needing("b", "gone")], "", id="one of them waits for an unknown workload"
        ),
    ],
)
def test_affinity_cycle_is_warned_about(workloads, told):
    how = ": none can be scheduled first; give the workloads the same spec.group to schedule them together"
    assert warnings_of(run_simulation([an_offline_node("n1")], workloads)) == (
        [f"workload {told}{how}"] if told else []
    )


def test_gang_resolves_affinity_cycle():
    group = {"group": {"name": "g", "minMember": 2}}
    assert not run_simulation(
        [an_offline_node("n1")], [needing("a", "b", **group), needing("b", "a", **group)]
    ).unschedulable


def test_report_has_qos_classes_and_node_utilisation():
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    workloads = [
        an_offline_workload("g", on="n1", **limits),
        an_offline_workload("b", cpu="3", on="n2"),
        an_offline_workload("e", cpu="0", memory="0", on="n1"),
    ]
    report = run_simulation([an_offline_node("n1"), an_offline_node("n2"), an_offline_node("n3")], workloads)
    assert {name: qos.name for name, qos in report.qos.items()} == {
        "default/g": "Guaranteed",
        "default/b": "Burstable",
        "default/e": "BestEffort",
    }
    assert report.node_utilisation == {"n1": 0.25, "n2": 0.75, "n3": 0.0}


def test_gpu_capacity_without_listed_gpus_is_warned_about():
    (told,) = warnings_of(
        run_simulation([an_offline_node("n1", status={"capacity": {"cpu": 4000, "gpu": 2000}})], [])
    )
    assert (
        told
        == "node n1 states 2 gpu, but lists no GPU, so workloads get none: list every GPU with its model under status.gpus"
    )


def test_preempted_workload_names_its_preemptor():
    workloads = [
        an_offline_workload("low", cpu="4", on="n1"),
        an_offline_workload("high", cpu="2", priority=100),
    ]
    report = run_simulation([an_offline_node("n1")], workloads, explained_workload="default/high")
    assert {name: (each.node, each.preempted_by) for name, each in report.preempted.items()} == {
        "default/low": ("n1", "default/high")
    }
    assert report.explanation["summary"].startswith(
        "n1, by preempting default/low (priority 0 < 100); otherwise 0 of 1 node: "
    )
    assert (report.explanation["chosen"], report.explanation["displaced"]) == ("n1", ["default/low"])


def test_gang_member_explanation_includes_gang_outcome():
    gang = [
        an_offline_workload(f"g{number}", cpu="3", group={"name": "g", "minMember": 2}) for number in range(2)
    ]
    report = run_simulation([an_offline_node("n1")], gang, explained_workload="default/g0")
    assert report.explanation["chosen"] is None
    why, place, beside = report.explanation["summary"].split("; ")
    assert (why, place) == (
        "1 of 2 group members fit, minMember is 2",
        "the next member: 0 of 1 node: 1 without 3 cpu free",
    )
    assert beside == "nodes are shown with the other member of the group that fits in place"
    assert report.explanation["ranked"] == []
    assert report.explanation["refused"] == {
        "n1": [{"what": "cpu", "need": "3", "have": "1", "missing": "2"}]
    }


def test_gang_member_is_explained_beside_placed_members():
    gang = [
        an_offline_workload(f"g{number}", cpu="2", group={"name": "g", "minMember": 2}) for number in range(3)
    ]
    report = run_simulation(
        [an_offline_node("n1"), an_offline_node("n2", unschedulable=True)],
        gang,
        explained_workload="default/g2",
    )
    assert sorted(report.placements) == ["default/g0", "default/g1"]
    assert report.explanation["summary"] == "0 of 2 nodes: 1 cordoned; 1 without 2 cpu free"
    assert report.explanation["refused"]["n1"] == [{"what": "cpu", "need": "2", "have": "0", "missing": "2"}]


def test_preempted_workload_is_explained():
    workloads = [
        an_offline_workload("old", cpu="4", on="n1"),
        an_offline_workload("high", cpu="4", priority=9),
    ]
    told = run_simulation([an_offline_node("n1")], workloads, explained_workload="default/old").explanation
    assert told["chosen"] is None
    assert told["summary"] == "0 of 1 node: 1 without 4 cpu free; default/high preempted the workload on n1"
    assert told["refused"] == {"n1": [{"what": "cpu", "need": "4", "have": "0", "missing": "4"}]}
    elsewhere = run_simulation(
        [an_offline_node("n1"), an_offline_node("n2", cpu=1000)],
        [an_offline_workload("old", on="n1"), workloads[1]],
        explained_workload="default/old",
    ).explanation
    assert elsewhere["chosen"] == "n2"
    assert elsewhere["summary"].startswith("n2: best of 1 that fit")
    assert elsewhere["summary"].endswith("; default/high preempted the workload on n1")


def test_each_preemption_takes_fewest_victims():
    bound = [
        an_offline_workload("a", cpu="4", priority=1, on="n1"),
        *(an_offline_workload(name, cpu="2", on="n2") for name in "bc"),
    ]
    report = run_simulation(
        [an_offline_node("n1"), an_offline_node("n2")],
        [*bound, an_offline_workload("high", cpu="4", priority=9)],
    )
    assert {name: each.preempted_by for name, each in report.preempted.items()} == {
        "default/a": "default/high",
        "default/b": "default/a",
        "default/c": "default/a",
    }


def test_gang_at_min_member_is_preempted_whole():
    gang = [
        an_offline_workload(f"g{number}", cpu="2", group={"name": "g", "minMember": 2}, on="n1")
        for number in range(2)
    ]
    report = run_simulation(
        [an_offline_node("n1")], [*gang, an_offline_workload("high", cpu="2", priority=9)]
    )
    assert sorted(report.preempted) == ["default/g0", "default/g1"]


def test_equal_reasons_are_one_entry_in_input_order():
    workloads = [
        an_offline_workload("a", cpu="9"),
        an_offline_workload("b", cpu="5", memory="2Gi"),
        an_offline_workload("c", cpu="9", priority=3, labels={"x": "y"}),
    ]
    report = run_simulation([an_offline_node("n1")], workloads)
    assert [each.names for each in report.unschedulable] == [("default/a", "default/c"), ("default/b",)]


def test_nodes_without_gpu_and_with_busy_gpus_are_distinct():
    nodes = [an_offline_node("n1"), an_offline_node("n2", cpu=500), with_gpus("n3"), with_gpus("n4")]
    held = [an_offline_workload("old", requests={"gpu": 1}, on="n3")]
    report = run_simulation(
        nodes, [*held, an_offline_workload("new", requests={"gpu": 2})], explained_workload="default/new"
    )
    assert reasons(report) == {"default/new": "0 of 4 nodes: 2 without a GPU; 2 without 2 gpu free"}
    assert report.explanation["reasons"][0] == {"plugin": "Gpu", "reason": "without a GPU", "count": 2}
    assert report.explanation["refused"]["n1"] == [{"what": "gpu", "need": "2", "have": "0", "missing": "2"}]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param({"requests": {"gpu": 4}}, "4 gpu of at most 2", id="more GPUs than any node has"),
        pytest.param(
            {"requests": {"gpu": 2}, "constraints": {"gpuModels": ["a100"]}},
            "2 gpu of model a100 of at most 0",
            id="of another model",
        ),
        pytest.param(
            {"requests": {"ports": 2, "workloads": 3}, "constraints": {"nodeSelector": {"x": "y"}}},
            "",
            id="no more than there is",
        ),
        pytest.param({"requests": {"ports": 3}}, "3 ports of at most 2", id="ports asked for by name"),
        pytest.param({"ports": 3}, "3 ports of at most 2", id="more ports than any range has"),
        pytest.param(
            {"requests": {"gpu": 2}, "ports": 2},
            "no node has 1 cpu and 1Gi memory and 2 gpu and 2 ports together",
            id="both",
        ),
        pytest.param({"requests": {"gpu": "500m"}}, "", id="a part of one will do when it is free"),
    ],
)
def test_gpus_or_ports_beyond_any_node_are_warned_about(asked, told):
    ports = [{"name": f"p{number}"} for number in range(asked.pop("ports", 0))]
    wanted = an_offline_workload("w", containers={"main": {"command": ["run"], "ports": ports}}, **asked)
    narrow = {"portRange": {"first": 30000, "last": 30000}}
    gpus = an_offline_node("gpus", status={"gpus": [{"model": "t4"}] * 2, **narrow})
    others = an_offline_node("ports", status={"portRange": {"first": 30000, "last": 30001}})
    holders = [
        an_offline_workload(f"h{number}", cpu="1m", requests={"gpu": 1}, on="gpus") for number in range(2)
    ]
    found = warnings_of(run_simulation([gpus, others], [*holders, wanted]))
    assert found == ([f"workload default/w requests more than any empty node has: {told}"] if told else [])


@pytest.mark.parametrize(
    ("status", "told"),
    [
        pytest.param(
            {"reserved": {"cpu": 5000}},
            "reserves 5 cpu, more than its capacity of 4: status.reserved must be at most status.capacity",
            id="more kept than there is",
        ),
        pytest.param(
            {"allocatable": {"cpu": 4000, "memory": 64 * GIB}},
            "offers workloads 64Gi memory, but only 32Gi is unreserved, and Lattice uses that amount: "
            "status.allocatable must be at most status.capacity minus status.reserved",
            id="more given than there is",
        ),
        pytest.param(
            {"allocatable": {"cpu": 4000}, "reserved": {"cpu": 500}},
            "offers workloads 4 cpu, but only 3500m is unreserved, and Lattice uses that amount: "
            "status.allocatable must be at most status.capacity minus status.reserved",
            id="more given than is left",
        ),
        pytest.param(
            {"capacity": {"cpu": 4000, "gpu": 1000}, "gpus": [{"model": "t4"}] * 2},
            "states 1 gpu, but lists 2, and only listed GPUs are used: set capacity.gpu to 2000 for 2 listed gpu",
            id="another number of GPUs than listed",
        ),
        pytest.param(
            {"capacity": {"cpu": 4}},
            "has 4 milli-cores of cpu: node amounts are in milli-cores, so 4 cores are 4000",
            id="cores for milli",
        ),
        pytest.param(
            {"capacity": {"memory": 16}},
            "has 16 bytes of memory: node amounts are in bytes, so 16Gi is 17179869184",
            id="GiB for bytes",
        ),
        pytest.param(
            {"capacity": {"hugepages-2Mi": 512}},
            "has 512 bytes of hugepages-2Mi: node amounts are in bytes, not pages",
            id="pages for bytes",
        ),
        pytest.param(
            {"reserved": {"cpu": 4000}, "capacity": {"cpu": 4000, "hugepages-x": 1}}, "", id="all of it kept"
        ),
    ],
)
def test_implausible_node_figures_are_warned_about(status, told):
    assert warnings_of(run_simulation([an_offline_node("n1", status=status)], [])) == (
        [f"node n1 {told}"] if told else []
    )


def test_preemption_never_leaves_partial_gang():
    gang = [
        an_offline_workload(f"g{number}", cpu="2", group={"name": "g", "minMember": 3}) for number in range(3)
    ]
    others = [
        an_offline_workload("high", cpu="2", priority=9),
        an_offline_workload("huge", cpu="6", priority=8),
    ]
    report = run_simulation(
        [an_offline_node("n1", cpu=6000)],
        [*(msgspec.structs.replace(each, status=on("n1")) for each in gang), *others],
    )
    assert report.placements == {"default/high": "n1"}
    assert {name: (each.node, each.preempted_by) for name, each in report.preempted.items()} == {
        f"default/g{number}": ("n1", "default/high") for number in range(3)
    }
    left_over = sorted(name for each in report.unschedulable for name in each.names)
    assert left_over == [*(f"default/g{number}" for number in range(3)), "default/huge"]


def test_preempted_gang_is_replaced_together():
    rules = {"name": "g", "minMember": 2}
    gang = [
        msgspec.structs.replace(an_offline_workload(f"g{n}", cpu="2", group=rules), status=on(f"n{n}"))
        for n in range(2)
    ]
    late = an_offline_workload("g2", cpu="4", group=rules)
    machines = [
        an_offline_node("n0", cpu=3000),
        an_offline_node("n1", cpu=2000),
        an_offline_node("n2", cpu=2000),
    ]
    report = run_simulation(machines, [*gang, late, an_offline_workload("high", cpu="3", priority=9)])
    assert report.placements["default/high"] == "n0"
    assert {name: each.node for name, each in report.preempted.items()} == {
        "default/g0": "n0",
        "default/g1": "n1",
    }
    assert sorted(report.placements[f"default/g{n}"] for n in range(2)) == ["n1", "n2"]
    assert [each.names for each in report.unschedulable] == [("default/g2",)]


def on(node):
    return msgspec.convert({"binding": {"node": node}}, type(an_offline_workload("x").status))


@pytest.mark.parametrize(
    ("needs", "placed"),
    [
        pytest.param({"x": "y", "y": "x"}, {"n2"}, id="two that need each other"),
        pytest.param({"x": "y", "y": "z", "z": "x"}, {"n2"}, id="three in a circle"),
        pytest.param(
            {"x": "y", "y": "x", "z": "nobody"}, set(), id="one of them needs a workload outside the gang"
        ),
    ],
)
def test_gang_with_mutual_affinity_is_placed_together(needs, placed):
    gang = [
        an_offline_workload(
            name, labels={"app": name}, constraints=near(other), group={"name": "g", "minMember": len(needs)}
        )
        for name, other in needs.items()
    ]
    report = run_simulation(
        [an_offline_node("n1", cpu=1000), an_offline_node("n2", cpu=3000)], gang, "resource-efficiency"
    )
    assert set(report.placements.values()) == placed
    assert len(report.placements) in (0, len(needs))


def test_infeasible_affinity_cycle_has_a_reason():
    gang = [
        an_offline_workload(
            name, labels={"app": name}, constraints=near(other), group={"name": "g", "minMember": 2}
        )
        for name, other in (("x", "y"), ("y", "x"))
    ]
    report = run_simulation([an_offline_node("n1", cpu=1000), an_offline_node("n2", cpu=1000)], gang)
    assert (
        "the members must be near each other, and no node has capacity for enough of them"
        in reasons(report)["default/x"]
    )


def test_permanent_reasons_are_listed_before_capacity():
    nodes = [
        an_offline_node("n1", cpu=100),
        an_offline_node("n2", cpu=100),
        an_offline_node("n3", unschedulable=True),
    ]
    assert reasons(run_simulation(nodes, [an_offline_workload("a")])) == {
        "default/a": "0 of 3 nodes: 1 cordoned; 2 without 1 cpu free"
    }


def test_gpu_model_mismatch_is_listed_before_busy_gpus():
    nodes = [with_gpus("n1"), with_gpus("n2"), an_offline_node("n3")]
    workloads = [
        an_offline_workload(f"w{number}", requests={"gpu": 1}, constraints={"gpuModels": ["t4"]})
        for number in range(3)
    ]
    (reason,) = reasons(run_simulation(nodes, workloads)).values()
    assert reason == "0 of 3 nodes: 1 without a GPU of model t4; 2 without 1 gpu free"


def test_stopped_workload_is_not_placed():
    report = run_simulation([an_offline_node("n1")], [an_offline_workload("a", desiredState="Stopped")])
    assert (report.stopped_count, report.placements) == (1, {})


@pytest.mark.parametrize(
    "nodes", [[], [an_offline_node("n1", cpu=0)]], ids=["no nodes at all", "a node without room"]
)
def test_no_capacity_is_reported_not_raised(nodes):
    report = run_simulation(nodes, [an_offline_workload("a")])
    assert report.placements == {}
    assert reasons(report)["default/a"].startswith(f"0 of {len(nodes)} node")


@pytest.mark.parametrize(
    ("workloads", "placed"),
    [
        pytest.param(
            [an_offline_workload("a", labels={"app": "a"}, constraints=near("b"))],
            [],
            id="near something that is not there",
        ),
        pytest.param(
            [
                an_offline_workload("a", labels={"app": "a"}, constraints=near("b")),
                an_offline_workload("b", labels={"app": "b"}, constraints=near("a")),
            ],
            [],
            id="each near the other, and none is placed",
        ),
        pytest.param(
            [
                an_offline_workload("a", labels={"app": "a"}, constraints=near("b")),
                an_offline_workload("b", labels={"app": "b"}, constraints=near("a"), on="n1"),
            ],
            ["default/a"],
            id="each near the other, and one is there",
        ),
        pytest.param(
            [an_offline_workload("a", labels={"app": "a"}, constraints=near("a", "planet"))],
            [],
            id="near over a topology key that no node has",
        ),
        pytest.param(
            [
                an_offline_workload(
                    "a",
                    labels={"app": "a"},
                    constraints={
                        "spread": [{"topologyKey": "planet", "selector": {"matchLabels": {"app": "a"}}}]
                    },
                )
            ],
            [],
            id="spread over a topology key that no node has",
        ),
        pytest.param(
            [an_offline_workload("a", constraints={"nodeSelector": {"disk": "ssd"}})],
            [],
            id="a label that no node has",
        ),
        pytest.param(
            [an_offline_workload("a", requests={"example.com/fpga": 1})], [], id="a resource that no node has"
        ),
        pytest.param([an_offline_workload("a", cpu="900k")], [], id="more than any node has"),
    ],
)
def test_unsatisfiable_constraints_are_rejected_with_reason(workloads, placed):
    report = run_simulation([an_offline_node("n1", zone="z1"), an_offline_node("n2", zone="z2")], workloads)
    assert sorted(report.placements) == placed
    if placed:
        assert report.placements == {"default/a": "n1"}
    for reason in reasons(report).values():
        assert reason.startswith("0 of 2 nodes: ")
        assert len(reason) > len("0 of 2 nodes: ")


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        pytest.param(
            an_offline_node("n", cpu=-1),
            "status.capacity.cpu: must be from 0 to 2^53, got -1",
            id="room below nothing",
        ),
        pytest.param(
            an_offline_node("n", memory=1 << 61),
            "status.capacity.memory: must be from 0 to 2^53",
            id="room beyond measure",
        ),
        pytest.param(
            an_offline_node("n", status={"reserved": {"cpu": -5}}),
            "status.reserved.cpu: must be from 0 to 2^53, got -5",
            id="less reserved",
        ),
        pytest.param(
            an_offline_node("n", labels={"lattice.dev/price-per-hour": "cheap"}),
            'must be dollars per hour, such as 0.192, got "cheap"',
            id="no price",
        ),
        pytest.param(
            an_offline_node("n", labels={"lattice.dev/price-per-hour": "NaN"}),
            'got "NaN"',
            id="a price that is not a number",
        ),
        pytest.param(an_offline_node("n"), "", id="an ordinary node"),
    ],
)
def test_node_problems(node, problem):
    assert problem in "".join(map(str, node_problems(node)))
    assert bool(problem) == bool(list(node_problems(node)))


def test_container_requests_beyond_any_node_are_a_problem():
    half = {"command": ["run"], "resources": {"requests": {"memory": "0.8Ei"}}}
    value = msgspec.to_builtins(an_offline_workload("a"))
    value["spec"] = {"containers": {"a": half, "b": half}}
    (problem,) = workload_problems(msgspec.convert(value, LatticeWorkload))
    assert "of memory in total, more than any node has; the maximum is 2^53" in str(problem)


def test_node_order_is_irrelevant_and_seed_is_not():
    nodes = [an_offline_node(f"n{i}") for i in range(12)]
    workloads = [an_offline_workload(f"w{i}") for i in range(6)]
    first = run_simulation(nodes, workloads).placements
    assert run_simulation(nodes[::-1], workloads).placements == first
    assert any(run_simulation(nodes, workloads, seed=seed).placements != first for seed in range(1, 5))


def test_batched_workloads_are_placed_as_singly():
    nodes = [an_offline_node(f"n{i}", cpu=1000 + 700 * i) for i in range(7)]
    together = run_simulation(nodes, [an_offline_workload(f"w{i}", cpu="300m") for i in range(60)])
    labelled = [
        an_offline_workload(f"w{i}", cpu="300m", labels={"number": str(i)}) for i in range(60)
    ]  # every shape is distinct
    alone = run_simulation(nodes, labelled)
    assert together.placements == alone.placements
    assert [len(each.names) for each in together.unschedulable] == (
        [60 - len(alone.placements)] if alone.unschedulable else []
    )


def test_explanation_lists_every_node():
    nodes = [an_offline_node("n1", cpu=500), an_offline_node("n2"), an_offline_node("n3", unschedulable=True)]
    report = run_simulation(nodes, [an_offline_workload("a")], explained_workload="default/a")
    assert report.explanation is not None
    assert [each["name"] for each in report.explanation["ranked"]] == ["n2"]
    assert report.explanation["ranked"][0]["parts"]
    assert set(report.explanation["refused"]) == {"n1", "n3"}
    (cpu,) = report.explanation["refused"]["n1"]
    assert (cpu["need"], cpu["have"], cpu["missing"]) == ("1", "500m", "500m")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("default/nobody", "there is no such workload to schedule", id="unknown"),
        pytest.param(
            "default/old", "is already bound to node n1: there is no decision to explain", id="bound already"
        ),
    ],
)
def test_explaining_undecided_workload_is_not_found(name, problem):
    with pytest.raises(NotFound, match=problem):
        run_simulation(
            [an_offline_node("n1")], [an_offline_workload("old", on="n1")], explained_workload=name
        )


def test_progress_and_duration_are_reported():
    told, ticks = [], iter(range(10))
    report = run_simulation(
        [an_offline_node("n1")],
        [an_offline_workload("a"), an_offline_workload("b")],
        on_progress=told.append,
        clock=lambda: float(next(ticks)),
    )
    assert told[-1] == 2
    assert report.decide_seconds == 1.0


@pytest.mark.parametrize(
    ("containers", "asked"),
    [
        pytest.param(
            [{"requests": {"cpu": "2"}}, {"requests": {"cpu": "1"}}], 3000, id="all of them state requests"
        ),
        pytest.param([{"requests": {"cpu": "2"}}, {}], 2000, id="one of them does"),
        pytest.param([{"limits": {"cpu": "2"}}, {}], 500, id="none does"),
    ],
)
def test_container_requests_override_workload_requests(containers, asked):
    value = msgspec.to_builtins(an_offline_workload("a", cpu="500m"))
    value["spec"]["containers"] = {
        f"c{number}": {"command": ["run"], "resources": each} for number, each in enumerate(containers)
    }
    report = run_simulation([an_offline_node("n1")], [msgspec.convert(value, LatticeWorkload)])
    assert next(each.used_after for each in report.usage if each.resource == "cpu") == asked
