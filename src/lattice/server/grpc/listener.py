"""The port at which agents connect: gRPC over TLS, a client certificate of a node required, one stream each. Users find the control
service there, too."""

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog

from lattice.errors import Denied, LatticeError, NotFound, Unavailable
from lattice.server.grpc.control_service import Control
from lattice.server.agents.join import Joining
from lattice.server.agents.sessions import NodeLinks
from lattice.server.access.node_certificates import Peer, peer_of
from lattice.wire import agent_pb2 as pb
from lattice.wire import agent_pb2_grpc as rpc
from lattice.wire import control_pb2_grpc as control_rpc

LARGEST = 1 << 20  # bytes of one message from an agent
log = structlog.get_logger()
GOODBYE = 0.5  # seconds that open streams may take to end
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),  # finds connections whose other end is gone without a word
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
CODES = {
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
GONE = (
    grpc.RpcError,
    grpc.aio.BaseError,
    asyncio.InvalidStateError,
    RuntimeError,
)  # what gRPC raises at an end that is no more


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM: the server's certificate and key, and the authority that signs nodes."""

    certificate: bytes
    key: bytes
    authority: bytes


class AgentsServer:
    """`async with` it to listen. The port is known then; 0 picks a free one."""

    def __init__(
        self, links: NodeLinks, joining: Joining, tls: Tls, listen: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.links = links
        self.joining = joining
        self.listen = listen
        self.port = port
        self.control: Control | None = None  # served at the same port, to users
        self._tls = tls
        self._server: Any = None
        self._sweeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "AgentsServer":
        server = grpc.aio.server(options=OPTIONS)
        rpc.add_AgentsServicer_to_server(self, server)
        if self.control is not None:
            control_rpc.add_ControlServicer_to_server(self.control, server)
        pair = [(self._tls.key, self._tls.certificate)]
        credentials = grpc.ssl_server_credentials(pair, self._tls.authority, require_client_auth=True)
        host = f"[{self.listen}]" if ":" in self.listen else self.listen or "0.0.0.0"  # noqa: S104 - as asked for
        try:
            _demand_free(self.listen, self.port)
            self.port = server.add_secure_port(f"{host}:{self.port}", credentials)
        except (OSError, RuntimeError) as error:
            raise Unavailable(
                f"cannot listen for agents on {host}:{self.port}",
                fix="choose another --agents-port or --listen",
            ) from error
        await server.start()
        self._server = server
        self._sweeping = asyncio.create_task(self.links.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeping:
            self._sweeping.cancel()
        await self._server.stop(GOODBYE)

    async def Connect(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        peer = await self._peer(context)
        await self.links.serve(peer, _GrpcEnd(context))

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:  # noqa: N802
        peer = await self._peer(context)
        try:
            return pb.RenewReply(certificate=await self.joining.renew(peer, request.signing_request))
        except LatticeError as error:
            log.warning("agent refused", node=peer.node, reason=error.reason, message=error.what)
            await context.abort(CODES.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), str(error))
            raise

    async def _peer(self, context: Any) -> Peer:
        """From the certificate, which was verified before we are called."""
        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            return peer_of(pem)
        except (Denied, ValueError) as error:
            log.warning(
                "agent refused", node="", reason="NOT_A_NODE", message=str(error), address=context.peer()
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise


class _GrpcEnd:
    """The server's end of a stream. It ends when its handler returns."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def send(self, said: pb.ToAgent) -> None:
        try:
            await self._context.write(said)
        except GONE as error:
            raise Unavailable("the connection is gone") from error

    async def receive(self) -> pb.FromAgent | None:
        try:
            said = await self._context.read()
        except GONE:
            return None
        return None if said is grpc.aio.EOF else said

    def close(self) -> None:
        return None


def _demand_free(listen: str, port: int) -> None:
    """Raises OSError if somebody listens there: gRPC would print lines of its own about it."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((listen, port))
