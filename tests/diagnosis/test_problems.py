"""What is wrong now: one named case for every kind of problem, and their order."""

from datetime import timedelta
from typing import Any

import pytest
from build.lab_objects import (
    NOW,
    STAMP,
    UNSCHEDULED,
    a_lab_cluster,
    a_lab_node,
    a_lab_pool,
    a_lab_replica,
    failing,
)
from build.objects import a_ledger, a_workload, make_object
from msgspec.structs import replace

from lattice.diagnosis.problems import FleetObjects, find_problems, is_wrong
from lattice.kinds.constraints import Taint
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import DRAINING_TAINT
from lattice.kinds.service import LatticeService


def a_service(phase: str, *conditions: dict[str, str], name: str = "web", **status: Any) -> LatticeService:
    return make_object(
        LatticeService,
        name,
        "default",
        spec={"containers": {"main": {"command": ["true"]}}},
        status={
            "phase": phase,
            "conditions": list(conditions),
            "placements": [{"pool": "lab", "cluster": "lab-001", "replicas": 1}],
            **status,
        },
    )


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    stamp = {"lastTransitionTime": STAMP}
    return {"type": kind, "status": status, "reason": reason, "message": message, **stamp}


TWO_NANO_MACHINES: dict[str, Any] = {
    "machines": {"lab-001": [{"nodeClass": "nano", "count": 2, "micros": 4000}]},
    "committedMicros": 8000,
    "month": "2026-11",
    "asOf": "2026-11-15T12:00:00.000000Z",
}
REFUSED = {"schedulerDecision": {"verdict": "OverBudget"}, "placements": []}
DOWN = a_service("Down", condition("Available", "False"), hasBeenAvailable=True)
CRASHING = a_lab_replica("Failed", 4, status=failing("RUNTIME_ERROR", "exited with code 3"))
CASES: dict[str, tuple[FleetObjects, list[tuple[str, str, str]]]] = {
    "an empty fleet": (FleetObjects(), []),
    "a service that runs": (FleetObjects(services=[a_service("Running")], nodes=[a_lab_node()]), []),
    "a service that starts": (FleetObjects(services=[a_service("Starting", condition("Available", "False"))]), []),
    "a service that is down": (
        FleetObjects(services=[DOWN], workloads=[CRASHING], nodes=[a_lab_node()]),
        [("critical", "service/web", "Down")],
    ),
    "a service without enough replicas": (
        FleetObjects(services=[a_service("Degraded")]),
        [("warning", "service/web", "Degraded")],
    ),
    "a service that is not placed": (
        FleetObjects(services=[a_service("Placing", **REFUSED)]),
        [("critical", "service/web", "OverBudget")],
    ),
    "a service that restarts again and again": (
        FleetObjects(services=[a_service("Running", condition("Crashing", "True"))]),
        [("warning", "service/web", "Crashing")],
    ),
    "a service that failed once and is ready again": (
        FleetObjects(services=[a_service("Running", condition("Crashing", "True"), health={"ready": 1, "failures": 1})]),
        [("info", "service/web", "Restarted")],
    ),
    "a service that starts with a part of its replicas": (
        FleetObjects(services=[a_service("Starting", schedulerDecision={"verdict": "OverBudget"}, health={"ready": 0})]),
        [("critical", "service/web", "OverBudget")],
    ),
    "a paused update": (
        FleetObjects(services=[a_service("Updating", condition("Progressing", "False", "NoRoomForSurge"))]),
        [("warning", "service/web", "RolloutPaused")],
    ),
    "a workload that failed": (
        FleetObjects(workloads=[a_lab_replica("Failed", 5, service="", status=failing("RUNTIME_ERROR"))]),
        [("warning", "workload/web-0", "Failed")],
    ),
    "a workload that finds no node": (
        FleetObjects(workloads=[a_workload("job", status=UNSCHEDULED)]),
        [],
    ),
    "a lost node": (
        FleetObjects(nodes=[a_lab_node("n1", "False", "HeartbeatMissed")]),
        [("warning", "node/n1", "NotReady")],
    ),
    "a machine that joins": (FleetObjects(nodes=[a_lab_node("n1", "False", "NotJoined")]), []),
    "a machine that never joins": (
        FleetObjects(nodes=[a_lab_node("n1", "False", "NotJoined", meta={"creationTimestamp": "2026-11-15T11:00:00Z"})]),
        [("warning", "node/n1", "NotJoined")],
    ),
    "a cluster without its provider": (
        FleetObjects(clusters=[a_lab_cluster(conditions=[condition("ProviderReady", "False", "Rejected", "no quota")])]),
        [("warning", "cluster/lab-001", "Rejected")],
    ),
    "a pool over its budget": (
        FleetObjects(pools=[replace(a_lab_pool(1, 3), status=replace(a_lab_pool(1, 3).status, conditions=(Condition(type="BudgetExceeded", status="True", reason="HardLimit", message="$9 of $8"),)))]),
        [("warning", "pool/lab", "BudgetExceeded")],
    ),
    "a budget that is used up exactly": (FleetObjects(ledgers=[a_ledger("lab", 5_760_000, **TWO_NANO_MACHINES)]), []),
    "a budget beyond its limit": (
        FleetObjects(ledgers=[a_ledger("lab", 5_759_999, **TWO_NANO_MACHINES)]),
        [("warning", "ledger/pool.lab", "BudgetExceeded")],
    ),
    "a budget that refuses a purchase": (
        FleetObjects(ledgers=[a_ledger("lab", 6_000_000, refused=[{"service": "default/web", "rule": "RunRate", "needMicros": 4000}], **TWO_NANO_MACHINES)]),
        [("warning", "ledger/pool.lab", "BudgetExceeded")],
    ),
}  # fmt: skip


