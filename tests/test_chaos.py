"""Chaos runs plan enough faults of every kind, undo all of them, and their checker reports violations."""

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos import network
from chaos.agent import NotedMachine, lose_power, read
from chaos.figures import figures, left_out
from chaos.judge import Evidence, judge, stretch, written_lately
from chaos.leftovers import clear, close_folder, make_folder
from chaos.nemesis import Fault
from chaos.people import Crowd
from chaos.plan import KINDS, WHOLE, Kind, Strike, disturbed, plan
from chaos.programs import Agent
from chaos.record import History, machine
from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.clock import SystemClock
from lattice.kinds.container import Container
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.server.live import spend_recorder as spendbook
from lattice.sim.invariants.checker import Violation
from lattice.sim.invariants.history import instance_runs
from lattice.sim.world.recording_client import OperationRecord
from lattice.store.protocol import Key

CHANCE = random.Random(1)
GONE = 1 << 22  # no process has this number: it is the most that Linux gives, and one more
SECONDS = 1050.0  # of the 1,200 that `make chaos` takes, the rest is without faults


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_plan_has_a_hundred_faults_of_every_kind(seed: int) -> None:
    strikes = plan(seed, SECONDS)
    assert len(strikes) >= 100
    assert {strike.kind for strike in strikes} == set(KINDS)
    assert max(strike.ends for strike in strikes) <= SECONDS
    assert plan(seed, SECONDS) == strikes != plan(seed + 1, SECONDS)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_control_plane_faults_overlap_only_across_lanes(seed: int) -> None:
    control = [strike for strike in plan(seed, SECONDS) if strike.kind.lane != "nodes"]
    pairs = [(one, other) for one in control for other in control if one.at < other.at < one.ends]
    assert pairs, "some do"
    for one, other in pairs:
        assert one.kind.lane != other.kind.lane, (one, other)
        assert not WHOLE & {one.kind.target, other.kind.target}


def test_network_faults_exempt_the_harness() -> None:
    rules = [*network.cut("etcd1"), *network.cut_port("server1", 2379), *network.lossy("racks1", 0.3)]
    assert all(network.HUB_ADDRESS in rule.words and "!" in rule.words for rule in rules)


def a_spec(name: str = "w", stop_after: float | None = None) -> RunSpec:
    return RunSpec(
        id=InstanceId(name, "r", "main"),
        workload=f"default/{name}",
        container=Container(command=("run",)),
        stop_after=stop_after,
    )


def a_noted_machine(path: Path) -> NotedMachine:
    return NotedMachine(SystemClock(), CHANCE, path)


def the_lives(path: Path) -> list[Any]:
    found, _ = machine(Agent(1, "n", "racks1", [], path.parent, notes=path))
    return list(instance_runs(found))  # type: ignore[arg-type]


