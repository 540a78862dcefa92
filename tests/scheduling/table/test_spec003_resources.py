"""Tests of spec 003 on resources: every resource from the manifest to the decision."""

from collections.abc import Mapping
from typing import Any

import pytest
from build.objects import make_object

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import summarize
from lattice.kinds.container import parse_amounts
from lattice.kinds.node import LatticeNode
from lattice.kinds.qos import Qos, eviction_order, is_compressible, qos_of
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.profile import compile_preset
from lattice.scheduling.table.node_info import allocatable, node_info_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.plain_fit import fits, utilisation

GIB = 1 << 30
Quantities = Mapping[str, Any]


def a_sized_node(capacity: Quantities, **status: Any) -> LatticeNode:
    """A node with this capacity and no allocatable that it reports; ready unless `status` overrides it."""
    stored = {
        "capacity": {"cpu": 8000, "memory": 8 * GIB, **capacity},
        "conditions": [{"type": "Ready", "status": "True"}],
        **status,
    }
    return make_object(LatticeNode, "n", status=stored)


def a_workload_of_containers(*containers: tuple[Quantities, Quantities], **spec: Any) -> LatticeWorkload:
    """A workload from (requests, limits) of each container."""
    bodies = {
        f"c{number}": {"command": ["run"], "resources": {"requests": requests, "limits": limits}}
        for number, (requests, limits) in enumerate(containers)
    }
    return make_object(LatticeWorkload, "w", spec={"containers": bodies, **spec})


def decided(node: LatticeNode, workload: LatticeWorkload) -> Decision:
    table = NodeTable()
    table.put_node(node_info_of(node))
    return decide(table.ask_of(workload), table, compile_preset())


@pytest.mark.parametrize(
    ("resource", "capacity", "fitting", "more", "why"),
    [
        pytest.param(
            "cpu", 1500, "1500m", "1501m", "without 1501m cpu free", id="cpu in thousandths of a core"
        ),
        pytest.param("memory", 4 * GIB, "4Gi", "5Gi", "without 5Gi memory free", id="memory in bytes"),
        pytest.param("disk", 4 * GIB, "4Gi", "5Gi", "without 5Gi disk free", id="disk in bytes"),
        pytest.param(
            "ephemeral-storage",
            GIB,
            "1Gi",
            "2Gi",
            "without 2Gi ephemeral-storage free",
            id="ephemeral storage in bytes",
        ),
        pytest.param(
            "hugepages-2Mi",
            4 << 20,
            "4Mi",
            "6Mi",
            "without 6Mi hugepages-2Mi free",
            id="hugepages of any size in bytes",
        ),
        pytest.param(
            "example.com/fpga",
            2,
            2,
            3,
            "without 3 example.com/fpga free",
            id="an extended resource such as FPGAs by its count",
        ),
    ],
)
def test_node_capacity_limits_requests(
    resource: str, capacity: int, fitting: Any, more: Any, why: str
) -> None:
    node = a_sized_node({resource: capacity})
    assert decided(node, a_workload_of_containers(({resource: fitting}, {}))).fits
    assert (
        summarize(decided(node, a_workload_of_containers(({resource: more}, {})))) == f"0 of 1 node: 1 {why}"
    )


@pytest.mark.parametrize(
    ("gpu", "models", "why"),
    [
        pytest.param(2, [], "", id="as many whole ones as there are"),
        pytest.param("500m", ["a100"], "", id="a part of one, of its model"),
        pytest.param(3, [], "without 3 gpu free", id="more than there are"),
        pytest.param(1, ["v100"], "without a GPU of model v100", id="another model"),
    ],
)
def test_gpus_are_counted_individually(gpu: Any, models: list[str], why: str) -> None:
    node = a_sized_node({}, gpus=[{"model": "a100"}, {"model": "a100"}])
    decision = decided(node, a_workload_of_containers(({"gpu": gpu}, {}), constraints={"gpuModels": models}))
    assert summarize(decision) == (f"0 of 1 node: 1 {why}" if why else "n: best of 1 that fit, of 1 node")


