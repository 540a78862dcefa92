"""Rows of the page: the cost of a service is a number, unknown, or nothing to pay yet."""

from typing import Any

import pytest
from build.objects import make_object

from lattice.kinds.service import LatticeService
from lattice.server.ui_backend.row_summaries import service_row

PLACED: dict[str, Any] = {"pool": "p1", "cluster": "p1-001", "replicas": 1, "node": "m"}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        pytest.param(
            {"placements": [{**PLACED, "cost": {"hourly": 0.1}}], "totalCost": {"hourly": 0.1}},
            (100_000, True),
            id="a price",
        ),
        pytest.param({"placements": [PLACED]}, (None, False), id="a machine of unknown price"),
        pytest.param({}, (None, True), id="not placed"),
    ],
)
def test_cost_of_a_service(status: dict[str, Any], shown: tuple[int | None, bool]) -> None:
    spec = {"containers": {"main": {"command": ["run"]}}}
    row = service_row(make_object(LatticeService, "api", "default", spec=spec, status=status))
    assert (row["hourlyMicros"], row["isPriced"]) == shown
