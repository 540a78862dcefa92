"""What a process prints, in a file of bounded size: its last lines, and rotation while it writes.

The process holds the file itself, opened for appending, so it can print on when the agent is dead. Rotation therefore copies and then
empties the file; what is printed in the microseconds between the two is lost.
"""

import codecs
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

READ_BLOCK_BYTES = 64 * 1024
MAX_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Rotation:
    """How much is kept: the file and `keep` older ones, each about `max_bytes` and never twice as much."""

    max_bytes: int = 10 * 1024 * 1024
    max_older_files: int = 3


def rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate(path: Path, rotation: Rotation) -> bool:
    """Move what was printed aside if it is too much. On a full disk the oldest goes and the file is emptied: better no log than no disk."""
    try:
        if path.stat().st_size <= rotation.max_bytes:
            return False
    except FileNotFoundError:
        return False
    with suppress(FileNotFoundError):
        rotated_path(path, rotation.max_older_files).unlink()
    for number in range(rotation.max_older_files - 1, 0, -1):
        with suppress(FileNotFoundError):
            rotated_path(path, number).rename(rotated_path(path, number + 1))
    with suppress(OSError):
        _copy(path, rotated_path(path, 1), rotation)
    os.truncate(path, 0)
    return True


def _copy(path: Path, target: Path, rotation: Rotation) -> None:
    """Not all of a file that grew while no agent lived: it must not fill the disk a second time."""
    if rotation.max_older_files == 0:
        return
    with path.open("rb") as source, target.open("wb") as sink:
        source.seek(-min(path.stat().st_size, 2 * rotation.max_bytes), os.SEEK_END)
        while block := source.read(READ_BLOCK_BYTES):
            sink.write(block)


def tail(path: Path, lines: int, rotation: Rotation) -> str:
    """The last lines over the file and the older ones, in the order in which they were printed."""
    if lines <= 0:
        return ""
    parts: list[bytes] = []
    have = 0
    for each in (path, *(rotated_path(path, number) for number in range(1, rotation.max_older_files + 1))):
        for block in _backwards(each):
            parts.append(block)
            have += block.count(b"\n")
            if have > lines:
                return _last_lines(parts, lines)
    return _last_lines(parts, lines)


def read_since(path: Path, after: int) -> tuple[str, int]:
    """What was printed after so many bytes, in whole characters, and where that ends. A file that was emptied is read anew."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if after < 0:
                return "", size
            start = after if after <= size else 0
            file.seek(start)
            block = file.read(MAX_READ_BYTES)
    except FileNotFoundError:
        return "", 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(block)
    return text, start + len(block) - len(decoder.getstate()[0])


def _backwards(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            size = min(READ_BLOCK_BYTES, position)
            position = file.seek(position - size)
            yield file.read(size)


def _last_lines(parts: list[bytes], lines: int) -> str:
    text = b"".join(reversed(parts)).decode("utf-8", "replace")
    return "".join(text.splitlines(keepends=True)[-lines:])
