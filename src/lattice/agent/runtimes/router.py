"""Several runtimes as one: images go to the container runtime, plain commands to the process runtime."""

from collections.abc import Callable, Mapping
from pathlib import Path

from lattice.agent.host.watchdog_client import Guard
from lattice.agent.runtimes import podman
from lattice.agent.runtimes.container import ContainerRuntime
from lattice.agent.runtimes.process import ProcessRuntime
from lattice.agent.host.runtime_protocol import (
    Answer,
    Failure,
    Instance,
    InstanceId,
    Notebook,
    Record,
    RunSpec,
    Runtime,
    Usage,
    earlier,
    fresh,
)
from lattice.clock import Clock
from lattice.kinds.container import Container, Probe


def kind_of(container: Container) -> str:
    return "container" if container.image else "process"


class CombinedRuntime:
    """`missing` says, by runtime, why this node does not have it."""

    name = "combined"

    def __init__(self, runtimes: Mapping[str, Runtime], missing: Mapping[str, str]) -> None:
        self.runtimes = dict(runtimes)
        self.missing = dict(missing)
        self._wake: Callable[[], None] = lambda: None
        self._homes: dict[InstanceId, Runtime] = {}
        self._refused: dict[InstanceId, Instance] = {}

    @property
    def wake(self) -> Callable[[], None]:
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        for home in self.runtimes.values():
            home.wake = wake

    async def start(self, spec: RunSpec) -> Instance:
        known = earlier(spec, await self.list())
        if known is not None:
            return known
        kind = kind_of(spec.container)
        home = self.runtimes.get(kind)
        if home is None:
            why = self.missing.get(kind, "it was not set up")
            failure = Failure(
                "RUNTIME_UNAVAILABLE", f"runtime not available: this node has no {kind} runtime: {why}"
            )
            self._refused[spec.id] = fresh(spec, "Exited", failure)
            return self._refused[spec.id]
        self._homes[spec.id] = home
        return await home.start(spec)

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        home = self._homes.get(which)
        return await home.stop(which, grace, because) if home else self._refused.get(which)

    async def remove(self, which: InstanceId) -> None:
        self._refused.pop(which, None)
        home = self._homes.get(which)
        if home:
            await home.remove(which)
            self._homes.pop(which, None)

    async def list(self) -> list[Instance]:
        found = [instance for home in self.runtimes.values() for instance in await home.list()]
        return sorted([*found, *self._refused.values()], key=lambda each: each.id)

    async def adopt(self, record: Record) -> Instance:
        """One whose runtime is gone from this node cannot be looked after any more."""
        home = self.runtimes.get(kind_of(record.spec.container))
        if home is None:
            failure = Failure(
                "RUNTIME_UNAVAILABLE", f"this node no longer has a {kind_of(record.spec.container)} runtime"
            )
            self._refused[record.spec.id] = fresh(record.spec, "Exited", failure)
            return self._refused[record.spec.id]
        self._homes[record.spec.id] = home
        return await home.adopt(record)

    async def usage(self, which: InstanceId) -> Usage | None:
        home = self._homes.get(which)
        return await home.usage(which) if home else None

    async def logs(self, which: InstanceId, tail: int) -> str:
        home = self._homes.get(which)
        return await home.logs(which, tail) if home else ""

    async def printed(self, which: InstanceId, after: int) -> tuple[str, int]:
        home = self._homes.get(which)
        return await home.printed(which, after) if home else ("", max(0, after))

    async def ask(self, which: InstanceId, probe: Probe) -> Answer:
        home = self._homes.get(which)
        return await home.ask(which, probe) if home else Answer(False, "it does not run")

    async def contact(self, since: float) -> None:
        for home in self.runtimes.values():
            await home.contact(since)

    async def close(self) -> None:
        for home in self.runtimes.values():
            await home.close()


async def equip(folder: Path, notebook: Notebook, clock: Clock) -> CombinedRuntime:
    """What this machine can run: plain processes always, containers if podman was seen to work. `runtimes` and `missing` say which."""
    guard = Guard(folder, clock)
    runtimes: dict[str, Runtime] = {"process": ProcessRuntime(folder, notebook, clock, guard)}
    found = await podman.find()
    if isinstance(found, str):
        return CombinedRuntime(runtimes, {"container": found})
    return CombinedRuntime(
        runtimes | {"container": ContainerRuntime(folder, notebook, clock, guard, found)}, {}
    )
