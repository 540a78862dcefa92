"""How this machine becomes a node: it makes sure that the server is the one that its token names, and only then shows the token."""

import http.client
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from lattice.agent.identity import Identity, JoinRecord
from lattice.errors import Denied, Invalid, LatticeError, NotFound, TooManyRequests, Unavailable, UnknownUser
from lattice.kinds.join_token import fingerprint, parse_token

PATH = "/apis/lattice.dev/v1alpha1/join"
REQUEST_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 1 << 20
MAX_SERVERS_QUERIED = 8  # servers
ERROR_BY_STATUS: dict[int, type[LatticeError]] = {
    401: UnknownUser,
    403: Denied,
    404: NotFound,
    409: Denied,
    422: Invalid,
    429: TooManyRequests,
}

T = TypeVar("T")


class _Endpoints(msgspec.Struct):
    authority: str
    agents: str
    servers: list[str] = []


class _JoinResponse(msgspec.Struct):
    node: str
    certificate: str
    authority: str
    agents: str


class _Status(msgspec.Struct):
    message: str = ""


def split_servers(servers: str) -> list[str]:
    """Several may be named, separated by commas."""
    return [word.strip() for word in servers.split(",") if word.strip()] or [""]


def join(identity: Identity, servers: str, token: str, name: str = "") -> None:
    """Joined on return; may be called again with the same token when an answer was lost."""
    parsed = parse_token(token)

    def ask(server: str) -> None:
        authority = _fetch_endpoints(server, _unverified_tls()).authority.encode()
        if fingerprint(authority) != parsed.authority:
            raise Denied(
                "this is not the server that the join token is for",
                where=server,
                fix="check --server, or make a new token there",
            )
        body = msgspec.json.encode(
            {"token": str(parsed), "request": identity.signing_request().decode(), "name": name}
        )
        answer = msgspec.json.decode(
            _request(server, "POST", _verified_tls(authority), body), type=_JoinResponse
        )
        identity.save_credentials(
            answer.certificate.encode(), authority, JoinRecord(answer.node, servers, (answer.agents,))
        )

    _first_reachable(servers, ask)


def renew_expired_certificate(identity: Identity, servers: str) -> bytes:
    """A new certificate for a machine that was away for longer than its last one lasted; the key says who it is."""
    body = msgspec.json.encode(
        {"certificate": identity.certificate.decode(), "request": identity.signing_request().decode()}
    )
    answer = _first_reachable(
        servers, lambda server: _request(server, "POST", _verified_tls(identity.authority), body)
    )
    return msgspec.json.decode(answer, type=_JoinResponse).certificate.encode()


def discover_agent_addresses(identity: Identity, servers: str) -> list[str]:
    """Where agents connect just now, as those servers say that answer and that our authority vouches for; then those that they name."""
    found: list[str] = []
    asked = split_servers(servers)
    for server in asked:  # grows meanwhile
        with suppress(LatticeError):
            told = _fetch_endpoints(server, _verified_tls(identity.authority))
            found.append(told.agents)
            asked += [each for each in told.servers if each not in asked][: MAX_SERVERS_QUERIED - len(asked)]
    return found


def _first_reachable(servers: str, ask: Callable[[str], T]) -> T:
    """What the first of them says that can be reached."""
    *others, last = split_servers(servers)
    for server in others:
        with suppress(Unavailable):
            return ask(server)
    return ask(last)


def _fetch_endpoints(server: str, tls: ssl.SSLContext) -> _Endpoints:
    try:
        return msgspec.json.decode(_request(server, "GET", tls), type=_Endpoints)
    except msgspec.MsgspecError as error:
        raise Unavailable(
            "the answer is not that of a Lattice server", where=server, fix="check --server"
        ) from error


def _request(server: str, method: str, tls: ssl.SSLContext, body: bytes | None = None) -> bytes:
    url = urlsplit(server)
    if url.scheme != "https" or not url.hostname:
        raise Invalid(
            f"{server!r} is not the address of a server",
            where="--server",
            fix="write it as https://HOST:PORT",
        )
    connection = http.client.HTTPSConnection(
        url.hostname, url.port or 443, timeout=REQUEST_TIMEOUT_S, context=tls
    )
    try:
        connection.request(method, PATH, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        text = response.read(MAX_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"the server cannot be reached: {error}",
            where=server,
            fix="see whether it runs and can be reached from here",
        ) from error
    finally:
        connection.close()
    if response.status >= 400:
        raise ERROR_BY_STATUS.get(response.status, Unavailable)(
            _error_message(text) or f"HTTP status {response.status}", where=server
        )
    return text


def _error_message(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Status).message
    except msgspec.MsgspecError:
        return ""


def _unverified_tls() -> ssl.SSLContext:
    """Nothing secret is said over it: what it tells is held against the token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _verified_tls(authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode())
    return context
