"""Read and write timestamps: RFC 3339 in UTC, in whole seconds, or with microseconds where a controller
computes durations from the stored time, such as the time of a retry."""

from datetime import UTC, datetime

# The clocks of two servers may differ by this much before a stored timestamp counts as wrong.
MAX_CLOCK_SKEW_S = 5.0


def format_timestamp(when: datetime) -> str:
    """Format a UTC time in the form of the API, in whole seconds: 2026-11-15T07:40:00Z."""
    return when.isoformat(timespec="seconds")[:19] + "Z"


def format_micro_time(when: datetime) -> str:
    """Format a timestamp with microseconds: 2026-11-15T07:40:00.000000Z."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_exact_time(when: datetime) -> str:
    """Format a timestamp with its time zone and without rounding, for leases and reservations, which only
    schedulers compare: 2026-11-15T07:40:00.250000+00:00."""
    return when.isoformat()


def format_date(posix_seconds: float) -> str:
    """The UTC date of a POSIX time, such as the modification time of a file: 2026-11-15."""
    return datetime.fromtimestamp(posix_seconds, UTC).date().isoformat()


def parse_timestamp(text: str) -> datetime:
    """Parse a timestamp; a timestamp without a time zone is UTC. Raises ValueError for any other text."""
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def parse_time(text: str | None) -> datetime | None:
    """Parse an optional timestamp; None for an empty text."""
    return parse_timestamp(text) if text else None
