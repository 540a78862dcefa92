"""Status reports of workloads for every combination of assignment and instances."""

from typing import Any

import pytest
from build.assignments import an_assignment, an_instance, instance_id

from lattice.agent.host.probes import Health
from lattice.agent.host.runtime_protocol import Failure, Instance
from lattice.agent.plan import Assignment
from lattice.agent.status_report import Observations, build_reports, siblings_to_stop
from lattice.kinds.container import Container, ExecProbe, Probe, Probes
from lattice.wire import agent_pb2 as pb

BROKEN = Failure("RUNTIME_ERROR", "exited with code 1")
PROBED = Container(command=("serve",), probes=Probes(readiness=Probe(exec=ExecProbe(command=("true",)))))
TWO = {"main": Container(command=("serve",)), "side": Container(command=("serve",))}


def ended(**rest: Any) -> Instance:
    return an_instance(state="Exited", **rest)


def said(order: Assignment | None, *there: Instance, **seen: Any) -> pb.Report | None:
    return build_reports({order.workload: order} if order else {}, there, Observations(**seen)).get(
        "default/web"
    )


def short(report: pb.Report | None) -> tuple[Any, ...] | None:
    return None if report is None else (report.state, report.run, report.ready, report.failure)


@pytest.mark.parametrize(
    ("order", "there", "expected"),
    [
        pytest.param(an_assignment(attempt=2), [], ("Starting", 2, False, ""), id="assigned without an instance: Starting, in the assigned run"),
        pytest.param(an_assignment(attempt=2), [an_instance(attempt=2)], ("Running", 2, True, ""), id="running"),
        pytest.param(an_assignment(attempt=2), [an_instance(attempt=1)], ("Running", 1, True, ""), id="running since an earlier run"),
        pytest.param(an_assignment(attempt=1), [an_instance(attempt=1, state="Starting")], ("Starting", 1, False, ""), id="starting in the runtime"),
        pytest.param(an_assignment(attempt=1), [ended(attempt=1, failure=BROKEN)], ("Failed", 1, False, "RUNTIME_ERROR"), id="failed"),
        pytest.param(an_assignment(attempt=2), [ended(attempt=1, failure=BROKEN)], ("Starting", 2, False, ""), id="failed in an earlier run: Starting"),
        pytest.param(an_assignment(attempt=1), [ended(attempt=1, exit_code=0)], ("Stopped", 1, False, ""), id="exited without a failure"),
        pytest.param(an_assignment(attempt=1), [ended(attempt=1, was_stopped_on_request=True)], ("Starting", 1, False, ""), id="stopped on request and restarting"),
        pytest.param(an_assignment(attempt=2, desired="Stopped"), [an_instance(attempt=1)], ("Running", 1, False, ""), id="stopping"),
        pytest.param(an_assignment(attempt=2, desired="Stopped"), [ended(attempt=1, was_stopped_on_request=True)], ("Stopped", 1, False, ""), id="stopped"),
        pytest.param(an_assignment(attempt=2, desired="Stopped"), [ended(attempt=1, failure=BROKEN)], ("Failed", 1, False, "RUNTIME_ERROR"), id="failed while stopping: the run that failed"),
        pytest.param(an_assignment(attempt=2, desired="Stopped"), [], ("Stopped", 0, False, ""), id="stopped without an instance"),
        pytest.param(None, [an_instance(attempt=1)], ("Running", 1, False, ""), id="unassigned and running"),
        pytest.param(None, [ended(attempt=1)], None, id="unassigned and exited: no report"),
        pytest.param(an_assignment(containers={"main": PROBED}), [an_instance()], ("Running", 0, False, ""), id="not ready before its first probe"),
    ],
)  # fmt: skip
def test_one_state_per_workload(
    order: Assignment | None, there: list[Instance], expected: tuple[Any, ...] | None
) -> None:
    assert short(said(order, *there)) == expected


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        pytest.param(Health(), ("Running", 0, True, ""), id="well"),
        pytest.param(Health(ready=False), ("Running", 0, False, ""), id="not ready"),
        pytest.param(Health(started=False, ready=False), ("Starting", 0, False, ""), id="not started"),
    ],
)
def test_probes_decide_reported_state(health: Health, expected: tuple[Any, ...]) -> None:
    assert (
        short(said(an_assignment(containers={"main": PROBED}), an_instance(), health={instance_id(): health}))
        == expected
    )


