"""Tests of `desired_run`: the order that a node gets for a stored workload."""

from typing import Any

import pytest
from build.workload_inputs import OLD, REV, a_retry

from lattice.kinds.container import Container
from lattice.kinds.meta.base import Metadata
from lattice.kinds.workload import (
    Binding,
    DesiredRun,
    LatticeWorkload,
    WorkloadSpec,
    WorkloadStatus,
    compute_revision,
)
from lattice.lifecycle.workload import desired_run

RUNS, STOPS = DesiredRun("Running", REV, 3), DesiredRun("Stopped", REV, 3)
HERE = Binding(node="n1")


def a_workload_after(
    action: str, *, is_deleted: bool = False, binding: Binding | None = HERE, **parts: Any
) -> LatticeWorkload:
    spec = WorkloadSpec(containers={}, desired_state=parts.get("desired", "Running"), revision=REV)
    status = WorkloadStatus(binding=binding, last_action=action, retry=parts.get("retry", a_retry(0, 3)))
    metadata = Metadata(name="w", deletion_timestamp="2026-01-01T00:00:00Z" if is_deleted else None)
    return LatticeWorkload(api_version="", kind="", metadata=metadata, spec=spec, status=status)


@pytest.mark.parametrize(
    ("workload", "order"),
    [
        pytest.param(a_workload_after("Apply", binding=None), None, id="without a node: nothing"),
        pytest.param(a_workload_after(""), None, id="nothing was decided yet"),
        pytest.param(a_workload_after("Assign"), None, id="only just bound"),
        pytest.param(a_workload_after("Apply"), RUNS, id="applied"),
        pytest.param(a_workload_after("Recreate"), RUNS, id="tried again"),
        pytest.param(a_workload_after("Forgive"), RUNS, id="forgiven: goes on"),
        pytest.param(a_workload_after("ApplyStopped"), STOPS, id="ordered to stop"),
        pytest.param(a_workload_after("BackoffWait"), STOPS, id="waits: stays stopped and keeps its log"),
        pytest.param(a_workload_after("MarkFailed"), STOPS, id="failed for good: keeps its log"),
        pytest.param(a_workload_after("Retry"), STOPS, id="asked for again, and not applied yet"),
        pytest.param(a_workload_after("Delete"), None, id="deleted: is not to be there"),
        pytest.param(
            a_workload_after("Apply", is_deleted=True), RUNS, id="an undecided deletion changes no order"
        ),
        pytest.param(
            a_workload_after("Apply", retry=a_retry(0, 2, revision=OLD)),
            RUNS,
            id="a new revision is its own first run",
        ),
        pytest.param(
            a_workload_after("Apply", retry=a_retry(0, 2, revision=OLD), desired="Stopped"),
            STOPS,
            id="a new revision that is not to run is not started",
        ),
        pytest.param(
            a_workload_after("Apply", retry=a_retry(0, 2, revision=OLD), is_deleted=True),
            STOPS,
            id="a new revision of what goes is not started",
        ),
    ],
)
def test_desired_run(workload: LatticeWorkload, order: DesiredRun | None) -> None:
    assert desired_run(workload) == order


def test_revision_ignores_scheduling_fields() -> None:
    spec = WorkloadSpec(containers={"main": Container(command=("run",))})
    same = WorkloadSpec(
        containers={"main": Container(command=("run",))},
        desired_state="Stopped",
        slot=3,
        priority=7,
        cluster="c",
    )
    other = WorkloadSpec(containers={"main": Container(command=("run", "more"))})
    assert (compute_revision(spec), len(spec.effective_revision)) == (compute_revision(same), 24)
    assert spec.effective_revision != other.effective_revision
    assert WorkloadSpec(containers={}, revision=REV).effective_revision == REV
