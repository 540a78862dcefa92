"""Several runtimes as one: images go to the container runtime, plain commands to the process runtime."""

from collections.abc import Callable, Mapping
from pathlib import Path

from lattice.agent.host.runtime_protocol import (
    Failure,
    Instance,
    InstanceId,
    InstanceRecord,
    ProbeResult,
    RecordStore,
    RunSpec,
    Runtime,
    Usage,
    existing_instance,
    new_instance,
)
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes import podman
from lattice.agent.runtimes.container import ContainerRuntime
from lattice.agent.runtimes.process import ProcessRuntime
from lattice.clock import Clock
from lattice.kinds.container import Container, Probe


def runtime_name_for(container: Container) -> str:
    return "container" if container.image else "process"


class RuntimeRouter:
    """`missing` says, by runtime, why this node does not have it."""

    name = "combined"

    def __init__(self, runtimes: Mapping[str, Runtime], missing: Mapping[str, str]) -> None:
        self.runtimes = dict(runtimes)
        self.unavailable_reasons = dict(missing)
        self._on_exit: Callable[[], None] = lambda: None
        self._runtime_by_instance: dict[InstanceId, Runtime] = {}
        self._unrunnable: dict[InstanceId, Instance] = {}

    @property
    def on_exit(self) -> Callable[[], None]:
        return self._on_exit

    @on_exit.setter
    def on_exit(self, wake: Callable[[], None]) -> None:
        self._on_exit = wake
        for home in self.runtimes.values():
            home.on_exit = wake

    async def start(self, spec: RunSpec) -> Instance:
        known = existing_instance(spec, await self.list())
        if known is not None:
            return known
        kind = runtime_name_for(spec.container)
        home = self.runtimes.get(kind)
        if home is None:
            why = self.unavailable_reasons.get(kind, "it was not set up")
            failure = Failure(
                "RUNTIME_UNAVAILABLE", f"runtime not available: this node has no {kind} runtime: {why}"
            )
            self._unrunnable[spec.id] = new_instance(spec, "Exited", failure)
            return self._unrunnable[spec.id]
        self._runtime_by_instance[spec.id] = home
        return await home.start(spec)

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        home = self._runtime_by_instance.get(which)
        return await home.stop(which, grace, because) if home else self._unrunnable.get(which)

    async def remove(self, which: InstanceId) -> None:
        self._unrunnable.pop(which, None)
        home = self._runtime_by_instance.get(which)
        if home:
            await home.remove(which)
            self._runtime_by_instance.pop(which, None)

    async def list(self) -> list[Instance]:
        found = [instance for home in self.runtimes.values() for instance in await home.list()]
        return sorted([*found, *self._unrunnable.values()], key=lambda each: each.id)

    async def adopt(self, record: InstanceRecord) -> Instance:
        """One whose runtime is gone from this node cannot be looked after any more."""
        home = self.runtimes.get(runtime_name_for(record.spec.container))
        if home is None:
            failure = Failure(
                "RUNTIME_UNAVAILABLE",
                f"this node no longer has a {runtime_name_for(record.spec.container)} runtime",
            )
            self._unrunnable[record.spec.id] = new_instance(record.spec, "Exited", failure)
            return self._unrunnable[record.spec.id]
        self._runtime_by_instance[record.spec.id] = home
        return await home.adopt(record)

    async def usage(self, which: InstanceId) -> Usage | None:
        home = self._runtime_by_instance.get(which)
        return await home.usage(which) if home else None

    async def logs(self, which: InstanceId, tail: int) -> str:
        home = self._runtime_by_instance.get(which)
        return await home.logs(which, tail) if home else ""

    async def logs_since(self, which: InstanceId, after: int) -> tuple[str, int]:
        home = self._runtime_by_instance.get(which)
        return await home.logs_since(which, after) if home else ("", max(0, after))

    async def run_probe(self, which: InstanceId, probe: Probe) -> ProbeResult:
        home = self._runtime_by_instance.get(which)
        return await home.run_probe(which, probe) if home else ProbeResult(False, "it does not run")

    async def record_contact(self, since: float) -> None:
        for home in self.runtimes.values():
            await home.record_contact(since)

    async def close(self) -> None:
        for home in self.runtimes.values():
            await home.close()


async def detect_runtimes(folder: Path, notebook: RecordStore, clock: Clock) -> RuntimeRouter:
    """What this machine can run: plain processes always, containers if podman was seen to work. `runtimes` and `missing` say which."""
    guard = WatchdogClient(folder, clock)
    runtimes: dict[str, Runtime] = {"process": ProcessRuntime(folder, notebook, clock, guard)}
    found = await podman.find()
    if isinstance(found, str):
        return RuntimeRouter(runtimes, {"container": found})
    return RuntimeRouter(
        runtimes | {"container": ContainerRuntime(folder, notebook, clock, guard, found)}, {}
    )
