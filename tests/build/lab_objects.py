"""Objects around a replica that does not run: its node, cluster and pool, and what they report."""

from datetime import UTC, datetime
from typing import Any

from build.objects import a_workload, make_object
from lattice.diagnosis.blocker import facts_of
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
STAMP = format_timestamp(NOW)
REVISION = "a" * 24
BOUND = {"binding": {"node": "n1"}}
UNSCHEDULED = {
    "conditions": [
        {
            "type": "Scheduled",
            "status": "False",
            "reason": "NoNodeFits",
            "message": "0 of 1 node: 1 without 1 cpu free",
            "lastTransitionTime": STAMP,
        }
    ],
    "decision": {"nearest": {"node": "n1", "short": [{"what": "cpu", "need": "1", "have": "250m", "missing": "750m"}]}},
}  # fmt: skip
LOT = {"lab-001": [{"nodeClass": "nano", "count": 2, "micros": 4000}]}


def a_lab_node(name: str = "n1", ready: str = "True", reason: str = "Heartbeat", **more: Any) -> LatticeNode:
    message = {"NotJoined": "No agent has joined yet", "HeartbeatMissed": "No heartbeat for 40 s"}
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": reason,
        "message": message.get(reason, ""),
        "lastTransitionTime": STAMP,
    }
    spec = {"cluster": "lab-001", "nodeClass": "nano"}
    return make_object(LatticeNode, name, spec=spec, status={"conditions": [condition]}, **more)


def a_lab_cluster(**status: Any) -> LatticeCluster:
    return make_object(LatticeCluster, "lab-001", spec={"pool": "lab", "nodes": {"nano": 3}}, status=status)


def a_lab_pool(used: int, most: int) -> LatticePool:
    spec = {"provider": {"type": "local", "region": "here"}, "capacity": {"maxNodes": most}}
    return make_object(LatticePool, "lab", spec=spec, status={"capacity": {"allocatedNodes": used}})


def a_lab_replica(state: str = "Pending", failures: int = 0, **parts: Any) -> LatticeWorkload:
    status = {"actualState": state, "stateSince": STAMP, **parts.pop("status", {})}
    if failures:
        status["retry"] = {
            "attempts": failures,
            "max": 5,
            "revision": REVISION,
            "final": parts.pop("final", False),
            "nextAt": parts.pop("next_at", "2026-11-15T12:00:40Z"),
        }
    node_selector = {"nodeSelector": {"lattice.dev/node-class": "nano"}}
    spec = {"service": "web", "cluster": "lab-001", "revision": REVISION, "constraints": node_selector}
    return a_workload("web-0", status=status, **{**spec, **parts})


def failing(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {**BOUND, "failureReason": reason, "failureMessage": message, "lastActionAt": STAMP, **more}


READY_NODE = facts_of(NOW, [a_lab_node()], [a_lab_cluster()])
EMPTY = facts_of(NOW)
