"""The checker reports each violation of the invariants of bindings, silent nodes and disruption in a
synthetic history, and nothing in a valid one."""

from typing import Any

import msgspec
import pytest
from build.checker_history import (
    Case,
    SyntheticHistory,
    chaos_violations,
    node,
    replica,
    said,
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
LEAVING = {"conditions": [said("Leaving", "True", "Preempted")]}


def prepared(by: str = "r1") -> dict[str, Any]:
    return {
        "prepared": {"node": "n1", "uid": "uid-n1", "reservation": by, "until": "2026-03-10T09:00:00+00:00"}
    }


def bound(past: SyntheticHistory, on: str = "n1", name: str = "w1", **rest: Any) -> None:
    each = workload(name, on, ready=True, **rest)
    past.commit(each)
    past.runs(each)


def moved_in_one_step(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node("n1"), node("n2"))
    past.commit(workload(on="n1", ready=True))
    if not bad:
        past.commit(workload())
    bound(past, "n2")


def a_slot_twice(past: SyntheticHistory, bad: bool) -> None:
    past.commit(service(least=2), node())
    for slot in (0, 1):
        each = replica(slot, "n1")
        past.commit(replica(0, "n1") if not slot else _renumbered(slot, 0 if bad else 1))
        past.runs(each)


def _renumbered(number: int, slot: int) -> Any:
    made = replica(number, "n1")
    return replace(made, spec=replace(made.spec, slot=slot))


def more_than_there_is_room(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=1000 if bad else 1200))
    bound(past, name="w1")
    bound(past, name="w2")


def more_than_is_left_beside_who_stays(past: SyntheticHistory, bad: bool) -> None:
    """A workload bound to an earlier node of that name uses nothing of this one."""
    here = node("n1")
    there = here if bad else replace(here, metadata=replace(here.metadata, uid="uid-of-a-former-node"))
    stays = workload("w1", on="n1")
    binding = replace(stays.status.binding, uid=there.metadata.uid)
    past.commit(there)
    past.commit(stays := replace(stays, status=replace(stays.status, binding=binding)))
    past.commit(here)
    bound(past, name="w2")
    past.commit(gone=(stays,))


def to_a_node_that_is_there_no_more(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node("n1"))
    each = workload("w1", on="n1", ready=True)
    binding = replace(each.status.binding, uid="uid-of-a-former-node" if bad else "uid-n1")
    past.commit(each := replace(each, status=replace(each.status, binding=binding)))
    past.runs(each)


def more_than_is_left_beside_what_is_prepared(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=1000 if bad else 1200))
    past.commit(workload("w2", decision=prepared()))
    bound(past, name="w1")
    past.commit(workload("w2", desiredState="Stopped"))


def to_a_cordoned_node(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(unschedulable=bad))
    bound(past)


def to_a_node_that_is_not_ready(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(is_ready=not bad))
    bound(past)


def to_a_port_that_is_taken(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=2000))
    bound(past, name="w1", allocatedPorts={"http": 20000})
    bound(past, name="w2", allocatedPorts={"http": 20000 if bad else 20001})


def a_group_one_by_one(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=2000), workload("w1", group=CREW), workload("w2", group=CREW))
    pair = [workload(name, "n1", group=CREW, ready=True) for name in ("w1", "w2")]
    if bad:
        past.commit(pair[0])
    past.commit(*pair)
    for each in pair:
        past.runs(each)


def one_of_a_group_whose_other_was_known_to_be_gone(past: SyntheticHistory, bad: bool) -> None:
    """A scheduler that knew of it must not count on it; one that could not know yet may."""
    both = [workload(name, "n1", group=CREW, ready=True) for name in ("w1", "w2")]
    past.commit(node(cpu=2000), at=1.0)
    past.commit(*both, at=2.0)
    past.commit(workload("w1", group=CREW), at=3.0)
    past.commit(workload("w2", group=CREW), at=20.0)
    past.commit(workload("w1", "n1", group=CREW, ready=True), at=23.0, writer_revision=5 if bad else 4)
    past.commit(both[1])
    for each in both:
        past.runs(each)


