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
        "`lattice why` shows the rules that no longer hold",
    ),
    Told(
        "NoNodeFits",
        "LatticeService",
        "Warning",
        "The cluster has enough free capacity in total, but no single node fits the replica. Lattice adds a node or places the replica elsewhere.",
    ),
    Told(
        "CostsMore",
        "LatticeService",
        "Normal",
        "A fresh plan of the same services would cost less. Running replicas stay. The message names the move that would release a machine.",
        "`lattice optimise` shows all moves that pay",
    ),
    Told(
        "MachineRefused",
        "LatticeService",
        "Warning",
        "An empty, ready machine did not accept a replica. Lattice releases it and buys no more such machines for the service.",
        "change the service or the node class; see [machines that have less than their class](../guides/nodes.md#machines-that-have-less-than-their-class)",
    ),
    Told(
        "NoMachine",
        "LatticeService",
        "Warning",
        "A limit or a budget keeps Lattice from buying a machine for a waiting replica. The message states need and have.",
    ),
    Told(
        "SurgeMachineReturned",
        "LatticeService",
        "Normal",
        "The update has ended, and the machine that its surge replica needed is drained and released.",
    ),
    Told(
        "MachinesDiffer",
        "LatticeNodeClass",
        "Warning",
        "Real machines have less than their class or data center states. Lattice buys no machine for what they lack.",
        "correct the class, or its machine image; see [machines that have less than their class](../guides/nodes.md#machines-that-have-less-than-their-class)",
    ),
    Told(
        "MachinesAsStated",
        "LatticeNodeClass",
        "Normal",
        "A newer machine, or a changed class, has what is stated.",
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
    Told("RolloutDone", "LatticeService", "Normal", "All replicas run the new revision and are ready."),
    Told(
        "ReplicaFailing",
        "LatticeService",
        "Warning",
        "Replicas fail. The event is written at the first failure, and when the number of failures doubles.",
        "`lattice why service/NAME` shows the failure, the exit code and the last lines of the log.",
    ),
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
        "The provider rejects the cluster permanently; no machine has joined.",
        "the condition `ProviderReady` has the message of the provider",
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
        "NodeClaimed",
        "LatticeNode",
        "Normal",
        "A placement uses the joined machine. The message names its cluster and class.",
    ),
    Told(
        "NodeReleased",
        "LatticeNode",
        "Normal",
        "No replica needs the joined machine any more. It belongs to its pool only, until a placement uses it.",
    ),
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
    Told(
        "MachineRestarted",
        "LatticeNode",
        "Normal",
        "The machine of the node, or its agent, had ended by itself. Lattice starts it again; the node keeps its name and workloads.",
        "look at the log of the agent if it happens again",
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
    Told(
        "NodeDraining",
        "LatticeNode",
        "Normal",
        "The node accepts no new workloads, and Lattice evicts its workloads.",
    ),
    Told(
        "NodeDrainStuck",
        "LatticeNode",
        "Warning",
        "A replacement replica must be ready on another node before the drain evicts the replica, and no node accepts "
        "the replacement. Reported after twice `--room-grace`, so that the cluster could grow, if no machine is starting.",
        "add a machine to the pool, lower `replicas.min`, or run `lattice uncordon` to end the drain",
    ),
    Told(
        "Evicted",
        "LatticeWorkload",
        "Warning",
        "The node is short of memory or disk, and the workload uses more of it than it requests (`NodePressure`). Another node "
        "runs the workload. BestEffort workloads go first, then Burstable, and low priority first.",
        "state a request that covers what the workload uses",
    ),
    Told(
        "NodePressure",
        "LatticeNode",
        "Warning",
        "The node has less memory or disk available than `--memory-pressure` or `--disk-pressure`; the condition "
        "`MemoryPressure` or `DiskPressure` is True. The scheduler binds no BestEffort workload to it, and the workloads "
        "that use more than they request are evicted, one at a time.",
        "state requests for the workloads that use the most, or add a machine",
    ),
    Told(
        "NodePressureEnded",
        "LatticeNode",
        "Normal",
        "Enough memory or disk has been available for a minute.",
    ),
    Told("NodeDrained", "LatticeNode", "Normal", "The drain is done: no workloads are bound to the node."),
    Told(
        "NodeRemoved",
        "LatticeNode",
        "Normal",
        "The node was deleted: no workloads are left on it, or it was not ready, so its removal waited for none.",
    ),
    Told(
        "WorkloadSucceeded",
        "LatticeWorkload",
        "Normal",
        "The program ended with exit code 0, and its restartPolicy does not repeat it.",
    ),
    Told("WorkloadScheduled", "LatticeWorkload", "Normal", "The workload is bound to a node."),
    Told(
        "FailedScheduling",
        "LatticeWorkload",
        "Warning",
        "No node has accepted the workload for 10 seconds; the message counts the nodes per reason. The scheduler tries again after a change that may help.",
    ),
    Told(
        "BindingFailed",
        "LatticeWorkload",
        "Warning",
        "The chosen node or the workload changed before the binding was written. The scheduler tries again.",
    ),
    Told(
        "Preempted",
        "LatticeWorkload",
        "Warning",
        "The scheduler preempts the workload, so that a workload of higher priority fits.",
    ),
    Told("WorkloadApplied", "LatticeWorkload", "Normal", "Lattice ordered the node to start the workload."),
    Told("WorkloadStopping", "LatticeWorkload", "Normal", "Lattice ordered the node to stop the workload."),
    Told("WorkloadDeleting", "LatticeWorkload", "Normal", "Lattice ordered the node to remove the workload."),
    Told(
        "WorkloadDeleted",
        "LatticeWorkload",
        "Normal",
        "The node has removed the workload, and Lattice deleted the object.",
    ),
    Told(
        "WorkloadReleased",
        "LatticeWorkload",
        "Normal",
        "The workload has left its node and has no new node yet.",
    ),
    Told(
        "Rescheduled",
        "LatticeWorkload",
        "Normal",
        "The node failed or the workload was evicted; the workload starts on another node.",
    ),
    Told(
        "RetryTriggered",
        "LatticeWorkload",
        "Normal",
        "Lattice restarts the workload after the back-off or after a manual retry.",
    ),
    Told(
        "WorkloadBackOff",
        "LatticeWorkload",
        "Warning",
        "The workload failed. Lattice restarts the workload after a back-off that doubles with each failure.",
    ),
    Told(
        "WorkloadFailed",
        "LatticeWorkload",
        "Warning",
        "The workload failed permanently: no attempts are left, or a retry cannot fix the failure.",
        "read `lattice logs`, fix the cause, then run `lattice retry`",
    ),
    Told(
        "WorkloadSteady",
        "LatticeWorkload",
        "Normal",
        "The workload has run long enough without a failure; Lattice resets the failure count.",
    ),
    Told(
        "DriftDetected",
        "LatticeWorkload, or LatticeNode",
        "Warning",
        "The workloads that a node reports differ from the assigned workloads for longer than an order takes. Lattice repairs the difference.",
    ),
    Told("RuleFired", "AutomationRule", "Normal", "The named object crossed the threshold of the rule."),
    Told(
        "WebhookFailed",
        "AutomationRule",
        "Warning",
        "Three calls to the webhook failed, or the secret that signs them has no key. Also on the pool, cloud or data center that names the webhook.",
    ),
    Told(
        "BudgetAlert",
        "LatticePool",
        "Warning",
        "The use of a budget reached its alert threshold. Also on clouds, for the cloud or one of its regions, and on data centers, for their overflow.",
        "see [set a budget](../guides/budgets.md)",
    ),
    Told(
        "BudgetAlertCleared",
        "LatticePool",
        "Normal",
        "The use of a budget is below its alert threshold again.",
    ),
    Told(
        "BudgetExceeded",
        "LatticePool",
        "Warning",
        "A budget is exceeded, or its hard limit refuses a purchase. Also on clouds and data centers.",
        "the message names the rule, the amounts and the limit that would do",
    ),
    Told(
        "BudgetExceededCleared",
        "LatticePool",
        "Normal",
        "A budget is no longer exceeded and refuses no purchase.",
    ),
    Told(
        "CapacityPressure",
        "LatticePool",
        "Warning",
        "80 % of the machines, cores or memory are in use. Also on data centers.",
    ),
    Told(
        "CapacityPressureCleared",
        "LatticePool",
        "Normal",
        "Less than 80 % of the machines, cores and memory are in use.",
    ),
)
