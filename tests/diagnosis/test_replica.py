"""Why a replica does not run: one named case for every blocker."""

import pytest
from build.lab_objects import (
    BOUND,
    EMPTY,
    LOT,
    NOW,
    READY_NODE,
    REVISION,
    STAMP,
    UNSCHEDULED,
    a_lab_cluster,
    a_lab_node,
    a_lab_pool,
    a_lab_replica,
    failing,
)
from build.objects import a_ledger

from lattice.diagnosis.blocker import STAGES, Facts, facts_of
from lattice.diagnosis.replica import FAILURES, diagnose_replica
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.retry import FINAL_FAILURES, NODE_FAULTS, NOT_STARTED_FAILURES

CASES: dict[str, tuple[LatticeWorkload, Facts, str, str]] = {
    "the provider creates no machine": (
        a_lab_replica(),
        facts_of(NOW, [], [a_lab_cluster(workerPools={"nano": {"message": "quota of 3 machines used up"}})]),
        "Provider",
        "the provider of cluster lab-001 creates no machine: quota of 3 machines used up",
    ),
    "a machine is being created": (
        a_lab_replica(status=UNSCHEDULED),
        facts_of(NOW, [a_lab_node("lab-001-nano-3", "False", "NotJoined")], [a_lab_cluster()]),
        "Machine",
        "machine lab-001-nano-3 is being created: its agent has not joined yet",
    ),
    "the budget refuses a machine": (
        a_lab_replica(status=UNSCHEDULED),
        facts_of(NOW, [a_lab_node()], [a_lab_cluster()], [], [a_ledger("lab", 6_000_000, machines=LOT, committedMicros=8000, month="2026-11", asOf="2026-11-01T00:00:00.000000Z")]),
        "Budget",
        ("the budget refuses one more machine for cluster lab-001: latticepool/lab: needs $0.004/h, has $0.000333/h left"
        " of $6.00/30d, missing $0.003667/h"),
    ),
    "the pool is full": (
        a_lab_replica(status=UNSCHEDULED),
        facts_of(NOW, [a_lab_node()], [a_lab_cluster()], [a_lab_pool(3, 3)]),
        "Machine",
        "pool lab is full: 3 of 3 nodes",
    ),
    "a node of the cluster is lost": (
        a_lab_replica(status=UNSCHEDULED),
        facts_of(NOW, [a_lab_node("n1", "False", "HeartbeatMissed")], [a_lab_cluster()]),
        "Node",
        "node n1 is not ready: No heartbeat for 40 s",
    ),
    "no node has capacity": (
        a_lab_replica(status=UNSCHEDULED),
        READY_NODE,
        "Machine",
        "no node has capacity for it: 0 of 1 node: 1 without 1 cpu free; nearest is n1: cpu need 1, have 250m, missing 750m",
    ),
    "the scheduler has not decided": (
        a_lab_replica(),
        READY_NODE,
        "Machine",
        "the scheduler has not chosen a node yet",
    ),
    "its node is not ready": (
        a_lab_replica("Unknown", status=BOUND),
        facts_of(NOW, [a_lab_node("n1", "False", "HeartbeatMissed")]),
        "Node",
        "node n1 is not ready: No heartbeat for 40 s",
    ),
    "its node was removed": (
        a_lab_replica("Unknown", status=BOUND),
        EMPTY,
        "Node",
        "its node n1 was removed",
    ),
    "it is being evicted": (
        a_lab_replica("Running", status={**BOUND, "lastAction": "ApplyStopped"}),
        READY_NODE,
        "Eviction",
        "it is being evicted from node n1",
    ),
    "its image cannot be pulled": (
        a_lab_replica("Failed", 2, status=failing("IMAGE_PULL_FAILED", "registry.example: connection refused")),
        READY_NODE,
        "Image",
        "IMAGE_PULL_FAILED: registry.example: connection refused (2 failures)",
    ),
    "its command does not exist": (
        a_lab_replica("Failed", 1, final=True, status=failing("COMMAND_NOT_FOUND", 'command "pyton3" does not exist')),
        READY_NODE,
        "Start",
        'COMMAND_NOT_FOUND: command "pyton3" does not exist',
    ),
    "its command does not exist, and its node is lost": (
        a_lab_replica("Unknown", 1, final=True, status=failing("COMMAND_NOT_FOUND")),
        facts_of(NOW, [a_lab_node("n1", "False", "HeartbeatMissed")]),
        "Start",
        "COMMAND_NOT_FOUND",
    ),
    "its program crashes": (
        a_lab_replica("Failed", 4, status=failing("RUNTIME_ERROR", "exited with code 3", lastExitCode=3, lastLog="no table\n")),
        READY_NODE,
        "Crash",
        "RUNTIME_ERROR: exited with code 3 (4 failures)",
    ),
    "its liveness probe fails": (
        a_lab_replica("Failed", 1, status=failing("UNHEALTHY", "no response within 1 s")),
        READY_NODE,
        "Probe",
        "UNHEALTHY: no response within 1 s",
    ),
    "its readiness probe fails": (
        a_lab_replica("Running", status={**BOUND, "ready": False}),
        READY_NODE,
        "Probe",
        "it runs on node n1, and its readiness probe does not pass",
    ),
    "it is starting": (
        a_lab_replica("Starting", status=BOUND),
        READY_NODE,
        "Start",
        "it is starting on node n1: the image is being pulled, or the startup probe has not passed yet",
    ),
    "the agent has not started it": (
        a_lab_replica("Pending", status=BOUND),
        READY_NODE,
        "Start",
        "it was given to node n1, whose agent has not started it yet",
    ),
    "a user stopped it": (
        a_lab_replica("Stopped", desiredState="Stopped"),
        READY_NODE,
        "Stopped",
        "its desired state is Stopped",
    ),
    "it is being deleted on a lost node": (
        a_lab_replica("Unknown", status=BOUND, meta={"deletionTimestamp": STAMP}),
        READY_NODE,
        "Deleting",
        "it is being deleted, and node n1 has not confirmed that it has ended",
    ),
    "it succeeded": (
        a_lab_replica(
            "Succeeded",
            restartPolicy="OnFailure",
            status={**BOUND, "retry": {"succeeded": True, "revision": REVISION}},
        ),
        READY_NODE,
        "Succeeded",
        "it ended with exit code 0, and its restartPolicy is OnFailure",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_blocker_of_a_replica(case: str) -> None:
    replica, facts, stage, cause = CASES[case]
    blocker = diagnose_replica(replica, facts)
    assert blocker is not None
    assert (blocker.stage, blocker.cause) == (stage, cause)
    assert blocker.next or blocker.fix or stage == "Succeeded"


def test_every_stage_of_a_replica_has_a_case() -> None:
    of_services = {"Placement", "Rollout"}
    assert {stage for _, _, stage, _ in CASES.values()} == set(STAGES) - of_services


def test_ready_replica_has_no_blocker() -> None:
    assert diagnose_replica(a_lab_replica("Running", status={**BOUND, "ready": True}), READY_NODE) is None


def test_crash_has_exit_code_log_and_next_attempt() -> None:
    replica, facts, *_ = CASES["its program crashes"]
    blocker = diagnose_replica(replica, facts)
    assert blocker is not None
    assert (blocker.exit_code, blocker.log) == (3, "no table")
    assert (blocker.next, blocker.next_at) == (
        "attempt 5 follows after the back-off",
        "2026-11-15T12:00:40Z",
    )


def test_failure_that_needs_a_change_has_no_next_attempt() -> None:
    replica, facts, *_ = CASES["its command does not exist"]
    blocker = diagnose_replica(replica, facts)
    assert blocker is not None
    assert (blocker.next_at, blocker.next) == (
        "",
        "Lattice waits for a change of the spec, or for `lattice retry`",
    )


def test_lack_of_capacity_has_need_and_have() -> None:
    replica, facts, *_ = CASES["no node has capacity"]
    blocker = diagnose_replica(replica, facts)
    assert blocker is not None
    assert (blocker.need, blocker.have, blocker.since) == ("cpu 1", "cpu 250m", STAMP)


def test_every_known_failure_has_advice() -> None:
    assert FINAL_FAILURES | NOT_STARTED_FAILURES | NODE_FAULTS.keys() <= FAILURES.keys()
