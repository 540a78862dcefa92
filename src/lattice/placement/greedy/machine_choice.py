"""Where in an offer does a replica go: onto a machine that is there, onto one more, or into a new cluster?"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Cluster, Fleet, Seat
from lattice.placement.model.offer import MachineType
from lattice.placement.model.quotes import gpu_limit, growing, takes


def settle(ask: ReplicaAsk, fleet: Fleet, row: int) -> Seat:
    """Fill clusters below their packing threshold, else grow one, else make one; fill beyond the threshold before giving up."""
    machine = _machine_with_room(ask, fleet, row, filling=True)
    if machine is None and (kind := offered(ask, fleet, row)):
        machine = _new_machine(ask, fleet, row, kind)
    if machine is None:
        machine = _machine_with_room(ask, fleet, row, filling=False)
    if machine is None:
        raise LookupError(f"{fleet.offers[row].name} has no room for {ask.name}")
    return take_seat(ask.demand, fleet, machine)


def offered(ask: ReplicaAsk, fleet: Fleet, row: int) -> MachineType | None:
    """The class that a new machine would be of; None: there may be none."""
    quotes = fleet.table.quotes
    quote = quotes.of(ask)
    if not quote.affordable[row] or not quote.fits[row]:
        return None
    return quotes.catalogue.types[row][quotes.catalogue.names[int(quote.type[row])]]


def settle_on(ask: ReplicaAsk, fleet: Fleet, row: int, kind: str) -> Seat | None:
    """As `settle` does, but only on machines of one class; None: there is no room on those."""
    machine = _machine_with_room(ask, fleet, row, filling=True, kind=kind)
    quotes = fleet.table.quotes
    if machine is None and quotes.may_open(ask, row, kind):
        machine = _new_machine(ask, fleet, row, quotes.catalogue.types[row][kind])
    if machine is None:
        machine = _machine_with_room(ask, fleet, row, filling=False, kind=kind)
    return None if machine is None else take_seat(ask.demand, fleet, machine)


def take_seat(demand: Demand, fleet: Fleet, machine: int) -> Seat:
    row = fleet.machines.cluster[machine].row
    offer, needs = fleet.offers[row], demand.effective_needs
    limit = gpu_limit(fleet, demand, row) if needs.get("gpu") and offer.limits.gpus else ""
    seat = Seat(demand.name, machine, tuple(needs.items()), limit)
    fleet.seat(seat)
    return seat


def plain_seats(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[Seat] | None:
    """For these replicas, to be taken later and with others; None: some are in places that count GPUs."""
    if any(fleet.offers[fleet.machines.cluster[each].row].limits.gpus for each in machines):
        return None
    needs = tuple(demand.effective_needs.items())
    return [Seat(demand.name, each, needs) for each in machines]


def _machine_with_room(
    ask: ReplicaAsk, fleet: Fleet, row: int, *, filling: bool, kind: str = ""
) -> int | None:
    """In the cluster with most neighbours that has one, of those the fullest: the machine with the fewest replicas of the service,
    of those the one with least room."""
    roomy, near = _roomy(ask, fleet, row), neighbours_in(ask.demand, fleet)
    own = fleet.growing_groups(ask.demand, ask.overflow, row)
    clusters = [
        each
        for each in map(fleet.clusters.__getitem__, roomy)
        if not filling or (each.is_filling and each.group in own)
    ]
    for cluster in sorted(clusters, key=lambda each: nearest_first(each, near)):
        machines = [each for each in roomy[cluster.name] if kind in ("", fleet.machines.kind[each].name)]
        found = pick_machine(ask.demand, fleet, machines)
        if found is not None:
            return found
    return None


def neighbours_in(demand: Demand, fleet: Fleet) -> Counter[str]:
    """By cluster, how many of the services that it talks to, or that talk to it, are there."""
    others = (each for each in demand.neighbours if each != demand.name)
    return Counter(name for each in others for name in fleet.clusters_of(each))


def nearest_first(cluster: Cluster, near: Counter[str]) -> tuple[bool, int, int, str]:
    """What is kept for it leaves room to others."""
    return (not cluster.is_kept, -near[cluster.name], -cluster.fullness, cluster.name)


def _roomy(ask: ReplicaAsk, fleet: Fleet, row: int) -> dict[str, list[int]]:
    """Machines of the right groups with so much free, by cluster."""
    machines, taking = fleet.machines, fleet.taking(ask.demand, ask.overflow)
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
        (each for each in machines if takes(fleet, demand, each)),
        key=lambda each: rank(demand, fleet, each),
        default=None,
    )


def rank(demand: Demand, fleet: Fleet, machine: int) -> tuple[int, int, int, str]:
    return ranks(demand, fleet, [machine])[0]


def ranks(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[tuple[int, int, int, str]]:
    """The least goes first: few replicas of the service, then little room."""
    table, service = fleet.machines, demand.name
    cpu, memory = table.free(0)[machines].tolist(), table.free(1)[machines].tolist()
    return [
        (table.holds[each][service], cpu[at], memory[at], table.names[each])
        for at, each in enumerate(machines)
    ]


def _new_machine(ask: ReplicaAsk, fleet: Fleet, row: int, kind: MachineType) -> int:
    grown = [
        fleet.clusters[each]
        for each in growing(fleet, row, fleet.growing_groups(ask.demand, ask.overflow, row))
    ]
    near = neighbours_in(ask.demand, fleet)
    first = min(grown, key=lambda each: nearest_first(each, near), default=None)
    return new_machines(ask, fleet, row, kind, first)[1][0]


def new_machines(
    ask: ReplicaAsk, fleet: Fleet, row: int, kind: MachineType, grown: Cluster | None
) -> tuple[Cluster, list[int]]:
    """One more for a cluster that may grow, else as many as a new cluster begins with."""
    if grown is not None:
        return grown, [fleet.add_machine(grown, kind)]
    cluster = new_cluster(ask, fleet, row)
    count = fleet.offers[row].first_nodes(ask.demand.rules.min_nodes)
    return cluster, fleet.add_machines(cluster, kind, fleet.new_names(cluster, kind.name, count))


def new_cluster(ask: ReplicaAsk, fleet: Fleet, row: int) -> Cluster:
    rules, offer = ask.demand.rules, fleet.offers[row]
    number = fleet.next_number.get(row, 1)
    while (
        cluster_name(offer.name, rules.prefix, number) in fleet.clusters
    ):  # of another offer: pool a-b, and prefix b in pool a
        number += 1
    most = min(rules.max_nodes, offer.limits.nodes_per_cluster)
    cluster = Cluster(
        name=cluster_name(offer.name, rules.prefix, number),
        row=row,
        group=fleet.group_of(ask.demand, ask.overflow, row),
        min_nodes=min(rules.min_nodes, most),
        max_nodes=most,
        packing=rules.packing,
        overflow=ask.overflow,
        is_kept=offer.name in ask.demand.admitted,
    )
    fleet.add_cluster(cluster, number)
    return cluster


def cluster_name(offer: str, prefix: str, number: int) -> str:
    """`us-east-001`, or with a prefix of the policy `us-east-prod-001`; a number is never given twice in one offer."""
    pool = offer.replace("/", "-")
    return f"{pool}-{prefix}-{number:03}" if prefix else f"{pool}-{number:03}"


def trim(fleet: Fleet, clusters: Sequence[str]) -> None:
    """Empty machines beyond what a cluster begins with go; a cluster without replicas goes whole."""
    for name in sorted(clusters):
        cluster = fleet.clusters.get(name)
        if cluster is None:
            continue
        holds = fleet.machines.holds
        empty = [machine for machine in cluster.machines if not holds[machine]]
        if len(empty) == len(cluster.machines):
            for machine in reversed(cluster.machines.copy()):
                fleet.drop_machine(machine)
            fleet.drop_cluster(name)
            continue
        spare = len(cluster.machines) - cluster.min_nodes
        dearest_first = sorted(
            empty, key=lambda each: (-fleet.machines.kind[each].rate, fleet.machines.names[each])
        )
        for machine in dearest_first[: max(0, spare)]:
            fleet.drop_machine(machine)


def class_counts(fleet: Fleet, cluster: Cluster) -> Counter[str]:
    return Counter(fleet.machines.kind[machine].name for machine in cluster.machines)
