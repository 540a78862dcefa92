"""Build a server: open the store, connect API, agent sessions and controllers, listen, and stop in reverse
order."""

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from lattice import metrics
from lattice import tracing as traces
from lattice.app.bootstrap import bootstrap
from lattice.app.leadership import Leadership, build_dependencies, build_providers
from lattice.clock import Clock, SystemClock
from lattice.controllers.runtime.context import uid_generator
from lattice.errors import Conflict, Full, LatticeError, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.process_tuning import limit_malloc_arenas, tune_server
from lattice.providers.protocol import Provider
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.authorization import ADMINS
from lattice.server.access.certificate_authority import (
    CertificateAuthority,
    ensure_server_certificate,
    own_hosts,
    write_private,
)
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.leader_proxy import LeaderProxy, leader_proxy_tls
from lattice.server.agents.server_directory import ServerDirectory
from lattice.server.agents.sessions import AgentSessions
from lattice.server.app import MAX_BODY_BYTES, App
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.server.fleet_queries.service import FleetQueryService, QueryProcess
from lattice.server.grpc.control_service import ControlService
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.server.live.logs import WorkloadLogs
from lattice.server.live.spend_recorder import SpendRecorder
from lattice.server.live.top_and_spending import UsageService
from lattice.server.requests.call import User
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.api import Api
from lattice.server.ui_backend.event_stream import PageEventStream
from lattice.server.ui_backend.pages import UI_PATH, Pages
from lattice.server.ui_backend.sign_in import SignIn
from lattice.settings import Settings
from lattice.store.election import Election
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Store
from lattice.ui import assets

ROLE = "controllers"
ADMIN = "lattice-admin"
# No vowels, so that random suffixes spell no words.
NAME_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
COMPACTION_INTERVAL_S = 60.0
# A request line or header: long selectors and continue tokens need more than the default.
MAX_HEADER_BYTES = 64 * 1024
log = structlog.get_logger()


@dataclass
class RunningServer:
    """A listening server."""

    url: str
    kubeconfig: Path
    # The port of the settings was taken, and the server listens on another port.
    used_fallback_port: bool
    store_location: str
    is_resumed: bool
    leadership: Leadership
    instance_id: str
    # Returns a one-time code that signs in to the web page as administrator.
    new_code: Callable[[], str] = str
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def sign_in_url(self) -> str:
        """A link that signs in to the web page, once, within ten minutes."""
        return f"{self.url}{UI_PATH}#code={self.new_code()}"


@contextlib.asynccontextmanager
async def serve(settings: Settings, *, fallback_port: bool) -> AsyncIterator[RunningServer]:
    """Start every component in order, yield the running server, and stop the components in reverse order."""
    limit_malloc_arenas()
    traces.TRACING.enable()
    clock = SystemClock()
    folder = Path(settings.data_dir).resolve()
    # The data folder holds private keys: only this user may read the files.
    os.umask(0o077)
    async with contextlib.AsyncExitStack() as stack:
        # The lock comes first: a second server on the folder must fail before it opens the store.
        write_lock_file = stack.enter_context(_locked_data_dir(folder))
        is_resumed = bool(settings.store) or (folder / "state.db").exists()
        store = await _open_store(settings, folder, clock)
        stack.push_async_callback(store.close)
        base = await _build_api(settings, folder, clock, store)
        control_plane = _build_control_plane(stack, base)
        leadership = control_plane.leadership
        running = RunningServer(
            "",
            folder / "kubeconfig",
            False,
            settings.store or str(folder / "state.db"),
            is_resumed,
            leadership,
            control_plane.instance_id,
        )
        handlers = _build_request_handlers(stack, base, control_plane, running)
        await _open_listeners(stack, base, control_plane, handlers, fallback_port=fallback_port)
        running.url, running.used_fallback_port = (
            base.address.url,
            base.address.port != settings.port and settings.port != 0,
        )
        # Written after listening: only then is the port of the URL final.
        write_private(running.kubeconfig, admin_kubeconfig(base.address.url, base.authority).encode())
        write_lock_file(f"{os.getpid()} {running.url}")
        # Pushed last, so called first: the leader resigns while listeners and store still work.
        stack.push_async_callback(_stop, running)
        _start_background_tasks(running, base, control_plane, handlers)
        await leadership.wait_first_term()
        tune_server()
        yield running


