"""Workload reports of a node: compare assignments with instances and report one state per workload. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.agent.host.probes import Health
from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceId
from lattice.agent.plan import Assignment
from lattice.wire import agent_pb2 as pb

# End of the failure message of a container that was stopped because another container exited.
SIBLING_EXITED = "of the same workload exited"
NOT_PROBED = Health(ready=False)
MAX_FAILURE_CHARS = 256


@dataclass(frozen=True, slots=True)
class Observations:
    """What a report needs besides the instances: probe results, and the last log lines of failed
    instances."""

    health: Mapping[InstanceId, Health] = field(default_factory=dict)
    logs: Mapping[InstanceId, str] = field(default_factory=dict)


def build_reports(
    assignments: Mapping[str, Assignment], instances: Iterable[Instance], observations: Observations
) -> dict[str, pb.Report]:
    """The reports by workload path. A path gets no report if the workload is neither assigned to the node nor
    running on the node."""
    instances_by_path: dict[str, list[Instance]] = {path: [] for path in assignments}
    for instance in instances:
        instances_by_path.setdefault(instance.workload, []).append(instance)
    reports: dict[str, pb.Report] = {}
    for path in sorted(instances_by_path):
        report = _report(path, assignments.get(path), instances_by_path[path], observations)
        if report is not None:
            reports[path] = report
    return reports


def _report(
    path: str, assignment: Assignment | None, instances: list[Instance], observations: Observations
) -> pb.Report | None:
    foreign = [
        instance for instance in instances if instance.is_live and not _belongs_to(instance, assignment)
    ]
    # A live instance of another workload or revision must stop first, so the report is about that instance.
    if foreign:
        last = foreign[0]
        return pb.Report(
            workload=path, uid=last.id.uid, state=last.state, revision=last.id.revision, run=last.attempt
        )
    if assignment is None:
        return None
    own = {instance.id.container: instance for instance in instances if _belongs_to(instance, assignment)}
    if assignment.desired == "Running":
        report = _running(assignment, own, observations)
    else:
        # A workload that should be stopped reports the number of its last run.
        run = max((instance.attempt for instance in own.values()), default=0)
        live = [instance for instance in own.values() if instance.is_live]
        report = pb.Report(state=live[0].state, run=run) if live else _ended_report(run, own)
    report.workload, report.uid, report.revision = path, assignment.uid, assignment.revision
    if report.state in ("Failed", "Stopped"):
        # A program that ended with code 0 has a log too: under restartPolicy Always its end is a failure.
        failed_first = sorted(own.values(), key=lambda instance: instance.failure is None)
        logs = (observations.logs.get(instance.id, "") for instance in failed_first)
        report.log = next(filter(None, logs), "")
    return report


def _belongs_to(instance: Instance, assignment: Assignment | None) -> bool:
    return assignment is not None and (instance.id.uid, instance.id.revision) == (
        assignment.uid,
        assignment.revision,
    )


def _running(assignment: Assignment, own: Mapping[str, Instance], observations: Observations) -> pb.Report:
    """The report of a workload that must run: failed or stopped if a container ended, running once all
    containers have started."""
    settled = {
        name: instance
        for name, instance in own.items()
        if name in assignment.containers and instance.covers_attempt(assignment.attempt)
    }
    ended = {name: instance for name, instance in settled.items() if not instance.is_live}
    is_over = not assignment.may_succeed or first_failure(ended) or len(ended) == len(assignment.containers)
    if ended and is_over:
        return _ended_report(max(instance.attempt for instance in ended.values()), ended)
    # A container is not started yet, or must be restarted for a later run.
    if len(settled) < len(assignment.containers):
        return pb.Report(state="Starting", run=assignment.attempt)
    is_up = is_ready = True
    for name, instance in settled.items():
        # A container of a job that has done its work holds nothing up.
        if name in ended:
            continue
        # An instance with probes is not ready before the first probe result.
        has_probes = assignment.containers[name].probes is not None
        health = observations.health.get(instance.id, NOT_PROBED) if has_probes else Health()
        is_up = is_up and instance.state == "Running" and health.started
        is_ready = is_ready and health.ready
    is_ready = is_ready and is_up
    run = max((instance.attempt for instance in settled.values()), default=assignment.attempt)
    return pb.Report(state="Running" if is_up else "Starting", run=run, ready=is_ready)


def _ended_report(run: int, ended: Mapping[str, Instance]) -> pb.Report:
    failed = _failed(ended)
    if failed is None or failed.failure is None:
        has_exited = any(instance.exit_code == 0 for instance in ended.values())
        return pb.Report(state="Stopped", run=run, exit_code=0 if has_exited else None)
    return pb.Report(
        state="Failed",
        run=run,
        failure=failed.failure.reason,
        how=failed.failure.message[:MAX_FAILURE_CHARS],
        exit_code=failed.exit_code,
    )


def first_failure(ended: Mapping[str, Instance]) -> Failure | None:
    """The failure of the first failed container, in the order of names; None if no container failed."""
    failed = _failed(ended)
    return failed.failure if failed else None


def _failed(ended: Mapping[str, Instance]) -> Instance | None:
    """The first failed container, in the order of names: a container that was stopped because another one
    exited comes last."""
    failed = [
        (instance.failure.message.endswith(SIBLING_EXITED), name)
        for name, instance in ended.items()
        if instance.failure is not None
    ]
    return ended[min(failed)[1]] if failed else None


def siblings_to_stop(
    assignments: Mapping[str, Assignment], instances: Iterable[Instance]
) -> dict[InstanceId, Failure]:
    """Live containers of workloads in which another container ended, each with the failure to record. The
    containers end together, since only complete workloads are restarted."""
    containers_by_path: dict[str, dict[str, Instance]] = {}
    for instance in instances:
        assignment = assignments.get(instance.workload)
        if (
            assignment is not None
            and assignment.desired == "Running"
            and _belongs_to(instance, assignment)
            # Skip an instance that ended in an earlier run: it is about to be restarted.
            and instance.covers_attempt(assignment.attempt)
        ):
            containers_by_path.setdefault(instance.workload, {})[instance.id.container] = instance
    failures: dict[InstanceId, Failure] = {}
    for path, own in containers_by_path.items():
        ended = {name: instance for name, instance in own.items() if not instance.is_live}
        first = first_failure(ended)
        # The containers of a job run on after one of them has succeeded.
        if not ended or (first is None and assignments[path].may_succeed):
            continue
        message = f"container {min(ended)} {SIBLING_EXITED}"
        for instance in own.values():
            if instance.is_live:
                failures[instance.id] = Failure(first.reason if first else "RUNTIME_ERROR", message)
    return failures
