"""Codec of agent messages: workloads are encoded as assignments, and heartbeats are decoded for
`presence`."""

import re
from collections.abc import Mapping

import msgspec

from lattice.kinds.meta.quantity import MILLI
from lattice.kinds.qos import qos_of
from lattice.kinds.workload import DesiredRun, LatticeWorkload
from lattice.presence import Heartbeat, Usage, WorkloadReport
from lattice.wire import agent_pb2 as pb

MAX_REPORTS = 4096
# Characters of a workload path, a UID or a revision.
MAX_NAME_CHARS = 512
MAX_LOG_CHARS = 4096
MAX_FAILURE_DETAIL_CHARS = 1024
REPORTED_STATES = frozenset({"Starting", "Running", "Stopped", "Failed"})
_FAILURE_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}|")


def encode_assignment(
    path: str, workload: LatticeWorkload, run: DesiredRun, env: Mapping[str, str]
) -> pb.Assignment:
    """The assignment message for a workload with its desired run and its environment variables."""
    spec, limits, requests = workload.spec, workload.spec.limit_amounts, workload.spec.request_amounts
    gpu_milli = requests.get("gpu", 0)
    return pb.Assignment(
        workload=path,
        uid=workload.metadata.uid,
        state=run.state,
        revision=run.revision,
        run=run.run,
        containers=msgspec.json.encode(spec.containers),
        env=dict(env),
        ports=workload.status.allocated_ports,
        cpu_limit=limits.get("cpu"),
        memory_limit=limits.get("memory"),
        disconnect=spec.disconnect.policy,
        stop_after_ms=spec.disconnect.stop_after_ms,
        gpus=workload.status.allocated_gpus,
        # A request above one GPU gets whole GPUs.
        gpu_milli=gpu_milli if gpu_milli < MILLI else 0,
        restart="" if spec.restart_policy == "Always" else spec.restart_policy,
        qos=qos_of(spec).name,
        cpu_request=requests.get("cpu", 0),
        memory_request=requests.get("memory", 0),
    )


def heartbeat_problem(beat: pb.Beat) -> str:
    """The first problem of a heartbeat in one sentence, or an empty string.

    The limits keep an agent from filling the server's memory; the state and failure codes must be known.
    """
    if max(len(beat.reports), len(beat.gone), len(beat.workload_usage)) > MAX_REPORTS:
        return f"the heartbeat reports more than {MAX_REPORTS} workloads"
    for report in beat.reports:
        if (
            max(len(report.workload), len(report.uid), len(report.revision)) > MAX_NAME_CHARS
            or report.workload.count("/") != 1
        ):
            return f'"{report.workload[:80]}" is not the name of a workload'
        if report.state not in REPORTED_STATES or not _FAILURE_CODE.fullmatch(report.failure):
            return f'"{report.state[:80]}" with failure "{report.failure[:80]}" is not a workload state'
        if len(report.how) > MAX_FAILURE_DETAIL_CHARS:
            return (
                f"the failure details of {report.workload} have {len(report.how)} characters;"
                f" the maximum is {MAX_FAILURE_DETAIL_CHARS}"
            )
        if len(report.log) > MAX_LOG_CHARS:
            return (
                f"the log of {report.workload} has {len(report.log)} characters;"
                f" the maximum is {MAX_LOG_CHARS}"
            )
    return ""


def decode_heartbeat(beat: pb.Beat) -> Heartbeat:
    workloads: dict[str, WorkloadReport | None] = dict.fromkeys(beat.gone)
    for report in beat.reports:
        workloads[report.workload] = WorkloadReport(
            report.uid,
            report.state,
            report.revision,
            report.run,
            report.ready,
            report.failure,
            report.log,
            report.how,
            report.exit_code if report.HasField("exit_code") else None,
        )
    usage, workload_usage = None, None
    if beat.HasField("usage"):
        usage = _decode_usage(beat.usage)
        workload_usage = {path: _decode_usage(message) for path, message in beat.workload_usage.items()}
    return Heartbeat(
        usage=usage,
        workload_usage=workload_usage,
        workloads=workloads,
        is_full_report=beat.is_whole,
        applied_sequence=beat.order,
    )


def _decode_usage(message: pb.Usage) -> Usage:
    return Usage(max(0, message.cpu), max(0, message.memory), max(0, message.disk))
