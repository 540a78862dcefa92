"""JSONPath expressions such as `.spec.ports[0].name`, compiled once and applied to objects."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any

from lattice.errors import Malformed
from lattice.kinds.meta.json_body import encode

_NAME = re.compile(r"(?:\\.|[^\s.\[\]{}()'\"\\@$*,?:=<>!])+")
_LONE_DOT = re.compile(r"\.(?=[\s})]|$)")  # the object itself
_INTEGER = re.compile(r"-?\d+")
_SLICE = re.compile(r"\s*(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*(?::\s*(-?\d{1,18})?\s*)?\]")
# Single or double quotes, with backslash escapes.
QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
# A longer exponent is out of range for every reader.
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_WORD = re.compile(r"true|false|null|nil")
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
# Filters recurse: the limit bounds the recursion for a hostile path.
_MAX_FILTER_DEPTH = 8
_WORDS = {"true": True, "false": False, "null": None, "nil": None}
_TEMPLATE_KEYWORD = re.compile(r"(range|end)(?=[\s}])\s*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Key(str):
    """A field name as a step."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Index:
    """A list index as a step; negative counts from the end."""

    at: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A list slice as a step."""

    part: slice


@dataclass(frozen=True, slots=True)
class Wildcard:
    """All values of a list or an object."""


@dataclass(frozen=True, slots=True)
class Descendants:
    """The value itself and all nested values."""


@dataclass(frozen=True, slots=True)
class Union:
    """Several fields or list items as one step."""

    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Filter:
    """The list items for which a comparison holds; without an operator, the items with the field."""

    left: "Path"
    operator: str = ""
    right: Any = None


Step = Key | Index | Slice | Wildcard | Descendants | Union | Filter


@dataclass(frozen=True, slots=True)
class Path:
    """A compiled path; a missing field gives an empty result."""

    text: str
    steps: tuple[Step, ...]
    names: tuple[str, ...] | None  # set for a path of field names only, the fast and usual case
    rooted: bool = False  # begins with $: starts at the root object, also inside a range

    def find(self, value: Any) -> list[Any]:
        """The values at the path, in document order."""
        if self.names is None:
            values = [value]
            for step in self.steps:
                values = list(chain.from_iterable(_apply_step(step, parent) for parent in values))
            return values
        for name in self.names:
            if type(value) is not dict or name not in value:
                return []
            value = value[name]
        return [value]


def compile_path(text: str) -> Path:
    """Compile a path in any spelling of kubectl: `.a.b`, `a.b`, `$.a.b`, `{.a.b}`."""
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1].strip()
    reader = Reader(bare)
    path = reader.path(relaxed=True)
    if not reader.at_end():
        raise reader.problem("expected the path to end")
    return path


def _apply_step(step: Step, value: Any) -> Iterator[Any]:
    match step:
        case Key():
            if isinstance(value, dict) and step in value:
                yield value[step]
        case Index(at):
            if isinstance(value, list) and -len(value) <= at < len(value):
                yield value[at]
        case Slice(part):
            yield from value[part] if isinstance(value, list) else ()
        case Wildcard():
            yield from _children(value)
        case Descendants():
            # An explicit stack: a deep document must not exhaust the Python stack.
            pending = [value]
            while pending:
                descendant = pending.pop()
                yield descendant
                pending.extend(reversed(_children(descendant)))
        case Union(members):
            for member in members:
                yield from _apply_step(member, value)
        case Filter():
            yield from (item for item in _children(value) if _matches_filter(step, item))


def _children(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _matches_filter(test: Filter, item: Any) -> bool:
    left_values = test.left.find(item)
    if not test.operator:
        return bool(left_values)
    right_values = test.right.find(item) if isinstance(test.right, Path) else [test.right]
    if not left_values or not right_values:
        return False
    left, right = left_values[0], right_values[0]
    if test.operator in ("==", "!="):
        # In Python True == 1, in JSON the values differ.
        is_equal = isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
        return is_equal == (test.operator == "==")
    are_numbers = _is_number(left) and _is_number(right)
    are_texts = isinstance(left, str) and isinstance(right, str)
    # Values of different types have no order.
    return (are_numbers or are_texts) and _ORDER[test.operator](left, right)


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: bool(a < b),
    ">": lambda a, b: bool(a > b),
    "<=": lambda a, b: bool(a <= b),
    ">=": lambda a, b: bool(a >= b),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


class Reader:
    """A parser of paths within a text, from a position on."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.position = at
        self.filter_depth = 0  # nesting of comparisons at the position

    def path(self, relaxed: bool = False) -> Path:
        """Parse a path at the position; with `relaxed`, the first field name needs no leading dot."""
        start = self.position
        rooted = self.take("$")
        if not rooted:
            self.take("@")
        # A lone dot is the object itself.
        if _LONE_DOT.match(self.text, self.position):
            self.position += 1
            return Path(".", (), (), rooted)
        steps: list[Step] = []
        if relaxed and (name := _NAME.match(self.text, self.position)):
            steps.append(self._name(name))
        while True:
            if self.take(".."):
                steps += [Descendants(), *self._dotted()]
            elif self.take("."):
                steps += self._dotted()
            elif self.take("["):
                steps.append(self._bracket())
            else:
                break
        names = None
        if all(isinstance(step, Key) for step in steps):
            names = tuple(str(step) for step in steps)
        return Path(self.text[start : self.position], tuple(steps), names, rooted)

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def take(self, token: str) -> bool:
        """Skip the token at the position; return False if the text has another token."""
        if not self.text.startswith(token, self.position):
            return False
        self.position += len(token)
        return True

    def skip_blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def problem(self, expectation: str) -> Malformed:
        """The error for the current position."""
        shown = self.text if len(self.text) <= 80 else f"{self.text[:80]}…"
        actual = (
            f", found {self.text[self.position]!r}" if self.position < len(self.text) else ", reached the end"
        )
        return Malformed(
            f"{expectation}{actual}",
            where=f"{shown!r} at character {self.position + 1}",
            fix="""write paths like .spec.ports[0].name or .items[?(@.a=="b")]""",
        )

    def _dotted(self) -> list[Step]:
        if self.take("*"):
            return [Wildcard()]
        if name := _NAME.match(self.text, self.position):
            return [self._name(name)]
        if self.take("["):
            return [self._bracket()]
        raise self.problem("expected a field name after the dot")

    def _name(self, match: re.Match[str]) -> Key:
        self.position = match.end()
        return Key(re.sub(r"\\(.)", r"\1", match[0]))

    def _bracket(self) -> Step:
        self.skip_blanks()
        if self.take("*"):
            return self._expect_closing_bracket(Wildcard())
        if self.take("?"):
            return self._filter()
        if match := _SLICE.match(self.text, self.position):
            numbers = [int(number) if number else None for number in match.groups()]
            if numbers[2] == 0:
                raise self.problem("a slice cannot step by 0")
            self.position = match.end()
            return Slice(slice(*numbers))
        members: list[Step] = [self._member()]
        while self.take(","):
            members.append(self._member())
        return self._expect_closing_bracket(members[0] if len(members) == 1 else Union(tuple(members)))

    def _member(self) -> Step:
        self.skip_blanks()
        if match := QUOTED.match(self.text, self.position):
            self.position = match.end()
            member: Step = Key(unescaped(match[1] if match[1] is not None else match[2]))
        elif (match := _INTEGER.match(self.text, self.position)) and len(match[0]) < 19:
            self.position = match.end()
            member = Index(int(match[0]))
        else:
            raise self.problem("expected a number, a quoted name, * or ?( inside [ ]")
        self.skip_blanks()
        return member

    def _expect_closing_bracket(self, step: Step) -> Step:
        self.skip_blanks()
        if not self.take("]"):
            raise self.problem("expected ]")
        return step

    def _filter(self) -> Step:
        if not self.take("("):
            raise self.problem("expected ( after ?")
        self.filter_depth += 1
        if self.filter_depth > _MAX_FILTER_DEPTH:
            raise self.problem("comparisons are nested too deep")
        self.skip_blanks()
        left = self.path()
        self.skip_blanks()
        operator = _OPERATOR.match(self.text, self.position)
        right: Any = None
        if operator:
            self.position = operator.end()
            self.skip_blanks()
            if match := QUOTED.match(self.text, self.position):
                self.position = match.end()
                right = unescaped(match[1] if match[1] is not None else match[2])
            elif match := _NUMBER.match(self.text, self.position):
                self.position = match.end()
                right = Decimal(match[0])
            elif match := _WORD.match(self.text, self.position):
                self.position = match.end()
                right = _WORDS[match[0]]
            elif self.text[self.position : self.position + 1] in ("@", "$", "."):
                right = self.path()
            else:
                raise self.problem("expected a quoted text, a number, true or false")
            self.skip_blanks()
        if not self.take(")"):
            raise self.problem("expected ) at the end of the comparison")
        self.filter_depth -= 1
        return self._expect_closing_bracket(Filter(left, operator[0] if operator else "", right))


