"""Drains and NoExecute taints: the evictions that they require from a node, and the Drained condition.

If a service would fall below its minimum, a drain waits for a ready replacement before it evicts a replica; a
NoExecute taint does not wait (I-24).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from lattice.kinds.constraints import Taint, Toleration
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, without_condition
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import DRAINED_CONDITION, DRAINING_TAINT, LatticeNode, NodeStatus
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.lifecycle.disruption import ServiceAvailability
from lattice.lifecycle.eviction import (
    NOT_EVICTING,
    DecidedEviction,
    Eviction,
    EvictionCause,
    EvictionState,
    is_available,
)
from lattice.lifecycle.node_health import is_under_pressure

# The reason of the Drained condition while no node accepts the surge replica.
DRAIN_BLOCKED_REASON = "NoRoomForOneMore"
# The reason of the Drained condition while the drain waits for an update that does not go on.
UPDATE_BLOCKED_REASON = "UpdateBlocked"
STUCK_DRAIN_REASONS = frozenset({DRAIN_BLOCKED_REASON, UPDATE_BLOCKED_REASON})
DRAIN_REASON = "the node is being drained"


@dataclass(frozen=True, slots=True)
class NodeWorkload:
    """A workload on a draining or tainted node."""

    name: str
    service: str = ""
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    # Running and ready.
    is_available: bool = True
    # An eviction has begun that no later plan withdraws.
    is_evicting: bool = False


@dataclass(frozen=True, slots=True)
class NodeEviction:
    """A workload that a drain or a taint evicts from its node after `delay` seconds."""

    name: str
    reason: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The next step of a drain."""

    evictions: tuple[NodeEviction, ...]
    # Workloads that must wait, with the reason.
    blocked: Mapping[str, str]
    # Services that need a surge replica before the drain can evict one of their replicas.
    surge_services: tuple[str, ...]
    # No node accepts a replica of one of the surge services.
    is_surge_unschedulable: bool = False
    # The drain waits for an update or a scale-down that does not go on.
    is_update_blocked: bool = False

    @property
    def is_done(self) -> bool:
        return not self.evictions and not self.blocked


def is_draining(node: LatticeNode) -> bool:
    """Whether the node carries the draining taint, with whatever effect, or is being deleted: a deleted node
    is drained first.

    No toleration covers the draining taint.
    """
    return bool(node.metadata.deletion_timestamp) or any(
        taint.key == DRAINING_TAINT for taint in node.spec.taints
    )


def no_execute_taints(node: LatticeNode) -> list[Taint]:
    """Return the NoExecute taints of the node, without the draining taint."""
    return [
        taint for taint in node.spec.taints if taint.effect == "NoExecute" and taint.key != DRAINING_TAINT
    ]


def needs_eviction_check(node: LatticeNode) -> bool:
    """Whether the eviction controller must reconcile the node, also to clear the status of a former taint or
    drain."""
    has_drained_condition = find_condition(node.status.conditions, DRAINED_CONDITION) is not None
    return (
        is_draining(node)
        or bool(no_execute_taints(node))
        or bool(node.status.taints_since)
        or has_drained_condition
        or is_under_pressure(node.status)
    )


def taint_key(taint: Taint) -> str:
    return f"{taint.key}={taint.value}"


def taints_first_seen(node: LatticeNode, now: str) -> dict[str, str]:
    """Return the timestamp at which each NoExecute taint was first seen, by taint key."""
    first_seen = {}
    for taint in no_execute_taints(node):
        first_seen[taint_key(taint)] = node.status.taints_since.get(taint_key(taint), now)
    return first_seen


def taint_ages(node: LatticeNode, times: Mapping[str, str], now: datetime) -> dict[Taint, float]:
    """Return the seconds since each NoExecute taint was first seen."""
    ages = {}
    for taint in no_execute_taints(node):
        first_seen = parse_time(times[taint_key(taint)]) or now
        ages[taint] = max(0.0, (now - first_seen).total_seconds())
    return ages


def node_workload(workload: LatticeWorkload, eviction: Eviction = NOT_EVICTING) -> NodeWorkload:
    """Return the workload as the drain planner sees it."""
    # Some evictions are not final, and every reconcile decides them again: by a taint or by pressure, because
    # the taint may be removed and the pressure may end, and the eviction of a replica that is not available, because the
    # replica may recover.
    is_revocable = eviction.cause in (EvictionCause.NO_EXECUTE_TAINT, EvictionCause.NODE_PRESSURE)
    is_final = not is_revocable and not eviction.is_withdrawn_if_available
    return NodeWorkload(
        path_of(workload),
        service_path(workload),
        workload.spec.priority,
        workload.spec.constraints.tolerations,
        is_available(workload),
        eviction.state is EvictionState.STOPPING or (eviction.state is EvictionState.REQUESTED and is_final),
    )


def max_toleration_seconds(tolerations: Iterable[Toleration], taint: Taint) -> float | None:
    """Return the seconds for which the longest matching toleration tolerates the taint: 0 if no toleration
    matches, None if a matching toleration has no limit."""
    limits = [toleration.toleration_seconds for toleration in tolerations if toleration.tolerates(taint)]
    if None in limits:
        return None
    return float(max((seconds for seconds in limits if seconds is not None), default=0))


