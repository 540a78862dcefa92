"""One server as a process of the simulation: the real election, controllers, verbs and agents' side, wired as in `cli/serve.py`."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from lattice.app.leadership import Lead
from lattice.clock import stamp
from lattice.controllers.controller_set import Means
from lattice.controllers.runtime.context import uids
from lattice.errors import LatticeError, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.core import Secret
from lattice.kinds.join_token import Grant, JoinToken, token_secret
from lattice.kinds.meta.object_rules import born
from lattice.kinds.node import LatticeNode
from lattice.kinds.meta.stored import pack
from lattice.placement.inputs.price_book import PriceBook
from lattice.server.resources.api import Api
from lattice.server.requests.catalog import Catalog
from lattice.server.access.certificate_authority import Authority, new_authority
from lattice.server.agents.join import Joining
from lattice.server.agents.sessions import NodeLinks
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import Process
from lattice.sim.world.network import Answer
from lattice.sim.world.settings import COMPACT_EVERY, EVENT_LIFE, HISTORY, INTERVAL, LEASE, ROLE, TIMES
from lattice.sim.world.store import ORIGIN, StoreClient
from lattice.store.election import Election
from lattice.store.protocol import ABSENT, Key, Put

if TYPE_CHECKING:
    from lattice.sim.world.world import World

TOKEN_LIFE = timedelta(hours=12)  # wall clocks jump by an hour
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@cache
def catalog() -> Catalog:
    return Catalog(KINDS)


@cache
def authority() -> Authority:
    """Signs, and leaves no trace in the store."""
    return new_authority()[0]


class Deaf:
    """Webhooks are delivered to nobody."""

    async def post(self, url: str, body: Any, timeout: float) -> None:
        return None


@dataclass(frozen=True)
class Mint:
    clock: SimClock
    rng: random.Random

    def __call__(self, node: LatticeNode) -> tuple[str, Put]:
        grant = Grant(
            expires=stamp(self.clock.now() + TOKEN_LIFE), node=node.metadata.name, uid=node.metadata.uid
        )
        return minted(self.rng, self.clock, grant)


def minted(rng: random.Random, clock: SimClock, grant: Grant) -> tuple[str, Put]:
    token = JoinToken(f"{rng.getrandbits(48):012x}", f"{rng.getrandbits(128):032x}", f"{0:064x}")
    secret = born(token_secret(token, grant), uid=uids(rng)(), now=stamp(clock.now()))
    key = Key(Secret.resource.id, secret["metadata"]["namespace"], secret["metadata"]["name"])
    return str(token), Put(key, pack(Secret.resource, secret), ABSENT)


@dataclass
class ServerHost:
    """A machine on which servers run, one after the other."""

    name: str
    clock: SimClock
    lag: float = 0.0  # seconds by which its watches are behind
    starts: int = 0
    server: "SimServer | None" = None
    is_named: bool = True  # its servers say who they are by a setting; else each is somebody new

    @property
    def address(self) -> str:
        return f"{self.name}:7444"


class SimServer:
    def __init__(self, world: "World", host: ServerHost, process: Process) -> None:
        self.world, self.host, self.process = world, host, process
        clock, rng = host.clock, random.Random(world.rng.getrandbits(64))  # noqa: S311
        new_uid = uids(rng)
        self.store = StoreClient(world.store, world.net, process, lambda: host.lag)
        world.store_clients.append(self.store)
        self.api = Api(
            self.store, catalog(), clock, new_uid, lambda: "".join(rng.choice(SUFFIX) for _ in range(5))
        )
        self.election = Election(
            self.store, clock, ROLE, host.name if host.is_named else process.name, rng, LEASE
        )
        means = Means(
            mint=Mint(clock, rng),
            tables=lambda: (PriceBook.builtin(), "", ""),
            poster=Deaf(),
            providers={"fake": world.cloud.seen_by(process)},
            times=TIMES.nodes,
            graces=TIMES.graces,
            interval=INTERVAL,
            profile=world.profile,
        )
        self.lead = Lead(
            self.store,
            clock,
            self.election,
            means,
            EVENT_LIFE,
            lambda: host.address,
            lambda: f"https://{host.name}",
        )
        self.lead.rng, self.lead.new_uid, self.lead.freezes = rng, new_uid, False
        self.lead.leases.rng = rng
        self.links = NodeLinks(
            clock, self.lead.leading, self.lead.leader, TIMES.nodes.heartbeat, self.lead.environment
        )
        self.lead.changed = self.links.leadership_changed
        self.store.view = self._view
        self.tasks: list[asyncio.Task[None]] = []
        self.joining = Joining(self.store, authority(), clock, new_uid, lambda: host.address)

    async def run(self) -> None:
        """Until killed, or asked to stop."""
        running = (self.lead.leases.run(), self.election.run(), self.links.run(), self._compact())
        self.tasks = [asyncio.create_task(each) for each in running]
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stop(self) -> None:
        """As `lattice serve` does when it is asked to end."""
        await self.lead.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _view(self) -> int:
        """What the copies of this leader know, all of them."""
        office = self.lead.office
        known = [copy.revision for copy in office.copies if copy.revision] if office is not None else []
        return min(known, default=self.store.seen)

    def serve(self, origin: str, work: Callable[[], Coroutine[Any, Any, Any]], answer: Answer) -> None:
        """A request that has arrived here."""
        if not self.process.is_alive:
            answer(None, Unavailable("nobody listens there", where=self.host.name))
            return
        self.world.loop.spawn(self.process, self._serve(origin, work, answer))

    async def _serve(self, origin: str, work: Callable[[], Coroutine[Any, Any, Any]], answer: Answer) -> None:
        ORIGIN.set(origin)
        try:
            answer(await work(), None)
        except LatticeError as error:
            answer(None, error)

    async def _compact(self) -> None:
        """As `lattice serve` does, a little at a time."""
        seen: list[tuple[float, int]] = []
        clock = self.host.clock
        while True:
            await clock.sleep(COMPACT_EVERY)
            try:
                seen.append((clock.monotonic(), await self.store.revision()))
                old = [revision for when, revision in seen if when <= clock.monotonic() - HISTORY]
                if old and self.election.term is not None:
                    await self.store.compact(old[-1])
                    seen = [(when, revision) for when, revision in seen if revision > old[-1]]
            except LatticeError:
                continue
