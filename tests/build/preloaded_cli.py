"""A preloaded `lattice`: each command is a process forked from one that has imported everything, because
importing is most of the cost of a command."""

import contextlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = (
    "lattice.kinds",
    "lattice.engine",
    "lattice.placement",
    "lattice.placement.plugins",
    "lattice.scheduling",
    "lattice.cli",
)
NOT_HERE = (
    "agent",
    "lead",
    "serve",
    "server",
    "sim",
    "up",
)  # of cli: long-running servers have threads, with which forking is unsafe


class Command(NamedTuple):
    words: list[str]
    folder: str
    environment: dict[str, str]
    out: str  # file that standard output goes to
    err: str


class PreloadedCli:
    """The one that has imported everything, and waits for commands."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, command: Command) -> int:
        """Its exit code, once it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def preloaded_cli() -> Iterator[PreloadedCli]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, Path(__file__)], **pipes) as process:
        yield PreloadedCli(process)


def _load() -> None:
    for name in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
            if name != "lattice.cli" or module.name not in NOT_HERE:
                importlib.import_module(f"{name}.{module.name}")


def _become(command: Command) -> None:
    os.chdir(command.folder)
    os.environ.clear()
    os.environ.update(command.environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, command.out), (2, command.err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.argv = ["lattice", *command.words]
    importlib.import_module("lattice.__main__").run()


def _serve() -> None:
    _load()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(Command(*json.loads(line)))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
