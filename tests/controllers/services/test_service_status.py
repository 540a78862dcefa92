"""The status of a service from its replicas: counts, phase and condition; a burst of changes makes few
writes."""

from typing import Any

import pytest
from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import make_object

from lattice.controllers.services.service_status import ServiceStatusController
from lattice.kinds.core import Event
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.service_health import PHASES, service_health
from lattice.placement.status.fleet_status import status_with_health

MAIN = {"main": {"command": ["true"]}}


def a_web_service(placed: int = 2, wanted: int = 2, **more: Any) -> LatticeService:
    status = {
        "placements": [{"pool": "north", "replicas": placed}] if placed else [],
        **more.pop("status", {}),
    }
    return make_object(
        LatticeService,
        "web",
        "default",
        spec={"containers": MAIN, "replicas": {"min": wanted}, "placement": more.pop("placement", {})},
        status=status,
        **more,
    )


def a_replica_of_web(slot: int, state: str = "Running", ready: bool = True, **more: Any) -> LatticeWorkload:
    status = {"actualState": state, "ready": ready, **more.pop("status", {})}
    return make_object(
        LatticeWorkload,
        f"web-{slot}",
        "default",
        spec={"containers": MAIN, "service": "web", **more.pop("spec", {})},
        status=status,
        **more,
    )


