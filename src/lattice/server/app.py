"""The edge: HTTP requests become calls, replies become HTTP responses. The only file that knows aiohttp."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

from lattice import metrics
from lattice.errors import LatticeError, Malformed, NotAllowed, TooLarge, TooMany, Unavailable
from lattice.kinds.body import encode
from lattice.server import bodies, lists, reviews, scale, verbs, watch
from lattice.server.api import Api
from lattice.server.auth import Tokens, authenticate
from lattice.server.authority import Deed, authorize
from lattice.server.call import JSON, Call, Reply, Target, User
from lattice.server.discovery import VIRTUAL
from lattice.server.documents import Documents
from lattice.server.fleet import MAX_QUESTION, FleetQuestions, asked, while_wanted
from lattice.server.options import truthy
from lattice.server.planned import apply_planned
from lattice.server.problem import status_of
from lattice.server.question import APPLY
from lattice.server.routes import deed, locate, unknown_path

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
Verb = Callable[[Api, Call], Awaitable[Reply]]

ON_OBJECT: dict[str, Verb] = {"GET": verbs.get, "PUT": verbs.update, "PATCH": verbs.patch, "DELETE": verbs.delete}
ON_SCALE: dict[str, Verb] = {"GET": scale.get_scale, "PUT": scale.put_scale, "PATCH": scale.put_scale}
ON_STATUS: dict[str, Verb] = {"GET": verbs.get, "PUT": verbs.update, "PATCH": verbs.patch}
NEEDS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass
class App:
    api: Api
    tokens: Tokens
    documents: Documents
    health: Health
    fleet: FleetQuestions | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.perf_counter()
        verb, resource, target = request.method.lower(), "", None
        try:
            if request.path in OPEN_PATHS:
                return _response(await self._health(request.path))
            user = await authenticate(self.tokens, request.headers, _peer(request))
            target, verb, answer = self._route(request, user)
            resource = target.served.resource.id if target else ""
            reply = await answer
        except LatticeError as error:
            reply = _refusal(error, target)
        except web.HTTPRequestEntityTooLarge:
            reply = _refusal(TooLarge(f"the body is over {MAX_BODY} bytes", fix="split it"), target)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request failed", method=request.method, path=request.path)
            reply = _refusal(LatticeError("internal error; the server's log has the details"), target)
        metrics.REQUESTS.labels(verb, resource, reply.status).inc()
        if verb != "watch":
            metrics.REQUEST_SECONDS.labels(verb).observe(time.perf_counter() - began)
        return await self._send(request, reply, watching=verb == "watch")

    def _route(self, request: web.BaseRequest, user: User) -> tuple[Target | None, str, Awaitable[Reply]]:
        path = request.path
        parts = path.strip("/").split("/")
        if path == "/metrics":
            authorize(user, Deed("get", "", "metrics"), None)
            return None, "get", _metrics()
        if parts[0] not in {"api", "apis"} or len(parts) < (3 if parts[0] == "api" else 4):
            if request.method not in {"GET", "HEAD"}:
                raise unknown_path(path)
            return None, "get", self.documents.answer(path, request.headers.get("Accept", ""))
        if (kind := REVIEWS.get(tuple(parts[1:]))) and request.method == "POST":
            return None, "create", self._review(request, user, kind)
        if self.fleet is not None and (question := asked(parts)):
            return None, "ask", self._ask(request, user, self.fleet, question)
        target = locate(self.api.catalog, path)
        watching = request.method == "GET" and truthy(request.query.get("watch"))
        wanted = deed(request.method, target, watching=watching)
        return target, wanted.verb, self._act(request, user, target, wanted)

    async def _act(self, request: web.BaseRequest, user: User, target: Target, wanted: Deed) -> Reply:
        authorize(user, wanted, target.served.resource)
        call = Call(
            request.method,
            target,
            user,
            request.query,
            await _body(request),
            request.headers.get("Content-Type", JSON),
            request.headers.get("Accept", ""),
            request.headers.get("User-Agent", ""),
        )
        return await _verb_for(call, wanted.verb)(self.api, call)

    async def _review(self, request: web.BaseRequest, user: User, kind: str) -> Reply:
        body, _ = bodies.read(await _body(request), request.headers.get("Content-Type", JSON), kind, protobuf_too=True)
        if not isinstance(body, dict):
            raise Malformed(f"the body must be a {kind}")
        return Reply(encode(await reviews.review(self.api.catalog, self.tokens, user, kind, body)), 201)

    async def _ask(self, request: web.BaseRequest, user: User, fleet: FleetQuestions, question: str) -> Reply:
        if request.method != "POST":
            raise NotAllowed(f"a question is put with POST, not {request.method}", where=request.path, fix="send it as JSON with POST")
        fleet.admit(user, question)
        body = await _body(request, MAX_QUESTION)
        if question == APPLY:
            return await apply_planned(fleet, user, body)  # also if nobody waits for it any more: half of it would help nobody
        answer = asyncio.create_task(fleet.ask(user, question, body))
        return await while_wanted(answer, lambda: request.transport is not None and not request.transport.is_closing())

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
            status=reply.status, headers={"Content-Type": reply.content_type, "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        if watching:
            metrics.WATCHES.inc()
        try:
            await response.prepare(request)
            await _pour(reply.body, response)
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


def _verb_for(call: Call, verb: str) -> Verb:
    target, resource = call.target, call.target.served.resource
    if target.subresource:
        chosen = (ON_SCALE if target.subresource == "scale" else ON_STATUS).get(call.method)
    elif target.name:
        chosen = ON_OBJECT.get(call.method)
    else:
        chosen = {
            "list": lists.list_objects,
            "watch": watch.watch_objects,
            "create": verbs.create,
            "deletecollection": lists.delete_collection,
        }.get(verb)
        if verb in {"create", "deletecollection"} and resource.namespaced and not target.namespace:
            chosen = None
    if chosen is None or (not target.subresource and verb not in resource.verbs):
        raise verbs.refuse_verb(call)
    return chosen


async def _metrics() -> Reply:
    return Reply(await asyncio.to_thread(metrics.exposition), content_type=metrics.MEDIA_TYPE)


async def _body(request: web.BaseRequest, most: int = MAX_BODY) -> bytes:
    if (request.content_length or 0) > most:
        raise TooLarge(f"the body is {request.content_length} bytes, at most {most} are taken", fix="split it")
    return await request.clone(client_max_size=most + 1).read() if request.can_read_body else b""


def _peer(request: web.BaseRequest) -> Mapping[str, Any] | None:
    return request.transport.get_extra_info("peercert") if request.transport else None


def _refusal(error: LatticeError, target: Target | None) -> Reply:
    resource = target.served.resource if target else None
    headers = {"Retry-After": RETRY_AFTER} if isinstance(error, TooMany) else {}
    return Reply(encode(status_of(error, resource, (target.name if target else "") or error.subject)), error.status, headers=headers)


def _response(reply: Reply) -> web.Response:
    assert isinstance(reply.body, bytes)  # noqa: S101 - streams are sent piece by piece
    response = web.Response(body=reply.body, status=reply.status, headers=reply.headers or None)
    response.headers["Content-Type"] = reply.content_type
    for warning in reply.warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response
