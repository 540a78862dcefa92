"""What manifests would come to if they were applied now: checked and completed exactly as by apply, and nothing is written."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from lattice.errors import Cause, Conflict, Invalid, LatticeError, Malformed, MethodNotAllowed, NotFound
from lattice.kinds.meta.json_body import decode_stored, parse_json
from lattice.kinds.meta.object_lifecycle import is_finalized
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.access.authorization import ADMINS, RequestAttributes, authorize
from lattice.server.fleet_queries.protocol import PlannedWrite
from lattice.server.requests.call import Call, Target, User
from lattice.server.requests.catalog import Catalog
from lattice.server.requests.status_error import message_of
from lattice.server.resources import verbs
from lattice.server.resources.api import Api
from lattice.store.protocol import ABSENT, Entry, Key

MAX_REPORTED_PROBLEMS = 20  # refused manifests that are told before giving up on the rest
NAMESPACES = "namespaces"


@dataclass
class OverlayStore:
    """A store that holds still: what was read of the real one, and what is tried on top of it."""

    entries: Mapping[Key, Entry]
    overlay: dict[Key, Entry] = field(default_factory=dict)

    async def get(self, key: Key) -> Entry | None:
        return self.overlay.get(key) or self.entries.get(key)

    async def list(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def watch(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def commit(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def revision(self) -> NoReturn:
        self._not_supported()

    async def compact(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def campaign(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def renew(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def resign(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def close(self) -> None:
        pass

    def _not_supported(self) -> NoReturn:
        raise MethodNotAllowed("this is only tried: one object can be read at a time, and nothing written")


@dataclass(frozen=True)
class ParsedManifest:
    """A manifest of a question: its place in the list, and what it is about."""

    index: int
    value: dict[str, Any]
    target: Target
    body: bytes


@dataclass(frozen=True)
class ManifestProblem:
    """Why a manifest is refused."""

    index: int
    name: str
    error: LatticeError
    message: str

    @property
    def sentence(self) -> str:
        return (
            self.message
            if isinstance(self.error, Invalid) and self.error.causes
            else f"{self.name}: {self.message}"
        )

    @property
    def causes(self) -> list[Cause]:
        """With the place of the manifest in the question."""
        bare = self.message.removeprefix(f"{self.error.where}: ") if self.error.where else self.message
        found = self.error.causes or (Cause(self.error.where, bare),)
        return [
            Cause(f"manifests[{self.index}]{_field_suffix(each.field)}", each.message, each.reason)
            for each in found
        ]


@dataclass(frozen=True)
class ApplyOptions:
    """Under whose name, and whether over others'."""

    user: str
    namespace: str
    manager: str
    force: bool


