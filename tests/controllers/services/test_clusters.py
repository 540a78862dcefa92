"""Clusters create the machines they want, report them, release unwanted ones, and pay until a machine is
gone."""

import asyncio
from typing import Any

import msgspec
import pytest
from build.cluster_world import (
    NANO,
    POOL,
    ClusterWorld,
    a_bound_workload,
    a_cluster,
    miss_heartbeats,
    running_cluster_controller,
)
from build.control_plane import revision_after, running_loops
from build.objects import make_object

from lattice.controllers.services.cluster_nodes import MACHINE_FINALIZER
from lattice.errors import Fenced
from lattice.kinds.cluster import RESERVE_LABEL, WorkerPool
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.store.protocol import Delete, RevisionConflict


async def test_cluster_is_ready_once_machines_have_joined() -> None:
    async with running_cluster_controller() as (world, _):
        await world.plane.put(a_cluster(2))
        await world.plane.clock.advance(1)
        assert [(machine.node, machine.size.millicores, machine.token) for machine in world.created] == [
            ("north-001-nano-1", 1000, "token-of-north-001-nano-1"),
            ("north-001-nano-2", 1000, "token-of-north-001-nano-2"),
        ]
        node = await world.node()
        assert node is not None
        assert node.metadata.finalizers == (MACHINE_FINALIZER,)
        assert node.spec.pool == "north"
        assert await world.phase() == "Provisioning"
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(600)
        assert await world.phase() == "Provisioning", "time alone changes no phase"
        await world.join("north-001-nano-2")
        await world.plane.clock.advance(6)
        assert await world.phase() == "Ready"
        cluster = await world.cluster()
        assert cluster is not None
        assert (cluster.status.nodes, cluster.status.ready_nodes) == (2, 2)
        assert "ClusterReady north-001" in await world.plane.events()


async def test_converged_cluster_writes_nothing() -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(10)
        first, *later = await revision_after(world.plane, [100, 100, 100])
        assert set(later) == {first}
        assert len(world.created) == 1


@pytest.mark.parametrize(
    ("status", "is_looked_at"),
    [
        pytest.param({"workloads": 7}, False, id="workload count does not wake the cluster"),
        pytest.param({"usage": {"cpu": 900}}, False, id="usage does not wake the cluster"),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeLost"}]},
            True,
            id="a lost node wakes the cluster",
        ),
        pytest.param({"agentVersion": ""}, True, id="a node that has not joined wakes the cluster"),
    ],
)
async def test_relevant_node_change_wakes_cluster(status: dict[str, Any], is_looked_at: bool) -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(10)
        node, looks, listed = await world.node(), [], world.provider.list
        assert node is not None

        async def counted() -> Any:
            looks.append(True)
            return await listed()

        world.provider.list = counted  # type: ignore[method-assign]
        await world.plane.put(
            msgspec.convert(
                {**msgspec.to_builtins(node), "status": {**msgspec.to_builtins(node.status), **status}},
                LatticeNode,
            )
        )
        assert bool(looks) is is_looked_at


async def test_status_writes_of_others_do_not_wake_cluster() -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(10)
        cluster, looks, listed = await world.cluster(), [], world.provider.list
        assert cluster is not None

        async def counted() -> Any:
            looks.append(True)
            return await listed()

        world.provider.list = counted  # type: ignore[method-assign]
        await world.plane.put(
            msgspec.structs.replace(cluster, status=msgspec.structs.replace(cluster.status, workloads=7))
        )
        assert not looks
        await world.scale(2)
        assert looks


async def test_reserve_label_of_cluster_is_copied_to_nodes() -> None:
    """Existing nodes get the label too; their other labels stay."""
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        for labels in ({RESERVE_LABEL: "north"}, {}):
            await world.plane.put(a_cluster(1, labels=labels))
            await world.plane.clock.advance(1)
            node = await world.node()
            assert node is not None
            assert {
                key: value for key, value in node.metadata.labels.items() if key == RESERVE_LABEL
            } == labels
            assert node.metadata.labels["lattice.dev/cluster"] == "north-001"


async def test_ended_machine_is_recreated_under_its_name() -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.join("north-001-nano-1")
        world.provider.end_machine("north-001-nano-1")
        await world.plane.clock.advance(40)
        assert [machine.node for machine in world.created] == ["north-001-nano-1"] * 2
        reasons = [event.reason for event in await world.plane.all(Event)]
        assert reasons.count("MachineRestarted") == 1


