"""The status of a service from its replicas: counts, phase and condition; a burst of changes makes few
writes."""

from typing import Any

import pytest
from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import make_object

from lattice.controllers.services.service_status import ServiceStatusController
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
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
        spec={"containers": MAIN, "replicas": {"min": wanted}},
        status=status,
        **more,
    )


def a_replica_of_web(slot: int, state: str = "Running", ready: bool = True, **more: Any) -> LatticeWorkload:
    status = {"actualState": state, "ready": ready, **more.pop("status", {})}
    return make_object(
        LatticeWorkload,
        f"web-{slot}",
        "default",
        spec={"containers": MAIN, "service": "web"},
        status=status,
        **more,
    )


GOING = {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
NOT_PLACED = {"status": {"schedulerDecision": {"verdict": "NotHere"}}}
CASES: dict[str, tuple[LatticeService, list[LatticeWorkload], str, str]] = {
    "all ready": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1)],
        "Running",
        "2 of 2 replicas are ready",
    ),
    "one starts": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1, "Starting", False)],
        "Progressing",
        "1 of 2 replicas are ready",
    ),
    "one is not ready": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1, ready=False)],
        "Progressing",
        "1 of 2 replicas are ready",
    ),
    "one more than wanted": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1), a_replica_of_web(2)],
        "Running",
        "3 of 2 replicas are ready",
    ),
    "one goes": (
        a_web_service(),
        [a_replica_of_web(0), a_replica_of_web(1, **GOING)],
        "Progressing",
        "1 of 2 replicas are ready",
    ),
    "one failed": (
        a_web_service(),
        [
            a_replica_of_web(0),
            a_replica_of_web(1, "Failed", False, status={"failureReason": "INVALID_IMAGE"}),
        ],
        "Degraded",
        "1 of 2 replicas are ready; web-1 failed: INVALID_IMAGE",
    ),
    "all failed": (
        a_web_service(1, 1),
        [a_replica_of_web(0, "Failed", False)],
        "Failed",
        "0 of 1 replicas are ready; web-0 failed: no reason reported",
    ),
    "placed in part": (
        a_web_service(1, 2),
        [a_replica_of_web(0)],
        "Progressing",
        "1 of 2 replicas are ready",
    ),
    "not placed yet": (a_web_service(0), [], "Pending", "0 of 2 replicas are ready"),
    "not to be placed": (a_web_service(0, **NOT_PLACED), [], "Unschedulable", "0 of 2 replicas are ready"),
    "scaled to none": (a_web_service(0, 0), [], "Running", "0 of 0 replicas are ready"),
    "being deleted": (a_web_service(**GOING), [a_replica_of_web(0)], "Deleting", "1 of 2 replicas are ready"),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_health_of_service(case: str) -> None:
    service, replicas, phase, message = CASES[case]
    found = status_with_health(service, replicas)
    assert (found.phase, found.conditions[0].message) == (phase, message)
    assert (found.conditions[0].status == "True") is (phase == "Running")
    assert found.replicas == len(replicas)


def test_cost_is_the_sum_of_parts() -> None:
    parts = [
        {"pool": "a", "replicas": 2, "cost": {"hourly": 0.384}},
        {"pool": "b", "replicas": 1, "cost": {"hourly": 0.192}},
    ]
    service = make_object(
        LatticeService, "web", "default", spec={"containers": MAIN}, status={"placements": parts}
    )
    cost = status_with_health(service, []).total_cost
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
