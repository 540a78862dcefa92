"""The one road of every create and change: admit, complete, account for who wrote what, compare, commit."""

from dataclasses import dataclass

from lattice.errors import Cause, Denied, Exists, Invalid, LatticeError, NotFound
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
from lattice.store.protocol import ABSENT, Check, Delete, Entry, Key, Put, RevisionConflict

MAX_WRITE_ATTEMPTS = 5  # a change that lost a race is computed again on the newer object this often
MAX_GENERATE_NAME_CHARS = (
    58  # of a generated name, as in Kubernetes: with its suffix it still fits into a label
)


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write on its way: what is there, what is wanted, and under which options."""

    call: Call
    options: WriteOptions
    old: Entry | None
    new: Object
    operation: str = "Update"  # of the field manager
    duplicates: tuple[str, ...] = ()
    unknown_fields: tuple[str, ...] = ()  # fields an apply named that do not exist: always refused


async def write(api: Api, draft: PendingWrite) -> Reply:
    call, served = draft.call, draft.call.target.served
    status = call.target.subresource == "status"
    old = None if draft.old is None else unpack(draft.old.value, draft.old.revision)
    reject_owned_workload(call.user, served.resource, old, draft.new)
    reject_event_change(call.user, served.resource, old)
    admitted = _admit(draft, old, status)
    new = (
        new_object(admitted.obj, uid=api.new_uid(), now=api.now())
        if old is None
        else updated_object(old, admitted.obj, status=status)
    )
    new = admission.apply_kind_defaults(served, new, old)
    if old is None and not new["metadata"].get("name"):
        new["metadata"]["name"] = new["metadata"]["generateName"][:MAX_GENERATE_NAME_CHARS] + api.new_suffix()
    _track_managed_fields(api, draft, old, new)
    if old is not None and draft.old is not None and is_unchanged(old, new):
        return _answer(api, call, draft.old, 200, admitted.warnings)
    entry = await _commit(api, draft, new)
    return _answer(api, call, entry, 201 if old is None else 200, admitted.warnings)


def _admit(draft: PendingWrite, old: Object | None, status: bool) -> admission.AdmittedObject:
    served = draft.call.target.served
    new = draft.new
    if old is not None and status:
        new = {**old, "metadata": new["metadata"], "status": new.get("status") or {}}
    elif served.resource.has_status:
        kept = (old or {}).get("status")
        new = {name: value for name, value in new.items() if name != "status"} | (
            {"status": kept} if kept else {}
        )
    validation = draft.options.validation if draft.operation == "Update" else "Strict"
    try:
        admitted = admission.admit(served, new, validation, draft.duplicates)
    except LatticeError as error:
        raise _add_unknown_fields(draft, error) from error
    if draft.unknown_fields:
        raise _add_unknown_fields(draft, None)
    return admitted


def _add_unknown_fields(draft: PendingWrite, error: LatticeError | None) -> LatticeError:
    """An apply names fields that do not exist: all of them are told, together with everything else."""
    if error is not None and not draft.unknown_fields:
        return error
    return Invalid(
        "is invalid",
        causes=[*undeclared_field_causes(draft.unknown_fields), *(error.causes if error else ())],
    )


def undeclared_field_causes(paths: tuple[str, ...]) -> list[Cause]:
    return [Cause(path, "field not declared in schema") for path in paths]


def _track_managed_fields(api: Api, draft: PendingWrite, old: Object | None, new: Object) -> None:
    """managedFields: who wrote what."""
    target = draft.call.target
    if draft.operation == "Apply":
        return
    manager = FieldManager(
        draft.options.manager, "Update", target.served.resource.api_version, target.subresource
    )
    before, after = (old, new) if target.subresource else (old and _without_status(old), _without_status(new))
    entries = track_update(before, after, target.served.types, manager, api.now())
    new["metadata"] = {name: value for name, value in new["metadata"].items() if name != "managedFields"}
    if entries:
        new["metadata"]["managedFields"] = entries


def _without_status(obj: Object) -> Object:
    """Nobody owns, by writing the rest, what Lattice says of it."""
    return {name: value for name, value in obj.items() if name != "status"}


async def _commit(api: Api, draft: PendingWrite, new: Object) -> Entry:
    target = draft.call.target
    served, name = target.served, new["metadata"]["name"]
    key = served.key(target.namespace, name)
    value = pack(served.resource, new)
    if draft.options.dry_run:
        return await _dry_run(api, draft, Entry(key, value, draft.old.revision if draft.old else 0))
    if draft.old is not None:
        revision = await _replace(api, key, draft.old, new, value)
    else:
        revision = await _insert(api, served, key, value)
    return Entry(key, value, revision)


async def _dry_run(api: Api, draft: PendingWrite, entry: Entry) -> Entry:
    """A dry run refuses what the commit would refuse, and writes nothing."""
    if draft.old is None:
        if draft.call.target.namespace:
            await require_namespace(api, draft.call.target.namespace)
        if await api.store.get(entry.key) is not None:
            raise _exists(draft.call.target.served, entry.key.name)
    return entry


async def _replace(api: Api, key: Key, old: Entry, new: Object, value: bytes) -> int:
    if (
        is_finalized(new) and key.resource != "namespaces"
    ):  # its last finalizer went: so does it; a namespace is emptied first
        return await api.store.commit([Delete(key, old.revision)])
    return await api.store.commit([Put(key, value, old.revision)])


async def _insert(api: Api, served: ServedKind, key: Key, value: bytes) -> int:
    """Create, in a namespace that is there and stays: its revision is checked by the same commit."""
    for _ in range(MAX_WRITE_ATTEMPTS):
        checks = []
        if key.namespace:
            home = Key("namespaces", "", key.namespace)
            checks = [
                Check(
                    home,
                    api.namespace_revisions.get(key.namespace) or await require_namespace(api, key.namespace),
                )
            ]
        try:
            return await api.store.commit([Put(key, value, ABSENT)], checks=checks)
        except RevisionConflict as clash:
            if clash.key == key:
                raise _exists(served, key.name) from clash
            api.namespace_revisions.pop(key.namespace, None)
    raise Denied(f'namespaces "{key.namespace}" keeps changing', fix="try again")


def _exists(served: ServedKind, name: str) -> Exists:
    return Exists(f'{served.resource.id} "{name}" already exists')


async def require_namespace(api: Api, name: str) -> int:
    """The revision of a namespace that can take new objects."""
    entry = await api.store.get(Key("namespaces", "", name))
    if entry is None:
        raise NotFound(f'namespaces "{name}" not found', fix=f"create it: kubectl create namespace {name}")
    if unpack(entry.value, entry.revision)["metadata"].get("deletionTimestamp"):
        raise Denied(
            f'unable to create new content in namespace "{name}" because it is being terminated',
            fix="use another namespace",
        )
    api.namespace_revisions[name] = entry.revision
    return entry.revision


def _answer(api: Api, call: Call, entry: Entry, status: int, warnings: tuple[str, ...]) -> Reply:
    if parse_accept(call.accept).is_plain_json:
        return Reply(
            splice_revision(entry.value, call.target.served.revision_offset, entry.revision),
            status,
            warnings=warnings,
        )
    reply = represent(api, call, entry)
    return Reply(reply.body, status, reply.content_type, warnings)
