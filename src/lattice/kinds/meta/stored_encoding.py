"""The stored encoding of objects, and the insertion of revisions into stored bytes.

The store assigns the revision of an object, so the stored bytes have no revision. The stored bytes of all
objects of a kind begin with the same prefix, `{"apiVersion":…,"kind":…,"metadata":{`, so one splice inserts
the revision without a decode.
"""

from typing import Any

import msgspec

from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.json_body import decode_stored, encode

Object = dict[str, Any]


def value_prefix(resource: Resource) -> bytes:
    """The common prefix of all stored objects of the resource."""
    # Without the two closing braces.
    return encode({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}})[:-2]


def pack(resource: Resource, obj: Object) -> bytes:
    """The stored bytes of an object; its metadata must have at least a name."""
    metadata = {
        name: value for name, value in obj["metadata"].items() if name not in {"resourceVersion", "selfLink"}
    }
    content = {name: value for name, value in obj.items() if name not in {"apiVersion", "kind", "metadata"}}
    # The order of the first fields is part of the stored form (decision 0003).
    return encode(
        {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
    )


def unpack(value: bytes, revision: int) -> Object:
    """Decode a stored object and insert its revision; revision 0 stands for an object that was never
    stored."""
    obj: Object = decode_stored(value)
    if revision:
        obj["metadata"]["resourceVersion"] = str(revision)
    return obj


def splice_revision(value: bytes, at: int, revision: int) -> bytes:
    """The JSON of a stored object with its revision; `at` is the length of the prefix of its kind.

    Revision 0 stands for an object that was never stored, such as the answer to the dry run of a create: clients
    of Kubernetes read the absent resourceVersion as "would be created".
    """
    if not revision:
        return value
    # Metadata has at least a name, so a field always follows the comma.
    return b'%b"resourceVersion":"%d",%b' % (value[:at], revision, value[at:])


# Only the labels are decoded; msgspec skips all other fields.
class _Metadata(msgspec.Struct, gc=False):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct, gc=False):
    metadata: _Metadata


_labelled = msgspec.json.Decoder(_Labelled).decode


def labels_of(value: bytes) -> dict[str, str]:
    """The labels of a stored object, without a full decode."""
    return _labelled(value).metadata.labels
