"""How an object becomes the bytes a store keeps, and how a reader gets its revision back into them.

The revision of an object is the store's to give, so it is not in the bytes. Every value begins with the same head for
its kind, `{"apiVersion":…,"kind":…,"metadata":{`, so that putting the revision in is one splice, not a decode.
"""

from typing import Any

import msgspec

from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.json_body import decode_stored, encode

Object = dict[str, Any]


def value_prefix(resource: Resource) -> bytes:
    return encode({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}})[:-2]


def pack(resource: Resource, obj: Object) -> bytes:
    """The stored form. metadata must hold at least a name."""
    metadata = {
        name: value for name, value in obj["metadata"].items() if name not in {"resourceVersion", "selfLink"}
    }
    rest = {name: value for name, value in obj.items() if name not in {"apiVersion", "kind", "metadata"}}
    return encode({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **rest})


def unpack(value: bytes, revision: int) -> Object:
    obj: Object = decode_stored(value)
    obj["metadata"]["resourceVersion"] = str(revision)
    return obj


def splice_revision(value: bytes, at: int, revision: int) -> bytes:
    """The JSON of an object at its revision; `at` is the length of its kind's head."""
    return b'%b"resourceVersion":"%d",%b' % (value[:at], revision, value[at:])


class _Metadata(msgspec.Struct, gc=False):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct, gc=False):
    metadata: _Metadata


_labelled = msgspec.json.Decoder(_Labelled).decode


def labels_of(value: bytes) -> dict[str, str]:
    """Only the labels, without decoding the rest."""
    return _labelled(value).metadata.labels
