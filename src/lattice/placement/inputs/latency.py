"""How many milliseconds is the round trip between two places, and who says so?"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lattice.errors import Invalid
from lattice.placement.inputs.price_book import read_csv
from lattice.placement.inputs.region_coordinates import Site, is_cloud_region, site_of

UNKNOWN_RTT_MS = 1 << 40  # ms: above any limit, and a million of them still add up within int64

SAME_ZONE_RTT_MS, SAME_REGION_RTT_MS = 1, 2  # ms
# An estimate is 2 ms, and 1.6 ms for every 100 km of great circle: light in fibre takes 1 ms for 100 km and back, the rest is detours.
# Against 361 round trips that Microsoft publishes between its regions near the AWS ones, half the estimates are within 15 percent, seven in
# ten within 25, and the mean error is 25 ms. The worst are ways that cables do not go, such as from Stockholm to Seoul: 150 ms too low.
_BASE_RTT_MS, _RTT_NS_PER_KM = 2, 16_000
_EARTH_RADIUS_KM = 6371

_MAX_RTT_MS = Decimal(86_400_000)  # a day
_COLUMNS = (("from", "to", "ms"),)

_Table = Mapping[str, Mapping[str, int]]  # from key -> to key -> ms


@dataclass(frozen=True, slots=True)
class Place:
    """Where an offer is: its name, its provider's region and zone, and for a data center the name of its location."""

    name: str
    provider: str
    region: str
    zone: str = ""
    location: str = ""

    @property
    def aliases(self) -> tuple[str, str, str, str]:
        """What others may call it, the most particular name first; "" where it has none."""
        cloud = f"{self.provider}-{self.region}" if self.provider and self.region else ""
        return self.name, self.location, cloud, self.region


@dataclass(frozen=True, slots=True)
class Rtt:
    """A round trip in milliseconds, and why we think so."""

    ms: int
    source: str


@dataclass(frozen=True, slots=True)
class Latencies:
    """What is declared comes first, then the user's file, then what zones, regions and the map suggest."""

    declared: _Table
    measured: _Table
    source: str
    unresolved: tuple[
        tuple[str, str], ...
    ] = ()  # (offer, key) of declarations about a place that nobody offers

    @staticmethod
    def of(places: Iterable[Place], declared: _Table, csv: str = "", source: str = "") -> "Latencies":
        """`declared` is by offer name. Its keys are offers, locations or {provider}-{region}; the file may also name plain regions."""
        names = {key for place in places for key in place.aliases[:3] if key}
        capped = {
            offer: {key: min(ms, UNKNOWN_RTT_MS - 1) for key, ms in to.items() if key}
            for offer, to in declared.items()
        }
        unresolved = tuple(
            sorted((offer, key) for offer, to in capped.items() for key in to if key not in names)
        )
        file = source or "latency file"
        return Latencies(capped, _parse_csv(csv, file) if csv else {}, file, unresolved)

    def between(self, a: Place, b: Place) -> Rtt | None:
        """None: nobody knows. The two directions differ only where both are stated."""
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
        return _rtt_by_topology(a, b) or _rtt_by_distance(a, b)

    def matrix(self, places: Sequence[Place]) -> NDArray[np.int64]:
        """Milliseconds from each place (row) to each (column); UNKNOWN where between() says None."""
        return self._rtt_matrix(places, places)

    def row(self, a: Place, places: Sequence[Place]) -> NDArray[np.int64]:
        """Milliseconds from `a` to each of the places."""
        found: NDArray[np.int64] = self._rtt_matrix((a,), places)[0]
        return found

    def _rtt_matrix(self, rows: Sequence[Place], columns: Sequence[Place]) -> NDArray[np.int64]:
        ms = _estimate_matrix(rows, columns)
        for table, by, to in ((self.measured, 4, 4), (self.declared, 1, 3)):
            if table:
                there = _lookup_rtt_matrix(table, (rows, by), (columns, to))
                back = there.T if rows is columns else _lookup_rtt_matrix(table, (columns, by), (rows, to)).T
                np.copyto(ms, back, where=back != UNKNOWN_RTT_MS)
                np.copyto(ms, there, where=there != UNKNOWN_RTT_MS)
        np.copyto(
            ms,
            SAME_ZONE_RTT_MS,
            where=_equal([place.name for place in rows], [place.name for place in columns]),
        )
        return ms


