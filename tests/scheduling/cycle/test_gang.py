"""Tests of gangs: assigned all or nothing, preempted whole, and a reason for the first member that does not
fit."""

import pytest
from build.binding_store import binding_store
from build.property_settings import many
from build.small_clusters import ask, check_capacity, nodes, nodes_by_workload, packing, put
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.engine.explain import summarize
from lattice.engine.plugin import Profile
from lattice.scheduling.cycle.binder import Binder, BindingMode
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.gang import (
    Assignment,
    GangAssignment,
    NoFeasibleNode,
    assign_gang,
    assume_assignment,
)
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk


def assign(table: NodeTable, sizes: list[int], least: int, profile: Profile | None = None) -> GangAssignment:
    profile = profile or packing()

    def find(member: WorkloadAsk) -> Assignment | NoFeasibleNode:
        decision = decide(member, table, profile)
        return (
            Assignment(member, decision.chosen)
            if decision.fits
            else NoFeasibleNode(member, summarize(decision))
        )

    return assign_gang(
        [ask(table, f"m{number}", size) for number, size in enumerate(sizes)], least, table, find
    )


@pytest.mark.parametrize(
    ("sizes", "least", "seats", "fitting"),
    [
        pytest.param([500, 500, 500], 3, 3, 3, id="all fit"),
        pytest.param([500, 500, 500, 500], 3, 3, 3, id="enough fit; the rest waits"),
        pytest.param([500, 500, 500, 500], 4, 0, 3, id="one too few: no member is assigned"),
        pytest.param([900, 900, 500], 2, 2, 2, id="a small one fits where a large one did not"),
        pytest.param([2000], 0, 0, 0, id="no member fits: nothing is assigned"),
    ],
)
def test_gang_is_assigned_all_or_nothing(sizes: list[int], least: int, seats: int, fitting: int) -> None:
    table = nodes(1000, 500)
    together = assign(table, sizes, least)
    assert (len(together.assignments), together.fitting_count, len(together.rejections)) == (
        seats,
        fitting,
        len(sizes) - fitting,
    )
    assert nodes_by_workload(table) == {}


def test_first_unfit_member_has_a_reason() -> None:
    together = assign(nodes(1000, 500), [500, 500, 500, 500], 4)
    assert together.rejections[0].reason == "0 of 2 nodes: 2 without 500m cpu free"


@many
@given(
    free=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    least=st.integers(0, 8),
    there=st.integers(0, 300),
)
def test_gang_assignment_leaves_table_unchanged(
    free: list[int], sizes: list[int], least: int, there: int
) -> None:
    table = nodes(*free)
    if there and there <= free[0]:
        put(table, "n0", [ask(table, "there", there)])
    before = (
        nodes_by_workload(table),
        [table.allocated(number).tolist() for number in range(len(table.resources))],
    )
    together = assign(table, sizes, least)
    assert (
        nodes_by_workload(table),
        [table.allocated(number).tolist() for number in range(len(table.resources))],
    ) == before
    assert not together.assignments or len(together.assignments) >= least
    assert bool(together.assignments) == (together.fitting_count >= max(1, least))
    for seat in together.assignments:
        assume_assignment(seat, table)
    check_capacity(table)


# --- preempted gangs ---


def gang_of(table: NodeTable, count: int, least: int, cpu: int = 600) -> list[WorkloadAsk]:
    """Place one member on each node."""
    members = [ask(table, f"g{number}", cpu, 1, group="g", least=least) for number in range(count)]
    for number, member in enumerate(members):
        put(table, f"n{number}", [member])
    return members


def evicting(table: NodeTable, **limits: int) -> CompositeScheduler:
    return CompositeScheduler(packing(), Reservations(table), preemptor=Preemptor(table, packing(), limits))


def test_preempting_one_member_evicts_whole_gang() -> None:
    table = nodes(1000, 1000, 1000)
    gang_of(table, 3, least=3)
    cycle = evicting(table).cycle([[ask(table, "high", 900, 5)]], 0.0)
    assert sorted(cycle.evictions) == [(f"default/g{number}", "default/high") for number in range(3)]
    assert list(nodes_by_workload(table)) == ["high"]
    check_capacity(table)


async def test_workload_on_node_of_evicted_member_waits_for_it() -> None:
    table = nodes(1000, 1000)
    gang_of(table, 2, least=2)
    one = evicting(table)
    one.binder = Binder(binding_store(1000, 1000), one.reservations, lambda: 0.0, BindingMode.OPTIMISTIC)
    cycle = one.cycle([[ask(table, "high", 900, 5)], [ask(table, "low", 900)]], 0.0)
    high, low = cycle.scheduled
    assert high.waits_for == high.victims == ("default/g0", "default/g1")
    assert (low.victims, low.waits_for) == ((), (f"default/g{low.node[1:]}",))
    assert await one.bind(cycle) == []