def test_instances_survive_a_killed_agent(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    a_noted_machine(path).begin(a_spec())
    again = a_noted_machine(path)
    assert again.live_instances() == [a_spec().id]
    again.end(a_spec().id, killed=True)
    assert a_noted_machine(path).live_instances() == []
    (life,) = the_lives(path)
    assert life.start <= life.end < float("inf")


def test_powered_off_machine_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    a_noted_machine(path).begin(a_spec())
    lose_power(path)
    assert a_noted_machine(path).live_instances() == []
    assert a_noted_machine(path).boot_count == 2
    assert the_lives(path)[0].end <= time.monotonic()


def test_stop_after_is_enforced_without_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    first = a_noted_machine(path)
    heard = time.monotonic() - 60
    first.record_contact(heard)
    first.begin(a_spec(stop_after=20))
    assert a_noted_machine(path).live_instances() == []
    assert the_lives(path)[0].end == heard + 20


def test_incomplete_note_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    lose_power(path)
    with path.open("ab") as file:
        file.write(b'{"at": 1, "what": "po')
    assert [note.what for note in read(path)] == ["power"]


def a_bound(node: str, term: int) -> bytes:
    return msgspec.json.encode(
        LatticeWorkload(
            api_version="lattice.dev/v1alpha1",
            kind="LatticeWorkload",
            metadata=Metadata(name="w", namespace="default", uid="u"),
            spec=WorkloadSpec(containers={}),
            status=WorkloadStatus(binding=Binding(node=node, term=term)),
        )
    )


def a_history(*revisions: list[tuple[bytes, bytes | None]]) -> History:
    history = History("p")
    for number, events in enumerate(revisions):
        for key, value in events:
            history.take("etcd1", number + 1, key, value)
    return history


TERM = b"/p/terms/controllers"
WORKLOAD = b"/p/objects/latticeworkloads.lattice.dev/default/w"


def test_revision_seen_by_two_members_is_recorded_once() -> None:
    history = a_history([(TERM, b"1")])
    history.take("etcd2", 1, TERM, b"1")
    assert len(history.terms) == 1
    assert [record.revision for record in history.records()] == [1]


def violations_of(history: History) -> list[str]:
    evidence = Evidence(history, Crowd({}, CHANCE), [], [], time.monotonic() + 100)
    return [f"{each.invariant} {each.message}" for each in judge(evidence)[0]]


@pytest.mark.parametrize(
    ("revisions", "words"),
    [
        pytest.param([[(TERM, b"2")], [(WORKLOAD, a_bound("n", 1))]], "I-09", id="a former leader binds"),
        pytest.param(
            [[(TERM, b"1")], [(WORKLOAD, a_bound("n", 1))], [(WORKLOAD, a_bound("m", 1))]],
            "I-11",
            id="bound to two nodes",
        ),
        pytest.param(
            [[(TERM, b"1")], [(WORKLOAD, a_bound("n", 1))]], "I-14", id="bound to a node that is not there"
        ),
    ],
)
def test_chaos_checker_reports_the_violation(
    revisions: list[list[tuple[bytes, bytes | None]]], words: str
) -> None:
    found = violations_of(a_history(*revisions))
    assert any(each.startswith(words) for each in found), found


def a_fault(lane: str, at: float, healed: float, name: str = "clock") -> Fault:
    kind = Kind(name, lane, "leader", (1, 2))  # type: ignore[arg-type]
    return Fault(Strike(at, kind, healed - at, 0.5), at, ["server1"], "server1", healed)


@pytest.mark.parametrize(
    ("others", "is_told"),
    [
        pytest.param([], True, id="the wall clock alone deposed the leader"),
        pytest.param([a_fault("nodes", 11, 14, "cut")], True, id="what befalls nodes is no excuse"),
        pytest.param([a_fault("etcd", 11, 14, "kill -9")], False, id="etcd was disturbed too"),
    ],
)
def test_leader_deposed_by_a_wall_clock_fault_is_reported(others: list[Fault], is_told: bool) -> None:
    history = a_history([(TERM, b"1")])
    history.terms.append((12.0, 2))
    faults = [a_fault("servers", 10, 15), *others]
    found = judge(Evidence(history, Crowd({}, CHANCE), [], faults, 100.0))[0]
    assert any(each.invariant == "I-10" for each in found) == is_told


def test_writes_at_the_end_are_reported() -> None:
    history = a_history([(TERM, b"1")], [(WORKLOAD, a_bound("n", 1))])
    assert written_lately(history.records(), time.monotonic())
    assert not written_lately(history.records(), time.monotonic() + 100)


def test_violation_report_lists_related_writes_and_faults() -> None:
    records = a_history([(TERM, b"1")], [(WORKLOAD, a_bound("n", 1))]).records()
    at = records[-1].at
    lines = stretch(
        Violation("I-13", "default/w ran twice", at + 50),
        records,
        [a_fault("nodes", at - 5, at + 5, "cut")],
        at - 10,
    )
    assert [line.split("  ")[-1] for line in lines] == [
        "revision 2: latticeworkloads.lattice.dev/default/w (made)",
        "cut, leader: server1, until 15.00 s",
    ]


@pytest.mark.parametrize(
    ("name", "lane", "target", "figure"),
    [
        pytest.param(
            "kill -9", "servers", "leader", "leader killed: another leads", id="no leader was elected again"
        ),
        pytest.param(
            "kill -9",
            "etcd",
            "etcd leader",
            "etcd's leader lost: longest time without a write",
            id="nothing was ever written again",
        ),
    ],
)
def test_missing_recovery_is_a_missed_target(name: str, lane: str, target: str, figure: str) -> None:
    kind = Kind(name, lane, target, (1, 2))  # type: ignore[arg-type]
    fault = Fault(Strike(10, kind, 20, 0.5), 10, ["server1"], "server1", 30)
    crowd = Crowd({}, CHANCE)
    crowd.told.append(
        OperationRecord("p", "p.1", "PATCH", Key("configmaps", "default", "p"), 39, 40, "unknown")
    )
    found = {each.what: each for each in figures(Evidence(a_history(), crowd, [], [fault], 100.0))}
    assert "missed 1 times" in found[figure].row


def _cut(target: str, lasts: float) -> Fault:
    kind = Kind("cut", "nodes", target, (1, 2))
    return Fault(Strike(10, kind, lasts, 0.5), 10, ["racks1"], "server1", 10 + lasts)


def a_node_value(name: str, is_ready: bool) -> bytes:
    ready = {
        "type": "Ready",
        "status": "True" if is_ready else "False",
        "reason": "Heartbeat",
        "lastTransitionTime": "2026-03-10T09:00:00Z",
    }
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNode",
        "metadata": {"name": name},
        "status": {"conditions": [ready]},
    }
    return msgspec.json.encode(body)


