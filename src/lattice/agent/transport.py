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
from lattice.wire.channel import AgentEnd

ANSWER_WITHIN = 10.0
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),  # a whole list of orders
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_retries", 0),
]


class Link(Protocol):
    def connect(self, address: str) -> AbstractAsyncContextManager[AgentEnd]:
        """A new connection. Raises Unavailable, at once or at the first word, when there is none to be had."""
        ...

    async def renew(self, address: str, request: bytes) -> bytes:
        """A new certificate for a signing request."""
        ...


class GrpcLink:
    """Each connection is made with the certificate of that moment."""

    def __init__(self, identity: Callable[[], Identity]) -> None:
        self._identity = identity

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentEnd]:
        await knock(address)
        async with self._channel(address) as channel:
            call = rpc.AgentsStub(channel).Connect()
            try:
                yield _GrpcEnd(call)
            finally:
                call.cancel()

    async def renew(self, address: str, request: bytes) -> bytes:
        await knock(address)
        async with self._channel(address) as channel:
            try:
                reply = await rpc.AgentsStub(channel).Renew(
                    pb.RenewRequest(signing_request=request), timeout=ANSWER_WITHIN
                )
            except grpc.aio.AioRpcError as error:
                raise _meaning(error, address) from error
            certificate: bytes = reply.certificate
            return certificate

    def _channel(self, address: str) -> Any:
        identity = self._identity()
        credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


async def knock(address: str) -> None:
    """Does anybody listen there? A channel that is refused goes on trying by itself, even once it is closed, and then holds a connection
    that nobody uses: none is made where it would be refused."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), ANSWER_WITHIN
        )
    except (OSError, ValueError) as error:
        why = "nobody listens there" if isinstance(error, ConnectionRefusedError) else str(error)
        raise Unavailable(f"no connection: {why}", where=address) from error
    writer.close()


class _GrpcEnd:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, said: pb.FromAgent) -> None:
        try:
            await self._call.write(said)
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from error
        except asyncio.InvalidStateError as error:  # the stream has ended, and its end says why
            raise await self._ended() from error

    async def receive(self) -> pb.ToAgent | None:
        try:
            said = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from error
        return None if said is grpc.aio.EOF else said

    def close(self) -> None:
        self._call.cancel()

    async def _ended(self) -> Unavailable | Denied:
        code, details = await self._call.code(), await self._call.details()
        return (
            Denied(details)
            if code in REFUSING
            else Unavailable(f"the connection ended: {details or code.name}")
        )


REFUSING = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND)


def _meaning(error: grpc.aio.AioRpcError, address: str = "") -> Unavailable | Denied:
    details = error.details() or error.code().name
    return (
        Denied(details, where=address)
        if error.code() in REFUSING
        else Unavailable(f"no connection: {details}", where=address)
    )
