"""Checks before the start of a process (environment, program and free ports), and the failure that stands for
an error."""

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
from lattice.agent.runtimes.gpu_devices import gpu_environment
from lattice.errors import Full, LatticeError

# Variables that a process gets from the agent's own environment; other variables may hold secrets.
INHERITED_ENV_VARS = ("PATH", "LANG", "LC_ALL", "TZ")
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
    """The environment variable for a named port."""
    return "PORT_" + name.upper().replace("-", "_")


def port_environment(spec: RunSpec) -> dict[str, str]:
    """The port variables of a container: PORT_<NAME> per port, and PORT for the first port."""
    numbers = {port.name: spec.ports[port.name] for port in spec.container.ports if port.name in spec.ports}
    named = {port_variable(name): str(number) for name, number in numbers.items()}
    return {"PORT": next(iter(named.values()))} | named if named else {}


def prefix_of(folder: Path) -> str:
    """The prefix of instance tags, unique per agent folder."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8] + "."


def tag_of(folder: Path, instance_id: InstanceId) -> str:
    """A name that no other agent on the machine uses, even for a copy of the same workload."""
    return f"{prefix_of(folder)}{instance_id}"


def process_environment(
    spec: RunSpec, folder: Path, inherited: Mapping[str, str], tag: str
) -> dict[str, str]:
    """The environment of a process. Later sources override earlier sources: machine, agent (HOME,
    LATTICE_WORKLOAD), control plane, ports, GPUs, container. INSTANCE_ENV_VAR with the tag of the instance comes
    last, so no source overrides it."""
    machine = {name: inherited[name] for name in INHERITED_ENV_VARS if name in inherited}
    agent_variables = {"HOME": str(folder), "LATTICE_WORKLOAD": spec.workload}
    return (
        machine
        | agent_variables
        | spec.env
        | port_environment(spec)
        | gpu_environment(spec)
        | spec.container.env
        | {INSTANCE_ENV_VAR: tag}
    )


def spec_failure(spec: RunSpec) -> Failure | None:
    """The failure of an invalid run specification, or None."""
    if spec.container.image:
        return Failure(
            "RUNTIME_UNAVAILABLE",
            f'image "{spec.container.image}" needs a container runtime, but this node can run only processes',
        )
    if not spec.container.command:
        return Failure("INVALID_SPEC", f'container "{spec.id.container}" has no command to run')
    failure = id_failure(spec.id)
    if failure is not None:
        return failure
    for words in (spec.container.command, spec.container.args):
        for word in words:
            if "\0" in word:
                return Failure(
                    "INVALID_SPEC", f"an argument of the command contains a NUL character: {word!r}"
                )
    return None


def id_failure(instance_id: InstanceId) -> Failure | None:
    """The failure of an id that is unsafe as folder name, or None: a part must not lead to another folder."""
    for part in (instance_id.uid, instance_id.revision, instance_id.container):
        if part and not SAFE_NAME_PATTERN.fullmatch(part):
            return Failure("INVALID_SPEC", f'"{part}" is not allowed in the name of an instance')
    return None


def resolve_program(spec: RunSpec, path: str, folder: Path) -> str | Failure:
    """The path of the program: found on PATH, or resolved in the working folder if the name contains a
    slash."""
    name = spec.container.command[0]
    if "/" in name:
        path_in_folder = str(folder / name)
        if os.path.isfile(path_in_folder) and os.access(path_in_folder, os.X_OK):
            return path_in_folder
        if os.path.isdir(path_in_folder):
            return Failure("INVALID_SPEC", f'command "{name}" is a folder')
        if os.path.exists(path_in_folder):
            return Failure("INVALID_SPEC", f'command "{name}" is not executable')
        return Failure("COMMAND_NOT_FOUND", f'command "{name}" does not exist')
    return shutil.which(name, path=path) or Failure(
        "COMMAND_NOT_FOUND", f'command "{name}" was not found on PATH ({path})'
    )


def port_failure(spec: RunSpec) -> Failure | None:
    """The failure of a port that another program uses, or None. The check runs just before the start; another
    program may still take the port before the command opens it."""
    for port in spec.container.ports:
        number = spec.ports.get(port.name)
        if number and not _is_free(number, port.protocol == "UDP"):
            reason: FailureReason = "PORT_TAKEN" if port.port is None else "PORT_BIND_CONFLICT"
            return Failure(
                reason,
                f'port {number}/{port.protocol} ("{port.name}") is in use by another program on this node',
            )
    return None


def classify_port_failure(failure: Failure, spec: RunSpec) -> Failure:
    """Change PORT_BIND_CONFLICT into PORT_TAKEN, unless the message names a port that the container requests
    by number."""
    fixed = (str(port.port) for port in spec.container.ports if port.port is not None)
    if failure.reason != "PORT_BIND_CONFLICT" or any(
        re.search(rf"\b{number}\b", failure.message) for number in fixed
    ):
        return failure
    return Failure("PORT_TAKEN", failure.message)


def _is_free(number: int, udp: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as probe:
        if not udp:
            # With SO_REUSEADDR, connections that are still closing (TIME_WAIT) do not make the port look
            # taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE,)
    return True


def exec_failure(number: int, name: str) -> Failure:
    """The failure for the error number of an exec."""
    text = os.strerror(number)
    if number in RESOURCE_ERRNOS:
        return Failure("INSUFFICIENT_RESOURCES", f'command "{name}" could not be started: {text}')
    if number in (errno.ENOSPC, errno.EIO, errno.EROFS):
        return Failure("STORAGE_ERROR", f'command "{name}" could not be started: {text}')
    if number == errno.ENOENT:
        return Failure(
            "COMMAND_NOT_FOUND",
            f'command "{name}" cannot be run on this node: the file or its interpreter does not exist',
        )
    return Failure("INVALID_SPEC", f'command "{name}" cannot be run on this node: {text}')


def failure_from_error(error: OSError | LatticeError) -> Failure:
    """The failure for an error of files, folders or records."""
    if isinstance(error, Full):
        return Failure("STORAGE_ERROR", f"{error.message} ({error.where})")
    if isinstance(error, LatticeError):
        return Failure("RUNTIME_ERROR", error.message)
    if error.errno in RESOURCE_ERRNOS:
        return Failure("INSUFFICIENT_RESOURCES", f"{error.strerror}")
    if error.errno in STORAGE_ERRNOS:
        return Failure("STORAGE_ERROR", f"{error.strerror}: {error.filename}")
    return Failure("RUNTIME_ERROR", str(error))
