"""Cluster events that may let an unschedulable workload fit."""

from collections.abc import Hashable
from enum import Enum


class ClusterEvent(Enum):
    """A change of nodes, workloads or disruption limits. A filter declares which events may change its
    rejection; the events wake unschedulable workloads."""

    NODE_ADDED = "node added"
    # More of a resource, different GPUs, or different ports.
    NODE_GREW = "node grew"
    NODE_READY = "node ready"  # or uncordoned
    # The node is gone with its workloads, or takes no new workloads: cordoned, draining or not ready.
    NODE_UNAVAILABLE = "node gone"
    NODE_CHANGED = "node changed"  # labels, taints, licences, runtimes or image
    WORKLOAD_GONE = "workload gone"
    WORKLOAD_ADDED = "workload added"
    DISRUPTION_LIMITS_EASED = "disruption limits eased"  # a service allows more evictions than before


ALL_EVENTS: frozenset[Hashable] = frozenset(ClusterEvent)
# For plugins that depend only on fixed columns of a node, which allocations do not change.
STATIC_NODE_EVENTS = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})
# For plugins that count workloads.
TOPOLOGY_EVENTS = STATIC_NODE_EVENTS | {
    ClusterEvent.NODE_UNAVAILABLE,
    ClusterEvent.WORKLOAD_ADDED,
    ClusterEvent.WORKLOAD_GONE,
}
