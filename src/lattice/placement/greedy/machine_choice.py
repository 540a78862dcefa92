"""Choose the machine for a replica inside an offer: an existing machine, one more machine of a cluster, or a
new cluster."""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

import numpy as np

from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import UNCLAIMED_GROUP, Cluster
from lattice.placement.model.offer import MachineType, domain_of
from lattice.placement.model.replica_index import Assignment
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.spread import replicas_by_domain

# Beyond this number of missing replicas the large type of a mix is bought whatever machines are there.
MAX_MIXED_REPLICAS = 64
# Sort key and row of a machine.
MachineEntry = tuple[int, int, int, int, str, int]


def assign_in_offer(ask: ReplicaAsk, fleet: Fleet, row: int) -> Assignment:
    """Assign one replica inside the offer; raises LookupError if the offer has no free capacity and can add
    no machine.

    This is the reference: every call searches all machines of the offer. `OfferFiller` is the fast path for
    many replicas of one service; `test_batch_placement_equals_single_in_random_worlds` proves both equal.
    """
    machine = _choose_machine(ask, fleet, row)
    if machine is None:
        raise LookupError(f"{fleet.offers[row].name} has no free capacity for {ask.name}")
    return _assign(ask, fleet, machine)


def assign_on_type(ask: ReplicaAsk, fleet: Fleet, row: int, type_name: str) -> Assignment | None:
    """Assign one replica as `assign_in_offer` does, but only on machines of the named type; None if those
    machines have no capacity."""
    machine = _choose_machine(ask, fleet, row, type_name)
    return None if machine is None else _assign(ask, fleet, machine)


def _assign(ask: ReplicaAsk, fleet: Fleet, machine: int) -> Assignment:
    """Assign one replica to the machine; a cluster claims an unclaimed machine first."""
    if fleet.machines.cluster[machine].is_unclaimed:
        claim_machine(ask, fleet, machine)
    return fleet.assign_replica(ask.demand, machine)


def claim_machine(ask: ReplicaAsk, fleet: Fleet, machine: int) -> Cluster:
    """Move an unclaimed joined machine into the best cluster that may claim it for the demand, else into a new
    cluster; return the cluster."""
    row, neighbours = fleet.machines.cluster[machine].offer_row, neighbours_by_cluster(ask.demand, fleet)
    claiming = fleet.groups.claiming_clusters(ask.demand, row)
    cluster = min(claiming, key=lambda cluster: cluster_rank(cluster, neighbours), default=None)
    if cluster is None:
        cluster = _create_cluster(ask, fleet, row)
    fleet.inventory.move_machine(machine, cluster)
    return cluster


def _choose_machine(ask: ReplicaAsk, fleet: Fleet, row: int, type_name: str = "") -> int | None:
    """Fill clusters below their packing threshold, claim a joined machine, grow a cluster, create a cluster,
    fill clusters beyond the threshold; the first of these that works yields the machine."""
    machine = _machine_with_capacity(ask, fleet, row, below_threshold=True, type_name=type_name)
    if machine is not None:
        return machine
    machine_type = next_machine_type(ask, fleet, row, type_name)
    if machine_type is not None:
        growable = [
            fleet.clusters[name]
            for name in fleet.inventory.growable_clusters(
                row, fleet.groups.growable(ask.demand, ask.overflow_source, row)
            )
            if fleet.groups.may_grow(ask.demand, fleet.clusters[name])
        ]
        neighbours = neighbours_by_cluster(ask.demand, fleet)
        first = min(growable, key=lambda cluster: cluster_rank(cluster, neighbours), default=None)
        return create_machines(ask, fleet, row, machine_type, first)[1][0]
    return _machine_with_capacity(ask, fleet, row, below_threshold=False, type_name=type_name)


def next_machine_type(ask: ReplicaAsk, fleet: Fleet, row: int, type_name: str = "") -> MachineType | None:
    """Return the machine type that a new machine in the offer would have, the named type if a name is passed;
    None if the offer can add no such machine."""
    quotes = fleet.quotes
    if type_name:
        return quotes.catalog.types[row][type_name] if quotes.may_provision(ask, row, type_name) else None
    missing, present = 0, {}
    if quotes.machine_fit(ask.demand).has_choice:
        missing = expected_replicas(ask, fleet, row)
        present = _present_machines(ask.name, fleet, row) if missing <= MAX_MIXED_REPLICAS else {}
    chosen = quotes.next_type(ask, row, missing, present)
    return None if chosen is None else quotes.catalog.types[row][chosen]


