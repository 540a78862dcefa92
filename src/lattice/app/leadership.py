"""Run the controllers and the garbage collector while this server leads, and announce the leader's addresses
in the lease."""

import asyncio
import random
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lattice import metrics
from lattice.clock import Clock
from lattice.controllers.automation.webhook_client import HttpsWebhookClient, parse_networks
from lattice.controllers.controller_set import (
    ControllerDependencies,
    ControllerSet,
    concurrency,
    enabled_controllers,
    grace_periods,
    node_timeouts,
    pressure_thresholds,
)
from lattice.controllers.garbage.collector import GarbageCollector
from lattice.controllers.runtime.context import ControllerContext, uid_generator
from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import Fenced, Invalid, LatticeError
from lattice.kinds import KINDS
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.core import Lease, LeaseSpec, Secret
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Metadata
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_micro_time, format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import environment
from lattice.presence import Presence
from lattice.providers.fake import FakeProvider
from lattice.providers.local import LocalProvider
from lattice.providers.manual import ManualProvider
from lattice.providers.protocol import Provider
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, STANDALONE_PROFILE
from lattice.scheduling.table.node_table import NodeTable
from lattice.server.access.certificate_authority import CertificateAuthority
from lattice.server.fleet_queries.pricing_files import PricingFiles, split_comma_list
from lattice.settings import Settings
from lattice.store.cache import Cache
from lattice.store.election import Election
from lattice.store.protocol import ABSENT, Key, Put, Store, Term

# The role whose term fences every write of a controller.
ELECTION_ROLE = "controllers"
LEASE_KEY = Key(Lease.resource.id, SYSTEM_NAMESPACE, "controllers")
# Annotations of the lease: the leader's address for agents, and the URL of its API.
AGENTS_ADDRESS_ANNOTATION = "lattice.dev/agents"
API_URL_ANNOTATION = "lattice.dev/api"
CONTROLLER_RESTART_DELAY_S = 5.0
# Controllers return without an error only when they are stopped or fenced. If the term has not ended after
# this delay, they are started again; normally the term has ended by then.
TERM_END_DELAY_S = 1.0
# The longest time that a new server waits for its first term before it reports that it is ready.
FIRST_TERM_TIMEOUT_S = 1.0
# Time for running reconciles to end before the server gives up its role.
SHUTDOWN_TIMEOUT_S = 0.6
JOIN_TOKEN_TTL = timedelta(minutes=15)
PROVIDER_ADAPTERS = ("local", "manual")

log = structlog.get_logger()


def build_providers(
    settings: Settings, folder: Path, clock: Clock, server: Callable[[], str]
) -> dict[str, Provider]:
    """Build the provider adapters of the setting, for example `local,docker=local`, keyed by the provider
    name that pools use.

    Raises Invalid for an unknown adapter.
    """
    providers: dict[str, Provider] = {}
    for word in settings.providers.split(","):
        name, _, adapter = word.strip().partition("=")
        match adapter or name:
            case "":
                continue
            case "local":
                machine_folder = folder / "machines" / name
                providers[name] = LocalProvider(
                    machine_folder,
                    server,
                    clock,
                    name,
                    stop_timeout_s=settings.local_stop_within,
                    detect_runtimes=detect_host_runtimes,
                )
            case "manual":
                providers[name] = ManualProvider(name)
            case "fake":
                log.warning(
                    "adapter fake is for tests; use manual for machines of your own",
                    provider=name,
                    fix=f"start the server with --providers {name}=manual",
                )
                providers[name] = FakeProvider(clock, name, state_file=folder / "machines" / f"{name}.json")
            case unknown:
                raise Invalid(
                    f"unknown provider adapter {unknown!r}",
                    where="--providers",
                    fix=f"use {' or '.join(PROVIDER_ADAPTERS)}: NAME or NAME=ADAPTER",
                )
    return providers


async def detect_host_runtimes() -> frozenset[str]:
    """The runtimes of this host, as its agents will report them."""
    # Imported late: only a leader with the local provider runs podman.
    from lattice.agent.runtimes import podman

    has_containers = not isinstance(await podman.find_podman(), str)
    return frozenset({"process", "container"} if has_containers else {"process"})


@dataclass(frozen=True)
class JoinTokenMinter:
    """Mints one-time join tokens for the machines that this server creates."""

    authority: CertificateAuthority
    clock: Clock

    def __call__(self, node: LatticeNode) -> tuple[str, Put]:
        """Return the token for the node, and the write of the Secret by which a server later checks the
        token."""
        token = JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), fingerprint(self.authority.pem))
        now = self.clock.now()
        grant = Grant(
            expires=format_timestamp(now + JOIN_TOKEN_TTL), node=node.metadata.name, uid=node.metadata.uid
        )
        secret = new_object(token_secret(token, grant), uid=str(uuid.uuid4()), now=format_timestamp(now))
        key = Key(Secret.resource.id, secret["metadata"]["namespace"], secret["metadata"]["name"])
        return str(token), Put(key, pack(Secret.resource, secret), ABSENT)


