"""Which processes belong to an instance, and how they are all ended; standard library only, the watchdog uses it too."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress

INSTANCE_ENV_VAR = "LATTICE_INSTANCE"  # environment variable that even a daemonised grandchild carries


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which it began; None when it is gone or only waits to be reaped."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """/proc/<pid>/stat from the state on; the name before it may hold anything, even brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int, start: int) -> bool:
    return start_time(pid) == start


def members(pid: int, start: int, cgroups: Iterable[str], mark: str = "") -> set[int]:
    """Everything alive that the instance started. Exact with a cgroup; else its session and whatever carries its mark."""
    folders = [path for path in cgroups if os.path.isdir(path)]
    if folders:
        return {found for path in folders for found in _in_cgroup(path)}
    return set(_in_session(pid, start, mark))


def _in_cgroup(path: str) -> Iterator[int]:
    for folder, _, _ in os.walk(path):
        with suppress(OSError), open(f"{folder}/cgroup.procs") as file:
            yield from (found for found in map(int, file) if start_time(found) is not None)


def _in_session(pid: int, start: int, mark: str) -> Iterator[int]:
    # A session's number is not given to a new process while anybody is in the session: it is ours unless its leader is another.
    begun = start_time(pid)
    reused = begun is not None and begun != start
    for found in _pids():
        fields = _stat(found)
        if fields is None or fields[0] in ("Z", "X"):
            continue
        ours = not reused and pid in (int(fields[2]), int(fields[3]))
        if ours or (mark and _has_instance_env(found, mark)):
            yield found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_instance_env(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{INSTANCE_ENV_VAR}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def terminate(pid: int, start: int, cgroups: Iterable[str], mark: str = "") -> None:
    """SIGTERM, once to each: to the process group, if it is still that group, and to whoever left it."""
    others = [
        found
        for found in members(pid, start, cgroups, mark)
        if (fields := _stat(found)) and int(fields[2]) != pid
    ]
    if is_alive(pid, start):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    send(others, signal.SIGTERM)


def kill(pid: int, start: int, cgroups: Iterable[str], mark: str = "") -> bool:
    """SIGKILL to all of it, again until a look finds nobody; False when somebody is left after that."""
    paths = list(cgroups)
    for path in paths:
        with suppress(OSError), open(f"{path}/cgroup.kill", "w") as file:  # atomic, where the kernel has it
            file.write("1")
    for _ in range(50):  # a group that forks as fast as it is killed needs some rounds
        left = members(pid, start, paths, mark)
        if not left:
            return True
        send(left, signal.SIGKILL)
        os.sched_yield()
    return not members(pid, start, paths, mark)
