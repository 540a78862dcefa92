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
from lattice.server.access.node_certificates import NodeIdentity, node_identity
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.sessions import AgentSessions
from lattice.server.grpc.control_service import ControlService
from lattice.wire import agent_pb2 as pb
from lattice.wire import agent_pb2_grpc as rpc
from lattice.wire import control_pb2_grpc as control_rpc

MAX_MESSAGE_BYTES = 1 << 20  # bytes of one message from an agent
log = structlog.get_logger()
STOP_GRACE_PERIOD_S = 0.5  # seconds that open streams may take to end
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),  # finds connections whose other end is gone without a word
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
RENEW_STATUS_CODES = {
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
DISCONNECT_ERRORS = (
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


class AgentListener:
    """`async with` it to listen. The port is known then; 0 picks a free one."""

    def __init__(
        self,
        links: AgentSessions,
        joining: NodeJoinService,
        tls: Tls,
        listen: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.sessions = links
        self.join_service = joining
        self.listen = listen
        self.port = port
        self.control: ControlService | None = None  # served at the same port, to users
        self._tls = tls
        self._server: Any = None
        self._sweep_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "AgentListener":
        server = grpc.aio.server(options=OPTIONS)
        rpc.add_AgentsServicer_to_server(self, server)
        if self.control is not None:
            control_rpc.add_ControlServicer_to_server(self.control, server)
        pair = [(self._tls.key, self._tls.certificate)]
        credentials = grpc.ssl_server_credentials(pair, self._tls.authority, require_client_auth=True)
        host = f"[{self.listen}]" if ":" in self.listen else self.listen or "0.0.0.0"  # noqa: S104 - as asked for
        try:
            _require_free_port(self.listen, self.port)
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
            log.warning("agent refused", node=peer.node, reason=error.reason, message=error.message)
            await context.abort(
                RENEW_STATUS_CODES.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), str(error)
            )
            raise

    async def _authenticate_node(self, context: Any) -> NodeIdentity:
        """From the certificate, which was verified before we are called."""
        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            return node_identity(pem)
        except (Denied, ValueError) as error:
            log.warning(
                "agent refused", node="", reason="NOT_A_NODE", message=str(error), address=context.peer()
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise


class _GrpcStream:
    """The server's end of a stream. It ends when its handler returns."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def send(self, said: pb.ToAgent) -> None:
        try:
            await self._context.write(said)
        except DISCONNECT_ERRORS as error:
            raise Unavailable("the connection is gone") from error

    async def receive(self) -> pb.FromAgent | None:
        try:
            said = await self._context.read()
        except DISCONNECT_ERRORS:
            return None
        return None if said is grpc.aio.EOF else said

    def close(self) -> None:
        return None


def _require_free_port(listen: str, port: int) -> None:
    """Raises OSError if somebody listens there: gRPC would print lines of its own about it."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((listen, port))
