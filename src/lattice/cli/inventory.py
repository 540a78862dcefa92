"""Nodes and workloads that `-f` names, for deciding offline: every object checked as the server would, every problem with its line."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.apply import located
from lattice.cli.names import names
from lattice.cli.sources import ENDINGS, documents, target_of
from lattice.errors import Cause, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.base import Kind, Metadata
from lattice.kinds.body import MAX_BYTES, parse_json
from lattice.kinds.manifest import Document, load
from lattice.kinds.metadata import name_problem
from lattice.kinds.node import LatticeNode
from lattice.kinds.selector import label_problems
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.sanity import node_problems, workload_problems
from lattice.server.admission import admit
from lattice.server.catalog import Served, serve

LINES = (".jsonl", ".ndjson")
REPORTED = 20  # problems told before giving up on the rest
LOOKED_AT = 20  # lines of a file, to see what is in it
KEPT_SPECS = 20_000  # different specs remembered as checked


class _Head(msgspec.Struct, rename="camel"):
    """What an object says it is; the rest is looked at when that matters. A list has items."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


class _Light(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An object whose spec and status stay text: most of many objects differ in metadata only."""

    kind: str
    api_version: str
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_head = msgspec.json.Decoder(_Head)
_light = msgspec.json.Decoder(_Light)


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


@dataclass
class Inventory:
    """What was found, each name once. What is wrong is kept up to a limit, then raised all together."""

    nodes: dict[str, LatticeNode] = field(default_factory=dict)
    workloads: dict[str, LatticeWorkload] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)
    _at: dict[tuple[str, str], str] = field(default_factory=dict)
    _gangs: dict[str, tuple[int, str]] = field(default_factory=dict)  # minMember, and where it was said first
    _checked: dict[tuple[str, bytes, bytes], Kind] = field(default_factory=dict)

    def refuse(self, problem: LatticeError) -> None:
        self.problems.append(problem)

    @property
    def is_hopeless(self) -> bool:
        return len(self.problems) >= REPORTED

    def place_of(self, kind: str, name: str) -> str:
        """`file:line: `, or nothing if it was not given."""
        at = self._at.get((kind, name))
        return f"{at}: " if at else ""

    def take_document(self, document: Document) -> None:
        """From YAML."""
        try:
            target = target_of(document, names())
            served = _SERVED.get(target.resource.kind)
            if served is None:
                self.ignored[target.resource.kind] += 1
                return
            try:
                self._keep(_admitted(served, document.value), document.at("metadata.name"))
            except LatticeError as e:
                raise located(e, document, target) from e
        except LatticeError as e:
            self.refuse(e)

    def take_json(self, written: Written) -> None:
        """From JSON: an object whose spec and status were seen before needs only its metadata looked at."""
        try:
            head = _head.decode(written.text)
        except msgspec.ValidationError:
            self._slowly(written)
            return
        except msgspec.DecodeError as e:
            self.refuse(Malformed(f"is not JSON: {e}", where=written.at, fix="check commas, quotes and brackets here"))
            return
        served = _SERVED.get(head.kind)
        if head.kind and served is None and head.items is None:
            self._other(head, written)
        elif served is None or head.api_version != served.resource.api_version:
            self._slowly(written)
        else:
            self._one(written)

    def _one(self, written: Written) -> None:
        try:
            self._keep(self._quickly(written), written.at)
        except (LatticeError, msgspec.MsgspecError):
            self._slowly(written)

    def _other(self, head: _Head, written: Written) -> None:
        try:
            names().named(head.api_version, head.kind)
            self.ignored[head.kind] += 1
        except LatticeError as e:
            self.refuse(NotFound(e.what, where=written.at, fix=e.fix))

    def _quickly(self, written: Written) -> Kind:
        light = _light.decode(written.text)
        served, metadata = _SERVED[light.kind], light.metadata
        if name_problem(served.resource, metadata.name):
            raise _IN_FULL
        key = (light.kind, bytes(light.spec), bytes(light.status))
        known = self._checked.get(key)
        if known is None:
            parsed = parse_json(written.text)
            known = _admitted(served, parsed.value, tuple(parsed.duplicates))
            if len(self._checked) >= KEPT_SPECS:
                self._checked.clear()
            self._checked[key] = known
            return known
        found = msgspec.structs.replace(known, metadata=metadata)
        if metadata.finalizers or metadata.annotations or any(label_problems(metadata.labels, "metadata.labels")):
            raise _IN_FULL
        if isinstance(found, LatticeNode) and any(node_problems(found)):
            raise _IN_FULL
        return found

    def _slowly(self, written: Written) -> None:
        """Again with the line of every field, to say what is wrong; or to find that nothing is."""
        if len(written.text) > MAX_BYTES:
            self.refuse(Malformed("is larger than 1 MiB", where=written.at, fix="split it into several objects"))
            return
        try:
            document = written.document()
        except (LatticeError, IndexError) as e:
            self.refuse(e if isinstance(e, LatticeError) else Malformed("holds no object", where=written.at, fix="remove it"))
            return
        self.take_document(document)

    def _keep(self, found: Kind, at: str) -> None:
        is_node = isinstance(found, LatticeNode)
        name = found.metadata.name if is_node else f"{found.metadata.namespace or 'default'}/{found.metadata.name}"
        key = ("node" if is_node else "workload", name)
        if (first := self._at.get(key)) is not None:
            raise Invalid(f"{' '.join(key)} is given twice, first at {first}", fix="rename one of them, or remove it")
        if isinstance(found, LatticeNode):
            self.nodes[name] = found
        elif isinstance(found, LatticeWorkload):
            self._agree(found, at)
            self.workloads[name] = found
        self._at[key] = at

    def _agree(self, workload: LatticeWorkload, at: str) -> None:
        """A gang has one size, whichever member is asked."""
        group = workload.spec.group
        if group is None:
            return
        name = f"{workload.metadata.namespace or 'default'}/{group.name}"
        least, first = self._gangs.setdefault(name, (group.min_member, at))
        if least != group.min_member:
            what = f"must be the same for all of group {name}: {group.min_member} here, {least} at {first}"
            raise Invalid("is invalid", causes=[Cause("spec.group.minMember", what)])


_SERVED: dict[str, Served] = {}
_IN_FULL = Invalid("is looked at in full")  # never shown: what is wrong is found slowly, with its line


def _admitted(served: Served, value: dict[str, Any], duplicates: tuple[str, ...] = ()) -> Kind:
    kept = _strictly(served, value, duplicates)
    found: Kind = msgspec.convert(kept, served.kind)
    wrong: list[Cause] = []
    if isinstance(found, LatticeNode):
        wrong += node_problems(found)
    elif isinstance(found, LatticeWorkload):
        wrong += workload_problems(found)
    if wrong:
        raise Invalid("is invalid", causes=wrong)
    return found


def _strictly(served: Served, value: dict[str, Any], duplicates: tuple[str, ...]) -> dict[str, Any]:
    try:
        return admit(served, value, "Strict", duplicates).obj
    except Malformed as e:  # a server would say how to ask it; here there is none
        fix = f"`lattice crds {served.resource.plural}` shows the fields there are" if e.causes else e.fix
        raise Malformed(e.what, where=e.where, fix=fix, causes=e.causes) from e


def read(places: Sequence[str], recursive: bool = False) -> Inventory:
    """Everything there is at these places; all of it is read even if some is wrong, up to a limit."""
    _SERVED.update((kind.resource.kind, serve(kind)) for kind in (LatticeNode, LatticeWorkload) if kind.resource.kind not in _SERVED)
    found = Inventory()
    for place in places:
        for path in _files(place, recursive):
            _read_one(path, found)
            if found.is_hopeless:
                return found
    return found


def _read_one(path: str, into: Inventory) -> None:
    if path != "-" and not path.endswith((*LINES, ".json")):
        for document in _in_yaml(path):
            into.take_document(document)
        return
    objects = _json_objects(path)
    first = next(objects, None)
    if first is None:
        fix = "a manifest has apiVersion, kind and metadata.name"
        raise Malformed("there is no manifest here", where="<stdin>" if path == "-" else path, fix=fix)
    for found in chain([first], objects):
        if isinstance(found, Document):
            into.take_document(found)
        else:
            into.take_json(found)
        if into.is_hopeless:
            return


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
        lines = [line.strip() for line in islice(file, LOOKED_AT)]
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line)


def _files(place: str, recursive: bool) -> list[str]:
    if place == "-" or not Path(place).is_dir():
        return [place]
    entries = Path(place).rglob("*") if recursive else Path(place).iterdir()
    found = sorted(str(path) for path in entries if path.suffix in (*ENDINGS, *LINES) and path.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound("no manifests in this folder", where=place, fix=f"files must end in {', '.join((*ENDINGS, *LINES))}{deeper}")
    return found


def _json_objects(path: str) -> Iterator[Written | Document]:
    if path.endswith(LINES):
        with _opened(path) as file:
            yield from (Written(line.strip(), path, number) for number, line in enumerate(file, 1) if line.strip())
        return
    if path == "-":
        text, path = sys.stdin.buffer.read(), "<stdin>"
    else:
        with _opened(path) as file:
            text = file.read()
    yield from _items(text, path)


def _opened(path: str) -> Any:
    try:
        return Path(path).open("rb")
    except OSError as e:
        raise NotFound(f"cannot be read: {(e.strerror or str(e)).lower()}", where=path, fix="check the path and its permissions") from e


def _items(text: bytes, source: str) -> Iterator[Written | Document]:
    """One object, the items of a list, an object a line, or, from standard input, YAML."""
    try:
        head = _head.decode(text)
    except msgspec.MsgspecError:
        if text.lstrip()[:1] == b"[":
            yield from _in_list(text, source)
            return
        lines = [line.strip() for line in text.split(b"\n")]
        if all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line):
            yield from (Written(line, source, number) for number, line in enumerate(lines, 1) if line)
            return
        yield from load(text, source)
        return
    if head.items is None or not head.kind.endswith("List"):
        yield Written(text.strip(), source, 1 + text[: len(text) - len(text.lstrip())].count(b"\n"))
        return
    yield from _placed(head.items, text, source)


def _in_list(text: bytes, source: str) -> Iterator[Written | Document]:
    """A bare JSON list is as good as a List."""
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        yield from load(text, source)
        return
    yield from _placed(found, text, source)


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
