"""Who pays which part of a machine? The parts always add up to the bill."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import lcm

from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.fleet import Cluster, Fleet
from lattice.placement.model.offer import NO_LIMIT

PaidMachines = Mapping[str, Counter[NodeGroupKey]]  # machines by ledger, then by cluster and class


@dataclass(frozen=True, slots=True)
class HostedWorkload:
    """One workload on a machine."""

    name: str  # namespace/name; no two on one machine share it
    requests: Mapping[str, int]  # by resource, in the units of the machine
    service: str = ""  # namespace/name; a workload without a service pays for itself only


@dataclass(frozen=True, slots=True)
class BilledMachine:
    name: str
    pool: str
    hourly_micros: int  # per hour
    allocatable: Mapping[str, int]
    workloads: tuple[HostedWorkload, ...] = ()


@dataclass(frozen=True, slots=True)
class CostAllocation:
    """Micro-dollars per hour. workloads + overhead = pools = total; services are the workloads that have one."""

    total: int
    workloads: Mapping[str, int]
    services: Mapping[str, int]
    pools: Mapping[str, int]
    overhead: Mapping[str, int]  # by pool: machines that nobody is on


def allocate_costs(machines: Iterable[BilledMachine]) -> CostAllocation:
    workloads, services, pools, overhead = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for machine in machines:
        pools[machine.pool] += machine.hourly_micros
        if not machine.workloads:
            overhead[machine.pool] += machine.hourly_micros
            continue
        parts = split_price(machine.hourly_micros, dominant_shares(machine))
        for tenant in machine.workloads:
            workloads[tenant.name] += parts[tenant.name]
            if tenant.service:
                services[tenant.service] += parts[tenant.name]
    return CostAllocation(
        sum(pools.values()), *(dict(sorted(each.items())) for each in (workloads, services, pools, overhead))
    )


def split_price(price: int, shares: Mapping[str, int]) -> dict[str, int]:
    """A price in proportion to the shares; what does not divide goes to the first by name that has one.

    Who asks for nothing pays nothing while others ask for something; if nobody does, the machine is there for all alike.
    """
    weights = shares if any(shares.values()) else dict.fromkeys(shares, 1)
    whole = sum(weights.values())
    parts = {name: price * weights[name] // whole for name in sorted(weights)}
    first = next((name for name in parts if weights[name]), None)
    if first is not None:
        parts[first] += price - sum(parts.values())
    return parts


def dominant_shares(machine: BilledMachine) -> dict[str, int]:
    """Each tenant's largest share of any resource, as integers over one common denominator.

    A request for what the machine has none of, as after it shrank, counts as all of it.
    """
    whole = lcm(*(amount for amount in machine.allocatable.values() if amount > 0))
    return {
        tenant.name: max((_share(machine, whole, *each) for each in tenant.requests.items()), default=0)
        for tenant in machine.workloads
    }


def _share(machine: BilledMachine, whole: int, resource: str, amount: int) -> int:
    room = machine.allocatable.get(resource, 0)
    if room > 0:
        return amount * (whole // room)
    return whole if amount > 0 else 0


def paid_machines(ledgers: Iterable[LatticeLedger]) -> dict[str, Counter[NodeGroupKey]]:
    found: dict[str, Counter[NodeGroupKey]] = {}
    for ledger in ledgers:
        counts = found[ledger.metadata.name] = Counter()
        for cluster, lots in ledger.status.machines.items():
            for lot in lots:
                counts[cluster, lot.node_class] += lot.count
    return found


def charges_due(
    fleet: Fleet, cluster: Cluster, wanted: Mapping[str, int], paid: PaidMachines
) -> list[Charge]:
    """What each budget does not pay for yet. A machine that is on its way out is paid for still: its place is taken for nothing."""
    prices = {each.name: each.rate for each in fleet.offers[cluster.offer_row].types}
    found = []
    for kind, count in sorted(wanted.items()):
        lacking: dict[int, list[Account]] = {}
        for ledger in fleet.ledgers(cluster.offer_row, cluster.overflow_source):
            short = count - paid.get(ledger, Counter())[cluster.name, kind]
            if short > 0 and kind in prices:
                lacking.setdefault(short, []).append(fleet.budgets[ledger].account)
        found += [
            Charge(tuple(who), cluster.name, Lot(node_class=kind, count=short, micros=prices[kind]))
            for short, who in lacking.items()
        ]
    return found


def releases_due(ledgers: Iterable[LatticeLedger], cell: NodeGroupKey, retained_count: int) -> list[Charge]:
    """What budgets give back so that each pays for no more than so many: the dearest first, since what stays should cost least."""
    cluster, kind = cell
    found = []
    for ledger in ledgers:
        lots = [each for each in ledger.status.machines.get(cluster, ()) if each.node_class == kind]
        left = sum(each.count for each in lots) - retained_count
        for lot in sorted(lots, key=lambda each: -each.micros):
            if (count := min(lot.count, left)) > 0:
                found.append(
                    Charge(
                        (ledger.spec.budget,), cluster, Lot(node_class=kind, count=count, micros=lot.micros)
                    )
                )
                left -= count
    return found


def fleet_costs(fleet: Fleet) -> CostAllocation:
    """Every machine's price, split among the replicas on it."""
    return allocate_costs(billed_machines(fleet, set(fleet.machines.machine_type)))


