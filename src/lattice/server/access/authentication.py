"""Who is asking? By client certificate (CN user, O groups) or bearer token; impersonation is refused, never ignored.

The page keeps its bearer token in a cookie. Browsers send that along with whatever any site makes them send, so it counts only with
a header that other sites cannot make them send.
"""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lattice.clock import Clock, format_timestamp
from lattice.errors import Denied, UnknownUser
from lattice.kinds.meta.stored_encoding import Object, unpack
from lattice.server.requests.call import User
from lattice.store.protocol import Entry, Key, Store

AUTHENTICATED_GROUP = "system:authenticated"
TOKEN_NAMESPACE = "lattice-system"  # noqa: S105 - where they are kept
TOKEN_TYPE = "lattice.dev/token"  # noqa: S105 - the type of the secret, not the secret
TOKEN_PREFIX = "lat-"  # noqa: S105
TOKEN_CACHE_TTL_S = 5.0  # seconds a good token is not looked up again: how long a revoked one may live on
MAX_CACHED_TOKENS = 1024
SESSION_COOKIE = "__Host-lattice"  # this prefix: browsers take it only from this very host, and only over TLS
PAGE_HEADER = "X-Lattice-Page"


def user_of_certificate(peer: Mapping[str, Any] | None) -> User | None:
    """The user a verified client certificate names; `peer` is what ssl says of it."""
    if not peer:
        return None
    pairs = [pair for attributes in peer.get("subject", ()) for pair in attributes]
    name = next((value for key, value in pairs if key == "commonName"), "")
    if not name:
        raise UnknownUser(
            "the client certificate names no user", fix="use one whose subject has a common name (CN)"
        )
    groups = {value for key, value in pairs if key == "organizationName"}
    return User(name, frozenset(groups | {AUTHENTICATED_GROUP}))


def new_token() -> tuple[str, str]:
    """A bearer token and the name of the secret that remembers it."""
    identity = secrets.token_hex(6)
    return f"{TOKEN_PREFIX}{identity}.{secrets.token_urlsafe(32)}", f"token-{identity}"


def token_secret(token: str, user: str, groups: Iterable[str], expires: str = "") -> Object:
    """The Secret that lets a token in: only a digest of it is stored. `expires`: as in timestamps of the API; never, if empty."""
    name = secret_name(token)
    data = {"sha256": _digest(token), "user": user, "groups": ",".join(groups)} | (
        {"expires": expires} if expires else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": TOKEN_NAMESPACE},
        "type": TOKEN_TYPE,
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


def secret_name(token: str) -> str:
    return f"token-{token.removeprefix(TOKEN_PREFIX).partition('.')[0]}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class TokenAuthenticator:
    """Bearer tokens, each kept as a Secret in lattice-system: deleting it revokes the token."""

    store: Store
    clock: Clock
    _cache: dict[str, tuple[float, User]] = field(default_factory=dict)

    async def user_of_token(self, token: str) -> User:
        digest = _digest(token)
        known = self._cache.get(digest)
        if known and known[0] > self.clock.monotonic():
            return known[1]
        self._cache.pop(digest, None)
        user = await self._look_up(token, digest)
        if len(self._cache) >= MAX_CACHED_TOKENS:
            self._cache.clear()
        self._cache[digest] = (self.clock.monotonic() + TOKEN_CACHE_TTL_S, user)
        return user

    def invalidate(self, token: str) -> None:
        """Looked up again when it comes next."""
        self._cache.pop(_digest(token), None)

    async def _look_up(self, token: str, digest: str) -> User:
        identity = token.removeprefix(TOKEN_PREFIX).partition(".")[0]
        entry = None
        if token.startswith(TOKEN_PREFIX) and identity.isalnum() and identity.isascii():
            entry = await self.store.get(Key("secrets", TOKEN_NAMESPACE, f"token-{identity}"))
        data = token_data(entry)
        if not hmac.compare_digest(data.get("sha256", ""), digest):
            raise UnknownUser(
                "Unauthorized: the bearer token is not known",
                fix="get a new one: lattice kubeconfig --user NAME --group GROUP --token",
            )
        if is_expired(data, self.clock.now()):
            raise UnknownUser(
                f"Unauthorized: the bearer token expired at {data['expires']}", fix="sign in again"
            )
        groups = {group for group in data.get("groups", "").split(",") if group}
        return User(data.get("user", ""), frozenset(groups | {AUTHENTICATED_GROUP}))


def token_data(entry: Entry | None) -> dict[str, str]:
    """What a token's secret says; nothing if it is none, or damaged."""
    secret = unpack(entry.value, entry.revision) if entry else {}
    if secret.get("type") != TOKEN_TYPE:
        return {}
    try:
        return {name: b64decode(value).decode() for name, value in secret.get("data", {}).items()}
    except ValueError:
        return {}


def is_expired(data: Mapping[str, str], now: datetime) -> bool:
    """A token without an end never is; the end of one that cannot be read was long ago."""
    expires = data.get("expires", "")
    return bool(expires) and expires <= format_timestamp(now)


async def authenticate(
    tokens: TokenAuthenticator, headers: Mapping[str, str], peer: Mapping[str, Any] | None
) -> User:
    """The user, by certificate first; no credentials and unknown ones are refused alike."""
    if any(name.lower().startswith("impersonate-") for name in headers):
        raise Denied(
            "impersonation is not supported",
            where="Impersonate-User",
            fix="ask for credentials of your own; leave --as out",
        )
    user = user_of_certificate(peer)
    if user is not None:
        return user
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return await tokens.user_of_token(token.strip())
    if headers.get(PAGE_HEADER) == "1" and (kept := session_cookie(headers)):
        return await tokens.user_of_token(kept)
    raise UnknownUser(
        "Unauthorized: no credentials",
        fix="use a client certificate or a bearer token; `lattice kubeconfig` makes both",
    )


def session_cookie(headers: Mapping[str, str]) -> str:
    """The token that the page keeps, if any."""
    for part in headers.get("Cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == SESSION_COOKIE:
            return value
    return ""
