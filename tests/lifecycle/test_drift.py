"""Tests of `find_drift`: differences between the workloads assigned to a node and those it reports."""

from typing import Any

import pytest

from lattice.lifecycle.drift import AssignedWorkload, ReportedWorkload, find_drift
from lattice.lifecycle.workload import Report

REV, OLD = "a" * 24, "b" * 24
WANTED = AssignedWorkload("uid-1", REV, should_run=True)


def holds(state: Any = "Running", revision: str = REV, uid: str = "uid-1") -> ReportedWorkload:
    return ReportedWorkload(uid, Report(state, revision, 1))


@pytest.mark.parametrize(
    ("wanted", "held", "found"),
    [
        pytest.param(WANTED, holds(), [], id="as assigned"),
        pytest.param(WANTED, holds("Starting"), [], id="starting"),
        pytest.param(
            None,
            holds(),
            [("orphan_on_agent", "the node reports a workload that is not assigned to the node")],
            id="orphan",
        ),
        pytest.param(
            WANTED, None, [("missing_on_agent", "the node does not report the workload")], id="missing"
        ),
        pytest.param(AssignedWorkload("uid-1", REV, should_run=False), None, [], id="stopped and not there"),
        pytest.param(
            WANTED,
            holds("Failed"),
            [("state_mismatch", "the node reports Failed, expected running")],
            id="failed",
        ),
        pytest.param(
            AssignedWorkload("uid-1", REV, should_run=False),
            holds(),
            [("state_mismatch", "the node reports Running, expected stopped")],
            id="runs on",
        ),
        pytest.param(
            WANTED,
            holds(revision=OLD),
            [("revision_mismatch", f"the node reports revision {OLD}, expected revision {REV}")],
            id="old revision",
        ),
        pytest.param(
            WANTED,
            holds(uid="uid-0"),
            [
                ("missing_on_agent", "the node does not report the workload"),
                ("orphan_on_agent", "the node reports an earlier workload of the same name, uid uid-0"),
            ],
            id="an earlier one of the same name",
        ),
    ],
)
def test_find_drift(
    wanted: AssignedWorkload | None, held: ReportedWorkload | None, found: list[tuple[str, str]]
) -> None:
    answer = find_drift({"shop/web-0": wanted} if wanted else {}, {"shop/web-0": held} if held else {})
    assert [(each.type, each.message) for each in answer] == found
