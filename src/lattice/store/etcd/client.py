"""The etcd client: endpoints, TLS, deadlines, fail-over, and the translation of etcd errors."""

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

# Time limit of a write, and of a read over all members together. etcd itself gives up only after 7 s, so
# without a quorum a writer would wait that long for an error.
REQUEST_TIMEOUT_S = 1.8
# Per member: the limit for a large request, and for the first answer of a member that may have just started.
LARGE_REQUEST_TIMEOUT_S = 4.0
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
# With this header, a member that is cut off from the quorum ends a watch instead of staying silent.
NEED_LEADER = (("hasleader", "true"),)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an etcd cluster: etcd://host:port[,host:port]/prefix?ca=..&cert=..&key=.."""

    endpoints: tuple[str, ...]
    prefix: str = "/lattice"
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse an address; raise Invalid for another scheme or an unknown option. The default port is
        2379."""
        parts = urlsplit(url)
        endpoints = tuple(
            endpoint if ":" in endpoint.rpartition("]")[2] else f"{endpoint}:2379"
            for endpoint in parts.netloc.split(",")
            if endpoint
        )
        query = parse_qs(parts.query)
        unknown = sorted(set(query) - {"ca", "cert", "key"})
        if parts.scheme != "etcd" or not endpoints or unknown:
            problem = f"unknown option {unknown[0]!r}" if unknown else "not an etcd address"
            raise Invalid(
                f"{problem}: {url!r}",
                fix="write the address as etcd://host:2379[,host:2379]/prefix?ca=FILE&cert=FILE&key=FILE",
            )
        files = {name: values[-1] for name, values in query.items()}
        return cls(endpoints, parts.path.rstrip("/") or "/lattice", **files)


class Member:
    """The channel and the stubs of one endpoint."""

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
    """A client that uses one endpoint until the endpoint fails, then the next."""

    def __init__(self, address: Address) -> None:
        credentials = None
        if address.ca or address.cert or address.key:
            file_names = (address.ca, address.key, address.cert)
            ca, key, certificate = (Path(name).read_bytes() if name else None for name in file_names)
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        self._members = [Member(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0
        # The newest store revision in any answer.
        self.newest_revision = 0

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def member(self) -> Member:
        return self._members[self._current]

    async def read(
        self, send: Callable[[Member, float], Awaitable[T]], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """Run a read-only request; every member gets one attempt and an equal share of the time limit in
        seconds."""
        member_timeout_s = timeout_s / self.member_count
        # Only a read is repeated: after Unavailable the outcome of a write is unknown.
        for _ in self._members[1:]:
            try:
                return await self.call(lambda member: send(member, member_timeout_s))
            except Unavailable:
                continue
        return await self.call(lambda member: send(member, member_timeout_s))

    async def call(self, send: Callable[[Member], Awaitable[T]]) -> T:
        """Run one attempt. After Unavailable the outcome is unknown, and the next call goes to another
        member."""
        member = self.member
        try:
            response = await send(member)
        except grpc.aio.AioRpcError as error:
            translated = translate_error(error, member.endpoint)
            if isinstance(translated, Unavailable):
                self.fail_over(member)
            raise translated from error
        header = getattr(response, "header", None)
        if header is not None:
            self.newest_revision = max(self.newest_revision, header.revision)
        return response

    def fail_over(self, member: Member) -> None:
        """Switch to the next member, unless another call already left the failed member."""
        if member is self.member:
            self._current = (self._current + 1) % len(self._members)

    async def keep_alive(self, lease: int) -> bool:
        """Renew a lease once; return False if the lease has expired."""

        async def send(member: Member, seconds: float) -> bool:
            stream = member.lease.LeaseKeepAlive(timeout=seconds)
            try:
                await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
                response = await stream.read()
            finally:
                stream.cancel()
            # etcd answers an expired lease with a TTL of 0.
            return response is not grpc.aio.EOF and response.TTL > 0

        return await self.read(send)

    async def grant(self, ttl: int) -> int:
        """Create a lease and return its id; `ttl` is in seconds."""
        response = await self.call(
            lambda member: member.lease.LeaseGrant(pb.LeaseGrantRequest(TTL=ttl), timeout=REQUEST_TIMEOUT_S)
        )
        return int(response.ID)

    async def revoke(self, lease: int) -> None:
        """Revoke a lease; an expired lease is no error."""
        try:
            await self.call(
                lambda member: member.lease.LeaseRevoke(
                    pb.LeaseRevokeRequest(ID=lease), timeout=REQUEST_TIMEOUT_S
                )
            )
        except NoSuchLease:
            return

    async def version(self) -> str:
        """Return the version of etcd that a member reports."""
        response = await self.read(
            lambda member, seconds: member.maintenance.Status(pb.StatusRequest(), timeout=seconds),
            LARGE_REQUEST_TIMEOUT_S * self.member_count,
        )
        return str(response.version)

    async def close(self) -> None:
        await asyncio.gather(*(member.channel.close() for member in self._members))


class NoSuchLease(NotFound):
    """The lease expired or never existed; etcd wrote nothing."""


def translate_error(error: grpc.aio.AioRpcError, endpoint: str) -> LatticeError:
    """Return the Lattice error for a gRPC error of etcd."""
    details = error.details() or ""
    where = f"etcd {endpoint}"
    if "database space exceeded" in details:
        return Full(
            "etcd's space quota is used up: nothing was written",
            where=where,
            fix="compact and defragment etcd, then run `etcdctl alarm disarm`",
        )
    if "required revision has been compacted" in details:
        return Gone("the revision is compacted", fix="list again and watch from the new revision")
    if "future revision" in details:
        return RevisionTooNew("the revision does not exist yet", fix="retry later, or omit the revision")
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
            "no response in time",
            where=where,
            fix="check that etcd has a leader and that its disk is fast enough",
        )
    return Unavailable(
        f"{error.code().name.lower().replace('_', ' ')}: {details}",
        where=where,
        fix="check that etcd runs and is reachable",
    )


def reject_lossy_version(version: str) -> None:
    """Raise Unavailable for releases that can lose acknowledged writes.

    The etcd advisories name 3.5.0 to 3.5.5, and 3.4 before 3.4.22.
    """
    numbers = tuple(int(part) for part in version.split("-")[0].split("+")[0].split(".")[:3])
    if (3, 4, 22) <= numbers < (3, 5, 0) or numbers >= (3, 5, 6):
        return
    raise Unavailable(
        f"etcd {version} is not supported: this release can lose acknowledged writes",
        fix="upgrade etcd to 3.4.22 or later, or 3.5.6 or later; "
        "at your own risk: --allow-etcd-that-loses-writes",
    )


def read_op(key: bytes, *, keys_only: bool = False) -> Any:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=keys_only))


def first_kv(response: Any) -> Any | None:
    """Return the key-value pair of a single-key read, or None."""
    kvs: Sequence[Any] = response.response_range.kvs
    return kvs[0] if kvs else None
