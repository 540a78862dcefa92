"""The runtime for plain commands: run processes on the machine, with a session, a folder and, where writable,
cgroups per instance.

Processes run independently of the agent: a killed agent leaves the processes running, and the next agent
adopts the processes. Limits are enforced by cgroups v2 or v1. Without writable cgroups, memory is limited by
RLIMIT_DATA per process and CPU is not limited; the field `enforced` of the instance states this. A grandchild
that leaves the session and also clears its environment then survives the end of the instance.
"""

import asyncio
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

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
from lattice.agent.runtimes import log_files as logs
from lattice.agent.runtimes import preflight
from lattice.agent.runtimes.exit_watch import ExitWatch, exited_without_agent
from lattice.agent.runtimes.log_files import Rotation
from lattice.agent.runtimes.spawn import Command, PendingProcess, spawn
from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.kinds.container import Probe
from lattice.kinds.meta.timestamps import format_timestamp

DEFAULT_ROTATION = Rotation()
GROUP_POLL_INTERVAL_S = 0.05
MAX_CLEANUP_ATTEMPTS = 100
KILL_TIMEOUT_S = 10.0  # after SIGKILL; only a process stuck in the kernel takes longer


async def run_command(
    words: tuple[str, ...], env: dict[str, str], folder: Path, timeout: float
) -> int | None:
    """Run a command and return its exit code; None if the command was killed after `timeout` seconds. Raises
    OSError if the start fails."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@dataclass(frozen=True, slots=True)
class ProcessRuntimeOptions:
    """Log rotation and cgroup hierarchies of a process runtime."""

    rotation: Rotation = DEFAULT_ROTATION
    rotate_interval_s: float = 10.0
    hierarchies: tuple[cgroups.Hierarchy, ...] | None = None  # None: detect


class ProcessRuntime:
    """Runs the commands of workloads as processes."""

    name = "process"

    def __init__(
        self,
        folder: Path,
        record_store: RecordStore,
        clock: Clock,
        watchdog: WatchdogClient,
        options: ProcessRuntimeOptions | None = None,
    ) -> None:
        self.folder = folder / "instances"
        self.record_store = record_store
        self.clock = clock
        self.watchdog = watchdog
        self.options = options = options or ProcessRuntimeOptions()
        self.on_exit: Callable[[], None] = lambda: None
        self.hierarchies = tuple(cgroups.detect()) if options.hierarchies is None else options.hierarchies
        cgroups.remove_stale(self.hierarchies, preflight.prefix_of(self.folder))
        self._records: dict[InstanceId, InstanceRecord] = {}
        self._exit_watches: dict[InstanceId, ExitWatch] = {}
        # Starts and stops of one workload are serialised.
        self._workload_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cleanup_tasks: dict[InstanceId, asyncio.Task[None]] = {}
        self._cpu_meter = CpuMeter(clock)
        self._rotation_task: asyncio.Task[None] | None = None

    async def start(self, spec: RunSpec) -> Instance:
        async with self._workload_locks[spec.workload]:
            existing = existing_instance(spec, [record.instance for record in self._records.values()])
            if existing is not None:
                return existing
            await self._wait_for_cleanup(spec.id)
            try:
                failure = (
                    preflight.spec_failure(spec)
                    or self.watchdog.disconnected_failure(spec.stop_after)
                    or preflight.port_failure(spec)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = preflight.failure_from_error(error)
            if failure is not None:
                self._save_record(InstanceRecord(spec, new_instance(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        folder = self._instance_dir(spec.id)
        work_folder = folder / "work"
        work_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "ended-by-watchdog").unlink(missing_ok=True)
        env = preflight.process_environment(spec, work_folder, os.environ, self._tag(spec.id))
        program = preflight.resolve_program(spec, env.get("PATH", os.defpath), work_folder)
        if isinstance(program, Failure):
            return program
        paths, enforced = cgroups.create_cgroups(
            self.hierarchies, self._tag(spec.id), spec.limits, spec.requests if spec.qos else None
        )
        # Without a memory cgroup, the limit applies to the data segment of every process.
        data_limit = spec.limits.memory if spec.limits.memory and "memory" not in enforced else 0
        enforced |= {"memory": "rlimit"} if data_limit else {}
        enforced |= {"cpu": "none"} if spec.limits.cpu and "cpu" not in enforced else {}
        log = logs.open_for_append(folder / "log")
        try:
            words = (*spec.container.command, *spec.container.args)
            score = instance_oom_score(spec)
            pending = await spawn(Command(program, words, env, work_folder, log, paths, data_limit, score))
        except OSError:
            cgroups.remove_cgroups(paths)
            raise
        finally:
            os.close(log)
        # Record the process and register it with the watchdog, and only then let the command run.
        pid = pending.process.pid
        handle = Handle(pid, instance_processes.start_time(pid) or 0, instance_processes.boot_id(), paths)
        now = format_timestamp(self.clock.now())
        instance = msgspec.structs.replace(new_instance(spec, "Running"), started_at=now, enforced=enforced)
        record = InstanceRecord(spec, instance, handle)
        try:
            self.record_store.write_record(record)
            await self._register_with_watchdog(record)
            exec_errno = await pending.release()
        except (OSError, LatticeError, asyncio.CancelledError):
            pending.close()
            await self._discard(record, pending)
            raise
        if exec_errno:
            await self._discard(record, pending)
            return preflight.exec_failure(exec_errno, spec.container.command[0])
        self._records[spec.id] = record
        self._watch(record, ExitWatch(handle, pending.process))
        return None

    async def _discard(self, record: InstanceRecord, pending: PendingProcess) -> None:
        """Kill a process that did not become an instance, and remove its registration with the watchdog, its
        cgroups and its record."""
        pending.process.kill()
        await asyncio.to_thread(pending.process.wait)
        await self.watchdog.release(self._tag(record.spec.id))
        cgroups.remove_cgroups(record.handle.cgroups)
        with suppress(LatticeError):
            self.record_store.delete_record(record.spec.id)

    async def _register_with_watchdog(self, record: InstanceRecord) -> None:
        spec, handle = record.spec, record.handle
        if spec.stop_after is not None:
            marker = str(self._instance_dir(spec.id) / "ended-by-watchdog")
            await self.watchdog.guard(
                GuardRequest(
                    self._tag(spec.id), spec.stop_after, marker, handle.pid, handle.start, handle.cgroups
                )
            )

    def _watch(self, record: InstanceRecord, exit_watch: ExitWatch) -> None:
        instance_id = record.spec.id
        self._exit_watches[instance_id] = exit_watch

        def on_exit() -> None:
            # A stop in progress records the exit itself.
            if not self._exit_watches[instance_id].is_awaited:
                self._record_exit(instance_id)

        exit_watch.watch(on_exit)
        if self._rotation_task is None:
            self._rotation_task = asyncio.create_task(self._rotate())

    def _record_exit(self, instance_id: InstanceId) -> None:
        """Kill remaining processes of the instance and record the exit."""
        record, exit_watch = self._records[instance_id], self._exit_watches.pop(instance_id)
        instance = exit_watch.reap(
            record, self._tag(instance_id), self._instance_dir(instance_id) / "ended-by-watchdog"
        )
        self._save_record(InstanceRecord(record.spec, instance, record.handle))
        self._cpu_meter.forget(str(instance_id))
        self._cleanup_tasks[instance_id] = asyncio.create_task(self._clean(record))
        self.on_exit()

    def _save_record(self, record: InstanceRecord) -> None:
        self._records[record.spec.id] = record
        # On a full disk the stored record still says that the instance is live; the next agent detects the
        # exit.
        with suppress(LatticeError):
            self.record_store.write_record(record)

    async def _clean(self, record: InstanceRecord) -> None:
        """Release the instance from the watchdog and remove the cgroups. The kernel keeps a cgroup for a
        moment after the exit of its last process."""
        await self.watchdog.release(self._tag(record.spec.id))
        for _ in range(MAX_CLEANUP_ATTEMPTS):
            if cgroups.remove_cgroups(record.handle.cgroups):
                return
            await self.clock.sleep(GROUP_POLL_INTERVAL_S)

    async def _wait_for_cleanup(self, instance_id: InstanceId) -> None:
        task = self._cleanup_tasks.pop(instance_id, None)
        if task:
            await task

    async def stop(
        self, instance_id: InstanceId, grace: float, failure: Failure | None = None
    ) -> Instance | None:
        """Stop the instance; a process stuck in the kernel after SIGKILL stays Running, and its exit is
        recorded later."""
        record = self._records.get(instance_id)
        if record is None:
            return None
        async with self._workload_locks[record.spec.workload]:
            exit_watch = self._exit_watches.get(instance_id)
            if exit_watch is not None:
                await self._terminate_and_kill(record, exit_watch, grace, failure)
            await self._wait_for_cleanup(instance_id)
            return self._records[instance_id].instance if instance_id in self._records else None

    async def _terminate_and_kill(
        self, record: InstanceRecord, exit_watch: ExitWatch, grace: float, failure: Failure | None
    ) -> None:
        instance_id, handle = record.spec.id, record.handle
        exit_watch.is_stopping = exit_watch.is_awaited = True
        exit_watch.stop_failure = failure
        try:
            instance_processes.terminate(handle.pid, handle.start, handle.cgroups, self._tag(instance_id))
            # Child processes get the full grace, even if their parent exits earlier.
            deadline = self.clock.monotonic() + grace
            while (remaining := deadline - self.clock.monotonic()) > 0:
                if exit_watch.has_exited and not instance_processes.instance_pids(
                    handle.pid, handle.start, handle.cgroups, self._tag(instance_id)
                ):
                    break
                await exit_watch.wait_on_clock(
                    self.clock, min(GROUP_POLL_INTERVAL_S, remaining) if exit_watch.has_exited else remaining
                )
            instance_processes.kill(handle.pid, handle.start, handle.cgroups, self._tag(instance_id))
            await exit_watch.wait(KILL_TIMEOUT_S)
        finally:
            exit_watch.is_awaited = False
            if exit_watch.has_exited:
                self._record_exit(instance_id)

    async def remove(self, instance_id: InstanceId) -> None:
        last = await self.stop(instance_id, 0)
        # A process that survives SIGKILL keeps its record and its folder.
        if last is not None and last.is_live:
            return
        # An id that is not a safe file name was rejected at the start, so it has no folder.
        if preflight.id_failure(instance_id) is None:
            await asyncio.to_thread(shutil.rmtree, self._instance_dir(instance_id), ignore_errors=True)
        if self._records.pop(instance_id, None):
            self.record_store.delete_record(instance_id)

    async def list(self) -> list[Instance]:
        return [self._records[instance_id].instance for instance_id in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        instance_id, handle = record.spec.id, record.handle
        self._records[instance_id] = record
        if not record.instance.is_live:
            return record.instance
        # After a reboot, or when the pid is reused, the pid names another process.
        if handle.boot != instance_processes.boot_id() or not instance_processes.is_alive(
            handle.pid, handle.start
        ):
            # The process ended while no agent ran; its remaining processes of the same boot are killed.
            if handle.boot == instance_processes.boot_id():
                instance_processes.kill(handle.pid, handle.start, handle.cgroups, self._tag(instance_id))
                cgroups.remove_cgroups(handle.cgroups)
            instance = exited_without_agent(record, self._instance_dir(instance_id) / "ended-by-watchdog")
            self._save_record(InstanceRecord(record.spec, instance, handle))
            return instance
        self._watch(record, ExitWatch(handle, None))
        await self._register_with_watchdog(record)
        return record.instance

    async def usage(self, instance_id: InstanceId) -> Usage | None:
        record = self._records.get(instance_id)
        if record is None or instance_id not in self._exit_watches:
            return None
        usage = instance_usage(self._cpu_meter, str(instance_id), record.handle, self._tag(instance_id))
        disk = await asyncio.to_thread(disk_bytes, self._instance_dir(instance_id))
        return msgspec.structs.replace(usage, disk=disk)

    async def logs(self, instance_id: InstanceId, tail: int) -> str:
        return (
            logs.tail(self._instance_dir(instance_id) / "log", tail, self.options.rotation)
            if instance_id in self._records
            else ""
        )

    async def logs_since(self, instance_id: InstanceId, position: int) -> tuple[str, int]:
        return (
            logs.read_since(self._instance_dir(instance_id) / "log", position)
            if instance_id in self._records
            else ("", 0)
        )

    async def run_probe(self, instance_id: InstanceId, probe: Probe) -> ProbeResult:
        record = self._records.get(instance_id)
        if record is None or not record.instance.is_live:
            return ProbeResult(False, "the process is not running")
        work_folder = self._instance_dir(instance_id) / "work"
        env = preflight.process_environment(record.spec, work_folder, os.environ, self._tag(instance_id))
        return await probe_once(
            probe, record.spec.ports, lambda words, timeout: run_command(words, env, work_folder, timeout)
        )

    async def record_contact(self, since: float) -> None:
        await self.watchdog.record_contact(since)

    async def close(self) -> None:
        if self._rotation_task:
            self._rotation_task.cancel()
        for exit_watch in self._exit_watches.values():
            exit_watch.unwatch()
        await asyncio.gather(*self._cleanup_tasks.values(), return_exceptions=True)
        cgroups.remove_empty_branches(self.hierarchies)

    def _tag(self, instance_id: InstanceId) -> str:
        return preflight.tag_of(self.folder, instance_id)

    def _instance_dir(self, instance_id: InstanceId) -> Path:
        return self.folder / str(instance_id)

    async def _rotate(self) -> None:
        while True:
            await self.clock.sleep(self.options.rotate_interval_s)
            for instance_id in list(self._exit_watches):
                with suppress(OSError):
                    logs.rotate(self._instance_dir(instance_id) / "log", self.options.rotation)
