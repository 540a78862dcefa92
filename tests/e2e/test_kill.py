"""A server that is killed during writes keeps exactly the acknowledged writes."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest
from build.crash_clients import WriteHistory, Writer, WriteRecord
from build.servers import Server, start
from build.wire import CONFIGMAPS, Wire

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(1200)]

WRITERS = 8
LOG = "SELECT id >> 7, substr(path, 9), previous_revision, value FROM log WHERE resource = 'configmaps' AND path LIKE 'default/%' ORDER BY id"
NOW = "SELECT substr(path, 9), revision FROM objects WHERE resource = 'configmaps' AND path LIKE 'default/%'"


@dataclass(frozen=True)
class Row:
    """What the store says has happened."""

    revision: int
    name: str
    replaced: int
    marker: str  # of what it wrote; empty: deleted


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.prove)])
def test_killed_server_keeps_acknowledged_writes(kills: int, tmp_path: Path) -> None:
    memory, seed = WriteHistory(), time.time_ns() % 1_000_000
    print(f"\nseed {seed}")
    for round_number in range(kills):
        _kill_under_load(tmp_path, memory, random.Random(seed + round_number))
    server = start(tmp_path)
    shown = _shown(server)
    assert server.stop() == 0
    rows, now = _read(tmp_path / "state.db")
    assert now == shown == _replayed(rows)
    _check(memory.deeds, rows)
    figures = Counter(deed.outcome for deed in memory.deeds)
    print(f"{kills} kills, {len(memory.deeds)} writes: {dict(figures)}; {len(rows)} in the log")
    assert memory.failures == []
    assert figures["ok"] > 20 * kills
    assert figures["refused"] > kills
    assert figures["unknown"] > 0


def _kill_under_load(folder: Path, memory: WriteHistory, rng: random.Random) -> None:
    server = start(folder)
    assert Wire(server.kubeconfig).revision >= memory.newest
    writers = [Writer(server.kubeconfig, memory, rng.randrange(1 << 32)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(rng.uniform(0.2, 0.8))
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(10)
    assert server.process.stdout is not None
    server.process.stdout.close()
    for writer in writers:
        writer.join(20)
        assert not writer.is_alive()


def _shown(server: Server) -> dict[str, int]:
    items = Wire(server.kubeconfig).get(CONFIGMAPS).value["items"]
    return {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in items}


def _read(path: Path) -> tuple[list[Row], dict[str, int]]:
    """The log and the objects, from the file alone, which must be sound."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.pragma("integrity_check") == "ok"
    rows = [
        Row(revision, name, replaced or 0, _marker(value))
        for revision, name, replaced, value in db.execute(LOG)
    ]
    now = dict(db.execute(NOW))
    db.close()
    return rows, now


def _marker(value: bytes | None) -> str:
    if value is None:
        return ""
    marker: str = json.loads(value)["data"]["marker"]
    return marker


def _replayed(rows: list[Row]) -> dict[str, int]:
    """The objects that the log leads to; every change must build on the one before."""
    state: dict[str, int] = {}
    for row in rows:
        assert row.replaced == state.get(row.name, 0), row
        if row.marker:
            state[row.name] = row.revision
        else:
            del state[row.name]
    return state


def _check(deeds: list[WriteRecord], rows: list[Row]) -> None:
    _check_told_against_done(deeds, rows)
    _check_order(deeds, rows)


def _check_told_against_done(deeds: list[WriteRecord], rows: list[Row]) -> None:
    """An acknowledged write is done exactly once, a refused one never, an unknown one at most once; no other write is done."""
    done = Counter((row.name, row.replaced, row.marker) for row in rows)
    assert max(done.values()) == 1
    assert max(Counter((deed.name, deed.expects, deed.marker) for deed in _acknowledged(deeds)).values()) == 1
    possible: set[tuple[str, int, str]] = set()
    for deed in deeds:
        act = (deed.name, deed.expects, deed.marker)
        assert not (deed.doomed and deed.outcome == "ok"), deed
        if deed.outcome == "ok":
            assert done[act] == 1, f"acknowledged and lost: {deed}"
        if deed.outcome != "refused":
            possible.add(act)
    assert set(done) <= possible, "refused, or asked by nobody, and yet done"


def _check_order(deeds: list[WriteRecord], rows: list[Row]) -> None:
    """Each revision is acknowledged once, as logged, and revisions grow with time."""
    logged = [row.revision for row in rows]
    assert logged == sorted(set(logged))
    revision_of = {(row.name, row.replaced, row.marker): row.revision for row in rows}
    for deed in _acknowledged(deeds):
        revision = revision_of[deed.name, deed.expects, deed.marker]
        assert deed.revision in (0, revision), deed
        assert revision > deed.floor, deed
    told = [deed.revision for deed in _acknowledged(deeds) if deed.revision]
    assert len(set(told)) == len(told)


def _acknowledged(deeds: list[WriteRecord]) -> Iterator[WriteRecord]:
    return (deed for deed in deeds if deed.outcome == "ok")


GOOD = [
    WriteRecord("create", "a", "m1", 0, 4, outcome="ok", revision=5),
    WriteRecord("update", "a", "m2", 5, 5, outcome="ok", revision=7),
]
DONE = [Row(5, "a", 0, "m1"), Row(7, "a", 5, "m2")]


@pytest.mark.parametrize(
    ("deeds", "rows"),
    [
        pytest.param(GOOD, DONE[:1], id="an acknowledged write is lost"),
        pytest.param(
            [*GOOD, WriteRecord("update", "a", "m3", 7, 7, outcome="refused")],
            [*DONE, Row(8, "a", 7, "m3")],
            id="a refused one is done",
        ),
        pytest.param(GOOD, [*DONE, Row(8, "b", 0, "m9")], id="a write that no client sent"),
        pytest.param(GOOD, [*DONE, Row(8, "a", 5, "m2")], id="a write is done twice"),
        pytest.param(
            [*GOOD, WriteRecord("create", "b", "m4", 0, 7, outcome="ok", revision=7)],
            [*DONE, Row(8, "b", 0, "m4")],
            id="revision reused",
        ),
        pytest.param(
            [*GOOD, WriteRecord("create", "b", "m4", 0, 7, outcome="ok")],
            [Row(3, "b", 0, "m4"), *DONE],
            id="time runs backwards",
        ),
    ],
)
def test_check_detects_lost_or_invented_writes(deeds: list[WriteRecord], rows: list[Row]) -> None:
    with pytest.raises(AssertionError):
        _check(deeds, rows)


def test_check_accepts_correct_state() -> None:
    _check(GOOD, DONE)
