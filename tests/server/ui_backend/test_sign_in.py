"""Signing in: codes that are good once and not for long, tokens, guessing, and what a session leaves behind."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from build.virtual import VirtualClock

from lattice.clock import format_timestamp
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
from lattice.server.access.authentication import (
    SESSION_COOKIE,
    TokenAuthenticator,
    authenticate,
    new_token,
    token_secret,
)
from lattice.server.access.authorization import ADMINS, VIEWERS
from lattice.server.requests.call import Reply, User
from lattice.server.ui_backend.event_stream import PageEventStream
from lattice.server.ui_backend.pages import CONTENT_SECURITY_POLICY, PageRequest, Pages, is_page
from lattice.server.ui_backend.sign_in import CODE_LIFETIME_S, SESSION_LIFE, SignIn
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Key, Put
from lattice.ui import Asset

PAGE = {"X-Lattice-Page": "1"}
SECRETS = Secret.resource.id
INDEX = Asset(b"<html>", "text/html; charset=utf-8")


@dataclass
class Door:
    clock: VirtualClock
    store: MemoryStore
    pages: Pages

    @property
    def sign_in(self) -> SignIn:
        return self.pages.sign_in

    def code(self) -> str:
        return self.sign_in.new_code(User("ada", frozenset({ADMINS})))

    async def token(self, group: str = VIEWERS) -> str:
        """One that somebody was given, without an end."""
        token, name = new_token()
        secret = new_object(
            token_secret(token, "vic", [group]), uid="u", now=format_timestamp(self.clock.now())
        )
        await self.store.commit(
            [Put(Key(SECRETS, "lattice-system", name), pack(Secret.resource, secret), ABSENT)]
        )
        return token

    async def enter(self, address: str = "10.0.0.1", **proof: str) -> str:
        """The cookie's value."""
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


