"""A disk that records writes and syncs in order, so that a power cut can be replayed at any moment.

After a cut a file holds all synced data and any subset of the sectors written since.
"""

import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512
BASE = "unix"


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """A write of `data`, a truncation to `size`, a deletion (`is_gone`, which a cut may undo), or else a
    sync."""

    file: str
    offset: int = 0
    data: bytes | None = None
    size: int | None = None
    is_gone: bool = False

    @property
    def is_sync(self) -> bool:
        return self.data is None and self.size is None and not self.is_gone


@dataclass
class RecordingDisk:
    """The operations on the files of one folder."""

    operations: list[DiskOperation] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, operation: DiskOperation) -> None:
        with self.lock:
            self.operations.append(operation)

    def sync_folder(self) -> None:
        """Make deletions durable."""
        with self.lock:
            last = {operation.file: operation for operation in self.operations}
            self.operations += [DiskOperation(file) for file, operation in last.items() if operation.is_gone]

    @property
    def moment(self) -> int:
        with self.lock:
            return len(self.operations)

    def cut(self, moment: int, folder: Path, rng: random.Random) -> None:
        """Write the files as they may be after a power cut at that moment."""
        past = self.operations[:moment]
        for file in dict.fromkeys(operation.file for operation in past):
            own = [operation for operation in past if operation.file == file]
            synced = max((at for at, operation in enumerate(own) if operation.is_sync), default=-1)
            content = _replayed(None, own[: synced + 1])
            result = _replayed(content, _survivors(own[synced + 1 :], rng))
            if result is not None:
                (folder / Path(file).name).write_bytes(result)


def _survivors(pending: Iterable[DiskOperation], rng: random.Random) -> list[DiskOperation]:
    """A random part of the unsynced sectors, in random order."""
    fate = rng.choice((0.0, 0.5, 0.9, 1.0))
    results = []
    for operation in pending:
        if operation.data is None:
            results += [operation] if rng.random() < fate else []
            continue
        for start in range(0, len(operation.data), SECTOR):
            if rng.random() < fate:
                results.append(
                    DiskOperation(
                        operation.file, operation.offset + start, operation.data[start : start + SECTOR]
                    )
                )
    return results


def _replayed(content: bytearray | None, operations: Iterable[DiskOperation]) -> bytearray | None:
    """The content after these operations; None: the file does not exist."""
    for operation in operations:
        if operation.is_gone:
            content = None
        if operation.is_gone or operation.is_sync:
            continue
        content = bytearray() if content is None else content
        if operation.size is not None:
            del content[operation.size :]
        elif operation.data is not None:
            content.extend(bytes(max(0, operation.offset - len(content))))
            content[operation.offset : operation.offset + len(operation.data)] = operation.data
    return content


class RecordingVfs(apsw.VFS):
    """The SQLite VFS through which every connection writes to the disk."""

    def __init__(self, disk: RecordingDisk, name: str) -> None:
        self.disk = disk
        super().__init__(name, BASE, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> "_File":
        return _File(self.disk, name, flags)

    def xDelete(self, name: str, is_durable: bool) -> None:
        """A deletion that is not durable may be undone by a cut."""
        super().xDelete(name, is_durable)
        self.disk.note(DiskOperation(name, is_gone=True))
        if is_durable:
            self.disk.note(DiskOperation(name))


class _File(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, name: Any, flags: Any) -> None:
        self.disk, self.file = disk, name.filename() if isinstance(name, apsw.URIFilename) else (name or "")
        self.is_new = self.file.endswith(("-wal", "-journal")) and not Path(self.file).exists()
        super().__init__(BASE, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self.disk.note(DiskOperation(self.file, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self.disk.note(DiskOperation(self.file, size=size))

    def xSync(self, flags: int) -> None:
        """The first sync of a new log or journal also syncs its folder, as SQLite's own VFS does."""
        super().xSync(flags)
        self.disk.note(DiskOperation(self.file))
        if self.is_new:
            self.is_new = False
            self.disk.sync_folder()
