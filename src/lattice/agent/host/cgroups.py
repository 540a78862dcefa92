"""Cgroups of instances: find the cgroup hierarchies that the agent may write, create a cgroup with limits for
every instance, and read the usage.

In every hierarchy, the agent creates one cgroup named LATTICE_CGROUP, called the branch. The branch contains
the cgroups of the instances.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lattice.agent.host.runtime_protocol import Limits

CPU_PERIOD_US = 100_000  # the kernel's default CPU bandwidth period
MIN_CPU_QUOTA_US = 1_000  # the kernel rejects a smaller quota
SHARES_PER_CORE = 1024
MIN_CPU_SHARES, MAX_CPU_SHARES = 2, 262_144  # the bounds of the kernel
LATTICE_CGROUP = "lattice"
CONTROLLERS = ("cpu", "cpuacct", "memory")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A folder in which the agent may create cgroups, with the controllers available in the folder."""

    path: Path
    version: Literal[1, 2]
    controllers: frozenset[str]


def process_cgroups(mounts: str, own: str) -> list[Hierarchy]:
    """The cgroups of a process, from /proc/self/mounts and its /proc/<pid>/cgroup."""
    by_names: dict[frozenset[str], str] = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        by_names[frozenset(names.split(","))] = path
    result = []
    for line in mounts.splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup2":
            path = by_names.get(frozenset({""}), "/")
            result.append(Hierarchy(Path(mount) / path.strip("/"), 2, frozenset()))
        elif kind == "cgroup" and (controllers := frozenset(options.split(",")) & set(CONTROLLERS)):
            path = next((path for names, path in by_names.items() if names & controllers), "/")
            result.append(Hierarchy(Path(mount) / path.strip("/"), 1, controllers))
    return result


def candidate_parents(mounts: str, own: str) -> list[Hierarchy]:
    """The cgroups in which the agent can create its branch, the folder of the instances' cgroups.

    A branch inside the agent's own cgroup makes the limits of the agent cover the instances. A v2 cgroup with
    processes cannot delegate controllers to its children: with v2 the branch is therefore a sibling of the
    agent's cgroup, unless the agent is in the root of the mount.
    """
    mount_points = {Path(line.split()[1]) for line in mounts.splitlines()}
    parents = []
    for own_cgroup in process_cgroups(mounts, own):
        if own_cgroup.version == 1:
            parents.append(own_cgroup)
        else:
            path = own_cgroup.path if own_cgroup.path in mount_points else own_cgroup.path.parent
            try:
                offered = frozenset((path / "cgroup.controllers").read_text().split())
            except OSError:
                offered = frozenset()
            parents.append(Hierarchy(path, 2, offered & set(CONTROLLERS)))
    return parents


def writable_hierarchies(candidates: Iterable[Hierarchy]) -> list[Hierarchy]:
    """The candidates in which the agent can create its branch; a v2 branch has only the controllers that the
    kernel delegated."""
    result = []
    for candidate in candidates:
        branch = candidate.path / LATTICE_CGROUP
        try:
            branch.mkdir(exist_ok=True)
        except OSError:
            continue
        if not os.access(branch / "cgroup.procs", os.W_OK):
            continue
        controllers = candidate.controllers
        if candidate.version != 1:
            # Controllers are delegated level by level: to the branch, then to the instances.
            for folder in (candidate.path, branch):
                _delegate_controllers(folder, candidate.controllers)
            try:
                controllers = frozenset((branch / "cgroup.subtree_control").read_text().split())
            except OSError:
                controllers = frozenset()
        result.append(Hierarchy(branch, candidate.version, controllers))
    return result


def _delegate_controllers(folder: Path, controllers: frozenset[str]) -> None:
    for name in controllers & {"cpu", "memory"}:
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{name}")


def detect() -> list[Hierarchy]:
    """The writable hierarchies of this machine; empty where the kernel exposes no cgroups."""
    try:
        return writable_hierarchies(
            candidate_parents(Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text())
        )
    except OSError:
        return []


def limit_files(limits: Limits, version: Literal[1, 2], controllers: frozenset[str]) -> dict[str, str]:
    """The content of every limit file, by file name."""
    contents: dict[str, str] = {}
    if limits.cpu is not None and "cpu" in controllers:
        quota = max(MIN_CPU_QUOTA_US, limits.cpu * CPU_PERIOD_US // 1000)
        if version == 1:
            contents |= {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota)}
        else:
            contents |= {"cpu.max": f"{quota} {CPU_PERIOD_US}"}
    if limits.memory is not None and "memory" in controllers:
        if version == 1:
            contents |= {"memory.limit_in_bytes": str(limits.memory)}
        else:
            # Without a swap limit, the processes could exceed the memory limit in swap.
            contents |= {"memory.max": str(limits.memory), "memory.swap.max": "0"}
    return contents


