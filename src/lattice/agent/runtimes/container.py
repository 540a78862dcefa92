"""The runtime for images: run containers with podman. Containers run independently of the agent, and the next
agent process adopts the recorded containers.

The runtime is offered only after a trial run has shown that podman can run containers (`podman.find_podman`).
A container has its own network; a published port has the same number inside and outside.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lattice.agent.host import cgroups, instance_processes
from lattice.agent.host.oom_score import instance_oom_score
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
from lattice.agent.host.usage import CpuMeter, disk_bytes, instance_usage
from lattice.agent.host.watchdog_client import GuardRequest, WatchdogClient
from lattice.agent.runtimes import preflight
from lattice.agent.runtimes.exit_watch import ExitWatch
from lattice.agent.runtimes.gpu_devices import container_gpu_environment, podman_gpu_flags
from lattice.agent.runtimes.podman import (
    COMMAND_TIMEOUT_S,
    PULL_TIMEOUT_S,
    Podman,
    cgroups_of,
    exited_container,
    failure_from_stderr,
    ulimits,
)
from lattice.clock import Clock
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.container import Probe
from lattice.kinds.meta.timestamps import format_timestamp

INSTANCE_LABEL = "lattice.dev/instance"
LOG_MAX_SIZE = "10mb"
log = structlog.get_logger()


class ContainerRuntime:
    """Runs the containers of workloads with podman."""

    name = "container"

    def __init__(
        self, folder: Path, record_store: RecordStore, clock: Clock, watchdog: WatchdogClient, podman: Podman
    ) -> None:
        self.folder = folder / "instances"
        self.record_store = record_store
        self.clock = clock
        self.watchdog = watchdog
        self.podman = podman
        self.on_exit: Callable[[], None] = lambda: None
        self._records: dict[InstanceId, InstanceRecord] = {}
        self._exit_watches: dict[InstanceId, ExitWatch] = {}
        self._writable_layers: dict[InstanceId, str] = {}  # folder of the files that a container wrote
        self._exit_tasks: set[asyncio.Task[None]] = set()
        self._workload_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cpu_meter = CpuMeter(clock)

    async def start(self, spec: RunSpec) -> Instance:
        async with self._workload_locks[spec.workload]:
            existing = existing_instance(spec, [record.instance for record in self._records.values()])
            if existing is not None:
                return existing
            try:
                failure = (
                    preflight.id_failure(spec.id)
                    or self.watchdog.disconnected_failure(spec.stop_after)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = preflight.failure_from_error(error)
            if failure is not None:
                await self._discard(spec.id)
                self._save_record(InstanceRecord(spec, new_instance(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        """Create the container, record it, register it with the watchdog, and only then start it: an
        unrecorded container never runs."""
        await self._discard(spec.id)
        self._instance_dir(spec.id).mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._instance_dir(spec.id) / "ended-by-watchdog").unlink(missing_ok=True)
        env = (
            spec.env | preflight.port_environment(spec) | container_gpu_environment(spec) | spec.container.env
        )
        created = await self.podman.call("create", *self._flags(spec, env), env=env, timeout=PULL_TIMEOUT_S)
        if created.code != 0:
            return preflight.classify_port_failure(failure_from_stderr(created.err), spec)
        enforced = {name: "container" for name in ("cpu", "memory") if getattr(spec.limits, name) is not None}
        instance = msgspec.structs.replace(
            new_instance(spec, "Running"), started_at=format_timestamp(self.clock.now()), enforced=enforced
        )
        record = InstanceRecord(
            spec, instance, Handle(boot=instance_processes.boot_id(), container=self._name(spec.id))
        )
        self.record_store.write_record(record)
        await self._register_with_watchdog(record)
        started = await self.podman.call("start", self._name(spec.id))
        if started.code != 0:
            return preflight.classify_port_failure(failure_from_stderr(started.err), spec)
        self._records[spec.id] = record
        await self._watch(record)
        return None

    def _flags(self, spec: RunSpec, env: dict[str, str]) -> list[str]:
        """The flags of `podman create`; values of variables are passed in podman's own environment, hidden
        from `ps`."""
        container, limits = spec.container, spec.limits
        flags = [
            "--name",
            self._name(spec.id),
            "--label",
            f"{INSTANCE_LABEL}={spec.id}",
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
        gpu_flags, missing = podman_gpu_flags(spec.gpus)
        if missing:
            log.warning("the container gets no GPU devices", workload=spec.workload, reason=missing)
        flags += gpu_flags
        for port in container.ports:
            if port.name in spec.ports:
                flags.append(
                    f"--publish={spec.ports[port.name]}:{spec.ports[port.name]}/{port.protocol.lower()}"
                )
        if limits.cpu is not None:
            flags.append(f"--cpus={limits.cpu / 1000}")
        if limits.memory is not None:
            # An equal swap limit forbids swap: podman counts memory and swap together.
            flags += [f"--memory={limits.memory}b", f"--memory-swap={limits.memory}b"]
        if (score := instance_oom_score(spec)) is not None:
            flags.append(f"--oom-score-adj={score}")
            # Without root, podman may lack the cpu controller and would refuse the flag.
            if os.geteuid() == 0:
                flags.append(f"--cpu-shares={cgroups.cpu_shares(spec.requests.cpu)}")
        if container.command:
            flags.append("--entrypoint=" + msgspec.json.encode(container.command).decode())
        return [*flags, container.image, *container.args]

    async def _register_with_watchdog(self, record: InstanceRecord) -> None:
        """If the container has `stop_after`, register it with the watchdog, which stops the container when
        the agent has had no contact for that time. If the pid of the container is known, the watchdog kills
        the processes directly; otherwise the watchdog calls `podman stop`, which is slower."""
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
        """Watch the first process of the container, so that an exit is noticed at once."""
        instance_id = record.spec.id
        inspected = await self.podman.inspect(record.handle.container)
        pid = int(inspected[0]["State"]["Pid"]) if inspected else 0
        start = instance_processes.start_time(pid) if pid else None
        handle = msgspec.structs.replace(
            record.handle, pid=pid, start=start or 0, cgroups=cgroups_of(pid) if start else ()
        )
        record = InstanceRecord(record.spec, record.instance, handle)
        self._save_record(record)
        exit_watch = self._exit_watches[instance_id] = ExitWatch(handle, None)
        if pid and handle.start:
            self._writable_layers[instance_id] = (
                inspected[0].get("GraphDriver", {}).get("Data", {}).get("UpperDir", "")
            )

            def on_exit() -> None:
                current = self._exit_watches[instance_id]
                # Read at once, while the cgroup still exists.
                current.is_oom_killed = cgroups.was_oom_killed(self._records[instance_id].handle.cgroups)
                if not current.is_awaited:
                    task = asyncio.create_task(self._record_exit(instance_id))
                    self._exit_tasks.add(task)
                    task.add_done_callback(self._exit_tasks.discard)

            exit_watch.watch(on_exit)
            await self._register_with_watchdog(record)
        else:
            exit_watch.has_exited = True
            await self._record_exit(instance_id)

    async def _record_exit(self, instance_id: InstanceId) -> None:
        """Record the exit of a container and remove it from the watchdog; a second call changes nothing."""
        record, exit_watch = self._records[instance_id], self._exit_watches.pop(instance_id, None)
        if exit_watch is None:
            return
        exit_watch.unwatch()
        state = await self._last_state(record) | ({"OOMKilled": True} if exit_watch.is_oom_killed else {})
        log_text = await self.logs(instance_id, 5)
        instance = exited_container(
            record, state, log_text, self._instance_dir(instance_id) / "ended-by-watchdog"
        )
        if exit_watch.is_stopping:
            instance = msgspec.structs.replace(
                instance,
                failure=exit_watch.stop_failure,
                was_stopped_on_request=exit_watch.stop_failure is None,
            )
        self._save_record(InstanceRecord(record.spec, instance, record.handle))
        self._cpu_meter.forget(str(instance_id))
        self._writable_layers.pop(instance_id, None)
        await self.watchdog.release(str(instance_id))
        self.on_exit()

    async def _last_state(self, record: InstanceRecord) -> dict[str, Any]:
        """The final state of the container; podman records the exit code shortly after the exit of the
        process."""
        for _ in range(100):
            inspected = await self.podman.inspect(record.handle.container)
            if not inspected:
                return {}
            state: dict[str, Any] = inspected[0]["State"]
            if state["Status"] not in ("running", "stopping", "initialized"):
                return state
            await self.clock.sleep(0.05)
        return {}

    async def stop(
        self, instance_id: InstanceId, grace: float, failure: Failure | None = None
    ) -> Instance | None:
        record = self._records.get(instance_id)
        if record is None:
            return None
        async with self._workload_locks[record.spec.workload]:
            exit_watch = self._exit_watches.get(instance_id)
            if exit_watch is not None:
                exit_watch.is_stopping = exit_watch.is_awaited = True
                exit_watch.stop_failure = failure
                try:
                    await self.podman.call(
                        "stop",
                        "--ignore",
                        f"--time={max(0, round(grace))}",
                        record.handle.container,
                        timeout=grace + COMMAND_TIMEOUT_S,
                    )
                finally:
                    exit_watch.is_awaited = False
                if not instance_processes.is_alive(record.handle.pid, record.handle.start):
                    await self._record_exit(instance_id)
            return self._records[instance_id].instance if instance_id in self._records else None

    async def remove(self, instance_id: InstanceId) -> None:
        last = await self.stop(instance_id, 0)
        if last is not None and last.is_live:
            return
        await self._discard(instance_id)
        with suppress(OSError):
            (self._instance_dir(instance_id) / "ended-by-watchdog").unlink(missing_ok=True)
            self._instance_dir(instance_id).rmdir()
        if self._records.pop(instance_id, None):
            self.record_store.delete_record(instance_id)

    async def list(self) -> list[Instance]:
        return [self._records[instance_id].instance for instance_id in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        self._records[record.spec.id] = record
        if record.instance.is_live:
            await self._watch(record)
        return self._records[record.spec.id].instance

    async def usage(self, instance_id: InstanceId) -> Usage | None:
        record = self._records.get(instance_id)
        if record is None or instance_id not in self._exit_watches:
            return None
        disk = (
            await asyncio.to_thread(disk_bytes, Path(self._writable_layers[instance_id]))
            if self._writable_layers.get(instance_id)
            else 0
        )
        usage = instance_usage(self._cpu_meter, str(instance_id), record.handle)
        return msgspec.structs.replace(usage, disk=disk)

    async def logs(self, instance_id: InstanceId, tail: int) -> str:
        record = self._records.get(instance_id)
        if record is None or not record.handle.container or tail <= 0:
            return ""
        result = await self.podman.call("logs", f"--tail={tail}", record.handle.container)
        return (result.out + result.err) if result.code == 0 else ""

    async def logs_since(self, instance_id: InstanceId, position: int) -> tuple[str, int]:
        """The log after a position, and the new position; positions are times in milliseconds, since podman
        selects logs by time."""
        record, until = self._records.get(instance_id), int(self.clock.now().timestamp() * 1000)
        if position < 0 or record is None or not record.handle.container:
            return "", until
        since = datetime.fromtimestamp(position / 1000, UTC).isoformat()
        end = datetime.fromtimestamp(until / 1000, UTC).isoformat()
        result = await self.podman.call("logs", f"--since={since}", f"--until={end}", record.handle.container)
        return (result.out + result.err if result.code == 0 else ""), until

    async def run_probe(self, instance_id: InstanceId, probe: Probe) -> ProbeResult:
        record = self._records.get(instance_id)
        if record is None or not record.instance.is_live:
            return ProbeResult(False, "the container is not running")
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
        for exit_watch in self._exit_watches.values():
            exit_watch.unwatch()
        await asyncio.gather(*self._exit_tasks, return_exceptions=True)

    async def _discard(self, instance_id: InstanceId) -> None:
        """Remove the container from podman and from the watchdog."""
        await self.podman.call("rm", "--force", "--ignore", "--time=0", "--volumes", self._name(instance_id))
        await self.watchdog.release(str(instance_id))

    def _save_record(self, record: InstanceRecord) -> None:
        """Keep the record in memory even if the disk is full."""
        self._records[record.spec.id] = record
        with suppress(LatticeError):
            self.record_store.write_record(record)

    def _name(self, instance_id: InstanceId) -> str:
        return f"lattice-{preflight.tag_of(self.folder, instance_id)}"

    def _instance_dir(self, instance_id: InstanceId) -> Path:
        return self.folder / str(instance_id)
