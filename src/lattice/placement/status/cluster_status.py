"""What is said of a cluster? Its phase follows from its nodes alone, never from time; trouble with its provider is a condition."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lattice.kinds.cluster import ClusterStatus, LatticeCluster, WorkerPool
from lattice.kinds.meta.base import Condition
from lattice.lifecycle.machines import ClusterNode

PROVIDER_UNAVAILABLE = "ProviderUnavailable"  # nobody here speaks to it
PROVIDER_UNREACHABLE = "ProviderUnreachable"  # it cannot say what is there
PROVIDER_REFUSED = "ProviderRefused"  # not now
PROVIDER_REJECTED = "ProviderRejected"  # not until somebody changes something


@dataclass(frozen=True, slots=True)
class ProviderProblem:
    """With the provider; `node_class` if it is about machines of that class only."""

    reason: str
    message: str
    node_class: str = ""


def status_from_nodes(
    cluster: LatticeCluster,
    nodes: Sequence[ClusterNode],
    troubles: Sequence[ProviderProblem],
    endpoint: str = "",
) -> ClusterStatus:
    """Its status; the conditions are those found now, without the time of their change."""
    pools = worker_pools(cluster, nodes, troubles)
    phase = phase_of(cluster, nodes, troubles)
    words = "; ".join(dict.fromkeys(each.message for each in troubles))
    wanted, ready = cluster.spec.desired_nodes, _ready(nodes)
    is_ready = phase == "Ready"
    message = f"{ready} of {wanted} nodes are ready"
    if phase == "Deleting":
        message = f"{len(nodes)} nodes are still there"
    elif not is_ready:
        message = words or f"{message}, {sum(each.has_joined for each in nodes)} have joined"
    reason = (
        "NodesReady"
        if is_ready
        else phase
        if phase == "Deleting"
        else troubles[0].reason
        if troubles
        else "NodesMissing"
    )
    return replace(
        cluster.status,
        phase=phase,
        message=message,
        nodes=len(nodes),
        ready_nodes=sum(each.is_ready for each in nodes),
        ready_workers=sum(each.ready for each in pools.values()),
        worker_pools=pools,
        endpoint=endpoint,
        observed_generation=cluster.metadata.generation,
        conditions=(
            Condition(type="Ready", status="True" if is_ready else "False", reason=reason, message=message),
            Condition(
                type="ProviderReady",
                status="False" if troubles else "True",
                reason=troubles[0].reason if troubles else "Answers",
                message=words,
            ),
        ),
    )


def phase_of(
    cluster: LatticeCluster, nodes: Sequence[ClusterNode], troubles: Sequence[ProviderProblem]
) -> str:
    if cluster.metadata.deletion_timestamp:
        return "Deleting"
    wanted, joined = cluster.spec.desired_nodes, sum(each.has_joined for each in nodes)
    if _ready(nodes) >= wanted:
        return "Ready"
    reasons = {each.reason for each in troubles}
    if not nodes and PROVIDER_UNAVAILABLE in reasons:
        return "Pending"
    if not joined and PROVIDER_REJECTED in reasons:
        return "Failed"
    has_been = cluster.status.phase in ("Ready", "Degraded")  # nodes that have just joined are no loss
    return "Degraded" if has_been and joined >= wanted else "Provisioning"


def worker_pools(
    cluster: LatticeCluster, nodes: Sequence[ClusterNode], troubles: Sequence[ProviderProblem]
) -> dict[str, WorkerPool]:
    """By class of machine."""
    wanted, current = cluster.spec.nodes, Counter(each.node_class for each in nodes)
    ready = Counter(each.node_class for each in nodes if each.is_ready)
    found = {}
    for kind in sorted({*(name for name, count in wanted.items() if count), *current}):
        words = dict.fromkeys(each.message for each in troubles if each.node_class in ("", kind))
        is_short = ready[kind] < wanted.get(kind, 0)
        found[kind] = WorkerPool(
            desired=wanted.get(kind, 0),
            current=current[kind],
            ready=ready[kind],
            message="; ".join(words) if is_short else "",
        )
    return found


def _ready(nodes: Sequence[ClusterNode]) -> int:
    return sum(each.is_ready and not each.is_decommissioned for each in nodes)
