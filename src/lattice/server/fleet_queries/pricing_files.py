"""Price and latency tables from files of the server, read again when a file changes, so that a new table
needs no restart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lattice.errors import LatticeError, TooLarge, Unavailable
from lattice.kinds.meta.timestamps import format_date
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.inputs.latency import Latencies
from lattice.placement.inputs.price_book import MAX_TABLE_CHARS, PriceBook
from lattice.server.fleet_queries.query_schema import CsvTable


@dataclass
class PricingFiles:
    """The paths of the pricing files, and the tables last read. The last path of `prices` wins; `latency` may
    be empty."""

    prices: Sequence[str] = ()
    latency: str = ""
    # Modification time in nanoseconds and size of the files last read.
    _file_states: list[tuple[int, int]] | None = None
    _tables: PricingTables = field(default_factory=lambda: PricingTables(PriceBook.builtin()))

    def current(self) -> PricingTables:
        """Return the tables, read again if size or modification time of a file changed."""
        paths = [*self.prices, *([self.latency] if self.latency else ())]
        states: list[tuple[int, int]] = []
        for path in paths:
            try:
                stat = Path(path).stat()
            except OSError as error:
                raise _unreadable(path, error) from error
            states.append((stat.st_mtime_ns, stat.st_size))
        if states == self._file_states:
            return self._tables
        book = PriceBook.builtin()
        for path in self.prices:
            book = book.with_csv(_text(path), path, format_date(Path(path).stat().st_mtime))
        tables = PricingTables(book)
        if self.latency:
            text = _text(self.latency)
            # Raises an error that names the mistake in a malformed table.
            Latencies.of([], {}, text, self.latency)
            tables = PricingTables(book, text, self.latency)
        self._tables, self._file_states = tables, states
        return tables


def override_tables(
    tables: PricingTables, prices: Sequence[CsvTable], latency: CsvTable | None
) -> PricingTables:
    """Return the tables as overridden by a query: its prices win over equal entries, and its latency table,
    if any, replaces the server's table."""
    book = tables.book
    for table in prices:
        book = book.with_csv(table.csv, table.source, table.as_of)
    return PricingTables(book, latency.csv, latency.source) if latency else tables._replace(book=book)


def split_comma_list(setting: str) -> list[str]:
    """Split a setting such as `a.csv,b.csv`; drop empty parts."""
    return [part.strip() for part in setting.split(",") if part.strip()]


def validate_files(prices: str, latency: str) -> None:
    """Raise an error for a file that cannot be used, before a server starts with the file."""
    PricingFiles(split_comma_list(prices), latency).current()


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
        f"the server cannot read the table: {reason}",
        where=path,
        fix="check the path in the settings and the permissions of the file",
    )
