"""The HTTP server: aiohttp requests become calls, replies become responses.

No other module of `server` handles HTTP requests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import structlog
from aiohttp import web

from lattice import metrics
from lattice import tracing as traces
from lattice.errors import (
    LatticeError,
    Malformed,
    MethodNotAllowed,
    TooLarge,
    TooManyRequests,
    Unavailable,
    UnsupportedMediaType,
)
from lattice.kinds.join_token import JOIN_PATH
from lattice.kinds.meta.json_body import MAX_BYTES, encode
from lattice.server.access.access_reviews import LOCAL_REVIEW, require_review_namespace, review
from lattice.server.access.authentication import TokenAuthenticator, authenticate
from lattice.server.access.authorization import RequestAttributes, authorize, log_rejected_request
from lattice.server.agents.join import MAX_JOIN_REQUEST_BYTES, NodeJoinService
from lattice.server.discovery.discovery import VIRTUAL_RESOURCES
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.server.fleet_queries.apply_plan import apply_plan
from lattice.server.fleet_queries.query_schema import APPLY_QUERY
from lattice.server.fleet_queries.service import (
    MAX_QUERY_BYTES,
    FleetQueryService,
    await_while_connected,
    query_of_path,
)
from lattice.server.http.responses import (
    accepts_gzip,
    audit_id,
    complete_response,
    gzip_pieces,
    reply_headers,
    with_etag,
)
from lattice.server.http.websocket import (
    is_websocket,
    reject_foreign_origin,
    send_websocket,
    with_bearer_of_protocol,
)
from lattice.server.live.top_and_spending import LIVE_PATHS, UsageService
from lattice.server.requests import bodies
from lattice.server.requests.call import JSON, Call, Reply, Target, User
from lattice.server.requests.options import truthy
from lattice.server.requests.status_error import status_of
from lattice.server.resources.api import Api
from lattice.server.resources.dispatch import handler_for
from lattice.server.resources.routes import (
    RoutedRequest,
    expand_short_path,
    expand_watch_path,
    fill_body_kind,
    request_attributes,
    resolve_target,
    unknown_path_error,
)
from lattice.server.ui_backend import pages
from lattice.server.ui_backend.pages import PageRequest, Pages

MAX_BODY_BYTES = MAX_BYTES
# Body types that a page of another site may send without asking the browser for permission. No body of the API has
# such a type.
FORM_MEDIA_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
# The Retry-After header, in seconds; the Status body has the same number.
RETRY_AFTER_S = "1"
# kubectl 1.27 sends SelfSubjectReview in the older version.
REVIEW_VERSIONS = ("v1", "v1beta1")
REVIEW_KINDS: dict[tuple[str, ...], str] = {
    (resource.group, version, resource.plural): resource.kind
    for resource, version in product(VIRTUAL_RESOURCES, REVIEW_VERSIONS)
    if resource.verbs == ("create",)
}
PROBE_CHECKS = ("ping", "log", "etcd")
UNAUTHENTICATED_PATHS = frozenset(
    ["/health", *("/".join(parts) for parts in product(("/healthz", "/livez", "/readyz"), PROBE_CHECKS))]
) | {"/healthz", "/livez", "/readyz"}
log = structlog.get_logger()

Health = Callable[[], Mapping[str, Any]]
# Interval at which the server checks whether the client of an idle stream is still connected.
STREAM_CLIENT_CHECK_INTERVAL_S = 1.0


@dataclass
class App:
    """Authenticates, routes, authorizes and answers HTTP requests. Optional services are None where a server
    does not offer them."""

    api: Api
    tokens: TokenAuthenticator
    documents: DiscoveryDocuments
    health: Health
    fleet_queries: FleetQueryService | None = None
    join_service: NodeJoinService | None = None
    usage: UsageService | None = None
    pages: Pages | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request. Errors become Kubernetes Status objects; unexpected exceptions are logged
        and answered with 500."""
        started_at = time.perf_counter()
        audit = audit_id(request, self.api.new_uid())
        verb, resource, target, user = request.method.lower(), "", None, None
        with traces.span("request", method=request.method) as span:
            try:
                # Before authentication: probes, joining machines and visitors of the page have no user yet.
                if request.path in UNAUTHENTICATED_PATHS:
                    return await complete_response(
                        request, await self._health(request.path, request.query), audit
                    )
                if request.path == JOIN_PATH and self.join_service is not None:
                    return await complete_response(
                        request, await self._join(request, self.join_service), audit
                    )
                if self.pages is not None and pages.is_page(request.method, request.path, request.headers):
                    certificate = _peer_certificate(request)
                    page_request = PageRequest(
                        request.method, request.path, request.headers, request.remote or "", certificate
                    )
                    body = await _body(request, MAX_JOIN_REQUEST_BYTES)
                    return await complete_response(
                        request, await self.pages.answer(page_request, body), audit
                    )
                headers = with_bearer_of_protocol(request.headers)
                user = await authenticate(self.tokens, headers, _peer_certificate(request))
                if is_websocket(headers):
                    reject_foreign_origin(headers)
                target, verb, answer = self._route(request, user)
                resource = target.served.resource.id if target else ""
                reply = await answer
            except LatticeError as error:
                log_rejected_request(error, user, request.method, request.path)
                reply = _error_reply(error, target)
            except web.HTTPRequestEntityTooLarge:
                reply = _error_reply(
                    TooLarge(f"the body has more than {MAX_BODY_BYTES} bytes", fix="split the request"),
                    target,
                )
            # The client is gone or the server stops: a reply would reach no client.
            except (asyncio.CancelledError, ConnectionError):
                raise
            except Exception:
                log.exception("request failed", method=request.method, path=request.path)
                reply = _error_reply(LatticeError("internal error; the server's log has the details"), target)
            span.set_attributes(
                name=f"{verb} {resource}".rstrip(), verb=verb, resource=resource, status=reply.status
            )
        metrics.REQUESTS.labels(verb, resource, reply.status).inc()
        # A watch may last an hour: its duration says nothing about the speed of the server.
        if verb != "watch":
            metrics.REQUEST_SECONDS.labels(verb).observe(time.perf_counter() - started_at)
        return await self._send(request, reply, audit, watching=verb == "watch")

    def _route(self, request: web.BaseRequest, user: User) -> tuple[Target | None, str, Awaitable[Reply]]:
        content_type = request.headers.get("Content-Type", JSON)
        # A reply to HEAD is a reply to GET without the body.
        method = "GET" if request.method == "HEAD" else request.method
        routed = expand_short_path(RoutedRequest(method, request.path, request.query, content_type))
        routed = expand_watch_path(routed)
        if method != "GET":
            # Reject a write that a page of another site could send with the client certificate of the
            # browser.
            media = content_type.partition(";")[0].strip().lower()
            if media in FORM_MEDIA_TYPES:
                raise UnsupportedMediaType(
                    f"the body of the request was in an unknown format - accepted media types include: {JSON},"
                    f" application/yaml; got {media}",
                    fix=f"set Content-Type: {JSON}",
                )
        path, parts = routed.path, routed.path_parts
        # No object name contains a slash. Once decoded, an encoded slash would select a different object.
        if "%2f" in request.raw_path.partition("?")[0].lower():
            raise unknown_path_error(request.raw_path)
        if path == "/metrics":
            authorize(user, RequestAttributes("get", "", "metrics"), None)
            return None, "get", _metrics()
        if self.pages is not None and path == pages.EVENT_STREAM_PATH and routed.method == "GET":
            reauthenticate = partial(authenticate, self.tokens, request.headers, _peer_certificate(request))
            opening = self.pages.event_stream.open(user, routed.query, reauthenticate)
            return None, "watch", self._open_event_stream(opening)
        if parts[0] not in {"api", "apis"} or len(parts) < (3 if parts[0] == "api" else 4):
            if routed.method != "GET":
                raise unknown_path_error(path)
            return None, "get", self._document(path, request.headers.get("Accept", ""))
        if request.method == "POST" and (review_request := _review_of_path(parts)):
            return None, "create", self._review(request, user, *review_request)
        if self.usage is not None and path in LIVE_PATHS and routed.method == "GET":
            return None, "get", self.usage.read(path, user, routed.query)
        if self.fleet_queries is not None and (query_name := query_of_path(parts)):
            return None, "ask", self._answer_fleet_query(request, user, self.fleet_queries, query_name)
        target = resolve_target(self.api.catalog, path)
        watching = request.method == "GET" and truthy(routed.query.get("watch"))
        attributes = request_attributes(routed.method, target, watching=watching)
        return target, attributes.verb, self._answer_resource(request, routed, user, target, attributes)

    async def _answer_resource(
        self,
        request: web.BaseRequest,
        routed: RoutedRequest,
        user: User,
        target: Target,
        attributes: RequestAttributes,
    ) -> Reply:
        # Authorized before the body is read: a user without rights costs no memory.
        authorize(user, attributes, target.served.resource)
        body = fill_body_kind(routed, await _body(request))
        call = Call(
            routed.method,
            target,
            user,
            routed.query,
            body,
            routed.content_type,
            request.headers.get("Accept", ""),
            request.headers.get("User-Agent", ""),
        )
        if target.subresource == "log" and self.usage is not None:
            return await self.usage.workload_logs.read(self.api, call)
        return await handler_for(call, attributes.verb)(self.api, call)

    async def _document(self, path: str, accept: str) -> Reply:
        return with_etag(await self.documents.answer(path, accept))

    async def _review(
        self, request: web.BaseRequest, user: User, kind: str, namespace: str | None = None
    ) -> Reply:
        body, _ = bodies.parse_body(
            await _body(request), request.headers.get("Content-Type", JSON), kind, allow_protobuf=True
        )
        if not isinstance(body, dict):
            raise Malformed(f"the body must be a {kind}")
        if namespace is not None:
            require_review_namespace(body, namespace)
        return Reply(encode(await review(self.api.catalog, self.tokens, user, kind, body)), 201)

    async def _open_event_stream(self, opening: Awaitable[Reply]) -> Reply:
        """Open the web page's event stream and start the query process, which takes a second or two to
        start."""
        reply = await opening
        if self.fleet_queries is not None:
            self.fleet_queries.warm_up()
        return reply

    async def _answer_fleet_query(
        self, request: web.BaseRequest, user: User, fleet: FleetQueryService, query_name: str
    ) -> Reply:
        if request.method != "POST":
            raise MethodNotAllowed(
                f"a fleet query needs method POST, not {request.method}",
                where=request.path,
                fix="send the query as JSON with POST",
            )
        fleet.admit(user, query_name)
        body = await _body(request, MAX_QUERY_BYTES)
        if query_name == APPLY_QUERY:
            # A plan is applied even after the client disconnected: half of a plan would help no user.
            return await apply_plan(fleet, user, body)
        answer = asyncio.create_task(fleet.answer(user, query_name, body))
        return await await_while_connected(
            answer, lambda: request.transport is not None and not request.transport.is_closing()
        )

    async def _join(self, request: web.BaseRequest, join_service: NodeJoinService) -> Reply:
        """Answer a join request without authentication: a joining machine has only its token."""
        if request.method == "GET":
            return Reply(encode(join_service.connection_info()))
        if request.method != "POST":
            raise MethodNotAllowed(
                f"joining needs method POST, not {request.method}",
                where=request.path,
                fix="run `lattice agent`",
            )
        body = await _body(request, MAX_JOIN_REQUEST_BYTES)
        return Reply(encode(await join_service.join(body, request.remote or "")), 201)

    async def _health(self, path: str, query: Mapping[str, str]) -> Reply:
        if path == "/health":
            return Reply(encode(dict(self.health())))
        _, probe, check = (*path.split("/"), "")[:3]
        if probe == "readyz" or check == "etcd":
            try:
                await asyncio.wait_for(self.api.store.revision(), 2)
            except (TimeoutError, LatticeError) as error:
                raise Unavailable("the store does not respond", fix="see the server's log") from error
        if "verbose" in query and not check:
            lines = [*(f"[+]{name} ok" for name in PROBE_CHECKS), f"{probe} check passed", ""]
            return Reply("\n".join(lines).encode(), content_type="text/plain")
        return Reply(b"ok", content_type="text/plain")

    async def _send(
        self, request: web.BaseRequest, reply: Reply, audit: str, *, watching: bool
    ) -> web.StreamResponse:
        if isinstance(reply.body, bytes):
            return await complete_response(request, reply, audit)
        pieces = _while_connected(reply.body, request) if reply.is_idle_stream else reply.body
        response = web.StreamResponse(status=reply.status)
        for name, value in reply_headers(reply, audit):
            response.headers.add(name, value)
        if not watching and not reply.is_idle_stream and accepts_gzip(request.headers):
            pieces = gzip_pieces(pieces)
            response.headers["Content-Encoding"] = "gzip"
        response.enable_chunked_encoding()
        if watching:
            metrics.WATCHES.inc()
        try:
            if watching and is_websocket(request.headers):
                return await send_websocket(request, reply)
            await response.prepare(request)
            if request.method == "HEAD":
                await pieces.aclose()  # type: ignore[attr-defined]
                return response
            await _write_stream(pieces, response)
        except LatticeError as error:
            # The status line is sent already: an aborted connection is the only way to signal the failure.
            log.info("stream ended early", path=request.path, reason=str(error))
            if request.transport is not None:
                request.transport.abort()
        finally:
            if watching:
                metrics.WATCHES.dec()
        return response


