"""The edge: HTTP requests become calls, replies become HTTP responses. The only file that knows aiohttp."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from lattice import metrics, tracing as traces
from lattice.errors import LatticeError, Malformed, NotAllowed, TooLarge, TooMany, Unavailable
from lattice.kinds.meta.json_body import encode
from lattice.server.requests import bodies
from lattice.server.agents import join as joining
from lattice.server.live import usage as live
from lattice.server.ui_backend import pages
from lattice.server.access import access_reviews as reviews
from lattice.server.resources import shortpaths
from lattice.server.resources.api import Api
from lattice.server.access.audit import note_refusal
from lattice.server.access.authentication import Tokens, authenticate
from lattice.server.access.authorization import Deed, authorize
from lattice.server.requests.call import JSON, Call, Reply, Target, User
from lattice.server.discovery.discovery import VIRTUAL
from lattice.server.resources.dispatch import verb_for
from lattice.server.discovery.documents import Documents
from lattice.server.fleet_queries.service import MAX_QUESTION, FleetQuestions, while_wanted
from lattice.server.fleet_queries.service import asked as fleet_question
from lattice.server.agents.join import Joining
from lattice.server.live.usage import Live
from lattice.server.requests.options import truthy
from lattice.server.ui_backend.pages import Pages, Visit
from lattice.server.fleet_queries.apply_plan import apply_planned
from lattice.server.requests.status_error import status_of, warning_header
from lattice.server.fleet_queries.schema import APPLY
from lattice.server.resources.routes import deed, locate, unknown_path
from lattice.server.resources.shortpaths import Asked

MAX_BODY = 1 << 20
RETRY_AFTER = "1"  # seconds, as the Status says it too
REVIEWS: dict[tuple[str, ...], str] = {
    (each.group, version, each.plural): each.kind
    for each in VIRTUAL
    if each.verbs == ("create",)
    for version in ("v1", "v1beta1")  # kubectl 1.27 asks who it is under the older version
}
OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/health"})
log = structlog.get_logger()

Health = Callable[[], Mapping[str, Any]]
GLANCE = 1.0  # seconds between two looks whether anybody still reads a stream that says nothing


@dataclass
class App:
    api: Api
    tokens: Tokens
    documents: Documents
    health: Health
    fleet: FleetQuestions | None = None
    joining: Joining | None = None
    live: Live | None = None
    pages: Pages | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.perf_counter()
        verb, resource, target, user = request.method.lower(), "", None, None
        with traces.span("request", method=request.method) as span:
            try:
                if request.path in OPEN_PATHS:
                    return _response(await self._health(request.path))
                if request.path == joining.PATH and self.joining is not None:
                    return _response(await self._join(request, self.joining))
                if self.pages is not None and pages.is_page(request.method, request.path, request.headers):
                    return _response(await self._page(request, self.pages))
                user = await authenticate(self.tokens, request.headers, _peer(request))
                target, verb, answer = self._route(request, user)
                resource = target.served.resource.id if target else ""
                reply = await answer
            except LatticeError as error:
                note_refusal(error, user, request.method, request.path)
                reply = _refusal(error, target)
            except web.HTTPRequestEntityTooLarge:
                reply = _refusal(TooLarge(f"the body is over {MAX_BODY} bytes", fix="split it"), target)
            except (asyncio.CancelledError, ConnectionError):
                raise
            except Exception:
                log.exception("request failed", method=request.method, path=request.path)
                reply = _refusal(LatticeError("internal error; the server's log has the details"), target)
            span.tell(name=f"{verb} {resource}".rstrip(), verb=verb, resource=resource, status=reply.status)
        metrics.REQUESTS.labels(verb, resource, reply.status).inc()
        if verb != "watch":
            metrics.REQUEST_SECONDS.labels(verb).observe(time.perf_counter() - began)
        return await self._send(request, reply, watching=verb == "watch")

    def _route(self, request: web.BaseRequest, user: User) -> tuple[Target | None, str, Awaitable[Reply]]:
        content_type = request.headers.get("Content-Type", JSON)
        asked = shortpaths.in_full(Asked(request.method, request.path, request.query, content_type))
        path, parts = asked.path, asked.parts
        if "%2f" in request.raw_path.partition("?")[0].lower():
            raise unknown_path(
                request.raw_path
            )  # no name holds a slash: whoever sends one means something else than this would be taken for
        if path == "/metrics":
            authorize(user, Deed("get", "", "metrics"), None)
            return None, "get", _metrics()
        if self.pages is not None and path == pages.LIVE and asked.method == "GET":
            again = partial(authenticate, self.tokens, request.headers, _peer(request))
            return None, "watch", self._watched(self.pages.stream.open(user, asked.query, again))
        if parts[0] not in {"api", "apis"} or len(parts) < (3 if parts[0] == "api" else 4):
            if asked.method not in {"GET", "HEAD"}:
                raise unknown_path(path)
            return None, "get", self.documents.answer(path, request.headers.get("Accept", ""))
        if (kind := REVIEWS.get(tuple(parts[1:]))) and request.method == "POST":
            return None, "create", self._review(request, user, kind)
        if self.live is not None and path in live.PATHS and asked.method == "GET":
            return None, "get", self.live.read(path, user, asked.query)
        if self.fleet is not None and (question := fleet_question(parts)):
            return None, "ask", self._ask(request, user, self.fleet, question)
        target = locate(self.api.catalog, path)
        watching = asked.method == "GET" and truthy(asked.query.get("watch"))
        wanted = deed(asked.method, target, watching=watching)
        return target, wanted.verb, self._act(request, asked, user, target, wanted)

    async def _act(
        self, request: web.BaseRequest, asked: Asked, user: User, target: Target, wanted: Deed
    ) -> Reply:
        authorize(user, wanted, target.served.resource)
        body = shortpaths.completed(asked, await _body(request))
        call = Call(
            asked.method,
            target,
            user,
            asked.query,
            body,
            asked.content_type,
            request.headers.get("Accept", ""),
            request.headers.get("User-Agent", ""),
        )
        if target.subresource == "log" and self.live is not None:
            return await self.live.worklogs.read(self.api, call)
        return await verb_for(call, wanted.verb)(self.api, call)

    async def _review(self, request: web.BaseRequest, user: User, kind: str) -> Reply:
        body, _ = bodies.read(
            await _body(request), request.headers.get("Content-Type", JSON), kind, protobuf_too=True
        )
        if not isinstance(body, dict):
            raise Malformed(f"the body must be a {kind}")
        return Reply(encode(await reviews.review(self.api.catalog, self.tokens, user, kind, body)), 201)

    async def _watched(self, opening: Awaitable[Reply]) -> Reply:
        reply = await opening
        if self.fleet is not None:
            self.fleet.warm()
        return reply

    async def _ask(self, request: web.BaseRequest, user: User, fleet: FleetQuestions, question: str) -> Reply:
        if request.method != "POST":
            raise NotAllowed(
                f"a question is put with POST, not {request.method}",
                where=request.path,
                fix="send it as JSON with POST",
            )
        fleet.admit(user, question)
        body = await _body(request, MAX_QUESTION)
        if question == APPLY:
            return await apply_planned(
                fleet, user, body
            )  # also if nobody waits for it any more: half of it would help nobody
        answer = asyncio.create_task(fleet.ask(user, question, body))
        return await while_wanted(
            answer, lambda: request.transport is not None and not request.transport.is_closing()
        )

    async def _page(self, request: web.BaseRequest, shown: Pages) -> Reply:
        visit = Visit(request.method, request.path, request.headers, request.remote or "", _peer(request))
        return await shown.answer(visit, await _body(request, joining.LARGEST))

    async def _join(self, request: web.BaseRequest, door: Joining) -> Reply:
        """Open to everybody: a machine that joins has nothing but its token."""
        if request.method == "GET":
            return Reply(encode(door.directions()))
        if request.method != "POST":
            raise NotAllowed(
                f"machines join with POST, not {request.method}",
                where=request.path,
                fix="run `lattice agent`",
            )
        return Reply(
            encode(await door.join(await _body(request, joining.LARGEST), request.remote or "")), 201
        )

    async def _health(self, path: str) -> Reply:
        if path == "/health":
            return Reply(encode(dict(self.health())))
        if path == "/readyz":
            try:
                await asyncio.wait_for(self.api.store.revision(), 2)
            except (TimeoutError, LatticeError) as error:
                raise Unavailable("the store does not answer", fix="see the server's log") from error
        return Reply(b"ok", content_type="text/plain")

    async def _send(self, request: web.BaseRequest, reply: Reply, *, watching: bool) -> web.StreamResponse:
        if isinstance(reply.body, bytes):
            return _response(reply)
        response = web.StreamResponse(
            status=reply.status,
            headers={"Content-Type": reply.content_type, "Cache-Control": "no-cache, private"},
        )
        for warning in reply.warnings:
            response.headers.add("Warning", warning_header(warning))
        response.enable_chunked_encoding()
        if watching:
            metrics.WATCHES.inc()
        try:
            await response.prepare(request)
            pieces = _while_read(reply.body, request) if reply.is_quiet else reply.body
            await _pour(pieces, response)
        except LatticeError as error:  # too late to say so in any other way than by breaking off
            log.info("stream broke off", path=request.path, reason=str(error))
            if request.transport is not None:
                request.transport.abort()
        finally:
            if watching:
                metrics.WATCHES.dec()
        return response


async def _pour(pieces: AsyncIterator[bytes], response: web.StreamResponse) -> None:
    try:
        async for piece in pieces:
            if piece:
                await response.write(piece)
        await response.write_eof()
    except ConnectionError:  # the client went away in the middle
        return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def _while_read(pieces: AsyncIterator[bytes], request: web.BaseRequest) -> AsyncIterator[bytes]:
    """The pieces, for as long as somebody is there to read them."""
    waiting: asyncio.Future[bytes] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(pieces))
            await asyncio.wait({waiting}, timeout=GLANCE)
            if waiting.done():
                piece, waiting = waiting.result(), None
                yield piece
            elif request.transport is None or request.transport.is_closing():
                return
    except StopAsyncIteration:
        return
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait({waiting})
        await pieces.aclose()  # type: ignore[attr-defined]


async def _metrics() -> Reply:
    return Reply(await asyncio.to_thread(metrics.exposition), content_type=metrics.MEDIA_TYPE)


async def _body(request: web.BaseRequest, most: int = MAX_BODY) -> bytes:
    if (request.content_length or 0) > most:
        raise TooLarge(
            f"the body is {request.content_length} bytes, at most {most} are taken", fix="split it"
        )
    return await request.clone(client_max_size=most + 1).read() if request.can_read_body else b""


def _peer(request: web.BaseRequest) -> Mapping[str, Any] | None:
    return request.transport.get_extra_info("peercert") if request.transport else None


def _refusal(error: LatticeError, target: Target | None) -> Reply:
    resource = target.served.resource if target else None
    headers = {"Retry-After": RETRY_AFTER} if isinstance(error, TooMany) else {}
    return Reply(
        encode(status_of(error, resource, (target.name if target else "") or error.subject)),
        error.status,
        headers=headers,
    )


def _response(reply: Reply) -> web.Response:
    assert isinstance(reply.body, bytes)  # noqa: S101 - streams are sent piece by piece
    response = web.Response(body=reply.body, status=reply.status, headers=reply.headers or None)
    response.headers["Content-Type"] = reply.content_type
    for warning in reply.warnings:
        response.headers.add("Warning", warning_header(warning))
    return response
