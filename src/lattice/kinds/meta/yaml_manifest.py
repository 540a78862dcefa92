"""Parse YAML manifests: YAML 1.2 without ambiguous features, with the line of every problem and field."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from lattice.errors import LatticeError, Malformed, TooLarge
from lattice.kinds.meta import yaml_scalar as scalar
from lattice.kinds.meta.json_body import (
    MAX_DEPTH,
    MAX_VALUES,
    Parsed,
    decode_stored,
    encode,
    parse_json,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_VALUES",
    "MAX_YAML_BYTES",
    "Document",
    "Mark",
    "Parsed",
    "decode_stored",
    "encode",
    "load_documents",
    "parse_json",
]

# Per object: the YAML reader is slow, and large objects are written by programs, as JSON.
MAX_YAML_BYTES = 1 << 20

# The loader of libyaml is faster, but PyYAML may be built without libyaml.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_BRACKETED = re.compile(r"""\[(?:(\d+)|"([^"]*)"|'([^']*)'|([^\]]*))\]""")


@dataclass(slots=True)
class Mark:
    """The line of a value, with the marks of its nested values."""

    line: int
    children: "dict[str | int, Mark]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed manifest with its source and line numbers."""

    value: dict[str, Any]
    source: str
    line: int
    mark: Mark

    def line_of(self, path: str) -> int:
        """The line of a field such as `spec.ports[0].name`, or of its nearest ancestor in the manifest."""
        mark, remaining = self.mark, path
        while remaining:
            step = _descend(mark, remaining)
            if step is None:
                break
            mark, remaining = step
        return mark.line

    def location(self, path: str = "") -> str:
        """The file and line of a field, for messages."""
        return f"{self.source}:{self.line_of(path)}"


def _descend(mark: Mark, path: str) -> tuple[Mark, str] | None:
    """The child mark at the start of the path, and the remaining path; the longest matching key wins, since
    keys may contain dots."""
    if match := _BRACKETED.match(path):
        index, *names = match.groups()
        key: str | int
        if index is not None and int(index) in mark.children:
            key = int(index)
        else:
            key = index or next((name for name in names if name is not None), "")
        return (mark.children[key], path[match.end() :].removeprefix(".")) if key in mark.children else None
    matching = [
        key
        for key in mark.children
        if path.startswith(str(key)) and path[len(str(key)) :][:1] in ("", ".", "[")
    ]
    if not matching:
        return None
    longest = max(matching, key=lambda key: len(str(key)))
    return mark.children[longest], path[len(str(longest)) :].removeprefix(".")


def load_documents(
    text: str | bytes, source: str = "<input>", *, expand_lists: bool = True
) -> list[Document]:
    """The manifests of a YAML (or JSON) text, without empty documents.

    With `expand_lists`, a List object becomes its items, and the limits apply per item; otherwise a document
    is one object.
    """
    try:
        # "utf-8-sig" drops a byte order mark. `encode` rejects a text with half of a surrogate pair, which is
        # not valid Unicode.
        readable = text if isinstance(text, str) else text.decode("utf-8-sig")
        readable.encode()
    except UnicodeError as e:
        raise Malformed("is not UTF-8 text", where=source, fix="save the file as UTF-8") from e
    composer = _Composer(source, expand_lists)
    try:
        for event in yaml.parse(readable, Loader=_Loader):
            composer.feed(event)
    except yaml.YAMLError as e:
        if (json_value := _as_json(readable)) is None:
            raise _unreadable(e, source, readable) from e
        composer.documents = [(json_value, Mark(1))]
    documents: list[Document] = []
    for value, mark in composer.documents:
        documents += _documents(value, mark, source, expand_lists)
    return documents


