"""What stays as it is where nothing is offered any more: a pool that is gone takes nothing with it that runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.quantity import micros
from lattice.kinds.service import LatticeService, PlacedIn
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.former import Former
from lattice.lifecycle.replica_template import Cell
from lattice.placement.model.world import World

Stranded = Mapping[str, tuple[PlacedIn, ...]]  # by service
Stuck = Mapping[str, Counter[Cell]]


@dataclass(frozen=True, slots=True)
class Adrift:
    """Replicas, their clusters, and micro-dollars per hour: for machines by cluster, by offer, and of that by service and offer."""

    replicas: Stranded = field(default_factory=dict)
    clusters: tuple[LatticeCluster, ...] = ()
    bills: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(replicas: Stranded, clusters: tuple[LatticeCluster, ...], world: World) -> "Adrift":
        bills, rates = _bills(world, clusters), Counter[str]()
        for each in clusters:
            rates[each.spec.pool] += bills[each.metadata.name]
        return Adrift(replicas, clusters, bills, rates, _shares(replicas, rates))

    def where(self, service: str) -> Counter[tuple[str, str, str]]:
        return Counter(
            {
                (each.pool, each.cluster, each.node): each.replicas or 0
                for each in self.replicas.get(service, ())
            }
        )

    def cost(self, service: str) -> int:
        return sum(self.shares.get(service, {}).values())

    @property
    def overhead(self) -> dict[str, int]:
        """By offer: machines that nobody is on."""
        paid = Counter[str]()
        for shares in self.shares.values():
            paid.update(shares)
        return {offer: rate - paid[offer] for offer, rate in self.rates.items() if rate > paid[offer]}

    def regions(self, service: str) -> set[str]:
        there = {each.cluster for each in self.replicas.get(service, ())}
        return {each.spec.region for each in self.clusters if each.metadata.name in there}

    def reasons(self, service: str) -> list[str]:
        return [f"{each.pool}: is not offered any more" for each in self.replicas.get(service, ())]

    def fewer(self, demand: Demand) -> Demand:
        return fewer(demand, self.replicas)

    def beside(self, service: LatticeService, name: str) -> LatticeService:
        """With those in its status, too."""
        if name not in self.replicas:
            return service
        status = msgspec.structs.replace(
            service.status, placements=(*self.replicas[name], *service.status.placements)
        )
        return msgspec.structs.replace(service, status=status)


def adrift(world: World, fleet: Fleet) -> Adrift:
    """As it is now: also clusters that nobody is in any more."""
    clusters = tuple(
        each
        for each in world.objects.values()
        if isinstance(each, LatticeCluster) and each.spec.pool not in fleet.table.row_of
    )
    if not clusters:
        return Adrift()
    return Adrift.of(stranded(world, fleet, {}), clusters, world)


def adrift_in_the_end(world: World, fleet: Fleet) -> Adrift:
    """Clusters that nobody is in any more go."""
    now = adrift(world, fleet)
    held = held_clusters(now.replicas)
    clusters = tuple(each for each in now.clusters if each.metadata.name in held)
    return Adrift.of(now.replicas, clusters, world)


def held_clusters(stranded: Stranded) -> set[str]:
    return {each.cluster for several in stranded.values() for each in several}


def stranded(world: World, fleet: Fleet, stuck: Stuck) -> dict[str, tuple[PlacedIn, ...]]:
    """What is there stays, unless no node takes it or fewer are wanted."""
    found = {}
    for name, service in world.services.items():
        left, kept = world.demands[name].replicas - len(fleet.seats.get(name, ())), []
        for each in service.status.placements:
            is_there = (
                each.cluster not in fleet.clusters
                and (LatticeCluster.resource.kind, "", each.cluster) in world.objects
            )
            here = (
                (each.replicas or 0) - stuck.get(name, Counter())[each.cluster, each.node] if is_there else 0
            )
            if (count := min(here, left)) > 0:
                kept.append(msgspec.structs.replace(each, replicas=count))
                left -= count
        if kept:
            found[name] = tuple(kept)
    return found


def fewer(demand: Demand, stranded: Stranded) -> Demand:
    """Without those that run elsewhere."""
    if demand.name not in stranded:
        return demand
    return replace(
        demand, replicas=demand.replicas - sum(each.replicas or 0 for each in stranded[demand.name])
    )


def _shares(replicas: Stranded, rates: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What was said last of each service; all together never more than the machines cost."""
    left, found = Counter(rates), dict[str, dict[str, int]]()
    for service, several in sorted(replicas.items()):
        shares = found.setdefault(service, {})
        for each in several:
            told = micros(each.cost.hourly) if each.cost and each.cost.hourly is not None else 0
            share = min(told, left[each.pool])
            left[each.pool] -= share
            shares[each.pool] = shares.get(each.pool, 0) + share
    return found


def _bills(world: World, clusters: tuple[LatticeCluster, ...]) -> dict[str, int]:
    """At what the ledgers pay, else at what the classes cost there; what is owned costs nothing."""
    former = Former.of(world.objects.values(), world.supply.classes)
    return {
        each.metadata.name: 0 if each.spec.pool == each.spec.infrastructure else _bill(former, each)
        for each in clusters
    }


def _bill(former: Former, cluster: LatticeCluster) -> int:
    name, spec = cluster.metadata.name, cluster.spec
    return sum(
        former.rate((name, kind), spec.provider, spec.region)
        for kind, count in spec.nodes.items()
        for _ in range(count)
    )
