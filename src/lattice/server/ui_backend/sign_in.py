"""Signing in to the page: with a bearer token, or with a one-time code that the server itself gave out."""

import contextlib
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from lattice.clock import Clock, stamp
from lattice.errors import LatticeError, Malformed, UnknownUser
from lattice.kinds.core import Secret
from lattice.kinds.meta.object_rules import born
from lattice.kinds.meta.stored import pack
from lattice.server.access.authentication import (
    TOKEN_NAMESPACE,
    Tokens,
    is_over,
    new_token,
    secret_name,
    token_data,
    token_secret,
)
from lattice.server.requests.call import User
from lattice.server.access.attempt_limiter import Guesses
from lattice.store.protocol import ABSENT, Clash, Delete, Entry, Key, Put, Store

CODE_LIFE = 600.0  # seconds
SESSION_LIFE = timedelta(hours=12)  # of a token that a code was exchanged for
CODES = 64  # kept at most
_FIX = "sign in with a token, or start `lattice up` again for a new link"


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who one is: either of them."""

    token: str = ""
    code: str = ""


@dataclass
class _Code:
    user: User
    ends: float
    is_used: bool = False


@dataclass
class SignIn:
    """Codes live in the memory of the server that gave them out; what they are exchanged for is a token like any other."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    tokens: Tokens
    _codes: OrderedDict[str, _Code] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._guesses = Guesses(self.clock, "tokens and codes")

    def new_code(self, user: User) -> str:
        """Good once, for ten minutes, for signing in as this user."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = _Code(user, self.clock.monotonic() + CODE_LIFE)
        while len(self._codes) > CODES:
            self._codes.popitem(last=False)
        return code

    async def enter(self, body: bytes, address: str) -> str:
        """The token for the page to keep."""
        self._guesses.admit(address)
        try:
            proof = _read(body)
            if proof.code:
                return await self._session(self._redeem(proof.code))
            await self.tokens.user(proof.token)
        except LatticeError as error:
            if isinstance(error, UnknownUser):
                self._guesses.count(address)
            raise
        return proof.token

    async def leave(self, token: str) -> None:
        """A session's token is of no use any more; one that somebody brought is theirs, and stays."""
        try:
            await self.tokens.user(token)
        except UnknownUser:
            return  # whose name one may know without knowing the rest of it
        self.tokens.forget(token)
        entry = await self.store.get(Key(Secret.resource.id, TOKEN_NAMESPACE, secret_name(token)))
        if entry is not None and token_data(entry).get("expires"):
            await self._remove(entry)

    def _redeem(self, text: str) -> User:
        code = self._codes.get(_digest(text))
        if code is None:
            raise UnknownUser("this link is not known here", fix=_FIX)
        if code.is_used:
            raise UnknownUser("this link was used already", fix=_FIX)
        if self.clock.monotonic() >= code.ends:
            raise UnknownUser(f"this link is over: it was good for {CODE_LIFE / 60:g} minutes", fix=_FIX)
        code.is_used = True
        return code.user

    async def _session(self, user: User) -> str:
        await self._sweep()
        token, name = new_token()
        now = self.clock.now()
        secret = token_secret(token, user.name, sorted(user.groups), stamp(now + SESSION_LIFE))
        value = pack(Secret.resource, born(secret, uid=self.new_uid(), now=stamp(now)))
        await self.store.commit([Put(Key(Secret.resource.id, TOKEN_NAMESPACE, name), value, ABSENT)])
        return token

    async def _sweep(self) -> None:
        """Sessions that are over go when the next one begins."""
        page = await self.store.list(Secret.resource.id, TOKEN_NAMESPACE)
        for entry in page.entries:
            if is_over(token_data(entry), self.clock.now()):
                await self._remove(entry)

    async def _remove(self, entry: Entry) -> None:
        with contextlib.suppress(Clash):  # somebody else did
            await self.store.commit([Delete(entry.key, entry.revision)])


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _read(body: bytes) -> Proof:
    try:
        proof = msgspec.json.decode(body, type=Proof)
    except msgspec.MsgspecError as error:
        raise Malformed(
            f"the request cannot be read: {error}", fix='send {"token": "lat-…"} or {"code": "…"}'
        ) from error
    if bool(proof.token) == bool(proof.code):
        raise Malformed("either a token or a code signs in", fix='send {"token": "lat-…"} or {"code": "…"}')
    return proof
