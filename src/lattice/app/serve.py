"""The one place that builds a server: opens the store, wires API, tokens and controllers together, listens, and stops cleanly."""

import asyncio
import contextlib
import fcntl
import gc
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
from lattice.clock import Clock, SystemClock, format_timestamp
from lattice.controllers.runtime.context import uid_generator
from lattice.errors import Conflict, Full, LatticeError, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.meta.stored_encoding import pack
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
from lattice.server.fleet_queries.process_tuning import limit_malloc_arenas
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
NAME_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
COMPACTION_INTERVAL_S = 60.0  # seconds
GC_THRESHOLD = 20_000  # new containers between two collections: at Python's 700, one sixth of a busy server's time went there
MAX_HEADER_BYTES = 64 * 1024  # bytes of a request line or header: long selectors and continue tokens
log = structlog.get_logger()


@dataclass
class RunningServer:
    """A server that listens."""

    url: str
    kubeconfig: Path
    used_fallback_port: bool  # its port was taken and another one chosen
    store_location: str
    is_resumed: bool
    leadership: Leadership
    instance_id: str
    new_code: Callable[[], str] = str  # good once, for signing in to the page as administrator
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def sign_in_url(self) -> str:
        """A link that signs in, once, within ten minutes."""
        return f"{self.url}{UI_PATH}#code={self.new_code()}"


@contextlib.asynccontextmanager
async def serve(settings: Settings, *, fallback_port: bool) -> AsyncIterator[RunningServer]:
    """Everything up, in order, and down again in the opposite order."""
    limit_malloc_arenas()
    traces.TRACING.enable()
    clock = SystemClock()
    folder = Path(settings.data_dir).resolve()
    os.umask(0o077)  # what is kept here opens doors: nobody else reads it
    async with contextlib.AsyncExitStack() as stack:
        claim = stack.enter_context(_locked_data_dir(folder))
        resumed = bool(settings.store) or (folder / "state.db").exists()
        store = await _open_store(settings, folder, clock)
        stack.push_async_callback(store.close)
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
        instance = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        agents = _AgentsAddress(settings, address)
        servers = ServerDirectory(store, clock, new_uid, lambda: address.url)
        stack.push_async_callback(servers.deregister)
        made = build_providers(settings, folder, clock, lambda: ",".join(servers.urls()))
        for provider in made.values():
            stack.push_async_callback(provider.close)
        election = _election(store, clock, settings, instance)
        lead = Leadership(
            store,
            clock,
            election,
            build_dependencies(settings, authority, clock, made),
            settings.event_ttl,
            agents.advertised,
            lambda: address.url,
        )
        running = RunningServer(
            "",
            folder / "kubeconfig",
            False,
            settings.store or str(folder / "state.db"),
            resumed,
            lead,
            instance,
        )
        fleet = FleetQueryService(api, _query_process(settings, made), settings.fleet_time_limit)
        stack.push_async_callback(fleet.close)
        servers.leases = lead.lease_cache
        joining = NodeJoinService(store, authority, clock, new_uid, agents.advertised, servers.urls)
        links = AgentSessions(
            clock,
            lead.leading_context,
            lead.leader_agents_address,
            settings.heartbeat,
            lead.workload_environment,
        )
        lead.on_change = links.leadership_changed
        relay = LeaderProxy(lead.leader_url, lambda: address.url, leader_proxy_tls(authority, folder / "tls"))
        stack.push_async_callback(relay.close)
        live = UsageService(
            clock, lead.leading_context, relay, WorkloadLogs(lead.leading_context, links.logs, relay)
        )
        tokens = TokenAuthenticator(store, clock)
        app = App(
            api,
            tokens,
            documents,
            lambda: _health(running),
            fleet,
            joining,
            live,
            _pages(api, tokens, running),
        )
        pair = _server_pair(authority, folder, settings)
        await _listen(stack, app, address, _tls(authority, pair), fallback_port=fallback_port)
        tls = Tls(pair[0].read_bytes(), pair[1].read_bytes(), authority.pem)
        await agents.listen(stack, links, joining, tls, ControlService(api))
        running.url, running.used_fallback_port = (
            address.url,
            address.port != settings.port and settings.port != 0,
        )
        write_private(running.kubeconfig, admin_kubeconfig(address.url, authority).encode())
        claim(f"{os.getpid()} {running.url}")
        stack.push_async_callback(_stop, running)
        running.tasks |= {
            asyncio.create_task(lead.lease_cache.run()),
            asyncio.create_task(election.run()),
            asyncio.create_task(
                SpendRecorder(clock, lead.leading_context, new_uid, live.spend_history).run()
            ),
            asyncio.create_task(_compact(running, store, clock, settings.history)),
        }
        if settings.store:  # which others may share
            running.tasks.add(asyncio.create_task(servers.register()))
        await lead.wait_first_term()
        _tune_gc()
        yield running


