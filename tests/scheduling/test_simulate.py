"""Deciding everything offline: who goes where, how full it gets, and what is said about the rest."""

import msgspec
import pytest

from lattice.errors import Invalid, NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.profile import PRESETS, compile_profile
from lattice.scheduling.simulate import Run, node_problems, simulate, workload_problems

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


def test_a_binding_that_no_gpu_can_honour_is_refused():
    node = a_node("n1", status={"capacity": {"cpu": 4000, "memory": GIB, "gpu": 1000}, "gpus": [{"model": "t4"}]})
    with pytest.raises(Invalid, match="which cannot hold it"):
        simulated([node], [a_workload(name, requests={"gpu": 1}, on="n1") for name in "ab"])


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