# Which name of each side a statement uses, the most particular pair first.
_ALIAS_PAIRS_BY_SPECIFICITY = sorted(
    ((by, to) for by in range(4) for to in range(4)), key=lambda pair: (sum(pair), pair)
)

_Side = tuple[Sequence[Place], int]  # places, and how many of their names count
_Index = dict[
    str, list[tuple[int, NDArray[np.intp]]]
]  # key -> how particular it is, and which places it means


def _lookup_rtt(table: _Table, by: Sequence[str], to: Sequence[str]) -> int | None:
    for i, j in _ALIAS_PAIRS_BY_SPECIFICITY:
        if i < len(by) and j < len(to):
            ms = table.get(by[i], {}).get(to[j])
            if ms is not None:
                return ms
    return None


def _lookup_rtt_matrix(table: _Table, left: _Side, right: _Side) -> NDArray[np.int64]:
    """_stated() for all pairs at once: the least particular statements are written first, the others over them."""
    found = np.full((len(left[0]), len(right[0])), UNKNOWN_RTT_MS, dtype=np.int64)
    by = _index_by_alias(left, table.keys())
    to = _index_by_alias(right, {key for name in by for key in table[name]})
    writes = [
        ((i + j, i), rows, columns, ms)
        for key in by
        for other in table[key].keys() & to.keys()
        for ms in (table[key][other],)
        for i, rows in by[key]
        for j, columns in to[other]
    ]
    for _, rows, columns, ms in sorted(writes, key=lambda write: write[0], reverse=True):
        found[rows[:, None], columns] = ms
    return found


def _index_by_alias(side: _Side, wanted: Set[str]) -> _Index:
    places, names = side
    found: dict[str, dict[int, list[int]]] = {}
    for position, place in enumerate(places):
        for level, key in enumerate(place.aliases[:names]):
            if key in wanted:
                found.setdefault(key, {}).setdefault(level, []).append(position)
    return {
        key: [(level, np.array(at, dtype=np.intp)) for level, at in by_level.items()]
        for key, by_level in found.items()
    }


def _rtt_by_topology(a: Place, b: Place) -> Rtt | None:
    if a.location and a.location == b.location:
        return Rtt(SAME_ZONE_RTT_MS, "same location")
    if not any(mine and mine == other for mine, other in zip(_region_keys(a), _region_keys(b), strict=True)):
        return None
    return (
        Rtt(SAME_ZONE_RTT_MS, "same zone")
        if a.zone and a.zone == b.zone
        else Rtt(SAME_REGION_RTT_MS, "same region")
    )


def _region_keys(place: Place) -> tuple[str, str]:
    """What it may share with another: a region of one provider, or, among data centers whoever runs them, a region by name."""
    own = f"{place.provider} {place.region}" if place.provider and place.region else ""
    return own, place.region if place.location else ""


def _rtt_by_distance(a: Place, b: Place) -> Rtt | None:
    here, there = site_of(a.provider, a.region), site_of(b.provider, b.region)
    if here is None or there is None:
        return None
    km = _great_circle_km(here, there)
    return Rtt(_distance_to_rtt_ms(km), f"estimated over {km:,} km")


def _distance_to_rtt_ms(km: int) -> int:
    return _BASE_RTT_MS - (-km * _RTT_NS_PER_KM // 1_000_000)


@cache
def _great_circle_km(a: Site, b: Site) -> int:
    """Along the great circle, by the haversine formula; the earth is a ball here, which is off by less than half a percent."""
    north, south = math.radians(a.latitude), math.radians(b.latitude)
    half = (
        math.sin((north - south) / 2) ** 2
        + math.cos(north) * math.cos(south) * math.sin(math.radians(a.longitude - b.longitude) / 2) ** 2
    )
    return round(2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(half, 1.0))))


