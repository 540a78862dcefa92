"""A group is seated all or nothing, and told how many would fit and why the next does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import ask, check_capacity, many, nodes, packing, put, where

from lattice.engine.decide import decide
from lattice.engine.explain import sentence
from lattice.engine.plugin import Profile
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.gang import NoSeat, Seat, Together, seat_together, take
from lattice.scheduling.nodes import NodeTable


def seated(table: NodeTable, sizes: list[int], least: int, profile: Profile | None = None) -> Together:
    profile = profile or packing()

    def find(member: WorkloadAsk) -> Seat | NoSeat:
        decision = decide(member, table, profile)
        return Seat(member, decision.chosen) if decision.fits else NoSeat(member, sentence(decision))

    return seat_together([ask(table, f"m{number}", size) for number, size in enumerate(sizes)], least, table, find)


@pytest.mark.parametrize(
    ("sizes", "least", "seats", "fitting"),
    [
        pytest.param([500, 500, 500], 3, 3, 3, id="all fit"),
        pytest.param([500, 500, 500, 500], 3, 3, 3, id="enough fit; the rest waits"),
        pytest.param([500, 500, 500, 500], 4, 0, 3, id="one too few: nobody is seated"),
        pytest.param([900, 900, 500], 2, 2, 2, id="a small one fits where a large one did not"),
        pytest.param([2000], 0, 0, 0, id="nobody fits: there is nothing to seat"),
    ],
)
def test_all_or_nothing(sizes: list[int], least: int, seats: int, fitting: int) -> None:
    table = nodes(1000, 500)
    together = seated(table, sizes, least)
    assert (len(together.seats), together.fitting, len(together.refused)) == (seats, fitting, len(sizes) - fitting)
    assert where(table) == {}


def test_the_next_one_says_why_it_does_not_fit() -> None:
    together = seated(nodes(1000, 500), [500, 500, 500, 500], 4)
    assert together.refused[0].why == "0 of 2 nodes: 2 without 500m cpu free"


@many
@given(
    free=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    least=st.integers(0, 8),
    there=st.integers(0, 300),
)
def test_a_group_takes_all_its_seats_or_leaves_everything_as_it_was(free: list[int], sizes: list[int], least: int, there: int) -> None:
    table = nodes(*free)
    if there and there <= free[0]:
        put(table, "n0", [ask(table, "there", there)])
    before = (where(table), [table.taken(number).tolist() for number in range(len(table.resources))])
    together = seated(table, sizes, least)
    assert (where(table), [table.taken(number).tolist() for number in range(len(table.resources))]) == before
    assert not together.seats or len(together.seats) >= least
    assert bool(together.seats) == (together.fitting >= max(1, least))
    for seat in together.seats:
        take(seat, table)
    check_capacity(table)
