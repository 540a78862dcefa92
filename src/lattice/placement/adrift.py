"""What stays as it is where nothing is offered any more: a pool that is gone takes nothing with it that runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.quantity import micros
from lattice.kinds.service import LatticeService, PlacedIn
from lattice.placement.demand import Demand
from lattice.placement.fleet import Fleet
from lattice.placement.former import Former
from lattice.placement.replicas import Cell
from lattice.placement.world import World

Stranded = Mapping[str, tuple[PlacedIn, ...]]  # by service
Stuck = Mapping[str, Counter[Cell]]


@dataclass(frozen=True, slots=True)
class Adrift:
    """Replicas, their clusters, and micro-dollars per hour for the machines by offer."""

    replicas: Stranded = field(default_factory=dict)
    clusters: tuple[LatticeCluster, ...] = ()
    rates: Mapping[str, int] = field(default_factory=dict)

    def where(self, service: str) -> Counter[tuple[str, str, str]]:
        return Counter({(each.pool, each.cluster, each.node): each.replicas or 0 for each in self.replicas.get(service, ())})

    def cost(self, service: str) -> int:
        """Micro-dollars per hour: what was said last."""
        told = (each.cost.hourly for each in self.replicas.get(service, ()) if each.cost)
        return sum(micros(hourly) for hourly in told if hourly is not None)

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
        status = msgspec.structs.replace(service.status, placements=(*self.replicas[name], *service.status.placements))
        return msgspec.structs.replace(service, status=status)


def adrift(world: World, fleet: Fleet) -> Adrift:
    """As it is now: also clusters that nobody is in any more."""
    clusters = tuple(
        each for each in world.objects.values() if isinstance(each, LatticeCluster) and each.spec.pool not in fleet.table.row_of
    )
    if not clusters:
        return Adrift()
    return Adrift(stranded(world, fleet, {}), clusters, _rates(world, clusters))


def adrift_in_the_end(world: World, fleet: Fleet) -> Adrift:
    """Clusters that nobody is in any more go."""
    now = adrift(world, fleet)
    held = held_clusters(now.replicas)
    clusters = tuple(each for each in now.clusters if each.metadata.name in held)
    return Adrift(now.replicas, clusters, _rates(world, clusters))


def held_clusters(stranded: Stranded) -> set[str]:
    return {each.cluster for several in stranded.values() for each in several}


def stranded(world: World, fleet: Fleet, stuck: Stuck) -> dict[str, tuple[PlacedIn, ...]]:
    """What is there stays, unless no node takes it or fewer are wanted."""
    found = {}
    for name, service in world.services.items():
        left, kept = world.demands[name].replicas - len(fleet.seats.get(name, ())), []
        for each in service.status.placements:
            is_there = each.cluster not in fleet.clusters and (LatticeCluster.resource.kind, "", each.cluster) in world.objects
            here = (each.replicas or 0) - stuck.get(name, Counter())[each.cluster, each.node] if is_there else 0
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
    return replace(demand, replicas=demand.replicas - sum(each.replicas or 0 for each in stranded[demand.name]))


def _rates(world: World, clusters: tuple[LatticeCluster, ...]) -> Counter[str]:
    """At what the ledgers pay, else at what the classes cost there; what is owned costs nothing."""
    former, found = Former.of(world.objects.values(), world.supply.classes), Counter[str]()
    for cluster in clusters:
        spec = cluster.spec
        if spec.pool != spec.infrastructure:
            for name, count in spec.nodes.items():
                found[spec.pool] += sum(former.rate((cluster.metadata.name, name), spec.provider, spec.region) for _ in range(count))
    return found
