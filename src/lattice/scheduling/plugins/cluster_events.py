"""What can happen in a cluster that may turn a no into a yes."""

from collections.abc import Hashable
from enum import Enum


class ClusterEvent(Enum):
    NODE_ADDED = "node added"
    NODE_GREW = "node grew"  # it has more of some resource, another range of ports, or is another machine in what it can do
    NODE_READY = "node ready"  # or uncordoned
    NODE_UNAVAILABLE = "node gone"  # with all that was on it; or it takes nothing new any more: cordoned, draining or not ready
    NODE_CHANGED = "node changed"  # its labels, taints, licences, runtimes or image
    WORKLOAD_GONE = "workload gone"
    WORKLOAD_ADDED = "workload added"
    DISRUPTION_LIMITS_EASED = "disruption limits eased"  # more of a service may be stopped than before


ALL_EVENTS: frozenset[Hashable] = frozenset(ClusterEvent)
STATIC_NODE_EVENTS = frozenset(
    {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED}
)  # for plugins that look at fixed facts of a node only
TOPOLOGY_EVENTS = STATIC_NODE_EVENTS | {
    ClusterEvent.NODE_UNAVAILABLE,
    ClusterEvent.WORKLOAD_ADDED,
    ClusterEvent.WORKLOAD_GONE,
}  # for those that count workloads
