"""What the page shows of an object in a list: a few figures of thousands, where the whole objects would be megabytes."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.meta.quantity import micros
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.node_info import DRAINING_TAINT
from lattice.server.live.overview import asked_by, is_ready

Row = dict[str, Any]


def summary(obj: Kind) -> Row:
    """`path` is its key; the rest is what the kind adds."""
    meta = obj.metadata
    row: Row = {
        "path": f"{meta.namespace}/{meta.name}",
        "name": meta.name,
        "created": meta.creation_timestamp,
    }
    if meta.namespace:
        row["namespace"] = meta.namespace
    if meta.deletion_timestamp:
        row["leaves"] = True
    return row | SUMMARIES[type(obj)](obj) if type(obj) in SUMMARIES else row


def service(obj: LatticeService) -> Row:
    status = obj.status
    health, decision = status.health, status.scheduler_decision
    return {
        "wanted": obj.spec.wanted(),
        "replicas": status.replicas or 0,
        "ready": (health.ready or 0) if health else 0,
        "pools": sorted({each.pool for each in status.placements}),
        "clusters": sorted({each.cluster for each in status.placements if each.cluster}),
        "hourlyMicros": _micros(status.total_cost.hourly if status.total_cost else None),
        "phase": status.phase,
        "verdict": decision.verdict if decision else "",
        "why": decision.reason if decision else "",
        "labels": obj.metadata.labels,
    }


def workload(obj: LatticeWorkload) -> Row:
    status = obj.status
    cpu, memory = asked_by(obj)
    return {
        "service": obj.spec.service,
        "node": status.binding.node if status.binding else "",
        "cluster": obj.spec.cluster,
        "state": status.actual_state,
        "wanted": obj.spec.desired_state,
        "ready": bool(status.ready),
        "reason": status.failure_reason,
        "attempts": (status.retry.attempts or 0) if status.retry else 0,
        "cpu": cpu,
        "memory": memory,
        "since": status.state_since,
    } | ({"why": why} if (why := _unplaced(obj)) else {})


def _unplaced(obj: LatticeWorkload) -> str:
    """Why it has no node, as was told last."""
    told = next(
        (each for each in obj.status.conditions if each.type == "Scheduled" and each.status == "False"), None
    )
    return told.message if told is not None and obj.status.binding is None else ""


def node(obj: LatticeNode) -> Row:
    room = obj.status.allocatable
    return {
        "pool": obj.spec.pool,
        "cluster": obj.spec.cluster,
        "region": obj.spec.region,
        "zone": obj.spec.zone,
        "class": obj.spec.node_class,
        "phase": obj.status.phase,
        "isReady": is_ready(obj),
        "unschedulable": obj.spec.unschedulable,
        "isDraining": any(each.key == DRAINING_TAINT for each in obj.spec.taints),
        "workloads": obj.status.workloads or 0,
        "cpu": room.get("cpu", 0),
        "memory": room.get("memory", 0),
    }


def cluster(obj: LatticeCluster) -> Row:
    return {
        "pool": obj.spec.pool,
        "region": obj.spec.region,
        "nodes": obj.spec.wanted_nodes,
        "readyNodes": obj.status.ready_nodes or 0,
        "hourlyMicros": _micros(obj.status.cost.hourly if obj.status.cost else None),
        "phase": obj.status.phase,
        "message": obj.status.message,
    }


def pool(obj: LatticePool) -> Row:
    usage = obj.status.capacity
    return {
        "provider": obj.spec.provider.type,
        "region": obj.spec.provider.region,
        "nodes": (usage.allocated_nodes or 0) if usage else 0,
        "maxNodes": obj.spec.capacity.max_nodes,
        "phase": obj.status.phase,
    }


def event(obj: Event) -> Row:
    about = obj.involved_object
    return {
        "seen": obj.last_seen,
        "type": obj.type,
        "reason": obj.reason,
        "kind": about.kind,
        "about": about.name,
        "count": (obj.series.count if obj.series else obj.count) or 1,
        "by": (obj.reporting_component or obj.source.component).removeprefix("lattice.dev/"),
        "message": obj.message,
    }


SUMMARIES: dict[type[Kind], Callable[[Any], Row]] = {
    LatticeService: service,
    LatticeWorkload: workload,
    LatticeNode: node,
    LatticeCluster: cluster,
    LatticePool: pool,
    Event: event,
}


def _micros(dollars: Any) -> int | None:
    return None if dollars is None else micros(cast("Decimal", dollars))
