"""Manifests as people write them: YAML 1.2 without its traps, every problem and every field with its line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from lattice.errors import LatticeError, Malformed, TooLarge
from lattice.kinds.meta import yaml_scalar as scalar
from lattice.kinds.meta.json_body import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    Parsed,
    decode_stored,
    encode,
    parse_json,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_VALUES",
    "Document",
    "Mark",
    "Parsed",
    "decode_stored",
    "encode",
    "load_documents",
    "parse_json",
]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_BRACKETED = re.compile(r"""\[(?:(\d+)|"([^"]*)"|'([^']*)'|([^\]]*))\]""")


@dataclass(slots=True)
class Mark:
    """Where a value begins, and where the values inside it do."""

    line: int
    children: "dict[str | int, Mark]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest as it was written."""

    value: dict[str, Any]
    source: str
    line: int
    mark: Mark

    def line_of(self, path: str) -> int:
        """The line of a field such as `spec.ports[0].name`; of its nearest ancestor that was written if it was not."""
        mark, rest = self.mark, path
        while rest:
            step = _descend(mark, rest)
            if step is None:
                break
            mark, rest = step
        return mark.line

    def location(self, path: str = "") -> str:
        return f"{self.source}:{self.line_of(path)}"


def _descend(mark: Mark, path: str) -> tuple[Mark, str] | None:
    """One level down. Keys may hold dots themselves, so the longest key that fits wins."""
    if found := _BRACKETED.match(path):
        index, *names = found.groups()
        key = (
            int(index)
            if index is not None and int(index) in mark.children
            else index or next((n for n in names if n is not None), "")
        )
        return (mark.children[key], path[found.end() :].removeprefix(".")) if key in mark.children else None
    fitting = [
        k for k in mark.children if path.startswith(str(k)) and path[len(str(k)) :][:1] in ("", ".", "[")
    ]
    if not fitting:
        return None
    longest = max(fitting, key=lambda k: len(str(k)))
    return mark.children[longest], path[len(str(longest)) :].removeprefix(".")


def load_documents(
    text: str | bytes, source: str = "<input>", *, expand_lists: bool = True
) -> list[Document]:
    """The manifests in a YAML (or JSON) text, empty ones left out.

    With `lists`, a List becomes its items, and the limits hold for each item; without, a document is one object.
    """
    readable = _decoded(text, source)
    composer = _Composer(source, expand_lists)
    try:
        for event in yaml.parse(readable, Loader=_Loader):
            composer.feed(event)
    except yaml.YAMLError as e:
        if (found := _as_json(readable)) is None:
            raise _unreadable(e, source, readable) from e
        composer.documents = [(found, Mark(1))]
    return [d for value, mark in composer.documents for d in _documents(value, mark, source, expand_lists)]


def _decoded(text: str | bytes, source: str) -> str:
    try:
        if isinstance(text, str):
            text.encode()
            return text
        return text.decode("utf-8-sig")
    except UnicodeError as e:
        raise Malformed("is not UTF-8 text", where=source, fix="save the file as UTF-8") from e


