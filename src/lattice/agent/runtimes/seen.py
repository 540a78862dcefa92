"""What podman's last word about a container means, and what a running one uses."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from lattice.agent.host import cgroups
from lattice.agent.host.process_groups import members
from lattice.agent.host.runtime_protocol import Failure, Instance, Record, Usage
from lattice.agent.host.usage import Meter, process_cpu_ns, process_memory

SIGNALLED = 128


def conclusion(record: Record, state: dict[str, Any], said: str, marker: Path) -> Instance:
    """How it ended; `state` is podman's, empty when the container is gone altogether."""
    code = int(state["ExitCode"]) if "ExitCode" in state else None
    name = ""
    with suppress(ValueError):
        name = signal.Signals(code - SIGNALLED).name if code and code > SIGNALLED else ""
    failure = _failure(record, state, said, marker)
    return msgspec.structs.replace(
        record.instance, state="Exited", exit_code=code, signal=name, failure=failure
    )


def _failure(record: Record, state: dict[str, Any], said: str, marker: Path) -> Failure | None:
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
        code == SIGNALLED + signal.SIGKILL and record.spec.limits.memory
    ):  # podman does not always see why the kernel killed it
        return Failure(
            "RUNTIME_ERROR", f"killed; perhaps at its memory limit of {record.spec.limits.memory} bytes"
        )
    return None if code == 0 else Failure("RUNTIME_ERROR", f"ended with code {code}")


def figures(record: Record, meter: Meter) -> Usage:
    """CPU and memory, from the cgroups that the container is in."""
    paths = record.handle.cgroups
    held = members(record.handle.pid, record.handle.start, paths)
    used, memory = cgroups.cpu_ns(paths), cgroups.memory_bytes(paths)
    return Usage(
        cpu=meter.milli(str(record.spec.id), process_cpu_ns(held) if used is None else used),
        memory=process_memory(held) if memory is None else memory,
        disk=0,
    )


def cgroups_of(pid: int) -> tuple[str, ...]:
    """The folders of the cgroups that are this container's alone: never one in which we are ourselves, for all in it may be ended."""
    mounts = Path("/proc/self/mounts").read_text()
    try:
        theirs = cgroups.places(mounts, Path(f"/proc/{pid}/cgroup").read_text())
        ours = [each.path for each in cgroups.places(mounts, Path("/proc/self/cgroup").read_text())]
    except OSError:
        return ()
    return tuple(str(each.path) for each in theirs if not any(own.is_relative_to(each.path) for own in ours))