def unescaped(text: str) -> str:
    """The text with its backslash escapes resolved."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


@dataclass(slots=True)
class Range:
    """A template body that is rendered once per value of the path."""

    path: Path
    body: "list[str | Path | Range]" = field(default_factory=list)


Piece = str | Path | Range


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template."""

    pieces: list[Piece]

    def render(self, value: Any) -> str:
        """Render the template for an object."""
        return "".join(_render(self.pieces, value, value))


def compile_template(text: str) -> Template:
    r"""Compile a template such as `{.items[*].metadata.name}{"\\n"}`; a text without braces is one path."""
    if "{" not in text:
        return Template([compile_path(text)])
    reader = Reader(text)
    stack: list[list[Piece]] = [[]]
    while not reader.at_end():
        brace = text.find("{", reader.position)
        stop = brace if brace >= 0 else len(text)
        if stop > reader.position:
            stack[-1].append(text[reader.position : stop])
        reader.position = stop + 1 if brace >= 0 else stop
        if brace >= 0:
            _parse_braces(reader, stack)
    if len(stack) > 1:
        raise reader.problem("expected {end} for every {range}")
    return Template(stack[0])


def _parse_braces(reader: Reader, stack: list[list[Piece]]) -> None:
    """Parse the content of braces: literals and paths, or the start or end of a range."""
    while True:
        reader.skip_blanks()
        if reader.take("}"):
            return
        if word := _TEMPLATE_KEYWORD.match(reader.text, reader.position):
            if word[1] == "range":
                reader.position = word.end()
                loop = Range(reader.path(relaxed=True))
                stack[-1].append(loop)
                stack.append(loop.body)
            elif len(stack) == 1:
                raise reader.problem("this {end} has no {range}")
            else:
                reader.position = word.end()
                stack.pop()
        elif quoted := QUOTED.match(reader.text, reader.position):
            reader.position = quoted.end()
            stack[-1].append(unescaped(quoted[1] if quoted[1] is not None else quoted[2]))
        else:
            start = reader.position
            stack[-1].append(reader.path(relaxed=True))
            # An empty path means that the text at the position is no path.
            if reader.position == start:
                raise reader.problem("expected a path, a quoted text, range or end")


def _render(pieces: list[Piece], root: Any, current: Any) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            out.append(piece)
        elif isinstance(piece, Path):
            values = piece.find(root if piece.rooted else current)
            # A string unchanged, any other value as JSON.
            out.append(
                " ".join(value if isinstance(value, str) else encode(value).decode() for value in values)
            )
        else:
            for value in piece.path.find(root if piece.path.rooted else current):
                out.extend(_render(piece.body, root, value))
    return out
