"""Log files of processes with bounded size: append, rotate while the process writes, and read.

The process itself holds the file, opened for appending, and can write while no agent runs. Rotation therefore
copies and then truncates the file; output in the microseconds between copy and truncation is lost.
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
    """The size limits of a log: the current file is rotated once it has more than `max_bytes`, and an older
    file keeps at most the last 2 * `max_bytes`."""

    max_bytes: int = 10 * 1024 * 1024
    max_older_files: int = 3


def rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate(path: Path, rotation: Rotation) -> bool:
    """Rotate the log if the file is too large; return whether the log was rotated.

    On a full disk the copy is incomplete or missing, and the log is truncated all the same: a lost log is
    better than a full disk.
    """
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
    if rotation.max_older_files > 0:
        # Copy only the end of the file: a log that grew while no agent ran must not fill the disk again.
        with suppress(OSError), path.open("rb") as source, rotated_path(path, 1).open("wb") as sink:
            source.seek(-min(path.stat().st_size, 2 * rotation.max_bytes), os.SEEK_END)
            while block := source.read(READ_BLOCK_BYTES):
                sink.write(block)
    os.truncate(path, 0)
    return True


def tail(path: Path, lines: int, rotation: Rotation) -> str:
    """The last lines of the current and older files, in the order of writing."""
    if lines <= 0:
        return ""
    parts: list[bytes] = []
    line_count = 0
    older = (rotated_path(path, number) for number in range(1, rotation.max_older_files + 1))
    for file in (path, *older):
        for block in _backwards(file):
            parts.append(block)
            line_count += block.count(b"\n")
            if line_count > lines:
                return _last_lines(parts, lines)
    return _last_lines(parts, lines)


def read_since(path: Path, position: int) -> tuple[str, int]:
    """The text after a byte position, in complete characters, and its end position; a truncated file is read
    from the start."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if position < 0:
                return "", size
            start = position if position <= size else 0
            file.seek(start)
            block = file.read(MAX_READ_BYTES)
    except FileNotFoundError:
        return "", 0
    # An incomplete character at the end of the block is left for the next read.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(block)
    return text, start + len(block) - len(decoder.getstate()[0])


def _backwards(path: Path) -> Iterator[bytes]:
    """The blocks of a file from its end to its start."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            size = min(READ_BLOCK_BYTES, position)
            position = file.seek(position - size)
            yield file.read(size)


def _last_lines(parts: list[bytes], lines: int) -> str:
    text = b"".join(reversed(parts)).decode("utf-8", "replace")
    return "".join(text.splitlines(keepends=True)[-lines:])
