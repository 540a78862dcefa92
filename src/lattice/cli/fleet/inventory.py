"""Nodes and workloads that `-f` names, for deciding offline: every object checked as the server would, every problem with its line."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import kind_names
from lattice.cli.client.manifests import (
    ObjectHeader,
    RawObject,
    decode_header,
    locate_error,
    manifest_files,
    read_objects,
    target_of,
)
from lattice.errors import Cause, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.meta.json_body import MAX_BYTES, parse_json
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.meta.schema import Schema
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.meta.validator import did_you_mean
from lattice.kinds.meta.yaml_manifest import Document
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.input_checks import node_problems, unit_problems, workload_problems
from lattice.server.requests.catalog import ServedKind, compile_kind
from lattice.server.resources.admission import admit

MAX_PROBLEMS = 20  # problems told before giving up on the rest
_PATH_SEGMENT = re.compile(
    r"\[(\d+)\]|\[([^\]]*)\]|([^.\[\]]+)"
)  # of a path: an index, a key in brackets, a name
MAX_CACHED_SPECS = 20_000  # different specs remembered as checked


class _PartialObject(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An object whose spec and status stay text: most of many objects differ in metadata only."""

    kind: str
    api_version: str
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_partial_decoder = msgspec.json.Decoder(_PartialObject)


