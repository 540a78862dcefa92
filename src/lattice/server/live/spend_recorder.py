"""The spend recorder: the leader samples costs and stores the spend history, so that the history survives
restarts and leader changes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec
import structlog

from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import ConfigMap
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.live.spend_history import CostSeries, SpendHistory, SpendRates, sum_points
from lattice.server.live.usage_tables import UsageSnapshot
from lattice.store.protocol import ABSENT, Entry, Key, Put

SAMPLE_INTERVAL_S = 5.0
# Interval of writes, if the history has changed.
WRITE_INTERVAL_S = 60.0
# Limit of the services stored separately; the remaining services are stored as one sum.
MAX_STORED_BYTES = 256 << 10
OTHERS_SERIES = "(others)"
SPENDING_KEY = Key(ConfigMap.resource.id, SYSTEM_NAMESPACE, "lattice-spending")
# The kinds that the bill and its parts are computed from.
_COST_KINDS = (LatticeCluster, LatticeLedger, LatticeNode, LatticeNodeClass, LatticeService, LatticeWorkload)
log = structlog.get_logger()


@dataclass
class SpendRecorder:
    """Samples costs into `history` and writes the history to a ConfigMap, on the leader only."""

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    new_uid: Callable[[], str]
    history: SpendHistory = field(default_factory=SpendHistory)
    # Splitting the bill of thousands of machines takes noticeable time and therefore runs off the event loop.
    run_in_background: Callable[[Callable[[], SpendRates]], Awaitable[SpendRates]] = asyncio.to_thread
    _term: int = 0
    _last_written: frozenset[object] = frozenset()
    _next_write_at: float = 0.0

    async def run(self) -> None:
        """Sample at an interval until cancelled. A failed write is logged and repeated later.

        Not a controller on `Loop`: a sample has no key to reconcile or to back off, and the history outlives
        the controllers of a term, because this server answers spending requests from it.
        """
        while True:
            if (leader := self.leader_context()) is not None:
                try:
                    await self.sample(leader)
                except LatticeError as error:
                    log.warning("cannot store the cost history", reason=str(error))
            await self.clock.sleep(SAMPLE_INTERVAL_S)

    async def sample(self, leader: LeaderContext) -> None:
        """Record the current costs; write the history at most once per `WRITE_INTERVAL_S`.

        A new leader loads the stored history first.
        """
        # Before the first read the caches are empty, and every cost would look like 0.
        if not all(leader.cache(kind).revision for kind in _COST_KINDS):
            return
        # In a new term the stored history may be newer: the previous leader recorded points.
        if leader.term.number != self._term:
            self.history.replace_with(decode_history(await leader.store.get(SPENDING_KEY)))
            self._last_written = _latest_points(self.history)
            self._term, self._next_write_at = leader.term.number, self.clock.monotonic() + WRITE_INTERVAL_S
        now = self.clock.now()
        snapshot = UsageSnapshot(
            now,
            clusters=leader.cache(LatticeCluster).objects(),
            nodes=leader.cache(LatticeNode).objects(),
            services=leader.cache(LatticeService).objects(),
            workloads=leader.cache(LatticeWorkload).objects(),
            ledgers=leader.cache(LatticeLedger).objects(),
            classes=leader.cache(LatticeNodeClass).objects(),
        )
        rates = await self.run_in_background(lambda: SpendRates.of(snapshot))
        self.history.record(int(now.timestamp()), rates)
        if self.clock.monotonic() >= self._next_write_at:
            self._next_write_at = self.clock.monotonic() + WRITE_INTERVAL_S
            await self._write_if_changed(leader)

    async def _write_if_changed(self, leader: LeaderContext) -> None:
        newest = _latest_points(self.history)
        # Points that only expired need no write: a reader drops expired points, too.
        if newest <= self._last_written:
            return
        entry = await leader.store.get(SPENDING_KEY)
        if entry:
            config_map = unpack(entry.value, entry.revision)
        else:
            config_map = new_object(
                {
                    "apiVersion": ConfigMap.resource.api_version,
                    "kind": ConfigMap.resource.kind,
                    "metadata": {"name": SPENDING_KEY.name, "namespace": SPENDING_KEY.namespace},
                },
                uid=self.new_uid(),
                now=format_timestamp(self.clock.now()),
            )
        await leader.commit(
            [
                Put(
                    SPENDING_KEY,
                    pack(
                        ConfigMap.resource, {**config_map, "data": {"spending": encode_history(self.history)}}
                    ),
                    entry.revision if entry else ABSENT,
                )
            ]
        )
        self._last_written = newest


def _latest_points(history: SpendHistory) -> frozenset[object]:
    """The latest point of every series, with the labels of services: the set grows when the history has
    something to write."""
    pools = ((name, series.points[-1]) for name, series in history.pools.items() if series.points)
    services = (
        (name, series.points[-1], *sorted(series.labels.items()))
        for name, series in history.services.items()
        if series.points
    )
    return frozenset([*pools, *services])


def encode_history(history: SpendHistory) -> str:
    """The history as JSON within `MAX_STORED_BYTES`, equal for equal points. The most expensive services are
    stored separately."""
    remaining_bytes, stored, folded = MAX_STORED_BYTES, dict[str, CostSeries](), list[CostSeries]()
    most_expensive = sorted(history.services.items(), key=lambda item: (-item[1].rate, item[0]))
    for name, series in most_expensive:
        remaining_bytes -= len(msgspec.json.encode({name: series}))
        if remaining_bytes > 0:
            stored[name] = series
        else:
            folded.append(series)
    if folded:
        stored[OTHERS_SERIES] = CostSeries(sum_points(series.points for series in folded))
    # `at` changes with every sample and would make equal histories differ.
    return msgspec.json.encode(replace(history, at=0, services=stored), order="sorted").decode()


def decode_history(entry: Entry | None) -> SpendHistory:
    """The stored history; an empty history if the entry is missing or unreadable."""
    try:
        data = unpack(entry.value, entry.revision)["data"] if entry else {}
        return msgspec.json.decode(data["spending"], type=SpendHistory)
    except (KeyError, TypeError, msgspec.DecodeError):
        return SpendHistory()
