"""Watches over WebSocket, as browsers and JavaScript clients open them: one text message for every watch event."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from lattice.errors import Denied
from lattice.server.requests.call import Reply

# A browser cannot set the header Authorization on a WebSocket: the token is in an offered subprotocol.
BEARER_PROTOCOL_PREFIX = "base64url.bearer.authorization.k8s.io."
# Interval of pings, by which a dead connection is noticed.
HEARTBEAT_S = 30.0


def is_websocket(headers: Mapping[str, str]) -> bool:
    """Whether a request asks to become a WebSocket."""
    upgrades = headers.get("Connection", "").lower()
    return "upgrade" in upgrades and headers.get("Upgrade", "").lower() == "websocket"


def offered_protocols(headers: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]


def with_bearer_of_protocol(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers with the bearer token that a WebSocket request offers as a subprotocol."""
    if not is_websocket(headers) or "Authorization" in headers:
        return headers
    for protocol in offered_protocols(headers):
        if protocol.startswith(BEARER_PROTOCOL_PREFIX):
            encoded = protocol.removeprefix(BEARER_PROTOCOL_PREFIX)
            with contextlib.suppress(binascii.Error, ValueError):
                token = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
                return {**headers, "Authorization": f"Bearer {token}"}
    return headers


def reject_foreign_origin(headers: Mapping[str, str]) -> None:
    """Reject a WebSocket that a page of another site opens with the client certificate of the browser.

    The same-origin policy of browsers does not cover WebSockets. A page that sends a token is trusted by the owner
    of the token.
    """
    origin = headers.get("Origin", "")
    if not origin or "Authorization" in headers or urlsplit(origin).netloc == headers.get("Host", ""):
        return
    raise Denied(
        f"a page of {origin[:200]} may not open a WebSocket without a bearer token",
        where="Origin",
        fix=f"offer the subprotocol {BEARER_PROTOCOL_PREFIX}TOKEN",
    )


async def send_websocket(request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    """Send every line of a watch as one text message, until the watch or the client ends."""
    assert not isinstance(reply.body, bytes)  # noqa: S101 - a watch is a stream
    # A browser fails the connection if it offered subprotocols and none is chosen. The watch has the same
    # messages in all.
    offered = [
        name for name in offered_protocols(request.headers) if not name.startswith(BEARER_PROTOCOL_PREFIX)
    ]
    socket = web.WebSocketResponse(protocols=offered[:1], heartbeat=HEARTBEAT_S, compress=False)
    await socket.prepare(request)
    sending = asyncio.ensure_future(_send_lines(socket, reply.body))
    receiving = asyncio.ensure_future(_wait_for_close(socket))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
        await socket.close()
    return socket


async def _send_lines(socket: web.WebSocketResponse, pieces: AsyncIterator[bytes]) -> None:
    try:
        async for piece in pieces:
            for line in piece.splitlines():
                await socket.send_str(line.decode())
    except ConnectionError:
        return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def _wait_for_close(socket: web.WebSocketResponse) -> None:
    """Return when the client closes the connection; what a client sends to a watch has no meaning."""
    async for message in socket:
        if message.type in {WSMsgType.CLOSE, WSMsgType.ERROR}:
            return