@dataclass
class Inventory:
    """What was found, each name once. What is wrong is kept up to a limit, then raised all together."""

    nodes: dict[str, LatticeNode] = field(default_factory=dict)
    workloads: dict[str, LatticeWorkload] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)
    _locations: dict[tuple[str, str], str] = field(default_factory=dict)
    _gangs: dict[str, tuple[int, str]] = field(default_factory=dict)  # minMember, and where it was said first
    _admitted_specs: dict[tuple[str, bytes, bytes], Kind] = field(default_factory=dict)

    def add_problem(self, problem: LatticeError) -> None:
        self.problems.append(problem)

    @property
    def has_too_many_problems(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def location_of(self, kind: str, name: str) -> str:
        """`file:line: `, or nothing if it was not given."""
        at = self._locations.get((kind, name))
        return f"{at}: " if at else ""

    def add(self, found: RawObject | Document) -> None:
        if isinstance(found, Document):
            self.add_document(found)
        else:
            self.add_json(found)

    def add_document(self, document: Document) -> None:
        """From YAML."""
        try:
            target = target_of(document, kind_names())
            served = _SERVED_KINDS.get(target.resource.kind)
            if served is None:
                self.ignored[target.resource.kind] += 1
                return
            try:
                self._insert(_admit_and_check(served, document.value), document.location())
            except LatticeError as e:
                raise locate_error(e, document, target) from e
        except LatticeError as e:
            self.add_problem(e)

    def add_json(self, written: RawObject) -> None:
        """From JSON: an object whose spec and status were seen before needs only its metadata looked at."""
        try:
            head = decode_header(written.text)
        except (msgspec.ValidationError, RecursionError):
            self._add_with_lines(written)
            return
        except msgspec.DecodeError as e:
            self.add_problem(
                Malformed(
                    f"is not JSON: {e}", where=written.location, fix="check commas, quotes and brackets here"
                )
            )
            return
        served = _SERVED_KINDS.get(head.kind)
        if head.kind and served is None and head.items is None:
            self._ignore_kind(head, written)
        elif served is None or head.api_version != served.resource.api_version:
            self._add_with_lines(written)
        else:
            self._add_served(written)

    def _add_served(self, written: RawObject) -> None:
        try:
            self._insert(self._admit_fast(written), written.location)
        except (LatticeError, msgspec.MsgspecError, RecursionError):
            self._add_with_lines(written)

    def _ignore_kind(self, head: ObjectHeader, written: RawObject) -> None:
        try:
            kind_names().find_resource(head.api_version, head.kind)
            self.ignored[head.kind] += 1
        except LatticeError as e:
            self.add_problem(NotFound(e.message, where=written.location, fix=e.fix))

    def _admit_fast(self, written: RawObject) -> Kind:
        light = _partial_decoder.decode(written.text)
        served, metadata = _SERVED_KINDS[light.kind], light.metadata
        if name_problem(served.resource, metadata.name):
            raise _NEEDS_FULL_CHECK
        key = (light.kind, bytes(light.spec), bytes(light.status))
        known = self._admitted_specs.get(key)
        if known is None:
            parsed = parse_json(written.text)
            known = _admit_and_check(served, parsed.value, tuple(parsed.duplicates))
            if len(self._admitted_specs) >= MAX_CACHED_SPECS:
                self._admitted_specs.clear()
            self._admitted_specs[key] = known
            return known
        found = msgspec.structs.replace(known, metadata=metadata)
        if (
            metadata.finalizers
            or metadata.annotations
            or any(label_problems(metadata.labels, "metadata.labels"))
        ):
            raise _NEEDS_FULL_CHECK
        if isinstance(found, LatticeNode) and any(node_problems(found)):
            raise _NEEDS_FULL_CHECK
        return found

    def _add_with_lines(self, written: RawObject) -> None:
        """Again with the line of every field, to say what is wrong; or to find that nothing is."""
        if len(written.text) > MAX_BYTES:
            self.add_problem(
                Malformed("is larger than 1 MiB", where=written.location, fix="split it into several objects")
            )
            return
        try:
            document = written.to_document()
        except (LatticeError, IndexError) as e:
            self.add_problem(
                e
                if isinstance(e, LatticeError)
                else Malformed("holds no object", where=written.location, fix="remove it")
            )
            return
        self.add_document(document)

    def _insert(self, found: Kind, at: str) -> None:
        is_node = isinstance(found, LatticeNode)
        name = (
            found.metadata.name
            if is_node
            else f"{found.metadata.namespace or 'default'}/{found.metadata.name}"
        )
        key = ("node" if is_node else "workload", name)
        if (first := self._locations.get(key)) is not None:
            raise Invalid(
                f"{' '.join(key)} is given twice, first at {first}", fix="rename one of them, or remove it"
            )
        if isinstance(found, LatticeNode):
            self.nodes[name] = found
        elif isinstance(found, LatticeWorkload):
            self._check_gang_size(found, at)
            self.workloads[name] = found
        self._locations[key] = at

    def _check_gang_size(self, workload: LatticeWorkload, at: str) -> None:
        """A gang has one size, whichever member is asked."""
        group = workload.spec.group
        if group is None:
            return
        name = f"{workload.metadata.namespace or 'default'}/{group.name}"
        least, first = self._gangs.setdefault(name, (group.min_member, at))
        if least != group.min_member:
            what = f"must be the same for all of group {name}: {group.min_member} here, {least} at {first}"
            raise Invalid("is invalid", causes=[Cause("spec.group.minMember", what)])


_SERVED_KINDS: dict[str, ServedKind] = {}
_NEEDS_FULL_CHECK = Invalid(
    "is looked at in full"
)  # never shown: what is wrong is found slowly, with its line


def _admit_and_check(served: ServedKind, value: dict[str, Any], duplicates: tuple[str, ...] = ()) -> Kind:
    kept = _admit_strictly(served, value, duplicates)
    found: Kind = msgspec.convert(kept, served.kind)
    wrong: list[Cause] = []
    if isinstance(found, LatticeNode):
        wrong += node_problems(found)
    elif isinstance(found, LatticeWorkload):
        wrong += workload_problems(found)
    if wrong:
        raise Invalid("is invalid", causes=wrong)
    return found


def _admit_strictly(served: ServedKind, value: dict[str, Any], duplicates: tuple[str, ...]) -> dict[str, Any]:
    try:
        return admit(served, value, "Strict", duplicates).obj
    except Invalid as e:
        known = (
            {cause.field: cause for cause in unit_problems(value.get("status"))}
            if served.kind is LatticeNode
            else {}
        )
        causes = [known.get(cause.field) or _with_spelling_hint(cause, served.schema) for cause in e.causes]
        raise Invalid(e.message, where=e.where, fix=e.fix, causes=causes) from e
    except Malformed as e:  # a server would say how to ask it; here there is none
        fix = f"`lattice crds {served.resource.plural}` shows the fields there are" if e.causes else e.fix
        raise Malformed(
            e.message,
            where=e.where,
            fix=fix,
            causes=[_with_spelling_hint(cause, served.schema) for cause in e.causes],
        ) from e


def _with_spelling_hint(cause: Cause, schema: Schema) -> Cause:
    """With the field that may have been meant by one that there is not."""
    if "unknown field" not in cause.message:
        return cause
    *above, last = _PATH_SEGMENT.findall(cause.field)
    for index, key, name in above:
        below = (
            schema.get("items")
            if index
            else schema.get("properties", {}).get(key or name) or schema.get("additionalProperties")
        )
        schema = below if isinstance(below, dict) else {}
    return Cause(
        cause.field, cause.message + did_you_mean("".join(last), schema.get("properties", ())), cause.reason
    )


def read_inventory(places: Sequence[str], recursive: bool = False) -> Inventory:
    """Everything there is at these places; all of it is read even if some is wrong, up to a limit."""
    _SERVED_KINDS.update(
        (kind.resource.kind, compile_kind(kind))
        for kind in (LatticeNode, LatticeWorkload)
        if kind.resource.kind not in _SERVED_KINDS
    )
    found = Inventory()
    seen: dict[str, str] = {}
    for place in places:
        for path in manifest_files(place, recursive):
            real = path if path == "-" else str(Path(path).resolve())
            if real in seen:
                found.add_problem(_duplicate_file_error(path, seen[real]))
                continue
            seen[real] = path
            for each in read_objects(path):
                found.add(each)
                if found.has_too_many_problems:
                    return found
    return found


def _duplicate_file_error(path: str, first: str) -> Invalid:
    otherwise = "" if path == first else f", first as {first}"
    return Invalid(f"is given twice{otherwise}", where="<stdin>" if path == "-" else path, fix="name it once")
