"""Deciding everything offline: who goes where, how full it gets, and what is said about the rest."""

import msgspec
import pytest

from lattice.errors import NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.profile import PRESETS, compile_profile
from lattice.scheduling.sanity import node_problems, workload_problems
from lattice.scheduling.simulate import Run, simulate

GIB = 1 << 30


def a_node(name, cpu=4000, memory=32 * GIB, status=None, labels=None, **spec):
    value = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}
    value["status"] = {"capacity": {"cpu": cpu, "memory": memory}, **(status or {})}
    return msgspec.convert(value, LatticeNode)


def a_workload(name, cpu="1", memory="1Gi", on="", labels=None, **spec):
    requests = {"cpu": cpu, "memory": memory, **spec.pop("requests", {})}
    value = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": {"main": {"command": ["run"]}}, "requests": requests, **spec},
    }
    if on:
        value["status"] = {"binding": {"node": on}}
    return msgspec.convert(value, LatticeWorkload)


def simulated(nodes, workloads, profile="balanced", **run):
    return simulate(nodes, workloads, Run(compile_profile(PRESETS[profile]), **run))


def near(app, key="node"):
    return {"affinity": {"workload": {"required": [{"selector": {"matchLabels": {"app": app}}, "topologyKey": key}]}}}


def reasons(report):
    return {name: each.reason for each in report.unplaced for name in each.names}


def test_everything_that_fits_is_placed_and_counted():
    report = simulated([a_node("n1"), a_node("n2")], [a_workload(f"w{i}") for i in range(4)])
    assert sorted(report.placements) == [f"default/w{i}" for i in range(4)]
    assert sorted(report.placements.values()) == ["n1", "n1", "n2", "n2"], "balanced spreads"
    cpu = next(each for each in report.usage if each.resource == "cpu")
    assert (cpu.total, cpu.before, cpu.after, cpu.mean, cpu.highest) == (8000, 0, 4000, 0.5, 0.5)
    assert (report.nodes, report.decided, report.unplaced) == (2, 4, ())


def test_those_refused_for_one_reason_are_told_together():
    report = simulated([a_node("n1")], [a_workload(f"w{i}", cpu="3") for i in range(5)])
    assert len(report.placements) == 1
    (only,) = report.unplaced
    assert len(only.names) == 4
    assert only.reason == "0 of 1 node: 1 without 3 cpu free"


def test_the_important_go_first_whatever_the_order_given():
    nodes = [a_node("n1", cpu=1000)]
    report = simulated(nodes, [a_workload("low"), a_workload("high", priority=10), a_workload("middle", priority=5)])
    assert report.placements == {"default/high": "n1"}


def test_the_bound_are_on_their_nodes_from_the_start():
    report = simulated([a_node("n1", cpu=1000), a_node("n2", cpu=1000)], [a_workload("new"), a_workload("old", on="n1")])
    assert (report.placements, report.bound) == ({"default/new": "n2"}, 1)
    assert next(each.before for each in report.usage if each.resource == "cpu") == 1000


def test_the_bound_may_already_be_too_many():
    report = simulated([a_node("n1", cpu=1000)], [a_workload("a", on="n1"), a_workload("b", on="n1"), a_workload("c")])
    assert report.bound == 2
    assert "without 1 cpu free" in reasons(report)["default/c"]


def test_a_binding_to_an_unknown_node_is_refused():
    with pytest.raises(NotFound, match=r"default/a: is bound to node gone, which is not among those given"):
        simulated([a_node("n1")], [a_workload("a", on="gone")])


def with_gpus(name, count=1, **more):
    status = {"capacity": {"cpu": 4000, "memory": 32 * GIB, "gpu": 1000 * count}, "gpus": [{"model": "t4"}] * count}
    return a_node(name, status=status, **more)


def odd(report):
    return [f"{each.kind} {each.name} {each.what}" for each in report.odd]


