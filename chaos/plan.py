"""What is done to whom and when, from one seed: nothing here touches anything."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Lane = Literal["servers", "etcd", "nodes"]
OVERLAP = 0.25  # share of the faults of servers and etcd that begin before the one before has ended
CALM = 150.0  # seconds at the end without a fault
WHOLE = frozenset({"all servers", "most of etcd"})  # targets that leave nobody: never beside another


@dataclass(frozen=True)
class Kind:
    """`target`: whom it befalls, found out when it strikes. `lasts`: seconds, from and to."""

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
    """Seconds since the faults began."""

    at: float
    kind: Kind
    lasts: float
    chance: float  # 0 to 1: whatever is still to be chosen when it strikes

    @property
    def ends(self) -> float:
        return self.at + self.lasts


def disturbed(seconds: float) -> float:
    """How long faults may come, of so many seconds: half of the time, where that leaves less than the calm that is due."""
    return max(seconds - CALM, seconds / 2)


def chosen(only: str) -> list[Kind]:
    """Those with that in `NAME, TARGET`."""
    return [kind for kind in KINDS if only in kind.title]


def plan(seed: int, seconds: float, only: str = "") -> list[Strike]:
    """In the order of their times; all have ended after so many seconds. `only`: those with that in `NAME, TARGET`."""
    rng = random.Random(seed)
    kinds = chosen(only)
    control, nodes = (
        [kind for kind in kinds if kind.lane != "nodes"],
        [kind for kind in kinds if kind.lane == "nodes"],
    )
    strikes = _one_after_the_other(rng, control, seconds) + _many_at_once(rng, nodes, seconds)
    return sorted(strikes, key=lambda strike: strike.at)


def _one_after_the_other(rng: random.Random, kinds: list[Kind], seconds: float) -> list[Strike]:
    """So that it can be told who recovers from what, and how soon; now and then two at once, of servers and of etcd."""
    found: list[Strike] = []
    at, is_beside = 0.0, False
    for kind in _endless(rng, kinds):
        before = found[-1] if found else None
        is_beside = (
            before is not None
            and not is_beside
            and _may_overlap(before.kind, kind)
            and rng.random() < OVERLAP
        )
        start = before.at + before.lasts * rng.uniform(0.2, 0.8) if before is not None and is_beside else at
        strike = Strike(start, kind, rng.uniform(*kind.lasts), rng.random())
        if strike.ends > seconds:
            return found
        found.append(strike)
        at = max(at, strike.ends) + rng.uniform(4, 8)
    return found


def _may_overlap(one: Kind, other: Kind) -> bool:
    return one.lane != other.lane and not {one.target, other.target} & WHOLE


def _many_at_once(rng: random.Random, kinds: list[Kind], seconds: float) -> list[Strike]:
    found: list[Strike] = []
    at = 0.0
    for kind in _endless(rng, kinds):
        at += rng.uniform(4, 12)
        strike = Strike(at, kind, rng.uniform(*kind.lasts), rng.random())
        if at >= seconds:
            return found
        if strike.ends <= seconds:
            found.append(strike)
    return found


def _endless(rng: random.Random, kinds: list[Kind]) -> Iterator[Kind]:
    """Each of them once before anything comes twice."""
    yield from rng.sample(kinds, len(kinds))
    while kinds:
        yield rng.choices(kinds, [kind.weight for kind in kinds])[0]