GOING = {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
NOT_PLACED = {"status": {"schedulerDecision": {"verdict": "NotHere", "reason": "0 of 2 pools"}}}
WAS_AVAILABLE = {"status": {"hasBeenAvailable": True}}
BOUND = {"binding": {"node": "n1"}}


def a_failing_replica(slot: int, failures: int, state: str = "Failed", **more: Any) -> LatticeWorkload:
    """A replica that has failed; after 5 failures it is reported as failed."""
    revision = {"revision": "a" * 24}
    status = {"failureReason": "RUNTIME_ERROR", "failureMessage": "exited with code 3", **BOUND}
    retry = {"attempts": failures, "max": 5, **revision}
    return a_replica_of_web(slot, state, False, status={**status, "retry": retry}, spec=revision, **more)


# Name: service, replicas, phase, whether the service is available, message.
CASES: dict[str, tuple[LatticeService, list[LatticeWorkload], str, bool, str]] = {
    "all ready": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1)],
        "Running",
        True,
        "2 of 2 replicas are ready",
    ),
    "one starts": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1, "Starting", False, status=BOUND)],
        "Starting",
        False,
        "1 of 2 replicas are ready",
    ),
    "one of two is not ready any more": (
        a_web_service(**WAS_AVAILABLE),
        [a_replica_of_web(0), a_replica_of_web(1, ready=False, status=BOUND)],
        "Degraded",
        False,
        "1 of 2 replicas are ready",
    ),
    "one more than wanted": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1), a_replica_of_web(2)],
        "Running",
        True,
        "3 of 2 replicas are ready",
    ),
    "one of them is being deleted": (
        a_web_service(**WAS_AVAILABLE),
        [a_replica_of_web(0), a_replica_of_web(1, **GOING)],
        "Degraded",
        False,
        "1 of 2 replicas are ready",
    ),
    "one failed": (
        a_web_service(),
        [
            a_replica_of_web(0),
            a_replica_of_web(1, "Failed", False, status={"failureReason": "INVALID_IMAGE"}),
        ],
        "Degraded",
        False,
        "1 of 2 replicas are ready; web-1 failed: INVALID_IMAGE",
    ),
    "the first failure of the only replica": (
        a_web_service(1, 1),
        [a_failing_replica(0, 1)],
        "Down",
        False,
        "0 of 1 replicas are ready; web-0 failed: RUNTIME_ERROR: exited with code 3",
    ),
    "the next attempt of a failing replica is no first start": (
        a_web_service(1, 1),
        [a_failing_replica(0, 2, "Starting")],
        "Down",
        False,
        "0 of 1 replicas are ready; web-0 failed: RUNTIME_ERROR: exited with code 3",
    ),
    "all are reported as failed": (
        a_web_service(2, 2, **WAS_AVAILABLE),
        [a_failing_replica(0, 5), a_failing_replica(1, 9)],
        "Failed",
        False,
        "0 of 2 replicas are ready; web-0 failed: RUNTIME_ERROR: exited with code 3",
    ),
    "a part of a new service cannot be placed": (
        a_web_service(
            1,
            3,
            status={
                "conditions": [
                    {"type": "Placed", "status": "False", "reason": "OverBudget", "message": "no"}
                ],
                "schedulerDecision": {"verdict": "OverBudget", "reason": "replica 2 of 3: over budget"},
            },
        ),
        [a_replica_of_web(0)],
        "Degraded",
        False,
        "1 of 3 replicas are ready; not placed: replica 2 of 3: over budget",
    ),
    "one is reported as failed, another is on its second attempt": (
        a_web_service(2, 2, **WAS_AVAILABLE),
        [a_failing_replica(0, 1), a_failing_replica(1, 9)],
        "Down",
        False,
        "0 of 2 replicas are ready; web-1 failed: RUNTIME_ERROR: exited with code 3",
    ),
    "its node is lost": (
        a_web_service(1, 1, **WAS_AVAILABLE),
        [a_replica_of_web(0, "Unknown", False, status=BOUND)],
        "Down",
        False,
        "0 of 1 replicas are ready; web-0: its node n1 sends no heartbeats",
    ),
    "its node is lost and a replacement waits for a machine": (
        a_web_service(1, 1, **WAS_AVAILABLE),
        [a_replica_of_web(0, "Pending", False)],
        "Down",
        False,
        "0 of 1 replicas are ready; 1 replica without a node",
    ),
    "placed in part": (
        a_web_service(1, 2),
        [a_replica_of_web(0)],
        "Starting",
        False,
        "1 of 2 replicas are ready",
    ),
    "not placed yet": (a_web_service(0), [], "Pending", False, "0 of 2 replicas are ready"),
    "not to be placed": (
        a_web_service(0, **NOT_PLACED),
        [],
        "Placing",
        False,
        "0 of 2 replicas are ready; not placed: 0 of 2 pools",
    ),
    "placed, without a node": (
        a_web_service(1, 1),
        [a_replica_of_web(0, "Pending", False)],
        "Provisioning",
        False,
        "0 of 1 replicas are ready; 1 replica without a node",
    ),
    "an update while all wanted replicas are ready": (
        a_web_service(2, 2, **WAS_AVAILABLE),
        [
            a_replica_of_web(0, spec={"revision": "b" * 24}),
            a_replica_of_web(1, spec={"revision": "b" * 24}),
            a_replica_of_web(2, "Starting", False, status=BOUND),
        ],
        "Updating",
        True,
        "2 of 2 replicas are ready; replicas of an earlier revision are being replaced",
    ),
    "an update that a failure holds up": (
        a_web_service(
            1,
            1,
            status={
                "hasBeenAvailable": True,
                "conditions": [
                    {
                        "type": "Progressing",
                        "status": "False",
                        "reason": "INVALID_IMAGE",
                        "message": "Update is paused",
                    }
                ],
            },
        ),
        [a_replica_of_web(0, spec={"revision": "b" * 24})],
        "Updating",
        True,
        "1 of 1 replicas are ready; Update is paused",
    ),
    "available with fewer than the regions demand": (
        a_web_service(2, 1, placement={"requiredRegions": ["a", "b"]}, **WAS_AVAILABLE),
        [a_replica_of_web(0), a_replica_of_web(1, "Unknown", False, status=BOUND)],
        "Degraded",
        True,
        "1 of 2 replicas are ready; web-1: its node n1 sends no heartbeats",
    ),
    "scaled to none": (a_web_service(0, 0), [], "Running", True, "0 of 0 replicas are ready"),
    "being deleted": (
        a_web_service(**GOING),
        [a_replica_of_web(0)],
        "Deleting",
        False,
        "1 of 2 replicas are ready",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_health_of_service(case: str) -> None:
    service, replicas, phase, is_available, message = CASES[case]
    health = service_health(service, replicas)
    assert (health.phase, health.is_available, health.message) == (phase, is_available, message)
    ready, available = health.conditions()
    assert (ready.status == "True") is (phase == "Running")
    assert (available.status == "True") is is_available


def test_every_phase_has_a_case() -> None:
    assert {phase for _, _, phase, _, _ in CASES.values()} == set(PHASES)


def test_cost_is_the_sum_of_parts() -> None:
    parts = [
        {"pool": "a", "replicas": 2, "cost": {"hourly": 0.384}},
        {"pool": "b", "replicas": 1, "cost": {"hourly": 0.192}},
    ]
    service = make_object(
        LatticeService, "web", "default", spec={"containers": MAIN}, status={"placements": parts}
    )
    cost = status_with_health(service, service_health(service, []), 0).total_cost
    assert cost is not None
    assert (str(cost.hourly), str(cost.projected30_day)) == ("0.576", "414.72")


async def test_burst_of_starts_makes_few_status_writes() -> None:
    plane = ControlPlane()
    await plane.put(a_web_service(50, 50))
    controller = ServiceStatusController(await plane.new_term())
    async with running_loops(controller.context, controller.loop()):
        revision_before = await plane.store.revision()
        for slot in range(50):
            await plane.put(a_replica_of_web(slot))
            await plane.clock.advance(0.01)
        await plane.clock.advance(2)
        service = await plane.get(LatticeService, "web", "default")
        assert service is not None
        assert service.status.health is not None
        assert (service.status.health.ready, service.status.phase) == (50, "Running")
        assert await plane.store.revision() - revision_before <= 50 + 5
        first, *later = await revision_after(plane, [40, 40])
        assert set(later) == {first}


async def test_crash_loop_writes_events_at_growing_intervals() -> None:
    plane = ControlPlane()
    await plane.put(a_web_service(1, 1))
    for term in range(2):
        controller = ServiceStatusController(await plane.new_term())
        async with running_loops(controller.context, controller.loop()):
            for failures in range(1 + 10 * term, 11 + 10 * term):
                await plane.put(a_failing_replica(0, failures))
                await plane.clock.advance(60)
    events = [event for event in await plane.all(Event) if event.reason == "ReplicaFailing"]
    assert {event.type for event in events} == {"Warning"}
    assert sorted(int(event.message.split()[0]) for event in events) == [1, 2, 4, 5, 8, 16]
    assert "web-0 failed: RUNTIME_ERROR: exited with code 3" in events[0].message
    service = await plane.get(LatticeService, "web", "default")
    assert service is not None
    assert service.status.health is not None
    assert service.status.health.failures == 20
    crashing = find_condition(service.status.conditions, "Crashing")
    assert crashing is not None
    assert (crashing.status, crashing.reason) == ("True", "RUNTIME_ERROR")
