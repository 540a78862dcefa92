"""Dry run of manifests: the objects that applying the manifests would store, validated and defaulted as by
apply, without a write."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from lattice.errors import Cause, Conflict, Invalid, LatticeError, Malformed, MethodNotAllowed, NotFound
from lattice.kinds.kubernetes_names import counterpart_of_kind
from lattice.kinds.meta.json_body import decode_stored, parse_json
from lattice.kinds.meta.object_lifecycle import is_finalized
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.access.authorization import ADMIN_GROUP, RequestAttributes, authorize
from lattice.server.fleet_queries.protocol import PlannedWrite
from lattice.server.requests.call import Call, Target, User
from lattice.server.requests.catalog import Catalog
from lattice.server.requests.status_error import message_of
from lattice.server.resources import verbs
from lattice.server.resources.api import Api
from lattice.store.protocol import ABSENT, Entry, Key

# Rejected manifests that one error lists; the dry run stops at this number.
MAX_REPORTED_PROBLEMS = 20
NAMESPACES = "namespaces"


@dataclass
class OverlayStore:
    """A store that answers `get` from fixed entries with the dry-run objects on top; every other operation
    raises MethodNotAllowed."""

    entries: Mapping[Key, Entry]
    overlay: dict[Key, Entry] = field(default_factory=dict)

    async def get(self, key: Key) -> Entry | None:
        return self.overlay.get(key) or self.entries.get(key)

    async def list(self, *_: Any, **__: Any) -> NoReturn:
        self._not_supported()

    async def count(self, *_: Any, **__: Any) -> NoReturn:
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
        raise MethodNotAllowed("a dry run can read single objects only, and write nothing")


@dataclass(frozen=True)
class ParsedManifest:
    """A manifest of a query, with the index in the list of manifests and the target object."""

    index: int
    value: dict[str, Any]
    target: Target
    body: bytes


@dataclass(frozen=True)
class ManifestProblem:
    """The rejection of one manifest: `name` tells users which manifest, such as `LatticePool "us-east"`, and
    `message` is the error."""

    index: int
    name: str
    error: LatticeError
    message: str

    @property
    def sentence(self) -> str:
        # The message of an Invalid error with causes already names the object.
        if isinstance(self.error, Invalid) and self.error.causes:
            return self.message
        return f"{self.name}: {self.message}"

    @property
    def causes(self) -> list[Cause]:
        """The causes of the error, whose fields begin with the index of the manifest in the query."""
        bare = self.message.removeprefix(f"{self.error.where}: ") if self.error.where else self.message
        causes = []
        for cause in self.error.causes or (Cause(self.error.where, bare),):
            path = cause.field.removeprefix(".")
            suffix = path if not path or path.startswith("[") else f".{path}"
            causes.append(Cause(f"manifests[{self.index}]{suffix}", cause.message, cause.reason))
        return causes


@dataclass(frozen=True)
class ApplyOptions:
    """The user, default namespace, field manager and force flag of a dry-run apply."""

    user: str
    namespace: str
    manager: str
    force: bool


@dataclass
class DryRun:
    """Applies the manifests of one query to an OverlayStore.

    Manifests of resources outside `considered_resources` are only counted in `ignored`.
    """

    api: Api
    store: OverlayStore
    considered_resources: frozenset[str]
    apply_options: ApplyOptions
    ignored: dict[str, int] = field(default_factory=dict)
    _problems: list[ManifestProblem] = field(default_factory=list)

    def apply_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[PlannedWrite]:
        """Return the writes that applying the manifests would make; raise one error with every problem if a
        manifest is rejected."""
        return asyncio.run(self._apply_manifests(manifests))

    async def _apply_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[PlannedWrite]:
        writes: dict[Key, PlannedWrite] = {}
        # Namespaces first: a manifest may be in a namespace that the same query creates.
        parsed = sorted(
            self._parse_manifests(manifests),
            key=lambda manifest: manifest.target.served.resource.id != NAMESPACES,
        )
        for manifest in parsed:
            served, resource = manifest.target.served, manifest.target.served.resource
            if resource.id not in self.considered_resources | {NAMESPACES}:
                self.ignored[resource.kind] = self.ignored.get(resource.kind, 0) + 1
                continue
            key = served.key(manifest.target.namespace, manifest.target.name)
            try:
                if key in writes:
                    raise Invalid("appears twice", fix="remove one of them")
                writes[key] = self._planned_write(key, await self._dry_run_apply(manifest, key))
            except LatticeError as error:
                name = f'{resource.kind} "{key.path.lstrip("/")}"'
                message = message_of(error, resource, manifest.target.name)
                self._add_problem(manifest.index, name, error, message)
        self._raise_problems()
        return list(writes.values())

    def _planned_write(self, key: Key, value: bytes) -> PlannedWrite:
        current = self.store.entries.get(key)
        # Apply would remove the last finalizer of an object that is being deleted, and thereby delete the
        # object instead of updating it.
        if current is not None and is_finalized(decode_stored(value)) and key.resource != NAMESPACES:
            raise Conflict(
                "is being deleted, and this change removes its last finalizer",
                fix="wait until the object is deleted, then plan again",
            )
        if current is not None:
            return PlannedWrite(key, value, current.revision, is_changed=current.value != value)
        namespace = self.store.entries.get(Key(NAMESPACES, "", key.namespace))
        return PlannedWrite(key, value, ABSENT, namespace.revision if namespace else 0)

    async def _dry_run_apply(self, manifest: ParsedManifest, key: Key) -> bytes:
        target, resource = manifest.target, manifest.target.served.resource
        # A user with read access may plan the writes of another user, so the dry run acts as an
        # administrator.
        administrator = User(self.apply_options.user, frozenset({ADMIN_GROUP}))
        attributes = RequestAttributes(
            "patch", resource.group, resource.plural, "", target.namespace, target.name
        )
        authorize(administrator, attributes, resource)
        query = {"fieldManager": self.apply_options.manager, "fieldValidation": "Strict", "dryRun": "All"}
        if self.apply_options.force:
            query["force"] = "true"
        call = Call("PATCH", target, administrator, query, manifest.body, verbs.APPLY_PATCH_TYPE)
        reply = await verbs.apply(self.api, call)
        assert isinstance(reply.body, bytes)  # noqa: S101 - one object is never streamed
        self.store.overlay[key] = Entry(key, pack(resource, decode_stored(reply.body)), 0)
        return self.store.overlay[key].value

    def _parse_manifests(self, manifests: Sequence[msgspec.Raw]) -> list[ParsedManifest]:
        parsed = []
        for index, raw in enumerate(manifests):
            try:
                value = parse_json(bytes(raw)).value
                target = target_of(self.api.catalog, value, self.apply_options.namespace)
                parsed.append(ParsedManifest(index, value, target, bytes(raw)))
            except LatticeError as error:
                self._add_problem(index, f"manifest {index + 1}", error, message_of(error, None, ""))
        self._raise_problems()
        return parsed

    def _add_problem(self, index: int, name: str, error: LatticeError, message: str) -> None:
        self._problems.append(ManifestProblem(index, name, error, message))
        if len(self._problems) >= MAX_REPORTED_PROBLEMS:
            self._raise_problems()

    def _raise_problems(self) -> None:
        if not self._problems:
            return
        problems = sorted(self._problems, key=lambda problem: problem.index)
        causes: list[Cause] = []
        for problem in problems:
            causes.extend(problem.causes)
        # Problems of one class keep the class, and with it the HTTP status.
        error_types = {type(problem.error) for problem in problems}
        error_type = error_types.pop() if len(error_types) == 1 else Invalid
        raise error_type("; ".join(problem.sentence for problem in problems), causes=causes)


def target_of(catalog: Catalog, value: Any, namespace: str) -> Target:
    """Return the object that a manifest describes; raise an error if the manifest lacks apiVersion, kind or
    name.

    `namespace` is the namespace of a manifest that names none.
    """
    if not isinstance(value, dict):
        raise Malformed("must be an object", fix="a manifest has apiVersion, kind and metadata.name")
    version, kind = value.get("apiVersion"), value.get("kind")
    for field_name, text in (("apiVersion", version), ("kind", kind)):
        if not isinstance(text, str) or not text:
            raise Malformed(f"{field_name} is missing", where=field_name, fix=f"add `{field_name}`")
    served = next(
        (
            candidate
            for candidate in catalog
            if (candidate.resource.api_version, candidate.resource.kind) == (version, kind)
        ),
        None,
    )
    if served is None:
        counterpart = counterpart_of_kind(str(version), str(kind))
        raise NotFound(
            f"there is no kind {kind} in {version}",
            where="kind",
            fix=counterpart.advice if counterpart else "`kubectl api-resources` lists the kinds",
        )
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed("metadata.name is missing", where="metadata.name", fix="name the object")
    object_namespace = (metadata.get("namespace") if isinstance(metadata, dict) else None) or namespace
    if not isinstance(object_namespace, str):
        raise Malformed("must be a string", where="metadata.namespace")
    return Target(served, object_namespace if served.resource.namespaced else "", name)
