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

from lattice import metrics, tracing as traces
from lattice.app.leadership import Lead, means, providers
from lattice.clock import Clock, SystemClock, stamp
from lattice.controllers.runtime.context import uids
from lattice.errors import Conflict, Full, LatticeError, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.meta.stored import pack
from lattice.server.grpc.listener import AgentsServer, Tls
from lattice.server.resources.api import Api
from lattice.server.app import MAX_BODY, App
from lattice.server.access.authentication import Tokens
from lattice.server.access.authorization import ADMINS
from lattice.app.bootstrap import bootstrap
from lattice.server.requests.call import User
from lattice.server.requests.catalog import Catalog
from lattice.server.access.certificate_authority import Authority, open_server_pair, own_hosts, write_private
from lattice.server.grpc.control_service import Control
from lattice.server.discovery.documents import Documents
from lattice.server.fleet_queries.service import Beside, FleetQuestions
from lattice.server.agents.join import Joining
from lattice.server.live.usage import Live
from lattice.server.fleet_queries.memory import share_arenas
from lattice.server.agents.sessions import NodeLinks
from lattice.server.ui_backend.pages import HOME, Pages
from lattice.server.ui_backend.event_stream import PageStream
from lattice.server.agents.leader_proxy import Relay, relay_tls
from lattice.server.agents.server_directory import Servers
from lattice.server.ui_backend.sign_in import SignIn
from lattice.server.live.spend_store import SpendBook
from lattice.server.live.logs import WorkLogs
from lattice.settings import Settings
from lattice.store.election import Election
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Store
from lattice.ui import assets

ROLE = "controllers"
ADMIN = "lattice-admin"
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
COMPACT_EVERY = 60.0  # seconds
SELDOM = 20_000  # new containers between two collections: at Python's 700, one sixth of a busy server's time went there
MAX_HEAD = 64 * 1024  # bytes of a request line or header: long selectors and continue tokens
log = structlog.get_logger()


@dataclass
class Running:
    """A server that listens."""

    url: str
    kubeconfig: Path
    moved: bool  # its port was taken and another one chosen
    store: str
    resumed: bool
    lead: Lead
    instance: str
    new_code: Callable[[], str] = str  # good once, for signing in to the page as administrator
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def page(self) -> str:
        """A link that signs in, once, within ten minutes."""
        return f"{self.url}{HOME}#code={self.new_code()}"


@contextlib.asynccontextmanager
async def serve(settings: Settings, *, fallback_port: bool) -> AsyncIterator[Running]:
    """Everything up, in order, and down again in the opposite order."""
    share_arenas()
    traces.TRACES.listen()
    clock = SystemClock()
    folder = Path(settings.data_dir).resolve()
    os.umask(0o077)  # what is kept here opens doors: nobody else reads it
    async with contextlib.AsyncExitStack() as stack:
        claim = stack.enter_context(_claimed(folder))
        resumed = bool(settings.store) or (folder / "state.db").exists()
        store = await _open_store(settings, folder, clock)
        stack.push_async_callback(store.close)
        catalog = Catalog((*KINDS, CustomResourceDefinition))
        new_uid = uids(random.Random())  # noqa: S311 - names, no secrets
        api = Api(store, catalog, clock, new_uid, lambda: "".join(secrets.choice(SUFFIX) for _ in range(5)))
        api.jitter = random.random
        authority = await bootstrap(api)
        address = _Address(settings)
        documents = Documents(catalog, address.shown)
        api.fixed = {CustomResourceDefinition.resource.id: await _fixed(documents, clock)}
        instance = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        agents = _AgentsAddress(settings, address)
        servers = Servers(store, clock, new_uid, lambda: address.url)
        stack.push_async_callback(servers.leave)
        made = providers(settings, folder, clock, lambda: ",".join(servers.known()))
        for provider in made.values():
            stack.push_async_callback(provider.close)
        election = _election(store, clock, settings, instance)
        lead = Lead(
            store,
            clock,
            election,
            means(settings, authority, clock, made),
            settings.event_ttl,
            agents.shown,
            lambda: address.url,
        )
        running = Running(
            "",
            folder / "kubeconfig",
            False,
            settings.store or str(folder / "state.db"),
            resumed,
            lead,
            instance,
        )
        fleet = FleetQuestions(api, _beside(settings, made), settings.fleet_time_limit)
        stack.push_async_callback(fleet.close)
        servers.leases = lead.leases
        joining = Joining(store, authority, clock, new_uid, agents.shown, servers.known)
        links = NodeLinks(clock, lead.leading, lead.leader, settings.heartbeat, lead.environment)
        lead.changed = links.leadership_changed
        relay = Relay(lead.leader_url, lambda: address.url, relay_tls(authority, folder / "tls"))
        stack.push_async_callback(relay.close)
        live = Live(clock, lead.leading, relay, WorkLogs(lead.leading, links.logs, relay))
        tokens = Tokens(store, clock)
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
        await agents.listen(stack, links, joining, tls, Control(api))
        running.url, running.moved = address.url, address.port != settings.port and settings.port != 0
        write_private(running.kubeconfig, kubeconfig(address.url, authority).encode())
        claim(f"{os.getpid()} {running.url}")
        stack.push_async_callback(_stop, running)
        running.tasks |= {
            asyncio.create_task(lead.leases.run()),
            asyncio.create_task(election.run()),
            asyncio.create_task(SpendBook(clock, lead.leading, new_uid, live.spending).run()),
            asyncio.create_task(_compact(running, store, clock, settings.history)),
        }
        if settings.store:  # which others may share
            running.tasks.add(asyncio.create_task(servers.enrol()))
        await lead.begun()
        _collect_seldom()
        yield running


