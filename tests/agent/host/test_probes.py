"""Probes: thresholds, probes against real servers and commands, and the probe loop in virtual time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from build.virtual import VirtualClock

from lattice.agent.host.probes import Health, ProbeState, ProbeTracker, probe_once, run_probes
from lattice.agent.host.runtime_protocol import ProbeResult
from lattice.kinds.container import ExecProbe, HttpProbe, Probe, Probes, TcpProbe

YES, NO = ProbeResult(True), ProbeResult(False, "refused")
TCP = TcpProbe(port=1)


def a_probe(**rest: Any) -> Probe:
    return Probe(tcp=TCP, **rest)


@pytest.mark.parametrize(
    ("well", "probe", "answers", "expected"),
    [
        pytest.param(False, a_probe(), [YES], True, id="one success passes"),
        pytest.param(
            False,
            a_probe(success_threshold=3),
            [YES, YES, NO, YES, YES],
            False,
            id="successes count in a row",
        ),
        pytest.param(
            False,
            a_probe(success_threshold=3),
            [YES, YES, YES],
            True,
            id="three in a row where three are asked",
        ),
        pytest.param(True, a_probe(), [NO, NO], True, id="two failures still pass"),
        pytest.param(True, a_probe(), [NO, NO, NO], False, id="three failures fail"),
        pytest.param(True, a_probe(), [NO, NO, YES, NO, NO], True, id="failures count in a row"),
        pytest.param(True, a_probe(failure_threshold=1), [NO, YES], True, id="a failed probe may recover"),
    ],
)
def test_thresholds(well: bool, probe: Probe, answers: list[ProbeResult], expected: bool) -> None:
    course = ProbeState(well)
    for answer in answers:
        course = course.with_result(probe, answer)
    assert course.is_passing == expected


def health_after(probes: Probes | None, *heard: tuple[Any, ProbeResult]) -> Health:
    checkup = ProbeTracker.begin(probes, 0)
    for name, answer in heard:
        checkup = checkup.with_result(name, answer, 0)
    return checkup.health


@pytest.mark.parametrize(
    ("probes", "heard", "expected"),
    [
        pytest.param(None, [], Health(True, True, True), id="running without probes is ready"),
        pytest.param(
            Probes(readiness=a_probe()),
            [],
            Health(True, False, True),
            id="not ready before the first success",
        ),
        pytest.param(
            Probes(readiness=a_probe()),
            [("readiness", YES)],
            Health(True, True, True),
            id="ready after a success",
        ),
        pytest.param(
            Probes(liveness=a_probe()), [], Health(True, True, True), id="alive until shown otherwise"
        ),
        pytest.param(
            Probes(liveness=a_probe(failure_threshold=1)),
            [("liveness", NO)],
            Health(True, True, False, "liveness: refused"),
            id="dead when liveness fails",
        ),
        pytest.param(
            Probes(startup=a_probe(), readiness=a_probe()),
            [("readiness", YES)],
            Health(False, False, True),
            id="not ready before it has started",
        ),
        pytest.param(
            Probes(startup=a_probe(failure_threshold=2)),
            [("startup", NO), ("startup", NO)],
            Health(False, False, False, "startup: refused"),
            id="failed startup is not alive",
        ),
    ],
)
def test_health(probes: Probes | None, heard: list[tuple[Any, ProbeResult]], expected: Health) -> None:
    assert health_after(probes, *heard) == expected


def test_liveness_and_readiness_wait_for_startup() -> None:
    checkup = ProbeTracker.begin(
        Probes(startup=a_probe(initial_delay_seconds=5), liveness=a_probe(), readiness=a_probe()), 100
    )
    assert checkup.due() == (105, "startup")
    checkup = checkup.with_result("startup", NO, 105)
    assert checkup.due() == (115, "startup")
    checkup = checkup.with_result("startup", YES, 115)
    assert checkup.due() == (115, "liveness")
    checkup = checkup.with_result("liveness", YES, 115)
    assert checkup.due() == (115, "readiness")


async def test_probe_runs_periodically_until_failure() -> None:
    clock, asked, told = VirtualClock(), [], []
    answers = iter([NO, YES, YES, NO, NO])

    async def asking(probe: Probe) -> ProbeResult:
        asked.append(clock.monotonic())
        return next(answers)

    probes = Probes(liveness=Probe(tcp=TCP, initial_delay_seconds=3, period_seconds=7, failure_threshold=2))
    task = asyncio.create_task(run_probes(ProbeTracker.begin(probes, 0), clock, asking, told.append))
    await clock.advance(100)
    assert task.done()
    assert asked == [3, 10, 17, 24, 31]
    assert [health.alive for health in told] == [True, True, True, True, False]


async def _no_command(words: tuple[str, ...], timeout: float) -> int | None:
    raise AssertionError("nobody asked for a command")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def probe_server(serve: Serve, make: Callable[[int], Probe]) -> ProbeResult:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        return await probe_once(make(port), {"http": port}, _no_command)


def saying(words: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(words)
        await writer.drain()
        writer.close()

    return serve


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("serve", "make", "expected"),
    [
        pytest.param(
            silent,
            lambda port: Probe(tcp=TcpProbe(port=port)),
            ProbeResult(True),
            id="an open port is enough for tcp",
        ),
        pytest.param(
            silent, lambda port: Probe(tcp=TcpProbe(port="http")), ProbeResult(True), id="a port by its name"
        ),
        pytest.param(
            silent,
            lambda port: Probe(tcp=TcpProbe(port="grpc")),
            ProbeResult(False, 'port "grpc" is not allocated'),
            id="an unknown port name",
        ),
        pytest.param(
            saying(b"HTTP/1.1 204 No Content\r\n\r\n"),
            lambda port: Probe(http=HttpProbe(port=port)),
            ProbeResult(True),
            id="2xx passes",
        ),
        pytest.param(
            saying(b"HTTP/1.1 302 Found\r\n\r\n"),
            lambda port: Probe(http=HttpProbe(port=port)),
            ProbeResult(True),
            id="3xx passes",
        ),
        pytest.param(
            saying(b"HTTP/1.1 503 Busy\r\n\r\n"),
            lambda port: Probe(http=HttpProbe(port=port)),
            ProbeResult(False, "HTTP status 503"),
            id="5xx fails",
        ),
        pytest.param(
            saying(b"SSH-2.0\r\n"),
            lambda port: Probe(http=HttpProbe(port=port)),
            ProbeResult(False, "the response is not HTTP"),
            id="something else answers",
        ),
        pytest.param(
            silent,
            lambda port: Probe(http=HttpProbe(port=port)),
            ProbeResult(False, "no response within 1 s"),
            id="silence is a failure",
        ),
    ],
)
async def test_probe_results_per_protocol(
    serve: Serve, make: Callable[[int], Probe], expected: ProbeResult
) -> None:
    assert await probe_server(serve, make) == expected


async def test_a_closed_port_is_a_failure() -> None:
    answer = await probe_once(Probe(tcp=TcpProbe(port=1)), {}, _no_command)
    assert answer == ProbeResult(False, "connection refused")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(0, ProbeResult(True), id="exit code 0 passes"),
        pytest.param(3, ProbeResult(False, "exit code 3"), id="other exit codes fail"),
        pytest.param(None, ProbeResult(False, "no response within 1 s"), id="a timeout fails"),
    ],
)
async def test_exec_probe_uses_exit_code(code: int | None, expected: ProbeResult) -> None:
    async def execute(words: tuple[str, ...], timeout: float) -> int | None:
        assert (words, timeout) == (("check", "me"), 1.0)
        return code

    assert await probe_once(Probe(exec=ExecProbe(command=("check", "me"))), {}, execute) == expected


async def test_hanging_exec_probe_is_killed(tmp_path: Any) -> None:
    from lattice.agent.runtimes.process import run_command

    before = time.monotonic()
    assert await run_command(("/bin/sh", "-c", "sleep 60 & sleep 60"), {}, tmp_path, 0.2) is None
    assert time.monotonic() - before < 5
