"""Warnings of an offline simulation: workloads and nodes that can never work as declared."""

import pytest
from build.simulation import (
    GIB,
    an_offline_node,
    an_offline_workload,
    needing,
    run_simulation,
    warnings_of,
)


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


def test_gpu_capacity_without_listed_gpus_is_warned_about():
    (told,) = warnings_of(
        run_simulation([an_offline_node("n1", status={"capacity": {"cpu": 4000, "gpu": 2000}})], [])
    )
    assert (
        told
        == "node n1 states 2 gpu, but lists no GPU, so workloads get none: list every GPU with its model under status.gpus"
    )


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
