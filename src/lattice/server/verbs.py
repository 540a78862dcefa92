"""What the API can do to an object: get, create, update, patch, apply, delete. Functions over plain values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lattice.clock import Clock, stamp
from lattice.errors import Cause, Denied, Exists, Invalid, LatticeError, Malformed, NotAllowed, NotFound, Unsupported
from lattice.kinds import manifest
from lattice.kinds.body import parse_json
from lattice.kinds.lifecycle import FOREGROUND, ORPHAN, Object, born, doomed, is_gone, revised, same
from lattice.kinds.stored import pack, splice, unpack
from lattice.kinds.structural import Findings
from lattice.server import admission, protobuf
from lattice.server.apply import Manager, server_side_apply, track_update
from lattice.server.authority import refuse_owned
from lattice.server.call import Call, Reply
from lattice.server.catalog import Catalog, Served
from lattice.server.frames import Frames
from lattice.server.options import DeleteOptions, WriteOptions, delete_options, write_options
from lattice.server.patch import json_patch, merge_patch, strategic_merge_patch
from lattice.server.problem import encode, success
from lattice.server.represent import form_of, represent
from lattice.store.protocol import ABSENT, Check, Clash, Delete, Entry, Key, Put, Store

ATTEMPTS = 5  # a patch that lost a race is computed again on the newer object this often
APPLY = "application/apply-patch+yaml"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/json-patch+json": json_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
}


@dataclass
class Api:
    """What verbs need of the world."""

    store: Store
    catalog: Catalog
    clock: Clock
    new_uid: Callable[[], str]
    new_suffix: Callable[[], str]
    fixed: Mapping[str, Store] = field(default_factory=dict)  # resource -> store of what is served but never written here
    frames: Frames = field(default_factory=Frames)
    namespaces: dict[str, int] = field(default_factory=dict)  # name -> revision last seen; the commit checks it

    def store_of(self, served: Served) -> Store:
        return self.fixed.get(served.resource.id, self.store)

    def now(self) -> str:
        return stamp(self.clock.now())


@dataclass(frozen=True, slots=True)
class Draft:
    """A write on its way: what is there, what is wanted, and under which options."""

    call: Call
    options: WriteOptions
    old: Entry | None
    new: Object
    operation: str = "Update"  # of the field manager
    duplicates: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # fields an apply named that do not exist: always refused


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
        raise Malformed("resourceVersion should not be set on objects to be created", where="metadata.resourceVersion", fix="leave it out")
    return await write(api, Draft(call, options, None, body, duplicates=duplicates))


async def update(api: Api, call: Call) -> Reply:
    options = write_options(call.query, "UpdateOptions", call.agent)
    parsed, duplicates = read_body(call)
    target = call.target
    body = admission.demand_identity(target.served, parsed, target.namespace, target.name)
    old = await existing(api, call)
    given = body["metadata"].get("resourceVersion")
    if not given and target.served.resource.group:
        cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
        raise Invalid("is invalid", fix="read the object, change it, and send it with its resourceVersion", causes=[cause])
    if given and given != str(old.revision):
        raise admission.stale(target.served, target.name)
    return await write(api, Draft(call, options, old, body, duplicates=duplicates))


async def patch(api: Api, call: Call) -> Reply:
    kind = call.content_type.partition(";")[0].strip()
    if kind == APPLY:
        return await apply(api, call)
    change = PATCHES.get(kind)
    resource = call.target.served.resource
    if change is None or (change is strategic_merge_patch and resource.group):
        known = ", ".join([*PATCHES][: 3 if not resource.group else 2] + [APPLY])
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
        raise Invalid(f"PatchOptions.meta.k8s.io is invalid: {cause}", causes=[cause])
    options = write_options(call.query, "PatchOptions", call.agent)
    target = call.target
    applied, duplicates = read_applied(call)
    applied = admission.demand_identity(target.served, applied, target.namespace, target.name)
    applied, unknown = known_fields(call, applied)
    manager = Manager(options.manager, "Apply", target.served.resource.api_version, target.subresource)
    for attempt in range(ATTEMPTS):
        old = await api.store.get(target.served.key(target.namespace, target.name))
        if old is None and (target.subresource or applied["metadata"].get("resourceVersion")):
            raise absent(target.served, target.name)
        live = None if old is None else unpack(old.value, old.revision)
        if live and applied["metadata"].get("resourceVersion") not in (None, "", str(old.revision if old else 0)):
            raise admission.stale(target.served, target.name)
        new = server_side_apply(live, applied, target.served.types, manager, force=options.force, now=api.now())
        try:
            return await write(api, Draft(call, options, old, new, "Apply", duplicates, unknown))
        except (Clash, Exists):
            if attempt == ATTEMPTS - 1:
                raise admission.stale(target.served, target.name) from None
    raise AssertionError("the last attempt returns or raises")


def read_applied(call: Call) -> tuple[Any, tuple[str, ...]]:
    """The body of an apply: YAML, of which JSON is a part."""
    if call.body.lstrip()[:1] == b"{":
        parsed = parse_json(call.body)
        return parsed.value, tuple(parsed.duplicates)
    documents = manifest.load(call.body, "body", lists=False)
    if len(documents) != 1:
        raise Malformed(f"the body holds {len(documents)} documents, an apply takes one")
    return documents[0].value, ()


def known_fields(call: Call, applied: Object) -> tuple[Object, tuple[str, ...]]:
    """What the applied object says, and which of its fields do not exist. Without /status, its status is not looked at."""
    if applied["metadata"].get("managedFields"):
        raise Malformed("metadata.managedFields must be nil", where="metadata.managedFields", fix="leave it out of what you apply")
    if not call.target.subresource:
        applied = {name: value for name, value in applied.items() if name != "status" or not call.target.served.resource.has_status}
    found = Findings()
    served = call.target.served
    kept: Object = served.walk({**applied, "metadata": {}}, "", found)
    wrong_shape = bool(found.causes)
    body = {name: applied[name] if wrong_shape else kept[name] for name in applied if name in kept}
    return {**body, "metadata": applied["metadata"]}, tuple(found.unknown)


async def write(api: Api, draft: Draft) -> Reply:
    """The one road of every create and change: admit, complete, account, compare, commit."""
    call, served = draft.call, draft.call.target.served
    status = call.target.subresource == "status"
    old = None if draft.old is None else unpack(draft.old.value, draft.old.revision)
    refuse_owned(call.user, served.resource, old, draft.new)
    admitted = _admit(draft, old, status)
    new = born(admitted.obj, uid=api.new_uid(), now=api.now()) if old is None else revised(old, admitted.obj, status=status)
    new = admission.complete(served, new, old)
    if old is None and not new["metadata"].get("name"):
        new["metadata"]["name"] = new["metadata"]["generateName"] + api.new_suffix()
    _account(api, draft, old, new)
    if old is not None and draft.old is not None and same(old, new):
        return _answer(api, call, draft.old, 200, admitted.warnings)
    entry = await _commit(api, draft, new)
    return _answer(api, call, entry, 201 if old is None else 200, admitted.warnings)


def _admit(draft: Draft, old: Object | None, status: bool) -> admission.Admitted:
    served = draft.call.target.served
    new = draft.new
    if old is not None and status:
        new = {**old, "metadata": new["metadata"], "status": new.get("status") or {}}
    elif served.resource.has_status:
        kept = (old or {}).get("status")
        new = {name: value for name, value in new.items() if name != "status"} | ({"status": kept} if kept else {})
    validation = draft.options.validation if draft.operation == "Update" else "Strict"
    try:
        admitted = admission.admit(served, new, validation, draft.duplicates)
    except LatticeError as error:
        raise _with_unknown(draft, error) from error
    if draft.unknown:
        raise _with_unknown(draft, None)
    return admitted


def _with_unknown(draft: Draft, error: LatticeError | None) -> LatticeError:
    """An apply names fields that do not exist: all of them are told, together with everything else."""
    if not draft.unknown:
        return error or AssertionError  # type: ignore[return-value]
    causes = [Cause(path, "field not declared in schema") for path in draft.unknown]
    return Invalid("is invalid", causes=[*causes, *(error.causes if error else ())])


def _account(api: Api, draft: Draft, old: Object | None, new: Object) -> None:
    """managedFields: who wrote what."""
    target = draft.call.target
    if draft.operation == "Apply":
        return
    manager = Manager(draft.options.manager, "Update", target.served.resource.api_version, target.subresource)
    entries = track_update(old, new, target.served.types, manager, api.now())
    new["metadata"] = {name: value for name, value in new["metadata"].items() if name != "managedFields"}
    if entries:
        new["metadata"]["managedFields"] = entries


async def _commit(api: Api, draft: Draft, new: Object) -> Entry:
    target = draft.call.target
    served, name = target.served, new["metadata"]["name"]
    key = served.key(target.namespace, name)
    value = pack(served.resource, new)
    if draft.options.dry_run:
        return await _rehearse(api, draft, Entry(key, value, draft.old.revision if draft.old else 0))
    if draft.old is not None:
        revision = await _replace(api, key, draft.old, new, value)
    else:
        revision = await _insert(api, served, key, value)
    return Entry(key, value, revision)


async def _rehearse(api: Api, draft: Draft, entry: Entry) -> Entry:
    """A dry run refuses what the commit would refuse, and writes nothing."""
    if draft.old is None:
        if draft.call.target.namespace:
            await demand_namespace(api, draft.call.target.namespace)
        if await api.store.get(entry.key) is not None:
            raise _exists(draft.call.target.served, entry.key.name)
    return entry


async def _replace(api: Api, key: Key, old: Entry, new: Object, value: bytes) -> int:
    if is_gone(new):  # its last finalizer went: so does it
        return await api.store.commit([Delete(key, old.revision)])
    return await api.store.commit([Put(key, value, old.revision)])


async def _insert(api: Api, served: Served, key: Key, value: bytes) -> int:
    """Create, in a namespace that is there and stays: its revision is checked by the same commit."""
    for _ in range(ATTEMPTS):
        checks = []
        if key.namespace:
            home = Key("namespaces", "", key.namespace)
            checks = [Check(home, api.namespaces.get(key.namespace) or await demand_namespace(api, key.namespace))]
        try:
            return await api.store.commit([Put(key, value, ABSENT)], checks=checks)
        except Clash as clash:
            if clash.key == key:
                raise _exists(served, key.name) from clash
            api.namespaces.pop(key.namespace, None)
    raise Denied(f'namespaces "{key.namespace}" keeps changing', fix="try again")


def _exists(served: Served, name: str) -> Exists:
    return Exists(f'{served.resource.id} "{name}" already exists')


async def demand_namespace(api: Api, name: str) -> int:
    """The revision of a namespace that can take new objects."""
    entry = await api.store.get(Key("namespaces", "", name))
    if entry is None:
        raise NotFound(f'namespaces "{name}" not found', fix=f"create it: kubectl create namespace {name}")
    if unpack(entry.value, entry.revision)["metadata"].get("deletionTimestamp"):
        raise Denied(f'unable to create new content in namespace "{name}" because it is being terminated', fix="use another namespace")
    api.namespaces[name] = entry.revision
    return entry.revision


def _answer(api: Api, call: Call, entry: Entry, status: int, warnings: tuple[str, ...]) -> Reply:
    if form_of(call.accept).plain:
        return Reply(splice(entry.value, call.target.served.head, entry.revision), status, warnings=warnings)
    reply = represent(api, call, entry)
    return Reply(reply.body, status, reply.content_type, warnings)


def read_body(call: Call) -> tuple[Any, tuple[str, ...]]:
    """The body as JSON values, and the paths of keys that it names twice."""
    kind = call.content_type.partition(";")[0].strip().lower()
    if not call.body:
        raise Malformed("the body is empty", fix=f"send a {call.target.served.resource.kind} object")
    if kind in {"", "application/json", "text/plain", "*/*"}:
        parsed = parse_json(call.body)
        return parsed.value, tuple(parsed.duplicates)
    if kind == "application/vnd.kubernetes.protobuf" and call.target.served.resource.group != "lattice.dev":
        return protobuf.decode(call.body), ()
    if kind in {"application/yaml", "application/x-yaml", "text/yaml"}:
        return read_applied(call)
    raise Unsupported(f"the body of the request was in an unknown format: {kind}", fix="send application/json")


async def delete(api: Api, call: Call) -> Reply:
    options = delete_options(call.query, read_delete_options(call))
    admission.refuse_permanent(call.target.served, call.target.name)
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
    if "protobuf" in call.content_type:
        return protobuf.decode(call.body)
    value = parse_json(call.body).value
    if not isinstance(value, dict):
        raise Malformed("the body of a delete must be DeleteOptions")
    return value


async def delete_entry(api: Api, call: Call, entry: Entry, options: DeleteOptions) -> Reply:
    served = call.target.served
    obj = unpack(entry.value, entry.revision)
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
    for wanted, found, what in ((options.uid, metadata["uid"], "UID"), (options.revision, metadata["resourceVersion"], "ResourceVersion")):
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
