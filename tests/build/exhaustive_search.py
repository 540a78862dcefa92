"""The cheapest fleet by exhaustive search, which shares only the manifests and the latencies with the
product.

A fleet is the replicas of each service by pool and class; machines are packed as tightly as possible.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState

GIB = 1 << 30
MONTH = 720
Spot = tuple[str, str]  # pool and class
Placed = dict[str, Counter[tuple[str, str]]]  # replicas by service, pool and class
Vector = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """The merged rules of all policies that match a service."""

    clusters: tuple[
        int, int, str
    ]  # min nodes, max nodes, threshold: services share machines only if all are equal
    regions: int
    skews: tuple[tuple[str, int], ...]


@dataclass
class Fleet:
    """A small world of pools only."""

    pools: dict[str, LatticePool]
    classes: dict[str, LatticeNodeClass]
    services: dict[str, LatticeService]
    rules: dict[str, Rules]
    now: dict[str, Counter[Spot]]
    world: World

    def size(self, spot: Spot) -> Vector:
        stated = self.classes[spot[1]].spec.resources
        return int(stated.cores * 1000), int(stated.memory_gi * GIB)

    def price(self, spot: Spot) -> int:
        return int(
            self.classes[spot[1]].spec.cost_per_hour[self.pools[spot[0]].spec.provider.type] * 1_000_000
        )

    def needs(self, service: str) -> Vector:
        stated = self.services[service].spec.placement.resources
        return int(stated.cores * 1000), int(stated.memory_gi * GIB)

    def region(self, pool: str) -> str:
        return self.pools[pool].spec.provider.region

    def domain(self, pool: str, key: str) -> str:
        return {
            "region": self.region(pool),
            "zone": f"{self.region(pool)}/{self.pools[pool].spec.provider.zone}",
        }.get(key, pool)

    def milliseconds(self, one: str, other: str) -> float:
        places = {offer.name: offer.place for offer in self.world.supply.offers}
        result = self.world.latencies.between(places[one], places[other])
        return float("inf") if result is None else result.ms


def fleet_of(settled: FleetState) -> Fleet:
    objects = settled.world.objects.values()
    policies = [policy for policy in objects if isinstance(policy, LatticePlacementPolicy)]
    now: dict[str, Counter[Spot]] = {}
    for name, where in settled.replica_counts.items():
        now[name] = Counter()
        for (pool, _, kind), count in where.items():
            now[name][pool, kind] += count
    services = {name: service for name, service in settled.world.services.items() if name in now}
    return Fleet(
        {pool.metadata.name: pool for pool in objects if isinstance(pool, LatticePool)},
        {
            node_class.metadata.name: node_class
            for node_class in objects
            if isinstance(node_class, LatticeNodeClass)
        },
        services,
        {name: _rules(service, policies) for name, service in services.items()},
        now,
        settled.world,
    )


def _rules(service: LatticeService, policies: list[LatticePlacementPolicy]) -> Rules:
    matching = [policy.spec for policy in policies if policy.spec.applies_to(service.metadata.labels or {})]
    stated = [item.cluster_policy for item in matching if item.cluster_policy]
    least = max((item.min_nodes for item in stated if item.min_nodes is not None), default=1)
    most = min((item.max_nodes for item in stated if item.max_nodes is not None), default=20)
    threshold = min(
        (str(item.bin_packing_threshold) for item in stated if item.bin_packing_threshold is not None),
        default="0.8",
    )
    skews = [(item.topology_key, item.max_skew) for item in service.spec.spread]
    skews += [
        (each.topology_key, each.max_skew)
        for spec in matching
        if (each := spec.requirements.spread_constraint)
    ]
    regions = max((spec.requirements.min_regions or 1 for spec in matching), default=1)
    return Rules((least, most, threshold), regions, tuple(skews))


@dataclass(frozen=True)
class FleetCost:
    """Micro-dollars per hour of the cheapest fleet, and of the cheapest under a price per move and a limit on
    moves."""

    cost: int
    total: int


def cheapest_fleet_cost(settled: FleetState, move_price: int, most_moves: int | None) -> FleetCost | None:
    """The optimum, or None if there are too many fleets to try."""
    fleet = fleet_of(settled)
    options = [_options(fleet, name) for name in sorted(fleet.services)]
    tries = 1
    for option in options:
        tries *= len(option)
    if tries > 40_000:
        return None
    cheapest = best = 1 << 60
    for choice in itertools.product(*options):
        chosen = dict(zip(sorted(fleet.services), choice, strict=True))
        moves = sum((fleet.now[name] - spots).total() for name, spots in chosen.items())
        cost = _cost(fleet, chosen) if _is_near(fleet, chosen) and _is_even(fleet, chosen) else None
        if cost is None:
            continue
        cheapest = min(cheapest, cost)
        if most_moves is None or moves <= most_moves:
            best = min(best, cost + moves * move_price)
    return FleetCost(cheapest, best)


def _options(fleet: Fleet, service: str) -> list[Counter[Spot]]:
    """Every distribution of the replicas that the service's own rules allow."""
    spots = [
        (pool, kind)
        for pool in sorted(fleet.pools)
        for kind in fleet.pools[pool].spec.node_classes
        if _may(fleet, service, (pool, kind))
    ]
    every = (
        Counter(item) for item in itertools.combinations_with_replacement(spots, fleet.now[service].total())
    )
    return [item for item in every if _keeps_rules(fleet, service, item)]