def test_a_binding_that_no_gpu_can_honour_is_left_out_and_told():
    report = simulated([with_gpus("n1")], [a_workload(name, requests={"gpu": 1}, on="n1") for name in "ab"])
    (told,) = odd(report)
    expected = "workload default/b is bound to node n1, which cannot hold its 1 gpu beside the others that are bound there"
    assert told == f"{expected} (free of each: 0): it is left out"
    assert report.bound == 1
    assert next(each.after for each in report.usage if each.resource == "cpu") == 1000


def test_bound_gpu_shares_are_seated_largest_first():
    shares = ["300m", "400m", "700m", "600m"]
    bound = [a_workload(f"w{number}", cpu="100m", requests={"gpu": share}, on="n1") for number, share in enumerate(shares)]
    report = simulated([with_gpus("n1", 2)], bound)
    assert (odd(report), report.bound) == ([], 4)


def test_what_the_bound_take_too_much_is_told_once_for_each_node():
    bound = [a_workload(f"w{number}", cpu="3", memory="20Gi", on="n1") for number in range(2)]
    report = simulated([a_node("n1"), a_node("n2")], bound)
    assert odd(report) == ["node n1 workloads bound to it take more than it has: 6 of 4 cpu, 40Gi of 32Gi memory"]


def test_a_number_of_gpus_alone_is_told_not_to_count():
    (told,) = odd(simulated([a_node("n1", status={"capacity": {"cpu": 4000, "gpu": 2000}})], []))
    assert told == "node n1 says 2 gpu, yet none counts: list each one under status.gpus, with its model"


def test_who_is_displaced_is_told_with_by_whom():
    workloads = [a_workload("low", cpu="4", on="n1"), a_workload("high", cpu="2", priority=100)]
    report = simulated([a_node("n1")], workloads, explain="default/high")
    assert {name: (each.node, each.by) for name, each in report.displaced.items()} == {"default/low": ("n1", "default/high")}
    assert report.explained["summary"].startswith("n1, by displacing default/low (priority 0 < 100); else 0 of 1 node: ")
    assert (report.explained["chosen"], report.explained["displaced"]) == ("n1", ["default/low"])


def test_a_member_explained_says_what_became_of_its_group():
    gang = [a_workload(f"g{number}", cpu="3", group={"name": "g", "minMember": 2}) for number in range(2)]
    report = simulated([a_node("n1")], gang, explain="default/g0")
    assert report.explained["chosen"] is None
    assert report.explained["summary"] == "1 of 2 would fit, minMember is 2; the next: 0 of 1 node: 1 without 3 cpu free"


def test_half_a_gang_is_never_left():
    gang = [a_workload(f"g{number}", cpu="2", group={"name": "g", "minMember": 3}) for number in range(3)]
    others = [a_workload("high", cpu="2", priority=9), a_workload("huge", cpu="6", priority=8)]
    report = simulated([a_node("n1", cpu=6000)], [*(msgspec.structs.replace(each, status=on("n1")) for each in gang), *others])
    assert (report.placements, dict(report.displaced)) == ({}, {})


def on(node):
    return msgspec.convert({"binding": {"node": node}}, type(a_workload("x").status))


@pytest.mark.parametrize(
    ("needs", "placed"),
    [
        pytest.param({"x": "y", "y": "x"}, {"n2"}, id="two that need each other"),
        pytest.param({"x": "y", "y": "z", "z": "x"}, {"n2"}, id="three in a circle"),
        pytest.param({"x": "y", "y": "x", "z": "nobody"}, set(), id="one of them needs somebody else"),
    ],
)
def test_a_gang_whose_members_need_one_another_is_seated_together(needs, placed):
    gang = [
        a_workload(name, labels={"app": name}, constraints=near(other), group={"name": "g", "minMember": len(needs)})
        for name, other in needs.items()
    ]
    report = simulated([a_node("n1", cpu=1000), a_node("n2", cpu=3000)], gang, "resource-efficiency")
    assert set(report.placements.values()) == placed
    assert len(report.placements) in (0, len(needs))


def test_a_circle_that_fits_nowhere_says_so():
    gang = [
        a_workload(name, labels={"app": name}, constraints=near(other), group={"name": "g", "minMember": 2})
        for name, other in (("x", "y"), ("y", "x"))
    ]
    report = simulated([a_node("n1", cpu=1000), a_node("n2", cpu=1000)], gang)
    assert "it must be near others of its own group" in reasons(report)["default/x"]


