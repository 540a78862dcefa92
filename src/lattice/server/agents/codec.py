"""Between stored words and sent words: a workload becomes an order, a beat becomes what presence remembers."""

import re
from collections.abc import Mapping

import msgspec

from lattice.kinds.workload import DesiredRun, LatticeWorkload
from lattice.presence import Heartbeat, Usage, WorkloadReport
from lattice.wire import agent_pb2 as pb

MAX_REPORTS = 4096
MAX_NAME_CHARS = 512  # characters of a path, a uid, a revision
MAX_LOG_CHARS = 4096
MAX_FAILURE_DETAIL_CHARS = 1024
STATES = frozenset({"Starting", "Running", "Stopped", "Failed"})
_FAILURE_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}|")


def encode_assignment(
    path: str, workload: LatticeWorkload, order: DesiredRun, env: Mapping[str, str]
) -> pb.Assignment:
    spec, limits = workload.spec, workload.spec.limit_amounts
    return pb.Assignment(
        workload=path,
        uid=workload.metadata.uid,
        state=order.state,
        revision=order.revision,
        run=order.run,
        containers=msgspec.json.encode(spec.containers),
        env=dict(env),
        ports=workload.status.allocated_ports,
        cpu_limit=limits.get("cpu"),
        memory_limit=limits.get("memory"),
        disconnect=spec.disconnect.policy,
        stop_after_ms=spec.disconnect.stop_after_ms,
    )


def heartbeat_problem(beat: pb.Beat) -> str:
    """Why it is not heard: an agent may not fill the server's memory, nor use words of its own; "" if all is well."""
    if max(len(beat.reports), len(beat.gone), len(beat.workload_usage)) > MAX_REPORTS:
        return f"it speaks of more than {MAX_REPORTS} workloads"
    for each in beat.reports:
        if (
            max(len(each.workload), len(each.uid), len(each.revision)) > MAX_NAME_CHARS
            or each.workload.count("/") != 1
        ):
            return f'"{each.workload[:80]}" is no workload'
        if each.state not in STATES or not _FAILURE_CODE.fullmatch(each.failure):
            return f'"{each.state[:80]}" with failure "{each.failure[:80]}" is no state of a workload'
        if len(each.how) > MAX_FAILURE_DETAIL_CHARS:
            return f"how {each.workload} failed takes {len(each.how)} characters, at most {MAX_FAILURE_DETAIL_CHARS} are taken"
        if len(each.log) > MAX_LOG_CHARS:
            return f"the log of {each.workload} has {len(each.log)} characters, at most {MAX_LOG_CHARS} are taken"
    return ""


def decode_heartbeat(beat: pb.Beat) -> Heartbeat:
    workloads: dict[str, WorkloadReport | None] = dict.fromkeys(beat.gone)
    for each in beat.reports:
        workloads[each.workload] = WorkloadReport(
            each.uid, each.state, each.revision, each.run, each.ready, each.failure, each.log, each.how
        )
    return Heartbeat(
        usage=_usage(beat.usage) if beat.HasField("usage") else None,
        workload_usage={path: _usage(each) for path, each in beat.workload_usage.items()}
        if beat.HasField("usage")
        else None,
        workloads=workloads,
        is_full_report=beat.is_whole,
        applied_sequence=beat.order,
    )


def _usage(said: pb.Usage) -> Usage:
    return Usage(max(0, said.cpu), max(0, said.memory), max(0, said.disk))
