"""Why a service does not run: the first stage of the road answers, and equal blockers are counted together."""

from typing import Any

import pytest
from build.lab_objects import BOUND, EMPTY, NOW, READY_NODE, STAMP, UNSCHEDULED, a_lab_replica, failing
from build.objects import make_object
from msgspec.structs import replace

from lattice.diagnosis.blocker import facts_of
from lattice.diagnosis.service import diagnose_service
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload


def a_service(placed: int = 2, wanted: int = 2, conditions: Any = (), **status: Any) -> LatticeService:
    return make_object(
        LatticeService,
        "web",
        "default",
        spec={"containers": {"main": {"command": ["true"]}}, "replicas": {"min": wanted}},
        status={
            "placements": [{"pool": "lab", "cluster": "lab-001", "replicas": placed}] if placed else [],
            "conditions": list(conditions),
            **status,
        },
    )


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": STAMP,
    }


READY = a_lab_replica("Running", revision="", status={**BOUND, "ready": True})
CRASHES = a_lab_replica("Failed", 5, slot=1, status=failing("RUNTIME_ERROR", "exited with code 3"))
CASES: dict[str, tuple[LatticeService, list[LatticeWorkload], list[str], str]] = {
    "it runs": (a_service(1, 1), [READY], [], "It runs: 1 of 1 replicas are ready."),
    "the budget refuses it": (
        a_service(
            0,
            1,
            [condition("Placed", "False", "OverBudget", "lab needs $0.004/h more")],
            schedulerDecision={"verdict": "OverBudget", "reason": "lab needs $0.004/h more"},
        ),
        [],
        ["Budget"],
        "Placing, 0 of 1 replicas are ready. 1 replica cannot be placed, OverBudget: lab needs $0.004/h more.",
    ),
    "no pool takes it": (
        a_service(
            0,
            1,
            [condition("Placed", "False", "Never", "0 of 2 pools: 2 without gdpr")],
            schedulerDecision={"verdict": "Never"},
        ),
        [],
        ["Placement"],
        "Placing, 0 of 1 replicas are ready. 1 replica cannot be placed, Never: 0 of 2 pools: 2 without gdpr.",
    ),
    "it is not decided yet": (
        a_service(0, 1),
        [],
        ["Placement"],
        "Pending, 0 of 1 replicas are ready. It is not placed yet.",
    ),
    "a replica waits for a node before another one crashes": (
        a_service(),
        [CRASHES, a_lab_replica(status=UNSCHEDULED)],
        ["Machine", "Crash"],
        ("Down, 0 of 2 replicas are ready. web-0: no node has capacity for it: 0 of 1 node: 1 without 1 cpu free; nearest is"
        " n1: cpu need 1, have 250m, missing 750m."),
    ),
    "an update is paused": (
        a_service(1, 1, [condition("Progressing", "False", "RUNTIME_ERROR", "Update is paused")]),
        [READY, CRASHES],
        ["Crash", "Rollout"],
        "Updating, 1 of 1 replicas are ready. web-0: RUNTIME_ERROR: exited with code 3 (5 failures).",
    ),
    "its replicas are not created yet": (
        a_service(1, 1),
        [],
        ["Machine"],
        "Provisioning, 0 of 1 replicas are ready. Its replicas are placed and not created yet.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_stage_answers(case: str) -> None:
    service, replicas, stages, answer = CASES[case]
    diagnosis = diagnose_service(service, replicas, READY_NODE)
    assert [counted.blocker.stage for counted in diagnosis.blockers] == stages
    assert diagnosis.answer == answer


PAUSED = "Update to revision abc waits for capacity for 1 surge replica: 0 of 1 node"


@pytest.mark.parametrize(
    ("reason", "message", "cause", "fix"),
    [
        pytest.param(
            "NoRoomForSurge",
            f"{PAUSED}. Add a node, remove other workloads, or lower replicas.min",
            PAUSED,
            "add a node, remove other workloads, or lower replicas.min",
            id="capacity is missing",
        ),
        pytest.param(
            "COMMAND_NOT_FOUND",
            "Update is paused: COMMAND_NOT_FOUND",
            "Update is paused: COMMAND_NOT_FOUND",
            "correct the new revision, or apply the previous one again",
            id="the new revision fails",
        ),
        pytest.param(
            "ScaleDownWaits",
            "Surplus replicas run on",
            "Surplus replicas run on",
            "mend what keeps the other replicas from being ready",
            id="a scale-down waits",
        ),
    ],
)
def test_advice_of_a_paused_update_follows_its_cause(reason: str, message: str, cause: str, fix: str) -> None:
    service = a_service(1, 1, [condition("Progressing", "False", reason, message)])
    (counted,) = diagnose_service(service, [READY], READY_NODE).blockers
    assert (counted.blocker.cause, counted.blocker.fix) == (cause, fix)


def test_commands_name_the_namespace_of_the_service() -> None:
    refused = condition("Placed", "False", "OverBudget", "no")
    service = a_service(1, 2, [refused], schedulerDecision={"verdict": "OverBudget"})
    service = replace(service, metadata=replace(service.metadata, namespace="shop"))
    crash = replace(CRASHES, metadata=replace(CRASHES.metadata, namespace="shop"))
    commands = [
        counted.blocker.command for counted in diagnose_service(service, [crash], READY_NODE).blockers
    ]
    assert commands == ["lattice fit service/web -n shop", "lattice logs web-0 -n shop"]


def test_refused_purchase_answers_before_other_machines() -> None:
    record = {
        "offer": "lab",
        "cluster": "lab-001",
        "reason": "over budget: latticepool/lab cannot pay for one more machine of class nano",
        "need": "$0.004/h",
        "have": "$0.00/h",
    }
    waiting = a_lab_replica(status=UNSCHEDULED)
    (counted,) = diagnose_service(a_service(1, 1, remediation=[record]), [waiting], READY_NODE).blockers
    blocker = counted.blocker
    assert (blocker.stage, blocker.need, blocker.have) == ("Budget", "$0.004/h", "$0.00/h")
    assert blocker.cause.endswith("latticepool/lab cannot pay for one more machine of class nano")


def test_equal_blockers_are_counted_together() -> None:
    crashes = [
        a_lab_replica(
            "Failed", failures, slot=slot, status=failing("RUNTIME_ERROR", f"exited with code {slot}")
        )
        for slot, failures in enumerate((4, 7, 2))
    ]
    diagnosis = diagnose_service(a_service(3, 3), crashes, READY_NODE)
    (counted,) = diagnosis.blockers
    assert (counted.replicas, counted.blocker.cause) == (3, "RUNTIME_ERROR: exited with code 0 (4 failures)")


def test_service_that_lost_its_node_is_down_and_names_the_node() -> None:
    service = a_service(1, 1, hasBeenAvailable=True)
    diagnosis = diagnose_service(service, [a_lab_replica("Unknown", status=BOUND)], EMPTY)
    assert diagnosis.health.phase == "Down"
    assert diagnosis.blockers[0].blocker.stage == "Node"
    assert diagnose_service(service, [], facts_of(NOW)).health.phase == "Down"
