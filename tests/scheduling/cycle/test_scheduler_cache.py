"""Tests of the scheduler cache: the table and the queue follow stored objects, updates are idempotent, and
changes wake the workloads they may help."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from build.scheduling_world import a_node, a_workload

from lattice.kinds.constraint import Taint
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.cycle import compose
from lattice.scheduling.cycle.profile import preset
from lattice.scheduling.cycle.reservation_record import RESERVATION_RECORD_KEY, ReservationRecord
from lattice.scheduling.cycle.scheduler_cache import ClockReading, SchedulerCache
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.node_table import NodeTable

NOW = ClockReading(0.0, datetime(2026, 1, 1, tzinfo=UTC))


def a_roster(*nodes: LatticeNode) -> SchedulerCache:
    roster = SchedulerCache(compose(preset("balanced"), NodeTable()))
    for node in nodes:
        roster.update_node(node.metadata.name, node, NOW.monotonic)
    return roster


def named(node: LatticeNode, uid: str) -> LatticeNode:
    return msgspec.structs.replace(node, metadata=Metadata(name=node.metadata.name, uid=uid))


def bound(name: str, node: str = "n1", uid: str = "", **status: Any) -> LatticeWorkload:
    workload = a_workload(name, ports=("http",))
    changed = msgspec.structs.replace(workload.status, binding=Binding(node=node, uid=uid), **status)
    return msgspec.structs.replace(workload, status=changed)


def free(roster: SchedulerCache, node: str = "n1") -> int:
    return int(roster.table.free(roster.table.resource_index["cpu"])[roster.table.row_of[node]])


def test_bound_workload_is_counted_until_deleted() -> None:
    roster = a_roster(a_node("n1"))
    for _ in range(2):
        roster.update_workload("default/w", bound("w"), NOW)
        assert free(roster) == 3000
    for _ in range(2):
        roster.update_workload("default/w", None, NOW)
        assert free(roster) == 4000


def test_changed_requests_of_bound_workload_are_counted() -> None:
    roster = a_roster(a_node("n1"))
    roster.update_workload("default/w", bound("w"), NOW)
    larger = msgspec.structs.replace(a_workload("w", 2500), status=bound("w").status)
    roster.update_workload("default/w", larger, NOW)
    assert free(roster) == 1500


def test_workload_bound_before_its_node_is_counted_later() -> None:
    roster = a_roster()
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert roster.update_node("n1", named(a_node("n1"), "u2"), NOW.monotonic) == ["default/w"]
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(roster) == 4000, "another machine of the same name"
    again = roster.update_node("n1", named(a_node("n1"), "u1"), NOW.monotonic)
    assert again == ["default/w"]
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(roster) == 3000


def test_prepared_reservation_is_counted_until_bound() -> None:
    held = ReservationRecord(node="n1", uid="", reservation="dead-1", until="2026-01-01T00:00:30+00:00")
    waiting = a_workload("w")
    status = msgspec.structs.replace(
        waiting.status, decision={RESERVATION_RECORD_KEY: msgspec.to_builtins(held)}
    )
    roster = a_roster(a_node("n1"))
    roster.update_workload("default/w", waiting, NOW)
    roster.update_workload("default/w", msgspec.structs.replace(waiting, status=status), NOW)
    assert (free(roster), "default/w" in roster.queue) == (3000, False)
    roster.update_workload("default/w", waiting, NOW)
    assert (free(roster), "default/w" in roster.queue) == (4000, True)
    roster.update_workload("default/w", msgspec.structs.replace(waiting, status=status), NOW)
    roster.update_workload("default/w", msgspec.structs.replace(waiting, status=bound("w").status), NOW)
    assert (free(roster), roster.table.placements["default/w"].state, roster.reservation_records) == (
        3000,
        "bound",
        {},
    )


def held(node: str) -> LatticeWorkload:
    """A workload reserved on the node by another scheduler."""
    record = ReservationRecord(
        node=node, uid="", reservation=f"theirs-{node}", until="2026-01-01T00:00:30+00:00"
    )
    status = msgspec.structs.replace(
        a_workload("w").status, decision={RESERVATION_RECORD_KEY: msgspec.to_builtins(record)}
    )
    return msgspec.structs.replace(a_workload("w"), status=status)


STATES = {
    "nowhere": (a_workload("w"), ""),
    "prepared on n1": (held("n1"), "n1"),
    "prepared on n2": (held("n2"), "n2"),
    "bound to n1": (bound("w", "n1"), "n1"),
    "bound to n2": (bound("w", "n2"), "n2"),
}


@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("before", STATES)
def test_workload_is_counted_on_its_latest_node_only(before: str, after: str) -> None:
    roster = a_roster(a_node("n1"), a_node("n2"))
    roster.update_workload("default/w", STATES[before][0], NOW)
    roster.update_workload("default/w", STATES[after][0], NOW)
    assert {node: 4000 - free(roster, node) for node in ("n1", "n2")} == {
        node: 1000 if node == STATES[after][1] else 0 for node in ("n1", "n2")
    }
    assert ("default/w" in roster.reservation_records) == after.startswith("prepared")


def test_status_update_keeps_queue_position() -> None:
    roster = a_roster(a_node("n1"))
    roster.update_workload("default/w", a_workload("w"), NOW)
    assert roster.queue.pop(0.0)
    roster.queue.requeue_unschedulable("default/w", [ClusterEvent.NODE_ADDED], 0.0)
    touched = a_workload("w")
    touched = msgspec.structs.replace(
        touched, status=msgspec.structs.replace(touched.status, last_log="hello")
    )
    roster.update_workload("default/w", touched, NOW)
    assert roster.queue.pop(0.0) is None
    roster.update_workload("default/w", a_workload("w", 500), NOW)
    assert roster.queue.pop(0.0), "it asks for less: that may fit"


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
    roster = a_roster(*([before] if before else []))
    for change in ClusterEvent:
        name = f"default/{change.name}"
        roster.queue.add(roster.table.ask_of(a_workload(change.name)))
        roster.queue.pop(0.0)
        roster.queue.requeue_unschedulable(name, [change], 0.0)
    roster.update_node("n1", after, 10.0)
    woken = {ask.name.removeprefix("default/") for run in roster.queue.pop_batch(10.0, 99) for ask in run}
    assert woken == {change.name for change in wakes}


def test_unparsable_node_is_excluded_and_reported() -> None:
    roster = a_roster(a_node("n1"))
    roster.update_node("n1", a_node("n1", labels={"lattice.dev/price-per-hour": "cheap"}), NOW.monotonic)
    assert list(roster.problems) == ["node n1"]
    assert "n1" not in roster.table.row_of
    roster.update_node("n1", a_node("n1"), NOW.monotonic)
    assert roster.problems == {}
    assert free(roster) == 4000


def test_allocatable_above_capacity_is_capped_and_reported() -> None:
    roster = a_roster(a_node("n1", status={"capacity": {"cpu": 1000}, "allocatable": {"cpu": 64_000}}))
    assert free(roster) == 1000
    assert "gives workloads 64 cpu, more than the 1 it has for them" in roster.problems["node n1"]
    roster.update_node("n1", a_node("n1"), NOW.monotonic)
    assert roster.problems == {}


def test_recorded_gpu_assignment_is_restored() -> None:
    roster = a_roster(a_node("n1", status={"gpus": [{"model": "T4"}, {"model": "T4"}]}))
    workload = a_workload("w", requests={"gpu": "500m"})
    container = msgspec.structs.replace(workload.spec.containers["main"], resources=None)
    spec = msgspec.structs.replace(workload.spec, containers={"main": container})
    status = msgspec.structs.replace(workload.status, binding=Binding(node="n1"), decision={"gpus": [1]})
    roster.update_workload("default/w", msgspec.structs.replace(workload, spec=spec, status=status), NOW)
    assert roster.table.placements["default/w"].gpus == (1,)
    assert roster.table.gpus.free(0).tolist() == [1000, 500]
