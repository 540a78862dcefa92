"""Tables for reading: numbers to the right, a last column that is folded where it would be too wide, long lists cut short."""

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lattice.cli import render

FEW = 50  # rows, unless all are asked for
NARROWEST = 30  # characters that a last column is folded into, at least
_COLOURS = {"+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m", "!": "\x1b[33m"}
_PLAIN = "\x1b[0m"

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw: all rows and columns or the ones that matter, into how many characters (0: any), with colours or not."""

    wide: bool = False
    columns: int = 0
    colour: bool = False

    def table(self, heads: Row, rows: Sequence[Row], right: Collection[int] = ()) -> list[str]:
        """Nothing if there are no rows. `right`: columns of numbers."""
        if not rows:
            return []
        kept = self._few(rows)
        lines = [self._marked(line) for line in self._aligned([heads, *kept], right)]
        rest = len(rows) - len(kept)
        return [*lines, f"  and {rest:,} more; -o wide lists all"] if rest else lines

    def rows(self, rows: Sequence[Row]) -> list[str]:
        """Aligned, without heads."""
        return self._aligned(rows, ()) if rows else []

    def _few(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows if self.wide else rows[:FEW]

    def _aligned(self, rows: Sequence[Row], right: Collection[int]) -> list[str]:
        safe = [[render.cell(each) for each in row] for row in rows]
        widths = [max(len(row[column]) for row in safe) for column in range(len(safe[0]))]
        for row in safe:
            for column in right:
                row[column] = row[column].rjust(widths[column])
        return self._folded(safe, [_with_gap(width) for width in widths])

    def _folded(self, rows: list[list[str]], widths: list[int]) -> list[str]:
        before = sum(widths[:-1])
        room = max(NARROWEST, self.columns - before) if self.columns else 0
        lines: list[str] = []
        for *cells, last in rows:
            first, *more = self.wrapped(last, room)
            lines.append("".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), first]).rstrip())
            lines.extend(" " * before + part for part in more)
        return lines

    @staticmethod
    def wrapped(text: str, room: int) -> list[str]:
        folded = room and len(text) > room
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if folded else [text]

    def _marked(self, line: str) -> str:
        mark = _COLOURS.get(line[:1]) if self.colour and line[1:2] == " " else None
        return f"{mark}{line[0]}{_PLAIN}{line[1:]}" if mark else line

    def bullets(self, texts: Sequence[str]) -> list[str]:
        """Remarks, each folded under itself."""
        kept = texts if self.wide else texts[:FEW]
        lines = [line for text in kept for line in self._bullet(text)]
        rest = len(texts) - len(kept)
        return [*lines, f"  and {rest:,} more; -o wide lists all"] if rest else lines

    def _bullet(self, text: str) -> list[str]:
        first, *more = self.wrapped(render.cell(text), max(NARROWEST, self.columns - 2) if self.columns else 0)
        return [self._marked(f"! {first}"), *(f"  {part}" for part in more)]


def _with_gap(width: int) -> int:
    """A column that only marks what happens to a row stands close to it."""
    return width + render.GAP if width > 1 else 2


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def blocks(*parts: Sequence[str]) -> list[str]:
    """With an empty line between those that have something to say."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += [*([""] if lines else []), *part]
    return lines
