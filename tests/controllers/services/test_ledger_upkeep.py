"""Ledgers follow prices and limits: what runs is re-priced from the change on, and a changed limit shows at once."""

from datetime import timedelta
from fractions import Fraction
from typing import Any

import msgspec
from build.property_settings import LONG
from build.service_world import RunningFleet, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_cloud, a_pool, a_service
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.controllers.services.ledger_upkeep import LedgerUpkeepController
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.placement.inputs.ledger_math import judge_budget
from lattice.placement.inputs.price_book import PriceBook

HOUR_US = 3_600_000_000


async def upkeep(fleet: RunningFleet, book: PriceBook | None = None) -> None:
    controller = LedgerUpkeepController(fleet.context, lambda: book or PriceBook.builtin())
    for key in controller.owner_keys():
        await controller.reconcile(key)
    await fleet.wait_for_caches()


def ledger_of(fleet: RunningFleet, name: str = "pool.p1") -> LatticeLedger:
    ledger = fleet.context.cache(LatticeLedger).get(f"/{name}")
    assert ledger is not None
    return ledger


def lots(ledger: LatticeLedger) -> list[tuple[str, int, int, bool]]:
    return [
        (lot.node_class, lot.count, lot.micros, lot.price_unknown)
        for lots in ledger.status.machines.values()
        for lot in lots
    ]


