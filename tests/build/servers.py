"""A real server for tests: `lattice up` as its own process, on free ports, ended by pid."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LATTICE = [sys.executable, "-m", "lattice.cli.main"]


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    url: str
    kubeconfig: Path
    data_dir: Path

    def mint(self, user: str, *groups: str, token: bool = False) -> Path:
        """A kubeconfig for somebody else, made by the product's own command."""
        path = self.data_dir / f"{user}{'-token' if token else ''}.kubeconfig"
        flags = [flag for group in groups for flag in ("--group", group)] + (["--token"] if token else [])
        command = [*LATTICE, "kubeconfig", "--kubeconfig", str(self.kubeconfig), "--user", user, *flags]
        path.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return path

    def lattice(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "LATTICE_KUBECONFIG": str(self.kubeconfig), "NO_COLOR": "1"}
        return subprocess.run(
            [*LATTICE, *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


QUIET = ("--controllers", "garbage")  # nobody writes but the test; nothing runs
CLOUDS = (
    "--providers",
    "local,docker=local,aws=fake,gcp=fake,azure=fake,proxmox=fake,vsphere=fake,hetzner=fake",
)


def start(data_dir: Path, *flags: str) -> Server:
    """Started and answering. Its controllers are quiet unless --controllers says otherwise."""
    quiet = () if "--controllers" in flags else QUIET
    clouds = () if "--providers" in flags else CLOUDS
    command = [*LATTICE, "up", "--data-dir", str(data_dir), "--port", "0", *quiet, *clouds, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = _first_line(process, 30)
    if " up at " not in line:
        process.kill()
        rest = process.stdout.read() if process.stdout else ""
        raise RuntimeError(f"lattice up said: {line}{rest}")
    return Server(process, line.rpartition(" up at ")[2].strip(), data_dir / "kubeconfig", data_dir)


def _first_line(process: "subprocess.Popen[str]", seconds: float) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 0.1)[0]:
            return process.stdout.readline()
        if process.poll() is not None:
            return process.stdout.read()
    return ""


@contextlib.contextmanager
def running_server(data_dir: Path, *flags: str) -> Iterator[Server]:
    server = start(data_dir, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        if server.process.stdout:
            server.process.stdout.close()