def build_dependencies(
    settings: Settings, authority: CertificateAuthority, clock: Clock, providers: dict[str, Provider]
) -> ControllerDependencies:
    """Build the dependencies of the controllers from the settings."""
    files = PricingFiles(split_comma_list(settings.prices), settings.latency)
    profile_name = settings.profile or DEFAULT_PROFILE
    if profile_name in PRESETS:
        profile = PRESETS[profile_name]
    else:
        # The YAML reader is imported only for a profile file.
        from lattice.app.profile_file import load_profile

        profile = load_profile(profile_name, None).profile
    return ControllerDependencies(
        mint_token=JoinTokenMinter(authority, clock),
        pricing_tables=files.current,
        webhook_client=HttpsWebhookClient(parse_networks(settings.webhook_allow), settings.webhook_ca),
        providers=providers,
        node_timeouts=node_timeouts(settings),
        pressure_thresholds=pressure_thresholds(settings),
        grace_periods=grace_periods(settings),
        concurrency=concurrency(settings),
        recheck_interval_s=settings.reconcile_interval,
        unschedulable_grace_s=settings.room_grace,
        enabled_controllers=enabled_controllers(settings),
        profile=profile,
        standalone_profile=None if settings.profile else PRESETS[STANDALONE_PROFILE],
    )


def build_election(settings: Settings, store: Store, clock: Clock, instance_id: str) -> Election:
    """Build the election of the leader among the servers of a store."""
    return Election(store, clock, ELECTION_ROLE, instance_id, random.Random(), settings.lease_ttl)  # noqa: S311 - jitter


