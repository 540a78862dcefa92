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

from lattice.agent.host.watchdog_client import Guard, Post
from lattice.agent.host.probes import ask
from lattice.agent.host import cgroups, process_groups as groups
from lattice.agent.runtimes import preflight as prepare
from lattice.agent.runtimes.exit_watch import Ending
from lattice.agent.runtimes.podman import LONG, QUICK, Podman, complaint, ulimits
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
from lattice.agent.runtimes.seen import cgroups_of, conclusion, figures
from lattice.agent.host.usage import Meter, disk_bytes
from lattice.clock import Clock, stamp
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.container import Probe

LABEL = "lattice.dev/instance"
LOG_SIZE = "10mb"


class ContainerRuntime:
    name = "container"

    def __init__(self, folder: Path, notebook: Notebook, clock: Clock, guard: Guard, podman: Podman) -> None:
        self.folder = folder / "instances"
        self.notebook = notebook
        self.clock = clock
        self.guard = guard
        self.podman = podman
        self.wake: Callable[[], None] = lambda: None
        self._records: dict[InstanceId, Record] = {}
        self._endings: dict[InstanceId, Ending] = {}
        self._layers: dict[InstanceId, str] = {}  # folders of what they wrote
        self._settling: set[asyncio.Task[None]] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._meter = Meter(clock)

    async def start(self, spec: RunSpec) -> Instance:
        async with self._turns[spec.workload]:
            known = earlier(spec, [record.instance for record in self._records.values()])
            if known is not None:
                return known
            try:
                failure = (
                    prepare.id_failure(spec.id)
                    or self.guard.refusal(spec.stop_after)
                    or await self._run(spec)
                )
            except (OSError, LatticeError) as error:
                failure = prepare.trouble(error)
            if failure is not None:
                await self._discard(spec.id)
                self._note(Record(spec, fresh(spec, "Exited", failure)))
            return self._records[spec.id].instance

    async def _run(self, spec: RunSpec) -> Failure | None:
        """Create, write down, have it guarded, and only then start: a container that nobody knows of never runs."""
        await self._discard(spec.id)
        self._place(spec.id).mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._place(spec.id) / "ended-by-watchdog").unlink(missing_ok=True)
        env = spec.env | prepare.port_environment(spec) | spec.container.env
        made = await self.podman.call("create", *self._flags(spec, env), env=env, timeout=LONG)
        if made.code != 0:
            return prepare.of_ports(complaint(made.err), spec)
        limited = {name: "container" for name in ("cpu", "memory") if getattr(spec.limits, name) is not None}
        instance = msgspec.structs.replace(
            fresh(spec, "Running"), started_at=stamp(self.clock.now()), enforced=limited
        )
        record = Record(spec, instance, Handle(boot=groups.boot_id(), container=self._name(spec.id)))
        self.notebook.write(record)
        await self._guard(record)
        begun = await self.podman.call("start", self._name(spec.id))
        if begun.code != 0:
            return prepare.of_ports(complaint(begun.err), spec)
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
            f"--log-opt=max-size={LOG_SIZE}",
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

    async def _guard(self, record: Record) -> None:
        """Before its first process is known, the watchdog would ask podman; afterwards it ends the process itself, which is faster."""
        spec, handle = record.spec, record.handle
        if spec.stop_after is not None:
            marker = str(self._place(spec.id) / "ended-by-watchdog")
            command = (
                () if handle.start else (*self.podman.words, "stop", "--ignore", "--time=0", handle.container)
            )
            await self.guard.guard(
                Post(str(spec.id), spec.stop_after, marker, handle.pid, handle.start, handle.cgroups, command)
            )

    async def _watch(self, record: Record) -> None:
        """From now on its end is noticed at once, by its first process."""
        which = record.spec.id
        found = await self.podman.inspect(record.handle.container)
        pid = int(found[0]["State"]["Pid"]) if found else 0
        start = groups.start_time(pid) if pid else None
        handle = msgspec.structs.replace(
            record.handle, pid=pid, start=start or 0, cgroups=cgroups_of(pid) if start else ()
        )
        record = Record(record.spec, record.instance, handle)
        self._note(record)
        ending = self._endings[which] = Ending(handle, None)
        if pid and handle.start:
            self._layers[which] = found[0].get("GraphDriver", {}).get("Data", {}).get("UpperDir", "")
            ending.watch(lambda: self._ended(which))
            await self._guard(record)
        else:
            ending.seen = True
            await self._settle(which)

    def _ended(self, which: InstanceId) -> None:
        self._endings[which].exhausted = cgroups.ran_out_of_memory(
            self._records[which].handle.cgroups
        )  # while the cgroup is still there
        if not self._endings[which].attended:
            task = asyncio.create_task(self._settle(which))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _settle(self, which: InstanceId) -> None:
        record, ending = self._records[which], self._endings.pop(which, None)
        if ending is None:
            return
        ending.unwatch()
        state = await self._last_state(record) | ({"OOMKilled": True} if ending.exhausted else {})
        said = await self.logs(which, 5)
        instance = conclusion(record, state, said, self._place(which) / "ended-by-watchdog")
        if ending.stopping:
            instance = msgspec.structs.replace(instance, failure=ending.because, asked=ending.because is None)
        self._note(Record(record.spec, instance, record.handle))
        self._meter.forget(str(which))
        self._layers.pop(which, None)
        await self.guard.release(str(which))
        self.wake()

    async def _last_state(self, record: Record) -> dict[str, Any]:
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
        async with self._turns[record.spec.workload]:
            ending = self._endings.get(which)
            if ending is not None:
                ending.stopping = ending.attended = True
                ending.because = because
                try:
                    await self.podman.call(
                        "stop",
                        "--ignore",
                        f"--time={max(0, round(grace))}",
                        record.handle.container,
                        timeout=grace + QUICK,
                    )
                finally:
                    ending.attended = False
                if not groups.is_alive(record.handle.pid, record.handle.start):
                    await self._settle(which)
            return self._records[which].instance if which in self._records else None

    async def remove(self, which: InstanceId) -> None:
        last = await self.stop(which, 0)
        if last is not None and last.live:
            return
        await self._discard(which)
        with suppress(OSError):
            (self._place(which) / "ended-by-watchdog").unlink(missing_ok=True)
            self._place(which).rmdir()
        if self._records.pop(which, None):
            self.notebook.strike(which)

    async def list(self) -> list[Instance]:
        return [self._records[which].instance for which in sorted(self._records)]

    async def adopt(self, record: Record) -> Instance:
        self._records[record.spec.id] = record
        if record.instance.live:
            await self._watch(record)
        return self._records[record.spec.id].instance

    async def usage(self, which: InstanceId) -> Usage | None:
        record = self._records.get(which)
        if record is None or which not in self._endings:
            return None
        disk = (
            await asyncio.to_thread(disk_bytes, Path(self._layers[which])) if self._layers.get(which) else 0
        )
        return msgspec.structs.replace(figures(record, self._meter), disk=disk)

    async def logs(self, which: InstanceId, tail: int) -> str:
        record = self._records.get(which)
        if record is None or not record.handle.container or tail <= 0:
            return ""
        done = await self.podman.call("logs", f"--tail={tail}", record.handle.container)
        return (done.out + done.err) if done.code == 0 else ""

    async def printed(self, which: InstanceId, after: int) -> tuple[str, int]:
        """Positions are times, in milliseconds: podman can only be asked for those."""
        record, until = self._records.get(which), int(self.clock.now().timestamp() * 1000)
        if after < 0 or record is None or not record.handle.container:
            return "", until
        bounds = [f"--{name}={_moment(each)}" for name, each in (("since", after), ("until", until))]
        done = await self.podman.call("logs", *bounds, record.handle.container)
        return (done.out + done.err if done.code == 0 else ""), until

    async def ask(self, which: InstanceId, probe: Probe) -> Answer:
        record = self._records.get(which)
        if record is None or not record.instance.live:
            return Answer(False, "it does not run")
        name = record.handle.container

        async def execute(words: tuple[str, ...], timeout: float) -> int | None:
            try:
                return (await self.podman.call("exec", name, *words, timeout=timeout)).code
            except Unavailable:
                return None

        return await ask(probe, record.spec.ports, execute)

    async def contact(self, since: float) -> None:
        await self.guard.contact(since)

    async def close(self) -> None:
        for ending in self._endings.values():
            ending.unwatch()
        await asyncio.gather(*self._settling, return_exceptions=True)

    async def _discard(self, which: InstanceId) -> None:
        """Whatever bears its name goes."""
        await self.podman.call("rm", "--force", "--ignore", "--time=0", "--volumes", self._name(which))
        await self.guard.release(str(which))

    def _note(self, record: Record) -> None:
        self._records[record.spec.id] = record
        with suppress(LatticeError):
            self.notebook.write(record)

    def _name(self, which: InstanceId) -> str:
        return f"lattice-{prepare.tag_of(self.folder, which)}"

    def _place(self, which: InstanceId) -> Path:
        return self.folder / str(which)


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
