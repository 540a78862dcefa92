"""Build a server: open the store, connect API, agent sessions and controllers, listen, and stop in reverse
order."""

import asyncio
import contextlib
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice import tracing as traces
from lattice.app.bootstrap import bootstrap
from lattice.app.compaction import HistoryCompactor
from lattice.app.leadership import Leadership, build_dependencies, build_election, build_providers
from lattice.app.listeners import AgentsAddress, ApiAddress, listen_for_clients
from lattice.app.storage import locked_data_dir, open_store
from lattice.clock import Clock, SystemClock
from lattice.controllers.runtime.context import uid_generator
from lattice.kinds import SERVED_KINDS
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.process_tuning import limit_malloc_arenas, tune_server
from lattice.providers.protocol import Provider
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.authorization import ADMIN_GROUP
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
from lattice.server.app import App
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.server.fleet_queries.service import FleetQueryService, QueryProcess
from lattice.server.grpc.control_service import ControlService
from lattice.server.grpc.listener import Tls
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
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Store
from lattice.ui import assets

ADMIN = "lattice-admin"
# No vowels, so that random suffixes spell no words.
NAME_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
COMPACTION_INTERVAL_S = 60.0


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

    def health(self) -> dict[str, Any]:
        """The health document; `degraded` means that the server answers requests, but a controller has failed
        and been restarted since the server started."""
        leadership = self.leadership
        is_leader = leadership.election.term is not None
        return {
            "status": "degraded" if leadership.controller_failures else "ok",
            "isLeader": is_leader,
            "instanceId": self.instance_id,
            "lastReconciliation": leadership.last_reconciled_at if is_leader else None,
            "pending": leadership.pending if is_leader else 0,
        }

    async def stop(self) -> None:
        """Stop the controllers and every background task."""
        # Running reconciles end before the cancelled election resigns the term.
        await self.leadership.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


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
        write_lock_file = stack.enter_context(locked_data_dir(folder))
        is_resumed = bool(settings.store) or (folder / "state.db").exists()
        store = await open_store(settings, folder, clock)
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
        # The API listens first: the port for agents may be the port after the API's.
        hosts = [*own_hosts(settings.listen), *([settings.advertise] if settings.advertise else [])]
        certificate, key = ensure_server_certificate(base.authority, folder / "tls", hosts)
        await listen_for_clients(
            stack,
            handlers.app,
            base.address,
            base.authority,
            (certificate, key),
            fallback_port=fallback_port,
        )
        tls = Tls(certificate.read_bytes(), key.read_bytes(), base.authority.pem)
        await control_plane.agents.listen(
            stack, handlers.sessions, handlers.joining, tls, ControlService(base.api)
        )
        running.url = base.address.url
        running.used_fallback_port = settings.port not in (0, base.address.port)
        # Written after listening: only then is the port of the URL final.
        write_private(running.kubeconfig, admin_kubeconfig(base.address.url, base.authority).encode())
        write_lock_file(f"{os.getpid()} {running.url}")
        # Pushed last, so called first: the leader resigns while listeners and store still work.
        stack.push_async_callback(running.stop)
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
    address: ApiAddress
    documents: DiscoveryDocuments


async def _build_api(settings: Settings, folder: Path, clock: Clock, store: Store) -> _ApiBase:
    """Build the API on the store; bootstrap creates the objects that a new store lacks."""
    catalog = Catalog((*SERVED_KINDS, CustomResourceDefinition))
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
    address = ApiAddress(settings)
    documents = DiscoveryDocuments(catalog, address.advertised)
    # The CustomResourceDefinitions of Lattice's own kinds are served from a memory store that clients cannot
    # write.
    crds = MemoryStore(clock)
    resource = CustomResourceDefinition.resource
    for crd in documents.crds(format_timestamp(clock.now())):
        await crds.commit([Put(Key(resource.id, "", crd["metadata"]["name"]), pack(resource, crd))])
    api.read_only_stores = {resource.id: crds}
    return _ApiBase(settings, folder, api, authority, address, documents)


@dataclass(frozen=True)
class _ControlPlane:
    """Leader election with the controllers of the leader, the providers, and the addresses of all servers."""

    instance_id: str
    agents: AgentsAddress
    servers: ServerDirectory
    providers: dict[str, Provider]
    leadership: Leadership


def _build_control_plane(stack: contextlib.AsyncExitStack, base: _ApiBase) -> _ControlPlane:
    """Build the election and the controllers; nothing runs before `_start_background_tasks`."""
    settings, api, address = base.settings, base.api, base.address
    instance_id = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
    agents = AgentsAddress(settings, address)
    servers = ServerDirectory(api.store, api.clock, api.new_uid, lambda: address.url)
    stack.push_async_callback(servers.deregister)
    providers = build_providers(settings, base.folder, api.clock, lambda: ",".join(servers.urls()))
    for provider in providers.values():
        stack.push_async_callback(provider.close)
    election = build_election(settings, api.store, api.clock, instance_id)
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
    if settings.prices or settings.latency:
        from lattice.server.fleet_queries.pricing_files import validate_files

        # Invalid price and latency files are rejected at start, not with the first query.
        validate_files(settings.prices, settings.latency)
    query_process = QueryProcess(settings.prices, settings.latency, leadership.dependencies.adapters)
    fleet = FleetQueryService(api, query_process, settings.fleet_time_limit)
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
    sign_in = SignIn(api.store, api.clock, api.new_uid, tokens)
    running.new_code = lambda: sign_in.new_code(User(ADMIN, frozenset({ADMIN_GROUP})))
    pages = Pages(assets(), tokens, sign_in, PageEventStream(api))
    app = App(api, tokens, base.documents, running.health, fleet, joining, usage, pages)
    return _RequestHandlers(app, joining, sessions, usage)


def _start_background_tasks(
    running: RunningServer, base: _ApiBase, control_plane: _ControlPlane, handlers: _RequestHandlers
) -> None:
    """Start the lease cache, the election, the recording of spending, compaction and, if servers may share
    the store, the registration of this server."""
    settings, api, leadership = base.settings, base.api, control_plane.leadership
    compactor = HistoryCompactor(
        api.store, api.clock, leadership.election, settings.history, COMPACTION_INTERVAL_S
    )
    running.tasks |= {
        asyncio.create_task(leadership.lease_cache.run()),
        asyncio.create_task(leadership.election.run()),
        asyncio.create_task(
            SpendRecorder(
                api.clock, leadership.leading_context, api.new_uid, handlers.usage.spend_history
            ).run()
        ),
        asyncio.create_task(compactor.run()),
    }
    # Only a store named by --store can be shared with other servers, which find each other by registration.
    if settings.store:
        running.tasks.add(asyncio.create_task(control_plane.servers.register()))


def admin_kubeconfig(url: str, authority: CertificateAuthority) -> str:
    """A kubeconfig of the administrator with embedded certificates."""
    from lattice.app.kubeconfig import Credentials, render_kubeconfig

    pair = authority.issue_client(ADMIN, [ADMIN_GROUP])
    return render_kubeconfig(
        url, authority.pem, Credentials(ADMIN, certificate=pair.certificate, key=pair.key)
    )