def _present_machines(service: str, fleet: Fleet, row: int) -> dict[str, tuple[int, int]]:
    """By machine type: the machines of the offer with replicas of this service only, and these replicas. A
    machine that the service shares was bought for another service, so it is no part of a mix."""
    present: dict[str, tuple[int, int]] = {}
    if fleet.replicas.by_offer(service)[row]:
        for machine in fleet.inventory.machines_by_offer[row]:
            counts = fleet.machines.replica_counts[machine]
            if len(counts) == 1 and (count := counts.get(service, 0)):
                name = fleet.machines.machine_type[machine].name
                machines, replicas = present.get(name, (0, 0))
                present[name] = (machines + 1, replicas + count)
    return present


def expected_replicas(ask: ReplicaAsk, fleet: Fleet, row: int) -> int:
    """The number of missing replicas that probably go to the offer, this one included: without those that
    rules about regions or spread send elsewhere."""
    demand, placed = ask.demand, fleet.replicas.by_offer(ask.name)
    expected = demand.replicas - fleet.replicas.count(ask.name)
    if demand.regions or demand.min_regions:
        regions = {fleet.offers[placed_row].region for placed_row in placed}
        if regions and (ask.region or ask.excluded_regions):
            # A rule sends this replica to a region of its own.
            return 1
        elsewhere = max(demand.min_regions, len(demand.regions)) - max(1, len(regions))
        expected -= max(0, elsewhere)
    if demand.spread:
        eligible = eligible_offers(ReplicaAsk(demand), fleet)
        for rule in demand.spread:
            counts = replicas_by_domain(fleet, ask.name, rule.value, eligible)
            domain = domain_of(fleet.offers[row], rule.value)
            placed_here = counts.pop(domain, 0)
            share = _largest_share(list(counts.values()), demand.replicas, rule.amount)
            expected = min(expected, share - placed_here)
    return max(1, expected)


def _largest_share(other_counts: Sequence[int], replicas: int, max_skew: int) -> int:
    """The most replicas that one domain may have if all domains together have `replicas`, where the other
    domains have at least `other_counts` replicas and at most `max_skew` fewer than this domain."""
    least, most = 0, replicas
    while least < most:
        share = (least + most + 1) // 2
        if share + sum(max(count, share - max_skew) for count in other_counts) <= replicas:
            least = share
        else:
            most = share - 1
    return least


def _machine_with_capacity(
    ask: ReplicaAsk, fleet: Fleet, row: int, *, below_threshold: bool, type_name: str = ""
) -> int | None:
    """Return the best machine with free capacity in the best cluster, or None.

    Clusters are ranked by `cluster_rank`; inside a cluster the machine with the fewest replicas of the
    service wins, then the machine with the least free capacity.
    """
    table, accepting = fleet.machines, fleet.groups.accepting_machines(ask.demand, ask.overflow_source)
    if accepting is None:
        return None
    mask = table.column("alive") & (table.column("offer") == row) & accepting
    for resource, amount in ask.demand.hosting_needs.items():
        mask &= table.free(table.add_resource(resource)) >= amount
    machines_by_cluster: dict[str, list[int]] = {}
    for machine in np.flatnonzero(mask).tolist():
        machines_by_cluster.setdefault(table.cluster[machine].name, []).append(machine)
    neighbours = neighbours_by_cluster(ask.demand, fleet)
    growable_groups = fleet.groups.growable(ask.demand, ask.overflow_source, row)
    clusters = [
        cluster
        for cluster in (table.cluster[machines[0]] for machines in machines_by_cluster.values())
        if not below_threshold
        or cluster.is_unclaimed
        or (cluster.is_below_threshold and cluster.group in growable_groups)
    ]
    for cluster in sorted(clusters, key=lambda cluster: cluster_rank(cluster, neighbours)):
        machines = [
            machine
            for machine in machines_by_cluster[cluster.name]
            if type_name in ("", table.machine_type[machine].name)
        ]
        best = pick_machine(ask.demand, fleet, machines)
        if best is not None:
            return best
    return None


