"""What real machines offer against what their class states."""

from typing import Any

import pytest
from build.objects import make_object
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lattice.kinds.node import CLASS_GENERATION_ANNOTATION, NODE_FINALIZER, LatticeNode
from lattice.kinds.node_class import ObservedMachine
from lattice.placement.inputs.observed_machines import (
    PromisedMachine,
    counted_reports,
    differences,
    machine_report,
    machines_differ_condition,
    update_record,
)

AT = "2026-01-01T00:00:00Z"
STATED = PromisedMachine({"cpu": 4000, "gpu": 1000}, "a100", frozenset({"process", "container"}))


def a_node(
    name: str = "n1", *, cpu: int = 4000, gpus: int = 1, generation: int = 0, **status: Any
) -> LatticeNode:
    reported = {
        "allocatable": {"cpu": cpu},
        "gpus": [{"model": status.pop("model", "a100")}] * gpus,
        "runtimes": status.pop("runtimes", ["container", "process"]),
        **status,
    }
    meta = {"annotations": {CLASS_GENERATION_ANNOTATION: str(generation)} if generation else {}}
    return make_object(
        LatticeNode, name, meta=meta, spec={"pool": "lab", "provider": "local"}, status=reported
    )


def record_of(*nodes: LatticeNode, previous: ObservedMachine | None = None) -> ObservedMachine | None:
    return update_record(previous, STATED, nodes, 1, AT)


@pytest.mark.parametrize(
    ("node", "lacks"),
    [
        pytest.param(a_node(), [], id="all that is stated"),
        pytest.param(a_node(cpu=5000), [], id="more than stated"),
        pytest.param(a_node(gpus=0), ["gpu 0 instead of 1"], id="no GPU"),
        pytest.param(a_node(model="t4"), ["gpu model t4 instead of a100"], id="another GPU"),
        pytest.param(a_node(cpu=500), ["cpu 500m instead of 4"], id="fewer cores"),
        pytest.param(
            a_node(runtimes=["process"]), ["runtime process instead of container"], id="no containers"
        ),
        pytest.param(a_node(runtimes=[]), [], id="an agent that reports no runtimes"),
    ],
)
def test_record_holds_what_a_machine_lacks(node: LatticeNode, lacks: list[str]) -> None:
    record = record_of(node)
    assert (record is not None) == bool(lacks)
    if record is not None:
        assert [str(difference) for difference in differences(STATED, record)] == lacks
        assert (record.offer, record.provider, record.node, record.generation) == ("lab", "local", "n1", 1)


@pytest.mark.parametrize("runtime", ["process", "container"])
def test_record_remembers_an_unstated_runtime(runtime: str) -> None:
    stated = PromisedMachine({"cpu": 4000, "gpu": 1000}, "a100")
    record = update_record(None, stated, [a_node(runtimes=[runtime])], 1, AT)
    assert record is not None
    assert record.runtimes == (runtime,)
    assert update_record(None, stated, [a_node()], 1, AT) is None


def test_record_stays_without_machines_until_a_better_one() -> None:
    record = record_of(a_node(gpus=0))
    assert record is not None
    assert record_of(previous=record) == record
    assert record_of(a_node(gpus=0), previous=record) is record, "the time of an equal record stays"
    better = record_of(a_node("n2"), previous=record)
    assert better is not None
    assert not differences(STATED, better)
    assert record_of(a_node(gpus=0), previous=better) == better, "the better machine is gone"


def test_record_of_another_generation_does_not_count() -> None:
    record = update_record(None, STATED, [a_node(gpus=0)], 1, AT)
    assert record is not None
    assert update_record(record, STATED, [], 2, AT) is None
    assert counted_reports([a_node(generation=1)], 2) == {}, "a machine made from an earlier class"
    assert list(counted_reports([a_node(generation=2), a_node(), a_node(allocatable={})], 2)) == ["lab"]


def test_joined_machine_says_nothing_about_its_class() -> None:
    joined = a_node()
    joined = replace(joined, metadata=replace(joined.metadata, finalizers=(NODE_FINALIZER,)))
    assert counted_reports([joined], 1) == {}
    assert counted_reports([joined, a_node("n2")], 1) == {"lab": [a_node("n2")]}


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2)), min_size=1, max_size=4))
def test_record_counts_the_best_of_every_resource(machines: list[tuple[int, int]]) -> None:
    nodes = [a_node(f"n{number}", cpu=cpu, gpus=gpus) for number, (cpu, gpus) in enumerate(machines)]
    record = record_of(*nodes)
    best_cpu, best_gpus = max(cpu for cpu, _ in machines), max(gpus for _, gpus in machines)
    assert (record is None) == (best_cpu >= 4000 and best_gpus >= 1)
    if record is not None:
        assert (record.allocatable["cpu"], record.allocatable["gpu"]) == (best_cpu, 1000 * best_gpus)
    one_by_one = None
    for node in nodes:
        one_by_one = record_of(node, previous=one_by_one) or one_by_one
    if record is not None and one_by_one is not None:
        assert one_by_one.allocatable == record.allocatable, "the order of the machines does not matter"


def test_unreported_machine_has_no_report() -> None:
    assert machine_report(a_node(allocatable={})) is None


def test_condition_names_five_differences_at_most() -> None:
    stated = PromisedMachine({f"r{number}": 2 for number in range(7)})
    record = ObservedMachine(offer="lab")
    condition = machines_differ_condition({"lab": differences(stated, record)})
    assert condition.status == "True"
    assert condition.message.count(" instead of ") == 5
    assert "; and 2 more: " in condition.message
    assert machines_differ_condition({}).status == "False"
