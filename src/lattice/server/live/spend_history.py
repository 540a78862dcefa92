"""What was paid per hour, by pool, by service or by label, over the last days: a point for each change."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import accumulate
from typing import Any

from lattice.errors import Malformed
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.service import LatticeService

RETENTION_S = int(timedelta(days=7).total_seconds())
MAX_POINTS_PER_SERIES = 500  # of one name; of more, every second one of the older half goes
MAX_NAMED_SERIES = 7  # told by themselves; the rest together
EMPTY_NODES_SERIES = "(empty nodes)"

Points = list[tuple[int, int]]  # seconds since 1970, and micro-dollars per hour from then on


@dataclass
class CostSeries:
    """What one name costs over time."""

    points: Points = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> int:
        return self.points[-1][1] if self.points else 0

    def record(self, at: int, rate: int) -> None:
        if rate == self.rate:
            return
        if self.points and self.points[-1][0] == at:
            self.points.pop()
        self.points.append((at, rate))
        if len(self.points) > MAX_POINTS_PER_SERIES:
            del self.points[1 : MAX_POINTS_PER_SERIES // 2 : 2]

    def drop_before(self, before: int) -> None:
        """What held then still begins the rest."""
        while len(self.points) > 1 and self.points[1][0] <= before:
            self.points.pop(0)

    @property
    def is_ended(self) -> bool:
        return self.rate == 0 and len(self.points) <= 1


@dataclass
class SpendHistory:
    """While nobody looks, what was paid last is taken to be paid on: machines stay."""

    since: int = 0
    at: int = 0
    pools: dict[str, CostSeries] = field(default_factory=dict)
    services: dict[str, CostSeries] = field(default_factory=dict)

    def replace_with(self, other: "SpendHistory") -> None:
        self.since, self.at, self.pools, self.services = other.since, other.at, other.pools, other.services

    def record(
        self, now: int, clusters: Iterable[LatticeCluster], services: Iterable[LatticeService]
    ) -> None:
        self.at, self.since = now, self.since or now
        rates: Counter[str] = Counter()
        for cluster in clusters:
            rates[cluster.spec.pool] += _hourly(cluster.status.cost)
        _record_rates(self.pools, rates, now)
        known = {f"{each.metadata.namespace}/{each.metadata.name}": each for each in services}
        _record_rates(
            self.services, {name: _hourly(each.status.total_cost) for name, each in known.items()}, now
        )
        for name, each in known.items():
            if name in self.services:
                self.services[name].labels = each.metadata.labels or {}

    @property
    def window_start(self) -> int:
        return max(self.since, self.at - RETENTION_S)

    def series(self, by: str) -> dict[str, Points]:
        """Each name with its points; the dearest first, and those beyond a few together."""
        if by == "pool":
            return _most_expensive(
                {name: _after(self.window_start, track.points) for name, track in self.pools.items()}
            )
        key = by.removeprefix("label:")
        if by != "service" and (not key or key == by):
            raise Malformed(
                f"nothing is summed by {by!r}", where="by", fix="choose pool, service or label:KEY"
            )
        groups: dict[str, list[Points]] = {}
        for name, track in self.services.items():
            group = name if by == "service" else track.labels.get(key, f"(no label {key})")
            groups.setdefault(group, []).append(_after(self.window_start, track.points))
        named = _most_expensive({name: sum_points(points) for name, points in groups.items()})
        paid, shared = (
            [_after(self.window_start, each.points) for each in tracks.values()]
            for tracks in (self.pools, self.services)
        )
        empty = [(at, max(0, rate)) for at, rate in sum_points([*paid, *map(_negative, shared)])]
        return {**named, EMPTY_NODES_SERIES: empty} if any(rate for _, rate in empty) else named

    def document(self, by: str) -> dict[str, Any]:
        keys = sorted({key for track in self.services.values() for key in track.labels})
        found = [{"name": name, "points": points} for name, points in self.series(by).items()]
        return {"by": by, "since": self.window_start, "at": self.at, "labels": keys, "series": found}


async def spending_document(spending: SpendHistory, by: str) -> dict[str, Any]:
    """Thousands of services take a while, in which others go on being noted."""
    return await asyncio.to_thread(_snapshot(spending).document, by)


def _snapshot(spending: SpendHistory) -> SpendHistory:
    pools, services = (
        {name: replace(track, points=list(track.points)) for name, track in tracks.items()}
        for tracks in (spending.pools, spending.services)
    )
    return replace(spending, pools=pools, services=services)


def sum_points(tracks: Iterable[Points]) -> Points:
    """What all of them cost together, from the first point of any on."""
    steps: Counter[int] = Counter()
    for points in tracks:
        before = 0
        for at, rate in points:
            steps[at] += rate - before
            before = rate
    times = sorted(steps)
    return list(zip(times, accumulate(steps[at] for at in times), strict=True))


def _after(begin: int, points: Points) -> Points:
    return [(max(begin, at), rate) for at, rate in points]


def _negative(points: Points) -> Points:
    return [(at, -rate) for at, rate in points]


def _most_expensive(named: Mapping[str, Points]) -> dict[str, Points]:
    order = sorted(
        (name for name in named if named[name]),
        key=lambda name: (-max(rate for _, rate in named[name]), name),
    )
    rest = order[MAX_NAMED_SERIES:]
    others = {f"({len(rest)} others)": sum_points(named[name] for name in rest)} if rest else {}
    return {name: list(named[name]) for name in order[:MAX_NAMED_SERIES]} | others


def _record_rates(tracks: dict[str, CostSeries], rates: Mapping[str, int], now: int) -> None:
    for name in {*tracks, *rates}:
        track = tracks.setdefault(name, CostSeries())
        track.record(now, rates.get(name, 0))
        track.drop_before(now - RETENTION_S)
        if name not in rates and track.is_ended:
            del tracks[name]


def _hourly(cost: Any) -> int:
    return dollars_to_micros(cost.hourly) if cost is not None and cost.hourly is not None else 0
