"""Demands of specification 004 on the running loops: disk accounting, periodic rechecks, counters, and the
stored record."""

from datetime import datetime, timedelta

import msgspec
from build.objects import a_node as a_node
from build.objects import a_workload
from build.scheduling_world import a_virtual_world, running_scheduler
from build.workload_world import running_world

from lattice.controllers.runtime.loop import Requeue
from lattice.kinds.workload import LatticeWorkload
from lattice.metrics import SCHEDULING_ATTEMPTS, SCHEDULING_FAILURES, render_metrics

GI = 1 << 30
W = "default/w"


async def test_disk_is_requested_counted_and_released() -> None:
    async with a_virtual_world() as (world, clock):
        room = {"allocatable": {"cpu": 8000, "memory": 8 * GI, "storage": 10 * GI}}
        await world.add(a_node("n1", status=room))
        await world.add(
            *(
                a_workload(name, containers={"main": {"command": ["x"]}}, requests={"storage": "6Gi"})
                for name in ("a", "b")
            )
        )
        async with running_scheduler(world.store, clock) as scheduler:
            await scheduler.run_cycle()
            [first] = await world.bindings()
            other = "b" if first == "a" else "a"
            messages = {
                condition.type: condition.message
                for condition in (await world.workload(other)).status.conditions
            }
            assert messages["Scheduled"] == "0 of 1 node: 1 without 6Gi storage free"
            await world.delete(LatticeWorkload, first)
            await scheduler.run_cycle()
            await clock.advance(2)
            await scheduler.run_cycle()
        assert await world.bindings() == {other: "n1"}


async def test_scheduling_attempts_and_failures_are_counted() -> None:
    async with a_virtual_world() as (world, clock), running_scheduler(world.store, clock) as scheduler:
        counters = (SCHEDULING_ATTEMPTS, SCHEDULING_FAILURES)
        count_before = [counter._value.get() for counter in counters]
        await world.add(a_node("n1", 1000), a_workload("fits"), a_workload("does-not"))
        await scheduler.run_cycle()
        assert [each._value.get() - was for each, was in zip(counters, count_before, strict=True)] == [2, 1]


def test_counters_have_documented_names() -> None:
    found = {line.split()[2] for line in render_metrics().decode().splitlines() if line.startswith("# TYPE")}
    wanted = "scheduling_attempts_total scheduling_failures_total reconciliation_actions_total retry_total node_unhealthy_total"
    assert set(wanted.split()) <= found


async def test_pending_workload_is_rechecked_every_interval() -> None:
    async with running_world() as world:
        await world.join("n1", hangs={W})
        await world.add(a_workload())
        await world.run(1)
        assert world.workload().status.actual_state == "Starting"
        assert await world.workloads.reconcile(W) == Requeue(5.0)
        world.workloads.recheck_interval_s = 2.0
        assert await world.workloads.reconcile(W) == Requeue(2.0)


async def test_record_holds_spec_and_observed_status() -> None:
    async with running_world() as world:
        await world.join("n1", fails={W: ["RUNTIME_ERROR"]})
        declared = a_workload(containers={"main": {"command": ["run"]}}, requests={"cpu": "100m"})
        await world.add(declared)
        await world.run(1)
        record = msgspec.json.decode((await world.entry(LatticeWorkload, W)).value)
        assert record["spec"] == {"containers": {"main": {"command": ["run"]}}, "requests": {"cpu": "100m"}}
        assert "spec" not in record["status"]
        status = record["status"]
        assert status["binding"]["node"] == "n1"
        assert (status["actualState"], status["failureReason"], status["lastAction"]) == (
            "Failed",
            "RUNTIME_ERROR",
            "BackoffWait",
        )
        next_at, at = (
            datetime.fromisoformat(status["retry"].pop("nextAt")),
            datetime.fromisoformat(status["lastActionAt"]),
        )
        assert next_at - at == timedelta(seconds=5)
        assert status["retry"] == {
            "attempts": 1,
            "max": 5,
            "revision": declared.spec.effective_revision,
            "run": 2,
        }
        assert (status["appliedRevision"], status["stateSince"]) == (
            declared.spec.effective_revision,
            status["lastActionAt"],
        )
