"""Round trips between places in milliseconds, each with its source: declarations, a latency file, or an
estimate."""

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lattice.errors import Invalid
from lattice.placement.inputs.price_book import read_csv
from lattice.placement.inputs.region_coordinates import Site, is_cloud_region, site_of

# Stands for an unknown round trip, in milliseconds: above any limit, and the sum of a million of them still
# fits in 64 bits.
UNKNOWN_RTT_MS = 1 << 40

SAME_ZONE_RTT_MS, SAME_REGION_RTT_MS = 1, 2
# An estimate is 2 ms plus 1.6 ms per 100 km of great circle: light in fibre takes 1 ms for 100 km and back, and
# cables make detours. Against 361 round trips that Microsoft publishes between its regions near AWS regions, half
# of the estimates are within 15 percent, seven in ten within 25 percent, and the mean error is 25 ms. The worst
# estimates are for routes without a direct cable, such as Stockholm to Seoul: 150 ms too low.
_BASE_RTT_MS, _RTT_NS_PER_KM = 2, 16_000
_EARTH_RADIUS_KM = 6371

# One day in milliseconds; a larger round trip in a latency file is rejected.
_MAX_RTT_MS = Decimal(86_400_000)
_COLUMNS = (("from", "to", "ms"),)

_RttTable = Mapping[str, Mapping[str, int]]  # from key -> to key -> ms


@dataclass(frozen=True, slots=True)
class Place:
    """The location of an offer: name, region and zone of the provider, and for a data center the name of the
    location."""

    name: str
    provider: str
    region: str
    zone: str = ""
    location: str = ""

    @property
    def aliases(self) -> tuple[str, str, str, str]:
        """The names that a declaration or a latency file may use for the place, the most specific name first;
        "" where absent."""
        cloud = f"{self.provider}-{self.region}" if self.provider and self.region else ""
        return self.name, self.location, cloud, self.region


@dataclass(frozen=True, slots=True)
class Rtt:
    """A round trip in milliseconds with its source."""

    ms: int
    source: str


