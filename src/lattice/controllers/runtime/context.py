"""What the controllers of one term have in common: the store, the time, the term that fences every write, and copies to read."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from lattice import tracing as traces
from lattice.clock import Clock, stamp
from lattice.controllers.runtime.event_recorder import Teller
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.automation import AutomationRule
from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Namespace, Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Presence
from lattice.scheduling.cycle.two_phase import gang_of, prepared
from lattice.store.cache import Cache, Index
from lattice.store.protocol import MAX_OPERATIONS, Check, Entry, Store, Term, Write

K = TypeVar("K", bound=Kind)
AT_ONCE = 4  # commits of many writes that are under way together
FREE, SAID = (
    ~(0xF << 76 | 0b11 << 62) & (1 << 128) - 1,
    4 << 76 | 0b10 << 62,
)  # bits of a uid that are drawn, and those that say how

COPIED: tuple[type[Kind], ...] = (
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


def _prepared_on(workload: LatticeWorkload) -> tuple[str, ...]:
    """The node on which its room is taken and its binding not made yet."""
    held = prepared(workload)
    return (held.node,) if held else ()


def _gang_of(workload: LatticeWorkload) -> tuple[str, ...]:
    """The attempt that bound it together with others."""
    attempt = gang_of(workload)
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
        "prepared": _prepared_on,
        "gang": _gang_of,
    },
    LatticeNode: {"cluster": _cluster_of_node},
}


def uids(source: random.Random) -> Callable[[], str]:
    """Version 4. Asking the system for each would make threads wait for one another, thousands of times a second."""

    def made() -> str:
        digits = f"{source.getrandbits(128) & FREE | SAID:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return made


def _decoder(kind: type[K]) -> Callable[[Entry], K]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda entry: decode(entry.value)


@dataclass
class Office:
    """Made anew for each term. The copies are run by whoever runs the controllers."""

    store: Store
    clock: Clock
    term: Term
    rng: random.Random
    presence: Presence
    new_uid: Callable[[], str] = field(default_factory=lambda: uids(random.Random()))  # noqa: S311 - names, no secrets
    freezes: bool = True  # the copies stay for long, and are kept out of garbage collections

    def __post_init__(self) -> None:
        self._copies: dict[type[Kind], Cache[Any]] = {
            kind: Cache(
                self.store,
                kind.resource.id,
                _decoder(kind),
                self.clock,
                self.rng,
                INDEXES.get(kind, {}),
                self.freezes,
            )
            for kind in COPIED
        }

    def copy(self, kind: type[K]) -> Cache[K]:
        """By path: `namespace/name`, `/name` for what has no namespace."""
        return self._copies[kind]

    @property
    def copies(self) -> Sequence[Cache[Any]]:
        return tuple(self._copies.values())

    def teller(self, component: str) -> Teller:
        return Teller(component, self.clock, self.new_uid)

    @property
    def now(self) -> str:
        return stamp(self.clock.now())

    async def commit(
        self, writes: Sequence[Write], checks: Sequence[Check] = (), request_id: str | None = None
    ) -> int:
        """Fenced: refused once another server leads."""
        with traces.span("commit", term=self.term.number, writes=len(writes)) as span:
            revision = await self.store.commit(writes, checks=checks, fence=self.term, request_id=request_id)
            span.tell(store_revision=revision)
        return revision

    async def commit_each(self, writes: Iterable[Sequence[Write]]) -> None:
        """Groups that stand or fall by themselves, as many as go into one commit at a time."""
        for batch in batches(writes):
            await self.commit(batch)

    async def commit_many(self, groups: Iterable[Sequence[Write]]) -> int:
        """The same with several commits under way at once; the newest revision. What one of them raises is raised when all are through."""
        newest, under_way = 0, set[asyncio.Task[int]]()
        try:
            for batch in batches(groups):
                if len(under_way) == AT_ONCE:
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


def batches(groups: Iterable[Sequence[Write]], most: int = MAX_OPERATIONS) -> Iterator[list[Write]]:
    """Groups joined into lists of at most so many writes; no group is split."""
    batch: list[Write] = []
    for group in groups:
        if batch and len(batch) + len(group) > most:
            yield batch
            batch = []
        batch.extend(group)
    if batch:
        yield batch
