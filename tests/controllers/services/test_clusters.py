"""Clusters get the machines they want, say what is there, give up what they do not want, and pay until it is gone."""

import asyncio
from typing import Any

import msgspec
import pytest
from build.cluster_yard import NANO, POOL, Yard, a_cluster, a_resident, running_cluster_controller, silent
from build.offices import a, acting, revision_after

from lattice.controllers.services.clusters import MACHINE_FINALIZER
from lattice.errors import Fenced
from lattice.kinds.cluster import RESERVE_LABEL, WorkerPool
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.store.protocol import Delete, RevisionConflict


async def test_cluster_is_ready_once_machines_have_joined() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.scene.put(a_cluster(2))
        await yard.scene.clock.advance(1)
        assert [(each.node, each.size.millicores, each.token) for each in yard.made] == [
            ("north-001-nano-1", 1000, "token-of-north-001-nano-1"),
            ("north-001-nano-2", 1000, "token-of-north-001-nano-2"),
        ]
        node = await yard.node()
        assert node is not None
        assert node.metadata.finalizers == (MACHINE_FINALIZER,)
        assert node.spec.pool == "north"
        assert await yard.phase() == "Provisioning"
        await yard.joined("north-001-nano-1")
        await yard.scene.clock.advance(600)
        assert await yard.phase() == "Provisioning", "time alone changes no phase"
        await yard.joined("north-001-nano-2")
        await yard.scene.clock.advance(6)
        assert await yard.phase() == "Ready"
        cluster = await yard.cluster()
        assert cluster is not None
        assert (cluster.status.nodes, cluster.status.ready_nodes) == (2, 2)
        assert "ClusterReady north-001" in await yard.scene.events()


async def test_converged_cluster_writes_nothing() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        await yard.scene.clock.advance(10)
        first, *later = await revision_after(yard.scene, [100, 100, 100])
        assert set(later) == {first}
        assert len(yard.made) == 1


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
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        await yard.scene.clock.advance(10)
        node, looks, listed = await yard.node(), [], yard.provider.list
        assert node is not None

        async def counted() -> Any:
            looks.append(True)
            return await listed()

        yard.provider.list = counted  # type: ignore[method-assign]
        await yard.scene.put(
            msgspec.convert(
                {**msgspec.to_builtins(node), "status": {**msgspec.to_builtins(node.status), **status}},
                LatticeNode,
            )
        )
        assert bool(looks) is is_looked_at


async def test_status_writes_of_others_do_not_wake_cluster() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        await yard.scene.clock.advance(10)
        cluster, looks, listed = await yard.cluster(), [], yard.provider.list
        assert cluster is not None

        async def counted() -> Any:
            looks.append(True)
            return await listed()

        yard.provider.list = counted  # type: ignore[method-assign]
        await yard.scene.put(
            msgspec.structs.replace(cluster, status=msgspec.structs.replace(cluster.status, workloads=7))
        )
        assert not looks
        await yard.wants(2)
        assert looks


async def test_reserve_label_of_cluster_is_copied_to_nodes() -> None:
    """Also those that are there already; what else is written on them stays."""
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        for labels in ({RESERVE_LABEL: "north"}, {}):
            await yard.scene.put(a_cluster(1, labels=labels))
            await yard.scene.clock.advance(1)
            node = await yard.node()
            assert node is not None
            assert {
                key: value for key, value in node.metadata.labels.items() if key == RESERVE_LABEL
            } == labels
            assert node.metadata.labels["lattice.dev/cluster"] == "north-001"


async def test_ended_machine_is_recreated_under_its_name() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        yard.provider.end_machine("north-001-nano-1")
        await yard.scene.clock.advance(40)
        assert [each.node for each in yard.made] == ["north-001-nano-1"] * 2


