"""The scheduling controller binds each workload once, never overcommits a node, and reports why a workload is
unschedulable."""

import asyncio
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import a_virtual_world, running_scheduler
from build.virtual import settle

from lattice.controllers.runtime.loop import run_all
from lattice.controllers.runtime.object_writes import with_metadata
from lattice.errors import Fenced
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import WORKLOAD_FINALIZER, Binding, LatticeWorkload, Retry


def condition(workload: LatticeWorkload, kind: str) -> Condition | None:
    return next((condition for condition in workload.status.conditions if condition.type == kind), None)


async def test_workload_is_bound_with_recorded_decision() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_node("n2", 500), a_workload("w", ports=("http", ("admin", 9000))))
        async with running_scheduler(world.store, clock) as scheduler:
            assert await scheduler.run_cycle() is None
        found, node = await world.workload("w"), await world.node("n1")
        assert found.status.binding == Binding(
            node="n1", uid=node.metadata.uid, term=1, reservation="leader/server-leader.1-1"
        )
        assert found.status.allocated_ports == {"http": 30000, "admin": 9000}
        assert (found.status.last_action, found.status.last_action_at) == ("Assign", "2026-01-01T00:00:00Z")
        assert found.metadata.finalizers == (WORKLOAD_FINALIZER,)
        assert node.status.workloads == 1
        assert list(found.status.decision["best"]) == ["n1"]
        assert found.status.decision["reasons"] == {"without 1 cpu free": 1}
        assert len(msgspec.json.encode(found.status.decision)) <= 2048
        assert await world.events() == [("WorkloadScheduled", "w")]


async def test_equal_workloads_record_decision_of_their_own_node() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(
            *(a_node(f"n{number}") for number in range(6)),
            *(a_workload(f"w{number}") for number in range(24)),
        )
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        for number in range(24):
            status = (await world.workload(f"w{number}")).status
            assert status.binding
            assert next(iter(status.decision["best"])) == status.binding.node


async def test_second_reconcile_writes_nothing() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), *(a_workload(f"w{number}") for number in range(3)))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await clock.advance(10)
            await scheduler.run_cycle()
            revision_before = await world.revision()
            await scheduler.run_cycle()
            await clock.advance(400)
            await scheduler.run_cycle()
            assert await world.revision() == revision_before


async def test_written_nodes_are_kept_only_until_cached() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await scheduler.caught_up()
            assert (await world.node("n1")).status.workloads == 1
            assert not scheduler.controller.binding_cycle.batch_binder._written_nodes


@pytest.mark.parametrize(
    ("workload", "status"),
    [
        pytest.param(a_workload("w", desiredState="Stopped"), {}, id="to be stopped"),
        pytest.param(a_workload("w", desiredState="Deleted"), {}, id="to be deleted"),
        pytest.param(
            a_workload("w", revision="0" * 24),
            {"retry": Retry(attempts=5, max=5, revision="0" * 24)},
            id="permanently failed",
        ),
    ],
)
async def test_workload_without_need_gets_no_node(workload: LatticeWorkload, status: dict[str, Any]) -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), workload)
        await world.set_status(LatticeWorkload, "w", **status)
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        assert await world.bindings() == {}


async def test_failed_workload_is_bound_after_back_off() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_workload("w", revision="0" * 24))
        retry = Retry(attempts=1, max=5, next_at="2026-01-01T00:00:05Z", revision="0" * 24)
        await world.set_status(LatticeWorkload, "w", retry=retry)
        async with running_scheduler(world.store, clock) as scheduler:
            again = await scheduler.run_cycle()
            assert await world.bindings() == {}
            assert again is not None
            assert again.after == pytest.approx(5)
            await clock.advance(again.after)
            await scheduler.run_cycle()
        assert await world.bindings() == {"w": "n1"}


async def test_unschedulable_workload_waits_for_added_node() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 500), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            workload = await world.workload("w")
            told = condition(workload, "Scheduled")
            assert told is not None
            assert (told.status, told.reason, told.message) == (
                "False",
                "NoNodeFits",
                "0 of 1 node: 1 without 1 cpu free",
            )
            assert workload.status.decision["nearest"] == {
                "node": "n1",
                "short": [{"what": "cpu", "need": "1", "have": "500m", "missing": "500m"}],
            }
            await world.add(a_node("n2"))
            await scheduler.run_cycle()
            assert await world.bindings() == {}, (
                "woken at once it would still wait for a second after its failure"
            )
            await clock.advance(1)
            await scheduler.run_cycle()
        assert await world.bindings() == {"w": "n2"}
        assert condition(await world.workload("w"), "Scheduled") == Condition(
            type="Scheduled", status="True", reason="Bound", last_transition_time="2026-01-01T00:00:01Z"
        )
        assert await world.events() == [("WorkloadScheduled", "w")], "a short wait is no failure"


