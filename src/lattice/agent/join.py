"""Join a machine as a node: the agent verifies the server by the fingerprint in the join token, and only then
sends the token."""

import http.client
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from lattice.agent.identity import Identity, JoinRecord
from lattice.errors import Denied, Invalid, LatticeError, NotFound, TooManyRequests, Unavailable, UnknownUser
from lattice.kinds.join_token import JOIN_PATH, fingerprint, parse_token

REQUEST_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 1 << 20
# `discover_agent_addresses` queries at most this many servers, unless it was given more. A response lists at
# most the same number (MAX_LISTED_SERVERS).
MAX_SERVERS_QUERIED = 8
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
    """The server addresses of a comma-separated list."""
    return [word.strip() for word in servers.split(",") if word.strip()] or [""]


def join(identity: Identity, servers: str, token: str, name: str = "") -> None:
    """Join through the first reachable server and save the credentials; a join with the same token can be
    repeated after a lost response."""
    parsed = parse_token(token)

    def join_at(server: str) -> None:
        # The agent sends nothing secret over the unverified connection. The fingerprint in the token verifies
        # the certificate authority that the server returns.
        unverified_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified_tls.check_hostname = False
        unverified_tls.verify_mode = ssl.CERT_NONE
        authority = _fetch_endpoints(server, unverified_tls).authority.encode()
        # The agent sends the token only to a server whose certificate is from this authority (decision 0020).
        if fingerprint(authority) != parsed.authority:
            raise Denied(
                "the join token belongs to a different server",
                where=server,
                fix="check --server, or create a token on this server",
            )
        body = msgspec.json.encode(
            {"token": str(parsed), "request": identity.signing_request().decode(), "name": name}
        )
        response = msgspec.json.decode(
            _request(server, "POST", _verified_tls(authority), body), type=_JoinResponse
        )
        identity.save_credentials(
            response.certificate.encode(), authority, JoinRecord(response.node, servers, (response.agents,))
        )

    _first_reachable(servers, join_at)


def renew_expired_certificate(identity: Identity, servers: str) -> bytes:
    """Request a new certificate for a node whose certificate has expired; the signature of the node's key
    proves the identity."""
    body = msgspec.json.encode(
        {"certificate": identity.certificate.decode(), "request": identity.signing_request().decode()}
    )
    response = _first_reachable(
        servers, lambda server: _request(server, "POST", _verified_tls(identity.authority), body)
    )
    return msgspec.json.decode(response, type=_JoinResponse).certificate.encode()


def discover_agent_addresses(identity: Identity, servers: str) -> list[str]:
    """The addresses at which the reachable servers currently accept agents. A server must have a certificate
    from the node's authority. The servers that a response lists are queried too."""
    addresses: list[str] = []
    queried = split_servers(servers)
    # The list grows during the loop.
    for server in queried:
        with suppress(LatticeError):
            endpoints = _fetch_endpoints(server, _verified_tls(identity.authority))
            addresses.append(endpoints.agents)
            new_servers = [address for address in endpoints.servers if address not in queried]
            queried += new_servers[: max(0, MAX_SERVERS_QUERIED - len(queried))]
    return addresses


def _first_reachable(servers: str, call: Callable[[str], T]) -> T:
    """The result of the call for the first reachable server. If no server is reachable, the error of the last
    server is raised."""
    *first_servers, last = split_servers(servers)
    for server in first_servers:
        # All servers use the same store, so a request that one server rejects is not sent to another server.
        with suppress(Unavailable):
            return call(server)
    return call(last)


def _fetch_endpoints(server: str, tls: ssl.SSLContext) -> _Endpoints:
    try:
        return msgspec.json.decode(_request(server, "GET", tls), type=_Endpoints)
    except msgspec.MsgspecError as error:
        raise Unavailable("the server is not a Lattice server", where=server, fix="check --server") from error


def _request(server: str, method: str, tls: ssl.SSLContext, body: bytes | None = None) -> bytes:
    url = urlsplit(server)
    if url.scheme != "https" or not url.hostname:
        raise Invalid(
            f"{server!r} is not a server address",
            where="--server",
            fix="write the address as https://HOST:PORT",
        )
    connection = http.client.HTTPSConnection(
        url.hostname, url.port or 443, timeout=REQUEST_TIMEOUT_S, context=tls
    )
    try:
        connection.request(method, JOIN_PATH, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        text = response.read(MAX_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"the server cannot be reached: {error}",
            where=server,
            fix="check that the server runs and that this machine can reach it",
        ) from error
    finally:
        connection.close()
    if response.status >= 400:
        message = ""
        with suppress(msgspec.MsgspecError):
            message = msgspec.json.decode(text, type=_Status).message
        raise ERROR_BY_STATUS.get(response.status, Unavailable)(
            message or f"HTTP status {response.status}", where=server
        )
    return text


def _verified_tls(authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode())
    return context
