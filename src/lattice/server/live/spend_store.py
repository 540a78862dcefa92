"""Keeps what was paid over time in the store, so that it outlives a restart and a change of leaders."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from lattice.clock import Clock, stamp
from lattice.errors import LatticeError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import ConfigMap
from lattice.kinds.meta.object_rules import born
from lattice.kinds.service import LatticeService
from lattice.kinds.meta.stored import pack, unpack
from lattice.server.agents.leader_context import Leading
from lattice.server.live.spend_history import Spending, Track, summed
from lattice.store.protocol import ABSENT, Entry, Key, Put

EVERY = 5.0  # seconds between two looks
KEPT_EVERY = 60.0  # seconds between two writes, if there is something new
MOST = 256 << 10  # bytes of services that are kept one by one; the rest is kept as one
OTHERS = "(others)"
KEY = Key(ConfigMap.resource.id, "lattice-system", "lattice-spending")
log = structlog.get_logger()


@dataclass
class SpendBook:
    """Only the leader looks and writes."""

    clock: Clock
    leading: Callable[[], Leading | None]
    new_uid: Callable[[], str]
    spending: Spending = field(default_factory=Spending)
    _term: int = 0
    _kept: frozenset[object] = frozenset()
    _next: float = 0.0

    async def run(self) -> None:
        while True:
            if (office := self.leading()) is not None:
                try:
                    await self.look(office)
                except LatticeError as error:
                    log.warning("cannot keep what was paid", reason=str(error))
            await self.clock.sleep(EVERY)

    async def look(self, office: Leading) -> None:
        clusters, services = office.copy(LatticeCluster), office.copy(LatticeService)
        if not (clusters.revision and services.revision):  # not read yet: nothing would look like all gone
            return
        if office.term.number != self._term:
            self.spending.adopt(recalled(await office.store.get(KEY)))
            self._kept = _newest(self.spending)
            self._term, self._next = office.term.number, self.clock.monotonic() + KEPT_EVERY
        self.spending.look(int(self.clock.now().timestamp()), clusters.all(), services.all())
        if self.clock.monotonic() >= self._next:
            self._next = self.clock.monotonic() + KEPT_EVERY
            await self._keep(office)

    async def _keep(self, office: Leading) -> None:
        newest = _newest(self.spending)
        if newest <= self._kept:  # what was only forgotten is forgotten by whoever reads it, too
            return
        known = await office.store.get(KEY)
        old = unpack(known.value, known.revision) if known else _new(self.new_uid(), stamp(self.clock.now()))
        await office.commit(
            [
                Put(
                    KEY,
                    pack(ConfigMap.resource, {**old, "data": {"spending": noted(self.spending)}}),
                    known.revision if known else ABSENT,
                )
            ]
        )
        self._kept = newest


def _newest(spending: Spending) -> frozenset[object]:
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
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
    }
    return born(head, uid=uid, now=now)


def noted(spending: Spending) -> str:
    """The same for the same points, whenever it is asked."""
    left, kept, rest = MOST, dict[str, Track](), list[Track]()
    dearest = sorted(spending.services.items(), key=lambda each: (-each[1].rate, each[0]))
    for name, track in dearest:
        left -= len(msgspec.json.encode({name: track}))
        if left > 0:
            kept[name] = track
        else:
            rest.append(track)
    if rest:
        kept[OTHERS] = Track(summed(each.points for each in rest))
    return msgspec.json.encode(replace(spending, at=0, services=kept), order="sorted").decode()


def recalled(entry: Entry | None) -> Spending:
    """Nothing, if nothing that can be read was kept."""
    try:
        data = unpack(entry.value, entry.revision)["data"] if entry else {}
        return msgspec.json.decode(data["spending"], type=Spending)
    except (KeyError, TypeError, msgspec.DecodeError):
        return Spending()
