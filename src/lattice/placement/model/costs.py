"""The bill and the cost allocation of a trial fleet, and the charges and releases of ledgers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.inputs.bill import Bill, BillLine
from lattice.placement.inputs.cost_allocation import (
    BilledMachine,
    CostAllocation,
    HostedWorkload,
    allocate_costs,
)
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.offer import NO_LIMIT

# Machines by ledger, then by cluster and class.
PaidMachines = Mapping[str, Counter[NodeGroupKey]]


def paid_machines(ledgers: Iterable[LatticeLedger]) -> dict[str, Counter[NodeGroupKey]]:
    """Machines that the ledgers pay for, by ledger, then by cluster and class."""
    paid: dict[str, Counter[NodeGroupKey]] = {}
    for ledger in ledgers:
        counts = paid[ledger.metadata.name] = Counter()
        for cluster, lots in ledger.status.machines.items():
            for lot in lots:
                counts[cluster, lot.node_class] += lot.count
    return paid


def charges_due(
    fleet: Fleet, cluster: Cluster, desired: Mapping[str, int], paid: PaidMachines
) -> list[Charge]:
    """Charges for the desired machines of a cluster that a ledger does not pay for yet.

    A ledger pays for a machine until the machine is deleted, so a machine that replaces a machine in deletion
    costs nothing more.
    """
    types = {machine_type.name: machine_type for machine_type in fleet.offers[cluster.offer_row].types}
    charges = []
    for kind, count in sorted(desired.items()):
        # Ledgers that lack the same number of machines share one charge.
        accounts: dict[int, list[Account]] = {}
        for ledger in fleet.ledgers.paying_for(cluster.offer_row, cluster.overflow_source):
            unpaid = count - paid.get(ledger, Counter())[cluster.name, kind]
            if unpaid > 0 and kind in types:
                accounts.setdefault(unpaid, []).append(fleet.ledgers.budgets[ledger].account)
        for unpaid, payers in accounts.items():
            lot = Lot(
                node_class=kind,
                count=unpaid,
                micros=types[kind].rate,
                price_unknown=not types[kind].is_priced,
            )
            charges.append(Charge(tuple(payers), cluster.name, lot))
    return charges


def releases_due(
    ledgers: Iterable[LatticeLedger], node_group: NodeGroupKey, retained_count: int
) -> list[Charge]:
    """Charges to release, so that every budget pays for at most `retained_count` machines of the node group.

    The most expensive machines are released first, since the remaining machines should cost least.
    """
    cluster, kind = node_group
    releases = []
    for ledger in ledgers:
        lots = [lot for lot in ledger.status.machines.get(cluster, ()) if lot.node_class == kind]
        surplus = sum(lot.count for lot in lots) - retained_count
        for lot in sorted(lots, key=lambda lot: -lot.micros):
            if (count := min(lot.count, surplus)) > 0:
                releases.append(
                    Charge(
                        (ledger.spec.budget,), cluster, Lot(node_class=kind, count=count, micros=lot.micros)
                    )
                )
                surplus -= count
    return releases


def fleet_costs(fleet: Fleet) -> CostAllocation:
    """The price of every machine of the fleet, split among the replicas on the machine."""
    return allocate_costs(billed_machines(fleet, set(fleet.machines.machine_type)))


def placed_costs(fleet: Fleet, service: str) -> dict[tuple[str, str, str], int]:
    """Micro-dollars per hour of one service, by offer, cluster and class."""
    machines, costs = fleet.machines, Counter[tuple[str, str, str]]()
    for row, share in _shares(fleet, service):
        cluster = machines.cluster[row]
        costs[fleet.offers[cluster.offer_row].name, cluster.name, machines.machine_type[row].name] += share
    return dict(sorted(costs.items()))


def unpriced_groups(fleet: Fleet, service: str) -> set[tuple[str, str, str]]:
    """Offer, cluster and class of the machines of unknown price that the service uses."""
    machines, groups = fleet.machines, set()
    for assignment in fleet.assignments.get(service, ()):
        machine_type, cluster = (
            machines.machine_type[assignment.machine],
            machines.cluster[assignment.machine],
        )
        if not machine_type.is_priced:
            groups.add((fleet.offers[cluster.offer_row].name, cluster.name, machine_type.name))
    return groups


def service_cost(fleet: Fleet, service: str) -> int:
    """Micro-dollars per hour of one service, in total."""
    return sum(share for _, share in _shares(fleet, service))


def _shares(fleet: Fleet, service: str) -> Iterator[tuple[int, int]]:
    """The cost of the service on each of its machines; equal machines with equal replicas are split once."""
    machines, cache = fleet.machines, dict[tuple[object, ...], int]()
    for row in {assignment.machine for assignment in fleet.assignments.get(service, ())}:
        machine_key = (id(machines.machine_type[row]), *sorted(machines.replica_counts[row].items()))
        if machine_key not in cache:
            cache[machine_key] = allocate_costs(billed_machines(fleet, {row})).services.get(service, 0)
        yield row, cache[machine_key]


def billed_machines(fleet: Fleet, rows: set[int]) -> list[BilledMachine]:
    """The machines of the rows, each with one workload per replica; replicas of a service are numbered per
    machine."""
    billed = []
    for row in sorted(rows, key=lambda row: fleet.machines.names[row]):
        kind, cluster = fleet.machines.machine_type[row], fleet.machines.cluster[row]
        workloads: list[HostedWorkload] = []
        for service, count in sorted(fleet.machines.replica_counts[row].items()):
            for number in range(count):
                needs = dict(fleet.assignments[service][0].needs)
                workloads.append(HostedWorkload(f"{service}/{row}/{number}", needs, service))
        sizes = {resource: amount for resource, amount in kind.size.items() if 0 < amount < NO_LIMIT}
        name, offer = fleet.machines.names[row], fleet.offers[cluster.offer_row].name
        billed.append(
            BilledMachine(name, offer, kind.rate, sizes, tuple(workloads), is_priced=kind.is_priced)
        )
    return billed


def fleet_bill(fleet: Fleet, orphaned: Iterable[BillLine] = ()) -> Bill:
    """The bill of a trial fleet, at the prices of its offers; `orphaned` are the lines of clusters that no offer
    has any more."""
    counts: Counter[tuple[str, str, str, int, bool]] = Counter()
    for row, kind in fleet.machines.machine_type.items():
        cluster = fleet.machines.cluster[row]
        offer = fleet.offers[cluster.offer_row].name
        counts[offer, cluster.name, kind.name, kind.rate, kind.is_priced] += 1
    lines = [
        BillLine(offer, cluster, node_class, count, micros, is_priced)
        for (offer, cluster, node_class, micros, is_priced), count in counts.items()
    ]
    return Bill.of([*lines, *orphaned], fleet.ledgers.committed)
