"""The transport between agent and server: a protocol that the simulator can replace, and its implementation
with gRPC over mutual TLS."""

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
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),  # a full list of assignments
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The session reconnects with its own back-off.
    ("grpc.enable_retries", 0),
]


class Transport(Protocol):
    def connect(self, address: str) -> AbstractAsyncContextManager[AgentConnection]:
        """Open a connection; raises Unavailable, immediately or at the first message, if the server is
        unreachable."""
        ...

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        """Exchange a signing request for a new certificate."""
        ...


class GrpcTransport:
    """Opens every connection with the current certificate of the identity."""

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
        return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


async def check_reachable(address: str) -> None:
    """Raise Unavailable unless a server listens at the address.

    A gRPC channel whose port is closed keeps retrying in the background, even after the channel is closed,
    and then holds an unused connection. Therefore no channel is opened before a server listens on the port.
    """
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), RPC_TIMEOUT_S
        )
    except (OSError, ValueError) as error:
        reason = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
        raise Unavailable(f"no connection: {reason}", where=address) from error
    writer.close()


class _GrpcConnection:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, message: pb.FromAgent) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from error
        # The stream has ended; its status has the reason.
        except asyncio.InvalidStateError as error:
            code, details = await self._call.code(), await self._call.details()
            if code in DENIED_STATUS_CODES:
                raise Denied(details) from error
            raise Unavailable(f"the connection ended: {details or code.name}") from error

    async def receive(self) -> pb.ToAgent | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from error
        return None if message is grpc.aio.EOF else message

    def close(self) -> None:
        self._call.cancel()


DENIED_STATUS_CODES = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
)


def _error_from_rpc(error: grpc.aio.AioRpcError, address: str = "") -> Unavailable | Denied:
    details = error.details() or error.code().name
    if error.code() in DENIED_STATUS_CODES:
        return Denied(details, where=address)
    return Unavailable(f"no connection: {details}", where=address)
