"""Tests of ledgers to the micro-dollar: accrued spend, headroom, and the projection of the month."""

import calendar
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import msgspec
import pytest
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Invalid
from lattice.kinds.ledger import Account, LatticeLedger, LedgerSpec, Lot
from lattice.placement.inputs import ledger_math as money
from lattice.placement.inputs.ledger_math import (
    UNLIMITED_HEADROOM,
    BudgetApproval,
    BudgetRejection,
    BudgetState,
    Charge,
    accrue,
    charge,
    headroom,
    may_commit,
    open_ledger,
    release,
)

DOLLAR = 1_000_000
START = datetime(2026, 11, 1, tzinfo=UTC)
NEARLY = datetime(2026, 11, 30, 23, tzinfo=UTC)  # one hour before the month ends
MANY = settings(max_examples=500 if LONG else 100, deadline=None)

moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 31), timezones=st.just(UTC))  # noqa: DTZ001 - the strategy adds the zone
rates = st.one_of(st.integers(0, 50), st.integers(0, 10**7), st.integers(0, 10**13))
limits = st.one_of(st.integers(0, 10**5), st.integers(0, 10**11), st.integers(0, 10**15))


def a_charged_ledger(
    limit: int | None = None, *, hard: bool = True, committed: int = 0, at: datetime = START, spent: int = 0
) -> LatticeLedger:
    """A ledger with amounts in micro-dollars; one lot has the whole committed rate."""
    spec = LedgerSpec(budget=Account(kind="LatticePool", name="us-east"), limit_micros=limit, hard=hard)
    ledger = open_ledger(spec, None, at)
    if committed:
        ledger = charge(ledger, "us-east-001", a_lot(committed), at)
    return msgspec.structs.replace(ledger, status=msgspec.structs.replace(ledger.status, spent_micros=spent))


def a_lot(micros: int, count: int = 1, node_class: str = "medium") -> Lot:
    return Lot(node_class=node_class, count=count, micros=micros)


def parts(ledger: LatticeLedger) -> Fraction:
    """The exact spend of all months."""
    status = ledger.status
    return sum(status.past.values()) + status.spent_micros + Fraction(status.remainder, 3_600_000_000)