def neighbours_by_cluster(demand: Demand, fleet: Fleet) -> Counter[str]:
    """Count by cluster how many of the callers and callees of the service have replicas in the cluster."""
    counts: Counter[str] = Counter()
    for neighbour in demand.neighbours:
        if neighbour != demand.name:
            for cluster in fleet.replicas.clusters(neighbour):
                counts[cluster] += 1
    return counts


def cluster_rank(cluster: Cluster, neighbours: Counter[str]) -> tuple[bool, bool, int, int, str]:
    """Return the sort key of a cluster: unclaimed machines last, reserved clusters first, then the most
    neighbours, then the highest utilisation.

    A replica in a reserved cluster leaves the capacity of shared clusters to other services.
    """
    return (
        cluster.is_unclaimed,
        not cluster.is_reserved,
        -neighbours[cluster.name],
        -cluster.utilisation,
        cluster.name,
    )


def pick_machine(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> int | None:
    """Return the machine with the lowest rank among machines that fit the demand, or None."""
    return min(
        (machine for machine in machines if fleet.groups.fits_on_machine(demand, machine)),
        key=lambda machine: fleet.machines.rank(demand.name, machine),
        default=None,
    )


def create_machines(
    ask: ReplicaAsk, fleet: Fleet, row: int, machine_type: MachineType, growing_cluster: Cluster | None
) -> tuple[Cluster, list[int]]:
    """Add one machine to the growing cluster, or create a cluster with its initial machines if no cluster is
    passed."""
    if growing_cluster is not None:
        return growing_cluster, [fleet.inventory.add_machine(growing_cluster, machine_type)]
    cluster = _create_cluster(ask, fleet, row)
    count = fleet.offers[row].initial_nodes(ask.demand.rules.min_nodes)
    return cluster, fleet.inventory.add_machines(
        cluster, machine_type, fleet.inventory.new_machine_names(cluster, machine_type.name, count)
    )


def _create_cluster(ask: ReplicaAsk, fleet: Fleet, row: int) -> Cluster:
    """Create an empty cluster in the offer, under the rules of the demand, with the next free number of the
    offer."""
    rules, offer = ask.demand.rules, fleet.offers[row]
    number = fleet.inventory.next_cluster_number.get(row, 1)
    # Clusters of two offers can have the same name: pool `a-b`, and prefix `b` in pool `a`.
    while cluster_name(offer.name, rules.prefix, number) in fleet.clusters:
        number += 1
    max_nodes = min(rules.max_nodes, offer.limits.nodes_per_cluster)
    cluster = Cluster(
        name=cluster_name(offer.name, rules.prefix, number),
        offer_row=row,
        group=fleet.groups.group_of(ask.demand, ask.overflow_source, row),
        # The limit of the offer may be below the minimum of the policy.
        min_nodes=min(rules.min_nodes, max_nodes),
        max_nodes=max_nodes,
        packing_threshold=rules.packing_millionths,
        overflow_source=ask.overflow_source,
        is_reserved=offer.name in ask.demand.usable_reserves,
    )
    fleet.inventory.add_cluster(cluster, number)
    return cluster


def cluster_name(offer: str, prefix: str, number: int) -> str:
    """Format a cluster name: `us-east-001`, or with the prefix of a policy `us-east-prod-001`.

    Numbers are unique inside one offer and never reused.
    """
    pool = offer.replace("/", "-")
    return f"{pool}-{prefix}-{number:03}" if prefix else f"{pool}-{number:03}"


def remove_empty_machines(fleet: Fleet, clusters: Sequence[str]) -> None:
    """Remove empty machines above the minimum size of their cluster, the most expensive first; remove
    clusters without replicas."""
    for name in sorted(clusters):
        cluster = fleet.clusters.get(name)
        if cluster is None:
            continue
        replica_counts = fleet.machines.replica_counts
        empty = [machine for machine in cluster.machines if not replica_counts[machine]]
        if len(empty) == len(cluster.machines):
            for machine in reversed(cluster.machines.copy()):
                _remove_machine(fleet, machine)
            fleet.inventory.drop_cluster(name)
            continue
        # A cluster keeps its minimum size as long as it has replicas.
        spare = len(cluster.machines) - cluster.min_nodes
        by_rate = sorted(
            empty,
            key=lambda machine: (
                -fleet.machines.machine_type[machine].rate,
                fleet.machines.machine_type[machine].tie_key,
                fleet.machines.names[machine],
            ),
        )
        for machine in by_rate[: max(0, spare)]:
            if fleet.machines.names[machine] not in fleet.inventory.pinned:
                _remove_machine(fleet, machine)


def _remove_machine(fleet: Fleet, machine: int) -> None:
    """Remove an empty machine from its cluster; a joined machine is unclaimed then."""
    if fleet.machines.machine_type[machine].is_joined:
        row = fleet.machines.cluster[machine].offer_row
        fleet.inventory.move_machine(machine, fleet.inventory.unclaimed_cluster(row))
    else:
        fleet.inventory.drop_machine(machine)


def class_counts(fleet: Fleet, cluster: Cluster) -> Counter[str]:
    """Count the machines by node class that Lattice makes for the cluster."""
    types = (fleet.machines.machine_type[machine] for machine in cluster.machines)
    return Counter(machine_type.name for machine_type in types if not machine_type.is_joined)


def machine_counts(fleet: Fleet, cluster: Cluster) -> Counter[str]:
    """Count all machines of the cluster by node class, joined machines too."""
    return Counter(fleet.machines.machine_type[machine].name for machine in cluster.machines)


class OfferFiller:
    """Fills the machines of one offer while only replicas of one service are added to the offer.

    Assignments are the same as those of `assign_in_offer`, the reference. A machine without capacity for a
    replica never regains capacity, so the filler checks a full machine only once.
    """

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, row: int) -> None:
        self.ask, self.fleet, self.row = ask, fleet, row
        self._neighbours = neighbours_by_cluster(ask.demand, fleet)
        growable_groups, accepting_groups = (
            fleet.groups.growable(ask.demand, ask.overflow_source, row),
            fleet.groups.accepting(ask.demand, ask.overflow_source),
        )
        clusters = [
            cluster
            for cluster in fleet.inventory.clusters_by_offer[row].values()
            if cluster.group in growable_groups
        ]
        # Machines by cluster, best first. A cluster is missing until its machines were checked.
        self._heaps: dict[str, list[MachineEntry]] = {}
        self._growable_clusters = [
            cluster
            for cluster in clusters
            if len(cluster.machines) < cluster.max_nodes and fleet.groups.may_grow(ask.demand, cluster)
        ]
        self._clusters_below_threshold = sorted(
            (cluster for cluster in clusters if cluster.is_below_threshold), key=self._rank
        )
        self._clusters_with_capacity = [
            cluster
            for cluster in fleet.inventory.clusters_by_offer[row].values()
            if cluster.group in accepting_groups
        ]
        # The joined machines of the offer that no cluster has claimed.
        self._unclaimed = fleet.inventory.unclaimed.get(row) if UNCLAIMED_GROUP in accepting_groups else None
        if self._unclaimed is not None:
            self._clusters_with_capacity.insert(0, self._unclaimed)
        # Joined machines that clusters have claimed for the service.
        self.claimed_machines = 0
        self._is_sorted = False
        # The cluster and its best machine; reset when a replica is assigned.
        self._best_entry: tuple[str, MachineEntry] | None = None

    def _rank(self, cluster: Cluster) -> tuple[bool, bool, int, int, str]:
        return cluster_rank(cluster, self._neighbours)

    @property
    def may_grow(self) -> bool:
        return bool(self._growable_clusters)

    @property
    def has_free_capacity(self) -> bool:
        """Report whether any machine of the offer fits one more replica."""
        while self._clusters_with_capacity:
            if self._best(self._clusters_with_capacity[-1]):
                return True
            self._clusters_with_capacity.pop()
        return False

    def assign(self, *, below_threshold: bool) -> Assignment | None:
        """Assign one replica in the best cluster with free capacity, or return None.

        With `below_threshold`, only clusters below their packing threshold and then joined machines that no
        cluster has claimed are candidates.
        """
        if below_threshold:
            cluster = self._first_below_threshold() or self._unclaimed
        else:
            self._clusters_with_capacity = [
                candidate for candidate in self._clusters_with_capacity if self._best(candidate)
            ]
            cluster = min(self._clusters_with_capacity, key=self._rank, default=None)
        best = None if cluster is None else self._best(cluster)
        if cluster is None or best is None:
            return None
        if cluster.is_unclaimed:
            return self._claim(best[-1])
        assignment, self._best_entry = self.fleet.assign_replica(self.ask.demand, best[-1]), None
        heapreplace(self._heaps[cluster.name], self._entry(best[-1]))
        return assignment

    def provision(self, machine_type: MachineType) -> Assignment:
        """Assign one replica on a new machine of the best cluster that may grow, else in a new cluster.

        The replica goes to the new machine even if an older machine ranks higher.
        """
        growing_cluster = min(self._growable_clusters, key=self._rank, default=None)
        cluster, added = create_machines(self.ask, self.fleet, self.row, machine_type, growing_cluster)
        return self._assign_to_added(cluster, added)

    def _claim(self, machine: int) -> Assignment:
        """Assign one replica on an unclaimed machine, which the best cluster that may grow claims, else a new
        cluster."""
        cluster = claim_machine(self.ask, self.fleet, machine)
        heappop(self._heaps[self.fleet.inventory.unclaimed[self.row].name])
        self.claimed_machines += 1
        return self._assign_to_added(cluster, [machine])

    def _assign_to_added(self, cluster: Cluster, added: Sequence[int]) -> Assignment:
        """Assign one replica to the first of the machines that were added to the cluster."""
        growable = self._growable_clusters if cluster in self._growable_clusters else [cluster]
        self._growable_clusters = [
            candidate for candidate in growable if len(candidate.machines) < candidate.max_nodes
        ]
        assignment = self.fleet.assign_replica(self.ask.demand, added[0])
        self._best_entry = None
        entries = self._heaps.get(cluster.name)
        if entries is not None:
            self._heaps[cluster.name] = [*entries, *(self._entry(new_machine) for new_machine in added)]
            heapify(self._heaps[cluster.name])
        self._clusters_with_capacity = [
            *(candidate for candidate in self._clusters_with_capacity if candidate is not cluster),
            cluster,
        ]
        self._clusters_below_threshold = [
            *(candidate for candidate in self._clusters_below_threshold if candidate is not cluster),
            cluster,
        ]
        self._is_sorted = False
        return assignment

    def _first_below_threshold(self) -> Cluster | None:
        if not self._is_sorted:
            # Only the first cluster gets fuller, so the order holds until a cluster grows.
            self._clusters_below_threshold = sorted(
                (cluster for cluster in self._clusters_below_threshold if cluster.is_below_threshold),
                key=self._rank,
            )
            self._is_sorted = True
        while self._clusters_below_threshold:
            cluster = self._clusters_below_threshold[0]
            if cluster.is_below_threshold and self._best(cluster):
                return cluster
            self._clusters_below_threshold.pop(0)
        return None

    def _best(self, cluster: Cluster) -> MachineEntry | None:
        if self._best_entry and self._best_entry[0] == cluster.name:
            return self._best_entry[1]
        entries = self._heaps.get(cluster.name)
        if entries is None:
            entries = self._heaps[cluster.name] = [
                self._entry(machine) for machine in cluster.machines if self._fits_on(machine)
            ]
            heapify(entries)
        # Entries become stale when replicas are assigned: drop full machines from the top.
        while entries and not self._fits_on(entries[0][-1]):
            heappop(entries)
        if not entries:
            return None
        self._best_entry = (cluster.name, entries[0])
        return entries[0]

    def _fits_on(self, machine: int) -> bool:
        return self.fleet.groups.fits_on_machine(self.ask.demand, machine)

    def _entry(self, machine: int) -> MachineEntry:
        return (*self.fleet.machines.rank(self.ask.demand.name, machine), machine)
