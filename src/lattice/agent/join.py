"""How this machine becomes a node: it makes sure that the server is the one that its token names, and only then shows the token."""

import http.client
import ssl
from urllib.parse import urlsplit

import msgspec

from lattice.agent.identity import Identity, Place
from lattice.errors import Denied, Invalid, LatticeError, TooMany, Unavailable, UnknownUser
from lattice.kinds.jointoken import fingerprint, parse_token

PATH = "/apis/lattice.dev/v1alpha1/join"
SECONDS = 10.0
LARGEST = 1 << 20
REFUSALS: dict[int, type[LatticeError]] = {401: UnknownUser, 403: Denied, 409: Denied, 422: Invalid, 429: TooMany}


class _Directions(msgspec.Struct):
    authority: str
    agents: str


class _Answer(msgspec.Struct):
    node: str
    certificate: str
    authority: str
    agents: str


class _Status(msgspec.Struct):
    message: str = ""


def join(identity: Identity, server: str, token: str, name: str = "") -> None:
    """Joined on return; may be called again with the same token when an answer was lost."""
    parsed = parse_token(token)
    authority = _directions(server, _unchecked()).authority.encode()
    if fingerprint(authority) != parsed.authority:
        raise Denied("this is not the server that the join token is for", where=server, fix="check --server, or make a new token there")
    body = msgspec.json.encode({"token": str(parsed), "request": identity.signing_request().decode(), "name": name})
    answer = msgspec.json.decode(_ask(server, "POST", _trusting(authority), body), type=_Answer)
    identity.joined(answer.certificate.encode(), authority, Place(answer.node, server, (answer.agents,)))


def come_back(identity: Identity, server: str) -> bytes:
    """A new certificate for a machine that was away for longer than its last one lasted; the key says who it is."""
    body = msgspec.json.encode({"certificate": identity.certificate.decode(), "request": identity.signing_request().decode()})
    return msgspec.json.decode(_ask(server, "POST", _trusting(identity.authority), body), type=_Answer).certificate.encode()


def look_up(identity: Identity, server: str) -> str:
    """Where agents connect just now, as a server says that our authority vouches for."""
    return _directions(server, _trusting(identity.authority)).agents


def _directions(server: str, tls: ssl.SSLContext) -> _Directions:
    try:
        return msgspec.json.decode(_ask(server, "GET", tls), type=_Directions)
    except msgspec.MsgspecError as error:
        raise Unavailable("the answer is not that of a Lattice server", where=server, fix="check --server") from error


def _ask(server: str, method: str, tls: ssl.SSLContext, body: bytes | None = None) -> bytes:
    url = urlsplit(server)
    if url.scheme != "https" or not url.hostname:
        raise Invalid(f"{server!r} is not the address of a server", where="--server", fix="write it as https://HOST:PORT")
    connection = http.client.HTTPSConnection(url.hostname, url.port or 443, timeout=SECONDS, context=tls)
    try:
        connection.request(method, PATH, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        text = response.read(LARGEST)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"the server cannot be reached: {error}", where=server, fix="see whether it runs and can be reached from here"
        ) from error
    finally:
        connection.close()
    if response.status >= 400:
        raise REFUSALS.get(response.status, Unavailable)(_said(text) or f"HTTP status {response.status}", where=server)
    return text


def _said(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Status).message
    except msgspec.MsgspecError:
        return ""


def _unchecked() -> ssl.SSLContext:
    """Nothing secret is said over it: what it tells is held against the token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _trusting(authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode())
    return context
