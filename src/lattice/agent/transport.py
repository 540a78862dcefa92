"""How an agent reaches a server: a protocol, so that a simulator can replace it, and gRPC over TLS in both directions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio

from lattice.agent.identity import Identity
from lattice.errors import Denied, Unavailable
from lattice.wire import agent_pb2 as pb
from lattice.wire import agent_pb2_grpc as rpc
from lattice.wire.connection import AgentConnection

RPC_TIMEOUT_S = 10.0
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),  # a whole list of orders
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_retries", 0),
]


class Transport(Protocol):
    def connect(self, address: str) -> AbstractAsyncContextManager[AgentConnection]:
        """A new connection. Raises Unavailable, at once or at the first word, when there is none to be had."""
        ...

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        """A new certificate for a signing request."""
        ...


class GrpcTransport:
    """Each connection is made with the certificate of that moment."""

    def __init__(self, identity: Callable[[], Identity]) -> None:
        self._identity = identity

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        await check_reachable(address)
        async with self._channel(address) as channel:
            call = rpc.AgentsStub(channel).Connect()
            try:
                yield _GrpcConnection(call)
            finally:
                call.cancel()

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        await check_reachable(address)
        async with self._channel(address) as channel:
            try:
                reply = await rpc.AgentsStub(channel).Renew(
                    pb.RenewRequest(signing_request=request), timeout=RPC_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise _error_from_rpc(error, address) from error
            certificate: bytes = reply.certificate
            return certificate

    def _channel(self, address: str) -> Any:
        identity = self._identity()
        credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


async def check_reachable(address: str) -> None:
    """Does anybody listen there? A channel that is refused goes on trying by itself, even once it is closed, and then holds a connection
    that nobody uses: none is made where it would be refused."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), RPC_TIMEOUT_S
        )
    except (OSError, ValueError) as error:
        why = "nobody listens there" if isinstance(error, ConnectionRefusedError) else str(error)
        raise Unavailable(f"no connection: {why}", where=address) from error
    writer.close()


class _GrpcConnection:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, said: pb.FromAgent) -> None:
        try:
            await self._call.write(said)
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from error
        except asyncio.InvalidStateError as error:  # the stream has ended, and its end says why
            raise await self._end_error() from error

    async def receive(self) -> pb.ToAgent | None:
        try:
            said = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from error
        return None if said is grpc.aio.EOF else said

    def close(self) -> None:
        self._call.cancel()

    async def _end_error(self) -> Unavailable | Denied:
        code, details = await self._call.code(), await self._call.details()
        return (
            Denied(details)
            if code in DENIED_STATUS_CODES
            else Unavailable(f"the connection ended: {details or code.name}")
        )


DENIED_STATUS_CODES = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
)


def _error_from_rpc(error: grpc.aio.AioRpcError, address: str = "") -> Unavailable | Denied:
    details = error.details() or error.code().name
    return (
        Denied(details, where=address)
        if error.code() in DENIED_STATUS_CODES
        else Unavailable(f"no connection: {details}", where=address)
    )
