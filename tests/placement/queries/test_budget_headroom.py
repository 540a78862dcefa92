"""Tests of budget headroom: the hourly headroom of a limit over 30 days is shown beside the projection of the
month."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from build.worlds import a_cloud, a_pool, a_service, a_world

from lattice.cli.output.plan_tables import plan_lines
from lattice.cli.output.table_renderer import TableRenderer
from lattice.kinds.meta.base import Kind
from lattice.placement.queries.dispatch import answer_query
from lattice.placement.queries.plan_document import Document

LATE = datetime(2026, 11, 28, tzinfo=UTC)  # three days of the month are left
USED_UP = "! The budget of latticepool/p1 does not pay for one more machine: it costs $0.20/h, and $0.077777/h is left."


def planned(supply: Kind, replicas: int) -> Document:
    return answer_query(
        {"ask": "plan"}, replace(a_world(supply), now=LATE), [a_service(cores=4, replicas=replicas)]
    )


@pytest.mark.parametrize(
    ("supply", "replicas", "left", "is_used_up", "percent"),
    [
        pytest.param(
            a_pool(budget=200),
            1,
            77_777,
            True,
            72,
            id="one machine of $144 in 30 days leaves no room for another",
        ),
        pytest.param(a_pool(budget=300), 1, 216_666, False, 48, id="room for another"),
        pytest.param(a_cloud(budget={"monthly": 200}), 1, None, False, 72, id="soft: nothing is refused"),
    ],
)
def test_budget_headroom_for_machines(
    supply: Kind, replicas: int, left: int | None, is_used_up: bool, percent: int
) -> None:
    (budget,) = (
        each
        for each in planned(supply, replicas)["budgets"]
        if each["subject"] != "cloudinfrastructure/cloud/r1"
    )
    # Of the run rate over 30 days: the month alone would show less than 10 percent.
    assert budget["percentAfter"] == percent
    assert (budget["left"] and budget["left"]["hourlyMicros"], budget["isUsedUp"]) == (left, is_used_up)
    assert budget["cheapestMachine"]["hourlyMicros"] == 200_000


def test_exhausted_budget_is_marked_with_shortfall() -> None:
    lines = plan_lines(planned(a_pool(budget=200), 1), TableRenderer())
    (row,) = (line for line in lines if "latticepool/p1 " in line and "hard" in line)
    assert row.startswith("! ")
    assert row.endswith("$0.0778")
    assert USED_UP in lines


def test_budget_with_headroom_is_not_marked() -> None:
    lines = plan_lines(planned(a_pool(budget=300), 1), TableRenderer())
    assert not any(line.startswith("!") for line in lines)
