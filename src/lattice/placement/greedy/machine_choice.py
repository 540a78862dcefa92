"""Where in an offer does a replica go: onto a machine that is there, onto one more, or into a new cluster?"""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

import numpy as np

from lattice.placement.model.assignments import assign, machine_ranks
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Assignment, Cluster, Fleet
from lattice.placement.model.offer import MachineType
from lattice.placement.model.quotes import fits_on_machine, growable_clusters

Entry = tuple[
    int, int, int, str, int
]  # replicas of the service there, free milli-cores and bytes, name and row of a machine


def assign_in_offer(ask: ReplicaAsk, fleet: Fleet, row: int) -> Assignment:
    """Fill clusters below their packing threshold, else grow one, else make one; fill beyond the threshold before giving up."""
    machine = _machine_with_capacity(ask, fleet, row, below_threshold=True)
    if machine is None and (kind := next_machine_type(ask, fleet, row)):
        machine = _create_machine(ask, fleet, row, kind)
    if machine is None:
        machine = _machine_with_capacity(ask, fleet, row, below_threshold=False)
    if machine is None:
        raise LookupError(f"{fleet.offers[row].name} has no room for {ask.name}")
    return assign(ask.demand, fleet, machine)


def next_machine_type(ask: ReplicaAsk, fleet: Fleet, row: int) -> MachineType | None:
    """The class that a new machine would be of; None: there may be none."""
    quotes = fleet.table.quotes
    quote = quotes.quote_for(ask)
    if not quote.affordable[row] or not quote.within_limits[row]:
        return None
    return quotes.catalog.types[row][quotes.catalog.type_names[int(quote.type_id[row])]]


def assign_on_type(ask: ReplicaAsk, fleet: Fleet, row: int, kind: str) -> Assignment | None:
    """As `settle` does, but only on machines of one class; None: there is no room on those."""
    machine = _machine_with_capacity(ask, fleet, row, below_threshold=True, kind=kind)
    quotes = fleet.table.quotes
    if machine is None and quotes.may_provision(ask, row, kind):
        machine = _create_machine(ask, fleet, row, quotes.catalog.types[row][kind])
    if machine is None:
        machine = _machine_with_capacity(ask, fleet, row, below_threshold=False, kind=kind)
    return None if machine is None else assign(ask.demand, fleet, machine)


def _machine_with_capacity(
    ask: ReplicaAsk, fleet: Fleet, row: int, *, below_threshold: bool, kind: str = ""
) -> int | None:
    """In the cluster with most neighbours that has one, of those the fullest: the machine with the fewest replicas of the service,
    of those the one with least room."""
    roomy, near = _machines_with_capacity(ask, fleet, row), neighbours_by_cluster(ask.demand, fleet)
    own = fleet.growable_groups(ask.demand, ask.overflow_source, row)
    clusters = [
        each
        for each in map(fleet.clusters.__getitem__, roomy)
        if not below_threshold or (each.is_below_threshold and each.group in own)
    ]
    for cluster in sorted(clusters, key=lambda each: cluster_rank(each, near)):
        machines = [
            each for each in roomy[cluster.name] if kind in ("", fleet.machines.machine_type[each].name)
        ]
        found = pick_machine(ask.demand, fleet, machines)
        if found is not None:
            return found
    return None


def neighbours_by_cluster(demand: Demand, fleet: Fleet) -> Counter[str]:
    """By cluster, how many of the services that it talks to, or that talk to it, are there."""
    others = (each for each in demand.neighbours if each != demand.name)
    return Counter(name for each in others for name in fleet.clusters_of(each))


def cluster_rank(cluster: Cluster, near: Counter[str]) -> tuple[bool, int, int, str]:
    """What is kept for it leaves room to others."""
    return (not cluster.is_reserved, -near[cluster.name], -cluster.utilisation, cluster.name)


def _machines_with_capacity(ask: ReplicaAsk, fleet: Fleet, row: int) -> dict[str, list[int]]:
    """Machines of the right groups with so much free, by cluster."""
    machines, taking = fleet.machines, fleet.accepting_machines(ask.demand, ask.overflow_source)
    if taking is None:
        return {}
    mask = machines.column("alive") & (machines.column("offer") == row) & taking
    for resource, amount in ask.demand.effective_needs.items():
        mask &= machines.free(machines.add_resource(resource)) >= amount
    found: dict[str, list[int]] = {}
    for machine in np.flatnonzero(mask).tolist():
        found.setdefault(machines.cluster[machine].name, []).append(machine)
    return found


