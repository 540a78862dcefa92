"""Runs commands as plain processes of this machine, each instance in a session, a folder and, where they are writable, cgroups of its own.

They do not need the agent: killed, it leaves them running, and the next agent adopts them. Limits are held by cgroups v2 or v1. Where none
is writable, memory is held by RLIMIT_DATA per process and CPU is not held, which the instance says in `enforced`; and then a grandchild
that both leaves the session and wipes its environment is not found when the rest is ended.
"""

import asyncio
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lattice.agent.host.watchdog_client import Guard, Post
from lattice.agent.host.probes import ask
from lattice.agent.host import cgroups, process_groups as groups
from lattice.agent.runtimes import log_files as logs, preflight as prepare
from lattice.agent.runtimes.exit_watch import Ending, ended_unseen
from lattice.agent.runtimes.execute import run
from lattice.agent.runtimes.log_files import Rotation
from lattice.agent.host.runtime_protocol import (
    Answer,
    Failure,
    Handle,
    Instance,
    InstanceId,
    Notebook,
    Record,
    RunSpec,
    Usage,
    earlier,
    fresh,
)
from lattice.agent.runtimes.spawn import Command, Pending, spawn
from lattice.agent.host.usage import Meter, disk_bytes, process_cpu_ns, process_memory
from lattice.clock import Clock, stamp
from lattice.errors import LatticeError
from lattice.kinds.container import Probe

KEPT = Rotation()
LOOK_EVERY = 0.05  # seconds between looks at a group that was asked to end
CLEAN_TRIES = 100
DEAD_WITHIN = 10.0  # after SIGKILL; only a process stuck in the kernel takes longer


@dataclass(frozen=True, slots=True)
class Options:
    rotation: Rotation = KEPT
    rotate_every: float = 10.0
    hierarchies: tuple[cgroups.Hierarchy, ...] | None = None  # None: what this machine offers


