"""What may a budget still pay for, what has it paid, and where will the month end?

Rates are micro-dollars per hour and times are microseconds, so their product counts in parts of a micro-dollar, `HOUR` of which
make a whole one. Everything is decided in these parts; nothing is ever rounded but what is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from lattice.errors import Invalid
from lattice.kinds.ledger import (
    MICROSECONDS_PER_HOUR,
    Account,
    LatticeLedger,
    LedgerSpec,
    LedgerStatus,
    Lot,
    cluster_number,
)
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.quantity import MICRO

HOURS_PER_MONTH = 720  # a budget's month is 30 days
UNLIMITED_HEADROOM = 1 << 61  # headroom where nothing is refused; two of them still add up in 64 bits
RETAINED_MONTHS = 13
_MICROSECOND = timedelta(microseconds=1)


class BudgetState(StrEnum):
    OK = "Ok"
    ALERT = "Alert"
    EXCEEDED = "Exceeded"


@dataclass(frozen=True, slots=True)
class Charge:
    """Machines of one cluster, and every budget that pays for them: a region's and the whole cloud's, an overflow's."""

    accounts: tuple[Account, ...]
    cluster: str
    lot: Lot


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Where a budget stands, in micro-dollars of the calendar month."""

    spent: int
    projected: int  # spent, and the present rate until the month ends
    limit: int | None
    utilisation: int | None  # projected in millionths of the limit; None without one
    state: BudgetState
    is_hard: bool

    @property
    def is_exceeded(self) -> bool:
        return self.state is BudgetState.EXCEEDED


@dataclass(frozen=True, slots=True)
class BudgetApproval:
    """`warns`: a soft limit is passed, or was before."""

    ledger: str
    resulting_status: BudgetStatus
    is_over_soft_limit: bool = False


@dataclass(frozen=True, slots=True)
class BudgetRejection:
    """Micro-dollars per hour, but for the limit: that is per month, and so is what it would have to be raised by."""

    ledger: str
    need: int
    have: int
    limit: int
    raise_by: int
    payer: str = ""  # whose budget it is, in words

    @property
    def missing(self) -> int:
        return self.need - self.have

    def __str__(self) -> str:
        return (
            f"{self.payer or self.ledger}: needs {format_per_hour(self.need)}, "
            f"has {format_per_hour(self.have)} left of {format_per_month(self.limit)}, missing {format_per_hour(self.missing)}; "
            f"raise the budget by {format_per_month(self.raise_by)}"
        )


def open_ledger(stated: LedgerSpec, found: LatticeLedger | None, now: datetime) -> LatticeLedger:
    """The ledger under the budget as it is stated now: the one there is, else an empty one that begins now."""
    if found is not None:
        return msgspec.structs.replace(found, spec=stated)
    resource = LatticeLedger.resource
    begin = format_timestamp(now)
    return LatticeLedger(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(name=stated.budget.ledger_name),
        spec=stated,
        status=LedgerStatus(month=begin[:7], as_of=begin),
    )


def record_cluster_number(
    account: Account, found: LatticeLedger | None, cluster: str, now: datetime
) -> LatticeLedger:
    """The ledger, having seen this cluster, which it does not pay for."""
    ledger = found or open_ledger(LedgerSpec(budget=account), None, now)
    return _with_status(ledger, last_cluster=max(ledger.status.last_cluster, cluster_number(cluster)))


def accrue(ledger: LatticeLedger, now: datetime) -> LatticeLedger:
    """Counts what was spent until `now`, in each calendar month its own. A clock that goes back un-spends nothing."""
    status = ledger.status
    at, until = parse_timestamp(status.as_of), _utc(now)
    if until <= at:
        return ledger
    parts, past = status.spent_micros * MICROSECONDS_PER_HOUR + status.remainder, dict(status.past)
    while (end := month_end(at)) <= until:
        past[format_timestamp(at)[:7]], parts = divmod(
            parts + status.committed_micros * _microseconds(end - at), MICROSECONDS_PER_HOUR
        )
        at = end
    spent, remainder = divmod(
        parts + status.committed_micros * _microseconds(until - at), MICROSECONDS_PER_HOUR
    )
    kept = dict(sorted(past.items())[-RETAINED_MONTHS:])
    as_of = format_timestamp(until)
    return _with_status(
        ledger, spent_micros=spent, remainder=remainder, past=kept, month=as_of[:7], as_of=as_of
    )


def month_end(at: datetime) -> datetime:
    """The first moment of the next calendar month, UTC."""
    return datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)


def time_left_in_month(now: datetime) -> timedelta:
    """Until the calendar month ends: never nothing, since at midnight the next one begins."""
    at = _utc(now)
    return month_end(at) - at


def charge(ledger: LatticeLedger, cluster: str, lot: Lot, now: datetime) -> LatticeLedger:
    """The ledger when it pays for these machines from `now` on. Whether it may is another question: `may_commit`."""
    if lot.count < 1 or lot.micros < 0 or not cluster:
        raise Invalid(
            f'cannot pay for {lot.count} machines at {lot.micros} micro-dollars in cluster "{cluster}"',
            where=ledger.metadata.name,
        )
    return _adjust_lot(accrue(ledger, now), cluster, lot, lot.count)


def release(ledger: LatticeLedger, cluster: str, lot: Lot, now: datetime) -> LatticeLedger:
    """The ledger when these machines, taken at this price, are gone: not wanted to be, confirmed to be."""
    paid = sum(each.count for each in ledger.status.machines.get(cluster, ()) if _same_price(each, lot))
    if not 1 <= lot.count <= paid:
        raise Invalid(
            f"pays for {paid} {lot.node_class} at {format_per_hour(lot.micros)} in cluster {cluster}, cannot release {lot.count}",
            where=f"latticeledger/{ledger.metadata.name}",
            fix="release what status.machines lists, once, when it is gone",
        )
    return _adjust_lot(accrue(ledger, now), cluster, lot, -lot.count)


def _adjust_lot(ledger: LatticeLedger, cluster: str, lot: Lot, by: int) -> LatticeLedger:
    before = ledger.status.machines.get(cluster, ())
    count = by + sum(each.count for each in before if _same_price(each, lot))
    others = [each for each in before if not _same_price(each, lot)]
    after = [*others, msgspec.structs.replace(lot, count=count)] if count else others
    machines = {name: lots for name, lots in ledger.status.machines.items() if name != cluster}
    if after:
        machines[cluster] = tuple(sorted(after, key=lambda each: (each.node_class, each.micros)))
    committed = ledger.status.committed_micros + by * lot.micros
    last = max(ledger.status.last_cluster, cluster_number(cluster))
    return _with_status(
        ledger, machines=dict(sorted(machines.items())), committed_micros=committed, last_cluster=last
    )


def _same_price(one: Lot, other: Lot) -> bool:
    return (one.node_class, one.micros) == (other.node_class, other.micros)


def _with_status(ledger: LatticeLedger, **changes: object) -> LatticeLedger:
    return msgspec.structs.replace(ledger, status=msgspec.structs.replace(ledger.status, **changes))


def settle_charges(
    ledger: LatticeLedger, releases: Sequence[Charge], charges: Sequence[Charge], now: datetime
) -> tuple[LatticeLedger, BudgetApproval | BudgetRejection]:
    """The ledger after all of this, and whether it may be: what is gone makes room for what comes."""
    for each in releases:
        ledger = release(ledger, each.cluster, each.lot, now)
    answer = may_commit(ledger, sum(each.lot.rate for each in charges), now)
    for each in charges:
        ledger = charge(ledger, each.cluster, each.lot, now)
    return accrue(ledger, now), answer


def may_commit(ledger: LatticeLedger, more: int, now: datetime) -> BudgetApproval | BudgetRejection:
    """May it pay for `more` micro-dollars per hour from `now` on? What costs nothing more it always may."""
    have, name = headroom_to_limit(ledger, now), ledger.metadata.name
    limit = ledger.spec.limit_micros
    if limit is None or more <= have or not ledger.spec.hard:
        after = budget_status(ledger, now, more)
        return BudgetApproval(name, after, not ledger.spec.hard and (more > have or after.is_exceeded))
    return BudgetRejection(
        name, more, have, limit, required_limit(ledger, more, now) - limit, str(ledger.spec.budget)
    )


def headroom(ledger: LatticeLedger, now: datetime) -> int:
    """The most additional micro-dollars per hour that may be committed: `more <= headroom` exactly if `may_commit` allows it."""
    return headroom_to_limit(ledger, now) if ledger.spec.hard else UNLIMITED_HEADROOM


def headroom_to_limit(ledger: LatticeLedger, now: datetime) -> int:
    """How much more per hour stays within the limit, hard or not; 0 when it is passed, UNLIMITED when there is none."""
    limit = ledger.spec.limit_micros
    if limit is None:
        return UNLIMITED_HEADROOM
    spent, left, committed = _month_to_date(ledger, now)
    return max(0, min(limit // HOURS_PER_MONTH, (limit * MICROSECONDS_PER_HOUR - spent) // left) - committed)


def required_limit(ledger: LatticeLedger, more: int, now: datetime) -> int:
    """The smallest limit, in micro-dollars per month, within which `more` per hour would be."""
    spent, left, committed = _month_to_date(ledger, now)
    return max(
        (committed + more) * HOURS_PER_MONTH, -(-(spent + (committed + more) * left) // MICROSECONDS_PER_HOUR)
    )


def budget_status(ledger: LatticeLedger, now: datetime, more: int = 0) -> BudgetStatus:
    """Where the budget stands, with `more` micro-dollars per hour from now on."""
    spent, left, committed = _month_to_date(ledger, now)
    projected = spent + (committed + more) * left
    limit = ledger.spec.limit_micros
    utilisation, state = None, BudgetState.OK
    if limit is not None:
        whole = limit * MICROSECONDS_PER_HOUR
        utilisation = projected * MICRO // whole if whole else MICRO  # a budget of nothing is used up
        is_alert = projected * MICRO >= ledger.spec.alert_millionths * whole
        state = (
            BudgetState.EXCEEDED if projected >= whole else BudgetState.ALERT if is_alert else BudgetState.OK
        )
    return BudgetStatus(
        spent // MICROSECONDS_PER_HOUR,
        projected // MICROSECONDS_PER_HOUR,
        limit,
        utilisation,
        state,
        ledger.spec.hard,
    )


def projected_month_cost(ledger: LatticeLedger, now: datetime) -> int:
    """Micro-dollars spent in this calendar month, and the present rate until it ends."""
    return budget_status(ledger, now).projected


def _month_to_date(ledger: LatticeLedger, now: datetime) -> tuple[int, int, int]:
    """Parts spent this month, microseconds left of it, and the rate."""
    status = accrue(ledger, now).status
    spent = status.spent_micros * MICROSECONDS_PER_HOUR + status.remainder
    return spent, _microseconds(time_left_in_month(parse_timestamp(status.as_of))), status.committed_micros


def with_status_message(ledger: LatticeLedger) -> LatticeLedger:
    """With phase and message for people, as of the moment that it is counted to."""
    status = ledger.status
    now = budget_status(ledger, parse_timestamp(status.as_of))
    of = "no limit" if now.limit is None else format_per_month(now.limit)
    spent = f"{format_dollars(now.spent)} spent until {status.as_of[:16].replace('T', ' ')} UTC"
    message = f"{format_per_hour(status.committed_micros)}; {spent}, {format_dollars(now.projected)} projected in {status.month}; {of}"
    return _with_status(ledger, phase=now.state.value, message=message)


def rate_per_30_days(per_hour_micros: int) -> int:
    return per_hour_micros * HOURS_PER_MONTH


def format_dollars(micros: int, *, signed: bool = False) -> str:
    """Exact, with two digits or as many as it takes: $0.576, $1,105.92, -$0.25; signed +$3.00."""
    whole, part = divmod(abs(micros), MICRO)
    digits = f"{part:06}".rstrip("0").ljust(2, "0")
    sign = "-" if micros < 0 else "+" if signed and micros else ""
    return f"{sign}${whole:,}.{digits}"


def format_per_hour(micros: int) -> str:
    return f"{format_dollars(micros)}/h"


def format_per_month(micros: int) -> str:
    """Of an amount that is per month already: `thirty_days` makes one of a rate."""
    return f"{format_dollars(micros)}/30d"


def parse_timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text)


def format_timestamp(when: datetime) -> str:
    """To the microsecond: 2026-11-15T07:40:00.000000Z."""
    return _utc(when).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _utc(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise Invalid(f"the time {when} does not say its zone", fix="give it in UTC")
    return when.astimezone(UTC)


def _microseconds(span: timedelta) -> int:
    return span // _MICROSECOND
