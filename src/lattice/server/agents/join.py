"""How a machine becomes a node: a one-time token and a signing request in, a certificate out, everything in one commit or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from lattice import metrics
from lattice.clock import Clock, stamp
from lattice.errors import Denied, Exists, Invalid, LatticeError, Malformed, NotFound, UnknownUser
from lattice.kinds.core import Secret
from lattice.kinds.join_token import (
    JOINED_KEY,
    MADE_AT,
    NAMESPACE,
    JoinToken,
    Kept,
    judge,
    kept_in,
    parse_token,
    secret_name,
    with_kept,
)
from lattice.kinds.meta.object_rules import born
from lattice.kinds.meta.metadata import name_problem
from lattice.kinds.node import FINALIZER, LatticeNode
from lattice.kinds.meta.stored import Object, pack, unpack
from lattice.server.access.certificate_authority import Authority
from lattice.server.access.attempt_limiter import Guesses
from lattice.server.access.node_certificates import Asked, Peer, former_peer, read_request, sign
from lattice.store.protocol import ABSENT, Clash, Entry, Key, Put, Store

PATH = "/apis/lattice.dev/v1alpha1/join"
LARGEST = 16 * 1024  # bytes of a request
TRIES = 5
COME_BACK_WITHIN = timedelta(days=30)  # after a certificate ended


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request: str  # PKCS #10, PEM
    token: str = ""
    name: str = ""  # what the machine would like to be called, where the token leaves that open
    certificate: str = ""  # instead of a token: its former one, when it was away for longer than that lasted


@dataclass(frozen=True, slots=True)
class _By:
    """Who joins: its key, and the revision at which its token was made, or written last: nobody changes one that was not used. Of machines
    that were made for one node the last one counts."""

    key: str
    made_at: int


@dataclass
class Joining:
    """Any server may let a machine in: what decides is one commit against the store. `agents` is where agents connect, `servers` where
    the APIs of all servers answer."""

    store: Store
    authority: Authority
    clock: Clock
    new_uid: Callable[[], str]
    agents: Callable[[], str]
    servers: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        self._guesses = Guesses(self.clock)

    def directions(self) -> dict[str, Any]:
        """Open to everybody: whom to trust is in the token, not in this answer."""
        return {
            "authority": self.authority.pem.decode(),
            "agents": self.agents(),
            "servers": list(self.servers()),
        }

    async def join(self, body: bytes, address: str) -> dict[str, Any]:
        """What the new node needs. Refusals write nothing."""
        try:
            self._guesses.admit(address)
            wish = _read(body)
            answer = await (self._come_back(wish) if wish.certificate else self._join(wish))
        except LatticeError as error:
            if isinstance(error, UnknownUser | Denied | Invalid | Malformed | NotFound):
                self._guesses.count(address)
            metrics.JOINS.labels("refused").inc()
            raise
        metrics.JOINS.labels("joined").inc()
        return answer

    async def renew(self, peer: Peer, request: bytes) -> bytes:
        """For the same key and the same name, as long as that key is the node's."""
        asked = read_request(request)
        if asked.key != peer.key:
            raise Denied(
                "the signing request is for another key than the certificate",
                fix="ask with the key that joined",
            )
        entry = await self.store.get(node_key(peer.node))
        refuse_stranger(peer, unpack(entry.value, entry.revision) if entry else None)
        return sign(self.authority, asked, peer.node, self.clock.now())

    async def _come_back(self, wish: JoinRequest) -> dict[str, Any]:
        """A machine that slept, or could not reach us: its key is the node's still, and only who holds that has any use for the answer."""
        peer = former_peer(self.authority, wish.certificate.encode())
        if self.clock.now() > peer.until + COME_BACK_WITHIN:
            raise Denied(
                f"the certificate ended at {stamp(peer.until)}, which is too long ago",
                fix="let the machine join with a new token",
            )
        certificate = await self.renew(peer, wish.request.encode())
        return {"node": peer.node, "certificate": certificate.decode(), **self.directions()}

    async def _join(self, wish: JoinRequest) -> dict[str, Any]:
        token, asked = parse_token(wish.token), read_request(wish.request.encode())
        for attempt in range(TRIES):
            try:
                node = await self._let_in(token, asked, wish.name)
                break
            except Clash:  # somebody wrote the node, or used the token: look again
                if attempt == TRIES - 1:
                    raise
        certificate = sign(self.authority, asked, node, self.clock.now())
        return {"node": node, "certificate": certificate.decode(), **self.directions()}

    async def _let_in(self, token: JoinToken, asked: Asked, wish: str) -> str:
        entry = await self.store.get(Key(Secret.resource.id, NAMESPACE, secret_name(token.id)))
        secret = unpack(entry.value, entry.revision) if entry else {}
        kept = judge(token, kept_in(secret), asked.key, self.clock.now())
        assert entry is not None  # noqa: S101 - nothing is known without one
        node = kept.used_as or kept.grant.node or wish
        found = await self.store.get(node_key(node))
        if kept.used_by:
            refuse_stranger(
                Peer(node, asked.key, self.clock.now()),
                unpack(found.value, found.revision) if found else None,
            )
            return node  # the answer was lost: here it is again
        used = with_kept(secret, msgspec.structs.replace(kept, used_by=asked.key, used_as=node))
        by = _By(asked.key, entry.revision)
        writes = [
            Put(entry.key, pack(Secret.resource, used), entry.revision),
            self._node(node, kept, by, found),
        ]
        sign(
            self.authority, asked, node, self.clock.now()
        )  # a request that cannot be signed must not use the token up
        await self.store.commit(writes)
        return node

    def _node(self, name: str, kept: Kept, by: _By, found: Entry | None) -> Put:
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
            if by.made_at < _joined_at(obj, found.revision):
                raise Denied(
                    f"a machine has joined as node {name} with a token that was made later",
                    fix="end this machine, or let it join with a new token: lattice tokens create --node",
                )
            return Put(found.key, pack(LatticeNode.resource, _marked(obj, by)), found.revision)
        if problem := name_problem(LatticeNode.resource, name):
            raise Invalid(
                f'"{name}" cannot be the name of a node: {problem}', where="--name", fix="choose another name"
            )
        made: Object = {
            "apiVersion": LatticeNode.resource.api_version,
            "kind": LatticeNode.resource.kind,
            "metadata": {
                "name": name,
                "finalizers": [FINALIZER],
                **({"labels": kept.grant.labels} if kept.grant.labels else {}),
            },
            "spec": msgspec.to_builtins(kept.grant.spec),
        }
        fresh = born(_marked(made, by), uid=self.new_uid(), now=stamp(self.clock.now()))
        return Put(node_key(name), pack(LatticeNode.resource, fresh), ABSENT)


