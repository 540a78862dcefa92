"""How is a service? Its replicas, counted, and one word for all of them."""

from collections.abc import Sequence

import msgspec

from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.quantity import micros
from lattice.kinds.service import Health, LatticeService, ServiceStatus
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.status.service_status import total_cost


def with_health(service: LatticeService, replicas: Sequence[LatticeWorkload]) -> ServiceStatus:
    """The status with what its replicas say; where they are and why is somebody else's to write. `last_transition_time` too."""
    available = ready = 0
    failed: list[LatticeWorkload] = []
    for each in replicas:
        status = each.status
        if status.actual_state == "Pending" or each.metadata.deletion_timestamp:
            continue
        if status.actual_state == "Running":
            available += 1
            ready += bool(status.ready)
        elif status.actual_state == "Failed":
            failed.append(each)
    wanted = sum(each.replicas or 0 for each in service.status.placements)
    phase = _phase(service, wanted, ready, len(failed))
    return msgspec.structs.replace(
        service.status,
        replicas=len(replicas),
        health=Health(available=available, ready=ready),
        phase=phase,
        total_cost=total_cost(
            sum(
                micros(each.cost.hourly)
                for each in service.status.placements
                if each.cost and each.cost.hourly
            )
        ),
        observed_generation=service.metadata.generation,
        conditions=(_ready(service, wanted, ready, failed),),
    )


def _phase(service: LatticeService, wanted: int, ready: int, failed: int) -> str:
    if service.metadata.deletion_timestamp:
        return "Deleting"
    if not wanted and service.spec.wanted():
        decided = service.status.scheduler_decision
        return "Unschedulable" if decided is not None and decided.verdict not in ("", "Placed") else "Pending"
    if failed:
        return "Degraded" if ready else "Failed"
    return "Running" if ready >= wanted and wanted >= service.spec.wanted() else "Progressing"


def _ready(service: LatticeService, wanted: int, ready: int, failed: Sequence[LatticeWorkload]) -> Condition:
    needed = max(wanted, service.spec.wanted())
    message = f"{ready:,} of {needed:,} replicas are ready"
    if failed:
        first = failed[0]
        message += f"; {first.metadata.name} failed: {first.status.failure_reason or 'no reason was told'}"
    is_ready = ready >= needed
    reason = "ReplicasReady" if is_ready else "ReplicaFailed" if failed else "ReplicasMissing"
    return Condition(type="Ready", status="True" if is_ready else "False", reason=reason, message=message)
