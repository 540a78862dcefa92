"""Authentication by client certificate (CN user, O groups) or bearer token. The server rejects impersonation
headers.

The web page stores its bearer token in a cookie. A browser sends the cookie with requests of any site, so the
server accepts the cookie only together with `PAGE_HEADER`, a header that no foreign site can set.
"""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from lattice.clock import Clock
from lattice.errors import Denied, UnknownUser
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.kinds.meta.stored_encoding import Object, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.server.requests.call import User
from lattice.store.protocol import Entry, Key, Store

AUTHENTICATED_GROUP = "system:authenticated"
TOKEN_TYPE = "lattice.dev/token"  # noqa: S105 - the type of the secret, not the secret
TOKEN_PREFIX = "lat-"  # noqa: S105
# A verified token is cached this long, so a revoked token stays valid for at most this many seconds.
TOKEN_CACHE_TTL_S = 5.0
MAX_CACHED_TOKENS = 1024
# Browsers accept a cookie with the prefix `__Host-` only from this host, and only over TLS.
SESSION_COOKIE = "__Host-lattice"
PAGE_HEADER = "X-Lattice-Page"


def user_of_certificate(peer: Mapping[str, Any] | None) -> User | None:
    """The user of a verified client certificate, or None without certificate. `peer` is the result of
    `ssl.getpeercert`."""
    if not peer:
        return None
    pairs = list(chain.from_iterable(peer.get("subject", ())))
    name = next((value for key, value in pairs if key == "commonName"), "")
    if not name:
        raise UnknownUser(
            "the client certificate does not name a user",
            fix="use a certificate whose subject has a common name (CN)",
        )
    groups = {value for key, value in pairs if key == "organizationName"}
    return User(name, frozenset(groups | {AUTHENTICATED_GROUP}))


def new_token() -> tuple[str, str]:
    """Generate a bearer token; return the token and the name of its Secret."""
    identity = secrets.token_hex(6)
    return f"{TOKEN_PREFIX}{identity}.{secrets.token_urlsafe(32)}", f"token-{identity}"


def token_secret(token: str, user: str, groups: Iterable[str], expires: str = "") -> Object:
    """The Secret that makes a token valid. The Secret holds a SHA-256 digest, never the token.

    `expires` is an API timestamp; an empty string means that the token never expires.
    """
    name = secret_name(token)
    data = {"sha256": _digest(token), "user": user, "groups": ",".join(groups)} | (
        {"expires": expires} if expires else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "type": TOKEN_TYPE,
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


def secret_name(token: str) -> str:
    """The name of the Secret that belongs to a token."""
    return f"token-{token.removeprefix(TOKEN_PREFIX).partition('.')[0]}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class TokenAuthenticator:
    """Verifies bearer tokens against Secrets in `lattice-system`. Deletion of a Secret revokes the token."""

    store: Store
    clock: Clock
    _cache: dict[str, tuple[float, User]] = field(default_factory=dict)

    async def user_of_token(self, token: str) -> User:
        """The user of a bearer token. `UnknownUser` if no valid Secret matches or the token has expired."""
        digest = _digest(token)
        cached = self._cache.get(digest)
        if cached and cached[0] > self.clock.monotonic():
            return cached[1]
        self._cache.pop(digest, None)
        # The first part of a token names the Secret; the second part is the secret value.
        identity = token.removeprefix(TOKEN_PREFIX).partition(".")[0]
        entry = None
        if token.startswith(TOKEN_PREFIX) and identity.isalnum() and identity.isascii():
            entry = await self.store.get(Key("secrets", SYSTEM_NAMESPACE, f"token-{identity}"))
        data = token_data(entry)
        # The comparison takes constant time, so response times reveal nothing about the digest.
        if not hmac.compare_digest(data.get("sha256", ""), digest):
            raise UnknownUser(
                "Unauthorized: the bearer token is unknown",
                fix="create another token: lattice kubeconfig --user NAME --group GROUP --token",
            )
        if is_expired(data, self.clock.now()):
            raise UnknownUser(
                f"Unauthorized: the bearer token expired at {data['expires']}", fix="sign in again"
            )
        groups = {group for group in data.get("groups", "").split(",") if group}
        user = User(data.get("user", ""), frozenset(groups | {AUTHENTICATED_GROUP}))
        # A full cache is cleared: memory stays bounded without per-token bookkeeping.
        if len(self._cache) >= MAX_CACHED_TOKENS:
            self._cache.clear()
        self._cache[digest] = (self.clock.monotonic() + TOKEN_CACHE_TTL_S, user)
        return user

    def invalidate(self, token: str) -> None:
        """Remove a token from the cache, so that the next request reads the Secret from the store."""
        self._cache.pop(_digest(token), None)


def token_data(entry: Entry | None) -> dict[str, str]:
    """The decoded data of a token Secret; empty if the Secret is missing, has a different type, or is
    damaged."""
    secret = unpack(entry.value, entry.revision) if entry else {}
    if secret.get("type") != TOKEN_TYPE:
        return {}
    try:
        return {name: b64decode(value).decode() for name, value in secret.get("data", {}).items()}
    except ValueError:
        return {}


def is_expired(data: Mapping[str, str], now: datetime) -> bool:
    """Whether a token has expired. A token without `expires` never expires."""
    expires = data.get("expires", "")
    # API timestamps have one fixed format in UTC, so text comparison equals comparison by time.
    return bool(expires) and expires <= format_timestamp(now)


async def authenticate(
    tokens: TokenAuthenticator, headers: Mapping[str, str], peer: Mapping[str, Any] | None
) -> User:
    """The user of a request: the client certificate first, then the bearer token, then the page's cookie.

    `UnknownUser` rejects missing and unknown credentials alike; `Denied` rejects impersonation headers.
    """
    if any(name.lower().startswith("impersonate-") for name in headers):
        raise Denied(
            "impersonation is not supported",
            where="Impersonate-User",
            fix="request credentials of your own; omit --as",
        )
    user = user_of_certificate(peer)
    if user is not None:
        return user
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return await tokens.user_of_token(token.strip())
    if headers.get(PAGE_HEADER) == "1" and (cookie := session_cookie(headers)):
        return await tokens.user_of_token(cookie)
    raise UnknownUser(
        "Unauthorized: no credentials",
        fix="use a client certificate or a bearer token; `lattice kubeconfig` creates both",
    )


def session_cookie(headers: Mapping[str, str]) -> str:
    """The bearer token in the page's cookie, or an empty string."""
    for part in headers.get("Cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == SESSION_COOKIE:
            return value
    return ""
