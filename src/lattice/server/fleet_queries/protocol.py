"""Messages between the server and the query process, and their framing on the pipes."""

from typing import Protocol

import msgspec

from lattice.store.protocol import Key

# A frame is the length of the message, big-endian, then the message in msgpack.
LENGTH_PREFIX_BYTES = 4


class ObjectRow(msgspec.Struct, array_like=True, gc=False):
    """The stored value of an object since the commit at `revision`; None if that commit deleted the object."""

    key: Key
    revision: int
    value: bytes | None


class Load(msgspec.Struct, tag=True):
    """Objects that the query process adds to its cache. `anew`: the query process drops the cache first."""

    rows: list[ObjectRow]
    anew: bool = False


class QueryRequest(msgspec.Struct, tag=True):
    """A fleet query against the cached objects, which are as of `revision`.

    `most` is the longest time limit in seconds that an optimise query may request.
    """

    ask: str
    body: bytes
    revision: int
    user: str
    most: float


class PlannedWrite(msgspec.Struct, array_like=True, gc=False):
    """A write of a plan: the new value of an object, and the revision `expect` that the write replaces; 0 for a
    new object.

    `namespace_revision` is the revision of the namespace of a new object, otherwise 0.
    """

    key: Key
    value: bytes
    expect: int
    namespace_revision: int = 0
    is_changed: bool = True


class QueryResult(msgspec.Struct):
    """The HTTP status and body of the answer; `broken` is the traceback of an unexpected exception."""

    status: int
    body: bytes
    broken: str = ""
    # Filled only for a plan that the server applies.
    writes: list[PlannedWrite] = []


class Reader(Protocol):
    def read(self, count: int, /) -> bytes: ...


_encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Load | QueryRequest).decode
decode_result = msgspec.msgpack.Decoder(QueryResult).decode


def encode_frame(message: Load | QueryRequest | QueryResult) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(LENGTH_PREFIX_BYTES, "big") + body


def read_frame(source: Reader) -> bytes | None:
    """Return the next message, or None at the end of the stream."""
    prefix = source.read(LENGTH_PREFIX_BYTES)
    if len(prefix) < LENGTH_PREFIX_BYTES:
        return None
    length = int.from_bytes(prefix, "big")
    body = source.read(length)
    return body if len(body) == length else None
