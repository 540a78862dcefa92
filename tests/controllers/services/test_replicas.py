"""Workloads follow from placements: created in batches, replaced one by one, and removed through their
lifecycle."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from build.service_world import contents, puts, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_pool, a_service, make_valid_object

from lattice.controllers.services.placement import FLEET_KEY
from lattice.errors import Fenced
from lattice.kinds.meta.base import Condition
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, compute_revision
from lattice.lifecycle.eviction import DecidedEviction, EvictionCause
from lattice.store.memory import MemoryStore


def with_image(service: LatticeService, image: str) -> LatticeService:
    containers = {
        name: msgspec.structs.replace(each, image=image) for name, each in service.spec.containers.items()
    }
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, containers=containers))


def detailed() -> LatticeService:
    spec = {
        "containers": {
            "main": {"command": ["serve"], "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}
        },
        "placement": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        "replicas": {"min": 1},
        "priority": 7,
        "disconnect": {"policy": "stop", "stopAfter": "60s"},
        "spread": [{"topologyKey": "node"}, {"topologyKey": "region", "whenUnsatisfiable": "ScheduleAnyway"}],
    }
    return make_valid_object(LatticeService, "api", spec, {"team": "blue"}, "default")


async def test_workload_carries_every_field_of_service() -> None:
    async with running_fleet(a_class(labels={"disk": "ssd"}), a_pool(), detailed()) as fleet:
        await fleet.converge()
        (found,) = fleet.workloads()
        meta, spec, service = found.metadata, found.spec, fleet.service()
        assert (meta.name, meta.finalizers) == ("api-0", ("lattice.dev/workload",))
        assert meta.labels == {"team": "blue", "lattice.dev/service": "api"}
        (owner,) = meta.owner_references
        assert (owner.kind, owner.name, owner.uid, owner.controller) == (
            "LatticeService",
            "api",
            service.metadata.uid,
            True,
        )
        assert (spec.service, spec.slot, spec.cluster, spec.priority) == ("api", 0, "p1-001", 7)
        assert spec.request_amounts == {"cpu": 250, "memory": 1 << 30}
        assert spec.constraints.node_selector == {"disk": "ssd", "lattice.dev/node-class": "m"}
        assert spec.constraints.tolerations == service.spec.placement.tolerations
        assert [rule.topology_key for rule in spec.constraints.spread] == ["node"]
        assert spec.disconnect == service.spec.disconnect
        assert spec.revision == compute_revision(spec)
        assert not list(found.problems())


async def test_service_requests_apply_where_containers_have_none() -> None:
    async with running_fleet(
        a_class(gpu=2, gpu_model="a100"),
        a_pool(),
        a_service(cores=0.5, memory=2, gpu=0.5, gpuModel="a100"),
    ) as fleet:
        await fleet.converge()
        (found,) = fleet.workloads()
        assert found.spec.request_amounts == fleet.service().spec.requests
        assert found.spec.constraints.gpu_models == ("a100",)


async def test_no_workloads_before_current_spec_is_placed() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.replicas.reconcile("default/api")
        assert fleet.workloads() == []
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(with_image(a_service(replicas=3), "app:2"))
        await fleet.replicas.reconcile("default/api")
        assert len(fleet.workloads()) == 1
        await fleet.apply(a_service(replicas=3))
        await fleet.converge()
        assert len(fleet.workloads()) == 3
        assert [event.message for event in await fleet.events("ScaledUp")] == [
            "Scaling from 0 to 1 replicas",
            "Scaling from 1 to 3 replicas",
        ]


async def test_10000_workloads_are_created_in_100_commits() -> None:
    async with running_fleet(a_class("m", 64, 256), a_pool(), a_service(replicas=10_000, cores=0.5)) as fleet:
        await fleet.services.reconcile(FLEET_KEY)
        revision_before = await fleet.store.revision()
        await fleet.replicas.reconcile("default/api")
        assert len(fleet.workloads()) == 10_000
        assert await fleet.store.revision() - revision_before == 101  # the event of it is in the first
        assert sorted(replica.spec.slot for replica in fleet.workloads()) == list(range(10_000))
        revision_before = await fleet.store.revision()
        await fleet.replicas.reconcile("default/api")
        assert await fleet.store.revision() == revision_before


async def test_scale_down_removes_highest_slots() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=4)) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(a_service(replicas=2))
        await fleet.converge()
        assert [replica.spec.slot for replica in fleet.live()] == [0, 1]
        assert [replica.metadata.finalizers for replica in fleet.workloads()][2:] == [
            ("lattice.dev/workload",)
        ] * 2
        assert (await fleet.events("ScaledDown"))[0].message == "Scaling from 4 to 2 replicas"
        await fleet.apply(a_service(replicas=3))
        await fleet.converge()
        assert [replica.spec.slot for replica in fleet.live()] == [0, 1, 4], (
            "a slot is free when its last holder is gone"
        )
        await fleet.finish_deletions()
        await fleet.apply(a_service(replicas=4))
        await fleet.converge()
        assert [replica.spec.slot for replica in fleet.live()] == [0, 1, 2, 4]


async def test_rollout_replaces_one_by_one_without_shortfall() -> None:
    service = a_service(replicas=3)
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        await fleet.converge()
        await fleet.bind()
        old = fleet.live()[0].spec.revision
        await fleet.apply(with_image(service, "app:2"))
        seen = []
        for _ in range(20):
            await fleet.converge()
            live = fleet.live()
            seen.append(len(live))
            assert sum(each.status.ready is True for each in live) >= 3
            assert len(fleet.workloads()) <= 4
            await fleet.bind()
            await fleet.finish_deletions()
            if not any(replica.spec.revision == old for replica in fleet.workloads()):
                break
        await fleet.converge()
        assert {replica.spec.revision for replica in fleet.live()} == {compute_revision(fleet.live()[0].spec)}
        assert len(fleet.live()) == 3
        assert max(seen) == 4
        progress = fleet.condition("Progressing")
        assert progress is not None
        assert (progress.status, progress.reason) == ("False", "Complete")
        assert [
            len(await fleet.events(reason)) for reason in ("RolloutStarted", "RolloutDone", "ScaledDown")
        ] == [1, 1, 0]


async def test_rollout_of_replicas_that_are_down_ends_with_ready_ones() -> None:
    service = a_service(replicas=2)
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        await fleet.converge()
        for replica in fleet.live():
            await fleet.change(replica, actual_state="Failed", ready=False, failure_reason="RUNTIME_ERROR")
        await fleet.apply(with_image(service, "app:2"))
        for _ in range(3):
            await fleet.converge()
            await fleet.finish_deletions()
        assert fleet.condition("Progressing").reason == "RollingOut"  # type: ignore[union-attr]
        assert await fleet.events("RolloutDone") == [], "no new replica is ready yet"
        await fleet.bind()
        await fleet.converge()
        assert fleet.condition("Progressing").reason == "Complete"  # type: ignore[union-attr]
        assert len(await fleet.events("RolloutDone")) == 1


async def test_failing_rollout_pauses_and_yields_to_next_revision() -> None:
    service = a_service(replicas=2)
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(with_image(service, "wrong:1"))
        await fleet.converge()
        (broken,) = [replica for replica in fleet.live() if replica.status.binding is None]
        await fleet.change(broken, actual_state="Failed", ready=False, failure_reason="IMAGE_NOT_FOUND")
        await fleet.converge()
        progress = fleet.condition("Progressing")
        assert progress is not None
        assert (progress.status, progress.reason) == ("False", "IMAGE_NOT_FOUND")
        assert len(fleet.live()) == 3
        assert len(await fleet.events("RolloutPaused")) == 1
        await fleet.apply(service)
        await fleet.converge()
        await fleet.finish_deletions()
        await fleet.converge()
        assert [replica.metadata.name for replica in fleet.live()] == ["api-0", "api-1"]
        assert fleet.condition("Progressing").reason == "Complete"  # type: ignore[union-attr]


async def test_rollout_goes_on_after_a_failure_that_passed() -> None:
    """Another program held the port: the surge replica is restarted, and becomes ready in the end."""
    service = a_service(replicas=2)
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(with_image(service, "next:1"))
        await fleet.converge()
        (surge,) = [replica for replica in fleet.live() if replica.status.binding is None]
        await fleet.change(surge, actual_state="Failed", ready=False, failure_reason="PORT_BIND_CONFLICT")
        await fleet.converge()
        progress = fleet.condition("Progressing")
        assert progress is not None
        assert (progress.status, progress.reason) == ("False", "PORT_BIND_CONFLICT")
        for _ in range(3):
            await fleet.bind()
            await fleet.converge()
            await fleet.finish_deletions()
            await fleet.converge()
        await fleet.bind()
        await fleet.converge()
        assert fleet.condition("Progressing").reason == "Complete"  # type: ignore[union-attr]
        assert {replica.spec.containers["main"].image for replica in fleet.live()} == {"next:1"}


async def test_rollout_moves_one_by_one_to_larger_machines() -> None:
    classes = [a_class("m", 4, 16, 0.2), a_class("l", 16, 64, 0.7)]
    async with running_fleet(*classes, a_pool(classes=["m", "l"]), a_service(replicas=2, cores=3)) as fleet:
        await fleet.converge()
        await fleet.bind()
        assert fleet.placed() == {("p1-001", "m"): 2}
        await fleet.apply(a_service(replicas=2, cores=6))
        for _ in range(12):
            await fleet.converge()
            assert sum(replica.status.ready is True for replica in fleet.live()) >= 2
            await fleet.bind()
            await fleet.finish_deletions()
        await fleet.converge()
        assert Counter(
            replica.spec.constraints.node_selector["lattice.dev/node-class"] for replica in fleet.live()
        ) == Counter(l=2)
        assert fleet.machines() == {"p1-001": {"l": 1}}


async def test_fields_without_restart_change_in_place() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        before = [(replica.metadata.uid, replica.spec.revision) for replica in fleet.live()]
        await fleet.apply(a_service(replicas=2, priority=9))
        await fleet.converge()
        assert [(replica.metadata.uid, replica.spec.revision) for replica in fleet.live()] == before
        assert [replica.spec.priority for replica in fleet.live()] == [9, 9]
        assert [replica.status.binding is not None for replica in fleet.live()] == [True, True]


async def test_replicas_of_former_service_of_same_name_are_foreign() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.remove(LatticeService, "api", "default")
        await fleet.apply(a_service(replicas=2))
        await fleet.converge()
        mine = [
            replica
            for replica in fleet.workloads()
            if replica.metadata.owner_references[0].uid == fleet.service().metadata.uid
        ]
        assert [each.spec.slot for each in mine] == [2, 3]


async def test_terminating_service_gets_no_new_workloads() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.remove(LatticeService, "api", "default")
        await fleet.replicas.reconcile("default/api")
        assert fleet.all(LatticeWorkload) == []


async def test_former_leader_creates_no_workloads() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        await fleet.store.campaign("controllers", "me", 15.0)
        with pytest.raises(Fenced):
            await fleet.replicas.reconcile("default/api")
        assert fleet.workloads() == []


async def test_running_loops_create_workloads_after_changes() -> None:
    """The test does not call the controllers: their loops react to applied objects and changes."""
    async with running_fleet(a_class(), a_pool()) as fleet:
        loops = [asyncio.create_task(each.loop().run()) for each in (fleet.services, fleet.replicas)]
        await fleet.clock.advance(1)
        await fleet.apply(a_service(replicas=2), a_service("web"))
        await fleet.clock.advance(2)
        assert (len(fleet.live()), len(fleet.live("web"))) == (2, 1)
        await fleet.apply(a_service(replicas=5))
        await fleet.clock.advance(2)
        assert len(fleet.live()) == 5
        await fleet.bind()
        await fleet.clock.advance(61)
        revision_before = await fleet.store.revision()
        await fleet.clock.advance(600)
        assert await fleet.store.revision() == revision_before, "a converged system writes nothing"
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def test_rollout_result_is_the_same_after_restart() -> None:
    service, states = a_service(replicas=3), []
    for restarts in (False, True):
        clock = VirtualClock()
        store = MemoryStore(clock)
        await store.commit(puts([a_class(), a_pool(), service]))
        found: dict[str, Any] = {}
        changes = [None, with_image(service, "app:2")]
        for change in changes:
            for _ in range(12):
                async with running_fleet(store=store, clock=clock) as fleet:
                    if change is not None:
                        await fleet.apply(change)
                        change = None
                    for _ in range(1 if restarts else 3):
                        await fleet.converge()
                        await fleet.bind()
                        await fleet.finish_deletions()
                    await fleet.converge()
            found = await contents(store, LatticeWorkload)
        states.append(sorted(each["spec"]["revision"] for each in found.values()))
    assert states[0] == states[1]
    assert len(states[0]) == 3
    assert len(set(states[0])) == 1


async def test_surge_replica_runs_during_drain_only() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        waiting: dict[str, str] = {"default/api": "default/api-1"}
        fleet.replicas.surges = lambda: waiting
        await fleet.converge()
        assert [replica.metadata.name for replica in fleet.workloads()] == ["api-0", "api-1", "api-2"]
        await fleet.bind()
        await fleet.converge()
        assert len(fleet.workloads()) == 3
        waiting.clear()
        await fleet.converge()
        assert sum(replica.metadata.deletion_timestamp is None for replica in fleet.workloads()) == 2


async def test_surge_replica_goes_once_evicted_one_is_ready() -> None:
    """A replica that becomes ready wakes the service, since it decides which replica elsewhere is removed."""
    apart = [{"topologyKey": "region"}]
    async with running_fleet(
        a_class(), a_pool("p1"), a_pool("p2"), a_service(replicas=2, spread=apart)
    ) as fleet:
        await fleet.converge()
        await fleet.bind()
        moved, other = fleet.workloads()
        assert moved.spec.cluster != other.spec.cluster
        waiting: dict[str, str] = {"default/api": f"default/{other.metadata.name}"}
        fleet.replicas.surges = lambda: waiting
        await fleet.converge()
        await fleet.bind()
        await fleet.change(moved, ready=False)
        waiting.clear()
        await fleet.converge()
        assert len(fleet.live()) == 3
        woken: list[str] = []
        copy = fleet.context.cache(LatticeWorkload)
        copy.on_change(lambda change: woken.extend(fleet.replicas.keys_for_workload(change)))
        await fleet.change(moved, ready=True)
        assert woken == ["default/api"]
        await fleet.converge()
        assert len(fleet.live()) == 2


@pytest.mark.parametrize("is_victim", [False, True], ids=["by the drain", "as a victim, not stored yet"])
async def test_continued_drain_removes_evicted_replica(is_victim: bool) -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        waiting = {"default/api": "default/api-0"}
        fleet.replicas.surges = lambda: waiting
        await fleet.converge()
        await fleet.bind()
        waiting.clear()
        replica = next(each for each in fleet.live() if each.metadata.name == "api-0")
        assert replica.status.binding is not None
        drained = DecidedEviction(EvictionCause.DRAIN, "the node is being drained")
        evictions, node = fleet.replicas.evictions, replica.status.binding.node
        if is_victim:
            evictions.add_victim(node, "default/api-0", "default/high")
        else:
            evictions.decide_for_node(node, {"default/api-0": drained})
        await fleet.converge()
        assert [replica.metadata.name for replica in fleet.live()] == ["api-1", "api-2"]


async def test_surge_replica_runs_for_drain_during_move() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        fleet.replicas.surges = lambda: {"default/api": "default/api-1"}
        service = fleet.service()
        moved = tuple(
            msgspec.structs.replace(placement, cluster="p1-002") for placement in service.status.placements
        )
        elsewhere = msgspec.structs.replace(
            service, status=msgspec.structs.replace(service.status, placements=moved)
        )
        assert fleet.replicas._desired_replicas(elsewhere) == {("p1-002", "m"): 3}


async def test_rollout_without_surge_capacity_reports_and_resumes() -> None:
    service = a_service(replicas=2)
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        loop = asyncio.create_task(fleet.replicas.loop().run())
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(with_image(service, "app:2"))
        await fleet.converge()
        (waiting,) = [replica for replica in fleet.live() if replica.status.binding is None]
        condition = Condition(
            type="Scheduled",
            status="False",
            reason="NoNodeFits",
            message="0 of 1 node: 1 without 1 cpu free",
        )
        short = {"what": "cpu", "need": "1", "have": "500m", "missing": "500m"}
        await fleet.change(
            waiting, conditions=(condition,), decision={"nearest": {"node": "n1", "short": [short]}}
        )
        await fleet.clock.advance(1)
        progress = fleet.condition("Progressing")
        assert progress is not None
        assert (progress.status, progress.reason) == ("False", "NoRoomForSurge")
        why = "0 of 1 node: 1 without 1 cpu free; nearest is n1: cpu need 1, have 500m, missing 500m"
        assert why in progress.message
        assert len(await fleet.events("RolloutPaused")) == 1
        revision_before = await fleet.store.revision()
        await fleet.clock.advance(600)
        assert (len(fleet.live()), await fleet.store.revision()) == (3, revision_before), (
            "never fewer than are wanted, however long it takes"
        )
        await fleet.bind()
        await fleet.clock.advance(1)
        assert fleet.condition("Progressing").reason == "RollingOut"  # type: ignore[union-attr]
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
