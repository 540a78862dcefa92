"""Tests of the scheduling queue: priority and arrival order, back-off, and unschedulable workloads that wake
on their events."""

from collections.abc import Hashable
from math import inf
from typing import Any

import pytest
from build.property_settings import many
from build.small_clusters import ask, nodes
from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.workload_ask import WorkloadAsk

TABLE = nodes(1000)
GROWN, GONE = "node grew", "workload gone"
READY = ClusterEvent.NODE_READY


def an_ask(name: str, priority: int = 0, cpu: int = 100, **more: Any) -> WorkloadAsk:
    return ask(TABLE, name, cpu, priority, **more)


def queue(*asks: WorkloadAsk) -> SchedulingQueue:
    made = SchedulingQueue()
    for each in asks:
        made.add(each)
    return made


def batch_names(batch: list[list[WorkloadAsk]]) -> list[list[str]]:
    return [[each.name.removeprefix("default/") for each in run] for run in batch]


def test_queue_orders_by_priority_then_arrival() -> None:
    waiting = queue(an_ask("a"), an_ask("b", 5), an_ask("c"), an_ask("d", 5))
    assert batch_names(waiting.pop_batch(0.0, 9)) == [["b", "d"], ["a", "c"]]


@pytest.mark.parametrize(
    ("asks", "most", "runs"),
    [
        pytest.param(
            [an_ask("a"), an_ask("b"), an_ask("c", cpu=200), an_ask("d")],
            9,
            [["a", "b"], ["c"], ["d"]],
            id="only neighbours go together",
        ),
        pytest.param(
            [an_ask("a", 1), an_ask("b", 0)], 9, [["a"], ["b"]], id="another priority is another run"
        ),
        pytest.param([an_ask("a"), an_ask("b"), an_ask("c")], 2, [["a", "b"]], id="no more than asked for"),
        pytest.param(
            [an_ask("a", group="g"), an_ask("b"), an_ask("c", 0, 200, group="g")],
            1,
            [["a"], ["c"]],
            id="a gang comes whole, even beyond that",
        ),
    ],
)
def test_pop_batch(asks: list[WorkloadAsk], most: int, runs: list[list[str]]) -> None:
    assert batch_names(queue(*asks).pop_batch(0.0, most)) == runs


def test_backoff_doubles_up_to_30_seconds() -> None:
    waiting, now, waits = queue(an_ask("a")), 0.0, []
    for _ in range(9):
        assert waiting.pop(now)
        waiting.requeue_failed("default/a", now)
        at = waiting.next_ready_at()
        assert at is not None
        assert waiting.pop(at - 0.01) is None
        waits.append(at - now)
        now = at
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_changed_key_is_requeued_after_done() -> None:
    waiting = queue(an_ask("a"))
    assert waiting.pop(0.0)
    waiting.add(an_ask("a", cpu=300))
    assert waiting.pop(0.0) is None
    waiting.done("default/a")
    again = waiting.pop(0.0)
    assert again
    assert again.demands.requests == (("cpu", 300),)
    waiting.done("default/a")
    assert len(waiting) == 0


def test_changed_workload_skips_unschedulable_wait() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.add(an_ask("a", cpu=300))
    waiting.requeue_unschedulable("default/a", {GROWN}, 0.0)
    assert waiting.pop(0.0)


def test_workload_removed_in_progress_can_be_added_again() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    assert waiting.remove("default/a")
    assert not waiting.remove("default/a")
    assert len(waiting) == 0
    waiting.add(an_ask("a"))
    assert waiting.pop(0.0) is None
    waiting.requeue_failed("default/a", 0.0)
    assert waiting.pop(0.0)


def test_unschedulable_workload_wakes_on_its_events_only() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.requeue_unschedulable("default/a", {GROWN}, 0.0)
    assert waiting.pop(100.0) is None
    assert waiting.wake(GONE, 100.0) == 0
    assert waiting.pop(100.0) is None
    assert waiting.wake(GROWN, 100.0) == 1
    assert waiting.pop(100.0)


def test_wake_does_not_shorten_backoff() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.requeue_unschedulable("default/a", {GROWN}, 0.0)
    waiting.wake(GROWN, 0.2)
    assert waiting.pop(0.9) is None
    assert waiting.pop(1.0)


def queue_after_failures(*wakes_on: Hashable) -> SchedulingQueue:
    """A queue at 61 seconds, after the seventh failure; the back-off ends at 91."""
    waiting, now = queue(an_ask("a")), 0.0
    for failures in range(7):
        assert waiting.pop(now)
        waiting.requeue_unschedulable("default/a", wakes_on, now)
        if failures < 6:
            now += min(30.0, 2.0**failures)
            waiting.wake(GONE, now)
    return waiting


def test_node_ready_shortens_a_long_backoff() -> None:
    waiting = queue_after_failures(GONE, READY)
    waiting.wake(READY, 61.5)
    assert waiting.pop(65.9) is None, "some seconds after it failed"
    assert waiting.pop(66.0)


