"""Facts of the machine that was measured."""

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
    """The version of etcd; empty without etcd on the PATH."""
    if shutil.which("etcd") is None:
        return ""
    output = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"etcd Version: (\S+)", output)
    return match.group(1) if match else "unknown"


def resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) / 1024 if match else 0.0


def _cpu() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return match.group(1).strip() if match else platform.machine()
