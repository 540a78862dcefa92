"""Every event that Lattice writes: reason, object, meaning and recommended action."""

from typing import Literal, NamedTuple


class Told(NamedTuple):
    reason: str
    # A kind.
    about: str
    type: Literal["Normal", "Warning"]
    meaning: str
    # Recommended action, if any.
    act: str = ""


EVENTS = (
    Told(
        "Placed",
        "LatticeService",
        "Normal",
        "The service is placed. The message lists the replicas per cluster and node class.",
    ),
    Told(
        "NotPlaced",
        "LatticeService",
        "Warning",
        "Some or all replicas are not placed. The message begins with the verdict.",
        "`lattice why` shows each pool's reasons, `lattice fit` the smallest changes that would help",
    ),
    Told(
        "PlacementStale",
        "LatticeService",
        "Warning",
        "A new placement would differ, because a policy or the supply changed. Running replicas stay.",
        "`lattice why` says what no longer holds",
    ),
    Told(
        "NoNodeFits",
        "LatticeService",
        "Warning",
        "The cluster has enough free capacity in total, but no single node fits the replica. Lattice adds a node or places the replica elsewhere.",
    ),
    Told(
        "ClusterCreated",
        "LatticeService",
        "Normal",
        "Lattice created a cluster for the service and charged its budget.",
    ),
    Told(
        "ClusterGrown",
        "LatticeService",
        "Normal",
        "Lattice added nodes to a cluster for the service and charged its budget.",
    ),
    Told("ScaledUp", "LatticeService", "Normal", "The service has more replicas than before."),
    Told("ScaledDown", "LatticeService", "Normal", "The service has fewer replicas than before."),
    Told(
        "RolloutStarted",
        "LatticeService",
        "Normal",
        "A rollout replaces the replicas one by one.",
    ),
    Told("RolloutDone", "LatticeService", "Normal", "All replicas run the new revision."),
    Told(
        "RolloutPaused",
        "LatticeService",
        "Warning",
        "The new revision does not become ready, or no node fits the surge replica. The rollout waits.",
        "see [when an update does not go on](../guides/operate.md#when-an-update-does-not-go-on)",
    ),
    Told(
        "ClusterPending",
        "LatticeCluster",
        "Normal",
        "The provider is unreachable, and the cluster has no machine yet.",
    ),
    Told(
        "ClusterProvisioning",
        "LatticeCluster",
        "Normal",
        "The provider creates machines, or machines have not joined yet.",
    ),
    Told("ClusterReady", "LatticeCluster", "Normal", "All desired nodes of the cluster are ready."),
    Told(
        "ClusterDegraded",
        "LatticeCluster",
        "Warning",
        "The cluster was ready, and some of its nodes are not ready now.",
    ),
    Told(
        "ClusterFailed",
        "LatticeCluster",
        "Warning",
        "The provider rejects the cluster for good; no machine has joined.",
        "the condition `ProviderReady` has the provider's words",
    ),
    Told("ClusterDeleting", "LatticeCluster", "Normal", "Lattice removes the cluster, machine by machine."),
    Told(
        "ClusterShrunk",
        "LatticeCluster",
        "Normal",
        "The cluster gets fewer nodes, because some nodes are empty and not needed.",
    ),
    Told("ClusterRemoved", "LatticeCluster", "Normal", "No service needs the cluster; the cluster is gone."),
    Told("NodeCreating", "LatticeCluster", "Normal", "The provider creates a machine for the cluster."),
    Told(
        "NodeGivenUp",
        "LatticeNode",
        "Normal",
        "The cluster no longer needs the node, or the node is silent. Lattice evicts its workloads and removes the node.",
    ),
    Told(
        "NodeReplaced",
        "LatticeNode",
        "Normal",
        "The node must go, and no other node fits its workloads. Lattice charges a replacement node before the node is gone.",
    ),
    Told("NodeReady", "LatticeNode", "Normal", "The agent of the node reports; the node accepts workloads."),
    Told(
        "NodeLost",
        "LatticeNode",
        "Warning",
        "The node sent no heartbeat for `--node-lost-after`. After `--replace-after` its workloads start elsewhere.",
        "look at the machine and its agent's log",
    ),
    Told(
        "NodeQuarantined",
        "LatticeNode",
        "Warning",
        "The node reports implausible capacity. The scheduler binds no workload to it until it registers with plausible capacity.",
    ),
    Told("NodeDraining", "LatticeNode", "Normal", "It takes nothing new, and what runs on it is to leave."),
    Told(
        "NodeDrainStuck",
        "LatticeNode",
        "Warning",
        "A service must have one replica more elsewhere before it can give up the one here, and no node takes that one. "
        "Said when it has waited for twice `--room-grace`, so that its cluster could have grown, and no machine is on its way.",
        "make room: a machine more for the pool, a lower `replicas.min`, or `lattice uncordon` to end the drain",
    ),
    Told("NodeDrained", "LatticeNode", "Normal", "The drain is done: nothing is bound to it any more."),
    Told("NodeRemoved", "LatticeNode", "Normal", "It was deleted, and nothing is left on it."),
    Told("WorkloadScheduled", "LatticeWorkload", "Normal", "It is bound to a node."),
    Told(
        "FailedScheduling",
        "LatticeWorkload",
        "Warning",
        "No node takes it now, with how many for which reason. It is tried again when something changes that could help.",
    ),
    Told(
        "BindingFailed",
        "LatticeWorkload",
        "Warning",
        "A node was found, and was taken or changed before it could be bound; it is tried again.",
    ),
    Told("Preempted", "LatticeWorkload", "Warning", "It makes room for one of higher priority."),
    Told("WorkloadApplied", "LatticeWorkload", "Normal", "Its node was told to start it."),
    Told("WorkloadStopping", "LatticeWorkload", "Normal", "Its node was told to stop it."),
    Told("WorkloadDeleting", "LatticeWorkload", "Normal", "Its node was told to remove it."),
    Told("WorkloadDeleted", "LatticeWorkload", "Normal", "Its node has removed it; it is gone."),
    Told("WorkloadReleased", "LatticeWorkload", "Normal", "It has left its node, and waits for another."),
    Told(
        "Rescheduled",
        "LatticeWorkload",
        "Normal",
        "Its node was given up, or it had to leave; it is started elsewhere.",
    ),
    Told(
        "RetryTriggered", "LatticeWorkload", "Normal", "It is started again, by the retry rules or by hand."
    ),
    Told(
        "WorkloadBackOff",
        "LatticeWorkload",
        "Warning",
        "It failed, and is tried again after a while that doubles each time.",
    ),
    Told(
        "WorkloadFailed",
        "LatticeWorkload",
        "Warning",
        "It failed for good: too often, or in a way that trying again cannot mend.",
        "`lattice logs`, mend it, then `lattice retry`",
    ),
    Told(
        "WorkloadSteady",
        "LatticeWorkload",
        "Normal",
        "It has run well for a while; its earlier failures are forgotten.",
    ),
    Told(
        "DriftDetected",
        "LatticeWorkload, or LatticeNode",
        "Warning",
        "A node runs what it should not, or does not run what it should, for longer than an order takes. It is put right by itself.",
    ),
    Told("RuleFired", "AutomationRule", "Normal", "The rule's mark was crossed by the object that is named."),
    Told(
        "WebhookFailed",
        "AutomationRule",
        "Warning",
        "An address was called three times and did not take the message.",
    ),
)
