"""The objects that placement looks at, from files, and what manifests would change about them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli.client.kind_names import Target, kind_names
from lattice.cli.client.manifests import locate_error, target_of
from lattice.cli.output import messages as say
from lattice.errors import Denied, Invalid, LatticeError, Malformed, NotFound, UsageError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.yaml_manifest import Document
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.manifest_files import load_manifests
from lattice.placement.model.world import ObjectKey, World, object_key
from lattice.server.requests.catalog import ServedKind, compile_kind
from lattice.server.resources.admission import admit

if TYPE_CHECKING:
    from lattice.cli.fleet.fleet_command import FleetInputs

DECLARED_KINDS: tuple[type[Kind], ...] = (
    LatticePool, LatticeNodeClass, CloudInfrastructure, StaticInfrastructure, LatticePlacementPolicy, LatticeService,
)  # fmt: skip
SYSTEM_KINDS: tuple[type[Kind], ...] = (
    LatticeCluster,
    LatticeLedger,
    LatticeNode,
)  # by Lattice and its agents, from what is declared
WORKLOAD_KINDS: tuple[type[Kind], ...] = (LatticeWorkload,)  # their own or Lattice's
PLACEMENT_KINDS = {each.resource.kind: each for each in DECLARED_KINDS + SYSTEM_KINDS + WORKLOAD_KINDS}
MAX_PROBLEMS = 20  # problems told before giving up on the rest
PAGE_SIZE = "500"
_FIELDS_HINT = "`lattice crds {}` shows the fields there are"


def load_world(sources: "FleetInputs") -> World:
    """What there is. What was spent of a month counts once there is a ledger that says so."""
    found = _load_objects(sources)
    is_accounted = any(isinstance(each, LatticeLedger) for each in found)
    world = World.of(found)
    return replace(world, now=datetime.now(UTC)) if is_accounted else world


def _load_objects(sources: "FleetInputs") -> list[Kind]:
    read = ManifestReader(sources.namespace)
    for document in load_manifests(sources.world_files, sources.recursive):
        read.add(document)
    return read.finish()


def load_changes(sources: "FleetInputs") -> list[Kind]:
    """The objects as they would be once these manifests are applied."""
    pairs = sources.manifests or (
        [(each, None) for each in load_manifests(sources.files, sources.recursive)] if sources.files else []
    )
    read = ManifestReader(sources.namespace, are_changes=True)
    for document, _ in pairs:
        read.add(document)
    return read.finish()


@dataclass
class ManifestReader:
    """Every object checked as the server would, each name once; what is wrong is told all together."""

    namespace: str
    are_changes: bool = False  # to be applied by somebody, who may not write what is Lattice's
    objects: dict[ObjectKey, Kind] = field(default_factory=dict)
    locations: dict[ObjectKey, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)

    def add(self, document: Document) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            return
        try:
            target = target_of(document, kind_names())
            if target.resource.kind not in PLACEMENT_KINDS:
                self.ignored[target.resource.kind] += 1
                return
            try:
                self._insert(self._admit_document(document, target), document)
            except LatticeError as e:
                raise locate_error(e, document, target) from e
        except LatticeError as e:
            self.problems.append(e)

    def _admit_document(self, document: Document, target: Target) -> Kind:
        kind = PLACEMENT_KINDS[target.resource.kind]
        if self.are_changes and kind in SYSTEM_KINDS:
            raise Denied(
                f"{target.resource.kind} is written by Lattice only", fix=target.resource.managed_hint
            )
        return admit_object(kind, self._with_namespace(document, target))

    def _with_namespace(self, document: Document, target: Target) -> dict[str, Any]:
        """In the namespace that it names, else in the one that was asked for."""
        metadata = document.value["metadata"]
        if metadata.get("namespace") or not target.resource.namespaced:
            return document.value
        return {**document.value, "metadata": {**metadata, "namespace": self.namespace}}

    def _insert(self, found: Kind, document: Document) -> None:
        name = object_key(found)
        if name in self.locations:
            raise Invalid(f"is given twice, first at {self.locations[name]}", fix="remove one of them")
        self.objects[name], self.locations[name] = found, document.location("metadata.name")

    def finish(self) -> list[Kind]:
        for problem in self.problems[:-1]:
            say.error(problem)
        if self.problems:
            raise self.problems[-1]
        if self.ignored:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
            say.note(f"ignored {kinds}: placement does not look at them")
        return list(self.objects.values())


@cache
def _served_kind(kind: type[Kind]) -> ServedKind:
    return compile_kind(kind)


def admit_object(kind: type[Kind], value: dict[str, Any]) -> Kind:
    try:
        kept = admit(_served_kind(kind), value, "Strict").obj
    except Malformed as e:  # a server would say how to ask it; here there is none
        raise Malformed(
            e.message,
            where=e.where,
            fix=_FIELDS_HINT.format(kind.resource.plural) if e.causes else e.fix,
            causes=e.causes,
        ) from e
    return msgspec.convert(kept, kind)


def load_deletions(sources: "FleetInputs", world: World) -> list[ObjectKey]:
    """What `--delete` names; it must be there."""
    return [_deletion_key(word, sources.namespace, world) for word in sources.deletions]


def _deletion_key(word: str, namespace: str, world: World) -> ObjectKey:
    target = kind_names().parse_targets([word])[0]
    resource = target.resource
    if not target.name:
        raise UsageError(f"{word!r} is not kind/name", fix="write it like pool/us-east")
    if resource.kind not in {each.resource.kind for each in DECLARED_KINDS}:
        raise UsageError(
            f"{resource.kind} is nothing that placement looks at",
            where=word,
            fix=f"name a {_kind_list(DECLARED_KINDS)}",
        )
    found = (resource.kind, namespace if resource.namespaced else "", target.name)
    if found not in world.objects:
        where = f" in namespace {namespace}" if resource.namespaced else ""
        raise NotFound(f"there is no {word}{where}", fix="check its name and -n")
    return found


def _kind_list(kinds: Sequence[type[Kind]]) -> str:
    said = [each.resource.kind for each in kinds]
    return f"{', '.join(said[:-1])} or {said[-1]}"