async def test_unwanted_machine_is_paid_until_empty_and_removed() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(2)
        await yard.wants(2)
        for number in (1, 2):
            await yard.joined(f"north-001-nano-{number}")
            spec = {"containers": {"main": {"command": ["true"]}}, "cluster": "north-001"}
            status = {"binding": {"node": f"north-001-nano-{number}"}}
            await yard.scene.put(a(LatticeWorkload, f"w{number}", "default", spec=spec, status=status))
        await yard.wants(1)
        await yard.scene.clock.advance(60)
        node = await yard.node()
        assert node is not None
        assert node.metadata.deletion_timestamp, "it is given up"
        assert len(await yard.provider.list()) == 2, "but not removed with work on it"
        assert await yard.paid() == 2
        await yard.scene.remove(
            a(LatticeWorkload, "w1", "default", spec={"containers": {"main": {"command": ["true"]}}})
        )
        await yard.scene.clock.advance(6)
        assert await yard.node() is None
        assert [each.node for each in await yard.provider.list()] == ["north-001-nano-2"]
        assert await yard.paid() == 1
        assert await yard.phase() == "Ready"


async def test_unwanted_dead_machine_goes_with_deleted_workloads() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(1)
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        await yard.scene.put(a_resident("going", desiredState="Deleted"), a_resident("moves"))
        await silent(yard, "north-001-nano-1")
        await yard.wants(0)
        await yard.scene.clock.advance(60)
        assert await yard.node() is not None, "what may still run there is put elsewhere first"
        await yard.scene.remove(a_resident("moves"))
        await yard.scene.clock.advance(60)
        assert (await yard.node(), await yard.paid(), list(await yard.provider.list())) == (None, 0, [])


async def test_machine_lost_by_provider_is_replaced_by_new_node() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(1)
        await yard.wants(1)
        await yard.joined("north-001-nano-1")
        await yard.scene.put(a_resident("going", desiredState="Deleted"), a_resident("moves"))
        before = await yard.node()
        assert before is not None
        lost = asyncio.create_task(yard.provider.delete("north-001-nano-1"))
        await yard.scene.clock.advance(60)
        await lost
        assert len(yard.made) == 1, "its agent is heard: it is there"
        await silent(yard, "north-001-nano-1")
        await yard.scene.clock.advance(60)
        after = await yard.node()
        assert after is not None
        assert after.metadata.uid != before.metadata.uid, (
            "whoever was bound to the old one knows that it is gone"
        )
        assert (len(yard.made), await yard.paid()) == (2, 1)


async def test_empty_cluster_is_deleted_and_its_number_recorded() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(1)
        await yard.wants(1)
        await yard.wants(0)
        await yard.scene.clock.advance(60)
        assert (
            await yard.node(),
            await yard.phase(),
            await yard.paid(),
            list(await yard.provider.list()),
        ) == (None, "gone", 0, [])
        book = await yard.scene.get(LatticeLedger, "pool.north")
        assert book is not None
        assert book.status.last_cluster == 1, "where it is not given twice, whatever becomes of the pool"


async def test_deleted_cluster_loses_its_machines() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.wants(1)
        await yard.scene.remove(a_cluster())
        await yard.scene.clock.advance(60)
        assert list(await yard.provider.list()) == []
        assert await yard.node() is None


async def test_provider_rejection_is_shown_and_retried() -> None:
    async with running_cluster_controller() as (yard, _):
        yard.provider.quota = 1
        await yard.wants(2)
        cluster = await yard.cluster()
        assert cluster is not None
        assert "quota of machines is used up" in cluster.status.message
        assert cluster.status.conditions[0].reason == "ProviderRefused"
        assert await yard.phase() == "Provisioning"
        assert len(await yard.scene.all(LatticeNode)) == 1, "no node waits for a machine that cannot be had"
        (pool,) = cluster.status.worker_pools.items()
        assert pool == ("nano", WorkerPool(desired=2, current=1, ready=0, message=cluster.status.message))
        yard.provider.quota = None
        await yard.scene.clock.advance(20)
        assert len(await yard.provider.list()) == 2


