"""How podman is called: one command at a time, JSON back, and what its complaints mean."""

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
from lattice.agent.host.instance_processes import members
from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceRecord, Usage
from lattice.agent.host.usage import CpuMeter, process_cpu_ns, process_memory
from lattice.errors import Unavailable

PULL_TIMEOUT_S = 600.0  # pulling an image may take minutes
COMMAND_TIMEOUT_S = 60.0
MISSING_PROGRAM = "/lattice-probe"  # a program that is in no image
ERROR_REASONS: tuple[
    tuple[str, str], ...
] = (  # part of what podman or docker says -> reason; the first that occurs
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
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Podman:
    """A podman that was seen to run containers here, with the flags it needs for that."""

    command_prefix: tuple[str, ...]
    version: str

    async def call(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = COMMAND_TIMEOUT_S
    ) -> CommandResult:
        return await _call((*self.command_prefix, *words), env or {}, timeout)

    async def inspect(self, *names: str) -> list[dict[str, Any]]:
        """What is known of containers; those that are gone meanwhile are left out."""
        if not names:
            return []
        done = await self.call("inspect", "--type", "container", *names)
        found: list[dict[str, Any]] = msgspec.json.decode(done.out.encode() or b"[]")
        return found or []


async def _call(words: tuple[str, ...], env: Mapping[str, str], timeout: float) -> CommandResult:
    """Raises Unavailable when it cannot be called or does not come back."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **env},
            cwd=tempfile.gettempdir(),  # its monitor leaves a file where it was started when a container runs out of memory
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
        raise Unavailable(f"`{' '.join(words[:4])} …` did not answer within {timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return CommandResult(
        process.returncode or 0, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    )


def failure_from_stderr(text: str) -> Failure:
    """What went wrong, from what podman said last."""
    low = text.lower()
    reason = next((reason for part, reason in ERROR_REASONS if part in low), "RUNTIME_ERROR")
    lines = [line for line in text.strip().splitlines() if line.strip()]
    message = lines[-1].removeprefix("Error: ") if lines else "podman failed without a word"
    return msgspec.convert({"reason": reason, "message": message}, Failure)


def ulimits() -> tuple[str, ...]:
    """Our own hard limits: podman's defaults are above them where the machine does not let us raise any."""
    wanted = (
        ("nofile", resource.RLIMIT_NOFILE, 1_048_576),
        ("nproc", resource.RLIMIT_NPROC, 32_768),
    )  # podman lowers its own to that
    return tuple(
        f"--ulimit={name}={_capped_limit(kind, most)}:{_capped_limit(kind, most)}"
        for name, kind, most in wanted
    )


def _capped_limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


async def find() -> Podman | str:
    """A podman that can run containers here, with the first OCI runtime that works; else why not, in its own words."""
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
            done = await _call((program, "--version"), {}, COMMAND_TIMEOUT_S)
            return Podman(words, done.out.strip())
        reasons.append(f"{oci or 'default'}: {reason}")
    return "podman cannot run containers here: " + "; ".join(reasons)


async def _trial(words: tuple[str, ...]) -> str | None:
    """Run nothing in an empty root: when all that is missing is the program, everything else works."""
    with tempfile.TemporaryDirectory(prefix="lattice-trial-") as folder:
        flags = ("run", "--rm", "--network=none", *ulimits(), "--rootfs", str(Path(folder)), MISSING_PROGRAM)
        try:
            done = await _call((*words, *flags), {}, COMMAND_TIMEOUT_S)
        except Unavailable as error:
            return error.message
    if done.code == 127 and MISSING_PROGRAM in done.err:
        return None
    return (done.err.strip().splitlines() or [f"exit code {done.code}"])[-1].removeprefix("Error: ")


def exited_container(record: InstanceRecord, state: dict[str, Any], said: str, marker: Path) -> Instance:
    """How it ended; `state` is podman's, empty when the container is gone altogether."""
    code = int(state["ExitCode"]) if "ExitCode" in state else None
    name = ""
    with suppress(ValueError):
        name = signal.Signals(code - SIGNAL_EXIT_OFFSET).name if code and code > SIGNAL_EXIT_OFFSET else ""
    failure = _failure(record, state, said, marker)
    return msgspec.structs.replace(
        record.instance, state="Exited", exit_code=code, signal=name, failure=failure
    )


def _failure(record: InstanceRecord, state: dict[str, Any], said: str, marker: Path) -> Failure | None:
    with suppress(OSError):
        return Failure("DISCONNECTED", f"ended by this node: {marker.read_text()}")
    if "ExitCode" not in state:
        return Failure("RUNTIME_ERROR", "the container is gone; somebody else removed it")
    if state.get("OOMKilled"):
        return Failure(
            "INSUFFICIENT_RESOURCES", f"killed at its memory limit of {record.spec.limits.memory} bytes"
        )
    if "exec format error" in said:
        return Failure(
            "INVALID_IMAGE", f'image "{record.spec.container.image}" is made for another kind of machine'
        )
    code = int(state["ExitCode"])
    if (
        code == SIGNAL_EXIT_OFFSET + signal.SIGKILL and record.spec.limits.memory
    ):  # podman does not always see why the kernel killed it
        return Failure(
            "RUNTIME_ERROR", f"killed; perhaps at its memory limit of {record.spec.limits.memory} bytes"
        )
    return None if code == 0 else Failure("RUNTIME_ERROR", f"ended with code {code}")


def cpu_and_memory_usage(record: InstanceRecord, meter: CpuMeter) -> Usage:
    """CPU and memory, from the cgroups that the container is in."""
    paths = record.handle.cgroups
    held = members(record.handle.pid, record.handle.start, paths)
    used, memory = cgroups.cpu_ns(paths), cgroups.memory_bytes(paths)
    return Usage(
        cpu=meter.milli_cores(str(record.spec.id), process_cpu_ns(held) if used is None else used),
        memory=process_memory(held) if memory is None else memory,
        disk=0,
    )


def cgroups_of(pid: int) -> tuple[str, ...]:
    """The folders of the cgroups that are this container's alone: never one in which we are ourselves, for all in it may be ended."""
    mounts = Path("/proc/self/mounts").read_text()
    try:
        theirs = cgroups.process_cgroups(mounts, Path(f"/proc/{pid}/cgroup").read_text())
        ours = [each.path for each in cgroups.process_cgroups(mounts, Path("/proc/self/cgroup").read_text())]
    except OSError:
        return ()
    return tuple(str(each.path) for each in theirs if not any(own.is_relative_to(each.path) for own in ours))
