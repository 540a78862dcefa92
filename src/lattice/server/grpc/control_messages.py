"""Objects as the control service says them: what callers mostly look at, and the whole as JSON."""

from collections.abc import Mapping
from typing import Any

from lattice.kinds.meta.json_body import encode
from lattice.server.live.usage_tables import ClusterSummary
from lattice.wire import control_pb2 as pb

Object = Mapping[str, Any]


def workload_message(obj: Object) -> pb.Workload:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return pb.Workload(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        service=spec.get("service", ""),
        desired_state=spec.get("desiredState", "Running"),
        actual_state=status.get("actualState", "Pending"),
        ready=bool(status.get("ready")),
        node=(status.get("binding") or {}).get("node", ""),
        revision=status.get("appliedRevision") or spec.get("revision", ""),
        attempts=(status.get("retry") or {}).get("attempts") or 0,
        failure_reason=status.get("failureReason", ""),
        last_action=status.get("lastAction", ""),
        json=encode(obj).decode(),
    )


def node_message(obj: Object) -> pb.Node:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return pb.Node(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        cluster=spec.get("cluster", ""),
        pool=spec.get("pool", ""),
        ready=any(
            each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ())
        ),
        phase=status.get("phase", ""),
        unschedulable=bool(spec.get("unschedulable")),
        capacity=status.get("capacity", {}),
        allocatable=status.get("allocatable", {}),
        workloads=status.get("workloads") or 0,
        json=encode(obj).decode(),
    )


def page_fields(found: Object) -> dict[str, str]:
    """Where a list stands."""
    metadata = found["metadata"]
    return {
        "resource_version": metadata.get("resourceVersion", ""),
        "continue_token": metadata.get("continue", ""),
    }


def cluster_summary_message(cluster: str, found: ClusterSummary) -> pb.ClusterSummary:
    return pb.ClusterSummary(
        cluster=cluster,
        nodes=len(found.nodes),
        ready_nodes=found.ready_nodes,
        draining_nodes=found.draining_nodes,
        capacity=found.capacity,
        allocatable=found.allocatable,
        requested=found.requested,
        workloads=len(found.workloads),
        ready_workloads=sum(bool(each.status.ready) for each in found.workloads),
        unbound_workloads=sum(each.status.binding is None for each in found.workloads),
        workloads_by_state=found.workloads_by_state,
    )


def event_message(obj: Object) -> pb.Event:
    about = obj.get("involvedObject") or {}
    at = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    return pb.Event(
        namespace=obj["metadata"].get("namespace", ""),
        kind=about.get("kind", ""),
        name=about.get("name", ""),
        type=obj.get("type", ""),
        reason=obj.get("reason", ""),
        message=obj.get("message", ""),
        at=at or "",
        resource_version=obj["metadata"].get("resourceVersion", ""),
        json=encode(obj).decode(),
    )
