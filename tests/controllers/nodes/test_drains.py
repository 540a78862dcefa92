"""Concurrent drains keep the disruption budget of a service, in any order."""

from typing import Any

import msgspec
import pytest
from build.objects import a_ledger, a_workload, make_object
from build.workload_world import BROKEN, DRAIN, World, a_joining_node, a_service_with_minimum, running_world

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.constraints import Taint
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload


async def spread_out(world: World, least: int, nodes: int) -> list[int]:
    """Run one replica of `web` on each node. Returns a list that receives the number of ready replicas with
    every change."""
    await world.add(a_service_with_minimum("web", least))
    for number in range(1, nodes + 1):
        await world.join(f"n{number}")
        await world.add(a_workload(f"web-{number}", service="web", slot=number))
        await world.run(1)
        await world.cordon(f"n{number}")
    await world.join("free")
    ready: list[int] = []
    copy = world.context.cache(LatticeWorkload)
    copy.on_change(lambda _: ready.append(sum(bool(each.status.ready) for each in copy.objects())))
    return ready


@pytest.mark.parametrize("nodes", [2, 3])
async def test_concurrent_drains_evict_one_replica_at_a_time(nodes: int) -> None:
    async with running_world() as world:
        ready = await spread_out(world, nodes - 1, nodes)
        for number in range(1, nodes + 1):
            await world.set_taints(f"n{number}", DRAIN)
        await world.run(30)
        assert {world.node_of(f"default/web-{number}") for number in range(1, nodes + 1)} == {"free"}
        assert min(ready) == nodes - 1


async def test_concurrent_drains_wait_for_surge_replica() -> None:
    async with running_world() as world:
        ready = await spread_out(world, 2, 2)
        for name in ("n1", "n2"):
            await world.set_taints(name, DRAIN)
        await world.run(60)
        assert {world.node_of(f"default/web-{number}") for number in (1, 2)} == {"n1", "n2"}
        assert [*world.evictions.surges] == ["default/web"]
        await world.add(a_workload("web-3", service="web", slot=3))
        await world.run(30)
        assert {world.node_of(f"default/web-{number}") for number in (1, 2, 3)} == {"free"}
        assert min(ready) == 2


@pytest.mark.parametrize("looked_at", ["n1", "n2"])
async def test_surge_choice_does_not_depend_on_reconciled_node(
    looked_at: str,
) -> None:
    async with running_world() as world:
        await spread_out(world, 2, 2)
        for name in ("n1", "n2"):
            await world.set_taints(name, DRAIN)
        await world.run(30)
        for _ in range(2):
            await world.evictions.reconcile(f"/{looked_at}")
            assert world.evictions.surges == {"default/web": "default/web-1"}


async def test_drain_waiting_for_surge_keeps_its_turn() -> None:
    async with running_world() as world:
        await spread_out(world, 2, 2)
        await world.cordon("free")
        for name in ("n2", "n1"):
            await world.set_taints(name, DRAIN)
            await world.run(30)
            assert world.evictions.surges == {"default/web": "default/web-2"}


async def test_blocked_drain_passes_surge_turn_to_another() -> None:
    """Both drains wait for a surge replica; the first surge replica never finds a node."""
    async with running_world() as world:
        await spread_out(world, 2, 2)
        await world.cordon("free")
        for name in ("n1", "n2"):
            await world.set_taints(name, DRAIN)
        await world.run(10)
        heard: list[str] = []
        world.evictions.on_surge_change(heard.extend)
        first = world.evictions.surges["default/web"]
        await world.add(a_workload("web-3", service="web", slot=3))
        await world.run(1)
        condition = {
            "type": "Scheduled",
            "status": "False",
            "reason": "NoNodeFits",
            "message": "none",
            "lastTransitionTime": world.context.timestamp,
        }
        await world.set_conditions("default/web-3", (msgspec.convert(condition, Condition),))
        turns = [first]
        for _ in range(100):
            await world.run(10)
            turns += [each for each in world.evictions.surges.values() if each != turns[-1]]
        assert {*turns} == {"default/web-1", "default/web-2"}
        assert 2 <= len(turns) <= 4, "now and then, not all the time"
        assert "default/web" in heard


