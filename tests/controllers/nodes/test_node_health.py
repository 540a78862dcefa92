"""Nodes that join, go silent, return, are drained, tainted and removed, and their workloads."""

import msgspec
import pytest
from build.objects import a_workload
from build.workload_world import (
    BROKEN,
    DRAIN,
    World,
    a_service_with_minimum,
    disconnect_most_of_a_zone,
    remove_node_of_workload,
    running_world,
)

from lattice.controllers.runtime.object_writes import with_metadata
from lattice.errors import Fenced
from lattice.kinds.container import Disconnect
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import NODE_FINALIZER, LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.metrics import DRIFT, NODES_UNHEALTHY
from lattice.presence import Heartbeat, Usage, WorkloadReport
from lattice.store.protocol import Key

W = "default/w"


def ready_condition(world: World, name: str) -> tuple[str, str]:
    condition = world.condition(name)
    return (condition.status, condition.reason) if condition else ("", "")


async def test_node_is_ready_on_heartbeat_and_lost_after_40_seconds() -> None:
    async with running_world() as world:
        lost = NODES_UNHEALTHY._value.get()
        agent = await world.join("n1")
        assert (ready_condition(world, "n1"), world.node("n1").status.phase) == (
            ("True", "Heartbeat"),
            "Ready",
        )
        silent = world.clock.monotonic()
        agent.cut()
        while ready_condition(world, "n1")[0] == "True":
            await world.run(0.5)
        assert 39 <= world.clock.monotonic() - silent <= 41
        status = world.node("n1").status
        assert (ready_condition(world, "n1"), status.phase) == (("False", "HeartbeatMissed"), "NotReady")
        assert status.heartbeat is not None
        assert (status.heartbeat.reason, status.heartbeat.by) == ("HeartbeatMissed", "monitor")
        await world.run(20)
        agent.connect()
        await world.run(1)
        status = world.node("n1").status
        assert status.heartbeat is not None
        assert (ready_condition(world, "n1")[0], status.heartbeat.by) == ("True", "heartbeat")
        assert await world.events("n1") == ["NodeReady", "NodeLost", "NodeReady"]
        assert NODES_UNHEALTHY._value.get() - lost == 1


async def test_node_resuming_heartbeats_on_its_session_is_ready() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        session = agent.session
        agent.cut()
        await world.run(60)
        assert ready_condition(world, "n1")[0] == "False"
        agent.session = session
        agent.say(Heartbeat())
        await world.run(6)
        assert ready_condition(world, "n1")[0] == "True"


async def test_node_without_agent_stays_joining() -> None:
    async with running_world() as world:
        await world.join("n1")
        world.agents["n1"].cut()
        world.presence.forget_node("n1")
        await world.add(
            LatticeNode(api_version="lattice.dev/v1alpha1", kind="LatticeNode", metadata=Metadata(name="n2"))
        )
        await world.run(200)
        assert (ready_condition(world, "n2"), world.node("n2").status.phase) == (
            ("False", "NotJoined"),
            "Joining",
        )
        assert await world.events("n2") == []


async def test_new_leader_waits_a_full_timeout_before_marking_nodes() -> None:
    async with running_world() as world:
        for name in ("n1", "n2", "n3"):
            await world.join(name)
        world.agents["n1"].cut()
        await world.run(60)
        world.agents["n2"].cut()
        await world.run(30)
        revision_before = await world.store.revision()
        await world.lead("two")
        await world.run(35)
        assert [ready_condition(world, name)[0] for name in ("n1", "n2", "n3")] == ["False", "True", "True"]
        assert await world.store.revision() == revision_before
        await world.run(10)
        assert [ready_condition(world, name)[0] for name in ("n1", "n2", "n3")] == ["False", "False", "True"]


async def test_new_leader_restarts_eviction_timeout() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        await world.join("n2")
        world.agents["n1"].cut()
        await world.run(100)
        await world.lead("two")
        await world.run(110)
        assert world.node_of() == "n1"
        await world.run(20)
        assert (world.node_of(), world.live()) == ("n2", ["n1", "n2"])


