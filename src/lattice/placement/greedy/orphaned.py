"""What stays as it is where nothing is offered any more: a pool that is gone takes nothing with it that runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.service import LatticeService, ServicePlacement
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.model.current_state import LedgerPrices
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World

OrphanedReplicas = Mapping[str, tuple[ServicePlacement, ...]]  # by service
UnschedulableCounts = Mapping[str, Counter[NodeGroupKey]]


@dataclass(frozen=True, slots=True)
class OrphanedState:
    """Replicas, their clusters, and micro-dollars per hour: for machines by cluster, by offer, and of that by service and offer."""

    replicas: OrphanedReplicas = field(default_factory=dict)
    clusters: tuple[LatticeCluster, ...] = ()
    cluster_rates: Mapping[str, int] = field(default_factory=dict)
    offer_rates: Mapping[str, int] = field(default_factory=dict)
    service_shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(replicas: OrphanedReplicas, clusters: tuple[LatticeCluster, ...], world: World) -> "OrphanedState":
        bills, rates = _cluster_rates(world, clusters), Counter[str]()
        for each in clusters:
            rates[each.spec.pool] += bills[each.metadata.name]
        return OrphanedState(replicas, clusters, bills, rates, _service_shares(replicas, rates))

    def replica_counts(self, service: str) -> Counter[tuple[str, str, str]]:
        return Counter(
            {
                (each.pool, each.cluster, each.node): each.replicas or 0
                for each in self.replicas.get(service, ())
            }
        )

    def service_cost(self, service: str) -> int:
        return sum(self.service_shares.get(service, {}).values())

    @property
    def overhead(self) -> dict[str, int]:
        """By offer: machines that nobody is on."""
        paid = Counter[str]()
        for shares in self.service_shares.values():
            paid.update(shares)
        return {offer: rate - paid[offer] for offer, rate in self.offer_rates.items() if rate > paid[offer]}

    def regions(self, service: str) -> set[str]:
        there = {each.cluster for each in self.replicas.get(service, ())}
        return {each.spec.region for each in self.clusters if each.metadata.name in there}

    def reasons(self, service: str) -> list[str]:
        return [f"{each.pool}: is not offered any more" for each in self.replicas.get(service, ())]

    def subtract_orphans(self, demand: Demand) -> Demand:
        return subtract_orphans(demand, self.replicas)

    def with_orphans(self, service: LatticeService, name: str) -> LatticeService:
        """With those in its status, too."""
        if name not in self.replicas:
            return service
        status = msgspec.structs.replace(
            service.status, placements=(*self.replicas[name], *service.status.placements)
        )
        return msgspec.structs.replace(service, status=status)


def find_orphans(world: World, fleet: Fleet) -> OrphanedState:
    """As it is now: also clusters that nobody is in any more."""
    clusters = tuple(
        each
        for each in world.objects.values()
        if isinstance(each, LatticeCluster) and each.spec.pool not in fleet.table.row_of
    )
    if not clusters:
        return OrphanedState()
    return OrphanedState.of(orphaned_replicas(world, fleet, {}), clusters, world)


def find_final_orphans(world: World, fleet: Fleet) -> OrphanedState:
    """Clusters that nobody is in any more go."""
    now = find_orphans(world, fleet)
    held = clusters_in_use(now.replicas)
    clusters = tuple(each for each in now.clusters if each.metadata.name in held)
    return OrphanedState.of(now.replicas, clusters, world)


def clusters_in_use(stranded: OrphanedReplicas) -> set[str]:
    return {each.cluster for several in stranded.values() for each in several}


def orphaned_replicas(
    world: World, fleet: Fleet, stuck: UnschedulableCounts
) -> dict[str, tuple[ServicePlacement, ...]]:
    """What is there stays, unless no node takes it or fewer are wanted."""
    found = {}
    for name, service in world.services.items():
        left, kept = world.demands[name].replicas - len(fleet.assignments.get(name, ())), []
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


def subtract_orphans(demand: Demand, stranded: OrphanedReplicas) -> Demand:
    """Without those that run elsewhere."""
    if demand.name not in stranded:
        return demand
    return replace(
        demand, replicas=demand.replicas - sum(each.replicas or 0 for each in stranded[demand.name])
    )


def _service_shares(replicas: OrphanedReplicas, rates: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What was said last of each service; all together never more than the machines cost."""
    left, found = Counter(rates), dict[str, dict[str, int]]()
    for service, several in sorted(replicas.items()):
        shares = found.setdefault(service, {})
        for each in several:
            told = dollars_to_micros(each.cost.hourly) if each.cost and each.cost.hourly is not None else 0
            share = min(told, left[each.pool])
            left[each.pool] -= share
            shares[each.pool] = shares.get(each.pool, 0) + share
    return found


def _cluster_rates(world: World, clusters: tuple[LatticeCluster, ...]) -> dict[str, int]:
    """At what the ledgers pay, else at what the classes cost there; what is owned costs nothing."""
    former = LedgerPrices.of(world.objects.values(), world.supply.node_classes)
    return {
        each.metadata.name: 0 if each.spec.pool == each.spec.infrastructure else _cluster_rate(former, each)
        for each in clusters
    }


def _cluster_rate(former: LedgerPrices, cluster: LatticeCluster) -> int:
    name, spec = cluster.metadata.name, cluster.spec
    return sum(
        former.next_rate((name, kind), spec.provider, spec.region)
        for kind, count in spec.nodes.items()
        for _ in range(count)
    )