@dataclass
class DryRun:
    """`looked_at`: resources that the question is about; others are counted and passed over."""

    api: Api
    store: OverlayStore
    considered_resources: frozenset[str]
    apply_options: ApplyOptions
    ignored: dict[str, int] = field(default_factory=dict)
    _problems: list[ManifestProblem] = field(default_factory=list)

    def apply_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[PlannedWrite]:
        """Each object as it would be stored; refuses all together if any is refused."""
        return asyncio.run(self._apply_manifests(manifests))

    async def _apply_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[PlannedWrite]:
        found: dict[Key, PlannedWrite] = {}
        for given in sorted(
            self._parse_manifests(manifests), key=lambda each: each.target.served.resource.id != NAMESPACES
        ):
            served, resource = given.target.served, given.target.served.resource
            if resource.id not in self.considered_resources | {NAMESPACES}:
                self.ignored[resource.kind] = self.ignored.get(resource.kind, 0) + 1
                continue
            key = served.key(given.target.namespace, given.target.name)
            try:
                if key in found:
                    raise Invalid("is given twice", fix="remove one of them")
                found[key] = self._planned_write(key, await self._dry_run_apply(given, key))
            except LatticeError as error:
                name = f'{resource.kind} "{key.path.lstrip("/")}"'
                self._add_problem(given.index, name, error, message_of(error, resource, given.target.name))
        self._raise_problems()
        return list(found.values())

    def _planned_write(self, key: Key, value: bytes) -> PlannedWrite:
        old = self.store.entries.get(key)
        if old is not None and is_finalized(decode_stored(value)) and key.resource != NAMESPACES:
            raise Conflict(
                "is being deleted, and this takes away what held it",
                fix="wait until it is gone, then plan again",
            )
        if old is not None:
            return PlannedWrite(key, value, old.revision, is_changed=old.value != value)
        home = self.store.entries.get(Key(NAMESPACES, "", key.namespace))
        return PlannedWrite(key, value, ABSENT, home.revision if home else 0)

    async def _dry_run_apply(self, given: ParsedManifest, key: Key) -> bytes:
        target, resource = given.target, given.target.served.resource
        asker = User(
            self.apply_options.user, frozenset({ADMINS})
        )  # who may only look may still ask what somebody else could do
        authorize(
            asker,
            RequestAttributes("patch", resource.group, resource.plural, "", target.namespace, target.name),
            resource,
        )
        query = {"fieldManager": self.apply_options.manager, "fieldValidation": "Strict", "dryRun": "All"} | (
            {"force": "true"} if self.apply_options.force else {}
        )
        reply = await verbs.apply(
            self.api, Call("PATCH", target, asker, query, given.body, verbs.APPLY_PATCH_TYPE)
        )
        assert isinstance(reply.body, bytes)  # noqa: S101 - one object is never streamed
        self.store.overlay[key] = Entry(key, pack(resource, decode_stored(reply.body)), 0)
        return self.store.overlay[key].value

    def _parse_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[ParsedManifest]:
        found = []
        for index, raw in enumerate(manifests):
            try:
                value = parse_json(bytes(raw)).value
                found.append(
                    ParsedManifest(
                        index,
                        value,
                        target_of(self.api.catalog, value, self.apply_options.namespace),
                        bytes(raw),
                    )
                )
            except LatticeError as error:
                self._add_problem(index, f"manifest {index + 1}", error, message_of(error, None, ""))
        self._raise_problems()
        return found

    def _add_problem(self, index: int, name: str, error: LatticeError, said: str) -> None:
        self._problems.append(ManifestProblem(index, name, error, said))
        if len(self._problems) >= MAX_REPORTED_PROBLEMS:
            self._raise_problems()

    def _raise_problems(self) -> None:
        if not self._problems:
            return
        found = sorted(self._problems, key=lambda each: each.index)
        kinds = {type(each.error) for each in found}
        kind = kinds.pop() if len(kinds) == 1 else Invalid
        raise kind(
            "; ".join(each.sentence for each in found),
            causes=[cause for each in found for cause in each.causes],
        )


def _field_suffix(path: str) -> str:
    path = path.removeprefix(".")
    return path if not path or path.startswith("[") else f".{path}"


def target_of(catalog: Catalog, value: Any, namespace: str) -> Target:
    """Which object a manifest is about."""
    if not isinstance(value, dict):
        raise Malformed("must be an object", fix="a manifest has apiVersion, kind and metadata.name")
    version, kind = value.get("apiVersion"), value.get("kind")
    for field_name, given in (("apiVersion", version), ("kind", kind)):
        if not isinstance(given, str) or not given:
            raise Malformed(
                f"{field_name} is missing", where=field_name, fix=f"say what this is with `{field_name}`"
            )
    served = next(
        (each for each in catalog if (each.resource.api_version, each.resource.kind) == (version, kind)), None
    )
    if served is None:
        raise NotFound(
            f"there is no kind {kind} in {version}",
            where="kind",
            fix="`kubectl api-resources` lists what there is",
        )
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed("metadata.name is missing", where="metadata.name", fix="name the object")
    home = (metadata.get("namespace") if isinstance(metadata, dict) else None) or namespace
    if not isinstance(home, str):
        raise Malformed("must be text", where="metadata.namespace")
    return Target(served, home if served.resource.namespaced else "", name)
