"""Nodes and workloads that `-f` names, for deciding offline: every object checked as the server would, every problem with its line."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.commands.apply import located
from lattice.cli.client.kind_names import names
from lattice.cli.client.manifests import target_of
from lattice.cli.client.written import Head, Written, files, head_of, objects
from lattice.errors import Cause, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.meta.json_body import MAX_BYTES, parse_json
from lattice.kinds.meta.yaml_manifest import Document
from lattice.kinds.meta.metadata import name_problem
from lattice.kinds.node import LatticeNode
from lattice.kinds.meta.schema import Schema
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.meta.spelling import nearest
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.input_checks import in_other_units, node_problems, workload_problems
from lattice.server.resources.admission import admit
from lattice.server.requests.catalog import Served, serve

REPORTED = 20  # problems told before giving up on the rest
_STEP = re.compile(r"\[(\d+)\]|\[([^\]]*)\]|([^.\[\]]+)")  # of a path: an index, a key in brackets, a name
KEPT_SPECS = 20_000  # different specs remembered as checked


class _Light(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An object whose spec and status stay text: most of many objects differ in metadata only."""

    kind: str
    api_version: str
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_light = msgspec.json.Decoder(_Light)


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

    def take(self, found: Written | Document) -> None:
        if isinstance(found, Document):
            self.take_document(found)
        else:
            self.take_json(found)

    def take_document(self, document: Document) -> None:
        """From YAML."""
        try:
            target = target_of(document, names())
            served = _SERVED.get(target.resource.kind)
            if served is None:
                self.ignored[target.resource.kind] += 1
                return
            try:
                self._keep(_admitted(served, document.value), document.at())
            except LatticeError as e:
                raise located(e, document, target) from e
        except LatticeError as e:
            self.refuse(e)

    def take_json(self, written: Written) -> None:
        """From JSON: an object whose spec and status were seen before needs only its metadata looked at."""
        try:
            head = head_of(written.text)
        except (msgspec.ValidationError, RecursionError):
            self._slowly(written)
            return
        except msgspec.DecodeError as e:
            self.refuse(
                Malformed(f"is not JSON: {e}", where=written.at, fix="check commas, quotes and brackets here")
            )
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
        except (LatticeError, msgspec.MsgspecError, RecursionError):
            self._slowly(written)

    def _other(self, head: Head, written: Written) -> None:
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
        if (
            metadata.finalizers
            or metadata.annotations
            or any(label_problems(metadata.labels, "metadata.labels"))
        ):
            raise _IN_FULL
        if isinstance(found, LatticeNode) and any(node_problems(found)):
            raise _IN_FULL
        return found

    def _slowly(self, written: Written) -> None:
        """Again with the line of every field, to say what is wrong; or to find that nothing is."""
        if len(written.text) > MAX_BYTES:
            self.refuse(
                Malformed("is larger than 1 MiB", where=written.at, fix="split it into several objects")
            )
            return
        try:
            document = written.document()
        except (LatticeError, IndexError) as e:
            self.refuse(
                e
                if isinstance(e, LatticeError)
                else Malformed("holds no object", where=written.at, fix="remove it")
            )
            return
        self.take_document(document)

    def _keep(self, found: Kind, at: str) -> None:
        is_node = isinstance(found, LatticeNode)
        name = (
            found.metadata.name
            if is_node
            else f"{found.metadata.namespace or 'default'}/{found.metadata.name}"
        )
        key = ("node" if is_node else "workload", name)
        if (first := self._at.get(key)) is not None:
            raise Invalid(
                f"{' '.join(key)} is given twice, first at {first}", fix="rename one of them, or remove it"
            )
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
    except Invalid as e:
        known = (
            {cause.field: cause for cause in in_other_units(value.get("status"))}
            if served.kind is LatticeNode
            else {}
        )
        causes = [known.get(cause.field) or _spelt(cause, served.schema) for cause in e.causes]
        raise Invalid(e.what, where=e.where, fix=e.fix, causes=causes) from e
    except Malformed as e:  # a server would say how to ask it; here there is none
        fix = f"`lattice crds {served.resource.plural}` shows the fields there are" if e.causes else e.fix
        raise Malformed(
            e.what, where=e.where, fix=fix, causes=[_spelt(cause, served.schema) for cause in e.causes]
        ) from e


def _spelt(cause: Cause, schema: Schema) -> Cause:
    """With the field that may have been meant by one that there is not."""
    if "unknown field" not in cause.message:
        return cause
    *above, last = _STEP.findall(cause.field)
    for index, key, name in above:
        below = (
            schema.get("items")
            if index
            else schema.get("properties", {}).get(key or name) or schema.get("additionalProperties")
        )
        schema = below if isinstance(below, dict) else {}
    return Cause(
        cause.field, cause.message + nearest("".join(last), schema.get("properties", ())), cause.reason
    )


def read(places: Sequence[str], recursive: bool = False) -> Inventory:
    """Everything there is at these places; all of it is read even if some is wrong, up to a limit."""
    _SERVED.update(
        (kind.resource.kind, serve(kind))
        for kind in (LatticeNode, LatticeWorkload)
        if kind.resource.kind not in _SERVED
    )
    found = Inventory()
    seen: dict[str, str] = {}
    for place in places:
        for path in files(place, recursive):
            real = path if path == "-" else str(Path(path).resolve())
            if real in seen:
                found.refuse(_given_twice(path, seen[real]))
                continue
            seen[real] = path
            for each in objects(path):
                found.take(each)
                if found.is_hopeless:
                    return found
    return found


def _given_twice(path: str, first: str) -> Invalid:
    otherwise = "" if path == first else f", first as {first}"
    return Invalid(f"is given twice{otherwise}", where="<stdin>" if path == "-" else path, fix="name it once")