async def test_unwanted_machine_is_paid_until_empty_and_removed() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(2)
        await world.scale(2)
        for number in (1, 2):
            await world.join(f"north-001-nano-{number}")
            spec = {"containers": {"main": {"command": ["true"]}}, "cluster": "north-001"}
            status = {"binding": {"node": f"north-001-nano-{number}"}}
            await world.plane.put(
                make_object(LatticeWorkload, f"w{number}", "default", spec=spec, status=status)
            )
        await world.scale(1)
        await world.plane.clock.advance(60)
        node = await world.node()
        assert node is not None
        assert node.metadata.deletion_timestamp, "it is given up"
        assert len(await world.provider.list()) == 2, "but not removed with work on it"
        assert await world.paid() == 2
        await world.plane.remove(
            make_object(
                LatticeWorkload, "w1", "default", spec={"containers": {"main": {"command": ["true"]}}}
            )
        )
        await world.plane.clock.advance(6)
        assert await world.node() is None
        assert [machine.node for machine in await world.provider.list()] == ["north-001-nano-2"]
        assert await world.paid() == 1
        assert await world.phase() == "Ready"


async def test_unwanted_dead_machine_goes_with_deleted_workloads() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(1)
        await world.scale(1)
        await world.join("north-001-nano-1")
        await world.plane.put(a_bound_workload("going", desiredState="Deleted"), a_bound_workload("moves"))
        await miss_heartbeats(world, "north-001-nano-1")
        await world.scale(0)
        await world.plane.clock.advance(60)
        assert await world.node() is not None, "what may still run there is put elsewhere first"
        await world.plane.remove(a_bound_workload("moves"))
        await world.plane.clock.advance(60)
        assert (await world.node(), await world.paid(), list(await world.provider.list())) == (None, 0, [])


async def test_machine_lost_by_provider_is_replaced_by_new_node() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(1)
        await world.scale(1)
        await world.join("north-001-nano-1")
        await world.plane.put(a_bound_workload("going", desiredState="Deleted"), a_bound_workload("moves"))
        node_before = await world.node()
        assert node_before is not None
        lost = asyncio.create_task(world.provider.delete("north-001-nano-1"))
        await world.plane.clock.advance(60)
        await lost
        assert len(world.created) == 1, "its agent is heard: it is there"
        await miss_heartbeats(world, "north-001-nano-1")
        await world.plane.clock.advance(60)
        after = await world.node()
        assert after is not None
        assert after.metadata.uid != node_before.metadata.uid, (
            "a binding to the old node shows that it is gone"
        )
        assert (len(world.created), await world.paid()) == (2, 1)


async def test_empty_cluster_is_deleted_and_its_number_recorded() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(1)
        await world.scale(1)
        await world.scale(0)
        await world.plane.clock.advance(60)
        assert (
            await world.node(),
            await world.phase(),
            await world.paid(),
            list(await world.provider.list()),
        ) == (None, "gone", 0, [])
        book = await world.plane.get(LatticeLedger, "pool.north")
        assert book is not None
        assert book.status.last_cluster == 1, "where it is not given twice, whatever becomes of the pool"


async def test_deleted_cluster_loses_its_machines() -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(1)
        await world.plane.remove(a_cluster())
        await world.plane.clock.advance(60)
        assert list(await world.provider.list()) == []
        assert await world.node() is None


async def test_provider_rejection_is_shown_and_retried() -> None:
    async with running_cluster_controller() as (world, _):
        world.provider.quota = 1
        await world.scale(2)
        cluster = await world.cluster()
        assert cluster is not None
        assert "machine quota is used up" in cluster.status.message
        assert cluster.status.conditions[0].reason == "ProviderRefused"
        assert await world.phase() == "Provisioning"
        assert len(await world.plane.all(LatticeNode)) == 1, "no node waits for a machine that cannot be had"
        (pool,) = cluster.status.worker_pools.items()
        assert pool == ("nano", WorkerPool(desired=2, current=1, ready=0, message=cluster.status.message))
        world.provider.quota = None
        await world.plane.clock.advance(20)
        assert len(await world.provider.list()) == 2


