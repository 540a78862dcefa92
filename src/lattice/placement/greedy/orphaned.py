"""Find orphaned replicas: replicas that keep running after their pool was deleted or their offer was
withdrawn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.service import LatticeService, ServicePlacement
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.inputs.bill import BillLine
from lattice.placement.inputs.cost_allocation import BilledMachine, CostPart
from lattice.placement.model.current_state import OVERFLOW_LABEL, LedgerPrices
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.supply import cloud_account, overflow_account
from lattice.placement.model.world import World

# Placements by service.
OrphanedReplicas = Mapping[str, tuple[ServicePlacement, ...]]
UnschedulableCounts = Mapping[str, Counter[NodeGroupKey]]


@dataclass(frozen=True, slots=True)
class OrphanedState:
    """Orphaned replicas with their clusters and costs.

    All rates are in micro-dollars per hour. `bill_lines` are the machines of the clusters, `offer_rates` their
    rates by offer. `service_shares` holds, by service and offer, the part of the offer's rate that the service
    pays.
    """

    replicas: OrphanedReplicas = field(default_factory=dict)
    clusters: tuple[LatticeCluster, ...] = ()
    bill_lines: tuple[BillLine, ...] = ()
    offer_rates: Mapping[str, int] = field(default_factory=dict)
    service_shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(replicas: OrphanedReplicas, clusters: tuple[LatticeCluster, ...], world: World) -> "OrphanedState":
        """Compute the rates of the clusters and the shares of the services."""
        # A machine costs what a ledger pays for it, or the price of its node class if no ledger pays for it.
        # Owned infrastructure costs nothing.
        ledger_prices = LedgerPrices.of(world.objects.values(), world.supply.node_classes)
        counts: Counter[tuple[str, str, str, int, bool]] = Counter()
        for cluster in clusters:
            name, spec = cluster.metadata.name, cluster.spec
            for node_class, count in spec.nodes.items():
                for _ in range(count):
                    # A cluster in a data center costs nothing: its `pool` and its `infrastructure` both name
                    # the data center.
                    price = (0, True)
                    if spec.pool != spec.infrastructure:
                        price = ledger_prices.next_price((name, node_class), spec.provider, spec.region)
                    counts[spec.pool, name, node_class, *price] += 1
        lines = tuple(
            BillLine(offer, cluster, node_class, count, micros, is_priced)
            for (offer, cluster, node_class, micros, is_priced), count in sorted(counts.items())
        )
        offer_rates: Counter[str] = Counter(dict.fromkeys((cluster.spec.pool for cluster in clusters), 0))
        for line in lines:
            offer_rates[line.offer] += line.rate
        return OrphanedState(replicas, clusters, lines, offer_rates, _service_shares(replicas, offer_rates))

    def replica_counts(self, service: str) -> Counter[tuple[str, str, str]]:
        """Count the orphaned replicas of the service by pool, cluster and node class."""
        return Counter(
            {
                (placement.pool, placement.cluster, placement.node): placement.replicas or 0
                for placement in self.replicas.get(service, ())
            }
        )

    def service_cost(self, service: str) -> int:
        return sum(self.service_shares.get(service, {}).values())

    @property
    def cost_parts(self) -> list[CostPart]:
        """The parts of the bill lines: the shares of services, and the remainder that no service pays."""
        remaining, parts = Counter(self.offer_rates), list[CostPart]()
        counts, unpriced = Counter[str](), Counter[str]()
        for line in self.bill_lines:
            counts[line.offer] += line.count
            unpriced[line.offer] += 0 if line.is_priced else line.count
        for service, shares in sorted(self.service_shares.items()):
            for offer, share in sorted(shares.items()):
                machine = BilledMachine(f"({offer})", offer, share, {}, is_priced=not unpriced[offer])
                parts.append(CostPart(machine, share, service, service))
                remaining[offer] -= share
        for offer, rate in sorted(remaining.items()):
            in_use = any(offer in shares for shares in self.service_shares.values())
            if rate or not in_use:
                machine = BilledMachine(
                    f"({offer})", offer, rate, {}, count=counts[offer], is_priced=not unpriced[offer]
                )
                parts.append(CostPart(machine, rate))
        return parts

    def commit_to(self, fleet: Fleet) -> None:
        """Count the machines of the clusters against the budgets that go on paying for them, such as that of a
        cloud whose region was withdrawn."""
        for cluster in self.clusters:
            lines = [line for line in self.bill_lines if line.cluster == cluster.metadata.name]
            rate, unpriced = sum(line.rate for line in lines), 0
            for line in lines:
                unpriced += 0 if line.is_priced else line.count
            for ledger in _paying_ledgers(cluster):
                fleet.ledgers.commit_withdrawn(ledger, rate, unpriced)

    def regions(self, service: str) -> set[str]:
        cluster_names = {placement.cluster for placement in self.replicas.get(service, ())}
        return {cluster.spec.region for cluster in self.clusters if cluster.metadata.name in cluster_names}

    def reasons(self, service: str) -> list[str]:
        return [f"{placement.pool} is no longer offered" for placement in self.replicas.get(service, ())]

    def subtract_orphans(self, demand: Demand) -> Demand:
        return subtract_orphans(demand, self.replicas)

    def with_orphans(self, service: LatticeService, name: str) -> LatticeService:
        """Return the service with its orphaned replicas added to the placements in its status."""
        if name not in self.replicas:
            return service
        status = msgspec.structs.replace(
            service.status, placements=(*self.replicas[name], *service.status.placements)
        )
        return msgspec.structs.replace(service, status=status)


def _paying_ledgers(cluster: LatticeCluster) -> Iterator[str]:
    """The ledgers of the cloud, of its region and of an overflow that pay for the machines of a cluster. The ledger
    of a deleted pool pays for the machines of that pool only."""
    spec = cluster.spec
    if spec.infrastructure and spec.infrastructure != spec.pool:
        yield cloud_account(spec.infrastructure).ledger_name
        yield cloud_account(spec.infrastructure, spec.region).ledger_name
    if overflow := spec.labels.get(OVERFLOW_LABEL, ""):
        yield overflow_account(overflow).ledger_name


def find_orphans(world: World, fleet: Fleet) -> OrphanedState:
    """Find all orphaned replicas and clusters, including clusters without replicas."""
    clusters = tuple(
        resource
        for resource in world.objects.values()
        if isinstance(resource, LatticeCluster) and resource.spec.pool not in fleet.table.row_of
    )
    if not clusters:
        return OrphanedState()
    return OrphanedState.of(orphaned_replicas(world, fleet, {}), clusters, world)


def find_final_orphans(world: World, fleet: Fleet) -> OrphanedState:
    """Find the orphaned replicas and clusters that remain after clusters without replicas are removed."""
    state = find_orphans(world, fleet)
    names_in_use = clusters_in_use(state.replicas)
    clusters = tuple(cluster for cluster in state.clusters if cluster.metadata.name in names_in_use)
    return OrphanedState.of(state.replicas, clusters, world)


def clusters_in_use(replicas: OrphanedReplicas) -> set[str]:
    """Return the names of clusters with orphaned replicas."""
    clusters: set[str] = set()
    for placements in replicas.values():
        clusters.update(placement.cluster for placement in placements)
    return clusters


def orphaned_replicas(
    world: World, fleet: Fleet, unschedulable: UnschedulableCounts
) -> dict[str, tuple[ServicePlacement, ...]]:
    """Return the orphaned replicas by service, up to the desired replica count and without unschedulable
    replicas."""
    orphans = {}
    for name, service in world.services.items():
        remaining, placements = world.demands[name].replicas - fleet.replicas.count(name), []
        for placement in service.status.placements:
            # The cluster object exists, but the fleet lacks the cluster: its pool was deleted or its offer
            # was withdrawn.
            is_orphaned = (
                placement.cluster not in fleet.clusters
                and (LatticeCluster.resource.kind, "", placement.cluster) in world.objects
            )
            running = (
                (placement.replicas or 0)
                - unschedulable.get(name, Counter())[placement.cluster, placement.node]
                if is_orphaned
                else 0
            )
            if (count := min(running, remaining)) > 0:
                placements.append(msgspec.structs.replace(placement, replicas=count))
                remaining -= count
        if placements:
            orphans[name] = tuple(placements)
    return orphans


def subtract_orphans(demand: Demand, orphans: OrphanedReplicas) -> Demand:
    """Return the demand with its replica count reduced by the orphaned replicas."""
    if demand.name not in orphans:
        return demand
    return replace(
        demand, replicas=demand.replicas - sum(placement.replicas or 0 for placement in orphans[demand.name])
    )


def _service_shares(replicas: OrphanedReplicas, rates: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Split the offer rates by service, according to the last status; the sum never exceeds the rate of the
    machines."""
    remaining, shares_by_service = Counter(rates), dict[str, dict[str, int]]()
    for service, placements in sorted(replicas.items()):
        shares = shares_by_service.setdefault(service, {})
        for placement in placements:
            last_rate = (
                dollars_to_micros(placement.cost.hourly)
                if placement.cost and placement.cost.hourly is not None
                else 0
            )
            # The shares never exceed the rate of the machines.
            share = min(last_rate, remaining[placement.pool])
            remaining[placement.pool] -= share
            shares[placement.pool] = shares.get(placement.pool, 0) + share
    return shares_by_service