def test_what_lasts_is_told_before_room():
    nodes = [a_node("n1", cpu=100), a_node("n2", cpu=100), a_node("n3", unschedulable=True)]
    assert reasons(simulated(nodes, [a_workload("a")])) == {"default/a": "0 of 3 nodes: 1 cordoned; 2 without 1 cpu free"}


def test_a_node_of_another_model_is_told_before_a_busy_one():
    nodes = [with_gpus("n1"), with_gpus("n2"), a_node("n3")]
    workloads = [a_workload(f"w{number}", requests={"gpu": 1}, constraints={"gpuModels": ["t4"]}) for number in range(3)]
    (reason,) = reasons(simulated(nodes, workloads)).values()
    assert reason == "0 of 3 nodes: 1 without a GPU of model t4; 2 without 1 gpu free"


def test_what_should_not_run_is_not_placed():
    report = simulated([a_node("n1")], [a_workload("a", desiredState="Stopped")])
    assert (report.stopped, report.placements) == (1, {})


@pytest.mark.parametrize("nodes", [[], [a_node("n1", cpu=0)]], ids=["no nodes at all", "a node without room"])
def test_no_room_is_an_answer(nodes):
    report = simulated(nodes, [a_workload("a")])
    assert report.placements == {}
    assert reasons(report)["default/a"].startswith(f"0 of {len(nodes)} node")


@pytest.mark.parametrize(
    ("workloads", "placed"),
    [
        pytest.param([a_workload("a", labels={"app": "a"}, constraints=near("b"))], [], id="near something that is not there"),
        pytest.param(
            [
                a_workload("a", labels={"app": "a"}, constraints=near("b")),
                a_workload("b", labels={"app": "b"}, constraints=near("a")),
            ],
            [],
            id="each near the other, and none is placed",
        ),
        pytest.param(
            [
                a_workload("a", labels={"app": "a"}, constraints=near("b")),
                a_workload("b", labels={"app": "b"}, constraints=near("a"), on="n1"),
            ],
            ["default/a"],
            id="each near the other, and one is there",
        ),
        pytest.param(
            [a_workload("a", labels={"app": "a"}, constraints=near("a", "planet"))], [], id="near over a topology key that no node has"
        ),
        pytest.param(
            [
                a_workload(
                    "a", labels={"app": "a"}, constraints={"spread": [{"topologyKey": "planet", "selector": {"matchLabels": {"app": "a"}}}]}
                )
            ],
            [],
            id="spread over a topology key that no node has",
        ),
        pytest.param([a_workload("a", constraints={"nodeSelector": {"disk": "ssd"}})], [], id="a label that no node has"),
        pytest.param([a_workload("a", requests={"example.com/fpga": 1})], [], id="a resource that no node has"),
        pytest.param([a_workload("a", cpu="900k")], [], id="more than any node has"),
    ],
)
def test_what_cannot_be_met_is_refused_with_a_reason_never_placed_wrongly(workloads, placed):
    report = simulated([a_node("n1", zone="z1"), a_node("n2", zone="z2")], workloads)
    assert sorted(report.placements) == placed
    if placed:
        assert report.placements == {"default/a": "n1"}
    for reason in reasons(report).values():
        assert reason.startswith("0 of 2 nodes: ")
        assert len(reason) > len("0 of 2 nodes: ")


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        pytest.param(a_node("n", cpu=-1), "status.capacity.cpu: must be from 0 to 2^60, got -1", id="room below nothing"),
        pytest.param(a_node("n", memory=1 << 61), "status.capacity.memory: must be from 0 to 2^60", id="room beyond measure"),
        pytest.param(
            a_node("n", status={"reserved": {"cpu": -5}}), "status.reserved.cpu: must be from 0 to 2^60, got -5", id="less reserved"
        ),
        pytest.param(
            a_node("n", labels={"lattice.dev/price-per-hour": "cheap"}), 'must be dollars an hour such as 0.192, got "cheap"', id="no price"
        ),
        pytest.param(a_node("n", labels={"lattice.dev/price-per-hour": "NaN"}), 'got "NaN"', id="a price that is not a number"),
        pytest.param(a_node("n"), "", id="an ordinary node"),
    ],
)
def test_nodes_that_nobody_can_decide_with(node, problem):
    assert problem in "".join(map(str, node_problems(node)))
    assert bool(problem) == bool(list(node_problems(node)))


