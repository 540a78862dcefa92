"""The API, which is strict about numbers, can read the objects that controllers write."""

from decimal import Decimal

import msgspec
import pytest

from lattice.controllers.runtime.object_writes import put_new, with_spec, with_status
from lattice.kinds.container import Container
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.json_body import decode_stored
from lattice.kinds.service import (
    LatticeService,
    Placement,
    PlacementResources,
    ServiceSpec,
    ServiceStatus,
    TotalCost,
)
from lattice.store.protocol import Entry, Put

SPEC = ServiceSpec(
    containers={"main": Container(command=("sleep", "1"))},
    placement=Placement(resources=PlacementResources(cores=Decimal("0.1"), memory_gi=Decimal("0.125"))),
)
STATUS = ServiceStatus(total_cost=TotalCost(hourly=Decimal("0.02"), projected30_day=Decimal("14.4")))


def _service(status: ServiceStatus = ServiceStatus()) -> LatticeService:  # noqa: B008 - frozen
    resource = LatticeService.resource
    metadata = Metadata(name="web", namespace="default")
    return LatticeService(
        api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=SPEC, status=status
    )


def _entry(write: Put) -> Entry:
    return Entry(write.key, write.value, 1)


EMPTY = put_new(_service(), uid="u", now="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(put_new(_service(STATUS), uid="u", now="2026-01-01T00:00:00Z"), id="created"),
        pytest.param(with_status(_entry(EMPTY), STATUS), id="with another status"),
        pytest.param(with_spec(_entry(EMPTY), SPEC, STATUS), id="with another spec and status"),
    ],
)
def test_amounts_are_written_as_numbers(write: Put) -> None:
    stored = decode_stored(write.value)
    assert stored["status"]["totalCost"] == {"hourly": Decimal("0.02"), "projected30Day": Decimal("14.4")}
    assert stored["spec"]["placement"]["resources"] == {"cores": Decimal("0.1"), "memoryGi": Decimal("0.125")}
    assert msgspec.json.decode(write.value, type=LatticeService).status == STATUS
