"""A request and its reply as plain values, so that the verbs use no HTTP library and the simulator can call
them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from lattice.server.requests.catalog import ServedKind

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with its groups."""

    name: str
    groups: frozenset[str] = frozenset()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request path names: a kind, and optionally a namespace, an object and a subresource."""

    served: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One authorized API request, as the verbs receive the request."""

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
    """The reply to a request. `body` is complete, or a stream of pieces for long lists and watches."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    content_type: str = JSON
    warnings: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    # The stream may be silent for hours: the server must check whether the client is still connected.
    is_idle_stream: bool = False