async def test_unavailable_provider_changes_no_phase() -> None:
    async with running_cluster_controller() as (world, _):
        await world.scale(2)
        for number in (1, 2):
            await world.join(f"north-001-nano-{number}")
        await world.plane.clock.advance(6)
        before = await world.plane.events()
        for refusing in ("503 from the cloud's API", "") * 3:
            world.provider.outage_reason = refusing
            await world.plane.clock.advance(40)
            cluster = await world.cluster()
            assert cluster is not None
            said = {
                condition.type: (condition.status, condition.reason)
                for condition in cluster.status.conditions
            }
            assert said == {
                "Ready": ("True", "NodesReady"),
                "ProviderReady": ("False", "ProviderUnreachable") if refusing else ("True", "Answers"),
            }
            assert (cluster.status.phase, cluster.status.ready_workers) == ("Ready", 2)
        assert await world.plane.events() == before


async def test_permanently_rejected_cluster_fails_until_changed() -> None:
    async with running_cluster_controller() as (world, _):
        world.provider.regions = frozenset({"south"})
        await world.scale(1)
        cluster = await world.cluster()
        assert cluster is not None
        assert (cluster.status.phase, cluster.status.conditions[0].reason) == ("Failed", "ProviderRejected")
        assert "region north is not available; available regions: south" in cluster.status.message
        assert "ClusterFailed north-001" in await world.plane.events()
        assert await world.plane.all(LatticeNode) == []
        world.provider.regions = None
        await world.plane.clock.advance(40)
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(6)
        assert await world.phase() == "Ready"


async def test_conflicting_node_is_deleted_on_next_reconcile() -> None:
    async with running_cluster_controller() as (world, controller):
        name, presence, commit = "north-001-nano-1", controller.context.presence, world.plane.store.commit
        was_known: list[bool] = []

        async def contested(writes: Any, *words: Any, **more: Any) -> int:
            removed = [write.key for write in writes if isinstance(write, Delete) and write.key.name == name]
            if removed and len(was_known) < 10:
                was_known.append(presence.get(name) is not None)
                raise RevisionConflict(removed[0], 1, 2)
            return await commit(writes, *words, **more)

        await world.scale(1)
        await world.join(name)
        presence.start_session(name)
        world.plane.store.commit = contested  # type: ignore[method-assign]
        await world.scale(0)
        cluster = await world.cluster()
        assert cluster is not None
        assert "ProviderRefused" not in {condition.reason for condition in cluster.status.conditions}
        await world.plane.clock.advance(10)
        assert (was_known, await world.node(), presence.get(name)) == ([True] * 10, None, None)


async def test_missing_provider_adapter_is_reported() -> None:
    async with running_cluster_controller() as (world, _):
        await world.plane.put(a_cluster(1, provider="aws"))
        await world.plane.clock.advance(1)
        cluster = await world.cluster()
        assert cluster is not None
        assert cluster.status.conditions[0].reason == "ProviderUnavailable"
        assert await world.node() is None


@pytest.mark.parametrize("fatal", range(1, 9), ids=lambda number: f"commit {number}")
async def test_new_leader_finishes_after_crash_at_any_commit(fatal: int) -> None:
    world = ClusterWorld()
    await world.plane.put(NANO, POOL)
    await world.pay(2)
    await world.plane.put(a_cluster(2))
    first = await world.controller()
    count = 0
    commit = world.plane.store.commit

    async def mortal(*words: Any, **more: Any) -> int:
        nonlocal count
        count += 1
        if count > fatal:
            raise Fenced("this server is dead", fix="")
        return await commit(*words, **more)

    world.plane.store.commit = mortal  # type: ignore[method-assign]
    async with running_loops(first.context, first.loop()):
        await world.plane.clock.advance(30)
    world.plane.store.commit = commit  # type: ignore[method-assign]
    second = await world.controller()
    async with running_loops(second.context, second.loop()):
        await world.plane.clock.advance(30)
        assert {machine.node for machine in await world.provider.list()} == {
            "north-001-nano-1",
            "north-001-nano-2",
        }
        assert {node.metadata.name for node in await world.plane.all(LatticeNode)} == {
            "north-001-nano-1",
            "north-001-nano-2",
        }
        await world.scale(0)
        await world.plane.clock.advance(30)
        assert list(await world.provider.list()) == []
        assert await world.paid() == 0
