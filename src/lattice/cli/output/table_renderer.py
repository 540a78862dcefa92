"""Tables for reading: numbers to the right, columns of words folded where they would be too wide, long lists cut short."""

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lattice.cli.output import render

MAX_ROWS = 50  # rows, unless all are asked for
MIN_COLUMN_CHARS = 30  # characters that a column is folded into, at least
_COLOURS = {"+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m", "!": "\x1b[33m"}
_PLAIN = "\x1b[0m"

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class TableRenderer:
    """How to draw: all rows and columns or the ones that matter, into how many characters (0: any), with colours or not."""

    wide: bool = False
    max_width: int = 0
    colour: bool = False

    def table(self, heads: Row, rows: Sequence[Row], right_aligned: Collection[int] = ()) -> list[str]:
        """Nothing if there are no rows. `right`: columns of numbers."""
        if not rows:
            return []
        kept = self._limit_rows(rows)
        lines = [self._colour_mark(line) for line in self._align([heads, *kept], right_aligned)]
        rest = len(rows) - len(kept)
        return [*lines, f"  and {rest:,} more; -o wide lists all"] if rest else lines

    def aligned_rows(self, rows: Sequence[Row]) -> list[str]:
        """Aligned, without heads."""
        return self._align(rows, ()) if rows else []

    def _limit_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows if self.wide else rows[:MAX_ROWS]

    def _align(self, rows: Sequence[Row], right: Collection[int]) -> list[str]:
        safe = [[render.cell(each) for each in row] for row in rows]
        widths = [max(len(row[column]) for row in safe) for column in range(len(safe[0]))]
        for row in safe:
            for column in right:
                row[column] = row[column].rjust(widths[column])
        words = [column for column in range(len(widths)) if column not in right]
        return self._wrap_rows(safe, self._fit_widths(safe, widths, words) if self.max_width else widths)

    def _fit_widths(self, rows: list[list[str]], widths: list[int], words: list[int]) -> list[int]:
        """The last column gives way first, then the widest ones of words; none below its longest word."""
        found = list(widths)
        last = len(widths) - 1
        floors = {
            column: max(len(word) for row in rows for word in row[column].split() or [""]) for column in words
        }
        for column in sorted(words, key=lambda column: (column != last, -widths[column])):
            over = sum(map(_with_gap, found[:-1])) + found[-1] - self.max_width
            if over > 0:
                least = max(floors[column], min(widths[column], MIN_COLUMN_CHARS))
                found[column] = max(least, found[column] - over)
        return found

    def _wrap_rows(self, rows: list[list[str]], widths: list[int]) -> list[str]:
        lines: list[str] = []
        for row in rows:
            parts = [self.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
            lines += [_line(cells, widths) for cells in zip_longest(*parts, fillvalue="")]
        return lines

    @staticmethod
    def wrap(text: str, room: int) -> list[str]:
        folded = room and len(text) > room
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if folded else [text]

    def _colour_mark(self, line: str) -> str:
        mark = _COLOURS.get(line[:1]) if self.colour and line[1:2] == " " else None
        return f"{mark}{line[0]}{_PLAIN}{line[1:]}" if mark else line

    def bullets(self, texts: Sequence[str]) -> list[str]:
        """Remarks, each folded under itself."""
        kept = texts if self.wide else texts[:MAX_ROWS]
        lines = [line for text in kept for line in self._bullet(text)]
        rest = len(texts) - len(kept)
        return [*lines, f"  and {rest:,} more; -o wide lists all"] if rest else lines

    def _bullet(self, text: str) -> list[str]:
        first, *more = self.wrap(
            render.cell(text), max(MIN_COLUMN_CHARS, self.max_width - 2) if self.max_width else 0
        )
        return [self._colour_mark(f"! {first}"), *(f"  {part}" for part in more)]


def _line(cells: Row, widths: list[int]) -> str:
    return "".join(cell.ljust(_with_gap(width)) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _with_gap(width: int) -> int:
    """A column that only marks what happens to a row stands close to it."""
    return width + render.COLUMN_GAP_CHARS if width > 1 else 2


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def join_blocks(*parts: Sequence[str]) -> list[str]:
    """With an empty line between those that have something to say."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += [*([""] if lines else []), *part]
    return lines