def node_key(name: str) -> bytes:
    return History("p").keys.object_key(Key(LatticeNode.resource.id, "", name))


def at(times: list[float], history: History) -> History:
    """The same revisions at other times."""
    for written, when in zip(history.written.values(), times, strict=True):
        written.at = when
    return history


def the_row(evidence: Evidence, what: str) -> str:
    return next(each.row for each in figures(evidence) if each.what.startswith(what))


def test_group_counts_as_not_ready_with_its_last_node(tmp_path: Path) -> None:
    agents = [
        Agent(number, f"n{number}", "racks1", [], tmp_path, notes=tmp_path / "none") for number in (1, 2)
    ]
    nodes = [(node_key(name.decode()), name.decode()) for name in (b"n1", b"n2")]
    events = [
        [(key, a_node_value(name, True)) for key, name in nodes],
        *([(key, a_node_value(name, False))] for key, name in nodes),
    ]
    history = at([1.0, 20.0, 24.0], a_history(*events))
    assert "| 14.00 | 14.00 | 14.00 | met |" in the_row(
        Evidence(history, Crowd({}, CHANCE), agents, [_cut("group", 30)], 100.0), "group of nodes"
    )


def test_too_fast_node_loss_is_a_missed_target() -> None:
    keys = [
        (
            node_key(name.decode()),
            b"/p/objects/latticeworkloads.lattice.dev/default/w%s" % name,
            name.decode(),
        )
        for name in (b"n1", b"n2")
    ]
    there = [
        (key, value)
        for node, workload, name in keys
        for key, value in ((node, a_node_value(name, False)), (workload, a_bound(name, 1)))
    ]
    loose = msgspec.json.decode(a_bound("n", 1))
    del loose["status"]
    taken = [[(workload, msgspec.json.encode(loose))] for _, workload, _ in keys]
    for pause, verdict in ((1.0, "missed 1 times"), (5.0, "met")):
        history = at([1.0, 20.0, 20.0 + pause], a_history(there, *taken))
        row = the_row(
            Evidence(history, Crowd({}, CHANCE), [], [_cut("half of the groups", 30)], 100.0),
            "half of the nodes",
        )
        assert verdict in row, row


