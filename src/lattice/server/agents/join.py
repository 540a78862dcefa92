"""How a machine becomes a node: a one-time token and a signing request in, a certificate out, everything in one commit or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from lattice import metrics
from lattice.clock import Clock, format_timestamp
from lattice.errors import Denied, Exists, Invalid, LatticeError, Malformed, NotFound, UnknownUser
from lattice.kinds.core import Secret
from lattice.kinds.join_token import (
    AGENT_KEY_ANNOTATION,
    JOIN_REVISION_ANNOTATION,
    TOKEN_NAMESPACE,
    JoinToken,
    TokenRecord,
    check_token,
    parse_token,
    read_token_record,
    secret_name,
    with_token_record,
)
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.kinds.node import NODE_FINALIZER, LatticeNode
from lattice.server.access.attempt_limiter import AttemptLimiter
from lattice.server.access.certificate_authority import CertificateAuthority
from lattice.server.access.node_certificates import (
    NodeIdentity,
    SigningRequest,
    expired_node_identity,
    parse_signing_request,
    sign_node_certificate,
)
from lattice.store.protocol import ABSENT, Entry, Key, Put, RevisionConflict, Store

JOIN_PATH = "/apis/lattice.dev/v1alpha1/join"
MAX_JOIN_REQUEST_BYTES = 16 * 1024  # bytes of a request
MAX_COMMIT_ATTEMPTS = 5
REJOIN_GRACE_PERIOD = timedelta(days=30)  # after a certificate ended


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request: str  # PKCS #10, PEM
    token: str = ""
    name: str = ""  # what the machine would like to be called, where the token leaves that open
    certificate: str = ""  # instead of a token: its former one, when it was away for longer than that lasted


@dataclass(frozen=True, slots=True)
class _JoinCredential:
    """Who joins: its key, and the revision at which its token was made, or written last: nobody changes one that was not used. Of machines
    that were made for one node the last one counts."""

    key_digest: str
    token_revision: int


@dataclass
class NodeJoinService:
    """Any server may let a machine in: what decides is one commit against the store. `agents` is where agents connect, `servers` where
    the APIs of all servers answer."""

    store: Store
    authority: CertificateAuthority
    clock: Clock
    new_uid: Callable[[], str]
    agents_address: Callable[[], str]
    server_urls: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        self._attempts = AttemptLimiter(self.clock)

    def connection_info(self) -> dict[str, Any]:
        """Open to everybody: whom to trust is in the token, not in this answer."""
        return {
            "authority": self.authority.pem.decode(),
            "agents": self.agents_address(),
            "servers": list(self.server_urls()),
        }

    async def join(self, body: bytes, address: str) -> dict[str, Any]:
        """What the new node needs. Refusals write nothing."""
        try:
            self._attempts.check(address)
            wish = _read(body)
            answer = await (self._rejoin(wish) if wish.certificate else self._join_with_token(wish))
        except LatticeError as error:
            if isinstance(error, UnknownUser | Denied | Invalid | Malformed | NotFound):
                self._attempts.record_failure(address)
            metrics.JOINS.labels("refused").inc()
            raise
        metrics.JOINS.labels("joined").inc()
        return answer

    async def renew(self, peer: NodeIdentity, request: bytes) -> bytes:
        """For the same key and the same name, as long as that key is the node's."""
        asked = parse_signing_request(request)
        if asked.key_digest != peer.key_digest:
            raise Denied(
                "the signing request is for another key than the certificate",
                fix="ask with the key that joined",
            )
        entry = await self.store.get(node_key(peer.node))
        verify_joined_key(peer, unpack(entry.value, entry.revision) if entry else None)
        return sign_node_certificate(self.authority, asked, peer.node, self.clock.now())

    async def _rejoin(self, wish: JoinRequest) -> dict[str, Any]:
        """A machine that slept, or could not reach us: its key is the node's still, and only who holds that has any use for the answer."""
        peer = expired_node_identity(self.authority, wish.certificate.encode())
        if self.clock.now() > peer.expires_at + REJOIN_GRACE_PERIOD:
            raise Denied(
                f"the certificate ended at {format_timestamp(peer.expires_at)}, which is too long ago",
                fix="let the machine join with a new token",
            )
        certificate = await self.renew(peer, wish.request.encode())
        return {"node": peer.node, "certificate": certificate.decode(), **self.connection_info()}

    async def _join_with_token(self, wish: JoinRequest) -> dict[str, Any]:
        token, asked = parse_token(wish.token), parse_signing_request(wish.request.encode())
        for attempt in range(MAX_COMMIT_ATTEMPTS):
            try:
                node = await self._admit_node(token, asked, wish.name)
                break
            except RevisionConflict:  # somebody wrote the node, or used the token: look again
                if attempt == MAX_COMMIT_ATTEMPTS - 1:
                    raise
        certificate = sign_node_certificate(self.authority, asked, node, self.clock.now())
        return {"node": node, "certificate": certificate.decode(), **self.connection_info()}

    async def _admit_node(self, token: JoinToken, asked: SigningRequest, wish: str) -> str:
        entry = await self.store.get(Key(Secret.resource.id, TOKEN_NAMESPACE, secret_name(token.id)))
        secret = unpack(entry.value, entry.revision) if entry else {}
        kept = check_token(token, read_token_record(secret), asked.key_digest, self.clock.now())
        assert entry is not None  # noqa: S101 - nothing is known without one
        node = kept.used_as or kept.grant.node or wish
        found = await self.store.get(node_key(node))
        if kept.used_by:
            verify_joined_key(
                NodeIdentity(node, asked.key_digest, self.clock.now()),
                unpack(found.value, found.revision) if found else None,
            )
            return node  # the answer was lost: here it is again
        used = with_token_record(
            secret, msgspec.structs.replace(kept, used_by=asked.key_digest, used_as=node)
        )
        by = _JoinCredential(asked.key_digest, entry.revision)
        writes = [
            Put(entry.key, pack(Secret.resource, used), entry.revision),
            self._node_write(node, kept, by, found),
        ]
        sign_node_certificate(
            self.authority, asked, node, self.clock.now()
        )  # a request that cannot be signed must not use the token up
        await self.store.commit(writes)
        return node

    def _node_write(self, name: str, kept: TokenRecord, by: _JoinCredential, found: Entry | None) -> Put:
        """The node with the key that joined as it: made, or the one that was prepared for this token."""
        there = unpack(found.value, found.revision)["metadata"]["uid"] if found else ""
        if kept.grant.uid and kept.grant.uid != there:
            raise Denied(
                f"node {name}, for which the token was made, is gone",
                fix="end this machine: nothing waits for it",
            )
        if found is not None:
            if not kept.grant.node:
                raise Exists(
                    f"node {name} is there already",
                    fix="choose another --name, or make a token for it: lattice tokens create --node",
                )
            obj = unpack(found.value, found.revision)
            if obj["metadata"].get("deletionTimestamp"):
                raise Denied(f"node {name} is being deleted", fix="wait until it is gone")
            if by.token_revision < _joined_token_revision(obj, found.revision):
                raise Denied(
                    f"a machine has joined as node {name} with a token that was made later",
                    fix="end this machine, or let it join with a new token: lattice tokens create --node",
                )
            return Put(found.key, pack(LatticeNode.resource, _with_join_annotations(obj, by)), found.revision)
        if problem := name_problem(LatticeNode.resource, name):
            raise Invalid(
                f'"{name}" cannot be the name of a node: {problem}', where="--name", fix="choose another name"
            )
        made: Object = {
            "apiVersion": LatticeNode.resource.api_version,
            "kind": LatticeNode.resource.kind,
            "metadata": {
                "name": name,
                "finalizers": [NODE_FINALIZER],
                **({"labels": kept.grant.labels} if kept.grant.labels else {}),
            },
            "spec": msgspec.to_builtins(kept.grant.spec),
        }
        fresh = new_object(
            _with_join_annotations(made, by), uid=self.new_uid(), now=format_timestamp(self.clock.now())
        )
        return Put(node_key(name), pack(LatticeNode.resource, fresh), ABSENT)


