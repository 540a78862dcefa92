"""Build the writes of controllers: new objects, and changes of status, spec or metadata.

A write that changes an object expects the revision at which the controller read the object. A concurrent
write is therefore never lost: the commit conflicts.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from lattice.kinds.meta.base import Kind, OwnerReference, Part
from lattice.kinds.meta.json_body import encode
from lattice.store.protocol import ABSENT, Entry, Key, Put

# A function from the stored metadata to the metadata to write.
MetadataChange = Callable[[dict[str, Any]], dict[str, Any]]


class _Stored(msgspec.Struct):
    """A stored object with undecoded fields: a write decodes only the fields that change."""

    api_version: msgspec.Raw = msgspec.field(name="apiVersion")
    kind: msgspec.Raw
    metadata: msgspec.Raw
    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Stored).decode
_encoder = msgspec.json.Encoder()


def key_of(obj: Kind) -> Key:
    return Key(obj.resource.id, obj.metadata.namespace, obj.metadata.name)


def put_new(obj: Kind, *, uid: str, now: str) -> Put:
    """Return the write that creates an object under a new identity; the commit conflicts if the object
    exists."""
    # The identity comes from the controller; fields that the store or a deletion sets start empty.
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
    """Return the write that replaces the status; `metadata`, if given, changes the metadata in the same
    write."""
    stored = _decode(entry.value)
    stored.status = _raw(status)
    if metadata is not None:
        stored.metadata = _raw(metadata(msgspec.json.decode(stored.metadata)))
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_spec(
    entry: Entry, spec: Part, status: Part | None = None, metadata: MetadataChange | None = None
) -> Put:
    """Return the write that replaces the spec and raises the generation; `status` and `metadata`, if given,
    change in the same write."""
    stored = _decode(entry.value)
    present = msgspec.json.decode(stored.metadata)
    changed = present if metadata is None else metadata(present)
    # Like an update through the API: observers compare the generation to see whether the spec changed.
    stored.metadata = _raw(changed | {"generation": changed.get("generation", 1) + 1})
    stored.spec = _raw(spec)
    if status is not None:
        stored.status = _raw(status)
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_metadata(entry: Entry, change: MetadataChange) -> Put:
    """Return the write that changes the metadata only."""
    stored = _decode(entry.value)
    stored.metadata = _raw(change(msgspec.json.decode(stored.metadata)))
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def _raw(part: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(part))


def owner_reference(owner: Kind) -> OwnerReference:
    """A controller reference to the owner: the garbage collector deletes the dependent object with the
    owner."""
    resource, metadata = owner.resource, owner.metadata
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
