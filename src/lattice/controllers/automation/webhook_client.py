"""Calls to addresses that users wrote down: https only, never into the installation itself, nothing of the answer shown.

An address is judged after its name was resolved, and the connection goes to exactly the address that was judged: a name that
resolves to something else a moment later changes nothing. Redirects are not followed.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lattice.errors import Denied, LatticeError, Unavailable

HTTP_SUCCESS_CLASS = 2  # hundreds of an HTTP status
MAX_RESPONSE_BYTES = 1 << 20  # bytes that are read at most; none of them are kept
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64_NETWORK = ipaddress.IPv6Network("64:ff9b::/96")  # an IPv4 address inside an IPv6 one


class WebhookClient(Protocol):
    async def post(self, url: str, body: Any, timeout: float) -> None:
        """Delivered, or raises LatticeError saying why not."""
        ...


def parse_networks(setting: str) -> tuple[Network, ...]:
    """`10.1.0.0/16,127.0.0.1/32`"""
    return tuple(ipaddress.ip_network(each.strip()) for each in setting.split(",") if each.strip())


def address_problem(text: str, allowed: Sequence[Network] = ()) -> str:
    """Why this address must not be called; "" if it may be."""
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    if any(address in network for network in allowed if network.version == address.version):
        return ""
    return (
        ""
        if address.is_global and not address.is_multicast
        else f"{address} is inside the installation or not a public address"
    )


def _embedded_ipv4(address: Address) -> Address:
    """IPv4 addresses that are dressed up as IPv6 ones are judged as what they are."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64_NETWORK:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


class _Resolver(AbstractResolver):
    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM
        )
        addresses = list(dict.fromkeys((str(each[4][0]), each[0]) for each in found))
        for address, _ in addresses:
            if wrong := address_problem(address, self._allowed):
                raise Denied(
                    f"{host} must not be called: {wrong}",
                    fix="use a public https address, or ask for it to be allowed",
                )
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST
            )
            for address, kind in addresses
        ]

    async def close(self) -> None:
        return None


@dataclass(frozen=True)
class HttpsWebhookClient:
    """`allowed`: networks that may be called though they are not public; `authorities`: a PEM file to trust besides the system's."""

    allowed_networks: Sequence[Network] = ()
    ca_file: str = ""

    async def post(self, url: str, body: Any, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise Denied(f"{url} is not an https address", fix="use https")
        try:
            literal = address_problem(parts.hostname, self.allowed_networks)
        except ValueError:
            literal = ""  # a name: judged once it is resolved
        if literal:
            raise Denied(
                f"{parts.hostname} must not be called: {literal}",
                fix="use a public https address, or ask for it to be allowed",
            )
        try:
            async with asyncio.timeout(timeout):
                await self._post(url, body)
        except LatticeError:
            raise
        except TimeoutError as error:
            raise Unavailable(f"{parts.hostname} did not answer within {timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.__cause__, Denied):
                raise error.__cause__ from error
            raise Unavailable(f"{parts.hostname} cannot be reached: {_error_text(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{parts.hostname} cannot be reached: {_error_text(error)}") from error

    async def _post(self, url: str, body: Any) -> None:
        tls = ssl.create_default_context()
        if self.ca_file:
            tls.load_verify_locations(self.ca_file)
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(self.allowed_networks), ssl=tls, use_dns_cache=False, limit=1
        )
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False) as session,
            session.post(url, json=body, allow_redirects=False, headers={"User-Agent": "lattice"}) as answer,
        ):
            await answer.content.read(MAX_RESPONSE_BYTES)
            if answer.status // 100 != HTTP_SUCCESS_CLASS:
                raise Unavailable(f"{urlsplit(url).hostname} answered {answer.status}")


def _error_text(error: BaseException) -> str:
    return str(getattr(error, "strerror", "") or type(error).__name__)
