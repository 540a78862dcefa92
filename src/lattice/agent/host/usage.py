"""What is really in use: milli-cores, bytes of memory and of disk, of an instance and of the node."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice.agent.host.runtime_protocol import Usage
from lattice.clock import Clock

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_FILES_COUNTED = 100_000  # a folder with more is not counted to the end


@dataclass(slots=True)
class CpuMeter:
    """Turns counters of CPU time into milli-cores over the time since the counter was read last."""

    clock: Clock
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def milli_cores(self, name: str, used_ns: int) -> int:
        """0 at the first look, and when the counter fell because a process left it."""
        now = self.clock.monotonic()
        before, was = self._last.get(name, (now, used_ns))
        self._last[name] = (now, used_ns)
        return max(0, round((used_ns - was) / (now - before) / 1_000_000)) if now > before else 0

    def forget(self, name: str) -> None:
        self._last.pop(name, None)


def process_cpu_ns(pids: Iterable[int]) -> int:
    """CPU time of processes and of their children that ended, from /proc."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total * TICK_NS


def process_memory(pids: Iterable[int]) -> int:
    """Resident memory, shared pages divided among those who share them where the kernel tells."""
    return sum(_memory(pid) for pid in pids)


def _memory(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def disk_bytes(folder: Path) -> int:
    """Blocks really taken below a folder; links are not followed."""
    total, seen = 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            seen += 1
        if seen > MAX_FILES_COUNTED:
            break
    return total


@dataclass(slots=True)
class NodeMeter:
    """The whole machine: CPU that is not idle, memory that is not available, disk of the file system of the agent's folder."""

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
    """From /proc/stat: user, nice, system, irq, softirq and steal; guests are in user already, idle and iowait are not work."""
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:8])) * TICK_NS


def memory_in_use(meminfo: str) -> int:
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in meminfo.splitlines())
    }
    return sizes["MemTotal"] - sizes["MemAvailable"]


def capacity(folder: Path) -> dict[str, int]:
    """Everything the machine has: milli-cores, bytes of memory and of disk."""
    disk = os.statvfs(folder)
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return {
        "cpu": len(os.sched_getaffinity(0)) * 1000,
        "memory": memory,
        "disk": disk.f_blocks * disk.f_frsize,
    }