def pick_machine(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> int | None:
    return min(
        (each for each in machines if fits_on_machine(fleet, demand, each)),
        key=lambda each: machine_rank(demand, fleet, each),
        default=None,
    )


def machine_rank(demand: Demand, fleet: Fleet, machine: int) -> tuple[int, int, int, str]:
    return machine_ranks(demand, fleet, [machine])[0]


def _create_machine(ask: ReplicaAsk, fleet: Fleet, row: int, kind: MachineType) -> int:
    grown = [
        fleet.clusters[each]
        for each in growable_clusters(fleet, row, fleet.growable_groups(ask.demand, ask.overflow_source, row))
    ]
    near = neighbours_by_cluster(ask.demand, fleet)
    first = min(grown, key=lambda each: cluster_rank(each, near), default=None)
    return create_machines(ask, fleet, row, kind, first)[1][0]


def create_machines(
    ask: ReplicaAsk, fleet: Fleet, row: int, kind: MachineType, grown: Cluster | None
) -> tuple[Cluster, list[int]]:
    """One more for a cluster that may grow, else as many as a new cluster begins with."""
    if grown is not None:
        return grown, [fleet.add_machine(grown, kind)]
    cluster = create_cluster(ask, fleet, row)
    count = fleet.offers[row].initial_nodes(ask.demand.rules.min_nodes)
    return cluster, fleet.add_machines(cluster, kind, fleet.new_machine_names(cluster, kind.name, count))


def create_cluster(ask: ReplicaAsk, fleet: Fleet, row: int) -> Cluster:
    rules, offer = ask.demand.rules, fleet.offers[row]
    number = fleet.next_cluster_number.get(row, 1)
    while (
        cluster_name(offer.name, rules.prefix, number) in fleet.clusters
    ):  # of another offer: pool a-b, and prefix b in pool a
        number += 1
    most = min(rules.max_nodes, offer.limits.nodes_per_cluster)
    cluster = Cluster(
        name=cluster_name(offer.name, rules.prefix, number),
        offer_row=row,
        group=fleet.group_of(ask.demand, ask.overflow_source, row),
        min_nodes=min(rules.min_nodes, most),
        max_nodes=most,
        packing_threshold=rules.packing,
        overflow_source=ask.overflow_source,
        is_reserved=offer.name in ask.demand.usable_reserves,
    )
    fleet.add_cluster(cluster, number)
    return cluster


def cluster_name(offer: str, prefix: str, number: int) -> str:
    """`us-east-001`, or with a prefix of the policy `us-east-prod-001`; a number is never given twice in one offer."""
    pool = offer.replace("/", "-")
    return f"{pool}-{prefix}-{number:03}" if prefix else f"{pool}-{number:03}"


def remove_empty_machines(fleet: Fleet, clusters: Sequence[str]) -> None:
    """Empty machines beyond what a cluster begins with go; a cluster without replicas goes whole."""
    for name in sorted(clusters):
        cluster = fleet.clusters.get(name)
        if cluster is None:
            continue
        holds = fleet.machines.replica_counts
        empty = [machine for machine in cluster.machines if not holds[machine]]
        if len(empty) == len(cluster.machines):
            for machine in reversed(cluster.machines.copy()):
                fleet.drop_machine(machine)
            fleet.drop_cluster(name)
            continue
        spare = len(cluster.machines) - cluster.min_nodes
        dearest_first = sorted(
            empty, key=lambda each: (-fleet.machines.machine_type[each].rate, fleet.machines.names[each])
        )
        for machine in dearest_first[: max(0, spare)]:
            fleet.drop_machine(machine)


def class_counts(fleet: Fleet, cluster: Cluster) -> Counter[str]:
    return Counter(fleet.machines.machine_type[machine].name for machine in cluster.machines)


class OfferFiller:
    """The machines of one offer that have room, while nothing but replicas of this service comes there. Seats are those of `settle`.

    What has no room any more never has it again, so that every machine is looked at once.
    """

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, row: int) -> None:
        self.ask, self.fleet, self.row = ask, fleet, row
        self._neighbours = neighbours_by_cluster(ask.demand, fleet)
        own, groups = (
            fleet.growable_groups(ask.demand, ask.overflow_source, row),
            fleet.accepting_groups(ask.demand, ask.overflow_source),
        )
        clusters = [each for each in fleet.clusters_by_offer[row].values() if each.group in own]
        self._heaps: dict[
            str, list[Entry]
        ] = {}  # heaps by cluster, best first; a cluster that is not here was not looked at yet
        self._growable_clusters = [each for each in clusters if len(each.machines) < each.max_nodes]
        self._clusters_below_threshold = sorted(
            (each for each in clusters if each.is_below_threshold), key=self._rank
        )
        self._clusters_with_capacity = [
            each for each in fleet.clusters_by_offer[row].values() if each.group in groups
        ]  # all that may have room
        self._is_sorted = False
        self._best_entry: tuple[str, Entry] | None = (
            None  # the cluster and machine that were found to have room since the last replica came
        )

    def _rank(self, cluster: Cluster) -> tuple[bool, int, int, str]:
        return cluster_rank(cluster, self._neighbours)

    @property
    def may_grow(self) -> bool:
        return bool(self._growable_clusters)

    @property
    def has_free_capacity(self) -> bool:
        while self._clusters_with_capacity:
            if self._best(self._clusters_with_capacity[-1]):
                return True
            self._clusters_with_capacity.pop()
        return False

    def assign(self, *, below_threshold: bool) -> Assignment | None:
        """In the nearest and fullest cluster that has room, of those below their packing threshold or of all. None: there is no room."""
        cluster = self._first_below_threshold() if below_threshold else self._fullest()
        if cluster is None:
            return None
        best = self._best(cluster)
        return None if best is None else self._assign_to_best(cluster, best)

    def provision(self, kind: MachineType) -> Assignment:
        """On one more machine of the nearest and fullest cluster that may grow, else in a new one."""
        grown = min(self._growable_clusters, key=self._rank, default=None)
        cluster, added = create_machines(self.ask, self.fleet, self.row, kind, grown)
        some = self._growable_clusters if grown else [cluster]
        self._growable_clusters = [each for each in some if len(each.machines) < each.max_nodes]
        self._add_candidates(cluster, added)
        return self._assign_to_new(cluster, added[0])

    def _add_candidates(self, cluster: Cluster, added: Iterable[int]) -> None:
        known = self._heaps.get(cluster.name)
        if known is not None:
            self._heaps[cluster.name] = [*known, *(self._entry(each) for each in added)]
            heapify(self._heaps[cluster.name])
        self._clusters_with_capacity = [
            *(each for each in self._clusters_with_capacity if each is not cluster),
            cluster,
        ]
        self._clusters_below_threshold = [
            *(each for each in self._clusters_below_threshold if each is not cluster),
            cluster,
        ]
        self._is_sorted = False

    def _first_below_threshold(self) -> Cluster | None:
        if not self._is_sorted:
            self._sort()
        while self._clusters_below_threshold:
            cluster = self._clusters_below_threshold[0]
            if cluster.is_below_threshold and self._best(cluster):
                return cluster
            self._clusters_below_threshold.pop(0)
        return None

    def _sort(self) -> None:
        """Only the first of those that are filled gets fuller, so they stay in order until one grows."""
        self._clusters_below_threshold = sorted(
            (each for each in self._clusters_below_threshold if each.is_below_threshold), key=self._rank
        )
        self._is_sorted = True

    def _fullest(self) -> Cluster | None:
        self._clusters_with_capacity = [each for each in self._clusters_with_capacity if self._best(each)]
        return min(self._clusters_with_capacity, key=self._rank, default=None)

    def _best(self, cluster: Cluster) -> Entry | None:
        if self._best_entry and self._best_entry[0] == cluster.name:
            return self._best_entry[1]
        found = self._heaps.get(cluster.name)
        if found is None:
            found = self._heaps[cluster.name] = [
                self._entry(each) for each in cluster.machines if self._fits_on(each)
            ]
            heapify(found)
        while found and not self._fits_on(found[0][-1]):
            heappop(found)
        if not found:
            return None
        self._best_entry = (cluster.name, found[0])
        return found[0]

    def _fits_on(self, machine: int) -> bool:
        return fits_on_machine(self.fleet, self.ask.demand, machine)

    def _entry(self, machine: int) -> Entry:
        machines = self.fleet.machines
        held = machines.replica_counts[machine][self.ask.demand.name]
        return (
            held,
            int(machines.free(0)[machine]),
            int(machines.free(1)[machine]),
            machines.names[machine],
            machine,
        )

    def _assign_to_best(self, cluster: Cluster, best: Entry) -> Assignment:
        seat, self._best_entry = assign(self.ask.demand, self.fleet, best[-1]), None
        heapreplace(self._heaps[cluster.name], self._entry(best[-1]))
        return seat

    def _assign_to_new(self, cluster: Cluster, machine: int) -> Assignment:
        """On a machine that was just added, whether or not another one would come first."""
        seat, self._best_entry = assign(self.ask.demand, self.fleet, machine), None
        known = self._heaps.get(cluster.name)
        if known is not None:
            self._heaps[cluster.name] = [
                each if each[-1] != machine else self._entry(machine) for each in known
            ]
            heapify(self._heaps[cluster.name])
        return seat