@dataclass(frozen=True, slots=True)
class Latencies:
    """Round trips between places: declarations come first, then the latency file, then an estimate from
    zones, regions and distance."""

    declared: _RttTable
    measured: _RttTable
    source: str
    # (offer, key) of declarations about a place that no offer has.
    unresolved: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(places: Iterable[Place], declared: _RttTable, csv: str = "", source: str = "") -> "Latencies":
        """Compile the latencies. `declared` is by offer name; its keys are offers, locations or
        `{provider}-{region}`.

        The latency file may name plain regions as well.
        """
        names: set[str] = set()
        for place in places:
            names.update(place.aliases[:3])
        names.discard("")
        capped: dict[str, dict[str, int]] = {}
        unresolved: list[tuple[str, str]] = []
        for offer, round_trips in declared.items():
            capped[offer] = {key: min(ms, UNKNOWN_RTT_MS - 1) for key, ms in round_trips.items() if key}
            unresolved += [(offer, key) for key in capped[offer] if key not in names]
        file = source or "latency file"
        measured: dict[str, dict[str, int]] = {}
        for row in read_csv(csv, file, _COLUMNS) if csv else ():
            by, to = row.required_text("from"), row.required_text("to")
            # Rounded up: a limit must hold for the exact figure as well.
            rtt_ms = int(row.number("ms", _MAX_RTT_MS).to_integral_value(rounding=ROUND_CEILING))
            if measured.setdefault(by, {}).setdefault(to, rtt_ms) != rtt_ms:
                raise Invalid(
                    f"gives {rtt_ms} ms from {by} to {to}, a line above {measured[by][to]}",
                    where=row.where,
                    fix="remove one of the two",
                )
        return Latencies(capped, measured, file, tuple(sorted(unresolved)))

    def between(self, a: Place, b: Place) -> Rtt | None:
        """The round trip from `a` to `b`, or None if unknown; the two directions differ only where both are
        stated."""
        if a.name == b.name:
            return Rtt(SAME_ZONE_RTT_MS, "same place")
        for by, to in ((a, b), (b, a)):
            ms = _lookup_rtt(self.declared, by.aliases[:1], to.aliases[:3])
            if ms is not None:
                return Rtt(ms, f"declared by {by.name}")
        for by, to in ((a, b), (b, a)):
            ms = _lookup_rtt(self.measured, by.aliases, to.aliases)
            if ms is not None:
                return Rtt(ms, self.source)
        # The estimate within a location, zone or region, else over the distance; None if a site is unknown.
        if a.location and a.location == b.location:
            return Rtt(SAME_ZONE_RTT_MS, "same location")
        if any(
            a_key and a_key == b_key for a_key, b_key in zip(_region_keys(a), _region_keys(b), strict=True)
        ):
            if a.zone and a.zone == b.zone:
                return Rtt(SAME_ZONE_RTT_MS, "same zone")
            return Rtt(SAME_REGION_RTT_MS, "same region")
        site_a, site_b = site_of(a.provider, a.region), site_of(b.provider, b.region)
        if site_a is None or site_b is None:
            return None
        km = _great_circle_km(site_a, site_b)
        return Rtt(_distance_to_rtt_ms(km), f"estimated over {km:,} km")

    def with_declared(self, a: str, b: str, ms: int) -> "Latencies":
        """The latencies with one more declaration, of offer `a` about offer `b`."""
        declared = {**self.declared, a: {**self.declared.get(a, {}), b: ms}}
        return replace(self, declared=declared)

    def matrix(self, places: Sequence[Place]) -> NDArray[np.int64]:
        """Milliseconds from every place (row) to every place (column); UNKNOWN_RTT_MS where `between` returns
        None."""
        return self._rtt_matrix(places, places)

    def row(self, a: Place, places: Sequence[Place]) -> NDArray[np.int64]:
        """Milliseconds from `a` to each of the places."""
        ms: NDArray[np.int64] = self._rtt_matrix((a,), places)[0]
        return ms

    def _rtt_matrix(self, rows: Sequence[Place], columns: Sequence[Place]) -> NDArray[np.int64]:
        # Estimates from distance, regions, zones and locations, where nothing is stated.
        ms = _distance_rtt_matrix(rows, columns)
        region = _equal(rows, columns, lambda place: _region_keys(place)[0]) | _equal(
            rows, columns, lambda place: _region_keys(place)[1]
        )
        zone = region & _equal(rows, columns, lambda place: place.zone)
        location = _equal(rows, columns, lambda place: place.location)
        np.copyto(ms, SAME_REGION_RTT_MS, where=region)
        np.copyto(ms, SAME_ZONE_RTT_MS, where=zone | location)
        # Declarations overwrite the latency file. `by` and `to` say how many of `Place.aliases` may name the
        # place that states a round trip, and the other place. In the latency file all four may. A declaration
        # is stated by the offer's own name only (1), and may not name a plain region, the last alias (3).
        for table, by, to in ((self.measured, 4, 4), (self.declared, 1, 3)):
            if table:
                forward = _lookup_rtt_matrix(table, (rows, by), (columns, to))
                if rows is columns:
                    backward = forward.T
                else:
                    backward = _lookup_rtt_matrix(table, (columns, by), (rows, to)).T
                # The statement of the direction itself overrides the statement of the way back.
                np.copyto(ms, backward, where=backward != UNKNOWN_RTT_MS)
                np.copyto(ms, forward, where=forward != UNKNOWN_RTT_MS)
        np.copyto(ms, SAME_ZONE_RTT_MS, where=_equal(rows, columns, lambda place: place.name))
        return ms


# Positions of the aliases that a statement uses for its two places, the most specific pair first.
_ALIAS_PAIRS_BY_SPECIFICITY = sorted(
    itertools.product(range(4), range(4)), key=lambda pair: (sum(pair), pair)
)

# Places, and how many of their aliases count.
_Side = tuple[Sequence[Place], int]
# Alias -> the level of the alias (0 is the most specific), and the positions of the places.
_Index = dict[str, list[tuple[int, NDArray[np.intp]]]]


def _lookup_rtt(table: _RttTable, by: Sequence[str], to: Sequence[str]) -> int | None:
    for i, j in _ALIAS_PAIRS_BY_SPECIFICITY:
        if i < len(by) and j < len(to):
            ms = table.get(by[i], {}).get(to[j])
            if ms is not None:
                return ms
    return None


def _lookup_rtt_matrix(table: _RttTable, row_side: _Side, column_side: _Side) -> NDArray[np.int64]:
    """`_lookup_rtt` for all pairs at once: specific statements overwrite general statements."""
    matrix = np.full((len(row_side[0]), len(column_side[0])), UNKNOWN_RTT_MS, dtype=np.int64)
    by = _index_by_alias(row_side, table.keys())
    to = _index_by_alias(column_side, set().union(*(table[key] for key in by)))
    writes = []
    for from_key, from_levels in by.items():
        for to_key in table[from_key].keys() & to.keys():
            for (i, rows), (j, columns) in itertools.product(from_levels, to[to_key]):
                writes.append(((i + j, i), rows, columns, table[from_key][to_key]))
    for _, rows, columns, ms in sorted(writes, key=lambda write: write[0], reverse=True):
        matrix[rows[:, None], columns] = ms
    return matrix


