"""A server loses no acknowledged write when the power of its disk is cut.

The disk is a file with ext4 in it; a copy of the file lacks the pages that the file system keeps in memory, as after a power cut.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from build.crash_clients import WriteHistory, Writer
from build.servers import start
from build.wire import CONFIGMAPS, Wire

pytestmark = [pytest.mark.prove, pytest.mark.xdist_group("power"), pytest.mark.timeout(2400)]

CUTS, MEBIBYTES, WRITERS = 50, 96, 4


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(at)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no disk of our own can be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def _a_disk(path: Path) -> None:
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk of our own needs root and mkfs.ext4")
    with path.open("wb") as file:
        file.truncate(MEBIBYTES << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], check=True, capture_output=True)


def _cut(folder: Path, number: int) -> tuple[int, int]:
    """How many writes were acknowledged before everything stood still, and how many of them are not in the copy."""
    image, copy = folder / "disk.img", folder / "found.img"
    _a_disk(image)
    with _mounted(image, folder / "disk") as disk:
        server, memory = start(disk / "state"), WriteHistory()
        writers = [Writer(server.kubeconfig, memory, number * WRITERS + each) for each in range(WRITERS)]
        for writer in writers:
            writer.start()
        time.sleep(random.Random(number).uniform(0.5, 1.5))
        server.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
        with memory.lock:
            told = [deed for deed in memory.deeds if deed.outcome == "ok" and deed.revision]
        shutil.copyfile(image, copy)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        for writer in writers:
            writer.join(20)
    with _mounted(copy, folder / "found") as found:
        db = apsw.Connection(str(found / "state" / "state.db"))
        assert db.pragma("integrity_check") == "ok"
        there = {row[0] for row in db.execute("SELECT id >> 7 FROM log")}
        db.close()
        lost = [deed for deed in told if deed.revision not in there]
        if not lost:
            _serves(found / "state", max((deed.revision for deed in told), default=0))
    return len(told), len(lost)


def _serves(state: Path, newest: int) -> None:
    """A server starts from what was found, and goes on counting from there."""
    server = start(state)
    try:
        wire = Wire(server.kubeconfig)
        assert wire.revision >= newest
        assert wire.get(CONFIGMAPS).status == 200
    finally:
        server.stop()


def test_power_cut_loses_no_acknowledged_write(tmp_path: Path) -> None:
    told = lost = 0
    for number in range(CUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        acknowledged, missing = _cut(folder, number)
        told, lost = told + acknowledged, lost + missing
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{CUTS} power cuts, {told:,} writes acknowledged before, {lost} lost")
    assert (lost, told > 20 * CUTS) == (0, True)


def test_power_cut_check_detects_unsynced_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with synchronous=NORMAL, put into the server as it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        "import apsw\n"
        "def lazily(db):\n"
        "    db.set_authorizer(lambda what, name, value, *_: apsw.SQLITE_IGNORE\n"
        "                      if what == apsw.SQLITE_PRAGMA and name == 'synchronous' and value == 'FULL' else apsw.SQLITE_OK)\n"
        "    db.execute('PRAGMA synchronous = NORMAL')\n"
        "apsw.connection_hooks.append(lazily)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for number in range(CUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, missing = _cut(folder, number)
        shutil.rmtree(folder, ignore_errors=True)
        if missing:
            return
    pytest.fail("no power cut of so many lost anything")