class ProcessRuntime:
    name = "process"

    def __init__(
        self, folder: Path, notebook: Notebook, clock: Clock, guard: Guard, options: Options | None = None
    ) -> None:
        self.folder = folder / "instances"
        self.notebook = notebook
        self.clock = clock
        self.guard = guard
        self.options = options = options or Options()
        self.wake: Callable[[], None] = lambda: None
        self.hierarchies = tuple(cgroups.detect()) if options.hierarchies is None else options.hierarchies
        cgroups.sweep(self.hierarchies, prepare.prefix_of(self.folder))
        self._records: dict[InstanceId, Record] = {}
        self._endings: dict[InstanceId, Ending] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one at a time per workload
        self._cleaning: dict[InstanceId, asyncio.Task[None]] = {}
        self._meter = Meter(clock)
        self._rotating: asyncio.Task[None] | None = None

    async def start(self, spec: RunSpec) -> Instance:
        async with self._turns[spec.workload]:
            known = earlier(spec, [record.instance for record in self._records.values()])
            if known is not None:
                return known
            await self._cleaned(spec.id)
            try:
                failure = (
                    prepare.spec_failure(spec)
                    or self.guard.refusal(spec.stop_after)
                    or prepare.port_failure(spec)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = prepare.trouble(error)
            if failure is not None:
                self._note(Record(spec, fresh(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        place = self._place(spec.id)
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
        return await self._begin(spec, pending, paths, enforced)

    async def _begin(
        self, spec: RunSpec, pending: Pending, paths: tuple[str, ...], enforced: dict[str, str]
    ) -> Failure | None:
        """Write it down, have it guarded, and only then let it run."""
        pid = pending.process.pid
        handle = Handle(pid, groups.start_time(pid) or 0, groups.boot_id(), paths)
        now = stamp(self.clock.now())
        instance = msgspec.structs.replace(fresh(spec, "Running"), started_at=now, enforced=enforced)
        record = Record(spec, instance, handle)
        try:
            self.notebook.write(record)
            await self._guard(record)
            refused = await pending.release()
        except (OSError, LatticeError, asyncio.CancelledError):
            pending.close()
            await self._discard(record, pending)
            raise
        if refused:
            await self._discard(record, pending)
            return prepare.exec_failure(refused, spec.container.command[0])
        self._records[spec.id] = record
        self._watch(record, Ending(handle, pending.process))
        return None

    async def _discard(self, record: Record, pending: Pending) -> None:
        pending.process.kill()
        await asyncio.to_thread(pending.process.wait)
        await self.guard.release(self._tag(record.spec.id))
        cgroups.remove(record.handle.cgroups)
        with suppress(LatticeError):
            self.notebook.strike(record.spec.id)

    async def _guard(self, record: Record) -> None:
        spec, handle = record.spec, record.handle
        if spec.stop_after is not None:
            marker = str(self._place(spec.id) / "ended-by-watchdog")
            await self.guard.guard(
                Post(self._tag(spec.id), spec.stop_after, marker, handle.pid, handle.start, handle.cgroups)
            )

    def _watch(self, record: Record, ending: Ending) -> None:
        which = record.spec.id
        self._endings[which] = ending
        ending.watch(lambda: self._ended(which))
        if self._rotating is None:
            self._rotating = asyncio.create_task(self._rotate())

    def _ended(self, which: InstanceId) -> None:
        """The process itself is gone. When nobody is stopping it, what it left behind goes too."""
        if not self._endings[which].attended:
            self._settle(which)

    def _settle(self, which: InstanceId) -> None:
        """Nothing of it may be left; then its end is written down."""
        record, ending = self._records[which], self._endings.pop(which)
        instance = ending.conclude(record, self._tag(which), self._place(which) / "ended-by-watchdog")
        self._note(Record(record.spec, instance, record.handle))
        self._meter.forget(str(which))
        self._cleaning[which] = asyncio.create_task(self._clean(record))
        self.wake()

    def _note(self, record: Record) -> None:
        self._records[record.spec.id] = record
        with suppress(LatticeError):  # a full disk: the next agent sees for itself that it is gone
            self.notebook.write(record)

    async def _clean(self, record: Record) -> None:
        """The kernel needs a moment between the death of the last process and letting go of its cgroup."""
        await self.guard.release(self._tag(record.spec.id))
        for _ in range(CLEAN_TRIES):
            if cgroups.remove(record.handle.cgroups):
                return
            await self.clock.sleep(LOOK_EVERY)

    async def _cleaned(self, which: InstanceId) -> None:
        cleaning = self._cleaning.pop(which, None)
        if cleaning:
            await cleaning

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        """One that is stuck in the kernel after SIGKILL is still called running; its end is noticed whenever it comes."""
        record = self._records.get(which)
        if record is None:
            return None
        async with self._turns[record.spec.workload]:
            ending = self._endings.get(which)
            if ending is not None:
                await self._end(record, ending, grace, because)
            await self._cleaned(which)
            return self._records[which].instance if which in self._records else None

    async def _end(self, record: Record, ending: Ending, grace: float, because: Failure | None) -> None:
        which, handle = record.spec.id, record.handle
        ending.stopping = ending.attended = True
        ending.because = because
        try:
            groups.ask_to_end(handle.pid, handle.start, handle.cgroups, self._tag(which))
            await self._wait_empty(record, ending, grace)
            groups.kill(handle.pid, handle.start, handle.cgroups, self._tag(which))
            await ending.wait(DEAD_WITHIN)
        finally:
            ending.attended = False
            if ending.seen:
                self._settle(which)

    async def _wait_empty(self, record: Record, ending: Ending, grace: float) -> None:
        """Its children have the grace too, also when the process itself is gone at once."""
        end = self.clock.monotonic() + grace
        handle = record.handle
        while (left := end - self.clock.monotonic()) > 0:
            if ending.seen and not groups.members(
                handle.pid, handle.start, handle.cgroups, self._tag(record.spec.id)
            ):
                return
            await ending.wait_with(self.clock, min(LOOK_EVERY, left) if ending.seen else left)

    async def remove(self, which: InstanceId) -> None:
        last = await self.stop(which, 0)
        if last is not None and last.live:
            return
        if prepare.id_failure(which) is None:
            await asyncio.to_thread(shutil.rmtree, self._place(which), ignore_errors=True)
        if self._records.pop(which, None):
            self.notebook.strike(which)

    async def list(self) -> list[Instance]:
        return [self._records[which].instance for which in sorted(self._records)]

    async def adopt(self, record: Record) -> Instance:
        which, handle = record.spec.id, record.handle
        self._records[which] = record
        if not record.instance.live:
            return record.instance
        if handle.boot != groups.boot_id() or not groups.is_alive(handle.pid, handle.start):
            return self._adopt_ended(record)
        self._watch(record, Ending(handle, None))
        await self._guard(record)
        return record.instance

    def _adopt_ended(self, record: Record) -> Instance:
        handle = record.handle
        if handle.boot == groups.boot_id():
            groups.kill(handle.pid, handle.start, handle.cgroups, self._tag(record.spec.id))
            cgroups.remove(handle.cgroups)
        instance = ended_unseen(record, self._place(record.spec.id) / "ended-by-watchdog")
        self._note(Record(record.spec, instance, handle))
        return instance

    async def usage(self, which: InstanceId) -> Usage | None:
        record = self._records.get(which)
        if record is None or which not in self._endings:
            return None
        handle = record.handle
        held = groups.members(handle.pid, handle.start, handle.cgroups, self._tag(which))
        used = cgroups.cpu_ns(handle.cgroups)
        memory = cgroups.memory_bytes(handle.cgroups)
        return Usage(
            cpu=self._meter.milli(str(which), process_cpu_ns(held) if used is None else used),
            memory=process_memory(held) if memory is None else memory,
            disk=await asyncio.to_thread(disk_bytes, self._place(which)),
        )

    async def logs(self, which: InstanceId, tail: int) -> str:
        return (
            logs.tail(self._place(which) / "log", tail, self.options.rotation)
            if which in self._records
            else ""
        )

    async def printed(self, which: InstanceId, after: int) -> tuple[str, int]:
        return logs.printed(self._place(which) / "log", after) if which in self._records else ("", 0)

    async def ask(self, which: InstanceId, probe: Probe) -> Answer:
        record = self._records.get(which)
        if record is None or not record.instance.live:
            return Answer(False, "it does not run")
        work = self._place(which) / "work"
        env = prepare.environment(record.spec, work, os.environ, self._tag(which))
        return await ask(probe, record.spec.ports, lambda words, timeout: run(words, env, work, timeout))

    async def contact(self, since: float) -> None:
        await self.guard.contact(since)

    async def close(self) -> None:
        if self._rotating:
            self._rotating.cancel()
        for ending in self._endings.values():
            ending.unwatch()
        await asyncio.gather(*self._cleaning.values(), return_exceptions=True)
        cgroups.prune(self.hierarchies)

    def _tag(self, which: InstanceId) -> str:
        return prepare.tag_of(self.folder, which)

    def _place(self, which: InstanceId) -> Path:
        return self.folder / str(which)

    async def _rotate(self) -> None:
        while True:
            await self.clock.sleep(self.options.rotate_every)
            for which in list(self._endings):
                with suppress(OSError):
                    logs.rotate(self._place(which) / "log", self.options.rotation)
