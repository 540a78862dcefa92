"""Resources of a workload and a node: class of service, who is evicted first, whether it fits and how full."""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from lattice.kinds.container import BYTE_RESOURCES, ContainerResources, parse_amounts
from lattice.kinds.workload import WorkloadSpec

COMPRESSIBLE = frozenset(
    {"cpu", "ephemeral-storage"}
)  # too little of it slows down; too little of anything else kills

Amounts = dict[str, int]


class Qos(IntEnum):
    """The number is the order of eviction: highest first."""

    Guaranteed = 1
    Burstable = 2
    BestEffort = 3


def qos_of(spec: WorkloadSpec) -> Qos:
    """Guaranteed: every container has cpu and memory, and whatever extended resource it names, at request = limit.

    BestEffort: nothing is asked for anywhere. What a workload itself states counts only if none of its containers does, and as one.
    """
    asked = [_positive_amounts(each.resources) for each in spec.containers.values()]
    if not any(requests or limits for requests, limits in asked):
        asked = [_positive_amounts(spec)]
    if not any(requests or limits for requests, limits in asked):
        return Qos.BestEffort
    return (
        Qos.Guaranteed
        if all(_is_guaranteed(requests, limits) for requests, limits in asked)
        else Qos.Burstable
    )


def _positive_amounts(resources: WorkloadSpec | ContainerResources | None) -> tuple[Amounts, Amounts]:
    if resources is None:
        return {}, {}
    requests, limits = parse_amounts(resources.requests), parse_amounts(resources.limits)
    return {k: v for k, v in requests.items() if v > 0}, {k: v for k, v in limits.items() if v > 0}


def _is_guaranteed(requests: Amounts, limits: Amounts) -> bool:
    exact = {"cpu", "memory"} | {name for name in (*requests, *limits) if is_extended(name)}
    return all(name in requests and requests[name] == limits.get(name) for name in exact)


def is_extended(resource: str) -> bool:
    """A countable thing by any name, which cannot be shared or overcommitted."""
    return resource != "cpu" and resource not in BYTE_RESOURCES and not resource.startswith("hugepages-")


def eviction_order(workloads: Iterable[tuple[str, Qos, int]]) -> list[str]:
    """Names of (name, class, priority), who goes first at the front: BestEffort before Burstable before Guaranteed, then low priority."""
    return [name for name, _, _ in sorted(workloads, key=lambda each: (-each[1], each[2], each[0]))]


def is_compressible(resource: str) -> bool:
    return resource in COMPRESSIBLE


def fits(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Just enough is enough; what a node does not know it has none of."""
    return all(amount <= free.get(name, 0) for name, amount in need.items())


def utilisation(used: Mapping[str, int], total: Mapping[str, int]) -> float:
    """The fullest of its resources, 0 to 1."""
    shares = (used.get(name, 0) / amount for name, amount in total.items() if amount > 0)
    return min(1.0, max(0.0, max(shares, default=0.0)))