@dataclass(frozen=True)
class _ApiBase:
    """The API on the store, and what every later stage of the start needs."""

    settings: Settings
    folder: Path
    api: Api
    authority: CertificateAuthority
    address: "_ApiAddress"
    documents: DiscoveryDocuments


async def _build_api(settings: Settings, folder: Path, clock: Clock, store: Store) -> _ApiBase:
    """Build the API on the store; bootstrap creates the objects that a new store lacks."""
    catalog = Catalog((*KINDS, CustomResourceDefinition))
    new_uid = uid_generator(random.Random())  # noqa: S311 - names, no secrets
    api = Api(
        store,
        catalog,
        clock,
        new_uid,
        lambda: "".join(secrets.choice(NAME_SUFFIX_ALPHABET) for _ in range(5)),
    )
    api.jitter = random.random
    authority = await bootstrap(api)
    address = _ApiAddress(settings)
    documents = DiscoveryDocuments(catalog, address.advertised)
    api.read_only_stores = {CustomResourceDefinition.resource.id: await _crd_store(documents, clock)}
    return _ApiBase(settings, folder, api, authority, address, documents)


@dataclass(frozen=True)
class _ControlPlane:
    """Leader election with the controllers of the leader, the providers, and the addresses of all servers."""

    instance_id: str
    agents: "_AgentsAddress"
    servers: ServerDirectory
    providers: dict[str, Provider]
    leadership: Leadership


def _build_control_plane(stack: contextlib.AsyncExitStack, base: _ApiBase) -> _ControlPlane:
    """Build the election and the controllers; nothing runs before `_start_background_tasks`."""
    settings, api, address = base.settings, base.api, base.address
    instance_id = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
    agents = _AgentsAddress(settings, address)
    servers = ServerDirectory(api.store, api.clock, api.new_uid, lambda: address.url)
    stack.push_async_callback(servers.deregister)
    providers = build_providers(settings, base.folder, api.clock, lambda: ",".join(servers.urls()))
    for provider in providers.values():
        stack.push_async_callback(provider.close)
    election = _election(api.store, api.clock, settings, instance_id)
    leadership = Leadership(
        api.store,
        api.clock,
        election,
        build_dependencies(settings, base.authority, api.clock, providers),
        settings.event_ttl,
        agents.advertised,
        lambda: address.url,
    )
    return _ControlPlane(instance_id, agents, servers, providers, leadership)


@dataclass(frozen=True)
class _RequestHandlers:
    """The components that answer requests of clients and agents."""

    app: App
    joining: NodeJoinService
    sessions: AgentSessions
    usage: UsageService


def _build_request_handlers(
    stack: contextlib.AsyncExitStack, base: _ApiBase, control_plane: _ControlPlane, running: RunningServer
) -> _RequestHandlers:
    """Build the handlers of the API, of fleet queries, of the web page and of agent sessions."""
    settings, api, authority, address = base.settings, base.api, base.authority, base.address
    leadership, servers = control_plane.leadership, control_plane.servers
    fleet = FleetQueryService(
        api, _query_process(settings, control_plane.providers), settings.fleet_time_limit
    )
    stack.push_async_callback(fleet.close)
    servers.leases = leadership.lease_cache
    joining = NodeJoinService(
        api.store, authority, api.clock, api.new_uid, control_plane.agents.advertised, servers.urls
    )
    sessions = AgentSessions(
        api.clock,
        leadership.leading_context,
        leadership.leader_agents_address,
        settings.heartbeat,
        leadership.workload_environment,
    )
    leadership.on_change = sessions.leadership_changed
    proxy = LeaderProxy(
        leadership.leader_url, lambda: address.url, leader_proxy_tls(authority, base.folder / "tls")
    )
    stack.push_async_callback(proxy.close)
    usage = UsageService(
        api.clock,
        leadership.leading_context,
        proxy,
        WorkloadLogs(leadership.leading_context, sessions.logs, proxy),
    )
    tokens = TokenAuthenticator(api.store, api.clock)
    app = App(
        api,
        tokens,
        base.documents,
        lambda: _health(running),
        fleet,
        joining,
        usage,
        _pages(api, tokens, running),
    )
    return _RequestHandlers(app, joining, sessions, usage)


