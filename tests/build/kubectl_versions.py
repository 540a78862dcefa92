"""The kubectl binaries to test with: those on this machine, and the old one in .tools."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DEBIAN = (
    Path(__file__).parents[2] / ".tools" / "kubectl-1.20" / "usr" / "bin" / "kubectl"
)  # put there by `make tools`
OLDEST = (1, 20)  # what Debian 12 ships, and what CI must have


@dataclass(frozen=True, order=True)
class Kubectl:
    version: tuple[int, int, int]
    path: Path

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"true", "1"}


@cache
def find_kubectls() -> tuple[Kubectl, ...]:
    """Oldest first, one per version."""
    results: dict[tuple[int, int, int], Kubectl] = {}
    for path in [*_installed(), DEBIAN]:
        version = _version(path)
        if version is not None:
            results.setdefault(version, Kubectl(version, path))
    return tuple(sorted(results.values()))


def _installed() -> Iterator[Path]:
    """The one on PATH, and its siblings: Google's package puts a kubectl.1.NN per version next to a dispatcher."""
    first = shutil.which("kubectl")
    if first is None:
        return
    real = Path(first).resolve()
    yield from sorted(path for path in real.parent.glob("kubectl.1.*") if os.access(path, os.X_OK))
    yield real


def _version(path: Path) -> tuple[int, int, int] | None:
    """None for what does not run, and for the dispatcher, which would only hand over to one of its siblings."""
    try:
        done = subprocess.run(
            [path, "version", "--client", "-o", "json"], capture_output=True, timeout=20, check=True
        )
        text = json.loads(done.stdout)["clientVersion"]["gitVersion"]
        if "dispatcher" in text:
            return None
        major, minor, patch = (
            int(part) for part in text.removeprefix("v").partition("-")[0].partition("+")[0].split(".")
        )
    except (subprocess.SubprocessError, OSError, ValueError, KeyError):
        return None
    return major, minor, patch


def missing_kubectls() -> str:
    """What CI refuses to run without, in one line; empty when all is there."""
    result = find_kubectls()
    if not result:
        return "no kubectl found: put one on PATH, and run `make tools` for the oldest"
    if OLDEST not in {item.version[:2] for item in result}:
        return "no kubectl 1.20: `make tools` fetches it where apt-get knows Debian 12's kubernetes-client"
    return "" if len(result) > 1 else "only kubectl 1.20 found: put a current kubectl on PATH as well"
