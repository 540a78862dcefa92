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
        "It has places: how many replicas in which cluster, on which class of machine.",
    ),
    Told(
        "NotPlaced",
        "LatticeService",
        "Warning",
        "Some or all of its replicas have no place; the message begins with the verdict.",
        "`lattice why` shows each pool's reasons, `lattice fit` the smallest changes that would help",
    ),
    Told(
        "PlacementStale",
        "LatticeService",
        "Warning",
        "It would go elsewhere if it were placed now, for a rule or the supply has changed. It stays where it is.",
        "`lattice why` says what no longer holds",
    ),
    Told(
        "NoNodeFits",
        "LatticeService",
        "Warning",
        "Its cluster has room on paper, but no single node takes the replica. A machine more is made for it, or it is placed elsewhere.",
    ),
    Told("ClusterCreated", "LatticeService", "Normal", "A cluster was begun for it, and paid for."),
    Told(
        "ClusterGrown",
        "LatticeService",
        "Normal",
        "A cluster was given more machines for it, and they were paid for.",
    ),
    Told("ScaledUp", "LatticeService", "Normal", "It has more replicas than before."),
    Told("ScaledDown", "LatticeService", "Normal", "It has fewer replicas than before."),
    Told(
        "RolloutStarted",
        "LatticeService",
        "Normal",
        "Its replicas are being replaced by another revision, one by one.",
    ),
    Told("RolloutDone", "LatticeService", "Normal", "All of its replicas have the new revision."),
    Told(
        "RolloutPaused",
        "LatticeService",
        "Warning",
        "The new revision does not come up, or there is no room for one replica more; nothing else is replaced.",
        "see [when an update does not go on](../guides/operate.md#when-an-update-does-not-go-on)",
    ),
    Told(
        "ClusterPending",
        "LatticeCluster",
        "Normal",
        "Its provider cannot be reached, and it has no machine yet.",
    ),
    Told(
        "ClusterProvisioning", "LatticeCluster", "Normal", "Machines are being made, or have not joined yet."
    ),
    Told("ClusterReady", "LatticeCluster", "Normal", "All machines that it should have are ready."),
    Told(
        "ClusterDegraded", "LatticeCluster", "Warning", "It was ready, and now some of its machines are not."
    ),
    Told(
        "ClusterFailed",
        "LatticeCluster",
        "Warning",
        "Its provider rejects it for good; no machine has joined.",
        "the condition `ProviderReady` has the provider's words",
    ),
    Told("ClusterDeleting", "LatticeCluster", "Normal", "It is being removed, machine by machine."),
    Told(
        "ClusterShrunk",
        "LatticeCluster",
        "Normal",
        "It is to have fewer machines, for nobody is on them and nobody needs them.",
    ),
    Told("ClusterRemoved", "LatticeCluster", "Normal", "No service needs it; it is gone."),
    Told("NodeCreating", "LatticeCluster", "Normal", "A machine is being made for it."),
    Told(
        "NodeGivenUp",
        "LatticeNode",
        "Normal",
        "Its cluster needs it no more, or goes on without it since it is silent: what runs on it leaves, then it is removed.",
    ),
    Told(
        "NodeReplaced",
        "LatticeNode",
        "Normal",
        "It is to go, and nothing else takes what runs on it: a machine in its place is paid for before it is gone.",
    ),
    Told("NodeReady", "LatticeNode", "Normal", "Its agent reports; it takes workloads."),
    Told(
        "NodeLost",
        "LatticeNode",
        "Warning",
        "Nothing was heard of it for `--node-lost-after`; after `--replace-after` what it ran is started elsewhere.",
        "look at the machine and its agent's log",
    ),
    Told(
        "NodeQuarantined",
        "LatticeNode",
        "Warning",
        "It claims room that no machine has. Nothing is put there until it registers with room that can be.",
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