class TestSpending:
    def test_accrue_one_hour(self) -> None:
        after = accrue(a_charged_ledger(committed=192_000), START + timedelta(hours=1))
        assert (after.status.spent_micros, after.status.remainder) == (192_000, 0)
        assert after.status.as_of == "2026-11-01T01:00:00.000000Z"

    def test_accrue_keeps_fractions_of_micro_dollars(self) -> None:
        ledger = a_charged_ledger(committed=1)
        for second in range(1, 3601):
            ledger = accrue(ledger, START + timedelta(seconds=second))
            assert ledger.status.spent_micros == second // 3600
        assert ledger == accrue(a_charged_ledger(committed=1), START + timedelta(hours=1))

    def test_accrual_splits_months_at_midnight_utc(self) -> None:
        east = timezone(timedelta(hours=-5))
        ledger = a_charged_ledger(committed=100, at=datetime(2026, 11, 30, 22, tzinfo=UTC))
        after = accrue(ledger, datetime(2026, 11, 30, 22, tzinfo=east))  # 03:00 UTC
        assert (after.status.past, after.status.month, after.status.spent_micros) == (
            {"2026-11": 200},
            "2026-12",
            300,
        )

    def test_midnight_belongs_to_the_new_month(self) -> None:
        midnight = datetime(2026, 12, 1, tzinfo=UTC)
        after = accrue(a_charged_ledger(committed=100), midnight)
        assert (after.status.past, after.status.month, after.status.spent_micros) == (
            {"2026-11": 72_000},
            "2026-12",
            0,
        )
        assert money.time_left_in_month(midnight) == timedelta(days=31)
        assert money.time_left_in_month(midnight - timedelta(microseconds=1)) == timedelta(microseconds=1)

    def test_accrual_keeps_thirteen_months(self) -> None:
        after = accrue(a_charged_ledger(committed=1), datetime(2029, 3, 15, tzinfo=UTC))
        assert list(after.status.past) == [f"2028-{month:02}" for month in range(2, 13)] + [
            "2029-01",
            "2029-02",
        ]
        assert after.status.past["2028-02"] == 29 * 24
        assert list(after.problems()) == []

    def test_clock_going_back_keeps_spend(self) -> None:
        ahead = accrue(a_charged_ledger(committed=100), START + timedelta(hours=2))
        back = accrue(ahead, START + timedelta(hours=1))
        assert back == ahead
        more = charge(back, "c", a_lot(50), START + timedelta(hours=1))
        assert (more.status.spent_micros, more.status.as_of) == (200, ahead.status.as_of)
        assert accrue(more, START + timedelta(hours=3)).status.spent_micros == 350

    def test_time_without_zone_is_rejected(self) -> None:
        with pytest.raises(Invalid, match="does not say its zone"):
            accrue(a_charged_ledger(), datetime(2026, 12, 1))  # noqa: DTZ001

    @MANY
    @given(rate=rates, begin=moments, stops=st.lists(moments, max_size=6))
    def test_accrual_is_independent_of_step_count(
        self, rate: int, begin: datetime, stops: list[datetime]
    ) -> None:
        stepwise = start = a_charged_ledger(committed=rate, at=begin)
        for stop in sorted(stops):
            stepwise = accrue(stepwise, stop)
        assert stepwise == accrue(start, max([begin, *stops]))

    @MANY
    @given(begin=moments, events=st.lists(st.tuples(moments, rates), max_size=6))
    def test_spend_is_integral_of_rate_over_time(
        self, begin: datetime, events: list[tuple[datetime, int]]
    ) -> None:
        """A time before the last accrual counts as the time of the last accrual."""
        ledger, at, rate, owed = (
            a_charged_ledger(at=begin),
            begin,
            0,
            dict.fromkeys(_months(begin), Fraction(0)),
        )
        for number, (when, more) in enumerate(events):
            ledger = charge(ledger, f"c{number}", a_lot(more), when)
            _spend(owed, at, when, rate)
            at, rate = max(at, when), rate + more
        assert ledger.status.committed_micros == rate
        assert list(ledger.problems()) == []
        until, whole = Fraction(0), {}
        for month, cost in owed.items():  # fractions of a micro-dollar carry over into the next month
            whole[month] = int(until + cost) - int(until)
            until += cost
        assert parts(ledger) == until
        now = ledger.status.month
        assert ledger.status.past == {
            month: cost for month, cost in whole.items() if f"{begin:%Y-%m}" <= month < now
        }
        assert ledger.status.spent_micros == whole[now]


def _months(begin: datetime) -> list[str]:
    return [
        month
        for year in (2026, 2027)
        for number in range(1, 13)
        if (month := f"{year}-{number:02}") >= f"{begin:%Y-%m}"
    ]


