"""Tables for a terminal: right-aligned numbers, wrapped text columns, and a limit on the number of rows."""

import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lattice.cli.output import render

# Rows of a table without `-o wide`.
MAX_ROWS = 50
# A text column is wrapped to at least this width.
MIN_COLUMN_CHARS = 30
_COLOURS = {"+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m", "!": "\x1b[33m"}
_PLAIN = "\x1b[0m"
# An amount of money at the end of a cell.
_AMOUNT = re.compile(r"\$[0-9,]+\.([0-9]+)$")

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class TableRenderer:
    """Draws tables and bullets; `wide` lists every row, `max_width` wraps lines to that many characters (0:
    no limit)."""

    wide: bool = False
    max_width: int = 0
    colour: bool = False

    def table(self, heads: Row, rows: Sequence[Row], right_aligned: Collection[int] = ()) -> list[str]:
        """Lines of a table with headers, or no lines if the table has no rows; `right_aligned` names the
        columns of numbers."""
        if not rows:
            return []
        shown = rows if self.wide else rows[:MAX_ROWS]
        lines = [self._colour_mark(line) for line in self._align([heads, *shown], right_aligned)]
        hidden = len(rows) - len(shown)
        return [*lines, f"  and {hidden:,} more; -o wide lists all"] if hidden else lines

    def aligned_rows(self, rows: Sequence[Row]) -> list[str]:
        """Lines of aligned rows without headers."""
        return self._align(rows, ()) if rows else []

    def _align(self, rows: Sequence[Row], right: Collection[int]) -> list[str]:
        safe = [[render.cell(value) for value in row] for row in rows]
        for column in right:
            _align_decimals(safe, column)
        widths = [max(len(row[column]) for row in safe) for column in range(len(safe[0]))]
        for row in safe:
            for column in right:
                row[column] = row[column].rjust(widths[column])
        if self.max_width:
            # Columns of numbers are never wrapped.
            words = [column for column in range(len(widths)) if column not in right]
            widths = self._fit_widths(safe, widths, words)
        lines: list[str] = []
        for row in safe:
            parts = [self.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
            for cells in zip_longest(*parts, fillvalue=""):
                padded = (cell.ljust(_with_gap(width)) for cell, width in zip(cells, widths, strict=True))
                lines.append("".join(padded).rstrip())
        return lines

    def _fit_widths(self, rows: list[list[str]], widths: list[int], words: list[int]) -> list[int]:
        """Column widths that fit into `max_width`: the last column shrinks first, then the widest text
        columns, none below its longest word."""
        fitted = list(widths)
        last = len(widths) - 1
        longest_words = {}
        for column in words:
            cells = (word for row in rows for word in row[column].split() or [""])
            longest_words[column] = max(map(len, cells))
        for column in sorted(words, key=lambda column: (column != last, -widths[column])):
            excess = sum(map(_with_gap, fitted[:-1])) + fitted[-1] - self.max_width
            if excess > 0:
                minimum = max(longest_words[column], min(widths[column], MIN_COLUMN_CHARS))
                fitted[column] = max(minimum, fitted[column] - excess)
        return fitted

    @staticmethod
    def wrap(text: str, room: int) -> list[str]:
        """Split text into lines of at most `room` characters, at spaces only; 0 keeps one line."""
        folded = room and len(text) > room
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if folded else [text]

    def _colour_mark(self, line: str) -> str:
        # Only a mark in a column of its own is coloured, not a name that begins with the same character.
        mark = _COLOURS.get(line[:1]) if self.colour and line[1:2] == " " else None
        return f"{mark}{line[0]}{_PLAIN}{line[1:]}" if mark else line

    def bullets(self, texts: Sequence[str]) -> list[str]:
        """Notes marked with `!`, each wrapped under its own first line."""
        shown = texts if self.wide else texts[:MAX_ROWS]
        width = max(MIN_COLUMN_CHARS, self.max_width - 2) if self.max_width else 0
        lines = []
        for text in shown:
            first, *continuation = self.wrap(render.cell(text), width)
            lines += [self._colour_mark(f"! {first}"), *(f"  {part}" for part in continuation)]
        hidden = len(texts) - len(shown)
        return [*lines, f"  and {hidden:,} more; -o wide lists all"] if hidden else lines


def _align_decimals(rows: Sequence[list[str]], column: int) -> None:
    """Pad amounts of money on the right, so that their decimal points are in one column."""
    decimals = {}
    for number, row in enumerate(rows):
        if match := _AMOUNT.search(row[column]):
            decimals[number] = len(match[1])
    most = max(decimals.values(), default=0)
    for number, count in decimals.items():
        rows[number][column] += " " * (most - count)


def _with_gap(width: int) -> int:
    """Column width with its gap; the gap of a one-character column of marks is a single space."""
    return width + render.COLUMN_GAP_CHARS if width > 1 else 2


def join_blocks(*parts: Sequence[str]) -> list[str]:
    """Join blocks of lines with an empty line between the blocks that are not empty."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += [*([""] if lines else []), *part]
    return lines