@pytest.mark.parametrize(
    ("resource", "models", "why"),
    [
        pytest.param("gpu", [], "without 3 gpu free", id="GPU"),
        pytest.param("gpu", ["t4"], "without 3 gpu free", id="GPU of a model"),
        pytest.param("fpga", [], "without 3 fpga free", id="FPGA"),
        pytest.param("example.com/quantum", [], "without 3 example.com/quantum free", id="custom"),
    ],
)
def test_gpus_and_extended_resources_are_counted(resource: str, models: list[str], why: str) -> None:
    node = a_sized_node({"fpga": 2, "example.com/quantum": 2}, gpus=[{"model": "t4"}] * 2)
    told = [
        summarize(
            decided(
                node, a_workload_of_containers(({resource: count}, {}), constraints={"gpuModels": models})
            )
        )
        for count in (2, 3)
    ]
    assert told == ["n: best of 1 that fit, of 1 node", f"0 of 1 node: 1 {why}"]


@pytest.mark.parametrize(
    ("requests", "limits"),
    [
        pytest.param({"cpu": "250m"}, {"cpu": 1}, id="cpu"),
        pytest.param({"memory": "1Gi"}, {"memory": "2Gi"}, id="memory"),
    ],
)
def test_container_has_request_and_limit(requests: Quantities, limits: Quantities) -> None:
    spec = a_workload_of_containers((requests, limits)).spec
    assert (spec.request_amounts, spec.limit_amounts) == (parse_amounts(requests), parse_amounts(limits))


@pytest.mark.parametrize(
    ("status", "left"),
    [
        pytest.param({"reserved": {"cpu": 500}}, 7500, id="capacity less what is reserved"),
        pytest.param({"reserved": {"cpu": 9000}}, 0, id="never below nothing"),
        pytest.param(
            {"reserved": {"cpu": 500}, "allocatable": {"cpu": 6000}},
            6000,
            id="what the node itself says, if it is less",
        ),
        pytest.param(
            {"reserved": {"cpu": 500}, "allocatable": {"cpu": 8000}},
            7500,
            id="never more than capacity less what is reserved",
        ),
    ],
)
def test_allocatable(status: Quantities, left: int) -> None:
    assert allocatable(a_sized_node({}, **status))["cpu"] == left


def test_allocatable_without_capacity_is_accepted() -> None:
    assert allocatable(a_sized_node({}, allocatable={"x.io/fpga": 7})) == {"x.io/fpga": 7}


BOTH = {"cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        pytest.param([(BOTH, BOTH)], Qos.Guaranteed, id="requests equal limits"),
        pytest.param([(BOTH, BOTH), ({}, {})], Qos.Burstable, id="one container of two asks for nothing"),
        pytest.param([(BOTH, {**BOTH, "cpu": 2})], Qos.Burstable, id="a limit above its request"),
        pytest.param(
            [({**BOTH, "x.io/fpga": 1}, BOTH)], Qos.Burstable, id="an extended resource without its limit"
        ),
        pytest.param(
            [({**BOTH, "x.io/fpga": 1}, {**BOTH, "x.io/fpga": 1})],
            Qos.Guaranteed,
            id="an extended resource at its limit",
        ),
        pytest.param([({}, {})], Qos.BestEffort, id="nothing is asked for"),
        pytest.param([({}, {"cpu": 1})], Qos.Burstable, id="a limit alone"),
    ],
)
def test_qos(containers: list[tuple[Quantities, Quantities]], qos: Qos) -> None:
    assert qos_of(a_workload_of_containers(*containers).spec) is qos


def test_eviction_order_by_qos() -> None:
    workloads = [
        ("g", Qos.Guaranteed, 0),
        ("e", Qos.BestEffort, 9),
        ("b", Qos.Burstable, 1),
        ("a", Qos.Burstable, 0),
    ]
    assert eviction_order(workloads) == ["e", "a", "b", "g"]


@pytest.mark.parametrize(
    ("need", "free", "answer"),
    [
        pytest.param({"cpu": 2}, {"cpu": 2}, True, id="just enough is enough"),
        pytest.param({"cpu": 2, "memory": 3}, {"cpu": 9, "memory": 2}, False, id="every resource counts"),
        pytest.param({"fpga": 1}, {"cpu": 9}, False, id="what is not there is none"),
    ],
)
def test_fits(need: dict[str, int], free: dict[str, int], answer: bool) -> None:
    assert fits(need, free) is answer


@pytest.mark.parametrize(
    ("used", "share"),
    [
        pytest.param({"cpu": 1, "memory": 6}, 0.75, id="the fullest resource"),
        pytest.param({"cpu": 9}, 1.0, id="never above one"),
        pytest.param({}, 0.0, id="nothing used"),
    ],
)
def test_utilisation(used: dict[str, int], share: float) -> None:
    assert utilisation(used, {"cpu": 4, "memory": 8, "fpga": 0}) == share


