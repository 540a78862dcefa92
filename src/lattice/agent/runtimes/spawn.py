"""Starting one process so that it never runs unrecorded: the launcher waits for a word, and dies without it."""

import asyncio
import errno
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lattice.agent.runtimes import launcher as launch

LAUNCHER = str(Path(launch.__file__))
LAUNCHER_READY_TIMEOUT_S = 30.0  # a machine under heavy load starts Python slowly


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, and under which limits."""

    program: str
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    log_fd: int  # descriptor
    cgroups: tuple[str, ...] = ()
    data_limit: int = 0  # bytes; 0: none


@dataclass(slots=True)
class PendingProcess:
    """A launcher that has its limits and waits."""

    process: subprocess.Popen[bytes]
    status: int
    go: int
    _done: bool = field(default=False)

    async def release(self) -> int:
        """Let the command run: 0, or the error number for which the kernel refused it."""
        os.write(self.go, b"g")
        said = await _line(self.status)
        self.close()
        return int(said or 0)

    def close(self) -> None:
        """Without release, this ends the launcher before anything ran."""
        if not self._done:
            self._done = True
            os.close(self.go)
            os.close(self.status)


async def spawn(command: Command) -> PendingProcess:
    """Raises OSError when the process, its cgroups or its limits cannot be had."""
    status, its_status = os.pipe2(os.O_CLOEXEC)
    its_go, go = os.pipe2(os.O_CLOEXEC)
    try:
        process = _popen(command, its_status, its_go)
    except OSError:
        for descriptor in (status, go):
            os.close(descriptor)
        raise
    finally:
        for descriptor in (its_status, its_go):
            os.close(descriptor)
    pending = PendingProcess(process, status, go)
    try:
        said = await _line(status)
    except TimeoutError:
        said = str(errno.EAGAIN).encode()
        process.kill()
    except asyncio.CancelledError:
        process.kill()
        pending.close()
        process.wait()
        raise
    if said != b"ready":
        pending.close()
        await asyncio.to_thread(process.wait)
        number = int(said or errno.ECHILD)
        raise OSError(number, os.strerror(number), command.program)
    return pending


def _popen(command: Command, status: int, go: int) -> subprocess.Popen[bytes]:
    words = (
        str(status),
        str(go),
        str(command.data_limit),
        "\n".join(command.cgroups),
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
    """What is said next, up to the line's end or until nobody can say anything any more."""
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    said = b""
    try:
        async with asyncio.timeout(LAUNCHER_READY_TIMEOUT_S):
            while not said.endswith(b"\n"):
                await readable.wait()
                readable.clear()
                try:
                    block = os.read(descriptor, 64)
                except BlockingIOError:
                    continue
                if not block:
                    break
                said += block
    finally:
        loop.remove_reader(descriptor)
    return said.strip()
