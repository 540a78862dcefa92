"""Manifests of `-f` from files, folders, URLs and standard input; a command reads all of them before the
first request."""

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
# Leading lines and bytes of a file that format detection reads.
SNIFF_LINES = 20
SNIFF_BYTES = 4096


def read_manifests(
    sources: Sequence[str],
    recursive: bool = False,
    check: Callable[[Document, Target], None] = lambda document, target: None,
) -> list[tuple[Document, Target]]:
    """Every manifest with its target; raises one error with the problems of all unusable manifests."""
    documents, problems = read_documents(sources, recursive)
    pairs = []
    for document in documents:
        try:
            target = target_of(document, kind_names())
            check(document, target)
            pairs.append((document, target))
        except LatticeError as e:
            problems.append(e)
    return all_or_raise(pairs, problems)


def target_of(document: Document, names: KindNames) -> Target:
    """Resource and name of the object that a manifest describes."""
    manifest = document.value
    metadata = manifest.get("metadata")
    for field, value in (("apiVersion", manifest.get("apiVersion")), ("kind", manifest.get("kind"))):
        if not isinstance(value, str) or not value:
            raise Malformed(f"{field} is missing", where=document.location(field), fix=f"add `{field}:`")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed(
            "metadata.name is missing",
            where=document.location("metadata.name"),
            fix="name the object; quote the name if it looks like a number",
        )
    # Such a name would address another path of the API.
    if "/" in name or name in {".", ".."}:
        fix = "use lower-case letters, digits, '-' and '.'"
        raise Malformed(f'"{name}" is not a valid name', where=document.location("metadata.name"), fix=fix)
    try:
        return Target(names.find_resource(manifest["apiVersion"], manifest["kind"]), name)
    except LatticeError as e:
        raise NotFound(e.message, where=document.location("kind"), fix=e.fix) from e


