"""Ledger arithmetic: what a budget has spent, may still commit, and will have spent at the end of the month.

Rates are micro-dollars per hour and times are microseconds, so a product counts in parts of a micro-dollar;
`MICROSECONDS_PER_HOUR` parts make one micro-dollar. Every decision uses the parts: only displayed amounts are
rounded.
"""

from collections.abc import Mapping, Sequence
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
    Refusal,
    cluster_number,
)
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.quantity import (
    CENT_MICROS,
    MICRO,
    format_cents,
    format_dollars,
    format_per_hour,
    format_per_month,
    pluralize,
    round_to_cents,
)
from lattice.kinds.meta.timestamps import format_micro_time, parse_timestamp

# A cluster and a node class.
NodeGroup = tuple[str, str]
# The month of a budget has 30 days.
HOURS_PER_MONTH = 720
# Headroom of a budget that rejects no commitment; the sum of two still fits in 64 bits.
UNLIMITED_HEADROOM = 1 << 61
# A budget returns from Alert or Exceeded only below the threshold less this part of the limit, so that rounding
# cannot make it flap.
HYSTERESIS_MILLIONTHS = 1_000
# The amounts of a recorded refusal are written again once they differ by more than the needed limit divided by
# this number.
REFUSAL_DRIFT_DIVISOR = 100
# Number of past months that a ledger keeps.
RETAINED_MONTHS = 13
_MICROSECOND = timedelta(microseconds=1)


class BudgetRule(StrEnum):
    """The two rules of every limit."""

    # 30 days at the committed hourly rate.
    RUN_RATE = "RunRate"
    # The spending of the calendar month: spent so far, plus the committed rate until the month ends.
    CALENDAR_MONTH = "CalendarMonth"

    @property
    def words(self) -> str:
        return "30-day run rate" if self is BudgetRule.RUN_RATE else "calendar month"


class BudgetState(StrEnum):
    """The state of a budget by the rule that binds."""

    OK = "Ok"
    ALERT = "Alert"
    EXCEEDED = "Exceeded"