def _estimate_matrix(rows: Sequence[Place], columns: Sequence[Place]) -> NDArray[np.int64]:
    """What zones, regions and the map suggest, for all pairs at once."""
    ms = _distance_rtt_matrix(rows, columns)
    mine, others = [_region_keys(place) for place in rows], [_region_keys(place) for place in columns]
    region = _equal([of for of, _ in mine], [of for of, _ in others]) | _equal(
        [of for _, of in mine], [of for _, of in others]
    )
    zone = region & _equal([place.zone for place in rows], [place.zone for place in columns])
    location = _equal([place.location for place in rows], [place.location for place in columns])
    np.copyto(ms, SAME_REGION_RTT_MS, where=region)
    np.copyto(ms, SAME_ZONE_RTT_MS, where=zone | location)
    return ms


def _distance_rtt_matrix(rows: Sequence[Place], columns: Sequence[Place]) -> NDArray[np.int64]:
    """Many offers share few sites, so distances are taken between sites."""
    here, there = (
        [site_of(place.provider, place.region) for place in rows],
        [site_of(place.provider, place.region) for place in columns],
    )
    ours, theirs = list(dict.fromkeys(here)), list(dict.fromkeys(there))
    between = np.array(
        [
            [_distance_to_rtt_ms(_great_circle_km(a, b)) if a and b else UNKNOWN_RTT_MS for b in theirs]
            for a in ours
        ],
        dtype=np.int64,
    )
    if not between.size:
        return np.full((len(rows), len(columns)), UNKNOWN_RTT_MS, dtype=np.int64)
    found: NDArray[np.int64] = between[_positions(here, ours)[:, None], _positions(there, theirs)]
    return found


def _positions(sites: Sequence[Site | None], distinct: Sequence[Site | None]) -> NDArray[np.intp]:
    at = {site: position for position, site in enumerate(distinct)}
    return np.array([at[site] for site in sites], dtype=np.intp)


def _equal(rows: Sequence[str], columns: Sequence[str]) -> NDArray[np.bool_]:
    """Which words are the same; an empty one is like none, not even itself."""
    codes = {word: code for code, word in enumerate(dict.fromkeys((*rows, *columns)))}
    left = np.array([codes[word] if word else -1 for word in rows], dtype=np.intp)
    right = np.array([codes[word] if word else -2 for word in columns], dtype=np.intp)
    same: NDArray[np.bool_] = left[:, None] == right
    return same


def validate_latency_csv(text: str, source: str, offered: Iterable[Place]) -> None:
    """Refuses a file that tells nothing, and names that mean no place: neither one that is offered nor a cloud's region."""
    if not text.strip():
        raise Invalid(
            "is empty",
            where=source,
            fix="begin it with from,to,ms, and give a round trip on each line after that",
        )
    known = {key for place in offered for key in place.aliases if key}
    lines = list(read_csv(text, source, _COLUMNS))
    if not lines:
        raise Invalid(
            "has no round trips, only their heads",
            where=source,
            fix="give one on each line, such as us-east,eu-west,85",
        )
    for row in lines:
        for word in (row.required_text("from"), row.required_text("to")):
            if word not in known and not is_cloud_region(word):
                raise Invalid(
                    f'"{word}" is no place that is offered', where=row.where, fix=_suggest_name(word, known)
                )


def _suggest_name(word: str, known: Set[str]) -> str:
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return (
        f"did you mean {near[0]}?"
        if near
        else "name a pool, a data center or its location, a region, or provider-region"
    )


def _parse_csv(text: str, source: str) -> _Table:
    found: dict[str, dict[str, int]] = {}
    for row in read_csv(text, source, _COLUMNS):
        by, to = row.required_text("from"), row.required_text("to")
        ms = int(row.number("ms", _MAX_RTT_MS).to_integral_value(rounding=ROUND_CEILING))
        if found.setdefault(by, {}).setdefault(to, ms) != ms:
            raise Invalid(
                f"gives {ms} ms from {by} to {to}, a line above {found[by][to]}",
                where=row.where,
                fix="remove one of the two",
            )
    return found
