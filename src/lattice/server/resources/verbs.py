"""What the API can do to an object: get, create, update, patch, apply, delete. Functions over plain values."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lattice.errors import Cause, Exists, Invalid, LatticeError, Malformed, NotAllowed, NotFound, Unsupported
from lattice.kinds.meta.base import GROUP
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.meta.object_rules import FOREGROUND, ORPHAN, doomed, is_gone, same
from lattice.kinds.meta.metadata import admit_metadata
from lattice.kinds.meta.stored import Object, pack, splice, unpack
from lattice.kinds.meta.validator import Findings
from lattice.server.resources import admission
from lattice.server.requests import bodies
from lattice.server.resources.api import Api
from lattice.server.apply.server_side_apply import Manager, server_side_apply
from lattice.server.access.authorization import refuse_owned
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import Served
from lattice.server.requests.options import DeleteOptions, delete_options, invalid_options, write_options
from lattice.server.apply.patch import json_patch, merge_patch, strategic_merge_patch
from lattice.server.requests.status_error import success
from lattice.server.resources.negotiation import form_of, represent
from lattice.server.resources.write import ATTEMPTS, Draft, undeclared, write
from lattice.store.protocol import Clash, Delete, Entry, Put

APPLY = "application/apply-patch+yaml"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/json-patch+json": json_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
}


async def get(api: Api, call: Call) -> Reply:
    entry = await existing(api, call)
    if form_of(call.accept).plain:
        return Reply(splice(entry.value, call.target.served.head, entry.revision))
    return represent(api, call, entry)


async def existing(api: Api, call: Call) -> Entry:
    target = call.target
    entry = await api.store_of(target.served).get(target.served.key(target.namespace, target.name))
    if entry is None:
        raise absent(target.served, target.name)
    return entry


def absent(served: Served, name: str) -> NotFound:
    return NotFound(f'{served.resource.id} "{name}" not found')


async def create(api: Api, call: Call) -> Reply:
    options = write_options(call.query, "CreateOptions", call.agent)
    parsed, duplicates = read_body(call)
    target = call.target
    body = admission.demand_identity(target.served, parsed, target.namespace, "")
    if body["metadata"].get("resourceVersion"):
        raise Malformed(
            "resourceVersion should not be set on objects to be created",
            where="metadata.resourceVersion",
            fix="leave it out",
        )
    try:
        return await write(api, Draft(call, options, None, body, duplicates=duplicates))
    except LatticeError as error:
        error.subject = str(body["metadata"].get("name") or body["metadata"].get("generateName") or "")
        raise


async def update(api: Api, call: Call) -> Reply:
    options = write_options(call.query, "UpdateOptions", call.agent)
    target = call.target
    for _ in range(ATTEMPTS):
        parsed, duplicates = read_body(call)
        body = admission.demand_identity(target.served, parsed, target.namespace, target.name)
        old, given = await existing(api, call), body["metadata"].get("resourceVersion")
        if not given and target.served.resource.group:
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise Invalid(
                "is invalid",
                fix="read the object, change it, and send it with its resourceVersion",
                causes=[cause],
            )
        if given and given != str(old.revision):
            raise admission.stale(target.served, target.name)
        with contextlib.suppress(Clash):
            return await write(api, Draft(call, options, old, body, duplicates=duplicates))
    raise admission.stale(target.served, target.name)


async def patch(api: Api, call: Call) -> Reply:
    kind = call.content_type.partition(";")[0].strip()
    if kind == APPLY:
        return await apply(api, call)
    change = PATCHES.get(kind)
    resource = call.target.served.resource
    if change is None or (change is strategic_merge_patch and resource.group == GROUP):
        known = ", ".join([*[*PATCHES][: 2 if resource.group == GROUP else 3], APPLY])
        raise Unsupported(
            f"the body of the request was in an unknown format - accepted media types include: {known}",
            fix="with kubectl patch, add --type=merge" if change else "set the Content-Type header",
        )
    options = write_options(call.query, "PatchOptions", call.agent)
    parsed = parse_json(call.body)
    for attempt in range(ATTEMPTS):
        old = await existing(api, call)
        new = patched(call, old, change, parsed.value)
        pinned = new["metadata"].get("resourceVersion") != str(old.revision)
        if pinned and new["metadata"].get("resourceVersion"):
            raise admission.stale(call.target.served, call.target.name)
        try:
            return await write(api, Draft(call, options, old, new, duplicates=tuple(parsed.duplicates)))
        except Clash:
            if attempt == ATTEMPTS - 1:
                raise admission.stale(call.target.served, call.target.name) from None
    raise AssertionError("the last attempt returns or raises")


def patched(call: Call, old: Entry, change: Callable[[Any, Any], Any], value: Any) -> Object:
    target = call.target
    new = change(unpack(old.value, old.revision), value)
    return admission.demand_identity(target.served, new, target.namespace, target.name)


async def apply(api: Api, call: Call) -> Reply:
    """Server-side apply: creates what is not there."""
    if not call.query.get("fieldManager"):
        cause = Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
        raise invalid_options("PatchOptions", [cause])
    options = write_options(call.query, "PatchOptions", call.agent)
    target = call.target
    parsed, duplicates = bodies.read_yaml(call.body)
    applied = known_fields(
        call, admission.demand_identity(target.served, parsed, target.namespace, target.name)
    )
    manager = Manager(
        options.manager, "Apply", target.served.resource.api_version, target.subresource, options.force
    )
    for attempt in range(ATTEMPTS):
        old = await api.store.get(target.served.key(target.namespace, target.name))
        new = applied_to(api, call, old, applied, manager)
        try:
            return await write(api, Draft(call, options, old, new, "Apply", duplicates, applied.unknown))
        except (Clash, Exists):
            if attempt == ATTEMPTS - 1:
                raise admission.stale(target.served, target.name) from None
    raise AssertionError("the last attempt returns or raises")


def applied_to(api: Api, call: Call, old: Entry | None, applied: "Applied", manager: Manager) -> Object:
    target, given = call.target, applied.obj["metadata"].get("resourceVersion")
    if old is None and (target.subresource or given):
        raise absent(target.served, target.name)
    if old is not None and given not in (None, "", str(old.revision)):
        raise admission.stale(target.served, target.name)
    live = None if old is None else unpack(old.value, old.revision)
    try:
        return server_side_apply(live, applied.obj, target.served.types, manager, api.now())
    except Malformed as error:
        causes = [*undeclared(applied.unknown), *applied.wrong]
        raise Invalid("is invalid", causes=causes or error.causes) from error


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply says, without the fields that do not exist, and what is wrong with it by itself."""

    obj: Object
    unknown: tuple[str, ...]
    wrong: tuple[Cause, ...]