def _read(body: bytes) -> JoinRequest:
    if len(body) > MAX_JOIN_REQUEST_BYTES:
        raise Malformed(f"the request has {len(body)} bytes, at most {MAX_JOIN_REQUEST_BYTES} are taken")
    try:
        return msgspec.json.decode(body, type=JoinRequest)
    except msgspec.MsgspecError as error:
        raise Malformed(
            f"the request cannot be read: {error}", fix="run `lattice agent --join TOKEN --server URL`"
        ) from error


def _with_join_annotations(obj: Object, by: _JoinCredential) -> Object:
    metadata: dict[str, Any] = obj["metadata"]
    marks = {AGENT_KEY_ANNOTATION: by.key_digest, JOIN_REVISION_ANNOTATION: str(by.token_revision)}
    return {**obj, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **marks}}}


def _joined_token_revision(node: Object, revision: int) -> int:
    """When the token was made that its machine joined with. What is not from before the node's own revision is of another store."""
    told = node["metadata"].get("annotations", {}).get(JOIN_REVISION_ANNOTATION, "")
    return int(told) if told.isdecimal() and int(told) < revision else 0


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def verify_joined_key(peer: NodeIdentity, node: Object | None) -> None:
    """A certificate counts for as long as its node is there and no other machine has joined as it."""
    if node is None:
        raise NotFound(
            f"there is no node {peer.node}", fix="it was removed; let the machine join again with a new token"
        )
    if node["metadata"].get("annotations", {}).get(AGENT_KEY_ANNOTATION) != peer.key_digest:
        raise Denied(
            f"another machine has joined as node {peer.node}", fix="let this one join again with a new token"
        )
