"""Runs commands as plain processes of this machine, each instance in a session, a folder and, where they are writable, cgroups of its own.

They do not need the agent: killed, it leaves them running, and the next agent adopts them. Limits are held by cgroups v2 or v1. Where none
is writable, memory is held by RLIMIT_DATA per process and CPU is not held, which the instance says in `enforced`; and then a grandchild
that both leaves the session and wipes its environment is not found when the rest is ended.
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
from lattice.agent.host.usage import CpuMeter, disk_bytes, process_cpu_ns, process_memory
from lattice.agent.host.watchdog_client import GuardRequest, WatchdogClient
from lattice.agent.runtimes import log_files as logs
from lattice.agent.runtimes import preflight as prepare
from lattice.agent.runtimes.exit_watch import ExitWatch, exited_without_agent
from lattice.agent.runtimes.log_files import Rotation
from lattice.agent.runtimes.spawn import Command, PendingProcess, spawn
from lattice.clock import Clock, format_timestamp
from lattice.errors import LatticeError
from lattice.kinds.container import Probe

DEFAULT_ROTATION = Rotation()
GROUP_POLL_INTERVAL_S = 0.05  # seconds between looks at a group that was asked to end
MAX_CLEANUP_ATTEMPTS = 100
KILL_TIMEOUT_S = 10.0  # after SIGKILL; only a process stuck in the kernel takes longer


async def run_command(
    words: tuple[str, ...], env: dict[str, str], folder: Path, timeout: float
) -> int | None:
    """Exit code; None when it took longer than `timeout` and was killed. Raises OSError when it cannot be started."""
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
    rotation: Rotation = DEFAULT_ROTATION
    rotate_interval_s: float = 10.0
    hierarchies: tuple[cgroups.Hierarchy, ...] | None = None  # None: what this machine offers


class ProcessRuntime:
    name = "process"

    def __init__(
        self,
        folder: Path,
        notebook: RecordStore,
        clock: Clock,
        guard: WatchdogClient,
        options: ProcessRuntimeOptions | None = None,
    ) -> None:
        self.folder = folder / "instances"
        self.record_store = notebook
        self.clock = clock
        self.watchdog = guard
        self.options = options = options or ProcessRuntimeOptions()
        self.on_exit: Callable[[], None] = lambda: None
        self.hierarchies = tuple(cgroups.detect()) if options.hierarchies is None else options.hierarchies
        cgroups.remove_stale(self.hierarchies, prepare.prefix_of(self.folder))
        self._records: dict[InstanceId, InstanceRecord] = {}
        self._exit_watches: dict[InstanceId, ExitWatch] = {}
        self._workload_locks: defaultdict[str, asyncio.Lock] = defaultdict(
            asyncio.Lock
        )  # one at a time per workload
        self._cleanup_tasks: dict[InstanceId, asyncio.Task[None]] = {}
        self._cpu_meter = CpuMeter(clock)
        self._rotation_task: asyncio.Task[None] | None = None

    async def start(self, spec: RunSpec) -> Instance:
        async with self._workload_locks[spec.workload]:
            known = existing_instance(spec, [record.instance for record in self._records.values()])
            if known is not None:
                return known
            await self._wait_for_cleanup(spec.id)
            try:
                failure = (
                    prepare.spec_failure(spec)
                    or self.watchdog.disconnected_failure(spec.stop_after)
                    or prepare.port_failure(spec)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = prepare.failure_from_error(error)
            if failure is not None:
                self._save_record(InstanceRecord(spec, new_instance(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        place = self._instance_dir(spec.id)
        work = place / "work"
        work.mkdir(parents=True, exist_ok=True, mode=0o700)
        (place / "ended-by-watchdog").unlink(missing_ok=True)
        env = prepare.environment(spec, work, os.environ, self._tag(spec.id))
        program = prepare.program(spec, env.get("PATH", os.defpath), work)
        if isinstance(program, Failure):
            return program
        paths, enforced = cgroups.make(self.hierarchies, self._tag(spec.id), spec.limits)
        data_limit = spec.limits.memory if spec.limits.memory and "memory" not in enforced else 0
        enforced |= {"memory": "rlimit"} if data_limit else {}
        enforced |= {"cpu": "none"} if spec.limits.cpu and "cpu" not in enforced else {}
        log = logs.open_for_append(place / "log")
        try:
            words = (*spec.container.command, *spec.container.args)
            pending = await spawn(Command(program, words, env, work, log, paths, data_limit))
        except OSError:
            cgroups.remove(paths)
            raise
        finally:
            os.close(log)
        return await self._record_and_release(spec, pending, paths, enforced)

    async def _record_and_release(
        self, spec: RunSpec, pending: PendingProcess, paths: tuple[str, ...], enforced: dict[str, str]
    ) -> Failure | None:
        """Write it down, have it guarded, and only then let it run."""
        pid = pending.process.pid
        handle = Handle(pid, groups.start_time(pid) or 0, groups.boot_id(), paths)
        now = format_timestamp(self.clock.now())
        instance = msgspec.structs.replace(new_instance(spec, "Running"), started_at=now, enforced=enforced)
        record = InstanceRecord(spec, instance, handle)
        try:
            self.record_store.write_record(record)
            await self._register_with_watchdog(record)
            refused = await pending.release()
        except (OSError, LatticeError, asyncio.CancelledError):
            pending.close()
            await self._discard(record, pending)
            raise
        if refused:
            await self._discard(record, pending)
            return prepare.exec_failure(refused, spec.container.command[0])
        self._records[spec.id] = record
        self._watch(record, ExitWatch(handle, pending.process))
        return None

    async def _discard(self, record: InstanceRecord, pending: PendingProcess) -> None:
        pending.process.kill()
        await asyncio.to_thread(pending.process.wait)
        await self.watchdog.release(self._tag(record.spec.id))
        cgroups.remove(record.handle.cgroups)
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

    def _watch(self, record: InstanceRecord, ending: ExitWatch) -> None:
        which = record.spec.id
        self._exit_watches[which] = ending
        ending.watch(lambda: self._ended(which))
        if self._rotation_task is None:
            self._rotation_task = asyncio.create_task(self._rotate())

    def _ended(self, which: InstanceId) -> None:
        """The process itself is gone. When nobody is stopping it, what it left behind goes too."""
        if not self._exit_watches[which].is_awaited:
            self._record_exit(which)

    def _record_exit(self, which: InstanceId) -> None:
        """Nothing of it may be left; then its end is written down."""
        record, ending = self._records[which], self._exit_watches.pop(which)
        instance = ending.reap(record, self._tag(which), self._instance_dir(which) / "ended-by-watchdog")
        self._save_record(InstanceRecord(record.spec, instance, record.handle))
        self._cpu_meter.forget(str(which))
        self._cleanup_tasks[which] = asyncio.create_task(self._clean(record))
        self.on_exit()

    def _save_record(self, record: InstanceRecord) -> None:
        self._records[record.spec.id] = record
        with suppress(LatticeError):  # a full disk: the next agent sees for itself that it is gone
            self.record_store.write_record(record)

    async def _clean(self, record: InstanceRecord) -> None:
        """The kernel needs a moment between the death of the last process and letting go of its cgroup."""
        await self.watchdog.release(self._tag(record.spec.id))
        for _ in range(MAX_CLEANUP_ATTEMPTS):
            if cgroups.remove(record.handle.cgroups):
                return
            await self.clock.sleep(GROUP_POLL_INTERVAL_S)

    async def _wait_for_cleanup(self, which: InstanceId) -> None:
        cleaning = self._cleanup_tasks.pop(which, None)
        if cleaning:
            await cleaning

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        """One that is stuck in the kernel after SIGKILL is still called running; its end is noticed whenever it comes."""
        record = self._records.get(which)
        if record is None:
            return None
        async with self._workload_locks[record.spec.workload]:
            ending = self._exit_watches.get(which)
            if ending is not None:
                await self._terminate_and_kill(record, ending, grace, because)
            await self._wait_for_cleanup(which)
            return self._records[which].instance if which in self._records else None

    async def _terminate_and_kill(
        self, record: InstanceRecord, ending: ExitWatch, grace: float, because: Failure | None
    ) -> None:
        which, handle = record.spec.id, record.handle
        ending.is_stopping = ending.is_awaited = True
        ending.stop_failure = because
        try:
            groups.terminate(handle.pid, handle.start, handle.cgroups, self._tag(which))
            await self._wait_empty(record, ending, grace)
            groups.kill(handle.pid, handle.start, handle.cgroups, self._tag(which))
            await ending.wait(KILL_TIMEOUT_S)
        finally:
            ending.is_awaited = False
            if ending.has_exited:
                self._record_exit(which)

    async def _wait_empty(self, record: InstanceRecord, ending: ExitWatch, grace: float) -> None:
        """Its children have the grace too, also when the process itself is gone at once."""
        end = self.clock.monotonic() + grace
        handle = record.handle
        while (left := end - self.clock.monotonic()) > 0:
            if ending.has_exited and not groups.members(
                handle.pid, handle.start, handle.cgroups, self._tag(record.spec.id)
            ):
                return
            await ending.wait_on_clock(
                self.clock, min(GROUP_POLL_INTERVAL_S, left) if ending.has_exited else left
            )

    async def remove(self, which: InstanceId) -> None:
        last = await self.stop(which, 0)
        if last is not None and last.is_live:
            return
        if prepare.id_failure(which) is None:
            await asyncio.to_thread(shutil.rmtree, self._instance_dir(which), ignore_errors=True)
        if self._records.pop(which, None):
            self.record_store.delete_record(which)

    async def list(self) -> list[Instance]:
        return [self._records[which].instance for which in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        which, handle = record.spec.id, record.handle
        self._records[which] = record
        if not record.instance.is_live:
            return record.instance
        if handle.boot != groups.boot_id() or not groups.is_alive(handle.pid, handle.start):
            return self._adopt_ended(record)
        self._watch(record, ExitWatch(handle, None))
        await self._register_with_watchdog(record)
        return record.instance

    def _adopt_ended(self, record: InstanceRecord) -> Instance:
        handle = record.handle
        if handle.boot == groups.boot_id():
            groups.kill(handle.pid, handle.start, handle.cgroups, self._tag(record.spec.id))
            cgroups.remove(handle.cgroups)
        instance = exited_without_agent(record, self._instance_dir(record.spec.id) / "ended-by-watchdog")
        self._save_record(InstanceRecord(record.spec, instance, handle))
        return instance

    async def usage(self, which: InstanceId) -> Usage | None:
        record = self._records.get(which)
        if record is None or which not in self._exit_watches:
            return None
        handle = record.handle
        held = groups.members(handle.pid, handle.start, handle.cgroups, self._tag(which))
        used = cgroups.cpu_ns(handle.cgroups)
        memory = cgroups.memory_bytes(handle.cgroups)
        return Usage(
            cpu=self._cpu_meter.milli_cores(str(which), process_cpu_ns(held) if used is None else used),
            memory=process_memory(held) if memory is None else memory,
            disk=await asyncio.to_thread(disk_bytes, self._instance_dir(which)),
        )

    async def logs(self, which: InstanceId, tail: int) -> str:
        return (
            logs.tail(self._instance_dir(which) / "log", tail, self.options.rotation)
            if which in self._records
            else ""
        )

    async def logs_since(self, which: InstanceId, after: int) -> tuple[str, int]:
        return (
            logs.read_since(self._instance_dir(which) / "log", after) if which in self._records else ("", 0)
        )

    async def run_probe(self, which: InstanceId, probe: Probe) -> ProbeResult:
        record = self._records.get(which)
        if record is None or not record.instance.is_live:
            return ProbeResult(False, "it does not run")
        work = self._instance_dir(which) / "work"
        env = prepare.environment(record.spec, work, os.environ, self._tag(which))
        return await probe_once(
            probe, record.spec.ports, lambda words, timeout: run_command(words, env, work, timeout)
        )

    async def record_contact(self, since: float) -> None:
        await self.watchdog.record_contact(since)

    async def close(self) -> None:
        if self._rotation_task:
            self._rotation_task.cancel()
        for ending in self._exit_watches.values():
            ending.unwatch()
        await asyncio.gather(*self._cleanup_tasks.values(), return_exceptions=True)
        cgroups.prune(self.hierarchies)

    def _tag(self, which: InstanceId) -> str:
        return prepare.tag_of(self.folder, which)

    def _instance_dir(self, which: InstanceId) -> Path:
        return self.folder / str(which)

    async def _rotate(self) -> None:
        while True:
            await self.clock.sleep(self.options.rotate_interval_s)
            for which in list(self._exit_watches):
                with suppress(OSError):
                    logs.rotate(self._instance_dir(which) / "log", self.options.rotation)
