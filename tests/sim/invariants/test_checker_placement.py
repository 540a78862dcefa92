"""The checker reports each violation of the invariants of placement, locks and preemption in a synthetic
history, and nothing in a valid one."""

from typing import Any

import pytest
from build.checker_history import (
    CLUSTER,
    OF_CLASS,
    Case,
    SyntheticHistory,
    chaos_violations,
    lock,
    node,
    node_class,
    pool,
    replica,
    said,
    service,
    simulation_violations,
    workload,
)

LEAVING = {"conditions": [said("Leaving", "True", "Preempted")]}
LONE = {"sort": "lone"}
APART = {
    "affinity": {"antiWorkload": {"required": [{"selector": {"matchLabels": LONE}, "topologyKey": "node"}]}}
}
SPREAD = {"spread": [{"topologyKey": "node"}], "nodeSelector": OF_CLASS}
STAGING = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["staging"]}]}


def demanded(past: SyntheticHistory, placement: dict[str, Any], supply: Any) -> None:
    """A user declares the service, and a controller places it."""
    past.commit(supply, at=1.0, term=None, origin="api person-1")
    past.commit(
        service(least=0, placement=placement, placements=[]), at=2.0, term=None, origin="api person-1"
    )
    past.commit(service(least=0, placement=placement), at=20.0)


def in_a_pool_with_other_labels(past: SyntheticHistory, bad: bool) -> None:
    labels = {"tier": "production", "region": "east"}
    demanded(
        past, {"pools": {"matchLabels": {"tier": "staging" if bad else "production"}}}, pool(labels=labels)
    )


def in_a_pool_without_any_of_the_values(past: SyntheticHistory, bad: bool) -> None:
    demanded(
        past, {"pools": STAGING}, pool(labels={"tier": ["production"] if bad else ["production", "staging"]})
    )


def in_a_pool_without_a_certificate(past: SyntheticHistory, bad: bool) -> None:
    demanded(
        past, {"compliance": ["GDPR"]}, pool(labels={"compliance": ["soc2"] if bad else ["soc2", "gdpr"]})
    )


def in_another_jurisdiction(past: SyntheticHistory, bad: bool) -> None:
    demanded(past, {"dataResidency": "eu"}, pool(labels={"dataResidency": "us" if bad else "EU"}))


def on_machines_with_other_labels(past: SyntheticHistory, bad: bool) -> None:
    demanded(past, {"nodeSelector": {"disk": "ssd"}}, node_class(labels={"disk": "tape" if bad else "ssd"}))


def on_machines_with_a_taint(past: SyntheticHistory, bad: bool) -> None:
    demanded(
        past,
        {},
        node_class(taints=[{"key": "kept-free", "effect": "NoSchedule" if bad else "PreferNoSchedule"}]),
    )


def on_a_class_that_the_pool_does_not_offer(past: SyntheticHistory, bad: bool) -> None:
    demanded(past, {}, pool(nodeClasses=["large"] if bad else ["large", "small"]))


def in_a_pool_that_had_lost_its_label_for_long(past: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    past.commit(pool(labels={"tier": "staging"}), at=1.0, term=None, origin="api person-1")
    past.commit(
        service(least=0, placement={"pools": STAGING}, placements=[]),
        at=2.0,
        term=None,
        origin="api person-1",
    )
    past.commit(pool(labels={}), at=15.0 if bad else 19.0, term=None, origin="api person-1")
    past.commit(service(least=0, placement={"pools": STAGING}), at=20.0)


def made_where_its_service_was_not_placed(past: SyntheticHistory, bad: bool) -> None:
    past.commit(service(least=0), at=1.0)
    past.commit(
        replica(0, ready=False, cluster="west-001" if bad else CLUSTER, desiredState="Stopped"), at=20.0
    )


def beside_one_that_it_must_be_far_from(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=2000), node("n2"))
    for name, on in (("w1", "n1"), ("w2", "n1" if bad else "n2")):
        past.commit(
            each := workload(name, on, ready=True, labels=LONE, constraints=APART if name == "w1" else {})
        )
        past.runs(each)


