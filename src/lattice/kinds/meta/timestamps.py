"""Timestamps as they are stored: RFC 3339 in UTC, to the microsecond."""

from datetime import UTC, datetime

MAX_CLOCK_SKEW_S = (
    5.0  # seconds by which the clocks of two servers may differ before a stored time is taken for a mistake
)


def format_micro_time(when: datetime) -> str:
    """To the microsecond: a wait that is stored is neither longer nor shorter afterwards."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str | None) -> datetime | None:
    if not text:
        return None
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
