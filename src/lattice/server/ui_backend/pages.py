"""The web page: its files, and the cookie that says who is signed in. Knows no HTTP library."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lattice.errors import Denied, NotAllowed, NotFound, UnknownUser
from lattice.kinds.meta.json_body import encode
from lattice.server.access.authentication import COOKIE, PAGE_HEADER, Tokens, authenticate, cookie
from lattice.server.requests.call import Reply, User
from lattice.server.ui_backend.event_stream import PageStream
from lattice.server.ui_backend.sign_in import SignIn

HOME = "/ui/"
SESSION = "/ui/session"
LIVE = "/ui/live"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
GUARDS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
NOBODY = {"name": "", "groups": []}


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
class Visit:
    """A request for the page, by somebody not yet known."""

    method: str
    path: str
    headers: Mapping[str, str]
    address: str = ""
    peer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pages:
    assets: Mapping[str, Asset]
    tokens: Tokens
    sign_in: SignIn
    stream: PageStream

    async def answer(self, visit: Visit, body: bytes) -> Reply:
        if visit.path == SESSION:
            return await self._session(visit, body)
        if visit.method not in {"GET", "HEAD"}:
            raise NotAllowed(f"{visit.method} is not understood here", where=visit.path, fix="use GET")
        if visit.path in {"/", HOME.rstrip("/")}:
            return Reply(b"", 302, headers={"Location": HOME, **GUARDS})
        return self._file(visit)

    def _file(self, visit: Visit) -> Reply:
        asset = self.assets.get(visit.path.removeprefix(HOME) or "index.html")
        if asset is None:
            raise NotFound("the page has no such file", where=visit.path, fix=f"start at {HOME}")
        headers = {**GUARDS, "ETag": asset.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if asset.etag in visit.headers.get("If-None-Match", ""):
            return Reply(b"", 304, asset.content_type, headers=headers)
        if "gzip" in visit.headers.get("Accept-Encoding", ""):
            return Reply(
                asset.gzipped, 200, asset.content_type, headers={**headers, "Content-Encoding": "gzip"}
            )
        return Reply(asset.body, 200, asset.content_type, headers=headers)

    async def _session(self, visit: Visit, body: bytes) -> Reply:
        if visit.method not in {"GET", "POST", "DELETE"}:
            raise NotAllowed(
                f"{visit.method} is not understood here", where=visit.path, fix="use GET, POST or DELETE"
            )
        if visit.headers.get(PAGE_HEADER) != "1":
            raise Denied(
                "only the page itself signs in and out",
                where=visit.path,
                fix=f"send the header {PAGE_HEADER}: 1",
            )
        if visit.method == "GET":
            return _said(await self._who(visit))
        if visit.method == "POST":
            token = await self.sign_in.enter(body, visit.address)
            return _said(_shown(await self.tokens.user(token)), f"{COOKIE}={token}")
        if token := cookie(visit.headers):
            await self.sign_in.leave(token)
        return _said(NOBODY, f"{COOKIE}=; Max-Age=0")

    async def _who(self, visit: Visit) -> dict[str, Any]:
        """Not to know anybody is no failure here: it is what a page that is opened asks first."""
        try:
            return _shown(await authenticate(self.tokens, visit.headers, visit.peer))
        except UnknownUser:
            return NOBODY


def is_page(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Whether it is for the page, and open to everybody. A browser that asks for the root gets the page, other clients do not."""
    if path == "/":
        return method == "GET" and "text/html" in headers.get("Accept", "")
    return path == HOME.rstrip("/") or (path.startswith(HOME) and path != LIVE)


def _shown(user: User) -> dict[str, Any]:
    return {"name": user.name, "groups": sorted(user.groups)}


def _said(body: dict[str, Any], kept: str = "") -> Reply:
    headers = {"Cache-Control": "no-store", **GUARDS}
    if kept:
        headers["Set-Cookie"] = f"{kept}; Path=/; Secure; HttpOnly; SameSite=Strict"
    return Reply(encode(body), headers=headers)
