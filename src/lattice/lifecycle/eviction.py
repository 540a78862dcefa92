"""Which marks on a node make workloads leave it, and who are the workloads and services that this is about?"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from lattice.kinds.constraint import Taint
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import DRAINING_TAINT, LatticeNode, NodeStatus
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import EVICTED, LatticeWorkload
from lattice.lifecycle.node_health import DRAIN_REASON, DrainPlan, Eviction, NodeWorkload, ServiceAvailability
from lattice.lifecycle.workload import LIVE_STATES, Action
from lattice.lifecycle.workload_status import desired_state

PLACED_CONDITION = "Placed"  # a condition of services
DRAINED_CONDITION = "Drained"  # a condition of nodes
DRAIN_BLOCKED_REASON = "NoRoomForOneMore"  # its reason while the drain cannot go on


def workload_path(workload: LatticeWorkload) -> str:
    return f"{workload.metadata.namespace}/{workload.metadata.name}"


def service_path(workload: LatticeWorkload) -> str:
    """Path of its service; empty without one."""
    return f"{workload.metadata.namespace}/{workload.spec.service}" if workload.spec.service else ""


def is_draining(node: LatticeNode) -> bool:
    """Whatever the effect of the mark, nobody tolerates it; a node that is being removed is drained first."""
    return bool(node.metadata.deletion_timestamp) or any(
        taint.key == DRAINING_TAINT for taint in node.spec.taints
    )


def no_execute_taints(node: LatticeNode) -> list[Taint]:
    return [
        taint for taint in node.spec.taints if taint.effect == "NoExecute" and taint.key != DRAINING_TAINT
    ]


def needs_eviction_check(node: LatticeNode) -> bool:
    """Also while something of a former mark is left in its status."""
    is_told = any(each.type == DRAINED_CONDITION for each in node.status.conditions)
    return is_draining(node) or bool(no_execute_taints(node)) or bool(node.status.taints_since) or is_told


def taint_key(taint: Taint) -> str:
    return f"{taint.key}={taint.value}"


def taints_first_seen(node: LatticeNode, now: str) -> dict[str, str]:
    """When each taint that expels was first seen."""
    return {
        taint_key(taint): node.status.taints_since.get(taint_key(taint), now)
        for taint in no_execute_taints(node)
    }


def taint_ages(node: LatticeNode, times: Mapping[str, str], now: datetime) -> dict[Taint, float]:
    """Seconds since each came."""
    seen = {taint: parse_time(times[taint_key(taint)]) or now for taint in no_execute_taints(node)}
    return {taint: max(0.0, (now - when).total_seconds()) for taint, when in seen.items()}


def node_workload(workload: LatticeWorkload, told: Collection[str] = ()) -> NodeWorkload:
    """`told`: paths of workloads that were found to have to leave; it may not be stored yet."""
    path = workload_path(workload)
    return NodeWorkload(
        path,
        service_path(workload),
        workload.spec.priority,
        workload.spec.constraints.tolerations,
        is_available(workload),
        path in told or is_evicting(workload),
    )


def is_available(workload: LatticeWorkload) -> bool:
    return (
        bool(workload.status.ready)
        and workload.status.actual_state == "Running"
        and desired_state(workload) == "Running"
    )


def is_evicting(workload: LatticeWorkload) -> bool:
    """Was it told to stop though it is to run?"""
    status = workload.status
    was_stopped = status.last_action == Action.APPLY_STOPPED and status.actual_state in LIVE_STATES
    return was_stopped and status.binding is not None and desired_state(workload) == "Running"


def preemption_reason(workload: LatticeWorkload) -> str:
    """Why it has to make room for another; empty if it has not."""
    return next(
        (
            each.message or each.reason
            for each in workload.status.conditions
            if each.type == EVICTED and each.status == "True"
        ),
        "",
    )


def service_availability(
    service: LatticeService | None,
    replicas: Iterable[LatticeWorkload],
    told: Collection[str],
    *,
    is_surged: bool = False,
) -> ServiceAvailability:
    """`is_surged`: one more than were placed was asked for, and is not taken away again."""
    available = leaving = live = 0
    for each in replicas:
        live += desired_state(each) != "Deleted"
        if is_evicting(each) or workload_path(each) in told or preemption_reason(each):
            leaving += each.status.binding is not None
        else:
            available += is_available(each)
    staying = _expected_replicas(service) if service else None
    is_changing = staying is not None and live > staying + is_surged
    return ServiceAvailability(available, service.spec.min_replicas if service else 0, leaving, is_changing)


def _expected_replicas(service: LatticeService) -> int | None:
    """So many replicas stay: as decided; if it was changed since, no more than it asks for now, and who goes is about to be decided.
    One for which no place was found keeps as many as it asks for where they are; None: nobody places it."""
    placed = sum(each.replicas or 0 for each in service.status.placements)
    said = next((each for each in service.status.conditions if each.type == PLACED_CONDITION), None)
    is_decided = said is None or said.observed_generation == service.metadata.generation
    if not placed:
        return None if said is None else service.spec.desired_replicas()
    return placed if is_decided else min(placed, service.spec.desired_replicas())


def eviction_reasons(
    here: Iterable[NodeWorkload], expelled: Iterable[Eviction], found: DrainPlan | None
) -> dict[str, str]:
    """Why each workload that must leave now must; whoever was told to leave because of a drain goes on doing so while it lasts."""
    going = {each.name: DRAIN_REASON for each in here if found is not None and each.is_evicting}
    leaves = [*expelled, *(found.evictions if found is not None else ())]
    return going | {each.name: each.reason for each in leaves if each.delay <= 0}


def without_drained_condition(status: NodeStatus) -> NodeStatus:
    return replace(
        status, conditions=tuple(each for each in status.conditions if each.type != DRAINED_CONDITION)
    )


def drained_condition(found: DrainPlan, residents: int) -> Condition:
    if not residents:
        return Condition(
            type=DRAINED_CONDITION, status="True", reason="Empty", message="nothing is bound to it any more"
        )
    why = [f"{name}: {reason}" for name, reason in sorted(found.blocked.items())]
    words = "; ".join(
        [f"{residents} still here", *why[:3], *([f"and {len(why) - 3} more"] if len(why) > 3 else [])]
    )
    return Condition(
        type=DRAINED_CONDITION,
        status="False",
        reason=DRAIN_BLOCKED_REASON if found.is_surge_unschedulable else "Leaving",
        message=words,
    )


class DisruptionBudget(dict[str, int]):
    """By service (namespace/service), of those that were asked about: looked up once, then counted down, until all is cleared.

    `source` says None of one that is not limited. Never empty as a truth value: there is always more to ask about.
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


def disruptions_allowed(found: ServiceAvailability) -> int:
    """Never so many that fewer are left than the service must keep; none while its replicas are being replaced or removed."""
    return 0 if found.is_changing else max(0, found.available - found.min_available)
