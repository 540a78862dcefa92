"""The podman client: run podman commands, decode JSON output, and classify error messages."""

import asyncio
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lattice.agent.host import cgroups
from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceRecord
from lattice.errors import Unavailable

PULL_TIMEOUT_S = 600.0
COMMAND_TIMEOUT_S = 60.0
MISSING_PROGRAM = "/lattice-probe"  # a path that no image contains
# Part of an error message of podman or docker -> failure reason; the first match applies.
ERROR_REASONS: tuple[tuple[str, str], ...] = (
    ("address already in use", "PORT_BIND_CONFLICT"),
    ("port is already allocated", "PORT_BIND_CONFLICT"),
    ("invalid reference format", "INVALID_IMAGE"),
    ("exec format error", "INVALID_IMAGE"),
    ("no image found in manifest list for architecture", "INVALID_IMAGE"),
    ("manifest unknown", "IMAGE_NOT_FOUND"),
    ("image not known", "IMAGE_NOT_FOUND"),
    ("no such image", "IMAGE_NOT_FOUND"),
    ("repository does not exist", "IMAGE_NOT_FOUND"),
    ("requested access to the resource is denied", "IMAGE_NOT_FOUND"),
    ("did not resolve to an alias", "IMAGE_NOT_FOUND"),
    ("initializing source", "IMAGE_PULL_FAILED"),
    ("pinging container registry", "IMAGE_PULL_FAILED"),
    ("invoke a command that was not found", "COMMAND_NOT_FOUND"),
    ("executable file not found", "COMMAND_NOT_FOUND"),
    ("no such file or directory: oci", "COMMAND_NOT_FOUND"),
    ("permission denied: oci", "INVALID_SPEC"),
    ("no command specified", "INVALID_SPEC"),
    ("minimum memory limit", "INVALID_SPEC"),
    ("no space left on device", "STORAGE_ERROR"),
    ("disk quota exceeded", "STORAGE_ERROR"),
    ("cannot allocate memory", "INSUFFICIENT_RESOURCES"),
    ("netavark", "NETWORK_ERROR"),
    ("cni", "NETWORK_ERROR"),
)


SIGNAL_EXIT_OFFSET = 128


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and output of a podman command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Podman:
    """A podman installation that passed the trial run; `command_prefix` selects the OCI runtime of the trial."""

    command_prefix: tuple[str, ...]
    version: str

    async def call(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = COMMAND_TIMEOUT_S
    ) -> CommandResult:
        """Run a podman command; raises Unavailable if podman cannot run or does not finish in time."""
        return await _call((*self.command_prefix, *words), env or {}, timeout)

    async def inspect(self, *names: str) -> list[dict[str, Any]]:
        """The inspect documents of containers; removed containers are omitted."""
        if not names:
            return []
        result = await self.call("inspect", "--type", "container", *names)
        documents: list[dict[str, Any]] = msgspec.json.decode(result.out.encode() or b"[]")
        return documents or []


async def _call(words: tuple[str, ...], env: Mapping[str, str], timeout: float) -> CommandResult:
    """Run a command; raises Unavailable if the command cannot run or does not finish in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **env},
            # Podman's monitor writes a file to its working folder when a container runs out of memory.
            cwd=tempfile.gettempdir(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(
            f"{words[0]} cannot be run: {error.strerror}", fix="install podman on this node"
        ) from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError as error:
        raise Unavailable(f"`{' '.join(words[:4])} …` did not respond within {timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return CommandResult(
        process.returncode or 0, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    )


def failure_from_stderr(text: str) -> Failure:
    """The failure for podman's error output."""
    lowered = text.lower()
    reason = next((reason for part, reason in ERROR_REASONS if part in lowered), "RUNTIME_ERROR")
    lines = [line for line in text.strip().splitlines() if line.strip()]
    message = lines[-1].removeprefix("Error: ") if lines else "podman failed without an error message"
    return msgspec.convert({"reason": reason, "message": message}, Failure)


def ulimits() -> tuple[str, ...]:
    """The ulimit flags for podman: its default limits, capped at the agent's own hard limits, which a
    container cannot exceed."""
    # Podman's default limits.
    defaults = (
        ("nofile", resource.RLIMIT_NOFILE, 1_048_576),
        ("nproc", resource.RLIMIT_NPROC, 32_768),
    )
    return tuple(
        f"--ulimit={name}={_capped_limit(kind, default)}:{_capped_limit(kind, default)}"
        for name, kind, default in defaults
    )


