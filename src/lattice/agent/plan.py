"""What should an agent do next? What it was told to run, beside what there is, gives what to start, stop and remove. Pure.

Never two copies of one workload: a start waits until nothing else that bears the workload's name lives, be it another revision or an
earlier workload of the same name. Doing what is planned and planning again, nothing is left to do after a few rounds.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from lattice.agent.host.runtime_protocol import Instance, InstanceId, Limits, RunSpec
from lattice.kinds.container import Container, Disconnect, Port, parse_amounts
from lattice.kinds.workload import DesiredState, WorkloadSpec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What one workload is to do on this node."""

    workload: str  # namespace/name
    uid: str
    revision: str
    term: int = 0  # leadership term that ordered it
    desired: DesiredState = "Running"
    attempt: int = 0  # retries so far; a higher one starts again what has ended
    containers: dict[str, Container] = {}
    env: dict[str, str] = {}
    ports: dict[str, int] = {}
    limits: Limits = Limits()  # of the whole workload; counts for containers that state none
    disconnect: Disconnect = Disconnect()


class Start(msgspec.Struct, frozen=True):
    spec: RunSpec


class Stop(msgspec.Struct, frozen=True):
    id: InstanceId
    reason: Literal["not wanted here", "other revision", "to be stopped", "to be deleted"]


class Remove(msgspec.Struct, frozen=True):
    id: InstanceId


Action = Start | Stop | Remove


def plan(wanted: Iterable[Assignment], running: Iterable[Instance]) -> list[Action]:
    """What to do now, stops first; the same input in any order gives the same answer."""
    orders = newest(wanted)
    there = sorted(running, key=lambda each: each.id)
    stops: list[Action] = [
        action for each in there if (action := _stop_or_remove(each, orders.get(each.workload))) is not None
    ]
    starts = [
        action
        for name in sorted(orders)
        for action in _starts(orders[name], [each for each in there if each.workload == name])
    ]
    return [*stops, *starts]


def newest(wanted: Iterable[Assignment]) -> dict[str, Assignment]:
    """One order per workload: of two for the same name, that of the later leader; of one leader, the one that is to run."""
    orders: dict[str, Assignment] = {}
    for each in wanted:
        other = orders.get(each.workload)
        if other is None or _rank(other) < _rank(each):
            orders[each.workload] = each
    return orders


def _rank(order: Assignment) -> tuple[int, bool, str, str, int, bytes]:
    return (
        order.term,
        order.desired == "Running",
        order.uid,
        order.revision,
        order.attempt,
        msgspec.json.encode(order, order="sorted"),
    )


def _stop_or_remove(instance: Instance, order: Assignment | None) -> Stop | Remove | None:
    why = _stop_reason(instance, order)
    if why is None:
        return None
    if instance.is_live:
        return Stop(instance.id, why)
    return None if why == "to be stopped" else Remove(instance.id)  # a stopped one keeps its logs


def _stop_reason(
    instance: Instance, order: Assignment | None
) -> Literal["not wanted here", "other revision", "to be stopped", "to be deleted"] | None:
    if order is None or order.uid != instance.id.uid:
        return "not wanted here"
    if order.desired == "Deleted":
        return "to be deleted"
    if order.revision != instance.id.revision or instance.id.container not in order.containers:
        return "other revision"
    return "to be stopped" if order.desired == "Stopped" else None


def _starts(order: Assignment, there: list[Instance]) -> list[Action]:
    if order.desired != "Running" or any(each.is_live and _stop_reason(each, order) for each in there):
        return []
    settled = {each.id for each in there if each.covers_attempt(order.attempt)}
    specs = (run_spec(order, name) for name in sorted(order.containers))
    return [Start(spec) for spec in specs if spec.id not in settled]


def run_spec(order: Assignment, name: str) -> RunSpec:
    container = order.containers[name]
    return RunSpec(
        id=InstanceId(order.uid, order.revision, name),
        workload=order.workload,
        container=container,
        attempt=order.attempt,
        env=order.env,
        ports={port.name: number for port in container.ports if (number := _host_port(order, name, port))},
        limits=limits_of(container, order),
        stop_after=order.disconnect.stop_after_ms / 1000 if order.disconnect.policy == "stop" else None,
    )


def _host_port(order: Assignment, container: str, port: Port) -> int | None:
    """Where two containers have a port of the same name, each number is under `container.port`."""
    return order.ports.get(f"{container}.{port.name}") or order.ports.get(port.name, port.port)


def limits_of(container: Container, order: Assignment) -> Limits:
    """The container's own limits; those of the workload, if none of its containers states any, hold for each of them."""
    if any(each.resources and each.resources.limits for each in order.containers.values()):
        own: Mapping[str, int] = parse_amounts(container.resources.limits) if container.resources else {}
        return Limits(cpu=own.get("cpu"), memory=own.get("memory"))
    return order.limits


def assignment_from_spec(workload: str, uid: str, spec: WorkloadSpec) -> Assignment:
    """What the spec of a workload asks of its node; ports, term and attempt are the control plane's to add."""
    whole = spec.limit_amounts
    return Assignment(
        workload=workload,
        uid=uid,
        revision=spec.revision,
        desired=spec.desired_state,
        containers=spec.containers,
        limits=Limits(cpu=whole.get("cpu"), memory=whole.get("memory")),
        disconnect=spec.disconnect,
    )
