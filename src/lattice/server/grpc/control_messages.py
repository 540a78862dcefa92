"""Messages of the control service: the fields that callers need most, and the complete object as JSON."""

from collections.abc import Mapping
from typing import Any

from lattice.kinds.meta.conditions import READY_CONDITION
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
            condition["type"] == READY_CONDITION and condition["status"] == "True"
            for condition in status.get("conditions", ())
        ),
        phase=status.get("phase", ""),
        unschedulable=bool(spec.get("unschedulable")),
        capacity=status.get("capacity", {}),
        allocatable=status.get("allocatable", {}),
        workloads=status.get("workloads") or 0,
        json=encode(obj).decode(),
    )


def page_fields(page: Object) -> dict[str, str]:
    """Revision and continue token of a list."""
    metadata = page["metadata"]
    return {
        "resource_version": metadata.get("resourceVersion", ""),
        "continue_token": metadata.get("continue", ""),
    }


def cluster_summary_message(cluster: str, summary: ClusterSummary) -> pb.ClusterSummary:
    return pb.ClusterSummary(
        cluster=cluster,
        nodes=len(summary.nodes),
        ready_nodes=summary.ready_nodes,
        draining_nodes=summary.draining_nodes,
        capacity=summary.capacity,
        allocatable=summary.allocatable,
        requested=summary.requested,
        workloads=len(summary.workloads),
        ready_workloads=sum(bool(workload.status.ready) for workload in summary.workloads),
        unbound_workloads=sum(workload.status.binding is None for workload in summary.workloads),
        workloads_by_state=summary.workloads_by_state,
    )


def event_message(obj: Object) -> pb.Event:
    involved_object = obj.get("involvedObject") or {}
    timestamp = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    return pb.Event(
        namespace=obj["metadata"].get("namespace", ""),
        kind=involved_object.get("kind", ""),
        name=involved_object.get("name", ""),
        type=obj.get("type", ""),
        reason=obj.get("reason", ""),
        message=obj.get("message", ""),
        at=timestamp or "",
        resource_version=obj["metadata"].get("resourceVersion", ""),
        json=encode(obj).decode(),
    )
