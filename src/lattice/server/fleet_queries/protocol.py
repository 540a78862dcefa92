"""What the server and the process that answers about the fleet say to one another, and how it is framed."""

from typing import Protocol

import msgspec

from lattice.store.protocol import Key

LENGTH_PREFIX_BYTES = 4  # bytes that say how long a message is


class ObjectRow(msgspec.Struct, array_like=True, gc=False):
    """An object as it was written at a revision; no value: it is gone."""

    key: Key
    revision: int
    value: bytes | None


class Load(msgspec.Struct, tag=True):
    """Objects to take over. `anew`: forget all that came before."""

    rows: list[ObjectRow]
    anew: bool = False


class QueryRequest(msgspec.Struct, tag=True):
    """A question about what was loaded, which is as of `revision`. `most`: seconds that a search may be told to take."""

    ask: str
    body: bytes
    revision: int
    user: str
    most: float


class PlannedWrite(msgspec.Struct, array_like=True, gc=False):
    """An object as a plan would have it, in place of what was at a revision (0: nothing). `home`: of its namespace, where it is new."""

    key: Key
    value: bytes
    expect: int
    namespace_revision: int = 0
    is_changed: bool = True


class QueryResult(msgspec.Struct):
    """What to answer over HTTP; `broken`: something went wrong that nobody foresaw, and where."""

    status: int
    body: bytes
    broken: str = ""
    writes: list[PlannedWrite] = []  # of a plan that is to be applied


class Reader(Protocol):
    def read(self, count: int, /) -> bytes: ...


_encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Load | QueryRequest).decode
decode_result = msgspec.msgpack.Decoder(QueryResult).decode


def encode_frame(message: Load | QueryRequest | QueryResult) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(LENGTH_PREFIX_BYTES, "big") + body


def read_frame(source: Reader) -> bytes | None:
    """The next message; None at the end."""
    head = source.read(LENGTH_PREFIX_BYTES)
    if len(head) < LENGTH_PREFIX_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = source.read(length)
    return body if len(body) == length else None