def test_node_ready_shortens_backoff_of_woken_workload() -> None:
    waiting = queue_after_failures(GONE, READY)
    waiting.wake(GONE, 70.0)
    assert waiting.pop(80.0) is None
    waiting.wake(READY, 80.0)
    assert waiting.pop(80.0)


def test_repeated_retries_do_not_grow_the_queue() -> None:
    waiting = queue(*(an_ask(f"w{number}") for number in range(10)))
    for now in range(0, 3000, 5):
        while (asked := waiting.pop(float(now))) is not None:
            waiting.requeue_unschedulable(asked.name, {READY}, float(now))
        waiting.wake(READY, float(now))
    assert len(waiting._backoff_heap) < 100


def test_event_during_scheduling_is_not_missed() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.wake(GROWN, 0.1)
    waiting.requeue_unschedulable("default/a", {GROWN}, 0.2)
    assert waiting.next_ready_at() == pytest.approx(1.2)


def test_unschedulable_workload_is_retried_periodically() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.requeue_unschedulable("default/a", set(), 7.0)
    assert waiting.pop(306.9) is None
    assert waiting.pop(307.0)


def test_updated_workload_wakes() -> None:
    waiting = queue(an_ask("a"))
    waiting.pop(0.0)
    waiting.requeue_unschedulable("default/a", {GROWN}, 0.0)
    waiting.add(an_ask("a", cpu=1))
    assert waiting.pop(0.0)


class NaiveQueue:
    """A naive model of the queue that scans all entries every time."""

    def __init__(self) -> None:
        self.arrived: dict[str, int] = {}
        self.known: dict[str, dict[str, Any]] = {}
        self.count = 0

    def add(self, each: WorkloadAsk) -> None:
        old = self.known.get(each.name)
        if old and old["out"]:
            old["again"] = each
            return
        if not old:
            self.count += 1
        self.known[each.name] = {
            "ask": each,
            "arrived": old["arrived"] if old else self.count,
            "out": False,
            "failures": 0,
            "at": 0.0,
            "wakes": None,
            "missed": set(),
            "again": None,
        }

    def pop(self, now: float) -> WorkloadAsk | None:
        ready = [each for each in self.known.values() if not each["out"] and each["at"] <= now]
        if not ready:
            return None
        first = min(ready, key=lambda each: (-each["ask"].priority, each["arrived"]))
        first.update(out=True, missed=set(), wakes=None)
        found: WorkloadAsk = first["ask"]
        return found

    def finish(self, what: str, name: str, now: float, wakes: set[str]) -> None:
        entry = self.known.get(name)
        if not entry or not entry["out"]:
            return
        if what == "done":
            del self.known[name]
            if entry["again"]:
                self.add(entry["again"])
            return
        if entry["again"]:
            entry.update(ask=entry["again"], again=None, out=False, failures=0, at=0.0)
            return
        entry["failures"] += 1
        entry.update(out=False, failed=now, not_before=now + min(30.0, 2.0 ** (entry["failures"] - 1)))
        entry["at"] = entry["not_before"]
        if what == "unschedulable":
            missed = entry["missed"] & wakes
            entry.update(at=now + 300.0, wakes=wakes)
            for change in missed:
                self._woken(entry, change, now)

    def wake(self, change: str, now: float) -> None:
        for entry in self.known.values():
            if entry["out"]:
                entry["missed"].add(change)
            elif entry["wakes"] and change in entry["wakes"]:
                self._woken(entry, change, now)

    def _woken(self, entry: dict[str, Any], change: Hashable, now: float) -> None:
        """Of several missed events the one with the earliest wake time counts."""
        soonest = min(entry["failed"] + 5.0 if change is READY else inf, entry["not_before"])
        entry["at"] = min(entry["at"], max(now, soonest))
        entry["wakes"] = set() if change is READY else {each for each in entry["wakes"] if each is READY}


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "pop", "pop", "done", "failed", "unschedulable", "wake", "wait"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.sampled_from([{GROWN}, {GONE}, {GROWN, GONE}, {READY, GONE}, {READY}, set()]),
    ),
    max_size=60,
)


@many
@given(ACTIONS)
def test_queue_agrees_with_naive_model(
    actions: list[tuple[str, int, int, set[str]]],
) -> None:
    fast, slow, now = SchedulingQueue(), NaiveQueue(), 0.0
    out: set[str] = set()
    for what, which, number, changes in actions:
        name = f"default/w{which}"
        if what == "wait":
            now += [0.5, 3.0, 200.0][number]
        elif what == "add":
            fast.add(an_ask(f"w{which}", number))
            slow.add(an_ask(f"w{which}", number))
        elif what == "pop":
            popped = fast.pop(now)
            assert popped == slow.pop(now)
            out |= {popped.name} if popped else set()
        elif what == "wake":
            fast.wake((GONE, GROWN, READY)[number], now)
            slow.wake((GONE, GROWN, READY)[number], now)
        elif name in out:
            out.discard(name)
            slow.finish(what, name, now, changes)
            if what == "done":
                fast.done(name)
            elif what == "failed":
                fast.requeue_failed(name, now)
            else:
                fast.requeue_unschedulable(name, changes, now)
        assert len(fast) == len(slow.known)
