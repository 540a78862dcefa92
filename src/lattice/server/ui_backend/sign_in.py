"""Signing in to the page: with a bearer token, or with a one-time code that the server itself gave out."""

import contextlib
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from lattice.clock import Clock, format_timestamp
from lattice.errors import LatticeError, Malformed, UnknownUser
from lattice.kinds.core import Secret
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.access.attempt_limiter import AttemptLimiter
from lattice.server.access.authentication import (
    TOKEN_NAMESPACE,
    TokenAuthenticator,
    is_expired,
    new_token,
    secret_name,
    token_data,
    token_secret,
)
from lattice.server.requests.call import User
from lattice.store.protocol import ABSENT, Delete, Entry, Key, Put, RevisionConflict, Store

CODE_LIFETIME_S = 600.0  # seconds
SESSION_LIFE = timedelta(hours=12)  # of a token that a code was exchanged for
MAX_CODES = 64  # kept at most
_FIX = "sign in with a token, or start `lattice up` again for a new link"


class SignInRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who one is: either of them."""

    token: str = ""
    code: str = ""


@dataclass
class _Code:
    user: User
    expires_at: float
    is_used: bool = False


@dataclass
class SignIn:
    """Codes live in the memory of the server that gave them out; what they are exchanged for is a token like any other."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    tokens: TokenAuthenticator
    _codes: OrderedDict[str, _Code] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._attempts = AttemptLimiter(self.clock, "tokens and codes")

    def new_code(self, user: User) -> str:
        """Good once, for ten minutes, for signing in as this user."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = _Code(user, self.clock.monotonic() + CODE_LIFETIME_S)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    async def begin_session(self, body: bytes, address: str) -> str:
        """The token for the page to keep."""
        self._attempts.check(address)
        try:
            proof = _read(body)
            if proof.code:
                return await self._create_session_token(self._redeem(proof.code))
            await self.tokens.user_of_token(proof.token)
        except LatticeError as error:
            if isinstance(error, UnknownUser):
                self._attempts.record_failure(address)
            raise
        return proof.token

    async def end_session(self, token: str) -> None:
        """A session's token is of no use any more; one that somebody brought is theirs, and stays."""
        try:
            await self.tokens.user_of_token(token)
        except UnknownUser:
            return  # whose name one may know without knowing the rest of it
        self.tokens.invalidate(token)
        entry = await self.store.get(Key(Secret.resource.id, TOKEN_NAMESPACE, secret_name(token)))
        if entry is not None and token_data(entry).get("expires"):
            await self._remove(entry)

    def _redeem(self, text: str) -> User:
        code = self._codes.get(_digest(text))
        if code is None:
            raise UnknownUser("this link is not known here", fix=_FIX)
        if code.is_used:
            raise UnknownUser("this link was used already", fix=_FIX)
        if self.clock.monotonic() >= code.expires_at:
            raise UnknownUser(
                f"this link is over: it was good for {CODE_LIFETIME_S / 60:g} minutes", fix=_FIX
            )
        code.is_used = True
        return code.user

    async def _create_session_token(self, user: User) -> str:
        await self._delete_expired_sessions()
        token, name = new_token()
        now = self.clock.now()
        secret = token_secret(token, user.name, sorted(user.groups), format_timestamp(now + SESSION_LIFE))
        value = pack(Secret.resource, new_object(secret, uid=self.new_uid(), now=format_timestamp(now)))
        await self.store.commit([Put(Key(Secret.resource.id, TOKEN_NAMESPACE, name), value, ABSENT)])
        return token

    async def _delete_expired_sessions(self) -> None:
        """Sessions that are over go when the next one begins."""
        page = await self.store.list(Secret.resource.id, TOKEN_NAMESPACE)
        for entry in page.entries:
            if is_expired(token_data(entry), self.clock.now()):
                await self._remove(entry)

    async def _remove(self, entry: Entry) -> None:
        with contextlib.suppress(RevisionConflict):  # somebody else did
            await self.store.commit([Delete(entry.key, entry.revision)])


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _read(body: bytes) -> SignInRequest:
    try:
        proof = msgspec.json.decode(body, type=SignInRequest)
    except msgspec.MsgspecError as error:
        raise Malformed(
            f"the request cannot be read: {error}", fix='send {"token": "lat-…"} or {"code": "…"}'
        ) from error
    if bool(proof.token) == bool(proof.code):
        raise Malformed("either a token or a code signs in", fix='send {"token": "lat-…"} or {"code": "…"}')
    return proof