def _may(fleet: Fleet, service: str, spot: Spot) -> bool:
    placement, labels = fleet.services[service].spec.placement, fleet.pools[spot[0]].spec.labels
    fits = all(need <= have for need, have in zip(fleet.needs(service), fleet.size(spot), strict=True))
    return fits and all(item in labels.get("compliance", ()) for item in placement.compliance)


def _pools(spots: Counter[Spot]) -> Counter[str]:
    result: Counter[str] = Counter()
    for (pool, _), count in spots.items():
        result[pool] += count
    return result


def _keeps_rules(fleet: Fleet, service: str, spots: Counter[Spot]) -> bool:
    """Whether no rule that holds now is broken then; a broken rule may stay as bad as it is."""
    rules, now, then = fleet.rules[service], _pools(fleet.now[service]), _pools(spots)
    for region in fleet.services[service].spec.placement.required_regions:
        is_there = [any(region in (pool, fleet.region(pool)) for pool in pools) for pools in (now, then)]
        if is_there[0] and not is_there[1]:
            return False
    regions = [len({fleet.region(pool) for pool in pools}) for pools in (now, then)]
    return regions[1] >= min(rules.regions, regions[0])


def _is_even(fleet: Fleet, chosen: Placed) -> bool:
    return all(
        _skew(fleet, name, chosen, key) <= max(most, _skew(fleet, name, fleet.now, key))
        for name in chosen
        for key, most in fleet.rules[name].skews
    )


def _skew(fleet: Fleet, service: str, placed: Placed, key: str) -> int:
    """The skew over all domains open to the service, given the other placements."""
    could = [
        pool
        for pool in fleet.pools
        if any(_may(fleet, service, (pool, kind)) for kind in _kinds(fleet, pool))
    ]
    counts = {fleet.domain(pool, key): 0 for pool in could if _reaches(fleet, service, pool, placed)}
    for pool, count in _pools(placed[service]).items():
        counts[fleet.domain(pool, key)] = counts.get(fleet.domain(pool, key), 0) + count
    return max(counts.values()) - min(counts.values())


def _kinds(fleet: Fleet, pool: str) -> tuple[str, ...]:
    return tuple(fleet.pools[pool].spec.node_classes)


def _is_near(fleet: Fleet, chosen: Placed) -> bool:
    return all(
        _reaches(fleet, name, pool, chosen) for name, spots in chosen.items() for pool in _pools(spots)
    )


