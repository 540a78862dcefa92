"""Talking to etcd: endpoints, TLS, deadlines, and what its errors mean here."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import grpc
import grpc.aio

from lattice.errors import Full, Gone, Invalid, LatticeError, NotFound, RevisionTooNew, TooLarge, Unavailable
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as rpc

# Seconds. etcd itself gives up after 7: with most of its members lost, whoever writes would not hear of it for so long.
REQUEST_TIMEOUT_S = 1.8  # for a write, and for a read whoever answers it
LARGE_REQUEST_TIMEOUT_S = 4.0  # for what may be large, and for the first word of a member that may have started a moment ago; from each member
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
NEED_LEADER = (
    ("hasleader", "true"),
)  # a member cut off from the others ends our watch instead of keeping silent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where etcd is, as in etcd://host:port[,host:port]/prefix?ca=..&cert=..&key=.."""

    endpoints: tuple[str, ...]
    prefix: str = "/lattice"
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> "Address":
        parts = urlsplit(url)
        endpoints = tuple(
            point if ":" in point.rpartition("]")[2] else f"{point}:2379"
            for point in parts.netloc.split(",")
            if point
        )
        query = parse_qs(parts.query)
        unknown = sorted(set(query) - {"ca", "cert", "key"})
        if parts.scheme != "etcd" or not endpoints or unknown:
            wrong = f"unknown option {unknown[0]!r}" if unknown else "not an etcd address"
            raise Invalid(
                f"{wrong}: {url!r}",
                fix="write it as etcd://host:2379[,host:2379]/prefix?ca=FILE&cert=FILE&key=FILE",
            )
        files = {name: values[-1] for name, values in query.items()}
        return cls(endpoints, parts.path.rstrip("/") or "/lattice", **files)


class Member:
    """The stubs of one endpoint."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)
        self.kv: Any = rpc.KVStub(self.channel)
        self.watch: Any = rpc.WatchStub(self.channel)
        self.lease: Any = rpc.LeaseStub(self.channel)
        self.maintenance: Any = rpc.MaintenanceStub(self.channel)


class EtcdClient:
    """One endpoint is used until it fails; then the next."""

    def __init__(self, address: Address) -> None:
        credentials = _credentials(address)
        self._members = [Member(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0
        self.newest_revision = 0  # the newest store revision any answer has mentioned

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def member(self) -> Member:
        return self._members[self._current]

    async def read(
        self, ask: Callable[[Member, float], Awaitable[T]], patience: float = REQUEST_TIMEOUT_S
    ) -> T:
        """A call that changes nothing: every endpoint gets its chance, for as many seconds as it is told."""
        share = patience / self.member_count
        for _ in self._members[1:]:
            try:
                return await self.call(lambda member: ask(member, share))
            except Unavailable:
                continue
        return await self.call(lambda member: ask(member, share))

    async def call(self, ask: Callable[[Member], Awaitable[T]]) -> T:
        """One attempt; after no answer the outcome is unknown, and the next call goes elsewhere."""
        member = self.member
        try:
            answer = await ask(member)
        except grpc.aio.AioRpcError as error:
            meaning = translate(error, member.endpoint)
            if isinstance(meaning, Unavailable):
                self.fail_over(member)
            raise meaning from error
        header = getattr(answer, "header", None)
        if header is not None:
            self.newest_revision = max(self.newest_revision, header.revision)
        return answer

    def fail_over(self, member: Member) -> None:
        if member is self.member:
            self._current = (self._current + 1) % len(self._members)

    async def keep_alive(self, lease: int) -> bool:
        async def ask(member: Member, seconds: float) -> bool:
            stream = member.lease.LeaseKeepAlive(timeout=seconds)
            try:
                await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
                answer = await stream.read()
            finally:
                stream.cancel()
            return answer is not grpc.aio.EOF and answer.TTL > 0

        return await self.read(ask)

    async def grant(self, ttl: int) -> int:
        answer = await self.call(
            lambda m: m.lease.LeaseGrant(pb.LeaseGrantRequest(TTL=ttl), timeout=REQUEST_TIMEOUT_S)
        )
        return int(answer.ID)

    async def revoke(self, lease: int) -> None:
        try:
            await self.call(
                lambda m: m.lease.LeaseRevoke(pb.LeaseRevokeRequest(ID=lease), timeout=REQUEST_TIMEOUT_S)
            )
        except NoSuchLease:
            return

    async def version(self) -> str:
        answer = await self.read(
            lambda m, seconds: m.maintenance.Status(pb.StatusRequest(), timeout=seconds),
            LARGE_REQUEST_TIMEOUT_S * self.member_count,
        )
        return str(answer.version)

    async def close(self) -> None:
        await asyncio.gather(*(member.channel.close() for member in self._members))


class NoSuchLease(NotFound):
    """The lease expired or never was; nothing was written."""


def translate(error: grpc.aio.AioRpcError, endpoint: str) -> LatticeError:
    details = error.details() or ""
    where = f"etcd {endpoint}"
    if "database space exceeded" in details:
        return Full(
            "etcd's space quota is used up: nothing was written",
            where=where,
            fix="compact, defragment and `etcdctl alarm disarm`",
        )
    if "required revision has been compacted" in details:
        return Gone("that revision is compacted", fix="list again and go on from there")
    if "future revision" in details:
        return RevisionTooNew(
            "that revision has not happened yet", fix="ask again later, or without a revision"
        )
    if "requested lease not found" in details:
        return NoSuchLease(details, where=where)
    if "request is too large" in details or "too many operations" in details:
        return TooLarge(
            details,
            where=where,
            fix="raise etcd's --max-request-bytes and --max-txn-ops to their defaults or above",
        )
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(
            "no answer in time", where=where, fix="see whether etcd has a leader and a disk that keeps up"
        )
    return Unavailable(
        f"{error.code().name.lower().replace('_', ' ')}: {details}",
        where=where,
        fix="see whether etcd runs and is reachable",
    )


def reject_lossy_version(version: str) -> None:
    """Releases that can lose writes they have acknowledged (etcd's own advisories on 3.5.0-3.5.5 and 3.4 before 3.4.22)."""
    numbers = tuple(int(part) for part in version.split("-")[0].split("+")[0].split(".")[:3])
    if (3, 4, 22) <= numbers < (3, 5, 0) or numbers >= (3, 5, 6):
        return
    raise Unavailable(
        f"etcd {version} is not used: this release can lose writes it has acknowledged",
        fix="upgrade etcd to 3.4.22 or later, or 3.5.6 or later; at your own risk: --allow-etcd-that-loses-writes",
    )


def _credentials(address: Address) -> grpc.ChannelCredentials | None:
    if not (address.ca or address.cert or address.key):
        return None
    ca, key, cert = (
        Path(name).read_bytes() if name else None for name in (address.ca, address.key, address.cert)
    )
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def read_op(key: bytes, *, keys_only: bool = False) -> Any:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=keys_only))


def first_kv(response: Any) -> Any | None:
    """The single key asked for, or None."""
    kvs: Sequence[Any] = response.response_range.kvs
    return kvs[0] if kvs else None