@pytest.mark.parametrize(("before", "places"), [
    pytest.param({"policy": "stop", "stopAfter": "119s"}, ("n1", "n2"), id="stop: waits for the former stop timeout"),
    pytest.param({"policy": "keep"}, ("n1", "n1"), id="keep: waits for the node to report the end"),
])  # fmt: skip
async def test_disconnected_node_follows_last_received_policy(
    before: dict[str, str], places: tuple[str, str]
) -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.add(a_workload(disconnect=before))
        await world.run(20)
        await world.join("n2")
        world.agents["n1"].cut()
        strict = Disconnect(policy="stop", stop_after="12s")
        await world.change(LatticeWorkload, W, lambda spec: msgspec.structs.replace(spec, disconnect=strict))
        await world.run(130)
        assert world.node_of() == places[0]
        await world.run(30)
        assert world.node_of() == places[1]


async def test_zone_outage_moves_nothing_until_nodes_return() -> None:
    async with running_world() as world:
        await disconnect_most_of_a_zone(world)
        await world.run(900)
        assert (world.node_of(), world.workload().status.actual_state) == ("a1", "Unknown")
        world.agents["a2"].connect()
        world.agents["a3"].connect()
        await world.run(15)
        assert world.node_of() == "a2"


async def test_lost_nodes_of_one_zone_are_evicted_one_by_one() -> None:
    async with running_world() as world:
        for number in range(1, 6):
            await world.join(f"n{number}")
            await world.add(a_workload(f"w{number}"))
            await world.run(0.5)
            await world.cordon(f"n{number}")
        await world.cordon("n5", on=False)
        silent = world.clock.monotonic()
        for number in (1, 2):
            world.agents[f"n{number}"].cut()
        moved: dict[str, float] = {}
        while len(moved) < 2:
            await world.run(0.5)
            moved |= {
                f"w{n}": world.clock.monotonic() - silent
                for n in (1, 2)
                if f"w{n}" not in moved and world.node_of(f"default/w{n}") == "n5"
            }
        first, second = sorted(moved.values())
        assert 110 <= first <= 122
        assert 9.5 <= second - first <= 11


@pytest.mark.parametrize("policy", ["keep", "stop"])
async def test_workloads_of_removed_node_are_rescheduled(policy: str) -> None:
    async with running_world() as world:
        await remove_node_of_workload(world, policy)
        await world.run(2)
        assert world.presence.get("n1") is None
        if (
            policy == "stop"
        ):  # a removed node gets no orders, and stops workloads with the policy `stop` by itself
            await world.run(100)
            assert (world.node_of(), world.live()) == ("n1", [])
            await world.run(15)
        assert (world.node_of(), world.workload().status.actual_state, bool(world.overlaps)) == (
            "n2",
            "Running",
            policy == "keep",
        )


async def add_node_finalizer(world: World, name: str) -> None:
    """Add the node finalizer, as a join of a self-registered machine does."""
    entry = await world.entry(LatticeNode, f"/{name}")
    await world.store.commit(
        [
            with_metadata(
                entry,
                lambda metadata: metadata | {"finalizers": [NODE_FINALIZER, *metadata.get("finalizers", [])]},
            )
        ]
    )


@pytest.mark.parametrize("policy", ["keep", "stop"])
async def test_connected_node_is_emptied_before_removal(policy: str) -> None:
    async with running_world() as world:
        await world.join("n1")
        await add_node_finalizer(world, "n1")
        await world.add(a_workload(disconnect={"policy": policy}))
        await world.run(1)
        await world.join("n2")
        await world.delete(LatticeNode, "/n1")
        await world.run(5)
        assert await world.store.get(Key(LatticeNode.resource.id, "", "n1")) is None
        assert (world.node_of(), world.live(), world.overlaps) == ("n2", ["n2"], [])
        assert await world.event_message("NodeRemoved") == "No workloads are left on the node"


async def test_removed_silent_node_releases_terminating_workloads() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await add_node_finalizer(world, "n1")
        await world.add(a_workload())
        await world.run(1)
        agent.cut()
        await world.run(60)
        await world.delete(LatticeWorkload, W)
        await world.run(60)
        assert world.workload().metadata.deletion_timestamp, "its node may still run it"
        await world.delete(LatticeNode, "/n1")
        await world.run(5)
        assert await world.store.get(Key(LatticeNode.resource.id, "", "n1")) is None
        assert "did not wait for its workloads" in await world.event_message("NodeRemoved")
        assert await world.store.get(Key(LatticeWorkload.resource.id, "default", "w")) is None


