"""Stored timestamps: RFC 3339 in UTC, with microseconds."""

from datetime import UTC, datetime

# The clocks of two servers may differ by this much before a stored timestamp counts as wrong.
MAX_CLOCK_SKEW_S = 5.0


def format_micro_time(when: datetime) -> str:
    """Format a timestamp with microseconds, so that a stored wait keeps its exact duration."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp; a timestamp without a time zone is UTC, an empty text is None."""
    if not text:
        return None
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