def beside_one_that_came_just_before(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=2000), node("n2"), at=1.0)
    for name in ("w1", "w2"):
        past.commit(workload(name, labels=LONE, constraints=APART), at=10.0, term=None, origin="api person-1")
    for name, on, at in (("w1", "n1", 20.0), ("w2", "n1" if bad else "n2", 20.5)):
        past.commit(each := workload(name, on, ready=True, labels=LONE, constraints=APART), at=at)
        past.runs(each)


def beside_one_that_has_asked_for_distance_for_long(past: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    past.commit(node(cpu=2000), at=1.0)
    past.commit(each := workload("w1", "n1", ready=True, labels=LONE), at=2.0)
    past.runs(each)
    past.commit(
        workload("w1", "n1", ready=True, labels=LONE, constraints=APART),
        at=15.0 if bad else 19.0,
        term=None,
        origin="api person-1",
    )
    past.commit(other := workload("w2", "n1", ready=True, labels=LONE), at=20.0)
    past.runs(other)


def where_another_has_asked_for_more_for_long(past: SyntheticHistory, bad: bool) -> None:
    """A controller that cannot have seen the change yet may decide on the previous state."""
    past.commit(node(cpu=1000), at=1.0)
    past.commit(each := workload("w1", "n1", cpu=300, ready=True), at=2.0)
    past.runs(each)
    past.commit(
        workload("w1", "n1", cpu=600, ready=True), at=15.0 if bad else 19.0, term=None, origin="api person-1"
    )
    past.commit(other := workload("w2", "n1", cpu=600, ready=True), at=20.0)
    past.runs(other)


def on_a_node_that_is_ahead(past: SyntheticHistory, bad: bool) -> None:
    past.commit(service(least=2), node("n1"), node("n2"), at=1.0)
    for slot, on, at in ((0, "n1", 10.0), (1, "n1" if bad else "n2", 30.0)):
        past.commit(each := replica(slot, on, constraints=SPREAD), at=at)
        past.runs(each)


def before_the_one_that_it_was_chosen_with(past: SyntheticHistory, bad: bool) -> None:
    past.commit(service(least=3), node("n1"), node("n2"), at=1.0)
    for slot, on, at in ((0, "n1", 10.0), (1, "n1", 30.0), (2, "n2", 33.0 if bad else 31.0)):
        past.commit(each := replica(slot, on, constraints=SPREAD), at=at)
        past.runs(each)


def too_many_of_one_commit_on_a_node(past: SyntheticHistory, bad: bool) -> None:
    """However they are written down; the one that makes it even may come last."""
    past.commit(service(least=4), node("n1"), node("n2"), at=1.0)
    past.commit(first := replica(0, "n1", constraints=SPREAD), at=10.0)
    together = [
        replica(slot, on, constraints=SPREAD)
        for slot, on in ((1, "n1"), (2, "n1" if bad else "n2"), (3, "n2"))
    ]
    past.commit(*together, at=30.0)
    for each in (first, *together):
        past.runs(each)


def two_of_one_commit_on_an_empty_node(past: SyntheticHistory, bad: bool) -> None:
    past.commit(service(least=2), node("n1"), node("n2"), at=1.0)
    together = [replica(0, "n1", constraints=SPREAD), replica(1, "n1" if bad else "n2", constraints=SPREAD)]
    past.commit(*together, at=30.0)
    for each in together:
        past.runs(each)


def bound_after_its_reservation(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "two-phase"
    held = {
        "prepared": {"node": "n1", "uid": "uid-n1", "reservation": "r1", "until": "2026-03-10T09:00:00+00:00"}
    }
    past.commit(node(), at=1.0)
    past.commit(workload(decision=held), at=10.0)
    past.commit(
        each := workload(on="n1", ready=True, decision={"reservation": "r1"}), at=18.5 if bad else 17.5
    )
    past.runs(each)


def under_the_lock_of_somebody_else(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "pessimistic"
    past.commit(node(), lock("controllers/s1.1 token" if not bad else "controllers/s1.2 token"))
    past.commit(each := workload(on="n1", ready=True))
    past.runs(each)


def under_a_lock_that_had_ended(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "pessimistic"
    past.commit(node(), lock("controllers/s1.1 token", seconds=10), at=10.0)
    past.commit(each := workload(on="n1", ready=True), at=20.5 if bad else 19.5)
    past.runs(each)


def makes_room(past: SyntheticHistory, waits: Any, after: Any) -> None:
    """w1 is preempted on n1 for the workload `waits`, which then becomes `after`."""
    past.commit(node(), node("n2"), at=1.0)
    past.commit(workload(on="n1", ready=True), at=2.0)
    past.runs(workload(on="n1", ready=True))
    past.commit(waits, at=10.0)
    past.commit(workload(on="n1", ready=True, **LEAVING), at=30.0)
    past.commit(after)


def room_made_for_one_that_is_not_to_run(past: SyntheticHistory, bad: bool) -> None:
    stopped = workload("w2", priority=5, desiredState="Stopped")
    makes_room(past, stopped if bad else workload("w2", priority=5), stopped)


def room_made_on_another_node(past: SyntheticHistory, bad: bool) -> None:
    where = {"constraints": {"nodeSelector": {"node": "n2" if bad else "n1"}}}
    makes_room(past, workload("w2", priority=5, **where), workload("w2", desiredState="Stopped", **where))


def waits_though_there_is_room(past: SyntheticHistory, bad: bool) -> None:
    """A workload without a service gets no machine of its own: it may wait, with a reason, while no existing node fits."""
    past.commit(node(cpu=1000 if bad else 500))
    past.commit(workload(conditions=[said("Scheduled")]))


def silent_with_something_that_is_wanted(past: SyntheticHistory, bad: bool) -> None:
    """What is to end, on a node that is silent, ends with its machine."""
    made = node(cluster=CLUSTER, is_ready=False)
    past.commit(node(cluster=CLUSTER), at=1.0)
    past.commit(workload(on="n1", ready=True), at=2.0)
    past.commit(workload(on="n1", ready=True, desiredState="Running" if bad else "Stopped"), at=3.0)
    past.commit(made, at=10.0)
    past.commit(gone=(made,), at=50.0)
    past.commit(workload(desiredState="Stopped"))


CASES: list[tuple[str, Case]] = [
    ("I-14", in_a_pool_with_other_labels),
    ("I-14", in_a_pool_without_any_of_the_values),
    ("I-14", in_a_pool_without_a_certificate),
    ("I-14", in_another_jurisdiction),
    ("I-14", on_machines_with_other_labels),
    ("I-14", on_machines_with_a_taint),
    ("I-14", on_a_class_that_the_pool_does_not_offer),
    ("I-14", in_a_pool_that_had_lost_its_label_for_long),
    ("I-14", made_where_its_service_was_not_placed),
    ("I-12", where_another_has_asked_for_more_for_long),
    ("I-14", beside_one_that_it_must_be_far_from),
    ("I-14", beside_one_that_came_just_before),
    ("I-14", beside_one_that_has_asked_for_distance_for_long),
    ("I-14", on_a_node_that_is_ahead),
    ("I-14", before_the_one_that_it_was_chosen_with),
    ("I-14", too_many_of_one_commit_on_a_node),
    ("I-14", two_of_one_commit_on_an_empty_node),
    ("I-16", bound_after_its_reservation),
    ("I-17", under_the_lock_of_somebody_else),
    ("I-17", under_a_lock_that_had_ended),
    ("I-18", room_made_for_one_that_is_not_to_run),
    ("I-18", room_made_on_another_node),
    ("I-27", silent_with_something_that_is_wanted),
    ("I-32", waits_though_there_is_room),
]


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_checker_reports_only_the_violated_invariant(number: str, case: Case) -> None:
    assert simulation_violations(case) == [{number}, set()]


# Real processes bind optimistically.
UNSEEN = {bound_after_its_reservation, under_the_lock_of_somebody_else, under_a_lock_that_had_ended}


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_chaos_checker_agrees(number: str, case: Case) -> None:
    assert chaos_violations(case) == [set() if case in UNSEEN else {number}, set()]
