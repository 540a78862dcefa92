"""Is a container well? Answers to probes, counted against thresholds, say whether it has started, lives and is ready."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lattice.agent.host.runtime_protocol import ProbeResult
from lattice.clock import Clock
from lattice.kinds.container import Probe, Probes

ProbeName = Literal["startup", "liveness", "readiness"]
CommandRunner = Callable[
    [tuple[str, ...], float], Awaitable[int | None]
]  # command, timeout -> exit code; None: it took too long
HTTP_SUCCESS_STATUSES = range(200, 400)


@dataclass(frozen=True, slots=True)
class ProbeState:
    """How one probe has gone so far."""

    is_passing: bool
    successes: int = 0  # in a row
    failures: int = 0
    detail: str = ""

    def with_result(self, probe: Probe, answer: ProbeResult) -> "ProbeState":
        if answer.ok:
            now = replace(self, successes=self.successes + 1, failures=0, detail="")
            return replace(now, is_passing=self.is_passing or now.successes >= probe.success_threshold)
        now = replace(self, successes=0, failures=self.failures + 1, detail=answer.detail)
        return replace(now, is_passing=self.is_passing and now.failures < probe.failure_threshold)


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes of one container say together. Without a probe the answer is yes."""

    started: bool = True
    ready: bool = True
    alive: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProbeTracker:
    """The probes of one container, when each is asked next, and what they said. Values only; `due` and `heard` decide everything."""

    probes: Probes
    states: dict[ProbeName, ProbeState]
    next_at: dict[ProbeName, float]

    @classmethod
    def begin(cls, probes: Probes | None, now: float) -> "ProbeTracker":
        """Alive until shown otherwise; started and ready only once shown."""
        probes = probes or Probes()
        given: list[tuple[ProbeName, Probe]] = [
            (name, getattr(probes, name)) for name in _PROBE_NAMES if getattr(probes, name)
        ]
        courses = {name: ProbeState(is_passing=name == "liveness") for name, _ in given}
        return cls(probes, courses, {name: now + probe.initial_delay_seconds for name, probe in given})

    def probe(self, name: ProbeName) -> Probe:
        found: Probe = getattr(self.probes, name)
        return found

    def due(self) -> tuple[float, ProbeName] | None:
        """Which probe is asked next, and when; the other two wait for startup."""
        waiting = {"startup"} if self._is_starting else {"liveness", "readiness"}
        times = [(at, name) for name, at in self.next_at.items() if name in waiting]
        return min(times, default=None)

    def with_result(self, name: ProbeName, answer: ProbeResult, now: float) -> "ProbeTracker":
        probe = self.probe(name)
        courses = self.states | {name: self.states[name].with_result(probe, answer)}
        next_at = self.next_at | {name: now + probe.period_seconds}
        if name == "startup" and courses[name].is_passing:
            next_at = {each: max(at, now) for each, at in next_at.items()}
        return ProbeTracker(self.probes, courses, next_at)

    @property
    def health(self) -> Health:
        startup, liveness, readiness = (self.states.get(name) for name in _PROBE_NAMES)
        failed_to_start = bool(
            startup and not startup.is_passing and startup.failures >= _threshold(self.probes.startup)
        )
        return Health(
            started=startup is None or startup.is_passing,
            ready=not self._is_starting and (readiness is None or readiness.is_passing),
            alive=not failed_to_start and (liveness is None or liveness.is_passing),
            detail="; ".join(
                f"{name}: {course.detail}" for name, course in self.states.items() if course.detail
            ),
        )

    @property
    def _is_starting(self) -> bool:
        startup = self.states.get("startup")
        return startup is not None and not startup.is_passing


_PROBE_NAMES: tuple[ProbeName, ...] = ("startup", "liveness", "readiness")


def _threshold(probe: Probe | None) -> int:
    return probe.failure_threshold if probe else 1


async def run_probes(
    checkup: ProbeTracker,
    clock: Clock,
    asking: Callable[[Probe], Awaitable[ProbeResult]],
    told: Callable[[Health], None],
) -> None:
    """Ask when it is time and tell what changed; ends when the container is no longer alive, or there is nothing to ask."""
    health = checkup.health
    told(health)
    while health.alive and (due := checkup.due()):
        at, name = due
        await clock.sleep(max(0.0, at - clock.monotonic()))
        answer = await asking(checkup.probe(name))
        checkup = checkup.with_result(name, answer, clock.monotonic())
        if checkup.health != health:
            health = checkup.health
            told(health)


async def probe_once(
    probe: Probe, ports: Mapping[str, int], execute: CommandRunner, host: str = "127.0.0.1"
) -> ProbeResult:
    """One question, really asked."""
    timeout = float(probe.timeout_seconds)
    try:
        if probe.exec:
            code = await execute(probe.exec.command, timeout)
            detail = f"no answer within {timeout:g} s" if code is None else f"exit code {code}"
            return ProbeResult(code == 0, "" if code == 0 else detail)
        async with asyncio.timeout(timeout):
            if probe.tcp:
                return await _tcp(host, _port_number(probe.tcp.port, ports))
            return (
                await _http(host, _port_number(probe.http.port, ports), probe.http.path)
                if probe.http
                else ProbeResult(True)
            )
    except TimeoutError:
        return ProbeResult(False, f"no answer within {timeout:g} s")
    except (OSError, ValueError) as error:
        return ProbeResult(False, str(error))


def _port_number(port: int | str, ports: Mapping[str, int]) -> int:
    if isinstance(port, int):
        return port
    if port not in ports:
        raise ValueError(f'no port "{port}" was allocated')
    return ports[port]


async def _tcp(host: str, port: int) -> ProbeResult:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return ProbeResult(True)


async def _http(host: str, port: int, path: str) -> ProbeResult:
    """Only the status line is read; redirects are not followed, they are an answer too."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        target = path if path.startswith("/") else f"/{path}"
        safe = target.replace("\r", "").replace("\n", "").replace(" ", "%20")
        writer.write(
            f"GET {safe} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: lattice-probe\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        words = (await reader.readline()).split(None, 2)
    finally:
        writer.close()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return ProbeResult(False, "the answer is not HTTP")
    status = int(words[1])
    return ProbeResult(
        status in HTTP_SUCCESS_STATUSES, "" if status in HTTP_SUCCESS_STATUSES else f"HTTP status {status}"
    )
