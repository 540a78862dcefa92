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
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from lattice import metrics
from lattice.clock import Clock, SystemClock, stamp
from lattice.controllers.garbage import Garbage
from lattice.errors import Conflict, Full, LatticeError, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.stored import pack
from lattice.server.api import Api
from lattice.server.app import MAX_BODY, App
from lattice.server.auth import Tokens
from lattice.server.authority import ADMINS
from lattice.server.bootstrap import bootstrap
from lattice.server.catalog import Catalog
from lattice.server.certificates import Authority, open_server_pair, own_hosts, write_private
from lattice.server.documents import Documents
from lattice.server.fleet import Beside, FleetQuestions
from lattice.settings import Settings
from lattice.store.leader import Election
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Store, Term

ROLE = "controllers"
ADMIN = "lattice-admin"
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
COMPACT_EVERY = 60.0  # seconds
RESTART_PAUSE = 5.0  # seconds before a failed controller begins again
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
    election: Election
    instance: str
    garbage: Garbage | None = None
    failures: int = 0  # of controllers, since the start
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@contextlib.asynccontextmanager
async def serve(settings: Settings, *, fallback_port: bool) -> AsyncIterator[Running]:
    """Everything up, in order, and down again in the opposite order."""
    clock = SystemClock()
    folder = Path(settings.data_dir).resolve()
    os.umask(0o077)  # what is kept here opens doors: nobody else reads it
    async with contextlib.AsyncExitStack() as stack:
        claim = stack.enter_context(_claimed(folder))
        resumed = bool(settings.store) or (folder / "state.db").exists()
        store = await _open_store(settings, folder, clock)
        stack.push_async_callback(store.close)
        catalog = Catalog((*KINDS, CustomResourceDefinition))
        api = Api(store, catalog, clock, lambda: str(uuid.uuid4()), lambda: "".join(secrets.choice(SUFFIX) for _ in range(5)))
        api.jitter = random.random
        authority = await bootstrap(api)
        address = _Address(settings)
        documents = Documents(catalog, address.shown)
        api.fixed = {CustomResourceDefinition.resource.id: await _fixed(documents, clock)}
        instance = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        running = Running(
            "",
            folder / "kubeconfig",
            False,
            settings.store or str(folder / "state.db"),
            resumed,
            _election(store, clock, settings, instance),
            instance,
        )
        _control(running, store, clock, settings)
        fleet = FleetQuestions(api, _beside(settings), settings.fleet_time_limit)
        stack.push_async_callback(fleet.close)
        app = App(api, Tokens(store, clock), documents, lambda: _health(running), fleet)
        await _listen(stack, app, address, _tls(authority, folder, settings), fallback_port=fallback_port)
        running.url, running.moved = address.url, address.port != settings.port and settings.port != 0
        write_private(running.kubeconfig, kubeconfig(address.url, authority).encode())
        claim(f"{os.getpid()} {running.url}")
        stack.push_async_callback(_stop, running)
        running.tasks |= {
            asyncio.create_task(running.election.run()),
            asyncio.create_task(_compact(running, store, clock, settings.history)),
        }
        gc.collect()
        gc.freeze()  # what stays for ever need not be walked through in every collection: those pauses are everybody's
        yield running


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
        from lattice.store.etcd import EtcdStore

        return await EtcdStore.open(settings.store, clock, settings.allow_etcd_that_loses_writes)
    raise Unavailable(f"no such store: {settings.store}", where="--store", fix="leave it out for SQLite, or give etcd://HOST:PORT")


async def _open_file(path: Path, clock: Clock) -> Store:
    import apsw

    from lattice.store.sqlite import SqliteStore

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
        self._host = settings.advertise or ("127.0.0.1" if settings.listen in {"", "0.0.0.0", "::"} else settings.listen)  # noqa: S104

    def shown(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.shown()}"


def _beside(settings: Settings) -> Beside:
    """Tables that cannot be used are refused now, not when the first question comes."""
    if settings.prices or settings.latency:
        from lattice.server.tables import checked

        checked(settings.prices, settings.latency)
    return Beside(settings.prices, settings.latency)


