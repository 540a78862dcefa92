"""The quality-of-service class of a workload, what follows from it on a node, and the eviction order by class."""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from lattice.kinds.container import BYTE_RESOURCES, ContainerResources, parse_amounts
from lattice.kinds.workload import WorkloadSpec

# Too little of a compressible resource slows a workload down; too little of any other resource kills the
# workload.
COMPRESSIBLE = frozenset({"cpu", "ephemeral-storage"})
# Scores of the kernel's out-of-memory killer: the process with the highest score is killed first.
GUARANTEED_OOM_SCORE, BEST_EFFORT_OOM_SCORE = -997, 1000
# A Burstable workload is killed before a Guaranteed one and after a BestEffort one.
MIN_BURSTABLE_OOM_SCORE, MAX_BURSTABLE_OOM_SCORE = 2, 999

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


def eviction_order(
    workloads: Iterable[tuple[str, Qos, int]], excess: Mapping[str, int] | None = None
) -> list[str]:
    """Workload names in eviction order, from (name, class, priority): BestEffort first, Guaranteed last, low
    priority first.

    `excess` holds, by name, by how much the usage of a workload exceeds its request. In a class, the workloads
    over their request come before the others, and of equal priority, the largest excess comes first.
    """
    over = excess or {}

    def rank(workload: tuple[str, Qos, int]) -> tuple[int, bool, int, int, str]:
        name, qos, priority = workload
        return (-qos, over.get(name, 0) <= 0, priority, -over.get(name, 0), name)

    return [name for name, _, _ in sorted(workloads, key=rank)]


def is_compressible(resource: str) -> bool:
    return resource in COMPRESSIBLE


def oom_score_adj(qos: Qos, memory_request: int, node_memory: int) -> int:
    """The kernel's score of a workload's processes: the smaller the part of the node's memory that a
    Burstable workload requests, the earlier the kernel kills it."""
    match qos:
        case Qos.Guaranteed:
            return GUARANTEED_OOM_SCORE
        case Qos.BestEffort:
            return BEST_EFFORT_OOM_SCORE
    score = 1000 - 1000 * memory_request // max(1, node_memory)
    return min(MAX_BURSTABLE_OOM_SCORE, max(MIN_BURSTABLE_OOM_SCORE, score))
