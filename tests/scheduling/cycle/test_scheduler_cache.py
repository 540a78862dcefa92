"""The table and the queue follow what is stored: told the same twice nothing changes, and every change wakes whom it may help."""

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


def test_what_is_bound_takes_room_and_what_is_gone_gives_it_back() -> None:
    roster = a_roster(a_node("n1"))
    for _ in range(2):
        roster.update_workload("default/w", bound("w"), NOW)
        assert free(roster) == 3000
    for _ in range(2):
        roster.update_workload("default/w", None, NOW)
        assert free(roster) == 4000


def test_a_bound_workload_whose_needs_changed_takes_the_new_room() -> None:
    roster = a_roster(a_node("n1"))
    roster.update_workload("default/w", bound("w"), NOW)
    larger = msgspec.structs.replace(a_workload("w", 2500), status=bound("w").status)
    roster.update_workload("default/w", larger, NOW)
    assert free(roster) == 1500


def test_a_workload_bound_to_a_node_that_comes_later_counts_once_it_is_there() -> None:
    roster = a_roster()
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert roster.update_node("n1", named(a_node("n1"), "u2"), NOW.monotonic) == ["default/w"]
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(roster) == 4000, "another machine of the same name"
    again = roster.update_node("n1", named(a_node("n1"), "u1"), NOW.monotonic)
    assert again == ["default/w"]
    roster.update_workload("default/w", bound("w", uid="u1"), NOW)
    assert free(roster) == 3000


def test_what_is_prepared_takes_room_until_it_is_bound_or_given_up() -> None:
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
    """Prepared there by somebody else."""
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
def test_whatever_was_missed_in_between_it_takes_room_where_it_is_and_nowhere_else(
    before: str, after: str
) -> None:
    roster = a_roster(a_node("n1"), a_node("n2"))
    roster.update_workload("default/w", STATES[before][0], NOW)
    roster.update_workload("default/w", STATES[after][0], NOW)
    assert {node: 4000 - free(roster, node) for node in ("n1", "n2")} == {
        node: 1000 if node == STATES[after][1] else 0 for node in ("n1", "n2")
    }
    assert ("default/w" in roster.reservation_records) == after.startswith("prepared")


def test_news_that_change_nothing_it_asks_for_leave_its_place_in_the_queue() -> None:
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
def test_a_changed_node_wakes_those_it_may_help(
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


def test_a_node_that_cannot_be_counted_is_left_out_and_said_so() -> None:
    roster = a_roster(a_node("n1"))
    roster.update_node("n1", a_node("n1", labels={"lattice.dev/price-per-hour": "cheap"}), NOW.monotonic)
    assert list(roster.problems) == ["node n1"]
    assert "n1" not in roster.table.row_of
    roster.update_node("n1", a_node("n1"), NOW.monotonic)
    assert roster.problems == {}
    assert free(roster) == 4000


def test_a_node_that_gives_more_than_it_has_is_counted_for_what_it_has_and_said_so() -> None:
    roster = a_roster(a_node("n1", status={"capacity": {"cpu": 1000}, "allocatable": {"cpu": 64_000}}))
    assert free(roster) == 1000
    assert "gives workloads 64 cpu, more than the 1 it has for them" in roster.problems["node n1"]
    roster.update_node("n1", a_node("n1"), NOW.monotonic)
    assert roster.problems == {}


def test_gpus_are_those_that_were_written_down() -> None:
    roster = a_roster(a_node("n1", status={"gpus": [{"model": "T4"}, {"model": "T4"}]}))
    workload = a_workload("w", requests={"gpu": "500m"})
    container = msgspec.structs.replace(workload.spec.containers["main"], resources=None)
    spec = msgspec.structs.replace(workload.spec, containers={"main": container})
    status = msgspec.structs.replace(workload.status, binding=Binding(node="n1"), decision={"gpus": [1]})
    roster.update_workload("default/w", msgspec.structs.replace(workload, spec=spec, status=status), NOW)
    assert roster.table.placements["default/w"].gpus == (1,)
    assert roster.table.gpus.free(0).tolist() == [1000, 500]