def play(story: Callable[[Door], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = VirtualClock()
        store, uids = MemoryStore(clock), itertools.count(1)
        tokens = TokenAuthenticator(store, clock)
        sign_in = SignIn(store, clock, lambda: f"uid-{next(uids)}", tokens)
        stream: Any = PageEventStream.__new__(PageEventStream)  # not asked for here
        await story(
            Door(clock, store, Pages({"index.html": INDEX, "lib/api.js": INDEX}, tokens, sign_in, stream))
        )

    asyncio.run(asyncio.wait_for(whole(), 20))


def test_a_code_lets_in_once_as_whom_it_was_made_for() -> None:
    async def story(door: Door) -> None:
        code = door.code()
        token = await door.enter(code=code)
        user = await door.who(token)
        assert (user.name, ADMINS in user.groups) == ("ada", True)
        with pytest.raises(UnknownUser, match="was used already"):
            await door.enter(code=code)
        assert code not in str(await door.store.list(SECRETS))

    play(story)


def test_a_code_is_good_for_ten_minutes_and_its_session_for_twelve_hours() -> None:
    async def story(door: Door) -> None:
        late, code = door.code(), door.code()
        door.clock.jump(CODE_LIFETIME_S - 1)
        token = await door.enter(code=code)
        door.clock.jump(1)
        with pytest.raises(UnknownUser, match="this link is over: it was good for 10 minutes"):
            await door.enter(code=late)
        door.clock.jump(SESSION_LIFE.total_seconds())
        with pytest.raises(UnknownUser, match="expired"):
            await door.who(token)
        assert len(await door.secrets()) == 1
        await door.enter("10.0.0.2", code=door.code())
        assert len(await door.secrets()) == 1, "what is over goes when the next one begins"

    play(story)


def test_a_token_lets_in_as_whose_it_is_and_outlives_the_session() -> None:
    async def story(door: Door) -> None:
        given = await door.token()
        assert await door.enter(token=given) == given
        assert (await door.who(given)).name == "vic"
        reply = await door.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={given}")
        assert "Max-Age=0" in reply.headers["Set-Cookie"]
        assert (await door.who(given)).name == "vic", "it is theirs, not the page's"

    play(story)


def test_signing_out_ends_a_session_that_a_code_began() -> None:
    async def story(door: Door) -> None:
        token = await door.enter(code=door.code())
        stranger = f"{token.partition('.')[0]}.guessed"
        await door.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={stranger}")
        assert (await door.who(token)).name == "ada", "its name alone ends nothing"
        await door.ask("DELETE", X_Lattice_Page="1", Cookie=f"{SESSION_COOKIE}={token}")
        with pytest.raises(UnknownUser):
            await door.who(token)
        assert await door.secrets() == []

    play(story)


def test_whoever_guesses_has_to_wait_and_others_need_not() -> None:
    async def story(door: Door) -> None:
        for _ in range(5):
            with pytest.raises(UnknownUser, match="this link is not known here"):
                await door.enter("10.6.6.6", code="guess")
        with pytest.raises(TooManyRequests, match="5 tokens and codes were refused within a minute"):
            await door.enter("10.6.6.6", code=door.code())
        await door.enter("10.0.0.1", code=door.code())
        door.clock.jump(61)
        await door.enter("10.6.6.6", code=door.code())

    play(story)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": "a", "code": "b"}', b'{"user": "ada"}'])
def test_what_proves_nothing_is_refused(body: bytes) -> None:
    async def story(door: Door) -> None:
        with pytest.raises(Malformed):
            await door.ask("POST", body)

    play(story)


def test_the_cookie_is_for_the_page_alone() -> None:
    async def story(door: Door) -> None:
        token = await door.token()
        reply = await door.ask("POST", json.dumps({"token": token}).encode())
        assert (
            reply.headers["Set-Cookie"]
            == f"{SESSION_COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict"
        )
        with pytest.raises(UnknownUser, match="no credentials"):
            await authenticate(door.pages.tokens, {"Cookie": f"{SESSION_COOKIE}={token}"}, None)

    play(story)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_other_sites_cannot_sign_anybody_in_or_out(method: str) -> None:
    async def story(door: Door) -> None:
        with pytest.raises(Denied, match="only the page itself signs in and out"):
            await door.ask(method, json.dumps({"code": door.code()}).encode(), Origin="https://elsewhere")

    play(story)


def test_who_is_asked_without_being_anybody_is_told_so_without_an_error() -> None:
    async def story(door: Door) -> None:
        assert json.loads((await door.ask("GET")).body) == {"name": "", "groups": []}  # type: ignore[arg-type]

    play(story)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        pytest.param("/", 302, b"", id="the root leads to the page"),
        pytest.param("/ui", 302, b"", id="and so does it without the slash"),
        pytest.param("/ui/", 200, b"<html>", id="its first file"),
        pytest.param("/ui/lib/api.js", 200, b"<html>", id="any other"),
    ],
)
def test_files_come_with_their_guards(path: str, status: int, body: bytes) -> None:
    async def story(door: Door) -> None:
        reply = await door.ask("GET", path=path)
        assert (reply.status, reply.body) == (status, body)
        assert reply.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert reply.headers["X-Content-Type-Options"] == "nosniff"

    play(story)


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        pytest.param(
            {"Accept-Encoding": "gzip, br"}, 200, INDEX.gzipped, id="compressed for who can read that"
        ),
        pytest.param({"If-None-Match": INDEX.etag}, 304, b"", id="known already"),
        pytest.param({"If-None-Match": '"old"'}, 200, b"<html>", id="changed since"),
    ],
)
def test_files_are_sent_no_more_than_needed(headers: dict[str, str], status: int, body: bytes) -> None:
    async def story(door: Door) -> None:
        reply = await door.pages.answer(PageRequest("GET", "/ui/", headers), b"")
        assert (reply.status, reply.body) == (status, body)
        assert (reply.headers["ETag"], reply.headers["Cache-Control"]) == (INDEX.etag, "no-cache")

    play(story)


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        pytest.param("GET", "/ui/../cli/main.py", NotFound, id="a file outside"),
        pytest.param("GET", "/ui/none.js", NotFound, id="no such file"),
        pytest.param("POST", "/ui/", MethodNotAllowed, id="files are not written"),
        pytest.param("PUT", "/ui/session", MethodNotAllowed, id="no such verb"),
    ],
)
def test_nothing_else_is_served(method: str, path: str, error: type[LatticeError]) -> None:
    async def story(door: Door) -> None:
        with pytest.raises(error):
            await door.ask(method, path=path)

    play(story)


@pytest.mark.parametrize(
    ("method", "path", "accept", "shown"),
    [
        pytest.param("GET", "/", "text/html,*/*", True, id="a browser at the root"),
        pytest.param("GET", "/", "application/json", False, id="another client at the root"),
        pytest.param("GET", "/ui", "", True, id="the page"),
        pytest.param("POST", "/ui/session", "", True, id="signing in"),
        pytest.param("GET", "/ui/live", "", False, id="what changes, which is not for everybody"),
        pytest.param("GET", "/uix", "", False, id="something else"),
    ],
)
def test_what_is_open_to_everybody(method: str, path: str, accept: str, shown: bool) -> None:
    assert is_page(method, path, {"Accept": accept}) is shown