def _tls(authority: Authority, folder: Path, settings: Settings) -> ssl.SSLContext:
    hosts = [*own_hosts(settings.listen), *([settings.advertise] if settings.advertise else [])]
    certificate, key = open_server_pair(authority, folder / "tls", hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL  # bearer tokens come without a certificate
    return context


async def _listen(stack: contextlib.AsyncExitStack, app: App, address: _Address, tls: ssl.SSLContext, *, fallback_port: bool) -> None:
    server = web.Server(app.handle, client_max_size=MAX_BODY + 1, access_log=None, max_line_size=MAX_HEAD, max_field_size=MAX_HEAD)
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
                f"cannot listen on {address.listen}:{port}: {error.strerror}", fix="choose another --port or --listen"
            ) from error
        address.port = runner.addresses[0][1]
        return


def _election(store: Store, clock: Clock, settings: Settings, instance: str) -> Election:
    return Election(store, clock, ROLE, instance, random.Random(), settings.lease_ttl)  # noqa: S311 - jitter


def _control(running: Running, store: Store, clock: Clock, settings: Settings) -> None:
    """Controllers run while this server leads, each write fenced by the term it was elected for."""
    acting: dict[int, asyncio.Task[None]] = {}

    def won(term: Term) -> None:
        metrics.LEADER.set(1)
        log.info("leading", role=term.role, term=term.number)
        acting[term.number] = asyncio.create_task(_collect(running, store, clock, term, timedelta(seconds=settings.event_ttl)))

    def lost(term: Term) -> None:
        metrics.LEADER.set(0)
        log.info("no longer leading", role=term.role, term=term.number)
        if (task := acting.pop(term.number, None)) is not None:
            task.cancel()

    running.election.won, running.election.lost = won, lost


async def _collect(running: Running, store: Store, clock: Clock, term: Term, event_ttl: timedelta) -> None:
    """The garbage controller, for as long as we lead: when it fails, that is told, and it begins again."""
    while running.election.term == term:
        running.garbage = Garbage(store, clock, KINDS, term, event_ttl)
        try:
            await running.garbage.run()
            return  # the term is over
        except LatticeError as error:
            log.warning("controller stopped, starting again", controller="garbage", reason=str(error))
        except Exception:
            log.exception("controller failed, starting again", controller="garbage")
        running.failures += 1
        await clock.sleep(RESTART_PAUSE)


async def _compact(running: Running, store: Store, clock: Clock, history: float) -> None:
    """Forget what is older than `history`, a little every minute."""
    seen: list[tuple[float, int]] = []
    while True:
        try:
            revision = await store.revision()
            metrics.REVISION.set(revision)
            seen.append((clock.monotonic(), revision))
            old = [r for when, r in seen if when <= clock.monotonic() - history]
            if old and running.election.term is not None:
                await store.compact(old[-1])
            seen = [(when, r) for when, r in seen if not old or r > old[-1]]
        except LatticeError as error:
            log.warning("cannot compact", reason=str(error))
        await clock.sleep(COMPACT_EVERY)


def _health(running: Running) -> dict[str, Any]:
    """`degraded`: it serves, but its controllers had to be started again."""
    leads, garbage = running.election.term is not None, running.garbage
    return {
        "status": "degraded" if running.failures else "ok",
        "isLeader": leads,
        "instanceId": running.instance,
        "lastReconciliation": garbage.last_look if leads and garbage else None,
        "pending": garbage.pending if leads and garbage else 0,
    }


async def _stop(running: Running) -> None:
    for task in running.tasks:
        task.cancel()
    await asyncio.gather(*running.tasks, return_exceptions=True)


def kubeconfig(url: str, authority: Authority) -> str:
    """For the administrator, with everything in the file."""
    from lattice.cli.kubeconfig import Credentials, render

    pair = authority.issue_client(ADMIN, [ADMINS])
    return render(url, authority.pem, Credentials(ADMIN, certificate=pair.certificate, key=pair.key))
