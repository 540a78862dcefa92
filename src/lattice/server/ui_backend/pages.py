"""The web page: static files, and the session cookie that identifies the signed-in user; independent of the
HTTP library."""

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
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
ANONYMOUS_USER = {"name": "", "groups": []}


class Asset(Protocol):
    """One static file, plain and compressed."""

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
    """A request for the web page before authentication; `peer` is the client certificate, `address` the
    client address."""

    method: str
    path: str
    headers: Mapping[str, str]
    address: str = ""
    peer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pages:
    """Answers requests for the web page: static files, sign-in and sign-out."""

    assets: Mapping[str, Asset]
    tokens: TokenAuthenticator
    sign_in: SignIn
    event_stream: PageEventStream

    async def answer(self, request: PageRequest, body: bytes) -> Reply:
        if request.path == SESSION_PATH:
            return await self._session(request, body)
        if request.method not in {"GET", "HEAD"}:
            raise MethodNotAllowed(
                f"method {request.method} is not allowed here", where=request.path, fix="use GET"
            )
        if request.path in {"/", UI_PATH.rstrip("/")}:
            return Reply(b"", 302, headers={"Location": UI_PATH, **SECURITY_HEADERS})
        asset = self.assets.get(request.path.removeprefix(UI_PATH) or "index.html")
        if asset is None:
            raise NotFound("the web page has no such file", where=request.path, fix=f"start at {UI_PATH}")
        headers = {
            **SECURITY_HEADERS,
            "ETag": asset.etag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
        }
        if asset.etag in request.headers.get("If-None-Match", ""):
            return Reply(b"", 304, asset.content_type, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return Reply(
                asset.gzipped, 200, asset.content_type, headers={**headers, "Content-Encoding": "gzip"}
            )
        return Reply(asset.body, 200, asset.content_type, headers=headers)

    async def _session(self, request: PageRequest, body: bytes) -> Reply:
        if request.method not in {"GET", "POST", "DELETE"}:
            raise MethodNotAllowed(
                f"method {request.method} is not allowed here",
                where=request.path,
                fix="use GET, POST or DELETE",
            )
        # A form of another site cannot set the header: no cross-site request signs a user in or out.
        if request.headers.get(PAGE_HEADER) != "1":
            raise Denied(
                "only the web page may sign in and sign out",
                where=request.path,
                fix=f"send the header {PAGE_HEADER}: 1",
            )
        if request.method == "GET":
            # An opened page first requests the session: an unknown user is no error.
            try:
                user = _user_document(await authenticate(self.tokens, request.headers, request.peer))
            except UnknownUser:
                user = ANONYMOUS_USER
            return _session_reply(user)
        if request.method == "POST":
            token = await self.sign_in.begin_session(body, request.address)
            return _session_reply(
                _user_document(await self.tokens.user_of_token(token)), f"{SESSION_COOKIE}={token}"
            )
        if token := session_cookie(request.headers):
            await self.sign_in.end_session(token)
        return _session_reply(ANONYMOUS_USER, f"{SESSION_COOKIE}=; Max-Age=0")


def is_page(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request is for the web page, which needs no authentication.

    A browser that requests the root path gets the page; other clients do not.
    """
    if path == "/":
        return method == "GET" and "text/html" in headers.get("Accept", "")
    return path == UI_PATH.rstrip("/") or (path.startswith(UI_PATH) and path != EVENT_STREAM_PATH)


def _user_document(user: User) -> dict[str, Any]:
    return {"name": user.name, "groups": sorted(user.groups)}


def _session_reply(body: dict[str, Any], cookie: str = "") -> Reply:
    headers = {"Cache-Control": "no-store", **SECURITY_HEADERS}
    if cookie:
        headers["Set-Cookie"] = f"{cookie}; Path=/; Secure; HttpOnly; SameSite=Strict"
    return Reply(encode(body), headers=headers)
