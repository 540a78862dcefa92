"""Signing in: one-time codes, tokens, rate limits, cookies and sessions."""

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from build.virtual import VirtualClock

from lattice.errors import (
    Denied,
    LatticeError,
    Malformed,
    MethodNotAllowed,
    NotFound,
    TooManyRequests,
    UnknownUser,
)
from lattice.kinds.core import Secret
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.server.access.authentication import (
    SESSION_COOKIE,
    TokenAuthenticator,
    authenticate,
    new_token,
    token_secret,
)
from lattice.server.access.authorization import ADMIN_GROUP, VIEWER_GROUP
from lattice.server.requests.call import Reply, User
from lattice.server.ui_backend.event_stream import PageEventStream
from lattice.server.ui_backend.pages import CONTENT_SECURITY_POLICY, PageRequest, Pages, is_page
from lattice.server.ui_backend.sign_in import CODE_LIFETIME_S, SESSION_LIFETIME, SignIn
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Key, Put
from lattice.ui import Asset

PAGE = {"X-Lattice-Page": "1"}
SECRETS = Secret.resource.id
INDEX = Asset(b"<html>", "text/html; charset=utf-8")


@dataclass
class SignInWorld:
    clock: VirtualClock
    store: MemoryStore
    pages: Pages

    @property
    def sign_in(self) -> SignIn:
        return self.pages.sign_in

    def code(self) -> str:
        return self.sign_in.new_code(User("ada", frozenset({ADMIN_GROUP})))

    async def token(self, group: str = VIEWER_GROUP) -> str:
        """A token without expiry."""
        token, name = new_token()
        secret = new_object(
            token_secret(token, "vic", [group]), uid="u", now=format_timestamp(self.clock.now())
        )
        await self.store.commit(
            [Put(Key(SECRETS, "lattice-system", name), pack(Secret.resource, secret), ABSENT)]
        )
        return token

    async def enter(self, address: str = "10.0.0.1", **proof: str) -> str:
        """Sign in; returns the value of the session cookie."""
        reply = await self.ask("POST", json.dumps(proof).encode(), address=address)
        return reply.headers["Set-Cookie"].partition(";")[0].removeprefix(f"{SESSION_COOKIE}=")

    async def ask(
        self,
        method: str,
        body: bytes = b"",
        *,
        path: str = "/ui/session",
        address: str = "10.0.0.1",
        **headers: str,
    ) -> Reply:
        given = {name.replace("_", "-"): value for name, value in headers.items()} or PAGE
        return await self.pages.answer(PageRequest(method, path, given, address), body)

    async def who(self, token: str) -> User:
        return await authenticate(
            self.pages.tokens, {**PAGE, "Cookie": f"other=1; {SESSION_COOKIE}={token}"}, None
        )

    async def secrets(self) -> list[str]:
        return [entry.key.name for entry in (await self.store.list(SECRETS)).entries]


def sign_in_pages() -> SignInWorld:
    clock = VirtualClock()
    store, uids = MemoryStore(clock), itertools.count(1)
    tokens = TokenAuthenticator(store, clock)
    sign_in = SignIn(store, clock, lambda: f"uid-{next(uids)}", tokens)
    stream: Any = PageEventStream.__new__(PageEventStream)  # these tests open no stream
    return SignInWorld(
        clock, store, Pages({"index.html": INDEX, "lib/api.js": INDEX}, tokens, sign_in, stream)
    )


async def test_code_signs_in_its_user_once() -> None:
    world = sign_in_pages()
    code = world.code()
    token = await world.enter(code=code)
    user = await world.who(token)
    assert (user.name, ADMIN_GROUP in user.groups) == ("ada", True)
    with pytest.raises(UnknownUser, match="was already used"):
        await world.enter(code=code)
    assert code not in str(await world.store.list(SECRETS))


async def test_code_and_session_expire() -> None:
    world = sign_in_pages()
    late, code = world.code(), world.code()
    world.clock.jump(CODE_LIFETIME_S - 1)
    token = await world.enter(code=code)
    world.clock.jump(1)
    with pytest.raises(UnknownUser, match="the sign-in link has expired: it was valid for 10 minutes"):
        await world.enter(code=late)
    world.clock.jump(SESSION_LIFETIME.total_seconds())
    with pytest.raises(UnknownUser, match="expired"):
        await world.who(token)
    assert len(await world.secrets()) == 1
    await world.enter("10.0.0.2", code=world.code())
    assert len(await world.secrets()) == 1, "expired sessions are deleted at the next sign-in"


async def test_token_signs_in_its_owner_and_outlives_session() -> None:
    world = sign_in_pages()
    given = await world.token()
    assert await world.enter(token=given) == given
    assert (await world.who(given)).name == "vic"
    reply = await world.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={given}")
    assert "Max-Age=0" in reply.headers["Set-Cookie"]
    assert (await world.who(given)).name == "vic", "the token belongs to its user, not to the session"


