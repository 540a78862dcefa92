"""Find and signal the processes of an instance. Imports the standard library only, since the watchdog uses
the module."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress

# The environment variable with the tag of an instance; even a daemonised grandchild inherits it.
INSTANCE_ENV_VAR = "LATTICE_INSTANCE"


def boot_id() -> str:
    """The id of the current boot of the kernel."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """The start of a process in clock ticks after boot; None for a process that is gone or a zombie."""
    fields = _stat(pid)
    # Field 22 of proc(5), starttime; Z is a zombie and X is dead.
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; the preceding process name may contain any character,
    even brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int, start: int) -> bool:
    """Whether the pid still belongs to the process that started at `start`."""
    return start_time(pid) == start


def instance_pids(pid: int, start: int, cgroups: Iterable[str], tag: str = "") -> set[int]:
    """The live processes of an instance: all processes of its cgroups. Without a cgroup, the processes of its
    session or process group, and the processes that have its tag in the environment."""
    folders = [path for path in cgroups if os.path.isdir(path)]
    if not folders:
        return set(_in_session(pid, start, tag))
    pids: set[int] = set()
    for path in folders:
        for folder, _, _ in os.walk(path):
            with suppress(OSError), open(f"{folder}/cgroup.procs") as file:
                pids.update(member for member in map(int, file) if start_time(member) is not None)
    return pids


def _in_session(pid: int, start: int, tag: str) -> Iterator[int]:
    # The kernel does not reuse the number of a session while the session has members. So `pid` still names the
    # session of the instance, unless a live process with this pid started at another time.
    leader_start = start_time(pid)
    is_reused = leader_start is not None and leader_start != start
    for candidate in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        fields = _stat(candidate)
        if fields is None or fields[0] in ("Z", "X"):
            continue
        # Fields 5 and 6 of proc(5): the process group and the session.
        is_in_session = not is_reused and pid in (int(fields[2]), int(fields[3]))
        if is_in_session or (tag and _has_instance_env(candidate, tag)):
            yield candidate


def _has_instance_env(pid: int, tag: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{INSTANCE_ENV_VAR}={tag}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def send_signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def terminate(pid: int, start: int, cgroups: Iterable[str], tag: str = "") -> None:
    """Send SIGTERM once to the process group of the instance, if the leader of the group is still alive, and
    to every process of the instance outside the group."""
    outside_group = [
        member
        for member in instance_pids(pid, start, cgroups, tag)
        if (fields := _stat(member)) and int(fields[2]) != pid
    ]
    # Once the leader has ended, its number may belong to another process group.
    if is_alive(pid, start):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    send_signal(outside_group, signal.SIGTERM)


def kill(pid: int, start: int, cgroups: Iterable[str], tag: str = "") -> bool:
    """Send SIGKILL to all processes of an instance until none is left; return False if processes survive all
    rounds."""
    paths = list(cgroups)
    for path in paths:
        # Atomic, where the kernel supports the file.
        with suppress(OSError), open(f"{path}/cgroup.kill", "w") as file:
            file.write("1")
    # Processes that fork while they are killed need several rounds.
    for _ in range(50):
        survivors = instance_pids(pid, start, paths, tag)
        if not survivors:
            return True
        send_signal(survivors, signal.SIGKILL)
        os.sched_yield()
    return not instance_pids(pid, start, paths, tag)
