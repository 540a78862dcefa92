"""Watch the exit of a process, whether child or adopted, and derive the failure from the exit."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from lattice.agent.host import cgroups, instance_processes
from lattice.agent.host.runtime_protocol import Failure, Handle, Instance, InstanceRecord
from lattice.clock import Clock


class ExitWatch:
    """The exit of one process, watched through a pidfd, for child processes and adopted processes."""

    def __init__(self, handle: Handle, process: subprocess.Popen[bytes] | None) -> None:
        self.handle = handle
        # None for an adopted process and for the process of a container. `_reaped` gets the exit code of an
        # adopted process only if that process is a child of this agent process.
        self.process = process
        self.has_exited = False
        self.is_stopping = False  # the exit was requested
        # True while a stop in the runtime waits for the exit: the stop then records the exit, and the
        # callback of `watch` does not.
        self.is_awaited = False
        self.is_oom_killed = False
        self.stop_failure: Failure | None = None
        self._gone = asyncio.Event()
        self._descriptor = -1

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Call `on_exit` once from the event loop after the process has exited."""

        def handle_exit() -> None:
            self.unwatch()
            self.has_exited = True
            self._gone.set()
            on_exit()

        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(self.handle.pid)
        except ProcessLookupError:
            loop.call_soon(handle_exit)
            return
        loop.add_reader(self._descriptor, handle_exit)
        # The pid may have been reused before the pidfd was opened.
        if not self.process and not instance_processes.is_alive(self.handle.pid, self.handle.start):
            loop.call_soon(handle_exit)

    def unwatch(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)

    async def wait_on_clock(self, clock: Clock, seconds: float) -> None:
        """Wait until the process has exited or the seconds have passed on the given clock."""
        gone, slept = asyncio.ensure_future(self._gone.wait()), asyncio.ensure_future(clock.sleep(seconds))
        waiting = {slept} if self.has_exited else {gone, slept}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in (gone, slept):
            future.cancel()

    def reap(self, record: InstanceRecord, tag: str, marker: Path) -> Instance:
        """Kill remaining processes of the instance, reap the exit code, and return the exited instance."""
        handle = self.handle
        instance_processes.kill(handle.pid, handle.start, handle.cgroups, tag)
        self.unwatch()
        code = self.process.poll() if self.process else _reaped(handle.pid)
        self.is_oom_killed = cgroups.was_oom_killed(handle.cgroups)
        # A requested exit is no failure, whatever the exit code, unless the stop states a failure.
        if self.is_stopping:
            return _exited(record, code, self.stop_failure, is_requested=self.stop_failure is None)
        return _exited(record, code, _failure(record, code, self.is_oom_killed, marker))


def _reaped(pid: int) -> int | None:
    """The exit code of an adopted process, or None if the process is not a child of this agent process.

    Usually an earlier agent process started the adopted process, and init reaps it. It is a child if this
    agent process started it, or is itself the init process to which the kernel gives orphans.
    """
    try:
        reaped_pid, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped_pid else None


def _exited(
    record: InstanceRecord, code: int | None, failure: Failure | None, is_requested: bool = False
) -> Instance:
    name = signal.Signals(-code).name if code is not None and code < 0 else ""
    # 128 plus the signal number, as shells report a signal.
    exit_code = code if code is None or code >= 0 else 128 - code
    return msgspec.structs.replace(
        record.instance,
        state="Exited",
        exit_code=exit_code,
        signal=name,
        failure=failure,
        was_stopped_on_request=is_requested,
    )


def _failure(record: InstanceRecord, code: int | None, is_oom_killed: bool, marker: Path) -> Failure | None:
    """The failure of an exit; the watchdog's marker file takes precedence over the exit code."""
    with suppress(OSError):
        return Failure("DISCONNECTED", f"stopped by the node: {marker.read_text()}")
    if is_oom_killed and code != 0:
        return Failure(
            "INSUFFICIENT_RESOURCES", f"killed: memory limit of {record.spec.limits.memory} bytes exceeded"
        )
    if code is None:
        return Failure(
            "RUNTIME_ERROR", "exited; the exit code is unknown, because an earlier agent started the process"
        )
    if code == 0:
        return None
    return Failure(
        "RUNTIME_ERROR",
        f"exited with code {code}" if code > 0 else f"killed by signal {signal.Signals(-code).name}",
    )


def exited_without_agent(record: InstanceRecord, marker: Path) -> Instance:
    """Build the exited instance of a process that ended while no agent ran."""
    failure = _failure(record, None, False, marker)
    if failure is not None and failure.reason == "RUNTIME_ERROR":
        failure = Failure("RUNTIME_ERROR", "exited while no agent ran on this node; the exit code is unknown")
    return _exited(record, None, failure)
