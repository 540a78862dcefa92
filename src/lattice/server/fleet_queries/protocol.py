"""What the server and the process that answers about the fleet say to one another, and how it is framed."""

from typing import Protocol

import msgspec

from lattice.store.protocol import Key

HEAD = 4  # bytes that say how long a message is


class Row(msgspec.Struct, array_like=True, gc=False):
    """An object as it was written at a revision; no value: it is gone."""

    key: Key
    revision: int
    value: bytes | None


class Load(msgspec.Struct, tag=True):
    """Objects to take over. `anew`: forget all that came before."""

    rows: list[Row]
    anew: bool = False


class Ask(msgspec.Struct, tag=True):
    """A question about what was loaded, which is as of `revision`. `most`: seconds that a search may be told to take."""

    ask: str
    body: bytes
    revision: int
    user: str
    most: float


class Written(msgspec.Struct, array_like=True, gc=False):
    """An object as a plan would have it, in place of what was at a revision (0: nothing). `home`: of its namespace, where it is new."""

    key: Key
    value: bytes
    expect: int
    home: int = 0
    is_changed: bool = True


class Told(msgspec.Struct):
    """What to answer over HTTP; `broken`: something went wrong that nobody foresaw, and where."""

    status: int
    body: bytes
    broken: str = ""
    writes: list[Written] = []  # of a plan that is to be applied


class Reader(Protocol):
    def read(self, count: int, /) -> bytes: ...


_encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Load | Ask).decode
decode_told = msgspec.msgpack.Decoder(Told).decode


def framed(message: Load | Ask | Told) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(HEAD, "big") + body


def read_frame(source: Reader) -> bytes | None:
    """The next message; None at the end."""
    head = source.read(HEAD)
    if len(head) < HEAD:
        return None
    length = int.from_bytes(head, "big")
    body = source.read(length)
    return body if len(body) == length else None
