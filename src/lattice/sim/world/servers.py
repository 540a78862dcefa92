"""A server as a process of the simulation: the real election, controllers, API and agent sessions, wired as
in `app/`."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Protocol

from lattice.app.compaction import HistoryCompactor
from lattice.app.leadership import ELECTION_ROLE, Leadership
from lattice.app.serve import NAME_SUFFIX_ALPHABET
from lattice.controllers.controller_set import ControllerDependencies
from lattice.controllers.runtime.context import uid_generator
from lattice.errors import Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import Secret
from lattice.kinds.join_token import Grant, JoinToken, token_secret
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.inputs.price_book import PriceBook
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.server.access.certificate_authority import CertificateAuthority, new_authority
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.sessions import AgentSessions
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.api import Api
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.cloud import Cloud
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.network import AnswerCallback, Network, answer_request
from lattice.sim.world.settings import (
    COMPACTION_INTERVAL_S,
    EVENT_TTL_S,
    HISTORY_RETENTION_S,
    LEASE_TTL_S,
    RECONCILE_INTERVAL_S,
    TIMEOUTS,
)
from lattice.sim.world.store import REQUEST_ORIGIN, HistoryStore, StoreClient
from lattice.store.election import Election
from lattice.store.protocol import ABSENT, Key, Put

# Longer than the hour by which wall clocks jump.
JOIN_TOKEN_TTL = timedelta(hours=12)


@cache
def catalog() -> Catalog:
    return Catalog(KINDS)


@cache
def authority() -> CertificateAuthority:
    """A certificate authority whose keys are not in the store."""
    return new_authority()[0]


class DiscardingPoster:
    """A webhook client that discards every delivery."""

    async def post(self, url: str, body: Any, timeout: float, signing_key: bytes = b"") -> None:
        return None


@dataclass(frozen=True)
class TokenMinter:
    clock: SimClock
    rng: random.Random

    def __call__(self, node: LatticeNode) -> tuple[str, Put]:
        grant = Grant(
            expires=format_timestamp(self.clock.now() + JOIN_TOKEN_TTL),
            node=node.metadata.name,
            uid=node.metadata.uid,
        )
        return mint_token(self.rng, self.clock, grant)


def mint_token(rng: random.Random, clock: SimClock, grant: Grant) -> tuple[str, Put]:
    token = JoinToken(f"{rng.getrandbits(48):012x}", f"{rng.getrandbits(128):032x}", f"{0:064x}")
    secret = new_object(
        token_secret(token, grant), uid=uid_generator(rng)(), now=format_timestamp(clock.now())
    )
    key = Key(Secret.resource.id, secret["metadata"]["namespace"], secret["metadata"]["name"])
    return str(token), Put(key, pack(Secret.resource, secret), ABSENT)


@dataclass
class ServerHost:
    """A machine on which a server runs; a restart is a new process."""

    name: str
    clock: SimClock
    # Seconds by which watches of the host are behind.
    watch_lag_s: float = 0.0
    start_count: int = 0
    server: "SimServer | None" = None
    # False: every server process has a new identity in the election.
    has_stable_identity: bool = True

    @property
    def address(self) -> str:
        return f"{self.name}:7444"


class ServerWorld(Protocol):
    """The parts of the world that a server uses."""

    rng: random.Random
    loop: SimLoop
    net: Network
    store: HistoryStore
    store_clients: list[StoreClient]
    cloud: Cloud
    profile: ProfileSpec


class SimServer:
    """A server process with its store connection, election, controllers and agent sessions."""

    def __init__(self, world: ServerWorld, host: ServerHost, process: Process) -> None:
        self.world, self.host, self.process = world, host, process
        clock, rng = host.clock, random.Random(world.rng.getrandbits(64))  # noqa: S311
        new_uid = uid_generator(rng)
        self.store = StoreClient(world.store, world.net, process, lambda: host.watch_lag_s)
        world.store_clients.append(self.store)
        self.api = Api(
            self.store,
            catalog(),
            clock,
            new_uid,
            lambda: "".join(rng.choice(NAME_SUFFIX_ALPHABET) for _ in range(5)),
        )
        self.election = Election(
            self.store,
            clock,
            ELECTION_ROLE,
            host.name if host.has_stable_identity else process.name,
            rng,
            LEASE_TTL_S,
        )
        dependencies = ControllerDependencies(
            mint_token=TokenMinter(clock, rng),
            pricing_tables=lambda: PricingTables(PriceBook.builtin()),
            webhook_client=DiscardingPoster(),
            providers={"fake": world.cloud.client_for(process)},
            node_timeouts=TIMEOUTS.nodes,
            grace_periods=TIMEOUTS.grace_periods,
            recheck_interval_s=RECONCILE_INTERVAL_S,
            profile=world.profile,
        )
        self.leadership = Leadership(
            self.store,
            clock,
            self.election,
            dependencies,
            EVENT_TTL_S,
            lambda: host.address,
            lambda: f"https://{host.name}",
        )
        # Names, uids and jitter must come from the seed.
        self.leadership.rng, self.leadership.new_uid, self.leadership.freezes_caches = rng, new_uid, False
        self.leadership.lease_cache.rng = rng
        self.sessions = AgentSessions(
            clock,
            self.leadership.leading_context,
            self.leadership.leader_agents_address,
            TIMEOUTS.nodes.heartbeat_interval,
            self.leadership.workload_environment,
        )
        self.leadership.on_change = self.sessions.leadership_changed
        self.store.read_revision, self.store.wall_time = self.cache_revision, clock.now
        self.tasks: list[asyncio.Task[None]] = []
        self.joining = NodeJoinService(self.store, authority(), clock, new_uid, lambda: host.address)

    async def run(self) -> None:
        """Run the server until the process is killed or stopped."""
        compactor = HistoryCompactor(
            self.store, self.host.clock, self.election, HISTORY_RETENTION_S, COMPACTION_INTERVAL_S
        )
        loops = (
            self.leadership.lease_cache.run(),
            self.election.run(),
            self.sessions.run(),
            compactor.run(first_sample_after_s=COMPACTION_INTERVAL_S),
        )
        self.tasks = [asyncio.create_task(loop) for loop in loops]
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the server in the order of `lattice serve`."""
        await self.leadership.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def cache_revision(self) -> int:
        """The oldest revision of the leader's caches; on a server without filled caches, the revision of its
        watches."""
        context = self.leadership.context
        revisions = (
            [cache.revision for cache in context.caches if cache.revision] if context is not None else []
        )
        return min(revisions, default=self.store.watched_revision)

    def handle(
        self, origin: str, work: Callable[[], Coroutine[Any, Any, Any]], answer: AnswerCallback
    ) -> None:
        """Handle a request that has arrived at the server, in a task of the server's process."""
        if not self.process.is_alive:
            answer(None, Unavailable("no server process listens at this address", where=self.host.name))
            return

        async def answer_for_origin() -> None:
            REQUEST_ORIGIN.set(origin)
            await answer_request(work, answer)

        self.world.loop.spawn(self.process, answer_for_origin())
