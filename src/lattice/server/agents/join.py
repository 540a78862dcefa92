"""Join: a machine becomes a node with a one-time token and a signing request, and receives its certificate.

One commit writes the node and marks the token as used, so a join happens completely or not at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from lattice import metrics
from lattice.clock import Clock
from lattice.errors import Denied, Exists, Invalid, LatticeError, Malformed, NotFound, UnknownUser
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.join_token import (
    AGENT_KEY_ANNOTATION,
    JOIN_REVISION_ANNOTATION,
    Grant,
    JoinToken,
    TokenRecord,
    check_token,
    parse_token,
    read_token_record,
    secret_name,
    with_token_record,
)
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Kind
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import (
    NODE_CLASS_LABEL,
    NODE_FINALIZER,
    PINNED_CLUSTER_ANNOTATION,
    LatticeNode,
)
from lattice.kinds.pool import LatticePool
from lattice.server.access.attempt_limiter import AttemptLimiter
from lattice.server.access.certificate_authority import CertificateAuthority
from lattice.server.access.node_certificates import (
    NodeIdentity,
    SigningRequest,
    expired_node_identity,
    parse_signing_request,
    sign_node_certificate,
)
from lattice.server.requests.bodies import decode_request
from lattice.store.protocol import ABSENT, Entry, Key, Put, RevisionConflict, Store

K = TypeVar("K", bound=Kind)

MAX_JOIN_REQUEST_BYTES = 16 * 1024
MAX_COMMIT_ATTEMPTS = 5
# A node may rejoin with an expired certificate for this long.
REJOIN_GRACE_PERIOD = timedelta(days=30)


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # PKCS #10 in PEM.
    request: str
    token: str = ""
    # The name that the machine proposes, used if the token names no node.
    name: str = ""
    # Instead of a token: the previous certificate of a node that was away until the certificate expired.
    certificate: str = ""


@dataclass(frozen=True, slots=True)
class _JoinCredential:
    """The joining machine's key and the revision of its join token.

    The Secret of a token changes only when the token is used, so revisions order the tokens by their
    creation. Of several machines that were created for one node, the machine with the latest token wins.
    """

    key_digest: str
    token_revision: int


@dataclass
class NodeJoinService:
    """Admits machines as nodes, on any server and not only on the leader, because one commit to the store
    decides. `agents_address` is the address for agents, `server_urls` lists the API URLs of the servers."""

    store: Store
    authority: CertificateAuthority
    clock: Clock
    new_uid: Callable[[], str]
    agents_address: Callable[[], str]
    server_urls: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        self._attempts = AttemptLimiter(self.clock)

    def connection_info(self) -> dict[str, Any]:
        """The authority's certificate and the addresses of the servers. The answer is public; a joining
        machine verifies the certificate by the fingerprint in its token."""
        return {
            "authority": self.authority.pem.decode(),
            "agents": self.agents_address(),
            "servers": list(self.server_urls()),
        }

    async def join(self, body: bytes, address: str) -> dict[str, Any]:
        """Admit the machine and return the node name, certificate and addresses. A rejected request writes
        nothing.

        Rejections count against the attempt limit of the client address.
        """
        try:
            self._attempts.check(address)
            if len(body) > MAX_JOIN_REQUEST_BYTES:
                problem = f"the request has {len(body)} bytes; the maximum is {MAX_JOIN_REQUEST_BYTES}"
                raise Malformed(problem)
            request = decode_request(body, JoinRequest, "run `lattice agent --join TOKEN --server URL`")
            answer = await (self._rejoin(request) if request.certificate else self._join_with_token(request))
        except LatticeError as error:
            # An unavailable store says nothing about the credentials of the client.
            if isinstance(error, UnknownUser | Denied | Invalid | Malformed | NotFound):
                self._attempts.record_failure(address)
            metrics.JOINS.labels("refused").inc()
            raise
        metrics.JOINS.labels("joined").inc()
        return answer

    async def renew(self, peer: NodeIdentity, csr: bytes) -> bytes:
        """Sign a new certificate for the same key and node name, as long as the node still has the key."""
        signing_request = parse_signing_request(csr)
        if signing_request.key_digest != peer.key_digest:
            raise Denied(
                "the signing request and the certificate have different keys",
                fix="sign the request with the key that joined",
            )
        entry = await self.store.get(node_key(peer.node))
        verify_joined_key(peer, unpack(entry.value, entry.revision) if entry else None)
        return sign_node_certificate(self.authority, signing_request, peer.node, self.clock.now())

    async def _rejoin(self, request: JoinRequest) -> dict[str, Any]:
        """Renew the expired certificate of a machine that was offline. The new certificate is useless without
        the node's key."""
        peer = expired_node_identity(self.authority, request.certificate.encode())
        if self.clock.now() > peer.expires_at + REJOIN_GRACE_PERIOD:
            raise Denied(
                f"the certificate expired at {format_timestamp(peer.expires_at)}, which is too long ago",
                fix="join the machine with a new token",
            )
        certificate = await self.renew(peer, request.request.encode())
        return {"node": peer.node, "certificate": certificate.decode(), **self.connection_info()}

    async def _join_with_token(self, request: JoinRequest) -> dict[str, Any]:
        token, signing_request = parse_token(request.token), parse_signing_request(request.request.encode())
        for attempt in range(MAX_COMMIT_ATTEMPTS):
            try:
                node = await self._admit_node(token, signing_request, request.name)
                break
            except RevisionConflict:
                # A concurrent commit wrote the node or used the token: read both again.
                if attempt == MAX_COMMIT_ATTEMPTS - 1:
                    raise
        certificate = sign_node_certificate(self.authority, signing_request, node, self.clock.now())
        return {"node": node, "certificate": certificate.decode(), **self.connection_info()}

    async def _admit_node(self, token: JoinToken, signing_request: SigningRequest, proposed_name: str) -> str:
        """Commit the node and the used token; return the node name. A repeated request of the same key
        succeeds again."""
        entry = await self.store.get(Key(Secret.resource.id, SYSTEM_NAMESPACE, secret_name(token.id)))
        secret = unpack(entry.value, entry.revision) if entry else {}
        record = check_token(token, read_token_record(secret), signing_request.key_digest, self.clock.now())
        # `check_token` rejects a token without a Secret.
        assert entry is not None  # noqa: S101
        node = record.used_as or record.grant.node or proposed_name
        node_entry = await self.store.get(node_key(node))
        if node_entry is None:
            record = msgspec.structs.replace(record, grant=await self._resolve_grant(record.grant))
        if record.used_by:
            verify_joined_key(
                NodeIdentity(node, signing_request.key_digest, self.clock.now()),
                unpack(node_entry.value, node_entry.revision) if node_entry else None,
            )
            # The reply to the first request was lost: the machine joins again with the same key.
            return node
        # The used token keeps the key's digest, so that only the same machine can repeat the request.
        used = with_token_record(
            secret, msgspec.structs.replace(record, used_by=signing_request.key_digest, used_as=node)
        )
        credential = _JoinCredential(signing_request.key_digest, entry.revision)
        writes = [
            Put(entry.key, pack(Secret.resource, used), entry.revision),
            self._node_write(node, record, credential, node_entry),
        ]
        # A request that cannot be signed must not use up the token.
        sign_node_certificate(self.authority, signing_request, node, self.clock.now())
        await self.store.commit(writes)
        return node

    async def _resolve_grant(self, grant: Grant) -> Grant:
        """The grant with the location of its pool, and with the pool of its cluster.

        Raises Denied if the pool and the cluster of the grant contradict each other, or if only a cluster is
        named that does not exist: no cluster could ever use the machine.
        """
        spec = grant.spec
        cluster = await self._read(LatticeCluster, spec.cluster) if spec.cluster else None
        if cluster is not None:
            pool = cluster.spec.pool
            if spec.pool not in ("", pool):
                raise Denied(
                    f"the join token names pool {spec.pool}, but cluster {spec.cluster} is in pool {pool}",
                    fix="create a token without --cluster: a cluster of the pool takes the machine",
                )
            spec = msgspec.structs.replace(spec, pool=pool)
        elif spec.cluster:
            if not spec.pool:
                raise Denied(
                    f"there is no cluster {spec.cluster}",
                    fix="create a token with --pool instead of --cluster",
                )
            # The cluster is gone: any cluster of the pool may claim the machine.
            spec = msgspec.structs.replace(spec, cluster="")
        pool_object = await self._read(LatticePool, spec.pool) if spec.pool else None
        if pool_object is not None:
            provider = pool_object.spec.provider
            spec = msgspec.structs.replace(
                spec,
                provider=spec.provider or provider.type,
                region=spec.region or provider.region,
                zone=spec.zone or provider.zone,
            )
        return msgspec.structs.replace(grant, spec=spec)

    async def _read(self, kind: type[K], name: str) -> K | None:
        entry = await self.store.get(Key(kind.resource.id, "", name))
        return msgspec.json.Decoder(kind, float_hook=Decimal).decode(entry.value) if entry else None

    def _node_write(
        self, name: str, record: TokenRecord, credential: _JoinCredential, entry: Entry | None
    ) -> Put:
        """The write that gives the node the machine's key (I-38): a new node, or the node that the token was
        made for."""
        uid = unpack(entry.value, entry.revision)["metadata"]["uid"] if entry else ""
        # A machine whose node was removed must not create a node of that name (I-35, I-32).
        if record.grant.uid and record.grant.uid != uid:
            raise Denied(
                f"the join token was created for node {name}, which was deleted",
                fix="delete this machine; no node needs it",
            )
        if entry is not None:
            if not record.grant.node:
                raise Exists(
                    f"node {name} already exists",
                    fix="choose another --name, or create a token for this node: lattice tokens create --node",
                )
            obj = unpack(entry.value, entry.revision)
            if obj["metadata"].get("deletionTimestamp"):
                raise Denied(f"node {name} is being deleted", fix="wait until the node is deleted")
            # Two leaders may have created a machine for the node: the latest token counts (decision 0020).
            if credential.token_revision < _joined_token_revision(obj, entry.revision):
                raise Denied(
                    f"another machine has joined as node {name} with a newer token",
                    fix="delete this machine, or join it with a new token: lattice tokens create --node",
                )
            return Put(
                entry.key, pack(LatticeNode.resource, _with_join_annotations(obj, credential)), entry.revision
            )
        if problem := name_problem(LatticeNode.resource, name):
            raise Invalid(
                f'"{name}" is not a valid node name: {problem}', where="--name", fix="choose another name"
            )
        spec = record.grant.spec
        location = {
            "lattice.dev/cluster": spec.cluster,
            NODE_CLASS_LABEL: spec.node_class,
            "lattice.dev/region": spec.region,
            "lattice.dev/zone": spec.zone,
        }
        labels = record.grant.labels | {key: value for key, value in location.items() if value}
        annotations = {PINNED_CLUSTER_ANNOTATION: spec.cluster} if spec.cluster else {}
        node: Object = {
            "apiVersion": LatticeNode.resource.api_version,
            "kind": LatticeNode.resource.kind,
            "metadata": {
                "name": name,
                "finalizers": [NODE_FINALIZER],
                **({"labels": labels} if labels else {}),
                **({"annotations": annotations} if annotations else {}),
            },
            "spec": msgspec.to_builtins(spec),
        }
        node = new_object(
            _with_join_annotations(node, credential),
            uid=self.new_uid(),
            now=format_timestamp(self.clock.now()),
        )
        return Put(node_key(name), pack(LatticeNode.resource, node), ABSENT)


