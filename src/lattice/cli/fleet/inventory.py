"""Nodes and workloads of `-f` for offline simulation: every object validated as the server would, every
problem with its line."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import kind_names
from lattice.cli.client.manifests import (
    RawObject,
    decode_header,
    locate_error,
    manifest_files,
    read_objects,
    target_of,
)
from lattice.errors import Cause, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Kind, Metadata
from lattice.kinds.meta.json_body import parse_json
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.meta.schema import Schema
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.meta.validator import did_you_mean
from lattice.kinds.meta.yaml_manifest import MAX_YAML_BYTES, Document
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.input_checks import node_problems, unit_problems, workload_problems
from lattice.server.requests.catalog import ServedKind, compile_kind
from lattice.server.resources.admission import admit

# The reader stops after this many problems.
MAX_PROBLEMS = 20
# A segment of a field path: an index, a key in brackets, or a name.
_PATH_SEGMENT = re.compile(r"\[(\d+)\]|\[([^\]]*)\]|([^.\[\]]+)")
# Limit of cached specs that passed admission.
MAX_CACHED_SPECS = 20_000


class _PartialObject(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An object whose spec and status stay undecoded: most objects of a large fleet differ only in metadata."""

    kind: str
    api_version: str
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_partial_decoder = msgspec.json.Decoder(_PartialObject)


