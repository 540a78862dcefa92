"""What can happen in a cluster that may turn a no into a yes."""

from collections.abc import Hashable
from enum import Enum


class Change(Enum):
    NODE_ADDED = "node added"
    NODE_GREW = "node grew"  # it has more of some resource, another range of ports, or is another machine in what it can do
    NODE_READY = "node ready"  # or uncordoned
    NODE_GONE = "node gone"  # with all that was on it; or it takes nothing new any more: cordoned, draining or not ready
    NODE_CHANGED = "node changed"  # its labels, taints, licences, runtimes or image
    WORKLOAD_GONE = "workload gone"
    WORKLOAD_ADDED = "workload added"
    LIMITS_EASED = "disruption limits eased"  # more of a service may be stopped than before


ANYTHING: frozenset[Hashable] = frozenset(Change)
NEW_NODES = frozenset(
    {Change.NODE_ADDED, Change.NODE_CHANGED}
)  # for plugins that look at fixed facts of a node only
NEIGHBOURS = NEW_NODES | {
    Change.NODE_GONE,
    Change.WORKLOAD_ADDED,
    Change.WORKLOAD_GONE,
}  # for those that count workloads
