"""The quality-of-service class of a workload, the eviction order by class, and resource fit and utilisation
in plain numbers."""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from lattice.kinds.container import BYTE_RESOURCES, ContainerResources, parse_amounts
from lattice.kinds.workload import WorkloadSpec

# Too little of a compressible resource slows a workload down; too little of any other resource kills the
# workload.
COMPRESSIBLE = frozenset({"cpu", "ephemeral-storage"})

Amounts = dict[str, int]


class Qos(IntEnum):
    """The quality-of-service class of a workload. A node under pressure evicts the class with the highest
    number first."""

    Guaranteed = 1
    Burstable = 2
    BestEffort = 3


def qos_of(spec: WorkloadSpec) -> Qos:
    """The class of a workload.

    Guaranteed: every container has a request equal to its limit for cpu, memory and every extended resource
    that the container names. BestEffort: no container has a request or limit above zero. The resources of the
    workload itself count only if no container states resources; they then count as one container.
    """
    stated = [_positive_amounts(container.resources) for container in spec.containers.values()]
    if not any(requests or limits for requests, limits in stated):
        stated = [_positive_amounts(spec)]
    if not any(requests or limits for requests, limits in stated):
        return Qos.BestEffort
    for requests, limits in stated:
        exact_resources = {"cpu", "memory"} | {name for name in (*requests, *limits) if is_extended(name)}
        if any(name not in requests or requests[name] != limits.get(name) for name in exact_resources):
            return Qos.Burstable
    return Qos.Guaranteed


def _positive_amounts(resources: WorkloadSpec | ContainerResources | None) -> tuple[Amounts, Amounts]:
    if resources is None:
        return {}, {}
    requests, limits = parse_amounts(resources.requests), parse_amounts(resources.limits)
    return {k: v for k, v in requests.items() if v > 0}, {k: v for k, v in limits.items() if v > 0}


def is_extended(resource: str) -> bool:
    """Whether a resource is an extended resource: countable, never shared, never overcommitted."""
    return resource != "cpu" and resource not in BYTE_RESOURCES and not resource.startswith("hugepages-")


def eviction_order(workloads: Iterable[tuple[str, Qos, int]]) -> list[str]:
    """Workload names in eviction order, from (name, class, priority): BestEffort first, Guaranteed last, low
    priority first."""
    return [
        name
        for name, _, _ in sorted(workloads, key=lambda workload: (-workload[1], workload[2], workload[0]))
    ]


def is_compressible(resource: str) -> bool:
    return resource in COMPRESSIBLE


def fits(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Whether a node has the needed amounts free. An exact fit is a fit; a resource that the node does not
    have counts as 0."""
    return all(amount <= free.get(name, 0) for name, amount in need.items())


def utilisation(used: Mapping[str, int], total: Mapping[str, int]) -> float:
    """The utilisation of the fullest resource of a node, from 0 to 1."""
    shares = (used.get(name, 0) / amount for name, amount in total.items() if amount > 0)
    return min(1.0, max(0.0, max(shares, default=0.0)))
