"""The fault plan of a seed: kinds, targets and times. Pure: the module touches no process."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Lane = Literal["servers", "etcd", "nodes"]
# Share of server and etcd faults that begin before the previous fault has ended.
OVERLAP_RATIO = 0.25
# Seconds at the end without a fault.
CALM = 150.0
# Targets that leave no server or no quorum: never beside another fault.
WHOLE = frozenset({"all servers", "most of etcd"})


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `target` is resolved when the fault strikes; `lasts` is the range of durations in
    seconds."""

    name: str
    lane: Lane
    target: str
    lasts: tuple[float, float]
    weight: int = 1

    @property
    def title(self) -> str:
        return f"{self.name}, {self.target}"


KINDS = (
    Kind("kill -9", "servers", "leader", (1, 6), 4),
    Kind("SIGTERM", "servers", "leader", (1, 4), 4),
    Kind("pause", "servers", "leader", (8, 14), 4),
    Kind("kill -9", "servers", "follower", (1, 6)),
    Kind("pause", "servers", "follower", (3, 10)),
    Kind("cut from etcd", "servers", "leader", (9, 15), 2),
    Kind("deaf", "servers", "leader", (9, 15)),
    Kind("dumb", "servers", "leader", (9, 15)),
    Kind("cut from agents", "servers", "leader", (4, 18)),
    Kind("loss", "servers", "leader", (6, 15)),
    Kind("kill -9", "servers", "all servers", (3, 10)),
    Kind("clock", "servers", "leader", (6, 12), 2),
    Kind("clock", "servers", "all servers", (6, 12)),
    Kind("kill -9", "etcd", "etcd leader", (2, 6), 3),
    Kind("pause", "etcd", "etcd leader", (3, 8), 2),
    Kind("cut from peers", "etcd", "etcd leader", (4, 10), 2),
    Kind("deaf", "etcd", "etcd leader", (4, 10)),
    Kind("dumb", "etcd", "etcd member", (4, 10)),
    Kind("loss", "etcd", "etcd leader", (5, 12)),
    Kind("slow fsync", "etcd", "etcd leader", (5, 10)),
    Kind("slow fsync", "etcd", "etcd member", (5, 10)),
    Kind("disk full", "etcd", "etcd on a small disk", (4, 8)),
    Kind("kill -9", "etcd", "most of etcd", (4, 8), 2),
    Kind("kill -9", "nodes", "agent", (0.5, 8), 4),
    Kind("SIGTERM", "nodes", "agent", (0.5, 8), 2),
    Kind("pause", "nodes", "agent", (3, 50), 4),
    Kind("power off", "nodes", "agent", (1, 25), 4),
    Kind("disk full", "nodes", "agent on a small disk", (4, 15), 2),
    Kind("cut", "nodes", "group", (5, 55), 3),
    Kind("deaf", "nodes", "group", (5, 50), 2),
    Kind("dumb", "nodes", "group", (5, 50), 2),
    Kind("loss", "nodes", "group", (6, 20), 2),
    Kind("cut", "nodes", "half of the groups", (12, 45)),
    Kind("clock", "nodes", "group", (5, 20), 2),
)


@dataclass(frozen=True)
class Strike:
    """A planned fault; times are seconds since the start of the faults."""

    at: float
    kind: Kind
    lasts: float
    # Seed, 0 to 1, for choices that are made when the fault strikes.
    chance: float

    @property
    def ends(self) -> float:
        return self.at + self.lasts


def disturbed(seconds: float) -> float:
    """The part of a run, in seconds, in which faults strike: all but CALM, and at least half of the run."""
    return max(seconds - CALM, seconds / 2)


def chosen(only: str) -> list[Kind]:
    """Kinds of faults with `only` in `NAME, TARGET`."""
    return [kind for kind in KINDS if only in kind.title]


def plan(seed: int, seconds: float, only: str = "") -> list[Strike]:
    """Strikes ordered by time, all of which end within `seconds`. `only` selects kinds by `NAME, TARGET`."""
    rng = random.Random(seed)
    kinds = chosen(only)
    control = [kind for kind in kinds if kind.lane != "nodes"]
    nodes = [kind for kind in kinds if kind.lane == "nodes"]
    strikes = _sequential_strikes(rng, control, seconds) + _parallel_strikes(rng, nodes, seconds)
    return sorted(strikes, key=lambda strike: strike.at)


def _sequential_strikes(rng: random.Random, kinds: list[Kind], seconds: float) -> list[Strike]:
    """Faults of servers and etcd, one at a time, so that the recovery of every fault can be measured; some
    pairs overlap."""
    strikes: list[Strike] = []
    at, is_overlapping = 0.0, False
    for kind in _endless_kinds(rng, kinds):
        previous = strikes[-1] if strikes else None
        is_overlapping = (
            previous is not None
            and not is_overlapping
            and _may_overlap(previous.kind, kind)
            and rng.random() < OVERLAP_RATIO
        )
        start = (
            previous.at + previous.lasts * rng.uniform(0.2, 0.8)
            if previous is not None and is_overlapping
            else at
        )
        strike = Strike(start, kind, rng.uniform(*kind.lasts), rng.random())
        if strike.ends > seconds:
            return strikes
        strikes.append(strike)
        at = max(at, strike.ends) + rng.uniform(4, 8)
    return strikes


def _may_overlap(first: Kind, second: Kind) -> bool:
    return first.lane != second.lane and not {first.target, second.target} & WHOLE


def _parallel_strikes(rng: random.Random, kinds: list[Kind], seconds: float) -> list[Strike]:
    strikes: list[Strike] = []
    at = 0.0
    for kind in _endless_kinds(rng, kinds):
        at += rng.uniform(4, 12)
        strike = Strike(at, kind, rng.uniform(*kind.lasts), rng.random())
        if at >= seconds:
            return strikes
        if strike.ends <= seconds:
            strikes.append(strike)
    return strikes


def _endless_kinds(rng: random.Random, kinds: list[Kind]) -> Iterator[Kind]:
    """Kinds without end: every kind once, then by weight."""
    yield from rng.sample(kinds, len(kinds))
    while kinds:
        yield rng.choices(kinds, [kind.weight for kind in kinds])[0]
