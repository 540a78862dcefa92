"""Decode the orders of the wire protocol into the assignments of an agent.

The field `run` of a message becomes the field `attempt` of the assignment: both are the run number.
"""

from typing import NamedTuple

import msgspec

from lattice.agent.host.runtime_protocol import Limits
from lattice.agent.plan import Assignment
from lattice.agent.status_report import MAX_FAILURE_CHARS
from lattice.errors import Invalid
from lattice.kinds.container import Container, Disconnect
from lattice.kinds.workload import RestartPolicy
from lattice.wire import agent_pb2 as pb

_RESTART_POLICIES: dict[str, RestartPolicy] = {"OnFailure": "OnFailure", "Never": "Never"}
_decode_containers = msgspec.json.Decoder(dict[str, Container]).decode


def decode_assignment(message: pb.Assignment, term: int) -> Assignment:
    """Decode one assignment; raise Invalid if this version of the agent cannot interpret the message."""
    if message.state not in ("Running", "Stopped") or message.disconnect not in ("keep", "stop"):
        raise Invalid(
            f"has desired state {message.state!r} and disconnect policy {message.disconnect!r}, "
            "which this agent does not support",
            where=message.workload,
        )
    try:
        containers = _decode_containers(message.containers)
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"cannot be read: {error}",
            where=message.workload,
            fix="on this node, run the version of lattice that the server runs",
        ) from error
    return Assignment(
        workload=message.workload,
        uid=message.uid,
        revision=message.revision,
        term=term,
        desired="Running" if message.state == "Running" else "Stopped",
        attempt=message.run,
        containers=containers,
        env=dict(message.env),
        ports=dict(message.ports),
        limits=Limits(
            cpu=message.cpu_limit if message.HasField("cpu_limit") else None,
            memory=message.memory_limit if message.HasField("memory_limit") else None,
        ),
        requests=Limits(cpu=message.cpu_request or None, memory=message.memory_request or None),
        qos=message.qos,
        disconnect=Disconnect(
            policy="stop" if message.disconnect == "stop" else "keep", stop_after=f"{message.stop_after_ms}ms"
        ),
        gpus=tuple(message.gpus),
        gpu_milli=message.gpu_milli,
        # An unknown policy of a later server is Always: the server decides about restarts.
        restart=_RESTART_POLICIES.get(message.restart, "Always"),
    )


class AssignmentSet(NamedTuple):
    """The assignments of the node, and a failure report for every assignment that the agent cannot decode;
    both by workload path (namespace/name)."""

    assignments: dict[str, Assignment]
    invalid: dict[str, pb.Report]


def apply_orders(current: AssignmentSet, orders: pb.Orders) -> AssignmentSet:
    """The assignment set after the orders; an assignment that cannot be decoded fails alone, and the agent
    follows the other assignments."""
    # A new order for a workload also ends the failure report of an earlier order.
    dropped = {*orders.dropped, *(message.workload for message in orders.assignments)}
    # A full list replaces all previous assignments.
    previous = AssignmentSet({}, {}) if orders.is_whole else current
    assignments = {
        path: assignment for path, assignment in previous.assignments.items() if path not in dropped
    }
    invalid = {path: report for path, report in previous.invalid.items() if path not in dropped}
    for message in orders.assignments:
        try:
            assignments[message.workload] = decode_assignment(message, orders.term)
        except Invalid as error:
            invalid[message.workload] = pb.Report(
                workload=message.workload,
                uid=message.uid,
                state="Failed",
                revision=message.revision,
                run=message.run,
                failure="INVALID_SPEC",
                how=error.message[:MAX_FAILURE_CHARS],
                log=str(error),
            )
    return AssignmentSet(assignments, invalid)
