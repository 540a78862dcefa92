"""Drift between the assignments of a node and the workloads that its agent reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lattice.lifecycle.workload import LIVE_STATES, Report

DriftType = Literal["orphan_on_agent", "missing_on_agent", "state_mismatch", "revision_mismatch"]


@dataclass(frozen=True, slots=True)
class AssignedWorkload:
    """A workload that the leader assigned to the node long enough ago for the agent to have applied it."""

    uid: str
    revision: str
    should_run: bool


@dataclass(frozen=True, slots=True)
class ReportedWorkload:
    """A workload that the agent of the node reports."""

    uid: str
    report: Report


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between the assignment and the report of one workload.

    An orphan is a reported workload that was replaced or deleted, or that is not assigned to the node. The
    agent stops an orphan; the workload controller repairs drift of the other types.
    """

    workload: str
    type: DriftType
    message: str


def find_drift(
    assigned: Mapping[str, AssignedWorkload], reported: Mapping[str, ReportedWorkload]
) -> list[Drift]:
    """Compare assigned with reported workloads by path; the result is sorted, so that equal states give equal
    messages."""
    drifts: list[Drift] = []
    for path, report in reported.items():
        assignment = assigned.get(path)
        if assignment is None:
            drifts.append(
                Drift(path, "orphan_on_agent", "the node reports a workload that is not assigned to the node")
            )
        elif assignment.uid != report.uid:
            drifts.append(
                Drift(
                    path,
                    "orphan_on_agent",
                    f"the node reports an earlier workload of the same name, uid {report.uid}",
                )
            )
    for path, assignment in assigned.items():
        reported_workload = reported.get(path)
        if reported_workload is None or reported_workload.uid != assignment.uid:
            if assignment.should_run:
                drifts.append(Drift(path, "missing_on_agent", "the node does not report the workload"))
        elif reported_workload.report.revision != assignment.revision:
            drifts.append(
                Drift(
                    path,
                    "revision_mismatch",
                    f"the node reports revision {reported_workload.report.revision or 'unknown'}, "
                    f"expected revision {assignment.revision}",
                )
            )
        elif (reported_workload.report.state in LIVE_STATES) != assignment.should_run:
            desired = "running" if assignment.should_run else "stopped"
            drifts.append(
                Drift(
                    path,
                    "state_mismatch",
                    f"the node reports {reported_workload.report.state}, expected {desired}",
                )
            )
    return sorted(drifts, key=lambda drift: (drift.workload, drift.type))
