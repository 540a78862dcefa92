"""The price book: machine prices per hour by provider, type and region, with source and date, and the CSV
files they come from."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from lattice.errors import Invalid
from lattice.kinds.meta.quantity import MAX_PLAIN_NUMBER, MICRO, dollars_to_micros
from lattice.kinds.node_class import LatticeNodeClass
from lattice.placement.inputs import price_catalog as listed

# Limit of characters of a price or latency file.
MAX_TABLE_CHARS = 64 << 20
# Limit of the scale, in millionths: a price times 1000 still fits in 64 bits.
MAX_SCALE_MILLIONTHS = 1000 * MICRO

_CLOUDS = ("aws", "gcp", "azure")
_LATTICE_COLUMNS = ("region", "instance_type", "usd_per_hour")
_SKYPILOT_COLUMNS = ("region", "instancetype", "price")
# SkyPilot lists these GCP machines without the accelerators that always come with them; for example, it lists
# an a2-highgpu-1g at a fifth of its price.
_UNDERPRICED_GCP_TYPE = re.compile(r"(a|g|ct)\d\w*-")

# Plain digits only: Decimal would accept signs, NaN and infinity too.
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-dollars per hour, the source of the figure, and the day of the figure, "" if unknown."""

    micros: int
    source: str
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by provider, machine type and region, case-insensitive; `scale` multiplies every price."""

    prices: Mapping[_Key, Price]
    scale: Fraction = Fraction(1)

    @staticmethod
    def builtin() -> "PriceBook":
        return _builtin()

    def with_csv(self, text: str, source: str, as_of: str = "", provider: str = "") -> "PriceBook":
        """The price book with the rows of the file added; a row replaces an earlier price of the same
        machine. `provider` is the provider of rows that name none."""
        prices = dict(self.prices)
        for key, amount in _parse_prices(text, source, provider).items():
            prices[key] = Price(amount, source, as_of)
        return replace(self, prices=prices)

    def scaled(self, millionths: int) -> "PriceBook":
        """The price book with every price times the factor, declared prices too: 1_200_000 adds 20 percent."""
        if not 0 <= millionths <= MAX_SCALE_MILLIONTHS:
            raise Invalid(
                f"prices can be multiplied by 0 to 1000, got {_format_factor(Fraction(millionths, MICRO))}",
                fix="give a change such as +20%",
            )
        return replace(self, scale=self.scale * Fraction(millionths, MICRO))

    def list_price(self, provider: str, instance_type: str, region: str) -> Price | None:
        """The scaled price of a machine type, or None if the book does not list the type in the region."""
        price = self.prices.get(_key(provider, instance_type, region))
        return None if price is None else self.scale_price(price)

    def scale_price(self, price: Price) -> Price:
        """The price times the scale of the book, rounded half up to micro-dollars; the source names the
        scale."""
        if self.scale == 1:
            return price
        # Fractions stay exact until this rounding.
        exact = price.micros * self.scale
        return replace(
            price, micros=int(exact + Fraction(1, 2)), source=f"{price.source} × {_format_factor(self.scale)}"
        )


def price_of(node_class: LatticeNodeClass, provider: str, region: str, book: PriceBook) -> Price | None:
    """The price that the class declares for the provider, else the listed price of the machine type; None is
    unknown, not free."""
    declared = node_class.spec.price_on(provider)
    if declared is not None:
        return book.scale_price(Price(declared, f"costPerHour of class {node_class.metadata.name}"))
    template = node_class.spec.providers.get(provider)
    return (
        book.list_price(provider, template.instance_type, region)
        if template and template.instance_type
        else None
    )


class CsvRow(NamedTuple):
    """One line of a CSV file: the cells by lower-case column name, and the position of the line for messages."""

    cells: Mapping[str, str]
    where: str

    def number(self, column: str, most: Decimal) -> Decimal:
        """A plain decimal from 0 to `most`; raises Invalid otherwise."""
        text = self.cells[column]
        value = Decimal(text) if _NUMBER.fullmatch(text) else None
        if value is None or value > most:
            raise Invalid(
                f'{column} must be a number from 0 to {most:,f}, got "{text[:40]}"',
                where=self.where,
                fix="write a plain number",
            )
        return value

    def required_text(self, column: str) -> str:
        """The cell of the column; raises Invalid if the cell is empty."""
        if not self.cells[column]:
            raise Invalid(f"{column} is empty", where=self.where, fix="fill it in, or remove the line")
        return self.cells[column]


def read_csv(text: str, source: str, forms: Sequence[Sequence[str]]) -> Iterator[CsvRow]:
    """The lines of a CSV file whose header has all columns of one of the forms; raises Invalid with the line
    of a mistake."""
    # Spreadsheets may write a byte order mark.
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        _check_header(header, source, forms)
        for cells in reader:
            where = f"{source} line {reader.line_num}"
            if len(cells) > len(header):
                raise Invalid(
                    f"has {len(cells)} cells, but the header has {len(header)}",
                    where=where,
                    fix="quote cells that contain commas",
                )
            # Empty lines are skipped; missing cells at the end of a line are empty.
            if any(cell.strip() for cell in cells):
                padded = [cell.strip() for cell in cells] + [""] * (len(header) - len(cells))
                yield CsvRow(dict(zip(header, padded, strict=True)), where)
    except csv.Error as error:
        raise Invalid(
            f"is not CSV: {error}",
            where=f"{source} line {reader.line_num}",
            fix="close the quotes of every cell",
        ) from error


def _check_header(header: Sequence[str], source: str, forms: Sequence[Sequence[str]]) -> None:
    where, examples = f"{source} line 1", " or ".join(",".join(form) for form in forms)
    duplicates = sorted({name for name in header if name and header.count(name) > 1})
    if duplicates:
        raise Invalid(f'has column "{duplicates[0]}" more than once', where=where, fix="remove one of them")
    # The form with the fewest missing columns is the form that the user meant.
    missing = min(([name for name in form if name not in header] for form in forms), key=len)
    if missing:
        raise Invalid(
            f"has no column {' and no column '.join(missing)}",
            where=where,
            fix=f"start the file with a header such as {examples}",
        )


def _parse_prices(text: str, source: str, provider: str) -> dict[_Key, int]:
    """Prices by key from a Lattice or SkyPilot CSV file."""
    prices: dict[_Key, tuple[int, str]] = {}
    fallback = provider
    if not fallback:
        # The cloud that the path names: aws_on_demand.csv, prices-gcp.csv, catalogs/azure/vms.csv. Only the
        # file name and its folder count: parent folders may name any cloud.
        words = set(re.split(r"[^a-z0-9]+", "/".join(source.lower().replace("\\", "/").split("/")[-2:])))
        named = [cloud for cloud in _CLOUDS if cloud in words]
        fallback = named[0] if len(named) == 1 else ""
    for row in read_csv(text, source, (_LATTICE_COLUMNS, _SKYPILOT_COLUMNS)):
        if "usd_per_hour" in row.cells:
            provider = row.cells.get("provider") or _require_provider(fallback, row)
            key = _key(provider, row.required_text("instance_type"), row.required_text("region"))
            amount = _price_micros(row, "usd_per_hour")
            if key in prices and prices[key][0] != amount:
                raise Invalid(
                    f"gives another price than {prices[key][1]} for the same machine",
                    where=row.where,
                    fix="remove one of the two",
                )
        elif _is_skypilot_machine(row, fallback):
            provider = _require_provider(fallback, row)
            key = _key(provider, row.cells["instancetype"], row.required_text("region"))
            amount = _price_micros(row, "price")
            # Zones of one region may differ in price: the cheapest zone counts.
            amount = min(amount, prices[key][0]) if key in prices else amount
        else:
            continue
        prices[key] = (amount, row.where)
    return {key: amount for key, (amount, _) in prices.items()}


def _is_skypilot_machine(row: CsvRow, provider: str) -> bool:
    """Whether the SkyPilot line is a machine with a full price.

    A line without a type is an accelerator; a line without a price is sold as spot only.
    """
    name = row.cells["instancetype"].lower()
    partial = provider.lower() == "gcp" and _UNDERPRICED_GCP_TYPE.match(name)
    return bool(name and row.cells["price"] and not partial)


def _price_micros(row: CsvRow, column: str) -> int:
    # Catalogs may print more digits than the conversion to micro-dollars accepts, so the price is rounded
    # first.
    price = row.number(column, MAX_PLAIN_NUMBER).quantize(Decimal("1e-6"), rounding=ROUND_HALF_UP)
    return dollars_to_micros(price)


def _require_provider(provider: str, row: CsvRow) -> str:
    if not provider:
        raise Invalid(
            "does not say which provider the price is of",
            where=row.where,
            fix="add a column provider, or name the file aws.csv",
        )
    return provider


def _key(provider: str, instance_type: str, region: str) -> _Key:
    return provider.lower(), instance_type.lower(), region.lower()


def _format_factor(scale: Fraction) -> str:
    return f"{float(scale):.6f}".rstrip("0").rstrip(".")


@cache
def _builtin() -> PriceBook:
    # Parsed once per process.
    rows = listed.listed_prices()
    return PriceBook(
        {_key(*names): Price(amount, listed.PRICE_SOURCE, listed.PRICES_AS_OF) for *names, amount in rows}
    )
