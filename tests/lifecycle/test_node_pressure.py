"""Node pressure: when a node is short of memory or disk, and which workload leaves first."""

from typing import Any

import pytest
from build.objects import a_node, a_workload

from lattice.kinds.meta.base import Condition
from lattice.kinds.node import NodeStatus, NodeUsage
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.node_health import PressureThresholds, next_victim, pressure_conditions

GIB = 1 << 30
FULL = NodeUsage(cpu=0, memory=99 * GIB, disk=0)
CAPACITY = {"memory": 100 * GIB, "storage": 100 * GIB}


def status(memory: str = "") -> NodeStatus:
    """A node of 100 GiB; `memory` is the status of MemoryPressure."""
    condition = Condition(type="MemoryPressure", status=memory or "False", reason="r", message="m")
    return NodeStatus(capacity=CAPACITY, conditions=(condition,) if memory else ())


@pytest.mark.parametrize(
    ("before", "used_gib", "since_shortage", "expected"),
    [
        pytest.param("", (50, 50), 0, {}, id="enough of both: no condition at all"),
        pytest.param("", (95, 98), 0, {}, id="exactly the threshold is available"),
        pytest.param("", (96, 50), 0, {"MemoryPressure": "True"}, id="less memory than the threshold"),
        pytest.param("", (50, 99), 0, {"DiskPressure": "True"}, id="less disk than the threshold"),
        pytest.param("True", (50, 50), 59, {"MemoryPressure": "True"}, id="just ended: it stays"),
        pytest.param("True", (50, 50), 60, {"MemoryPressure": "False"}, id="ended for good"),
        pytest.param("True", (50, 50), 0, {"MemoryPressure": "True"}, id="set by an earlier leader"),
    ],
)
def test_conditions_follow_what_is_available(
    before: str, used_gib: tuple[int, int], since_shortage: float, expected: dict[str, str]
) -> None:
    usage = NodeUsage(cpu=0, memory=used_gib[0] * GIB, disk=used_gib[1] * GIB)
    since = {"MemoryPressure": since_shortage} if since_shortage else {}
    conditions = pressure_conditions(status(before), usage, since, PressureThresholds(0.05, 0.02))
    assert {condition.type: condition.status for condition in conditions} == expected


def test_share_of_zero_turns_the_check_off() -> None:
    usage = NodeUsage(cpu=0, memory=100 * GIB, disk=100 * GIB)
    assert list(pressure_conditions(status(), usage, {}, PressureThresholds(0, 0))) == []


def workload(
    name: str, requests: dict[str, Any], limits: dict[str, Any], priority: int = 0
) -> LatticeWorkload:
    main = {"command": ["sleep"], "resources": {"requests": requests, "limits": limits}}
    return a_workload(name, containers={"main": main}, priority=priority)


BEST_EFFORT = ({}, {})
BURSTABLE = ({"memory": "1Gi"}, {})
GUARANTEED = ({"cpu": "1", "memory": "2Gi"}, {"cpu": "1", "memory": "2Gi"})


@pytest.mark.parametrize(
    ("workloads", "used_gib", "expected"),
    [
        pytest.param(
            [workload("a", *BURSTABLE), workload("b", *BEST_EFFORT)],
            {"a": 9, "b": 0.5},
            "b",
            id="BestEffort first, however little it uses",
        ),
        pytest.param(
            [workload("a", *BEST_EFFORT, priority=5), workload("b", *BEST_EFFORT)],
            {"a": 9, "b": 1},
            "b",
            id="of one class the lower priority",
        ),
        pytest.param(
            [workload("a", *BEST_EFFORT), workload("b", *BEST_EFFORT)],
            {"a": 1, "b": 9},
            "b",
            id="of equal priority the larger excess",
        ),
        pytest.param(
            [workload("a", *BURSTABLE), workload("b", *BURSTABLE, priority=9)],
            {"a": 1, "b": 2},
            "b",
            id="Burstable only over its request",
        ),
        pytest.param(
            [workload("a", *GUARANTEED), workload("b", *BURSTABLE)],
            {"a": 2, "b": 1},
            None,
            id="nothing within its request is evicted",
        ),
    ],
)
def test_victim_of_memory_pressure(
    workloads: list[LatticeWorkload], used_gib: dict[str, float], expected: str | None
) -> None:
    usage = {f"default/{name}": (int(amount * GIB), 0) for name, amount in used_gib.items()}
    victim = next_victim((status("True"), FULL), workloads, usage)
    assert (victim.path if victim else None) == (f"default/{expected}" if expected else None)


def test_reason_has_need_and_have() -> None:
    victim = next_victim((status("True"), FULL), [workload("a", *BURSTABLE)], {"default/a": (3 * GIB, 0)})
    assert victim is not None
    assert victim.reason == "NodePressure: m; the workload uses 3Gi memory and requests 1Gi"


def test_condition_that_outlasts_the_shortage_evicts_nothing() -> None:
    enough = NodeUsage(cpu=0, memory=50 * GIB, disk=0)
    workloads = [workload("a", *BEST_EFFORT)]
    assert next_victim((status("True"), enough), workloads, {"default/a": (GIB, 0)}) is None


def test_node_without_pressure_evicts_nothing() -> None:
    assert (
        next_victim((a_node().status, FULL), [workload("a", *BEST_EFFORT)], {"default/a": (GIB, 0)}) is None
    )
