"""The verbs on one object: get, create, update, patch, apply and delete."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lattice.errors import (
    Cause,
    Conflict,
    Exists,
    Invalid,
    LatticeError,
    Malformed,
    MethodNotAllowed,
    NotFound,
    RevisionTooNew,
    UnsupportedMediaType,
)
from lattice.kinds.meta.base import GROUP
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.meta.metadata_validation import admit_metadata
from lattice.kinds.meta.object_lifecycle import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    is_finalized,
    is_unchanged,
    mark_for_deletion,
)
from lattice.kinds.meta.stored_encoding import Object, pack, splice_revision, unpack
from lattice.kinds.meta.validator import Findings
from lattice.server.access.authorization import reject_owned_workload
from lattice.server.apply.patch import json_patch, merge_patch, strategic_merge_patch
from lattice.server.apply.server_side_apply import FieldManager, server_side_apply
from lattice.server.requests import bodies
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import (
    DeleteOptions,
    delete_options,
    invalid_options,
    require_readable_revision,
    write_options,
)
from lattice.server.requests.status_error import success_status
from lattice.server.resources import admission
from lattice.server.resources.api import Api
from lattice.server.resources.negotiation import parse_accept, represent
from lattice.server.resources.write import PendingWrite, write
from lattice.store.protocol import Delete, Entry, Put, RevisionConflict

REVISION_TOO_LARGE_CAUSE = Cause("", "Too large resource version", "ResourceVersionTooLarge")
APPLY_PATCH_TYPE = "application/apply-patch+yaml"
PATCH_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/json-patch+json": json_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
}


async def get(api: Api, call: Call) -> Reply:
    """Answer with one object, at least as new as the resourceVersion of the request."""
    revision = call.query.get("resourceVersion", "")
    require_readable_revision(revision)
    entry = await get_existing(api, call)
    if int(revision or 0) > entry.revision:
        require_reached_revision(int(revision), await api.store_of(call.target.served).revision())
    if parse_accept(call.accept).is_plain_json:
        return Reply(splice_revision(entry.value, call.target.served.revision_offset, entry.revision))
    return represent(api, call, entry)


async def get_existing(api: Api, call: Call) -> Entry:
    """Return the stored entry of the target, or raise NotFound."""
    target = call.target
    entry = await api.store_of(target.served).get(target.served.key(target.namespace, target.name))
    if entry is None:
        raise not_found_error(target.served, target.name)
    return entry


def require_reached_revision(requested: int, current: int) -> None:
    """Raise RevisionTooNew if the request names a revision that the store has not reached."""
    if requested > current:
        raise RevisionTooNew(
            f"Too large resource version: {requested}, current: {current}", causes=[REVISION_TOO_LARGE_CAUSE]
        )


def not_found_error(served: ServedKind, name: str) -> NotFound:
    return NotFound(f'{served.resource.id} "{name}" not found')


async def create(api: Api, call: Call) -> Reply:
    """Create an object; the server completes a name from generateName."""
    options = write_options(call.query, "CreateOptions", call.user_agent)
    parsed, duplicates = read_body(call)
    target = call.target
    body = admission.validate_identity(target.served, parsed, target.namespace, "")
    if body["metadata"].get("resourceVersion"):
        raise Malformed(
            "resourceVersion should not be set on objects to be created",
            where="metadata.resourceVersion",
            fix="omit resourceVersion",
        )
    try:
        return await write(api, PendingWrite(call, options, None, body, duplicates=duplicates))
    except LatticeError as error:
        # The name may be generated, so the path does not have it; the Status of the error names the object.
        if not error.object_kind:
            error.object_name = str(
                body["metadata"].get("name") or body["metadata"].get("generateName") or ""
            )
        raise


async def update(api: Api, call: Call) -> Reply:
    """Replace an object at the resourceVersion of the body; kinds of the core group may omit the
    resourceVersion."""
    options = write_options(call.query, "UpdateOptions", call.user_agent)
    target = call.target
    parsed, duplicates = read_body(call)
    admission.require_name(parsed, target.name)
    body = admission.validate_identity(target.served, parsed, target.namespace, target.name)

    async def replace() -> Reply:
        old, expected_revision = await get_existing(api, call), body["metadata"].get("resourceVersion")
        if not expected_revision and target.served.resource.group:
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise Invalid(
                "is invalid",
                fix="read the object, change it, and send it with its resourceVersion",
                causes=[cause],
            )
        if expected_revision and expected_revision != str(old.revision):
            raise admission.stale_object_error(target.served, target.name)
        # Without an expected revision, a concurrent write is no error: validate and write again over the
        # newer object.
        return await write(api, PendingWrite(call, options, old, body, duplicates=duplicates))

    return await write_until_won(api, call, replace)


async def write_until_won(
    api: Api,
    call: Call,
    attempt: Callable[[], Awaitable[Reply]],
    conflicts: tuple[type[LatticeError], ...] = (RevisionConflict,),
) -> Reply:
    """Repeat an attempt to write the target that lost a race; raise Conflict at the deadline."""
    target = call.target
    return await api.write_locks.write(
        target.served.key(target.namespace, target.name),
        attempt,
        lambda: admission.stale_object_error(target.served, target.name),
        conflicts=conflicts,
    )


async def patch(api: Api, call: Call) -> Reply:
    """Apply a JSON patch, merge patch or strategic merge patch; an apply patch goes to `apply`."""
    media_type = call.content_type.partition(";")[0].strip()
    if media_type == APPLY_PATCH_TYPE:
        return await apply(api, call)
    change = PATCH_FUNCTIONS.get(media_type)
    resource = call.target.served.resource
    if change is None or (change is strategic_merge_patch and resource.group == GROUP):
        accepted = ", ".join([*[*PATCH_FUNCTIONS][: 2 if resource.group == GROUP else 3], APPLY_PATCH_TYPE])
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {accepted}",
            fix="with kubectl patch, add --type=merge" if change else "set the Content-Type header",
        )
    options = write_options(call.query, "PatchOptions", call.user_agent)
    parsed = parse_json(call.body)

    async def patch_current() -> Reply:
        old = await get_existing(api, call)
        new = patch_object(call, old, change, parsed.value)
        # A patch may set metadata.resourceVersion: then the patch applies to that revision only.
        names_other_revision = new["metadata"].get("resourceVersion") != str(old.revision)
        if names_other_revision and new["metadata"].get("resourceVersion"):
            raise admission.stale_object_error(call.target.served, call.target.name)
        return await write(api, PendingWrite(call, options, old, new, duplicates=tuple(parsed.duplicates)))

    return await write_until_won(api, call, patch_current)


def patch_object(call: Call, old: Entry, change: Callable[[Any, Any], Any], value: Any) -> Object:
    target = call.target
    new = change(unpack(old.value, old.revision), value)
    admission.require_name(new, target.name)
    return admission.validate_identity(target.served, new, target.namespace, target.name)


async def apply(api: Api, call: Call) -> Reply:
    """Server-side apply: merge the applied fields into the object, or create the object."""
    if not call.query.get("fieldManager"):
        cause = Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
        raise invalid_options("PatchOptions", [cause])
    options = write_options(call.query, "PatchOptions", call.user_agent)
    target = call.target
    parsed, duplicates = bodies.read_yaml(call.body)
    applied = parse_applied(
        call, admission.validate_identity(target.served, parsed, target.namespace, target.name)
    )
    manager = FieldManager(
        options.manager, "Apply", target.served.resource.api_version, target.subresource, options.force
    )

    async def merge_and_write() -> Reply:
        old = await api.store_of(target.served).get(target.served.key(target.namespace, target.name))
        new = merge_applied(api, call, old, applied, manager)
        return await write(
            api, PendingWrite(call, options, old, new, "Apply", duplicates, applied.unknown_fields)
        )

    # Exists: another client created the object between the read and the commit.
    return await write_until_won(api, call, merge_and_write, (RevisionConflict, Exists))


def merge_applied(
    api: Api, call: Call, old: Entry | None, applied: "AppliedConfiguration", manager: FieldManager
) -> Object:
    """Return the live object with the applied fields; raise Invalid, with every cause, if the merge cannot be
    computed."""
    target, expected_revision = call.target, applied.obj["metadata"].get("resourceVersion")
    if old is None and (target.subresource or expected_revision):
        raise not_found_error(target.served, target.name)
    if old is None and (uid := applied.obj["metadata"].get("uid")):
        # A client states the uid so as not to bring back an object that was deleted meanwhile.
        raise Conflict(
            f'Operation cannot be fulfilled on {target.served.resource.id} "{target.name}": uid mismatch: '
            f"the provided object specified uid {uid}, and no existing object was found",
            fix="omit metadata.uid to create the object again",
        )
    if old is not None and expected_revision not in (None, "", str(old.revision)):
        raise admission.stale_object_error(target.served, target.name)
    live = None if old is None else unpack(old.value, old.revision)
    try:
        return server_side_apply(live, applied.obj, target.served.types, manager, api.now())
    except Malformed as error:
        causes = [*applied.unknown_fields, *applied.causes]
        raise Invalid("is invalid", causes=causes or error.causes) from error


@dataclass(frozen=True, slots=True)
class AppliedConfiguration:
    """The object of an apply request with unknown fields removed, and the problems found in this object
    alone, before it is merged."""

    obj: Object
    unknown_fields: tuple[Cause, ...]
    causes: tuple[Cause, ...]


def parse_applied(call: Call, applied: Object) -> AppliedConfiguration:
    """Validate an applied object. Outside the /status subresource, the applied status is ignored."""
    if applied["metadata"].get("managedFields"):
        raise Malformed(
            "metadata.managedFields must be nil",
            where="metadata.managedFields",
            fix="omit managedFields in the applied object",
        )
    served = call.target.served
    if not call.target.subresource and served.resource.has_status:
        applied = {name: value for name, value in applied.items() if name != "status"}
    # A default is not what the manager applied, and must not become a field of the manager.
    findings = Findings(defaulting=False)
    admit_metadata(served.resource, applied["metadata"], metadata_findings := Findings(defaulting=False))
    pruned: Object = served.validator({**applied, "metadata": {}}, "", findings)
    findings.causes.extend(metadata_findings.causes)
    # A missing required field may already be in the live object.
    causes = tuple(cause for cause in findings.causes if cause.reason != "FieldValueRequired")
    unknown_fields = tuple(
        Cause(path, f"field not declared in schema{findings.hints.get(path, '')}")
        for path in findings.unknown_fields
    )
    return AppliedConfiguration({**pruned, "metadata": applied["metadata"]}, unknown_fields, causes)


def read_body(call: Call) -> tuple[Any, tuple[str, ...]]:
    """Return the object in the body and the paths of duplicate fields; protobuf only for kinds of
    Kubernetes."""
    resource = call.target.served.resource
    return bodies.parse_body(
        call.body, call.content_type, resource.kind, allow_protobuf=resource.group != GROUP
    )


async def delete(api: Api, call: Call) -> Reply:
    """Delete the object, or mark the object for deletion while finalizers remain."""
    options = delete_options(call.query, read_delete_options(call))

    async def delete_current() -> Reply:
        return await delete_entry(api, call, await get_existing(api, call), options)

    return await write_until_won(api, call, delete_current)


def read_delete_options(call: Call) -> dict[str, Any]:
    if not call.body:
        return {}
    value, _ = bodies.parse_body(call.body, call.content_type, "DeleteOptions", allow_protobuf=True)
    kind = value.get("kind") or "DeleteOptions" if isinstance(value, dict) else type(value).__name__
    if not isinstance(value, dict) or kind != "DeleteOptions":
        raise Malformed(
            f"decoded object cannot be converted to DeleteOptions: the body is a {kind}",
            fix="send DeleteOptions, or no body",
        )
    return value


async def delete_entry(api: Api, call: Call, entry: Entry, options: DeleteOptions) -> Reply:
    """Delete an entry, or mark the entry for deletion; raise RevisionConflict if the entry is not current."""
    served = call.target.served
    obj = unpack(entry.value, entry.revision)
    admission.reject_permanent_deletion(entry.key)
    reject_owned_workload(call.user, served.resource, obj)
    # Raise Conflict unless the object has the uid and revision that the options require.
    metadata = obj["metadata"]
    for required, actual, field in (
        (options.uid, metadata["uid"], "UID"),
        (options.revision, metadata["resourceVersion"], "ResourceVersion"),
    ):
        if required and required != actual:
            error = admission.stale_object_error(served, metadata["name"])
            error.message = (
                f'Operation cannot be fulfilled on {served.resource.id} "{metadata["name"]}": '
                f"the {field} in the precondition ({required}) "
                f"does not match the {field} in record ({actual}). "
                "The object might have been deleted and then recreated"
            )
            raise error
    finalizers = {"Foreground": (FOREGROUND_FINALIZER,), "Orphan": (ORPHAN_FINALIZER,)}.get(
        options.propagation_policy, ()
    )
    marked = mark_for_deletion(obj, now=api.now(), finalizers=finalizers)
    # The garbage collector empties a terminating namespace, then removes the namespace.
    if served.resource.id == "namespaces":
        marked["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    elif is_finalized(marked):
        if not options.dry_run:
            await api.store_of(served).commit([Delete(entry.key, entry.revision)])
        return Reply(encode(success_status(served.resource, entry.key.name, obj["metadata"]["uid"])))
    if options.dry_run or is_unchanged(obj, marked):
        return Reply(splice_revision(entry.value, served.revision_offset, entry.revision))
    value = pack(served.resource, marked)
    revision = await api.store_of(served).commit([Put(entry.key, value, entry.revision)])
    return Reply(splice_revision(value, served.revision_offset, revision))


def method_not_allowed(call: Call) -> MethodNotAllowed:
    return MethodNotAllowed(
        "the server does not allow this method on the requested resource: "
        f"{call.method} {call.target.served.resource.plural}"
    )