def bound_and_never_prepared(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "two-phase"
    past.commit(node())
    past.commit(workload(decision={} if bad else prepared()))
    bound(past, decision={"reservation": "r1"})


def bound_by_another_attempt(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "two-phase"
    past.commit(node())
    past.commit(workload(decision=prepared("r2" if bad else "r1")))
    bound(past, decision={"reservation": "r1"})


def bound_without_a_lock(past: SyntheticHistory, bad: bool) -> None:
    past.binding = "pessimistic" if bad else "optimistic"
    past.commit(node())
    bound(past)


def room_made_for_nobody(past: SyntheticHistory, bad: bool) -> None:
    waits = workload("w2", priority=0 if bad else 5)
    past.commit(node())
    bound(past)
    past.commit(waits)
    past.commit(workload(on="n1", ready=True, **LEAVING))
    past.commit(workload("w2", desiredState="Stopped"))


def lost(past: SyntheticHistory, at: float, **rest: Any) -> None:
    """Taken from a node that has not been heard since the 10th second, and bound elsewhere."""
    past.commit(node("n1"), node("n2"), at=1.0)
    past.commit(workload(on="n1", ready=True, **rest), at=2.0)
    past.heard = [(10.0, "n1"), *((float(second), "n2") for second in range(1, 200, 5))]
    past.commit(node("n1", is_ready=False), at=25.0)
    past.commit(workload(**rest), at=at)
    past.commit(workload(on="n2", ready=True, **rest))


def taken_from_a_silent_node_too_soon(past: SyntheticHistory, bad: bool) -> None:
    lost(past, 39.0 if bad else 40.0)
    past.ran("n2", start=50.0)


def taken_from_a_node_that_speaks_again(past: SyntheticHistory, bad: bool) -> None:
    """It says that the copy has ended, while it is not written yet that it is ready: that is right if the copy has."""
    lost(past, 30.0)
    past.heard = [*past.heard, (29.0, "n1")]
    past.ran("n1", start=3.0, end=31.0 if bad else 28.0)
    past.ran("n2", start=50.0)


def taken_from_a_node_that_spoke_to_the_leader_before(past: SyntheticHistory, bad: bool) -> None:
    lost(past, 30.0)
    past.heard = [*past.heard, (29.0, "n1")]
    past.elections = [ElectionRecord(29.5 if bad else 28.5, Term("controllers", 1, "s1"))]
    past.ran("n1", start=3.0, end=28.0)
    past.ran("n2", start=50.0)


def taken_by_a_leader_that_was_elected_just_now(past: SyntheticHistory, bad: bool) -> None:
    lost(past, 60.0)
    past.elections = [ElectionRecord(31.0 if bad else 29.0, Term("controllers", 1, "s1"))]
    past.ran("n2", start=70.0)


def a_strict_copy_taken_before_it_is_certain(past: SyntheticHistory, bad: bool) -> None:
    long = {"policy": "stop", "stopAfter": "29s"}  # (29 + 2.5) * 1.05 * 1.05 = 34.7 s
    lost(past, 44.0 if bad else 45.0, disconnect=long)
    past.ran("n2", start=70.0, stop_after=29.0)


def a_strict_copy_twice(past: SyntheticHistory, bad: bool) -> None:
    lost(past, 41.0, disconnect=STRICT)
    past.ran("n1", start=3.0, end=33.0, stop_after=20.0)
    past.ran("n2", start=32.0 if bad else 42.0, stop_after=20.0)


def a_strict_copy_that_outlives_contact(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node())
    past.heard = [(float(second), "n1") for second in range(1, 31, 3)]  # and from the 28th second on nothing
    past.ran("n1", start=3.0, end=52.0 if bad else 51.0, stop_after=20.0)


def a_copy_twice_on_one_node(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node())
    past.ran("n1", start=3.0, end=20.0)
    past.ran("n1", start=19.0 if bad else 21.0, end=30.0)


def settled(past: SyntheticHistory, least: int = 2, count: int = 2) -> None:
    past.commit(service(least=least), node(), at=1.0)
    past.commit(*(replica(slot, "n1") for slot in range(count)), at=20.0)


def ends(past: SyntheticHistory, *left: int) -> None:
    for slot in left:
        past.runs(replica(slot, "n1"))


def stopped_while_it_was_needed(past: SyntheticHistory, bad: bool) -> None:
    settled(past, least=2, count=2 if bad else 3)
    past.commit(service(least=2, generation=2), at=40.0)
    past.commit(replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"))
    past.commit(gone=(replica(1),))
    past.commit(replica(2, "n1"))
    ends(past, 0, 2)


def stopped_when_it_came_to_be_needed(past: SyntheticHistory, bad: bool) -> None:
    """A replica that was evicted before the scale-up has been stopped already."""
    settled(past, least=1, count=2)
    past.commit(replica(1, "n1", lastAction="Apply" if bad else "ApplyStopped"), at=38.0)
    past.commit(service(least=2, generation=2), at=40.0)
    past.commit(
        replica(
            1, "n1", lastAction="Apply" if bad else "ApplyStopped", deletionTimestamp="2026-03-10T09:01:00Z"
        ),
        at=45.0,
    )
    past.commit(gone=(replica(1),))
    past.commit(replica(2, "n1"))
    ends(past, 0, 2)


def stopped_though_another_was_known_to_fail(past: SyntheticHistory, bad: bool) -> None:
    settled(past, least=1, count=2)
    past.commit(replica(0, "n1", ready=False), at=30.0)
    past.commit(service(least=1, generation=2), at=33.0)
    past.commit(
        replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"), at=34.0, writer_revision=5 if bad else 3
    )
    past.commit(replica(0, "n1"))
    past.commit(gone=(replica(1),))
    ends(past, 0)


def replaced_for_no_reason(past: SyntheticHistory, bad: bool) -> None:
    settled(past)
    past.commit(replica(0, "n1", ready=bad), at=40.0)
    past.commit(replica(2, "n1"), at=60.0)
    past.commit(replica(0, "n1", ready=bad, deletionTimestamp="2026-03-10T09:01:00Z"))
    past.commit(gone=(replica(0),))
    ends(past, 1, 2)


def told_to_make_room_while_it_was_needed(past: SyntheticHistory, bad: bool) -> None:
    settled(past, least=2 if bad else 1)
    past.commit(workload("w2", priority=5))
    past.commit(replica(1, "n1", **LEAVING))
    past.commit(workload("w2", desiredState="Stopped"))
    past.commit(*([replica(1, "n1")] if bad else []), gone=() if bad else (replica(1),))
    ends(past, 0, *([1] if bad else []))


def a_node_removed_with_work(past: SyntheticHistory, bad: bool) -> None:
    made = node(cluster="east-001")
    past.commit(made)
    past.commit(workload(on="n1", ready=True))
    past.commit(workload(desiredState="Stopped"), *([] if bad else [made]), gone=(made,) if bad else ())
    past.commit(gone=() if bad else (made,))


def a_silent_node_removed_with_what_is_to_end(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cluster="east-001"))
    past.commit(workload(on="n1"))
    past.commit(made := node(cluster="east-001", is_ready=bad))
    past.commit(workload(on="n1", deletionTimestamp="2026-03-10T09:00:00Z"))
    past.commit(gone=(made,))
    past.commit(gone=(workload(),))


def a_silent_node_removed_with_what_is_wanted(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cluster="east-001"))
    past.commit(workload(on="n1"))
    past.commit(made := node(cluster="east-001", is_ready=False))
    past.commit(workload(on="n1", desiredState="Running" if bad else "Stopped"))
    past.commit(gone=(made,))
    past.commit(workload(desiredState="Stopped"))


def a_node_removed_with_something_prepared(past: SyntheticHistory, bad: bool) -> None:
    made = node(cluster="east-001")
    past.commit(made)
    past.commit(workload(decision=prepared()))
    if not bad:
        past.commit(workload(desiredState="Stopped"))
    past.commit(gone=(made,))
    past.commit(workload(desiredState="Stopped"))


def a_strict_copy_beside_one_that_was_deleted(past: SyntheticHistory, bad: bool) -> None:
    """Made again under its name, with another uid."""
    past.heard = [(float(at), "n1") for at in range(10, 41)]
    past.ran("n1", start=10.0, end=40.0, stop_after=20.0)
    past.ran("n2", start=30.0 if bad else 41.0, end=60.0, uid="uid-anew")


def a_copy_beside_one_that_was_deleted_on_one_node(past: SyntheticHistory, bad: bool) -> None:
    past.ran("n1", start=10.0, end=40.0)
    past.ran("n1", start=30.0 if bad else 41.0, end=60.0, uid="uid-anew")


def started_before_anything_was_told(past: SyntheticHistory, bad: bool) -> None:
    past.ran("n1", start=10.0, end=40.0)
    ground = past.machine("n1").ground
    ground.unasked += [(10.0, ground.begun[0])] if bad else []


def obeyed_a_leader_of_an_older_term(past: SyntheticHistory, bad: bool) -> None:
    past.machine("n1").notes.terms += [1, 3, 2 if bad else 3]


def failed_and_started_again_at_once(past: SyntheticHistory, bad: bool) -> None:
    """One second, and two after the second failure."""
    past.ran("n1", start=10.0, end=12.0, fails=True)
    past.ran("n1", start=12.5 if bad else 13.0, end=15.0, fails=True)
    past.ran("n1", start=17.0, end=20.0)


def failed_twice_and_started_after_the_wait_of_once(past: SyntheticHistory, bad: bool) -> None:
    past.ran("n1", start=10.0, end=12.0, fails=True)
    past.ran(
        "n1", start=13.0, end=15.0 if bad else 29.0, fails=True
    )  # of what ran for long earlier failures are forgotten
    past.ran("n1", start=16.0 if bad else 30.0, end=40.0)


def failed_and_retried_by_nobody(past: SyntheticHistory, bad: bool) -> None:
    """A workload that a user retries need not wait."""
    past.commit(node(), at=1.0)
    past.commit(first := workload(on="n1"), at=2.0)
    asked = msgspec.structs.replace(
        first.metadata, annotations={} if bad else {"lattice.dev/retry-requested": "2026-03-10T09:00:12Z"}
    )
    past.ran("n1", start=10.0, end=12.0, fails=True)
    past.commit(msgspec.structs.replace(first, metadata=asked), at=12.1)
    past.ran("n1", start=12.2, end=20.0)
    past.commit(workload(desiredState="Stopped"), at=30.0)


def stopped_while_it_was_needed_and_nobody_sent_it_away(past: SyntheticHistory, bad: bool) -> None:
    """A NoExecute taint evicts needed replicas, too."""
    settled(past, least=2, count=2)
    past.commit(
        node(taints=[{"key": "kept", "effect": "NoSchedule" if bad else "NoExecute"}]),
        at=40.0,
        term=None,
        origin="api person-1",
    )
    past.commit(replica(1, "n1", deletionTimestamp="2026-03-10T09:01:00Z"))
    past.commit(node(), at=45.0, term=None, origin="api person-1")
    past.commit(gone=(replica(1),))
    past.commit(replica(2, "n1"))
    ends(past, 0, 2)


def more_than_is_left_beside_one_that_asked_for_so_much_when_it_was_bound(
    past: SyntheticHistory, bad: bool
) -> None:
    past.commit(node(cpu=1000 if bad else 1200), at=1.0)
    past.commit(workload("w1", cpu=300), workload("w2", cpu=600), at=10.0, term=None, origin="api person-1")
    past.commit(workload("w1", cpu=600), at=19.0, term=None, origin="api person-1")
    for name, at in (("w1", 19.5), ("w2", 20.0)):
        past.commit(bound := workload(name, "n1", cpu=600, ready=True), at=at)
        past.runs(bound)


def more_than_there_is_room_for_those_of_one_commit(past: SyntheticHistory, bad: bool) -> None:
    past.commit(node(cpu=1000 if bad else 1200), at=1.0)
    past.commit(workload("w1", cpu=300), workload("w2", cpu=300), at=10.0, term=None, origin="api person-1")
    past.commit(workload("w1", cpu=600), workload("w2", cpu=600), at=19.0, term=None, origin="api person-1")
    both = [workload(name, "n1", cpu=600, ready=True) for name in ("w1", "w2")]
    past.commit(*both, at=20.0)
    for each in both:
        past.runs(each)


CASES: list[tuple[str, Case]] = [
    ("I-11", moved_in_one_step),
    ("I-11", a_slot_twice),
    ("I-12", more_than_there_is_room),
    ("I-12", more_than_is_left_beside_who_stays),
    ("I-14", to_a_node_that_is_there_no_more),
    ("I-12", more_than_is_left_beside_what_is_prepared),
    ("I-12", more_than_is_left_beside_one_that_asked_for_so_much_when_it_was_bound),
    ("I-12", more_than_there_is_room_for_those_of_one_commit),
    ("I-13", taken_from_a_silent_node_too_soon),
    ("I-13", taken_from_a_node_that_speaks_again),
    ("I-13", taken_from_a_node_that_spoke_to_the_leader_before),
    ("I-13", taken_by_a_leader_that_was_elected_just_now),
    ("I-13", a_strict_copy_taken_before_it_is_certain),
    ("I-13", a_strict_copy_twice),
    ("I-13", a_strict_copy_that_outlives_contact),
    ("I-14", to_a_cordoned_node),
    ("I-14", to_a_node_that_is_not_ready),
    ("I-14", to_a_port_that_is_taken),
    ("I-15", a_group_one_by_one),
    ("I-15", one_of_a_group_whose_other_was_known_to_be_gone),
    ("I-16", bound_and_never_prepared),
    ("I-16", bound_by_another_attempt),
    ("I-17", bound_without_a_lock),
    ("I-18", room_made_for_nobody),
    ("I-19", a_copy_twice_on_one_node),
    ("I-13", a_strict_copy_beside_one_that_was_deleted),
    ("I-19", a_copy_beside_one_that_was_deleted_on_one_node),
    ("I-19", started_before_anything_was_told),
    ("I-19", obeyed_a_leader_of_an_older_term),
    ("I-35", failed_and_started_again_at_once),
    ("I-35", failed_twice_and_started_after_the_wait_of_once),
    ("I-35", failed_and_retried_by_nobody),
    ("I-24", stopped_while_it_was_needed_and_nobody_sent_it_away),
    ("I-24", stopped_while_it_was_needed),
    ("I-24", stopped_when_it_came_to_be_needed),
    ("I-24", stopped_though_another_was_known_to_fail),
    ("I-25", replaced_for_no_reason),
    ("I-27", a_node_removed_with_work),
    ("I-27", a_silent_node_removed_with_what_is_to_end),
    ("I-27", a_silent_node_removed_with_what_is_wanted),
    ("I-27", a_node_removed_with_something_prepared),
    ("I-28", told_to_make_room_while_it_was_needed),
]


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_checker_reports_only_the_violated_invariant(number: str, case: Case) -> None:
    assert simulation_violations(case) == [{number}, set()]


# Real processes bind optimistically; the record has neither the actor that evicts from a silent node nor the assignments and attempts of agents.
UNSEEN = {
    started_before_anything_was_told,
    obeyed_a_leader_of_an_older_term,
    failed_and_started_again_at_once,
    failed_twice_and_started_after_the_wait_of_once,
    failed_and_retried_by_nobody,
    bound_and_never_prepared,
    bound_by_another_attempt,
    bound_without_a_lock,
    taken_by_a_leader_that_was_elected_just_now,
    taken_from_a_node_that_spoke_to_the_leader_before,
}


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_chaos_checker_agrees(number: str, case: Case) -> None:
    assert chaos_violations(case) == [set() if case in UNSEEN else {number}, set()]
