"""Start a command that never runs unrecorded: a launcher process waits until the agent has recorded the
process and releases the launcher. Without the release, the launcher exits before the command runs."""

import asyncio
import errno
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lattice.agent.runtimes import launcher

LAUNCHER = str(Path(launcher.__file__))
LAUNCHER_READY_TIMEOUT_S = 30.0  # a machine under heavy load starts Python slowly


@dataclass(frozen=True, slots=True)
class Command:
    """A program with arguments, working folder, log and limits."""

    program: str
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    log_fd: int
    cgroups: tuple[str, ...] = ()
    data_limit: int = 0  # bytes; 0: none
    oom_score: int | None = None  # None: as inherited


@dataclass(slots=True)
class PendingProcess:
    """A launcher process that has applied its limits and waits for the release."""

    process: subprocess.Popen[bytes]
    status: int
    go: int
    _done: bool = field(default=False)

    async def release(self) -> int:
        """Let the command run; returns 0, or the error number of the failed exec."""
        os.write(self.go, b"g")
        reply = await _line(self.status)
        self.close()
        return int(reply or 0)

    def close(self) -> None:
        """Close the pipes; without a release, the launcher exits before the command runs."""
        if not self._done:
            self._done = True
            os.close(self.go)
            os.close(self.status)


async def spawn(command: Command) -> PendingProcess:
    """Start the launcher and wait until its limits are applied; raises OSError if the process, its cgroups or
    its limits are unavailable."""
    status, child_status = os.pipe2(os.O_CLOEXEC)
    child_go, go = os.pipe2(os.O_CLOEXEC)
    try:
        process = _popen(command, child_status, child_go)
    except OSError:
        for descriptor in (status, go):
            os.close(descriptor)
        raise
    finally:
        # The agent must close its copies of the child's ends: otherwise a pipe never reaches its end.
        for descriptor in (child_status, child_go):
            os.close(descriptor)
    pending = PendingProcess(process, status, go)
    try:
        reply = await _line(status)
    except TimeoutError:
        reply = str(errno.EAGAIN).encode()
        process.kill()
    except asyncio.CancelledError:
        process.kill()
        pending.close()
        process.wait()
        raise
    if reply != b"ready":
        pending.close()
        await asyncio.to_thread(process.wait)
        number = int(reply or errno.ECHILD)
        raise OSError(number, os.strerror(number), command.program)
    return pending


def _popen(command: Command, status: int, go: int) -> subprocess.Popen[bytes]:
    words = (
        str(status),
        str(go),
        str(command.data_limit),
        "\n".join(command.cgroups),
        "" if command.oom_score is None else str(command.oom_score),
        "--",
        command.program,
        *command.argv[1:],
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", LAUNCHER, *words],
        cwd=command.folder,
        env=command.env,
        stdin=subprocess.DEVNULL,
        stdout=command.log_fd,
        stderr=command.log_fd,
        pass_fds=(status, go),
        start_new_session=True,
    )


async def _line(descriptor: int) -> bytes:
    """Read one line from the pipe, or all data until the writer closes the pipe."""
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    line = b""
    try:
        async with asyncio.timeout(LAUNCHER_READY_TIMEOUT_S):
            while not line.endswith(b"\n"):
                await readable.wait()
                readable.clear()
                try:
                    block = os.read(descriptor, 64)
                except BlockingIOError:
                    continue
                if not block:
                    break
                line += block
    finally:
        loop.remove_reader(descriptor)
    return line.strip()
