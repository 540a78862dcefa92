"""Tests of `observe_replicas`: a cluster with unsettled replicas keeps all its machines."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from build.worlds import a_service

from lattice.kinds.meta.base import Condition, Metadata, OwnerReference
from lattice.kinds.node import LatticeNode, NodeSpec, NodeStatus
from lattice.kinds.service import LatticeService, ServicePlacement, ServiceStatus
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadStatus
from lattice.lifecycle.replica_observation import (
    ReplicaObservation,
    SchedulingTimeout,
    has_joined,
    holds_machine,
    not_ready_message,
    observe_replicas,
)
from lattice.lifecycle.replica_template import build_workload, in_node_group, workload_template

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEDULING_TIMEOUT = SchedulingTimeout(NOW, timedelta(seconds=10))


def a_placed_service(replicas: int, **more: Any) -> LatticeService:
    """A service with a placement in cluster c on class m."""
    service = a_service(replicas=replicas, **more)
    status = ServiceStatus(placements=(ServicePlacement(pool="p", cluster="c", node="m", replicas=replicas),))
    return msgspec.structs.replace(
        service, metadata=msgspec.structs.replace(service.metadata, uid="u1", generation=1), status=status
    )


def a_stored_replica(
    slot: int,
    *,
    node: str = "n1",
    owner: str = "u1",
    going: bool = False,
    service: LatticeService | None = None,
    **status: Any,
) -> LatticeWorkload:
    whose = service or a_placed_service(1)
    reference = OwnerReference(
        api_version="lattice.dev/v1alpha1", kind="LatticeService", name="api", uid=owner
    )
    made = build_workload(whose, in_node_group(workload_template(whose), ("c", "m")), slot, reference)
    metadata = msgspec.structs.replace(
        made.metadata, deletion_timestamp="2026-11-15T00:00:00Z" if going else None
    )
    binding = Binding(node=node) if node else None
    return msgspec.structs.replace(made, metadata=metadata, status=WorkloadStatus(binding=binding, **status))


def a_bare_workload() -> LatticeWorkload:
    made = a_stored_replica(0)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, service=""))


def a_terminating_service(replicas: int) -> LatticeService:
    made = a_placed_service(replicas)
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, deletion_timestamp="2026-11-15T00:00:00Z")
    )


def a_node_with_reason(name: str = "n1", reason: str = "Heard", *, going: bool = False) -> LatticeNode:
    conditions = (
        (Condition(type="Ready", status="True" if reason == "Heard" else "False", reason=reason),)
        if reason
        else ()
    )
    return LatticeNode(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeNode",
        metadata=Metadata(name=name, deletion_timestamp="2026-11-15T00:00:00Z" if going else None),
        spec=NodeSpec(cluster="c", node_class="m"),
        status=NodeStatus(conditions=conditions),
    )


def observe(
    service: LatticeService,
    *workloads: LatticeWorkload,
    nodes: tuple[LatticeNode, ...] = (a_node_with_reason(),),
) -> ReplicaObservation:
    return observe_replicas([service], workloads, nodes, SCHEDULING_TIMEOUT)


@pytest.mark.parametrize(
    ("workloads", "unsettled"),
    [
        pytest.param([a_stored_replica(0), a_stored_replica(1)], False, id="all that are placed are bound"),
        pytest.param([a_stored_replica(0)], True, id="one is still to be made"),
        pytest.param([a_stored_replica(0), a_stored_replica(1, node="")], True, id="one is not bound yet"),
        pytest.param(
            [a_stored_replica(0), a_stored_replica(1, node="gone")],
            True,
            id="one is bound to a node that is gone",
        ),
        pytest.param(
            [a_stored_replica(0), a_stored_replica(1), a_stored_replica(2)], True, id="one too many is bound"
        ),
        pytest.param(
            [a_stored_replica(0), a_stored_replica(1), a_stored_replica(2, going=True)],
            True,
            id="one is on its way out",
        ),
        pytest.param(
            [a_stored_replica(0), a_stored_replica(1), a_stored_replica(2, owner="u0")],
            True,
            id="one is left of an earlier service of this name",
        ),
    ],
)
def test_cluster_is_settled_when_replicas_match_placement(
    workloads: list[LatticeWorkload], *, unsettled: bool
) -> None:
    assert observe(a_placed_service(2), *workloads).unsettled_clusters == (
        frozenset({"c"}) if unsettled else frozenset()
    )


def test_replicas_of_deleted_service_are_unsettled() -> None:
    assert observe_replicas(
        [], [a_stored_replica(0)], [a_node_with_reason()], SCHEDULING_TIMEOUT
    ).unsettled_clusters == frozenset({"c"})


def test_bare_workload_does_not_unsettle_cluster() -> None:
    bare = a_stored_replica(0)
    bare = msgspec.structs.replace(bare, spec=msgspec.structs.replace(bare.spec, service=""))
    assert (
        observe_replicas([], [bare], [a_node_with_reason()], SCHEDULING_TIMEOUT).unsettled_clusters
        == frozenset()
    )


@pytest.mark.parametrize(
    ("said", "age", "stuck"),
    [
        pytest.param(("False", "NoNodeFits"), 10, True, id="for long enough"),
        pytest.param(("False", "NoNodeFits"), 9, False, id="not for long yet"),
        pytest.param(
            ("False", "NoNodeFits"),
            -90,
            True,
            id="since a time that is yet to come: by a clock of which nothing is known",
        ),
        pytest.param(("False", "Waiting"), 60, False, id="for another reason"),
        pytest.param(("True", "Bound"), 60, False, id="it is scheduled"),
    ],
)
def test_replica_is_unschedulable_after_timeout(said: tuple[str, str], age: int, *, stuck: bool) -> None:
    found = observe(a_placed_service(1), a_stored_replica(0, node="", conditions=(a_condition(*said, age),)))
    assert found.unschedulable == ({"default/api": {("c", "m"): 1}} if stuck else {})


def a_condition(status: str, reason: str, age: int, about: str = "Scheduled") -> Condition:
    since = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return msgspec.convert(
        {"type": about, "status": status, "reason": reason, "lastTransitionTime": since}, Condition
    )


@pytest.mark.parametrize(
    ("ready", "cluster", "stuck"),
    [
        pytest.param(("True", "Heartbeat", 9), "c", False, id="one that came just now"),
        pytest.param(
            ("True", "Heartbeat", 10), "c", True, id="one that has been there for long enough to be given"
        ),
        pytest.param(("True", "Heartbeat", -90), "c", True, id="one that came at a time that is yet to come"),
        pytest.param(("False", "NodeLost", 1), "c", True, id="one that was lost just now"),
        pytest.param(("True", "Heartbeat", 1), "d", True, id="one of another cluster"),
    ],
)
def test_replica_waits_while_cluster_has_fresh_node(
    ready: tuple[str, str, int], cluster: str, *, stuck: bool
) -> None:
    node = a_node_with_reason("n2")
    status = NodeStatus(conditions=(a_condition(*ready, about="Ready"),))
    node = msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, cluster=cluster), status=status
    )
    waiting = a_stored_replica(0, node="", conditions=(a_condition("False", "NoNodeFits", 60),))
    assert (
        bool(observe(a_placed_service(1), waiting, nodes=(a_node_with_reason(), node)).unschedulable) == stuck
    )


@pytest.mark.parametrize(
    ("nodes", "paid", "held_up"),
    [
        pytest.param(
            [a_node_with_reason(going=True)], [1], True, id="one leaves, and has the money until it is gone"
        ),
        pytest.param([a_node_with_reason(going=True)], [2], False, id="the successor is paid for"),
        pytest.param(
            [a_node_with_reason(going=True), a_node_with_reason("n2", "NotJoined")],
            [2],
            False,
            id="the successor is joining",
        ),
        pytest.param(
            [a_node_with_reason(), a_node_with_reason("n2", going=True)],
            [2, 3],
            True,
            id="one of two budgets pays for no more than are there",
        ),
        pytest.param(
            [a_node_with_reason(), a_node_with_reason("n2", going=True)],
            [0, 3],
            True,
            id="one of two budgets pays for none of this class",
        ),
        pytest.param([a_node_with_reason(going=True)], [], False, id="no ledgers"),
    ],
)
def test_blocked_node_groups(nodes: list[LatticeNode], paid: list[int], *, held_up: bool) -> None:
    counts = [Counter({("c", "m"): count} if count else {("c", "other"): 1}) for count in paid]
    assert observe_replicas([], [], nodes, SCHEDULING_TIMEOUT, counts).blocked == (
        {("c", "m")} if held_up else set()
    )


@pytest.mark.parametrize(
    ("before", "updated"),
    [
        pytest.param(a_placed_service(1), False, id="the same"),
        pytest.param(a_placed_service(1, priority=5), False, id="what no machine has to do with"),
        pytest.param(a_placed_service(1, cores=2), True, id="more cores"),
        pytest.param(a_placed_service(1, nodeSelector={"disk": "ssd"}), True, id="other nodes"),
        pytest.param(
            a_placed_service(1, tolerations=[{"key": "gpu", "operator": "Exists"}]), True, id="other taints"
        ),
    ],
)
def test_service_is_updated_when_machine_demands_change(before: LatticeService, *, updated: bool) -> None:
    assert observe(a_placed_service(1), a_stored_replica(0, service=before)).updated_services == (
        frozenset({"default/api"}) if updated else frozenset()
    )


def test_service_without_replicas_is_updated_by_generation() -> None:
    service = a_placed_service(1)
    for generation, updated in ((1, False), (2, True)):
        condition = Condition(type="Placed", status="True", observed_generation=1)
        metadata = msgspec.structs.replace(service.metadata, generation=generation)
        status = msgspec.structs.replace(service.status, conditions=(condition,))
        found = observe(msgspec.structs.replace(service, metadata=metadata, status=status))
        assert bool(found.updated_services) == updated


@pytest.mark.parametrize(
    ("node", "joined"),
    [
        pytest.param(a_node_with_reason(), True, id="the node sends heartbeats"),
        pytest.param(a_node_with_reason(reason="NodeLost"), True, id="the node was lost after joining"),
        pytest.param(a_node_with_reason(reason="NotJoined"), False, id="the node has not joined"),
        pytest.param(a_node_with_reason(reason=""), False, id="the node has no conditions"),
        pytest.param(a_node_with_reason(going=True), False, id="it is being removed"),
    ],
)
def test_has_joined(node: LatticeNode, *, joined: bool) -> None:
    assert has_joined(node) == joined


@pytest.mark.parametrize(
    ("reason", "said"), [("Heard", ""), ("NotJoined", ""), ("Silent", "nothing heard for 40 s")]
)
def test_not_ready_message_requires_earlier_heartbeat(reason: str, said: str) -> None:
    node = a_node_with_reason(reason=reason)
    (ready,) = node.status.conditions
    conditions = (msgspec.structs.replace(ready, message="nothing heard for 40 s"),)
    assert (
        not_ready_message(
            msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=conditions))
        )
        == said
    )


@pytest.mark.parametrize(
    ("replica", "service", "stays"),
    [
        pytest.param(a_stored_replica(0), a_placed_service(1), True, id="its service exists"),
        pytest.param(a_stored_replica(0, going=True), a_placed_service(1), False, id="a terminating replica"),
        pytest.param(a_stored_replica(0), None, False, id="its service is deleted"),
        pytest.param(a_stored_replica(0), a_terminating_service(1), False, id="its service is terminating"),
        pytest.param(
            a_stored_replica(0, owner="u0"),
            a_placed_service(1),
            False,
            id="owned by an earlier service of the same name",
        ),
        pytest.param(a_bare_workload(), None, True, id="a bare workload"),
    ],
)
def test_holds_machine(replica: LatticeWorkload, service: LatticeService | None, stays: bool) -> None:
    assert holds_machine(replica, service) is stays
