"""One server over HTTP from the command line: JSON in, JSON out, and its refusals as our errors."""

import contextlib
import http.client
import os
import re
import socket
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice import __version__, errors
from lattice.cli.output import messages as say
from lattice.cli.client.config import ADDRESSES, Server
from lattice.errors import Cause, Gone, LatticeError, Malformed, Unavailable
from lattice.kinds.meta.json_body import decode_stored, encode

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
APPLY = "application/apply-patch+yaml"
_CONNECT_SECONDS = 10.0
_ATTEMPTS = 6  # for requests that the server asks to send again later
_LONGEST_WAIT = 30.0
_PIECE = 64 * 1024  # bytes of a text at a time


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    accept: str = JSON
    content: str = JSON

    @property
    def target(self) -> str:
        wanted = {k: v for k, v in self.query.items() if v}
        return f"{self.path}?{urllib.parse.urlencode(wanted)}" if wanted else self.path


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    value: Any


class Client:
    """Keeps one connection open; streams get their own."""

    def __init__(
        self, server: Server, timeout: float = 30.0, warn: Callable[[str], None] = say.warning
    ) -> None:
        self.server = server
        self.timeout = timeout or None
        self.warn = warn
        self._url = _parsed(server.url)
        self._tls = _context(server) if self._url.scheme == "https" else None
        self._kept: http.client.HTTPConnection | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None, accept: str = JSON) -> Any:
        return self.send(Request("GET", path, query or {}, accept=accept)).value

    def pages(self, path: str, query: Mapping[str, str], accept: str = JSON) -> list[Any]:
        """Every page of a list, all of one moment. If the server forgets that moment on the way, one large page of now."""
        pages = [self.get(path, query, accept)]
        while token := pages[-1].get("metadata", {}).get("continue"):
            try:
                pages.append(self.get(path, {**query, "continue": token}, accept))
            except Gone:
                return [self.get(path, {k: v for k, v in query.items() if k != "limit"}, accept)]
        return pages

    def send(self, request: Request) -> Answer:
        """Ask once; again if the server says when to come back, and that is in time."""
        ends = time.monotonic() + self.timeout if self.timeout else None
        for attempt in range(1, _ATTEMPTS + 1):
            if ends and self._kept is not None and self._kept.sock is not None:
                self._kept.sock.settimeout(max(0.001, ends - time.monotonic()))
            response = self._response(request)
            body = self._guarded(response.read)
            for text in _warnings(response):
                self.warn(text)
            wait = _come_back(response)
            if wait is None or attempt == _ATTEMPTS or (ends and time.monotonic() + wait >= ends):
                return _checked(response.status, body, request)
            time.sleep(wait)
        raise AssertionError("unreachable")

    def stream(self, request: Request) -> Iterator[Any]:
        """The events of a watch, until the server ends it. Losing the connection ends it too."""
        with self._streaming(request) as response:
            yield from _lines(response)

    def text(self, request: Request) -> Iterator[bytes]:
        """A text as it comes, until the server ends it; one that breaks off is an error."""
        with self._streaming(request) as response:
            while piece := self._guarded(lambda: response.read1(_PIECE)):
                yield piece

    @contextlib.contextmanager
    def _streaming(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        """A connection of its own, on which silence is no reason to give up."""
        connection = self._connect()
        try:
            self._guarded(lambda: _begin(connection, request, self._headers(request)))
            response = self._guarded(connection.getresponse)
            if response.status >= 400:
                _checked(response.status, self._guarded(response.read), request)
            for text in _warnings(response):
                self.warn(text)
            if connection.sock is not None:
                connection.sock.settimeout(None)
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            yield response
        finally:
            connection.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _response(self, request: Request) -> http.client.HTTPResponse:
        reused = self._kept is not None
        if self._kept is None:
            self._kept = self._connect()
        connection = self._kept
        try:
            _begin(connection, request, self._headers(request))
            return connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as e:
            self.close()
            if reused and request.method in (
                "GET",
                "PATCH",
            ):  # asking twice changes nothing: our patches are applies
                return self._response(request)
            raise self._unanswered(e) from e
        except (OSError, http.client.HTTPException) as e:
            self.close()
            raise self._unanswered(e) from e

    def _guarded(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (OSError, http.client.HTTPException) as e:
            self.close()
            raise self._unanswered(e) from e

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port or 80, timeout=_CONNECT_SECONDS)
        else:
            connection = _Secure((host, port or 443), self._tls, self.server.name or host)
        self._guarded(connection.connect)
        connection.sock.settimeout(self.timeout)
        return connection

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": request.accept, "User-Agent": f"lattice/{__version__}"}
        if request.body is not None:
            headers["Content-Type"] = request.content
        if self.server.token:
            headers["Authorization"] = f"Bearer {self.server.token}"
        return headers

    def _unanswered(self, e: Exception) -> Unavailable:
        url = self.server.url
        match e:
            case ConnectionRefusedError():
                return Unavailable(
                    f"no server answers at {url}", fix="is `lattice up` running? else check the address"
                )
            case ssl.SSLCertVerificationError():
                return Unavailable(
                    f"{url} shows a certificate that we do not trust: {e.verify_message}",
                    fix=_trust(self.server),
                )
            case ssl.SSLError():
                return Unavailable(
                    f"no secure connection to {url}: {e.reason or e}",
                    fix="check the address, and your client certificate",
                )
            case TimeoutError():
                return Unavailable(
                    f"{url} gave no answer in time", fix="try again, or wait longer with --request-timeout"
                )
            case socket.gaierror():
                return Unavailable(
                    f"there is no host {self._url.hostname!r}",
                    where=url,
                    fix=f"check the address in {self.server.source}",
                )
        return Unavailable(
            f"the connection to {url} broke: {e}", fix="is the server still running? try again"
        )


def _trust(server: Server) -> str:
    if server.source in ADDRESSES:
        return "set LATTICE_CA to the certificate of the authority that signed it"
    return "use the kubeconfig that this server wrote"


class _Secure(http.client.HTTPSConnection):
    """TLS to a host whose certificate may carry another name than its address."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext, name: str) -> None:
        super().__init__(*address, timeout=_CONNECT_SECONDS, context=tls)
        self._tls, self._name = tls, name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def _begin(connection: http.client.HTTPConnection, request: Request, headers: dict[str, str]) -> None:
    connection.request(
        request.method, request.target, None if request.body is None else encode(request.body), headers
    )


def _parsed(url: str) -> urllib.parse.SplitResult:
    try:
        found = urllib.parse.urlsplit(url)
        usable = (
            found.scheme in ("http", "https")
            and bool(found.hostname)
            and (found.port is None or found.port > 0)
        )
    except ValueError:
        usable = False
    if not usable:
        raise Malformed(f"{url!r} is not the address of a server", fix="write it like https://127.0.0.1:6440")
    return found


def _context(server: Server) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=server.authority or None)
        if server.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if server.certificate:
            _load_certificate(context, server)
    except (ssl.SSLError, ValueError) as e:
        raise Malformed(
            f"a certificate or key cannot be read: {e}",
            where=server.url,
            fix="write the kubeconfig again with `lattice kubeconfig`",
        ) from e
    return context


def _load_certificate(context: ssl.SSLContext, server: Server) -> None:
    """OpenSSL reads key pairs from files only: ours is for our eyes, and gone at once."""
    handle, path = tempfile.mkstemp(prefix="lattice-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{server.certificate}\n{server.key}\n")
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


def _lines(response: http.client.HTTPResponse) -> Iterator[Any]:
    while True:
        try:
            line = response.readline()
        except (OSError, http.client.HTTPException):
            return
        if not line.endswith(b"\n"):
            return  # cut off in the middle: the watch is resumed from what came before
        if line.strip():
            yield decode_stored(line)


def _warnings(response: http.client.HTTPResponse) -> Iterator[str]:
    for header in response.headers.get_all("Warning") or []:
        text = header.split(" ", 2)[-1].strip()
        yield text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text.startswith('"') else text


def _come_back(response: http.client.HTTPResponse) -> float | None:
    after = response.headers.get("Retry-After", "")
    if response.status not in (429, 503) or not after.isdigit():
        return None
    return min(float(after), _LONGEST_WAIT)


def _checked(status: int, body: bytes, request: Request) -> Answer:
    try:
        value = decode_stored(body) if body else None
    except msgspec.DecodeError:
        value = body.decode(errors="replace")
    if status < 400:
        return Answer(status, value)
    raise refusal(status, value if isinstance(value, dict) else {}, request.path)


_BY_REASON = {
    kind.reason: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LatticeError)
}
_BY_STATUS = {kind.status: kind for kind in reversed(list(_BY_REASON.values()))}
_FIXES = {
    401: "check the token or certificate in your kubeconfig",
    403: "ask whoever runs this server for the right to do it",
}


def refusal(status: int, answer: Mapping[str, Any], path: str = "") -> LatticeError:
    """The error that a Status answer stands for."""
    kind = (
        _BY_REASON.get(str(answer.get("reason")))
        or _BY_STATUS.get(status)
        or (Unavailable if status >= 500 else LatticeError)
    )
    details = answer.get("details") or {}
    causes = [
        Cause(str(c.get("field", "")), str(c.get("message", "")), str(c.get("reason", "")))
        for c in details.get("causes") or []
        if isinstance(c, dict)
    ]
    what, fix = _apart(str(answer.get("message") or f"the server answered {status} to {path}"))
    return kind(what, fix=fix or _FIXES.get(status, "") or _elsewhere(status, details, path), causes=causes)


def _elsewhere(status: int, details: Mapping[str, Any], path: str) -> str:
    if status != 404 or not details.get("kind") or not details.get("name"):
        return ""
    group = f".{details['group']}" if details.get("group") else ""
    inside = re.match(r"/apis?/(?:[^/]+/){1,2}namespaces/([^/]+)/", path)
    namespace = f" -n {inside[1]}" if inside else ""
    return f"`lattice get {details['kind']}{group}{namespace}` lists what there is"


def _apart(message: str) -> tuple[str, str]:
    """What, and how to fix it, which our server writes at the end: `... (fix: do this)`."""
    what, marker, fix = message.rpartition(" (fix: ")
    return (what, fix[:-1]) if marker and fix.endswith(")") else (message, "")
