"""How controllers write objects: made new, or with another status, spec or metadata than was read, and only if it is still that one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lattice.kinds.meta.base import Condition, Kind, OwnerReference, Part
from lattice.kinds.meta.json_body import encode
from lattice.store.protocol import ABSENT, Entry, Key, Put

MetadataChange = Callable[[dict[str, Any]], dict[str, Any]]  # of stored metadata


class _Stored(msgspec.Struct):
    """An object whose parts are left as they are written: what nobody changes need not be read."""

    api_version: msgspec.Raw = msgspec.field(name="apiVersion")
    kind: msgspec.Raw
    metadata: msgspec.Raw
    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Stored).decode
_encoder = msgspec.json.Encoder()


def key_of(obj: Kind) -> Key:
    return Key(obj.resource.id, obj.metadata.namespace, obj.metadata.name)


def path_of(obj: Kind) -> str:
    """As in copies and as keys of controllers: `namespace/name`, `/name` without a namespace."""
    return f"{obj.metadata.namespace}/{obj.metadata.name}"


def put_new(obj: Kind, *, uid: str, now: str) -> Put:
    """A new object, which must not be there yet: its identity is ours to give."""
    metadata = msgspec.structs.replace(
        obj.metadata,
        uid=uid,
        creation_timestamp=now,
        generation=1,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
        resource_version="",
        self_link="",
    )
    return Put(key_of(obj), encode(msgspec.structs.replace(obj, metadata=metadata)), ABSENT)


def with_status(entry: Entry, status: Part, metadata: MetadataChange | None = None) -> Put:
    """`metadata`, if given, changes in the same write."""
    stored = _decode(entry.value)
    stored.status = _raw(status)
    if metadata is not None:
        stored.metadata = _raw(metadata(msgspec.json.decode(stored.metadata)))
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_spec(entry: Entry, spec: Part, status: Part | None = None) -> Put:
    """Another spec is another generation; `status`, if given, changes in the same write."""
    stored = _decode(entry.value)
    metadata = msgspec.json.decode(stored.metadata)
    stored.metadata = _raw(metadata | {"generation": metadata.get("generation", 1) + 1})
    stored.spec = _raw(spec)
    if status is not None:
        stored.status = _raw(status)
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_metadata(entry: Entry, change: MetadataChange) -> Put:
    stored = _decode(entry.value)
    stored.metadata = _raw(change(msgspec.json.decode(stored.metadata)))
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def _raw(part: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(part))


def owner_reference(owner: Kind) -> OwnerReference:
    """What it owns goes with it."""
    resource, metadata = owner.resource, owner.metadata
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def merge_conditions(
    before: Sequence[Condition], found: Iterable[Condition], now: str
) -> tuple[Condition, ...]:
    """What is found now in the place of what was said of the same type before, sorted; the time is that of the last change of status."""
    known = {each.type: each for each in before}
    for each in found:
        old = known.get(each.type)
        since = old.last_transition_time if old is not None and old.status == each.status else now
        known[each.type] = msgspec.structs.replace(each, last_transition_time=since)
    return tuple(known[name] for name in sorted(known))
