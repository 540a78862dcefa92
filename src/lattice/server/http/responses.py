"""HTTP responses: the headers of every reply, conditional requests, and compression of large bodies."""

import asyncio
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Mapping

from aiohttp import web

from lattice.server.requests.call import Reply
from lattice.server.requests.status_error import warning_header

# A cache between client and server must ask again: the answer depends on the user and on the moment.
CACHE_CONTROL = "no-cache, private"
AUDIT_HEADER = "Audit-Id"
# As in Kubernetes: smaller bodies are not worth the time.
MIN_GZIP_BYTES = 128 << 10
# The fastest level: most of the gain for a tenth of the time.
GZIP_LEVEL = 1
# zlib's window bits for the gzip format.
GZIP_WINDOW_BITS = 31
# Larger pieces are compressed on a thread, so that other requests run meanwhile.
MAX_INLINE_GZIP_BYTES = 64 << 10
_AUDIT_ID = re.compile(r"[-A-Za-z0-9._]{1,64}")


def audit_id(request: web.BaseRequest, new_uid: str) -> str:
    """The id by which logs of client and server name one request: the id that the client sent, or a new one."""
    sent = request.headers.get(AUDIT_HEADER, "")
    return sent if _AUDIT_ID.fullmatch(sent) else new_uid


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the client accepts a gzip body; a quality of 0 excludes gzip."""
    for item in headers.get("Accept-Encoding", "").split(","):
        coding, _, quality = (part.strip().lower() for part in item.partition(";"))
        if coding in {"gzip", "*"}:
            return quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def reply_headers(reply: Reply, audit: str) -> list[tuple[str, str]]:
    """The headers of a reply; a reply may override the caching."""
    headers = {"Content-Type": reply.content_type, "Cache-Control": CACHE_CONTROL, AUDIT_HEADER: audit}
    return [
        *{**headers, **reply.headers}.items(),
        *(("Warning", warning_header(warning)) for warning in reply.warnings),
    ]


async def complete_response(request: web.BaseRequest, reply: Reply, audit: str) -> web.Response:
    """The response to a reply whose body is complete: 304 if the client has the body, compressed if the body is
    large."""
    assert isinstance(reply.body, bytes)  # noqa: S101 - streams are sent piece by piece
    response = web.Response(status=reply.status)
    response.headers.clear()
    for name, value in reply_headers(reply, audit):
        response.headers.add(name, value)
    etag = reply.headers.get("Etag", "")
    if etag and etag in request.headers.get("If-None-Match", "") and request.method in {"GET", "HEAD"}:
        response.set_status(304)
        return response
    body = reply.body
    is_encoded = "Content-Encoding" in response.headers
    if len(body) >= MIN_GZIP_BYTES and not is_encoded and accepts_gzip(request.headers):
        body = await asyncio.to_thread(zlib.compress, body, GZIP_LEVEL, GZIP_WINDOW_BITS)
        response.headers["Content-Encoding"] = "gzip"
        response.headers.add("Vary", "Accept-Encoding")
    response.body = body
    return response


async def gzip_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Compress the pieces of a long list."""
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW_BITS)
    try:
        async for piece in pieces:
            if len(piece) > MAX_INLINE_GZIP_BYTES:
                yield await asyncio.to_thread(compressor.compress, piece)
            else:
                yield compressor.compress(piece)
        yield compressor.flush()
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


def with_etag(reply: Reply) -> Reply:
    """Return the reply with an ETag, so that a client that has the document already gets 304."""
    if not isinstance(reply.body, bytes) or reply.status != 200 or "Etag" in reply.headers:
        return reply
    digest = hashlib.sha256(reply.body).hexdigest()
    headers = {**reply.headers, "Etag": f'"{digest.upper()}"', "Vary": "Accept"}
    return Reply(reply.body, reply.status, reply.content_type, reply.warnings, headers)
