"""The watchdog stops strict instances at their deadline, with or without an agent, and uses little memory."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from build.assignments import instance_id, shell
from build.process_node import an_agent, clock, end_all, kill_now, running_node, watchdogs, written
from build.waiting import eventually

from lattice.agent.host import instance_processes as groups
from lattice.agent.host.watchdog import Watchdog, seconds_since_boot
from lattice.agent.runtimes.preflight import tag_of

FOREVER = "trap '' TERM; while :; do sleep 0.05; done"


def dead(folder: Path) -> bool:
    handle = written(folder).records[0].handle
    return not groups.instance_pids(
        handle.pid, handle.start, handle.cgroups, tag_of(folder / "instances", instance_id())
    )


async def test_watchdog_stops_instances_of_dead_agent(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell(FOREVER, stop_after=1.5), contact_every=0.2) as (agent, begun):
        assert begun[0].is_live, begun[0].failure
        await asyncio.sleep(2)
        assert not dead(tmp_path)  # contact kept it
        last = float((tmp_path / "contact").read_text().split()[0])
        kill_now(agent)
    try:
        await eventually(lambda: dead(tmp_path), 5)
        assert 1.2 < seconds_since_boot() - last < 2.2
        await eventually(lambda: not watchdogs(tmp_path), 5)
        with an_agent(tmp_path) as (_, adopted):
            assert adopted[0].failure
            assert adopted[0].failure.reason == "DISCONNECTED"
            assert (
                adopted[0].failure.message
                == "stopped by the node: no contact with the control plane; the limit is 1.5 s"
            )
    finally:
        end_all(tmp_path)


async def test_watchdog_stops_instances_of_hung_agent(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell(FOREVER, stop_after=1.0), contact_every=0.2) as (agent, _):
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: dead(tmp_path), 5)
        finally:
            os.kill(agent.pid, signal.SIGCONT)
            kill_now(agent)
            end_all(tmp_path)


async def test_new_agent_adopts_watchdog_and_deadlines(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell(FOREVER, stop_after=2.0)) as (agent, _):
        first = watchdogs(tmp_path)
        kill_now(agent)
    try:
        with an_agent(tmp_path) as (_, adopted):  # it has no contact: deadlines stay
            assert adopted[0].is_live
            assert watchdogs(tmp_path) == first
            assert len(first) == 1
            await eventually(lambda: dead(tmp_path), 5)
    finally:
        end_all(tmp_path)


async def test_killed_watchdog_is_replaced(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.record_contact(clock.monotonic())
        await node.runtime.start(shell(FOREVER, stop_after=1.5))
        (first,) = watchdogs(tmp_path)
        os.kill(first, signal.SIGKILL)
        (second,) = await eventually(lambda: [pid for pid in watchdogs(tmp_path) if pid != first])
        assert second != first
        end = await node.ended(instance_id())
        assert end.failure
        assert end.failure.reason == "DISCONNECTED"


async def test_watchdog_exits_without_guarded_instances(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.start(shell(FOREVER))
        assert watchdogs(tmp_path) == []  # this instance needs no watchdog
        strict = instance_id(uid="u2")
        await node.runtime.record_contact(clock.monotonic())
        await node.runtime.start(shell(FOREVER, id=strict, workload="default/strict", stop_after=60))
        assert len(watchdogs(tmp_path)) == 1
        await node.runtime.stop(strict, 0)
        await eventually(lambda: not watchdogs(tmp_path), 2)


async def test_terminated_watchdog_stops_its_instances_first(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell(FOREVER, stop_after=60)) as (agent, _):
        kill_now(agent)
    try:
        (dog,) = watchdogs(tmp_path)
        os.kill(dog, signal.SIGTERM)
        await eventually(lambda: dead(tmp_path) and not watchdogs(tmp_path), 5)
    finally:
        end_all(tmp_path)


async def test_watchdog_memory_is_bounded(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.record_contact(clock.monotonic())
        await node.runtime.start(shell(FOREVER, stop_after=60))
        (dog,) = watchdogs(tmp_path)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{dog}/status").read_text().splitlines())
        print(f"VmRSS {status['VmRSS'].strip()}, RssAnon {status['RssAnon'].strip()}")
        assert int(status["VmRSS"].split()[0]) < 16_000
        assert int(status["RssAnon"].split()[0]) < 8_000


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def test_watchdog_terminates_then_kills_at_deadline(tmp_path: Path) -> None:
    """The watchdog in this process, on a clock that the test moves."""
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
    stubborn = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert stubborn.stdout
    assert stubborn.stdout.readline() == "ready\n"
    now = [1000.0]
    dog = Watchdog(-1, str(tmp_path), lambda: now[0])
    marker = tmp_path / "marker"
    (tmp_path / "contact").write_text(f"1000.0 {groups.boot_id()}")
    start = groups.start_time(stubborn.pid)
    try:
        assert dog.handle_command(f"guard\tx\t{stubborn.pid}\t{start}\t90\t5\t{marker}\t\t") == "ok\tx"
        assert dog.due() == 1085
        now[0] = 1084.0
        dog.enforce()
        assert not marker.exists()
        now[0] = 1086.0
        dog.enforce()
        assert stubborn.poll() is None
        assert marker.exists()
        assert dog.due() == 1090
        (tmp_path / "contact").write_text(f"1086.0 {groups.boot_id()}")  # heard again just in time
        dog.enforce()
        assert not marker.exists()
        assert dog.due() == 1171
        now[0] = 1176.0
        dog.enforce()
        assert stubborn.wait(5) == -signal.SIGKILL
        assert dog.due() is None
    finally:
        stubborn.kill()
        stubborn.wait()


def test_last_contact_survives_deleted_file(tmp_path: Path) -> None:
    dog = Watchdog(-1, str(tmp_path), lambda: 1000.0)
    (tmp_path / "contact").write_text(f"990.0 {groups.boot_id()}")
    assert dog.last_contact() == 990
    (tmp_path / "contact").unlink()
    assert dog.last_contact() == 990


def test_watchdog_spares_reused_pid(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    start = groups.start_time(sleeper.pid)
    assert start
    try:
        dog = Watchdog(-1, str(tmp_path), lambda: 1000.0)
        dog.handle_command(f"guard\tx\t{sleeper.pid}\t{start - 1}\t90\t5\t{tmp_path / 'marker'}\t\t")
        assert dog.enforce()
        assert dog.due() is None
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    "contact",
    [
        pytest.param(None, id="never heard"),
        pytest.param(
            "999999999.0 11111111-2222-3333-4444-555555555555", id="heard before the machine was started anew"
        ),
    ],
)
async def test_strict_instance_needs_contact_in_this_boot(tmp_path: Path, contact: str | None) -> None:
    if contact:
        (tmp_path / "contact").write_text(contact)

    async with running_node(tmp_path) as node:
        end = await node.runtime.start(shell(FOREVER, stop_after=60))
        assert end.failure
        assert end.failure.reason == "DISCONNECTED"
        assert end.failure.message == "no contact with the control plane since this node started"
        await node.runtime.record_contact(clock.monotonic())
        assert (await node.runtime.start(shell(FOREVER, stop_after=60, attempt=1))).is_live


async def test_late_answer_does_not_move_contact_back(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.record_contact(clock.monotonic())
        before = (tmp_path / "contact").read_text()
        await node.runtime.record_contact(clock.monotonic() - 50)
        assert (tmp_path / "contact").read_text() == before
