"""Rendering of cells, tables, ages, JSON and YAML, in the forms that kubectl uses."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import yaml

from lattice.kinds.meta import yaml_scalar as scalar
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.timestamps import parse_timestamp

COLUMN_GAP_CHARS = 3
_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# The largest power of ten, positive or negative, of a number that is written without an exponent. A number with
# an exponent is written with a dot, because YAML 1.1 requires one.
_PLAIN_DIGITS = 15
# Seconds.
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """Width of every column in characters, including the gap."""
    return [max(map(len, column)) + COLUMN_GAP_CHARS for column in zip(*rows, strict=True)]


def line(cells: Sequence[str], wide: Sequence[int]) -> str:
    """Join cells into one line; a cell wider than its column still keeps the gap to the next column."""
    return "".join(
        cell.ljust(w - COLUMN_GAP_CHARS) + " " * COLUMN_GAP_CHARS for cell, w in zip(cells, wide, strict=True)
    ).rstrip()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns; the first row holds the headers."""
    wide = widths(rows)
    return [line(row, wide) for row in rows]


def cell(value: Any) -> str:
    """Render a value on one line, with control characters replaced so that stored text cannot move the cursor
    or hide output."""
    if value is None:
        return "<none>"
    text = value if isinstance(value, str) else encode(value).decode()
    first, newline, _ = text.partition("\n")
    shown = f"{first}..." if newline else first
    return shown if shown.isprintable() else "".join(c if c.isprintable() else "?" for c in shown)


def printable_text(text: str) -> str:
    """Text of several lines with control characters replaced by `?`."""
    return "\n".join(
        "".join(c if c.isprintable() else "?" for c in part.expandtabs(2)) for part in text.split("\n")
    )


def label_pairs(labels: dict[str, Any] | None) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((labels or {}).items())) or "<none>"


def age(seconds: float) -> str:
    """Duration in the two largest useful units: 45s, 5m, 3h20m, 3d4h, 2y10d."""
    whole_seconds = int(seconds)
    if whole_seconds < 0:
        # Tolerates a server clock that is up to two seconds ahead.
        return "0s" if whole_seconds >= -2 else "<invalid>"
    steps = [
        (2 * _MINUTE, 1, "s"),
        (10 * _MINUTE, _MINUTE, "m"),
        (3 * _HOUR, _MINUTE, "m"),
        (8 * _HOUR, _HOUR, "h"),
    ]
    steps += [(2 * _DAY, _HOUR, "h"), (8 * _DAY, _DAY, "d"), (2 * _YEAR, _DAY, "d"), (8 * _YEAR, _YEAR, "y")]
    finer = {
        10 * _MINUTE: (1, "s"),
        8 * _HOUR: (_MINUTE, "m"),
        8 * _DAY: (_HOUR, "h"),
        8 * _YEAR: (_DAY, "d"),
    }
    for below, unit, letter in steps:
        if whole_seconds < below:
            small, name = finer.get(below, (0, ""))
            remainder = whole_seconds % unit // small if small else 0
            return f"{whole_seconds // unit}{letter}" + (f"{remainder}{name}" if remainder else "")
    return f"{whole_seconds // _YEAR}y"


def age_since(stamp: str | None, now: datetime) -> str:
    """Age of an API timestamp at the time `now`."""
    if not stamp:
        return "<unknown>"
    try:
        when = parse_timestamp(stamp)
    except ValueError:
        return "<invalid>"
    return age((now - when).total_seconds())


def to_json(value: Any) -> str:
    return msgspec.json.format(encode(value), indent=4).decode()


class _Dumper(_Base):  # type: ignore[misc]
    """YAML dumper: block style, no aliases, and quotes around every string that YAML 1.1 or 1.2 would read as
    another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _number(dumper: Any, value: Decimal) -> Any:
    if abs(value.adjusted()) <= _PLAIN_DIGITS:
        text = f"{value:f}"
        return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)
    digits, e, power = f"{value:e}".partition("e")
    return dumper.represent_scalar(
        "tag:yaml.org,2002:float", (digits if "." in digits else f"{digits}.0") + e + power
    )


_Dumper.add_representer(Decimal, _number)
_Dumper.add_representer(
    str,
    lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    ),
)
# Strings that look like numbers to YAML 1.1 or 1.2 readers get quotes.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", scalar.NUMBER_LIKE, list("+-.0123456789"))


def to_yaml(value: Any) -> str:
    # A width of 1 MiB prevents line folding inside strings.
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, width=1 << 20)
    return text


def without_managed_fields(value: dict[str, Any]) -> dict[str, Any]:
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return value
    return {**value, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def as_list(items: list[Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
