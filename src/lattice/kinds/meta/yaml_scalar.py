"""What a bare word in a manifest means: YAML 1.2 core types, with numbers kept exactly as written."""

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
NUMBER_LIKE = re.compile(
    f"(?:{NUMBER.pattern})$", re.VERBOSE
)  # as PyYAML asks for it: match() from the start
_NUMBER_FIRST_CHARS = frozenset("+-.0123456789")
_MAX_SHOWN_CHARS = 24  # characters of a refused number that are repeated to the user
_MAX_DECIMAL_CHARS = 64  # of a decimal: far beyond any quantity, and cheap to add up
_MAX_EXPONENT = 307  # what every JSON reader can hold as a double


def parse_scalar(text: str) -> Scalar:
    """An unquoted YAML scalar; what is not null, a boolean or a number is text."""
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if text[0] not in _NUMBER_FIRST_CHARS:
        return text
    found = NUMBER.fullmatch(text)
    if found is None:
        return text
    match found.lastgroup:
        case "int":
            return integer(_reject_leading_zero(text))
        case "based":
            return _in_range(int(text, 0), text)
        case "decimal":
            return decimal(text)
    raise not_finite_error(text)


def integer(text: str) -> int:
    if len(text) > 20:  # the longest 64-bit integer with its sign; longer ones are slow to even convert
        raise _too_long(text)
    return _in_range(int(text), text)


def decimal(text: str) -> Decimal:
    if len(text) > _MAX_DECIMAL_CHARS:
        raise Malformed(
            f"the number {_truncate(text)} has more than {_MAX_DECIMAL_CHARS} characters",
            fix="round it, or quote it if it is text",
        )
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent that not even Decimal has room for
        number = None
    if number is None or abs(number.adjusted()) > _MAX_EXPONENT:
        raise Malformed(
            f"the number {_truncate(text)} is out of range", fix=f"keep the exponent within ±{_MAX_EXPONENT}"
        )
    return number


def not_finite_error(text: str) -> Malformed:
    return Malformed(
        f"{text} is not a number we can keep", fix="give a finite number, or leave the field out for no limit"
    )


def _reject_leading_zero(text: str) -> str:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        raise Malformed(
            f"{_truncate(text)} is octal to some YAML readers and decimal to others",
            fix="drop the leading zero, write octal as 0o17, or quote it if it is text",
        )
    return text


def _in_range(number: int, text: str) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise _too_long(text)
    return number


def _too_long(text: str) -> Malformed:
    return Malformed(
        f"the integer {_truncate(text)} does not fit in 64 bits",
        fix="use a smaller number, or quote it if it is text",
    )


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
