"""Tests of cost allocation: the share of a machine's price that each workload pays."""

from fractions import Fraction

import pytest
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.placement.inputs.cost_allocation import (
    BilledMachine,
    CostAllocation,
    HostedWorkload,
    allocate_costs,
    dominant_shares,
    split_price,
)

MANY = settings(max_examples=500 if LONG else 100, deadline=None)
ROOM = {"cpu": 4000, "memory": 16 << 30}


def a_billed_machine(
    *tenants: HostedWorkload, micros: int = 192_000, pool: str = "us-east", room: dict[str, int] | None = None
) -> BilledMachine:
    return BilledMachine("m", pool, micros, ROOM if room is None else room, tenants)


def a_tenant(name: str, cpu: int = 0, memory: int = 0, service: str = "", **more: int) -> HostedWorkload:
    return HostedWorkload(name, {"cpu": cpu, "memory": memory << 30, **more}, service)


@pytest.mark.parametrize(
    ("price", "shares", "parts"),
    [
        pytest.param(192_000, {"a": 1}, {"a": 192_000}, id="one workload pays all"),
        pytest.param(100, {"a": 1, "b": 3}, {"a": 25, "b": 75}, id="shares in proportion"),
        pytest.param(
            100,
            {"c": 1, "b": 1, "a": 1},
            {"a": 34, "b": 33, "c": 33},
            id="what is left over goes to the first by name",
        ),
        pytest.param(
            100,
            {"a": 0, "b": 1, "c": 2},
            {"a": 0, "b": 34, "c": 66},
            id="a workload without requests pays nothing",
        ),
        pytest.param(
            100,
            {"a": 0, "b": 0, "c": 0},
            {"a": 34, "b": 33, "c": 33},
            id="without any requests all pay alike",
        ),
        pytest.param(0, {"a": 1, "b": 2}, {"a": 0, "b": 0}, id="what is owned costs nothing"),
        pytest.param(100, {}, {}, id="no workloads"),
    ],
)
def test_split_price(price: int, shares: dict[str, int], parts: dict[str, int]) -> None:
    assert split_price(price, shares) == parts


@pytest.mark.parametrize(
    ("tenant", "share"),
    [
        pytest.param(a_tenant("a", cpu=1000, memory=2), Fraction(1, 4), id="the larger of the two: cores"),
        pytest.param(a_tenant("a", cpu=1000, memory=8), Fraction(1, 2), id="the larger of the two: memory"),
        pytest.param(a_tenant("a"), Fraction(0), id="nothing"),
        pytest.param(
            a_tenant("a", cpu=1000, gpu=500),
            Fraction(1),
            id="what the machine has none of counts as all of it",
        ),
        pytest.param(a_tenant("a", cpu=8000), Fraction(2), id="more than there is, on a machine that shrank"),
    ],
)
def test_dominant_shares(tenant: HostedWorkload, share: Fraction) -> None:
    whole = a_tenant("whole", cpu=4000)
    found = dominant_shares(a_billed_machine(tenant, whole))
    assert Fraction(found["a"], found["whole"]) == share


def test_replicas_alone_on_machines_pay_whole_machines() -> None:
    machines = [
        BilledMachine(
            f"m{n}",
            pool,
            192_000,
            ROOM,
            (a_tenant(f"default/api-{n}", cpu=2000, memory=4, service="default/api"),),
        )
        for n, pool in enumerate(["us-east", "us-east", "eu-west"])
    ]
    found = allocate_costs(machines)
    assert found.services == {"default/api": 576_000}
    assert found.pools == {"eu-west": 192_000, "us-east": 384_000}
    assert found.overhead == {}


def test_empty_machine_is_overhead_of_its_pool() -> None:
    found = allocate_costs([a_billed_machine(), a_billed_machine(a_tenant("x/bare", cpu=100))])
    assert found == CostAllocation(
        384_000, {"x/bare": 192_000}, {}, {"us-east": 384_000}, {"us-east": 192_000}
    )


def test_no_machines_cost_nothing() -> None:
    assert allocate_costs([]) == CostAllocation(0, {}, {}, {}, {})


@MANY
@given(
    price=st.integers(0, 10**12),
    shares=st.dictionaries(st.text(max_size=3), st.integers(0, 10**18), min_size=1, max_size=12),
)
def test_split_price_is_exact_and_fair_within_rounding(price: int, shares: dict[str, int]) -> None:
    parts = split_price(price, shares)
    assert sum(parts.values()) == price
    assert parts == split_price(price, dict(reversed(shares.items())))
    weights = shares if any(shares.values()) else dict.fromkeys(shares, 1)
    for name, part in parts.items():
        fair = Fraction(price * weights[name], sum(weights.values()))
        assert part >= 0
        assert -1 < part - fair < len(shares)


amounts = st.integers(0, 10**6)
tenants = st.lists(
    st.builds(
        HostedWorkload,
        st.text(max_size=2),
        st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), amounts),
        st.sampled_from(["", "s", "t"]),
    ),
    max_size=6,
)
machines = st.builds(
    lambda pool, micros, room, there: BilledMachine(
        "m", pool, micros, room, tuple({each.name: each for each in there}.values())
    ),
    st.sampled_from("pq"),
    st.integers(0, 10**9),
    st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), amounts),
    tenants,
)


@MANY
@given(st.lists(machines, max_size=6))
def test_cost_allocation_adds_up_to_total(there: list[BilledMachine]) -> None:
    found = allocate_costs(there)
    assert found.total == sum(machine.hourly_micros for machine in there)
    assert sum(found.pools.values()) == found.total
    assert sum(found.workloads.values()) + sum(found.overhead.values()) == found.total
    assert sum(found.services.values()) <= sum(found.workloads.values())
    assert found == allocate_costs(reversed(there))
    alone = allocate_costs(
        [
            BilledMachine(
                m.name,
                m.pool,
                m.hourly_micros,
                m.allocatable,
                tuple(HostedWorkload(t.name, t.requests, "one") for t in m.workloads),
            )
            for m in there
        ]
    )
    assert alone.services.get("one", 0) == sum(found.workloads.values())
