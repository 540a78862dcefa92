"""Tests of `without_minor_spend`: small changes of spend are not written."""

from decimal import Decimal

import pytest

from lattice.kinds.pool import PoolSpending, PoolStatus
from lattice.placement.status.supply_status import without_minor_spend


def spent(current: str, projected: str, share: str | None = None) -> PoolStatus:
    return PoolStatus(
        budget=PoolSpending(
            current_month_cost=Decimal(current),
            projected_month_cost=Decimal(projected),
            utilization_percent=None if share is None else Decimal(share),
        )
    )


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        pytest.param(
            ("1.00", "36.00"),
            ("1.03", "36.00"),
            False,
            id="less than a tenth of a percent of what the month will cost",
        ),
        pytest.param(("1.00", "36.00"), ("1.04", "36.00"), True, id="more than that"),
        pytest.param(("1.00", "36.00"), ("1.00", "37.00"), True, id="the month will cost something else"),
        pytest.param(
            ("0.001368", "0.003434"),
            ("0.001423", "0.003406"),
            False,
            id="parts of a cent in the last minutes of a month",
        ),
        pytest.param(("0.001", "0.002"), ("0.012", "0.013"), True, id="a cent, of however little"),
        pytest.param(("1.00", "36.00", "0.18"), ("1.00", "36.00", "0.72"), True, id="another limit"),
        pytest.param(("1.00", "36.00", "0.18"), ("1.00", "36.00"), True, id="no limit any more"),
        pytest.param(
            ("1.00", "36.00", "0.1800"), ("1.03", "36.03", "0.1802"), False, id="the share follows the spend"
        ),
    ],
)
def test_minor_spend_changes_are_suppressed(
    before: tuple[str, ...], after: tuple[str, ...], is_told: bool
) -> None:
    assert without_minor_spend(spent(*before), spent(*after)) == spent(*(after if is_told else before))
