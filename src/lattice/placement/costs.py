"""What does everything cost, and which part of it is whose?"""

from collections import Counter

from lattice.placement.bill import Bill, Machine, Tenant, bill
from lattice.placement.fleet import Fleet
from lattice.placement.offer import NO_LIMIT


def cost_of(fleet: Fleet) -> Bill:
    """Every machine's price, split among the replicas on it."""
    return bill(machines_on(fleet, set(fleet.machines.kind)))


def placed_costs(fleet: Fleet, service: str) -> dict[tuple[str, str, str], int]:
    """Micro-dollars per hour of one service, by offer, cluster and class."""
    rows = {seat.machine for seat in fleet.seats.get(service, ())}
    machines = {each.name: each for each in machines_on(fleet, rows)}
    found: Counter[tuple[str, str, str]] = Counter()
    for name, machine in machines.items():
        row = fleet.machines.row_of[name]
        share = bill([machine]).services.get(service, 0)
        found[machine.pool, fleet.machines.cluster[row].name, fleet.machines.kind[row].name] += share
    return dict(found)


def share_of(fleet: Fleet, service: str) -> int:
    """Micro-dollars per hour of one service, all in all; machines that are alike, with the same on them, are split once."""
    alike: Counter[tuple[object, ...]] = Counter()
    example: dict[tuple[object, ...], int] = {}
    for row in {seat.machine for seat in fleet.seats.get(service, ())}:
        key = (id(fleet.machines.kind[row]), *sorted(fleet.machines.holds[row].items()))
        alike[key] += 1
        example.setdefault(key, row)
    return sum(count * bill(machines_on(fleet, {example[key]})).services.get(service, 0) for key, count in alike.items())


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
        found.append(Machine(fleet.machines.names[row], fleet.offers[cluster.row].name, kind.rate, sizes, tenants))
    return found


def _needs(fleet: Fleet, service: str) -> dict[str, int]:
    return dict(fleet.seats[service][0].needs)


def run_rate(fleet: Fleet) -> dict[str, int]:
    """Micro-dollars per hour of all machines, by offer; offers without machines are left out."""
    found: Counter[str] = Counter()
    for row, kind in fleet.machines.kind.items():
        found[fleet.offers[fleet.machines.cluster[row].row].name] += kind.rate
    return {name: found[name] for name in sorted(found)}
