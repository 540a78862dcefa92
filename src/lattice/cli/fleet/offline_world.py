"""The world of placement objects from files, and the changes that manifests would make."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import kind_names
from lattice.cli.client.manifests import locate_error, target_of
from lattice.cli.fleet.fleet_inputs import FleetInputs, read_table
from lattice.cli.fleet.inventory import MAX_PROBLEMS
from lattice.cli.output import messages as say
from lattice.errors import Denied, Invalid, LatticeError, Malformed, NotFound, UsageError
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.timestamps import format_date
from lattice.kinds.meta.yaml_manifest import Document
from lattice.manifest_files import load_manifests
from lattice.placement.feed.placement_input import (
    DECLARED_KINDS,
    KINDS_BY_NAME,
    SYSTEM_KINDS,
    PlacementInput,
    PricingTables,
)
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import ObjectKey, World, object_key
from lattice.server.requests.catalog import compile_kind
from lattice.server.resources.admission import admit

_FIELDS_HINT = "`lattice crds {}` lists the fields"


def load_world(sources: FleetInputs) -> World:
    """The world of the files, with the price and latency files of the command line.

    The world has the current time only if the files contain a ledger, because only a ledger records what was
    spent in the current month.
    """
    reader = ManifestReader(sources.namespace)
    for document in load_manifests(sources.world_files, sources.recursive):
        reader.add(document)
    placement_input, has_ledger = PlacementInput(), False
    for obj in reader.finish():
        placement_input.put(obj)
        has_ledger = has_ledger or isinstance(obj, LatticeLedger)
    book = PriceBook.builtin()
    for path in sources.prices:
        text = read_table(path)
        book = book.with_csv(text, path, format_date(Path(path).stat().st_mtime))
    latency_csv = read_table(sources.latency) if sources.latency else ""
    tables = PricingTables(book, latency_csv, sources.latency)
    return placement_input.world(tables, datetime.now(UTC) if has_ledger else None)


def load_changes(sources: FleetInputs) -> list[Kind]:
    """Objects as they would be after the manifests are applied."""
    documents = [document for document, _ in sources.manifests]
    if not documents and sources.files:
        documents = load_manifests(sources.files, sources.recursive)
    reader = ManifestReader(sources.namespace, are_changes=True)
    for document in documents:
        reader.add(document)
    return reader.finish()


@dataclass
class ManifestReader:
    """Collects objects. Every object is validated as the server would validate it; a name that appears twice
    is a problem. All problems are reported together."""

    namespace: str
    # The objects are a user's changes: kinds that only Lattice writes are denied.
    are_changes: bool = False
    objects: dict[ObjectKey, Kind] = field(default_factory=dict)
    locations: dict[ObjectKey, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)

    def add(self, document: Document) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            return
        try:
            target = target_of(document, kind_names())
            if target.resource.kind not in KINDS_BY_NAME:
                self.ignored[target.resource.kind] += 1
                return
            try:
                kind = KINDS_BY_NAME[target.resource.kind]
                if self.are_changes and kind in SYSTEM_KINDS:
                    raise Denied(
                        f"{target.resource.kind} is written by Lattice only", fix=target.resource.managed_hint
                    )
                # An object without a namespace goes to the namespace of the command.
                value, metadata = document.value, document.value["metadata"]
                if target.resource.namespaced and not metadata.get("namespace"):
                    value = {**value, "metadata": {**metadata, "namespace": self.namespace}}
                item = admit_object(kind, value)
                key = object_key(item)
                if key in self.locations:
                    raise Invalid(f"appears twice, first at {self.locations[key]}", fix="remove one of them")
            except LatticeError as e:
                raise locate_error(e, document, target) from e
            self.objects[key], self.locations[key] = item, document.location("metadata.name")
        except LatticeError as e:
            self.problems.append(e)

    def finish(self) -> list[Kind]:
        """The collected objects; with problems, print all but the last and raise the last."""
        for problem in self.problems[:-1]:
            say.error(problem)
        if self.problems:
            raise self.problems[-1]
        if self.ignored:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
            say.note(f"ignored {kinds}: placement does not use these kinds")
        return list(self.objects.values())


# compile_kind builds a schema and validators: once per kind is enough.
_served_kind = cache(compile_kind)


def admit_object(kind: type[Kind], value: dict[str, Any]) -> Kind:
    """Validate a manifest as the server would and convert the manifest into an object of its kind."""
    try:
        admitted = admit(_served_kind(kind), value, "Strict").obj
    # The server's fix explains how to query the server; offline the fix points to `lattice crds`.
    except Malformed as e:
        raise Malformed(
            e.message,
            where=e.where,
            fix=_FIELDS_HINT.format(kind.resource.plural) if e.causes else e.fix,
            causes=e.causes,
        ) from e
    return msgspec.convert(admitted, kind)


def load_deletions(sources: FleetInputs, world: World) -> list[ObjectKey]:
    """Keys of the objects that `--delete` names; every object must exist in the world."""
    names = [kind.resource.kind for kind in DECLARED_KINDS]
    keys: list[ObjectKey] = []
    for word in sources.deletions:
        target = kind_names().parse_targets([word])[0]
        resource = target.resource
        if not target.name:
            raise UsageError(f"{word!r} is not kind/name", fix="write KIND/NAME, such as pool/us-east")
        if resource.kind not in names:
            raise UsageError(
                f"placement does not use {resource.kind}",
                where=word,
                fix=f"name a {', '.join(names[:-1])} or {names[-1]}",
            )
        key = (resource.kind, sources.namespace if resource.namespaced else "", target.name)
        if key not in world.objects:
            where = f" in namespace {sources.namespace}" if resource.namespaced else ""
            raise NotFound(f"there is no {word}{where}", fix="check the name and -n")
        keys.append(key)
    return keys
