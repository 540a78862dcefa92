"""Why a cluster has no machine for a replica: the budget, the size of the pool, the provider, a machine that
has not joined yet, or a lost node."""

from collections.abc import Sequence

from lattice.diagnosis.blocker import Blocker, Facts
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.conditions import READY_CONDITION, find_false
from lattice.kinds.node import LatticeNode
from lattice.lifecycle.replica_observation import has_joined
from lattice.placement.inputs.ledger_math import BudgetRejection, judge_budget, may_commit


def machine_blocker(cluster_name: str, node_class: str, facts: Facts) -> Blocker | None:
    """Return why the cluster gets no further machine of the class now, or None if no reason is stored."""
    key = (cluster_name, node_class)
    if key not in facts.machine_blockers:
        facts.machine_blockers[key] = _machine_blocker(cluster_name, node_class, facts)
    return facts.machine_blockers[key]


def _machine_blocker(cluster_name: str, node_class: str, facts: Facts) -> Blocker | None:
    cluster = facts.cluster(cluster_name)
    if cluster is None:
        return None
    nodes = [
        node
        for node in facts.nodes_of_cluster(cluster_name)
        if not node.metadata.deletion_timestamp and node_class in ("", node.spec.node_class)
    ]
    return (
        provider_blocker(cluster, node_class)
        or joining_blocker(nodes)
        or budget_blocker(cluster, node_class, facts)
        or full_pool_blocker(cluster, facts)
        or lost_node_blocker(nodes)
    )


def capacity_text(cluster_name: str, node_class: str, facts: Facts) -> str:
    """The blocker of a further machine as one part of a sentence; empty if no reason is stored."""
    blocker = machine_blocker(cluster_name, node_class, facts)
    if blocker is None:
        return ""
    return "a new machine is starting" if _is_awaiting(blocker) else blocker.cause


def is_machine_awaited(cluster_name: str, node_class: str, facts: Facts) -> bool:
    """Whether a machine of the class is being created, and nothing before it blocks."""
    blocker = machine_blocker(cluster_name, node_class, facts)
    return blocker is not None and _is_awaiting(blocker)


def _is_awaiting(blocker: Blocker) -> bool:
    return blocker.stage == "Machine" and blocker.object.startswith("node/")


def provider_blocker(cluster: LatticeCluster, node_class: str) -> Blocker | None:
    workers = cluster.status.worker_pools.get(node_class)
    message = workers.message if workers else ""
    unready = find_false(cluster.status.conditions, "ProviderReady")
    if not message:
        message = unready.message if unready else ""
    if not message:
        return None
    name = cluster.metadata.name
    return Blocker(
        "Provider",
        f"cluster/{name}",
        f"the provider of cluster {name} creates no machine: {message}",
        since=(unready.last_transition_time or "") if unready else "",
        next="Lattice asks the provider again every few seconds",
        fix="mend what the provider reports; replicas are not placed elsewhere while the cluster exists",
        command=f"lattice describe cluster/{name}",
    )


def joining_blocker(nodes: Sequence[LatticeNode]) -> Blocker | None:
    awaited = [node for node in nodes if not has_joined(node)]
    if not awaited:
        return None
    first = min(awaited, key=lambda node: (node.metadata.creation_timestamp or "", node.metadata.name))
    name, further = first.metadata.name, len(awaited) - 1
    also = f" (and {further} more)" if further else ""
    return Blocker(
        "Machine",
        f"node/{name}",
        f"machine {name}{also} is being created: its agent has not joined yet",
        since=first.metadata.creation_timestamp or "",
        next="the replica is bound as soon as the machine is ready",
        fix="if it takes longer than usual, look at the cluster and at the provider",
        command=f"lattice describe node/{name}",
    )


def paying_ledgers(cluster: LatticeCluster, facts: Facts) -> list[LatticeLedger]:
    """The ledgers of all budgets that pay for machines of the cluster."""
    spec = cluster.spec
    paying = []
    for ledger in facts.ledgers():
        budget = ledger.spec.budget
        if budget.kind == "LatticePool":
            pays = not spec.infrastructure and budget.name == spec.pool
        elif budget.kind == "CloudInfrastructure":
            region = f"{budget.name}/{budget.region}" if budget.region else spec.pool
            pays = budget.name == spec.infrastructure and region == spec.pool
        else:
            pays = False
        # An overflow pays for clusters of a cloud: only its lots name them.
        if pays or cluster.metadata.name in ledger.status.machines:
            paying.append(ledger)
    return paying


def budget_blocker(cluster: LatticeCluster, node_class: str, facts: Facts) -> Blocker | None:
    ledgers = paying_ledgers(cluster, facts)
    prices = [
        lot.micros
        for ledger in facts.ledgers()
        for lots in ledger.status.machines.values()
        for lot in lots
        if node_class in ("", lot.node_class)
    ]
    for ledger in ledgers:
        owner = f"{_OWNER_WORDS[ledger.spec.budget.kind]}/{ledger.spec.budget.name}"
        if prices:
            answer = may_commit(ledger, min(prices), facts.now)
            cause = str(answer).partition("; raise ")[0] if isinstance(answer, BudgetRejection) else ""
        else:
            # No machine of the class was bought before: the recorded refusals name the price.
            verdict = judge_budget(ledger, facts.now, ledger.status.phase)
            cause = verdict.message if verdict.refused else ""
        if cause:
            return Blocker(
                "Budget",
                owner,
                f"the budget refuses one more machine for cluster {cluster.metadata.name}: {cause}",
                next="Lattice adds the machine as soon as the budget allows it",
                fix=f"raise the budget of {owner}, or remove other machines that it pays for",
                command=f"lattice describe {owner}",
            )
    return None


_OWNER_WORDS = {
    "LatticePool": "pool",
    "CloudInfrastructure": "cloud",
    "StaticInfrastructure": "static",
}


def full_pool_blocker(cluster: LatticeCluster, facts: Facts) -> Blocker | None:
    pool = facts.pool(cluster.spec.pool) if not cluster.spec.infrastructure else None
    usage, max_nodes = (pool.status.capacity, pool.spec.capacity.max_nodes) if pool else (None, None)
    used = usage.allocated_nodes if usage else None
    if pool is None or used is None or max_nodes is None or used < max_nodes:
        return None
    name = pool.metadata.name
    return Blocker(
        "Machine",
        f"pool/{name}",
        f"pool {name} is full: {used} of {max_nodes} nodes",
        need=f"{used + 1} nodes",
        have=f"{max_nodes} nodes",
        next="Lattice adds a machine as soon as the pool has room",
        fix=f"raise spec.capacity.maxNodes of pool/{name}, or remove other workloads",
        command=f"lattice describe pool/{name}",
    )


def lost_node_blocker(nodes: Sequence[LatticeNode]) -> Blocker | None:
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        if has_joined(node) and find_false(node.status.conditions, READY_CONDITION):
            return node_blocker(node)
    return None


def node_blocker(node: LatticeNode) -> Blocker | None:
    """Return why the node runs nothing now, or None for a node that is ready."""
    unready = find_false(node.status.conditions, READY_CONDITION)
    if unready is None:
        return None
    name = node.metadata.name
    return Blocker(
        "Node",
        f"node/{name}",
        f"node {name} is not ready: {unready.message or unready.reason}",
        since=unready.last_transition_time or "",
        next="when it stays silent, its replicas are started on other nodes",
        fix=f"restart the machine or the agent of {name}",
        command=f"lattice describe node/{name}",
    )
