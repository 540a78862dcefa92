"""Sign-in to the web page with a bearer token, or with a one-time code that the server issued."""

import contextlib
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from lattice.clock import Clock
from lattice.errors import LatticeError, Malformed, UnknownUser
from lattice.kinds.core import Secret
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.server.access.attempt_limiter import AttemptLimiter
from lattice.server.access.authentication import (
    TokenAuthenticator,
    is_expired,
    new_token,
    secret_name,
    token_data,
    token_secret,
)
from lattice.server.requests.bodies import decode_request
from lattice.server.requests.call import User
from lattice.store.protocol import ABSENT, Delete, Entry, Key, Put, RevisionConflict, Store

CODE_LIFETIME_S = 600.0
# Lifetime of a token that the server issues for a code.
SESSION_LIFETIME = timedelta(hours=12)
# Codes in memory; a new code beyond the limit drops the oldest code.
MAX_CODES = 64
_FIX = "sign in with a token, or start `lattice up` again for a new link"
_BODY_FIX = 'send {"token": "lat-…"} or {"code": "…"}'


class SignInRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a sign-in: a token or a code, never both."""

    token: str = ""
    code: str = ""


@dataclass
class _Code:
    user: User
    expires_at: float
    is_used: bool = False


@dataclass
class SignIn:
    """Sessions of the web page. A code exists only in the memory of the server that issued it; a session is
    an ordinary token."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    tokens: TokenAuthenticator
    _codes: OrderedDict[str, _Code] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._attempts = AttemptLimiter(self.clock, "tokens and codes")

    def new_code(self, user: User) -> str:
        """Return a code that signs in as the user once, within CODE_LIFETIME_S."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = _Code(user, self.clock.monotonic() + CODE_LIFETIME_S)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    async def begin_session(self, body: bytes, address: str) -> str:
        """Return the session token for the page. If the token or code is not valid, raise UnknownUser and
        count a failed attempt."""
        self._attempts.check(address)
        try:
            request = decode_request(body, SignInRequest, _BODY_FIX)
            if bool(request.token) == bool(request.code):
                raise Malformed("exactly one of token and code is required", fix=_BODY_FIX)
            if request.code:
                issued = self._codes.get(_digest(request.code))
                if issued is None:
                    raise UnknownUser("this server does not know the sign-in link", fix=_FIX)
                if issued.is_used:
                    raise UnknownUser("the sign-in link was already used", fix=_FIX)
                if self.clock.monotonic() >= issued.expires_at:
                    raise UnknownUser(
                        f"the sign-in link has expired: it was valid for {CODE_LIFETIME_S / 60:g} minutes",
                        fix=_FIX,
                    )
                # A used code stays in memory, so that a second use gets its own message.
                issued.is_used = True
                user = issued.user
                now = self.clock.now()
                # Every new session deletes the tokens of expired sessions.
                page = await self.store.list(Secret.resource.id, SYSTEM_NAMESPACE)
                for entry in page.entries:
                    if is_expired(token_data(entry), now):
                        await self._remove(entry)
                token, name = new_token()
                secret = token_secret(
                    token, user.name, sorted(user.groups), format_timestamp(now + SESSION_LIFETIME)
                )
                value = pack(
                    Secret.resource, new_object(secret, uid=self.new_uid(), now=format_timestamp(now))
                )
                await self.store.commit([Put(Key(Secret.resource.id, SYSTEM_NAMESPACE, name), value, ABSENT)])
                return token
            await self.tokens.user_of_token(request.token)
        except LatticeError as error:
            if isinstance(error, UnknownUser):
                self._attempts.record_failure(address)
            raise
        return request.token

    async def end_session(self, token: str) -> None:
        """Delete the token of a session; a token that the user brought stays valid."""
        try:
            await self.tokens.user_of_token(token)
        except UnknownUser:
            # The name of the secret may be known without the secret part of the token: delete nothing.
            return
        self.tokens.invalidate(token)
        entry = await self.store.get(Key(Secret.resource.id, SYSTEM_NAMESPACE, secret_name(token)))
        if entry is not None and token_data(entry).get("expires"):
            await self._remove(entry)

    async def _remove(self, entry: Entry) -> None:
        # A concurrent request may have deleted or changed the token first.
        with contextlib.suppress(RevisionConflict):
            await self.store.commit([Delete(entry.key, entry.revision)])


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
