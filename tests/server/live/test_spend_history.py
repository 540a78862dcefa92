"""Hourly cost over time: one point per change, and sums that match."""

import pytest
from build.costs import rates

from lattice.errors import Malformed
from lattice.server.live.spend_history import (
    MAX_NAMED_SERIES,
    MAX_POINTS_PER_SERIES,
    RETENTION_S,
    CostSeries,
    Points,
    SpendHistory,
    SpendRates,
    spending_document,
)


def recorded(*samples: tuple[int, SpendRates]) -> SpendHistory:
    spending = SpendHistory()
    for sample in samples:
        spending.record(*sample)
    return spending


def test_point_is_recorded_per_change_only() -> None:
    one, two = rates({"north": 1}), rates({"north": 2})
    spending = recorded((10, one), (15, one), (20, two), (25, rates({})))
    assert spending.series("pool") == {"north": [(10, 1_000_000), (20, 2_000_000), (25, 0)]}
    assert spending.document("pool") | {"series": 0} == {
        "by": "pool",
        "since": 10,
        "at": 25,
        "labels": [],
        "series": 0,
    }


def test_services_and_empty_nodes_sum_to_pool_cost() -> None:
    pools = {"north": 1, "south": 0.5}
    spending = recorded((10, rates(pools, {"web": 0.75, "api": 0.25, "new": 0})), (20, rates(pools)))
    found = spending.series("service")
    assert list(found) == ["shop/web", "shop/api", "(empty nodes)"]
    assert found["(empty nodes)"] == [(10, 500_000), (20, 1_500_000)]
    for second, micros in ((9, 0), (10, 1_500_000), (19, 1_500_000), (20, 1_500_000)):
        assert rate_at(second, found) == rate_at(second, spending.series("pool")) == micros


def rate_at(second: int, series: dict[str, Points]) -> int:
    """Micro-dollars per hour of all series at a second."""
    return sum(([0] + [rate for at, rate in points if at <= second])[-1] for points in series.values())


def test_series_by_label_groups_unlabelled_services() -> None:
    blue = {"team": "blue"}
    spending = recorded((10, rates({}, {"web": 1, "api": 2, "old": 4}, web=blue, api=blue)))
    assert spending.series("label:team") == {"(no label team)": [(10, 4_000_000)], "blue": [(10, 3_000_000)]}
    assert spending.document("service")["labels"] == ["team"]


@pytest.mark.parametrize("by", ["moon", "label:", ""])
async def test_unknown_grouping_is_malformed(by: str) -> None:
    with pytest.raises(Malformed, match="choose pool, service or label:KEY"):
        await spending_document(SpendHistory(), by)


def test_most_expensive_series_are_named_rest_is_summed() -> None:
    found = recorded(
        (10, rates({}, {f"s{number:02}": 1 + number for number in range(MAX_NAMED_SERIES + 3)}))
    ).series("service")
    assert next(iter(found)) == f"shop/s{MAX_NAMED_SERIES + 2:02}"
    assert found["(3 others)"] == [(10, (1 + 2 + 3) * 1_000_000)]


def test_expired_points_go_but_last_rate_stays() -> None:
    spending = recorded(
        (10, rates({"north": 1}, {"web": 1})),
        (20, rates({"north": 2})),
    )
    spending.record(RETENTION_S + 100, rates({"north": 2}))
    assert (spending.document("pool")["since"], spending.series("pool")) == (
        100,
        {"north": [(100, 2_000_000)]},
    )
    assert spending.services == {}


def test_series_is_thinned_but_keeps_both_ends() -> None:
    track = CostSeries()
    for second in range(3 * MAX_POINTS_PER_SERIES):
        track.record(second, second + 1)
    assert len(track.points) <= MAX_POINTS_PER_SERIES
    assert (track.points[0], track.points[-1]) == (
        (0, 1),
        (3 * MAX_POINTS_PER_SERIES - 1, 3 * MAX_POINTS_PER_SERIES),
    )
    assert track.points == sorted(track.points)
