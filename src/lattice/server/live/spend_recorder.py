"""Keeps what was paid over time in the store, so that it outlives a restart and a change of leaders."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from lattice.clock import Clock, format_timestamp
from lattice.errors import LatticeError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import ConfigMap
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack, unpack
from lattice.kinds.service import LatticeService
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.live.spend_history import CostSeries, SpendHistory, sum_points
from lattice.store.protocol import ABSENT, Entry, Key, Put

SAMPLE_INTERVAL_S = 5.0  # seconds between two looks
WRITE_INTERVAL_S = 60.0  # seconds between two writes, if there is something new
MAX_STORED_BYTES = 256 << 10  # bytes of services that are kept one by one; the rest is kept as one
OTHERS_SERIES = "(others)"
SPENDING_KEY = Key(ConfigMap.resource.id, "lattice-system", "lattice-spending")
log = structlog.get_logger()


@dataclass
class SpendRecorder:
    """Only the leader looks and writes."""

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    new_uid: Callable[[], str]
    history: SpendHistory = field(default_factory=SpendHistory)
    _term: int = 0
    _last_written: frozenset[object] = frozenset()
    _next_write_at: float = 0.0

    async def run(self) -> None:
        while True:
            if (office := self.leader_context()) is not None:
                try:
                    await self.sample(office)
                except LatticeError as error:
                    log.warning("cannot keep what was paid", reason=str(error))
            await self.clock.sleep(SAMPLE_INTERVAL_S)

    async def sample(self, office: LeaderContext) -> None:
        clusters, services = office.cache(LatticeCluster), office.cache(LatticeService)
        if not (clusters.revision and services.revision):  # not read yet: nothing would look like all gone
            return
        if office.term.number != self._term:
            self.history.replace_with(decode_history(await office.store.get(SPENDING_KEY)))
            self._last_written = _latest_points(self.history)
            self._term, self._next_write_at = office.term.number, self.clock.monotonic() + WRITE_INTERVAL_S
        self.history.record(int(self.clock.now().timestamp()), clusters.objects(), services.objects())
        if self.clock.monotonic() >= self._next_write_at:
            self._next_write_at = self.clock.monotonic() + WRITE_INTERVAL_S
            await self._write_if_changed(office)

    async def _write_if_changed(self, office: LeaderContext) -> None:
        newest = _latest_points(self.history)
        if newest <= self._last_written:  # what was only forgotten is forgotten by whoever reads it, too
            return
        known = await office.store.get(SPENDING_KEY)
        old = (
            unpack(known.value, known.revision)
            if known
            else _new(self.new_uid(), format_timestamp(self.clock.now()))
        )
        await office.commit(
            [
                Put(
                    SPENDING_KEY,
                    pack(ConfigMap.resource, {**old, "data": {"spending": encode_history(self.history)}}),
                    known.revision if known else ABSENT,
                )
            ]
        )
        self._last_written = newest


def _latest_points(spending: SpendHistory) -> frozenset[object]:
    """What each costs, since when, and by which labels it is summed."""
    pools = ((name, track.points[-1]) for name, track in spending.pools.items() if track.points)
    services = (
        (name, track.points[-1], *sorted(track.labels.items()))
        for name, track in spending.services.items()
        if track.points
    )
    return frozenset([*pools, *services])


def _new(uid: str, now: str) -> dict[str, Any]:
    resource = ConfigMap.resource
    head = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": SPENDING_KEY.name, "namespace": SPENDING_KEY.namespace},
    }
    return new_object(head, uid=uid, now=now)


def encode_history(spending: SpendHistory) -> str:
    """The same for the same points, whenever it is asked."""
    left, kept, rest = MAX_STORED_BYTES, dict[str, CostSeries](), list[CostSeries]()
    dearest = sorted(spending.services.items(), key=lambda each: (-each[1].rate, each[0]))
    for name, track in dearest:
        left -= len(msgspec.json.encode({name: track}))
        if left > 0:
            kept[name] = track
        else:
            rest.append(track)
    if rest:
        kept[OTHERS_SERIES] = CostSeries(sum_points(each.points for each in rest))
    return msgspec.json.encode(replace(spending, at=0, services=kept), order="sorted").decode()


def decode_history(entry: Entry | None) -> SpendHistory:
    """Nothing, if nothing that can be read was kept."""
    try:
        data = unpack(entry.value, entry.revision)["data"] if entry else {}
        return msgspec.json.decode(data["spending"], type=SpendHistory)
    except (KeyError, TypeError, msgspec.DecodeError):
        return SpendHistory()
