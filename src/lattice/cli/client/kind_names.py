"""Names of kinds on the command line: `pools`, `lp`, `LatticePool`, `latticepools.lattice.dev`, `kind/name`,
lists and categories."""

import difflib
import functools
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lattice.errors import NotFound, UsageError
from lattice.kinds.kubernetes_names import counterpart_of_kind, counterpart_of_word
from lattice.kinds.meta.base import GROUP, Resource

# Everyday names in addition to the kinds' own names.
_EXTRA_NAMES = {
    "LatticePlacementPolicy": ("policy", "policies"),
    "LatticeService": ("svc", "service", "services"),
    "LatticeNodeClass": ("class", "classes", "nodeclasses"),
    "CloudInfrastructure": ("cloud", "clouds"),
    "StaticInfrastructure": ("static", "statics", "datacenter", "datacenters"),
    "AutomationRule": ("rule", "rules"),
}
# Kinds that the server serves and that are not among the kinds of Lattice.
_EXTERNAL_RESOURCES = (
    Resource(
        kind="Service",
        plural="services",
        group="",
        version="v1",
        short_names=("svc",),
        categories=(),
        namespaced=True,
        verbs=("get", "list", "watch"),
    ),
    Resource(
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        version="v1",
        short_names=("crd", "crds"),
        categories=(),
    ),
)

_LIST_KINDS_HINT = "`lattice get --help` lists the kinds; an application is a LatticeService"


class Target(NamedTuple):
    """A kind with the name of one object, or with an empty name for all objects of the kind."""

    resource: Resource
    name: str = ""


class KindNames:
    """Every spelling of every kind.

    Lattice's kinds come first: `services` and `svc` are Lattice's; the core kind is `services.v1.`.
    """

    def __init__(self, resources: Iterable[Resource]) -> None:
        listed = list(resources)
        listed_ids = {r.id for r in listed}
        listed += [r for r in _EXTERNAL_RESOURCES if r.id not in listed_ids]
        # Stable sort: Lattice's kinds first, so that their spellings win below.
        self.resources = sorted(listed, key=lambda r: r.group != GROUP)
        self.resources_by_word: dict[str, Resource] = {}
        for resource in self.resources:
            group, version, names = resource.group, resource.version, (resource.singular, resource.plural)
            words = [*names, *resource.short_names, *(f"{name}.{version}.{group}" for name in names)]
            if group:
                words += [f"{name}.{group}" for name in names]
            for word in (*words, *_short_names(resource)):
                self.resources_by_word.setdefault(word, resource)

    def resolve(self, word: str) -> list[Resource]:
        """Kinds that one word means: one kind, or several for a category."""
        spelling = word.strip().lower()
        if spelling in self.resources_by_word:
            return [self.resources_by_word[spelling]]
        members = [
            r
            for r in self.resources
            if spelling in r.categories or (spelling == "all" and "lattice" in r.categories)
        ]
        if spelling and members:
            return members
        if counterpart := counterpart_of_word(spelling):
            raise NotFound(
                f"there is no kind {word!r}: {counterpart.kind} is a kind of Kubernetes",
                fix=f"`lattice get {counterpart.resource}`; to create one, {counterpart.advice}",
            )
        near = difflib.get_close_matches(word.lower(), self.resources_by_word, n=3, cutoff=0.6)
        meant = dict.fromkeys(_usual_name(self.resources_by_word[spelling]) for spelling in near)
        raise NotFound(
            f"there is no kind {word!r}",
            fix=f"did you mean {' or '.join(meant)}?" if meant else _LIST_KINDS_HINT,
        )

    def parse_targets(self, words: Sequence[str]) -> list[Target]:
        """Targets of `pools`, `pools,nodes`, `pools a b` or `pool/a service/b`."""
        if not words:
            raise UsageError("name a kind", fix=_LIST_KINDS_HINT)
        if any("/" in word for word in words):
            targets = []
            for word in words:
                kind, slash, name = word.partition("/")
                if not slash or not kind or not name or "/" in name:
                    raise UsageError(
                        f"{word!r} is not kind/name",
                        fix="write either `pool/a node/b` or `pools a b`, not both",
                    )
                resources = self.resolve(kind)
                if len(resources) > 1:
                    raise UsageError(
                        f"{kind!r} means several kinds and cannot be combined with a name",
                        where=word,
                        fix="name one kind",
                    )
                targets.append(Target(resources[0], name))
            return targets
        resources = []
        for part in words[0].split(","):
            resources += [resource for resource in self.resolve(part) if resource not in resources]
        if len(words) == 1:
            return [Target(resource) for resource in resources]
        return [Target(resource, name) for resource in resources for name in words[1:]]

    def find_resource(self, api_version: str, kind: str) -> Resource:
        """The kind with a manifest's apiVersion and kind."""
        creatable = [resource for resource in self.resources if "create" in resource.verbs]
        for resource in creatable:
            if (resource.api_version, resource.kind) == (api_version, kind):
                return resource
        if counterpart := counterpart_of_kind(api_version, kind):
            raise NotFound(
                f"there is no kind {kind!r} in {api_version or 'no apiVersion'}: {kind} is a kind of Kubernetes",
                fix=counterpart.advice,
            )
        same = [r.api_version for r in creatable if r.kind == kind]
        if same:
            raise NotFound(
                f"there is no {kind} in {api_version or 'no apiVersion'}", fix=f"use apiVersion: {same[0]}"
            )
        near = difflib.get_close_matches(kind, [r.kind for r in creatable], n=1)
        raise NotFound(
            f"there is no kind {kind!r} in {api_version}",
            fix=f"did you mean {near[0]}?" if near else _LIST_KINDS_HINT,
        )

    def short_names(self) -> list[str]:
        """The shortest usual name of every Lattice kind."""
        own = [resource for resource in self.resources if resource not in _EXTERNAL_RESOURCES]
        return list(dict.fromkeys(_usual_name(resource) for resource in own))


# Cached: loading the kinds takes time, and commands that need no kinds must start fast.
@functools.cache
def kind_names() -> KindNames:
    from lattice.kinds import KINDS

    return KindNames(kind.resource for kind in KINDS)


def completions() -> list[str]:
    return sorted(kind_names().short_names())


def _short_names(resource: Resource) -> list[str]:
    if resource.group != GROUP:
        return []
    bare = [
        word.removeprefix("lattice")
        for word in (resource.singular, resource.plural)
        if word.startswith("lattice")
    ]
    return [*bare, *_EXTRA_NAMES.get(resource.kind, ())]


def _usual_name(resource: Resource) -> str:
    return (_short_names(resource) or [resource.plural])[-1]


def resource_path(resource: Resource, namespace: str | None = None, name: str = "") -> str:
    """API path of a kind or of one object; without a namespace, of all namespaces."""
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    return "/" + "/".join(
        urllib.parse.quote(part, safe="") for part in [*parts, resource.plural, name] if part
    )


def full_name(resource: Resource) -> str:
    """Name of the kind as kubectl prints it: `latticepool.lattice.dev`, `namespace`."""
    return f"{resource.singular}.{resource.group}" if resource.group else resource.singular
