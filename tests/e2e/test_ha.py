"""Several servers on one etcd lose no write and bind no workload twice while one of them is stopped, paused
or killed."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from build.etcd_history import NODES, TERM, HistoryChecker, KeyChange
from build.etcd_history import WORKLOADS as STORED
from build.load_clients import WORKLOADS, WriteLog, Writer
from build.process_fleet import LEASE_TTL, SLOTS, CopyObserver, Fleet, Server, running_fleet
from build.waiting import wait_until
from build.wire import CONFIGMAPS, Wire

from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus

pytestmark = [pytest.mark.xdist_group("ha"), pytest.mark.timeout(900)]

LOAD = 1.1  # workloads asked for, as a share of the capacity: some always wait for room
ROUNDS = 5
BINDINGS = 5  # made by a leader before it is disturbed: it must be in the middle of something


@dataclass(frozen=True)
class HandOver:
    """Seconds from the signal until: the next term began, its leader bound something, every agent was with it."""

    how: str
    leads: float
    binds: float
    agents: float
    wait: float  # the longest that clients of the other servers waited for an acknowledgement

    def __str__(self) -> str:
        return f"{self.how:<22} {self.leads:6.2f} {self.binds:6.2f} {self.agents:6.2f} {self.wait:6.2f}"


@dataclass
class Trial:
    """A fleet under load."""

    fleet: Fleet
    copies: CopyObserver
    ledger: WriteLog = field(default_factory=WriteLog)
    writers: list[Writer] = field(default_factory=list)
    figures: list[HandOver] = field(default_factory=list)

    def begin(self) -> None:
        fits = SLOTS * len(self.fleet.agents)
        each = int(fits * LOAD / len(self.fleet.servers))
        for server in self.fleet.servers:
            self.writers.append(Writer(server.name, server.kubeconfig, self.ledger, WORKLOADS, each))
            self.writers.append(Writer(server.name, server.kubeconfig, self.ledger, CONFIGMAPS, 10_000))
        for thread in (*self.writers, self.copies):
            thread.start()

    def disturb(self, how: str, act: Callable[[Server], None]) -> Server:
        """Disturb the leader during its work, measure the takeover, and return the disturbed server."""
        fleet, history = self.fleet, self.fleet.history
        term, former = history.term, fleet.leader
        fleet.wait_for_agents(term)
        wait_until(
            lambda: sum(each.term == term for each in history.bound().values()) >= BINDINGS,
            f"{former.name} binds",
        )
        began, at = datetime.now(UTC), time.monotonic()
        act(former)
        fleet.wait_for_leader(term)
        begun = history.began(term + 1)
        assert begun is not None
        first = wait_until(lambda: history.first_binding(term + 1), "the new leader binds")
        arrived = fleet.wait_for_agents(term + 1)
        wait = self.ledger.longest_wait(at, time.monotonic(), but=former.name)
        self.figures.append(
            HandOver(how, begun.at - at, first.at - at, (arrived - began).total_seconds(), wait)
        )
        print(self.figures[-1])
        return former

    def stop(self) -> None:
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.join(20)
            assert not writer.is_alive()


@contextmanager
def a_trial(folder: Path, etcds: int, servers: int, agents: int) -> Iterator[Trial]:
    with running_fleet(folder, etcds, servers, agents) as fleet:
        copies = CopyObserver([folder / agent.name for agent in fleet.agents])
        trial = Trial(fleet, copies)
        trial.begin()
        try:
            yield trial
        finally:
            trial.stop()
            copies.stop()


def _terminate(server: Server) -> None:
    server.send(signal.SIGTERM)


def _kill(server: Server) -> None:
    server.send(signal.SIGKILL)


def _check_everything(trial: Trial) -> None:
    """Check the state after the last fault, when all writers have stopped."""
    trial.stop()
    _wait_until_it_settles(trial)
    _check_acknowledged(trial)
    judge = HistoryChecker().judge(trial.fleet.history.everything)
    assert judge.faults == []
    trial.copies.look()
    assert {uid: places for uid, places in trial.copies.places.items() if len(places) > 1} == {}, (
        "alive on two nodes"
    )
    assert {uid: starts for uid, starts in trial.copies.starts.items() if starts > 1} == {}, (
        "started again for no reason"
    )
    creates = [deed for deed in trial.ledger.done if deed.verb == "create"]
    print(
        f"{len(trial.ledger.done)} writes acknowledged ({len(creates)} creates), {len(trial.ledger.unanswered)} without an answer;"
        f" {judge.bindings} bindings in {judge.term} terms, {len(trial.fleet.history.everything)} changes in the store,"
        f" {trial.copies.looks} looks at {len(trial.copies.places)} workloads on the nodes"
    )
    assert judge.bindings >= SLOTS * len(trial.fleet.agents)
    assert len(trial.copies.places) >= SLOTS * len(trial.fleet.agents)


def _wait_until_it_settles(trial: Trial) -> None:
    """Either everything runs, or every node is full; and what was deleted is gone."""
    room = SLOTS * len(trial.fleet.agents)

    def settled() -> bool:
        items = Wire(trial.fleet.servers[0].kubeconfig).get(WORKLOADS).value["items"]
        running = [each for each in items if each.get("status", {}).get("ready")]
        leaving = [each for each in items if "deletionTimestamp" in each["metadata"]]
        return not leaving and len(running) == min(room, len(items))

    wait_until(settled, "everything runs that fits", 120)


def _check_acknowledged(trial: Trial) -> None:
    """Each is there, at every server, as it was when it was acknowledged; what was deleted is not."""
    history = {(each.revision, each.key.rpartition("/")[2]): each for each in trial.fleet.history.everything}
    kept, deleted = trial.ledger.kept(), trial.ledger.deleted()
    assert trial.ledger.refused == []
    for server in trial.fleet.servers:
        there = {
            f"{place}/{name}"
            for place in (WORKLOADS, CONFIGMAPS)
            for name in Wire(server.kubeconfig).get(place).names
        }
        assert set(kept) - there == set(), "acknowledged and lost"
        assert deleted & there == set(), "deleted and there again"
    for path, deed in kept.items():
        assert (deed.revision, path.rpartition("/")[2]) in history, (
            f"acknowledged at a revision that is not its own: {deed}"
        )


def _check_fences(trial: Trial) -> int:
    """How many writes of a former term reached etcd after another had begun; none may have been done."""
    late = 0
    for term in range(1, trial.fleet.history.term + 1):
        begun = trial.fleet.history.began(term)
        assert begun is not None
        attempts = trial.fleet.fences.after(begun.revision, term - 1)
        assert not any(each.is_done for each in attempts), attempts
        late = max(late, len(attempts))
    return late


def test_leader_failover_loses_nothing(tmp_path: Path) -> None:
    with a_trial(tmp_path, etcds=1, servers=2, agents=3) as trial:
        _deceive_leader(trial)
        ended = trial.disturb("SIGTERM", _terminate)
        assert ended.end() == 0
        ended.start()
        killed = trial.disturb("kill -9", _kill)
        killed.end()
        killed.start()
        _check_everything(trial)
        _check_fences(trial)


@pytest.mark.prove
def test_three_servers_and_etcd_members_survive_one_fault(tmp_path: Path) -> None:
    with a_trial(tmp_path, etcds=3, servers=3, agents=20) as trial:
        _deceive_leader(trial)
        _let_the_first_lead(trial)
        _pause_leader(trial)
        for _ in range(ROUNDS):
            ended = trial.disturb("SIGTERM", _terminate)
            assert ended.end() == 0
            ended.start()
            killed = trial.disturb("kill -9", _kill)
            killed.end()
            killed.start()
        for _ in trial.fleet.etcds:
            _kill_etcd_leader(trial)
        _check_everything(trial)
        _check_fences(trial)
        by_name = {
            name: [each.leads for each in trial.figures if each.how == name]
            for name in ("SIGTERM", "kill -9")
        }
        assert max(by_name["SIGTERM"]) <= 1.0
        assert max(by_name["kill -9"]) <= LEASE_TTL + 2


def _deceive_leader(trial: Trial) -> None:
    """The lease of the leader expires while the leader believes it valid; the first fenced write deposes it."""
    fleet, term = trial.fleet, trial.fleet.history.term

    def deceive(leader: Server) -> None:
        assert leader is fleet.servers[0], "the one whose writes are seen"
        fleet.fences.believed = term

    deceived = trial.disturb("deceived", deceive)
    late = _check_that_it_stopped(trial, deceived, term)
    fleet.fences.believed = 0
    fenced = deceived.metric("lattice_controller_reconciles_total", 'result="fenced"')
    (line,) = deceived.said("controllers stopped")
    assert f"term {term} of controllers has ended, term {term + 1} has begun" in line["why"]
    assert fenced > 0
    print(
        f"{'':<22} {late} writes of term {term} after its end, all refused; {fenced:.0f} reconciles were told so"
    )


def _pause_leader(trial: Trial) -> None:
    """With writes on their way that arrive when another leads; then it goes on, and must see that it is over."""
    fleet, term = trial.fleet, trial.fleet.history.term

    def pause(leader: Server) -> None:
        assert leader is fleet.servers[0], "the one whose writes are seen"
        fleet.fences.hold()
        wait_until(lambda: fleet.fences.held, "a write is on its way")
        leader.send(signal.SIGSTOP)

    paused = trial.disturb("SIGSTOP", pause)
    fleet.fences.release()
    wait_until(lambda: not fleet.fences.held, "its writes arrive, late")
    paused.send(signal.SIGCONT)
    late = _check_that_it_stopped(trial, paused, term)
    print(f"{'':<22} {late} writes of term {term} after its end, all refused")


def _check_that_it_stopped(trial: Trial, former: Server, term: int) -> int:
    """How often it tried to write after its term: at least once, in vain, and never again once it knew."""
    fleet = trial.fleet
    begun = fleet.history.began(term + 1)
    assert begun is not None
    wait_until(lambda: fleet.fences.after(begun.revision, term), "it tries to write")
    wait_until(
        lambda: not former.leads and former.said("no longer leading")[-1]["term"] == term,
        "it sees that it is over",
    )
    _wait_for_more(trial)  # what it had sent before it knew has arrived
    late = fleet.fences.after(begun.revision, term)
    _wait_for_more(trial)
    assert fleet.fences.after(begun.revision, term) == late, "it went on acting"
    assert not any(each.is_done for each in late), late
    return len(late)


def _wait_for_more(trial: Trial) -> None:
    before = set(trial.fleet.history.bound())
    wait_until(lambda: len(set(trial.fleet.history.bound()) - before) >= BINDINGS, "somebody binds")


def _let_the_first_lead(trial: Trial) -> None:
    """By leaving it alone for a while."""
    first, *others = trial.fleet.servers
    for server in others:
        assert server.end() == 0
    wait_until(lambda: trial.fleet.history.leader == first.name and first.leads, f"{first.name} leads")
    for server in others:
        server.start()


def _kill_etcd_leader(trial: Trial) -> None:
    fleet, history = trial.fleet, trial.fleet.history
    fleet.wait_for_agents(history.term)
    term, member = history.term, fleet.etcd_leader()
    at = time.monotonic()
    member.stop()
    wait_until(
        lambda: any(deed.at > at + 1 for deed in list(trial.ledger.done)), "writes are acknowledged again"
    )
    _wait_for_more(trial)
    wait = trial.ledger.longest_wait(at, time.monotonic())
    fleet.wait_for_agents(history.term)
    member.start()
    print(
        f"etcd leader killed     longest wait for an acknowledgement {wait:.2f} s; terms {term} to {history.term}"
    )


def _a_node(revision: int = 2, ready: Literal["True", "False"] = "True") -> KeyChange:
    node = LatticeNode(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeNode",
        metadata=Metadata(name="n"),
        status=NodeStatus(allocatable={"cpu": 1000}, conditions=(Condition(type="Ready", status=ready),)),
    )
    return KeyChange(revision, f"{NODES}n", msgspec.json.encode(node))


def _bound(revision: int, name: str, node: str = "n", term: int = 1) -> KeyChange:
    workload = LatticeWorkload(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeWorkload",
        metadata=Metadata(name=name, uid=name),
        spec=WorkloadSpec(containers={}, requests={"cpu": "600m"}),
        status=WorkloadStatus(binding=Binding(node=node, term=term)),
    )
    return KeyChange(revision, f"{STORED}default/{name}", msgspec.json.encode(workload))


FIRST = [KeyChange(1, TERM, b"1"), _a_node()]
SECOND = KeyChange(4, TERM, b"2")
OTHER = KeyChange(2, f"{NODES}m", _a_node().value)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        pytest.param(
            [*FIRST, _bound(3, "x"), _bound(4, "y")],
            "n has 1000 of cpu, 1200 are bound",
            id="too much on a node",
        ),
        pytest.param(
            [*FIRST, OTHER, _bound(3, "x"), _bound(4, "x", "m")],
            "bound to n and to m",
            id="a workload on two nodes",
        ),
        pytest.param(
            [*FIRST, _bound(3, "x"), SECOND, _bound(5, "x", term=2)],
            "bound to n and to n",
            id="bound again by the next leader",
        ),
        pytest.param(
            [*FIRST, OTHER, SECOND, _bound(5, "x", term=2), _bound(6, "y", "m")],
            "after term 2",
            id="a former leader binds later",
        ),
        pytest.param(
            [*FIRST, SECOND, _bound(5, "x")],
            "in term 1, while term 2 lasts",
            id="a former leader binds first",
        ),
        pytest.param([*FIRST, _bound(3, "x", "gone")], "which is not there", id="a node that is not there"),
        pytest.param([*FIRST, _a_node(3, "False")], "n is taken for lost", id="a node is lost that is not"),
        pytest.param([*FIRST, KeyChange(3, TERM, b"1")], "term 1 follows term 1", id="a term is used twice"),
    ],
)
def test_checker_reports_the_violation(history: list[KeyChange], fault: str) -> None:
    faults = HistoryChecker().judge(history).faults
    assert any(fault in each for each in faults), faults


def test_checker_accepts_a_correct_history() -> None:
    gone = KeyChange(4, f"{STORED}default/x", None)
    judge = HistoryChecker().judge(
        [*FIRST, _bound(3, "x"), gone, KeyChange(5, TERM, b"2"), _bound(6, "y", term=2)]
    )
    assert judge.faults == []
    assert judge.bindings == 2