def test_containers_that_ask_for_too_much_all_together():
    half = {"command": ["run"], "resources": {"requests": {"memory": "0.8Ei"}}}
    value = msgspec.to_builtins(a_workload("a"))
    value["spec"] = {"containers": {"a": half, "b": half}}
    (problem,) = workload_problems(msgspec.convert(value, LatticeWorkload))
    assert "of memory all together, more than any node has" in str(problem)


def test_the_order_of_the_nodes_does_not_matter_and_the_seed_does():
    nodes = [a_node(f"n{i}") for i in range(12)]
    workloads = [a_workload(f"w{i}") for i in range(6)]
    first = simulated(nodes, workloads).placements
    assert simulated(nodes[::-1], workloads).placements == first
    assert any(simulated(nodes, workloads, seed=seed).placements != first for seed in range(1, 5))


def test_equal_ones_together_go_where_one_at_a_time_would():
    nodes = [a_node(f"n{i}", cpu=1000 + 700 * i) for i in range(7)]
    together = simulated(nodes, [a_workload(f"w{i}", cpu="300m") for i in range(60)])
    labelled = [a_workload(f"w{i}", cpu="300m", labels={"number": str(i)}) for i in range(60)]  # no two have one shape
    alone = simulated(nodes, labelled)
    assert together.placements == alone.placements
    assert [len(each.names) for each in together.unplaced] == ([60 - len(alone.placements)] if alone.unplaced else [])


def test_explaining_one_lists_every_node():
    nodes = [a_node("n1", cpu=500), a_node("n2"), a_node("n3", unschedulable=True)]
    report = simulated(nodes, [a_workload("a")], explain="default/a")
    assert report.explained is not None
    assert [each["name"] for each in report.explained["ranked"]] == ["n2"]
    assert report.explained["ranked"][0]["parts"]
    assert set(report.explained["refused"]) == {"n1", "n3"}
    (cpu,) = report.explained["refused"]["n1"]
    assert (cpu["need"], cpu["have"], cpu["missing"]) == ("1", "500m", "500m")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("default/nobody", "there is no such workload to decide", id="unknown"),
        pytest.param("default/old", "is on node n1 already: nothing is decided", id="bound already"),
    ],
)
def test_only_what_is_decided_can_be_explained(name, problem):
    with pytest.raises(NotFound, match=problem):
        simulated([a_node("n1")], [a_workload("old", on="n1")], explain=name)


def test_progress_and_time_are_told():
    told, ticks = [], iter(range(10))
    report = simulated([a_node("n1")], [a_workload("a"), a_workload("b")], tell=told.append, clock=lambda: float(next(ticks)))
    assert told[-1] == 2
    assert report.seconds == 1.0


@pytest.mark.parametrize(
    ("containers", "asked"),
    [
        pytest.param([{"requests": {"cpu": "2"}}, {"requests": {"cpu": "1"}}], 3000, id="all of them state requests"),
        pytest.param([{"requests": {"cpu": "2"}}, {}], 2000, id="one of them does"),
        pytest.param([{"limits": {"cpu": "2"}}, {}], 500, id="none does"),
    ],
)
def test_requests_of_containers_win_over_those_of_the_workload(containers, asked):
    value = msgspec.to_builtins(a_workload("a", cpu="500m"))
    value["spec"]["containers"] = {f"c{number}": {"command": ["run"], "resources": each} for number, each in enumerate(containers)}
    report = simulated([a_node("n1")], [msgspec.convert(value, LatticeWorkload)])
    assert next(each.after for each in report.usage if each.resource == "cpu") == asked