def test_old_instance_is_reported_until_gone() -> None:
    old = an_instance(id=instance_id(revision="old"), attempt=4)
    report = said(an_assignment(revision="new", attempt=5), old)
    assert report is not None
    assert (report.revision, report.run, report.state, report.ready) == ("old", 4, "Running", False)
    earlier = said(an_assignment(uid="u2"), an_instance(id=instance_id("u1")))
    assert earlier is not None
    assert earlier.uid == "u1"


def test_workload_state_is_its_worst_container() -> None:
    order = an_assignment(containers=TWO)
    main, side = an_instance(), an_instance(id=instance_id(container="side"))
    assert short(said(order, main)) == ("Starting", 0, False, "")
    assert short(said(order, main, side)) == ("Running", 0, True, "")
    dead = ended(id=instance_id(container="side"), failure=BROKEN)
    assert short(said(order, main, dead, logs={dead.id: "no such table"})) == (
        "Failed",
        0,
        False,
        "RUNTIME_ERROR",
    )
    report = said(order, main, dead, logs={dead.id: "no such table"})
    assert report is not None
    assert report.log == "no such table"


def test_program_that_ended_with_code_zero_has_its_log() -> None:
    over = ended(exit_code=0)
    report = said(an_assignment(), over, logs={over.id: "done"})
    assert report is not None
    assert (report.state, report.log) == ("Stopped", "done")


def test_siblings_of_failed_container_are_stopped() -> None:
    order = an_assignment(containers=TWO)
    main, dead = an_instance(), ended(id=instance_id(container="side"), failure=BROKEN)
    found = siblings_to_stop({order.workload: order}, [main, dead])
    assert {one: why.reason for one, why in found.items()} == {main.id: "RUNTIME_ERROR"}
    again = an_assignment(containers=TWO, attempt=1)
    assert siblings_to_stop({again.workload: again}, [main, dead]) == {}, (
        "the next run starts the one that is missing"
    )
    assert siblings_to_stop({}, [main, dead]) == {}


@pytest.mark.parametrize(
    ("order", "there", "expected"),
    [
        pytest.param(
            an_assignment(), [ended(failure=BROKEN, exit_code=3)], ("Failed", 3), id="a failed program"
        ),
        pytest.param(an_assignment(), [ended(exit_code=0)], ("Stopped", 0), id="a program that succeeded"),
        pytest.param(an_assignment(), [an_instance()], ("Running", None), id="a running program has none"),
        pytest.param(
            an_assignment(containers=TWO),
            [
                ended(id=instance_id(container="side"), failure=BROKEN, exit_code=3),
                ended(
                    failure=Failure("RUNTIME_ERROR", "container side of the same workload exited"),
                    exit_code=143,
                ),
            ],
            ("Failed", 3),
            id="the culprit counts, not the container that was stopped because of it",
        ),
        pytest.param(
            an_assignment(containers=TWO, restart="OnFailure"),
            [ended(exit_code=0), an_instance(id=instance_id(container="side"))],
            ("Running", None),
            id="a job runs on until all its containers have ended",
        ),
        pytest.param(
            an_assignment(containers=TWO, restart="OnFailure"),
            [ended(exit_code=0), ended(id=instance_id(container="side"), exit_code=0)],
            ("Stopped", 0),
            id="a job whose containers all succeeded",
        ),
    ],
)
def test_report_has_the_exit_code(
    order: Assignment, there: list[Instance], expected: tuple[str, int | None]
) -> None:
    report = said(order, *there)
    assert report is not None
    assert (report.state, report.exit_code if report.HasField("exit_code") else None) == expected


def test_containers_of_a_job_run_on_after_one_succeeded() -> None:
    main, done = an_instance(), ended(id=instance_id(container="side"), exit_code=0)
    for restart, stopped in (("Always", {main.id}), ("OnFailure", set()), ("Never", set())):
        order = an_assignment(containers=TWO, restart=restart)
        assert siblings_to_stop({order.workload: order}, [main, done]).keys() == stopped
