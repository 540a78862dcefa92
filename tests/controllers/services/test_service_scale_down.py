"""Concurrent scale-downs and deletions leave the planned machines, wherever the replicas run."""

import os
from collections.abc import Sequence

from build.applied_plans import (
    check_machines,
    check_placements,
    current_placements,
    has_unschedulable,
    observed_world,
    settle_fleet,
)
from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_policy, a_pool, a_service
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.placement.model.world import World
from lattice.placement.plan.plan import plan

EMPTY_WORLD = World.of([])
NAMES = ("api", "db", "web")
LONG = os.environ.get("LATTICE_LONG") == "1"
EXAMPLES = settings(max_examples=1500 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))
CORES = 4  # of a machine
Shape = tuple[int, int, int, int]  # replicas before and after, cores, priority


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    before = draw(st.integers(1, 5))
    return before, draw(st.integers(0, before)), draw(st.integers(1, 2)), draw(st.integers(0, 1))


async def scatter(fleet: RunningFleet, choices: Sequence[int]) -> None:
    """Bind each replica to any machine with capacity."""
    await fleet.make_nodes()
    room = {node.metadata.name: CORES for node in fleet.all(LatticeNode)}
    for number, each in enumerate(fleet.all(LatticeWorkload)):
        cores = each.spec.request_amounts["cpu"] // 1000
        free = [name for name, left in room.items() if left >= cores]
        if free:
            node = free[choices[number] % len(free)]
            room[node] -= cores
            await fleet.change(each, binding=Binding(node=node), ready=True, actual_state="Running")


def a_set(several: Sequence[Shape], *, after: bool) -> list[LatticeService]:
    """The services that have any replicas."""
    named = zip(NAMES, several, strict=True)
    return [
        a_service(name, replicas=each[after], cores=each[2], priority=each[3])
        for name, each in named
        if each[after]
    ]


@EXAMPLES
@given(
    several=st.tuples(shapes(), shapes(), shapes()),
    choices=st.tuples(*[st.integers(0, 9)] * 15),
    fewest=st.integers(1, 2),
)
async def test_concurrent_scale_downs_leave_planned_machines(
    several: Sequence[Shape], choices: Sequence[int], fewest: int
) -> None:
    """A service scaled to no replicas is deleted."""
    rules = a_policy(clusters={"minNodes": fewest})
    async with running_fleet(a_class(cores=CORES), a_pool(), rules, *a_set(several, after=False)) as fleet:
        await fleet.converge()
        await scatter(fleet, choices)
        await settle_fleet(fleet, EMPTY_WORLD, binding=True)
        if has_unschedulable(fleet):
            return
        before, wanted = current_placements(fleet), a_set(several, after=True)
        note(
            str(
                [
                    (replica.metadata.name, replica.status.binding.node)
                    for replica in fleet.all(LatticeWorkload)
                ]
            )
        )
        gone = sorted({*NAMES} - {each.metadata.name for each in wanted})
        planned = plan(
            observed_world(fleet, EMPTY_WORLD),
            wanted,
            [("LatticeService", "default", name) for name in gone],
        ).state_after
        assert planned is not None
        for name in gone:
            await fleet.remove(LatticeService, name, "default")
        await fleet.apply(*wanted)
        await settle_fleet(fleet, EMPTY_WORLD, binding=False)
        check_placements(fleet, planned, before, in_steps=True)
        await settle_fleet(fleet, EMPTY_WORLD, binding=True)
        check_machines(fleet, planned, before)
