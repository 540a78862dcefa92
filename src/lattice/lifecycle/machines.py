"""The plan for the machines of one cluster: which machines the provider creates, starts or removes, and which
nodes are decommissioned.

A node is removed only while no workload runs on the node (I-27).
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.retry import has_ended


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster as the cluster controller sees it."""

    name: str
    node_class: str
    has_joined: bool = False
    is_ready: bool = False
    # Workloads on the node. On a node that is not ready, only workloads that fail over count: the others
    # would wait for the silent agent without a time limit.
    workloads: int = 0
    is_decommissioned: bool = False


@dataclass(frozen=True, slots=True)
class ClusterMachines:
    """Desired and present machines of a cluster, by node class and by name."""

    desired: Mapping[str, int]
    nodes: Sequence[ClusterNode]
    # Machines that the provider reports as running.
    running: Collection[str] = ()
    # Machines that the provider has, running or not.
    provider_machines: Collection[str] = ()
    # Machines that the ledgers pay for, by node class; None: no ledger counts the machines of the cluster.
    paid_counts: Mapping[str, int] | None = None
    # Names of nodes of this and of other clusters.
    used_names: Container[str] = ()


@dataclass(frozen=True, slots=True)
class MachineSteps:
    """Steps that the cluster controller applies to machines and nodes, by name."""

    # Node name and node class, where neither the node nor the machine exists.
    create: tuple[tuple[str, str], ...] = ()
    # Nodes that stay, and whose machine has ended or was never created.
    start: tuple[str, ...] = ()
    # Nodes above the desired count: the scheduler binds no workload to them, and their workloads are evicted.
    decommission: tuple[str, ...] = ()
    # Decommissioned nodes that are empty or whose machine has ended, and joined nodes without a machine that
    # are not ready.
    remove: tuple[str, ...] = ()
    # Machines without a node.
    orphaned: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.create or self.start or self.decommission or self.remove or self.orphaned)


def plan_machines(cluster: str, state: ClusterMachines) -> MachineSteps:
    """Return the steps from the present machines of the cluster to the desired counts."""
    remove: set[str] = set()
    gone: set[str] = set()
    for node in state.nodes:
        has_machine = node.name in state.provider_machines
        # The agent of a joined node has fallen silent, and the provider reports no running machine.
        is_lost = node.has_joined and not node.is_ready and node.name not in state.running
        if is_lost and not has_machine:
            gone.add(node.name)
        # A decommissioned machine that ended by itself is not started again. Its agent never reports the end
        # of its workloads, so do not wait for them (I-32).
        elif node.is_decommissioned and (not node.workloads or is_lost):
            remove.add(node.name)
    staying = [node for node in state.nodes if not node.is_decommissioned]
    names = {node.name for node in state.nodes}
    taken_names = {*names, *state.provider_machines}
    decommission: set[str] = set()
    create: list[tuple[str, str]] = []
    for node_class in sorted({*state.desired, *(node.node_class for node in staying)}):
        nodes = [node for node in staying if node.node_class == node_class]
        # Decommission the cheapest loss first: a node that never joined, then a node that is not ready, then
        # the node with the fewest workloads.
        nodes.sort(key=lambda node: (node.has_joined, node.is_ready, node.workloads, node.name))
        missing = state.desired.get(node_class, 0) - len(nodes)
        decommission.update(node.name for node in nodes[: max(0, -missing)])
        missing = min(missing, _creatable_count(node_class, state))
        numbers = count(1)
        while missing > 0:
            name = f"{cluster}-{node_class}-{next(numbers)}"
            if name not in taken_names and name not in state.used_names:
                create.append((name, node_class))
                missing -= 1
    start = []
    for node in staying:
        # A machine that the provider does not report counts as running while its agent sends heartbeats.
        is_down = node.name not in state.running and (
            node.name in state.provider_machines or not node.is_ready
        )
        if is_down and node.name not in decommission and node.name not in gone:
            start.append(node.name)
    return MachineSteps(
        create=tuple(create),
        start=tuple(sorted(start)),
        decommission=tuple(sorted(decommission - gone)),
        remove=tuple(sorted(remove | gone)),
        orphaned=tuple(sorted(set(state.provider_machines) - names)),
    )


def fails_over(workload: LatticeWorkload) -> bool:
    """Whether the workload is replaced on another node after its node has been silent for too long.

    A workload that should not run, is deleted or has exhausted its retries instead waits for its agent,
    without a time limit.
    """
    is_deleted = bool(workload.metadata.deletion_timestamp)
    return workload.spec.desired_state == "Running" and not is_deleted and not has_ended(workload)


def _creatable_count(node_class: str, state: ClusterMachines) -> int:
    """The number of machines that the ledgers pay for and that do not exist yet; the desired count if no
    ledger counts the machines.

    A decommissioned machine is paid for until it is gone; no other machine may use its payment earlier
    (I-22).
    """
    if state.paid_counts is None:
        return state.desired.get(node_class, 0)
    existing = sum(node.node_class == node_class for node in state.nodes)
    return max(0, state.paid_counts.get(node_class, 0) - existing)


def machines_to_refund(remove: Collection[str], state: ClusterMachines) -> frozenset[str]:
    """Return the removed machines whose payment ends. For the other removed machines the ledgers keep paying,
    and the replacements use that payment.

    `remove` holds the machines of the remove step. The caller must end a payment only after the provider has
    confirmed that the machine is gone. The ledgers keep paying for the desired count of a class (I-22).
    """
    staying = Counter(node.node_class for node in state.nodes if node.name not in remove)
    refunds: list[str] = []
    for node_class, paid in (state.paid_counts or {}).items():
        removed = [node.name for node in state.nodes if node.node_class == node_class and node.name in remove]
        needed = max(state.desired.get(node_class, 0), staying[node_class])
        refunds += sorted(removed)[: max(0, paid - needed)]
    return frozenset(refunds)
