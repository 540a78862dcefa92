"""The checker reports each violation of the invariants of bindings, silent nodes and disruption in a
synthetic history, and nothing in a valid one."""

from typing import Any

import msgspec
import pytest
from build.checker_history import (
    Case,
    SyntheticHistory,
    a_condition,
    chaos_violations,
    node,
    replica,
    service,
    simulation_violations,
    workload,
)
from msgspec.structs import replace

from lattice.sim.world.store import ElectionRecord
from lattice.store.protocol import Term

CREW = {"name": "crew", "minMember": 2}
STRICT = {
    "policy": "stop",
    "stopAfter": "20s",
}  # certain after (20 + 2.5) * 1.05 * 1.05 = 24.8 s, replaced after 30
LEAVING = {"conditions": [a_condition("Leaving", "True", "Preempted")]}


def prepared(by: str = "r1") -> dict[str, Any]:
    return {"node": "n1", "uid": "uid-n1", "id": by, "until": "2026-03-10T09:00:00+00:00"}


def bound(history: SyntheticHistory, on: str = "n1", name: str = "w1", **rest: Any) -> None:
    each = workload(name, on, ready=True, **rest)
    history.commit(each)
    history.runs(each)


def binding_moves_in_one_commit(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node("n1"), node("n2"))
    history.commit(workload(on="n1", ready=True))
    if not bad:
        history.commit(workload())
    bound(history, "n2")


def two_replicas_of_one_slot(history: SyntheticHistory, bad: bool) -> None:
    history.commit(service(least=2), node())
    for slot in (0, 1):
        each = replica(slot, "n1")
        history.commit(replica(0, "n1") if not slot else _renumbered(slot, 0 if bad else 1))
        history.runs(each)


def _renumbered(number: int, slot: int) -> Any:
    made = replica(number, "n1")
    return replace(made, spec=replace(made.spec, slot=slot))


def node_is_overcommitted(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=1000 if bad else 1200))
    bound(history, name="w1")
    bound(history, name="w2")


def node_is_overcommitted_beside_bound_workload(history: SyntheticHistory, bad: bool) -> None:
    """A workload bound to an earlier node of that name uses nothing of this one."""
    here = node("n1")
    there = here if bad else replace(here, metadata=replace(here.metadata, uid="uid-of-a-former-node"))
    stays = workload("w1", on="n1")
    binding = replace(stays.status.binding, uid=there.metadata.uid)
    history.commit(there)
    history.commit(stays := replace(stays, status=replace(stays.status, binding=binding)))
    history.commit(here)
    bound(history, name="w2")
    history.commit(gone=(stays,))


def bound_to_a_former_node(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node("n1"))
    each = workload("w1", on="n1", ready=True)
    binding = replace(each.status.binding, uid="uid-of-a-former-node" if bad else "uid-n1")
    history.commit(each := replace(each, status=replace(each.status, binding=binding)))
    history.runs(each)


def node_is_overcommitted_beside_reservation(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=1000 if bad else 1200))
    history.commit(workload("w2", reservation=prepared()))
    bound(history, name="w1")
    history.commit(workload("w2", desiredState="Stopped"))


def bound_to_a_cordoned_node(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(unschedulable=bad))
    bound(history)


def bound_to_a_node_that_is_not_ready(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(is_ready=not bad))
    bound(history)


def port_is_allocated_twice(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=2000))
    bound(history, name="w1", allocatedPorts={"http": 20000})
    bound(history, name="w2", allocatedPorts={"http": 20000 if bad else 20001})


def gang_is_bound_one_by_one(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=2000), workload("w1", group=CREW), workload("w2", group=CREW))
    pair = [workload(name, "n1", group=CREW, ready=True) for name in ("w1", "w2")]
    if bad:
        history.commit(pair[0])
    history.commit(*pair)
    for each in pair:
        history.runs(each)