async def test_removed_silent_node_without_workloads_was_empty() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await add_node_finalizer(world, "n1")
        agent.cut()
        await world.run(60)
        await world.delete(LatticeNode, "/n1")
        await world.run(5)
        assert await world.event_message("NodeRemoved") == "No workloads are left on the node"


async def test_node_keeps_finalizers_of_others() -> None:
    async with running_world() as world:
        await world.join("n1")
        entry = await world.entry(LatticeNode, "/n1")
        await world.store.commit(
            [with_metadata(entry, lambda metadata: metadata | {"finalizers": ["team/clean"]})]
        )
        await world.run(1)
        await add_node_finalizer(world, "n1")
        await world.delete(LatticeNode, "/n1")
        await world.run(5)
        assert world.node("n1").metadata.finalizers == ("team/clean",)


async def test_recreated_node_of_same_name_is_another_node() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        uid = world.node("n1").metadata.uid
        await world.delete(LatticeNode, "/n1")
        agent.cut()
        await world.run(1)
        agent.holds.clear()
        await world.add(
            LatticeNode(api_version="lattice.dev/v1alpha1", kind="LatticeNode", metadata=Metadata(name="n1"))
        )
        await world.run(1)
        agent.connect()
        await world.run(2)
        binding = world.workload().status.binding
        assert binding is not None
        assert binding.uid == world.node("n1").metadata.uid != uid
        assert world.live() == ["n1"]


async def test_cordoned_node_keeps_workloads_and_gets_no_new_ones() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        await world.cordon("n1")
        await world.add(a_workload("new"))
        await world.run(60)
        assert (world.node_of(), world.node_of("default/new"), world.node("n1").status.phase) == (
            "n1",
            "",
            "Ready",
        )


async def test_drain_moves_standalone_workloads_and_reports_done() -> None:
    async with running_world() as world:
        first = await world.join("n1")
        await world.add(a_workload())
        await world.add(a_workload("stopped"))
        await world.run(1)
        await world.change(
            LatticeWorkload,
            "default/stopped",
            lambda spec: msgspec.structs.replace(spec, desired_state="Stopped"),
        )
        await world.run(1)
        await world.join("n2")
        first.hangs = {W}
        await world.set_taints("n1", DRAIN)
        await world.run(3)
        condition = world.condition("n1", "Drained")
        assert condition is not None
        assert (condition.status, world.node("n1").status.phase) == ("False", "Draining")
        assert (world.node_of("default/stopped"), world.node_of()) == ("", "n1")
        first.hangs = set()
        first.connect()
        await world.run(3)
        condition = world.condition("n1", "Drained")
        assert condition is not None
        assert (condition.status, condition.message) == ("True", "No workloads are bound to the node")
        assert (world.node_of(), world.live(), world.overlaps) == ("n2", ["n2"], [])
        assert world.workload().status.retry is not None
        assert world.workload().status.retry.attempts == 0
        await world.stop()
        await world.set_taints("n1")
        await world.lead("two")
        await world.run(2)
        assert (world.condition("n1", "Drained"), world.node("n1").status.phase) == (None, "Ready")


async def test_drain_keeps_budget_and_requests_surge_replica() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.add(a_service_with_minimum("web", 2))
        for slot in (0, 1):
            await world.add(a_workload(f"web-{slot}", service="web", slot=slot))
        await world.run(2)
        await world.join("n2")
        least: list[int] = []
        world.context.cache(LatticeWorkload).on_change(
            lambda _: least.append(
                sum(bool(replica.status.ready) for replica in world.context.cache(LatticeWorkload).objects())
            )
        )
        await world.set_taints("n1", DRAIN)
        await world.run(60)
        assert {world.node_of(f"default/web-{slot}") for slot in (0, 1)} == {"n1"}
        assert [*world.evictions.surges] == ["default/web"]
        await world.add(a_workload("web-2", service="web", slot=2))
        await world.run(5)
        assert {world.node_of(f"default/web-{slot}") for slot in (0, 1, 2)} == {"n2"}
        assert (world.evictions.surges, min(least)) == ({}, 2)


