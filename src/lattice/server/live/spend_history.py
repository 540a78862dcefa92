"""Spend history: costs per hour by pool, service or label over the last days, with one point per change."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import accumulate
from typing import Any

from lattice.errors import Malformed
from lattice.kinds.meta.base import path_of
from lattice.server.live.usage_tables import UsageSnapshot

RETENTION_S = int(timedelta(days=7).total_seconds())
# Beyond this count, every second point of the older half is dropped.
MAX_POINTS_PER_SERIES = 500
# Series with a name of their own; the remaining series are summed.
MAX_NAMED_SERIES = 7
EMPTY_NODES_SERIES = "(empty nodes)"

# Seconds since 1970, and micro-dollars per hour from then on.
Points = list[tuple[int, int]]


@dataclass
class CostSeries:
    """The cost of one pool or service over time."""

    points: Points = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> int:
        """The latest cost in micro-dollars per hour."""
        return self.points[-1][1] if self.points else 0

    def record(self, at: int, rate: int) -> None:
        """Append a point if the rate changed."""
        if rate == self.rate:
            return
        # Two changes within one second: the later rate replaces the earlier.
        if self.points and self.points[-1][0] == at:
            self.points.pop()
        self.points.append((at, rate))
        if len(self.points) > MAX_POINTS_PER_SERIES:
            # The first point stays: it holds the rate at the start of the window.
            del self.points[1 : MAX_POINTS_PER_SERIES // 2 : 2]

    def drop_before(self, start: int) -> None:
        """Drop points that ended before the given time. The point in effect at that time stays as the first
        point."""
        while len(self.points) > 1 and self.points[1][0] <= start:
            self.points.pop(0)

    @property
    def is_ended(self) -> bool:
        return self.rate == 0 and len(self.points) <= 1


@dataclass(frozen=True)
class SpendRates:
    """Micro-dollars per hour at one moment, by pool and by service, with the labels of the services."""

    pools: Mapping[str, int] = field(default_factory=dict)
    services: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: UsageSnapshot) -> "SpendRates":
        """The rates of the bill and of its parts; a machine of unknown price counts with its last known price."""
        services: Counter[str] = Counter()
        for part in snapshot.cost_parts:
            if part.service:
                services[part.service] += part.micros
        labels = {path_of(service): service.metadata.labels or {} for service in snapshot.services}
        for path in labels:
            services[path] += 0
        return SpendRates(snapshot.bill.offer_rates, services, labels)


@dataclass
class SpendHistory:
    """Cost series of pools and services. Between two samples the earlier rate is taken to continue, because
    machines keep running."""

    since: int = 0
    at: int = 0
    pools: dict[str, CostSeries] = field(default_factory=dict)
    services: dict[str, CostSeries] = field(default_factory=dict)

    def replace_with(self, source: "SpendHistory") -> None:
        self.since, self.at, self.pools, self.services = (
            source.since,
            source.at,
            source.pools,
            source.services,
        )

    def record(self, now: int, rates: "SpendRates") -> None:
        """Record the hourly costs of pools and services at the time `now` (seconds since 1970)."""
        self.at, self.since = now, self.since or now
        _record_rates(self.pools, rates.pools, now)
        _record_rates(self.services, rates.services, now)
        for name, labels in rates.labels.items():
            if name in self.services:
                self.services[name].labels = labels

    @property
    def window_start(self) -> int:
        return max(self.since, self.at - RETENTION_S)

    def series(self, by: str) -> dict[str, Points]:
        """Points by name, the most expensive first; series beyond `MAX_NAMED_SERIES` are summed.

        `by` is `pool`, `service` or `label:KEY`; `Malformed` otherwise. Costs of pools that no service shares
        appear as a series of empty nodes.
        """
        if by == "pool":
            return _most_expensive(
                {name: _clip(self.window_start, series.points) for name, series in self.pools.items()}
            )
        key = by.removeprefix("label:")
        if by != "service" and (not key or key == by):
            raise Malformed(
                f"cost cannot be grouped by {by!r}", where="by", fix="choose pool, service or label:KEY"
            )
        groups: dict[str, list[Points]] = {}
        for name, series in self.services.items():
            group = name if by == "service" else series.labels.get(key, f"(no label {key})")
            groups.setdefault(group, []).append(_clip(self.window_start, series.points))
        named = _most_expensive({name: sum_points(points) for name, points in groups.items()})
        # Services share the cost of the nodes they use; the difference to the cost of pools is the cost of
        # empty nodes.
        differences = [_clip(self.window_start, series.points) for series in self.pools.values()]
        for series in self.services.values():
            points = _clip(self.window_start, series.points)
            differences.append([(time, -rate) for time, rate in points])
        empty = [(time, max(0, rate)) for time, rate in sum_points(differences)]
        return {**named, EMPTY_NODES_SERIES: empty} if any(rate for _, rate in empty) else named

    def document(self, by: str) -> dict[str, Any]:
        """The reply to a spending request."""
        labels: set[str] = set()
        for series in self.services.values():
            labels.update(series.labels)
        return {
            "by": by,
            "since": self.window_start,
            "at": self.at,
            "labels": sorted(labels),
            "series": [{"name": name, "points": points} for name, points in self.series(by).items()],
        }


async def spending_document(spending: SpendHistory, by: str) -> dict[str, Any]:
    """Build the spending document on a thread from a snapshot, while the event loop goes on recording.

    The document takes noticeable time with thousands of services.
    """
    snapshot = replace(spending, pools=_copy(spending.pools), services=_copy(spending.services))
    return await asyncio.to_thread(snapshot.document, by)


def _copy(series_by_name: Mapping[str, CostSeries]) -> dict[str, CostSeries]:
    return {name: replace(series, points=list(series.points)) for name, series in series_by_name.items()}


def sum_points(series: Iterable[Points]) -> Points:
    """The sum of several series, from the earliest point on."""
    steps: Counter[int] = Counter()
    for points in series:
        previous_rate = 0
        for time, rate in points:
            # A point adds the change of its rate; the running sum over time is the total rate.
            steps[time] += rate - previous_rate
            previous_rate = rate
    times = sorted(steps)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


def _clip(start: int, points: Points) -> Points:
    return [(max(start, time), rate) for time, rate in points]


def _most_expensive(named: Mapping[str, Points]) -> dict[str, Points]:
    # By the highest rate of the window: an expensive series stays named after its end.
    order = sorted(
        (name for name in named if named[name]),
        key=lambda name: (-max(rate for _, rate in named[name]), name),
    )
    folded = order[MAX_NAMED_SERIES:]
    series = {name: list(named[name]) for name in order[:MAX_NAMED_SERIES]}
    if folded:
        series[f"({len(folded)} others)"] = sum_points(named[name] for name in folded)
    return series


def _record_rates(series_by_name: dict[str, CostSeries], rates: Mapping[str, int], now: int) -> None:
    for name in {*series_by_name, *rates}:
        series = series_by_name.setdefault(name, CostSeries())
        series.record(now, rates.get(name, 0))
        series.drop_before(now - RETENTION_S)
        # A deleted pool or service disappears once its last costs have expired.
        if name not in rates and series.is_ended:
            del series_by_name[name]
