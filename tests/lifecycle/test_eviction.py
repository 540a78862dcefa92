"""Tests of the state machine of an eviction: every state, cause and observation, and the record of decisions."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lattice.kinds.container import Container
from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.disruption import service_availability
from lattice.lifecycle.drain import NodeWorkload, node_evictions, node_workload, plan_drain
from lattice.lifecycle.eviction import (
    DecidedEviction,
    DecidedEvictions,
    Eviction,
    EvictionCause,
    EvictionState,
    derive_eviction,
)
from lattice.lifecycle.workload import Action

NOT_EVICTING, PLANNED, REQUESTED, STOPPING, RELEASED = EvictionState
LOST, DRAIN, TAINT, PRESSURE, PREEMPTION = EvictionCause
MAIN = {"main": Container(command=("sleep", "1"))}
LEAVING = Condition(type="Leaving", status="True", reason="Preempted", message="makes room for high")
DRAINED = DecidedEviction(DRAIN, "the node is being drained")
DRAINED_WHILE_DOWN = DecidedEviction(DRAIN, "the node is being drained", is_withdrawn_if_available=True)
TAINTED = DecidedEviction(TAINT, "it does not tolerate a taint")
FAILS_OVER = DecidedEviction(LOST, "its node was silent for 120 s")
VICTIM = DecidedEviction(PREEMPTION, "")


def a_replica_of_web(name: str = "web-0", *, desired: str = "Running", **status: Any) -> LatticeWorkload:
    """A ready replica on n0, unless `status` differs."""
    facts = {"binding": Binding(node="n0"), "actual_state": "Running", "ready": True, "last_action": "Apply"}
    return LatticeWorkload(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeWorkload",
        metadata=Metadata(name=name, namespace="default"),
        spec=WorkloadSpec(containers=MAIN, service="web", desired_state=desired),  # type: ignore[arg-type]
        status=WorkloadStatus(**facts | status),
    )


STOPPED: dict[str, Any] = {"last_action": "ApplyStopped", "ready": False}
DOWN: dict[str, Any] = {"actual_state": "Failed", "ready": False}
PREEMPTED: dict[str, Any] = {"conditions": (LEAVING,)}
UNBOUND: dict[str, Any] = {"binding": None, "actual_state": "Pending", "ready": False}


@pytest.mark.parametrize(
    ("status", "decisions", "expected"),
    [
        pytest.param({}, (), (NOT_EVICTING, None, ""), id="ready and wanted on its node"),
        pytest.param({}, (VICTIM,), (PLANNED, PREEMPTION, ""), id="chosen as a victim: may be spared"),
        pytest.param({}, (DRAINED,), (REQUESTED, DRAIN, DRAINED.reason), id="its node is drained"),
        pytest.param({}, (TAINTED,), (REQUESTED, TAINT, TAINTED.reason), id="a taint evicts it"),
        pytest.param(
            {},
            (DecidedEviction(PRESSURE, "too little memory"),),
            (REQUESTED, PRESSURE, "too little memory"),
            id="its node is short of memory",
        ),
        pytest.param(
            {"actual_state": "Unknown"},
            (FAILS_OVER,),
            (REQUESTED, LOST, FAILS_OVER.reason),
            id="its silent node is given up",
        ),
        pytest.param(
            PREEMPTED, (), (REQUESTED, PREEMPTION, "makes room for high"), id="its preemption is stored"
        ),
        pytest.param(
            {"conditions": (replace(LEAVING, message=""),)},
            (),
            (REQUESTED, PREEMPTION, "Preempted"),
            id="a stored preemption without a message",
        ),
        pytest.param(
            {"conditions": (replace(LEAVING, status="False"),)},
            (),
            (NOT_EVICTING, None, ""),
            id="a former preemption",
        ),
        pytest.param(
            PREEMPTED,
            (VICTIM,),
            (REQUESTED, PREEMPTION, "makes room for high"),
            id="a stored preemption is not planned any more",
        ),
        pytest.param(
            PREEMPTED,
            (DRAINED,),
            (REQUESTED, DRAIN, DRAINED.reason),
            id="drained and preempted: the drain is the cause",
        ),
        pytest.param(
            {}, (VICTIM, DRAINED), (REQUESTED, DRAIN, DRAINED.reason), id="drained and chosen as a victim"
        ),
        pytest.param(
            PREEMPTED,
            (DRAINED, FAILS_OVER),
            (REQUESTED, LOST, FAILS_OVER.reason),
            id="a silent node receives no stop order: failover comes first",
        ),
        pytest.param(STOPPED, (), (STOPPING, None, ""), id="ordered to stop, and the cause has ended"),
        pytest.param(STOPPED, (DRAINED,), (STOPPING, DRAIN, DRAINED.reason), id="ordered to stop by a drain"),
        pytest.param(
            STOPPED, (VICTIM,), (STOPPING, PREEMPTION, ""), id="ordered to stop, and then chosen as a victim"
        ),
        pytest.param(
            {**STOPPED, **PREEMPTED},
            (),
            (STOPPING, PREEMPTION, "makes room for high"),
            id="ordered to stop by a preemption",
        ),
        pytest.param(
            {**STOPPED, "actual_state": "Unknown"},
            (),
            (STOPPING, None, ""),
            id="ordered to stop on a silent node",
        ),
        pytest.param(
            {**STOPPED, "actual_state": "Stopped"},
            (DRAINED,),
            (REQUESTED, DRAIN, DRAINED.reason),
            id="down after the stop: it must still be unbound",
        ),
        pytest.param(
            {**STOPPED, "actual_state": "Stopped"}, (), (NOT_EVICTING, None, ""), id="down without a cause"
        ),
        pytest.param(
            {**UNBOUND, "last_action": "Reschedule"}, (), (RELEASED, None, ""), id="it has left its node"
        ),
        pytest.param(
            {**UNBOUND, "last_action": "Release"}, (), (RELEASED, None, ""), id="it was unbound for good"
        ),
        pytest.param({**UNBOUND, "last_action": ""}, (), (NOT_EVICTING, None, ""), id="it never had a node"),
        pytest.param(
            {**UNBOUND, "last_action": "Reschedule", **PREEMPTED},
            (DRAINED, VICTIM),
            (RELEASED, None, ""),
            id="without a node no cause counts",
        ),
    ],
)
def test_derive_eviction(
    status: dict[str, Any],
    decisions: tuple[DecidedEviction, ...],
    expected: tuple[EvictionState, EvictionCause | None, str],
) -> None:
    eviction = derive_eviction(a_replica_of_web(**status), decisions)
    assert (eviction.state, eviction.cause, eviction.reason) == expected


@pytest.mark.parametrize("desired", ["Stopped", "Deleted"])
def test_workload_that_must_not_run_is_not_evicted(desired: str) -> None:
    stopping = a_replica_of_web(desired=desired, **STOPPED)
    assert derive_eviction(stopping).state is NOT_EVICTING
    assert derive_eviction(stopping, [DRAINED]).state is REQUESTED, "it must also leave the node"


@pytest.mark.parametrize(
    ("status", "decisions", "is_reported_ready", "state"),
    [
        pytest.param(DOWN, (DRAINED_WHILE_DOWN,), False, REQUESTED, id="down: it leaves"),
        pytest.param(
            DOWN, (DRAINED_WHILE_DOWN,), True, NOT_EVICTING, id="the node reports it ready: it stays"
        ),
        pytest.param({}, (DRAINED_WHILE_DOWN,), False, NOT_EVICTING, id="stored as ready: it stays"),
        pytest.param({}, (DRAINED,), True, REQUESTED, id="a drain with a replacement does not care"),
        pytest.param(STOPPED, (DRAINED_WHILE_DOWN,), True, STOPPING, id="the stop is ordered: too late"),
        pytest.param({}, (DRAINED_WHILE_DOWN, VICTIM), True, PLANNED, id="it recovers, and is a victim"),
        pytest.param(PREEMPTED, (DRAINED_WHILE_DOWN,), True, REQUESTED, id="it recovers, and is preempted"),
    ],
)
def test_drain_of_a_replica_that_is_down(
    status: dict[str, Any],
    decisions: tuple[DecidedEviction, ...],
    is_reported_ready: bool,
    state: EvictionState,
) -> None:
    eviction = derive_eviction(a_replica_of_web(**status), decisions, is_reported_ready=is_reported_ready)
    assert eviction.state is state
    assert eviction.is_withdrawn_if_available == (state is REQUESTED and status == DOWN)


all_states = st.sampled_from(["Pending", "Starting", "Running", "Stopped", "Failed", "Unknown"])
replicas = st.builds(
    a_replica_of_web,
    name=st.sampled_from([f"web-{number}" for number in range(4)]),
    desired=st.sampled_from(["Running", "Stopped", "Deleted"]),
    binding=st.sampled_from([None, Binding(node="n0"), Binding(node="n1")]),
    actual_state=all_states,
    ready=st.booleans(),
    last_action=st.sampled_from([str(action) for action in Action]),
    conditions=st.sampled_from([(), (LEAVING,), (replace(LEAVING, status="False"),)]),
)
decided = st.lists(st.sampled_from([DRAINED, DRAINED_WHILE_DOWN, TAINTED, FAILS_OVER, VICTIM]), max_size=4)


def obvious_eviction(
    workload: LatticeWorkload, decisions: list[DecidedEviction], is_reported_ready: bool
) -> tuple[EvictionState, EvictionCause | None]:
    """The specification, one rule after the other."""
    status, runs = workload.status, workload.spec.desired_state == "Running"
    if status.binding is None:
        return (RELEASED if status.last_action in ("Reschedule", "Release") else NOT_EVICTING), None
    is_live = status.actual_state not in ("Stopped", "Failed")
    is_stopping = status.last_action == "ApplyStopped" and is_live and runs
    is_up = is_reported_ready or bool(status.ready and status.actual_state == "Running" and runs)
    causes = {decision.cause for decision in decisions if decision not in (VICTIM, DRAINED_WHILE_DOWN)}
    if DRAINED_WHILE_DOWN in decisions and (is_stopping or not is_up):
        causes.add(DRAIN)
    if LEAVING in status.conditions:
        causes.add(PREEMPTION)
    cause = next((cause for cause in (LOST, DRAIN, TAINT, PREEMPTION) if cause in causes), None)
    is_planned = cause is None and VICTIM in decisions
    if is_stopping:
        return STOPPING, PREEMPTION if is_planned else cause
    if is_planned:
        return PLANNED, PREEMPTION
    return (REQUESTED if cause else NOT_EVICTING), cause


@given(replicas, decided, st.booleans())
def test_derived_eviction_agrees_with_the_rules(
    workload: LatticeWorkload, decisions: list[DecidedEviction], is_reported_ready: bool
) -> None:
    eviction = derive_eviction(workload, decisions, is_reported_ready=is_reported_ready)
    assert (eviction.state, eviction.cause) == obvious_eviction(workload, decisions, is_reported_ready)
    assert eviction.is_active == (eviction.state in (PLANNED, REQUESTED, STOPPING))
    assert not (eviction.reason and not eviction.is_active), "a reason always stops the workload"
    if eviction.state in (PLANNED, NOT_EVICTING, RELEASED):
        assert not eviction.reason, "no reason, no stop"


@given(
    st.lists(replicas, max_size=6, unique_by=lambda workload: workload.metadata.name),
    st.dictionaries(
        st.sampled_from([f"default/web-{number}" for number in range(4)]),
        st.sampled_from([DRAINED, DRAINED_WHILE_DOWN, TAINTED]),
    ),
    st.sets(st.sampled_from([f"default/web-{number}" for number in range(4)])),
)
def test_no_replica_counts_twice(
    workloads: list[LatticeWorkload], by_node: dict[str, DecidedEviction], victims: set[str]
) -> None:
    evictions = DecidedEvictions()
    evictions.decide_for_node("n0", by_node)
    for path in sorted(victims):
        evictions.add_victim("n1", path, "default/high")
    total = service_availability(None, workloads, evictions)
    for singles in (service_availability(None, [workload], evictions) for workload in workloads):
        assert singles.available + singles.evicting <= 1
    assert total.available + total.evicting <= len(workloads)
    active = [workload for workload in workloads if evictions.eviction_of(workload).is_active]
    assert total.available == sum(
        bool(workload.status.ready)
        and workload.status.actual_state == "Running"
        and workload.spec.desired_state == "Running"
        for workload in workloads
        if workload not in active
    )
    assert total.evicting <= len(active)


def test_decisions_hold_for_the_node_that_they_name() -> None:
    evictions = DecidedEvictions()
    evictions.decide_for_node("n0", {"default/web-0": DRAINED})
    evictions.add_victim("n1", "default/web-0", "default/high")
    states = [
        evictions.eviction_of(a_replica_of_web(binding=binding)).state
        for binding in (Binding(node="n0"), Binding(node="n1"), Binding(node="n2"), None)
    ]
    assert states == [REQUESTED, PLANNED, NOT_EVICTING, NOT_EVICTING]


def test_victim_is_planned_until_its_preemption_is_stored() -> None:
    evictions, path = DecidedEvictions(), "default/web-0"
    evictions.add_victim("n0", path, "default/high")
    assert evictions.eviction_of(a_replica_of_web()) == Eviction(PLANNED, PREEMPTION)
    assert [*evictions.victims()] == [("n0", path, "default/high")]
    evictions.mark_stored(path)
    assert [*evictions.victims()] == [("n0", path, "")]
    assert (evictions.node_of_victim(path), evictions.victims_on("n0")) == ("n0", (path,))
    evictions.remove_victim(path, "n1")
    assert evictions.node_of_victim(path) == "n0"
    evictions.remove_victim(path)
    assert (evictions.node_of_victim(path), evictions.victims_on("n0")) == ("", ())


def test_listeners_get_the_evictions_that_start_or_end() -> None:
    evictions, heard = DecidedEvictions(), []
    evictions.on_change(lambda paths: heard.append([*paths]))
    evictions.decide_for_node("n0", {"default/b": DRAINED, "default/a": DRAINED})
    evictions.decide_for_node("n0", {"default/b": TAINTED, "default/c": DRAINED})
    evictions.decide_for_node("n0", {"default/b": TAINTED, "default/c": DRAINED})
    evictions.decide_for_node("n0", {})
    assert heard == [["default/a", "default/b"], ["default/a", "default/c"], ["default/b", "default/c"]]


@pytest.mark.parametrize(
    ("eviction", "is_evicting"),
    [
        pytest.param(Eviction(STOPPING), True, id="ordered to stop"),
        pytest.param(Eviction(REQUESTED, DRAIN, "drain"), True, id="a drain has begun to evict it"),
        pytest.param(Eviction(REQUESTED, PREEMPTION, "room"), True, id="preempted"),
        pytest.param(Eviction(REQUESTED, TAINT, "taint"), False, id="the taint may be gone"),
        pytest.param(Eviction(REQUESTED, DRAIN, "drain", True), False, id="it is down and may recover"),
        pytest.param(Eviction(PLANNED, PREEMPTION), False, id="the victim may be spared"),
        pytest.param(Eviction(), False, id="it stays"),
    ],
)
def test_drain_plans_again_unless_the_eviction_is_final(eviction: Eviction, is_evicting: bool) -> None:
    assert node_workload(a_replica_of_web(), eviction).is_evicting == is_evicting


@pytest.mark.parametrize(("is_available", "is_due"), [*product((True, False), repeat=2)])
def test_drain_keeps_a_recovered_replica_unless_tainted(is_available: bool, is_due: bool) -> None:
    resident = NodeWorkload("default/web-0", "default/web", is_available=is_available)
    drain = plan_drain([resident], {})
    by_taint = [next(iter(drain.evictions))] if is_due else []
    (eviction,) = node_evictions([resident], by_taint, drain).values()
    assert eviction.cause is DRAIN
    assert eviction.is_withdrawn_if_available == (not is_available and not is_due)
