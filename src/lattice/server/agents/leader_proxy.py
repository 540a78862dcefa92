"""Requests that only the leader can answer, passed on to it by a server that does not lead."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from lattice.errors import Unavailable
from lattice.server.access.authorization import SYSTEM
from lattice.server.access.certificate_authority import CertificateAuthority, write_private
from lattice.server.requests.call import Reply, User
from lattice.server.requests.status_error import warning_text

CONNECT_TIMEOUT_S = 5.0  # seconds
SERVER_USER = "lattice-server"
PROXY_CERTIFICATE_LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """What is to be read, and who wants to."""

    user: User
    path: str
    query: Mapping[str, str]


@dataclass
class LeaderProxy:
    """`leader`: https://HOST:PORT of the leader's API, as it wrote it down; `own` is ours."""

    leader_url: Callable[[], str | None]
    own_url: Callable[[], str]
    tls: ssl.SSLContext
    _session: aiohttp.ClientSession | None = field(default=None)

    async def forward(self, asked: ForwardedRequest) -> Reply:
        """The leader's answer to a question that its asker was found to have a right to. It is put by us, and passed on once."""
        url = self._require_leader_url(asked.user)
        session = self._session = self._session or aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        query = f"?{urlencode(asked.query)}" if asked.query else ""
        try:
            response = await session.get(f"{url}{asked.path}{query}", ssl=self.tls, timeout=timeout)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(
                f"the leader at {url} does not answer: {error}", fix="try again in a moment"
            ) from error
        told = tuple(warning_text(header) for header in response.headers.getall("Warning", ()))
        if response.status >= 400 or response.content_length is not None:
            async with response:
                return Reply(
                    await response.read(), response.status, response.headers.get("Content-Type", ""), told
                )
        return Reply(
            _pieces(response),
            response.status,
            response.headers.get("Content-Type", ""),
            told,
            is_idle_stream=True,
        )

    def _require_leader_url(self, user: User) -> str:
        url = self.leader_url()
        if not url or url == self.own_url() or SYSTEM in user.groups:
            raise Unavailable(
                "no server leads just now, and only the leader can answer this", fix="try again in a moment"
            )
        return url

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
        raise Unavailable("the connection with the leader broke", fix="try again in a moment") from error
    finally:
        response.close()


def leader_proxy_tls(authority: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    """As one of Lattice's own servers, to another."""
    pair = authority.issue_client(SERVER_USER, [SYSTEM], PROXY_CERTIFICATE_LIFETIME)
    file = folder / "relay.pem"
    write_private(file, pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(file)
    return context
