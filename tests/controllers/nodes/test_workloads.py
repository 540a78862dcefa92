"""The lifecycle of a workload with the controllers, a store and scripted agents."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from build.objects import a_workload
from build.workload_world import World, running_world

from lattice.controllers.runtime.object_writes import with_status
from lattice.errors import Fenced
from lattice.kinds.constraints import Taint
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.node import DRAINING_TAINT
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods
from lattice.metrics import RECONCILIATION_ACTIONS, WORKLOAD_RETRIES
from lattice.store.protocol import Delete

W = "default/w"
KEEPS = {"policy": "keep"}
STOPS = {"policy": "stop", "stopAfter": "60s"}


def summary(world: World, path: str = W) -> tuple[str, bool | None, str, str]:
    status = world.workload(path).status
    return status.actual_state, status.ready, status.last_action, status.failure_reason


def with_desired_state(state: str) -> Callable[[Any], Any]:
    return lambda spec: msgspec.structs.replace(spec, desired_state=state)


def runs(*command: str) -> Callable[[Any], Any]:
    def change(spec: Any) -> Any:
        return msgspec.structs.replace(
            spec, containers={"main": msgspec.structs.replace(spec.containers["main"], command=command)}
        )

    return change


async def test_workload_is_bound_applied_and_runs() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        assert summary(world) == ("Running", True, "Apply", "")
        status = world.workload().status
        assert status.retry is not None
        assert (status.retry.attempts, status.retry.run) == (0, 1)
        assert status.applied_revision == world.workload().spec.effective_revision
        assert agent.starts == {(W, world.workload().spec.effective_revision, 1): 1}
        assert await world.events("w") == ["WorkloadApplied"]
        assert [(condition.type, condition.status) for condition in status.conditions] == [("Ready", "True")]


async def test_a_system_at_rest_writes_nothing() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.join("n2")
        for name in "abc":
            await world.add(a_workload(name))
        await world.add(a_workload("stopped", desiredState="Stopped"))
        await world.run(2)
        revision_before = await world.store.revision()
        await world.run(600)
        assert await world.store.revision() == revision_before


async def test_exiting_workload_backs_off_and_fails_after_five() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["RUNTIME_ERROR"] * 9})
        tried = WORKLOAD_RETRIES._value.get()
        await world.add(a_workload())
        await world.run(0.1)
        times = [world.clock.monotonic()]
        while world.workload().status.last_action != "MarkFailed":
            before = len(agent.starts)
            await world.run(0.5)
            times += [world.clock.monotonic()] * (len(agent.starts) - before)
        waits = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
        assert waits == pytest.approx([5, 10, 20, 40], abs=1)
        assert summary(world) == ("Failed", False, "MarkFailed", "RUNTIME_ERROR")
        assert (world.attempts(), set(agent.starts.values())) == (5, {1})
        told = await world.events("w")
        assert told == ["WorkloadApplied", *["WorkloadBackOff", "RetryTriggered"] * 4, "WorkloadFailed"]
        assert WORKLOAD_RETRIES._value.get() - tried == 4
        before = await world.store.revision()
        await world.run(600)
        assert (await world.store.revision(), len(agent.starts)) == (before, 5)


async def test_back_off_continues_under_new_leader() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["RUNTIME_ERROR"] * 3})
        await world.add(a_workload())
        await world.run(17)  # failed at 0, 5, 15: waits until 35
        assert world.attempts() == 3
        await world.lead("two")
        await world.run(15)
        assert len(agent.starts) == 3
        await world.run(7)
        assert (summary(world), len(agent.starts)) == (("Running", True, "Recreate", "RUNTIME_ERROR"), 4)


async def test_failures_reset_after_long_run() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["RUNTIME_ERROR"]})
        await world.add(a_workload())
        await world.run(10)
        assert (world.attempts(), summary(world)) == (1, ("Running", True, "Recreate", "RUNTIME_ERROR"))
        await world.run(610)
        assert (world.attempts(), summary(world)) == (0, ("Running", True, "Forgive", ""))
        agent.end(W, log="a\nb\n")
        await world.run(1)
        assert (world.attempts(), world.workload().status.last_log) == (1, "a\nb\n")


async def test_permanent_failure_can_be_retried_on_request() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["INVALID_IMAGE"]})
        await world.add(a_workload())
        await world.run(60)
        assert (summary(world), len(agent.starts)) == (("Failed", False, "MarkFailed", "INVALID_IMAGE"), 1)
        await world.annotate(W, {RETRY_REQUESTED_ANNOTATION: "now", "mine": "stays"})
        await world.run(1)
        assert (summary(world), len(agent.starts)) == (("Running", True, "Apply", ""), 2)
        assert world.workload().metadata.annotations == {"mine": "stays"}
        assert (await world.events("w"))[-2:] == ["RetryTriggered", "WorkloadApplied"]


async def test_retry_request_without_failure_changes_nothing() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        status = world.workload().status
        await world.annotate(W, {RETRY_REQUESTED_ANNOTATION: "now"})
        await world.run(10)
        assert (world.workload().status, world.workload().metadata.annotations, len(agent.starts)) == (
            status,
            {},
            1,
        )


async def test_restart_is_another_run_of_same_revision() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        await world.change(LatticeWorkload, W, with_desired_state("Stopped"))
        await world.run(1)
        assert (summary(world), world.live()) == (("Stopped", False, "ApplyStopped", ""), [])
        await world.change(LatticeWorkload, W, with_desired_state("Running"))
        await world.run(1)
        assert (summary(world), world.live()) == (("Running", True, "Apply", ""), ["n1"])
        assert [run for _, _, run in agent.starts] == [1, 2]


async def test_new_revision_replaces_running_one_once() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        first = world.workload().spec.effective_revision
        await world.change(LatticeWorkload, W, runs("other"))
        await world.run(1)
        second = world.workload().spec.effective_revision
        assert summary(world) == ("Running", True, "Apply", "")
        assert world.workload().status.applied_revision == second != first
        assert agent.starts == {(W, first, 1): 1, (W, second, 2): 1}


async def test_deleted_workload_leaves_node_then_store() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        agent.hangs = {W}
        await world.delete(LatticeWorkload, W)
        await world.run(100)
        assert (world.workload().status.last_action, world.live()) == ("Delete", ["n1"])
        agent.hangs, agent.sent = set(), {}
        agent.connect()
        await world.run(1)
        assert (world.is_there(W), world.live()) == (False, [])
        assert (await world.events("w"))[-1] == "WorkloadDeleted"


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("unbound", id="without a node"),
        pytest.param("silent", id="of a silent node: stays until the node returns"),
    ],
)
async def test_delete_workload(state: str) -> None:
    async with running_world() as world:
        agent = await world.join("n1", unschedulable=state == "unbound")
        await world.add(a_workload())
        await world.run(1)
        if state == "silent":
            agent.cut()
            await world.run(60)
            await world.delete(LatticeWorkload, W)
            await world.run(600)
            assert (world.is_there(W), world.live()) == (True, ["n1"])
            agent.connect()
        else:
            await world.change(LatticeWorkload, W, with_desired_state("Deleted"))
        await world.run(1)
        assert (world.is_there(W), world.live()) == (False, [])


async def test_workload_with_foreign_finalizer_is_released_once() -> None:
    async with running_world() as world:
        await world.join("n1")
        workload = a_workload()
        await world.add(
            msgspec.structs.replace(
                workload, metadata=msgspec.structs.replace(workload.metadata, finalizers=("other/one",))
            )
        )
        await world.run(1)
        await world.delete(LatticeWorkload, W)
        await world.run(3)
        assert (world.workload().metadata.finalizers, world.node_of(), world.live()) == (
            ("other/one",),
            "",
            [],
        )
        assert world.node("n1").status.workloads == 0
        revision_before = await world.store.revision()
        await world.run(100)
        assert await world.store.revision() == revision_before


@pytest.mark.parametrize(
    ("disconnect", "earliest"), [pytest.param(KEEPS, 120, id="keep"), pytest.param(STOPS, 120, id="stop")]
)
async def test_workload_of_lost_node_starts_elsewhere_in_two_minutes(
    disconnect: dict[str, str], earliest: float
) -> None:
    async with running_world() as world:
        first, second = await world.join("n1"), await world.join("n2")
        await world.add(a_workload(disconnect=disconnect))
        await world.run(1)
        assert world.node_of() == "n1"
        first.cut()
        silent = world.clock.monotonic() - (world.clock.monotonic() - 1) % 10
        while world.clock.monotonic() < silent + 39:
            await world.run(0.5)
            assert summary(world)[:2] == ("Running", True)
        await world.run(12)
        assert summary(world)[:2] == ("Unknown", False)
        while not second.starts:
            await world.run(0.5)
        assert world.clock.monotonic() - silent >= earliest
        assert world.clock.monotonic() - silent <= earliest + 12
        await world.run(1)
        assert (world.node_of(), summary(world)[:2]) == ("n2", ("Running", True))
        assert "Rescheduled" in await world.events("w")
        assert bool(world.overlaps) == (disconnect is KEEPS)
        first.connect()
        await world.run(2)
        assert (world.live(), world.node_of()) == (["n2"], "n2")
        assert ("DriftDetected" in await world.events("w")) == (disconnect is KEEPS)


async def test_node_reconnecting_in_time_keeps_workload() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.join("n2")
        await world.add(a_workload())
        await world.run(1)
        agent.cut()
        await world.run(100)
        agent.connect()
        await world.run(200)
        assert (world.node_of(), sum(agent.starts.values()), world.attempts(), summary(world)[0]) == (
            "n1",
            1,
            0,
            "Running",
        )


async def test_stop_on_disconnect_is_no_failure() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload(disconnect=STOPS))
        await world.run(1)
        agent.cut()
        await world.run(80)
        assert world.live() == []
        agent.connect()
        await world.run(10)
        assert (world.live(), world.attempts()) == (["n1"], 0)


async def test_undelivered_order_counts_no_failed_attempt() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        agent.cut()
        await world.add(a_workload())
        await world.run(35)
        assert (world.workload().status.last_action, world.attempts()) == ("Apply", 0)
        agent.connect()
        await world.run(1)
        assert (summary(world)[0], world.attempts()) == ("Running", 0)


async def test_start_timeout_is_retried() -> None:
    async with running_world(GracePeriods(start=30, retry=RetryPolicy(reset_after=1000))) as world:
        agent = await world.join("n1", hangs={W})
        await world.add(a_workload())
        await world.run(25)
        assert (summary(world)[0], world.attempts()) == ("Starting", 0)
        agent.hangs = set()
        await world.run(30)
        assert (summary(world), world.attempts()) == (("Running", True, "Recreate", "START_TIMEOUT"), 1)


async def test_node_error_reschedules_to_another_node() -> None:
    async with running_world() as world:
        await world.join("n1", fails={W: ["RUNTIME_UNAVAILABLE"]})
        await world.add(a_workload())
        await world.run(1)
        assert (world.node_of(), summary(world)[0]) == ("", "Pending")
        await world.run(10)
        assert (world.node_of(), summary(world)[0], world.attempts()) == ("n1", "Running", 1)


async def test_recreated_workload_of_same_name_is_another_workload() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        agent.cut()
        await world.delete(LatticeWorkload, W)
        await world.run(5)
        entry = await world.entry(LatticeWorkload, W)
        await world.store.commit([Delete(entry.key, entry.revision)])
        await world.add(a_workload())
        await world.run(1)
        agent.connect()
        await world.run(2)
        held = agent.holds[W]
        assert (held.uid, held.state, summary(world)[0]) == (
            world.workload().metadata.uid,
            "Running",
            "Running",
        )


async def test_former_leader_writes_nothing() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        old = world.workloads
        await world.stop()
        assert await world.store.campaign("leader", "two", 1e9) is not None
        agent.end(W)
        revision_before = await world.store.revision()
        with pytest.raises(Fenced):
            await old.reconcile(W)
        assert await world.store.revision() == revision_before


async def test_each_action_is_counted_once() -> None:
    async with running_world() as world:
        counted = {
            name: RECONCILIATION_ACTIONS.labels(name)._value.get()
            for name in ("Apply", "Recreate", "BackoffWait", "Delete")
        }
        await world.join("n1", fails={W: ["RUNTIME_ERROR"]})
        await world.add(a_workload())
        await world.run(10)
        await world.delete(LatticeWorkload, W)
        await world.run(2)
        assert {
            name: RECONCILIATION_ACTIONS.labels(name)._value.get() - before
            for name, before in counted.items()
        } == {
            "Apply": 1,
            "Recreate": 1,
            "BackoffWait": 1,
            "Delete": 1,
        }


async def test_preempted_workload_stops_before_rescheduling() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.add(a_workload())
        await world.run(1)
        entry = await world.entry(LatticeWorkload, W)
        told = Condition(
            type="Leaving", status="True", reason="Preempted", message="it makes room for default/more"
        )
        status = world.workload().status
        await world.store.commit(
            [with_status(entry, msgspec.structs.replace(status, conditions=(*status.conditions, told)))]
        )
        await world.run(1)
        assert [condition.type for condition in world.workload().status.conditions] == ["Ready"]
        assert (await world.events("w"))[-3:] == ["WorkloadStopping", "Rescheduled", "WorkloadApplied"]
        assert (world.overlaps, world.live()) == ([], ["n1"])


async def test_service_replica_is_reported_failed_and_still_restarted() -> None:
    async with running_world() as world:
        agent = await world.join("n1", fails={W: ["RUNTIME_ERROR"] * 7})
        await world.add(a_workload(service="web"))
        await world.run(200)
        status = world.workload().status
        assert (status.actual_state, world.attempts(), len(agent.starts)) == ("Failed", 6, 6)
        failed = find_condition(status.conditions, "Failed")
        assert failed is not None
        assert (failed.status, failed.reason) == ("True", "RUNTIME_ERROR")
        assert (await world.events("w")).count("WorkloadFailed") == 1
        await world.lead("two")
        await world.run(600)
        assert (summary(world), len(agent.starts)) == (("Running", True, "Recreate", "RUNTIME_ERROR"), 8)
        assert world.workload().status.restarts == 7
        await world.run(610)
        failed = find_condition(world.workload().status.conditions, "Failed")
        assert (world.attempts(), failed and failed.status) == (0, "False")


async def test_job_that_succeeds_never_runs_again_and_frees_its_ports() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload(restartPolicy="OnFailure"))
        await world.run(5)
        agent.finish(W)
        await world.run(5)
        status = world.workload().status
        assert (status.actual_state, status.last_exit_code, status.ready) == ("Succeeded", 0, False)
        assert (status.allocated_ports, status.failure_reason) == ({}, "")
        assert await world.event_message("WorkloadSucceeded")
        await world.lead("two")
        await world.run(700)
        assert (world.workload().status.actual_state, len(agent.starts)) == ("Succeeded", 1)
        await world.set_taints("n1", Taint(key=DRAINING_TAINT, effect="NoSchedule"))
        await world.run(20)
        status = world.workload().status
        assert (status.actual_state, status.binding, len(agent.starts)) == ("Succeeded", None, 1)


async def test_exit_code_of_a_failure_is_stored() -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.add(a_workload(restartPolicy="Never"))
        await world.run(5)
        agent.end(W, log="no such table\n", exit_code=3)
        await world.run(5)
        status = world.workload().status
        assert (summary(world), status.last_exit_code) == (
            ("Failed", False, "MarkFailed", "RUNTIME_ERROR"),
            3,
        )
        assert status.last_log == "no such table\n"
        await world.run(700)
        assert len(agent.starts) == 1
