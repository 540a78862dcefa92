"""The write path of every create and change: admit, default, track managed fields, compare, commit."""

from dataclasses import dataclass

from lattice.errors import Cause, Denied, Exists, Invalid, LatticeError, NotFound, Unavailable
from lattice.kinds.meta.object_lifecycle import is_finalized, is_unchanged, new_object, updated_object
from lattice.kinds.meta.stored_encoding import Object, pack, splice_revision, unpack
from lattice.server.access.authorization import reject_event_change, reject_owned_workload
from lattice.server.apply.server_side_apply import FieldManager, track_update
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import WriteOptions
from lattice.server.resources import admission
from lattice.server.resources.api import Api
from lattice.server.resources.negotiation import parse_accept, represent
from lattice.store.protocol import ABSENT, Check, Delete, Entry, Key, Put, RevisionConflict, Store

NAMESPACE_TERMINATING = "NamespaceTerminating"
# Characters of generateName, as in Kubernetes: with the suffix, the name still fits into a label.
MAX_GENERATE_NAME_CHARS = 58


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write before admission: the stored entry, the requested object and the options of the request."""

    call: Call
    options: WriteOptions
    old: Entry | None
    new: Object
    # Operation of the field manager: Update or Apply.
    operation: str = "Update"
    duplicates: tuple[str, ...] = ()
    # Unknown fields of an apply, which are always rejected.
    unknown_fields: tuple[Cause, ...] = ()


async def write(api: Api, pending: PendingWrite) -> Reply:
    """Admit and commit a write; an update that changes nothing answers without a commit.

    Raise RevisionConflict if another write was first; the caller reads the object again.
    """
    call, served = pending.call, pending.call.target.served
    is_status = call.target.subresource == "status"
    old = None if pending.old is None else unpack(pending.old.value, pending.old.revision)
    # The old and the new object are checked, because a user may neither change an owned workload nor create
    # an owned workload.
    reject_owned_workload(call.user, served.resource, old, pending.new)
    reject_event_change(call.user, served.resource, old)
    admitted = _admit(pending, old, is_status)
    if old is None:
        new = new_object(admitted.obj, uid=api.new_uid(), now=api.now())
    else:
        new = updated_object(old, admitted.obj, status=is_status)
    new = admission.apply_kind_defaults(served, new, old)
    if old is None and not new["metadata"].get("name"):
        new["metadata"]["name"] = new["metadata"]["generateName"][:MAX_GENERATE_NAME_CHARS] + api.new_suffix()
    _track_managed_fields(api, pending, old, new)
    # A repeated write adds no revision and wakes no watch.
    if old is not None and pending.old is not None and is_unchanged(old, new):
        return _answer(api, call, pending.old, 200, admitted.warnings)
    entry = await _commit(api, pending, new)
    return _answer(api, call, entry, 201 if old is None else 200, admitted.warnings)


def _admit(pending: PendingWrite, old: Object | None, is_status: bool) -> admission.AdmittedObject:
    served = pending.call.target.served
    new = pending.new
    # A write to /status changes only the status; every other write keeps the stored status.
    if old is not None and is_status:
        new = {**old, "metadata": new["metadata"], "status": new.get("status") or {}}
    elif served.resource.has_status:
        stored_status = (old or {}).get("status")
        new = {name: value for name, value in new.items() if name != "status"}
        if stored_status:
            new["status"] = stored_status
    # An unknown field has no merge rule, so an apply is always strict.
    validation = pending.options.validation if pending.operation == "Update" else "Strict"
    try:
        admitted = admission.admit(served, new, validation, pending.duplicates, is_new=pending.old is None)
    except LatticeError as error:
        raise _add_unknown_fields(pending, error) from error
    if pending.unknown_fields:
        raise _add_unknown_fields(pending, None)
    return admitted


def _add_unknown_fields(pending: PendingWrite, error: LatticeError | None) -> LatticeError:
    """Return the error of an apply with a cause for every unknown field, in addition to the causes of
    `error`."""
    if error is not None and not pending.unknown_fields:
        return error
    return Invalid(
        "is invalid",
        causes=[*pending.unknown_fields, *(error.causes if error else ())],
    )


def _track_managed_fields(api: Api, pending: PendingWrite, old: Object | None, new: Object) -> None:
    """Update metadata.managedFields of an update; server-side apply has already computed the entries."""
    target = pending.call.target
    if pending.operation == "Apply":
        return
    manager = FieldManager(
        pending.options.manager, "Update", target.served.resource.api_version, target.subresource
    )
    if target.subresource:
        previous, current = old, new
    else:
        previous, current = old and _without_status(old), _without_status(new)
    entries = track_update(previous, current, target.served.types, manager, api.now())
    new["metadata"] = {name: value for name, value in new["metadata"].items() if name != "managedFields"}
    if entries:
        new["metadata"]["managedFields"] = entries


def _without_status(obj: Object) -> Object:
    """Return the object without the status, which a write outside /status does not own."""
    return {name: value for name, value in obj.items() if name != "status"}


async def _commit(api: Api, pending: PendingWrite, new: Object) -> Entry:
    target = pending.call.target
    served, name = target.served, new["metadata"]["name"]
    key = served.key(target.namespace, name)
    value = pack(served.resource, new)
    if pending.options.dry_run:
        if pending.old is not None:
            return Entry(key, value, pending.old.revision)
        # A dry run of a create raises the errors that the commit would raise.
        if target.namespace:
            await require_namespace(api, target.namespace, f'{served.resource.id} "{name}"')
        if await api.store_of(served).get(key) is not None:
            raise _exists(served, name)
        return Entry(key, value, ABSENT)
    if pending.old is not None:
        revision = await _replace(api.store_of(served), key, pending.old, new, value)
    else:
        revision = await _insert(api, served, key, value)
    return Entry(key, value, revision)


async def _replace(store: Store, key: Key, old: Entry, new: Object, value: bytes) -> int:
    # Without finalizers, an object that is marked for deletion is removed; a namespace is emptied first.
    if is_finalized(new) and key.resource != "namespaces":
        return await store.commit([Delete(key, old.revision)])
    return await store.commit([Put(key, value, old.revision)])


async def _insert(api: Api, served: ServedKind, key: Key, value: bytes) -> int:
    """Create an object; the commit checks the revision of the namespace, so that no object enters a
    terminating namespace."""

    async def insert() -> int:
        checks = []
        if key.namespace:
            # The cached revision may be outdated: the check in the commit finds out.
            revision = api.namespace_revisions.get(key.namespace)
            if not revision:
                revision = await require_namespace(api, key.namespace, f'{served.resource.id} "{key.name}"')
            checks = [Check(Key("namespaces", "", key.namespace), revision)]
        try:
            return await api.store_of(served).commit([Put(key, value, ABSENT)], checks=checks)
        except RevisionConflict as conflict:
            if conflict.key == key:
                raise _exists(served, key.name) from conflict
            # The namespace changed since the cached revision: read the namespace again.
            api.namespace_revisions.pop(key.namespace, None)
            raise

    return await api.write_locks.retry(
        insert,
        lambda: Unavailable(
            f'namespaces "{key.namespace}" changed during every attempt', fix="retry the request"
        ),
    )


def _exists(served: ServedKind, name: str) -> Exists:
    return Exists(f'{served.resource.id} "{name}" already exists')


async def require_namespace(api: Api, name: str, new_object_name: str) -> int:
    """Return the revision of a namespace that accepts new objects; raise NotFound or Denied otherwise.

    `new_object_name` is the object to create, for messages.
    """
    entry = await api.store.get(Key("namespaces", "", name))
    if entry is None:
        missing = NotFound(
            f'namespaces "{name}" not found',
            fix=f"apply {{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}, or use another namespace",
        )
        missing.object_kind, missing.object_name = "namespaces", name
        raise missing
    if unpack(entry.value, entry.revision)["metadata"].get("deletionTimestamp"):
        # Clients read the cause: controllers of Kubernetes stop creating objects, instead of reporting an error.
        cause = Cause("metadata.namespace", f"namespace {name} is being terminated", NAMESPACE_TERMINATING)
        raise Denied(
            f"{new_object_name} is forbidden: "
            f'unable to create new content in namespace "{name}" because it is being terminated',
            fix="use another namespace",
            causes=[cause],
        )
    api.namespace_revisions[name] = entry.revision
    return entry.revision


def _answer(api: Api, call: Call, entry: Entry, status: int, warnings: tuple[str, ...]) -> Reply:
    if parse_accept(call.accept).is_plain_json:
        body = splice_revision(entry.value, call.target.served.revision_offset, entry.revision)
        return Reply(body, status, warnings=warnings)
    reply = represent(api, call, entry)
    return Reply(reply.body, status, reply.content_type, warnings)
