"""Joining: rights of a join token, limits of signing requests, and renewal of certificates."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from build.agent_world import AUTHORITY, a_joining, a_key, a_node_with_key, a_request, a_token, store_token
from build.objects import make_object
from build.virtual import VirtualClock
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import (
    Denied,
    Exists,
    Invalid,
    LatticeError,
    Malformed,
    NotFound,
    TooManyRequests,
    UnknownUser,
)
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.join_token import (
    AGENT_KEY_ANNOTATION,
    JOIN_REVISION_ANNOTATION,
    Grant,
    JoinToken,
    fingerprint,
    parse_token,
    read_token_record,
    token_secret,
)
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.stored_encoding import unpack
from lattice.kinds.node import NODE_FINALIZER, PINNED_CLUSTER_ANNOTATION, LatticeNode, NodeSpec
from lattice.kinds.pool import LatticePool
from lattice.server.access.attempt_limiter import MAX_FAILED_ATTEMPTS, WINDOW_S
from lattice.server.access.authorization import ALL_VERBS, RequestAttributes, check_access
from lattice.server.access.certificate_authority import new_authority
from lattice.server.access.node_certificates import NodeIdentity, key_digest, node_identity
from lattice.server.agents.join import node_key
from lattice.server.requests.call import User
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Key


class JoinWorld:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)
        self.joining = a_joining(self.store, self.clock)

    async def token(self, number: int = 1, ttl: float = 900.0, **grant: Any) -> JoinToken:
        token = a_token(number=number)
        await store_token(self.store, self.clock, token, ttl, **grant)
        return token

    async def add(self, *objects: Kind) -> None:
        for item in objects:
            await self.store.commit([put_new(item, uid=item.metadata.name, now="2026-01-01T00:00:00Z")])

    async def join(
        self, token: Any, key: Any, name: str = "", address: str = "10.0.0.9", **rest: Any
    ) -> dict[str, str]:
        request = rest.get("request") or a_request(key)
        body = msgspec.json.encode({"token": str(token), "request": request, "name": name})
        return await self.joining.join(body, address)

    async def node(self, name: str) -> dict[str, Any] | None:
        entry = await self.store.get(node_key(name))
        return unpack(entry.value, entry.revision) if entry else None

    async def refuses(
        self, error: type[LatticeError], words: str, token: Any, key: Any, name: str = "", **rest: Any
    ) -> None:
        """The join fails with this error and writes nothing."""
        before = await self.store.revision()
        with pytest.raises(error, match=words):
            await self.join(token, key, name, **rest)
        assert await self.store.revision() == before


async def test_join_creates_node_with_granted_fields() -> None:
    world = JoinWorld()
    await world.add(a_cluster())
    token = await world.token(node="n1", labels={"rack": "a3"}, spec=NodeSpec(cluster="east-001", zone="a"))
    answer = await world.join(token, a_key(), "a-name-of-its-own")
    assert (answer["node"], answer["agents"]) == ("n1", "127.0.0.1:7444")
    assert fingerprint(answer["authority"].encode()) == token.authority
    node = await world.node("n1")
    assert node is not None
    assert node["metadata"]["labels"] == {
        "rack": "a3",
        "lattice.dev/cluster": "east-001",
        "lattice.dev/zone": "a",
    }
    assert node["metadata"]["finalizers"] == [NODE_FINALIZER], "it is emptied before it goes"
    assert (node["spec"]["pool"], node["spec"]["cluster"], node["spec"]["zone"]) == ("east", "east-001", "a")
    certificate = x509.load_pem_x509_certificate(answer["certificate"].encode())
    assert certificate.subject.rfc4514_string() == "O=lattice:nodes,CN=node:n1"
    life = certificate.not_valid_after_utc - world.clock.now()
    assert life.total_seconds() == 24 * 3600
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate.verify_directly_issued_by(AUTHORITY.certificate)


def a_cluster(name: str = "east-001", pool: str = "east") -> LatticeCluster:
    return make_object(LatticeCluster, name, spec={"pool": pool})


EAST = make_object(
    LatticePool, "east", spec={"provider": {"type": "metal", "region": "east-1", "zone": "b"}, "budget": {"maxMonthlyCost": 2.5}}
)  # fmt: skip


@pytest.mark.parametrize(
    ("granted", "joined"),
    [
        pytest.param(
            NodeSpec(pool="east"),
            NodeSpec(pool="east", provider="metal", region="east-1", zone="b"),
            id="a pool alone gives provider and location",
        ),
        pytest.param(
            NodeSpec(pool="east", region="mine", zone="z"),
            NodeSpec(pool="east", provider="metal", region="mine", zone="z"),
            id="a stated location stays",
        ),
        pytest.param(NodeSpec(pool="later"), NodeSpec(pool="later"), id="the pool may come later"),
        pytest.param(
            NodeSpec(cluster="east-001", node_class="nano"),
            NodeSpec(
                pool="east",
                cluster="east-001",
                node_class="nano",
                provider="metal",
                region="east-1",
                zone="b",
            ),
            id="a cluster gives its pool",
        ),
        pytest.param(
            NodeSpec(pool="east", cluster="east-007"),
            NodeSpec(pool="east", provider="metal", region="east-1", zone="b"),
            id="a cluster that is gone leaves the machine to the pool",
        ),
    ],
)
async def test_join_into_pool(granted: NodeSpec, joined: NodeSpec) -> None:
    world = JoinWorld()
    await world.add(EAST, a_cluster())
    await world.join(await world.token(node="n1", spec=granted), a_key())
    node = await world.node("n1")
    assert node is not None
    assert msgspec.convert(node["spec"], NodeSpec) == joined
    is_pinned = node["metadata"].get("annotations", {}).get(PINNED_CLUSTER_ANNOTATION) == "east-001"
    assert is_pinned is bool(joined.cluster)
    assert node["metadata"].get("labels", {}).get("lattice.dev/node-class", "") == joined.node_class


@pytest.mark.parametrize(
    ("granted", "reason"),
    [
        pytest.param(NodeSpec(cluster="east-007"), "there is no cluster east-007", id="no such cluster"),
        pytest.param(
            NodeSpec(pool="west", cluster="east-001"),
            "the join token names pool west, but cluster east-001 is in pool east",
            id="a cluster of another pool",
        ),
    ],
)
async def test_useless_join_is_refused_and_keeps_the_token(granted: NodeSpec, reason: str) -> None:
    world = JoinWorld()
    await world.add(EAST, a_cluster())
    token = await world.token(node="n1", spec=granted)
    with pytest.raises(Denied, match=reason):
        await world.join(token, a_key())
    assert await world.node("n1") is None
    secret = await world.store.get(Key("secrets", "lattice-system", f"join-{token.id}"))
    record = read_token_record(unpack(secret.value, secret.revision)) if secret else None
    assert record is None or not record.used_by


async def test_join_of_existing_node_only_sets_key() -> None:
    world = JoinWorld()
    await world.store.commit(
        [
            put_new(
                a_node_with_key("n1", "", spec=NodeSpec(cluster="east-001")),
                uid="made",
                now="2026-01-01T00:00:00Z",
            )
        ]
    )
    key = a_key()
    await world.join(await world.token(node="n1", spec=NodeSpec(cluster="west-001")), key)
    node = await world.node("n1")
    assert node is not None
    assert (node["metadata"]["uid"], node["spec"]["cluster"]) == ("made", "east-001")
    assert node["metadata"]["annotations"][AGENT_KEY_ANNOTATION] == key_digest(key.public_key())


async def test_join_for_deleted_node_is_denied() -> None:
    world = JoinWorld()
    token = await world.token(node="east-001-small-1", uid="made")
    await world.refuses(
        Denied, "the join token was created for node east-001-small-1, which was deleted", token, a_key()
    )
    await world.store.commit(
        [put_new(a_node_with_key("east-001-small-1", ""), uid="another", now="2026-01-01T00:00:00Z")]
    )
    await world.refuses(Denied, "which was deleted", token, a_key())


async def test_newest_token_of_a_node_wins() -> None:
    """A new leader may create a machine while that of the former leader still starts; either may arrive
    first."""
    world = JoinWorld()
    await world.store.commit([put_new(a_node_with_key("n1", ""), uid="made", now="2026-01-01T00:00:00Z")])
    tokens = [await world.token(number, node="n1", uid="made") for number in range(3)]
    await world.join(tokens[1], a_key())
    await world.refuses(Denied, "with a newer token", tokens[0], a_key())
    key = a_key()
    await world.join(tokens[2], key)
    await world.refuses(Denied, "with a newer token", tokens[0], a_key())
    node = await world.node("n1")
    assert node is not None
    assert node["metadata"]["annotations"][AGENT_KEY_ANNOTATION] == key_digest(key.public_key())


async def test_join_revision_of_another_store_is_ignored() -> None:
    world = JoinWorld()
    node = a_node_with_key("n1", "")
    moved = msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, annotations={JOIN_REVISION_ANNOTATION: "9000"}),
    )
    await world.store.commit([put_new(moved, uid="made", now="2026-01-01T00:00:00Z")])
    assert (await world.join(await world.token(node="n1", uid="made"), a_key()))["node"] == "n1"


async def test_join_is_idempotent_for_same_key_only() -> None:
    world = JoinWorld()
    token, key = await world.token(), a_key()
    first = await world.join(token, key, "n1")
    revision = await world.store.revision()
    again = await world.join(token, key, "another-name")
    assert again["node"] == first["node"] == "n1"
    assert await world.store.revision() == revision
    await world.refuses(Denied, "was already used by the machine of node n1", token, a_key(), "n2")


async def test_one_of_many_concurrent_joins_wins() -> None:
    world = JoinWorld()
    token = await world.token()
    tries = [world.join(token, a_key(), f"n{number}", address=f"10.0.0.{number}") for number in range(8)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, dict) for each in answers) == 1
    assert sum([await world.node(f"n{number}") is not None for number in range(8)]) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        pytest.param(
            lambda t: JoinToken(t.id, "w" * 32, t.authority), UnknownUser, "is unknown", id="a wrong secret"
        ),
        pytest.param(
            lambda t: JoinToken("f" * 12, t.secret, t.authority),
            UnknownUser,
            "is unknown",
            id="an unknown id",
        ),
        pytest.param(
            lambda t: JoinToken(t.id, t.secret, "0" * 64),
            UnknownUser,
            "is unknown",
            id="another authority in the text",
        ),
        pytest.param(lambda t: f"{t}x", Invalid, "not a join token", id="a longer text"),
        pytest.param(lambda t: f"../{t}", Invalid, "not a join token", id="a path"),
        pytest.param(lambda t: "", Invalid, "not a join token", id="nothing"),
    ],
)
async def test_wrong_token_is_rejected(
    change: Callable[[JoinToken], Any], error: type[LatticeError], words: str
) -> None:
    world = JoinWorld()
    token = await world.token(node="n1")
    await world.refuses(error, words, change(token), a_key())


async def test_token_is_rejected_once_expired() -> None:
    world = JoinWorld()
    early, late = await world.token(1, ttl=60, node="n1"), await world.token(2, ttl=60, node="n2")
    await world.clock.advance(59)
    await world.join(early, a_key())
    await world.clock.advance(1)
    await world.refuses(Denied, "expired at 2026-01-01T00:01:00Z", late, a_key())


async def test_a_deleted_token_is_unknown() -> None:
    world = JoinWorld()
    token = await world.token(node="n1")
    await world.store.commit([Delete(Key("secrets", "lattice-system", f"join-{token.id}"))])
    await world.refuses(UnknownUser, "is unknown", token, a_key())


async def test_token_takes_no_other_or_existing_name() -> None:
    world = JoinWorld()
    assert (await world.join(await world.token(1, node="n1"), a_key(), "n2"))["node"] == "n1"
    await world.refuses(Exists, "node n1 already exists", await world.token(2), a_key(), "n1")
    for name in ("", "N1", "n\u0131", "a/b", "node:n1", "x" * 300):
        await world.refuses(
            Invalid,
            "is not a valid node name",
            await world.token(3 + len(name) + ord(name[:1] or "0")),
            a_key(),
            name,
            address=name,
        )


async def test_failed_joins_are_rate_limited_per_address() -> None:
    world = JoinWorld()
    token, wrong = await world.token(node="n1"), a_token(number=99)
    for _ in range(MAX_FAILED_ATTEMPTS):
        await world.refuses(UnknownUser, "is unknown", wrong, a_key(), address="10.0.0.1")
    await world.refuses(TooManyRequests, "rejected within 60 s", token, a_key(), address="10.0.0.1")
    assert (await world.join(token, a_key(), address="10.0.0.2"))["node"] == "n1"
    await world.clock.advance(WINDOW_S)
    second = await world.token(2, node="n2")
    assert (await world.join(second, a_key(), address="10.0.0.1"))["node"] == "n2"


def _named(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(which, value) for which, value in pairs])


CN, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        pytest.param(lambda: a_request(a_key(), _named((CN, "lattice-admin"), (ORG, "lattice:admins"))), Denied, "is for O=lattice:admins", id="an administrator's name"),
        pytest.param(lambda: a_request(a_key(), _named((CN, "node:n2"), (ORG, "lattice:nodes"))), Denied, "the node is n1", id="another node's name"),
        pytest.param(lambda: a_request(a_key(), _named((CN, "node:n1"), (ORG, "lattice:nodes"), (ORG, "lattice:admins"))), Denied, "the node is n1", id="an additional group"),
        pytest.param(lambda: a_request(a_key(), None, x509.BasicConstraints(True, 0)), Denied, "contains extensions", id="an authority of its own"),
        pytest.param(lambda: a_request(a_key(), None, x509.SubjectAlternativeName([x509.DNSName("lattice.example")])), Denied, "contains extensions", id="a server's name"),
        pytest.param(lambda: a_request(rsa.generate_private_key(65537, 1024)), Denied, "key type of the signing request is not supported", id="a weak key"),  # noqa: S505
        pytest.param(lambda: a_request(ec.generate_private_key(ec.SECP192R1())), Denied, "key type of the signing request is not supported", id="a small curve"),
        pytest.param(lambda: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", Invalid, "cannot be read", id="rubbish"),
        pytest.param(lambda: "x" * 9000, Invalid, "the maximum is 8192", id="far too much"),
    ],
)  # fmt: skip
async def test_signing_request_beyond_node_rights_is_denied(
    make: Callable[[], str], error: type[LatticeError], words: str
) -> None:
    world = JoinWorld()
    token = await world.token(node="n1")
    await world.refuses(error, words, token, None, request=make())
    assert (await world.join(token, a_key()))["node"] == "n1", "the token is not used up by a refusal"


async def test_signing_request_of_another_key_is_rejected() -> None:
    world = JoinWorld()
    lines = a_request(a_key()).splitlines()
    der = bytearray(b64decode("".join(lines[1:-1])))
    der[-1] ^= 1
    forged = "\n".join([lines[0], b64encode(bytes(der)).decode(), lines[-1], ""])
    token = await world.token(node="n1")
    await world.refuses(
        (Denied, Invalid), "signed by its own key|cannot be read", token, None, request=forged
    )  # type: ignore[arg-type]


async def test_malformed_join_bodies_are_rejected() -> None:
    world = JoinWorld()
    for body in (
        b"",
        b"[]",
        b'{"token": 1, "request": ""}',
        b'{"token": "a", "request": "b", "node": "n9"}',
        b"x" * 20_000,
    ):
        with pytest.raises(Malformed):
            await world.joining.join(body, str(len(body)))
    assert await world.store.revision() == 1


async def test_renewal_requires_same_key_and_existing_node() -> None:
    world = JoinWorld()
    key = ed25519.Ed25519PrivateKey.generate()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, None)
    pem = request.public_bytes(serialization.Encoding.PEM)
    peer = node_identity(
        (await world.join(await world.token(node="n1"), None, request=pem.decode()))["certificate"].encode()
    )
    await world.clock.advance(3600)
    renewed = node_identity(await world.joining.renew(peer, pem))
    assert (renewed.node, renewed.key_digest) == ("n1", peer.key_digest)
    assert (renewed.expires_at - peer.expires_at).total_seconds() == 3600
    with pytest.raises(Denied, match="different keys"):
        await world.joining.renew(peer, a_request(a_key()).encode())
    await world.join(await world.token(2, node="n1"), a_key())
    with pytest.raises(Denied, match="another machine has joined as node n1"):
        await world.joining.renew(peer, pem)
    await world.store.commit([Delete(node_key("n1"))])
    with pytest.raises(NotFound, match="there is no node n1"):
        await world.joining.renew(NodeIdentity("n1", peer.key_digest, peer.expires_at), pem)


async def test_expired_certificate_rejoins_by_its_key() -> None:
    world = JoinWorld()
    key = a_key()
    certificate = (await world.join(await world.token(node="n1"), key))["certificate"]

    async def come_back(certificate: str, key: Any) -> dict[str, str]:
        body = msgspec.json.encode({"certificate": certificate, "request": a_request(key)})
        return await world.joining.join(body, "10.0.0.9")

    await world.clock.advance(72 * 3600)
    answer = await come_back(certificate, key)
    assert answer["node"] == "n1"
    assert node_identity(answer["certificate"].encode()).expires_at > world.clock.now()
    revision = await world.store.revision()
    foreign = new_authority()[0].issue_client("node:n1", ["lattice:nodes"]).certificate.decode()
    admin = AUTHORITY.issue_client("lattice-admin", ["lattice:admins"]).certificate.decode()
    cases = (
        (certificate, a_key(), "different keys"),
        (foreign, key, "not signed by this certificate authority"),
        (admin, key, "does not belong to a node"),
        ("rubbish", key, "not signed by this certificate authority"),
    )
    for text, other, words in cases:
        with pytest.raises(Denied, match=words):
            await come_back(text, other)
    await world.clock.advance(30 * 24 * 3600)
    with pytest.raises(Denied, match="too long ago"):
        await come_back(certificate, key)
    await world.store.commit([Delete(node_key("n1"))])
    with pytest.raises(NotFound, match="there is no node n1"):
        await come_back(answer["certificate"], key)
    assert await world.store.revision() == revision + 1


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        pytest.param("lattice-admin", ["lattice:admins"], id="an administrator"),
        pytest.param("node:n1", ["lattice:admins"], id="a node's name in another group"),
        pytest.param(
            "node:n1", ["lattice:nodes", "lattice:admins"], id="a node that is also an administrator"
        ),
        pytest.param("ann", ["lattice:nodes"], id="a user in the nodes' group"),
    ],
)
def test_only_exact_node_subject_is_a_node_identity(user: str, groups: list[str]) -> None:
    with pytest.raises(Denied, match="does not belong to a node"):
        node_identity(AUTHORITY.issue_client(user, groups).certificate)


def test_server_certificate_is_no_node_identity() -> None:
    with pytest.raises(Denied, match="does not belong to a node"):
        node_identity(AUTHORITY.issue_server(["node:n1"]).certificate)


def test_only_digest_of_token_is_stored() -> None:
    token = a_token()
    secret = token_secret(token, Grant(expires="2026-01-01T00:00:00Z", node="n1"))
    assert read_token_record(secret) is not None
    assert token.secret not in msgspec.json.encode(secret).decode() + repr(token) + repr(
        read_token_record(secret)
    )
    assert parse_token(str(token)) == token


def test_nodes_have_no_api_access() -> None:
    node = User("node:n1", frozenset({"lattice:nodes", "system:authenticated"}))
    for kind in (LatticeNode.resource, None):
        assert not any(
            check_access(node, RequestAttributes(verb, "lattice.dev", "latticenodes"), kind).allowed
            for verb in ALL_VERBS
        )