def _as_json(text: str) -> Any:
    """The value of a JSON text that YAML parsers reject, such as a text with escaped surrogate pairs; None if
    the text is not JSON."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        parsed = parse_json(text.encode())
    except LatticeError:
        return None
    # A repeated key is an error in a manifest: the error of the YAML parser stays.
    return None if parsed.duplicates else parsed.value


def _unreadable(e: yaml.YAMLError, source: str, text: str) -> Malformed:
    mark = getattr(e, "problem_mark", None)
    # A problem at the end of the text is reported for the last line with content.
    last = text.rstrip().count("\n")
    where = f"{source}:{min(mark.line, last) + 1}" if mark is not None else source
    problem = getattr(e, "problem", None) or getattr(e, "reason", None) or str(e)
    tab = "\\t" in problem or "tab" in problem or "cannot start any token" in problem
    fix = (
        "indent with spaces, and quote text that begins with a special character"
        if tab
        else "check indentation, colons and quotes at this position"
    )
    return Malformed(f"is not YAML: {problem}", where=where, fix=fix)


def _documents(value: Any, mark: Mark, source: str, expand_lists: bool) -> Iterator[Document]:
    if value is None:
        return
    where = f"{source}:{mark.line}"
    if not isinstance(value, dict):
        raise Malformed(
            f"a manifest is a mapping, got {_describe_type(value)}",
            where=where,
            fix="start the manifest with apiVersion, kind and metadata",
        )
    items = value.get("items")
    if not (expand_lists and isinstance(items, list) and str(value.get("kind", "")).endswith("List")):
        yield Document(value, source, mark.line, mark)
        return
    marks = mark.children.get("items", mark).children
    for i, item in enumerate(items):
        yield from _documents(item, marks.get(i, mark), source, expand_lists)


def _describe_type(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"{str(value)[:40]!r}"


@dataclass(slots=True)
class _Open:
    """A collection under construction; in a mapping, `key` is the key of the next value."""

    value: dict[str, Any] | list[Any]
    mark: Mark
    key: str | None = None
    key_line: int = 0


class _Composer:
    """Builds values from YAML events with an explicit stack, so that deep nesting is an error and not a stack
    overflow."""

    def __init__(self, source: str, expand_lists: bool) -> None:
        self.source = source
        self.expand_lists = expand_lists
        self.documents: list[tuple[Any, Mark]] = []
        self.stack: list[_Open] = []
        self.value_count = 0
        self.start_offset = 0  # start of the object that the limits apply to
        self.in_list_items = False  # inside the top-level `items`

    def feed(self, event: yaml.Event) -> None:
        """Add one YAML event."""
        if isinstance(event, yaml.NodeEvent):
            self._count(event)
        match event:
            case yaml.AliasEvent():
                self._fail(
                    event,
                    f"the alias *{event.anchor} is not supported",
                    "write the value in full: a few lines of aliases can expand to a huge document",
                )
            case yaml.ScalarEvent():
                parent = self.stack[-1] if self.stack else None
                if parent is not None and isinstance(parent.value, dict) and parent.key is None:
                    self._key(event, parent)
                else:
                    self._attach(self._value(event), event)
            case yaml.MappingStartEvent():
                self._begin(event, {})
            case yaml.SequenceStartEvent():
                self._begin(event, [])
            case yaml.CollectionEndEvent():
                self.stack.pop()
            case yaml.DocumentStartEvent():
                start: Any = event.start_mark
                self.value_count, self.start_offset, self.in_list_items = 0, start.index, False

    def _count(self, event: Any) -> None:
        """Check the size limits of the current object."""
        if getattr(event, "anchor", None) is not None and not isinstance(event, yaml.AliasEvent):
            self._fail(
                event,
                f"the anchor &{event.anchor} is not supported",
                "write the value in full where it is needed",
            )
        # Every item of a List starts a new count.
        if self.expand_lists and len(self.stack) == 2 and self.in_list_items:
            self.value_count, self.start_offset = 0, event.start_mark.index
        self.value_count += 1
        if self.value_count > MAX_VALUES:
            self._fail(
                event, f"has more than {MAX_VALUES:,} values", "split the file into several objects", TooLarge
            )
        if event.end_mark.index - self.start_offset > MAX_YAML_BYTES:
            self._fail(event, "is larger than 1 MiB", "split the file into several objects", TooLarge)

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
                "no kind has that depth; look for a missing closing bracket",
            )
        # Only the top-level `items` count: deeper down, a field of that name is part of one object.
        self.in_list_items = (
            (len(self.stack) == 1 and self.stack[0].key == "items")
            if len(self.stack) < 2
            else self.in_list_items
        )
        self.stack.append(_Open(value, self._attach(value, event)))

    def _key(self, event: Any, parent: _Open) -> None:
        key = self._value(event)
        if not isinstance(key, str):
            self._fail(
                event,
                f"a key must be text, got {event.value or 'nothing'}",
                f'quote the key: "{event.value}"',
            )
        if key == "<<" and event.implicit[0]:
            self._fail(event, "merge keys (<<) are not supported", "write the merged fields in full")
        if key in parent.value:
            first = parent.mark.children[key].line
            self._fail(
                event,
                f'the key "{key[:60]}" appears twice, first on line {first}',
                "keep one of the two keys",
            )
        parent.key, parent.key_line = key, event.start_mark.line + 1

    def _value(self, event: Any) -> scalar.Scalar:
        self._check_tag(event, "str")
        # A quoted scalar is text, whatever the text looks like.
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
        parent = self.stack[-1]
        if isinstance(parent.value, list):
            mark = parent.mark.children[len(parent.value)] = Mark(line)
            parent.value.append(value)
        else:
            key = parent.key or ""
            mark = parent.mark.children[key] = Mark(parent.key_line)
            parent.value[key] = value
            parent.key = None
        return mark

    def _check_tag(self, event: Any, plain: str) -> None:
        if event.tag not in (None, "!", _TAG + plain):
            shown = event.tag.replace(_TAG, "!!")
            self._fail(
                event, f"the tag {shown} is not supported", "remove the tag; quote the value if it is text"
            )

    def _fail(self, event: Any, message: str, fix: str, kind: type[LatticeError] = Malformed) -> NoReturn:
        raise kind(message, where=f"{self.source}:{event.start_mark.line + 1}", fix=fix)
