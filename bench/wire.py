"""A blocking HTTPS connection for responses with Content-Length or chunked encoding."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from bench.load import Target, request

PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: dict[str, str]


class Line:
    """A connection to the server for sequential requests."""

    def __init__(self, at: Target) -> None:
        plain = socket.create_connection((at.host, at.port), timeout=60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = at.tls.wrap_socket(plain, server_hostname="localhost")
        self._file = self._socket.makefile("rb", PIECE)

    def ask(self, path: str, accept: str = "application/json") -> bytes:
        """The body of a successful response."""
        head = self.begin(path, accept)
        body = b"".join(self.pieces(head))
        assert head.status == 200, body
        return body

    def send(self, method: str, path: str, body: bytes, content: str) -> int:
        """The status of the response."""
        self._socket.sendall(request(method, path, body, content))
        head = self._head()
        b"".join(self.pieces(head))
        return head.status

    def begin(self, path: str, accept: str = "application/json") -> Head:
        self._socket.sendall(
            request("GET", path).replace(b"Accept: application/json", b"Accept: " + accept.encode())
        )
        return self._head()

    def _head(self) -> Head:
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Head(status, headers)

    def pieces(self, head: Head) -> Iterator[bytes]:
        if head.headers.get("transfer-encoding") != "chunked":
            yield self._file.read(int(head.headers.get("content-length", "0")))
            return
        while size := int(self._file.readline(), 16):
            yield self._file.read(size)
            self._file.readline()
        self._file.readline()

    def close(self) -> None:
        self._file.close()
        self._socket.close()
