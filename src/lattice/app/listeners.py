"""The addresses of a server, and the listeners for clients and for agents."""

import contextlib
import ssl
from pathlib import Path

from aiohttp import web

from lattice.errors import Unavailable
from lattice.server.access.certificate_authority import CertificateAuthority
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.sessions import AgentSessions
from lattice.server.app import MAX_BODY_BYTES, App
from lattice.server.grpc.control_service import ControlService
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.settings import Settings

# Maximum size of a request line or of a header; long selectors and continue tokens need more than the
# default.
MAX_HEADER_BYTES = 64 * 1024


class ApiAddress:
    """The address of the API; the port is final once the server listens."""

    def __init__(self, settings: Settings) -> None:
        self.listen = settings.listen
        self.port = settings.port
        self._host = settings.advertise or (
            "127.0.0.1" if settings.listen in {"", "0.0.0.0", "::"} else settings.listen  # noqa: S104
        )

    @property
    def host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    def advertised(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.advertised()}"


class AgentsAddress:
    """The address for agents: the port of the settings, else the port after the API's port, else any free
    port."""

    def __init__(self, settings: Settings, api: ApiAddress) -> None:
        self._settings = settings
        self._api = api
        self.port = settings.agents_port

    def advertised(self) -> str:
        return f"{self._api.host}:{self.port}"

    async def listen(
        self,
        stack: contextlib.AsyncExitStack,
        sessions: AgentSessions,
        joining: NodeJoinService,
        tls: Tls,
        control: ControlService,
    ) -> None:
        configured = self._settings.agents_port
        if configured:
            ports: tuple[int, ...] = (configured,)
        elif self._settings.port:
            ports = (self._api.port + 1, 0)
        else:
            ports = (0,)
        for port in ports:
            server = AgentListener(sessions, joining, tls, self._settings.listen, port)
            server.control = control
            try:
                await stack.enter_async_context(server)
            except Unavailable:
                # If the settings name a port, no other port is tried.
                if not port or configured:
                    raise
                continue
            self.port = server.port
            return


async def listen_for_clients(
    stack: contextlib.AsyncExitStack,
    app: App,
    address: ApiAddress,
    authority: CertificateAuthority,
    certificate_files: tuple[Path, Path],
    *,
    fallback_port: bool,
) -> None:
    """Listen on the API port; with `fallback_port`, on any free port if the port is taken."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(*certificate_files)
    tls.load_verify_locations(cadata=authority.pem.decode())
    # Clients with a bearer token have no certificate.
    tls.verify_mode = ssl.CERT_OPTIONAL
    server = web.Server(
        app.handle,
        client_max_size=MAX_BODY_BYTES + 1,
        access_log=None,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )
    runner = web.ServerRunner(server, shutdown_timeout=0.2)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for port in (address.port, 0) if fallback_port and address.port else (address.port,):
        site = web.TCPSite(runner, address.listen, port, ssl_context=tls, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            if fallback_port and port:
                continue
            raise Unavailable(
                f"cannot listen on {address.listen}:{port}: {error.strerror}",
                fix="choose another --port or --listen",
            ) from error
        address.port = runner.addresses[0][1]
        return