@dataclass
class Leadership:
    """Follows the election: the controllers run while this server leads, and every write is fenced by the
    term."""

    store: Store
    clock: Clock
    election: Election
    dependencies: ControllerDependencies
    event_ttl: float
    # The address at which agents connect to this server, and the URL of its API.
    agents_address: Callable[[], str]
    api_url: Callable[[], str]
    # Called when a term begins or ends.
    on_change: Callable[[], None] = lambda: None
    # Jitter only.
    rng: random.Random = field(default_factory=random.Random)
    new_uid: Callable[[], str] = field(default_factory=lambda: uid_generator(random.Random()))  # noqa: S311 - no secrets
    # Long-lived caches are frozen, so that Python's garbage collector does not scan the cached objects.
    freezes_caches: bool = True
    # Failures of the controllers since the start of the server.
    controller_failures: int = 0
    context: ControllerContext | None = None
    garbage_collector: GarbageCollector | None = None
    controller_set: ControllerSet | None = None
    _previous_node_table: NodeTable | None = None
    _has_led: bool = False
    _term_tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lease_cache: Cache[Lease] = Cache(
            self.store,
            Lease.resource.id,
            lambda entry: msgspec.json.decode(entry.value, type=Lease),
            self.clock,
            self.rng,
            freeze=False,
        )
        self.election.on_started_leading = self.on_term_won
        self.election.on_stopped_leading = self.on_term_lost
        self.dependencies = replace(self.dependencies, endpoint=self.api_url)

    def leading_context(self) -> ControllerContext | None:
        """The controller context while this server leads; None on a server that does not lead, and from the
        moment when the lease has expired by this server's clock."""
        return self.context if self.context is not None and self.election.term == self.context.term else None

    def leader_agents_address(self) -> str | None:
        """The address at which agents connect to the leader, from the lease; None without a lease."""
        return self._lease_annotation(AGENTS_ADDRESS_ANNOTATION)

    def leader_url(self) -> str | None:
        """The URL of the leader's API, from the lease; None without a lease."""
        return self._lease_annotation(API_URL_ANNOTATION)

    def _lease_annotation(self, annotation: str) -> str | None:
        lease = self.lease_cache.get(LEASE_KEY.path)
        return (lease.metadata.annotations.get(annotation) or None) if lease is not None else None

    def workload_environment(self, workload: LatticeWorkload) -> dict[str, str]:
        """Environment variables of a replica with the endpoints of the services that it may call."""
        context = self.context
        if context is None or not workload.spec.service:
            return {}
        agreements = [
            agreement
            for agreement in context.cache(LatticeAgreement).objects(workload.metadata.namespace)
            if agreement.spec.caller.name == workload.spec.service
        ]
        return environment(agreements)

    @property
    def pending(self) -> int:
        """Keys in the work queues of controllers and garbage collector."""
        return sum(
            component.pending
            for component in (self.garbage_collector, self.controller_set)
            if component is not None
        )

    @property
    def last_reconciled_at(self) -> str | None:
        return max(
            (
                component.last_reconciled_at
                for component in (self.garbage_collector, self.controller_set)
                if component is not None and component.last_reconciled_at
            ),
            default=None,
        )

    def on_term_won(self, term: Term) -> None:
        metrics.LEADER.set(1)
        log.info("leading", role=term.role, term=term.number)
        self._term_tasks[term.number] = asyncio.create_task(self._run_term(term))

    def on_term_lost(self, term: Term) -> None:
        metrics.LEADER.set(0)
        metrics.clear_leader_gauges()
        log.info("no longer leading", role=term.role, term=term.number)
        # Keep the node table: the scheduler of this server's next term takes over its statistics of GPU
        # requests (scheduling/table/gpu_demand.py), which take long to collect.
        if self.controller_set is not None:
            self._previous_node_table = self.controller_set.scheduling.table
        # Cleared before the callback: agent sessions must find no leader and close.
        self.context = self.controller_set = self.garbage_collector = None
        self.on_change()
        if (task := self._term_tasks.pop(term.number, None)) is not None:
            task.cancel()

    async def _run_term(self, term: Term) -> None:
        await asyncio.gather(
            self._announce_addresses(term), self._run_controllers(term), self._run_garbage_collector(term)
        )

    async def _announce_addresses(self, term: Term) -> None:
        """Write the leader's addresses into the lease, so that other servers can redirect agents and
        requests."""
        while self.election.term == term:
            try:
                entry = await self.store.get(LEASE_KEY)
                resource = Lease.resource
                lease = Lease(
                    api_version=resource.api_version,
                    kind=resource.kind,
                    metadata=Metadata(
                        name=LEASE_KEY.name,
                        namespace=LEASE_KEY.namespace,
                        annotations={
                            AGENTS_ADDRESS_ANNOTATION: self.agents_address(),
                            API_URL_ANNOTATION: self.api_url(),
                        },
                    ),
                    spec=LeaseSpec(
                        holder_identity=term.holder,
                        lease_transitions=term.number,
                        acquire_time=format_micro_time(self.clock.now().replace(microsecond=0)),
                    ),
                )
                write = put_new(lease, uid=self.new_uid(), now=format_timestamp(self.clock.now()))
                # Fenced and compared: a paused former leader must not overwrite the addresses of the next leader.
                await self.store.commit(
                    [msgspec.structs.replace(write, expect=ABSENT if entry is None else entry.revision)],
                    fence=term,
                )
                self._has_led = True
                return None
            # Another server has begun the next term: end this term now, before the lease expires.
            except Fenced:
                return self.election.end_term(term)
            except LatticeError as error:
                log.warning("cannot announce the addresses of the leader", reason=str(error))
                await self.clock.sleep(1.0)
        return None

    async def wait_first_term(self) -> None:
        """Wait until this server leads and has announced its addresses, or until the timeout."""
        deadline = self.clock.monotonic() + FIRST_TERM_TIMEOUT_S
        while not self._has_led and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.01)

    async def _run_controllers(self, term: Term) -> None:
        """Run the controllers until the term is over. After a failure, which is logged, all controllers start
        again with empty caches."""
        while self.election.term == term:
            # A new Presence has no heartbeats: the silence of a node is measured from now on, not from a
            # heartbeat that an earlier leader received (I-13).
            presence = Presence(self.clock)
            self.context = ControllerContext(
                self.store, self.clock, term, self.rng, presence, self.new_uid, self.freezes_caches
            )
            self.controller_set = ControllerSet(self.context, self.dependencies, self._previous_node_table)
            self.on_change()
            await self._run_until_failure("controllers", term, self.controller_set.run)

    async def _run_garbage_collector(self, term: Term) -> None:
        while self.election.term == term and self.dependencies.is_enabled("garbage"):
            self.garbage_collector = GarbageCollector(
                self.store, self.clock, KINDS, term, timedelta(seconds=self.event_ttl), self.rng
            )
            await self._run_until_failure("garbage", term, self.garbage_collector.run)

    async def _run_until_failure(self, name: str, term: Term, run: Callable[[], Any]) -> None:
        """Run a component once; end the term if the component reports a fenced write, else wait before the
        next start.

        A fenced write is a write that the store rejected because the term is over: `run` raises Fenced or
        returns True. The `run` of the garbage collector returns None even after a fenced write; then this
        method only waits TERM_END_DELAY_S.
        """
        try:
            is_fenced = await run()
        except Fenced:
            return self.election.end_term(term)
        except LatticeError as error:
            log.warning("controller stopped, restarting", controller=name, reason=str(error))
        except Exception:
            log.exception("controller failed, restarting", controller=name)
        else:
            return self.election.end_term(term) if is_fenced else await self.clock.sleep(TERM_END_DELAY_S)
        self.controller_failures += 1
        return await self.clock.sleep(CONTROLLER_RESTART_DELAY_S)

    async def stop(self) -> None:
        """Let running reconciles end within SHUTDOWN_TIMEOUT_S, then cancel the tasks of the term."""
        # Keep a reference: the term may end during the wait and clear the attribute.
        controller_set = self.controller_set
        if controller_set is not None:
            controller_set.stop()
            deadline = self.clock.monotonic() + SHUTDOWN_TIMEOUT_S
            while any(loop.in_flight for loop in controller_set.loops) and self.clock.monotonic() < deadline:
                await self.clock.sleep(0.01)
        for task in self._term_tasks.values():
            task.cancel()
        await asyncio.gather(*self._term_tasks.values(), return_exceptions=True)
