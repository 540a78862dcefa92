"""Orders as they come over the wire, read into what the agent plans with; older ones than it has seen are refused."""

from typing import NamedTuple

import msgspec

from lattice.agent.host.runtime_protocol import Limits
from lattice.agent.plan import Assignment
from lattice.agent.status_report import MAX_FAILURE_CHARS
from lattice.errors import Invalid
from lattice.kinds.container import Container, Disconnect
from lattice.wire import agent_pb2 as pb

_decode_containers = msgspec.json.Decoder(dict[str, Container]).decode


def decode_assignment(said: pb.Assignment, term: int) -> Assignment:
    """Raises Invalid if this agent cannot make sense of it."""
    if said.state not in ("Running", "Stopped") or said.disconnect not in ("keep", "stop"):
        raise Invalid(
            f"is to be {said.state!r} and {said.disconnect!r} when cut off, which this agent does not know",
            where=said.workload,
        )
    try:
        containers = _decode_containers(said.containers)
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"cannot be read: {error}",
            where=said.workload,
            fix="run the server's version of lattice on this node",
        ) from error
    return Assignment(
        workload=said.workload,
        uid=said.uid,
        revision=said.revision,
        term=term,
        desired="Running" if said.state == "Running" else "Stopped",
        attempt=said.run,
        containers=containers,
        env=dict(said.env),
        ports=dict(said.ports),
        limits=Limits(
            cpu=said.cpu_limit if said.HasField("cpu_limit") else None,
            memory=said.memory_limit if said.HasField("memory_limit") else None,
        ),
        disconnect=Disconnect(
            policy="stop" if said.disconnect == "stop" else "keep", stop_after=f"{said.stop_after_ms}ms"
        ),
    )


class AssignmentSet(NamedTuple):
    """What the node is to do, and what of it it cannot understand, by path."""

    assignments: dict[str, Assignment]
    invalid: dict[str, pb.Report]


def apply_orders(known: AssignmentSet, orders: pb.Orders) -> AssignmentSet:
    """With these orders added to those that it has. One that makes no sense here fails alone: the others are obeyed."""
    dropped = {*orders.dropped, *(each.workload for each in orders.assignments)}
    before = AssignmentSet({}, {}) if orders.is_whole else known
    wanted = {path: order for path, order in before.assignments.items() if path not in dropped}
    unread = {path: report for path, report in before.invalid.items() if path not in dropped}
    for each in orders.assignments:
        try:
            wanted[each.workload] = decode_assignment(each, orders.term)
        except Invalid as error:
            unread[each.workload] = _failed_report(each, error)
    return AssignmentSet(wanted, unread)


def _failed_report(said: pb.Assignment, error: Invalid) -> pb.Report:
    report = pb.Report(
        workload=said.workload, uid=said.uid, state="Failed", revision=said.revision, run=said.run
    )
    report.failure, report.how, report.log = "INVALID_SPEC", error.message[:MAX_FAILURE_CHARS], str(error)
    return report
