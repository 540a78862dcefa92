"""Parse plain YAML scalars: the YAML 1.2 core types, with numbers exactly as written."""

import re
from decimal import Decimal, InvalidOperation

from lattice.errors import Malformed

Scalar = str | int | bool | Decimal | None

_KEYWORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
NUMBER = re.compile(
    r"""(?P<int>[-+]?[0-9]+)
      | (?P<based>0o[0-7]+|0x[0-9a-fA-F]+)
      | (?P<decimal>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)
      | (?P<endless>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))""",
    re.VERBOSE,
)
# PyYAML calls match(), which is anchored at the start, so only the end needs an anchor.
NUMBER_LIKE = re.compile(f"(?:{NUMBER.pattern})$", re.VERBOSE)
_NUMBER_FIRST_CHARS = frozenset("+-.0123456789")
_MAX_SHOWN_CHARS = 24  # of a rejected number in a message
_MAX_DECIMAL_CHARS = 64  # longer than any quantity, and short enough for fast arithmetic
_MAX_EXPONENT = 307  # every JSON reader can hold the number as a double


def parse_scalar(text: str) -> Scalar:
    """Parse an unquoted YAML scalar: null, a boolean, a number, or else text."""
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    # Most scalars are text: the first character rules out a number without the regular expression.
    if text[0] not in _NUMBER_FIRST_CHARS:
        return text
    match = NUMBER.fullmatch(text)
    if match is None:
        return text
    match match.lastgroup:
        case "int":
            digits = text.lstrip("+-")
            if len(digits) > 1 and digits[0] == "0":
                raise Malformed(
                    f"{_truncate(text)} is octal to some YAML readers and decimal to others",
                    fix="remove the leading zero, write octal as 0o17, or quote the value if it is text",
                )
            return integer(text)
        case "based":
            # Base 0 reads the prefixes 0o and 0x.
            return _in_range(int(text, 0), text)
        case "decimal":
            return decimal(text)
    raise not_finite_error(text)


def integer(text: str) -> int:
    """Parse a 64-bit integer."""
    # The longest 64-bit integer with its sign; a longer text is slow to convert.
    if len(text) > 20:
        raise _too_long(text)
    return _in_range(int(text), text)


def decimal(text: str) -> Decimal:
    """Parse an exact decimal of bounded length and exponent."""
    if len(text) > _MAX_DECIMAL_CHARS:
        raise Malformed(
            f"the number {_truncate(text)} has more than {_MAX_DECIMAL_CHARS} characters",
            fix="round the number, or quote the value if it is text",
        )
    try:
        number = Decimal(text)
    # Decimal rejects an extreme exponent.
    except InvalidOperation:
        number = None
    if number is None or abs(number.adjusted()) > _MAX_EXPONENT:
        raise Malformed(
            f"the number {_truncate(text)} is out of range", fix=f"keep the exponent within ±{_MAX_EXPONENT}"
        )
    return number


def not_finite_error(text: str) -> Malformed:
    """The error for infinity and NaN."""
    return Malformed(
        f"{text} is not a finite number", fix="use a finite number, or omit the field for no limit"
    )


def _in_range(number: int, text: str) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise _too_long(text)
    return number


def _too_long(text: str) -> Malformed:
    return Malformed(
        f"the integer {_truncate(text)} does not fit in 64 bits",
        fix="use a smaller number, or quote the value if it is text",
    )


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
