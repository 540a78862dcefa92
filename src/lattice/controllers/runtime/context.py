"""The dependencies that the controllers of one term share: store, clock, caches, presence, and the term that
fences every write."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from lattice import tracing as traces
from lattice.clock import Clock
from lattice.controllers.runtime.event_recorder import EventRecorder
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.automation import AutomationRule
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Namespace, Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.presence import Presence
from lattice.scheduling.cycle.reservation_record import gang_attempt_of, reservation_record
from lattice.store.cache import Cache, Index
from lattice.store.commit_packing import pack_writes
from lattice.store.protocol import Check, Entry, Store, Term, Write

K = TypeVar("K", bound=Kind)
# Limit of concurrent commits of one large write.
MAX_CONCURRENT_COMMITS = 4
# Mask of the random bits of a version 4 UUID, and the bits that state its version and variant.
UUID4_RANDOM_BITS = ~(0xF << 76 | 0b11 << 62) & (1 << 128) - 1
UUID4_VERSION_BITS = 4 << 76 | 0b10 << 62

CACHED_KINDS: tuple[type[Kind], ...] = (
    LatticeService,
    LatticeWorkload,
    LatticeNode,
    LatticeCluster,
    LatticePool,
    LatticeNodeClass,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticePlacementPolicy,
    LatticeLedger,
    LatticeAgreement,
    AutomationRule,
    Secret,
    Namespace,
)


def _reserved_node_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """The node on which resources are reserved for a workload that is not bound yet."""
    reservation = reservation_record(workload)
    return (reservation.node,) if reservation else ()


def _gang_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """The attempt that bound the workload as a member of a gang."""
    attempt = gang_attempt_of(workload)
    return (attempt,) if attempt else ()


INDEXES: Mapping[type[Kind], Mapping[str, Index[Any]]] = {
    LatticeWorkload: {
        "service": lambda workload: (service_path(workload),) if workload.spec.service else (),
        # By name only: a binding to an earlier node of the name is in the index too, so readers compare uids.
        "node": lambda workload: (workload.status.binding.node,) if workload.status.binding else (),
        "cluster": lambda workload: (workload.spec.cluster,),
        "prepared": _reserved_node_of,
        "gang": _gang_of,
    },
    LatticeNode: {"cluster": lambda node: (node.spec.cluster,)},
}


def uid_generator(source: random.Random) -> Callable[[], str]:
    """Return a generator of version 4 UUIDs that draws from `source`.

    Drawing every UUID from the operating system would make threads wait for each other, thousands of times a
    second.
    """

    def new_uid() -> str:
        digits = f"{source.getrandbits(128) & UUID4_RANDOM_BITS | UUID4_VERSION_BITS:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return new_uid


def _decoder(kind: type[K]) -> Callable[[Entry], K]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda entry: decode(entry.value)


@dataclass
class ControllerContext:
    """The shared dependencies of the controllers of one term; a new term gets a new context.

    The context builds the caches; `run_all` runs the caches.
    """

    store: Store
    clock: Clock
    term: Term
    rng: random.Random
    presence: Presence
    new_uid: Callable[[], str] = field(default_factory=lambda: uid_generator(random.Random()))  # noqa: S311 - no secrets
    # Long-lived caches are frozen, so that Python's garbage collector does not scan the cached objects.
    freezes_caches: bool = True

    def __post_init__(self) -> None:
        self._caches: dict[type[Kind], Cache[Any]] = {
            kind: Cache(
                self.store,
                kind.resource.id,
                _decoder(kind),
                self.clock,
                self.rng,
                INDEXES.get(kind, {}),
                self.freezes_caches,
            )
            for kind in CACHED_KINDS
        }

    def cache(self, kind: type[K]) -> Cache[K]:
        """The cache of one kind, keyed by path: `namespace/name`, or `/name` for a cluster-scoped kind."""
        return self._caches[kind]

    @property
    def caches(self) -> Sequence[Cache[Any]]:
        return tuple(self._caches.values())

    def recorder(self, component: str) -> EventRecorder:
        return EventRecorder(component, self.clock, self.new_uid)

    @property
    def timestamp(self) -> str:
        return format_timestamp(self.clock.now())

    async def commit(
        self, writes: Sequence[Write], checks: Sequence[Check] = (), request_id: str | None = None
    ) -> int:
        """Commit writes under the term of the leader; the store rejects the commit with Fenced once another
        server leads."""
        with traces.span("commit", term=self.term.number, writes=len(writes)) as span:
            revision = await self.store.commit(writes, checks=checks, fence=self.term, request_id=request_id)
            span.set_attributes(store_revision=revision)
        return revision

    async def commit_groups(self, writes: Iterable[Sequence[Write]]) -> None:
        """Commit groups of writes in batches, one batch after another; no group is split."""
        for batch in pack_writes(writes):
            await self.commit(batch)

    async def commit_groups_concurrently(self, groups: Iterable[Sequence[Write]]) -> int:
        """Commit groups of writes in several concurrent batches and return the newest revision.

        An error of one batch is raised after the running batches end.
        """
        newest, under_way = 0, set[asyncio.Task[int]]()
        try:
            for batch in pack_writes(groups):
                if len(under_way) == MAX_CONCURRENT_COMMITS:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    newest = max(newest, *(result.result() for result in done))
                under_way.add(asyncio.create_task(self.commit(batch)))
                # Yield, so that the store writes this batch while the next batch is built.
                await asyncio.sleep(0)
        finally:
            ended = await asyncio.gather(*under_way, return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result
            newest = max(newest, result)
        return newest
