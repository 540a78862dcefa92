"""Webhooks reach only public https addresses: names, redirects and address spellings cannot reach private
hosts (abuse case 16)."""

import asyncio
import hmac
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lattice.controllers.automation import webhook_client as webhooks
from lattice.controllers.automation.webhook_client import HttpsWebhookClient, address_problem, parse_networks
from lattice.errors import Denied, Unavailable
from lattice.server.access.certificate_authority import CertificateAuthority, new_authority

INSIDE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254",  # noqa: S104 - called, not bound
    "100.64.0.1", "224.0.0.1",
    "255.255.255.255", "::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1",
]  # fmt: skip
OUTSIDE = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", INSIDE)
def test_private_addresses_are_refused(address: str) -> None:
    assert "is an internal or non-public address" in address_problem(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_addresses_are_allowed(address: str) -> None:
    assert address_problem(address) == ""


def test_allow_list_admits_only_its_entries() -> None:
    allowed = parse_networks("10.1.0.0/16, 127.0.0.1/32")
    assert address_problem("10.1.2.3", allowed) == address_problem("127.0.0.1", allowed) == ""
    assert address_problem("10.2.0.1", allowed)
    assert address_problem("127.0.0.2", allowed)


@dataclass
class Hook:
    """An https server on loopback."""

    folder: Path
    seen: list[Any] = field(default_factory=list)
    signatures: list[tuple[bytes, str]] = field(default_factory=list)
    port: int = 0
    authority: CertificateAuthority = field(default_factory=lambda: new_authority()[0])

    @property
    def trusted(self) -> str:
        path = self.folder / "ca.pem"
        path.write_bytes(self.authority.pem)
        return str(path)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request.path, await request.json() if request.can_read_body else None))
        self.signatures.append((await request.read(), request.headers.get("X-Lattice-Signature", "")))
        match request.path:
            case "/moved":
                return web.Response(status=302, headers={"Location": f"https://localhost:{self.port}/ok"})
            case "/broken":
                return web.Response(status=500, text="secret of the other side")
            case "/slow":
                await asyncio.sleep(60)
            case "/endless":
                response = web.StreamResponse()
                await response.prepare(request)
                for _ in range(4096):
                    await response.write(b"x" * 65536)
                return response
        return web.Response(text="secret of the other side")


@asynccontextmanager
async def hook(folder: Path) -> AsyncIterator[Hook]:
    found = Hook(folder)
    pair = found.authority.issue_server(["localhost"])
    (folder / "pair.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "pair.pem")
    runner = web.ServerRunner(web.Server(found.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    found.port = runner.addresses[0][1]
    try:
        yield found
    finally:
        await runner.cleanup()


LOOPBACK = parse_networks("127.0.0.1/32,::1/128")


async def post_webhook(
    found: Hook,
    path: str,
    *,
    allowed: Any = LOOPBACK,
    host: str = "localhost",
    timeout: float = 5.0,
    trusted: str = "",
) -> None:
    await HttpsWebhookClient(allowed, trusted or found.trusted).post(
        f"https://{host}:{found.port}{path}", {"message": "hello"}, timeout
    )


async def test_body_arrives_over_verified_tls(tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        await post_webhook(found, "/ok")
        assert found.seen == [("/ok", {"message": "hello"})]


async def test_signature_is_of_the_raw_body(tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        client = HttpsWebhookClient(LOOPBACK, found.trusted)
        await client.post(f"https://localhost:{found.port}/ok", {"message": "hello"}, 5.0, b"shared")
        await client.post(f"https://localhost:{found.port}/ok", {"message": "hello"}, 5.0)
        (body, signature), (_, unsigned) = found.signatures
        assert signature == "sha256=" + hmac.new(b"shared", body, "sha256").hexdigest()
        assert unsigned == ""


REFUSED = {
    "by its address": {"host": "127.0.0.1"},
    "by a name that resolves to it": {"host": "localhost"},
    "in another spelling": {"host": "0x7f.1"},
    "as a number": {"host": "2130706433"},
    "as IPv6": {"host": "[::ffff:127.0.0.1]"},
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
async def test_private_hosts_are_not_called(case: str, tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        with pytest.raises(
            Unavailable if case == "as a number" else Denied
        ):  # a host that is a number is no address to aiohttp
            await post_webhook(found, "/ok", allowed=(), **REFUSED[case])
        assert found.seen == []


async def test_dns_rebinding_does_not_change_the_called_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hook(tmp_path) as found:
        answers = iter(["198.51.100.7", "127.0.0.1", "127.0.0.1"])
        asked: list[str] = []

        async def resolve(host: str, port: int, **_: Any) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        monkeypatch.setattr(
            webhooks,
            "address_problem",
            lambda text, _: "" if str(ip_address(text)) == "198.51.100.7" else "inside",
        )
        connected: list[Any] = []

        async def connect(_: Any, address: Any) -> None:
            connected.append(address)
            raise OSError(111, "Connection refused")

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
        with pytest.raises((Unavailable, Denied)):
            await post_webhook(found, "/ok", allowed=(), host="rebinding.example")
        assert asked == ["rebinding.example"], "resolved once"
        assert [each[0] for each in connected] == ["198.51.100.7"], "and called where it was judged to be"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/moved", "answered with status 302"),
        ("/broken", "answered with status 500"),
        ("/slow", "did not answer within 0.3 s"),
    ],
    ids=str,
)
async def test_error_omits_response_body(path: str, words: str, tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        with pytest.raises(Unavailable) as trouble:
            await post_webhook(found, path, timeout=0.3 if path == "/slow" else 5.0)
        assert words in str(trouble.value)
        assert "secret" not in str(trouble.value)
        assert len(found.seen) == 1, "a redirect is not followed"


async def test_endless_response_is_not_read_fully(tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        await post_webhook(found, "/endless")


async def test_plain_http_and_unknown_certificates_are_refused(tmp_path: Path) -> None:
    async with hook(tmp_path) as found:
        with pytest.raises(Denied, match="not an https address"):
            await HttpsWebhookClient(LOOPBACK).post(f"http://localhost:{found.port}/ok", {}, 5.0)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await HttpsWebhookClient(LOOPBACK).post(f"https://localhost:{found.port}/ok", {}, 5.0)
        assert found.seen == []
