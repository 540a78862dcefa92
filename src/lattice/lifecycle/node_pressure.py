"""Node pressure: whether a node is short of memory or disk, and which workload it evicts then."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from lattice.kinds.container import format_amount
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import DISK_PRESSURE_CONDITION, MEMORY_PRESSURE_CONDITION, NodeStatus, NodeUsage
from lattice.kinds.qos import eviction_order, qos_of
from lattice.kinds.workload import LatticeWorkload

# How an event and the message of an eviction begin.
PRESSURE_REASON = "NodePressure"
PRESSURE_CONDITIONS = (MEMORY_PRESSURE_CONDITION, DISK_PRESSURE_CONDITION)


@dataclass(frozen=True, slots=True)
class PressureThresholds:
    """The shares of a node's memory and disk below which the available amount is pressure, and the time for
    which the condition stays after its end, so that it does not flap."""

    memory_share: float = 0.05
    disk_share: float = 0.02
    clear_after: timedelta = timedelta(seconds=60)


DEFAULT_THRESHOLDS = PressureThresholds()


class _Resource(NamedTuple):
    condition: str
    # In the capacity of a node, and in requests.
    name: str
    requests: tuple[str, ...]
    share: float


def _resources(thresholds: PressureThresholds) -> tuple[_Resource, _Resource]:
    return (
        _Resource(MEMORY_PRESSURE_CONDITION, "memory", ("memory",), thresholds.memory_share),
        _Resource(
            DISK_PRESSURE_CONDITION, "storage", ("storage", "ephemeral-storage"), thresholds.disk_share
        ),
    )


def _is_short(resource: _Resource, status: NodeStatus, usage: NodeUsage) -> bool:
    """Whether less than the threshold of the resource is available now."""
    capacity = status.capacity.get(resource.name, 0)
    used = (usage.memory if resource.name == "memory" else usage.disk) or 0
    return bool(capacity) and capacity - used < resource.share * capacity


def pressure_conditions(
    status: NodeStatus, usage: NodeUsage, now: datetime, thresholds: PressureThresholds = DEFAULT_THRESHOLDS
) -> Iterator[Condition]:
    """Yield the conditions MemoryPressure and DiskPressure that hold, and those that end; a node that never
    was under pressure has neither."""
    for resource in _resources(thresholds):
        condition, name = resource.condition, resource.name
        previous = find_condition(status.conditions, condition)
        was_true = previous is not None and previous.status == "True"
        if _is_short(resource, status, usage):
            total = format_amount(name, status.capacity[name])
            message = f"Less than {resource.share:.0%} of {total} {name} is available"
            yield Condition(type=condition, status="True", reason="ThresholdExceeded", message=message)
        elif was_true and previous is not None:
            since = parse_time(previous.last_transition_time or "")
            # A timestamp ahead of this clock does not hold the condition.
            if since is not None and timedelta(0) <= now - since < thresholds.clear_after:
                yield previous
            else:
                message = f"Enough {name} is available"
                yield Condition(type=condition, status="False", reason="Sufficient", message=message)
        elif previous is not None:
            yield previous


def has_pressure_change(
    status: NodeStatus, usage: NodeUsage, now: datetime, thresholds: PressureThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Whether the pressure conditions of the node differ from the usage that the node reports."""
    for condition in pressure_conditions(status, usage, now, thresholds):
        previous = find_condition(status.conditions, condition.type)
        if previous is None or previous.status != condition.status:
            return True
    return False


@dataclass(frozen=True, slots=True)
class PressureVictim:
    """The workload that leaves a node under pressure next, by path, with the reason."""

    path: str
    reason: str


def next_victim(
    node: tuple[NodeStatus, NodeUsage],
    workloads: Iterable[LatticeWorkload],
    usage: Mapping[str, tuple[int, int]],
    thresholds: PressureThresholds = DEFAULT_THRESHOLDS,
) -> PressureVictim | None:
    """Return the workload to evict from a node under pressure: the first in eviction order that uses more than
    it requests. A workload within its request is never evicted.

    `node` is the stored status of the node, and the usage that it reports now: the condition outlasts the
    shortage. `usage` holds the bytes of memory and disk of each workload, by path.
    """
    status, node_usage = node
    residents = [workload for workload in workloads if path_of(workload) in usage]
    for resource in _resources(thresholds):
        pressure, name = find_condition(status.conditions, resource.condition), resource.name
        if pressure is None or pressure.status != "True" or not _is_short(resource, status, node_usage):
            continue
        excess: dict[str, int] = {}
        requested: dict[str, int] = {}
        for workload in residents:
            path, amounts = path_of(workload), workload.spec.request_amounts
            requested[path] = sum(amounts.get(requested_name, 0) for requested_name in resource.requests)
            excess[path] = usage[path][0 if name == "memory" else 1] - requested[path]
        over = [workload for workload in residents if excess[path_of(workload)] > 0]
        order = eviction_order(
            [(path_of(workload), qos_of(workload.spec), workload.spec.priority) for workload in over], excess
        )
        if order:
            path = order[0]
            used, need = excess[path] + requested[path], requested[path]
            text = (
                f"{PRESSURE_REASON}: {pressure.message}; the workload uses {format_amount(name, used)} "
                f"{name} and requests {format_amount(name, need) if need else 'none'}"
            )
            return PressureVictim(path, text)
    return None


def is_under_pressure(status: NodeStatus) -> bool:
    """Whether the node is short of memory or disk."""
    conditions = (find_condition(status.conditions, name) for name in PRESSURE_CONDITIONS)
    return any(condition is not None and condition.status == "True" for condition in conditions)
