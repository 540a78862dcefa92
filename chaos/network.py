"""Network namespaces on one bridge, which is in a namespace of the run too: the machine's own network stays as it is."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "lattice-chaos"
HUB = "hub"
HUB_ADDRESS = "10.77.0.1"  # the harness itself: its clients and its watcher are never cut off
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
    """Raises with what the program said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


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
    """Ends whatever still runs in the namespaces of that run, and then them."""
    for name in _namespaces(run):
        found = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in map(int, found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        do("ip", "netns", "del", name)


def runs() -> Iterator[int]:
    """Those whose namespaces are there."""
    for path in NAMED.iterdir() if NAMED.exists() else ():
        if found := re.fullmatch(rf"{MARK}-(\d+)-\w+", path.name):
            yield int(found[1])


def _namespaces(run: int) -> list[str]:
    return sorted(path.name for path in NAMED.glob(f"{MARK}-{run}-*"))


@dataclass(frozen=True)
class Rule:
    """A rule of iptables in the namespace of one part."""

    part: str
    words: tuple[str, ...]

    def put(self, run: int) -> None:
        self._do(run, "-A")

    def lift(self, run: int) -> None:
        self._do(run, "-D")

    def _do(self, run: int, how: str) -> None:
        do("ip", "netns", "exec", namespace(run, self.part), "iptables", "-w", how, *self.words)


INWARD = ("INPUT", "!", "-i", "lo", "!", "-s", HUB_ADDRESS)
OUTWARD = ("OUTPUT", "!", "-o", "lo", "!", "-d", HUB_ADDRESS)
DROP = ("-j", "DROP")


def deaf(part: str) -> list[Rule]:
    """It is heard and hears nobody."""
    return [Rule(part, (*INWARD, *DROP))]


def dumb(part: str) -> list[Rule]:
    """It hears and is heard by nobody."""
    return [Rule(part, (*OUTWARD, *DROP))]


def cut(part: str) -> list[Rule]:
    return deaf(part) + dumb(part)


def cut_port(part: str, port: int) -> list[Rule]:
    """Nobody but the harness reaches that port here, and from here it is reached nowhere."""
    ports = [(side, end) for side in (INWARD, OUTWARD) for end in ("--dport", "--sport")]
    return [Rule(part, (*side, "-p", "tcp", end, str(port), *DROP)) for side, end in ports]


def lossy(part: str, share: float) -> list[Rule]:
    chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.2f}")
    return [Rule(part, (*side, *chance, *DROP)) for side in (INWARD, OUTWARD)]