def test_workload_requests_are_sum_of_containers() -> None:
    workload = a_workload_of_containers(
        ({"cpu": 1, "x.io/fpga": 1}, {"cpu": 2}), ({"cpu": "500m"}, {"cpu": 1, "memory": "1Gi"})
    )
    assert workload.spec.request_amounts == {"cpu": 1500, "x.io/fpga": 1}
    assert decided(a_sized_node({"cpu": 1500, "x.io/fpga": 1}), workload).fits
    assert not decided(a_sized_node({"cpu": 1499, "x.io/fpga": 1}), workload).fits


def test_missing_container_limit_means_no_workload_limit() -> None:
    workload = a_workload_of_containers(({}, {"cpu": 2}), ({}, {"cpu": 1, "memory": "1Gi"}))
    assert workload.spec.limit_amounts == {"cpu": 3000}


@pytest.mark.parametrize(
    ("resource", "compressible"),
    [("cpu", True), ("ephemeral-storage", True), ("memory", False), ("disk", False), ("x.io/fpga", False)],
)
def test_compressible_resources(resource: str, compressible: bool) -> None:
    assert is_compressible(resource) is compressible


def test_ephemeral_storage_and_hugepages_are_both_required() -> None:
    wanted = a_workload_of_containers(({"ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}, {}))
    both = {"ephemeral-storage": GIB, "hugepages-2Mi": 4 << 20}
    assert decided(a_sized_node(both), wanted).fits
    for missing in both:
        assert not decided(
            a_sized_node({name: amount for name, amount in both.items() if name != missing}), wanted
        ).fits


@pytest.mark.parametrize(
    ("requests", "limits", "problem"),
    [
        pytest.param(
            {"cpu": 2}, {"cpu": 1}, "must be at most the limit (1), got 2", id="a request above its limit"
        ),
        pytest.param({"cpu": 1}, {"cpu": "1000m"}, "", id="just the limit"),
        pytest.param({"cpu": -1}, {}, "must be 0 or more", id="below nothing"),
        pytest.param({"x.io/fpga": "1.5"}, {}, "must be a whole number", id="half of what cannot be shared"),
    ],
)
def test_requests_are_bounded_by_limits(requests: Quantities, limits: Quantities, problem: str) -> None:
    found = [cause.message for cause in a_workload_of_containers((requests, limits)).problems()]
    assert problem in found[0] if problem else not found


@pytest.mark.parametrize(
    ("containers", "spec", "path", "problem"),
    [
        pytest.param(
            [({"cpu": 2}, {}), ({"cpu": 1}, {})],
            {"limits": {"cpu": 2}},
            "spec.containers",
            "request 3 cpu in total: must be at most the total limit (2)",
            id="its containers ask for more than its own limit",
        ),
        pytest.param(
            [({}, {"memory": "1Gi"})],
            {"requests": {"memory": "4Gi"}},
            "spec.requests",
            "request 4Gi memory in total: must be at most the total limit (1Gi)",
            id="it asks for more than its containers may use",
        ),
        pytest.param([({"cpu": 2}, {})], {"limits": {"cpu": 2}}, "", "", id="just the limit"),
        pytest.param(
            [({"cpu": 2}, {}), ({}, {"cpu": 1})], {}, "", "", id="a limit that one container lacks is none"
        ),
        pytest.param(
            [({"cpu": 2}, {"cpu": 3})],
            {"requests": {"cpu": 1}, "limits": {"cpu": 1}},
            "",
            "",
            id="what does not count is not compared",
        ),
    ],
)
def test_workload_and_container_requests_respect_limits(
    containers: list[tuple[Quantities, Quantities]], spec: Any, path: str, problem: str
) -> None:
    found = [
        (cause.field, cause.message) for cause in a_workload_of_containers(*containers, **spec).problems()
    ]
    assert found == ([(path, problem)] if problem else [])


@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param({"conditions": [{"type": "Ready", "status": "True"}]}, "", id="ready"),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, "not ready", id="not ready"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "not ready", id="not known"),
        pytest.param({"conditions": []}, "not ready", id="no conditions"),
        pytest.param({"phase": "Draining"}, "draining", id="draining"),
    ],
)
def test_only_ready_nodes_take_workloads(status: Any, why: str) -> None:
    assert summarize(decided(a_sized_node({}, **status), a_workload_of_containers(({"cpu": 1}, {})))) == (
        f"0 of 1 node: 1 {why}" if why else "n: best of 1 that fit, of 1 node"
    )
