"""The manifests that `-f` names: files, folders, addresses, standard input; all read before anything is sent."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import KindNames, Target, full_name, kind_names
from lattice.errors import Cause, Conflict, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.meta.yaml_manifest import Document, load_documents
from lattice.manifest_files import MANIFEST_SUFFIXES, all_or_raise, load_manifests, read_documents

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
SNIFF_LINES = 20  # lines of a file, to see what is in it
SNIFF_BYTES = 4096  # bytes of a file, to see whether it is text


def read_manifests(
    places: Sequence[str],
    recursive: bool = False,
    check: Callable[[Document, Target], None] = lambda document, target: None,
) -> list[tuple[Document, Target]]:
    """Every manifest there with what it is about; every one that cannot be used is told."""
    found, problems = read_documents(places, recursive)
    pairs = []
    for document in found:
        try:
            target = target_of(document, kind_names())
            check(document, target)
            pairs.append((document, target))
        except LatticeError as e:
            problems.append(e)
    return all_or_raise(pairs, problems)


def target_of(document: Document, known: KindNames) -> Target:
    """Which object a manifest is about."""
    value = document.value
    metadata = value.get("metadata")
    for field, given in (("apiVersion", value.get("apiVersion")), ("kind", value.get("kind"))):
        if not isinstance(given, str) or not given:
            raise Malformed(
                f"{field} is missing", where=document.location(field), fix=f"say what this is with `{field}:`"
            )
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed(
            "metadata.name is missing",
            where=document.location("metadata.name"),
            fix="name the object; quote the name if it looks like a number",
        )
    if "/" in name or name in {".", ".."}:
        fix = "use lower-case letters, digits, '-' and '.'"
        raise Malformed(f'"{name}" cannot be a name', where=document.location("metadata.name"), fix=fix)
    try:
        return Target(known.find_resource(value["apiVersion"], value["kind"]), name)
    except LatticeError as e:
        raise NotFound(e.message, where=document.location("kind"), fix=e.fix) from e


class ObjectHeader(msgspec.Struct, rename="camel"):
    """What an object says it is; the rest is looked at when that matters. A list has items."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


decode_header = msgspec.json.Decoder(ObjectHeader).decode


@dataclass(frozen=True, slots=True)
class RawObject:
    """One object as JSON text, and where it stands."""

    text: bytes
    source: str
    line: int

    @property
    def location(self) -> str:
        return f"{self.source}:{self.line}"

    def to_document(self) -> Document:
        """Slowly, with the line of every field; lines above are empty so that they count."""
        return load_documents(b"\n" * (self.line - 1) + self.text, self.source)[0]


def manifest_files(place: str, recursive: bool) -> list[str]:
    if place == "-" or not Path(place).is_dir():
        return [place]
    entries = Path(place).rglob("*") if recursive else Path(place).iterdir()
    found = sorted(
        str(path)
        for path in entries
        if path.suffix in (*MANIFEST_SUFFIXES, *JSON_LINES_SUFFIXES) and path.is_file()
    )
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound(
            "no manifests in this folder",
            where=place,
            fix=f"files must end in {', '.join((*MANIFEST_SUFFIXES, *JSON_LINES_SUFFIXES))}{deeper}",
        )
    return found


def read_objects(path: str) -> Iterator[RawObject | Document]:
    """At least one, or that there is none is an error."""
    if path != "-" and not path.endswith((*JSON_LINES_SUFFIXES, ".json")):
        yield from _yaml_documents(path)
        return
    found = _json_objects(path)
    first = next(found, None)
    if first is None:
        fix = "a manifest has apiVersion, kind and metadata.name"
        raise Malformed("there is no manifest here", where="<stdin>" if path == "-" else path, fix=fix)
    yield first
    yield from found


def _yaml_documents(path: str) -> list[Document]:
    try:
        return load_manifests([path])
    except Malformed as e:
        if path.endswith(MANIFEST_SUFFIXES) or not _is_json_lines(path):
            raise
        fix = "an object a line is read from files that end in .jsonl: rename it"
        raise Malformed("looks like JSON, an object a line", where=path, fix=fix) from e


def _is_json_lines(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with _opened(path) as file:
        return _are_objects([line.strip() for line in islice(file, SNIFF_LINES)])


def _are_objects(lines: Sequence[bytes]) -> bool:
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line)