async def test_price_change_reprices_machines_from_that_moment() -> None:
    """The audit's M5: 0.10 becomes 0.50, and the ledger went on paying 0.10 for what ran."""
    async with running_fleet(
        a_pool(), a_class(price=0.1), a_service(cores=4, replicas=2), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        before = ledger_of(fleet)
        assert lots(before) == [("m", 2, 100_000, False)]
        await fleet.clock.advance(1800)
        await fleet.apply(a_class(price=0.5))
        await upkeep(fleet)
        await fleet.clock.advance(3600)
        await fleet.apply(a_class(price=0.25))
        await upkeep(fleet)
        after = ledger_of(fleet)
        assert lots(after) == [("m", 2, 250_000, False)]
        assert after.status.committed_micros == 500_000
        assert after.status.spent_micros - before.status.spent_micros == 2 * (50_000 + 500_000)
        # Running it again changes nothing.
        revision = await fleet.store.revision()
        await upkeep(fleet)
        assert await fleet.store.revision() == revision


async def test_price_table_reprices_without_a_changed_object() -> None:
    world = a_pool(region="us-east-1"), a_class(price=None, providers=[])
    entry = {"providers": {"aws": {"instanceType": "m5.xlarge"}}}
    node_class = msgspec.convert(
        {**msgspec.to_builtins(world[1]), "spec": {**msgspec.to_builtins(world[1].spec), **entry}},
        type(world[1]),
    )
    async with running_fleet(world[0], node_class, a_service(cores=4), clock=VirtualClock()) as fleet:
        await fleet.converge()
        assert lots(ledger_of(fleet)) == [("m", 1, 192_000, False)]
        dearer = PriceBook.builtin().with_csv(
            "provider,instance_type,region,usd_per_hour\naws,m5.xlarge,us-east-1,0.3\n", "prices.csv"
        )
        await upkeep(fleet, dearer)
        assert lots(ledger_of(fleet)) == [("m", 1, 300_000, False)]


async def test_price_that_becomes_unknown_stays_and_is_marked() -> None:
    async with running_fleet(a_pool(), a_class(price=0.1), a_service(cores=4), clock=VirtualClock()) as fleet:
        await fleet.converge()
        await fleet.apply(a_class(price=None))
        await upkeep(fleet)
        assert lots(ledger_of(fleet)) == [("m", 1, 100_000, True)]
        await fleet.apply(a_class(price=0.3))
        await upkeep(fleet)
        assert lots(ledger_of(fleet)) == [("m", 1, 300_000, False)]


async def test_machine_bought_at_an_unknown_price_is_marked() -> None:
    async with running_fleet(
        a_pool(), a_class(price=None), a_service(cores=4), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        assert lots(ledger_of(fleet)) == [("m", 1, 0, True)]


async def test_every_nested_ledger_has_the_new_price() -> None:
    cloud: dict[str, Any] = {"budget": {"monthly": 5000, "hardLimit": True}}
    regions = {"r1": {"budget": {"monthly": 4000}}}
    async with running_fleet(
        a_cloud(regions=regions, **cloud), a_class(price=0.1), a_service(cores=4), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        await fleet.apply(a_class(price=0.7))
        await upkeep(fleet)
        for name in ("cloud.cloud", "cloud.cloud.r1"):
            assert lots(ledger_of(fleet, name)) == [("m", 1, 700_000, False)]


async def test_changed_limit_shows_without_a_machine_change() -> None:
    """The user study's bug 4: 45 s after the change, ledger and `top pools` still showed the old limit."""
    async with running_fleet(a_pool(budget=200), a_class(), a_service(), clock=VirtualClock()) as fleet:
        await fleet.converge()
        await fleet.apply(a_pool(budget=27))
        await upkeep(fleet)
        ledger = ledger_of(fleet)
        assert ledger.spec.limit_micros == 27_000_000
        assert "$27.00/30d" in ledger.status.message
        assert ledger.status.phase == "Exceeded"


async def test_over_the_limit_by_price_nothing_is_stopped_or_bought() -> None:
    async with running_fleet(
        a_pool(budget=200), a_class(price=0.1), a_service(cores=4, replicas=1), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        await fleet.apply(a_class(price=0.5))
        await upkeep(fleet)
        await fleet.apply(a_service(cores=4, replicas=2))
        await fleet.converge()
        assert sum(fleet.placed().values()) == 1
        assert lots(ledger_of(fleet)) == [("m", 1, 500_000, False)]
        await fleet.apply(a_class(price=0.1))
        await upkeep(fleet)
        await fleet.converge()
        assert lots(ledger_of(fleet)) == [("m", 2, 100_000, False)]


@settings(max_examples=300 if LONG else 12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 50_000)), min_size=1, max_size=5),
    st.integers(1, 3),
)
async def test_spending_is_exact_over_any_sequence_of_prices(
    changes: list[tuple[int, int]], replicas: int
) -> None:
    async with running_fleet(
        a_pool(), a_class(price=0.1), a_service(cores=4, replicas=replicas), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        start, price, due = fleet.clock.now(), 100_000, Fraction(0)
        for micros, seconds in changes:
            await fleet.clock.advance(seconds)
            await fleet.apply(a_class(price=micros / 1_000_000))
            await upkeep(fleet)
            now = fleet.clock.now()
            due += Fraction(replicas * price * ((now - start) // timedelta(microseconds=1)), HOUR_US)
            start, price = now, micros
        status = ledger_of(fleet).status
        # The ledger counts up to its last change: a change to an equal price counts later.
        late = status.committed_micros * ((now - parse_timestamp(status.as_of)) // timedelta(microseconds=1))
        spent = status.spent_micros + sum(status.past.values()) + Fraction(status.remainder + late, HOUR_US)
        assert spent == due
        assert status.committed_micros == replicas * price


async def test_refused_purchase_is_recorded_until_it_succeeds() -> None:
    """The audit's M7: replica 2 was refused, and BudgetExceeded stayed False."""
    async with running_fleet(
        a_pool(budget=138.24), a_class(price=0.1), a_service(cores=4, replicas=2), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        assert sum(fleet.placed().values()) == 1
        (refusal,) = ledger_of(fleet).status.refused
        assert (refusal.service, refusal.rule, refusal.need_micros) == (
            "default/api",
            "CalendarMonth",
            100_000,
        )
        # 31 days of two machines.
        assert refusal.limit_needed_micros == 148_800_000
        status = ledger_of(fleet).status
        assert (status.phase, status.message.endswith(", refuses 1 purchase")) == ("Exceeded", True)
        revision = await fleet.store.revision()
        await fleet.clock.advance(3600)
        await fleet.services.reconcile("fleet")
        await fleet.wait_for_caches()
        assert await fleet.store.revision() == revision
        await fleet.apply(a_pool(budget=148.80))
        await fleet.converge()
        assert sum(fleet.placed().values()) == 2
        assert ledger_of(fleet).status.refused == ()


async def test_refusal_states_a_limit_that_would_do_now() -> None:
    """Another machine is bought and the limit changes while the purchase stays refused."""
    small = a_class("s", cores=1, price=0.01)
    async with running_fleet(
        a_pool(budget=20, classes=["s", "m"]),
        a_class(price=0.1),
        small,
        a_service(cores=4),
        clock=VirtualClock(),
    ) as fleet:
        await fleet.converge()
        (first,) = ledger_of(fleet).status.refused
        assert (first.have_micros, first.limit_needed_micros) == (26_881, 74_400_000)
        await fleet.apply(a_service("web", cores=1))
        await fleet.converge()
        (second,) = ledger_of(fleet).status.refused
        assert (second.have_micros, second.limit_needed_micros, second.at) == (16_881, 81_840_000, first.at)
        await fleet.apply(a_pool(budget=81.84, classes=["s", "m"]))
        await fleet.converge()
        assert ledger_of(fleet).status.refused == ()


async def test_refusal_ends_when_nothing_wants_the_machine() -> None:
    async with running_fleet(
        a_pool(budget=10), a_class(price=0.1), a_service(cores=4), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        ledger = ledger_of(fleet)
        assert [refusal.service for refusal in ledger.status.refused] == ["default/api"]
        assert ledger.status.machines == {}
        verdict = judge_budget(ledger, fleet.clock.now())
        assert (verdict.is_exceeded, verdict.reason) == (True, "PurchaseRefused")
        await fleet.apply(a_service(cores=4, replicas=0))
        await fleet.converge()
        assert ledger_of(fleet).status.refused == ()


async def test_refusal_without_a_budget_reason_is_not_recorded() -> None:
    async with running_fleet(
        a_pool(budget=10), a_class(price=0.1), a_service(cores=4, compliance=["gdpr"]), clock=VirtualClock()
    ) as fleet:
        await fleet.converge()
        assert fleet.all(LatticeLedger) == []