async def test_repeated_rejection_is_reported_once() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 500), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            for number in range(3):
                await scheduler.run_cycle()
                await world.add(a_node(f"m{number}", 500))
                await clock.advance(70)
            await scheduler.run_cycle()
            assert await world.events() == [("FailedScheduling", "w")]
            for name in ("n1", "m0", "m1", "m2"):
                await world.set_status(
                    LatticeNode, name, conditions=(Condition(type="Ready", status="False"),)
                )
            await scheduler.run_cycle()
            await clock.advance(400)
            await scheduler.run_cycle()
            await clock.advance(10)
            await scheduler.run_cycle()
        assert await world.events() == [("FailedScheduling", "w")] * 2


async def test_unready_cordoned_and_terminating_nodes_are_skipped() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(
            a_node("silent", status={"conditions": [{"type": "Ready", "status": "Unknown"}]}),
            a_node("joined-just-now", status={"conditions": []}),
            a_node("cordoned", spec={"unschedulable": True}),
            a_node("going"),
            a_workload("w"),
        )
        going = await world.entry(LatticeNode, "going")
        await world.store.commit(
            [with_metadata(going, lambda metadata: metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"})]
        )
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        assert await world.bindings() == {}


async def test_rival_binding_is_applied_before_next_bind() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"), a_workload("rival"))
        async with (
            running_scheduler(world.store, clock, role="a") as scheduler,
            running_scheduler(world.store, clock, role="b") as other,
        ):
            await other.caught_up()
            await scheduler.caught_up()
            results = await asyncio.gather(
                scheduler.controller.reconcile("nodes"), other.controller.reconcile("nodes")
            )
            assert results
            await scheduler.run_cycle()
            await other.run_cycle()
        assert len(await world.bindings()) == 1
        assert (await world.node("n1")).status.workloads == 1


async def test_decision_older_than_rival_binding_is_not_written() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.caught_up()
            await scheduler.controller._apply_changes()
            decided = scheduler.controller._decide()
            assert decided is not None
            await world.add(a_workload("rival"))
            node = await world.node("n1")
            await world.set_status(
                LatticeWorkload, "rival", binding=Binding(node="n1", uid=node.metadata.uid)
            )
            await world.set_status(LatticeNode, "n1", workloads=1)
            await scheduler.caught_up()
            await scheduler.controller._bind_cycle(decided)
            assert await world.bindings() == {"rival": "n1"}
            await scheduler.run_cycle()
        assert await world.bindings() == {"rival": "n1"}


async def test_node_deleted_after_decision_gets_no_binding() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.caught_up()
            await world.delete(LatticeNode, "n1")
            await scheduler.controller.reconcile("nodes")
            assert await world.bindings() == {}
            await world.add(a_node("n1"))
            await clock.advance(2)
            await scheduler.run_cycle()
        workload = await world.workload("w")
        assert workload.status.binding is not None
        assert workload.status.binding.uid == (await world.node("n1")).metadata.uid


async def test_fenced_scheduler_writes_nothing() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_workload("w"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.caught_up()
            await clock.advance(20)
            assert await world.store.campaign("leader", "another", 15.0)
            revision_before = await world.revision()
            with pytest.raises(ExceptionGroup) as told:
                await scheduler.controller.reconcile("nodes")
            assert told.value.subgroup(Fenced)
            assert await world.revision() == revision_before


async def test_new_controller_counts_existing_bindings() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(
            a_node("n1", 2000),
            a_node("n2", 2000),
            *(a_workload(f"w{number}", ports=("http",)) for number in range(3)),
        )
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
        first = await world.bindings()
        assert len(first) == 3
        await world.add(a_workload("late", ports=("http",)), a_workload("too-much"))
        async with running_scheduler(world.store, clock) as other:
            await other.run_cycle()
        after = await world.bindings()
        assert {name: after[name] for name in first} == first
        assert sorted(after.values()) == ["n1", "n1", "n2", "n2"]
        ports = [
            (after[name], (await world.workload(name)).status.allocated_ports.get("http"))
            for name in after
            if name != "too-much"
        ]
        assert len(set(ports)) == len(ports)


async def test_scheduler_state_is_carried_over_terms() -> None:
    async with a_virtual_world() as (world, clock):
        gpus = {"gpus": [{"model": "T4"}, {"model": "T4"}]}
        await world.add(*(a_node(f"n{number}", status=gpus) for number in range(30)))
        await world.add(*(a_workload(f"w{number}", 10) for number in range(40)))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            for number in range(7):
                await world.delete(LatticeWorkload, f"w{number}")
            await scheduler.run_cycle()
        learned = scheduler.controller.table.gpu_demand
        async with running_scheduler(world.store, clock) as other:
            other.controller.previous_table = scheduler.controller.table
            await other.run_cycle()
        again = other.controller.table.gpu_demand
        assert again.checkpoint().relearn_after_changes == learned.checkpoint().relearn_after_changes
        assert again.checkpoint().change_count == learned.checkpoint().change_count


async def test_new_controller_counts_allocated_ports() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", ports=(30000, 30003)), a_workload("first", ports=("http",)))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.add(a_workload("second", ports=("http",)))
            await scheduler.run_cycle()
            await world.delete(LatticeWorkload, "first")
        await world.add(a_workload("third", ports=("http", "more")))
        async with running_scheduler(world.store, clock) as other:
            await other.run_cycle()
        assert (await world.workload("second")).status.allocated_ports == {"http": 30001}
        assert (await world.workload("third")).status.allocated_ports == {"http": 30000, "more": 30002}


async def test_deleted_or_unbound_workload_frees_capacity() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("first"), a_workload("second", desiredState="Stopped"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.put(a_workload("second"))
            await scheduler.run_cycle()
            assert await world.bindings() == {"first": "n1"}
            await world.delete(LatticeWorkload, "first")
            await clock.advance(2)
            await scheduler.run_cycle()
            assert await world.bindings() == {"second": "n1"}
            await world.delete(LatticeWorkload, "second")
            await scheduler.run_cycle()
        assert (await world.node("n1")).status.workloads == 0


async def test_bindings_to_former_node_do_not_count_on_successor() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("old"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.delete(LatticeNode, "n1")
            await world.add(a_node("n1", 1000), a_workload("new"))
            await scheduler.run_cycle()
        assert await world.bindings() == {"old": "n1", "new": "n1"}


async def test_victim_is_marked_before_it_is_replaced() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("low"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.add(a_workload("high", priority=10))
            await scheduler.run_cycle()
            assert await world.bindings() == {"low": "n1"}
            mark = condition(await world.workload("low"), "Leaving")
            assert mark is not None
            assert (mark.status, mark.reason, mark.message) == (
                "True",
                "Preempted",
                "Preempted on node n1 by default/high",
            )
            revision_before = await world.revision()
            await scheduler.run_cycle()
            assert await world.revision() == revision_before
            await world.set_status(LatticeWorkload, "low", binding=None, allocated_ports={}, decision={})
            await scheduler.run_cycle()
            assert await world.bindings() == {"high": "n1"}
        assert ("Preempted", "low") in await world.events()


async def test_victim_stays_marked_after_restart() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 1000), a_workload("low"))
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            await world.add(a_workload("high", priority=10))
            await scheduler.run_cycle()
        async with running_scheduler(world.store, clock) as other:
            await other.run_cycle()
            assert await world.bindings() == {"low": "n1"}
            await world.set_status(LatticeWorkload, "low", binding=None, allocated_ports={}, decision={})
            await other.run_cycle()
            await clock.advance(2)
            await other.run_cycle()
        assert await world.bindings() == {"high": "n1"}
        assert condition(await world.workload("low"), "Leaving") is not None


async def test_running_loop_follows_changes() -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1", 2000))
        async with running_scheduler(world.store, clock) as scheduler:
            running = asyncio.create_task(run_all([scheduler.controller.loop()]))
            await clock.advance(1)
            for number in range(4):
                await world.add(a_workload(f"w{number}"))
                await clock.advance(1)
            assert len(await world.bindings()) == 2
            await world.add(a_node("n2", 2000))
            await clock.advance(10)
            assert len(await world.bindings()) == 4
            await settle()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