def _json_objects(path: str) -> Iterator[RawObject | Document]:
    if path.endswith(JSON_LINES_SUFFIXES):
        with _opened(path) as file:
            if b"\0" in file.peek(SNIFF_BYTES)[:SNIFF_BYTES]:
                raise Malformed("is not text", where=path, fix="give an object a line, as JSON in UTF-8")
            yield from (
                RawObject(line.strip(), path, number) for number, line in enumerate(file, 1) if line.strip()
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


def _items(text: bytes, source: str) -> Iterator[RawObject | Document]:
    """One object, the items of a list, an object a line, or, from standard input, YAML."""
    try:
        head = decode_header(text)
    except (msgspec.MsgspecError, RecursionError):
        yield from _list_items(text, source) if text.lstrip()[:1] == b"[" else _line_objects(text, source)
        return
    if head.items is None or not head.kind.endswith("List"):
        yield RawObject(text.strip(), source, 1 + text[: len(text) - len(text.lstrip())].count(b"\n"))
        return
    yield from _with_line_numbers(head.items, text, source)


def _list_items(text: bytes, source: str) -> Iterator[RawObject | Document]:
    """A bare JSON list is as good as a List."""
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        yield from _parse_as_yaml(text, source)
        return
    yield from _with_line_numbers(found, text, source)


def _line_objects(text: bytes, source: str) -> Iterator[RawObject | Document]:
    lines = [line.strip() for line in text.split(b"\n")]
    if _are_objects(lines) or (source.endswith(".json") and _first_line_is_json(lines)):
        yield from (RawObject(line, source, number) for number, line in enumerate(lines, 1) if line)
        return
    yield from _parse_as_yaml(text, source)


def _first_line_is_json(lines: Sequence[bytes]) -> bool:
    """Then it is a later line that is broken."""
    try:
        decode_header(next(filter(None, lines), b""))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _with_line_numbers(items: Sequence[msgspec.Raw], text: bytes, source: str) -> Iterator[RawObject]:
    start = 0
    line = 1
    for raw in items:
        item = bytes(raw)
        place = text.find(item, start)
        line += text.count(b"\n", start, place)
        yield RawObject(item, source, line)
        line += item.count(b"\n")
        start = place + len(item)


def _parse_as_yaml(text: bytes, source: str) -> list[Document]:
    """As YAML, which JSON is too; but what is meant as JSON is judged as JSON."""
    if source.endswith(".json") and (wrong := _json_error(text, source)):
        raise wrong
    try:
        return load_documents(text, source)
    except Malformed as e:
        if text.lstrip()[:1] in (b"{", b"[") and (wrong := _json_error(text, source)):
            raise wrong from e
        raise


def _json_error(text: bytes, source: str) -> Malformed | None:
    """None: it is JSON, or another thing is wrong with it that YAML is told by as well."""
    try:
        json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as e:
        what = f"is not JSON: {e.msg[:1].lower()}{e.msg[1:]}"
        return Malformed(what, where=f"{source}:{e.lineno}", fix="check commas, quotes and brackets here")
    except (ValueError, RecursionError):
        return None
    return None


def locate_error(e: LatticeError, document: Document, target: Target) -> LatticeError:
    """The same refusal, with the file and line of every field it names."""
    name = f"{full_name(target.resource)}/{target.name}"
    in_order = sorted(e.causes, key=lambda cause: document.line_of(cause.field.removeprefix(".")))
    causes = [_with_line(c, document) for c in in_order]
    if causes and isinstance(e, Conflict):
        return _field_conflict(name, document, causes)
    if causes and isinstance(
        e, Invalid | Malformed
    ):  # then what it says is only the causes again, on one line
        return Invalid(f"{name} is invalid", where=document.location(), fix=e.fix, causes=causes)
    return type(e)(f"{name}: {e.message}", where=e.where or document.location(), fix=e.fix, causes=causes)


def _field_conflict(name: str, document: Document, causes: list[Cause]) -> Conflict:
    """The causes say which and by whom; the server's own message is all of them again on one line."""
    one = len(causes) == 1
    what = "1 field is" if one else f"{len(causes)} fields are"
    it = "it" if one else "them"
    fix = f"take {it} over with --force-conflicts, or leave {it} out of the manifest"
    return Conflict(
        f"{name}: {what} managed by somebody else", where=document.location(), fix=fix, causes=causes
    )


def _with_line(cause: Cause, document: Document) -> Cause:
    path = cause.field.removeprefix(".")
    named = path and path not in cause.message
    return Cause(
        f"{document.location(path)}: {path}" if named else document.location(path),
        cause.message,
        cause.reason,
    )