def cpu_shares(milli_cores: int | None) -> int:
    """The CPU shares of cgroup v1 for a request; the least where nothing is requested."""
    return max(MIN_CPU_SHARES, min(MAX_CPU_SHARES, (milli_cores or 0) * SHARES_PER_CORE // 1000))


def weight_files(requests: Limits, version: Literal[1, 2], controllers: frozenset[str]) -> dict[str, str]:
    """The content of every file that states the share of CPU time under contention, by file name."""
    if "cpu" not in controllers:
        return {}
    shares = cpu_shares(requests.cpu)
    if version == 1:
        return {"cpu.shares": str(shares)}
    # The range of shares, 2 to 262144, mapped to the range of weights, 1 to 10000, as Kubernetes does.
    weight = 1 + (shares - MIN_CPU_SHARES) * 9999 // (MAX_CPU_SHARES - MIN_CPU_SHARES)
    return {"cpu.weight": str(weight)}


def create_cgroups(
    hierarchies: Iterable[Hierarchy], name: str, limits: Limits, requests: Limits | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Create the cgroups of an instance; return their paths and, by resource, the cgroup version that
    enforces the limit.

    Above its limit the kernel throttles CPU; the shares by `requests` count only while CPUs are contended.
    """
    paths: list[str] = []
    enforced: dict[str, str] = {}
    for hierarchy in hierarchies:
        path = hierarchy.path / name
        try:
            # Another agent on this machine may have removed the empty branch.
            if not hierarchy.path.exists():
                hierarchy.path.mkdir(exist_ok=True)
                _delegate_controllers(
                    hierarchy.path, hierarchy.controllers if hierarchy.version == 2 else frozenset()
                )
            # An existing cgroup may be left from a killed agent.
            path.mkdir(exist_ok=True)
        except OSError:
            continue
        paths.append(str(path))
        if requests is not None:
            _limit(path, weight_files(requests, hierarchy.version, hierarchy.controllers))
        if _limit(path, limit_files(limits, hierarchy.version, hierarchy.controllers)):
            for resource in {"cpu", "memory"} & hierarchy.controllers:
                if getattr(limits, resource) is not None:
                    enforced[resource] = f"cgroup-v{hierarchy.version}"
    return tuple(paths), enforced


def _limit(path: Path, contents: dict[str, str]) -> bool:
    """Write the limit files; return False if the kernel rejects a limit or there is no limit."""
    for name, value in contents.items():
        # A kernel without swap accounting has no such file.
        if name == "memory.swap.max" and not (path / name).exists():
            continue
        try:
            (path / name).write_text(value)
        except OSError:
            return False
    if "memory.limit_in_bytes" in contents and (path / "memory.memsw.limit_in_bytes").exists():
        with suppress(OSError):
            (path / "memory.memsw.limit_in_bytes").write_text(contents["memory.limit_in_bytes"])
    return bool(contents)


def remove_cgroups(paths: Iterable[str]) -> bool:
    """Remove the cgroups; return False while the kernel still keeps a cgroup."""
    is_kept = False
    for path in paths:
        with suppress(OSError):
            os.rmdir(path)
        is_kept = is_kept or os.path.isdir(path)
    return not is_kept


def remove_stale(hierarchies: Iterable[Hierarchy], prefix: str) -> None:
    """Remove the cgroups of a killed agent; the kernel keeps cgroups with live processes."""
    for hierarchy in hierarchies:
        with suppress(OSError):
            remove_cgroups(str(path) for path in hierarchy.path.iterdir() if path.name.startswith(prefix))


def remove_empty_branches(hierarchies: Iterable[Hierarchy]) -> None:
    """Remove the agent's branches that are empty."""
    for hierarchy in hierarchies:
        with suppress(OSError):
            hierarchy.path.rmdir()


def cpu_ns(paths: Iterable[str]) -> int | None:
    """The CPU time used so far, in nanoseconds; None if no cgroup accounts CPU time."""
    for path in map(Path, paths):
        with suppress(OSError, ValueError):
            if (path / "cpuacct.usage").exists():
                return int((path / "cpuacct.usage").read_text())
        with suppress(OSError, StopIteration, ValueError):
            lines = (path / "cpu.stat").read_text().splitlines()
            return next(int(line.split()[1]) * 1000 for line in lines if line.startswith("usage_usec "))
    return None


def memory_bytes(paths: Iterable[str]) -> int | None:
    """Memory in use, in bytes, without inactive file pages, which the kernel reclaims first; None if no
    cgroup accounts memory."""
    for path in map(Path, paths):
        for usage_file, inactive_field in (
            ("memory.current", "inactive_file"),
            ("memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):
                stat = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
                return max(0, int((path / usage_file).read_text()) - int(stat.get(inactive_field, 0)))
    return None


def was_oom_killed(paths: Iterable[str]) -> bool:
    """Whether the kernel killed a process of the cgroups for exceeding the memory limit."""
    for path in map(Path, paths):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError):
                counts = dict(line.split() for line in (path / name).read_text().splitlines())
                if int(counts.get("oom_kill", 0)) > 0:
                    return True
    return False
