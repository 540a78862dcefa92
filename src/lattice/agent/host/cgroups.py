"""Which cgroup hierarchies we may write, and what one instance gets in them: limits that hold, figures, and a way to end all of it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lattice.agent.host.runtime_protocol import Limits

PERIOD_US = 100_000  # the kernel's default period of CPU bandwidth
MIN_CPU_QUOTA_US = 1_000  # below this the kernel refuses
LATTICE_CGROUP = "lattice"
CONTROLLERS = ("cpu", "cpuacct", "memory")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One place below which we may make cgroups, and what it can limit or count."""

    path: Path
    version: Literal[1, 2]
    controllers: frozenset[str]


def process_cgroups(mounts: str, own: str) -> list[Hierarchy]:
    """The cgroups that a process is in, from /proc/self/mounts and its /proc/<pid>/cgroup."""
    by_names = {
        frozenset(names.split(",")): path
        for _, names, path in (line.split(":", 2) for line in own.splitlines())
    }
    result = []
    for line in mounts.splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup2":
            result.append(
                Hierarchy(Path(mount) / by_names.get(frozenset({""}), "/").strip("/"), 2, frozenset())
            )
        elif kind == "cgroup" and (names := frozenset(options.split(",")) & set(CONTROLLERS)):
            path = next((place for held, place in by_names.items() if held & names), "/")
            result.append(Hierarchy(Path(mount) / path.strip("/"), 1, names))
    return result


def candidate_parents(mounts: str, own: str) -> list[Hierarchy]:
    """Where branches of ours belong: below our own cgroup, so that its limits hold for what we start too.

    A v2 cgroup with processes cannot hand controllers to children: there it is beside, not below.
    """
    tops = {Path(line.split()[1]) for line in mounts.splitlines()}
    return [
        each if each.version == 1 else _v2_hierarchy(each.path if each.path in tops else each.path.parent)
        for each in process_cgroups(mounts, own)
    ]


def _v2_hierarchy(place: Path) -> Hierarchy:
    try:
        offered = frozenset((place / "cgroup.controllers").read_text().split())
    except OSError:
        offered = frozenset()
    return Hierarchy(place, 2, offered & set(CONTROLLERS))


def writable(candidates: Iterable[Hierarchy]) -> list[Hierarchy]:
    """Those in which a branch of ours could really be made; a v2 branch keeps the controllers it was really given."""
    result = []
    for each in candidates:
        branch = each.path / LATTICE_CGROUP
        try:
            branch.mkdir(exist_ok=True)
        except OSError:
            continue
        if not os.access(branch / "cgroup.procs", os.W_OK):
            continue
        given = each.controllers if each.version == 1 else _delegated_controllers(each, branch)
        result.append(Hierarchy(branch, each.version, given))
    return result


def _delegated_controllers(each: Hierarchy, branch: Path) -> frozenset[str]:
    for folder in (each.path, branch):
        _delegate_controllers(folder, each.controllers)
    try:
        return frozenset((branch / "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()


def _delegate_controllers(folder: Path, controllers: frozenset[str]) -> None:
    for name in controllers & {"cpu", "memory"}:
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{name}")


def detect() -> list[Hierarchy]:
    try:
        return writable(
            candidate_parents(Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text())
        )
    except OSError:
        return []


def limit_files(limits: Limits, version: Literal[1, 2], controllers: frozenset[str]) -> dict[str, str]:
    """File -> what to write into it."""
    wanted: dict[str, str] = {}
    if limits.cpu is not None and "cpu" in controllers:
        quota = max(MIN_CPU_QUOTA_US, limits.cpu * PERIOD_US // 1000)
        wanted |= (
            {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
            if version == 1
            else {"cpu.max": f"{quota} {PERIOD_US}"}
        )
    if limits.memory is not None and "memory" in controllers:
        bytes_ = str(limits.memory)
        wanted |= (
            {"memory.limit_in_bytes": bytes_}
            if version == 1
            else {"memory.max": bytes_, "memory.swap.max": "0"}
        )
    return wanted


def make(
    hierarchies: Iterable[Hierarchy], name: str, limits: Limits
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The instance's cgroups, and which limit is held by which version."""
    paths: list[str] = []
    enforced: dict[str, str] = {}
    for each in hierarchies:
        path = each.path / name
        try:
            if not each.path.exists():  # another agent on this machine took the empty branch away
                each.path.mkdir(exist_ok=True)
                _delegate_controllers(each.path, each.controllers if each.version == 2 else frozenset())
            path.mkdir(exist_ok=True)
        except OSError:
            continue
        paths.append(str(path))
        if _limit(path, limit_files(limits, each.version, each.controllers)):
            held = {"cpu", "memory"} & each.controllers
            enforced |= {
                what: f"cgroup-v{each.version}" for what in held if getattr(limits, what) is not None
            }
    return tuple(paths), enforced


def _limit(path: Path, wanted: dict[str, str]) -> bool:
    for name, value in wanted.items():
        if name == "memory.swap.max" and not (path / name).exists():
            continue  # a kernel without swap accounting
        try:
            (path / name).write_text(value)
        except OSError:
            return False
    if "memory.limit_in_bytes" in wanted and (path / "memory.memsw.limit_in_bytes").exists():
        with suppress(OSError):
            (path / "memory.memsw.limit_in_bytes").write_text(wanted["memory.limit_in_bytes"])
    return bool(wanted)


def remove(paths: Iterable[str]) -> bool:
    """Take the cgroups away; False while the kernel still holds one."""
    held = False
    for path in paths:
        with suppress(OSError):
            os.rmdir(path)
        held = held or os.path.isdir(path)
    return not held


def remove_stale(hierarchies: Iterable[Hierarchy], prefix: str) -> None:
    """Take away what an agent left that was killed halfway; the kernel keeps those in which somebody lives."""
    for each in hierarchies:
        with suppress(OSError):
            remove(str(path) for path in each.path.iterdir() if path.name.startswith(prefix))


def prune(hierarchies: Iterable[Hierarchy]) -> None:
    """Take our branches away where nothing is left in them."""
    for each in hierarchies:
        with suppress(OSError):
            each.path.rmdir()


def cpu_ns(paths: Iterable[str]) -> int | None:
    """CPU time used so far; None when no cgroup counts it."""
    for path in map(Path, paths):
        with suppress(OSError, ValueError):
            if (path / "cpuacct.usage").exists():
                return int((path / "cpuacct.usage").read_text())
        with suppress(OSError, StopIteration, ValueError):
            lines = (path / "cpu.stat").read_text().splitlines()
            return next(int(line.split()[1]) * 1000 for line in lines if line.startswith("usage_usec "))
    return None


def memory_bytes(paths: Iterable[str]) -> int | None:
    """Memory in use without what the kernel would drop first (inactive file pages); None when no cgroup counts it."""
    for path in map(Path, paths):
        for used, idle in (
            ("memory.current", "inactive_file"),
            ("memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):
                stat = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
                return max(0, int((path / used).read_text()) - int(stat.get(idle, 0)))
    return None


def was_oom_killed(paths: Iterable[str]) -> bool:
    for path in map(Path, paths):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError):
                counts = dict(line.split() for line in (path / name).read_text().splitlines())
                if int(counts.get("oom_kill", 0)) > 0:
                    return True
    return False
