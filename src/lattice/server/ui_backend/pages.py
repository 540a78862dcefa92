"""The web page: its files, and the cookie that says who is signed in. Knows no HTTP library."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lattice.errors import Denied, MethodNotAllowed, NotFound, UnknownUser
from lattice.kinds.meta.json_body import encode
from lattice.server.access.authentication import (
    PAGE_HEADER,
    SESSION_COOKIE,
    TokenAuthenticator,
    authenticate,
    session_cookie,
)
from lattice.server.requests.call import Reply, User
from lattice.server.ui_backend.event_stream import PageEventStream
from lattice.server.ui_backend.sign_in import SignIn

UI_PATH = "/ui/"
SESSION_PATH = "/ui/session"
EVENT_STREAM_PATH = "/ui/live"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
ANONYMOUS_USER = {"name": "", "groups": []}


class Asset(Protocol):
    """One file, as it is and compressed."""

    @property
    def body(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def gzipped(self) -> bytes: ...


@dataclass(frozen=True)
class PageRequest:
    """A request for the page, by somebody not yet known."""

    method: str
    path: str
    headers: Mapping[str, str]
    address: str = ""
    peer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pages:
    assets: Mapping[str, Asset]
    tokens: TokenAuthenticator
    sign_in: SignIn
    event_stream: PageEventStream

    async def answer(self, visit: PageRequest, body: bytes) -> Reply:
        if visit.path == SESSION_PATH:
            return await self._session(visit, body)
        if visit.method not in {"GET", "HEAD"}:
            raise MethodNotAllowed(f"{visit.method} is not understood here", where=visit.path, fix="use GET")
        if visit.path in {"/", UI_PATH.rstrip("/")}:
            return Reply(b"", 302, headers={"Location": UI_PATH, **SECURITY_HEADERS})
        return self._file(visit)

    def _file(self, visit: PageRequest) -> Reply:
        asset = self.assets.get(visit.path.removeprefix(UI_PATH) or "index.html")
        if asset is None:
            raise NotFound("the page has no such file", where=visit.path, fix=f"start at {UI_PATH}")
        headers = {
            **SECURITY_HEADERS,
            "ETag": asset.etag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
        }
        if asset.etag in visit.headers.get("If-None-Match", ""):
            return Reply(b"", 304, asset.content_type, headers=headers)
        if "gzip" in visit.headers.get("Accept-Encoding", ""):
            return Reply(
                asset.gzipped, 200, asset.content_type, headers={**headers, "Content-Encoding": "gzip"}
            )
        return Reply(asset.body, 200, asset.content_type, headers=headers)

    async def _session(self, visit: PageRequest, body: bytes) -> Reply:
        if visit.method not in {"GET", "POST", "DELETE"}:
            raise MethodNotAllowed(
                f"{visit.method} is not understood here", where=visit.path, fix="use GET, POST or DELETE"
            )
        if visit.headers.get(PAGE_HEADER) != "1":
            raise Denied(
                "only the page itself signs in and out",
                where=visit.path,
                fix=f"send the header {PAGE_HEADER}: 1",
            )
        if visit.method == "GET":
            return _session_reply(await self._current_user(visit))
        if visit.method == "POST":
            token = await self.sign_in.begin_session(body, visit.address)
            return _session_reply(
                _user_document(await self.tokens.user_of_token(token)), f"{SESSION_COOKIE}={token}"
            )
        if token := session_cookie(visit.headers):
            await self.sign_in.end_session(token)
        return _session_reply(ANONYMOUS_USER, f"{SESSION_COOKIE}=; Max-Age=0")

    async def _current_user(self, visit: PageRequest) -> dict[str, Any]:
        """Not to know anybody is no failure here: it is what a page that is opened asks first."""
        try:
            return _user_document(await authenticate(self.tokens, visit.headers, visit.peer))
        except UnknownUser:
            return ANONYMOUS_USER


def is_page(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Whether it is for the page, and open to everybody. A browser that asks for the root gets the page, other clients do not."""
    if path == "/":
        return method == "GET" and "text/html" in headers.get("Accept", "")
    return path == UI_PATH.rstrip("/") or (path.startswith(UI_PATH) and path != EVENT_STREAM_PATH)


def _user_document(user: User) -> dict[str, Any]:
    return {"name": user.name, "groups": sorted(user.groups)}


def _session_reply(body: dict[str, Any], kept: str = "") -> Reply:
    headers = {"Cache-Control": "no-store", **SECURITY_HEADERS}
    if kept:
        headers["Set-Cookie"] = f"{kept}; Path=/; Secure; HttpOnly; SameSite=Strict"
    return Reply(encode(body), headers=headers)
