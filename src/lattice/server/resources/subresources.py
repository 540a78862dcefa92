"""The subresources /scale, which reads and writes the number of replicas, /retry of a workload and /finalize of a
namespace."""

from dataclasses import replace
from typing import Any

from lattice.errors import Cause, Conflict, Invalid, Malformed, UnsupportedMediaType
from lattice.kinds.meta.base import Column, Resource
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.meta.stored_encoding import Object, pack, splice_revision, unpack
from lattice.lifecycle.retry import with_retry_request
from lattice.server.apply.patch import strategic_merge_patch
from lattice.server.requests.call import JSON, Call, Reply
from lattice.server.requests.options import write_options
from lattice.server.resources import admission
from lattice.server.resources.api import Api
from lattice.server.resources.negotiation import parse_accept, partial_metadata, table_options, yaml_of
from lattice.server.resources.table_rows import table
from lattice.server.resources.verbs import (
    PATCH_FUNCTIONS,
    get_existing,
    method_not_allowed,
    read_body,
    write_until_won,
)
from lattice.server.resources.write import PendingWrite, write
from lattice.store.protocol import Entry, Put

SCALE_RESOURCE = Resource(
    "Scale",
    "scales",
    "autoscaling",
    "v1",
    columns=(
        Column("Desired", ".spec.replicas", "integer", description="Number of replicas that the spec wants."),
        Column("Available", ".status.replicas", "integer", description="Number of existing replicas."),
    ),
)


async def get_scale(api: Api, call: Call) -> Reply:
    """Answer GET on /scale."""
    entry = await get_existing(api, call)
    return _answer_scale(api, call, _scale(call, unpack(entry.value, entry.revision)))


async def put_scale(api: Api, call: Call) -> Reply:
    """Answer PUT and PATCH on /scale: set spec.replicas of the object and return the Scale that this request
    wrote."""
    options_kind = "UpdateOptions" if call.method == "PUT" else "PatchOptions"
    options = write_options(call.query, options_kind, call.user_agent)

    async def scale_current() -> Reply:
        old = await get_existing(api, call)
        requested = _requested_scale(call, old)
        expected_revision = (requested.get("metadata") or {}).get("resourceVersion")
        if expected_revision and expected_revision != str(old.revision):
            raise admission.stale_object_error(call.target.served, call.target.name)
        count = _requested_count(requested)
        scale_path = call.target.served.resource.scale_path.split(".")
        new = _set_path(unpack(old.value, old.revision), scale_path, count)
        # JSON, because the reply is read below and rewritten as a Scale.
        return await write(api, PendingWrite(replace(call, accept=JSON), options, old, new))

    written = await write_until_won(api, call, scale_current)
    assert isinstance(written.body, bytes)  # noqa: S101 - one object is no stream
    # From the written object: another read could show the number of a concurrent request (I-01).
    reply = _answer_scale(api, call, _scale(call, parse_json(written.body).value))
    return replace(reply, warnings=written.warnings)


def _requested_scale(call: Call, old: Entry) -> Object:
    if call.method == "PUT":
        requested, _ = read_body(call)
    else:
        media_type = call.content_type.partition(";")[0].strip()
        change = PATCH_FUNCTIONS.get(media_type)
        if change is None or change is strategic_merge_patch:
            raise UnsupportedMediaType(
                f"the scale subresource accepts a merge patch or a JSON patch, not {media_type}",
                fix="set Content-Type: application/merge-patch+json",
            )
        requested = change(_scale(call, unpack(old.value, old.revision)), parse_json(call.body).value)
    if not isinstance(requested, dict) or not isinstance(requested.get("metadata") or {}, dict):
        raise Malformed("the body must be a Scale object")
    # Raise Malformed for a body that names another kind: a LatticeService read as a Scale would say 0.
    kind, api_version = requested.get("kind") or "Scale", requested.get("apiVersion") or "autoscaling/v1"
    if (kind, api_version) != ("Scale", "autoscaling/v1"):
        raise Malformed(
            f"{kind} of {api_version} cannot be handled as a Scale: the scale subresource accepts kind Scale of"
            " autoscaling/v1 only",
            where="kind",
            fix='send {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": N}}',
        )
    name = (requested.get("metadata") or {}).get("name")
    if name and name != call.target.name:
        raise Malformed(
            f"the name of the object ({name}) does not match the name on the URL ({call.target.name})",
            where="metadata.name",
            fix="use the same name",
        )
    return requested