def test_evicted_gang_members_are_rescheduled_together() -> None:
    table, queue = nodes(1000, 1000, 1000), SchedulingQueue()
    members = gang_of(table, 2, least=2)
    one = evicting(table)
    put(table, "n2", [ask(table, "top", 900, 9)])
    cycle = one.cycle([[ask(table, "high", 900, 5)]], 0.0)
    gone = [name for name, _ in cycle.evictions]
    assert sorted(gone) == [each.name for each in members]
    for each in members:
        queue.add(each)
    (run,) = queue.pop_batch(0.0, 1)
    assert [each.name for each in run] == [each.name for each in members]
    again = one.cycle([run], 0.0)
    assert again.scheduled == []
    assert all(
        each.reason.startswith("1 of 2 group members fit, minMember is 2; the next member: ")
        for each in again.unschedulable
    )
    table.forget("default/top")
    assert [each.ask.name for each in one.cycle([run], 0.0).scheduled] == [each.name for each in members]


@pytest.mark.parametrize("priorities", [(9, 0, 9), (9, 9, 0), (0, 9, 9)])
def test_strong_member_preempts_after_weaker_one_fails(
    priorities: tuple[int, ...],
) -> None:
    table = nodes(1000, 1000)
    put(table, "n1", [ask(table, "there", 1000, 1)])
    gang = [
        ask(table, f"g{number}", 1000, priority, group="g", least=2)
        for number, priority in enumerate(priorities)
    ]
    cycle = evicting(table).cycle([gang], 0.0)
    assert sorted(nodes_by_workload(table).values()) == ["n0", "n1"]
    assert [name for name, _ in cycle.evictions] == ["default/there"]


def test_gang_preempts_lower_priority_gang() -> None:
    table = nodes(1000, 1000, 1000)
    gang_of(table, 3, least=3)
    strong = [ask(table, f"s{number}", 700, 5, group="strong", least=3) for number in range(3)]
    one = evicting(table, **{"default/none": 0})
    cycle = one.cycle([strong], 0.0)
    assert sorted(nodes_by_workload(table)) == ["s0", "s1", "s2"]
    assert len(cycle.evictions) == 3
    assert all(each.waits_for for each in cycle.scheduled)
    weak = [ask(table, f"w{number}", 700, 5, group="weak", least=3) for number in range(3)]
    assert one.cycle([weak], 0.0).scheduled == []
    assert sorted(nodes_by_workload(table)) == ["s0", "s1", "s2"]


MEMBER = st.tuples(
    st.integers(0, 2), st.integers(100, 600), st.integers(0, 3), st.sampled_from(["", "", "g", "h"])
)


@many
@given(
    there=st.lists(MEMBER, min_size=2, max_size=9),
    least=st.integers(1, 3),
    comes=st.lists(
        st.tuples(st.integers(200, 900), st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans()),
        min_size=1,
        max_size=4,
    ),
)
def test_gang_is_whole_or_evicted_after_preemption(
    there: list[tuple[int, int, int, str]], least: int, comes: list[tuple[int, tuple[int, int], bool]]
) -> None:
    table = nodes(1000, 800, 1000)
    for number, (node, cpu, priority, gang) in enumerate(there):
        if cpu <= table.free(0)[node]:
            put(
                table,
                f"n{node}",
                [ask(table, f"w{number}", cpu, priority, group=gang, least=least if gang else 0)],
            )
    whole = {gang for gang in "gh" if table.gang_sizes[gang] >= least}
    one, before = evicting(table), set(table.placements)
    batch = [
        [
            ask(
                table,
                f"new{number}.{twin}",
                cpu,
                priorities[twin],
                group=f"new{number}" if together else "",
                least=2 if together else 0,
            )
        ]
        for number, (cpu, priorities, together) in enumerate(comes)
        for twin in range(1 + together)
    ]
    cycle = one.cycle(batch, 0.0)
    check_capacity(table)
    assert before - set(table.placements) <= {name for name, _ in cycle.evictions}
    for gang in whole:
        assert table.gang_sizes[gang] == 0 or table.gang_sizes[gang] >= least
    for number in range(len(comes)):
        assert table.gang_sizes[f"new{number}"] in (0, 2)
