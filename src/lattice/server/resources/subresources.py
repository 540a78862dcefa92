"""The /scale part of an object: one number, moved without touching the rest."""

import contextlib
from dataclasses import replace
from typing import Any

from lattice.errors import Cause, Invalid, Malformed, Unsupported
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.meta.stored import Object, unpack
from lattice.server.resources import admission
from lattice.server.resources.api import Api
from lattice.server.requests.call import JSON, Call, Reply
from lattice.server.requests.options import write_options
from lattice.server.apply.patch import strategic_merge_patch
from lattice.server.resources.verbs import PATCHES, existing, read_body
from lattice.server.resources.write import ATTEMPTS, Draft, write
from lattice.store.protocol import Clash, Entry


async def get_scale(api: Api, call: Call) -> Reply:
    found = await existing(api, call)
    return Reply(encode(_scale(call, unpack(found.value, found.revision))))


async def put_scale(api: Api, call: Call) -> Reply:
    """PUT and PATCH alike: what counts in the end is spec.replicas. Told is what was written, whoever wrote it since."""
    options = write_options(
        call.query, "UpdateOptions" if call.method == "PUT" else "PatchOptions", call.agent
    )
    for _ in range(ATTEMPTS):
        old = await existing(api, call)
        wanted = _wanted(call, old)
        given = (wanted.get("metadata") or {}).get("resourceVersion")
        if given and given != str(old.revision):
            raise admission.stale(call.target.served, call.target.name)
        new = _moved(call, unpack(old.value, old.revision), wanted)
        with contextlib.suppress(Clash):
            written = await write(api, Draft(replace(call, accept=JSON), options, old, new))
            assert isinstance(written.body, bytes)  # noqa: S101 - one object is no stream
            return replace(written, body=encode(_scale(call, parse_json(written.body).value)))
    raise admission.stale(call.target.served, call.target.name)


def _wanted(call: Call, old: Entry) -> Object:
    if call.method == "PUT":
        wanted, _ = read_body(call)
    else:
        media = call.content_type.partition(";")[0].strip()
        change = PATCHES.get(media)
        if change is None or change is strategic_merge_patch:
            raise Unsupported(
                f"a scale takes a merge patch or a JSON patch, not {media}",
                fix="set Content-Type: application/merge-patch+json",
            )
        wanted = change(_scale(call, unpack(old.value, old.revision)), parse_json(call.body).value)
    if not isinstance(wanted, dict) or not isinstance(wanted.get("metadata") or {}, dict):
        raise Malformed("the body must be a Scale object")
    return wanted


def _moved(call: Call, obj: Object, wanted: Object) -> Object:
    spec = wanted.get("spec")
    if not isinstance(spec, dict):
        raise Malformed("a Scale needs a spec", where="spec", fix='send {"spec": {"replicas": N}}')
    count = spec.get("replicas", 0)  # Go clients leave a zero out
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise Invalid(
            "is invalid",
            causes=[Cause("spec.replicas", f"Invalid value: {count}: must be a whole number, 0 or more")],
        )
    return _replaced(obj, call.target.served.resource.scale.split("."), count)


def _replaced(obj: Object, path: list[str], value: int) -> Object:
    first, *rest = path
    inner: Any = value if not rest else _replaced(obj.get(first) or {}, rest, value)
    return {**obj, first: inner}


def _scale(call: Call, obj: Object) -> Object:
    metadata = obj["metadata"]
    wanted: Any = obj
    for part in call.target.served.resource.scale.split("."):
        wanted = wanted.get(part) if isinstance(wanted, dict) else None
    kept = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if name in metadata
    }
    running = (obj.get("status") or {}).get("replicas", 0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": wanted or 0},
        "status": {"replicas": running},
    }