async def test_drain_continues_under_new_leader() -> None:
    async with running_world() as world:
        first = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        await world.join("n2")
        first.hangs = {W}
        await world.set_taints("n1", DRAIN)
        await world.run(3)
        assert world.workload().status.last_action == "ApplyStopped"
        first.hangs = set()
        await world.lead("two")
        await world.run(3)
        assert (world.node_of(), world.live(), world.overlaps) == ("n2", ["n2"], [])


async def test_cancelled_drain_restarts_stopped_workload() -> None:
    async with running_world() as world:
        first = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        first.hangs = {W}
        await world.set_taints("n1", DRAIN)
        await world.run(3)
        await world.set_taints("n1")
        first.hangs = set()
        await world.run(3)
        assert (world.node_of(), world.live(), world.workload().status.actual_state) == (
            "n1",
            ["n1"],
            "Running",
        )


@pytest.mark.parametrize(
    ("seconds", "leaves"),
    [
        pytest.param(None, None, id="for ever"),
        pytest.param(30, 30, id="for a while"),
        pytest.param(0, 0, id="not at all"),
    ],
)
async def test_noexecute_toleration_seconds(seconds: int | None, leaves: int | None) -> None:
    async with running_world() as world:
        await world.join("n1")
        toleration = {"key": "broken", "operator": "Exists"} | (
            {} if seconds is None else {"effect": "NoExecute", "tolerationSeconds": seconds}
        )
        await world.add(a_workload(constraints={"tolerations": [toleration]}))
        await world.run(1)
        await world.join("n2")
        await world.set_taints("n1", BROKEN)
        came = world.clock.monotonic()
        await world.run(10)
        await world.lead("two")  # the new leader does not restart the timeout
        while world.node_of() == "n1" and world.clock.monotonic() < came + 100:
            await world.run(0.5)
        if leaves is None:
            assert world.node_of() == "n1"
        else:
            await world.run(1)
            assert (world.node_of(), world.overlaps) == ("n2", [])
            assert leaves <= world.clock.monotonic() - came <= max(leaves, 10) + 4


async def test_orphan_on_agent_is_reported_once_and_stopped() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        agent.cut()
        agent.holds["default/stray"] = WorkloadReport("other", "Running", "a" * 24, 1)
        count_before = DRIFT.labels("orphan_on_agent")._value.get()
        agent.hangs = {"default/stray"}
        agent.connect()
        await world.run(60)
        assert await world.events("n1") == ["NodeReady", "DriftDetected"]
        assert DRIFT.labels("orphan_on_agent")._value.get() - count_before == 1
        agent.hangs = set()
        agent.connect()
        await world.run(1)
        assert agent.holds == {}


async def test_reports_of_previous_session_are_not_drift() -> None:
    async with running_world() as world:
        first = await world.join("n1")
        await world.add(a_workload(disconnect={"policy": "stop"}))
        await world.run(1)
        await world.join("n2")
        first.cut()
        await world.run(200)
        assert world.node_of() == "n2"
        world.context.presence.start_session("n1")  # connected, without a report yet
        await world.run(1)
        assert "DriftDetected" not in await world.events("w")


async def test_usage_is_live_and_written_on_significant_change() -> None:
    async with running_world() as world:
        agent = await world.join("n1", usage=Usage(1000, 4 << 30, 0))
        await world.run(20)
        assert world.node("n1").status.usage is not None
        assert world.node("n1").status.usage.cpu == 1000
        revision_before = await world.store.revision()
        agent.usage = Usage(1100, 4 << 30, 0)
        await world.run(300)
        assert (await world.store.revision(), world.nodes.usage()["n1"].cpu) == (revision_before, 1100)
        agent.usage = Usage(4000, 4 << 30, 0)
        await world.run(90)
        assert (await world.store.revision(), world.node("n1").status.usage.cpu) == (
            revision_before + 1,
            4000,
        )


async def test_former_leader_marks_no_node() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        old = world.nodes
        agent.cut()
        await world.run(38)
        await world.stop()
        assert await world.store.campaign("leader", "two", 1e9) is not None
        world.clock.jump(5)
        revision_before = await world.store.revision()
        with pytest.raises(Fenced):
            await old.reconcile("/n1")
        assert await world.store.revision() == revision_before
