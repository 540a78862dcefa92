"""What the controllers of one term have in common: the store, the time, the term that fences every write, and copies to read."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from lattice import tracing as traces
from lattice.clock import Clock, format_timestamp
from lattice.controllers.runtime.event_recorder import EventRecorder
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.automation import AutomationRule
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Namespace, Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Presence
from lattice.scheduling.cycle.reservation_record import gang_attempt_of, reservation_record
from lattice.store.cache import Cache, Index
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Check, Entry, Store, Term, Write

K = TypeVar("K", bound=Kind)
MAX_CONCURRENT_COMMITS = 4  # commits of many writes that are under way together
UUID4_RANDOM_BITS, UUID4_VERSION_BITS = (
    ~(0xF << 76 | 0b11 << 62) & (1 << 128) - 1,
    4 << 76 | 0b10 << 62,
)  # bits of a uid that are drawn, and those that say how

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


def _service_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """`namespace/name` of its service."""
    return (f"{workload.metadata.namespace}/{workload.spec.service}",) if workload.spec.service else ()


def _node_of(workload: LatticeWorkload) -> tuple[str, ...]:
    return (workload.status.binding.node,) if workload.status.binding else ()


def _reserved_node_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """The node on which its room is taken and its binding not made yet."""
    held = reservation_record(workload)
    return (held.node,) if held else ()


def _gang_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """The attempt that bound it together with others."""
    attempt = gang_attempt_of(workload)
    return (attempt,) if attempt else ()


def _cluster_of_workload(workload: LatticeWorkload) -> tuple[str, ...]:
    return (workload.spec.cluster,)


def _cluster_of_node(node: LatticeNode) -> tuple[str, ...]:
    return (node.spec.cluster,)


INDEXES: Mapping[type[Kind], Mapping[str, Index[Any]]] = {
    LatticeWorkload: {
        "service": _service_of,
        "node": _node_of,
        "cluster": _cluster_of_workload,
        "prepared": _reserved_node_of,
        "gang": _gang_of,
    },
    LatticeNode: {"cluster": _cluster_of_node},
}


def uid_generator(source: random.Random) -> Callable[[], str]:
    """Version 4. Asking the system for each would make threads wait for one another, thousands of times a second."""

    def made() -> str:
        digits = f"{source.getrandbits(128) & UUID4_RANDOM_BITS | UUID4_VERSION_BITS:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return made


def _decoder(kind: type[K]) -> Callable[[Entry], K]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda entry: decode(entry.value)


@dataclass
class ControllerContext:
    """Made anew for each term. The copies are run by whoever runs the controllers."""

    store: Store
    clock: Clock
    term: Term
    rng: random.Random
    presence: Presence
    new_uid: Callable[[], str] = field(default_factory=lambda: uid_generator(random.Random()))  # noqa: S311 - names, no secrets
    freezes_caches: bool = True  # the copies stay for long, and are kept out of garbage collections

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
        """By path: `namespace/name`, `/name` for what has no namespace."""
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
        """Fenced: refused once another server leads."""
        with traces.span("commit", term=self.term.number, writes=len(writes)) as span:
            revision = await self.store.commit(writes, checks=checks, fence=self.term, request_id=request_id)
            span.set_attributes(store_revision=revision)
        return revision

    async def commit_groups(self, writes: Iterable[Sequence[Write]]) -> None:
        """Groups that stand or fall by themselves, as many as go into one commit at a time."""
        for batch in batch_writes(writes):
            await self.commit(batch)

    async def commit_groups_concurrently(self, groups: Iterable[Sequence[Write]]) -> int:
        """The same with several commits under way at once; the newest revision. What one of them raises is raised when all are through."""
        newest, under_way = 0, set[asyncio.Task[int]]()
        try:
            for batch in batch_writes(groups):
                if len(under_way) == MAX_CONCURRENT_COMMITS:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    newest = max(newest, *(each.result() for each in done))
                under_way.add(asyncio.create_task(self.commit(batch)))
                await asyncio.sleep(0)  # the next batch is made while this one is written
        finally:
            ended = await asyncio.gather(*under_way, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
            newest = max(newest, each)
        return newest


def batch_writes(
    groups: Iterable[Sequence[Write]], most: int = MAX_COMMIT_OPERATIONS
) -> Iterator[list[Write]]:
    """Groups joined into lists of at most so many writes; no group is split."""
    batch: list[Write] = []
    for group in groups:
        if batch and len(batch) + len(group) > most:
            yield batch
            batch = []
        batch.extend(group)
    if batch:
        yield batch