def _read(body: bytes) -> JoinRequest:
    if len(body) > LARGEST:
        raise Malformed(f"the request has {len(body)} bytes, at most {LARGEST} are taken")
    try:
        return msgspec.json.decode(body, type=JoinRequest)
    except msgspec.MsgspecError as error:
        raise Malformed(
            f"the request cannot be read: {error}", fix="run `lattice agent --join TOKEN --server URL`"
        ) from error


def _marked(obj: Object, by: _By) -> Object:
    metadata: dict[str, Any] = obj["metadata"]
    marks = {JOINED_KEY: by.key, MADE_AT: str(by.made_at)}
    return {**obj, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **marks}}}


def _joined_at(node: Object, revision: int) -> int:
    """When the token was made that its machine joined with. What is not from before the node's own revision is of another store."""
    told = node["metadata"].get("annotations", {}).get(MADE_AT, "")
    return int(told) if told.isdecimal() and int(told) < revision else 0


def node_key(name: str) -> Key:
    return Key(LatticeNode.resource.id, "", name)


def refuse_stranger(peer: Peer, node: Object | None) -> None:
    """A certificate counts for as long as its node is there and no other machine has joined as it."""
    if node is None:
        raise NotFound(
            f"there is no node {peer.node}", fix="it was removed; let the machine join again with a new token"
        )
    if node["metadata"].get("annotations", {}).get(JOINED_KEY) != peer.key:
        raise Denied(
            f"another machine has joined as node {peer.node}", fix="let this one join again with a new token"
        )
