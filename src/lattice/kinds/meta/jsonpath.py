"""Where in an object: paths such as `.spec.ports[0].name`, compiled once."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lattice.errors import Malformed

_NAME = re.compile(r"(?:\\.|[^\s.\[\]{}()'\"\\@$*,?:=<>!])+")
_LONE_DOT = re.compile(r"\.(?=[\s})]|$)")  # a lone dot: the object itself
_INTEGER = re.compile(r"-?\d+")
_SLICE = re.compile(r"\s*(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*(?::\s*(-?\d{1,18})?\s*)?\]")
QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")  # an exponent that is longer fits nowhere
_WORD = re.compile(r"true|false|null|nil")
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
_MAX_FILTER_DEPTH = 8  # inside one another
_WORDS = {"true": True, "false": False, "null": None, "nil": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Key(str):
    """A field by name."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Index:
    at: int


@dataclass(frozen=True, slots=True)
class Slice:
    part: slice


@dataclass(frozen=True, slots=True)
class Wildcard:
    """All values of a list or a mapping."""


@dataclass(frozen=True, slots=True)
class Descendants:
    """The value itself and everything under it."""


@dataclass(frozen=True, slots=True)
class Union:
    """Several fields or items at once."""

    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Filter:
    """The items for which a comparison holds; without an operator, those that have the field."""

    left: "Path"
    operator: str = ""
    right: Any = None


Step = Key | Index | Slice | Wildcard | Descendants | Union | Filter


@dataclass(frozen=True, slots=True)
class Path:
    """A compiled path. What is not there is simply not found."""

    text: str
    steps: tuple[Step, ...]
    names: tuple[str, ...] | None  # set when the path is nothing but field names: the fast and usual case
    rooted: bool = False  # begins with $: looks from the whole object, also inside a range

    def find(self, value: Any) -> list[Any]:
        if self.names is None:
            return _apply_steps(self.steps, [value])
        for name in self.names:
            if type(value) is not dict or name not in value:
                return []
            value = value[name]
        return [value]


def compile_path(text: str) -> Path:
    """A path in any of kubectl's spellings: `.a.b`, `a.b`, `$.a.b`, `{.a.b}`."""
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1].strip()
    reader = Reader(bare)
    path = reader.path(relaxed=True)
    if not reader.at_end():
        raise reader.problem("expected the path to end")
    return path


def _apply_steps(steps: tuple[Step, ...], values: list[Any]) -> list[Any]:
    for step in steps:
        values = [found for value in values for found in _apply_step(step, value)]
    return values


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
            yield from _descendants(value)
        case Union(several):
            for one in several:
                yield from _apply_step(one, value)
        case Filter():
            yield from (item for item in _children(value) if _matches_filter(step, item))


def _children(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def _descendants(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(reversed(_children(one)))


def _matches_filter(test: Filter, item: Any) -> bool:
    found = test.left.find(item)
    if not test.operator:
        return bool(found)
    right = test.right.find(item) if isinstance(test.right, Path) else [test.right]
    return bool(found and right) and _compare(found[0], test.operator, right[0])


def _compare(left: Any, operator: str, right: Any) -> bool:
    if operator in ("==", "!="):
        return (_is_equal(left, right)) == (operator == "==")
    if not (_is_number(left) and _is_number(right)) and not (
        isinstance(left, str) and isinstance(right, str)
    ):
        return False
    return _ORDER[operator](left, right)


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: bool(a < b),
    ">": lambda a, b: bool(a > b),
    "<=": lambda a, b: bool(a <= b),
    ">=": lambda a, b: bool(a >= b),
}


def _is_equal(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


class Reader:
    """Reads paths out of a text from a position on."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.position = at
        self.filter_depth = 0  # comparisons that the position is inside of

    def path(self, relaxed: bool = False) -> Path:
        began = self.position
        rooted = self.take("$")
        if not rooted:
            self.take("@")
        if _LONE_DOT.match(self.text, self.position):
            self.position += 1
            return Path(".", (), (), rooted)
        steps: list[Step] = []
        if relaxed and (name := _NAME.match(self.text, self.position)):
            steps.append(self._name(name))
        while step := self._step():
            steps.extend(step)
        names = tuple(str(s) for s in steps) if all(isinstance(s, Key) for s in steps) else None
        return Path(self.text[began : self.position], tuple(steps), names, rooted)

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def take(self, token: str) -> bool:
        if not self.text.startswith(token, self.position):
            return False
        self.position += len(token)
        return True

    def skip_blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def problem(self, what: str) -> Malformed:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:80]}…"
        found = (
            f", found {self.text[self.position]!r}" if self.position < len(self.text) else ", found the end"
        )
        return Malformed(
            f"{what}{found}",
            where=f"{shown!r} at character {self.position + 1}",
            fix="""write paths like .spec.ports[0].name or .items[?(@.a=="b")]""",
        )

    def _step(self) -> list[Step]:
        if self.take(".."):
            return [Descendants(), *self._dotted()]
        if self.take("."):
            return self._dotted()
        if self.take("["):
            return [self._bracket()]
        return []

    def _dotted(self) -> list[Step]:
        if self.take("*"):
            return [Wildcard()]
        if name := _NAME.match(self.text, self.position):
            return [self._name(name)]
        if self.take("["):
            return [self._bracket()]
        raise self.problem("expected a field name after the dot")

    def _name(self, found: re.Match[str]) -> Key:
        self.position = found.end()
        return Key(re.sub(r"\\(.)", r"\1", found[0]))

    def _bracket(self) -> Step:
        self.skip_blanks()
        if self.take("*"):
            return self._expect_closing_bracket(Wildcard())
        if self.take("?"):
            return self._filter()
        if part := _SLICE.match(self.text, self.position):
            return self._slice(part)
        several: list[Step] = [self._member()]
        while self.take(","):
            several.append(self._member())
        return self._expect_closing_bracket(several[0] if len(several) == 1 else Union(tuple(several)))

    def _slice(self, found: re.Match[str]) -> Slice:
        numbers = [int(n) if n else None for n in found.groups()]
        if numbers[2] == 0:
            raise self.problem("a slice cannot step by 0")
        self.position = found.end()
        return Slice(slice(*numbers))

    def _member(self) -> Step:
        self.skip_blanks()
        if found := QUOTED.match(self.text, self.position):
            self.position = found.end()
            member: Step = Key(unescaped(found[1] if found[1] is not None else found[2]))
        elif (found := _INTEGER.match(self.text, self.position)) and len(found[0]) < 19:
            self.position = found.end()
            member = Index(int(found[0]))
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
            right = self._literal()
            self.skip_blanks()
        if not self.take(")"):
            raise self.problem("expected ) at the end of the comparison")
        self.filter_depth -= 1
        return self._expect_closing_bracket(Filter(left, operator[0] if operator else "", right))

    def _literal(self) -> Any:
        if found := QUOTED.match(self.text, self.position):
            self.position = found.end()
            return unescaped(found[1] if found[1] is not None else found[2])
        if found := _NUMBER.match(self.text, self.position):
            self.position = found.end()
            return Decimal(found[0])
        if found := _WORD.match(self.text, self.position):
            self.position = found.end()
            return _WORDS[found[0]]
        if self.text[self.position : self.position + 1] in ("@", "$", "."):
            return self.path()
        raise self.problem("expected a quoted text, a number, true or false")


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text, flags=re.DOTALL)
