"""Parse API bodies as strict JSON with the position of every problem, and encode values as JSON."""

import json
import re
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

import msgspec

from lattice.errors import LatticeError, Malformed, TooLarge
from lattice.kinds.meta import yaml_scalar as scalar

MAX_BYTES = 3 << 20  # per body, as in Kubernetes; a store may hold less
MAX_VALUES = 10_000  # per object
MAX_DEPTH = 32  # nesting of an object
# A body may also have managedFields, which nest a few levels deeper than the described object.
MAX_BODY_DEPTH = MAX_DEPTH + 8


class Parsed(NamedTuple):
    """A parsed JSON body, and the paths of repeated fields (the last value counts)."""

    value: Any
    duplicates: list[str]


class _RepeatedKeyError(Exception):
    """A JSON object has a repeated key; the body is parsed again, slowly, to find the path."""


def parse_json(body: bytes) -> Parsed:
    """Parse strict JSON of bounded size and depth: integers of 64 bits, other numbers as exact decimals."""
    if len(body) > MAX_BYTES:
        raise TooLarge(
            f"the body has {len(body):,} bytes; the maximum is {MAX_BYTES:,}",
            fix="split the body into several objects",
        )
    try:
        text = body.decode()
    except UnicodeError as e:
        raise Malformed(
            "the body is not UTF-8 text", where=f"byte {getattr(e, 'start', 0)}", fix="send UTF-8"
        ) from e
    try:
        parsed = Parsed(_STRICT_DECODER.decode(text), [])
    # Repeated keys are rare. Only a body that has them is parsed a second time, with all keys.
    except _RepeatedKeyError:
        duplicates: dict[str, None] = {}
        try:
            raw = _DUPLICATES_DECODER.decode(text)
            _check_limits(raw, text)
        except (json.JSONDecodeError, RecursionError, Malformed) as e:
            raise _parse_error(e, text) from e
        parsed = Parsed(_merge_duplicates(raw, "", duplicates), list(duplicates))
    except (json.JSONDecodeError, RecursionError, Malformed) as e:
        raise _parse_error(e, text) from e
    _check_limits(parsed.value, text)
    # Only an escape can bring half of a surrogate pair into a string.
    if "\\ud" in text or "\\uD" in text:
        try:
            encode(parsed.value)
        except UnicodeError as e:
            raise Malformed(
                "a string in the body has an incomplete surrogate pair",
                where="body",
                fix="send text as plain UTF-8",
            ) from e
    return parsed


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _RepeatedKeyError
    return value


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all repeated keys."""


def _reject_constant(text: str) -> NoReturn:
    raise Malformed(text)


_NUMBERS: Any = {
    "parse_int": scalar.integer,
    "parse_float": scalar.decimal,
    "parse_constant": _reject_constant,
}
_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_unique_pairs, **_NUMBERS)
_DUPLICATES_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, **_NUMBERS)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+')

# The prefix of a word that the JSON decoder parses as a number.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<part>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")


def _merge_duplicates(raw: Any, path: str, duplicates: dict[str, None]) -> Any:
    """The value with the last of repeated keys; the paths of repeated keys are added to `duplicates`."""
    if isinstance(raw, _Pairs):
        value: dict[str, Any] = {}
        for key, inner in raw:
            key_path = f"{path}.{key}" if path else key
            if key in value:
                duplicates[key_path] = None
            value[key] = _merge_duplicates(inner, key_path, duplicates)
        return value
    if isinstance(raw, list):
        return [_merge_duplicates(inner, f"{path}[{index}]", duplicates) for index, inner in enumerate(raw)]
    return raw


def _parse_error(e: Exception, text: str) -> LatticeError:
    if isinstance(e, json.JSONDecodeError):
        message = e.msg[:1].lower() + e.msg[1:]
        return Malformed(
            f"the body is not JSON: {message}",
            where=_position(text, e.pos),
            fix="check commas, quotes and brackets at this position",
        )
    if isinstance(e, RecursionError):
        return _too_deep()
    if not isinstance(e, Malformed):
        raise e
    if e.where:
        return e
    # An error without a fix comes from the hook for NaN and Infinity.
    rejected = e if e.fix else scalar.not_finite_error(e.message)
    return Malformed(rejected.message, where=_position(text, _rejected_number_offset(text)), fix=rejected.fix)


def _rejected_number_offset(text: str) -> int:
    """Search the text for the first number that the decoder hooks reject, and return its offset: the hooks
    themselves do not receive a position."""
    for token in _TOKEN.finditer(text):
        if token[0].startswith(("NaN", "Infinity", "-Infinity")):
            return token.start()
        if number := _NUMBER.match(token[0]):
            try:
                scalar.decimal(number[0]) if number["part"] else scalar.integer(number[0])
            except Malformed:
                return token.start()
    return 0


def _position(text: str, offset: int) -> str:
    return f"line {text.count(chr(10), 0, offset) + 1}, column {offset - text.rfind(chr(10), 0, offset)}"


def _check_limits(value: Any, text: str) -> None:
    openings = text.count("{") + text.count("[")
    # Every value follows an opening bracket or a comma, so a small body needs no exact count.
    if openings <= MAX_BODY_DEPTH and openings + text.count(",") < MAX_VALUES:
        return
    nodes, depth, level = 0, 0, [value]
    while level:
        nodes += len(level)
        if nodes > MAX_VALUES:
            raise TooLarge(
                f"the body has more than {MAX_VALUES:,} values", fix="split the body into several objects"
            )
        collections = [item for item in level if type(item) in (dict, list, _Pairs)]
        depth += bool(collections)
        if depth > MAX_BODY_DEPTH:
            raise _too_deep()
        level = []
        for collection in collections:
            if type(collection) is dict:
                level.extend(collection.values())
            elif type(collection) is list:
                level.extend(collection)
            else:
                level.extend(inner for _, inner in collection)


def _too_deep() -> Malformed:
    return Malformed(
        f"the body is nested deeper than {MAX_BODY_DEPTH} levels",
        where="body",
        fix="no kind has that depth; look for a missing bracket",
    )


encode = msgspec.json.Encoder(decimal_format="number").encode
"""Encode a value as JSON bytes; decimals keep their written digits."""

decode_stored = msgspec.json.Decoder(float_hook=Decimal).decode
"""Decode stored bytes of `encode`; the bytes are trusted and not validated."""
