"""Property tests with delayed orders and reports and changing specs: never two live copies, no run started
twice, and convergence at the end."""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Metadata
from lattice.kinds.workload import Binding, DesiredRun, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.workload import (
    LIVE_STATES,
    Action,
    LastAction,
    Report,
    WorkloadInput,
    decide,
    decide_manual_retry,
    desired_run,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Node:
    """Carries out orders in sequence and reports each change; orders and reports are delayed, never lost."""

    orders: list[tuple[int, DesiredRun | None]] = field(default_factory=list)
    reports: list[tuple[Report, int]] = field(default_factory=list)
    holds: Report = field(default_factory=Report)
    sent: int = 0
    told: DesiredRun | None = None  # the last order sent
    carried: int = 0
    heard: tuple[Report, int] = field(default_factory=lambda: (Report(), 0))
    started: list[tuple[str, int]] = field(default_factory=list)

    def tell(self, order: DesiredRun | None) -> None:
        if order != self.told:
            self.sent, self.told = self.sent + 1, order
            self.orders.append((self.sent, order))

    def carry_out(self) -> None:
        if not self.orders:
            return
        self.carried, order = self.orders.pop(0)
        state, revision, run = order or ("", "", 0)
        if state == "Running" and not self._settles(revision, run):
            if (revision, run) != (
                self.holds.revision,
                self.holds.run,
            ):  # a stopping run may continue under the same number
                self.started.append((revision, run))
            self.holds = Report("Starting", revision, run)
        elif state == "Stopped" and self.holds.state in LIVE_STATES:
            self.holds = replace(self.holds, state="Stopped")
        elif state == "":
            self.holds = Report()
        self.reports.append((self.holds, self.carried))

    def _settles(self, revision: str, run: int) -> bool:
        is_over = self.holds.state == "Failed" and self.holds.run >= run
        return self.holds.revision == revision and (self.is_live or is_over)

    def go_on(self, fails: bool) -> None:
        if self.holds.state == "Starting" or (self.holds.state == "Running" and fails):
            self.holds = replace(
                self.holds,
                state="Failed" if fails else "Running",
                failure_reason="RUNTIME_ERROR" if fails else "",
            )
            self.reports.append((self.holds, self.carried))

    def report(self) -> None:
        if self.reports:
            self.heard = self.reports.pop(0)

    @property
    def is_live(self) -> bool:
        return self.holds.state in LIVE_STATES

    @property
    def may_start(self) -> bool:
        return self.is_live or any(order and order.state == "Running" for _, order in self.orders)


@dataclass
class World:
    nodes: list[Node] = field(default_factory=lambda: [Node(), Node()])
    at: int = -1  # the node it is bound to
    found: WorkloadInput = field(default_factory=lambda: WorkloadInput("Running", "r0", START, "None"))
    is_removed: bool = False
    is_quiet: bool = False

    def look(self) -> None:
        self.is_quiet = True
        if self.is_removed:
            return
        decision = decide(self._seen())
        self._store(decision.action, decision.retry)
        self.is_quiet = not decision.is_stored and decision.action is not Action.ASSIGN
        match decision.action:
            case Action.ASSIGN:
                self.at = (self.at + 1) % 2
                self._store(Action.ASSIGN, None, is_bound=True)
            case Action.RESCHEDULE | Action.RELEASE:
                self.found = replace(self.found, node="None", eviction_reason="")
            case Action.FINALIZE_DELETE:
                assert not any(each.may_start for each in self.nodes), (
                    "removed while a copy lives, or may yet start"
                )
                self.is_removed = True

    def order(self, at: int) -> DesiredRun | None:
        """The order that the stored workload implies for a node; the node receives it later."""
        found = self.found
        if at != self.at or found.node == "None" or self.is_removed:
            return None
        spec = WorkloadSpec(containers={}, desired_state=found.desired, revision=found.revision)
        status = WorkloadStatus(
            binding=Binding(node=str(at)), last_action=found.last_action.action, retry=found.retry
        )
        return desired_run(
            LatticeWorkload(api_version="", kind="", metadata=Metadata(), spec=spec, status=status)
        )

    def tell(self) -> None:
        for at, node in enumerate(self.nodes):
            node.tell(self.order(at))

    def _seen(self) -> WorkloadInput:
        if self.found.node == "None":
            return self.found
        node = self.nodes[self.at]
        report, order = node.heard
        knows = order >= node.sent and node.told == self.order(self.at)
        return replace(self.found, report=replace(report, includes_last_order=knows))

    def _store(self, action: Action, retry: object, is_bound: bool = False) -> None:
        waits = (Action.ASSIGN, Action.NO_ACTION, Action.AWAIT_FAILOVER, Action.AWAIT_NODE)
        if retry is not None:
            self.found = replace(self.found, retry=retry)  # type: ignore[arg-type]
        if is_bound:
            self.found = replace(self.found, node="Ready", last_action=LastAction("Assign", self.found.now))
        elif action not in waits and not (action is Action.BACKOFF_WAIT and retry is None):
            self.found = replace(self.found, last_action=LastAction(action, self.found.now))

    def retry(self) -> None:
        decision = decide_manual_retry(self._seen())
        self._store(decision.action, decision.retry)

    def check(self) -> None:
        assert sum(node.is_live for node in self.nodes) <= 1, "two live copies"
        started = [each for node in self.nodes for each in node.started]
        assert len(started) == len(set(started)), "a run was started twice"


STEPS = {
    ("look", 0): 30,
    ("tell", 0): 30,
    **{
        (what, node): weight
        for node in (0, 1)
        for what, weight in (("order", 6), ("report", 8), ("works", 6), ("fails", 1))
    },
    **{("wait", seconds): 2 for seconds in (1, 6, 20)},
    ("wait", 400): 1,
    ("leave", 0): 4,
    ("Running", 0): 3,
    ("Stopped", 0): 1,
    ("revise", 0): 1,
    ("retry", 0): 1,
}


def take(world: World, what: str, number: int) -> None:
    match what:
        case "look":
            world.look()
        case "tell":
            world.tell()
        case "order":
            world.nodes[number].carry_out()
        case "report":
            world.nodes[number].report()
        case "works" | "fails":
            world.nodes[number].go_on(what == "fails")
        case "wait":
            world.found = replace(world.found, now=world.found.now + timedelta(seconds=number))
        case "revise":
            world.found = replace(world.found, revision=f"r{int(world.found.revision[1:]) + 1}")
        case "leave" if world.found.node == "Ready":
            world.found = replace(world.found, eviction_reason="drain")
        case "retry" if not world.is_removed:
            world.retry()
        case "Running" | "Stopped" | "Deleted" if world.found.desired != "Deleted":
            world.found = replace(world.found, desired=what)


def come_to_rest(world: World) -> None:
    for _ in range(60):
        for node in world.nodes:
            while node.orders or node.reports or node.holds.state == "Starting":
                node.carry_out()
                node.go_on(False)
                node.report()
                world.check()
        world.look()
        world.tell()
        world.check()
        pending = any(node.orders for node in world.nodes)
        if world.is_quiet and not pending and world.found.now > START + timedelta(days=1):
            return
        world.found = replace(world.found, now=world.found.now + timedelta(hours=1))
    raise AssertionError(f"no rest: {world.found}")


@settings(max_examples=1500 if LONG else 50, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_delayed_orders_and_reports_never_run_two_copies(seed: int, is_deleted: bool) -> None:
    world, chance = World(), random.Random(seed)
    for what, number in chance.choices(list(STEPS), list(STEPS.values()), k=300):
        take(world, what, number)
        world.check()
    if is_deleted:
        take(world, "Deleted", 0)
    for what, number in chance.choices(list(STEPS), list(STEPS.values()), k=30):
        take(world, what, number)
        world.check()
    come_to_rest(world)
    found, live = world.found, [node.holds for node in world.nodes if node.is_live]
    if found.desired == "Running" and not (
        found.retry and found.retry.revision == found.revision and found.retry.attempts == 5
    ):
        assert [(each.state, each.revision) for each in live] == [("Running", found.revision)]
    else:
        assert live == []
    assert world.is_removed == (found.desired == "Deleted")