async def _write_stream(pieces: AsyncIterator[bytes], response: web.StreamResponse) -> None:
    try:
        async for piece in pieces:
            if piece:
                await response.write(piece)
        await response.write_eof()
    except ConnectionError:  # the client went away in the middle
        return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def _while_connected(pieces: AsyncIterator[bytes], request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream while the client is connected.

    A disconnect during an idle stream is noticed by a check every `STREAM_CLIENT_CHECK_INTERVAL_S` seconds
    only.
    """
    next_piece: asyncio.Future[bytes] | None = None
    try:
        while True:
            next_piece = next_piece or asyncio.ensure_future(anext(pieces))
            await asyncio.wait({next_piece}, timeout=STREAM_CLIENT_CHECK_INTERVAL_S)
            if next_piece.done():
                piece, next_piece = next_piece.result(), None
                yield piece
            elif request.transport is None or request.transport.is_closing():
                return
    except StopAsyncIteration:
        return
    finally:
        if next_piece is not None:
            next_piece.cancel()
            await asyncio.wait({next_piece})
        await pieces.aclose()  # type: ignore[attr-defined]


async def _metrics() -> Reply:
    return Reply(await asyncio.to_thread(metrics.render_metrics), content_type=metrics.MEDIA_TYPE)


async def _body(request: web.BaseRequest, limit: int = MAX_BODY_BYTES) -> bytes:
    # A chunked body announces no length: the read below limits such a body.
    if (request.content_length or 0) > limit:
        raise TooLarge(
            f"the body has {request.content_length} bytes; the maximum is {limit}", fix="split the request"
        )
    return await request.clone(client_max_size=limit + 1).read() if request.can_read_body else b""


def _peer_certificate(request: web.BaseRequest) -> Mapping[str, Any] | None:
    return request.transport.get_extra_info("peercert") if request.transport else None


def _error_reply(error: LatticeError, target: Target | None) -> Reply:
    resource = target.served.resource if target else None
    headers = {"Retry-After": RETRY_AFTER_S} if isinstance(error, TooManyRequests) else {}
    return Reply(
        encode(status_of(error, resource, (target.name if target else "") or error.object_name)),
        error.status,
        headers=headers,
    )


def _review_of_path(parts: list[str]) -> tuple[str, str | None] | None:
    """The kind of review at a path and, for a review of one namespace, the namespace; None for other paths."""
    if len(parts) == 6 and parts[3] == "namespaces":
        kind = REVIEW_KINDS.get((parts[1], parts[2], parts[5]))
        return (kind, parts[4]) if kind == LOCAL_REVIEW else None
    kind = REVIEW_KINDS.get(tuple(parts[1:]))
    return (kind, None) if kind and kind != LOCAL_REVIEW else None