def test_start_during_full_outage_is_a_missed_target(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    a_noted_machine(path).begin(a_spec())
    now = time.monotonic()
    agent = Agent(1, "n", "racks1", [], tmp_path, notes=path)
    fault = Fault(
        Strike(10, Kind("kill -9", "servers", "all servers", (1, 2)), 20, 0.5),
        now - 10,
        ["server1"],
        "server1",
        now + 10,
    )
    for faults, verdict in (([fault], "missed 1 times"), ([replace(fault, at=now + 1)], "met")):
        assert verdict in the_row(
            Evidence(a_history(), Crowd({}, CHANCE), [agent], faults, now + 100), "all servers down"
        )


def test_removed_node_with_workloads_is_reported() -> None:
    node = node_key("n")
    made = msgspec.json.decode(a_node_value("n", True)) | {"spec": {"cluster": "rack-001"}}
    revisions = [
        [(TERM, b"1")],
        [(node, msgspec.json.encode(made))],
        [(WORKLOAD, a_bound("n", 1))],
        [(node, None)],
    ]
    assert any(each.startswith("I-27") for each in violations_of(a_history(*revisions)))


def test_writes_at_the_end_are_reported_with_the_change() -> None:
    history = a_history([(TERM, b"1")], [(WORKLOAD, a_bound("n", 1))], [(WORKLOAD, a_bound("n", 2))])
    evidence = Evidence(history, Crowd({}, CHANCE), [], [], time.monotonic())
    found, records = judge(evidence)
    late = next(each for each in found if each.message.startswith("written in the last"))
    assert stretch(late, records, [], records[0].at)[-1].endswith("default/w (status.binding.term: 1 → 2)")


SPENT = History("p").keys.object_key(spendbook.SPENDING_KEY)


def test_one_spending_record_at_the_end_is_allowed() -> None:
    record = (SPENT, b'{"metadata": {"name": "lattice-spending"}}')
    now = time.monotonic()
    assert not written_lately(a_history([record]).records(), now)
    assert written_lately(a_history([record], [record]).records(), now) == {str(spendbook.SPENDING_KEY): 1}
    assert written_lately(a_history([record], [(WORKLOAD, a_bound("n", 1))]).records(), now)


@pytest.mark.parametrize(
    ("seconds", "faults", "calm"),
    [
        pytest.param(1200, 1050, 150, id="a long run has the full calm"),
        pytest.param(300, 150, 150, id="the shortest run with the full calm"),
        pytest.param(120, 60, 60, id="a shorter run is calm for half of its time"),
    ],
)
def test_run_is_split_into_faults_and_calm(seconds: float, faults: float, calm: float) -> None:
    assert (disturbed(seconds), seconds - disturbed(seconds)) == (faults, calm)


def test_report_lists_what_the_run_left_out() -> None:
    evidence = Evidence(a_history(), Crowd({}, CHANCE), [], [a_fault("servers", 10, 15)], 95.0)
    said = left_out(evidence, 120, "clock", figures(evidence))
    assert said[0] == "the last 80 s were without a fault"
    assert (
        said[1] == "too short for the whole calm: 60 s were planned for it, not 150; --seconds 300 is enough"
    )
    assert said[2] == "2 of 3 sorts of fault did not strike: clock, all servers; clock, group"
    assert said[3].startswith("12 of 12 recoveries were not seen: leader killed: another leads; ")
    nothing = left_out(replace(evidence, faults=[]), 1200, "", [])
    assert nothing[0] == "no fault struck: nothing was put to the test"
    assert len(nothing) == 2


def test_unknown_fault_name_lists_the_existing_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--only", "nosuchfault"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        "no fault has 'nosuchfault' in its name; use a part of one of these: kill -9, leader; SIGTERM, leader;"
        in done.stderr
    )


def test_clear_removes_folders_of_ended_runs_unless_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(network, "NAMED", tmp_path / "none")
    command = [sys.executable, "-c", "input(print('up', flush=True))", "chaos"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        assert living.stdout.readline() == b"up\n"
        alive = make_folder(living.pid)
        gone, kept = make_folder(GONE), make_folder(GONE)
        other = tmp_path / f"{network.MARK}-notes"
        other.mkdir()
        (gone / "etcd1").mkdir()
        close_folder(kept, keep=True)
        assert clear() == [f"removed what run {GONE} had left behind: {gone}"]
        assert sorted(tmp_path.iterdir()) == sorted([alive, kept, other])
        assert clear() == []
        living.communicate(b"\n")
    close_folder(alive, keep=False)
    assert not alive.exists()


def test_clear_keeps_folders_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(network, "NAMED", tmp_path / "none")
    folder = make_folder(GONE)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert clear() == []
    assert folder.exists()