def placed_costs(fleet: Fleet, service: str) -> dict[tuple[str, str, str], int]:
    """Micro-dollars per hour of one service, by offer, cluster and class."""
    machines, found = fleet.machines, Counter[tuple[str, str, str]]()
    for row, share in _shares(fleet, service):
        cluster = machines.cluster[row]
        found[fleet.offers[cluster.offer_row].name, cluster.name, machines.machine_type[row].name] += share
    return dict(sorted(found.items()))


def service_cost(fleet: Fleet, service: str) -> int:
    """Micro-dollars per hour of one service, all in all."""
    return sum(share for _, share in _shares(fleet, service))


def _shares(fleet: Fleet, service: str) -> Iterator[tuple[int, int]]:
    """By machine. Those that are alike, with the same on them, are split once."""
    machines, known = fleet.machines, dict[tuple[object, ...], int]()
    for row in {seat.machine for seat in fleet.assignments.get(service, ())}:
        alike = (id(machines.machine_type[row]), *sorted(machines.replica_counts[row].items()))
        if alike not in known:
            known[alike] = allocate_costs(billed_machines(fleet, {row})).services.get(service, 0)
        yield row, known[alike]


def billed_machines(fleet: Fleet, rows: set[int]) -> list[BilledMachine]:
    """With a tenant for each replica, numbered on its machine."""
    found = []
    for row in sorted(rows, key=lambda row: fleet.machines.names[row]):
        kind, cluster = fleet.machines.machine_type[row], fleet.machines.cluster[row]
        tenants = tuple(
            HostedWorkload(f"{service}/{row}/{number}", _needs(fleet, service), service)
            for service, count in sorted(fleet.machines.replica_counts[row].items())
            for number in range(count)
        )
        sizes = {resource: amount for resource, amount in kind.size.items() if 0 < amount < NO_LIMIT}
        found.append(
            BilledMachine(
                fleet.machines.names[row], fleet.offers[cluster.offer_row].name, kind.rate, sizes, tenants
            )
        )
    return found


def _needs(fleet: Fleet, service: str) -> dict[str, int]:
    return dict(fleet.assignments[service][0].needs)


def run_rate(fleet: Fleet) -> dict[str, int]:
    """Micro-dollars per hour of all machines, by offer; offers without machines are left out."""
    found: Counter[str] = Counter()
    for row, kind in fleet.machines.machine_type.items():
        found[fleet.offers[fleet.machines.cluster[row].offer_row].name] += kind.rate
    return {name: found[name] for name in sorted(found)}
