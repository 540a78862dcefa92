"""The objects that placement looks at, from files, and what manifests would change about them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli.output import messages as say
from lattice.cli.commands.apply import located
from lattice.cli.client.kind_names import Target, names
from lattice.cli.client.manifests import documents, target_of
from lattice.usage import Misused
from lattice.errors import Denied, Invalid, LatticeError, Malformed, NotFound
from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.yaml_manifest import Document
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.world import Key, World, key
from lattice.server.resources.admission import admit
from lattice.server.requests.catalog import Served, serve

if TYPE_CHECKING:
    from lattice.cli.fleet.context import Sources

DECLARED: tuple[type[Kind], ...] = (
    LatticePool, LatticeNodeClass, CloudInfrastructure, StaticInfrastructure, LatticePlacementPolicy, LatticeService,
)  # fmt: skip
MADE: tuple[type[Kind], ...] = (
    LatticeCluster,
    LatticeLedger,
    LatticeNode,
)  # by Lattice and its agents, from what is declared
SEEN: tuple[type[Kind], ...] = (LatticeWorkload,)  # their own or Lattice's
LOOKED_AT = {each.resource.kind: each for each in DECLARED + MADE + SEEN}
REPORTED = 20  # problems told before giving up on the rest
PAGE = "500"
_FIELDS = "`lattice crds {}` shows the fields there are"


def world_in(sources: "Sources") -> World:
    """What there is. What was spent of a month counts once there is a ledger that says so."""
    found = _from_files(sources)
    is_accounted = any(isinstance(each, LatticeLedger) for each in found)
    world = World.of(found)
    return replace(world, now=datetime.now(UTC)) if is_accounted else world


def _from_files(sources: "Sources") -> list[Kind]:
    read = Reading(sources.namespace)
    for document in documents(sources.worlds, sources.recursive):
        read.take(document)
    return read.done()


def changes_in(sources: "Sources") -> list[Kind]:
    """The objects as they would be once these manifests are applied."""
    pairs = sources.given or (
        [(each, None) for each in documents(sources.files, sources.recursive)] if sources.files else []
    )
    read = Reading(sources.namespace, are_changes=True)
    for document, _ in pairs:
        read.take(document)
    return read.done()


@dataclass
class Reading:
    """Every object checked as the server would, each name once; what is wrong is told all together."""

    namespace: str
    are_changes: bool = False  # to be applied by somebody, who may not write what is Lattice's
    found: dict[Key, Kind] = field(default_factory=dict)
    at: dict[Key, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    problems: list[LatticeError] = field(default_factory=list)

    def take(self, document: Document) -> None:
        if len(self.problems) >= REPORTED:
            return
        try:
            target = target_of(document, names())
            if target.resource.kind not in LOOKED_AT:
                self.ignored[target.resource.kind] += 1
                return
            try:
                self._keep(self._admitted(document, target), document)
            except LatticeError as e:
                raise located(e, document, target) from e
        except LatticeError as e:
            self.problems.append(e)

    def _admitted(self, document: Document, target: Target) -> Kind:
        kind = LOOKED_AT[target.resource.kind]
        if self.are_changes and kind in MADE:
            raise Denied(f"{target.resource.kind} is written by Lattice only", fix=target.resource.made)
        return admitted(kind, self._placed(document, target))

    def _placed(self, document: Document, target: Target) -> dict[str, Any]:
        """In the namespace that it names, else in the one that was asked for."""
        metadata = document.value["metadata"]
        if metadata.get("namespace") or not target.resource.namespaced:
            return document.value
        return {**document.value, "metadata": {**metadata, "namespace": self.namespace}}

    def _keep(self, found: Kind, document: Document) -> None:
        name = key(found)
        if name in self.at:
            raise Invalid(f"is given twice, first at {self.at[name]}", fix="remove one of them")
        self.found[name], self.at[name] = found, document.at("metadata.name")

    def done(self) -> list[Kind]:
        for problem in self.problems[:-1]:
            say.error(problem)
        if self.problems:
            raise self.problems[-1]
        if self.ignored:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
            say.note(f"ignored {kinds}: placement does not look at them")
        return list(self.found.values())


@cache
def _served(kind: type[Kind]) -> Served:
    return serve(kind)


def admitted(kind: type[Kind], value: dict[str, Any]) -> Kind:
    try:
        kept = admit(_served(kind), value, "Strict").obj
    except Malformed as e:  # a server would say how to ask it; here there is none
        raise Malformed(
            e.what,
            where=e.where,
            fix=_FIELDS.format(kind.resource.plural) if e.causes else e.fix,
            causes=e.causes,
        ) from e
    return msgspec.convert(kept, kind)


def gone_in(sources: "Sources", world: World) -> list[Key]:
    """What `--delete` names; it must be there."""
    return [_gone(word, sources.namespace, world) for word in sources.gone]


def _gone(word: str, namespace: str, world: World) -> Key:
    target = names().targets([word])[0]
    resource = target.resource
    if not target.name:
        raise Misused(f"{word!r} is not kind/name", fix="write it like pool/us-east")
    if resource.kind not in {each.resource.kind for each in DECLARED}:
        raise Misused(
            f"{resource.kind} is nothing that placement looks at",
            where=word,
            fix=f"name a {_words(DECLARED)}",
        )
    found = (resource.kind, namespace if resource.namespaced else "", target.name)
    if found not in world.objects:
        where = f" in namespace {namespace}" if resource.namespaced else ""
        raise NotFound(f"there is no {word}{where}", fix="check its name and -n")
    return found


def _words(kinds: Sequence[type[Kind]]) -> str:
    said = [each.resource.kind for each in kinds]
    return f"{', '.join(said[:-1])} or {said[-1]}"
