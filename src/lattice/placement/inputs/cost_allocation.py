"""Split the price of machines among the workloads on them; the parts add up to the price, to the micro-dollar."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import lcm


class MachineState(StrEnum):
    """The state of a paid machine, as the bill shows a machine without workloads."""

    EMPTY = "Empty"
    BEING_MADE = "BeingMade"
    LEAVING = "Leaving"

    @property
    def words(self) -> str:
        return {"Empty": "empty nodes", "BeingMade": "nodes being made", "Leaving": "nodes leaving"}[
            self.value
        ]


@dataclass(frozen=True, slots=True)
class HostedWorkload:
    """One workload on a machine, for cost allocation."""

    # Unique on one machine; sorts by service first, since the remainder of a price goes to the first name.
    name: str
    requests: Mapping[str, int]  # by resource, in the units of the machine
    # namespace/name; the cost of a workload without a service is allocated to the workload only.
    service: str = ""


@dataclass(frozen=True, slots=True)
class BilledMachine:
    """One machine, or several machines without workloads, with the price in micro-dollars per hour."""

    name: str
    pool: str
    hourly_micros: int
    allocatable: Mapping[str, int]
    workloads: tuple[HostedWorkload, ...] = ()
    state: MachineState = MachineState.EMPTY
    count: int = 1
    is_priced: bool = True


@dataclass(frozen=True, slots=True)
class CostPart:
    """The part of a machine's price that one workload pays, or the whole price of a machine without
    workloads."""

    machine: BilledMachine
    micros: int
    workload: str = ""
    service: str = ""

    @property
    def state(self) -> MachineState | None:
        """The state of a machine without workloads; None for the part of a workload."""
        return None if self.workload else self.machine.state


@dataclass(frozen=True, slots=True)
class CostAllocation:
    """Micro-dollars per hour: workloads + overhead = pools = total; `services` sums the workloads of each
    service."""

    total: int
    workloads: Mapping[str, int]
    services: Mapping[str, int]
    pools: Mapping[str, int]
    overhead: Mapping[str, int]  # by pool: machines without workloads


def cost_parts(machines: Iterable[BilledMachine]) -> Iterator[CostPart]:
    """Split the price of every machine among its workloads by dominant share; the price of a machine without
    workloads is one part."""
    for machine in machines:
        if not machine.workloads:
            yield CostPart(machine, machine.hourly_micros)
            continue
        parts = split_price(machine.hourly_micros, dominant_shares(machine))
        for workload in machine.workloads:
            yield CostPart(machine, parts[workload.name], workload.name, workload.service)


def allocate_costs(machines: Iterable[BilledMachine]) -> CostAllocation:
    """The sums of the parts of all machines."""
    workloads, services, pools, overhead = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for part in cost_parts(machines):
        pools[part.machine.pool] += part.micros
        if not part.workload:
            overhead[part.machine.pool] += part.micros
            continue
        workloads[part.workload] += part.micros
        if part.service:
            services[part.service] += part.micros
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