def _pages(api: Api, tokens: Tokens, running: Running) -> Pages:
    """The page, whose links sign in as administrator."""
    sign_in = SignIn(api.store, api.clock, api.new_uid, tokens)
    running.new_code = lambda: sign_in.new_code(User(ADMIN, frozenset({ADMINS})))
    return Pages(assets(), tokens, sign_in, PageStream(api))


def _collect_seldom() -> None:
    gc.collect()
    gc.set_threshold(SELDOM)  # nearly all garbage goes without: what comes and goes here has no cycles
    gc.freeze()  # what stays for ever need not be walked through in every collection: those pauses are everybody's


@contextlib.contextmanager
def _claimed(folder: Path) -> Any:
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


async def _fixed(documents: Documents, clock: Clock) -> Store:
    """Our own CRDs, readable like any object, written by nobody."""
    store = MemoryStore(clock)
    resource = CustomResourceDefinition.resource
    for each in documents.crds(stamp(clock.now())):
        await store.commit([Put(Key(resource.id, "", each["metadata"]["name"]), pack(resource, each))])
    return store


class _Address:
    """Where the server can be reached; the port is known once it listens."""

    def __init__(self, settings: Settings) -> None:
        self.listen = settings.listen
        self.port = settings.port
        self._host = settings.advertise or (
            "127.0.0.1" if settings.listen in {"", "0.0.0.0", "::"} else settings.listen
        )  # noqa: S104

    @property
    def host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    def shown(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.shown()}"


def _beside(settings: Settings, made: Iterable[str]) -> Beside:
    """Tables that cannot be used are refused now, not when the first question comes."""
    if settings.prices or settings.latency:
        from lattice.server.fleet_queries.price_files import checked

        checked(settings.prices, settings.latency)
    return Beside(settings.prices, settings.latency, ",".join(sorted(made)))


class _AgentsAddress:
    """Where agents connect: as asked for, else at the port after the API's, else at any that is free."""

    def __init__(self, settings: Settings, api: _Address) -> None:
        self._settings = settings
        self._api = api
        self.port = settings.agents_port

    def shown(self) -> str:
        return f"{self._api.host}:{self.port}"

    async def listen(
        self, stack: contextlib.AsyncExitStack, links: NodeLinks, joining: Joining, tls: Tls, control: Control
    ) -> None:
        asked = self._settings.agents_port
        for port in (asked,) if asked else (self._api.port + 1, 0) if self._settings.port else (0,):
            server = AgentsServer(links, joining, tls, self._settings.listen, port)
            server.control = control
            try:
                await stack.enter_async_context(server)
            except Unavailable:
                if not port or asked:
                    raise
                continue
            self.port = server.port
            return


def _server_pair(authority: Authority, folder: Path, settings: Settings) -> tuple[Path, Path]:
    hosts = [*own_hosts(settings.listen), *([settings.advertise] if settings.advertise else [])]
    return open_server_pair(authority, folder / "tls", hosts)


def _tls(authority: Authority, pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*pair)
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL  # bearer tokens come without a certificate
    return context


async def _listen(
    stack: contextlib.AsyncExitStack, app: App, address: _Address, tls: ssl.SSLContext, *, fallback_port: bool
) -> None:
    server = web.Server(
        app.handle,
        client_max_size=MAX_BODY + 1,
        access_log=None,
        max_line_size=MAX_HEAD,
        max_field_size=MAX_HEAD,
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


async def _compact(running: Running, store: Store, clock: Clock, history: float) -> None:
    """Forget what is older than `history`, a little every minute."""
    seen: list[tuple[float, int]] = []
    while True:
        try:
            revision = await store.revision()
            metrics.REVISION.set(revision)
            seen.append((clock.monotonic(), revision))
            old = [r for when, r in seen if when <= clock.monotonic() - history]
            if old and running.lead.election.term is not None:
                await store.compact(old[-1])
            seen = [(when, r) for when, r in seen if not old or r > old[-1]]
        except LatticeError as error:
            log.warning("cannot compact", reason=str(error))
        await clock.sleep(COMPACT_EVERY)


def _health(running: Running) -> dict[str, Any]:
    """`degraded`: it serves, but its controllers had to be started again."""
    lead = running.lead
    leads = lead.election.term is not None
    return {
        "status": "degraded" if lead.failures else "ok",
        "isLeader": leads,
        "instanceId": running.instance,
        "lastReconciliation": lead.last_look if leads else None,
        "pending": lead.pending if leads else 0,
    }


async def _stop(running: Running) -> None:
    await running.lead.stop()
    for task in running.tasks:
        task.cancel()
    await asyncio.gather(*running.tasks, return_exceptions=True)


def kubeconfig(url: str, authority: Authority) -> str:
    """For the administrator, with everything in the file."""
    from lattice.cli.commands.kubeconfig import Credentials, render

    pair = authority.issue_client(ADMIN, [ADMINS])
    return render(url, authority.pem, Credentials(ADMIN, certificate=pair.certificate, key=pair.key))
