"""The plan of an agent: compare the assignments with the instances and return the instances to start, stop
and remove. Pure.

A workload never has two copies (I-19): a start waits until the node has no live instance of another revision
of the workload, or of an earlier workload with the same name. If the agent executes a plan and plans again,
the plan is empty after a few rounds.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from lattice.agent.host.runtime_protocol import Instance, InstanceId, Limits, RunSpec
from lattice.kinds.container import Container, Disconnect, parse_amounts
from lattice.kinds.qos import qos_of
from lattice.kinds.workload import DesiredState, RestartPolicy, WorkloadSpec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state of one workload on the node."""

    workload: str  # namespace/name
    uid: str
    revision: str
    term: int = 0  # leadership term of the assignment
    desired: DesiredState = "Running"
    # The number of the run, which the server calls `run`; a later run restarts an instance that has ended.
    attempt: int = 0
    containers: dict[str, Container] = {}
    env: dict[str, str] = {}
    ports: dict[str, int] = {}
    # Limits of the workload; applied to every container if no container states limits.
    limits: Limits = Limits()
    # Requests of the workload; applied to every container if no container states requests.
    requests: Limits = Limits()
    qos: str = ""  # quality-of-service class; empty from an old server
    disconnect: Disconnect = Disconnect()
    # GPUs of the node by index from 0, and the thousandths of the one shared GPU; 0: whole GPUs.
    gpus: tuple[int, ...] = ()
    gpu_milli: int = 0
    restart: RestartPolicy = "Always"

    @property
    def may_succeed(self) -> bool:
        """Whether a container that ends with exit code 0 has done its work."""
        return self.restart != "Always"


class Start(msgspec.Struct, frozen=True):
    spec: RunSpec


class Stop(msgspec.Struct, frozen=True):
    id: InstanceId
    reason: Literal[
        "no assignment on this node", "revision changed", "desired state Stopped", "workload deleted"
    ]


class Remove(msgspec.Struct, frozen=True):
    id: InstanceId


Action = Start | Stop | Remove


def plan(assignments: Iterable[Assignment], instances: Iterable[Instance]) -> list[Action]:
    """The actions for the current state, stops and removals first; the order of the input does not matter."""
    assignment_by_path = newest_assignments(assignments)
    ordered = sorted(instances, key=lambda instance: instance.id)
    actions: list[Action] = []
    for instance in ordered:
        reason = _stop_reason(instance, assignment_by_path.get(instance.workload))
        if reason is None:
            continue
        if instance.is_live:
            actions.append(Stop(instance.id, reason))
        # The instance of a stopped workload stays recorded, so that its logs remain readable.
        elif reason != "desired state Stopped":
            actions.append(Remove(instance.id))
    for path, assignment in sorted(assignment_by_path.items()):
        own = [instance for instance in ordered if instance.workload == path]
        # A live instance of another revision or workload must end before the start (I-19).
        if assignment.desired != "Running" or any(
            instance.is_live and _stop_reason(instance, assignment) for instance in own
        ):
            continue
        settled = {instance.id for instance in own if instance.covers_attempt(assignment.attempt)}
        specs = (run_spec(assignment, name) for name in sorted(assignment.containers))
        actions += [Start(spec) for spec in specs if spec.id not in settled]
    return actions


def newest_assignments(assignments: Iterable[Assignment]) -> dict[str, Assignment]:
    """One assignment per workload: the assignment of the latest term; within one term, the assignment that is
    to run."""
    newest_by_path: dict[str, Assignment] = {}
    for assignment in assignments:
        current = newest_by_path.get(assignment.workload)
        if current is None or _rank(current) < _rank(assignment):
            newest_by_path[assignment.workload] = assignment
    return newest_by_path


def _rank(assignment: Assignment) -> tuple[int, bool, str, str, int, bytes]:
    return (
        assignment.term,
        assignment.desired == "Running",
        assignment.uid,
        assignment.revision,
        assignment.attempt,
        # The encoded assignment breaks ties, so that the order of the input does not matter.
        msgspec.json.encode(assignment, order="sorted"),
    )


def _stop_reason(
    instance: Instance, assignment: Assignment | None
) -> (
    Literal["no assignment on this node", "revision changed", "desired state Stopped", "workload deleted"]
    | None
):
    """The reason to stop or remove an instance, or None if the instance matches its assignment."""
    if assignment is None or assignment.uid != instance.id.uid:
        return "no assignment on this node"
    if assignment.desired == "Deleted":
        return "workload deleted"
    if assignment.revision != instance.id.revision or instance.id.container not in assignment.containers:
        return "revision changed"
    return "desired state Stopped" if assignment.desired == "Stopped" else None


def run_spec(assignment: Assignment, name: str) -> RunSpec:
    """The run specification of one container of an assignment."""
    container = assignment.containers[name]
    return RunSpec(
        id=InstanceId(assignment.uid, assignment.revision, name),
        workload=assignment.workload,
        container=container,
        attempt=assignment.attempt,
        env=assignment.env,
        # If several containers have a port of the same name, each number is under `container.port`.
        ports={
            port.name: number
            for port in container.ports
            if (
                number := assignment.ports.get(f"{name}.{port.name}")
                or assignment.ports.get(port.name, port.port)
            )
        },
        limits=limits_of(container, assignment),
        requests=requests_of(container, assignment),
        qos=assignment.qos,
        stop_after=assignment.disconnect.stop_after_ms / 1000
        if assignment.disconnect.policy == "stop"
        else None,
        gpus=assignment.gpus,
        gpu_milli=assignment.gpu_milli,
    )


def limits_of(container: Container, assignment: Assignment) -> Limits:
    """The container's own limits; the limits of the workload apply to every container if no container states
    limits."""
    if any(sibling.resources and sibling.resources.limits for sibling in assignment.containers.values()):
        own: Mapping[str, int] = parse_amounts(container.resources.limits) if container.resources else {}
        return Limits(cpu=own.get("cpu"), memory=own.get("memory"))
    return assignment.limits


def requests_of(container: Container, assignment: Assignment) -> Limits:
    """The container's own requests; the requests of the workload apply to every container if no container
    states requests."""
    if any(sibling.resources and sibling.resources.requests for sibling in assignment.containers.values()):
        own: Mapping[str, int] = parse_amounts(container.resources.requests) if container.resources else {}
        return Limits(cpu=own.get("cpu"), memory=own.get("memory"))
    return assignment.requests


def assignment_from_spec(workload: str, uid: str, spec: WorkloadSpec) -> Assignment:
    """The assignment for a workload spec; the control plane adds ports, term and attempt."""
    limits, requests = spec.limit_amounts, spec.request_amounts
    return Assignment(
        workload=workload,
        uid=uid,
        revision=spec.revision,
        desired=spec.desired_state,
        containers=spec.containers,
        limits=Limits(cpu=limits.get("cpu"), memory=limits.get("memory")),
        requests=Limits(cpu=requests.get("cpu"), memory=requests.get("memory")),
        qos=qos_of(spec).name,
        disconnect=spec.disconnect,
    )