def _pages(api: Api, tokens: TokenAuthenticator, running: RunningServer) -> Pages:
    """The page, whose links sign in as administrator."""
    sign_in = SignIn(api.store, api.clock, api.new_uid, tokens)
    running.new_code = lambda: sign_in.new_code(User(ADMIN, frozenset({ADMINS})))
    return Pages(assets(), tokens, sign_in, PageEventStream(api))


def _tune_gc() -> None:
    gc.collect()
    gc.set_threshold(GC_THRESHOLD)  # nearly all garbage goes without: what comes and goes here has no cycles
    gc.freeze()  # what stays for ever need not be walked through in every collection: those pauses are everybody's


@contextlib.contextmanager
def _locked_data_dir(folder: Path) -> Any:
    """One server per data folder; the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        who, _, where = os.pread(file, 200, 0).decode(errors="replace").partition(" ")
        os.close(file)
        at = f" at {where.strip()}" if where.strip() else ""
        raise Conflict(
            f"a server is already running on this data folder (process {who or 'unknown'}){at}",
            where=str(folder),
            fix="use it, stop it first, or choose another --data-dir",
        ) from error

    def tell(text: str) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)

    tell(str(os.getpid()))
    try:
        yield tell
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
    """Our own CRDs, readable like any object, written by nobody."""
    store = MemoryStore(clock)
    resource = CustomResourceDefinition.resource
    for each in documents.crds(format_timestamp(clock.now())):
        await store.commit([Put(Key(resource.id, "", each["metadata"]["name"]), pack(resource, each))])
    return store


class _ApiAddress:
    """Where the server can be reached; the port is known once it listens."""

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


def _query_process(settings: Settings, made: Iterable[str]) -> QueryProcess:
    """Tables that cannot be used are refused now, not when the first question comes."""
    if settings.prices or settings.latency:
        from lattice.server.fleet_queries.pricing_files import validate_files

        validate_files(settings.prices, settings.latency)
    return QueryProcess(settings.prices, settings.latency, ",".join(sorted(made)))


class _AgentsAddress:
    """Where agents connect: as asked for, else at the port after the API's, else at any that is free."""

    def __init__(self, settings: Settings, api: _ApiAddress) -> None:
        self._settings = settings
        self._api = api
        self.port = settings.agents_port

    def advertised(self) -> str:
        return f"{self._api.host}:{self.port}"

    async def listen(
        self,
        stack: contextlib.AsyncExitStack,
        links: AgentSessions,
        joining: NodeJoinService,
        tls: Tls,
        control: ControlService,
    ) -> None:
        asked = self._settings.agents_port
        for port in (asked,) if asked else (self._api.port + 1, 0) if self._settings.port else (0,):
            server = AgentListener(links, joining, tls, self._settings.listen, port)
            server.control = control
            try:
                await stack.enter_async_context(server)
            except Unavailable:
                if not port or asked:
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
    context.verify_mode = ssl.CERT_OPTIONAL  # bearer tokens come without a certificate
    return context


async def _listen(
    stack: contextlib.AsyncExitStack,
    app: App,
    address: _ApiAddress,
    tls: ssl.SSLContext,
    *,
    fallback_port: bool,
) -> None:
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
    """Forget what is older than `history`, a little every minute."""
    seen: list[tuple[float, int]] = []
    while True:
        try:
            revision = await store.revision()
            metrics.REVISION.set(revision)
            seen.append((clock.monotonic(), revision))
            old = [r for when, r in seen if when <= clock.monotonic() - history]
            if old and running.leadership.election.term is not None:
                await store.compact(old[-1])
            seen = [(when, r) for when, r in seen if not old or r > old[-1]]
        except LatticeError as error:
            log.warning("cannot compact", reason=str(error))
        await clock.sleep(COMPACTION_INTERVAL_S)


def _health(running: RunningServer) -> dict[str, Any]:
    """`degraded`: it serves, but its controllers had to be started again."""
    lead = running.leadership
    leads = lead.election.term is not None
    return {
        "status": "degraded" if lead.controller_failures else "ok",
        "isLeader": leads,
        "instanceId": running.instance_id,
        "lastReconciliation": lead.last_reconciled_at if leads else None,
        "pending": lead.pending if leads else 0,
    }


async def _stop(running: RunningServer) -> None:
    await running.leadership.stop()
    for task in running.tasks:
        task.cancel()
    await asyncio.gather(*running.tasks, return_exceptions=True)


def admin_kubeconfig(url: str, authority: CertificateAuthority) -> str:
    """For the administrator, with everything in the file."""
    from lattice.app.kubeconfig import Credentials, render_kubeconfig

    pair = authority.issue_client(ADMIN, [ADMINS])
    return render_kubeconfig(
        url, authority.pem, Credentials(ADMIN, certificate=pair.certificate, key=pair.key)
    )
