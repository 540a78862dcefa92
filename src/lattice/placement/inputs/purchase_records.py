"""The records of purchases for unschedulable replicas: attempts, back-off, refusals and surge machines."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from lattice.kinds.meta.timestamps import format_timestamp, parse_timestamp
from lattice.kinds.service import Remediation

# The back-off after the first purchase for a service; it doubles with every further purchase.
FIRST_BACKOFF = timedelta(seconds=30)
MAX_BACKOFF = timedelta(hours=1)
# Purchases are forgotten after this time without an unschedulable replica.
FORGET_AFTER = timedelta(minutes=10)


class PurchaseRecords:
    """The records of all services during one decision, by offer and node class."""

    def __init__(
        self,
        stored: Mapping[str, Iterable[Remediation]],
        now: datetime | None,
        new_record: Callable[[str, str, str], Remediation],
    ) -> None:
        """`new_record` returns the first record of a service in an offer for a class; without `now` there is no
        back-off."""
        self._now, self._new_record = now, new_record
        self._records = {
            name: {(record.offer, record.node_class): record for record in records}
            for name, records in stored.items()
        }

    def get(self, name: str, offer: str, node_class: str) -> Remediation:
        record = self._records.get(name, {}).get((offer, node_class))
        return self._new_record(name, offer, node_class) if record is None else record

    def of_service(self, name: str) -> list[Remediation]:
        """The records of the service, by offer and class."""
        return [record for _, record in sorted(self._records.get(name, {}).items())]

    def with_surge_machines(self) -> list[tuple[str, Remediation]]:
        """Services with machines for surge replicas, each with the record."""
        return [
            (name, record)
            for name, records in self._records.items()
            for record in records.values()
            if record.surge_machines
        ]

    def update(self, name: str, record: Remediation, **fields: object) -> None:
        """Store the record with the changed fields."""
        changed = msgspec.structs.replace(record, **fields)
        self._records.setdefault(name, {})[record.offer, record.node_class] = changed

    def count_attempt(self, name: str, record: Remediation) -> None:
        """Count a purchase: the next one waits twice as long, and nothing blocks it."""
        attempts = record.attempts + 1
        next_at = None if self._now is None else format_timestamp(self._now + backoff(attempts))
        self.update(name, record, attempts=attempts, next_at=next_at, reason="", need="", have="")

    def is_backing_off(self, record: Remediation) -> bool:
        if record.next_at is None or self._now is None:
            return False
        # A time far ahead of this clock was written by a leader whose clock was ahead (I-33).
        return self._now < parse_timestamp(record.next_at) <= self._now + MAX_BACKOFF

    def to_store(self, name: str, *, is_waiting: bool) -> tuple[Remediation, ...]:
        """The records to store. Without an unschedulable replica no purchase is blocked, and old records are
        forgotten."""
        records = []
        for record in self.of_service(name):
            if not is_waiting and not record.refused:
                if not record.surge_machines and self._is_old(record):
                    continue
                if record.reason:
                    record = msgspec.structs.replace(record, reason="", need="", have="")
            records.append(record)
        return tuple(records)

    def _is_old(self, record: Remediation) -> bool:
        if record.next_at is None or self._now is None:
            return True
        age = self._now - parse_timestamp(record.next_at)
        return not -MAX_BACKOFF <= age < FORGET_AFTER


def backoff(attempts: int) -> timedelta:
    """The time after a number of purchases in which no further machine is bought."""
    factor: int = 2 ** (min(attempts, 10) - 1)
    return min(FIRST_BACKOFF * factor, MAX_BACKOFF)


def purchase_time(record: Remediation) -> datetime | None:
    """The time of the last purchase; None without one."""
    if not record.attempts or not record.next_at:
        return None
    return parse_timestamp(record.next_at) - backoff(record.attempts)
