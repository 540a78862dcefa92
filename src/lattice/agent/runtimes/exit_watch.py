"""How did a process end? Notices it the moment it happens, whether it is our child or adopted, and says why in the words of failures."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from lattice.agent.host import cgroups
from lattice.agent.host import instance_processes as groups
from lattice.agent.host.runtime_protocol import Failure, Handle, Instance, InstanceRecord
from lattice.clock import Clock


class ExitWatch:
    """The end of one process, awaited through a pidfd: works for children and for strangers."""

    def __init__(self, handle: Handle, process: subprocess.Popen[bytes] | None) -> None:
        self.handle = handle
        self.process = process  # None: adopted; its exit code went to somebody else
        self.has_exited = False
        self.is_stopping = False  # its end was asked for
        self.is_awaited = False  # somebody waits for it right now and will conclude
        self.is_oom_killed = False  # killed for memory
        self.stop_failure: Failure | None = None
        self._gone = asyncio.Event()
        self._descriptor = -1

    def watch(self, then: Callable[[], None]) -> None:
        def noticed() -> None:
            self.unwatch()
            self.has_exited = True
            self._gone.set()
            then()

        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(self.handle.pid)
        except ProcessLookupError:
            loop.call_soon(noticed)
            return
        loop.add_reader(self._descriptor, noticed)
        if not self.process and not groups.is_alive(
            self.handle.pid, self.handle.start
        ):  # the pid changed hands while we opened it
            loop.call_soon(noticed)

    def unwatch(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)

    async def wait_on_clock(self, clock: Clock, seconds: float) -> None:
        """Until it is gone or the time has passed by the given clock."""
        gone, slept = asyncio.ensure_future(self._gone.wait()), asyncio.ensure_future(clock.sleep(seconds))
        waiting = {slept} if self.has_exited else {gone, slept}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in (gone, slept):
            each.cancel()

    def reap(self, record: InstanceRecord, tag: str, marker: Path) -> Instance:
        """End what it left behind, take its exit code, and say what happened."""
        handle = self.handle
        groups.kill(handle.pid, handle.start, handle.cgroups, tag)
        self.unwatch()
        code = self.process.poll() if self.process else _reaped(handle.pid)
        self.is_oom_killed = cgroups.was_oom_killed(handle.cgroups)
        if self.is_stopping:
            return _exited(record, code, self.stop_failure, asked=self.stop_failure is None)
        return _exited(record, code, _failure(record, code, self.is_oom_killed, marker))


def _reaped(pid: int) -> int | None:
    """The exit code, if the process happens to be our child after all."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def _exited(
    record: InstanceRecord, code: int | None, failure: Failure | None, asked: bool = False
) -> Instance:
    name = signal.Signals(-code).name if code is not None and code < 0 else ""
    exit_code = code if code is None or code >= 0 else 128 - code  # as shells report a signal
    return msgspec.structs.replace(
        record.instance, state="Exited", exit_code=exit_code, signal=name, failure=failure, asked=asked
    )


def _failure(record: InstanceRecord, code: int | None, exhausted: bool, marker: Path) -> Failure | None:
    with suppress(OSError):
        return Failure("DISCONNECTED", f"ended by this node: {marker.read_text()}")
    if exhausted and code != 0:
        return Failure(
            "INSUFFICIENT_RESOURCES", f"killed at its memory limit of {record.spec.limits.memory} bytes"
        )
    if code is None:
        return Failure(
            "RUNTIME_ERROR", "ended; its exit code is not known, for it was started by an earlier agent"
        )
    if code == 0:
        return None
    return Failure(
        "RUNTIME_ERROR",
        f"ended with code {code}" if code > 0 else f"ended by signal {signal.Signals(-code).name}",
    )


def exited_without_agent(record: InstanceRecord, marker: Path) -> Instance:
    """What became of a process that ended while no agent was there."""
    failure = _failure(record, None, False, marker)
    if failure is not None and failure.reason == "RUNTIME_ERROR":
        failure = Failure(
            "RUNTIME_ERROR", "ended while no agent ran on this node; its exit code is not known"
        )
    return _exited(record, None, failure)
