"""An HTTPS load generator: keep-alive connections that send the next request after every response."""

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import yaml


@dataclass
class Target:
    host: str
    port: int
    tls: ssl.SSLContext


def target(kubeconfig: Path) -> Target:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    url = urlsplit(cluster["server"])
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(
            base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
        )
        pair.flush()
        context.load_cert_chain(pair.name)
    return Target(url.hostname or "", url.port or 443, context)


def request(method: str, path: str, body: bytes = b"", content: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: lattice\r\nAccept: application/json\r\nUser-Agent: bench/1\r\n"
    if body:
        head += f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


@dataclass
class Result:
    count: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    def quantile(self, share: float) -> float:
        """A latency quantile in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _Connection(asyncio.Protocol):
    """Reads responses with Content-Length only, as single objects have."""

    def __init__(self, requests: Iterator[bytes], result: Result, done: "asyncio.Future[None]") -> None:
        self.requests, self.result, self.done = requests, result, done
        self.buffer = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def _next(self) -> None:
        following = next(self.requests, None)
        if following is None:
            self.transport.close()
            return
        self.sent = time.perf_counter()
        self.transport.write(following)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self.buffer) < end + 4 + length:
            return
        status = int(self.buffer[9:12])
        self.buffer = self.buffer[end + 4 + length :]
        self.result.latencies.append(time.perf_counter() - self.sent)
        if status < 300:
            self.result.count += 1
        else:
            self.result.refused[status] = self.result.refused.get(status, 0) + 1
        self._next()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def drive(at: Target, requests: Iterator[bytes], connections: int = 16) -> Result:
    result = Result()
    loop = asyncio.get_running_loop()
    finished = [loop.create_future() for _ in range(connections)]
    connects: list[Callable[[], asyncio.Protocol]] = [
        partial(_Connection, requests, result, done) for done in finished
    ]
    began = time.perf_counter()
    await asyncio.gather(
        *(
            loop.create_connection(connect, at.host, at.port, ssl=at.tls, server_hostname="localhost")
            for connect in connects
        )
    )
    await asyncio.gather(*finished)
    result.seconds = time.perf_counter() - began
    return result