def found(objects: FleetObjects, later: float = 0) -> list[tuple[str, str, str]]:
    problems = find_problems(objects, NOW + timedelta(seconds=later))
    return [(problem.severity, problem.object, problem.title) for problem in problems]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_problems(case: str) -> None:
    objects, expected = CASES[case]
    assert found(objects) == expected


def test_a_start_or_a_search_that_lasts_is_a_problem() -> None:
    starting = FleetObjects(services=[a_service("Starting", condition("Available", "False"))])
    assert found(starting, 301) == [("warning", "service/web", "Starting for long")]
    waiting = FleetObjects(workloads=[a_workload("job", status=UNSCHEDULED)])
    assert found(waiting, 61) == [("warning", "workload/job", "Unscheduled")]


def test_drains_and_cordons() -> None:
    taints = (Taint(key=DRAINING_TAINT, effect="NoExecute"),)
    node = a_lab_node()
    drained = replace(node, spec=replace(node.spec, unschedulable=True, taints=taints))
    assert found(FleetObjects(nodes=[drained])) == [("info", "node/n1", "Draining")]
    stuck = Condition(type="Drained", status="False", reason="NoRoomForOneMore", message="pool lab is full")
    status = replace(node.status, conditions=(*node.status.conditions, stuck))
    assert found(FleetObjects(nodes=[replace(drained, status=status)])) == [
        ("warning", "node/n1", "DrainStuck")
    ]
    cordoned = replace(node, spec=replace(node.spec, unschedulable=True))
    problems = find_problems(FleetObjects(nodes=[cordoned]), NOW)
    assert [(problem.severity, problem.title) for problem in problems] == [("info", "Cordoned")]
    assert not is_wrong(problems)


def test_severe_and_old_come_first_with_cause_and_command() -> None:
    objects = FleetObjects(
        services=[a_service("Degraded", name="api"), DOWN],
        workloads=[CRASHING],
        nodes=[a_lab_node(), a_lab_node("n2", "False", "HeartbeatMissed")],
    )
    problems = find_problems(objects, NOW)
    assert [problem.object for problem in problems] == ["service/web", "node/n2", "service/api"]
    first = problems[0]
    assert first.cause == "0 of 1 replicas ready; web-0: RUNTIME_ERROR: exited with code 3 (4 failures)"
    assert (first.since, first.command) == (STAMP, "lattice why service/web")


def test_a_paused_update_lasts_since_it_was_paused() -> None:
    paused = condition("Progressing", "False", "NoRoomForSurge") | {
        "lastTransitionTime": "2026-11-15T11:59:56Z"
    }
    service = a_service("Updating", condition("Available", "True"), paused)
    (problem,) = find_problems(FleetObjects(services=[service]), NOW)
    assert (problem.title, problem.since) == ("RolloutPaused", "2026-11-15T11:59:56Z")
