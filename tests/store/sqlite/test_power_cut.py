"""Power cuts at any moment of a write: no acknowledged commit is lost, and no commit is partial."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from build.recording_disk import RecordingDisk, RecordingVfs

from lattice.clock import SystemClock
from lattice.store.protocol import ABSENT, Key, Put
from lattice.store.sqlite import store as sqlite
from lattice.store.sqlite.store import SqliteStore

KIND = "things"
EACH = 3  # objects in each commit: all of them or none are there
COMMITS = 60
OPENING = 8
MANY = 150  # so that there are over 1,000 moments, and as many different cuts
Acknowledged = list[tuple[int, int, int]]  # moment, number of the commit, revision


@contextmanager
def _remembering() -> Iterator[RecordingDisk]:
    disk = RecordingDisk()
    drive = RecordingVfs(disk, "remembering")
    try:
        yield disk
    finally:
        apsw.set_default_vfs("unix")
        drive.unregister()


async def _write(path: Path, disk: RecordingDisk, commits: int) -> Acknowledged:
    """Concurrent commits, each of three objects with the same value."""
    store = await SqliteStore.open(path, SystemClock())
    acknowledged: Acknowledged = []

    async def commit(number: int) -> None:
        names = [Key(KIND, "default", f"{number % 7}-{part}") for part in range(EACH)]
        found = [await store.get(key) for key in names]
        puts = [
            Put(key, b"%d " % number * 200, entry.revision if entry else ABSENT)
            for key, entry in zip(names, found, strict=True)
        ]
        revision = await store.commit(puts)
        acknowledged.append((disk.moment, number, revision))

    for start in range(0, commits, 7):
        await asyncio.gather(*(commit(number) for number in range(start, min(start + 7, commits))))
        if start % 56 == 28:
            await store.compact(await store.revision())
    await store.close()
    return acknowledged


async def _found(path: Path) -> tuple[int, dict[str, bytes]]:
    store = await SqliteStore.open(path, SystemClock())
    try:
        page = await store.list(KIND)
        return await store.revision(), {entry.key.name: entry.value for entry in page.entries}
    finally:
        await store.close()


def _check(folder: Path, moment: int, acknowledged: Acknowledged) -> str:
    """The violated guarantee, or ""."""
    db = apsw.Connection(str(folder / "state.db"))
    if db.pragma("integrity_check") != "ok":
        return "the file is damaged"
    db.close()
    revision, found = asyncio.run(_found(folder / "state.db"))
    kept = {int(value.split()[0]) for value in found.values()}
    for row in range(7):
        said = {found.get(f"{row}-{part}") for part in range(EACH)}
        if len(said) != 1:
            return f"objects {row} are of different commits"
    newest: dict[int, int] = {}
    for at, number, _ in acknowledged:
        if at <= moment:
            newest[number % 7] = max(newest.get(number % 7, -1), number)
    lost = [
        number for row, number in newest.items() if int((found.get(f"{row}-0") or b"-1").split()[0]) < number
    ]
    told = max((given for at, _, given in acknowledged if at <= moment), default=0)
    if lost or revision < told:
        return f"commits {lost} were acknowledged and are not there; revision {revision} after {told}"
    return "" if kept <= {number for _, number, _ in acknowledged} else "something that nobody wrote is there"


def _cuts(tmp_path: Path, commits: int, count: int | None = None) -> list[str]:
    """Problems found after power cuts at every moment since before the file existed, or at `count` of them."""
    state = tmp_path / "state" / "state.db"
    state.parent.mkdir()
    with _remembering() as disk:
        acknowledged = asyncio.run(_write(state, disk, commits))
    assert len(acknowledged) == commits
    every = range(disk.moment + 1)
    moments = (
        every if count is None else sorted({every[len(every) * number // count] for number in range(count)})
    )
    print(f"{len(moments)} cuts, each at another moment of {len(every)}")
    problems = []
    for moment in moments:
        folder = tmp_path / f"cut-{moment}"
        folder.mkdir()
        disk.cut(moment, folder, random.Random(moment))
        if problem := _check(folder, moment, acknowledged):
            problems.append(f"cut at {moment} of {disk.moment}: {problem}")
        shutil.rmtree(folder)
    return problems


def test_power_cut_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    assert _cuts(tmp_path, COMMITS, 25) == []


@pytest.mark.prove
def test_power_cut_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    assert _cuts(tmp_path, MANY) == []


@pytest.mark.parametrize("moment", range(OPENING))
def test_power_cut_during_creation_is_recovered(moment: int, tmp_path: Path) -> None:
    """The first moments, with a journal and no log yet: the file is opened or created anew."""
    state = tmp_path / "state" / "state.db"
    state.parent.mkdir()
    with _remembering() as disk:
        asyncio.run(_write(state, disk, 0))
    for chance in range(3):
        folder = tmp_path / f"cut-{chance}"
        folder.mkdir()
        disk.cut(moment, folder, random.Random(chance))
        assert _check(folder, moment, []) == ""


def test_missing_sync_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = sqlite._open_writer_state

    def lazily(path: Path, clock: SystemClock) -> sqlite.WriterState:
        desk = opened(path, clock)
        desk.db.execute("PRAGMA synchronous = NORMAL")
        return desk

    monkeypatch.setattr(sqlite, "_open_writer_state", lazily)
    assert any("were acknowledged and are not there" in problem for problem in _cuts(tmp_path, COMMITS, 25))
