"""Runs images with podman. Containers bear labels, so they are found again; they do not need the agent, and the next one adopts them.

Only offered where a trial has shown that podman can run containers (`podman.find`). A container has its own network; the ports it was
given are the same inside and outside.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from lattice.agent.host import cgroups
from lattice.agent.host import instance_processes as groups
from lattice.agent.host.probes import probe_once
from lattice.agent.host.runtime_protocol import (
    Failure,
    Handle,
    Instance,
    InstanceId,
    InstanceRecord,
    ProbeResult,
    RecordStore,
    RunSpec,
    Usage,
    existing_instance,
    new_instance,
)
from lattice.agent.host.usage import CpuMeter, disk_bytes
from lattice.agent.host.watchdog_client import GuardRequest, WatchdogClient
from lattice.agent.runtimes import preflight as prepare
from lattice.agent.runtimes.exit_watch import ExitWatch
from lattice.agent.runtimes.podman import (
    COMMAND_TIMEOUT_S,
    PULL_TIMEOUT_S,
    Podman,
    cgroups_of,
    cpu_and_memory_usage,
    exited_container,
    failure_from_stderr,
    ulimits,
)
from lattice.clock import Clock, format_timestamp
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.container import Probe

LABEL = "lattice.dev/instance"
LOG_MAX_SIZE = "10mb"


class ContainerRuntime:
    name = "container"

    def __init__(
        self, folder: Path, notebook: RecordStore, clock: Clock, guard: WatchdogClient, podman: Podman
    ) -> None:
        self.folder = folder / "instances"
        self.record_store = notebook
        self.clock = clock
        self.watchdog = guard
        self.podman = podman
        self.on_exit: Callable[[], None] = lambda: None
        self._records: dict[InstanceId, InstanceRecord] = {}
        self._exit_watches: dict[InstanceId, ExitWatch] = {}
        self._writable_layers: dict[InstanceId, str] = {}  # folders of what they wrote
        self._exit_tasks: set[asyncio.Task[None]] = set()
        self._workload_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cpu_meter = CpuMeter(clock)

    async def start(self, spec: RunSpec) -> Instance:
        async with self._workload_locks[spec.workload]:
            known = existing_instance(spec, [record.instance for record in self._records.values()])
            if known is not None:
                return known
            try:
                failure = (
                    prepare.id_failure(spec.id)
                    or self.watchdog.disconnected_failure(spec.stop_after)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = prepare.failure_from_error(error)
            if failure is not None:
                await self._discard(spec.id)
                self._save_record(InstanceRecord(spec, new_instance(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        """Create, write down, have it guarded, and only then start: a container that nobody knows of never runs."""
        await self._discard(spec.id)
        self._instance_dir(spec.id).mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._instance_dir(spec.id) / "ended-by-watchdog").unlink(missing_ok=True)
        env = spec.env | prepare.port_environment(spec) | spec.container.env
        made = await self.podman.call("create", *self._flags(spec, env), env=env, timeout=PULL_TIMEOUT_S)
        if made.code != 0:
            return prepare.classify_port_failure(failure_from_stderr(made.err), spec)
        limited = {name: "container" for name in ("cpu", "memory") if getattr(spec.limits, name) is not None}
        instance = msgspec.structs.replace(
            new_instance(spec, "Running"), started_at=format_timestamp(self.clock.now()), enforced=limited
        )
        record = InstanceRecord(spec, instance, Handle(boot=groups.boot_id(), container=self._name(spec.id)))
        self.record_store.write_record(record)
        await self._register_with_watchdog(record)
        begun = await self.podman.call("start", self._name(spec.id))
        if begun.code != 0:
            return prepare.classify_port_failure(failure_from_stderr(begun.err), spec)
        self._records[spec.id] = record
        await self._watch(record)
        return None

    def _flags(self, spec: RunSpec, env: dict[str, str]) -> list[str]:
        """Values of variables go by podman's own environment, where `ps` does not show them."""
        container, limits = spec.container, spec.limits
        flags = [
            "--name",
            self._name(spec.id),
            "--label",
            f"{LABEL}={spec.id}",
            "--label",
            f"lattice.dev/workload={spec.workload}",
        ]
        flags += [
            "--pull=missing",
            "--restart=no",
            "--log-driver=k8s-file",
            f"--log-opt=max-size={LOG_MAX_SIZE}",
            *ulimits(),
        ]
        for name in sorted(env):
            flags += ["--env", name]
        for port in container.ports:
            if port.name in spec.ports:
                flags.append(
                    f"--publish={spec.ports[port.name]}:{spec.ports[port.name]}/{port.protocol.lower()}"
                )
        if limits.cpu is not None:
            flags.append(f"--cpus={limits.cpu / 1000}")
        if limits.memory is not None:
            flags += [f"--memory={limits.memory}b", f"--memory-swap={limits.memory}b"]
        if container.command:
            flags.append("--entrypoint=" + msgspec.json.encode(container.command).decode())
        return [*flags, container.image, *container.args]

    async def _register_with_watchdog(self, record: InstanceRecord) -> None:
        """Before its first process is known, the watchdog would ask podman; afterwards it ends the process itself, which is faster."""
        spec, handle = record.spec, record.handle
        if spec.stop_after is not None:
            marker = str(self._instance_dir(spec.id) / "ended-by-watchdog")
            command = (
                ()
                if handle.start
                else (*self.podman.command_prefix, "stop", "--ignore", "--time=0", handle.container)
            )
            await self.watchdog.guard(
                GuardRequest(
                    str(spec.id), spec.stop_after, marker, handle.pid, handle.start, handle.cgroups, command
                )
            )

    async def _watch(self, record: InstanceRecord) -> None:
        """From now on its end is noticed at once, by its first process."""
        which = record.spec.id
        found = await self.podman.inspect(record.handle.container)
        pid = int(found[0]["State"]["Pid"]) if found else 0
        start = groups.start_time(pid) if pid else None
        handle = msgspec.structs.replace(
            record.handle, pid=pid, start=start or 0, cgroups=cgroups_of(pid) if start else ()
        )
        record = InstanceRecord(record.spec, record.instance, handle)
        self._save_record(record)
        ending = self._exit_watches[which] = ExitWatch(handle, None)
        if pid and handle.start:
            self._writable_layers[which] = found[0].get("GraphDriver", {}).get("Data", {}).get("UpperDir", "")
            ending.watch(lambda: self._ended(which))
            await self._register_with_watchdog(record)
        else:
            ending.has_exited = True
            await self._record_exit(which)

    def _ended(self, which: InstanceId) -> None:
        self._exit_watches[which].is_oom_killed = cgroups.was_oom_killed(
            self._records[which].handle.cgroups
        )  # while the cgroup is still there
        if not self._exit_watches[which].is_awaited:
            task = asyncio.create_task(self._record_exit(which))
            self._exit_tasks.add(task)
            task.add_done_callback(self._exit_tasks.discard)

    async def _record_exit(self, which: InstanceId) -> None:
        record, ending = self._records[which], self._exit_watches.pop(which, None)
        if ending is None:
            return
        ending.unwatch()
        state = await self._last_state(record) | ({"OOMKilled": True} if ending.is_oom_killed else {})
        said = await self.logs(which, 5)
        instance = exited_container(record, state, said, self._instance_dir(which) / "ended-by-watchdog")
        if ending.is_stopping:
            instance = msgspec.structs.replace(
                instance, failure=ending.stop_failure, asked=ending.stop_failure is None
            )
        self._save_record(InstanceRecord(record.spec, instance, record.handle))
        self._cpu_meter.forget(str(which))
        self._writable_layers.pop(which, None)
        await self.watchdog.release(str(which))
        self.on_exit()

    async def _last_state(self, record: InstanceRecord) -> dict[str, Any]:
        """Podman writes the exit code down a moment after the process is gone."""
        for _ in range(100):
            found = await self.podman.inspect(record.handle.container)
            if not found:
                return {}
            state: dict[str, Any] = found[0]["State"]
            if state["Status"] not in ("running", "stopping", "initialized"):
                return state
            await self.clock.sleep(0.05)
        return {}

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        record = self._records.get(which)
        if record is None:
            return None
        async with self._workload_locks[record.spec.workload]:
            ending = self._exit_watches.get(which)
            if ending is not None:
                ending.is_stopping = ending.is_awaited = True
                ending.stop_failure = because
                try:
                    await self.podman.call(
                        "stop",
                        "--ignore",
                        f"--time={max(0, round(grace))}",
                        record.handle.container,
                        timeout=grace + COMMAND_TIMEOUT_S,
                    )
                finally:
                    ending.is_awaited = False
                if not groups.is_alive(record.handle.pid, record.handle.start):
                    await self._record_exit(which)
            return self._records[which].instance if which in self._records else None

    async def remove(self, which: InstanceId) -> None:
        last = await self.stop(which, 0)
        if last is not None and last.is_live:
            return
        await self._discard(which)
        with suppress(OSError):
            (self._instance_dir(which) / "ended-by-watchdog").unlink(missing_ok=True)
            self._instance_dir(which).rmdir()
        if self._records.pop(which, None):
            self.record_store.delete_record(which)

    async def list(self) -> list[Instance]:
        return [self._records[which].instance for which in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        self._records[record.spec.id] = record
        if record.instance.is_live:
            await self._watch(record)
        return self._records[record.spec.id].instance

    async def usage(self, which: InstanceId) -> Usage | None:
        record = self._records.get(which)
        if record is None or which not in self._exit_watches:
            return None
        disk = (
            await asyncio.to_thread(disk_bytes, Path(self._writable_layers[which]))
            if self._writable_layers.get(which)
            else 0
        )
        return msgspec.structs.replace(cpu_and_memory_usage(record, self._cpu_meter), disk=disk)

    async def logs(self, which: InstanceId, tail: int) -> str:
        record = self._records.get(which)
        if record is None or not record.handle.container or tail <= 0:
            return ""
        done = await self.podman.call("logs", f"--tail={tail}", record.handle.container)
        return (done.out + done.err) if done.code == 0 else ""

    async def logs_since(self, which: InstanceId, after: int) -> tuple[str, int]:
        """Positions are times, in milliseconds: podman can only be asked for those."""
        record, until = self._records.get(which), int(self.clock.now().timestamp() * 1000)
        if after < 0 or record is None or not record.handle.container:
            return "", until
        bounds = [f"--{name}={_iso_timestamp(each)}" for name, each in (("since", after), ("until", until))]
        done = await self.podman.call("logs", *bounds, record.handle.container)
        return (done.out + done.err if done.code == 0 else ""), until

    async def run_probe(self, which: InstanceId, probe: Probe) -> ProbeResult:
        record = self._records.get(which)
        if record is None or not record.instance.is_live:
            return ProbeResult(False, "it does not run")
        name = record.handle.container

        async def execute(words: tuple[str, ...], timeout: float) -> int | None:
            try:
                return (await self.podman.call("exec", name, *words, timeout=timeout)).code
            except Unavailable:
                return None

        return await probe_once(probe, record.spec.ports, execute)

    async def record_contact(self, since: float) -> None:
        await self.watchdog.record_contact(since)

    async def close(self) -> None:
        for ending in self._exit_watches.values():
            ending.unwatch()
        await asyncio.gather(*self._exit_tasks, return_exceptions=True)

    async def _discard(self, which: InstanceId) -> None:
        """Whatever bears its name goes."""
        await self.podman.call("rm", "--force", "--ignore", "--time=0", "--volumes", self._name(which))
        await self.watchdog.release(str(which))

    def _save_record(self, record: InstanceRecord) -> None:
        self._records[record.spec.id] = record
        with suppress(LatticeError):
            self.record_store.write_record(record)

    def _name(self, which: InstanceId) -> str:
        return f"lattice-{prepare.tag_of(self.folder, which)}"

    def _instance_dir(self, which: InstanceId) -> Path:
        return self.folder / str(which)


def _iso_timestamp(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
