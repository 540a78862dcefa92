"""The objects in a file that `-f` names, one after the other, each with where it stands: YAML, JSON, or an object a line."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.manifests import ENDINGS, documents
from lattice.errors import Malformed, NotFound
from lattice.kinds.meta.yaml_manifest import Document, load

LINES = (".jsonl", ".ndjson")
LOOKED_AT = 20  # lines of a file, to see what is in it
PEEKED_AT = 4096  # bytes of a file, to see whether it is text


class Head(msgspec.Struct, rename="camel"):
    """What an object says it is; the rest is looked at when that matters. A list has items."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


head_of = msgspec.json.Decoder(Head).decode


@dataclass(frozen=True, slots=True)
class Written:
    """One object as JSON text, and where it stands."""

    text: bytes
    source: str
    line: int

    @property
    def at(self) -> str:
        return f"{self.source}:{self.line}"

    def document(self) -> Document:
        """Slowly, with the line of every field; lines above are empty so that they count."""
        return load(b"\n" * (self.line - 1) + self.text, self.source)[0]


def files(place: str, recursive: bool) -> list[str]:
    if place == "-" or not Path(place).is_dir():
        return [place]
    entries = Path(place).rglob("*") if recursive else Path(place).iterdir()
    found = sorted(str(path) for path in entries if path.suffix in (*ENDINGS, *LINES) and path.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound(
            "no manifests in this folder",
            where=place,
            fix=f"files must end in {', '.join((*ENDINGS, *LINES))}{deeper}",
        )
    return found


def objects(path: str) -> Iterator[Written | Document]:
    """At least one, or that there is none is an error."""
    if path != "-" and not path.endswith((*LINES, ".json")):
        yield from _in_yaml(path)
        return
    found = _json_objects(path)
    first = next(found, None)
    if first is None:
        fix = "a manifest has apiVersion, kind and metadata.name"
        raise Malformed("there is no manifest here", where="<stdin>" if path == "-" else path, fix=fix)
    yield first
    yield from found


def _in_yaml(path: str) -> list[Document]:
    try:
        return documents([path])
    except Malformed as e:
        if path.endswith(ENDINGS) or not _holds_lines(path):
            raise
        fix = "an object a line is read from files that end in .jsonl: rename it"
        raise Malformed("looks like JSON, an object a line", where=path, fix=fix) from e


def _holds_lines(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with _opened(path) as file:
        return _are_objects([line.strip() for line in islice(file, LOOKED_AT)])


def _are_objects(lines: Sequence[bytes]) -> bool:
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line)


def _json_objects(path: str) -> Iterator[Written | Document]:
    if path.endswith(LINES):
        with _opened(path) as file:
            if b"\0" in file.peek(PEEKED_AT)[:PEEKED_AT]:
                raise Malformed("is not text", where=path, fix="give an object a line, as JSON in UTF-8")
            yield from (
                Written(line.strip(), path, number) for number, line in enumerate(file, 1) if line.strip()
            )
        return
    if path == "-":
        yield from _items(sys.stdin.buffer.read(), "<stdin>")
        return
    with _opened(path) as file:
        text = file.read()
    yield from _items(text, path)


def _opened(path: str) -> Any:
    try:
        return Path(path).open("rb")
    except OSError as e:
        raise NotFound(
            f"cannot be read: {(e.strerror or str(e)).lower()}",
            where=path,
            fix="check the path and its permissions",
        ) from e


def _items(text: bytes, source: str) -> Iterator[Written | Document]:
    """One object, the items of a list, an object a line, or, from standard input, YAML."""
    try:
        head = head_of(text)
    except (msgspec.MsgspecError, RecursionError):
        yield from _in_list(text, source) if text.lstrip()[:1] == b"[" else _in_lines(text, source)
        return
    if head.items is None or not head.kind.endswith("List"):
        yield Written(text.strip(), source, 1 + text[: len(text) - len(text.lstrip())].count(b"\n"))
        return
    yield from _placed(head.items, text, source)


def _in_list(text: bytes, source: str) -> Iterator[Written | Document]:
    """A bare JSON list is as good as a List."""
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        yield from _one_by_one(text, source)
        return
    yield from _placed(found, text, source)


def _in_lines(text: bytes, source: str) -> Iterator[Written | Document]:
    lines = [line.strip() for line in text.split(b"\n")]
    if _are_objects(lines) or (source.endswith(".json") and _begins_with_a_whole_one(lines)):
        yield from (Written(line, source, number) for number, line in enumerate(lines, 1) if line)
        return
    yield from _one_by_one(text, source)


def _begins_with_a_whole_one(lines: Sequence[bytes]) -> bool:
    """Then it is a later line that is broken."""
    try:
        head_of(next(filter(None, lines), b""))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _placed(items: Sequence[msgspec.Raw], text: bytes, source: str) -> Iterator[Written]:
    start = 0
    line = 1
    for raw in items:
        item = bytes(raw)
        place = text.find(item, start)
        line += text.count(b"\n", start, place)
        yield Written(item, source, line)
        line += item.count(b"\n")
        start = place + len(item)


def _one_by_one(text: bytes, source: str) -> list[Document]:
    """As YAML, which JSON is too; but what is meant as JSON is judged as JSON."""
    if source.endswith(".json") and (wrong := _not_json(text, source)):
        raise wrong
    try:
        return load(text, source)
    except Malformed as e:
        if text.lstrip()[:1] in (b"{", b"[") and (wrong := _not_json(text, source)):
            raise wrong from e
        raise


def _not_json(text: bytes, source: str) -> Malformed | None:
    """None: it is JSON, or another thing is wrong with it that YAML is told by as well."""
    try:
        json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as e:
        what = f"is not JSON: {e.msg[:1].lower()}{e.msg[1:]}"
        return Malformed(what, where=f"{source}:{e.lineno}", fix="check commas, quotes and brackets here")
    except (ValueError, RecursionError):
        return None
    return None
