"""Network namespaces of a run, joined by a bridge in a namespace of the run: the host's network stays
unchanged."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "lattice-chaos"
HUB = "hub"
# The harness: no fault cuts off its clients and watchers.
HUB_ADDRESS = "10.77.0.1"
NAMED = Path("/run/netns")
ETCDS = ("etcd1", "etcd2", "etcd3")
SERVERS = ("server1", "server2", "server3")
GROUPS = ("racks1", "racks2", "racks3", "racks4", "racks5", "racks6")
ADDRESSES = {
    **{name: f"10.77.0.{11 + number}" for number, name in enumerate(ETCDS)},
    **{name: f"10.77.0.{21 + number}" for number, name in enumerate(SERVERS)},
    **{name: f"10.77.0.{31 + number}" for number, name in enumerate(GROUPS)},
}


def namespace(run: int, part: str) -> str:
    return f"{MARK}-{run}-{part}"


def do(*words: str) -> None:
    """Run a program. Raises RuntimeError with the program's output on failure."""
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"{' '.join(words)}: {completed.stderr.strip() or completed.stdout.strip()}")


def build(run: int) -> None:
    hub = namespace(run, HUB)
    do("ip", "netns", "add", hub)
    do("ip", "-n", hub, "link", "set", "lo", "up")
    do("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
    do("ip", "-n", hub, "addr", "add", f"{HUB_ADDRESS}/24", "dev", "bridge")
    do("ip", "-n", hub, "link", "set", "bridge", "up")
    for part, address in ADDRESSES.items():
        name = namespace(run, part)
        do("ip", "netns", "add", name)
        do("ip", "-n", name, "link", "set", "lo", "up")
        do("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", part, "netns", hub)
        do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        do("ip", "-n", name, "link", "set", "eth0", "up")
        do("ip", "-n", hub, "link", "set", part, "master", "bridge", "up")


def remove(run: int) -> None:
    """Kill all processes in the namespaces of a run, then remove the namespaces."""
    for name in _namespaces(run):
        pids = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        do("ip", "netns", "del", name)


def runs() -> Iterator[int]:
    """Runs that have namespaces."""
    for path in NAMED.iterdir() if NAMED.exists() else ():
        if match := re.fullmatch(rf"{MARK}-(\d+)-\w+", path.name):
            yield int(match[1])


def _namespaces(run: int) -> list[str]:
    return sorted(path.name for path in NAMED.glob(f"{MARK}-{run}-*"))


@dataclass(frozen=True)
class Rule:
    """An iptables rule in the namespace of a part."""

    part: str
    words: tuple[str, ...]

    def put(self, run: int) -> None:
        self._do(run, "-A")

    def lift(self, run: int) -> None:
        self._do(run, "-D")

    def _do(self, run: int, action: str) -> None:
        do("ip", "netns", "exec", namespace(run, self.part), "iptables", "-w", action, *self.words)


INWARD = ("INPUT", "!", "-i", "lo", "!", "-s", HUB_ADDRESS)
OUTWARD = ("OUTPUT", "!", "-o", "lo", "!", "-d", HUB_ADDRESS)
DROP = ("-j", "DROP")


def deaf(part: str) -> list[Rule]:
    """Drop all packets to the part, except from the harness."""
    return [Rule(part, (*INWARD, *DROP))]


def dumb(part: str) -> list[Rule]:
    """Drop all packets from the part, except to the harness."""
    return [Rule(part, (*OUTWARD, *DROP))]


def cut(part: str) -> list[Rule]:
    return deaf(part) + dumb(part)


def cut_port(part: str, port: int) -> list[Rule]:
    """Drop all traffic of a TCP port of the part, in both directions, except with the harness."""
    ports = itertools.product((INWARD, OUTWARD), ("--dport", "--sport"))
    return [Rule(part, (*side, "-p", "tcp", end, str(port), *DROP)) for side, end in ports]


def lossy(part: str, share: float) -> list[Rule]:
    chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.2f}")
    return [Rule(part, (*side, *chance, *DROP)) for side in (INWARD, OUTWARD)]
