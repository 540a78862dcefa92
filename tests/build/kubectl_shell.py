"""A shell in which `kubectl` is one chosen version, and each user has a kubeconfig."""

import os
import re
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from build.kubectl_steps.step import Outcome, Step, found, listed
from build.kubectl_versions import Kubectl
from build.servers import Server

MANIFESTS = Path(__file__).parents[1] / "e2e" / "manifests"
PATIENCE = 30.0  # seconds for a command
ROUNDS = 12  # changes made for a watcher to see
ROUND = 0.8  # seconds that a watcher gets to report a change
QUIET = 0.2  # seconds of silence after which it has said what there is to say


@dataclass(frozen=True)
class Shell:
    home: Path
    people: dict[str, Path]

    def environment(self, who: str) -> dict[str, str]:
        path = f"{self.home}:{os.environ.get('PATH', os.defpath)}"
        # HOME: kubectl keeps what it discovered in there; two versions must not read each other's.
        return {
            "PATH": path,
            "HOME": str(self.home),
            "KUBECONFIG": str(self.people[who]),
            "TMPDIR": str(self.home),
            "LC_ALL": "C.UTF-8",
        }

    def run(self, step: Step) -> Outcome:
        return self._watch(step) if step.meanwhile else self._run(step.run, step.who)

    def _run(self, line: str, who: str, number: int = 0) -> Outcome:
        environment = {**self.environment(who), "N": str(number)}
        process = _start(line, environment)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            out, err = _end(process)
            return Outcome(-1, out, f"{err}\nno end after {PATIENCE:.0f} seconds")
        return Outcome(process.returncode, out, err)

    def _watch(self, step: Step) -> Outcome:
        """A watch has no end of its own: it is ended once it has said everything, or when patience is over."""
        process = _start(f"exec {step.run}", self.environment(step.who))
        output = ""
        for number in range(1, ROUNDS + 1):
            output += _read(process, ROUND, step, output)
            if process.poll() is not None or _complete(step, output):
                break
            change = self._run(step.meanwhile, step.who, number)
            if change.rc:
                output += f"\n{step.meanwhile} failed: {change.err}"
                break
        out, err = _end(process)
        return Outcome(step.rc if _complete(step, output + out) else -1, output + out, err)


def _start(line: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["sh", "-c", line],
        env=environment,
        cwd=MANIFESTS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(process: "subprocess.Popen[str]") -> tuple[str, str]:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the shell and every kubectl in it
    return process.communicate(timeout=5)


def _complete(step: Step, said: str) -> bool:
    return all(found(pattern, said) for pattern in listed(step.out))


def _read(process: "subprocess.Popen[str]", seconds: float, step: Step, before: str) -> str:
    """What it says within so many seconds, or until nothing is missing."""
    assert process.stdout is not None
    output, deadline = "", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not _complete(step, before + output):
        if not select.select([process.stdout], [], [], min(left, QUIET) if output else left)[0]:
            break
        piece = os.read(process.stdout.fileno(), 65536).decode()
        if not piece:
            break
        output += piece
    return output


def open_shell(kubectl: Kubectl, server: Server, home: Path) -> Shell:
    home.mkdir()
    (home / "kubectl").symlink_to(kubectl.path)
    people = {
        "admin": server.kubeconfig,
        "viewer": server.mint("vera", "lattice:viewers"),
        "nobody": server.mint("bob", "guests"),
        "system": server.mint("robot", "lattice:system"),
        "token": server.mint("toni", "lattice:admins", token=True),
    }
    forged = home / "forged.kubeconfig"
    forged.write_text(re.sub(r"token: .*", "token: lat-0123456789ab.forged", people["token"].read_text()))
    return Shell(home, {**people, "forger": forged})
