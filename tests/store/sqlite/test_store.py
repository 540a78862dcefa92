"""Behaviour that only the SQLite store has: reopening, locks, full disks, failed syncs and kills."""

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
from build.store_keys import PODS, pod
from build.virtual import VirtualClock

from lattice.clock import Clock, SystemClock
from lattice.errors import Conflict, Fenced, Full, Gone, Unavailable
from lattice.store.protocol import ABSENT, REQUEST_ID_TTL_S, Put
from lattice.store.sqlite.store import SqliteStore


@asynccontextmanager
async def open_sqlite_store(file: Path, clock: Clock | None = None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(file, clock or SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def values(store: SqliteStore, revision: int = 0) -> list[bytes]:
    return [entry.value for entry in (await store.list(PODS, revision=revision)).entries]


async def test_reopened_store_keeps_everything(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        first = await store.commit([Put(pod("x"), b"1")], request_id="r")
        second = await store.commit([Put(pod("x"), b"2")])
        term = await store.campaign("lead", "one", 15)
        assert term is not None
        assert term.number == 1
    async with open_sqlite_store(tmp_path / "state.db") as store:
        assert await store.revision() == second
        assert await values(store) == [b"2"]
        assert await values(store, first) == [b"1"]
        assert await store.commit([Put(pod("x"), b"1")], request_id="r") == first
        assert [batch.revision for batch in await (await store.watch(PODS, 1)).next(5)] == [first, second]
        term = await store.campaign("lead", "two", 15)
        assert term is not None
        assert term.number == 2
        assert await store.commit([Put(pod("y"), b"")], fence=term) == second + 1


async def test_revisions_are_never_reused(tmp_path: Path) -> None:
    seen = [1]
    for _ in range(4):
        async with open_sqlite_store(tmp_path / "state.db") as store:
            assert await store.revision() == seen[-1]
            for _ in range(3):
                entry = await store.get(pod("x"))
                seen.append(await store.commit([Put(pod("x"), b"", entry.revision if entry else ABSENT)]))
                assert seen[-1] > seen[-2]
            await store.compact(seen[-1])


async def test_compaction_survives_reopen_and_empties_log(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with open_sqlite_store(file) as store:
        for number in range(30):
            await store.commit([Put(pod(f"n{number}-{i}"), b"") for i in range(100)])
        await store.compact(await store.revision() - 1)
    db = apsw.Connection(str(file))
    assert db.execute("SELECT count(*) FROM log").get == 100
    assert db.execute("PRAGMA integrity_check").get == "ok"
    db.close()
    async with open_sqlite_store(file) as store:
        newest = await store.revision()
        with pytest.raises(Gone):
            await store.watch(PODS, newest - 2)
        with pytest.raises(Gone):
            await store.list(PODS, revision=newest - 2)
        assert len((await store.list(PODS, revision=newest - 1)).entries) == 2900


async def test_commits_continue_during_compaction(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        for number in range(60):
            await store.commit([Put(pod(f"n{number}-{i}"), b"x" * 100) for i in range(100)])
        compacting = asyncio.ensure_future(store.compact(await store.revision()))
        await asyncio.sleep(0)
        done = 0
        while not compacting.done():
            await store.commit([Put(pod("busy"), b"")])
            done += 1
        assert done >= 5


async def test_long_past_watch_is_chunked_and_complete(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        for number in range(35):
            await store.commit([Put(pod(f"n{i}"), b"%d" % number) for i in range(99)])
    async with open_sqlite_store(tmp_path / "state.db") as store:
        watch = await store.watch(PODS, 1)
        seen = [(batch.revision, len(batch.changes)) for _ in range(4) for batch in await watch.next(5)]
        assert seen == [(revision, 99) for revision in range(2, 37)]
        live = await store.commit([Put(pod("live"), b"")])
        assert [batch.revision for batch in await watch.next(5)] == [live]


async def test_request_ids_expire(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_sqlite_store(tmp_path / "state.db", clock) as store:
        first = await store.commit([Put(pod("x"), b"")], request_id="r")
        clock.jump(REQUEST_ID_TTL_S - 1)
        assert await store.commit([Put(pod("x"), b"")], request_id="r") == first
        clock.jump(2)
        assert await store.commit([Put(pod("x"), b"")], request_id="r") > first
        clock.jump(REQUEST_ID_TTL_S + 20)
        await store.commit([Put(pod("x"), b"")])
    db = apsw.Connection(str(tmp_path / "state.db"))
    assert db.execute("SELECT count(*) FROM requests").get == 0
    db.close()


OPEN_ONLY = """
import asyncio, sys
from lattice.clock import SystemClock
from lattice.store.sqlite.store import SqliteStore
asyncio.run(SqliteStore.open(sys.argv[1], SystemClock()))
"""


async def test_second_process_is_rejected_with_owner_pid(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with open_sqlite_store(file):
        with pytest.raises(Conflict, match=rf"is in use by another process \(pid {os.getpid()}\)"):
            await SqliteStore.open(file, SystemClock())
        command = [sys.executable, "-c", OPEN_ONLY, str(file)]
        other = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
        assert "is in use by another process" in other.stderr
    async with open_sqlite_store(file):
        pass


async def test_lock_of_killed_process_is_released(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.db"
    script = f"""
        import asyncio, os, signal
        from lattice.clock import SystemClock
        from lattice.store.protocol import Key, Put
        from lattice.store.sqlite.store import SqliteStore

        async def main():
            store = await SqliteStore.open({str(file)!r}, SystemClock())
            await store.commit([Put(Key("pods", "a", "x"), b"acknowledged")])
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "5"])
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """
    assert (
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=30, check=False).returncode
        == -9
    )
    async with open_sqlite_store(file) as store:
        assert await values(store) == [b"acknowledged"]


async def test_newer_schema_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with open_sqlite_store(file):
        pass
    db = apsw.Connection(str(file))
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(
        Conflict,
        match=re.escape("was written by a newer Lattice: the schema is 99, but this version supports 1"),
    ):
        await SqliteStore.open(file, SystemClock())


async def fill(store: SqliteStore) -> int:
    """Write until the store is full; returns the number of acknowledged writes."""
    for number in range(10_000):
        try:
            await store.commit([Put(pod(f"n{number:05}"), os.urandom(20_000))])
        except Full:
            return number
    raise AssertionError("the disk never filled")


async def test_page_limit_rejects_commits_but_serves_reads(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        store._writer_state.db.pragma("max_page_count", 200)
        acknowledged = await fill(store)
        revision = await store.revision()
        assert len(await values(store)) == acknowledged > 0
        outcomes = await asyncio.gather(
            *(store.commit([Put(pod(f"m{i}"), b"x" * 30_000)]) for i in range(8)), return_exceptions=True
        )
        assert all(isinstance(outcome, Full) for outcome in outcomes)
        assert await store.revision() == revision
        store._writer_state.db.pragma("max_page_count", 100_000)
        assert await store.commit([Put(pod("again"), b"")]) == revision + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("mounting a small disk needs root: in CI this test must run")
        pytest.skip("mounting a small disk needs root")
    return tmp_path


async def test_full_disk_rejects_writes_and_recovers(small_disk: Path) -> None:
    disk = small_disk / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        async with open_sqlite_store(disk / "state.db") as store:
            acknowledged = await fill(store)
            assert acknowledged > 10
            assert len(await values(store)) == acknowledged
            for _ in range(3):
                with pytest.raises(Full, match="the disk is full: nothing was written"):
                    await store.commit([Put(pod("more"), os.urandom(300_000))])
            await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=8m", str(disk)], check=True)
            await store.commit([Put(pod("more"), os.urandom(300_000))])
            assert len(await values(store)) == acknowledged + 1
        async with open_sqlite_store(disk / "state.db") as store:
            assert len(await values(store)) > 10
    finally:
        subprocess.run(["umount", str(disk)], check=True)


FAILING_SYNC = """
    import asyncio, apsw, sys
    from lattice.clock import SystemClock
    from lattice.store.protocol import Key, Put
    from lattice.store.sqlite.store import SqliteStore

    broken = False

    class File(apsw.VFSFile):
        def xSync(self, flags):
            if broken:
                raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
            return super().xSync(flags)

    class Disk(apsw.VFS):
        def __init__(self):
            super().__init__("breakable", "unix", makedefault=True)
        def xOpen(self, name, flags):
            return File("unix", name, flags)

    async def main():
        global broken
        store = await SqliteStore.open(FILE, SystemClock())
        await store.commit([Put(Key("pods", "a", "x"), b"acknowledged")])
        broken = True
        await store.commit([Put(Key("pods", "a", "x"), b"lost")])
        print("acknowledged what was not synced")

    disk = Disk()
    asyncio.run(main())
"""


async def test_failed_fsync_exits_the_process(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    script = textwrap.dedent(FAILING_SYNC).replace("FILE", repr(str(file)))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 70, ended.stderr
    assert ended.stdout == ""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"lattice: writing to {file} failed: ")
    async with open_sqlite_store(file) as store:
        assert (await values(store))[0] in (b"acknowledged", b"lost")


async def test_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db", SystemClock())
    last = [asyncio.ensure_future(store.commit([Put(pod(f"n{i}"), b"")])) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert sorted(await asyncio.gather(*last)) == list(range(2, 22))
    with pytest.raises(Unavailable, match="closed"):
        await store.commit([Put(pod("x"), b"")])


async def test_terms_of_former_process_are_fenced(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        term = await store.campaign("lead", "one", 15)
    async with open_sqlite_store(tmp_path / "state.db") as store:
        assert term is not None
        assert await store.commit([Put(pod("x"), b"")], fence=term) > 1
        assert not await store.renew(term)
        assert await store.campaign("lead", "one", 15) is not None
        with pytest.raises(Fenced):
            await store.commit([Put(pod("x"), b"")], fence=term)


async def test_long_list_does_not_block_event_loop(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "state.db") as store:
        for number in range(100):
            await store.commit([Put(pod(f"n{number:03}-{i:02}"), b"x" * 500) for i in range(100)])
        listing = asyncio.ensure_future(store.list(PODS))
        turns = 0
        while not listing.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await listing).entries) == 10_000
        assert turns > 10


BUSY = """
import asyncio, itertools, sys
from lattice.clock import SystemClock
from lattice.store.protocol import Key, Put
from lattice.store.sqlite.store import SqliteStore

async def write(store, numbers):
    for number in numbers:
        await store.commit([Put(Key("pods", "a", f"{number}-{side}"), b"x" * 1000) for side in ("left", "right")])
        sys.stdout.write(f"{number}\\n")

async def main():
    store = await SqliteStore.open(sys.argv[1], SystemClock())
    numbers = itertools.count()
    await asyncio.gather(*(write(store, numbers) for _ in range(32)))

sys.stdout.reconfigure(line_buffering=True)
asyncio.run(main())
"""


async def test_kill_keeps_acknowledged_commits_whole(tmp_path: Path) -> None:
    file, command = tmp_path / "state.db", [sys.executable, "-c", BUSY, str(tmp_path / "state.db")]
    acknowledged: set[str] = set()
    for lines in (1, 300, 2000):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            acknowledged |= {server.stdout.readline().strip() for _ in range(lines)}
            server.kill()
            acknowledged |= {line.strip() for line in server.stdout.readlines() if line.endswith("\n")}

    async with open_sqlite_store(file) as store:
        names = [entry.key.name for entry in (await store.list(PODS)).entries]
        left, right = (
            {name.partition("-")[0] for name in names if name.endswith(side)} for side in ("left", "right")
        )
        assert left == right >= acknowledged
        assert len(acknowledged) >= 2000
