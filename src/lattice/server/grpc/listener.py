"""The gRPC listener for agents: TLS with a node's client certificate, one stream per agent. The same port
also serves ControlService, the gRPC API for users."""

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog

from lattice.errors import Denied, LatticeError, NotFound, Unavailable
from lattice.server.access.node_certificates import NodeIdentity, node_identity
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.sessions import AgentSessions
from lattice.server.grpc.control_service import ControlService
from lattice.wire import agent_pb2 as pb
from lattice.wire import agent_pb2_grpc as rpc
from lattice.wire import control_pb2_grpc as control_rpc

# Limit of one message from an agent.
MAX_MESSAGE_BYTES = 1 << 20
log = structlog.get_logger()
# Time for open streams to end at shutdown.
STOP_GRACE_PERIOD_S = 0.5
GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 8),
    # With port reuse, a second server could bind the same port unnoticed.
    ("grpc.so_reuseport", 0),
    # Detects connections whose peer vanished silently.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
RENEW_STATUS_CODES = {
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
# Errors that gRPC raises on a stream whose peer is gone.
DISCONNECT_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Tls:
    """The server's certificate and key and the authority that signs client certificates, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


class AgentListener:
    """Listens while used as an async context manager. Port 0 selects a free port; `port` holds the actual
    port then."""

    def __init__(
        self,
        sessions: AgentSessions,
        join_service: NodeJoinService,
        tls: Tls,
        listen: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.sessions = sessions
        self.join_service = join_service
        self.listen = listen
        self.port = port
        # The gRPC API for users, served at the same port.
        self.control: ControlService | None = None
        self._tls = tls
        self._server: Any = None
        self._sweep_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "AgentListener":
        server = grpc.aio.server(options=GRPC_OPTIONS)
        rpc.add_AgentsServicer_to_server(self, server)
        if self.control is not None:
            control_rpc.add_ControlServicer_to_server(self.control, server)
        pair = [(self._tls.key, self._tls.certificate)]
        # There is no insecure mode: every peer must show a certificate of the authority.
        credentials = grpc.ssl_server_credentials(pair, self._tls.authority, require_client_auth=True)
        host = self.listen or "0.0.0.0"  # noqa: S104 - the user's choice
        if ":" in self.listen:
            host = f"[{self.listen}]"
        try:
            # A port in use is an error here already: gRPC itself would print log lines.
            with socket.socket(socket.AF_INET6 if ":" in self.listen else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.listen, self.port))
            self.port = server.add_secure_port(f"{host}:{self.port}", credentials)
        except (OSError, RuntimeError) as error:
            raise Unavailable(
                f"cannot listen for agents on {host}:{self.port}",
                fix="choose another --agents-port or --listen",
            ) from error
        await server.start()
        self._server = server
        self._sweep_task = asyncio.create_task(self.sessions.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweep_task:
            self._sweep_task.cancel()
        await self._server.stop(STOP_GRACE_PERIOD_S)

    async def Connect(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        peer = await self._authenticate_node(context)
        await self.sessions.serve(peer, _GrpcStream(context))

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:  # noqa: N802
        peer = await self._authenticate_node(context)
        try:
            return pb.RenewReply(certificate=await self.join_service.renew(peer, request.signing_request))
        except LatticeError as error:
            log.warning("agent rejected", node=peer.node, reason=error.reason, message=error.message)
            await context.abort(
                RENEW_STATUS_CODES.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), str(error)
            )
            raise

    async def _authenticate_node(self, context: Any) -> NodeIdentity:
        """The node of the client certificate, which gRPC verified before. Aborts the RPC for any other
        certificate."""
        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            return node_identity(pem)
        except (Denied, ValueError) as error:
            log.warning(
                "agent rejected", node="", reason="NOT_A_NODE", message=str(error), address=context.peer()
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise


class _GrpcStream:
    """The server's end of an agent stream. The stream ends when the RPC handler returns."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def send(self, message: pb.ToAgent) -> None:
        try:
            await self._context.write(message)
        except DISCONNECT_ERRORS as error:
            raise Unavailable("the connection is closed") from error

    async def receive(self) -> pb.FromAgent | None:
        try:
            message = await self._context.read()
        except DISCONNECT_ERRORS:
            return None
        return None if message is grpc.aio.EOF else message

    def close(self) -> None:
        return None
