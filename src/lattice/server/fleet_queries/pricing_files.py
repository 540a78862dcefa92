"""Prices and round trips from files beside the store: read when they change, so that a new file needs no new start."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from lattice.errors import LatticeError, TooLarge, Unavailable
from lattice.placement.inputs.latency import Latencies
from lattice.placement.inputs.price_book import PriceBook
from lattice.server.fleet_queries.query_schema import CsvTable

MAX_TABLE_CHARS = 64 << 20  # bytes of a file


class PricingTables(NamedTuple):
    book: PriceBook
    latency_csv: str = ""
    latency_source: str = ""

    def overridden_by(self, prices: Sequence[CsvTable], latency: CsvTable | None) -> "PricingTables":
        """With others that go before these."""
        book = self.book
        for each in prices:
            book = book.with_csv(each.csv, each.source, each.as_of)
        return PricingTables(book, latency.csv, latency.source) if latency else self._replace(book=book)


@dataclass
class PricingFiles:
    """`prices`: paths, the last goes before the others; `latency`: a path, or nothing."""

    prices: Sequence[str] = ()
    latency: str = ""
    _file_states: tuple[tuple[int, int], ...] | None = None
    _tables: PricingTables = field(default_factory=lambda: PricingTables(PriceBook.builtin()))

    def current(self) -> PricingTables:
        states = tuple(_state(path) for path in (*self.prices, *([self.latency] if self.latency else ())))
        if states != self._file_states:
            self._tables, self._file_states = self._read(), states
        return self._tables

    def _read(self) -> PricingTables:
        book = PriceBook.builtin()
        for path in self.prices:
            day = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date().isoformat()
            book = book.with_csv(_text(path), path, day)
        if not self.latency:
            return PricingTables(book)
        text = _text(self.latency)
        Latencies.of([], {}, text, self.latency)  # says what is wrong with it, if anything is
        return PricingTables(book, text, self.latency)


def split_comma_list(setting: str) -> list[str]:
    """`a.csv,b.csv`."""
    return [each.strip() for each in setting.split(",") if each.strip()]


def validate_files(prices: str, latency: str) -> None:
    """Refuses files that cannot be used, before a server starts with them."""
    PricingFiles(split_comma_list(prices), latency).current()


def _state(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_mtime_ns, found.st_size


def _text(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_TABLE_CHARS + 1)
    except (OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error
    if len(text) > MAX_TABLE_CHARS:
        raise TooLarge(
            f"is larger than {MAX_TABLE_CHARS >> 20} MiB",
            where=path,
            fix="keep only the regions that you use",
        )
    return text


def _unreadable(path: str, error: Exception) -> LatticeError:
    reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "is not UTF-8 text"
    return Unavailable(
        f"the server cannot read its table: {reason}",
        where=path,
        fix="check the path in its settings, and who may read it",
    )
