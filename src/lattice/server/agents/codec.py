"""Between stored words and sent words: a workload becomes an order, a beat becomes what presence remembers."""

import re
from collections.abc import Mapping

import msgspec

from lattice.kinds.order import Wanted
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Beat, Spoken, Usage
from lattice.wire import agent_pb2 as pb

MOST_REPORTS = 4096
LONGEST_NAME = 512  # characters of a path, a uid, a revision
LONGEST_LOG = 4096
LONGEST_HOW = 1024
STATES = frozenset({"Starting", "Running", "Stopped", "Failed"})
_WORD = re.compile(r"[A-Z][A-Z0-9_]{0,63}|")


def order_of(path: str, workload: LatticeWorkload, order: Wanted, env: Mapping[str, str]) -> pb.Assignment:
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


def beat_problem(beat: pb.Beat) -> str:
    """Why it is not heard: an agent may not fill the server's memory, nor use words of its own; "" if all is well."""
    if max(len(beat.reports), len(beat.gone), len(beat.workload_usage)) > MOST_REPORTS:
        return f"it speaks of more than {MOST_REPORTS} workloads"
    for each in beat.reports:
        if (
            max(len(each.workload), len(each.uid), len(each.revision)) > LONGEST_NAME
            or each.workload.count("/") != 1
        ):
            return f'"{each.workload[:80]}" is no workload'
        if each.state not in STATES or not _WORD.fullmatch(each.failure):
            return f'"{each.state[:80]}" with failure "{each.failure[:80]}" is no state of a workload'
        if len(each.how) > LONGEST_HOW:
            return f"how {each.workload} failed takes {len(each.how)} characters, at most {LONGEST_HOW} are taken"
        if len(each.log) > LONGEST_LOG:
            return (
                f"the log of {each.workload} has {len(each.log)} characters, at most {LONGEST_LOG} are taken"
            )
    return ""


def beat_of(beat: pb.Beat) -> Beat:
    workloads: dict[str, Spoken | None] = dict.fromkeys(beat.gone)
    for each in beat.reports:
        workloads[each.workload] = Spoken(
            each.uid, each.state, each.revision, each.run, each.ready, each.failure, each.log, each.how
        )
    return Beat(
        usage=_usage(beat.usage) if beat.HasField("usage") else None,
        workload_usage={path: _usage(each) for path, each in beat.workload_usage.items()}
        if beat.HasField("usage")
        else None,
        workloads=workloads,
        is_whole=beat.is_whole,
        order=beat.order,
    )


def _usage(said: pb.Usage) -> Usage:
    return Usage(max(0, said.cpu), max(0, said.memory), max(0, said.disk))
