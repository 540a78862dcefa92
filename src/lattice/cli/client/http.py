"""HTTP client for one server: JSON requests, watch streams, and error responses as LatticeErrors."""

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
from lattice.cli.client.config import ADDRESS_VARIABLES, Server
from lattice.cli.output import messages as say
from lattice.errors import Cause, Gone, LatticeError, Malformed, Unavailable, UsageError
from lattice.kinds.meta.json_body import decode_stored, encode

JSON_MEDIA_TYPE = "application/json"
TABLE_MEDIA_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
APPLY_PATCH_MEDIA_TYPE = "application/apply-patch+yaml"
_CONNECT_TIMEOUT_S = 10.0
# Attempts for a request that the server answers with Retry-After.
_MAX_ATTEMPTS = 6
_MAX_RETRY_AFTER_S = 30.0
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    accept: str = JSON_MEDIA_TYPE
    content_type: str = JSON_MEDIA_TYPE

    @property
    def target(self) -> str:
        """Path and query of the request; parameters without a value are left out."""
        parameters = {k: v for k, v in self.query.items() if v}
        return f"{self.path}?{urllib.parse.urlencode(parameters)}" if parameters else self.path


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: Any


class Client:
    """HTTP client that reuses one connection; every stream gets a connection of its own."""

    def __init__(
        self, server: Server, timeout: float = 30.0, warn: Callable[[str], None] = say.warning
    ) -> None:
        self.server = server
        # 0 stands for no limit; a socket timeout of 0 would make the socket non-blocking.
        self.timeout = timeout or None
        self.warn = warn
        try:
            parts = urllib.parse.urlsplit(server.url)
            usable = (
                parts.scheme in ("http", "https")
                and bool(parts.hostname)
                and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            usable = False
        if not usable:
            raise Malformed(
                f"{server.url!r} is not a server address",
                fix="write the address as https://HOST:PORT, such as https://127.0.0.1:6440",
            )
        self._url = parts
        self._tls = _tls_context(server) if self._url.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None, accept: str = JSON_MEDIA_TYPE) -> Any:
        return self.send(Request("GET", path, query or {}, accept=accept)).body

    def list_pages(self, path: str, query: Mapping[str, str], accept: str = JSON_MEDIA_TYPE) -> list[Any]:
        """All pages of a list at one revision. If the server compacts that revision meanwhile, the list is
        requested again without pages."""
        pages = [self.get(path, query, accept)]
        while token := pages[-1].get("metadata", {}).get("continue"):
            try:
                pages.append(self.get(path, {**query, "continue": token}, accept))
            except Gone:
                return [self.get(path, {k: v for k, v in query.items() if k != "limit"}, accept)]
        return pages

    def send(self, request: Request) -> Response:
        """Send a request; retry after the server's Retry-After delay while the request timeout allows."""
        # The deadline covers all attempts and the delays between them.
        deadline = time.monotonic() + self.timeout if self.timeout else None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            if deadline and self._connection is not None and self._connection.sock is not None:
                # Never 0, which would make the socket non-blocking.
                self._connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
            response = self._send_once(request)
            body = self._translate_errors(response.read)
            for text in _warnings(response):
                self.warn(text)
            after, wait = response.headers.get("Retry-After", ""), None
            # Retry-After may also be a date; Lattice sends seconds.
            if response.status in (429, 503) and after.isdigit():
                wait = min(float(after), _MAX_RETRY_AFTER_S)
            # A delay past the deadline is useless: return the server's error now.
            if wait is None or attempt == _MAX_ATTEMPTS or (deadline and time.monotonic() + wait >= deadline):
                return _check_status(response.status, body, request)
            time.sleep(wait)
        raise AssertionError("unreachable")

    def stream_events(self, request: Request) -> Iterator[Any]:
        """Events of a watch until the server or a lost connection ends the stream."""
        with self._open_stream(request) as response:
            while True:
                try:
                    line = response.readline()
                # The watcher resumes at its last revision, so a lost connection is no error here.
                except (OSError, http.client.HTTPException):
                    return
                # The stream broke in the middle of a line: the watch resumes from the last complete event.
                if not line.endswith(b"\n"):
                    return
                if line.strip():
                    yield decode_stored(line)

    def stream_text(self, request: Request) -> Iterator[bytes]:
        """Pieces of a text until the server ends the stream; a lost connection is an error."""
        with self._open_stream(request) as response:
            while piece := self._translate_errors(lambda: response.read1(_CHUNK_BYTES)):
                yield piece

    @contextlib.contextmanager
    def _open_stream(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        """Open a connection for one stream, without a read timeout: a quiet watch or log is normal."""
        connection = self._connect()
        try:
            self._translate_errors(lambda: _send_request(connection, request, self._headers(request)))
            response = self._translate_errors(connection.getresponse)
            if response.status >= 400:
                _check_status(response.status, self._translate_errors(response.read), request)
            for text in _warnings(response):
                self.warn(text)
            if connection.sock is not None:
                connection.sock.settimeout(None)
                # Keepalive detects a server that vanished, since reads on the stream never time out.
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            yield response
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send_once(self, request: Request) -> http.client.HTTPResponse:
        # The server may have closed an idle connection just before the request.
        reused = self._connection is not None
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        try:
            _send_request(connection, request, self._headers(request))
            return connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as e:
            self.close()
            # A retry is safe only for requests that change nothing when repeated. Every PATCH of this client
            # is a server-side apply, which changes nothing when repeated.
            if reused and request.method in ("GET", "PATCH"):
                return self._send_once(request)
            raise self._unavailable_error(e) from e
        except (OSError, http.client.HTTPException) as e:
            self.close()
            raise self._unavailable_error(e) from e

    def _translate_errors(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (OSError, http.client.HTTPException) as e:
            self.close()
            raise self._unavailable_error(e) from e

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is None:
            # The request timeout replaces the connect timeout once the connection is open.
            connection = http.client.HTTPConnection(host, port or 80, timeout=_CONNECT_TIMEOUT_S)
        else:
            connection = _TlsConnection((host, port or 443), self._tls, self.server.tls_server_name or host)
        self._translate_errors(connection.connect)
        connection.sock.settimeout(self.timeout)
        return connection

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": request.accept, "User-Agent": f"lattice/{__version__}"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if self.server.token:
            headers["Authorization"] = f"Bearer {self.server.token}"
        return headers

    def _unavailable_error(self, e: Exception) -> Unavailable:
        url = self.server.url
        match e:
            case ConnectionRefusedError():
                return Unavailable(
                    f"no server answers at {url}",
                    fix="start the server with `lattice up`, or check the address",
                )
            case ssl.SSLCertVerificationError():
                fix = "use the kubeconfig that this server wrote"
                if self.server.source in ADDRESS_VARIABLES:
                    fix = (
                        "use --kubeconfig with the kubeconfig in the server's data folder, or set LATTICE_CA to a file "
                        "with its certificate-authority-data, decoded from base64"
                    )
                return Unavailable(
                    f"{url} presents a certificate that is not trusted: {e.verify_message}", fix=fix
                )
            case ssl.SSLError():
                return Unavailable(
                    f"no secure connection to {url}: {e.reason or e}",
                    fix="check the address, and your client certificate",
                )
            case TimeoutError():
                return Unavailable(
                    f"{url} did not answer in time", fix="try again, or increase --request-timeout"
                )
            case socket.gaierror():
                return Unavailable(
                    f"there is no host {self._url.hostname!r}",
                    where=url,
                    fix=f"check the address in {self.server.source}",
                )
        return Unavailable(
            f"the connection to {url} failed: {e}", fix="check that the server runs, and try again"
        )


class _TlsConnection(http.client.HTTPSConnection):
    """TLS connection to a host whose certificate may carry another name than the host's address."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext, name: str) -> None:
        super().__init__(*address, timeout=_CONNECT_TIMEOUT_S, context=tls)
        self._tls, self._name = tls, name

    def connect(self) -> None:
        # HTTPSConnection.connect would check the certificate against the host of the address.
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def _send_request(connection: http.client.HTTPConnection, request: Request, headers: dict[str, str]) -> None:
    connection.request(
        request.method, request.target, None if request.body is None else encode(request.body), headers
    )


def _tls_context(server: Server) -> ssl.SSLContext:
    try:
        # Without an authority the system's trust store is used.
        context = ssl.create_default_context(cadata=server.authority or None)
        if server.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if server.certificate:
            # OpenSSL reads key pairs only from files. mkstemp creates the file with mode 0600; the key is on
            # disk only until load_cert_chain returns.
            handle, path = tempfile.mkstemp(prefix="lattice-")
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(f"{server.certificate}\n{server.key}\n")
                context.load_cert_chain(path)
            finally:
                os.unlink(path)
    except (ssl.SSLError, ValueError) as e:
        raise Malformed(
            f"a certificate or key cannot be read: {e}",
            where=server.url,
            fix="create the kubeconfig again with `lattice kubeconfig`",
        ) from e
    return context


def _warnings(response: http.client.HTTPResponse) -> Iterator[str]:
    for header in response.headers.get_all("Warning") or []:
        # Form of the header: code agent "text".
        text = header.split(" ", 2)[-1].strip()
        yield text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text.startswith('"') else text


def _check_status(status: int, body: bytes, request: Request) -> Response:
    try:
        value = decode_stored(body) if body else None
    except msgspec.DecodeError:
        value = body.decode(errors="replace")
    if status < 400:
        return Response(status, value)
    raise error_from_status(status, value if isinstance(value, dict) else {}, request.path)


# Several classes share a status, so the reason in a Status response decides first.
_ERRORS_BY_REASON = {
    kind.reason: kind
    for kind in vars(errors).values()
    # A wrong command line is found before any request: no response stands for UsageError.
    if isinstance(kind, type) and issubclass(kind, LatticeError) and kind is not UsageError
}
# Reversed: the first class with a status wins.
_ERRORS_BY_STATUS = {kind.status: kind for kind in reversed(list(_ERRORS_BY_REASON.values()))}
_FIX_BY_STATUS = {
    401: "check the token or certificate in your kubeconfig",
    403: "ask the platform team for permission",
}


def error_from_status(status: int, answer: Mapping[str, Any], path: str = "") -> LatticeError:
    """The LatticeError that a Status response of the API stands for."""
    kind = (
        _ERRORS_BY_REASON.get(str(answer.get("reason")))
        or _ERRORS_BY_STATUS.get(status)
        or (Unavailable if status >= 500 else LatticeError)
    )
    details = answer.get("details") or {}
    causes = [
        Cause(str(c.get("field", "")), str(c.get("message", "")), str(c.get("reason", "")))
        for c in details.get("causes") or []
        if isinstance(c, dict)
    ]
    message = str(answer.get("message") or f"the server answered {status} to {path}")
    fix = _FIX_BY_STATUS.get(status, "")
    if not fix and status == 404 and details.get("kind") and details.get("name"):
        group = f".{details['group']}" if details.get("group") else ""
        # Namespaces of core kinds and of grouped kinds: /api/v1/namespaces/NS/ and
        # /apis/GROUP/VERSION/namespaces/NS/.
        match = re.match(r"/apis?/(?:[^/]+/){1,2}namespaces/([^/]+)/", path)
        namespace = f" -n {match[1]}" if match else ""
        fix = f"`lattice get {details['kind']}{group}{namespace}` lists the existing objects"
    # The server appends a fix to its message as `... (fix: do this)`.
    problem, marker, server_fix = message.rpartition(" (fix: ")
    if marker and server_fix.endswith(")"):
        message, fix = problem, server_fix[:-1] or fix
    return kind(message, fix=fix, causes=causes)
