"""Parse and format quantities such as "500m", "16Gi", "10Gbps", "65ms" and $0.192 as exact integers."""

import re
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from functools import lru_cache
from itertools import product
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lattice.errors import Cause, Invalid
from lattice.kinds.meta.validator import join_path

# As written: 2, "500m", 0.5, "16Gi"; a float stands for its printed digits.
Quantity = int | str | float
# A plain number that is never negative: money, cores, GiB, shares.
Amount = Annotated[Decimal, Meta(extra_json_schema={"minimum": 0})]

# Cores as written: 2, 0.5 or "500m". In a schema of Kubernetes an int-or-string excludes 0.5, so the schema leaves
# the type open, and the kind checks the value.
Cores = Annotated[Quantity, Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})]

MILLI = 1000
MICRO = 1_000_000  # micro-dollars in one dollar
MILLIONTHS = 1_000_000  # millionths in 1; shares, utilisation and factors are counted in millionths
CENT_MICROS = 10_000  # micro-dollars in one cent
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MAX_INT64 = (1 << 63) - 1  # the store, numpy columns and API clients hold int64
# Dollars, cores, GiB: a larger number is a typing error, and its bytes or micro-dollars would exceed int64.
MAX_PLAIN_NUMBER = Decimal(10) ** 9

_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
# Milli-cores, bytes, bits per second and milliseconds per unit.
_CORES = {"": MILLI, "m": 1, "k": MILLI * 1000}
_BYTES = {"": 1, **_BINARY, **_DECIMAL}
_DOCKER = {
    letter + tail: 1 << (10 * power)
    for (power, letter), tail in product(enumerate("kmgtp", 1), ("", "b", "ib"))
} | {"": 1, "b": 1}
_BITS = {"bps": 1, "kbps": 10**3, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}
_MILLIS: dict[str, Decimal | int] = {
    "ns": Decimal("1e-6"),
    "us": Decimal("1e-3"),
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

_UNITS: dict[str, dict[str, int]] = {
    "cores": _CORES,
    "bytes": _BYTES,
    "docker": _DOCKER,
    "count": _BYTES,
    "bits": _BITS,
}

_DIGITS = 28  # the default precision of decimal arithmetic
_NUMBER = re.compile(
    r"([0-9]{1,19}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([eE][+-]?[0-9]{1,2})?([A-Za-z]*)", re.ASCII
)
# A number that is too long for _NUMBER, with any unit.
_OVERSIZED_NUMBER = re.compile(r"0*[1-9][0-9]{19,}(?:\.[0-9]*)?([A-Za-z]*)", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(ns|us|ms|s|m|h|d)", re.ASCII)


def parse_cores(value: Quantity | Decimal) -> int:
    """Milli-cores: "500m" is 500, "2" is 2000. A fraction of a milli-core is rounded up."""
    return _scaled(value, "cores", 'such as 2, "0.5" or "500m"')


def parse_bytes(value: Quantity | Decimal) -> int:
    """Bytes, with the units of Kubernetes: "16Gi" is binary, "16G" decimal. Fractions of a byte are rounded
    up."""
    return _scaled(value, "bytes", 'such as "512Mi", "16Gi" or "1.5Ti"')


def parse_docker_bytes(value: Quantity) -> int:
    """Bytes, with the units of docker: case-insensitive and always binary, so "4g" is 4 GiB."""
    text = value.lower() if isinstance(value, str) else value
    return _scaled(text, "docker", 'such as "512m" or "4g"')


def parse_count(value: Quantity | Decimal) -> int:
    """A whole number of an extended resource, which cannot be shared: "1.5" is invalid."""
    return _scaled(value, "count", "a whole number such as 2")


def parse_bits(value: str) -> int:
    """Bits per second: "10Gbps" is 10,000,000,000."""
    return _scaled(value, "bits", 'such as "100Mbps" or "10Gbps"')


@lru_cache(maxsize=4096)
def parse_millis(value: str) -> int:
    """Milliseconds: "65ms", "90s", "1.5h", "1h30m". A fraction of a millisecond is rounded up."""
    if value == "0":
        return 0
    spans = list(_DURATION_PART.finditer(value)) if isinstance(value, str) else []
    if not spans or "".join(span.group() for span in spans) != value:
        raise Invalid(f"must be a duration such as 65ms, 90s, 1.5h or 1h30m, got {_quoted(value)}")
    total = Decimal()
    for span in spans:
        number, unit = span.groups()
        total += Decimal(number) * _MILLIS[unit]
    return _round_up_to_int64(total, value)


def parse_seconds(value: str) -> int:
    """Whole seconds of a duration, rounded up."""
    return -(-parse_millis(value) // 1000)


def dollars_to_micros(dollars: Decimal) -> int:
    """Micro-dollars of an amount in dollars, rounded to the nearest micro-dollar, half up."""
    return int((_checked_range(dollars) * MICRO).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def gib_to_bytes(amount: Decimal) -> int:
    """Bytes of an amount in GiB, as in `memoryGi: 16`, rounded up."""
    return int((_checked_range(amount) * GIB).to_integral_value(rounding=ROUND_CEILING))


def share_as_fraction(share: Decimal) -> Decimal:
    """Return the share as a number from 0 to 1. The argument may be a fraction (0.8) or a percentage (80)."""
    return share if share <= 1 else share / 100


def share_to_millionths(share: Decimal) -> int:
    """Return the share in millionths. The argument may be a fraction (0.8) or a percentage (80)."""
    # The conversion of dollars fits: it also multiplies by a million and rounds half up.
    return dollars_to_micros(share_as_fraction(share))


def format_cores(milli: int) -> str:
    return str(milli // MILLI) if milli % MILLI == 0 else f"{milli}m"


def format_bytes(count: int) -> str:
    """The exact size in the largest binary unit without a remainder: 17179869184 is 16Gi."""
    for unit, size in reversed(_BINARY.items()):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def approximate_bytes(count: int) -> str:
    """The size rounded for users: 16500000000 is 15.4Gi."""
    for unit, size in reversed(_BINARY.items()):
        if abs(count) >= size:
            return f"{_without_trailing_zeros((Decimal(count) / size).quantize(Decimal('0.1')))}{unit}"
    return str(count)


def format_bits(per_second: int) -> str:
    for unit in ("Tbps", "Gbps", "Mbps", "Kbps"):
        if per_second and per_second % _BITS[unit] == 0:
            return f"{per_second // _BITS[unit]}{unit}"
    return f"{per_second}bps"


def format_millis(millis: int) -> str:
    """The exact duration in short form: 5400000 is 1h30m, 65 is 65ms."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, millis = divmod(millis, int(_MILLIS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_dollars(micros: int, *, signed: bool = False) -> str:
    """Format micro-dollars exactly for people, with two digits or as many as needed: $0.576, $1,105.92, -$0.25;
    signed +$3.00."""
    dollars, fraction = divmod(abs(micros), MICRO)
    digits = f"{fraction:06}".rstrip("0").ljust(2, "0")
    sign = "+" if signed and micros else ""
    if micros < 0:
        sign = "-"
    return f"{sign}${dollars:,}.{digits}"


_AMOUNTS = re.compile(r"\d[\d.,:]*[A-Za-z%]*")


def without_amounts(text: str) -> str:
    """Return the text with every number replaced, to compare what two messages say apart from amounts."""
    return _AMOUNTS.sub("#", text)


def format_hourly(micros: int, *, signed: bool = False) -> str:
    """Format a rate per hour for tables and summaries, with 2 to 4 decimals: $0.20, $0.192, $0.0167; a rate below
    a tenth of a cent keeps all its digits: $0.000833."""
    step = 1 if abs(micros) < CENT_MICROS // 10 else 100
    rounded = (abs(micros) + step // 2) // step * step
    return format_dollars(-rounded if micros < 0 else rounded, signed=signed)


def format_cents(micros: int, *, signed: bool = False) -> str:
    """Format an amount for tables and summaries, rounded to cents: $8.74; an amount that rounds to nothing is
    <$0.01."""
    rounded = round_to_cents(abs(micros))
    if micros and not rounded:
        return "<$0.01"
    return format_dollars(-rounded if micros < 0 else rounded, signed=signed)


def pluralize(count: int, noun: str) -> str:
    """Return the count with its noun: 1 replica, 2 replicas, 2 classes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def format_per_hour(micros: int) -> str:
    return f"{format_dollars(micros)}/h"


def format_per_month(micros: int) -> str:
    """Format an amount that is per month already."""
    return f"{format_dollars(micros)}/30d"


def format_plain_dollars(micros: int) -> str:
    """Format micro-dollars as a number for programs, without trailing zeros: 384000 is 0.384, 414720000 is
    414.72."""
    return _without_trailing_zeros(micros_to_dollars(micros))


def micros_to_dollars(micros: int) -> Decimal:
    """The exact number of dollars of an amount in micro-dollars."""
    return Decimal(micros).scaleb(-6)


def round_to_cents(micros: int) -> int:
    """Micro-dollars rounded to whole cents, half up."""
    return (micros + CENT_MICROS // 2) // CENT_MICROS * CENT_MICROS


def quantity_problems(path: str, value: Quantity | None, parse: Callable[[Any], int]) -> Iterator[Cause]:
    """One cause if the value cannot be parsed; no cause for a valid or absent value."""
    try:
        if value is not None:
            parse(value)
    except Invalid as error:
        yield Cause(path, error.message)


def cores_problems(path: str, value: Quantity | None) -> Iterator[Cause]:
    """One cause if the value is no number of cores, or more cores than any plain number may state."""
    problems = list(quantity_problems(path, value, parse_cores))
    yield from problems
    if value is not None and not problems and parse_cores(value) > MAX_PLAIN_NUMBER * MILLI:
        yield Cause(path, f"must be a number from 0 to {MAX_PLAIN_NUMBER:,f}, got {_quoted(value)}")


def threshold_problems(path: str, value: Decimal | None) -> Iterator[Cause]:
    """One cause if a share is neither a fraction (0.8) nor a percentage (80)."""
    if value is not None and not 0 < value <= 100:
        yield Cause(
            path, f"must be a fraction above 0 and up to 1, or a percentage up to 100, got {_quoted(value)}"
        )


def number_problems(value: object, path: str) -> Iterator[Cause]:
    """A cause for every plain number of the value that is infinite, NaN, negative or too large."""
    if isinstance(value, Decimal):
        if not _is_in_range(value):
            yield Cause(path, f"must be a number from 0 to {MAX_PLAIN_NUMBER:,f}, got {_quoted(value)}")
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from number_problems(getattr(value, field.name), f"{path}.{field.encode_name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from number_problems(item, join_path(path, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from number_problems(item, f"{path}[{index}]")


def _scaled(value: Quantity | Decimal, unit: str, hint: str) -> int:
    if isinstance(value, Decimal):
        return _round_up_to_int64(_checked_range(value) * _UNITS[unit][""], value)
    return _scaled_text(str(value), unit, hint)


@lru_cache(maxsize=4096)
def _scaled_text(text: str, unit: str, hint: str) -> int:
    match = _NUMBER.fullmatch(text)
    scale = _UNITS[unit].get(match[3]) if match else None
    if match is None or scale is None:
        # A number with too many digits but a valid unit gets the error for its size.
        if (oversized := _OVERSIZED_NUMBER.fullmatch(text)) and oversized[1] in _UNITS[unit]:
            raise _int64_overflow(text)
        rule = f"a quantity {hint}" if hint.startswith("such as") else hint
        if text.startswith("-"):
            rule = f"0 or more, {hint}"
        raise Invalid(f"must be {rule}, got {_quoted(text)}")
    exact = Decimal(match[1]).scaleb(int(match[2][1:]) if match[2] else 0) * scale
    # An extended resource cannot be shared: a fraction is an error, not rounded up.
    if unit == "count" and exact != exact.to_integral_value():
        raise Invalid(f"must be {hint}, got {_quoted(text)}")
    return _round_up_to_int64(exact, text)


def _round_up_to_int64(exact: Decimal, source: object) -> int:
    if exact > MAX_INT64:
        raise _int64_overflow(source)
    return int(exact.to_integral_value(rounding=ROUND_CEILING))


def _int64_overflow(source: object) -> Invalid:
    return Invalid(f"is more than the maximum (2^63 - 1), got {_quoted(source)}")


def _checked_range(value: Decimal) -> Decimal:
    if not _is_in_range(value):
        raise Invalid(f"must be a number from 0 to {MAX_PLAIN_NUMBER:,f}, got {_quoted(value)}")
    return value


def _is_in_range(value: Decimal) -> bool:
    """Whether a plain number is valid. The exponent is checked first: a comparison or print of 1e999999 in
    full would exhaust the server."""
    return (
        value.is_finite()
        and not value.is_signed()
        # MAX_PLAIN_NUMBER has the exponent 9.
        and value.adjusted() <= 9
        and value <= MAX_PLAIN_NUMBER
        and len(value.as_tuple().digits) <= _DIGITS
    )


def _quoted(value: object) -> str:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _without_trailing_zeros(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
