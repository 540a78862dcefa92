"""Real nodes: a process runtime in its own folder, and agents as processes that can be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from build.waiting import eventually
from lattice.agent.host import cgroups
from lattice.agent.host import instance_processes as groups
from lattice.agent.host.runtime_protocol import Instance, InstanceId, InstanceRecord, RunSpec
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes.preflight import prefix_of, tag_of
from lattice.agent.runtimes.process import ProcessRuntime, ProcessRuntimeOptions
from lattice.agent.state_file import AgentState, StateFile
from lattice.clock import SystemClock

SMALL_AGENT = str(Path(__file__).with_name("small_agent.py"))
clock = SystemClock()


class ProcessNode:
    def __init__(self, folder: Path, options: ProcessRuntimeOptions | None = None) -> None:
        self.folder = folder
        self.state = StateFile(folder)
        self.guard = WatchdogClient(folder, clock)
        self.runtime = ProcessRuntime(folder, self.state, clock, self.guard, options)

    def record(self, one: InstanceId) -> InstanceRecord:
        return next(record for record in self.state.state.records if record.spec.id == one)

    def alive(self, one: InstanceId) -> set[int]:
        handle = self.record(one).handle
        return groups.instance_pids(
            handle.pid, handle.start, handle.cgroups, tag_of(self.runtime.folder, one)
        )

    async def ended(self, one: InstanceId, within: float = 60.0) -> Instance:
        async def look() -> Instance | None:
            return next(
                (
                    instance
                    for instance in await self.runtime.list()
                    if instance.id == one and not instance.is_live
                ),
                None,
            )

        result: Instance = await eventually(look, within)
        return result


@asynccontextmanager
async def running_node(
    folder: Path, options: ProcessRuntimeOptions | None = None
) -> AsyncIterator[ProcessNode]:
    node = ProcessNode(folder, options)
    try:
        yield node
    finally:
        for instance in await node.runtime.list():
            await node.runtime.remove(instance.id)
        await node.runtime.close()
        await node.guard.close()
        node.state.close()


@contextmanager
def an_agent(
    folder: Path, *specs: RunSpec, contact_every: float = 0
) -> Iterator[tuple[subprocess.Popen[str], list[Instance]]]:
    """An agent process that has started these instances; it is killed at the end."""
    words = [msgspec.json.encode(spec).decode() for spec in specs]
    process = subprocess.Popen(
        [sys.executable, SMALL_AGENT, str(folder), str(contact_every), *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        yield process, msgspec.json.decode(process.stdout.readline(), type=list[Instance])
    finally:
        process.kill()
        process.communicate()


def written(folder: Path) -> AgentState:
    return msgspec.json.decode((folder / "state.json").read_bytes(), type=AgentState)


def end_all(folder: Path) -> None:
    """Kill the instances of a killed agent and remove its cgroups."""
    for record in written(folder).records if (folder / "state.json").exists() else ():
        handle = record.handle
        groups.kill(handle.pid, handle.start, handle.cgroups, tag_of(folder / "instances", record.spec.id))
    hierarchies = cgroups.detect()
    cgroups.remove_stale(hierarchies, prefix_of(folder / "instances"))
    cgroups.remove_empty_branches(hierarchies)


def watchdogs(folder: Path) -> list[int]:
    """The pids of watchdogs of this folder."""
    results = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"lattice.agent.host.watchdog" in words and str(folder).encode() in words:
            results.append(int(name))
    return results


def kill_now(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
