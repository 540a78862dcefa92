"""Assignments and run specs of agents."""

from typing import Any

from lattice.agent.host.runtime_protocol import Instance, InstanceId, RunSpec
from lattice.agent.plan import Assignment
from lattice.kinds.container import Container, Port


def instance_id(uid: str = "u1", revision: str = "a1", container: str = "main") -> InstanceId:
    return InstanceId(uid, revision, container)


def a_spec(*command: str, **rest: Any) -> RunSpec:
    """A run spec of one container with this command; `container=` gives the whole container."""
    rest.setdefault("id", instance_id())
    container = rest.pop("container", None) or Container(command=command)
    return RunSpec(workload=rest.pop("workload", "default/web"), container=container, **rest)


def shell(script: str, **rest: Any) -> RunSpec:
    return a_spec("sh", "-c", script, **rest)


def listening(number: int, *command: str) -> RunSpec:
    return a_spec(container=Container(command=command, ports=(Port(name="http"),)), ports={"http": number})


def an_assignment(
    workload: str = "default/web", uid: str = "u1", revision: str = "a1", **rest: Any
) -> Assignment:
    containers = rest.pop("containers", {"main": Container(command=("sleep", "60"))})
    return Assignment(workload=workload, uid=uid, revision=revision, containers=containers, **rest)


def an_instance(workload: str = "default/web", **rest: Any) -> Instance:
    given: dict[str, Any] = {"id": instance_id(), "attempt": 0, "state": "Running"} | rest
    return Instance(workload=workload, **given)