def _reaches(fleet: Fleet, service: str, pool: str, placed: Placed) -> bool:
    limits = fleet.services[service].spec.placement.latency
    return all(
        min(fleet.milliseconds(pool, other) for other in _pools(placed[f"default/{name}"])) <= stated.max_ms
        for name, stated in limits.items()
    )


def _cost(fleet: Fleet, chosen: Placed) -> int | None:
    """The cost of the cheapest machines for the placement, or None if a limit forbids them."""
    items: dict[str, dict[tuple[Spot, tuple[int, int, str]], list[Vector]]] = {}
    for name, spots in chosen.items():
        for spot, count in spots.items():
            items.setdefault(spot[0], {}).setdefault((spot, fleet.rules[name].clusters), []).extend(
                [fleet.needs(name)] * count
            )
    total = 0
    for pool, listed in items.items():
        machines = Counter(
            {
                key: fewest_machines(fleet.size(key[0]), tuple(sorted(needs, reverse=True)))
                for key, needs in listed.items()
            }
        )
        costs = [_price(fleet, pool, item) for item in _with_least(fleet, pool, machines)]
        allowed = [cost for cost in costs if cost is not None]
        if not allowed:
            return None
        total += min(allowed)
    return total


def _with_least(
    fleet: Fleet, pool: str, machines: Counter[tuple[Spot, tuple[int, int, str]]]
) -> Iterator[Counter[str]]:
    """Every choice of classes for the empty machines that cluster minimums require."""
    ways = []
    for rules in {key[1] for key in machines}:
        missing = rules[0] - sum(count for key, count in machines.items() if key[1] == rules)
        ways.append(list(itertools.combinations_with_replacement(_kinds(fleet, pool), max(0, missing))))
    needed: Counter[str] = Counter()
    for (spot, _), count in machines.items():
        needed[spot[1]] += count
    for choice in itertools.product(*ways):
        yield needed + Counter(itertools.chain(*choice))


def _price(fleet: Fleet, pool: str, machines: Counter[str]) -> int | None:
    capacity, budget = fleet.pools[pool].spec.capacity, fleet.pools[pool].spec.budget
    sizes = {kind: fleet.size((pool, kind)) for kind in machines}
    cores, memory = (sum(sizes[kind][at] * count for kind, count in machines.items()) for at in (0, 1))
    if capacity.max_nodes is not None and machines.total() > capacity.max_nodes:
        return None
    if capacity.max_cores is not None and cores > capacity.max_cores * 1000:
        return None
    if capacity.max_memory_gi is not None and memory > capacity.max_memory_gi * GIB:
        return None
    price = sum(fleet.price((pool, kind)) * count for kind, count in machines.items())
    if budget and budget.max_monthly_cost is not None and price * MONTH > budget.max_monthly_cost * 1_000_000:
        return None
    return price


@cache
def fewest_machines(size: Vector, items: tuple[Vector, ...]) -> int:
    """Exact bin packing: each item on each machine with capacity, or on a new one."""
    best = len(items)

    def go(at: int, free: tuple[Vector, ...]) -> None:
        nonlocal best
        if at == len(items):
            best = min(best, len(free))
        elif len(free) < best or any(_fits(items[at], item) for item in free):
            for i in {item: i for i, item in enumerate(free)}.values():
                if _fits(items[at], free[i]):
                    go(at + 1, (*free[:i], _less(free[i], items[at]), *free[i + 1 :]))
            if len(free) + 1 < best or at + 1 == len(items):
                go(at + 1, (*free, _less(size, items[at])))

    go(0, ())
    return best


def _fits(need: Vector, free: Vector) -> bool:
    return need[0] <= free[0] and need[1] <= free[1]


def _less(free: Vector, need: Vector) -> Vector:
    return free[0] - need[0], free[1] - need[1]