def _index_by_alias(side: _Side, keys: Set[str]) -> _Index:
    places, names = side
    positions: dict[str, dict[int, list[int]]] = {}
    for position, place in enumerate(places):
        for level, key in enumerate(place.aliases[:names]):
            if key in keys:
                positions.setdefault(key, {}).setdefault(level, []).append(position)
    return {
        key: [(level, np.array(at, dtype=np.intp)) for level, at in by_level.items()]
        for key, by_level in positions.items()
    }


def _region_keys(place: Place) -> tuple[str, str]:
    """Two keys that places of one region share: provider with region, and, among data centers of any
    provider, the region name."""
    own = f"{place.provider} {place.region}" if place.provider and place.region else ""
    return own, place.region if place.location else ""


def _distance_to_rtt_ms(km: int) -> int:
    return _BASE_RTT_MS - (-km * _RTT_NS_PER_KM // 1_000_000)


@cache
def _great_circle_km(a: Site, b: Site) -> int:
    """Kilometres along the great circle, by the haversine formula on a sphere; the error is below half a
    percent."""
    latitude_a, latitude_b = math.radians(a.latitude), math.radians(b.latitude)
    half = (
        math.sin((latitude_a - latitude_b) / 2) ** 2
        + math.cos(latitude_a)
        * math.cos(latitude_b)
        * math.sin(math.radians(a.longitude - b.longitude) / 2) ** 2
    )
    return round(2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(half, 1.0))))


def _distance_rtt_matrix(rows: Sequence[Place], columns: Sequence[Place]) -> NDArray[np.int64]:
    """Estimates over distance for all pairs; computed between distinct sites, since many offers share few
    sites."""
    row_sites = [site_of(place.provider, place.region) for place in rows]
    column_sites = [site_of(place.provider, place.region) for place in columns]
    distinct_rows, distinct_columns = list(dict.fromkeys(row_sites)), list(dict.fromkeys(column_sites))
    between = np.full((len(distinct_rows), len(distinct_columns)), UNKNOWN_RTT_MS, dtype=np.int64)
    for row, a in enumerate(distinct_rows):
        for column, b in enumerate(distinct_columns):
            if a and b:
                between[row, column] = _distance_to_rtt_ms(_great_circle_km(a, b))
    if not between.size:
        return np.full((len(rows), len(columns)), UNKNOWN_RTT_MS, dtype=np.int64)
    row_positions, column_positions = (
        _positions(row_sites, distinct_rows),
        _positions(column_sites, distinct_columns),
    )
    matrix: NDArray[np.int64] = between[row_positions[:, None], column_positions]
    return matrix


def _positions(sites: Sequence[Site | None], distinct: Sequence[Site | None]) -> NDArray[np.intp]:
    position_of = {site: position for position, site in enumerate(distinct)}
    return np.array([position_of[site] for site in sites], dtype=np.intp)


def _equal(rows: Sequence[Place], columns: Sequence[Place], key: Callable[[Place], str]) -> NDArray[np.bool_]:
    """Mask of the pairs of places with equal keys; an empty key equals no key, not even an empty key."""
    row_keys, column_keys = [key(place) for place in rows], [key(place) for place in columns]
    codes = {word: code for code, word in enumerate(dict.fromkeys((*row_keys, *column_keys)))}
    # Different codes for an empty key on the two sides keep empty keys unequal.
    row_codes = np.array([codes[word] if word else -1 for word in row_keys], dtype=np.intp)
    column_codes = np.array([codes[word] if word else -2 for word in column_keys], dtype=np.intp)
    same: NDArray[np.bool_] = row_codes[:, None] == column_codes
    return same


def validate_latency_csv(text: str, source: str, offered: Iterable[Place]) -> None:
    """Reject an empty latency file, and names that are neither an offered place nor a region of a cloud."""
    if not text.strip():
        raise Invalid(
            "is empty",
            where=source,
            fix="begin it with from,to,ms, and give a round trip on each line after that",
        )
    known_names: set[str] = set()
    for place in offered:
        known_names.update(place.aliases)
    known_names.discard("")
    lines = list(read_csv(text, source, _COLUMNS))
    if not lines:
        raise Invalid(
            "has a header, but no round trips",
            where=source,
            fix="give one on each line, such as us-east,eu-west,85",
        )
    for row in lines:
        for word in (row.required_text("from"), row.required_text("to")):
            if word not in known_names and not is_cloud_region(word):
                near = difflib.get_close_matches(word, sorted(known_names), n=1)
                fix = "name a pool, a data center or its location, a region, or provider-region"
                raise Invalid(
                    f'"{word}" is no place that is offered',
                    where=row.where,
                    fix=f"did you mean {near[0]}?" if near else fix,
                )
