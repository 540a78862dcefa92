"""Failures of real processes as they are reported to the control plane: missing command, taken port, full
disk."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build.assignments import until

from lattice.agent.executor import Executor
from lattice.agent.host.runtime_protocol import InstanceRecord
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes.process import ProcessRuntime
from lattice.agent.state_file import StateFile
from lattice.clock import SystemClock
from lattice.errors import Full
from lattice.wire import agent_pb2 as pb

clock = SystemClock()


def orders(number: int, containers: dict[str, Any], **rest: Any) -> pb.Orders:
    given: dict[str, Any] = {"run": 1, "disconnect": "keep", "stop_after_ms": 90_000} | rest
    one = pb.Assignment(
        workload="default/web",
        uid="u1",
        state="Running",
        revision="a1",
        containers=msgspec.json.encode(containers),
        **given,
    )
    return pb.Orders(term=1, number=number, is_whole=number == 1, assignments=[one])


async def execute_until(
    folder: Path,
    first: pb.Orders,
    check: Callable[[Executor], Any],
    before: Callable[[StateFile], None] = lambda state: None,
) -> None:
    state = StateFile(folder)
    runtime = ProcessRuntime(folder, state, clock, WatchdogClient(folder, clock))
    work = Executor(runtime, state, clock, grace=1.0, reconcile_interval=0.05)
    await work.adopt()
    await runtime.record_contact(clock.monotonic())
    before(state)
    running = asyncio.create_task(work.run())
    try:
        work.accept_orders(first)
        await until(lambda: check(work))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await work.clear()
        await runtime.close()
        state.close()


def failed(work: Executor) -> str:
    report = work.reports.get("default/web")
    return report.failure if report is not None and report.state == "Failed" else ""


@pytest.mark.parametrize(
    ("containers", "reason"),
    [
        pytest.param({"main": {"command": ["no-such-program"]}}, "COMMAND_NOT_FOUND", id="no such command"),
        pytest.param(
            {"main": {"command": ["sh", "-c", "echo out of cheese; exit 3"]}},
            "RUNTIME_ERROR",
            id="exits with an error",
        ),
    ],
)
async def test_failed_start_is_reported_with_reason(
    tmp_path: Path, containers: dict[str, Any], reason: str
) -> None:
    await execute_until(tmp_path, orders(1, containers), lambda work: failed(work) == reason)


async def test_failed_start_is_reported_with_log(tmp_path: Path) -> None:
    containers = {"main": {"command": ["sh", "-c", "echo out of cheese; exit 3"]}}
    await execute_until(
        tmp_path,
        orders(1, containers),
        lambda work: failed(work) and work.reports["default/web"].log == "out of cheese\n",
    )


async def test_taken_port_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        order = orders(
            1, {"main": {"command": ["sleep", "60"], "ports": [{"name": "http"}]}}, ports={"http": number}
        )
        await execute_until(tmp_path, order, lambda work: failed(work) == "PORT_TAKEN")


async def test_start_waits_for_port_of_stopping_instance(tmp_path: Path) -> None:
    """A node reconnects after a partition: a dropped instance still holds the port that another workload was
    given."""
    with socket.socket() as free:
        free.bind(("", 0))
        number = free.getsockname()[1]
    holds = "import os, signal, socket; signal.signal(15, signal.SIG_IGN); s = socket.create_server(('', int(os.environ['PORT']))); signal.pause()"
    first = orders(
        1,
        {"main": {"command": [sys.executable, "-c", holds], "ports": [{"name": "http"}]}},
        ports={"http": number},
    )
    first.assignments[0].workload, first.assignments[0].uid = "default/former", "u0"
    second = orders(
        2, {"main": {"command": ["sleep", "60"], "ports": [{"name": "http"}]}}, ports={"http": number}
    )
    second.dropped.append("default/former")
    failures: list[str] = []

    def check(work: Executor) -> Any:
        if work.order_number == 1:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", number)):
                work.accept_orders(second)
            return False
        failures.append(failed(work))
        return work.reports["default/web"].state == "Running" if "default/web" in work.reports else False

    await execute_until(tmp_path, first, check)
    assert not any(failures)


async def test_full_disk_is_reported_and_nothing_starts(tmp_path: Path) -> None:
    def fill(state: StateFile) -> None:
        def full(record: InstanceRecord) -> None:
            raise Full("no disk space to write the agent's state", where=str(state.path))

        state.write_record = full  # type: ignore[method-assign]

    await execute_until(
        tmp_path,
        orders(1, {"main": {"command": ["sleep", "60"]}}),
        lambda work: failed(work) == "STORAGE_ERROR",
        fill,
    )


async def test_new_revision_never_overlaps_old_one(tmp_path: Path) -> None:
    marker = tmp_path / "both"
    script = f'trap "rmdir {tmp_path}/alone; exit 0" TERM; mkdir "{tmp_path}/alone" || touch "{marker}"; while :; do sleep 0.05; done'
    containers = {"main": {"command": ["sh", "-c", script]}}

    def check(work: Executor) -> Any:
        report = work.reports.get("default/web")
        if report is None or report.state != "Running":
            return False
        if report.revision == "a1" and work.order_number == 1:
            second = orders(2, containers)
            second.assignments[0].revision, second.assignments[0].run = "a2", 2
            work.accept_orders(second)
        return report.revision == "a2" and report.run == 2

    await execute_until(tmp_path, orders(1, containers), check)
    assert not marker.exists()