def _spend(owed: dict[str, Fraction], at: datetime, until: datetime, rate: int) -> None:
    for month in owed:
        year, number = map(int, month.split("-"))
        first = datetime(year, number, 1, tzinfo=UTC)
        last = first + timedelta(days=calendar.monthrange(year, number)[1])
        inside = min(until, last) - max(at, first)
        if inside > timedelta(0):
            owed[month] += rate * Fraction(inside // timedelta(microseconds=1), 3_600_000_000)


class TestMachines:
    def test_lots_of_equal_price_are_merged(self) -> None:
        ledger = charge(a_charged_ledger(), "b", a_lot(192_000, 2), START)
        ledger = charge(ledger, "b", a_lot(192_000, 1), START)
        ledger = charge(ledger, "b", a_lot(200_000, 1), START)
        ledger = charge(ledger, "a", a_lot(96_000, 1, "small"), START)
        assert list(ledger.status.machines) == ["a", "b"]
        assert ledger.status.machines["b"] == (a_lot(192_000, 3), a_lot(200_000, 1))
        assert ledger.status.committed_micros == 3 * 192_000 + 200_000 + 96_000

    def test_release_removes_lot_and_keeps_spend(self) -> None:
        later = START + timedelta(hours=10)
        ledger = release(charge(a_charged_ledger(), "a", a_lot(100, 2), START), "a", a_lot(100, 2), later)
        assert (ledger.status.machines, ledger.status.committed_micros, ledger.status.spent_micros) == (
            {},
            0,
            2000,
        )

    @pytest.mark.parametrize(
        ("cluster", "lot"),
        [
            pytest.param("a", a_lot(100, 3), id="more than there are"),
            pytest.param("b", a_lot(100, 1), id="those of another cluster"),
            pytest.param("a", a_lot(100, 1, "large"), id="of another class"),
            pytest.param("a", a_lot(100, 0), id="none"),
            pytest.param("a", a_lot(100, -1), id="fewer than none"),
        ],
    )
    def test_release_requires_a_charged_lot(self, cluster: str, lot: Lot) -> None:
        ledger = charge(a_charged_ledger(), "a", a_lot(100, 2), START)
        with pytest.raises(
            Invalid, match=r"pays for \d .* in cluster . cannot release|pays for \d .*, cannot release"
        ):
            release(ledger, cluster, lot, START)

    @pytest.mark.parametrize(
        "lot",
        [a_lot(100, 0), a_lot(100, -2), a_lot(-5)],
        ids=["none", "fewer than none", "for less than nothing"],
    )
    def test_invalid_lot_is_rejected(self, lot: Lot) -> None:
        with pytest.raises(Invalid, match="cannot pay for"):
            charge(a_charged_ledger(), "a", lot, START)

    @MANY
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.sampled_from(["small", "large"]),
                st.integers(-3, 3),
                st.integers(0, 3),
            ),
            max_size=20,
        )
    )
    def test_lots_add_up_to_committed_rate(self, steps: list[tuple[str, str, int, int]]) -> None:
        ledger, counts = (
            a_charged_ledger(),
            dict.fromkeys([(c, k, p) for c in "abc" for k in ("small", "large") for p in range(4)], 0),
        )
        for cluster, node_class, count, micros in steps:
            had = counts[cluster, node_class, micros]
            lot = a_lot(micros, abs(count), node_class)
            if count > 0:
                ledger = charge(ledger, cluster, lot, START)
            elif count < 0 and had + count >= 0:
                ledger = release(ledger, cluster, lot, START)
            else:
                continue
            counts[cluster, node_class, micros] += count
            assert list(ledger.problems()) == []
        listed = {
            (c, lot.node_class, lot.micros): lot.count
            for c, lots in ledger.status.machines.items()
            for lot in lots
        }
        assert listed == {key: count for key, count in counts.items() if count}


