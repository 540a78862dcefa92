"""Compute the status of a cluster from its nodes. The phase depends on nodes only, never on time; provider
problems are conditions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lattice.kinds.cluster import ClusterStatus, LatticeCluster, WorkerPool
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import READY_CONDITION
from lattice.lifecycle.machines import ClusterNode

# No adapter for the provider exists in this server.
PROVIDER_UNAVAILABLE = "ProviderUnavailable"
# The provider cannot list its machines.
PROVIDER_UNREACHABLE = "ProviderUnreachable"
# The provider rejected a machine for now.
PROVIDER_REFUSED = "ProviderRefused"
# The provider rejected a machine until a user changes the request or the provider.
PROVIDER_REJECTED = "ProviderRejected"


@dataclass(frozen=True, slots=True)
class ProviderProblem:
    """A problem with the provider; `node_class` is set if the problem concerns machines of one class only."""

    reason: str
    message: str
    node_class: str = ""


def status_from_nodes(
    cluster: LatticeCluster,
    nodes: Sequence[ClusterNode],
    problems: Sequence[ProviderProblem],
    endpoint: str = "",
) -> ClusterStatus:
    """Compute the status of the cluster. The conditions carry no transition time; the writer adds the
    time."""
    pools = worker_pools(cluster, nodes, problems)
    phase = _phase_of(cluster, nodes, problems)
    problem_text = "; ".join(dict.fromkeys(problem.message for problem in problems))
    desired, ready = cluster.spec.desired_nodes, _ready(nodes)
    is_ready = phase == "Ready"
    message = f"{ready} of {desired} nodes are ready"
    if phase == "Deleting":
        message = f"{len(nodes)} nodes still exist"
    elif not is_ready:
        message = problem_text or f"{message}, {sum(node.has_joined for node in nodes)} have joined"
    if is_ready:
        reason = "NodesReady"
    elif phase == "Deleting":
        reason = phase
    else:
        reason = problems[0].reason if problems else "NodesMissing"
    return replace(
        cluster.status,
        phase=phase,
        message=message,
        nodes=len(nodes),
        ready_nodes=sum(node.is_ready for node in nodes),
        ready_workers=sum(pool.ready for pool in pools.values()),
        worker_pools=pools,
        endpoint=endpoint,
        observed_generation=cluster.metadata.generation,
        conditions=(
            Condition(
                type=READY_CONDITION, status="True" if is_ready else "False", reason=reason, message=message
            ),
            Condition(
                type="ProviderReady",
                status="False" if problems else "True",
                reason=problems[0].reason if problems else "Answers",
                message=problem_text,
            ),
        ),
    )


def _phase_of(
    cluster: LatticeCluster, nodes: Sequence[ClusterNode], problems: Sequence[ProviderProblem]
) -> str:
    """Return the phase: Deleting, Ready, Pending, Failed, Degraded or Provisioning."""
    if cluster.metadata.deletion_timestamp:
        return "Deleting"
    desired, joined = cluster.spec.desired_nodes, sum(node.has_joined for node in nodes)
    # A shrinking cluster has more nodes than desired until its decommissioned nodes are gone.
    if _ready(nodes) >= desired:
        return "Ready"
    reasons = {problem.reason for problem in problems}
    # Without an adapter for the provider, nothing is in progress yet.
    if not nodes and PROVIDER_UNAVAILABLE in reasons:
        return "Pending"
    if not joined and PROVIDER_REJECTED in reasons:
        return "Failed"
    # A cluster that was never ready is not degraded: its nodes have joined and are about to become ready.
    was_ready = cluster.status.phase in ("Ready", "Degraded")
    return "Degraded" if was_ready and joined >= desired else "Provisioning"


def worker_pools(
    cluster: LatticeCluster, nodes: Sequence[ClusterNode], problems: Sequence[ProviderProblem]
) -> dict[str, WorkerPool]:
    """Return the worker pools of the cluster by node class."""
    desired, current = cluster.spec.nodes, Counter(node.node_class for node in nodes)
    ready = Counter(node.node_class for node in nodes if node.is_ready)
    pools = {}
    for node_class in sorted({*(name for name, count in desired.items() if count), *current}):
        messages = dict.fromkeys(
            problem.message for problem in problems if problem.node_class in ("", node_class)
        )
        is_short = ready[node_class] < desired.get(node_class, 0)
        pools[node_class] = WorkerPool(
            desired=desired.get(node_class, 0),
            current=current[node_class],
            ready=ready[node_class],
            message="; ".join(messages) if is_short else "",
        )
    return pools


def _ready(nodes: Sequence[ClusterNode]) -> int:
    return sum(node.is_ready and not node.is_decommissioned for node in nodes)
