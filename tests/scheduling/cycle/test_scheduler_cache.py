"""Tests of the scheduler cache: the table and the queue follow stored objects, updates are idempotent, and
changes wake the workloads they may help."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.stored_forms import STORED_FORMS

from lattice.kinds.constraints import Taint
from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, ReservationRecord
from lattice.scheduling.cycle.cycle import compose
from lattice.scheduling.cycle.profile import preset
from lattice.scheduling.cycle.scheduler_cache import ClockReading, SchedulerCache
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_table import NodeTable

NOW = ClockReading(0.0, datetime(2026, 1, 1, tzinfo=UTC))


def a_cache(*nodes: LatticeNode) -> SchedulerCache:
    cache = SchedulerCache(compose(preset("balanced"), NodeTable()))
    for node in nodes:
        cache.update_node(node.metadata.name, node, NOW.monotonic)
    return cache


def named(node: LatticeNode, uid: str) -> LatticeNode:
    return msgspec.structs.replace(node, metadata=Metadata(name=node.metadata.name, uid=uid))


def bound(name: str, node: str = "n1", uid: str = "", **status: Any) -> LatticeWorkload:
    workload = a_workload(name, ports=("http",))
    changed = msgspec.structs.replace(workload.status, binding=Binding(node=node, uid=uid), **status)
    return msgspec.structs.replace(workload, status=changed)


def free(cache: SchedulerCache, node: str = "n1") -> int:
    return int(cache.table.free(cache.table.resource_index["cpu"])[cache.table.row_of[node]])


def test_bound_workload_is_counted_until_deleted() -> None:
    cache = a_cache(a_node("n1"))
    for _ in range(2):
        cache.update_workload("default/w", bound("w"), NOW)
        assert free(cache) == 3000
    for _ in range(2):
        cache.update_workload("default/w", None, NOW)
        assert free(cache) == 4000


def test_changed_requests_of_bound_workload_are_counted() -> None:
    cache = a_cache(a_node("n1"))
    cache.update_workload("default/w", bound("w"), NOW)
    larger = msgspec.structs.replace(a_workload("w", 2500), status=bound("w").status)
    cache.update_workload("default/w", larger, NOW)
    assert free(cache) == 1500


def test_workload_bound_before_its_node_is_counted_later() -> None:
    cache = a_cache()
    cache.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert cache.update_node("n1", named(a_node("n1"), "u2"), NOW.monotonic) == ["default/w"]
    cache.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(cache) == 4000, "another machine of the same name"
    again = cache.update_node("n1", named(a_node("n1"), "u1"), NOW.monotonic)
    assert again == ["default/w"]
    cache.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(cache) == 3000


@pytest.mark.parametrize("stored_form", list(STORED_FORMS))
def test_prepared_reservation_is_counted_until_bound(stored_form: str) -> None:
    reserved, _ = STORED_FORMS[stored_form]
    waiting = a_workload("w")
    status = msgspec.structs.replace(
        waiting.status, **reserved("dead-1", {"node": "n1", "uid": "", "until": "2026-01-01T00:00:30+00:00"})
    )
    cache = a_cache(a_node("n1"))
    cache.update_workload("default/w", waiting, NOW)
    cache.update_workload("default/w", msgspec.structs.replace(waiting, status=status), NOW)
    assert (free(cache), "default/w" in cache.queue) == (3000, False)
    cache.update_workload("default/w", waiting, NOW)
    assert (free(cache), "default/w" in cache.queue) == (4000, True)
    cache.update_workload("default/w", msgspec.structs.replace(waiting, status=status), NOW)
    cache.update_workload("default/w", msgspec.structs.replace(waiting, status=bound("w").status), NOW)
    assert (free(cache), cache.table.placements["default/w"].state, cache.reservation_records) == (
        3000,
        "bound",
        {},
    )


def reserved_elsewhere(node: str) -> LatticeWorkload:
    """A workload reserved on the node by another scheduler."""
    record = ReservationRecord(node=node, uid="", id=f"theirs-{node}", until="2026-01-01T00:00:30+00:00")
    status = msgspec.structs.replace(a_workload("w").status, reservation=record)
    return msgspec.structs.replace(a_workload("w"), status=status)


STATES = {
    "nowhere": (a_workload("w"), ""),
    "prepared on n1": (reserved_elsewhere("n1"), "n1"),
    "prepared on n2": (reserved_elsewhere("n2"), "n2"),
    "bound to n1": (bound("w", "n1"), "n1"),
    "bound to n2": (bound("w", "n2"), "n2"),
}


@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("before", STATES)
def test_workload_is_counted_on_its_latest_node_only(before: str, after: str) -> None:
    cache = a_cache(a_node("n1"), a_node("n2"))
    cache.update_workload("default/w", STATES[before][0], NOW)
    cache.update_workload("default/w", STATES[after][0], NOW)
    assert {node: 4000 - free(cache, node) for node in ("n1", "n2")} == {
        node: 1000 if node == STATES[after][1] else 0 for node in ("n1", "n2")
    }
    assert ("default/w" in cache.reservation_records) == after.startswith("prepared")


LEAVING = Condition(type="Leaving", status="True", reason="Preempted")


def test_victim_leaves_its_node_until_it_is_unbound_or_moved() -> None:
    cache = a_cache(a_node("n1"), a_node("n2"))
    evictions = cache.scheduler.evictions
    for _ in range(2):
        cache.update_workload("default/w", bound("w", conditions=(LEAVING,)), NOW)
        assert (free(cache), evictions.victims_on("n1")) == (4000, ("default/w",))
    cache.update_workload("default/w", bound("w", "n2"), NOW)
    assert (free(cache, "n2"), evictions.victims_on("n1"), evictions.victims_on("n2")) == (3000, (), ())
    cache.update_workload("default/w", bound("w", "n2", conditions=(LEAVING,)), NOW)
    assert evictions.node_of_victim("default/w") == ""
    cache.update_workload("default/w", a_workload("w"), NOW)
    assert (free(cache, "n2"), "default/w" in cache.queue) == (4000, True)


def test_victim_is_read_again_after_its_node_was_removed() -> None:
    """Otherwise the node would return without the victim, and count as empty."""
    cache = a_cache(a_node("n1"))
    victim = bound("w", conditions=(LEAVING,))
    cache.update_workload("default/w", victim, NOW)
    assert cache.update_node("n1", None, NOW.monotonic) == ["default/w"]
    cache.update_workload("default/w", victim, NOW)
    assert cache.scheduler.evictions.victims_on("n1") == ()
    assert cache.update_node("n1", a_node("n1"), NOW.monotonic) == ["default/w"]
    cache.update_workload("default/w", victim, NOW)
    assert cache.scheduler.evictions.victims_on("n1") == ("default/w",)


def test_status_update_keeps_queue_position() -> None:
    cache = a_cache(a_node("n1"))
    cache.update_workload("default/w", a_workload("w"), NOW)
    assert cache.queue.pop(0.0)
    cache.queue.requeue_unschedulable("default/w", [ClusterEvent.NODE_ADDED], 0.0)
    touched = a_workload("w")
    touched = msgspec.structs.replace(
        touched, status=msgspec.structs.replace(touched.status, last_log="hello")
    )
    cache.update_workload("default/w", touched, NOW)
    assert cache.queue.pop(0.0) is None
    cache.update_workload("default/w", a_workload("w", 500), NOW)
    assert cache.queue.pop(0.0), "it asks for less: that may fit"


def ready(node: LatticeNode, *, is_ready: bool) -> LatticeNode:
    return a_node(
        node.metadata.name,
        status={"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]},
    )


@pytest.mark.parametrize(
    ("before", "after", "wakes"),
    [
        pytest.param(None, a_node("n1"), {ClusterEvent.NODE_ADDED}, id="added"),
        pytest.param(a_node("n1"), a_node("n1", 5000), {ClusterEvent.NODE_GREW}, id="more cpu"),
        pytest.param(a_node("n1"), a_node("n1", 3000), set(), id="less cpu"),
        pytest.param(a_node("n1"), a_node("n1", ports=(1, 9)), {ClusterEvent.NODE_GREW}, id="other ports"),
        pytest.param(
            a_node("n1"), ready(a_node("n1"), is_ready=False), {ClusterEvent.NODE_UNAVAILABLE}, id="not ready"
        ),
        pytest.param(
            ready(a_node("n1"), is_ready=False), a_node("n1"), {ClusterEvent.NODE_READY}, id="ready"
        ),
        pytest.param(
            a_node("n1", spec={"unschedulable": True}),
            a_node("n1"),
            {ClusterEvent.NODE_READY},
            id="uncordoned",
        ),
        pytest.param(
            a_node("n1"), a_node("n1", labels={"disk": "ssd"}), {ClusterEvent.NODE_CHANGED}, id="other labels"
        ),
        pytest.param(
            a_node("n1", spec={"taints": [msgspec.to_builtins(Taint(key="a", effect="NoSchedule"))]}),
            a_node("n1"),
            {ClusterEvent.NODE_CHANGED},
            id="other taints",
        ),
        pytest.param(a_node("n1"), None, {ClusterEvent.NODE_UNAVAILABLE}, id="gone"),
        pytest.param(a_node("n1"), a_node("n1", status={"workloads": 7}), set(), id="only counted"),
    ],
)
def test_node_change_wakes_matching_events(
    before: LatticeNode | None, after: LatticeNode | None, wakes: set[ClusterEvent]
) -> None:
    cache = a_cache(*([before] if before else []))
    for change in ClusterEvent:
        name = f"default/{change.name}"
        cache.queue.add(cache.table.ask_of(a_workload(change.name)))
        cache.queue.pop(0.0)
        cache.queue.requeue_unschedulable(name, [change], 0.0)
    cache.update_node("n1", after, 10.0)
    woken = {ask.name.removeprefix("default/") for run in cache.queue.pop_batch(10.0, 99) for ask in run}
    assert woken == {change.name for change in wakes}


def test_unparsable_node_is_excluded_and_reported() -> None:
    cache = a_cache(a_node("n1"))
    cache.update_node("n1", a_node("n1", labels={"lattice.dev/price-per-hour": "cheap"}), NOW.monotonic)
    assert list(cache.problems) == ["node n1"]
    assert "n1" not in cache.table.row_of
    cache.update_node("n1", a_node("n1"), NOW.monotonic)
    assert cache.problems == {}
    assert free(cache) == 4000


def test_allocatable_above_capacity_is_capped_and_reported() -> None:
    cache = a_cache(a_node("n1", status={"capacity": {"cpu": 1000}, "allocatable": {"cpu": 64_000}}))
    assert free(cache) == 1000
    assert (
        "offers workloads 64 cpu, but only 1 is unreserved, and Lattice uses that amount"
        in cache.problems["node n1"]
    )
    cache.update_node("n1", a_node("n1"), NOW.monotonic)
    assert cache.problems == {}


@pytest.mark.parametrize("gpus", [{"allocated_gpus": (1,)}, {"decision": {"gpus": [1]}}], ids=STORED_FORMS)
def test_recorded_gpu_assignment_is_restored(gpus: dict[str, Any]) -> None:
    cache = a_cache(a_node("n1", status={"gpus": [{"model": "T4"}, {"model": "T4"}]}))
    workload = a_workload("w", requests={"gpu": "500m"})
    container = msgspec.structs.replace(workload.spec.containers["main"], resources=None)
    spec = msgspec.structs.replace(workload.spec, containers={"main": container})
    status = msgspec.structs.replace(workload.status, binding=Binding(node="n1"), **gpus)
    cache.update_workload("default/w", msgspec.structs.replace(workload, spec=spec, status=status), NOW)
    assert cache.table.placements["default/w"].gpus == (1,)
    assert cache.table.gpus.free(0).tolist() == [1000, 500]


ON_N1 = {"binding": {"node": "n1"}}


def test_succeeded_workload_frees_its_node_and_is_never_queued() -> None:
    cache = a_cache(a_node("n1", 1000))
    job = a_workload("job", 800, revision="a" * 24, restartPolicy="OnFailure", status=ON_N1)
    cache.update_workload("default/job", job, NOW)
    assert "default/job" in cache.table.placements
    retry = {"succeeded": True, "revision": "a" * 24, "run": 2}
    done = a_workload(
        "job",
        800,
        revision="a" * 24,
        restartPolicy="OnFailure",
        status={**ON_N1, "retry": retry},
    )
    cache.update_workload("default/job", done, NOW)
    assert "default/job" not in cache.table.placements
    assert "default/job" not in cache.queue
