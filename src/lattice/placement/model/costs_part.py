"""What does everything cost, and which part of it is whose?"""

from collections import Counter
from collections.abc import Iterator

from lattice.placement.model.costs import Bill, Machine, Tenant, bill
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT


def cost_of(fleet: Fleet) -> Bill:
    """Every machine's price, split among the replicas on it."""
    return bill(machines_on(fleet, set(fleet.machines.kind)))


def placed_costs(fleet: Fleet, service: str) -> dict[tuple[str, str, str], int]:
    """Micro-dollars per hour of one service, by offer, cluster and class."""
    machines, found = fleet.machines, Counter[tuple[str, str, str]]()
    for row, share in _shares(fleet, service):
        cluster = machines.cluster[row]
        found[fleet.offers[cluster.row].name, cluster.name, machines.kind[row].name] += share
    return dict(sorted(found.items()))


def share_of(fleet: Fleet, service: str) -> int:
    """Micro-dollars per hour of one service, all in all."""
    return sum(share for _, share in _shares(fleet, service))


def _shares(fleet: Fleet, service: str) -> Iterator[tuple[int, int]]:
    """By machine. Those that are alike, with the same on them, are split once."""
    machines, known = fleet.machines, dict[tuple[object, ...], int]()
    for row in {seat.machine for seat in fleet.seats.get(service, ())}:
        alike = (id(machines.kind[row]), *sorted(machines.holds[row].items()))
        if alike not in known:
            known[alike] = bill(machines_on(fleet, {row})).services.get(service, 0)
        yield row, known[alike]


def machines_on(fleet: Fleet, rows: set[int]) -> list[Machine]:
    """With a tenant for each replica, numbered on its machine."""
    found = []
    for row in sorted(rows, key=lambda row: fleet.machines.names[row]):
        kind, cluster = fleet.machines.kind[row], fleet.machines.cluster[row]
        tenants = tuple(
            Tenant(f"{service}/{row}/{number}", _needs(fleet, service), service)
            for service, count in sorted(fleet.machines.holds[row].items())
            for number in range(count)
        )
        sizes = {resource: amount for resource, amount in kind.size.items() if 0 < amount < NO_LIMIT}
        found.append(
            Machine(fleet.machines.names[row], fleet.offers[cluster.row].name, kind.rate, sizes, tenants)
        )
    return found


def _needs(fleet: Fleet, service: str) -> dict[str, int]:
    return dict(fleet.seats[service][0].needs)


def run_rate(fleet: Fleet) -> dict[str, int]:
    """Micro-dollars per hour of all machines, by offer; offers without machines are left out."""
    found: Counter[str] = Counter()
    for row, kind in fleet.machines.kind.items():
        found[fleet.offers[fleet.machines.cluster[row].row].name] += kind.rate
    return {name: found[name] for name in sorted(found)}
