"""On what it was measured: the facts that a figure means nothing without."""

import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from lattice import __version__


def facts() -> dict[str, str | int]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "Lattice": __version__,
        "CPUs": os.cpu_count() or 0,
        "CPU": _cpu(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "etcd": etcd_version() or "absent",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def etcd_version() -> str:
    """Empty if there is none on the PATH."""
    if shutil.which("etcd") is None:
        return ""
    said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"etcd Version: (\S+)", said)
    return found.group(1) if found else "unknown"


def resident_mib(pid: int) -> float:
    """What a process holds in memory, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else 0.0


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found.group(1).strip() if found else platform.machine()
