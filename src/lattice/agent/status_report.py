"""What does a node say of each workload? What it was told, beside what there is, gives one state per workload. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.agent.host.probes import Health
from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceId
from lattice.agent.plan import Assignment
from lattice.wire import agent_pb2 as pb

NOT_PROBED = Health(ready=False)
MAX_FAILURE_CHARS = 256  # characters: an exit code or a signal, or what the system says


@dataclass(frozen=True, slots=True)
class Observations:
    """What is known beyond the instances: what probes say, and what those that failed had printed last."""

    health: Mapping[InstanceId, Health] = field(default_factory=dict)
    logs: Mapping[InstanceId, str] = field(default_factory=dict)


def build_reports(
    orders: Mapping[str, Assignment], instances: Iterable[Instance], seen: Observations
) -> dict[str, pb.Report]:
    """By path. What is not listed is not there."""
    there: dict[str, list[Instance]] = {path: [] for path in orders}
    for each in instances:
        there.setdefault(each.workload, []).append(each)
    found = {path: _report(path, orders.get(path), there[path], seen) for path in sorted(there)}
    return {path: report for path, report in found.items() if report is not None}


def _report(
    path: str, order: Assignment | None, there: list[Instance], seen: Observations
) -> pb.Report | None:
    strange = [each for each in there if each.is_live and not _belongs_to(each, order)]
    if strange:  # what has to go first is what is there
        last = strange[0]
        return pb.Report(
            workload=path, uid=last.id.uid, state=last.state, revision=last.id.revision, run=last.attempt
        )
    if order is None:
        return None
    own = {each.id.container: each for each in there if _belongs_to(each, order)}
    report = _running(order, own, seen) if order.desired == "Running" else _stopped(own)
    report.workload, report.uid, report.revision = path, order.uid, order.revision
    if report.state == "Failed":
        report.log = next(
            (text for each in own.values() if each.failure and (text := seen.logs.get(each.id))), ""
        )
    return report


def _belongs_to(instance: Instance, order: Assignment | None) -> bool:
    return order is not None and (instance.id.uid, instance.id.revision) == (order.uid, order.revision)


def _stopped(own: Mapping[str, Instance]) -> pb.Report:
    """The run is the one that ended: none has begun since."""
    live = [each for each in own.values() if each.is_live]
    run = max((each.attempt for each in own.values()), default=0)
    if live:
        return pb.Report(state=live[0].state, run=run)
    return _ended_report(run, first_failure(own))


def _running(order: Assignment, own: Mapping[str, Instance], seen: Observations) -> pb.Report:
    settled = {
        name: each
        for name, each in own.items()
        if name in order.containers and each.covers_attempt(order.attempt)
    }
    ended = {name: each for name, each in settled.items() if not each.is_live}
    if ended:
        return _ended_report(max(each.attempt for each in ended.values()), first_failure(ended))
    if len(settled) < len(order.containers):
        return pb.Report(state="Starting", run=order.attempt)
    states = [_health(each, order, seen) for each in settled.values()]
    is_up = all(each.state == "Running" for each in settled.values()) and all(each.started for each in states)
    run = max((each.attempt for each in settled.values()), default=order.attempt)
    return pb.Report(
        state="Running" if is_up else "Starting", run=run, ready=is_up and all(each.ready for each in states)
    )


def _ended_report(run: int, failure: Failure | None) -> pb.Report:
    if failure is None:
        return pb.Report(state="Stopped", run=run)
    return pb.Report(state="Failed", run=run, failure=failure.reason, how=failure.message[:MAX_FAILURE_CHARS])


def _health(instance: Instance, order: Assignment, seen: Observations) -> Health:
    """Until the probes were asked it is not ready."""
    if order.containers[instance.id.container].probes is None:
        return Health()
    return seen.health.get(instance.id, NOT_PROBED)


def first_failure(ended: Mapping[str, Instance]) -> Failure | None:
    return next((ended[name].failure for name in sorted(ended) if ended[name].failure), None)


def siblings_to_stop(
    orders: Mapping[str, Assignment], instances: Iterable[Instance]
) -> dict[InstanceId, Failure]:
    """Containers whose workload has lost another one: they end with it, since only whole workloads are started again."""
    there: dict[str, dict[str, Instance]] = {}
    for each in instances:
        order = orders.get(each.workload)
        if (
            order is not None
            and order.desired == "Running"
            and _belongs_to(each, order)
            and each.covers_attempt(order.attempt)
        ):
            there.setdefault(each.workload, {})[each.id.container] = each
    found: dict[InstanceId, Failure] = {}
    for own in there.values():
        ended = {name: each for name, each in own.items() if not each.is_live}
        if not ended:
            continue
        why = first_failure(ended)
        words = f"container {min(ended)} of the same workload ended"
        found |= {
            each.id: Failure(why.reason if why else "RUNTIME_ERROR", words)
            for each in own.values()
            if each.is_live
        }
    return found
