"""Join tokens: what one looks like, what its Secret remembers of it, and whether it opens the door for this key. Pure.

A token is good for one machine. Stored is only a digest of it; the text also names the certificate authority, so that the machine can tell
the server that it was meant for from any other.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from lattice.errors import Denied, Invalid, UnknownUser
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.node import NodeSpec

TOKEN_NAMESPACE = "lattice-system"  # noqa: S105
TOKEN_SECRET_TYPE = "lattice.dev/join-token"  # noqa: S105
AGENT_KEY_ANNOTATION = "lattice.dev/agent-key"  # annotation of a LatticeNode: SHA-256 of the public key of the agent that joined as it
JOIN_REVISION_ANNOTATION = (
    "lattice.dev/join-revision"  # beside it: the revision at which the token was made that it joined with
)
MIN_SECRET_CHARS = 22  # characters of base64: 128 bits
_TOKEN = re.compile(rf"ljt-([0-9a-f]{{12}})\.([A-Za-z0-9_-]{{{MIN_SECRET_CHARS},86}})\.([0-9a-f]{{64}})")
_UNKNOWN_TOKEN = "the join token is not known"  # noqa: S105
_NEW_TOKEN_FIX = "make a new one: lattice tokens create"  # noqa: S105


class JoinToken(msgspec.Struct, frozen=True):
    """`authority` is the SHA-256 of the certificate authority's certificate."""

    id: str
    secret: str
    authority: str

    def __str__(self) -> str:
        return f"ljt-{self.id}.{self.secret}.{self.authority}"

    def __repr__(self) -> str:
        return f"JoinToken(id={self.id!r})"  # the rest is nobody's to read in a log

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()


def parse_token(text: str) -> JoinToken:
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        raise Invalid(
            "this is not a join token", fix="paste it whole, as `lattice tokens create` printed it: ljt-….….…"
        )
    return JoinToken(*found.groups())


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in PEM, as hexadecimal digits."""
    lines = certificate.decode("ascii").partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return hashlib.sha256(b64decode("".join(lines.split()))).hexdigest()


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token lets a machine become."""

    expires: str  # as in timestamps of the API
    node: str = (
        ""  # the one node that it may become; empty: a new one, under the name that the machine proposes
    )
    uid: str = ""  # of that node, if it was there already: nothing else of its name will do
    labels: dict[str, str] = {}  # of the node that is made
    spec: NodeSpec = NodeSpec()  # of the node that is made; one that is there stays as it is


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token's Secret holds."""

    sha256: str
    grant: Grant
    used_by: str = ""  # SHA-256 of the public key that it let in
    used_as: str = ""  # the node that it became


def secret_name(token_id: str) -> str:
    return f"join-{token_id}"


def token_secret(token: JoinToken, grant: Grant) -> Object:
    """The Secret that lets the token in, without uid and times, which are its writer's to add."""
    return with_token_record(
        {"metadata": {"name": secret_name(token.id), "namespace": TOKEN_NAMESPACE}},
        TokenRecord(sha256=token.digest, grant=grant),
    )


def with_token_record(secret: Object, kept: TokenRecord) -> Object:
    """The whole of it under one key: nobody has to put the parts together again."""
    data = {"token": b64encode(msgspec.json.encode(kept)).decode()}
    return {**secret, "apiVersion": "v1", "kind": "Secret", "type": TOKEN_SECRET_TYPE, "data": data}


def read_token_record(secret: Mapping[str, Any]) -> TokenRecord | None:
    """None if it is no join token's, or damaged."""
    if secret.get("type") != TOKEN_SECRET_TYPE:
        return None
    try:
        return msgspec.json.decode(b64decode(secret.get("data", {}).get("token", "")), type=TokenRecord)
    except (ValueError, msgspec.MsgspecError):
        return None


def check_token(token: JoinToken, kept: TokenRecord | None, key: str, now: datetime) -> TokenRecord:
    """What the token allows this key. Unknown ones and wrong secrets are refused alike."""
    if kept is None or not hmac.compare_digest(kept.sha256, token.digest):
        raise UnknownUser(_UNKNOWN_TOKEN, fix=_NEW_TOKEN_FIX)
    if is_expired(kept.grant, now):
        raise Denied(f"the join token {token.id} expired at {kept.grant.expires}", fix=_NEW_TOKEN_FIX)
    if kept.used_by and kept.used_by != key:
        raise Denied(
            f"the join token {token.id} was used already, by the machine that is now node {kept.used_as}",
            fix=_NEW_TOKEN_FIX,
        )
    return kept


def is_expired(grant: Grant, now: datetime) -> bool:
    return now >= expiry(grant)


def expiry(grant: Grant) -> datetime:
    """One that cannot be read was long ago."""
    try:
        return datetime.strptime(grant.expires, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)