async def test_blocked_drain_reports_unschedulable_surge_replica() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 1)
        await world.cordon("free")
        await world.set_taints("n1", DRAIN)
        await world.run(5)
        pool = {"provider": {"type": "local", "region": "here"}, "capacity": {"maxNodes": 4}}
        await world.add(
            make_object(LatticePool, "south", spec=pool, status={"capacity": {"allocatedNodes": 4}})
        )
        await world.add(make_object(LatticeCluster, "south-001", spec={"pool": "south"}))
        await world.add(a_workload("web-2", service="web", slot=2, cluster="south-001"))
        await world.run(1)
        message = "0 of 2 nodes: 1 cordoned; 1 drained"
        stuck = {
            "type": "Scheduled",
            "status": "False",
            "reason": "NoNodeFits",
            "message": message,
            "lastTransitionTime": world.context.timestamp,
        }
        await world.set_conditions("default/web-2", (msgspec.convert(stuck, Condition),))
        await world.run(15)
        condition = world.condition("n1", "Drained")
        assert condition is not None
        assert (condition.reason, condition.message.partition("default/web-1: ")[2]) == (
            "Leaving",
            "a replacement replica must start first: service default/web has 1 available and needs 1",
        ), "its cluster may be about to grow"
        await world.add(a_joining_node("late", cluster="south-001"))
        await world.run(45)
        condition = world.condition("n1", "Drained")
        assert condition is not None
        assert (condition.reason, condition.message.rpartition("; ")[2]) == (
            "Leaving",
            "a new machine is starting",
        )
        assert await world.events("n1") == ["NodeReady", "NodeDraining"]
        await world.delete(LatticeNode, "/late")
        await world.run(30)
        condition = world.condition("n1", "Drained")
        needs = "default/web-1: a replacement replica must start first: service default/web has 1 available and needs 1"
        why = f"pool south is full: 4 of 4 nodes; {message}"
        assert condition is not None
        assert (condition.reason, condition.message) == (
            "NoRoomForOneMore",
            f"1 workload still on the node; {needs}; no node accepts the replacement: {why}",
        )
        assert await world.events("n1") == ["NodeReady", "NodeDraining", "NodeDrainStuck"]
        await world.cordon("free", on=False)
        await world.run(30)
        assert (await world.events("n1"))[3:] == ["NodeDrained"]


async def test_drain_that_a_budget_blocks_names_the_budget_once() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 1)
        await world.cordon("free")
        await world.set_taints("n1", DRAIN)
        lots = {"south-001": [{"nodeClass": "nano", "count": 2, "micros": 4000}]}
        as_of = {"committedMicros": 8000, "month": "2026-01", "asOf": "2026-01-01T00:00:00.000000Z"}
        await world.add(a_ledger("south", 6_000_000, machines=lots, **as_of))
        await world.add(make_object(LatticeCluster, "south-001", spec={"pool": "south"}))
        await world.add(a_workload("web-2", service="web", slot=2, cluster="south-001"))
        since = world.context.timestamp
        for missing in ("750m", "500m"):
            stuck = {
                "type": "Scheduled",
                "status": "False",
                "reason": "NoNodeFits",
                "message": f"1 without {missing} cpu",
                "lastTransitionTime": since,
            }
            await world.set_conditions("default/web-2", (msgspec.convert(stuck, Condition),))
            await world.run(60)
        condition = world.condition("n1", "Drained")
        assert condition is not None
        assert "the budget refuses one more machine for cluster south-001" in condition.message
        assert "needs $0.004/h, has $0.000064/h left of $6.00/30d" in condition.message
        assert "1 without 500m cpu" in condition.message
        assert (await world.events("n1")).count("NodeDrainStuck") == 1, "another amount is no news"


async def test_drain_waits_for_replica_evicted_by_other_taint() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 2)
        world.agents["n1"].hangs = {"default/web-1"}
        await world.set_taints("n1", BROKEN)
        await world.run(2)
        assert world.workload("default/web-1").status.last_action == "ApplyStopped", (
            "a NoExecute taint waits for no surge replica"
        )
        await world.set_taints("n2", DRAIN)
        await world.run(30)
        assert world.node_of("default/web-2") == "n2"
        world.agents["n1"].hangs = set()
        world.agents["n1"].connect()
        await world.run(10)
        assert {world.node_of(f"default/web-{number}") for number in (1, 2)} == {"free"}


