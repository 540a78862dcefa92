"""Call webhook URLs of users: https only, never into the private network, and without exposing the response.

The address is checked after name resolution, and the connection uses exactly the checked address, so a later
change of the DNS record has no effect. Redirects are not followed.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from lattice.errors import Denied, LatticeError, Unavailable

SIGNATURE_HEADER = "X-Lattice-Signature"
# The first digit of a successful HTTP status.
HTTP_SUCCESS_CLASS = 2
# The client reads at most this part of a response, in bytes, and discards it.
MAX_RESPONSE_BYTES = 1 << 20
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# IPv6 addresses that embed an IPv4 address.
NAT64_NETWORK = ipaddress.IPv6Network("64:ff9b::/96")


class WebhookClient(Protocol):
    """Delivers webhook calls."""

    async def post(self, url: str, body: Any, timeout: float, signing_key: bytes = b"") -> None:
        """Deliver the body as JSON, signed if there is a key, or raise LatticeError with the reason; `timeout` is
        in seconds."""
        ...


def parse_networks(setting: str) -> tuple[Network, ...]:
    """Parse a list of networks from a setting, for example `10.1.0.0/16,127.0.0.1/32`."""
    return tuple(ipaddress.ip_network(network.strip()) for network in setting.split(",") if network.strip())


def address_problem(text: str, allowed: Sequence[Network] = ()) -> str:
    """Why the address must not be called, or an empty string."""
    # The part after % names a network interface of this host, not the destination.
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    if any(address in network for network in allowed if network.version == address.version):
        return ""
    if address.is_global and not address.is_multicast:
        return ""
    return f"{address} is an internal or non-public address"


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, because it is the real destination; otherwise the
    address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64_NETWORK:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


class _Resolver(AbstractResolver):
    """Resolves host names and denies private addresses. The connection uses the checked address, so no later
    lookup can change the destination."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        infos = await asyncio.get_running_loop().getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM
        )
        addresses = list(dict.fromkeys((str(info[4][0]), info[0]) for info in infos))
        for address, _ in addresses:
            if problem := address_problem(address, self._allowed):
                raise Denied(
                    f"webhook calls to {host} are not allowed: {problem}",
                    fix="use a public https address, or add the network to --webhook-allow",
                )
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=address_family,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address, address_family in addresses
        ]

    async def close(self) -> None:
        return None


@dataclass(frozen=True)
class HttpsWebhookClient:
    """Call webhooks over https.

    `allowed_networks` are private networks that may be called; `ca_file` is a PEM file to trust besides the
    system's certificates.
    """

    allowed_networks: Sequence[Network] = ()
    ca_file: str = ""

    async def post(self, url: str, body: Any, timeout: float, signing_key: bytes = b"") -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise Denied(f"{url} is not an https address", fix="use an https:// address")
        try:
            problem = address_problem(parts.hostname, self.allowed_networks)
        except ValueError:
            # The host is a name: the resolver checks the address.
            problem = ""
        if problem:
            raise Denied(
                f"webhook calls to {parts.hostname} are not allowed: {problem}",
                fix="use a public https address, or add the network to --webhook-allow",
            )
        try:
            async with asyncio.timeout(timeout):
                await self._post(url, body, signing_key)
        except LatticeError:
            raise
        except TimeoutError as error:
            raise Unavailable(f"{parts.hostname} did not answer within {timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            # aiohttp wraps the error of the resolver.
            if isinstance(error.__cause__, Denied):
                raise error.__cause__ from error
            raise Unavailable(f"{parts.hostname} cannot be reached: {_error_text(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{parts.hostname} cannot be reached: {_error_text(error)}") from error

    async def _post(self, url: str, body: Any, signing_key: bytes) -> None:
        tls = ssl.create_default_context()
        if self.ca_file:
            tls.load_verify_locations(self.ca_file)
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(self.allowed_networks), ssl=tls, use_dns_cache=False, limit=1
        )
        payload = msgspec.json.encode(body)
        headers = {"User-Agent": "lattice", "Content-Type": "application/json"}
        if signing_key:
            headers[SIGNATURE_HEADER] = sign(payload, signing_key)
        # No proxy from the environment: a proxy would resolve the name itself, past the check of the address.
        # No decompression: a small response could expand beyond MAX_RESPONSE_BYTES.
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False) as session,
            session.post(url, data=payload, allow_redirects=False, headers=headers) as response,
        ):
            # Read and discard: no byte of the response is shown.
            await response.content.read(MAX_RESPONSE_BYTES)
            if response.status // 100 != HTTP_SUCCESS_CLASS:
                raise Unavailable(f"{urlsplit(url).hostname} answered with status {response.status}")


def sign(payload: bytes, key: bytes) -> str:
    """The value of the signature header: the receiver computes the same from the raw body and its copy of the
    key."""
    return f"sha256={hmac.new(key, payload, hashlib.sha256).hexdigest()}"


def _error_text(error: BaseException) -> str:
    return str(getattr(error, "strerror", "") or type(error).__name__)