async def test_unavailable_provider_changes_no_phase() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.wants(2)
        for number in (1, 2):
            await yard.joined(f"north-001-nano-{number}")
        await yard.scene.clock.advance(6)
        before = await yard.scene.events()
        for refusing in ("503 from the cloud's API", "") * 3:
            yard.provider.outage_reason = refusing
            await yard.scene.clock.advance(40)
            cluster = await yard.cluster()
            assert cluster is not None
            said = {each.type: (each.status, each.reason) for each in cluster.status.conditions}
            assert said == {
                "Ready": ("True", "NodesReady"),
                "ProviderReady": ("False", "ProviderUnreachable") if refusing else ("True", "Answers"),
            }
            assert (cluster.status.phase, cluster.status.ready_workers) == ("Ready", 2)
        assert await yard.scene.events() == before


async def test_permanently_rejected_cluster_fails_until_changed() -> None:
    async with running_cluster_controller() as (yard, _):
        yard.provider.regions = frozenset({"south"})
        await yard.wants(1)
        cluster = await yard.cluster()
        assert cluster is not None
        assert (cluster.status.phase, cluster.status.conditions[0].reason) == ("Failed", "ProviderRejected")
        assert "region north is not offered; there are south" in cluster.status.message
        assert "ClusterFailed north-001" in await yard.scene.events()
        assert await yard.scene.all(LatticeNode) == []
        yard.provider.regions = None
        await yard.scene.clock.advance(40)
        await yard.joined("north-001-nano-1")
        await yard.scene.clock.advance(6)
        assert await yard.phase() == "Ready"


async def test_conflicting_node_is_deleted_on_next_reconcile() -> None:
    async with running_cluster_controller() as (yard, controller):
        name, presence, commit = "north-001-nano-1", controller.context.presence, yard.scene.store.commit
        was_known: list[bool] = []

        async def contested(writes: Any, *words: Any, **more: Any) -> int:
            removed = [each.key for each in writes if isinstance(each, Delete) and each.key.name == name]
            if removed and len(was_known) < 10:
                was_known.append(presence.get(name) is not None)
                raise RevisionConflict(removed[0], 1, 2)
            return await commit(writes, *words, **more)

        await yard.wants(1)
        await yard.joined(name)
        presence.start_session(name)
        yard.scene.store.commit = contested  # type: ignore[method-assign]
        await yard.wants(0)
        cluster = await yard.cluster()
        assert cluster is not None
        assert "ProviderRefused" not in {each.reason for each in cluster.status.conditions}
        await yard.scene.clock.advance(10)
        assert (was_known, await yard.node(), presence.get(name)) == ([True] * 10, None, None)


async def test_missing_provider_adapter_is_reported() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.scene.put(a_cluster(1, provider="aws"))
        await yard.scene.clock.advance(1)
        cluster = await yard.cluster()
        assert cluster is not None
        assert cluster.status.conditions[0].reason == "ProviderUnavailable"
        assert await yard.node() is None


@pytest.mark.parametrize("fatal", range(1, 9), ids=lambda number: f"commit {number}")
async def test_new_leader_finishes_after_crash_at_any_commit(fatal: int) -> None:
    yard = Yard()
    await yard.scene.put(NANO, POOL)
    await yard.pays(2)
    await yard.scene.put(a_cluster(2))
    first = await yard.controller()
    count = 0
    commit = yard.scene.store.commit

    async def mortal(*words: Any, **more: Any) -> int:
        nonlocal count
        count += 1
        if count > fatal:
            raise Fenced("this server is dead", fix="")
        return await commit(*words, **more)

    yard.scene.store.commit = mortal  # type: ignore[method-assign]
    async with acting(first.context, first.loop()):
        await yard.scene.clock.advance(30)
    yard.scene.store.commit = commit  # type: ignore[method-assign]
    second = await yard.controller()
    async with acting(second.context, second.loop()):
        await yard.scene.clock.advance(30)
        assert {each.node for each in await yard.provider.list()} == {
            "north-001-nano-1",
            "north-001-nano-2",
        }
        assert {each.metadata.name for each in await yard.scene.all(LatticeNode)} == {
            "north-001-nano-1",
            "north-001-nano-2",
        }
        await yard.wants(0)
        await yard.scene.clock.advance(30)
        assert list(await yard.provider.list()) == []
        assert await yard.paid() == 0
