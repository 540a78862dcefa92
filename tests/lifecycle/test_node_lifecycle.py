"""Tests of silent nodes and failover, and that under the `stop` policy two copies never run at once."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.container import Disconnect
from lattice.kinds.meta.base import Metadata
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.node_health import (
    EvictionRateLimiter,
    NodeObservation,
    NodeTimeouts,
    SilentNodeEvictions,
    decide_failover,
    effective_disconnect,
    evaluate_node,
    evict_silent_nodes,
    zone_outages,
)

TIMES = NodeTimeouts()
KEEP, STOP, LONGEST = Disconnect(), Disconnect(policy="stop"), Disconnect(policy="stop", stop_after="120s")


def a_node_observation(
    silence: float = 0.0, name: str = "n0", zone: str = "z", **parts: Any
) -> NodeObservation:
    return NodeObservation(name, zone, silence, **{"is_ready": True, **parts})


def zone_of(silent: int, total: int, silence: float = 150.0, zone: str = "z") -> list[NodeObservation]:
    return [
        a_node_observation(silence if index < silent else 1.0, f"{zone}{index:02}", zone)
        for index in range(total)
    ]


@pytest.mark.parametrize(
    ("node", "state", "event", "again"),
    [
        pytest.param(a_node_observation(0), "Ready", "", 40, id="just heard: ready"),
        pytest.param(
            a_node_observation(39.9), "Ready", "", pytest.approx(0.1), id="three beats missed: still ready"
        ),
        pytest.param(
            a_node_observation(40),
            "NotReady",
            "NodeLost",
            None,
            id="silent for 40 s: not ready, with an event",
        ),
        pytest.param(
            a_node_observation(40, is_ready=False), "NotReady", "", None, id="still silent: no second event"
        ),
        pytest.param(
            a_node_observation(3, is_ready=False),
            "Ready",
            "NodeReady",
            37,
            id="back again: ready, with an event",
        ),
        pytest.param(
            a_node_observation(3, is_ready=False, is_heard_by_leader=False),
            "NotReady",
            "",
            None,
            id="lost before this leader came, and not back yet",
        ),
        pytest.param(
            a_node_observation(3, is_heard_by_leader=False),
            "Ready",
            "",
            37,
            id="well before this leader came, and not heard yet",
        ),
        pytest.param(
            a_node_observation(999, is_ready=False, has_joined=False),
            "Joining",
            "",
            None,
            id="one that never joined is not lost",
        ),
    ],
)
def test_evaluate_node(node: NodeObservation, state: str, event: str, again: float | None) -> None:
    readiness = evaluate_node(node)
    assert (readiness.state, readiness.event, readiness.requeue_after) == (state, event, again)


def test_node_timeouts_are_configurable() -> None:
    quick = NodeTimeouts(not_ready_after=0.4, replace_after=1.2)
    assert evaluate_node(a_node_observation(0.5), quick).state == "NotReady"
    assert evaluate_node(a_node_observation(0.5), quick).message == "No heartbeat for 0.4 s"
    assert evict_silent_nodes([a_node_observation(1.3)], EvictionRateLimiter(), 0.0, quick).evicted_nodes == {
        "n0"
    }


@pytest.mark.parametrize(
    ("nodes", "is_halted"),
    [
        pytest.param(zone_of(5, 10), False, id="half of a zone: they are lost"),
        pytest.param(zone_of(55, 100), False, id="exactly 55 percent: they are lost"),
        pytest.param(zone_of(11, 20), False, id="exactly 55 percent of fewer: they are lost"),
        pytest.param(zone_of(56, 100), True, id="more than 55 percent: halted"),
        pytest.param(zone_of(3, 3), True, id="all of a zone: halted"),
        pytest.param(zone_of(1, 1), False, id="the only node of a zone is lost by itself"),
        pytest.param(zone_of(2, 2), False, id="two of two are no mass"),
        pytest.param(zone_of(6, 10, silence=39), False, id="not silent for long enough to count"),
        pytest.param([*zone_of(3, 4), *zone_of(0, 96, zone="y")], True, id="a zone is judged by itself"),
        pytest.param(
            [replace(node, has_joined=node.heartbeat_age < 40) for node in zone_of(6, 10)],
            False,
            id="those that never joined do not count",
        ),
    ],
)
def test_zone_outage_halts_eviction(nodes: list[NodeObservation], is_halted: bool) -> None:
    assert bool(zone_outages(nodes)) == is_halted
    found = evict_silent_nodes(nodes, EvictionRateLimiter(), 0.0)
    assert bool(found.evicted_nodes) != is_halted or not any(
        node.has_joined and node.heartbeat_age >= 120 for node in nodes
    )


def test_zone_outage_has_message_and_ends_on_recovery() -> None:
    first = evict_silent_nodes(zone_of(7, 10), EvictionRateLimiter(), 0.0)
    assert first.evicted_nodes == frozenset()
    assert (
        str(first.outages["z"])
        == "7 of 10 nodes without a heartbeat: failover in zone z is halted until more of its nodes send heartbeats, because most nodes of the zone are silent"
    )
    assert (
        first.blocked["z00"]
        == "failover in zone z is halted until more of its nodes send heartbeats, because most nodes of the zone are silent"
    )
    back = evict_silent_nodes(zone_of(4, 10), first.rate_limiter, 1.0)
    assert back.evicted_nodes == {"z00"}


def test_silent_nodes_are_evicted_at_rate_limit() -> None:
    nodes, allowance, given_up = zone_of(4, 10), EvictionRateLimiter(), []
    for second in range(41):
        found = evict_silent_nodes(nodes, allowance, float(second))
        allowance = found.rate_limiter
        given_up += [(second, name) for name in sorted(found.evicted_nodes - {name for _, name in given_up})]
    assert given_up == [(0, "z00"), (10, "z01"), (20, "z02"), (30, "z03")]


def test_longest_silent_node_first_and_rate_is_per_zone() -> None:
    nodes = [
        a_node_observation(130, "a1", "a"),
        a_node_observation(200, "a2", "a"),
        a_node_observation(121, "b1", "b"),
        *zone_of(0, 5, zone="a"),
        *zone_of(0, 5, zone="b"),
    ]
    found = evict_silent_nodes(nodes, EvictionRateLimiter(), 5.0)
    assert found.evicted_nodes == {"a2", "b1"}
    assert found.blocked == {"a1": "failover in zone a is limited to 0.1 nodes per second"}
    assert found.requeue_after == 10


def test_recovered_node_is_no_longer_evicted() -> None:
    first = evict_silent_nodes([a_node_observation(130)], EvictionRateLimiter(), 0.0)
    assert first.evicted_nodes == {"n0"}
    assert evict_silent_nodes([a_node_observation(2)], first.rate_limiter, 1.0).evicted_nodes == frozenset()
    assert evict_silent_nodes([a_node_observation(2)], first.rate_limiter, 1.0).requeue_after == 118


def evicted(*names: str) -> SilentNodeEvictions:
    return SilentNodeEvictions(EvictionRateLimiter(frozenset(names)), {}, {})


@pytest.mark.parametrize(
    ("policy", "silence", "is_released", "may_go", "reason"),
    [
        pytest.param(KEEP, 119.9, True, False, "failover starts 120 s after the last heartbeat", id="keep: not before 120 s"),
        pytest.param(KEEP, 120, True, True, "No heartbeat from the node for 120 s; if the node returns, Lattice stops the surplus copy", id="keep: replaced after 120 s"),
        pytest.param(STOP, 120, True, True, "No heartbeat from the node for 120 s; the node has certainly stopped the workload", id="stop: replaced after 120 s, the node stopped it at 90 s"),
        pytest.param(Disconnect(policy="stop", stop_after="119s"), 130, True, False, "failover starts 142.222 s after the last heartbeat", id="stop: a late deadline on the node makes the replacement later"),
        pytest.param(Disconnect(policy="stop", stop_after="119s"), 143, True, True, "No heartbeat from the node for 142.222 s; the node has certainly stopped the workload", id="stop: and then it is replaced"),
        pytest.param(Disconnect(stop_after="119s"), 120, True, True, "No heartbeat from the node for 120 s; if the node returns, Lattice stops the surplus copy", id="keep: stopAfter means nothing"),
        pytest.param(KEEP, 500, False, False, "failover has not started yet", id="not before the node is given up"),
    ],
)  # fmt: skip
def test_decide_failover(
    policy: Disconnect, silence: float, is_released: bool, may_go: bool, reason: str
) -> None:
    found = decide_failover(policy, a_node_observation(silence), evicted("n0") if is_released else evicted())
    assert (found.is_allowed, found.reason) == (may_go, reason)


@pytest.mark.parametrize(
    ("asked", "applied", "strict", "expected"),
    [
        pytest.param(STOP, "now", True, STOP, id="the applied revision is the requested one"),
        pytest.param(
            STOP,
            "before",
            True,
            LONGEST,
            id="changed and not confirmed by the node: the longest stopAfter",
        ),
        pytest.param(
            STOP,
            "",
            False,
            LONGEST,
            id="not confirmed by the node: an earlier policy may apply",
        ),
        pytest.param(
            STOP,
            "before",
            False,
            None,
            id="changed from keep to stop and not confirmed: no certainty",
        ),
        pytest.param(KEEP, "before", True, KEEP, id="keep: two copies are allowed"),
    ],
)
def test_effective_disconnect(
    asked: Disconnect, applied: str, strict: bool, expected: Disconnect | None
) -> None:
    assert effective_disconnect(a_disconnected_workload(2, asked, applied, strict)) == expected


def test_effective_disconnect_of_unchanged_spec() -> None:
    assert effective_disconnect(a_disconnected_workload(1, STOP, "", False)) == STOP
    assert (
        effective_disconnect(
            a_disconnected_workload(2, STOP, "", False, deletion_timestamp="2026-01-01T00:00:00Z")
        )
        == STOP
    )


def test_effective_disconnect_ignores_replace_after() -> None:
    assert (
        effective_disconnect(
            a_disconnected_workload(2, STOP, "before", True), NodeTimeouts(replace_after=10.0)
        )
        == LONGEST
    )


def a_disconnected_workload(
    generation: int, asked: Disconnect, applied: str, strict: bool, **rest: Any
) -> LatticeWorkload:
    metadata, spec = (
        Metadata(name="w", generation=generation, **rest),
        WorkloadSpec(containers={}, revision="now", disconnect=asked),
    )
    status = WorkloadStatus(applied_revision=applied, strict=strict)
    return LatticeWorkload(api_version="", kind="", metadata=metadata, spec=spec, status=status)


def test_certain_after_includes_clock_margin() -> None:
    assert TIMES.certain_after(90) == pytest.approx((90 + 10) * 1.05**2)
    assert TIMES.certain_after(90) < TIMES.replace_after


# The `stop` policy never runs two live copies.

rates = st.floats(1 / 1.05, 1.05)
exchanges = st.lists(
    st.tuples(st.floats(0, 15), st.floats(0, 30), st.booleans(), st.booleans()), min_size=1, max_size=12
)


def last_moments(
    beats: list[tuple[float, float, bool, bool]], node_rate: float, stop_after: float
) -> tuple[float, float]:
    """The latest end of the node's copy, and the last heartbeat that the server received; both in true
    seconds."""
    sent, answered, heard = 0.0, 0.0, 0.0
    for pause, delay, arrives, is_answered in beats:
        sent += pause
        if arrives:
            heard = max(heard, sent + delay)
            answered = sent if is_answered else answered
    return answered + (stop_after + TIMES.kill_grace) / node_rate, heard


@settings(max_examples=3000 if LONG else 100, deadline=None)
@given(
    beats=exchanges,
    node_rate=rates,
    server_rate=rates,
    stop_after=st.floats(0.1, 119.9),
    elected=st.floats(0, 300),
)
def test_stop_policy_never_runs_two_copies(
    beats: list[tuple[float, float, bool, bool]],
    node_rate: float,
    server_rate: float,
    stop_after: float,
    elected: float,
) -> None:
    dead, heard = last_moments(beats, node_rate, stop_after)
    policy = Disconnect(policy="stop", stop_after=f"{int(stop_after * 1000)}ms")
    for since in (heard, max(heard, elected)):  # the same leader, or a new one that counts from its election
        silence = max(0.0, (dead - since) * server_rate - 0.01)
        assert not decide_failover(policy, a_node_observation(silence), evicted("n0")).is_allowed


def test_excess_clock_drift_breaks_stop_guarantee() -> None:
    dead, heard = last_moments([(0, 0, True, True)], node_rate=0.8, stop_after=110)
    policy = Disconnect(policy="stop", stop_after="110s")
    assert decide_failover(policy, a_node_observation((dead - heard) * 1.2 - 0.01), evicted("n0")).is_allowed


@settings(max_examples=1500 if LONG else 50, deadline=None)
@given(
    looks=st.lists(st.lists(st.floats(0, 300), min_size=8, max_size=8), min_size=1, max_size=10),
    pause=st.floats(0, 20),
)
def test_evictions_respect_rate_limit_and_zone_outages(looks: list[list[float]], pause: float) -> None:
    allowance, now, new = EvictionRateLimiter(), 0.0, []
    for silences in looks:
        nodes = [
            a_node_observation(silence, f"n{index}", "ab"[index % 2])
            for index, silence in enumerate(silences)
        ]
        found = evict_silent_nodes(nodes, allowance, now)
        halted = zone_outages(nodes)
        for node in nodes:
            if node.name in found.evicted_nodes:
                assert node.heartbeat_age >= 120
                assert node.zone not in halted
            elif node.heartbeat_age >= 120:
                assert found.blocked[node.name]
            if node.name in found.evicted_nodes - allowance.evicted_nodes:
                new.append((now, node.zone))
        assert evict_silent_nodes(nodes, found.rate_limiter, now).evicted_nodes == found.evicted_nodes
        allowance, now = found.rate_limiter, now + pause
    for zone in "ab":
        times = [when for when, each in new if each == zone]
        assert all(b - a >= 10 - 1e-9 for a, b in pairwise(times))


# Taints and drains
