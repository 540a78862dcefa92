"""Reading and writing timestamps."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lattice.kinds.meta.timestamps import (
    format_date,
    format_micro_time,
    format_timestamp,
    parse_time,
    parse_timestamp,
)

MOMENT = datetime(2026, 11, 15, 7, 40, 0, 250_000, UTC)


def test_the_forms_on_the_wire() -> None:
    assert format_timestamp(MOMENT) == "2026-11-15T07:40:00Z"
    assert format_micro_time(MOMENT) == "2026-11-15T07:40:00.250000Z"
    assert format_micro_time(MOMENT.astimezone(timezone(timedelta(hours=2)))) == "2026-11-15T07:40:00.250000Z"
    assert format_date(MOMENT.timestamp()) == "2026-11-15"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        pytest.param("2026-11-15T07:40:00.250000Z", MOMENT, id="in UTC"),
        pytest.param("2026-11-15T09:40:00.25+02:00", MOMENT, id="in another zone"),
        pytest.param("2026-11-15T07:40:00.25", MOMENT, id="without a zone"),
    ],
)
def test_a_timestamp_is_read_in_utc(text: str, moment: datetime) -> None:
    assert parse_timestamp(text) == parse_time(text) == moment


def test_an_absent_timestamp() -> None:
    assert parse_time(None) is None
    assert parse_time("") is None
    with pytest.raises(ValueError, match="Invalid isoformat string"):
        parse_timestamp("yesterday")