def gang_member_bound_without_the_other(history: SyntheticHistory, bad: bool) -> None:
    """A scheduler that knew of it must not count on it; one that could not know yet may."""
    both = [workload(name, "n1", group=CREW, ready=True) for name in ("w1", "w2")]
    history.commit(node(cpu=2000), at=1.0)
    history.commit(*both, at=2.0)
    history.commit(workload("w1", group=CREW), at=3.0)
    history.commit(workload("w2", group=CREW), at=20.0)
    history.commit(workload("w1", "n1", group=CREW, ready=True), at=23.0, writer_revision=5 if bad else 4)
    history.commit(both[1])
    for each in both:
        history.runs(each)


def bound_without_a_reservation(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "two-phase"
    history.commit(node())
    history.commit(workload(reservation=None if bad else prepared()))
    bound(history, bound_by="r1")


def bound_under_another_reservation(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "two-phase"
    history.commit(node())
    history.commit(workload(reservation=prepared("r2" if bad else "r1")))
    bound(history, bound_by="r1")


def bound_without_a_lock(history: SyntheticHistory, bad: bool) -> None:
    history.binding = "pessimistic" if bad else "optimistic"
    history.commit(node())
    bound(history)


def preemption_without_higher_priority(history: SyntheticHistory, bad: bool) -> None:
    waits = workload("w2", priority=0 if bad else 5)
    history.commit(node())
    bound(history)
    history.commit(waits)
    history.commit(workload(on="n1", ready=True, **LEAVING))
    history.commit(workload("w2", desiredState="Stopped"))


def rebind_from_silent_node(history: SyntheticHistory, at: float, **rest: Any) -> None:
    """Taken from a node that has not been heard since the 10th second, and bound elsewhere."""
    history.commit(node("n1"), node("n2"), at=1.0)
    history.commit(workload(on="n1", ready=True, **rest), at=2.0)
    history.heard = [(10.0, "n1"), *((float(second), "n2") for second in range(1, 200, 5))]
    history.commit(node("n1", is_ready=False), at=25.0)
    history.commit(workload(**rest), at=at)
    history.commit(workload(on="n2", ready=True, **rest))


def silent_node_evicted_too_early(history: SyntheticHistory, bad: bool) -> None:
    rebind_from_silent_node(history, 39.0 if bad else 40.0)
    history.ran("n2", start=50.0)


def evicted_from_reconnected_node(history: SyntheticHistory, bad: bool) -> None:
    """It says that the copy has ended, while it is not written yet that it is ready: that is right if the copy has."""
    rebind_from_silent_node(history, 30.0)
    history.heard = [*history.heard, (29.0, "n1")]
    history.ran("n1", start=3.0, end=31.0 if bad else 28.0)
    history.ran("n2", start=50.0)


def evicted_on_a_report_to_the_former_leader(history: SyntheticHistory, bad: bool) -> None:
    rebind_from_silent_node(history, 30.0)
    history.heard = [*history.heard, (29.0, "n1")]
    history.elections = [ElectionRecord(29.5 if bad else 28.5, Term("controllers", 1, "s1"))]
    history.ran("n1", start=3.0, end=28.0)
    history.ran("n2", start=50.0)


def evicted_by_a_new_leader_too_early(history: SyntheticHistory, bad: bool) -> None:
    rebind_from_silent_node(history, 60.0)
    history.elections = [ElectionRecord(31.0 if bad else 29.0, Term("controllers", 1, "s1"))]
    history.ran("n2", start=70.0)


def strict_copy_evicted_before_it_must_have_stopped(history: SyntheticHistory, bad: bool) -> None:
    long = {"policy": "stop", "stopAfter": "29s"}  # (29 + 2.5) * 1.05 * 1.05 = 34.7 s
    rebind_from_silent_node(history, 44.0 if bad else 45.0, disconnect=long)
    history.ran("n2", start=70.0, stop_after=29.0)


def two_strict_copies(history: SyntheticHistory, bad: bool) -> None:
    rebind_from_silent_node(history, 41.0, disconnect=STRICT)
    history.ran("n1", start=3.0, end=33.0, stop_after=20.0)
    history.ran("n2", start=32.0 if bad else 42.0, stop_after=20.0)


def strict_copy_outlives_contact(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node())
    history.heard = [
        (float(second), "n1") for second in range(1, 31, 3)
    ]  # and from the 28th second on nothing
    history.ran("n1", start=3.0, end=52.0 if bad else 51.0, stop_after=20.0)


def two_copies_on_one_node(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node())
    history.ran("n1", start=3.0, end=20.0)
    history.ran("n1", start=19.0 if bad else 21.0, end=30.0)


def commit_ready_service(history: SyntheticHistory, least: int = 2, count: int = 2) -> None:
    history.commit(service(least=least), node(), at=1.0)
    history.commit(*(replica(slot, "n1") for slot in range(count)), at=20.0)


def keep_running(history: SyntheticHistory, *left: int) -> None:
    for slot in left:
        history.runs(replica(slot, "n1"))


def needed_replica_is_stopped(history: SyntheticHistory, bad: bool) -> None:
    commit_ready_service(history, least=2, count=2 if bad else 3)
    history.commit(service(least=2, generation=2), at=40.0)
    history.commit(replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"))
    history.commit(gone=(replica(1),))
    history.commit(replica(2, "n1"))
    keep_running(history, 0, 2)


def replica_is_stopped_after_scale_up(history: SyntheticHistory, bad: bool) -> None:
    """A replica that was evicted before the scale-up has been stopped already."""
    commit_ready_service(history, least=1, count=2)
    history.commit(replica(1, "n1", lastAction="Apply" if bad else "ApplyStopped"), at=38.0)
    history.commit(service(least=2, generation=2), at=40.0)
    history.commit(
        replica(
            1, "n1", lastAction="Apply" if bad else "ApplyStopped", deletionTimestamp="2026-03-10T09:01:00Z"
        ),
        at=45.0,
    )
    history.commit(gone=(replica(1),))
    history.commit(replica(2, "n1"))
    keep_running(history, 0, 2)


def replica_is_stopped_while_another_fails(history: SyntheticHistory, bad: bool) -> None:
    commit_ready_service(history, least=1, count=2)
    history.commit(replica(0, "n1", ready=False), at=30.0)
    history.commit(service(least=1, generation=2), at=33.0)
    history.commit(
        replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"), at=34.0, writer_revision=5 if bad else 3
    )
    history.commit(replica(0, "n1"))
    history.commit(gone=(replica(1),))
    keep_running(history, 0)


def healthy_replica_is_replaced(history: SyntheticHistory, bad: bool) -> None:
    commit_ready_service(history)
    history.commit(replica(0, "n1", ready=bad), at=40.0)
    history.commit(replica(2, "n1"), at=60.0)
    history.commit(replica(0, "n1", ready=bad, deletionTimestamp="2026-03-10T09:01:00Z"))
    history.commit(gone=(replica(0),))
    keep_running(history, 1, 2)


def needed_replica_is_preempted(history: SyntheticHistory, bad: bool) -> None:
    commit_ready_service(history, least=2 if bad else 1)
    history.commit(workload("w2", priority=5))
    history.commit(replica(1, "n1", **LEAVING))
    history.commit(workload("w2", desiredState="Stopped"))
    history.commit(*([replica(1, "n1")] if bad else []), gone=() if bad else (replica(1),))
    keep_running(history, 0, *([1] if bad else []))


def node_removed_with_workload(history: SyntheticHistory, bad: bool) -> None:
    made = node(cluster="east-001")
    history.commit(made)
    history.commit(workload(on="n1", ready=True))
    history.commit(workload(desiredState="Stopped"), *([] if bad else [made]), gone=(made,) if bad else ())
    history.commit(gone=() if bad else (made,))


def ready_node_removed_with_ending_workload(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cluster="east-001"))
    history.commit(workload(on="n1"))
    history.commit(made := node(cluster="east-001", is_ready=bad))
    history.commit(workload(on="n1", deletionTimestamp="2026-03-10T09:00:00Z"))
    history.commit(gone=(made,))
    history.commit(gone=(workload(),))


def silent_node_removed_with_wanted_workload(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cluster="east-001"))
    history.commit(workload(on="n1"))
    history.commit(made := node(cluster="east-001", is_ready=False))
    history.commit(workload(on="n1", desiredState="Running" if bad else "Stopped"))
    history.commit(gone=(made,))
    history.commit(workload(desiredState="Stopped"))


def node_removed_with_reservation(history: SyntheticHistory, bad: bool) -> None:
    made = node(cluster="east-001")
    history.commit(made)
    history.commit(workload(reservation=prepared()))
    if not bad:
        history.commit(workload(desiredState="Stopped"))
    history.commit(gone=(made,))
    history.commit(workload(desiredState="Stopped"))


def strict_copy_beside_deleted_one(history: SyntheticHistory, bad: bool) -> None:
    """Made again under its name, with another uid."""
    history.heard = [(float(at), "n1") for at in range(10, 41)]
    history.ran("n1", start=10.0, end=40.0, stop_after=20.0)
    history.ran("n2", start=30.0 if bad else 41.0, end=60.0, uid="uid-anew")


def copy_beside_deleted_one_on_one_node(history: SyntheticHistory, bad: bool) -> None:
    history.ran("n1", start=10.0, end=40.0)
    history.ran("n1", start=30.0 if bad else 41.0, end=60.0, uid="uid-anew")


def start_without_an_assignment(history: SyntheticHistory, bad: bool) -> None:
    history.ran("n1", start=10.0, end=40.0)
    ground = history.machine("n1").ground
    ground.starts_without_assignments += [(10.0, ground.started_specs[0])] if bad else []


def agent_obeys_an_older_term(history: SyntheticHistory, bad: bool) -> None:
    history.machine("n1").state_file.accepted_terms += [1, 3, 2 if bad else 3]


def restart_without_back_off(history: SyntheticHistory, bad: bool) -> None:
    """One second, and two after the second failure."""
    history.ran("n1", start=10.0, end=12.0, fails=True)
    history.ran("n1", start=12.5 if bad else 13.0, end=15.0, fails=True)
    history.ran("n1", start=17.0, end=20.0)


def restart_with_the_first_back_off(history: SyntheticHistory, bad: bool) -> None:
    history.ran("n1", start=10.0, end=12.0, fails=True)
    history.ran(
        "n1", start=13.0, end=15.0 if bad else 29.0, fails=True
    )  # of what ran for long earlier failures are forgotten
    history.ran("n1", start=16.0 if bad else 30.0, end=40.0)


def restart_without_a_retry_request(history: SyntheticHistory, bad: bool) -> None:
    """A workload that a user retries need not wait."""
    history.commit(node(), at=1.0)
    history.commit(first := workload(on="n1"), at=2.0)
    asked = msgspec.structs.replace(
        first.metadata, annotations={} if bad else {"lattice.dev/retry-requested": "2026-03-10T09:00:12Z"}
    )
    history.ran("n1", start=10.0, end=12.0, fails=True)
    history.commit(msgspec.structs.replace(first, metadata=asked), at=12.1)
    history.ran("n1", start=12.2, end=20.0)
    history.commit(workload(desiredState="Stopped"), at=30.0)


def needed_replica_is_stopped_without_no_execute_taint(history: SyntheticHistory, bad: bool) -> None:
    """A NoExecute taint evicts needed replicas, too."""
    commit_ready_service(history, least=2, count=2)
    history.commit(
        node(taints=[{"key": "kept", "effect": "NoSchedule" if bad else "NoExecute"}]),
        at=40.0,
        term=None,
        origin="api person-1",
    )
    history.commit(replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"))
    history.commit(node(), at=45.0, term=None, origin="api person-1")
    history.commit(gone=(replica(1),))
    history.commit(replica(2, "n1"))
    keep_running(history, 0, 2)


def node_is_overcommitted_by_changed_request(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=1000 if bad else 1200), at=1.0)
    history.commit(
        workload("w1", cpu=300), workload("w2", cpu=600), at=10.0, term=None, origin="api person-1"
    )
    history.commit(workload("w1", cpu=600), at=19.0, term=None, origin="api person-1")
    for name, at in (("w1", 19.5), ("w2", 20.0)):
        history.commit(bound := workload(name, "n1", cpu=600, ready=True), at=at)
        history.runs(bound)


def node_is_overcommitted_by_one_commit(history: SyntheticHistory, bad: bool) -> None:
    history.commit(node(cpu=1000 if bad else 1200), at=1.0)
    history.commit(
        workload("w1", cpu=300), workload("w2", cpu=300), at=10.0, term=None, origin="api person-1"
    )
    history.commit(
        workload("w1", cpu=600), workload("w2", cpu=600), at=19.0, term=None, origin="api person-1"
    )
    both = [workload(name, "n1", cpu=600, ready=True) for name in ("w1", "w2")]
    history.commit(*both, at=20.0)
    for each in both:
        history.runs(each)


CASES: list[tuple[str, Case]] = [
    ("I-11", binding_moves_in_one_commit),
    ("I-11", two_replicas_of_one_slot),
    ("I-12", node_is_overcommitted),
    ("I-12", node_is_overcommitted_beside_bound_workload),
    ("I-14", bound_to_a_former_node),
    ("I-12", node_is_overcommitted_beside_reservation),
    ("I-12", node_is_overcommitted_by_changed_request),
    ("I-12", node_is_overcommitted_by_one_commit),
    ("I-13", silent_node_evicted_too_early),
    ("I-13", evicted_from_reconnected_node),
    ("I-13", evicted_on_a_report_to_the_former_leader),
    ("I-13", evicted_by_a_new_leader_too_early),
    ("I-13", strict_copy_evicted_before_it_must_have_stopped),
    ("I-13", two_strict_copies),
    ("I-13", strict_copy_outlives_contact),
    ("I-14", bound_to_a_cordoned_node),
    ("I-14", bound_to_a_node_that_is_not_ready),
    ("I-14", port_is_allocated_twice),
    ("I-15", gang_is_bound_one_by_one),
    ("I-15", gang_member_bound_without_the_other),
    ("I-16", bound_without_a_reservation),
    ("I-16", bound_under_another_reservation),
    ("I-17", bound_without_a_lock),
    ("I-18", preemption_without_higher_priority),
    ("I-19", two_copies_on_one_node),
    ("I-13", strict_copy_beside_deleted_one),
    ("I-19", copy_beside_deleted_one_on_one_node),
    ("I-19", start_without_an_assignment),
    ("I-19", agent_obeys_an_older_term),
    ("I-35", restart_without_back_off),
    ("I-35", restart_with_the_first_back_off),
    ("I-35", restart_without_a_retry_request),
    ("I-24", needed_replica_is_stopped_without_no_execute_taint),
    ("I-24", needed_replica_is_stopped),
    ("I-24", replica_is_stopped_after_scale_up),
    ("I-24", replica_is_stopped_while_another_fails),
    ("I-25", healthy_replica_is_replaced),
    ("I-27", node_removed_with_workload),
    ("I-27", ready_node_removed_with_ending_workload),
    ("I-27", silent_node_removed_with_wanted_workload),
    ("I-27", node_removed_with_reservation),
    ("I-28", needed_replica_is_preempted),
]


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_checker_reports_only_the_violated_invariant(number: str, case: Case) -> None:
    assert simulation_violations(case) == [{number}, set()]


# Real processes bind optimistically; the record has neither the actor that evicts from a silent node nor the assignments and attempts of agents.
UNSEEN = {
    start_without_an_assignment,
    agent_obeys_an_older_term,
    restart_without_back_off,
    restart_with_the_first_back_off,
    restart_without_a_retry_request,
    bound_without_a_reservation,
    bound_under_another_reservation,
    bound_without_a_lock,
    evicted_by_a_new_leader_too_early,
    evicted_on_a_report_to_the_former_leader,
}


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_chaos_checker_agrees(number: str, case: Case) -> None:
    assert chaos_violations(case) == [set() if case in UNSEEN else {number}, set()]
