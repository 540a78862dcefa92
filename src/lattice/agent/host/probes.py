"""Container probes: probe results, counted against thresholds, tell whether a container has started, is alive
and is ready."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lattice.agent.host.runtime_protocol import ProbeResult
from lattice.clock import Clock
from lattice.kinds.container import Probe, Probes

ProbeName = Literal["startup", "liveness", "readiness"]
# (command, timeout in seconds) -> exit code; None after the timeout.
CommandRunner = Callable[[tuple[str, ...], float], Awaitable[int | None]]
HTTP_SUCCESS_STATUSES = range(200, 400)


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The consecutive results of one probe."""

    is_passing: bool
    successes: int = 0  # consecutive
    failures: int = 0
    detail: str = ""

    def with_result(self, probe: Probe, result: ProbeResult) -> "ProbeState":
        """The state after one more result; `is_passing` changes only when a threshold is reached."""
        if result.ok:
            counted = replace(self, successes=self.successes + 1, failures=0, detail="")
            return replace(
                counted, is_passing=self.is_passing or counted.successes >= probe.success_threshold
            )
        counted = replace(self, successes=0, failures=self.failures + 1, detail=result.detail)
        return replace(counted, is_passing=self.is_passing and counted.failures < probe.failure_threshold)


@dataclass(frozen=True, slots=True)
class Health:
    """The combined health of one container; a container without probes is started, ready and alive."""

    started: bool = True
    ready: bool = True
    alive: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProbeTracker:
    """The probes of one container with their states and next times. Immutable; time is passed in."""

    probes: Probes
    states: dict[ProbeName, ProbeState]
    next_at: dict[ProbeName, float]

    @classmethod
    def begin(cls, probes: Probes | None, now: float) -> "ProbeTracker":
        """The tracker of a new container. The container counts as alive until the startup or liveness probe
        fails, and as started and ready only after the startup and readiness probes, if configured, succeed."""
        probes = probes or Probes()
        configured: list[tuple[ProbeName, Probe]] = [
            (name, getattr(probes, name)) for name in _PROBE_NAMES if getattr(probes, name)
        ]
        states = {name: ProbeState(is_passing=name == "liveness") for name, _ in configured}
        return cls(probes, states, {name: now + probe.initial_delay_seconds for name, probe in configured})

    def probe(self, name: ProbeName) -> Probe:
        probe: Probe = getattr(self.probes, name)
        return probe

    def due(self) -> tuple[float, ProbeName] | None:
        """The next probe and its time; liveness and readiness wait for the startup probe."""
        names = {"startup"} if self._is_starting else {"liveness", "readiness"}
        times = [(at, name) for name, at in self.next_at.items() if name in names]
        return min(times, default=None)

    def with_result(self, name: ProbeName, result: ProbeResult, now: float) -> "ProbeTracker":
        """The tracker after one more result."""
        probe = self.probe(name)
        states = self.states | {name: self.states[name].with_result(probe, result)}
        next_at = self.next_at | {name: now + probe.period_seconds}
        if name == "startup" and states[name].is_passing:
            # Liveness and readiness waited for the startup probe: their first times may have passed.
            next_at = {probe_name: max(at, now) for probe_name, at in next_at.items()}
        return ProbeTracker(self.probes, states, next_at)

    @property
    def health(self) -> Health:
        """The combined health from the states of all probes."""
        startup, liveness, readiness = (self.states.get(name) for name in _PROBE_NAMES)
        failure_threshold = self.probes.startup.failure_threshold if self.probes.startup else 1
        failed_to_start = bool(startup and not startup.is_passing and startup.failures >= failure_threshold)
        return Health(
            started=startup is None or startup.is_passing,
            ready=not self._is_starting and (readiness is None or readiness.is_passing),
            alive=not failed_to_start and (liveness is None or liveness.is_passing),
            detail="; ".join(
                f"{name}: {state.detail}" for name, state in self.states.items() if state.detail
            ),
        )

    @property
    def _is_starting(self) -> bool:
        startup = self.states.get("startup")
        return startup is not None and not startup.is_passing


_PROBE_NAMES: tuple[ProbeName, ...] = ("startup", "liveness", "readiness")


async def run_probes(
    tracker: ProbeTracker,
    clock: Clock,
    run_probe: Callable[[Probe], Awaitable[ProbeResult]],
    on_health: Callable[[Health], None],
) -> None:
    """Run the probes when due and report every change of health. End when the container is no longer alive,
    or when no probe remains: a startup probe is not run again after its success."""
    health = tracker.health
    on_health(health)
    while health.alive and (due := tracker.due()):
        at, name = due
        await clock.sleep(max(0.0, at - clock.monotonic()))
        result = await run_probe(tracker.probe(name))
        tracker = tracker.with_result(name, result, clock.monotonic())
        if tracker.health != health:
            health = tracker.health
            on_health(health)


async def probe_once(
    probe: Probe, ports: Mapping[str, int], execute: CommandRunner, host: str = "127.0.0.1"
) -> ProbeResult:
    """Run one probe against the container."""
    timeout = float(probe.timeout_seconds)
    try:
        if probe.exec:
            code = await execute(probe.exec.command, timeout)
            detail = f"no response within {timeout:g} s" if code is None else f"exit code {code}"
            return ProbeResult(code == 0, "" if code == 0 else detail)
        async with asyncio.timeout(timeout):
            if probe.tcp:
                _, writer = await asyncio.open_connection(host, _port_number(probe.tcp.port, ports))
                writer.close()
            elif probe.http:
                return await _http(host, _port_number(probe.http.port, ports), probe.http.path)
            return ProbeResult(True)
    except TimeoutError:
        return ProbeResult(False, f"no response within {timeout:g} s")
    except OSError as error:
        # The words of the operating system, such as "connection refused", without its number.
        detail = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        return ProbeResult(False, detail)
    except ValueError as error:
        return ProbeResult(False, str(error))


def _port_number(port: int | str, ports: Mapping[str, int]) -> int:
    if isinstance(port, int):
        return port
    if port not in ports:
        raise ValueError(f'port "{port}" is not allocated')
    return ports[port]


async def _http(host: str, port: int, path: str) -> ProbeResult:
    """Send a GET request and read only the status line; redirects are not followed and count as success."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        target = path if path.startswith("/") else f"/{path}"
        # The path must not inject headers into the request.
        safe = target.replace("\r", "").replace("\n", "").replace(" ", "%20")
        headers = f"Host: {host}:{port}\r\nUser-Agent: lattice-probe\r\nConnection: close\r\n"
        writer.write(f"GET {safe} HTTP/1.1\r\n{headers}\r\n".encode())
        await writer.drain()
        words = (await reader.readline()).split(None, 2)
    finally:
        writer.close()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return ProbeResult(False, "the response is not HTTP")
    status = int(words[1])
    return ProbeResult(
        status in HTTP_SUCCESS_STATUSES, "" if status in HTTP_SUCCESS_STATUSES else f"HTTP status {status}"
    )