def known_fields(call: Call, applied: Object) -> Applied:
    """Without /status, the status of what is applied is not looked at."""
    if applied["metadata"].get("managedFields"):
        raise Malformed(
            "metadata.managedFields must be nil",
            where="metadata.managedFields",
            fix="leave it out of what you apply",
        )
    served = call.target.served
    if not call.target.subresource and served.resource.has_status:
        applied = {name: value for name, value in applied.items() if name != "status"}
    found = Findings(defaulting=False)
    admit_metadata(served.resource, applied["metadata"], named := Findings(defaulting=False))
    kept: Object = served.walk({**applied, "metadata": {}}, "", found)
    found.causes.extend(named.causes)
    wrong = tuple(
        cause for cause in found.causes if cause.reason != "FieldValueRequired"
    )  # it may be part of a whole
    return Applied({**kept, "metadata": applied["metadata"]}, tuple(found.unknown), wrong)


def read_body(call: Call) -> tuple[Any, tuple[str, ...]]:
    resource = call.target.served.resource
    return bodies.read(call.body, call.content_type, resource.kind, protobuf_too=resource.group != GROUP)


async def delete(api: Api, call: Call) -> Reply:
    options = delete_options(call.query, read_delete_options(call))
    for _ in range(ATTEMPTS):
        entry = await existing(api, call)
        try:
            return await delete_entry(api, call, entry, options)
        except Clash:
            continue
    raise admission.stale(call.target.served, call.target.name)


def read_delete_options(call: Call) -> dict[str, Any]:
    if not call.body:
        return {}
    value, _ = bodies.read(call.body, call.content_type, "DeleteOptions", protobuf_too=True)
    if not isinstance(value, dict):
        raise Malformed("the body of a delete must be DeleteOptions")
    return value


async def delete_entry(api: Api, call: Call, entry: Entry, options: DeleteOptions) -> Reply:
    served = call.target.served
    obj = unpack(entry.value, entry.revision)
    admission.refuse_permanent(entry.key)
    refuse_owned(call.user, served.resource, obj)
    _demand(served, obj, options)
    holds = {"Foreground": (FOREGROUND,), "Orphan": (ORPHAN,)}.get(options.policy, ())
    marked = doomed(obj, now=api.now(), finalizers=holds)
    if served.resource.id == "namespaces":
        marked["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    elif is_gone(marked):
        if not options.dry_run:
            await api.store.commit([Delete(entry.key, entry.revision)])
        return Reply(encode(success(served.resource, entry.key.name, obj["metadata"]["uid"])))
    if options.dry_run or same(obj, marked):
        return Reply(splice(entry.value, served.head, entry.revision))
    value = pack(served.resource, marked)
    revision = await api.store.commit([Put(entry.key, value, entry.revision)])
    return Reply(splice(value, served.head, revision))


def _demand(served: Served, obj: Object, options: DeleteOptions) -> None:
    """Preconditions: delete this very object, or nothing."""
    metadata = obj["metadata"]
    for wanted, found, what in (
        (options.uid, metadata["uid"], "UID"),
        (options.revision, metadata["resourceVersion"], "ResourceVersion"),
    ):
        if wanted and wanted != found:
            error = admission.stale(served, metadata["name"])
            error.what = (
                f'Operation cannot be fulfilled on {served.resource.id} "{metadata["name"]}": the {what} in the precondition ({wanted}) '
                f"does not match the {what} in record ({found}). The object might have been deleted and then recreated"
            )
            raise error


def refuse_verb(call: Call) -> NotAllowed:
    return NotAllowed(
        f"the server does not allow this method on the requested resource: {call.method} {call.target.served.resource.plural}"
    )