def _requested_count(requested: Object) -> int:
    spec = requested.get("spec")
    if not isinstance(spec, dict):
        raise Malformed("a Scale needs a spec", where="spec", fix='send {"spec": {"replicas": N}}')
    # Go clients omit a zero.
    count = spec.get("replicas", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        problem = f"Invalid value: {count}: must be a whole number, 0 or more"
        raise Invalid("is invalid", causes=[Cause("spec.replicas", problem)])
    return count


def _answer_scale(api: Api, call: Call, scale: Object) -> Reply:
    """Return a Scale in the representation that the call requests."""
    representation = parse_accept(call.accept)
    if representation.kind == "table":
        options = replace(table_options(api, call), resource=SCALE_RESOURCE)
        revision = {"resourceVersion": scale["metadata"].get("resourceVersion", "")}
        return Reply(encode(table(options, [scale], revision)))
    if representation.kind == "partial":
        return Reply(encode(partial_metadata(scale, representation.version)))
    if representation.kind == "yaml":
        return Reply(yaml_of(scale), content_type=representation.content_type)
    return Reply(encode(scale))


def _set_path(obj: Object, path: list[str], value: int) -> Object:
    name, *remaining = path
    field_value: Any = value if not remaining else _set_path(obj.get(name) or {}, remaining, value)
    return {**obj, name: field_value}


def _scale(call: Call, obj: Object) -> Object:
    metadata = obj["metadata"]
    replicas: Any = obj
    for part in call.target.served.resource.scale_path.split("."):
        replicas = replicas.get(part) if isinstance(replicas, dict) else None
    scale_metadata = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if name in metadata
    }
    # Without a stated number, the number that the kind runs by default is the effective number.
    if replicas is None:
        replicas = call.target.served.resource.scale_default
    running = (obj.get("status") or {}).get("replicas", 0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": scale_metadata,
        "spec": {"replicas": replicas},
        "status": {"replicas": running},
    }


async def retry(api: Api, call: Call) -> Reply:
    """Answer POST on /retry: add a retry request to the metadata, which the leader acts on and removes."""
    if call.method != "POST":
        raise method_not_allowed(call)
    options = write_options(call.query, "CreateOptions", call.user_agent)
    served = call.target.served

    async def request_retry() -> Reply:
        entry = await get_existing(api, call)
        obj = unpack(entry.value, entry.revision)
        if obj["metadata"].get("deletionTimestamp"):
            raise Conflict(
                f'{served.resource.id} "{call.target.name}" is being deleted',
                fix="create the object again after the deletion",
            )
        if (obj.get("spec") or {}).get("desiredState", "Running") != "Running":
            problem = f'{served.resource.id} "{call.target.name}" has desiredState Stopped: there is nothing to restart'
            raise Conflict(problem, fix="set spec.desiredState to Running first")
        value = pack(served.resource, {**obj, "metadata": with_retry_request(obj["metadata"], api.now())})
        if options.dry_run:
            return Reply(splice_revision(value, served.revision_offset, entry.revision))
        revision = await api.store.commit([Put(entry.key, value, entry.revision)])
        return Reply(splice_revision(value, served.revision_offset, revision))

    return await write_until_won(api, call, request_retry)


async def finalize_namespace(api: Api, call: Call) -> Reply:
    """Answer PUT on /finalize of a namespace: replace spec.finalizers, which no other write changes."""
    options = write_options(call.query, "UpdateOptions", call.user_agent)
    target = call.target
    parsed, duplicates = read_body(call)
    admission.require_name(parsed, target.name)
    body = admission.validate_identity(target.served, parsed, target.namespace, target.name)

    async def replace_finalizers() -> Reply:
        old = await get_existing(api, call)
        expected_revision = body["metadata"].get("resourceVersion")
        if expected_revision and expected_revision != str(old.revision):
            raise admission.stale_object_error(target.served, target.name)
        new = {**unpack(old.value, old.revision), "spec": body.get("spec") or {}}
        return await write(api, PendingWrite(call, options, old, new, duplicates=duplicates))

    return await write_until_won(api, call, replace_finalizers)
