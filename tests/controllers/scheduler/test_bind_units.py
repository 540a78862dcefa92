"""Property test of commit batches: every commit is within its limits, a wave names each node once, and no
binding is left out."""

from collections import Counter

from build.small_clusters import ask, nodes
from hypothesis import given
from hypothesis import strategies as st

from lattice.controllers.scheduler.bind_units import LIMITS, make_unit, node_units, pack_waves
from lattice.scheduling.cycle.cycle import ScheduledWorkload
from lattice.scheduling.cycle.reservations import Reservation

TABLE = nodes(1000)


def a_scheduled_workload(name: str, node: str) -> ScheduledWorkload:
    return ScheduledWorkload(ask(TABLE, name, 1), node, Reservation(name, f"default/{name}", node, (), 0.0))


@given(
    singly=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 500_000)), max_size=150),
    gangs=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=20), max_size=5),
)
def test_commits_respect_limits_and_waves_repeat_no_node(
    singly: list[tuple[int, int]], gangs: list[list[int]]
) -> None:
    alone = [a_scheduled_workload(f"w{number}", f"n{node}") for number, (node, _) in enumerate(singly)]
    sizes = {each.ask.name: size for each, (_, size) in zip(alone, singly, strict=True)}
    together = [
        make_unit(
            [a_scheduled_workload(f"g{number}-{place}", f"n{node}") for place, node in enumerate(gang)], 1
        )
        for number, gang in enumerate(gangs)
    ]
    made = pack_waves([*together, *node_units(alone, sizes)])
    found = Counter(
        each.ask.name for wave in made for commit in wave for unit in commit for each in unit.scheduled
    )
    assert found == Counter(
        {each.ask.name for each in alone} | {each.ask.name for unit in together for each in unit.scheduled}
    )
    for wave in made:
        names = Counter(node for commit in wave for unit in commit for node in unit.nodes)
        assert max(names.values()) == 1
        for commit in wave:
            assert sum(unit.operations for unit in commit) <= LIMITS.max_operations
            assert len(commit) == 1 or sum(unit.size_bytes for unit in commit) <= LIMITS.max_bytes