def _with_join_annotations(obj: Object, credential: _JoinCredential) -> Object:
    metadata: dict[str, Any] = obj["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        AGENT_KEY_ANNOTATION: credential.key_digest,
        JOIN_REVISION_ANNOTATION: str(credential.token_revision),
    }
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def _joined_token_revision(node: Object, revision: int) -> int:
    """The revision of the token that the node's machine joined with, or 0 if unknown.

    A revision that is not older than the node's own revision comes from a different store and does not count.
    """
    annotation = node["metadata"].get("annotations", {}).get(JOIN_REVISION_ANNOTATION, "")
    return int(annotation) if annotation.isdecimal() and int(annotation) < revision else 0


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def verify_joined_key(peer: NodeIdentity, node: Object | None) -> None:
    """Verify that the node exists and has the certificate's key; a second machine that joined as the node has
    a different key.

    `NotFound` without a node, `Denied` for a different key.
    """
    if node is None:
        raise NotFound(
            f"there is no node {peer.node}",
            fix="the node was deleted; join the machine again with a new token",
        )
    if node["metadata"].get("annotations", {}).get(AGENT_KEY_ANNOTATION) != peer.key_digest:
        raise Denied(
            f"another machine has joined as node {peer.node}", fix="join this machine again with a new token"
        )
