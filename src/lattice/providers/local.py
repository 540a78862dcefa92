"""Machines that are agents on this machine: a folder and a process each, so that services really run without anything being rented."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lattice.clock import Clock
from lattice.errors import Unavailable
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus, ProvisioningUnavailable

AGENT_STOP_TIMEOUT_S = 15.0  # seconds for an agent to stop what it runs, and itself
WORKLOAD_STOP_SHARE = 2 / 3  # of that time is what a workload may take; the rest is the agent's
POLL_INTERVAL_S = 0.05
MACHINE_FILE, PID_FILE, LOG_FILE, AGENT_DIR = "machine.json", "agent.pid", "agent.log", "agent"
SERVER_FILE = ".server"  # beside the machines, and never the name of one


@dataclass
class LocalProvider:
    """`server` is where agents join, asked anew each time: one that comes back may have another port, and agents run on."""

    folder: Path
    server_address: Callable[[], str]
    clock: Clock
    name: str = "local"
    command: Sequence[str] = (sys.executable, "-m", "lattice", "agent")
    flags: Sequence[str] = ()
    stop_timeout_s: float = AGENT_STOP_TIMEOUT_S
    _processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def available_capacity(self) -> AvailableCapacity:
        return AvailableCapacity()

    async def create(self, machine: MachineSpec) -> str:
        async with self._locks.setdefault(machine.node, asyncio.Lock()):
            home = self._machine_dir(machine.node)
            if not self._is_running(machine.node):
                try:
                    home.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._write_server_file()
                    (home / MACHINE_FILE).write_bytes(
                        msgspec.json.encode({"node": machine.node, "cluster": machine.cluster})
                    )
                    await self._start(machine, home)
                except OSError as error:
                    raise ProvisioningUnavailable(
                        f"an agent cannot be started: {error.strerror}",
                        where=str(home),
                        fix="see whether the disk is full",
                    ) from error
            return f"local://{machine.node}"

    async def delete(self, node: str) -> None:
        async with self._locks.setdefault(node, asyncio.Lock()):
            home = self._machine_dir(node)
            if not home.exists():
                return
            await self._stop(node)
            await self._stop_leftovers(node, home)
            shutil.rmtree(home)

    async def _stop_and_clean(self, node: str) -> None:
        async with self._locks.setdefault(node, asyncio.Lock()):
            if not await self._stop(node):
                await self._stop_leftovers(node, self._machine_dir(node))

    async def list(self) -> Sequence[MachineStatus]:
        self._write_server_file()
        found = []
        for path in sorted(self.folder.glob(f"*/{MACHINE_FILE}")):
            known = msgspec.json.decode(path.read_bytes())
            running = self._is_running(known["node"])
            found.append(
                MachineStatus(
                    known["node"],
                    known["cluster"],
                    f"local://{known['node']}",
                    "Running" if running else "Ended",
                    "" if running else f"its agent has ended; see {path.parent / LOG_FILE}",
                )
            )
        return found

    async def close(self) -> None:
        """Nothing stays behind: what agents run ends with them. Their folders stay, and a later start goes on with them."""
        ended = await asyncio.gather(
            *(self._stop_and_clean(each.node) for each in await self.list()), return_exceptions=True
        )
        for each in ended:  # once all have been tried
            if isinstance(each, BaseException):
                raise each

    def _machine_dir(self, node: str) -> Path:
        return self.folder / node

    def _write_server_file(self) -> None:
        """Agents whose server does not answer read it there."""
        path, server = self.folder / SERVER_FILE, self.server_address()
        with contextlib.suppress(OSError):  # a full disk is no reason not to know what runs
            if self.folder.exists() and (not path.exists() or path.read_text() != server):
                draft = path.with_suffix(".new")
                draft.write_text(server)
                draft.rename(path)

    async def _start(self, machine: MachineSpec, home: Path) -> None:
        size = machine.size
        flags = [
            *("--server", self.server_address(), "--server-file", str(self.folder / SERVER_FILE)),
            *("--data-dir", str(home / AGENT_DIR), "--stop-workloads-on-exit"),
            *("--grace", f"{int(self.stop_timeout_s * WORKLOAD_STOP_SHARE * 1000)}ms"),
            *("--cpu", f"{size.millicores}m", "--memory", str(size.memory)),
            *(("--disk", str(size.storage)) if size.storage else ()),
            *self.flags,
        ]
        environment = {
            **os.environ,
            "LATTICE_JOIN_TOKEN": machine.token,
        }  # not among the arguments, which everybody can read
        with (home / LOG_FILE).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        (home / PID_FILE).write_text(str(process.pid))
        self._processes[machine.node] = process

    def _is_running(self, node: str) -> bool:
        process = self._processes.get(node)
        return process.returncode is None if process is not None else self._holds_folder_lock(node)

    def _holds_folder_lock(self, node: str) -> bool:
        """An agent that an earlier server started: alive as long as it holds the lock of its folder."""
        try:
            lock = os.open(self._machine_dir(node) / AGENT_DIR / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    async def _stop(self, node: str) -> bool:
        """It is gone. Whether it went in good order, after all that it ran; of one that an earlier server started nobody can say."""
        if not self._is_running(node):
            return False
        self._signal(node, signal.SIGTERM)
        if not await self._wait_for_exit(node, self.stop_timeout_s):
            self._signal(node, signal.SIGKILL)
            if not await self._wait_for_exit(node, self.stop_timeout_s):
                raise Unavailable(
                    f"the agent of {node} does not end",
                    where=str(self._machine_dir(node)),
                    fix="see who holds the lock of its folder",
                )
        process = self._processes.pop(node, None)
        return process is not None and process.returncode == 0

    def _signal(self, node: str, number: int) -> None:
        process = self._processes.get(node)
        with contextlib.suppress(ProcessLookupError):
            for pid in (process.pid,) if process is not None else self._agent_pids(node):
                os.kill(pid, number)

    def _agent_pids(self, node: str) -> Iterator[int]:
        """Whoever was started with its folder. What is written down is looked at first; it may be somebody else's number by now."""
        home = self._machine_dir(node)
        with contextlib.suppress(OSError, ValueError):
            written = int((home / PID_FILE).read_text())
            if _is_agent_of(written, str(home / AGENT_DIR)):
                yield written
                return
        yield from (
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _is_agent_of(pid, str(home / AGENT_DIR))
        )

    async def _wait_for_exit(self, node: str, seconds: float) -> bool:
        ends = self.clock.monotonic() + seconds
        while self._is_running(node):
            if self.clock.monotonic() >= ends:
                return False
            await self.clock.sleep(POLL_INTERVAL_S)
        return True

    async def _stop_leftovers(self, node: str, home: Path) -> None:
        """An agent that was killed may have left something running: another one, without a server, stops it."""
        if not (home / AGENT_DIR / "state.json").exists():
            return
        flags = ("--data-dir", str(home / AGENT_DIR), "--clear", "--grace", "1s")
        quiet, piped = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self.command, *flags, stdin=quiet, stdout=piped, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        if process.returncode:
            words = said.decode(errors="replace").strip().splitlines()
            raise Unavailable(
                f"what ran on {node} cannot be stopped: {words[-1] if words else ''}",
                where=str(home),
                fix="see its log",
            )


def _is_agent_of(pid: int, folder: str) -> bool:
    """Is it an agent with that folder?"""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return ("--data-dir", folder) in itertools.pairwise(words) and "--clear" not in words