def taint_evictions(residents: Iterable[NodeWorkload], taints: Mapping[Taint, float]) -> list[NodeEviction]:
    """Return the evictions due to NoExecute taints, soonest first; `taints` holds the seconds since each
    taint was first seen."""
    no_execute = sorted(
        (taint for taint in taints if taint.effect == "NoExecute"), key=lambda taint: (taint.key, taint.value)
    )
    evictions = []
    for resident in residents:
        limits = []
        for taint in no_execute:
            limit = max_toleration_seconds(resident.tolerations, taint)
            if limit is not None:
                limits.append((limit - taints[taint], taint))
        if limits:
            remaining, taint = min(limits, key=lambda pair: pair[0])
            name = f"{taint.key}={taint.value}" if taint.value else taint.key
            evictions.append(
                NodeEviction(
                    resident.name,
                    f"no toleration covers taint {name}:NoExecute now",
                    max(0.0, remaining),
                )
            )
    return sorted(evictions, key=lambda eviction: (eviction.delay, eviction.name))


def plan_drain(
    residents: Iterable[NodeWorkload], services: Mapping[str, ServiceAvailability], max_evicting: int = 1
) -> DrainPlan:
    """Choose the workloads that the drain evicts now.

    Unavailable workloads and low priorities come first. At most `max_evicting` replicas of a service are
    evicted at once, and the service never falls below its minimum (I-24).
    """
    ordered = sorted(
        residents, key=lambda resident: (resident.is_available, resident.priority, resident.name)
    )
    evictions: list[NodeEviction] = []
    blocked = {resident.name: "the workload is being stopped" for resident in ordered if resident.is_evicting}
    surge: dict[str, None] = {}
    is_update_blocked = False
    evicting = Counter({name: availability.evicting for name, availability in services.items()})
    spare = {
        name: availability.available - availability.min_available for name, availability in services.items()
    }
    for resident in ordered:
        availability = services.get(resident.service)
        if resident.is_evicting:
            continue
        if availability is None or not resident.is_available:
            evictions.append(NodeEviction(resident.name, DRAIN_REASON))
        elif evicting[resident.service] >= max_evicting:
            replicas = pluralize(evicting[resident.service], "replica")
            blocked[resident.name] = f"{replicas} of service {resident.service} already being evicted"
        elif availability.is_changing:
            change = f"waiting until service {resident.service} has finished replacing or removing replicas"
            blocked[resident.name] = "; ".join(filter(None, (change, availability.change_blocker)))
            is_update_blocked |= bool(availability.change_blocker)
        elif spare[resident.service] < 1:
            reason = availability.unschedulable_reason
            unschedulable = f"; no node accepts the replacement: {reason}" if reason else ""
            blocked[resident.name] = (
                f"a replacement replica must start first: service {resident.service} has "
                f"{availability.available} available and needs {availability.min_available}{unschedulable}"
            )
            surge[resident.service] = None
        else:
            evicting[resident.service] += 1
            spare[resident.service] -= 1
            evictions.append(NodeEviction(resident.name, DRAIN_REASON))
    return DrainPlan(
        tuple(evictions),
        blocked,
        tuple(surge),
        any(services[name].unschedulable_reason for name in surge),
        is_update_blocked,
    )


def node_evictions(
    residents: Iterable[NodeWorkload], by_taint: Iterable[NodeEviction], drain: DrainPlan | None
) -> dict[str, DecidedEviction]:
    """Return the eviction of every workload that must leave the node now, by path.

    A workload that a drain has begun to evict stays evicted while the drain lasts. If a replica that was not
    available recovers, the drain lets the replica stay, unless a NoExecute taint evicts it now (I-24).
    """
    evictions = {}
    if drain is not None:
        for resident in residents:
            if resident.is_evicting:
                evictions[resident.name] = DecidedEviction(EvictionCause.DRAIN, DRAIN_REASON)
    due = {eviction.name: eviction.reason for eviction in by_taint if eviction.delay <= 0}
    for name, reason in due.items():
        evictions[name] = DecidedEviction(EvictionCause.NO_EXECUTE_TAINT, reason)
    if drain is not None:
        drained = {eviction.name for eviction in drain.evictions}
        for resident in residents:
            if resident.name in drained:
                stays_if_available = (
                    bool(resident.service) and not resident.is_available and resident.name not in due
                )
                evictions[resident.name] = DecidedEviction(
                    EvictionCause.DRAIN, DRAIN_REASON, stays_if_available
                )
    return evictions


def without_drained_condition(status: NodeStatus) -> NodeStatus:
    return replace(status, conditions=without_condition(status.conditions, DRAINED_CONDITION))


def drained_condition(drain: DrainPlan, residents: int) -> Condition:
    """Return the Drained condition of a node with `residents` bound workloads; the message names the first
    three blocked workloads."""
    if not residents:
        return Condition(
            type=DRAINED_CONDITION,
            status="True",
            reason="Empty",
            message="No workloads are bound to the node",
        )
    blocked = [f"{name}: {reason}" for name, reason in sorted(drain.blocked.items())]
    parts = [f"{pluralize(residents, 'workload')} still on the node", *blocked[:3]]
    if len(blocked) > 3:
        parts.append(f"and {len(blocked) - 3} more")
    reason = "Leaving"
    if drain.is_surge_unschedulable:
        reason = DRAIN_BLOCKED_REASON
    elif drain.is_update_blocked:
        reason = UPDATE_BLOCKED_REASON
    return Condition(type=DRAINED_CONDITION, status="False", reason=reason, message="; ".join(parts))
