"""A request and its answer as plain values, so that verbs know no HTTP library and a simulator can drive them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from lattice.server.requests.catalog import ServedKind

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: frozenset[str] = frozenset()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names: a kind, maybe a namespace, an object, and a part of it."""

    served: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    target: Target
    user: User
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    user_agent: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` is whole, or a stream of pieces: long lists and watches."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    content_type: str = JSON
    warnings: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    is_idle_stream: bool = (
        False  # a stream that may say nothing for hours: whether anybody still listens has to be looked at
    )
