"""The agent's client of the watchdog, the process that kills instances which must not run without contact
with the control plane.

The client starts the watchdog for the first such instance, registers the instances, and records when the
agent last had contact with the control plane.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import lattice
from lattice.agent.host.instance_processes import boot_id
from lattice.agent.host.runtime_protocol import Failure
from lattice.agent.host.watchdog import read_last_contact, seconds_since_boot
from lattice.clock import Clock
from lattice.errors import Unavailable

WATCHDOG_TIMEOUT_S = 5.0
# Time from SIGTERM to SIGKILL, as a fraction of `stop_after`; at most MAX_NOTICE_S.
NOTICE_FRACTION, MAX_NOTICE_S = 0.1, 5.0


def termination_notice_s(stop_after: float) -> float:
    """The seconds between SIGTERM and SIGKILL: the watchdog sends SIGKILL to an instance after `stop_after`
    seconds without contact."""
    return min(MAX_NOTICE_S, stop_after * NOTICE_FRACTION)


@dataclass(frozen=True, slots=True)
class GuardRequest:
    """A request to guard an instance. The watchdog ends the instance by killing its processes (`pid` and
    `start` name the first process) or by running `command`."""

    id: str
    stop_after: float
    marker: str  # path of the file that the watchdog writes when it ends the instance
    pid: int = 0
    start: int = 0
    cgroups: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def line(self) -> str:
        """The request as one line of the watchdog's protocol."""
        fields = (
            self.id,
            self.pid,
            self.start,
            self.stop_after,
            termination_notice_s(self.stop_after),
            self.marker,
            "|".join(self.cgroups),
            "\x1f".join(self.command),
        )
        return "\t".join(("guard", *map(str, fields)))


class WatchdogClient:
    """The connection of one agent to its watchdog; a watchdog of an earlier agent is reused, a dead watchdog
    is replaced."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.contact_file = folder / "contact"
        self.boot = boot_id()
        self.clock = clock
        self.process: subprocess.Popen[bytes] | None = None
        self._guarded: dict[str, GuardRequest] = {}
        self._lock = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._reader_task: asyncio.Task[None] | None = None

    def disconnected_failure(self, stop_after: float | None) -> Failure | None:
        """The reason not to start an instance now, or None.

        After `stop_after` seconds without contact, a replacement may already run elsewhere (I-13). The agent
        rejects a start from the moment at which the watchdog would send SIGTERM to a running instance. None
        for `stop_after`: the instance may run without contact for any time.
        """
        if stop_after is None:
            return None
        last = read_last_contact(str(self.contact_file), self.boot)
        if last is None:
            return Failure("DISCONNECTED", "no contact with the control plane since this node started")
        silence, limit = seconds_since_boot() - last, stop_after - termination_notice_s(stop_after)
        if silence < limit:
            return None
        return Failure(
            "DISCONNECTED",
            f"no contact with the control plane for {silence:.0f} s; the limit for a start is {limit:g} s",
        )

    async def record_contact(self, since: float) -> None:
        """Write the time of the last contact, given in monotonic seconds of the clock, for the watchdog."""
        age = max(0.0, self.clock.monotonic() - since)
        # The time must not go back: `since` may be older than the recorded contact.
        latest = max(seconds_since_boot() - age, read_last_contact(str(self.contact_file), self.boot) or 0.0)
        # The rename is atomic: the watchdog never reads a partial file.
        draft = self.folder / ".contact.new"
        draft.write_text(f"{latest:.3f} {self.boot}")
        draft.rename(self.contact_file)

    async def guard(self, request: GuardRequest) -> None:
        """Register an instance with the watchdog, and return once the watchdog guards the instance. Raises
        Unavailable if no watchdog can be reached or started."""
        self._guarded[request.id] = request
        try:
            await self._request(request.line())
        except Unavailable:
            del self._guarded[request.id]
            raise

    async def release(self, instance_id: str) -> None:
        """Release an instance. After the last release the client disconnects, and the watchdog exits."""
        if self._guarded.pop(instance_id, None) is None:
            return
        with suppress(Unavailable):
            await self._request(f"release\t{instance_id}")
        if not self._guarded:
            await self.close()

    async def close(self) -> None:
        """Close the connection; the watchdog keeps running while an instance is guarded."""
        if self._reader_task:
            self._reader_task.cancel()
        if self._writer:
            self._writer.close()
        self._writer = self._reader_task = None
        if self.process and not self._guarded:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, WATCHDOG_TIMEOUT_S)

    async def _request(self, line: str) -> None:
        async with self._lock:
            # A watchdog that has just exited is replaced once.
            for is_last_attempt in (False, True):
                try:
                    await self._exchange(line, await self._connect())
                    return
                except (OSError, TimeoutError) as error:
                    self._hang_up()
                    if is_last_attempt:
                        raise Unavailable(
                            "the watchdog does not respond", fix="check that this node can start processes"
                        ) from error

    async def _exchange(self, line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(line.encode() + b"\n")
        await writer.drain()
        if not await asyncio.wait_for(self._answers.get(), WATCHDOG_TIMEOUT_S):
            raise ConnectionResetError("the watchdog closed the connection")

    async def _connect(self) -> asyncio.StreamWriter:
        if self._writer is not None:
            return self._writer
        connected_socket = await self._dial() or await self._spawn()
        reader, writer = await asyncio.open_unix_connection(sock=connected_socket)
        self._writer = writer
        self._answers = asyncio.Queue()
        self._reader_task = asyncio.create_task(self._read(reader, self._answers))
        # A new watchdog knows no instance yet.
        for request in self._guarded.values():
            await self._exchange(request.line(), writer)
        return writer

    async def _dial(self) -> socket.socket | None:
        client_socket = socket.socket(socket.AF_UNIX)
        try:
            with _short_path(self.folder) as folder:
                client_socket.connect(f"{folder}/watchdog")
        except OSError:
            client_socket.close()
            return None
        client_socket.setblocking(False)
        return client_socket

    async def _spawn(self) -> socket.socket:
        """Start a watchdog; the socket listens before the process starts, so that the agent can always
        connect."""
        if self.process:
            self.process.poll()
        with socket.socket(socket.AF_UNIX) as listener, _short_path(self.folder) as folder:
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/watchdog")
            listener.bind(f"{folder}/watchdog")
            listener.listen()
            self.process = _start(listener.fileno(), self.folder)
        client_socket = await self._dial()
        if client_socket is None:
            raise ConnectionRefusedError("the watchdog exited immediately")
        return client_socket

    async def _read(self, reader: asyncio.StreamReader, answers: asyncio.Queue[bytes]) -> None:
        """Forward answers to the queue; when the watchdog closes the connection, reconnect."""
        with suppress(OSError):
            while line := await reader.readline():
                answers.put_nowait(line)
        answers.put_nowait(b"")
        if self._answers is answers:
            self._hang_up()
            # The watchdog died: start another, since guarded instances must not run without a watchdog.
            while self._guarded and self._writer is None:
                try:
                    await self._request("list")
                except Unavailable:
                    await self.clock.sleep(1.0)

    def _hang_up(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer = None


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A short alias of the folder: the address of a Unix socket is limited to 108 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _start(listener: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog process in its own session, so that the process survives the agent."""
    root = str(Path(lattice.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-S", "-P", "-m", "lattice.agent.host.watchdog", str(listener), str(folder)],
        cwd="/",
        env={"PYTHONPATH": root, "PATH": os.environ.get("PATH", os.defpath)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(listener,),
        start_new_session=True,
    )