@dataclass
class Inventory:
    """Nodes and workloads by name, each name once, with the problems found so far."""

    nodes: dict[str, LatticeNode] = field(default_factory=dict)
    workloads: dict[str, LatticeWorkload] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)
    _locations: dict[tuple[str, str], str] = field(default_factory=dict)
    # minMember of a gang with the location of the first member.
    _gangs: dict[str, tuple[int, str]] = field(default_factory=dict)
    _admitted_specs: dict[tuple[str, bytes, bytes], Kind] = field(default_factory=dict)

    def add_problem(self, problem: LatticeError) -> None:
        self.problems.append(problem)

    @property
    def has_too_many_problems(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def location_of(self, kind: str, name: str) -> str:
        """Location of an object as `file:line: `, or an empty string for an object that no file contains."""
        location = self._locations.get((kind, name))
        return f"{location}: " if location else ""

    def add(self, item: RawObject | Document) -> None:
        if isinstance(item, Document):
            self.add_document(item)
        else:
            self.add_json(item)

    def add_document(self, document: Document) -> None:
        """Validate and add an object parsed from YAML."""
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

    def add_json(self, raw: RawObject) -> None:
        """Add an object from JSON text; for a spec and status that were admitted before, only the metadata is
        validated."""
        try:
            head = decode_header(raw.text)
        # The text is JSON with a field of a wrong type: the YAML reader is slower and reports the line.
        except (msgspec.ValidationError, RecursionError):
            self._add_with_lines(raw)
            return
        except msgspec.DecodeError as e:
            self.add_problem(
                Malformed(
                    f"is not JSON: {e}",
                    where=raw.location,
                    fix="check commas, quotes and brackets at this position",
                )
            )
            return
        served = _SERVED_KINDS.get(head.kind)
        if head.kind and served is None and head.items is None:
            try:
                kind_names().find_resource(head.api_version, head.kind)
                self.ignored[head.kind] += 1
            except LatticeError as e:
                self.add_problem(NotFound(e.message, where=raw.location, fix=e.fix))
            return
        if served is None or head.api_version != served.resource.api_version:
            self._add_with_lines(raw)
            return
        try:
            self._insert(self._admit_fast(raw), raw.location)
        # Any problem: the YAML reader finds the same problem and knows its line.
        except (LatticeError, msgspec.MsgspecError, RecursionError):
            self._add_with_lines(raw)

    def _admit_fast(self, raw: RawObject) -> Kind:
        # Hot path: a fleet file may hold 100,000 objects with few distinct specs.
        partial = _partial_decoder.decode(raw.text)
        served, metadata = _SERVED_KINDS[partial.kind], partial.metadata
        if name_problem(served.resource, metadata.name):
            raise _NEEDS_FULL_CHECK
        key = (partial.kind, bytes(partial.spec), bytes(partial.status))
        admitted = self._admitted_specs.get(key)
        if admitted is None:
            parsed = parse_json(raw.text)
            admitted = _admit_and_check(served, parsed.value, tuple(parsed.duplicates))
            if len(self._admitted_specs) >= MAX_CACHED_SPECS:
                # Clearing bounds the memory of a file whose specs all differ; the next objects fill the cache
                # again.
                self._admitted_specs.clear()
            self._admitted_specs[key] = admitted
            return admitted
        # Same spec and status as an admitted object: only the metadata is new.
        item = msgspec.structs.replace(admitted, metadata=metadata)
        if (
            # Rare metadata goes through the full validation instead of a second implementation here.
            metadata.finalizers
            or metadata.annotations
            or any(label_problems(metadata.labels, "metadata.labels"))
        ):
            raise _NEEDS_FULL_CHECK
        if isinstance(item, LatticeNode) and any(node_problems(item)):
            raise _NEEDS_FULL_CHECK
        return item

    def _add_with_lines(self, raw: RawObject) -> None:
        """Add an object through the YAML reader, which knows the line of every field for error messages."""
        # The limit of the YAML reader for one object.
        if len(raw.text) > MAX_YAML_BYTES:
            self.add_problem(
                Malformed(
                    "is larger than 1 MiB", where=raw.location, fix="split the object into several objects"
                )
            )
            return
        try:
            document = raw.to_document()
        except (LatticeError, IndexError) as e:
            self.add_problem(
                e
                if isinstance(e, LatticeError)
                else Malformed("contains no object", where=raw.location, fix="remove the document")
            )
            return
        self.add_document(document)

    def _insert(self, item: Kind, location: str) -> None:
        is_node = isinstance(item, LatticeNode)
        name = (
            item.metadata.name
            if is_node
            else f"{item.metadata.namespace or DEFAULT_NAMESPACE}/{item.metadata.name}"
        )
        key = ("node" if is_node else "workload", name)
        if (first := self._locations.get(key)) is not None:
            raise Invalid(
                f"{' '.join(key)} appears twice, first at {first}", fix="rename or remove one of the two"
            )
        if isinstance(item, LatticeNode):
            self.nodes[name] = item
        elif isinstance(item, LatticeWorkload):
            if (group := item.spec.group) is not None:
                gang = f"{item.metadata.namespace or DEFAULT_NAMESPACE}/{group.name}"
                # All members of a gang must declare the same minMember.
                expected, first = self._gangs.setdefault(gang, (group.min_member, location))
                if expected != group.min_member:
                    message = (
                        f"must be equal in all members of group {gang}: "
                        f"{group.min_member} here, {expected} at {first}"
                    )
                    raise Invalid("is invalid", causes=[Cause("spec.group.minMember", message)])
            self.workloads[name] = item
        self._locations[key] = location


_SERVED_KINDS: dict[str, ServedKind] = {}
# Internal signal, never shown: the object needs the YAML reader, which is slower and knows line numbers.
_NEEDS_FULL_CHECK = Invalid("needs the full check")


def _admit_and_check(served: ServedKind, value: dict[str, Any], duplicates: tuple[str, ...] = ()) -> Kind:
    admitted = _admit_strictly(served, value, duplicates)
    item: Kind = msgspec.convert(admitted, served.kind)
    problems: list[Cause] = []
    if isinstance(item, LatticeNode):
        problems += node_problems(item)
    elif isinstance(item, LatticeWorkload):
        problems += workload_problems(item)
    if problems:
        raise Invalid("is invalid", causes=problems)
    return item


def _admit_strictly(served: ServedKind, value: dict[str, Any], duplicates: tuple[str, ...]) -> dict[str, Any]:
    try:
        return admit(served, value, "Strict", duplicates).obj
    except Invalid as e:
        unit_causes = (
            {cause.field: cause for cause in unit_problems(value.get("status"))}
            if served.kind is LatticeNode
            else {}
        )
        causes = [
            unit_causes.get(cause.field) or _with_spelling_hint(cause, served.schema) for cause in e.causes
        ]
        raise Invalid(e.message, where=e.where, fix=e.fix, causes=causes) from e
    # The server's fix explains how to query the server; offline the fix points to `lattice crds`.
    except Malformed as e:
        fix = f"`lattice crds {served.resource.plural}` lists the fields" if e.causes else e.fix
        raise Malformed(
            e.message,
            where=e.where,
            fix=fix,
            causes=[_with_spelling_hint(cause, served.schema) for cause in e.causes],
        ) from e


def _with_spelling_hint(cause: Cause, schema: Schema) -> Cause:
    """The cause with a suggestion for an unknown field: a similar field name of the schema at that path."""
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


def read_inventory(sources: Sequence[str], recursive: bool = False) -> Inventory:
    """All nodes and workloads of the sources; reading goes on after a problem, up to MAX_PROBLEMS."""
    _SERVED_KINDS.update(
        (kind.resource.kind, compile_kind(kind))
        for kind in (LatticeNode, LatticeWorkload)
        if kind.resource.kind not in _SERVED_KINDS
    )
    inventory = Inventory()
    paths_by_file: dict[str, str] = {}
    for source in sources:
        for path in manifest_files(source, recursive):
            # Two paths may name the same file.
            file = path if path == "-" else str(Path(path).resolve())
            if file in paths_by_file:
                alias = "" if path == paths_by_file[file] else f", first as {paths_by_file[file]}"
                where = "<stdin>" if path == "-" else path
                inventory.add_problem(
                    Invalid(f"appears twice{alias}", where=where, fix="remove one of the two")
                )
                continue
            paths_by_file[file] = path
            for item in read_objects(path):
                inventory.add(item)
                if inventory.has_too_many_problems:
                    return inventory
    return inventory
