"""A port that another program on the node uses: other ports are allocated, the port is excluded for a while,
and a fixed port fails permanently."""

from datetime import UTC, datetime, timedelta

import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import a_virtual_world, running_scheduler
from build.workload_world import running_world

from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.node import LatticeNode
from lattice.scheduling.table.port_allocator import (
    MAX_TAKEN_PORTS,
    TAKEN_PORT_TTL,
    add_taken_ports,
    unexpired_taken_ports,
)

W = "default/w"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHOSEN = {"main": {"command": ["serve"], "ports": [{"name": "http"}, {"name": "admin", "port": 9000}]}}


async def test_taken_port_is_recorded_and_others_are_allocated() -> None:
    async with running_world() as world:
        await world.join("n1", fails={W: ["PORT_TAKEN"]})
        await world.add(a_workload(containers=CHOSEN))
        await world.run(1)
        status = world.workload().status
        assert (status.failure_reason, status.binding, status.allocated_ports) == ("PORT_TAKEN", None, {})
        assert status.retry is not None
        assert status.retry.attempts == 1
        assert [*world.node("n1").status.taken_ports] == ["30000"], (
            "a taken fixed port is not excluded from the range"
        )
        await world.run(10)
        status = world.workload().status
        assert (status.actual_state, status.allocated_ports) == ("Running", {"http": 30001, "admin": 9000})
        assert (await world.events("w"))[:2] == ["WorkloadApplied", "Rescheduled"]
        await world.run(TAKEN_PORT_TTL.total_seconds() + 40)
        assert world.node("n1").status.taken_ports == {}


async def test_taken_fixed_port_is_permanent_failure() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["PORT_BIND_CONFLICT"]})
        await world.add(a_workload(containers=CHOSEN))
        await world.run(60)
        status = world.workload().status
        assert (status.actual_state, status.failure_reason, len(agent.starts)) == (
            "Failed",
            "PORT_BIND_CONFLICT",
            1,
        )
        assert world.node("n1").status.taken_ports == {}


async def test_taken_port_is_excluded_until_it_expires() -> None:
    async with a_virtual_world() as (world, clock), running_scheduler(world.store, clock) as scheduler:
        taken = {"status": {"takenPorts": {"30000": format_micro_time(NOW)}}}
        await world.add(
            a_node("n1", ports=(30000, 30001), **taken),
            a_workload("one", ports=("http",)),
            a_workload("two", ports=("http",)),
        )
        await scheduler.run_cycle()
        found = [(await world.workload(name)).status.allocated_ports for name in ("one", "two")]
        assert found == [{"http": 30001}, {}]
        await world.set_status(LatticeNode, "n1", taken_ports={})
        await scheduler.run_cycle()
        await clock.advance(1)
        await scheduler.run_cycle()
        assert (await world.workload("two")).status.allocated_ports == {"http": 30000}


@pytest.mark.parametrize(
    ("until", "is_taken"),
    [
        pytest.param(NOW + timedelta(seconds=1), True, id="not over yet"),
        pytest.param(NOW, False, id="over"),
        pytest.param(
            NOW + timedelta(days=1), False, id="further ahead than any expiry: the clock was set back"
        ),
    ],
)
def test_taken_port_expiry(until: datetime, is_taken: bool) -> None:
    assert ("30000" in unexpired_taken_ports({"30000": format_micro_time(until)}, NOW)) is is_taken


def test_taken_ports_are_bounded_dropping_the_oldest() -> None:
    found: dict[str, str] = {}
    for number in range(100):
        found = add_taken_ports(found, [30000 + number], NOW + timedelta(seconds=number))
    assert [*map(int, found)] == list(range(30100 - MAX_TAKEN_PORTS, 30100))
