"""The checker reports each violation of the invariants of placement, locks and preemption in a synthetic
history, and nothing in a valid one."""

from typing import Any

import pytest
from build.checker_history import (
    CLUSTER,
    OF_CLASS,
    Case,
    SyntheticHistory,
    a_condition,
    chaos_violations,
    lock,
    node,
    node_class,
    pool,
    replica,
    service,
    simulation_violations,
    workload,
)

LEAVING = {"conditions": [a_condition("Leaving", "True", "Preempted")]}
LONE = {"sort": "lone"}
APART = {
    "affinity": {"antiWorkload": {"required": [{"selector": {"matchLabels": LONE}, "topologyKey": "node"}]}}
}
SPREAD = {"spread": [{"topologyKey": "node"}], "nodeSelector": OF_CLASS}
STAGING = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["staging"]}]}


def place_service(history: SyntheticHistory, placement: dict[str, Any], supply: Any) -> None:
    """A user declares the service, and a controller places it."""
    history.commit(supply, at=1.0, term=None, origin="api person-1")
    history.commit(
        service(least=0, placement=placement, placements=[]), at=2.0, term=None, origin="api person-1"
    )
    history.commit(service(least=0, placement=placement), at=20.0)


def placed_in_pool_with_other_labels(history: SyntheticHistory, bad: bool) -> None:
    labels = {"tier": "production", "region": "east"}
    place_service(
        history, {"pools": {"matchLabels": {"tier": "staging" if bad else "production"}}}, pool(labels=labels)
    )


def placed_in_pool_without_selected_value(history: SyntheticHistory, bad: bool) -> None:
    place_service(
        history,
        {"pools": STAGING},
        pool(labels={"tier": ["production"] if bad else ["production", "staging"]}),
    )


def placed_in_pool_without_compliance(history: SyntheticHistory, bad: bool) -> None:
    place_service(
        history, {"compliance": ["GDPR"]}, pool(labels={"compliance": ["soc2"] if bad else ["soc2", "gdpr"]})
    )


def placed_in_another_jurisdiction(history: SyntheticHistory, bad: bool) -> None:
    place_service(history, {"dataResidency": "eu"}, pool(labels={"dataResidency": "us" if bad else "EU"}))


def placed_on_class_with_other_labels(history: SyntheticHistory, bad: bool) -> None:
    place_service(
        history, {"nodeSelector": {"disk": "ssd"}}, node_class(labels={"disk": "tape" if bad else "ssd"})
    )


def placed_on_tainted_class(history: SyntheticHistory, bad: bool) -> None:
    place_service(
        history,
        {},
        node_class(taints=[{"key": "kept-free", "effect": "NoSchedule" if bad else "PreferNoSchedule"}]),
    )


def placed_on_class_not_offered(history: SyntheticHistory, bad: bool) -> None:
    place_service(history, {}, pool(nodeClasses=["large"] if bad else ["large", "small"]))


def placed_in_pool_after_label_removal(history: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    history.commit(pool(labels={"tier": "staging"}), at=1.0, term=None, origin="api person-1")
    history.commit(
        service(least=0, placement={"pools": STAGING}, placements=[]),
        at=2.0,
        term=None,
        origin="api person-1",
    )
    history.commit(pool(labels={}), at=15.0 if bad else 19.0, term=None, origin="api person-1")
    history.commit(service(least=0, placement={"pools": STAGING}), at=20.0)


def replica_in_unplaced_cluster(history: SyntheticHistory, bad: bool) -> None:
    history.commit(service(least=0), at=1.0)
    history.commit(
        replica(0, ready=False, cluster="west-001" if bad else CLUSTER, desiredState="Stopped"), at=20.0
    )


def anti_affinity_violated(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=2000), node("n2"))
    for name, on in (("w1", "n1"), ("w2", "n1" if bad else "n2")):
        history.commit(
            each := workload(name, on, ready=True, labels=LONE, constraints=APART if name == "w1" else {})
        )
        history.runs(each)


