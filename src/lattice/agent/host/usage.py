"""Measured usage of instances and of the node: CPU in milli-cores, memory and disk in bytes."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice.agent.host import cgroups
from lattice.agent.host.instance_processes import instance_pids
from lattice.agent.host.runtime_protocol import Handle, Usage
from lattice.clock import Clock

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_FILES_COUNTED = 100_000  # larger folders are counted in part


@dataclass(slots=True)
class CpuMeter:
    """Converts counters of CPU time into milli-cores since the previous reading."""

    clock: Clock
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def milli_cores(self, name: str, used_ns: int) -> int:
        """The CPU usage since the previous reading; 0 at the first reading, and when the counter fell because
        a process exited."""
        now = self.clock.monotonic()
        previous_time, previous_ns = self._last.get(name, (now, used_ns))
        self._last[name] = (now, used_ns)
        return (
            max(0, round((used_ns - previous_ns) / (now - previous_time) / 1_000_000))
            if now > previous_time
            else 0
        )

    def forget(self, name: str) -> None:
        self._last.pop(name, None)


def instance_usage(meter: CpuMeter, name: str, handle: Handle, tag: str = "") -> Usage:
    """CPU and memory usage of an instance, from its cgroups or else from its processes; disk usage is 0.

    `name` identifies the instance in the meter. `tag` is the value of INSTANCE_ENV_VAR in the environment of
    the instance's processes: with the tag, the function finds processes that left the session.
    """
    pids = instance_pids(handle.pid, handle.start, handle.cgroups, tag)
    cpu_time, memory = cgroups.cpu_ns(handle.cgroups), cgroups.memory_bytes(handle.cgroups)
    return Usage(
        cpu=meter.milli_cores(name, process_cpu_ns(pids) if cpu_time is None else cpu_time),
        memory=process_memory(pids) if memory is None else memory,
        disk=0,
    )


def process_cpu_ns(pids: Iterable[int]) -> int:
    """CPU time of processes and of their reaped children, in nanoseconds, from /proc."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # Fields 14 to 17 of proc(5): utime, stime, cutime and cstime.
            total += sum(map(int, fields[11:15]))
    return total * TICK_NS


def process_memory(pids: Iterable[int]) -> int:
    """Resident memory of processes; shared pages are divided among processes where the kernel reports
    proportional sizes."""
    return sum(_memory(pid) for pid in pids)


def _memory(pid: int) -> int:
    """The proportional set size of a process, else the resident set size, in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def disk_bytes(folder: Path) -> int:
    """Disk blocks allocated below a folder, in bytes; symbolic links are not followed."""
    total, file_count = 0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                # The kernel counts blocks of 512 bytes, whatever the block size of the file system.
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            file_count += 1
        if file_count > MAX_FILES_COUNTED:
            break
    return total


@dataclass(slots=True)
class NodeMeter:
    """The usage of the machine: CPU that is not idle, memory that is not available, and the used space
    of the file system that holds the agent's folder."""

    clock: Clock
    folder: Path
    _cpu_meter: CpuMeter = field(init=False)

    def __post_init__(self) -> None:
        self._cpu_meter = CpuMeter(self.clock)

    def usage(self) -> Usage:
        disk = os.statvfs(self.folder)
        return Usage(
            cpu=self._cpu_meter.milli_cores("node", busy_ns(Path("/proc/stat").read_text())),
            memory=memory_in_use(Path("/proc/meminfo").read_text()),
            disk=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        )


def busy_ns(stat: str) -> int:
    """The busy CPU time of /proc/stat: user, nice, system, irq, softirq and steal. User time includes guests;
    idle and iowait do not count."""
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:8])) * TICK_NS


def memory_in_use(meminfo: str) -> int:
    """The memory in use, in bytes, from the text of /proc/meminfo."""
    sizes = {}
    for line in meminfo.splitlines():
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) * 1024
    return sizes["MemTotal"] - sizes["MemAvailable"]


def capacity(folder: Path) -> dict[str, int]:
    """The capacity of the machine: milli-cores, bytes of memory and bytes of disk."""
    disk = os.statvfs(folder)
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return {
        "cpu": len(os.sched_getaffinity(0)) * 1000,
        "memory": memory,
        "disk": disk.f_blocks * disk.f_frsize,
    }
