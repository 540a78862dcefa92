"""What does a machine of a class cost per hour in a region, who says so, and as of when?"""

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

MAX_SCALE_MILLIONTHS = 1000 * MICRO  # a thousandfold price still fits into int64, whatever the price was

_CLOUDS = ("aws", "gcp", "azure")
_LATTICE_COLUMNS = ("region", "instance_type", "usd_per_hour")
_SKYPILOT_COLUMNS = ("region", "instancetype", "price")
# SkyPilot prices these GCP machines without the accelerators that always come with them: an a2-highgpu-1g at a fifth of what it costs.
_WITHOUT_ACCELERATORS = re.compile(r"(a|g|ct)\d\w*-")

_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-dollars per hour; where the figure comes from; the day it was true, "" if nobody says."""

    micros: int
    source: str
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by provider, machine type and region, none of which differ by upper and lower case alone."""

    prices: Mapping[_Key, Price]
    scale: Fraction = Fraction(1)

    @staticmethod
    def builtin() -> "PriceBook":
        return _builtin()

    def with_csv(self, text: str, source: str, as_of: str = "", provider: str = "") -> "PriceBook":
        """This book with the rows of the file on top. `provider` is for files that do not name it themselves."""
        found = {
            key: Price(amount, source, as_of) for key, amount in _parse_prices(text, source, provider).items()
        }
        return replace(self, prices={**self.prices, **found})

    def scaled(self, millionths: int) -> "PriceBook":
        """Every price times this factor, declared ones too: 1_200_000 is 20 percent more."""
        if not 0 <= millionths <= MAX_SCALE_MILLIONTHS:
            raise Invalid(
                f"prices can be multiplied by 0 to 1000, got {_format_factor(Fraction(millionths, MICRO))}",
                fix="give a change such as +20%",
            )
        return replace(self, scale=self.scale * Fraction(millionths, MICRO))

    def list_price(self, provider: str, instance_type: str, region: str) -> Price | None:
        price = self.prices.get(_key(provider, instance_type, region))
        return None if price is None else self.scale_price(price)

    def scale_price(self, price: Price) -> Price:
        """The price after this book's scale, rounded half up to micro-dollars, saying that it was scaled."""
        if self.scale == 1:
            return price
        exact = price.micros * self.scale
        return replace(
            price, micros=int(exact + Fraction(1, 2)), source=f"{price.source} × {_format_factor(self.scale)}"
        )


def price_of(node_class: LatticeNodeClass, provider: str, region: str, book: PriceBook) -> Price | None:
    """What the class declares for the provider, else what the book lists for its machine type there; None is unknown, not free."""
    declared = node_class.spec.price_on(provider)
    if declared is not None:
        return book.scale_price(Price(declared, f"costPerHour of class {node_class.metadata.name}"))
    there = node_class.spec.providers.get(provider)
    return book.list_price(provider, there.instance_type, region) if there and there.instance_type else None


class CsvRow(NamedTuple):
    """One line of a CSV file: its cells by column name in lower case, and where it stands, for messages."""

    cells: Mapping[str, str]
    where: str

    def number(self, column: str, most: Decimal) -> Decimal:
        """A plain decimal from 0 to `most`."""
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
        if not self.cells[column]:
            raise Invalid(f"{column} is empty", where=self.where, fix="fill it in, or remove the line")
        return self.cells[column]


def read_csv(text: str, source: str, forms: Sequence[Sequence[str]]) -> Iterator[CsvRow]:
    """The lines of a CSV file whose header has all columns of one of the forms."""
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
    where, known = f"{source} line 1", " or ".join(",".join(form) for form in forms)
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise Invalid(f'has column "{twice[0]}" more than once', where=where, fix="remove one of them")
    missing = min(([name for name in form if name not in header] for form in forms), key=len)
    if missing:
        raise Invalid(
            f"has no column {' and no column '.join(missing)}",
            where=where,
            fix=f"start the file with a header such as {known}",
        )


def _parse_prices(text: str, source: str, provider: str) -> dict[_Key, int]:
    found: dict[_Key, tuple[int, str]] = {}
    fallback = provider or _provider_in_file_name(source)
    for row in read_csv(text, source, (_LATTICE_COLUMNS, _SKYPILOT_COLUMNS)):
        if "usd_per_hour" in row.cells:
            key, amount = _lattice_price(row, fallback)
            if key in found and found[key][0] != amount:
                raise Invalid(
                    f"gives another price than {found[key][1]} for the same machine",
                    where=row.where,
                    fix="remove one of the two",
                )
        elif _is_skypilot_machine(row, fallback):
            key, amount = _skypilot_price(row, fallback)
            amount = (
                min(amount, found[key][0]) if key in found else amount
            )  # zones of one region may differ: the cheapest counts
        else:
            continue
        found[key] = (amount, row.where)
    return {key: amount for key, (amount, _) in found.items()}


def _lattice_price(row: CsvRow, fallback: str) -> tuple[_Key, int]:
    provider = row.cells.get("provider") or _require_provider(fallback, row)
    return _key(provider, row.required_text("instance_type"), row.required_text("region")), dollars_to_micros(
        _price(row, "usd_per_hour")
    )


def _skypilot_price(row: CsvRow, fallback: str) -> tuple[_Key, int]:
    return _key(
        _require_provider(fallback, row), row.cells["instancetype"], row.required_text("region")
    ), dollars_to_micros(_price(row, "price"))


def _is_skypilot_machine(row: CsvRow, provider: str) -> bool:
    """Lines without a type are accelerators on their own; lines without a price are sold as spot only."""
    name = row.cells["instancetype"].lower()
    partial = provider.lower() == "gcp" and _WITHOUT_ACCELERATORS.match(name)
    return bool(name and row.cells["price"] and not partial)


def _price(row: CsvRow, column: str) -> Decimal:
    # Catalogs may print more digits than people are allowed to write: round before micros() counts them.
    return row.number(column, MAX_PLAIN_NUMBER).quantize(Decimal("1e-6"), rounding=ROUND_HALF_UP)


def _require_provider(provider: str, row: CsvRow) -> str:
    if not provider:
        raise Invalid(
            "does not say which provider the price is of",
            where=row.where,
            fix="add a column provider, or name the file aws.csv",
        )
    return provider


def _provider_in_file_name(source: str) -> str:
    """The cloud that a file name speaks of: aws_on_demand.csv, prices-gcp.csv, catalogs/azure/vms.csv; "" unless it is exactly one."""
    words = set(re.split(r"[^a-z0-9]+", "/".join(source.lower().replace("\\", "/").split("/")[-2:])))
    named = [cloud for cloud in _CLOUDS if cloud in words]
    return named[0] if len(named) == 1 else ""


def _key(provider: str, instance_type: str, region: str) -> _Key:
    return provider.lower(), instance_type.lower(), region.lower()


def _format_factor(scale: Fraction) -> str:
    return f"{float(scale):.6f}".rstrip("0").rstrip(".")


@cache
def _builtin() -> PriceBook:
    rows = listed.listed_prices()
    return PriceBook(
        {_key(*names): Price(amount, listed.PRICE_SOURCE, listed.PRICES_AS_OF) for *names, amount in rows}
    )