class TestLimits:
    @pytest.mark.parametrize(
        ("ledger", "now", "most"),
        [
            pytest.param(
                a_charged_ledger(720 * DOLLAR),
                START,
                DOLLAR,
                id="thirty days of it in a month of thirty days",
            ),
            pytest.param(
                a_charged_ledger(744 * DOLLAR, at=START + timedelta(days=30)),
                START + timedelta(days=30),
                DOLLAR,
                id="a month of 31 days holds less",
            ),
            pytest.param(
                a_charged_ledger(720 * DOLLAR),
                START + timedelta(days=29),
                DOLLAR,
                id="near the end of the month the next ones count",
            ),
            pytest.param(
                a_charged_ledger(720 * DOLLAR, spent=719 * DOLLAR),
                START + timedelta(days=29),
                DOLLAR // 24,
                id="what is spent is spent",
            ),
            pytest.param(
                a_charged_ledger(720 * DOLLAR, spent=721 * DOLLAR), START, 0, id="more than that is spent"
            ),
            pytest.param(
                a_charged_ledger(720 * DOLLAR, committed=DOLLAR // 4),
                START,
                DOLLAR * 3 // 4,
                id="what is committed is taken",
            ),
            pytest.param(
                a_charged_ledger(719, committed=0), START, 0, id="less than a micro-dollar per hour"
            ),
            pytest.param(
                a_charged_ledger(
                    720 * DOLLAR, committed=1, spent=720 * DOLLAR - 10, at=NEARLY - timedelta(seconds=1)
                ),
                NEARLY,
                8,
                id="parts of a micro-dollar count",
            ),
            pytest.param(a_charged_ledger(0), START, 0, id="a budget of nothing"),
            pytest.param(a_charged_ledger(None), START, UNLIMITED_HEADROOM, id="no limit"),
            pytest.param(
                a_charged_ledger(0, hard=False), START, UNLIMITED_HEADROOM, id="a soft limit refuses nothing"
            ),
        ],
    )
    def test_headroom(self, ledger: LatticeLedger, now: datetime, most: int) -> None:
        assert headroom(ledger, now) == most
        assert isinstance(may_commit(ledger, most, now), BudgetApproval)
        if most < UNLIMITED_HEADROOM:
            refused = may_commit(ledger, most + 1, now)
            assert isinstance(refused, BudgetRejection)
            assert (refused.need, refused.have, refused.missing) == (most + 1, most, 1)

    @MANY
    @given(
        limit=limits,
        spent=limits,
        committed=rates,
        hard=st.booleans(),
        times=st.tuples(moments, moments),
        near=st.integers(-3, 3),
        more=rates,
    )
    def test_headroom_is_exact(
        self,
        limit: int,
        spent: int,
        committed: int,
        hard: bool,
        times: tuple[datetime, datetime],
        near: int,
        more: int,
    ) -> None:
        begin, now = min(times), max(times)
        ledger = a_charged_ledger(limit, hard=hard, committed=committed, at=begin, spent=spent)
        most = headroom(ledger, now)
        for asked in (
            0,
            more,
            min(most + near, UNLIMITED_HEADROOM),
        ):  # no amount comes near UNLIMITED_HEADROOM
            answer = may_commit(ledger, asked, now)
            assert (
                isinstance(answer, BudgetApproval)
                == (asked <= most)
                == (not hard or asked <= 0 or _within(ledger, asked, now))
            )

    @MANY
    @given(limit=limits, spent=limits, committed=rates, now=moments, more=st.integers(1, 10**9))
    def test_rejection_names_required_limit_increase(
        self, limit: int, spent: int, committed: int, now: datetime, more: int
    ) -> None:
        ledger = a_charged_ledger(limit, committed=committed, at=now, spent=spent)
        answer = may_commit(ledger, more, now)
        if isinstance(answer, BudgetRejection):
            raised = [
                open_ledger(
                    msgspec.structs.replace(ledger.spec, limit_micros=limit + answer.raise_by - less),
                    ledger,
                    now,
                )
                for less in (0, 1)
            ]
            assert [isinstance(may_commit(each, more, now), BudgetApproval) for each in raised] == [
                True,
                False,
            ]

    @MANY
    @given(limit=limits, begin=moments, asks=st.lists(st.tuples(moments, rates), max_size=8))
    def test_hard_limit_holds_until_end_of_month(
        self, limit: int, begin: datetime, asks: list[tuple[datetime, int]]
    ) -> None:
        end = money.month_end(begin)
        ledger = a_charged_ledger(limit, at=begin)
        for number, (when, more) in enumerate(sorted(asks)):
            if when < end and isinstance(may_commit(ledger, more, when), BudgetApproval):
                ledger = charge(ledger, f"c{number}", a_lot(more), when)
        after = accrue(ledger, end)
        assert parts(after) <= limit
        assert money.rate_per_30_days(after.status.committed_micros) <= limit

    def test_rejection_names_budget_and_amounts(self) -> None:
        ledger = a_charged_ledger(10_000 * DOLLAR, committed=13_500_000)
        assert str(may_commit(ledger, 576_000, START)) == (
            "latticepool/us-east: needs $0.576/h, has $0.388888/h left of $10,000.00/30d, missing $0.187112/h; raise the budget by $134.72/30d"
        )

    def test_release_restores_headroom(self) -> None:
        ledger = a_charged_ledger(720 * DOLLAR, committed=DOLLAR)
        old, new = (
            Charge((ledger.spec.budget,), cluster, a_lot(DOLLAR))
            for cluster in ("us-east-001", "us-east-002")
        )
        assert isinstance(money.settle_charges(ledger, [], [new], START)[1], BudgetRejection)
        after, answer = money.settle_charges(ledger, [old], [new], START)
        assert isinstance(answer, BudgetApproval)
        assert list(after.status.machines) == ["us-east-002"]


def _within(ledger: LatticeLedger, more: int, now: datetime) -> bool:
    """The limit rule, computed in fractions."""
    counted = accrue(ledger, now)
    spent = counted.status.spent_micros + Fraction(counted.status.remainder, 3_600_000_000)
    rate, limit = counted.status.committed_micros + more, ledger.spec.limit_micros
    assert limit is not None
    hours_left = Fraction((money.month_end(now) - now) // timedelta(microseconds=1), 3_600_000_000)
    return rate * 720 <= limit and spent + rate * hours_left <= limit


class TestStanding:
    @pytest.mark.parametrize(
        ("projected", "hard", "state", "warns"),
        [
            pytest.param(799, True, BudgetState.OK, False, id="below the threshold"),
            pytest.param(800, True, BudgetState.ALERT, False, id="at the threshold: an alert"),
            pytest.param(999, False, BudgetState.ALERT, False, id="below a soft limit"),
            pytest.param(1000, True, BudgetState.EXCEEDED, False, id="a hard limit, reached to the cent"),
            pytest.param(1000, False, BudgetState.EXCEEDED, True, id="a soft limit: warn, and allow"),
            pytest.param(
                5000, False, BudgetState.EXCEEDED, True, id="far beyond a soft limit: warn, and allow"
            ),
        ],
    )
    def test_budget_states(self, projected: int, hard: bool, state: BudgetState, warns: bool) -> None:
        ledger = a_charged_ledger(1000 * DOLLAR, hard=hard, spent=projected * DOLLAR)
        now = money.budget_status(ledger, START)
        assert (now.state, now.utilisation, now.projected) == (state, projected * 1000, projected * DOLLAR)
        answer = may_commit(ledger, 0, START)
        assert isinstance(answer, BudgetApproval)
        assert answer.is_over_soft_limit is warns
        assert isinstance(may_commit(ledger, DOLLAR, START), BudgetRejection) is hard

    def test_soft_limit_warns_where_hard_limit_rejects(self) -> None:
        late = START + timedelta(days=29, hours=23)
        ledger = a_charged_ledger(720 * DOLLAR, hard=False, at=late)
        answer = may_commit(ledger, DOLLAR + 1, late)
        assert isinstance(answer, BudgetApproval)
        assert answer.is_over_soft_limit
        assert answer.resulting_status.rule is money.BudgetRule.RUN_RATE
        assert answer.resulting_status.state is BudgetState.EXCEEDED

    def test_seed_pool_figures(self) -> None:
        """Seed 000: 4523.50 spent, 8200 projected of 10000 is 0.82, above the threshold of 0.8."""
        now = START + timedelta(hours=353)
        ledger = a_charged_ledger(10_000 * DOLLAR, committed=10_017_711, at=now, spent=4_523_500_000)
        found = money.budget_status(ledger, now)
        assert (found.spent, found.projected) == (4_523_500_000, 8_199_999_937)
        assert found.utilisation == 819_999
        assert found.state is BudgetState.ALERT
        assert money.projected_month_cost(ledger, now) == found.projected

    def test_no_limit_has_no_utilisation(self) -> None:
        found = money.budget_status(a_charged_ledger(None, committed=DOLLAR), START)
        assert (found.utilisation, found.state, found.projected) == (None, BudgetState.OK, 720 * DOLLAR)

    def test_zero_budget_is_exhausted(self) -> None:
        found = money.budget_status(a_charged_ledger(0), START)
        assert (found.utilisation, found.state) == (1_000_000, BudgetState.EXCEEDED)

    def test_lowered_budget_is_exceeded_and_rejects(self) -> None:
        ledger = a_charged_ledger(720 * DOLLAR, committed=DOLLAR)
        lower = open_ledger(msgspec.structs.replace(ledger.spec, limit_micros=DOLLAR), ledger, START)
        assert money.budget_status(lower, START).is_exceeded
        assert headroom(lower, START) == 0
        assert isinstance(
            may_commit(lower, 0, START), BudgetApproval
        )  # on machines that are already paid for

    def test_thirty_day_budget_is_exceeded_in_month_of_31_days(self) -> None:
        """Nothing is provisioned beyond the budget, and running machines are not stopped."""
        december = datetime(2026, 12, 1, tzinfo=UTC)
        found = money.budget_status(a_charged_ledger(720 * DOLLAR, committed=DOLLAR), december)
        assert (found.projected, found.state) == (744 * DOLLAR, BudgetState.EXCEEDED)
        assert headroom(a_charged_ledger(720 * DOLLAR, committed=DOLLAR), december) == 0

    def test_budget_messages(self) -> None:
        ledger = money.with_status_message(a_charged_ledger(500 * DOLLAR, committed=576_000))
        assert ledger.status.phase == "Alert"
        assert (
            ledger.status.message
            == "$0.576/h; $0.00 spent until 2026-11-01 00:00 UTC, $414.72 projected in 2026-11; "
            "$500.00/30d, 82.9 % used by the calendar month"
        )
        assert (
            money.with_status_message(a_charged_ledger()).status.message
            == "$0.00/h; $0.00 spent until 2026-11-01 00:00 UTC, $0.00 projected in 2026-11; no limit"
        )


HALF = START + timedelta(days=15)


class TestBindingRule:
    """M7 and friction 5: the shown percentage and the condition follow the rule that binds."""

    def test_percentage_is_of_the_run_rate_at_half_of_the_month(self) -> None:
        status = money.budget_status(a_charged_ledger(720 * DOLLAR, committed=900_000, at=HALF), HALF)
        assert (status.utilisation, status.rule.words, status.projected) == (
            900_000,
            "30-day run rate",
            324 * DOLLAR,
        )
        assert status.state is BudgetState.ALERT

    @given(limits, rates, st.integers(0, 10**15), moments)
    def test_utilisation_is_the_larger_of_both_rules(
        self, limit: int, rate: int, spent: int, now: datetime
    ) -> None:
        status = money.budget_status(a_charged_ledger(limit, committed=rate, at=now, spent=spent), now)
        hours_left = Fraction((money.month_end(now) - now) // timedelta(microseconds=1), 3_600_000_000)
        used = max(Fraction(rate * 720), spent + rate * hours_left)
        assert status.utilisation == (int(used * 1_000_000 / limit) if limit else 1_000_000)

    @pytest.mark.parametrize(
        ("ledger", "exceeded", "reason"),
        [
            pytest.param(
                a_charged_ledger(138_240_000, committed=100_000, at=HALF), False, "WithinBudget", id="within"
            ),
            pytest.param(
                a_charged_ledger(36 * DOLLAR, committed=100_000, at=HALF), True, "HardLimit", id="by price"
            ),
            pytest.param(
                a_charged_ledger(720 * DOLLAR, committed=DOLLAR, at=HALF),
                False,
                "WithinBudget",
                id="exactly at the run rate, and nothing is refused",
            ),
            pytest.param(
                a_charged_ledger(36 * DOLLAR, committed=100_000, at=HALF, hard=False),
                True,
                "SoftLimit",
                id="soft",
            ),
        ],
    )
    def test_verdict(self, ledger: LatticeLedger, exceeded: bool, reason: str) -> None:
        verdict = money.judge_budget(ledger, HALF)
        assert (verdict.is_exceeded, verdict.reason) == (exceeded, reason)

    def test_refusal_within_the_limit_says_what_would_do(self) -> None:
        """The audit's case: 66.00 projected of 138.24, and the second machine is refused by the run rate."""
        ledger = a_charged_ledger(138_240_000, committed=100_000, at=HALF)
        rejection = may_commit(ledger, 100_000, HALF)
        assert isinstance(rejection, BudgetRejection)
        refusal = money.Refusal(
            service="default/api",
            rule=rejection.rule.value,
            need_micros=rejection.need,
            have_micros=rejection.have,
            limit_needed_micros=rejection.limit + rejection.raise_by,
        )
        verdict = money.judge_budget(money.refuse(ledger, [refusal]), HALF)
        assert verdict.is_exceeded
        assert verdict.reason == "PurchaseRefused"
        assert verdict.message == (
            "30-day run rate: $72.00 of $138.24 (52 %); refused for default/api: needs $0.10/h, the 30-day run rate "
            "leaves $0.092/h; a limit of $144.00 would do"
        )
        assert not money.judge_budget(money.refuse(ledger, []), HALF).is_exceeded

    def test_state_does_not_flap_within_rounding(self) -> None:
        at_alert, below = (
            a_charged_ledger(1000 * DOLLAR, spent=spent) for spent in (800_000_000, 799_900_000)
        )
        assert money.budget_status(at_alert, START).state is BudgetState.ALERT
        assert money.budget_status(below, START, previous="Alert").state is BudgetState.ALERT
        assert money.budget_status(below, START).state is BudgetState.OK
        far = a_charged_ledger(1000 * DOLLAR, spent=798 * DOLLAR)
        assert money.budget_status(far, START, previous="Alert").state is BudgetState.OK


class TestReprice:
    """M5: a price change re-prices the machines from that moment on."""

    @given(
        st.integers(0, 10**7),
        st.integers(0, 10**7),
        st.integers(1, 50),
        st.integers(0, 10**10),
        st.integers(0, 10**10),
    )
    def test_spending_is_exact_piecewise(
        self, old: int, new: int, count: int, first: int, second: int
    ) -> None:
        ledger = charge(a_charged_ledger(), "a", a_lot(old, count), START)
        change, end = START + timedelta(microseconds=first), START + timedelta(microseconds=first + second)
        ledger = accrue(money.reprice(ledger, {("a", "medium"): new}, change), end)
        assert parts(ledger) == Fraction(count * (old * first + new * second), 3_600_000_000)
        assert ledger.status.committed_micros == count * new
        assert not [cause for cause in ledger.problems() if "committed" in cause.field]

    def test_lots_of_one_class_have_one_price_afterwards(self) -> None:
        ledger = charge(charge(a_charged_ledger(), "a", a_lot(100, 2), START), "a", a_lot(500, 1), START)
        after = money.reprice(ledger, {("a", "medium"): 300}, START)
        assert after.status.machines == {"a": (a_lot(300, 3),)}

    def test_unknown_price_keeps_the_last_price_and_is_marked(self) -> None:
        ledger = charge(a_charged_ledger(), "a", a_lot(100, 2), START)
        after = money.reprice(ledger, {("a", "medium"): None}, START)
        assert [(lot.micros, lot.price_unknown) for lot in after.status.machines["a"]] == [(100, True)]
        known = money.reprice(after, {("a", "medium"): 70}, START)
        assert known.status.machines == {"a": (a_lot(70, 2),)}

    def test_release_at_an_old_price_releases_the_machine(self) -> None:
        ledger = money.reprice(
            charge(a_charged_ledger(), "a", a_lot(100, 2), START), {("a", "medium"): 70}, START
        )
        after = release(ledger, "a", a_lot(100, 1), START)
        assert (after.status.machines, after.status.committed_micros) == ({"a": (a_lot(70),)}, 70)
