"""What a process needs before it starts: its environment, its program, its ports free; and what went wrong, in the words of failures."""

import errno
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from lattice.agent.host.instance_processes import INSTANCE_ENV_VAR
from lattice.agent.host.runtime_protocol import DISK_FULL_ERRNOS, Failure, FailureReason, InstanceId, RunSpec
from lattice.errors import Full, LatticeError

INHERITED_ENV_VARS = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
)  # of the agent's own environment; the rest may hold secrets
STORAGE_ERRNOS = DISK_FULL_ERRNOS | {
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
}
RESOURCE_ERRNOS = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
SAFE_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def port_variable(name: str) -> str:
    return "PORT_" + name.upper().replace("-", "_")


def port_environment(spec: RunSpec) -> dict[str, str]:
    """PORT_<NAME> for each, PORT for the first."""
    numbers = {port.name: spec.ports[port.name] for port in spec.container.ports if port.name in spec.ports}
    named = {port_variable(name): str(number) for name, number in numbers.items()}
    return {"PORT": next(iter(named.values()))} | named if named else {}


def prefix_of(folder: Path) -> str:
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8] + "."


def tag_of(folder: Path, which: InstanceId) -> str:
    """A name that no other agent on this machine uses, even for a copy of the same workload."""
    return f"{prefix_of(folder)}{which}"


def environment(spec: RunSpec, folder: Path, inherited: Mapping[str, str], tag: str) -> dict[str, str]:
    """Later ones win: the machine's, the control plane's, the ports, the container's own; the mark is never overridden."""
    machine = {name: inherited[name] for name in INHERITED_ENV_VARS if name in inherited}
    ours = {"HOME": str(folder), "LATTICE_WORKLOAD": spec.workload}
    return machine | ours | spec.env | port_environment(spec) | spec.container.env | {INSTANCE_ENV_VAR: tag}


def spec_failure(spec: RunSpec) -> Failure | None:
    """What is wrong with the order itself."""
    if spec.container.image:
        return Failure(
            "RUNTIME_UNAVAILABLE",
            f'image "{spec.container.image}" needs a container runtime, and this node runs processes only',
        )
    if not spec.container.command:
        return Failure("INVALID_SPEC", f'container "{spec.id.container}" has no command to run')
    return id_failure(spec.id) or next(
        (f for words in (spec.container.command, spec.container.args) if (f := _null_failure(words))), None
    )


def id_failure(which: InstanceId) -> Failure | None:
    """These become names of folders: nothing that could lead elsewhere."""
    for part in (which.uid, which.revision, which.container):
        if part and not SAFE_NAME_PATTERN.fullmatch(part):
            return Failure("INVALID_SPEC", f'"{part}" cannot be part of the name of an instance')
    return None


def _null_failure(words: tuple[str, ...]) -> Failure | None:
    bad = next((word for word in words if "\0" in word), None)
    return (
        None
        if bad is None
        else Failure("INVALID_SPEC", f"a word of the command holds a null character: {bad!r}")
    )


def program(spec: RunSpec, path: str, folder: Path) -> str | Failure:
    """The file to run: found on PATH, or taken from the working folder when it is named by a relative path."""
    name = spec.container.command[0]
    if "/" in name:
        place = str(folder / name)
        return place if os.path.isfile(place) and os.access(place, os.X_OK) else _unrunnable(place, name)
    return shutil.which(name, path=path) or Failure(
        "COMMAND_NOT_FOUND", f'command "{name}" was not found on PATH ({path})'
    )


def _unrunnable(place: str, name: str) -> Failure:
    if os.path.isdir(place):
        return Failure("INVALID_SPEC", f'command "{name}" is a folder')
    if os.path.exists(place):
        return Failure("INVALID_SPEC", f'command "{name}" is not executable')
    return Failure("COMMAND_NOT_FOUND", f'command "{name}" does not exist')


def port_failure(spec: RunSpec) -> Failure | None:
    """A port that somebody else has; asked just before the start, the command itself may still come too late."""
    for port in spec.container.ports:
        number = spec.ports.get(port.name)
        if number and not _is_free(number, port.protocol == "UDP"):
            reason: FailureReason = "PORT_TAKEN" if port.port is None else "PORT_BIND_CONFLICT"
            return Failure(
                reason,
                f'port {number}/{port.protocol} ("{port.name}") is taken by another program on this node',
            )
    return None


def classify_port_failure(failure: Failure, spec: RunSpec) -> Failure:
    """What somebody else says of a port that is taken; one that was chosen for the container, unless a fixed one is named."""
    fixed = (str(port.port) for port in spec.container.ports if port.port is not None)
    if failure.reason != "PORT_BIND_CONFLICT" or any(
        re.search(rf"\b{number}\b", failure.message) for number in fixed
    ):
        return failure
    return Failure("PORT_TAKEN", failure.message)


def _is_free(number: int, udp: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as probe:
        if not udp:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # connections that are closing do not count
        try:
            probe.bind(("", number))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE,)
    return True


def exec_failure(number: int, name: str) -> Failure:
    """Why the kernel would not run a file that is there."""
    text = os.strerror(number)
    if number in RESOURCE_ERRNOS:
        return Failure("INSUFFICIENT_RESOURCES", f'command "{name}" could not be started: {text}')
    if number in (errno.ENOSPC, errno.EIO, errno.EROFS):
        return Failure("STORAGE_ERROR", f'command "{name}" could not be started: {text}')
    if number == errno.ENOENT:
        return Failure(
            "COMMAND_NOT_FOUND",
            f'command "{name}" cannot be run here: it, or the program that is to read it, is not there',
        )
    return Failure("INVALID_SPEC", f'command "{name}" cannot be run here: {text}')


def failure_from_error(error: OSError | LatticeError) -> Failure:
    """Files, folders and records that could not be written."""
    if isinstance(error, Full):
        return Failure("STORAGE_ERROR", f"{error.message} ({error.where})")
    if isinstance(error, LatticeError):
        return Failure("RUNTIME_ERROR", error.message)
    if error.errno in RESOURCE_ERRNOS:
        return Failure("INSUFFICIENT_RESOURCES", f"{error.strerror}")
    if error.errno in STORAGE_ERRNOS:
        return Failure("STORAGE_ERROR", f"{error.strerror}: {error.filename}")
    return Failure("RUNTIME_ERROR", str(error))