async def _open_listeners(
    stack: contextlib.AsyncExitStack,
    base: _ApiBase,
    control_plane: _ControlPlane,
    handlers: _RequestHandlers,
    *,
    fallback_port: bool,
) -> None:
    """Listen for clients, then for agents."""
    authority = base.authority
    pair = _server_pair(authority, base.folder, base.settings)
    await _listen(stack, handlers.app, base.address, _tls(authority, pair), fallback_port=fallback_port)
    tls = Tls(pair[0].read_bytes(), pair[1].read_bytes(), authority.pem)
    await control_plane.agents.listen(
        stack, handlers.sessions, handlers.joining, tls, ControlService(base.api)
    )


def _start_background_tasks(
    running: RunningServer, base: _ApiBase, control_plane: _ControlPlane, handlers: _RequestHandlers
) -> None:
    """Start the election, the recording of spending, compaction, and the registration of this server."""
    settings, api, leadership = base.settings, base.api, control_plane.leadership
    running.tasks |= {
        asyncio.create_task(leadership.lease_cache.run()),
        asyncio.create_task(leadership.election.run()),
        asyncio.create_task(
            SpendRecorder(
                api.clock, leadership.leading_context, api.new_uid, handlers.usage.spend_history
            ).run()
        ),
        asyncio.create_task(_compact(running, api.store, api.clock, settings.history)),
    }
    # A store that other servers may share.
    if settings.store:
        running.tasks.add(asyncio.create_task(control_plane.servers.register()))


def _pages(api: Api, tokens: TokenAuthenticator, running: RunningServer) -> Pages:
    """The web page; its sign-in links sign in as administrator."""
    sign_in = SignIn(api.store, api.clock, api.new_uid, tokens)
    running.new_code = lambda: sign_in.new_code(User(ADMIN, frozenset({ADMINS})))
    return Pages(assets(), tokens, sign_in, PageEventStream(api))