@dataclass(frozen=True, slots=True)
class Charge:
    """Machines of one cluster, and the accounts of all budgets that pay for the machines, such as those of a
    region, its cloud and an overflow."""

    accounts: tuple[Account, ...]
    cluster: str
    lot: Lot


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The spending of a budget in micro-dollars of the calendar month."""

    spent: int
    # Spent so far, plus the current rate until the end of the month.
    projected: int
    # 30 days at the current rate.
    run_rate: int
    limit: int | None
    # The use under the rule that binds, in millionths of the limit; None without a limit.
    utilisation: int | None
    # The rule that binds: the rule with the larger use.
    rule: BudgetRule
    state: BudgetState
    is_hard: bool
    alert_millionths: int = 0

    @property
    def used(self) -> int:
        """Micro-dollars per month under the rule that binds."""
        return self.run_rate if self.rule is BudgetRule.RUN_RATE else self.projected

    @property
    def is_exceeded(self) -> bool:
        return self.state is BudgetState.EXCEEDED


@dataclass(frozen=True, slots=True)
class BudgetApproval:
    """The answer that a budget may commit the rate. `is_over_soft_limit` states that the soft limit is
    exceeded, with this commitment or even without it."""

    ledger: str
    resulting_status: BudgetStatus
    is_over_soft_limit: bool = False


@dataclass(frozen=True, slots=True)
class BudgetRejection:
    """The answer that a hard budget may not commit the rate. `need` and `have` are micro-dollars per hour,
    `limit` and `raise_by` are micro-dollars per month."""

    ledger: str
    need: int
    have: int
    limit: int
    raise_by: int
    payer: str = ""  # the account in words
    rule: BudgetRule = BudgetRule.RUN_RATE  # the rule with less headroom

    @property
    def missing(self) -> int:
        return self.need - self.have

    def __str__(self) -> str:
        return (
            f"{self.payer or self.ledger}: needs {format_per_hour(self.need)}, "
            f"has {format_per_hour(self.have)} left of {format_per_month(self.limit)}, "
            f"missing {format_per_hour(self.missing)}; "
            f"raise the budget by {format_per_month(self.raise_by)}"
        )


def open_ledger(stated: LedgerSpec, stored: LatticeLedger | None, now: datetime) -> LatticeLedger:
    """The ledger under the budget as stated now: the stored ledger, or an empty ledger that begins now."""
    if stored is not None:
        return msgspec.structs.replace(stored, spec=stated)
    resource = LatticeLedger.resource
    as_of = format_micro_time(_utc(now))
    return LatticeLedger(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(name=stated.budget.ledger_name),
        spec=stated,
        status=LedgerStatus(month=as_of[:7], as_of=as_of),
    )


def record_cluster_number(
    account: Account, stored: LatticeLedger | None, cluster: str, now: datetime
) -> LatticeLedger:
    """The ledger with the number of a cluster that the ledger does not pay for, so that no later cluster gets
    the number."""
    ledger = stored or open_ledger(LedgerSpec(budget=account), None, now)
    return _with_status(ledger, last_cluster=max(ledger.status.last_cluster, cluster_number(cluster)))


def accrue(ledger: LatticeLedger, now: datetime) -> LatticeLedger:
    """Count the spending until `now`, month by month; a clock that was set back reduces no spending."""
    status = ledger.status
    since, until = parse_timestamp(status.as_of), _utc(now)
    # The clock was set back: spending that was counted stays (I-22).
    if until <= since:
        return ledger
    # The remainder is carried on exactly (I-22): spending is price times time, to the last part.
    parts, past = status.spent_micros * MICROSECONDS_PER_HOUR + status.remainder, dict(status.past)
    while (end := month_end(since)) <= until:
        past[format_micro_time(since)[:7]], parts = divmod(
            parts + status.committed_micros * _microseconds(end - since), MICROSECONDS_PER_HOUR
        )
        since = end
    spent, remainder = divmod(
        parts + status.committed_micros * _microseconds(until - since), MICROSECONDS_PER_HOUR
    )
    # Months sort by name, so the latest months stay.
    retained = dict(sorted(past.items())[-RETAINED_MONTHS:])
    as_of = format_micro_time(until)
    return _with_status(
        ledger, spent_micros=spent, remainder=remainder, past=retained, month=as_of[:7], as_of=as_of
    )


def month_end(moment: datetime) -> datetime:
    """The first moment of the next calendar month, UTC."""
    return datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)


def time_left_in_month(now: datetime) -> timedelta:
    """The time until the calendar month ends; never zero, since at midnight the next month begins."""
    moment = _utc(now)
    return month_end(moment) - moment


def charge(ledger: LatticeLedger, cluster: str, lot: Lot, now: datetime) -> LatticeLedger:
    """The ledger that pays for the lot from `now` on. The function checks no limit: `may_commit` does."""
    if lot.count < 1 or lot.micros < 0 or not cluster:
        raise Invalid(
            f'cannot pay for {lot.count} machines at {lot.micros} micro-dollars in cluster "{cluster}"',
            where=ledger.metadata.name,
        )
    return _adjust_lot(accrue(ledger, now), cluster, lot, lot.count)


def release(ledger: LatticeLedger, cluster: str, lot: Lot, now: datetime) -> LatticeLedger:
    """The ledger without the machines of the lot, after the machines are confirmed to be deleted; raises
    Invalid if the ledger pays for fewer machines of the class.

    The price of the lot only decides which machines go first: a price change may have re-priced the machines
    since the caller read the ledger.
    """
    paid_lots = [
        paid for paid in ledger.status.machines.get(cluster, ()) if paid.node_class == lot.node_class
    ]
    paid_count = sum(paid.count for paid in paid_lots)
    if not 1 <= lot.count <= paid_count:
        raise Invalid(
            f"pays for {paid_count} {lot.node_class} in cluster {cluster}, cannot release {lot.count}",
            where=f"latticeledger/{ledger.metadata.name}",
            fix="release what status.machines lists, once, when it is gone",
        )
    ledger, remaining = accrue(ledger, now), lot.count
    for paid in sorted(paid_lots, key=lambda paid: (not _same_price(paid, lot), -paid.micros)):
        if (count := min(paid.count, remaining)) > 0:
            ledger, remaining = _adjust_lot(ledger, cluster, paid, -count), remaining - count
    return ledger


def reprice(ledger: LatticeLedger, prices: Mapping[NodeGroup, int | None], now: datetime) -> LatticeLedger:
    """The ledger with its machines at the prices of now, by cluster and class; the time until now is counted at
    the previous prices.

    With the price None, which is unknown, the machines keep their last price and are marked. Machines of a
    cluster and class that `prices` does not name stay as they are.
    """
    ledger = accrue(ledger, now)
    machines: dict[str, tuple[Lot, ...]] = {}
    for cluster, lots in ledger.status.machines.items():
        merged: dict[tuple[str, int, bool], int] = {}
        last_price: dict[str, int] = {}
        for lot in lots:
            last_price[lot.node_class] = max(lot.micros, last_price.get(lot.node_class, 0))
        for lot in lots:
            key = (lot.node_class, lot.micros, lot.price_unknown)
            if (cluster, lot.node_class) in prices:
                price = prices[cluster, lot.node_class]
                key = (lot.node_class, last_price[lot.node_class] if price is None else price, price is None)
            merged[key] = merged.get(key, 0) + lot.count
        machines[cluster] = tuple(
            Lot(node_class=node_class, count=count, micros=micros, price_unknown=is_unknown)
            for (node_class, micros, is_unknown), count in sorted(merged.items())
        )
    committed = sum(sum(lot.rate for lot in lots) for lots in machines.values())
    return _with_status(ledger, machines=machines, committed_micros=committed)


def refuse(ledger: LatticeLedger, refusals: Sequence[Refusal]) -> LatticeLedger:
    """The ledger with the purchases that its limit refuses now. A refusal that goes on keeps its time, and keeps
    its amounts while they change only because time passes."""
    previous = {refusal.service: refusal for refusal in ledger.status.refused}
    refused = []
    for refusal in sorted(refusals, key=lambda refusal: refusal.service):
        earlier = previous.get(refusal.service)
        if earlier is None:
            refused.append(refusal)
        elif _is_same_refusal(earlier, refusal):
            refused.append(earlier)
        else:
            refused.append(msgspec.structs.replace(refusal, at=earlier.at))
    return _with_status(ledger, refused=tuple(refused))


def _is_same_refusal(earlier: Refusal, refusal: Refusal) -> bool:
    """Whether the recorded refusal still says what is true now. Under the rule of the calendar month the amounts
    drift with time; the recorded limit must still suffice."""
    if (earlier.rule, earlier.need_micros) != (refusal.rule, refusal.need_micros):
        return False
    drift = refusal.limit_needed_micros // REFUSAL_DRIFT_DIVISOR
    return (
        0 <= earlier.limit_needed_micros - refusal.limit_needed_micros <= drift
        and abs(earlier.have_micros - refusal.have_micros) * HOURS_PER_MONTH <= drift
    )


def _adjust_lot(ledger: LatticeLedger, cluster: str, lot: Lot, by: int) -> LatticeLedger:
    count, lots = by, []
    for paid_lot in ledger.status.machines.get(cluster, ()):
        # Machines of one class at one price are one lot.
        if _same_price(paid_lot, lot):
            count += paid_lot.count
        else:
            lots.append(paid_lot)
    if count:
        lots.append(msgspec.structs.replace(lot, count=count))
    machines = {name: paid_lots for name, paid_lots in ledger.status.machines.items() if name != cluster}
    if lots:
        machines[cluster] = tuple(sorted(lots, key=lambda paid_lot: (paid_lot.node_class, paid_lot.micros)))
    committed = ledger.status.committed_micros + by * lot.micros
    # The ledger outlives its clusters: the number keeps a later cluster from getting the same name.
    last = max(ledger.status.last_cluster, cluster_number(cluster))
    return _with_status(
        ledger, machines=dict(sorted(machines.items())), committed_micros=committed, last_cluster=last
    )


def _same_price(a: Lot, b: Lot) -> bool:
    return (a.node_class, a.micros, a.price_unknown) == (b.node_class, b.micros, b.price_unknown)


def _with_status(ledger: LatticeLedger, **changes: object) -> LatticeLedger:
    return msgspec.structs.replace(ledger, status=msgspec.structs.replace(ledger.status, **changes))


def settle_charges(
    ledger: LatticeLedger, releases: Sequence[Charge], charges: Sequence[Charge], now: datetime
) -> tuple[LatticeLedger, BudgetApproval | BudgetRejection]:
    """The ledger after all releases and charges, and whether the budget allows the charges after the
    releases.

    The charges are in the returned ledger even if the budget rejects the charges.
    """
    # Released machines free headroom for the charges.
    for freed in releases:
        ledger = release(ledger, freed.cluster, freed.lot, now)
    answer = may_commit(ledger, sum(due.lot.rate for due in charges), now)
    for due in charges:
        ledger = charge(ledger, due.cluster, due.lot, now)
    return accrue(ledger, now), answer


def may_commit(ledger: LatticeLedger, added_rate: int, now: datetime) -> BudgetApproval | BudgetRejection:
    """Whether the budget may pay `added_rate` micro-dollars per hour from `now` on; a rate of 0 or less is
    always approved."""
    have, name = headroom_to_limit(ledger, now), ledger.metadata.name
    limit = ledger.spec.limit_micros
    # A soft budget approves every rate; the approval says that the limit is exceeded.
    if limit is None or added_rate <= have or not ledger.spec.hard:
        status = budget_status(ledger, now, added_rate)
        return BudgetApproval(
            name, status, not ledger.spec.hard and (added_rate > have or status.is_exceeded)
        )
    return BudgetRejection(
        name,
        added_rate,
        have,
        limit,
        required_limit(ledger, added_rate, now) - limit,
        str(ledger.spec.budget),
        tightest_rule(ledger, now),
    )


def tightest_rule(ledger: LatticeLedger, now: datetime) -> BudgetRule:
    """The rule that leaves the smaller additional rate within the limit."""
    limit = ledger.spec.limit_micros or 0
    spent, remaining_us, _ = _month_to_date(ledger, now)
    is_month = (limit * MICROSECONDS_PER_HOUR - spent) // remaining_us < limit // HOURS_PER_MONTH
    return BudgetRule.CALENDAR_MONTH if is_month else BudgetRule.RUN_RATE


def headroom(ledger: LatticeLedger, now: datetime) -> int:
    """The largest additional rate in micro-dollars per hour that `may_commit` approves."""
    return headroom_to_limit(ledger, now) if ledger.spec.hard else UNLIMITED_HEADROOM


def headroom_to_limit(ledger: LatticeLedger, now: datetime) -> int:
    """The additional rate per hour within the limit, hard or soft; 0 when the limit is exceeded,
    UNLIMITED_HEADROOM without a limit."""
    limit = ledger.spec.limit_micros
    if limit is None:
        return UNLIMITED_HEADROOM
    return max(0, rate_cap(ledger, now) - ledger.status.committed_micros)


def rate_cap(ledger: LatticeLedger, now: datetime) -> int:
    """The largest rate per hour within the limit, hard or soft, for all machines together; negative when the
    spending alone exceeds the limit, UNLIMITED_HEADROOM without a limit."""
    limit = ledger.spec.limit_micros
    if limit is None:
        return UNLIMITED_HEADROOM
    spent, remaining_us, _ = _month_to_date(ledger, now)
    # Both limits hold: the rate over 30 days, and the projected spending of the calendar month.
    return min(limit // HOURS_PER_MONTH, (limit * MICROSECONDS_PER_HOUR - spent) // remaining_us)


def required_limit(ledger: LatticeLedger, added_rate: int, now: datetime) -> int:
    """The smallest limit, in micro-dollars per month, that allows `added_rate` per hour."""
    spent, remaining_us, committed = _month_to_date(ledger, now)
    return max(
        (committed + added_rate) * HOURS_PER_MONTH,
        # The division rounds up: the limit must cover the spending to the last part.
        -(-(spent + (committed + added_rate) * remaining_us) // MICROSECONDS_PER_HOUR),
    )


def budget_status(
    ledger: LatticeLedger, now: datetime, added_rate: int = 0, *, previous: str = ""
) -> BudgetStatus:
    """The status of the budget with `added_rate` micro-dollars per hour from now on.

    `previous` is the state that was shown last: it changes to a better state only once the use is
    HYSTERESIS_MILLIONTHS of the limit below the threshold.
    """
    spent, remaining_us, committed = _month_to_date(ledger, now)
    rate, limit = committed + added_rate, ledger.spec.limit_micros
    projected, run_rate = spent + rate * remaining_us, rate * HOURS_PER_MONTH
    utilisation, state, rule = None, BudgetState.OK, BudgetRule.CALENDAR_MONTH
    if limit is not None:
        limit_parts = limit * MICROSECONDS_PER_HOUR
        used = max(projected, run_rate * MICROSECONDS_PER_HOUR)
        if used > projected:
            rule = BudgetRule.RUN_RATE
        # A budget of zero is used up.
        utilisation = used * MICRO // limit_parts if limit_parts else MICRO
        state = _state(
            ledger.spec, utilisation, is_over=projected >= limit_parts or run_rate > limit, previous=previous
        )
    return BudgetStatus(
        spent // MICROSECONDS_PER_HOUR,
        projected // MICROSECONDS_PER_HOUR,
        run_rate,
        limit,
        utilisation,
        rule,
        state,
        ledger.spec.hard,
        ledger.spec.alert_millionths,
    )


def _state(terms: LedgerSpec, utilisation: int, *, is_over: bool, previous: str) -> BudgetState:
    slack = HYSTERESIS_MILLIONTHS
    if is_over or (previous == BudgetState.EXCEEDED and utilisation > MICRO - slack):
        return BudgetState.EXCEEDED
    alert = terms.alert_millionths
    was_alerting = previous in (BudgetState.ALERT, BudgetState.EXCEEDED)
    if utilisation >= alert or (was_alerting and utilisation > alert - slack):
        return BudgetState.ALERT
    return BudgetState.OK


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """Whether the budget is exceeded: a hard limit refuses a purchase now, the projection reaches the limit, or
    30 days at the current rate cost more than the limit.

    `reason` is the reason of the condition BudgetExceeded, `message` names the rule, the amounts, the refused
    services and the limit that would suffice.
    """

    status: BudgetStatus
    is_exceeded: bool
    reason: str
    message: str
    refused: tuple[Refusal, ...] = ()

    @property
    def state(self) -> BudgetState:
        """The state to show: a budget that refuses a purchase is exceeded, whatever its use."""
        return BudgetState.EXCEEDED if self.is_exceeded else self.status.state


def judge_budget(ledger: LatticeLedger, now: datetime, previous: str = "") -> BudgetVerdict:
    """The verdict about a budget with a limit; `previous` is the state that was shown last."""
    status = budget_status(ledger, now, previous=previous)
    limit = status.limit or 0
    # Rounded to cents: a finer amount would change the message, and cause a write, every second.
    used = format_dollars(round_to_cents(status.used))
    text = f"{status.rule.words}: {used} of {format_dollars(limit)} ({percent_text(status.utilisation)})"
    # A limit that was removed refuses nothing, even before placement has decided again.
    refused = ledger.status.refused if ledger.spec.hard and status.limit is not None else ()
    if status.is_exceeded:
        over = round_to_cents(status.used) - limit
        text += f", {format_dollars(over)} over the limit" if over > 0 else ", the limit is reached"
        text += "; nothing is stopped, nothing more is bought" if ledger.spec.hard else "; the limit is soft"
    if refused:
        first = refused[0]
        and_more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        needed = max(refusal.limit_needed_micros for refusal in refused)
        # Rounded up: the limit must cover the purchase.
        needed = -(-needed // CENT_MICROS) * CENT_MICROS
        text += (
            f"; refused for {first.service}{and_more}: needs {format_per_hour(first.need_micros)}, the "
            f"{BudgetRule(first.rule).words} leaves {format_per_hour(first.have_micros)}; a limit of "
            f"{format_dollars(needed)} would do"
        )
    if refused and not status.is_exceeded:
        return BudgetVerdict(status, True, "PurchaseRefused", text, refused)
    if not status.is_exceeded:
        return BudgetVerdict(status, False, "WithinBudget", text)
    return BudgetVerdict(status, True, "HardLimit" if ledger.spec.hard else "SoftLimit", text, refused)


def percent_text(utilisation: int | None) -> str:
    """A share in millionths as a percentage with one digit, rounded down: 99.96 % does not look like 100 %."""
    if utilisation is None:
        return "no limit"
    tenths = utilisation * 1000 // MICRO
    return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"


def projected_month_cost(ledger: LatticeLedger, now: datetime) -> int:
    """Micro-dollars spent in this calendar month, plus the current rate until the month ends."""
    return budget_status(ledger, now).projected


def _month_to_date(ledger: LatticeLedger, now: datetime) -> tuple[int, int, int]:
    """Parts spent this month, microseconds left of the month, and the committed rate."""
    # Accrued first, so that the current month counts only its own spending.
    status = accrue(ledger, now).status
    spent = status.spent_micros * MICROSECONDS_PER_HOUR + status.remainder
    return spent, _microseconds(time_left_in_month(parse_timestamp(status.as_of))), status.committed_micros


def with_status_message(ledger: LatticeLedger) -> LatticeLedger:
    """The ledger with phase and message for users, as of the moment that the ledger is accrued to."""
    status = ledger.status
    verdict = judge_budget(ledger, parse_timestamp(status.as_of), previous=status.phase)
    current = verdict.status
    limit = "no limit" if current.limit is None else format_per_month(current.limit)
    spent = f"{format_cents(current.spent)} spent until {status.as_of[:16].replace('T', ' ')} UTC"
    rate, projected = format_per_hour(status.committed_micros), format_cents(current.projected)
    message = f"{rate}; {spent}, {projected} projected in {status.month}; {limit}"
    if current.limit is not None:
        message += f", {percent_text(current.utilisation)} used by the {current.rule.words}"
    if verdict.refused:
        message += f", refuses {pluralize(len(verdict.refused), 'purchase')}"
    return _with_status(ledger, phase=verdict.state.value, message=message)


def rate_per_30_days(per_hour_micros: int) -> int:
    return per_hour_micros * HOURS_PER_MONTH


def _utc(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise Invalid(f"the time {when} does not say its zone", fix="give it in UTC")
    # A time without a zone would be read in the zone of the server, so such a time is rejected above.
    return when.astimezone(UTC)


def _microseconds(span: timedelta) -> int:
    return span // _MICROSECOND