class ObjectHeader(msgspec.Struct, rename="camel"):
    """Kind and apiVersion of an object, decoded before the other fields; items only for a list."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


decode_header = msgspec.json.Decoder(ObjectHeader).decode


@dataclass(frozen=True, slots=True)
class RawObject:
    """One object as JSON text with its file and line."""

    text: bytes
    source: str
    line: int

    @property
    def location(self) -> str:
        return f"{self.source}:{self.line}"

    def to_document(self) -> Document:
        """Parse the object with the line of every field; empty lines in front keep the line numbers right."""
        return load_documents(b"\n" * (self.line - 1) + self.text, self.source)[0]


def manifest_files(source: str, recursive: bool) -> list[str]:
    """Manifest files of a source: the files of a folder in sorted order, or the source itself."""
    if source == "-" or not Path(source).is_dir():
        return [source]
    entries = Path(source).rglob("*") if recursive else Path(source).iterdir()
    paths = sorted(
        str(path)
        for path in entries
        if path.suffix in (*MANIFEST_SUFFIXES, *JSON_LINES_SUFFIXES) and path.is_file()
    )
    if not paths:
        deeper = "" if recursive else "; -R includes subfolders"
        raise NotFound(
            "no manifests in this folder",
            where=source,
            fix=f"files must end in {', '.join((*MANIFEST_SUFFIXES, *JSON_LINES_SUFFIXES))}{deeper}",
        )
    return paths


def read_objects(path: str) -> Iterator[RawObject | Document]:
    """Objects of a manifest file as JSON text or parsed YAML; a file without objects is an error."""
    if path != "-" and not path.endswith((*JSON_LINES_SUFFIXES, ".json")):
        yield from _yaml_documents(path)
        return
    objects = _json_objects(path)
    first = next(objects, None)
    if first is None:
        fix = "a manifest has apiVersion, kind and metadata.name"
        raise Malformed("the file contains no manifest", where="<stdin>" if path == "-" else path, fix=fix)
    yield first
    yield from objects


def _yaml_documents(path: str) -> list[Document]:
    try:
        return load_manifests([path])
    except Malformed as e:
        if path.endswith(MANIFEST_SUFFIXES) or not Path(path).is_file():
            raise
        with _opened(path) as file:
            first_lines = [line.strip() for line in islice(file, SNIFF_LINES)]
        if not _are_objects(first_lines):
            raise
        fix = "rename the file to end in .jsonl, which holds one object per line"
        raise Malformed("looks like JSON with one object per line", where=path, fix=fix) from e


def _are_objects(lines: Sequence[bytes]) -> bool:
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line)


def _json_objects(path: str) -> Iterator[RawObject | Document]:
    if path.endswith(JSON_LINES_SUFFIXES):
        with _opened(path) as file:
            # A NUL byte means a binary file; YAML and JSON never contain one.
            if b"\0" in file.peek(SNIFF_BYTES)[:SNIFF_BYTES]:
                raise Malformed("is not text", where=path, fix="write one JSON object per line, in UTF-8")
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
    """Yield the objects of a JSON text: a single object, the items of a list, or one object per line. A text
    that is not JSON is parsed as YAML."""
    try:
        head = decode_header(text)
    # RecursionError: a deeply nested text exceeds the decoder's depth.
    except (msgspec.MsgspecError, RecursionError):
        if text.lstrip()[:1] != b"[":
            yield from _line_objects(text, source)
            return
        # A bare JSON array is accepted like a List.
        try:
            items = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            yield from _parse_as_yaml(text, source)
        else:
            yield from _with_line_numbers(items, text, source)
        return
    # An object of another kind may have a field `items` of its own.
    if head.items is None or not head.kind.endswith("List"):
        yield RawObject(text.strip(), source, 1 + text[: len(text) - len(text.lstrip())].count(b"\n"))
        return
    yield from _with_line_numbers(head.items, text, source)


def _line_objects(text: bytes, source: str) -> Iterator[RawObject | Document]:
    lines = [line.strip() for line in text.split(b"\n")]
    is_json_lines = _are_objects(lines)
    if not is_json_lines and source.endswith(".json"):
        # A first line that is JSON means JSON lines with a broken line further down.
        try:
            decode_header(next(filter(None, lines), b""))
            is_json_lines = True
        except (msgspec.MsgspecError, RecursionError):
            is_json_lines = False
    if is_json_lines:
        yield from (RawObject(line, source, number) for number, line in enumerate(lines, 1) if line)
        return
    yield from _parse_as_yaml(text, source)


def _with_line_numbers(items: Sequence[msgspec.Raw], text: bytes, source: str) -> Iterator[RawObject]:
    """Items of a list with their line numbers; each search starts after the previous item, so equal items get
    different lines."""
    start = 0
    line = 1
    for raw in items:
        item = bytes(raw)
        offset = text.find(item, start)
        line += text.count(b"\n", start, offset)
        yield RawObject(item, source, line)
        line += item.count(b"\n")
        start = offset + len(item)


def _parse_as_yaml(text: bytes, source: str) -> list[Document]:
    """Parse a text as YAML, of which JSON is a subset; a text meant as JSON gets the error of the JSON
    parser."""
    if source.endswith(".json") and (json_error := _json_error(text, source)):
        raise json_error
    try:
        return load_documents(text, source)
    except Malformed as e:
        if text.lstrip()[:1] in (b"{", b"[") and (json_error := _json_error(text, source)):
            raise json_error from e
        raise


def _json_error(text: bytes, source: str) -> Malformed | None:
    """The JSON syntax error of a text; None for valid JSON and for problems that the YAML parser reports
    better."""
    try:
        json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as e:
        message = f"is not JSON: {e.msg[:1].lower()}{e.msg[1:]}"
        return Malformed(
            message, where=f"{source}:{e.lineno}", fix="check commas, quotes and brackets at this position"
        )
    except (ValueError, RecursionError):
        return None
    return None


def locate_error(
    e: LatticeError, document: Document, target: Target, *, can_force: bool = True
) -> LatticeError:
    """The same error with the file and line of every field in its causes; `can_force` says whether the command
    has the option --force-conflicts."""
    name = f"{full_name(target.resource)}/{target.name}"
    # In the order of the lines in the file.
    in_order = sorted(e.causes, key=lambda cause: document.line_of(cause.field.removeprefix(".")))
    causes = []
    for cause in in_order:
        path = cause.field.removeprefix(".")
        where = document.location(path)
        # The path is left out if the message names the field already.
        if path and path not in cause.message:
            where = f"{where}: {path}"
        causes.append(Cause(where, cause.message, cause.reason))
    # The causes name the fields and their managers; the server's message only repeats the causes.
    if causes and isinstance(e, Conflict):
        fields, pronoun = ("1 field is", "it") if len(causes) == 1 else (f"{len(causes)} fields are", "them")
        flag = "--force-conflicts" if can_force else "`lattice apply --force-conflicts` first"
        fix = f"take {pronoun} over with {flag}, or remove {pronoun} from the manifest"
        return Conflict(
            f"{name}: {fields} managed by another field manager",
            where=document.location(),
            fix=fix,
            causes=causes,
        )
    # The message of such an error only repeats the causes on one line.
    if causes and isinstance(e, Invalid | Malformed):
        return Invalid(f"{name} is invalid", where=document.location(), fix=e.fix, causes=causes)
    return type(e)(f"{name}: {e.message}", where=e.where or document.location(), fix=e.fix, causes=causes)