@contextlib.contextmanager
def _locked_data_dir(folder: Path) -> Any:
    """Lock the data folder for one server and yield a function that writes the lock file; the lock ends with
    the process."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        process, _, address = os.pread(file, 200, 0).decode(errors="replace").partition(" ")
        os.close(file)
        suffix = f" at {address.strip()}" if address.strip() else ""
        raise Conflict(
            f"a server is already running on this data folder (process {process or 'unknown'}){suffix}",
            where=str(folder),
            fix="use it, stop it first, or choose another --data-dir",
        ) from error

    def write(text: str) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)

    write(str(os.getpid()))
    try:
        yield write
    finally:
        os.close(file)


async def _open_store(settings: Settings, folder: Path, clock: Clock) -> Store:
    if not settings.store:
        return await _open_file(folder / "state.db", clock)
    if settings.store.startswith("etcd://"):
        from lattice.store.etcd.store import EtcdStore

        return await EtcdStore.open(settings.store, clock, settings.allow_etcd_that_loses_writes)
    raise Unavailable(
        f"no such store: {settings.store}",
        where="--store",
        fix="leave it out for SQLite, or give etcd://HOST:PORT",
    )


async def _open_file(path: Path, clock: Clock) -> Store:
    import apsw

    from lattice.store.sqlite.store import SqliteStore

    try:
        return await SqliteStore.open(path, clock)
    except apsw.FullError as error:
        raise Full("the disk is full", where=str(path), fix="free some space") from error
    except apsw.Error as error:
        fix = "see whether the disk is sound; put a copy of the file back, or choose another --data-dir"
        raise Unavailable(f"SQLite cannot use this file: {error}", where=str(path), fix=fix) from error


async def _crd_store(documents: DiscoveryDocuments, clock: Clock) -> Store:
    """A read-only store of our own CustomResourceDefinitions."""
    store = MemoryStore(clock)
    resource = CustomResourceDefinition.resource
    for crd in documents.crds(format_timestamp(clock.now())):
        await store.commit([Put(Key(resource.id, "", crd["metadata"]["name"]), pack(resource, crd))])
    return store


class _ApiAddress:
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


def _query_process(settings: Settings, provider_names: Iterable[str]) -> QueryProcess:
    """Build the query process; invalid price and latency files are rejected at start, not with the first
    query."""
    if settings.prices or settings.latency:
        from lattice.server.fleet_queries.pricing_files import validate_files

        validate_files(settings.prices, settings.latency)
    return QueryProcess(settings.prices, settings.latency, ",".join(sorted(provider_names)))


class _AgentsAddress:
    """The address for agents: the port of the settings, else the port after the API's port, else any free
    port."""

    def __init__(self, settings: Settings, api: _ApiAddress) -> None:
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
                # Another port never replaces a port that the settings name.
                if not port or configured:
                    raise
                continue
            self.port = server.port
            return


def _server_pair(authority: CertificateAuthority, folder: Path, settings: Settings) -> tuple[Path, Path]:
    hosts = [*own_hosts(settings.listen), *([settings.advertise] if settings.advertise else [])]
    return ensure_server_certificate(authority, folder / "tls", hosts)


def _tls(authority: CertificateAuthority, pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*pair)
    context.load_verify_locations(cadata=authority.pem.decode())
    # Clients with a bearer token have no certificate.
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def _listen(
    stack: contextlib.AsyncExitStack,
    app: App,
    address: _ApiAddress,
    tls: ssl.SSLContext,
    *,
    fallback_port: bool,
) -> None:
    """Listen on the API port; with `fallback_port`, on any free port if the port is taken."""
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


def _election(store: Store, clock: Clock, settings: Settings, instance: str) -> Election:
    return Election(store, clock, ROLE, instance, random.Random(), settings.lease_ttl)  # noqa: S311 - jitter


async def _compact(running: RunningServer, store: Store, clock: Clock, history: float) -> None:
    """Compact the store once a minute: the leader drops revisions older than `history` seconds.

    Not a controller on `Loop`: every server samples revisions, also a follower, which runs no controllers.
    """
    revisions: list[tuple[float, int]] = []
    while True:
        try:
            current = await store.revision()
            metrics.REVISION.set(current)
            # Followers sample revisions too, so that a new leader can compact at once.
            revisions.append((clock.monotonic(), current))
            old = [revision for at, revision in revisions if at <= clock.monotonic() - history]
            if old and running.leadership.election.term is not None:
                await store.compact(old[-1])
            revisions = [(at, revision) for at, revision in revisions if not old or revision > old[-1]]
        except LatticeError as error:
            log.warning("cannot compact", reason=str(error))
        await clock.sleep(COMPACTION_INTERVAL_S)


def _health(running: RunningServer) -> dict[str, Any]:
    """The health document; `degraded` means that the server serves and its controllers have failed and
    restarted."""
    leadership = running.leadership
    is_leader = leadership.election.term is not None
    return {
        "status": "degraded" if leadership.controller_failures else "ok",
        "isLeader": is_leader,
        "instanceId": running.instance_id,
        "lastReconciliation": leadership.last_reconciled_at if is_leader else None,
        "pending": leadership.pending if is_leader else 0,
    }


async def _stop(running: RunningServer) -> None:
    # Running reconciles end before the cancelled election resigns the term.
    await running.leadership.stop()
    for task in running.tasks:
        task.cancel()
    await asyncio.gather(*running.tasks, return_exceptions=True)


def admin_kubeconfig(url: str, authority: CertificateAuthority) -> str:
    """A kubeconfig of the administrator with embedded certificates."""
    from lattice.app.kubeconfig import Credentials, render_kubeconfig

    pair = authority.issue_client(ADMIN, [ADMINS])
    return render_kubeconfig(
        url, authority.pem, Credentials(ADMIN, certificate=pair.certificate, key=pair.key)
    )
