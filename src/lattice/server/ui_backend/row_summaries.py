"""Summary rows of objects for the lists of the web page: a few fields per object instead of megabytes of
whole objects."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.meta.base import Kind, path_of
from lattice.kinds.meta.conditions import find_false
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import SCHEDULED_CONDITION, LatticeWorkload
from lattice.lifecycle.service_health import failure_text
from lattice.server.live.usage_tables import is_ready, workload_requests

Row = dict[str, Any]


def row_summary(obj: Kind) -> Row:
    """Return the summary row of an object: `path`, the key of the row, name and creation time, and the fields
    of the kind."""
    metadata = obj.metadata
    row: Row = {
        "path": path_of(obj),
        "name": metadata.name,
        "created": metadata.creation_timestamp,
    }
    if metadata.namespace:
        row["namespace"] = metadata.namespace
    if metadata.deletion_timestamp:
        row["leaves"] = True
    return row | ROW_BUILDERS[type(obj)](obj) if type(obj) in ROW_BUILDERS else row


def service_row(obj: LatticeService) -> Row:
    status = obj.status
    health, decision = status.health, status.scheduler_decision
    return {
        "wanted": status.wanted_replicas or obj.spec.desired_replicas(),
        "replicas": status.replicas or 0,
        "ready": (health.ready or 0) if health else 0,
        "pools": sorted({placement.pool for placement in status.placements}),
        "clusters": sorted({placement.cluster for placement in status.placements if placement.cluster}),
        "hourlyMicros": _micros(status.total_cost.hourly if status.total_cost else None),
        "isPriced": not any(placement.replicas and placement.cost is None for placement in status.placements),
        "phase": status.phase,
        "verdict": decision.verdict if decision else "",
        "why": decision.reason if decision else "",
        "labels": obj.metadata.labels,
    }


def workload_row(obj: LatticeWorkload) -> Row:
    status = obj.status
    cpu, memory = workload_requests(obj)
    row: Row = {
        "service": obj.spec.service,
        "node": status.binding.node if status.binding else "",
        "cluster": obj.spec.cluster,
        "state": status.actual_state,
        "wanted": obj.spec.desired_state,
        "ready": bool(status.ready),
        "reason": status.failure_reason,
        "failure": failure_text(obj) if status.failure_reason else "",
        "exitCode": status.last_exit_code,
        "attempts": (status.retry.attempts or 0) if status.retry else 0,
        "restarts": status.restarts or 0,
        "ports": status.allocated_ports,
        "cpu": cpu,
        "memory": memory,
        "since": status.state_since,
    }
    if status.binding is None:
        unscheduled = find_false(status.conditions, SCHEDULED_CONDITION)
        if unscheduled is not None and unscheduled.message:
            row["why"] = unscheduled.message
    return row


def node_row(obj: LatticeNode) -> Row:
    allocatable = obj.status.allocatable
    return {
        "pool": obj.spec.pool,
        "cluster": obj.spec.cluster,
        "region": obj.spec.region,
        "zone": obj.spec.zone,
        "class": obj.spec.node_class,
        "phase": obj.status.phase,
        "isReady": is_ready(obj),
        "unschedulable": obj.spec.unschedulable,
        "isDraining": any(taint.key == DRAINING_TAINT for taint in obj.spec.taints),
        "workloads": obj.status.workloads or 0,
        "cpu": allocatable.get("cpu", 0),
        "memory": allocatable.get("memory", 0),
    }


def cluster_row(obj: LatticeCluster) -> Row:
    return {
        "pool": obj.spec.pool,
        "region": obj.spec.region,
        "nodes": obj.spec.desired_nodes,
        "readyNodes": obj.status.ready_nodes or 0,
        "hourlyMicros": _micros(obj.status.cost.hourly if obj.status.cost else None),
        "phase": obj.status.phase,
        "message": obj.status.message,
    }


def pool_row(obj: LatticePool) -> Row:
    usage = obj.status.capacity
    return {
        "provider": obj.spec.provider.type,
        "region": obj.spec.provider.region,
        "nodes": (usage.allocated_nodes or 0) if usage else 0,
        "maxNodes": obj.spec.capacity.max_nodes,
        "phase": obj.status.phase,
    }


def event_row(obj: Event) -> Row:
    involved = obj.involved_object
    return {
        "seen": obj.last_seen,
        "type": obj.type,
        "reason": obj.reason,
        "kind": involved.kind,
        "about": involved.name,
        "count": (obj.series.count if obj.series else obj.count) or 1,
        "by": (obj.reporting_component or obj.source.component).removeprefix("lattice.dev/"),
        "message": obj.message,
    }


ROW_BUILDERS: dict[type[Kind], Callable[[Any], Row]] = {
    LatticeService: service_row,
    LatticeWorkload: workload_row,
    LatticeNode: node_row,
    LatticeCluster: cluster_row,
    LatticePool: pool_row,
    Event: event_row,
}


def _micros(dollars: Any) -> int | None:
    return None if dollars is None else dollars_to_micros(cast("Decimal", dollars))