def _capped_limit(kind: int, default: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return default if hard == resource.RLIM_INFINITY else min(hard, default)


async def find_podman() -> Podman | str:
    """A podman installation that can run containers, with the first OCI runtime that passes the trial; else
    the reasons as text."""
    program = shutil.which("podman")
    if program is None:
        return "podman is not installed" + ("; docker is not supported" if shutil.which("docker") else "")
    reasons = []
    for oci in ("", "runc", "crun"):
        words = (program, "--runtime", oci) if oci else (program,)
        if oci and not shutil.which(oci):
            continue
        reason = await _trial(words)
        if reason is None:
            result = await _call((program, "--version"), {}, COMMAND_TIMEOUT_S)
            return Podman(words, result.out.strip())
        reasons.append(f"{oci or 'default'}: {reason}")
    return "podman cannot run containers here: " + "; ".join(reasons)


async def _trial(words: tuple[str, ...]) -> str | None:
    """Run a missing program in an empty root: if podman reports only that the program is missing, podman can
    run containers. Returns the error, or None on success."""
    with tempfile.TemporaryDirectory(prefix="lattice-trial-") as folder:
        flags = ("run", "--rm", "--network=none", *ulimits(), "--rootfs", str(Path(folder)), MISSING_PROGRAM)
        try:
            result = await _call((*words, *flags), {}, COMMAND_TIMEOUT_S)
        except Unavailable as error:
            return error.message
    # Podman exits with 127 if the program of the container is missing.
    if result.code == 127 and MISSING_PROGRAM in result.err:
        return None
    return (result.err.strip().splitlines() or [f"exit code {result.code}"])[-1].removeprefix("Error: ")


def exited_container(record: InstanceRecord, state: dict[str, Any], log_text: str, marker: Path) -> Instance:
    """Build the exited instance from the final state that podman reports (empty if the container was
    removed).

    `marker` is the file that the watchdog writes when the watchdog ends a container.
    """
    code = int(state["ExitCode"]) if "ExitCode" in state else None
    name = ""
    with suppress(ValueError):
        name = signal.Signals(code - SIGNAL_EXIT_OFFSET).name if code and code > SIGNAL_EXIT_OFFSET else ""
    failure = _failure(record, state, log_text, marker)
    return msgspec.structs.replace(
        record.instance, state="Exited", exit_code=code, signal=name, failure=failure
    )


def _failure(record: InstanceRecord, state: dict[str, Any], log_text: str, marker: Path) -> Failure | None:
    with suppress(OSError):
        return Failure("DISCONNECTED", f"stopped by the node: {marker.read_text()}")
    if "ExitCode" not in state:
        return Failure("RUNTIME_ERROR", "the container no longer exists; another program removed it")
    if state.get("OOMKilled"):
        return Failure(
            "INSUFFICIENT_RESOURCES", f"killed: memory limit of {record.spec.limits.memory} bytes exceeded"
        )
    if "exec format error" in log_text:
        return Failure(
            "INVALID_IMAGE",
            f'image "{record.spec.container.image}" was built for a different CPU architecture',
        )
    code = int(state["ExitCode"])
    # Podman does not always report that the kernel killed the process for memory.
    if code == SIGNAL_EXIT_OFFSET + signal.SIGKILL and record.spec.limits.memory:
        return Failure(
            "RUNTIME_ERROR",
            f"killed, possibly because the memory limit of {record.spec.limits.memory} bytes was exceeded",
        )
    return None if code == 0 else Failure("RUNTIME_ERROR", f"exited with code {code}")


def cgroups_of(pid: int) -> tuple[str, ...]:
    """The cgroups that contain only the container, never a cgroup of the agent, because the agent may kill all
    processes of these cgroups."""
    mounts = Path("/proc/self/mounts").read_text()
    try:
        container_cgroups = cgroups.process_cgroups(mounts, Path(f"/proc/{pid}/cgroup").read_text())
        own = cgroups.process_cgroups(mounts, Path("/proc/self/cgroup").read_text())
    except OSError:
        return ()
    agent_paths = [hierarchy.path for hierarchy in own]
    return tuple(
        str(cgroup.path)
        for cgroup in container_cgroups
        if not any(path.is_relative_to(cgroup.path) for path in agent_paths)
    )
