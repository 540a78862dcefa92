"""The runtime router: images run in the container runtime, plain commands in the process runtime."""

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
from lattice.kinds.container import Probe


class RuntimeRouter:
    """Several runtimes behind the runtime protocol; `unavailable` maps the name of a missing runtime to the
    reason."""

    name = "combined"

    def __init__(self, runtimes: Mapping[str, Runtime], unavailable: Mapping[str, str]) -> None:
        self.runtimes = dict(runtimes)
        self.unavailable_reasons = dict(unavailable)
        self._on_exit: Callable[[], None] = lambda: None
        self._runtime_by_instance: dict[InstanceId, Runtime] = {}
        self._unrunnable: dict[InstanceId, Instance] = {}

    @property
    def on_exit(self) -> Callable[[], None]:
        return self._on_exit

    @on_exit.setter
    def on_exit(self, callback: Callable[[], None]) -> None:
        self._on_exit = callback
        for runtime in self.runtimes.values():
            runtime.on_exit = callback

    async def start(self, spec: RunSpec) -> Instance:
        existing = existing_instance(spec, await self.list())
        if existing is not None:
            return existing
        kind = spec.container.runtime
        runtime = self.runtimes.get(kind)
        if runtime is None:
            reason = self.unavailable_reasons.get(kind, "the agent does not use this runtime")
            failure = Failure(
                "RUNTIME_UNAVAILABLE", f"runtime not available: this node has no {kind} runtime: {reason}"
            )
            self._unrunnable[spec.id] = new_instance(spec, "Exited", failure)
            return self._unrunnable[spec.id]
        # Recorded before the start, so that `stop` finds the runtime while a slow start is in progress.
        self._runtime_by_instance[spec.id] = runtime
        return await runtime.start(spec)

    async def stop(
        self, instance_id: InstanceId, grace: float, failure: Failure | None = None
    ) -> Instance | None:
        runtime = self._runtime_by_instance.get(instance_id)
        return (
            await runtime.stop(instance_id, grace, failure) if runtime else self._unrunnable.get(instance_id)
        )

    async def remove(self, instance_id: InstanceId) -> None:
        self._unrunnable.pop(instance_id, None)
        runtime = self._runtime_by_instance.get(instance_id)
        if runtime:
            await runtime.remove(instance_id)
            self._runtime_by_instance.pop(instance_id, None)

    async def list(self) -> list[Instance]:
        instances: list[Instance] = []
        for runtime in self.runtimes.values():
            instances += await runtime.list()
        return sorted([*instances, *self._unrunnable.values()], key=lambda instance: instance.id)

    async def adopt(self, record: InstanceRecord) -> Instance:
        """Adopt an instance; an instance whose runtime is no longer available counts as exited."""
        runtime = self.runtimes.get(record.spec.container.runtime)
        if runtime is None:
            failure = Failure(
                "RUNTIME_UNAVAILABLE",
                f"this node no longer has a {record.spec.container.runtime} runtime",
            )
            self._unrunnable[record.spec.id] = new_instance(record.spec, "Exited", failure)
            return self._unrunnable[record.spec.id]
        self._runtime_by_instance[record.spec.id] = runtime
        return await runtime.adopt(record)

    async def usage(self, instance_id: InstanceId) -> Usage | None:
        runtime = self._runtime_by_instance.get(instance_id)
        return await runtime.usage(instance_id) if runtime else None

    async def logs(self, instance_id: InstanceId, tail: int) -> str:
        runtime = self._runtime_by_instance.get(instance_id)
        return await runtime.logs(instance_id, tail) if runtime else ""

    async def logs_since(self, instance_id: InstanceId, position: int) -> tuple[str, int]:
        runtime = self._runtime_by_instance.get(instance_id)
        return await runtime.logs_since(instance_id, position) if runtime else ("", max(0, position))

    async def run_probe(self, instance_id: InstanceId, probe: Probe) -> ProbeResult:
        runtime = self._runtime_by_instance.get(instance_id)
        return (
            await runtime.run_probe(instance_id, probe)
            if runtime
            else ProbeResult(False, "the instance is not running")
        )

    async def record_contact(self, since: float) -> None:
        for runtime in self.runtimes.values():
            await runtime.record_contact(since)

    async def close(self) -> None:
        for runtime in self.runtimes.values():
            await runtime.close()


async def detect_runtimes(folder: Path, record_store: RecordStore, clock: Clock) -> RuntimeRouter:
    """The runtimes of this machine: processes always, containers if podman passes its trial run."""
    watchdog = WatchdogClient(folder, clock)
    runtimes: dict[str, Runtime] = {"process": ProcessRuntime(folder, record_store, clock, watchdog)}
    podman_or_reason = await podman.find_podman()
    if isinstance(podman_or_reason, str):
        return RuntimeRouter(runtimes, {"container": podman_or_reason})
    return RuntimeRouter(
        runtimes | {"container": ContainerRuntime(folder, record_store, clock, watchdog, podman_or_reason)},
        {},
    )