async def test_replica_stays_when_drain_replaces_noexecute_taint() -> None:
    """The replica had not been stopped yet when the drain replaced the taint that evicts it."""
    async with running_world() as world:
        ready = await spread_out(world, 2, 2)
        await world.cordon("free")
        ears, world.decided._listeners = world.decided._listeners, []
        await world.set_taints("n1", BROKEN)
        await world.run(0.1)
        assert world.decided.eviction_of(world.workload("default/web-1")).reason
        await world.set_taints("n1", DRAIN)
        await world.run(0.1)
        world.decided._listeners = ears
        for ear in ears:
            ear(["default/web-1"])
        await world.run(30)
        assert world.node_of("default/web-1") == "n1"
        assert world.evictions.surges == {"default/web": "default/web-1"}
        assert {*ready} <= {2}


async def test_drain_waits_for_preempted_replica() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 2)
        world.agents["n1"].hangs = {"default/web-1"}
        workload = world.workload("default/web-1")
        mark = msgspec.convert(
            {"type": "Leaving", "status": "True", "reason": "Preempted"}, type(workload.status.conditions[0])
        )
        await world.set_conditions("default/web-1", (*workload.status.conditions, mark))
        await world.set_taints("n2", DRAIN)
        await world.run(30)
        assert (world.node_of("default/web-2"), world.live("default/web-2")) == ("n2", ["n2"])


async def test_drain_waits_for_planned_victim() -> None:
    """The scheduler has chosen the victim and not stored its preemption yet."""
    async with running_world() as world:
        await spread_out(world, 1, 2)
        world.decided.add_victim("n1", "default/web-1", "default/high")
        await world.set_taints("n2", DRAIN)
        await world.run(30)
        assert (world.node_of("default/web-2"), world.live("default/web-2")) == ("n2", ["n2"])
        assert world.live("default/web-1") == ["n1"], "a planned victim is not stopped"


async def test_reconnected_replica_on_draining_node_counts_again() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 1)
        world.agents["n1"].cut()
        await world.run(45)
        await world.set_taints("n1", DRAIN)
        await world.run(5)
        assert world.workload("default/web-1").status.actual_state == "Unknown"
        world.agents["n1"].connect()
        await world.run(30)
        workload = world.workload("default/web-1")
        assert (world.live("default/web-1"), workload.status.ready, workload.status.last_action) == (
            ["n1"],
            True,
            "Apply",
        )
        assert [*world.evictions.surges] == ["default/web"]
        await world.add(a_workload("web-2", service="web", slot=2))
        await world.run(30)
        assert {world.node_of(f"default/web-{number}") for number in (1, 2)} == {"free"}


@pytest.mark.parametrize(
    ("taints", "status", "is_up", "goes"),
    [
        pytest.param((DRAIN,), {}, False, True, id="replica is down"),
        pytest.param((DRAIN,), {}, True, False, id="agent reports it up"),
        pytest.param(
            (DRAIN,),
            {"ready": True, "actual_state": "Running"},
            False,
            False,
            id="status says ready",
        ),
        pytest.param(
            (DRAIN,),
            {"ready": True, "actual_state": "Running", "last_action": "ApplyStopped"},
            True,
            True,
            id="stop was sent before it was up again",
        ),
        pytest.param((DRAIN, BROKEN), {}, True, True, id="a NoExecute taint evicts it in any state"),
    ],
)
async def test_drain_evicts_replica_that_is_down(
    taints: tuple[Taint, ...], status: dict[str, Any], is_up: bool, goes: bool
) -> None:
    async with running_world() as world:
        await spread_out(world, 1, 1)
        world.agents["n1"].cut()
        await world.run(45)
        await world.set_taints("n1", *taints)
        await world.run(5)
        found = world.workload("default/web-1")
        found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, **status))
        assert bool(world.decided.eviction_of(found, is_reported_ready=is_up).reason) == goes


async def test_failed_replica_leaves_draining_node_without_surge() -> None:
    async with running_world() as world:
        await spread_out(world, 1, 1)
        world.agents["n1"].end("default/web-1")
        await world.run(0.5)
        assert not world.workload("default/web-1").status.ready
        await world.set_taints("n1", DRAIN)
        await world.run(30)
        assert world.node_of("default/web-1") == "free"