async def test_signing_out_ends_code_session() -> None:
    world = sign_in_pages()
    token = await world.enter(code=world.code())
    stranger = f"{token.partition('.')[0]}.guessed"
    await world.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={stranger}")
    assert (await world.who(token)).name == "ada", "its name alone ends nothing"
    await world.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={token}")
    with pytest.raises(UnknownUser):
        await world.who(token)
    assert await world.secrets() == []


async def test_guesses_are_rate_limited_per_address() -> None:
    world = sign_in_pages()
    for _ in range(5):
        with pytest.raises(UnknownUser, match="this server does not know the sign-in link"):
            await world.enter("10.6.6.6", code="guess")
    with pytest.raises(TooManyRequests, match="5 tokens and codes were rejected within 60 s"):
        await world.enter("10.6.6.6", code=world.code())
    await world.enter("10.0.0.1", code=world.code())
    world.clock.jump(61)
    await world.enter("10.6.6.6", code=world.code())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": "a", "code": "b"}', b'{"user": "ada"}'])
async def test_malformed_credentials_are_rejected(body: bytes) -> None:
    world = sign_in_pages()
    with pytest.raises(Malformed):
        await world.ask("POST", body)


async def test_cookie_is_valid_for_page_requests_only() -> None:
    world = sign_in_pages()
    token = await world.token()
    reply = await world.ask("POST", json.dumps({"token": token}).encode())
    assert (
        reply.headers["Set-Cookie"] == f"{SESSION_COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict"
    )
    with pytest.raises(UnknownUser, match="no credentials"):
        await authenticate(world.pages.tokens, {"Cookie": f"{SESSION_COOKIE}={token}"}, None)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_other_origins_cannot_sign_in_or_out(method: str) -> None:
    world = sign_in_pages()
    with pytest.raises(Denied, match="only the web page may sign in and sign out"):
        await world.ask(method, json.dumps({"code": world.code()}).encode(), Origin="https://elsewhere")


async def test_anonymous_session_has_no_user() -> None:
    world = sign_in_pages()
    assert json.loads((await world.ask("GET")).body) == {"name": "", "groups": []}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        pytest.param("/", 302, b"", id="the root leads to the page"),
        pytest.param("/ui", 302, b"", id="the page without a slash"),
        pytest.param("/ui/", 200, b"<html>", id="its first file"),
        pytest.param("/ui/lib/api.js", 200, b"<html>", id="any other"),
    ],
)
async def test_files_carry_security_headers(path: str, status: int, body: bytes) -> None:
    world = sign_in_pages()
    reply = await world.ask("GET", path=path)
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        pytest.param(
            {"Accept-Encoding": "gzip, br"}, 200, INDEX.gzipped, id="compressed for clients that accept gzip"
        ),
        pytest.param({"If-None-Match": INDEX.etag}, 304, b"", id="known already"),
        pytest.param({"If-None-Match": '"old"'}, 200, b"<html>", id="changed since"),
    ],
)
async def test_files_are_compressed_and_cached(headers: dict[str, str], status: int, body: bytes) -> None:
    world = sign_in_pages()
    reply = await world.pages.answer(PageRequest("GET", "/ui/", headers), b"")
    assert (reply.status, reply.body) == (status, body)
    assert (reply.headers["ETag"], reply.headers["Cache-Control"]) == (INDEX.etag, "no-cache")


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        pytest.param("GET", "/ui/../cli/main.py", NotFound, id="a file outside"),
        pytest.param("GET", "/ui/none.js", NotFound, id="no such file"),
        pytest.param("POST", "/ui/", MethodNotAllowed, id="files are not written"),
        pytest.param("PUT", "/ui/session", MethodNotAllowed, id="no such verb"),
    ],
)
async def test_other_paths_are_rejected(method: str, path: str, error: type[LatticeError]) -> None:
    world = sign_in_pages()
    with pytest.raises(error):
        await world.ask(method, path=path)


@pytest.mark.parametrize(
    ("method", "path", "accept", "shown"),
    [
        pytest.param("GET", "/", "text/html,*/*", True, id="a browser at the root"),
        pytest.param("GET", "/", "application/json", False, id="another client at the root"),
        pytest.param("GET", "/ui", "", True, id="the page"),
        pytest.param("POST", "/ui/session", "", True, id="signing in"),
        pytest.param("GET", "/ui/live", "", False, id="the event stream needs a session"),
        pytest.param("GET", "/uix", "", False, id="something else"),
    ],
)
def test_pages_that_need_no_sign_in(method: str, path: str, accept: str, shown: bool) -> None:
    assert is_page(method, path, {"Accept": accept}) is shown
