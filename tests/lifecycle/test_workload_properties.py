"""Property tests of the workload state machine: every state converges, and no run is started twice."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from build.property_settings import LONG
from build.workload_inputs import NOW, OLD, REV, a_report, a_retry, ago, an_action, an_input
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.workload import RestartPolicy
from lattice.lifecycle.retry import is_exhausted
from lattice.lifecycle.workload import (
    LIVE_STATES,
    Action,
    Decision,
    GracePeriods,
    LastAction,
    Report,
    WorkloadInput,
    decide,
)


@dataclass
class Agent:
    """Carries out orders with a delay; the next `fails` starts fail."""

    fails: int
    # Whether a run that does not fail ends with exit code 0 instead of running on.
    is_job: bool = False
    holds: Report = field(default_factory=Report)
    started: list[tuple[str, int]] = field(default_factory=list)

    def told(self, order: Decision, revision: str, run: int) -> None:
        match order.action:
            case Action.APPLY | Action.RECREATE if not self._settles(revision, run):
                self.started.append((revision, run))
                self.holds = Report("Starting", revision, run)
            case Action.APPLY_STOPPED if self.holds.state in LIVE_STATES:
                self.holds = replace(self.holds, state="Stopped")
            case Action.DELETE:
                self.holds = Report()

    def _settles(self, revision: str, run: int) -> bool:
        """Whether the agent keeps what it holds: a live run is not touched, and each run is started once."""
        return self.holds.revision == revision and (self.holds.state in LIVE_STATES or self.holds.run >= run)

    def go_on(self) -> None:
        if self.holds.state in ("Pending", "Starting", "Unknown"):
            self.fails -= 1
            ended = "Stopped" if self.is_job else "Running"
            self.holds = replace(
                self.holds,
                state=ended if self.fails < 0 else "Failed",
                failure_reason="" if self.fails < 0 else "RUNTIME_ERROR",
            )


@dataclass
class World:
    situation: WorkloadInput
    agent: Agent
    graces: GracePeriods = field(default_factory=GracePeriods)
    actions: list[Action] = field(default_factory=list)
    is_removed: bool = False

    def step(self) -> bool:
        """Reconcile once; False when nothing is left to do, now or later."""
        seen = replace(self.situation, report=self.agent.holds)
        decision = decide(seen, self.graces)
        self._store(seen, decision)
        self.agent.told(
            decision, seen.revision, (self.situation.retry.run or 0) if self.situation.retry else 0
        )
        before = self.agent.holds
        self.agent.go_on()
        has_moved = before != self.agent.holds
        wait = 1.0 if has_moved else (decision.requeue_after or 0.0)
        self.situation = replace(
            self.situation,
            now=seen.now + timedelta(seconds=wait),
            ready_since=self._ready_since(seen, has_moved),
        )
        is_waiting = (
            decision.is_stored
            or has_moved
            or decision.requeue_after is not None
            or decision.action is Action.ASSIGN
        )
        return is_waiting and not self.is_removed

    def _ready_since(self, seen: WorkloadInput, has_moved: bool) -> datetime | None:
        if self.agent.holds.state != "Running":
            return None
        return seen.now if has_moved else self.situation.ready_since or seen.now

    def _store(self, seen: WorkloadInput, decision: Decision) -> None:
        if decision.is_stored or decision.action is Action.ASSIGN:
            self.actions.append(decision.action)
            self.situation = replace(
                self.situation,
                retry=decision.retry or seen.retry,
                last_action=LastAction(decision.action, seen.now),
            )
        if decision.action is Action.ASSIGN:
            self.situation = replace(self.situation, node="Ready")
            self.agent.holds = Report()
        if decision.action in (Action.RESCHEDULE, Action.RELEASE):
            self.situation = replace(self.situation, node="None", eviction_reason="")
        self.is_removed = decision.action is Action.FINALIZE_DELETE


states = st.sampled_from(["Missing", "Pending", "Starting", "Running", "Stopped", "Failed", "Unknown"])
retries = st.none() | st.builds(
    a_retry,
    st.integers(0, 5),
    st.integers(1, 4),
    st.none() | st.floats(-200, 200),
    st.sampled_from([REV, OLD]),
)
lasts = st.just(LastAction()) | st.builds(an_action, st.sampled_from(list(Action)), st.floats(0, 1000))
situations = st.builds(
    WorkloadInput,
    desired=st.sampled_from(["Running", "Stopped", "Deleted"]),
    revision=st.just(REV),
    now=st.just(NOW),
    node=st.sampled_from(["None", "Ready", "Silent", "Gone"]),
    retry=retries,
    last_action=lasts,
    ready_since=st.none() | st.builds(ago, st.floats(0, 1000)),
    eviction_reason=st.sampled_from(["", "", "drain"]),
    failover_reason=st.just("its node has been silent for too long"),
)
reports = st.builds(a_report, states, st.integers(1, 5), st.just(""), st.sampled_from([REV, OLD]))


@settings(max_examples=4000 if LONG else 100, deadline=None)
@given(situation=situations, holds=reports, fails=st.integers(0, 6))
def test_any_state_converges_without_double_start(
    situation: WorkloadInput, holds: Report, fails: int
) -> None:
    world = World(situation, Agent(fails, holds))
    steps = 0
    while world.step():
        steps += 1
        assert steps < 80, world.actions[-20:]
    final, agent = world.situation, world.agent
    assert len(agent.started) == len(set(agent.started))
    assert all(a[1] < b[1] for a, b in zip(agent.started, agent.started[1:], strict=False))
    if final.node not in ("Ready", "None"):
        return  # permanently silent: the workload waits for the node
    is_failed = final.retry is not None and final.retry.revision == REV and is_exhausted(final.retry)
    match final.desired:
        case "Running" if is_failed:
            assert agent.holds.state not in LIVE_STATES or final.node == "None"
        case "Running":
            assert (agent.holds.state, agent.holds.revision) == ("Running", REV)
        case "Stopped":
            assert agent.holds.state not in LIVE_STATES or final.node == "None"
        case "Deleted":
            assert world.is_removed
    assert not decide(replace(final, report=agent.holds)).is_stored or world.is_removed


@settings(max_examples=1000 if LONG else 40, deadline=None)
@given(fails=st.integers(0, 4))
def test_workload_starts_once_plus_once_per_failure(fails: int) -> None:
    world = World(an_input(node="None"), Agent(fails))
    while world.step():
        assert len(world.actions) < 50
    assert [run for _, run in world.agent.started] == list(range(1, fails + 2))
    assert world.actions.count(Action.APPLY) == 1
    assert world.actions.count(Action.RECREATE) == fails
    assert world.actions.count(Action.FORGIVE) == (1 if fails else 0)


@settings(max_examples=1000 if LONG else 40, deadline=None)
@given(fails=st.integers(0, 12), policy=st.sampled_from(["Always", "OnFailure", "Never"]), job=st.booleans())
def test_restart_policy_decides_the_number_of_runs(fails: int, policy: RestartPolicy, job: bool) -> None:
    world = World(an_input(node="None", restart_policy=policy), Agent(fails, is_job=job))
    for _ in range(60):
        if not world.step():
            break
    retry = world.situation.retry
    assert retry is not None
    runs_without_end = job and policy == "Always"
    expected = 1 if policy == "Never" else 5 if runs_without_end else min(fails + 1, 5)
    assert len(world.agent.started) == expected
    has_passed = fails < expected
    assert retry.succeeded is (has_passed and job and not runs_without_end)
    assert retry.has_failed is (runs_without_end or not has_passed)


@settings(max_examples=1000 if LONG else 40, deadline=None)
@given(fails=st.integers(0, 40))
def test_replica_of_a_service_is_restarted_until_it_runs(fails: int) -> None:
    world = World(an_input(node="None", is_service_replica=True), Agent(fails))
    reported, waits = 0, []
    for _ in range(300):
        decision = decide(replace(world.situation, report=world.agent.holds), world.graces)
        if decision.failure_reason:
            reported += decision.event == "WorkloadFailed"
            waits.append(decision.requeue_after)
        if not world.step():
            break
    assert len(world.agent.started) == fails + 1
    assert world.agent.holds.state == "Running"
    assert reported == (1 if fails >= 5 else 0)
    assert waits == [min(300, 5 * 2**n) for n in range(fails)]
    assert world.actions.count(Action.FORGIVE) == (1 if fails else 0)
