"""Tests of `plan_machines`: machines that a cluster creates, restarts, decommissions and deletes."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.meta.base import Metadata
from lattice.kinds.workload import LatticeWorkload, Retry, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.machines import (
    ClusterMachines,
    ClusterNode,
    MachineSteps,
    fails_over,
    machines_to_refund,
    plan_machines,
)


def a_cluster_node(name: str, kind: str = "nano", **said: object) -> ClusterNode:
    return ClusterNode(name, kind, **said)  # type: ignore[arg-type]


JOINED = {"has_joined": True, "is_ready": True}

CASES = {
    "nothing is there yet": (
        ClusterMachines({"nano": 2, "basic": 1}, []),
        MachineSteps(create=(("c-basic-1", "basic"), ("c-nano-1", "nano"), ("c-nano-2", "nano"))),
    ),
    "everything is there": (
        ClusterMachines({"nano": 1}, [a_cluster_node("c-nano-1", **JOINED)], {"c-nano-1"}, {"c-nano-1"}),
        MachineSteps(),
    ),
    "a node whose machine was never made, or has ended": (
        ClusterMachines(
            {"nano": 2},
            [a_cluster_node("c-nano-1"), a_cluster_node("c-nano-2", **JOINED)],
            provider_machines={"c-nano-2"},
        ),
        MachineSteps(start=("c-nano-1", "c-nano-2")),
    ),
    "names in use are not given again": (
        ClusterMachines(
            {"nano": 2},
            [a_cluster_node("c-nano-1", is_decommissioned=True, workloads=1), a_cluster_node("c-nano-3")],
            {"c-nano-3"},
            {"c-nano-2"},
        ),
        MachineSteps(create=(("c-nano-4", "nano"),), orphaned=("c-nano-2",)),
    ),
    "nor are those of nodes that are somebody else's": (
        ClusterMachines({"nano": 2}, [], used_names={"c-nano-1", "c-nano-3"}),
        MachineSteps(create=(("c-nano-2", "nano"), ("c-nano-4", "nano"))),
    ),
    "one too many: the one that never joined is missed least": (
        ClusterMachines(
            {"nano": 1},
            [a_cluster_node("c-nano-1", **JOINED), a_cluster_node("c-nano-2")],
            {"c-nano-1", "c-nano-2"},
        ),
        MachineSteps(decommission=("c-nano-2",)),
    ),
    "of two that are ready, the one with less on it": (
        ClusterMachines(
            {"nano": 1},
            [a_cluster_node("a", workloads=2, **JOINED), a_cluster_node("b", workloads=1, **JOINED)],
            {"a", "b"},
        ),
        MachineSteps(decommission=("b",)),
    ),
    "a class that is not wanted at all": (
        ClusterMachines({}, [a_cluster_node("a", **JOINED)], {"a"}),
        MachineSteps(decommission=("a",)),
    ),
    "given up, with work on it: waits": (
        ClusterMachines({}, [a_cluster_node("a", is_decommissioned=True, workloads=1)], {"a"}),
        MachineSteps(),
    ),
    "given up and empty": (
        ClusterMachines({}, [a_cluster_node("a", is_decommissioned=True)], {"a"}, {"a"}),
        MachineSteps(remove=("a",)),
    ),
    "a machine that its provider has no more, and whose agent is silent: another takes its place": (
        ClusterMachines(
            {"nano": 1}, [a_cluster_node("a", has_joined=True, workloads=2)], paid_counts={"nano": 1}
        ),
        MachineSteps(remove=("a",)),
    ),
    "one whose agent is heard is there, whatever its provider says": (
        ClusterMachines({"nano": 1}, [a_cluster_node("a", workloads=2, **JOINED)]),
        MachineSteps(),
    ),
    "given up, silent, and its provider has it no more: nothing on it can leave": (
        ClusterMachines({}, [a_cluster_node("a", is_decommissioned=True, has_joined=True, workloads=1)]),
        MachineSteps(remove=("a",)),
    ),
    "given up, silent, and its machine has ended: nothing on it can leave": (
        ClusterMachines(
            {},
            [a_cluster_node("a", is_decommissioned=True, has_joined=True, workloads=1)],
            provider_machines={"a"},
        ),
        MachineSteps(remove=("a",)),
    ),
    "a machine without a node": (ClusterMachines({}, [], {"x"}, {"x"}), MachineSteps(orphaned=("x",))),
    "one that goes is paid for until it is gone: its place waits": (
        ClusterMachines(
            {"nano": 1},
            [a_cluster_node("a", is_decommissioned=True, workloads=1)],
            {"a"},
            {"a"},
            paid_counts={"nano": 1},
        ),
        MachineSteps(),
    ),
    "one that goes beside one that is paid for anew": (
        ClusterMachines(
            {"nano": 1},
            [a_cluster_node("a", is_decommissioned=True, workloads=1)],
            {"a"},
            {"a"},
            paid_counts={"nano": 2},
        ),
        MachineSteps(create=(("c-nano-1", "nano"),)),
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_machines(case: str) -> None:
    found, expected = CASES[case]
    assert plan_machines("c", found) == expected


def a_retried_workload(
    desired: str = "Running", *, going: bool = False, attempts: int = 0
) -> LatticeWorkload:
    metadata = Metadata(name="w", deletion_timestamp="2026-01-01T00:00:00Z" if going else None)
    spec = msgspec.convert(
        {"containers": {"main": {"command": ["run"]}}, "desiredState": desired}, WorkloadSpec
    )
    status = WorkloadStatus(retry=Retry(attempts=attempts, max=5, revision=spec.effective_revision))
    return LatticeWorkload(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeWorkload",
        metadata=metadata,
        spec=spec,
        status=status,
    )


@pytest.mark.parametrize(
    ("workload", "answer"),
    [
        pytest.param(a_retried_workload(), True, id="a running workload fails over"),
        pytest.param(a_retried_workload(attempts=4), True, id="a failed workload is retried elsewhere"),
        pytest.param(a_retried_workload(attempts=5), False, id="an exhausted workload stays with its node"),
        pytest.param(a_retried_workload("Stopped"), False, id="a stopped workload stays with its node"),
        pytest.param(a_retried_workload("Deleted"), False, id="a workload to be deleted stays with its node"),
        pytest.param(a_retried_workload(going=True), False, id="a terminating workload stays with its node"),
    ],
)
def test_fails_over(workload: LatticeWorkload, answer: bool) -> None:
    assert fails_over(workload) is answer


@pytest.mark.parametrize(
    ("wanted", "there", "go", "paid", "answer"),
    [
        pytest.param(0, 1, 1, 1, 1, id="the last"),
        pytest.param(1, 1, 1, 1, 0, id="replaced by another"),
        pytest.param(1, 2, 1, 2, 1, id="one too many"),
        pytest.param(1, 2, 1, 1, 0, id="replaced already"),
        pytest.param(2, 3, 1, 2, 0, id="a replacement is pending"),
        pytest.param(0, 2, 1, 2, 1, id="one of two that go"),
        pytest.param(0, 2, 2, 2, 2, id="both at once"),
        pytest.param(1, 2, 2, 2, 1, id="both at once, and one is wanted again"),
        pytest.param(0, 2, 2, 1, 1, id="no more than are paid for"),
    ],
)
def test_removed_machine_is_refunded_unless_replaced(
    wanted: int, there: int, go: int, paid: int, answer: int
) -> None:
    nodes = [a_cluster_node(f"n{number}", is_decommissioned=number < go) for number in range(there)]
    gone = [each.name for each in nodes[:go]]
    assert machines_to_refund(
        gone, ClusterMachines({"nano": wanted}, nodes, paid_counts={"nano": paid})
    ) == set(gone[:answer])
    assert not machines_to_refund(gone, ClusterMachines({"nano": wanted}, nodes))


KINDS = st.sampled_from(["nano", "basic"])
NODES = st.lists(st.tuples(KINDS, st.booleans(), st.integers(0, 2), st.booleans()), max_size=6)


@given(st.dictionaries(KINDS, st.integers(0, 4)), NODES, st.sets(st.integers(0, 7)))
def test_machine_plan_converges_to_wanted_counts(
    wanted: dict[str, int], drawn: list[tuple[str, bool, int, bool]], up: set[int]
) -> None:
    nodes = {f"c-{kind}-{index}": a_cluster_node(f"c-{kind}-{index}", kind, is_decommissioned=goes, workloads=load, has_joined=joined)
             for index, (kind, goes, load, joined) in enumerate(drawn)}  # fmt: skip
    machines = {name for index, name in enumerate(nodes) if index in up} | {
        f"stray-{index}" for index in up if index > 5
    }
    for _ in range(4):
        todo = plan_machines("c", ClusterMachines(wanted, list(nodes.values()), machines, machines))
        with_work = {
            name
            for name, node in nodes.items()
            if node.workloads and (name in machines or not node.has_joined)
        }
        assert not set(todo.remove) & with_work, "nothing is removed with work on it"
        machines |= {name for name, _ in todo.create} | set(todo.start)
        machines -= {*todo.remove, *todo.orphaned}
        nodes |= {name: a_cluster_node(name, kind, has_joined=True) for name, kind in todo.create}
        nodes |= {
            name: a_cluster_node(name, nodes[name].node_class, is_decommissioned=True)
            for name in todo.decommission
        }
        for name in todo.remove:
            del nodes[name]
        nodes = {name: ClusterNode(name, n.node_class, n.has_joined, n.is_ready, 0 if n.is_decommissioned else n.workloads, n.is_decommissioned)
                 for name, n in nodes.items()}  # fmt: skip
    assert Counter(each.node_class for each in nodes.values()) == Counter(
        {kind: count for kind, count in wanted.items() if count}
    )
    assert machines == set(nodes)
