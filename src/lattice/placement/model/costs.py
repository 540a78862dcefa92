"""Who pays which part of a machine? The parts always add up to the bill."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm


@dataclass(frozen=True, slots=True)
class Tenant:
    """One workload on a machine."""

    name: str  # namespace/name; no two on one machine share it
    requests: Mapping[str, int]  # by resource, in the units of the machine
    service: str = ""  # namespace/name; a workload without a service pays for itself only


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    pool: str
    micros: int  # per hour
    allocatable: Mapping[str, int]
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True)
class Bill:
    """Micro-dollars per hour. workloads + overhead = pools = total; services are the workloads that have one."""

    total: int
    workloads: Mapping[str, int]
    services: Mapping[str, int]
    pools: Mapping[str, int]
    overhead: Mapping[str, int]  # by pool: machines that nobody is on


def bill(machines: Iterable[Machine]) -> Bill:
    workloads, services, pools, overhead = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for machine in machines:
        pools[machine.pool] += machine.micros
        if not machine.tenants:
            overhead[machine.pool] += machine.micros
            continue
        parts = split(machine.micros, dominant_shares(machine))
        for tenant in machine.tenants:
            workloads[tenant.name] += parts[tenant.name]
            if tenant.service:
                services[tenant.service] += parts[tenant.name]
    return Bill(
        sum(pools.values()), *(dict(sorted(each.items())) for each in (workloads, services, pools, overhead))
    )


def split(price: int, shares: Mapping[str, int]) -> dict[str, int]:
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


def dominant_shares(machine: Machine) -> dict[str, int]:
    """Each tenant's largest share of any resource, as integers over one common denominator.

    A request for what the machine has none of, as after it shrank, counts as all of it.
    """
    whole = lcm(*(amount for amount in machine.allocatable.values() if amount > 0))
    return {
        tenant.name: max((_share(machine, whole, *each) for each in tenant.requests.items()), default=0)
        for tenant in machine.tenants
    }


def _share(machine: Machine, whole: int, resource: str, amount: int) -> int:
    room = machine.allocatable.get(resource, 0)
    if room > 0:
        return amount * (whole // room)
    return whole if amount > 0 else 0
