"""Eviction from draining and tainted nodes: taints that evict, availability of services, disruption budgets
and the Drained condition."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from lattice.kinds.constraint import Taint
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, without_condition
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import DRAINED_CONDITION, DRAINING_TAINT, LatticeNode, NodeStatus
from lattice.kinds.service import PLACED_CONDITION, LatticeService
from lattice.kinds.workload import EVICTED, LatticeWorkload, service_path
from lattice.lifecycle.node_health import DRAIN_REASON, DrainPlan, Eviction, NodeWorkload, ServiceAvailability
from lattice.lifecycle.workload import LIVE_STATES, Action
from lattice.lifecycle.workload_status import desired_state

# The reason of the Drained condition while no node accepts the surge replica.
DRAIN_BLOCKED_REASON = "NoRoomForOneMore"


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
    """Whether the eviction controller has work on the node, which includes clearing the status of a former
    taint or drain."""
    has_drained_condition = find_condition(node.status.conditions, DRAINED_CONDITION) is not None
    return (
        is_draining(node)
        or bool(no_execute_taints(node))
        or bool(node.status.taints_since)
        or has_drained_condition
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


def node_workload(workload: LatticeWorkload, evicting: Collection[str] = ()) -> NodeWorkload:
    """Return the workload as the drain planner sees it.

    `evicting` holds paths of workloads whose eviction is decided but perhaps not stored yet.
    """
    path = path_of(workload)
    return NodeWorkload(
        path,
        service_path(workload),
        workload.spec.priority,
        workload.spec.constraints.tolerations,
        is_available(workload),
        path in evicting or is_evicting(workload),
    )


def is_available(workload: LatticeWorkload) -> bool:
    """Whether the workload runs, is ready and should run."""
    return (
        bool(workload.status.ready)
        and workload.status.actual_state == "Running"
        and desired_state(workload) == "Running"
    )


def is_evicting(workload: LatticeWorkload) -> bool:
    """Whether the workload should run, but was ordered to stop on its node and has not stopped yet."""
    status = workload.status
    was_stopped = status.last_action == Action.APPLY_STOPPED and status.actual_state in LIVE_STATES
    return was_stopped and status.binding is not None and desired_state(workload) == "Running"


def preemption_reason(workload: LatticeWorkload) -> str:
    """Return the reason of the workload's preemption; empty for a workload that is not a victim."""
    condition = find_condition(workload.status.conditions, EVICTED)
    if condition is None or condition.status != "True":
        return ""
    return condition.message or condition.reason


def service_availability(
    service: LatticeService | None,
    replicas: Iterable[LatticeWorkload],
    evicting: Collection[str],
    *,
    is_surged: bool = False,
) -> ServiceAvailability:
    """Count the available and the evicting replicas of a service.

    `evicting` holds paths of replicas whose eviction is decided but perhaps not stored yet. `is_surged`: a
    surge replica was requested for a drain, and does not count as a replica to remove.
    """
    available = evicting_count = live = 0
    for replica in replicas:
        live += desired_state(replica) != "Deleted"
        if is_evicting(replica) or path_of(replica) in evicting or preemption_reason(replica):
            evicting_count += replica.status.binding is not None
        else:
            available += is_available(replica)
    expected = _expected_replicas(service) if service else None
    is_changing = expected is not None and live > expected + is_surged
    return ServiceAvailability(
        available, service.spec.min_replicas if service else 0, evicting_count, is_changing
    )


def _expected_replicas(service: LatticeService) -> int | None:
    """The number of replicas that stay after the placement of the service; None for a service without
    placement decisions.

    If the service changed since its placement was decided, the lower of the placed and the desired count
    stays, because the choice of removed replicas is still open (I-28). An unplaced service keeps its desired
    count on the present nodes.
    """
    placed = sum(placement.replicas or 0 for placement in service.status.placements)
    condition = find_condition(service.status.conditions, PLACED_CONDITION)
    is_decided = condition is None or condition.observed_generation == service.metadata.generation
    if not placed:
        return None if condition is None else service.spec.desired_replicas()
    return placed if is_decided else min(placed, service.spec.desired_replicas())


def eviction_reasons(
    residents: Iterable[NodeWorkload], taint_evictions: Iterable[Eviction], drain: DrainPlan | None
) -> dict[str, str]:
    """Return the reason for every workload that must leave the node now.

    A workload that a drain has begun to evict stays evicted while the drain lasts.
    """
    reasons = {}
    if drain is not None:
        for resident in residents:
            if resident.is_evicting:
                reasons[resident.name] = DRAIN_REASON
    for eviction in [*taint_evictions, *(drain.evictions if drain is not None else ())]:
        if eviction.delay <= 0:
            reasons[eviction.name] = eviction.reason
    return reasons


def without_drained_condition(status: NodeStatus) -> NodeStatus:
    return replace(status, conditions=without_condition(status.conditions, DRAINED_CONDITION))


def drained_condition(drain: DrainPlan, residents: int) -> Condition:
    """Return the Drained condition of a node with `residents` bound workloads; the message names the first
    three blocked workloads."""
    if not residents:
        return Condition(
            type=DRAINED_CONDITION, status="True", reason="Empty", message="nothing is bound to it any more"
        )
    blocked = [f"{name}: {reason}" for name, reason in sorted(drain.blocked.items())]
    parts = [f"{residents} still here", *blocked[:3]]
    if len(blocked) > 3:
        parts.append(f"and {len(blocked) - 3} more")
    return Condition(
        type=DRAINED_CONDITION,
        status="False",
        reason=DRAIN_BLOCKED_REASON if drain.is_surge_unschedulable else "Leaving",
        message="; ".join(parts),
    )


class DisruptionBudget(dict[str, int]):
    """Remaining disruptions by service path: looked up from `source` on first use, then counted down by the
    scheduler until cleared.

    `source` returns None for a service without a limit; such a service is not contained. A budget without
    entries is still true, because further services can be looked up.
    """

    def __init__(self, source: Callable[[str], int | None]) -> None:
        super().__init__()
        self._source = source

    def __bool__(self) -> bool:
        return True

    def __contains__(self, service: object) -> bool:
        if not isinstance(service, str) or not service:
            return False
        if not super().__contains__(service):
            limit = self._source(service)
            if limit is None:
                return False
            self[service] = limit
        return True


def disruptions_allowed(availability: ServiceAvailability) -> int:
    """Return how many replicas of the service may be evicted now without falling below its minimum (I-28).

    No replica may be evicted while a rollout or scale-down replaces or removes replicas.
    """
    return 0 if availability.is_changing else max(0, availability.available - availability.min_available)
