"""Join tokens: their text, the record in their Secret, and the check of a token against the public key of an
agent. Pure.

A token admits one machine. The store keeps only a digest of the token. The text of the token also holds the
fingerprint of the certificate authority, so that the machine can verify the identity of the server.
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
from lattice.kinds.meta.base import GROUP, SYSTEM_NAMESPACE, VERSION
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.node import NodeSpec

# Path of the API under which machines join.
JOIN_PATH = f"/apis/{GROUP}/{VERSION}/join"
TOKEN_SECRET_TYPE = "lattice.dev/join-token"  # noqa: S105
# Annotation of a LatticeNode: SHA-256 of the public key of the agent that joined as this node.
AGENT_KEY_ANNOTATION = "lattice.dev/agent-key"
# Annotation of a LatticeNode: the revision at which the join token of its agent was created.
JOIN_REVISION_ANNOTATION = "lattice.dev/join-revision"
# 22 characters of base64 hold 128 bits.
MIN_SECRET_CHARS = 22
_TOKEN = re.compile(rf"ljt-([0-9a-f]{{12}})\.([A-Za-z0-9_-]{{{MIN_SECRET_CHARS},86}})\.([0-9a-f]{{64}})")
_UNKNOWN_TOKEN = "the join token is unknown"  # noqa: S105
_NEW_TOKEN_FIX = "create another token: lattice tokens create"  # noqa: S105


class JoinToken(msgspec.Struct, frozen=True):
    """A join token; `authority` is the SHA-256 of the certificate of the certificate authority."""

    id: str
    secret: str
    authority: str

    def __str__(self) -> str:
        return f"ljt-{self.id}.{self.secret}.{self.authority}"

    def __repr__(self) -> str:
        # The secret must not appear in logs.
        return f"JoinToken(id={self.id!r})"

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()


def parse_token(text: str) -> JoinToken:
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise Invalid(
            "this is not a join token",
            fix="paste the whole token as printed by `lattice tokens create`: ljt-….….…",
        )
    return JoinToken(*match.groups())


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in PEM, as hexadecimal digits."""
    lines = certificate.decode("ascii").partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return hashlib.sha256(b64decode("".join(lines.split()))).hexdigest()


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node that a machine may become with the token."""

    # A timestamp in the form of the API.
    expires: str
    # The node that the machine becomes. If empty: a new node, under the name that the machine proposes.
    node: str = ""
    # uid of `node`, if the node existed when the token was created. A later node of that name does not match.
    uid: str = ""
    # Labels and spec of a node that is created on join; an existing node keeps its own.
    labels: dict[str, str] = {}
    spec: NodeSpec = NodeSpec()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a token's Secret."""

    sha256: str
    grant: Grant
    # SHA-256 of the public key that used the token.
    used_by: str = ""
    # Name of the node that the machine became.
    used_as: str = ""


def secret_name(token_id: str) -> str:
    return f"join-{token_id}"


def token_secret(token: JoinToken, grant: Grant) -> Object:
    """The Secret of a token, without uid and timestamps: the writer of the Secret adds those."""
    return with_token_record(
        {"metadata": {"name": secret_name(token.id), "namespace": SYSTEM_NAMESPACE}},
        TokenRecord(sha256=token.digest, grant=grant),
    )


def with_token_record(secret: Object, record: TokenRecord) -> Object:
    """The Secret with the token record, as JSON under one key."""
    data = {"token": b64encode(msgspec.json.encode(record)).decode()}
    return {**secret, "apiVersion": "v1", "kind": "Secret", "type": TOKEN_SECRET_TYPE, "data": data}


def read_token_record(secret: Mapping[str, Any]) -> TokenRecord | None:
    """The token record in a Secret; None if the Secret belongs to no join token or is damaged."""
    if secret.get("type") != TOKEN_SECRET_TYPE:
        return None
    try:
        return msgspec.json.decode(b64decode(secret.get("data", {}).get("token", "")), type=TokenRecord)
    except (ValueError, msgspec.MsgspecError):
        return None


def check_token(token: JoinToken, record: TokenRecord | None, key: str, now: datetime) -> TokenRecord:
    """The record of the token, if the token admits the agent with this public key.

    Raises UnknownUser, with the same text, for a token that does not exist and for a wrong secret. Raises
    Denied for an expired token, and for a token that another agent has used.
    """
    # The comparison takes constant time: the duration of the answer reveals nothing about the digest.
    if record is None or not hmac.compare_digest(record.sha256, token.digest):
        raise UnknownUser(_UNKNOWN_TOKEN, fix=_NEW_TOKEN_FIX)
    if is_expired(record.grant, now):
        raise Denied(f"the join token {token.id} expired at {record.grant.expires}", fix=_NEW_TOKEN_FIX)
    # The same key may ask again, because an answer can be lost (decision 0020).
    if record.used_by and record.used_by != key:
        raise Denied(
            f"the join token {token.id} was already used by the machine of node {record.used_as}",
            fix=_NEW_TOKEN_FIX,
        )
    return record


def is_expired(grant: Grant, now: datetime) -> bool:
    return now >= expiry(grant)


def expiry(grant: Grant) -> datetime:
    """Expiry time of the grant; a time that cannot be parsed counts as long past."""
    try:
        return datetime.strptime(grant.expires, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC)
