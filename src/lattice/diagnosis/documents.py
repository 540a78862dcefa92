"""The JSON documents of a diagnosis and of a list of problems, for the API, the command line and the page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lattice.diagnosis.blocker import Blocker
from lattice.diagnosis.problems import SEVERITIES, Problem, is_wrong
from lattice.diagnosis.service import ServiceDiagnosis
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_terminating
from lattice.lifecycle.retry import current_retry
from lattice.lifecycle.service_health import failure_text

Document = dict[str, Any]
# Replicas of a service that the document lists: those that are not ready come first.
MAX_REPLICAS = 20


def blocker_document(blocker: Blocker) -> Document:
    return {
        "stage": blocker.stage,
        "object": blocker.object,
        "cause": blocker.cause,
        "need": blocker.need,
        "have": blocker.have,
        "since": blocker.since,
        "next": blocker.next,
        "nextAt": blocker.next_at,
        "fix": blocker.fix,
        "command": blocker.command,
        "exitCode": blocker.exit_code,
        "log": blocker.log,
    }


def service_document(
    service: LatticeService, diagnosis: ServiceDiagnosis, replicas: Iterable[LatticeWorkload]
) -> Document:
    """The answer to the question why a service is not running."""
    health = diagnosis.health
    listed = sorted(replicas, key=lambda replica: (bool(replica.status.ready), replica.spec.slot))
    return {
        "service": path_of(service),
        "phase": health.phase,
        "wanted": health.desired,
        "ready": health.ready,
        "updated": health.updated,
        "restarts": health.restarts,
        "isAvailable": health.is_available,
        "since": diagnosis.since,
        "answer": diagnosis.answer,
        "blockers": [
            (blocker_document(counted.blocker) | {"replicas": counted.replicas, "first": counted.first})
            for counted in diagnosis.blockers
        ],
        "replicas": [replica_document(replica) for replica in listed[:MAX_REPLICAS]],
        "replicasOmitted": max(0, len(listed) - MAX_REPLICAS),
    }


def replica_document(replica: LatticeWorkload) -> Document:
    status = replica.status
    retry = status.retry
    return {
        "name": replica.metadata.name,
        "state": "Terminating" if is_terminating(replica) else status.actual_state,
        "ready": bool(status.ready),
        "node": status.binding.node if status.binding else "",
        "ports": dict(status.allocated_ports),
        "restarts": status.restarts or 0,
        "exitCode": status.last_exit_code,
        "failure": failure_text(replica) if status.failure_reason else "",
        "nextAt": (retry.next_at or "") if retry and retry.attempts and not status.ready else "",
        "since": status.state_since or "",
        "log": "" if status.ready else status.last_log,
    }


def workload_document(workload: LatticeWorkload, blocker: Blocker | None) -> Document:
    """The answer to the question why a workload is not running."""
    status = workload.status
    state = status.actual_state
    node = status.binding.node if status.binding else "none"
    answer = f"{state}: {blocker.cause}." if blocker else f"It runs on node {node} and is ready."
    retry = current_retry(workload)
    if blocker is None and retry is not None and retry.attempts:
        answer += f" It failed before ({pluralize(retry.attempts, 'failure')}): {failure_text(workload)}."
    return {
        "workload": path_of(workload),
        "answer": answer,
        "blockers": [blocker_document(blocker)] if blocker else [],
        **replica_document(workload),
    }


def problems_document(problems: Sequence[Problem]) -> Document:
    """The list of problems, and their number by severity."""
    counts = Counter(problem.severity for problem in problems)
    return {
        "isWrong": is_wrong(problems),
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "problems": [
            {
                "severity": problem.severity,
                "object": problem.object,
                "namespace": problem.namespace,
                "title": problem.title,
                "cause": problem.cause,
                "since": problem.since,
                "command": problem.command,
            }
            for problem in problems
        ],
    }