def anti_affinity_violated_by_recent_binding(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=2000), node("n2"), at=1.0)
    for name in ("w1", "w2"):
        history.commit(
            workload(name, labels=LONE, constraints=APART), at=10.0, term=None, origin="api person-1"
        )
    for name, on, at in (("w1", "n1", 20.0), ("w2", "n1" if bad else "n2", 20.5)):
        history.commit(each := workload(name, on, ready=True, labels=LONE, constraints=APART), at=at)
        history.runs(each)


def anti_affinity_violated_after_change(history: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    history.commit(node(cpu=2000), at=1.0)
    history.commit(each := workload("w1", "n1", ready=True, labels=LONE), at=2.0)
    history.runs(each)
    history.commit(
        workload("w1", "n1", ready=True, labels=LONE, constraints=APART),
        at=15.0 if bad else 19.0,
        term=None,
        origin="api person-1",
    )
    history.commit(other := workload("w2", "n1", ready=True, labels=LONE), at=20.0)
    history.runs(other)


def node_is_overcommitted_after_request_change(history: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    history.commit(node(cpu=1000), at=1.0)
    history.commit(each := workload("w1", "n1", cpu=300, ready=True), at=2.0)
    history.runs(each)
    history.commit(
        workload("w1", "n1", cpu=600, ready=True), at=15.0 if bad else 19.0, term=None, origin="api person-1"
    )
    history.commit(other := workload("w2", "n1", cpu=600, ready=True), at=20.0)
    history.runs(other)


def spread_skew_exceeded(history: SyntheticHistory, bad: bool) -> None:
    history.commit(service(least=2), node("n1"), node("n2"), at=1.0)
    for slot, on, at in ((0, "n1", 10.0), (1, "n1" if bad else "n2", 30.0)):
        history.commit(each := replica(slot, on, constraints=SPREAD), at=at)
        history.runs(each)


def spread_skew_exceeded_for_too_long(history: SyntheticHistory, bad: bool) -> None:
    history.commit(service(least=3), node("n1"), node("n2"), at=1.0)
    for slot, on, at in ((0, "n1", 10.0), (1, "n1", 30.0), (2, "n2", 33.0 if bad else 31.0)):
        history.commit(each := replica(slot, on, constraints=SPREAD), at=at)
        history.runs(each)


def spread_skew_exceeded_by_one_commit(history: SyntheticHistory, bad: bool) -> None:
    """However they are written down; the one that makes it even may come last."""
    history.commit(service(least=4), node("n1"), node("n2"), at=1.0)
    history.commit(first := replica(0, "n1", constraints=SPREAD), at=10.0)
    together = [
        replica(slot, on, constraints=SPREAD)
        for slot, on in ((1, "n1"), (2, "n1" if bad else "n2"), (3, "n2"))
    ]
    history.commit(*together, at=30.0)
    for each in (first, *together):
        history.runs(each)


def spread_skew_exceeded_on_empty_node(history: SyntheticHistory, bad: bool) -> None:
    history.commit(service(least=2), node("n1"), node("n2"), at=1.0)
    together = [replica(0, "n1", constraints=SPREAD), replica(1, "n1" if bad else "n2", constraints=SPREAD)]
    history.commit(*together, at=30.0)
    for each in together:
        history.runs(each)


def bound_after_reservation_expired(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "two-phase"
    held = {"node": "n1", "uid": "uid-n1", "id": "r1", "until": "2026-03-10T09:00:00+00:00"}
    history.commit(node(), at=1.0)
    history.commit(workload(reservation=held), at=10.0)
    history.commit(each := workload(on="n1", ready=True, bound_by="r1"), at=18.5 if bad else 17.5)
    history.runs(each)


def bound_under_foreign_lock(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "pessimistic"
    history.commit(node(), lock("controllers/s1.1 token" if not bad else "controllers/s1.2 token"))
    history.commit(each := workload(on="n1", ready=True))
    history.runs(each)


def bound_under_expired_lock(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "pessimistic"
    history.commit(node(), lock("controllers/s1.1 token", seconds=10), at=10.0)
    history.commit(each := workload(on="n1", ready=True), at=20.5 if bad else 19.5)
    history.runs(each)


def preempt(history: SyntheticHistory, waits: Any, after: Any) -> None:
    """w1 is preempted on n1 for the workload `waits`, which then becomes `after`."""
    history.commit(node(), node("n2"), at=1.0)
    history.commit(workload(on="n1", ready=True), at=2.0)
    history.runs(workload(on="n1", ready=True))
    history.commit(waits, at=10.0)
    history.commit(workload(on="n1", ready=True, **LEAVING), at=30.0)
    history.commit(after)


def preemption_for_stopped_workload(history: SyntheticHistory, bad: bool) -> None:
    stopped = workload("w2", priority=5, desiredState="Stopped")
    preempt(history, stopped if bad else workload("w2", priority=5), stopped)


def preemption_on_another_node(history: SyntheticHistory, bad: bool) -> None:
    where = {"constraints": {"nodeSelector": {"node": "n2" if bad else "n1"}}}
    preempt(history, workload("w2", priority=5, **where), workload("w2", desiredState="Stopped", **where))


def workload_waits_despite_capacity(history: SyntheticHistory, bad: bool) -> None:
    """A workload without a service gets no machine of its own: it may wait, with a reason, while no existing node fits."""
    history.commit(node(cpu=1000 if bad else 500))
    history.commit(workload(conditions=[a_condition("Scheduled")]))


def silent_node_deleted_with_wanted_workload(history: SyntheticHistory, bad: bool) -> None:
    """A workload that is to stop, on a silent node, ends with its machine."""
    made = node(cluster=CLUSTER, is_ready=False)
    history.commit(node(cluster=CLUSTER), at=1.0)
    history.commit(workload(on="n1", ready=True), at=2.0)
    history.commit(workload(on="n1", ready=True, desiredState="Running" if bad else "Stopped"), at=3.0)
    history.commit(made, at=10.0)
    history.commit(gone=(made,), at=50.0)
    history.commit(workload(desiredState="Stopped"))


CASES: list[tuple[str, Case]] = [
    ("I-14", placed_in_pool_with_other_labels),
    ("I-14", placed_in_pool_without_selected_value),
    ("I-14", placed_in_pool_without_compliance),
    ("I-14", placed_in_another_jurisdiction),
    ("I-14", placed_on_class_with_other_labels),
    ("I-14", placed_on_tainted_class),
    ("I-14", placed_on_class_not_offered),
    ("I-14", placed_in_pool_after_label_removal),
    ("I-14", replica_in_unplaced_cluster),
    ("I-12", node_is_overcommitted_after_request_change),
    ("I-14", anti_affinity_violated),
    ("I-14", anti_affinity_violated_by_recent_binding),
    ("I-14", anti_affinity_violated_after_change),
    ("I-14", spread_skew_exceeded),
    ("I-14", spread_skew_exceeded_for_too_long),
    ("I-14", spread_skew_exceeded_by_one_commit),
    ("I-14", spread_skew_exceeded_on_empty_node),
    ("I-16", bound_after_reservation_expired),
    ("I-17", bound_under_foreign_lock),
    ("I-17", bound_under_expired_lock),
    ("I-18", preemption_for_stopped_workload),
    ("I-18", preemption_on_another_node),
    ("I-27", silent_node_deleted_with_wanted_workload),
    ("I-32", workload_waits_despite_capacity),
]


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_checker_reports_only_the_violated_invariant(number: str, case: Case) -> None:
    assert simulation_violations(case) == [{number}, set()]


# Real processes bind optimistically.
UNSEEN = {bound_after_reservation_expired, bound_under_foreign_lock, bound_under_expired_lock}


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_chaos_checker_agrees(number: str, case: Case) -> None:
    assert chaos_violations(case) == [set() if case in UNSEEN else {number}, set()]