def _as_json(text: str) -> Any:
    """YAML readers refuse some JSON, such as escaped surrogate pairs; None if it is not JSON either."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        parsed = parse_json(text.encode())
    except LatticeError:
        return None
    return None if parsed.duplicates else parsed.value


def _unreadable(e: yaml.YAMLError, source: str, text: str) -> Malformed:
    mark = getattr(e, "problem_mark", None)
    last = text.rstrip().count("\n")  # what is missed at the end is told of the last line that says anything
    where = f"{source}:{min(mark.line, last) + 1}" if mark is not None else source
    problem = getattr(e, "problem", None) or getattr(e, "reason", None) or str(e)
    tab = "\\t" in problem or "tab" in problem or "cannot start any token" in problem
    fix = (
        "indent with spaces, and quote text that begins with a special character"
        if tab
        else "check indentation, colons and quotes here"
    )
    return Malformed(f"is not YAML: {problem}", where=where, fix=fix)


def _documents(value: Any, mark: Mark, source: str, lists: bool) -> Iterator[Document]:
    if value is None:
        return
    where = f"{source}:{mark.line}"
    if not isinstance(value, dict):
        raise Malformed(
            f"a manifest is a mapping, got {_describe_type(value)}",
            where=where,
            fix="begin with apiVersion, kind and metadata",
        )
    items = value.get("items")
    if not (lists and isinstance(items, list) and str(value.get("kind", "")).endswith("List")):
        yield Document(value, source, mark.line, mark)
        return
    marks = mark.children.get("items", mark).children
    for i, item in enumerate(items):
        yield from _documents(item, marks.get(i, mark), source, lists)


def _describe_type(value: Any) -> str:
    return (
        "a list"
        if isinstance(value, list)
        else "a mapping"
        if isinstance(value, dict)
        else f"{str(value)[:40]!r}"
    )


@dataclass(slots=True)
class _Open:
    """A collection being read; in a mapping, `key` is the one whose value comes next."""

    value: dict[str, Any] | list[Any]
    mark: Mark
    key: str | None = None
    key_line: int = 0


class _Composer:
    """Builds values from YAML events with a stack of its own, so that depth is a number and not a crash."""

    def __init__(self, source: str, lists: bool) -> None:
        self.source = source
        self.expand_lists = lists
        self.documents: list[tuple[Any, Mark]] = []
        self.stack: list[_Open] = []
        self.value_count = 0
        self.start_offset = 0  # offset of what the limits count from
        self.in_list_items = False  # inside `items` at the top

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.NodeEvent):
            self._count(event)
        match event:
            case yaml.AliasEvent():
                self._fail(
                    event,
                    f"the alias *{event.anchor} is not read",
                    "write the value out: a few lines of aliases can grow without bound",
                )
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.MappingStartEvent():
                self._begin(event, {})
            case yaml.SequenceStartEvent():
                self._begin(event, [])
            case yaml.CollectionEndEvent():
                self.stack.pop()
            case yaml.DocumentStartEvent():
                self._restart(event)

    def _restart(self, event: Any) -> None:
        self.value_count, self.start_offset, self.in_list_items = 0, event.start_mark.index, False

    def _count(self, event: Any) -> None:
        if getattr(event, "anchor", None) is not None and not isinstance(event, yaml.AliasEvent):
            self._fail(
                event, f"the anchor &{event.anchor} is not read", "write the value out where it is needed"
            )
        if self.expand_lists and len(self.stack) == 2 and self.in_list_items:
            self.value_count, self.start_offset = 0, event.start_mark.index
        self.value_count += 1
        if self.value_count > MAX_VALUES:
            self._fail(
                event, f"has more than {MAX_VALUES:,} values", "split it into several objects", TooLarge
            )
        if event.end_mark.index - self.start_offset > MAX_BYTES:
            self._fail(event, "is larger than 1 MiB", "split it into several objects", TooLarge)

    def _begin(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        self._check_tag(event, "map" if isinstance(value, dict) else "seq")
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            self._fail(
                event,
                f"a key must be text, got {_describe_type(value)}",
                "write a plain or quoted word before the colon",
            )
        if len(self.stack) >= MAX_DEPTH:
            self._fail(
                event,
                f"is nested deeper than {MAX_DEPTH} levels",
                "no kind needs that; look for a missing closing bracket",
            )
        self.in_list_items = (
            (len(self.stack) == 1 and self.stack[0].key == "items")
            if len(self.stack) < 2
            else self.in_list_items
        )
        self.stack.append(_Open(value, self._attach(value, event)))

    def _scalar(self, event: Any) -> None:
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            self._key(event, self.stack[-1])
            return
        self._attach(self._value(event), event)

    def _key(self, event: Any, into: _Open) -> None:
        key = self._value(event)
        if not isinstance(key, str):
            self._fail(
                event, f"a key must be text, got {event.value or 'nothing'}", f'quote it: "{event.value}"'
            )
        if key == "<<" and event.implicit[0]:
            self._fail(event, "merge keys (<<) are not read", "write the merged fields out")
        if key in into.value:
            first = into.mark.children[key].line
            self._fail(
                event, f'the key "{key[:60]}" is given twice, first on line {first}', "keep one of them"
            )
        into.key, into.key_line = key, event.start_mark.line + 1

    def _value(self, event: Any) -> scalar.Scalar:
        self._check_tag(event, "str")
        if not event.implicit[0] or event.style:
            return str(event.value)
        try:
            return scalar.parse_scalar(event.value)
        except Malformed as e:
            self._fail(event, e.message, e.fix)

    def _attach(self, value: Any, event: Any) -> Mark:
        line = event.start_mark.line + 1
        if not self.stack:
            mark = Mark(line)
            self.documents.append((value, mark))
            return mark
        into = self.stack[-1]
        if isinstance(into.value, list):
            mark = into.mark.children[len(into.value)] = Mark(line)
            into.value.append(value)
        else:
            key = into.key or ""
            mark = into.mark.children[key] = Mark(into.key_line)
            into.value[key] = value
            into.key = None
        return mark

    def _check_tag(self, event: Any, plain: str) -> None:
        if event.tag not in (None, "!", _TAG + plain):
            shown = event.tag.replace(_TAG, "!!")
            self._fail(event, f"the tag {shown} is not read", "drop the tag; quote the value if it is text")

    def _fail(self, event: Any, what: str, fix: str, kind: type[LatticeError] = Malformed) -> NoReturn:
        raise kind(what, where=f"{self.source}:{event.start_mark.line + 1}", fix=fix)
