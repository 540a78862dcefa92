"""Which marks on a node make workloads leave it, and who are the workloads and services that this is about?"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from lattice.kinds.meta.base import Condition
from lattice.kinds.constraint import Taint
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.node_info import DRAINING_TAINT
from lattice.lifecycle.workload import LIVE, Action
from lattice.lifecycle.node_health import FOR_A_DRAIN, Drain, Leave, Resident, Standing
from lattice.lifecycle.workload_status import desired
from lattice.lifecycle.retry import read
from lattice.scheduling.cycle.scheduler_cache import LEAVING

PLACED = "Placed"  # a condition of services
DRAINED = "Drained"  # a condition of nodes
STUCK = "NoRoomForOneMore"  # its reason while the drain cannot go on


def path_of(workload: LatticeWorkload) -> str:
    return f"{workload.metadata.namespace}/{workload.metadata.name}"


def service_of(workload: LatticeWorkload) -> str:
    """Path of its service; empty without one."""
    return f"{workload.metadata.namespace}/{workload.spec.service}" if workload.spec.service else ""


def is_draining(node: LatticeNode) -> bool:
    """Whatever the effect of the mark, nobody tolerates it; a node that is being removed is drained first."""
    return bool(node.metadata.deletion_timestamp) or any(
        taint.key == DRAINING_TAINT for taint in node.spec.taints
    )


def expelling(node: LatticeNode) -> list[Taint]:
    return [
        taint for taint in node.spec.taints if taint.effect == "NoExecute" and taint.key != DRAINING_TAINT
    ]


def is_marked(node: LatticeNode) -> bool:
    """Also while something of a former mark is left in its status."""
    is_told = any(each.type == DRAINED for each in node.status.conditions)
    return is_draining(node) or bool(expelling(node)) or bool(node.status.taints_since) or is_told


def mark(taint: Taint) -> str:
    return f"{taint.key}={taint.value}"


def since(node: LatticeNode, now: str) -> dict[str, str]:
    """When each taint that expels was first seen."""
    return {mark(taint): node.status.taints_since.get(mark(taint), now) for taint in expelling(node)}


def ages(node: LatticeNode, times: Mapping[str, str], now: datetime) -> dict[Taint, float]:
    """Seconds since each came."""
    seen = {taint: read(times[mark(taint)]) or now for taint in expelling(node)}
    return {taint: max(0.0, (now - when).total_seconds()) for taint, when in seen.items()}


def resident(workload: LatticeWorkload, told: Collection[str] = ()) -> Resident:
    """`told`: paths of workloads that were found to have to leave; it may not be stored yet."""
    path = path_of(workload)
    return Resident(
        path,
        service_of(workload),
        workload.spec.priority,
        workload.spec.constraints.tolerations,
        is_available(workload),
        path in told or is_leaving(workload),
    )


def is_available(workload: LatticeWorkload) -> bool:
    return (
        bool(workload.status.ready)
        and workload.status.actual_state == "Running"
        and desired(workload) == "Running"
    )


def is_leaving(workload: LatticeWorkload) -> bool:
    """Was it told to stop though it is to run?"""
    status = workload.status
    was_stopped = status.last_action == Action.APPLY_STOPPED and status.actual_state in LIVE
    return was_stopped and status.binding is not None and desired(workload) == "Running"


def preempted(workload: LatticeWorkload) -> str:
    """Why it has to make room for another; empty if it has not."""
    return next(
        (
            each.message or each.reason
            for each in workload.status.conditions
            if each.type == LEAVING and each.status == "True"
        ),
        "",
    )


def standing(
    service: LatticeService | None,
    replicas: Iterable[LatticeWorkload],
    told: Collection[str],
    *,
    is_surged: bool = False,
) -> Standing:
    """`is_surged`: one more than were placed was asked for, and is not taken away again."""
    available = leaving = live = 0
    for each in replicas:
        live += desired(each) != "Deleted"
        if is_leaving(each) or path_of(each) in told or preempted(each):
            leaving += each.status.binding is not None
        else:
            available += is_available(each)
    staying = _staying(service) if service else None
    is_changing = staying is not None and live > staying + is_surged
    return Standing(available, service.spec.least if service else 0, leaving, is_changing)


def _staying(service: LatticeService) -> int | None:
    """So many replicas stay: as decided; if it was changed since, no more than it asks for now, and who goes is about to be decided.
    One for which no place was found keeps as many as it asks for where they are; None: nobody places it."""
    placed = sum(each.replicas or 0 for each in service.status.placements)
    said = next((each for each in service.status.conditions if each.type == PLACED), None)
    is_decided = said is None or said.observed_generation == service.metadata.generation
    if not placed:
        return None if said is None else service.spec.wanted()
    return placed if is_decided else min(placed, service.spec.wanted())


def reasons(here: Iterable[Resident], expelled: Iterable[Leave], found: Drain | None) -> dict[str, str]:
    """Why each workload that must leave now must; whoever was told to leave because of a drain goes on doing so while it lasts."""
    going = {each.name: FOR_A_DRAIN for each in here if found is not None and each.is_leaving}
    leaves = [*expelled, *(found.leave if found is not None else ())]
    return going | {each.name: each.reason for each in leaves if each.after <= 0}


def undrained(status: NodeStatus) -> NodeStatus:
    return replace(status, conditions=tuple(each for each in status.conditions if each.type != DRAINED))


def drained(found: Drain, residents: int) -> Condition:
    if not residents:
        return Condition(
            type=DRAINED, status="True", reason="Empty", message="nothing is bound to it any more"
        )
    why = [f"{name}: {reason}" for name, reason in sorted(found.held.items())]
    words = "; ".join(
        [f"{residents} still here", *why[:3], *([f"and {len(why) - 3} more"] if len(why) > 3 else [])]
    )
    return Condition(
        type=DRAINED, status="False", reason=STUCK if found.is_stuck else "Leaving", message=words
    )
