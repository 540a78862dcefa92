"""The leader proxy: a follower forwards requests that only the leader can answer."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from lattice.errors import Unavailable
from lattice.server.access.authorization import SYSTEM_GROUP
from lattice.server.access.certificate_authority import CertificateAuthority, write_private
from lattice.server.requests.call import Reply, User
from lattice.server.requests.status_error import warning_text

CONNECT_TIMEOUT_S = 5.0
SERVER_USER = "lattice-server"
PROXY_CERTIFICATE_LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A read request of a user, already authorized by this server."""

    user: User
    path: str
    query: Mapping[str, str]


@dataclass
class LeaderProxy:
    """Forwards requests to the leader. `leader_url` is the URL (https://HOST:PORT) that the leader published,
    `own_url` this server's URL."""

    leader_url: Callable[[], str | None]
    own_url: Callable[[], str]
    tls: ssl.SSLContext
    _session: aiohttp.ClientSession | None = field(default=None)

    async def forward(self, request: ForwardedRequest) -> Reply:
        """Send the request to the leader as SERVER_USER, the user of this server and not of the client, and
        return the leader's reply.

        A body without length becomes a stream. The server must have authorized the user before.
        `Unavailable` if no other server leads or the leader does not answer.
        """
        url = self.leader_url()
        # A request of a Lattice server was forwarded already: a second hop could go round in circles.
        if not url or url == self.own_url() or SYSTEM_GROUP in request.user.groups:
            raise Unavailable(
                "no server is leader at present, and only the leader can answer this request",
                fix="retry in a few seconds",
            )
        session = self._session = self._session or aiohttp.ClientSession()
        # Without a total limit, because a followed log may last for hours.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        query = f"?{urlencode(request.query)}" if request.query else ""
        try:
            response = await session.get(f"{url}{request.path}{query}", ssl=self.tls, timeout=timeout)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(
                f"the leader at {url} does not respond: {error}", fix="retry in a few seconds"
            ) from error
        warnings = tuple(warning_text(header) for header in response.headers.getall("Warning", ()))
        if response.status >= 400 or response.content_length is not None:
            async with response:
                return Reply(
                    await response.read(), response.status, response.headers.get("Content-Type", ""), warnings
                )
        return Reply(
            _pieces(response),
            response.status,
            response.headers.get("Content-Type", ""),
            warnings,
            is_idle_stream=True,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
        raise Unavailable("the connection to the leader was lost", fix="retry in a few seconds") from error
    finally:
        response.close()


def leader_proxy_tls(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    """The TLS context of a Lattice server as a client of the leader, with a certificate of the system
    group."""
    pair = authority.issue_client(SERVER_USER, [SYSTEM_GROUP], PROXY_CERTIFICATE_LIFETIME)
    file = folder / "relay.pem"
    write_private(file, pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(file)
    return context
