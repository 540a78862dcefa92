"""The local provider: a machine is an agent process with a folder on this host, so that services run without
a cloud."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from lattice.clock import Clock, with_timeout
from lattice.errors import LatticeError, Unavailable
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus, ProvisioningUnavailable

# Time for an agent to stop its workloads and itself.
AGENT_STOP_TIMEOUT_S = 15.0
# Time that placement waits for the detection of runtimes: a container runtime that hangs must not hold up services
# without images.
RUNTIME_WAIT_S = 5.0
# Without a container runtime the detection is repeated after this time: a runtime may be installed or repaired.
RUNTIME_RECHECK_S = 300.0
WITHOUT_CONTAINERS = frozenset({"process"})
# The part of an agent's stop timeout in which the workloads must stop; the agent itself needs the remainder.
WORKLOAD_STOP_SHARE = 2 / 3
POLL_INTERVAL_S = 0.05
MACHINE_FILE, PID_FILE, LOG_FILE, AGENT_DIR = "machine.json", "agent.pid", "agent.log", "agent"
# The file with the server's address, beside the folders of the machines. Its name differs from every folder,
# because a leading dot is not valid in a node name.
SERVER_FILE = ".server"
log = structlog.get_logger()


@dataclass
class LocalProvider:
    """Machines as agent processes. `server_address` is called for every start: a restarted server may have a
    different port, while agents run on."""

    folder: Path
    server_address: Callable[[], str]
    clock: Clock
    name: str = "local"
    creates_machines: bool = True
    command: Sequence[str] = (sys.executable, "-m", "lattice", "agent")
    flags: Sequence[str] = ()
    stop_timeout_s: float = AGENT_STOP_TIMEOUT_S
    # Detects the runtimes of this host as the agents do; None: the runtimes count as unknown.
    detect_runtimes: Callable[[], Awaitable[frozenset[str]]] | None = None
    _processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    # The runtimes of the last detection that ended.
    _runtimes: frozenset[str] = WITHOUT_CONTAINERS
    _detection: asyncio.Task[None] | None = None
    _detection_began: float = 0.0
    # Done when the first detection has ended, or has taken too long to wait for.
    _first_answer: asyncio.Task[None] | None = None

    async def runtimes(self) -> frozenset[str] | None:
        """The runtimes of this host, without containers until a trial run of a container has succeeded."""
        if self.detect_runtimes is None:
            return None
        now, is_first = self.clock.monotonic(), self._detection is None
        is_over = self._detection is not None and self._detection.done()
        may_change = is_over and self._runtimes == WITHOUT_CONTAINERS
        if is_first or (may_change and now >= self._detection_began + RUNTIME_RECHECK_S):
            self._detection = asyncio.ensure_future(self._detect_runtimes(self.detect_runtimes))
            self._detection_began = now
        if is_first:
            self._first_answer = asyncio.ensure_future(self._wait_for_detection())
        # A cancelled caller must not cancel what other callers wait for.
        if self._first_answer is not None:
            await asyncio.shield(self._first_answer)
        return self._runtimes

    async def _detect_runtimes(self, detect: Callable[[], Awaitable[frozenset[str]]]) -> None:
        try:
            self._runtimes = await detect()
        except (LatticeError, OSError) as error:
            self._runtimes = WITHOUT_CONTAINERS
            log.warning("cannot detect the runtimes of this host", provider=self.name, reason=str(error))

    async def _wait_for_detection(self) -> None:
        assert self._detection is not None  # noqa: S101 - `runtimes` has started it
        with contextlib.suppress(TimeoutError):
            await with_timeout(self.clock, RUNTIME_WAIT_S, _finished(self._detection))

    async def available_capacity(self) -> AvailableCapacity:
        return AvailableCapacity()

    async def create(self, machine: MachineSpec) -> str:
        # One lock per node: a concurrent delete would remove the folder of a starting agent.
        async with self._locks.setdefault(machine.node, asyncio.Lock()):
            machine_dir = self._machine_dir(machine.node)
            if not self._is_running(machine.node):
                try:
                    machine_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._write_server_file()
                    (machine_dir / MACHINE_FILE).write_bytes(
                        msgspec.json.encode({"node": machine.node, "cluster": machine.cluster})
                    )
                    await self._start(machine, machine_dir)
                except OSError as error:
                    raise ProvisioningUnavailable(
                        f"an agent cannot be started: {error.strerror}",
                        where=str(machine_dir),
                        fix="check the free disk space",
                    ) from error
            return f"local://{machine.node}"

    async def delete(self, node: str) -> None:
        async with self._locks.setdefault(node, asyncio.Lock()):
            machine_dir = self._machine_dir(node)
            if not machine_dir.exists():
                return
            # The agent first, because a running agent would start the workloads again. The folder last,
            # because the agent's state file in it names the workloads to stop.
            await self._stop(node)
            await self._stop_leftovers(node, machine_dir)
            shutil.rmtree(machine_dir)

    async def _stop_and_clean(self, node: str) -> None:
        async with self._locks.setdefault(node, asyncio.Lock()):
            # An agent that exited with 0 stopped its workloads itself.
            if not await self._stop(node):
                await self._stop_leftovers(node, self._machine_dir(node))

    async def list(self) -> Sequence[MachineStatus]:
        self._write_server_file()
        statuses = []
        for path in sorted(self.folder.glob(f"*/{MACHINE_FILE}")):
            record = msgspec.json.decode(path.read_bytes())
            running = self._is_running(record["node"])
            statuses.append(
                MachineStatus(
                    record["node"],
                    record["cluster"],
                    f"local://{record['node']}",
                    "Running" if running else "Ended",
                    "" if running else f"the agent has exited; see {path.parent / LOG_FILE}",
                )
            )
        return statuses

    async def close(self) -> None:
        """Stop every agent with its workloads. The machines' folders stay, and a later start continues with
        them."""
        for task in (self._detection, self._first_answer):
            if task is not None:
                task.cancel()
        results = await asyncio.gather(
            *(self._stop_and_clean(machine.node) for machine in await self.list()), return_exceptions=True
        )
        # Raised only after every agent was asked to stop.
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _machine_dir(self, node: str) -> Path:
        return self.folder / node

    def _write_server_file(self) -> None:
        """Write the server's address to the file that agents read after they lost the server."""
        path, server = self.folder / SERVER_FILE, self.server_address()
        # A full disk must not keep `list` from reporting machines.
        with contextlib.suppress(OSError):
            if self.folder.exists() and (not path.exists() or path.read_text() != server):
                # A rename replaces the file at once: an agent never reads half an address.
                draft = path.with_suffix(".new")
                draft.write_text(server)
                draft.rename(path)

    async def _start(self, machine: MachineSpec, machine_dir: Path) -> None:
        size = machine.size
        flags = [
            *("--server", self.server_address(), "--server-file", str(self.folder / SERVER_FILE)),
            *("--data-dir", str(machine_dir / AGENT_DIR), "--stop-workloads-on-exit"),
            *("--grace", f"{int(self.stop_timeout_s * WORKLOAD_STOP_SHARE * 1000)}ms"),
            *("--cpu", f"{size.millicores}m", "--memory", str(size.memory)),
            *(("--disk", str(size.storage)) if size.storage else ()),
            # The machines share this host: none of them has its GPUs and huge pages for itself.
            "--no-detect",
            *self.flags,
        ]
        # The token is passed by environment: arguments are readable by every user of the host.
        environment = {**os.environ, "LATTICE_JOIN_TOKEN": machine.token}
        with (machine_dir / LOG_FILE).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                # A session of its own: an interrupt of the server's terminal does not reach the agent.
                start_new_session=True,
            )
        (machine_dir / PID_FILE).write_text(str(process.pid))
        self._processes[machine.node] = process

    def _is_running(self, node: str) -> bool:
        process = self._processes.get(node)
        return process.returncode is None if process is not None else self._holds_folder_lock(node)

    def _holds_folder_lock(self, node: str) -> bool:
        """Whether an agent of an earlier server still runs: a running agent holds the lock of its folder."""
        try:
            lock = os.open(self._machine_dir(node) / AGENT_DIR / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            # The lock is free after the agent's end, also after a crash; a PID could belong to a different
            # process.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    async def _stop(self, node: str) -> bool:
        """Stop the agent: SIGTERM, then SIGKILL after the timeout. Return True if the agent stopped its
        workloads and exited with 0.

        For an agent started by an earlier server the exit code is unknown: the result is False.
        """
        if not self._is_running(node):
            return False
        self._signal(node, signal.SIGTERM)
        if not await self._wait_for_exit(node, self.stop_timeout_s):
            self._signal(node, signal.SIGKILL)
            if not await self._wait_for_exit(node, self.stop_timeout_s):
                raise Unavailable(
                    f"the agent of {node} does not exit",
                    where=str(self._machine_dir(node)),
                    fix="find the process that holds the lock of the agent's data folder",
                )
        process = self._processes.pop(node, None)
        return process is not None and process.returncode == 0

    def _signal(self, node: str, number: int) -> None:
        process = self._processes.get(node)
        with contextlib.suppress(ProcessLookupError):
            for pid in (process.pid,) if process is not None else self._agent_pids(node):
                os.kill(pid, number)

    def _agent_pids(self, node: str) -> Iterator[int]:
        """Process ids of agents with the machine's folder. The PID file comes first, but the operating system
        may have reused the id."""
        machine_dir = self._machine_dir(node)
        # The file is written after the start: a server that ended in between left no process id.
        with contextlib.suppress(OSError, ValueError):
            recorded_pid = int((machine_dir / PID_FILE).read_text())
            if _is_agent_of(recorded_pid, str(machine_dir / AGENT_DIR)):
                yield recorded_pid
                return
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if _is_agent_of(pid, str(machine_dir / AGENT_DIR)):
                yield pid

    async def _wait_for_exit(self, node: str, timeout_s: float) -> bool:
        deadline = self.clock.monotonic() + timeout_s
        while self._is_running(node):
            if self.clock.monotonic() >= deadline:
                return False
            await self.clock.sleep(POLL_INTERVAL_S)
        return True

    async def _stop_leftovers(self, node: str, machine_dir: Path) -> None:
        """Stop workloads that a killed agent left behind, with an agent process that needs no server
        (`--clear`)."""
        # Without a state file the agent has recorded no workload.
        if not (machine_dir / AGENT_DIR / "state.json").exists():
            return
        process = await asyncio.create_subprocess_exec(
            *self.command,
            *("--data-dir", str(machine_dir / AGENT_DIR), "--clear", "--grace", "1s"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # As for the agent: a second interrupt must not leave the workloads running.
            start_new_session=True,
        )
        output, _ = await process.communicate()
        if process.returncode:
            lines = output.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"`lattice agent --clear` ended with code {process.returncode}"
            raise Unavailable(
                f"the workloads of {node} cannot be stopped: {reason}",
                where=str(machine_dir),
                fix=f"see {machine_dir / LOG_FILE}, and end the remaining processes",
            )


def _is_agent_of(pid: int, folder: str) -> bool:
    """Whether the process is an agent with the folder as its data directory."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    # An agent with --clear only stops leftovers and is no machine.
    return ("--data-dir", folder) in itertools.pairwise(arguments) and "--clear" not in arguments


async def _finished(task: asyncio.Task[None]) -> None:
    """Wait for the end of the task, which a cancelled wait does not cancel."""
    await asyncio.shield(task)
