"""Allocate the price of machines to workloads, services and pools, and compute the charges of ledgers; parts
add up to the price."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import lcm

from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.offer import NO_LIMIT

# Machines by ledger, then by cluster and class.
PaidMachines = Mapping[str, Counter[NodeGroupKey]]


@dataclass(frozen=True, slots=True)
class HostedWorkload:
    """One workload on a machine, for cost allocation."""

    name: str  # namespace/name; unique on one machine
    requests: Mapping[str, int]  # by resource, in the units of the machine
    # namespace/name; the cost of a workload without a service is allocated to the workload only.
    service: str = ""


@dataclass(frozen=True, slots=True)
class BilledMachine:
    """One machine with its price in micro-dollars per hour and its workloads."""

    name: str
    pool: str
    hourly_micros: int
    allocatable: Mapping[str, int]
    workloads: tuple[HostedWorkload, ...] = ()


@dataclass(frozen=True, slots=True)
class CostAllocation:
    """Micro-dollars per hour: workloads + overhead = pools = total; `services` sums the workloads of each
    service."""

    total: int
    workloads: Mapping[str, int]
    services: Mapping[str, int]
    pools: Mapping[str, int]
    overhead: Mapping[str, int]  # by pool: machines without workloads


def allocate_costs(machines: Iterable[BilledMachine]) -> CostAllocation:
    """Split the price of every machine among its workloads by dominant share; the price of an empty machine
    is overhead."""
    workloads, services, pools, overhead = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for machine in machines:
        pools[machine.pool] += machine.hourly_micros
        if not machine.workloads:
            overhead[machine.pool] += machine.hourly_micros
            continue
        parts = split_price(machine.hourly_micros, dominant_shares(machine))
        for workload in machine.workloads:
            workloads[workload.name] += parts[workload.name]
            if workload.service:
                services[workload.service] += parts[workload.name]
    return CostAllocation(
        sum(pools.values()),
        *(dict(sorted(costs.items())) for costs in (workloads, services, pools, overhead)),
    )


def split_price(price: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Split a price in proportion to the shares; the remainder goes to the first name with a share.

    A workload without requests pays nothing while other workloads have requests; if no workload has, all pay
    equally.
    """
    weights = shares if any(shares.values()) else dict.fromkeys(shares, 1)
    total = sum(weights.values())
    parts = {name: price * weights[name] // total for name in sorted(weights)}
    first = next((name for name in parts if weights[name]), None)
    if first is not None:
        parts[first] += price - sum(parts.values())
    return parts


def dominant_shares(machine: BilledMachine) -> dict[str, int]:
    """The largest share of any resource by workload, as integers over one common denominator.

    A request for a resource that the machine does not have, such as after the machine shrank, counts as the
    whole machine.
    """
    denominator = lcm(*(amount for amount in machine.allocatable.values() if amount > 0))
    shares: dict[str, int] = {}
    for workload in machine.workloads:
        largest = 0
        for resource, amount in workload.requests.items():
            allocatable = machine.allocatable.get(resource, 0)
            if allocatable > 0:
                share = amount * (denominator // allocatable)
            else:
                share = denominator if amount > 0 else 0
            largest = max(largest, share)
        shares[workload.name] = largest
    return shares


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
        billed.append(BilledMachine(name, offer, kind.rate, sizes, tuple(workloads)))
    return billed


def run_rate(fleet: Fleet) -> dict[str, int]:
    """Micro-dollars per hour of all machines, by offer; offers without machines are left out."""
    rates: Counter[str] = Counter()
    for row, kind in fleet.machines.machine_type.items():
        rates[fleet.offers[fleet.machines.cluster[row].offer_row].name] += kind.rate
    return {name: rates[name] for name in sorted(rates)}
