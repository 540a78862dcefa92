"""Tests of `service_availability`: a drain may evict only replicas that no rollout or scale-down is about to
remove."""

import pytest
from msgspec.structs import replace

from lattice.kinds.container import Container
from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.service import LatticeService, Replicas, ServicePlacement, ServiceSpec, ServiceStatus
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.disruption import ServiceAvailability, service_availability
from lattice.lifecycle.eviction import DecidedEvictions

MAIN = {"main": Container(command=("sleep", "1"))}


def a_placed_web_service(placed: int) -> LatticeService:
    status = ServiceStatus(
        placements=(ServicePlacement(pool="p", cluster="c", replicas=placed),) if placed else ()
    )
    return LatticeService(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeService",
        metadata=Metadata(name="web", namespace="default"),
        spec=ServiceSpec(containers=MAIN, replicas=Replicas(min=2)),
        status=status,
    )


def a_running_replica(slot: int, **metadata: str) -> LatticeWorkload:
    status = WorkloadStatus(
        binding=Binding(node=f"n{slot}"), actual_state="Running", ready=True, last_action="Apply"
    )
    return LatticeWorkload(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeWorkload",
        metadata=replace(Metadata(name=f"web-{slot}", namespace="default"), **metadata),
        spec=WorkloadSpec(containers=MAIN, service="web", slot=slot),
        status=status,
    )


@pytest.mark.parametrize(
    ("placed", "replicas", "is_surged", "expected"),
    [
        pytest.param(2, [0, 1], False, ServiceAvailability(2, 2), id="as many replicas as placed"),
        pytest.param(
            2,
            [0, 1, 2],
            False,
            ServiceAvailability(3, 2, is_changing=True),
            id="a replica beyond the placement is being removed",
        ),
        pytest.param(
            2, [0, 1, 2], True, ServiceAvailability(3, 2), id="the surge replica of a drain is kept"
        ),
        pytest.param(
            2,
            [0, 1, 2, 3],
            True,
            ServiceAvailability(4, 2, is_changing=True),
            id="a drain has one surge replica only",
        ),
        pytest.param(3, [0, 1, 2], False, ServiceAvailability(3, 2), id="more than it must keep"),
        pytest.param(
            0, [0, 1, 2], False, ServiceAvailability(3, 2), id="without a placement no replica is removed"
        ),
    ],
)
def test_service_availability(
    placed: int, replicas: list[int], is_surged: bool, expected: ServiceAvailability
) -> None:
    found = [a_running_replica(slot) for slot in replicas]
    gone = a_running_replica(9, deletion_timestamp="2026-01-01T00:00:00Z")
    assert (
        service_availability(
            a_placed_web_service(placed), [*found, gone], DecidedEvictions(), is_surged=is_surged
        )
        == expected
    )


@pytest.mark.parametrize(
    ("decided", "placed", "replicas", "is_surged", "expected"),
    [
        pytest.param(
            1,
            3,
            [0, 1, 2],
            False,
            ServiceAvailability(3, 2, is_changing=True),
            id="scaled down below the placement: one is being removed",
        ),
        pytest.param(
            1,
            3,
            [0, 1, 2, 3],
            True,
            ServiceAvailability(4, 2, is_changing=True),
            id="scaled down beside the surge replica of a drain",
        ),
        pytest.param(1, 2, [0, 1], False, ServiceAvailability(2, 2), id="as many requested as placed"),
        pytest.param(
            1,
            2,
            [0, 1, 2],
            True,
            ServiceAvailability(3, 2),
            id="as many requested as placed, and the surge replica of a drain",
        ),
        pytest.param(
            2,
            3,
            [0, 1, 2],
            False,
            ServiceAvailability(3, 2),
            id="the placement of the latest generation counts",
        ),
        pytest.param(
            2,
            0,
            [0, 1, 2],
            False,
            ServiceAvailability(3, 2, is_changing=True),
            id="without a placement one is being removed",
        ),
        pytest.param(
            2, 0, [0, 1], False, ServiceAvailability(2, 2), id="without a placement, no more than requested"
        ),
    ],
)
def test_service_availability_after_spec_change(
    decided: int, placed: int, replicas: list[int], is_surged: bool, expected: ServiceAvailability
) -> None:
    said = Condition(type="Placed", status="True", reason="Placed", observed_generation=decided)
    asked = a_placed_web_service(placed)
    changed = replace(
        asked,
        metadata=replace(asked.metadata, generation=2),
        status=replace(asked.status, conditions=(said,)),
    )
    assert (
        service_availability(
            changed, [a_running_replica(slot) for slot in replicas], DecidedEvictions(), is_surged=is_surged
        )
        == expected
    )
