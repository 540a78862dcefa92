"""Which machines must a cluster get, start again, give up or lose? What is wanted beside what is there; none with work on it is removed."""

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from lattice.kinds.workload import LatticeWorkload


@dataclass(frozen=True, slots=True)
class ClusterNode:
    name: str
    node_class: str
    has_joined: bool = False
    is_ready: bool = False
    workloads: int = 0  # that are there; of one that is not ready, only those that leave by themselves
    is_decommissioned: bool = False  # marked for removal


@dataclass(frozen=True, slots=True)
class ClusterMachines:
    """What there is of a cluster. `running`: machines that their provider says are up; `paid`: by class, None if nobody counts."""

    desired: Mapping[str, int]
    nodes: Sequence[ClusterNode]
    running: Collection[str] = ()
    provider_machines: Collection[str] = ()  # machines that the provider has, up or not
    paid_counts: Mapping[str, int] | None = None
    used_names: Container[str] = ()  # names that nodes have, of this cluster or not


@dataclass(frozen=True, slots=True)
class MachineSteps:
    create: tuple[tuple[str, str], ...] = ()  # node, class: neither node nor machine is there
    start: tuple[str, ...] = ()  # the node is there, its machine is not, or has ended
    decommission: tuple[str, ...] = ()  # more than wanted: nothing new goes there, and what is there leaves
    remove: tuple[
        str, ...
    ] = ()  # given up and empty; or its machine is gone or has ended, and whatever was there with it
    orphaned: tuple[str, ...] = ()  # machines without a node

    @property
    def is_empty(self) -> bool:
        return not (self.create or self.start or self.decommission or self.remove or self.orphaned)


def plan_machines(cluster: str, found: ClusterMachines) -> MachineSteps:
    staying = [each for each in found.nodes if not each.is_decommissioned]
    gone = {each.name for each in found.nodes if _is_gone(each, found)}
    remove = {
        each.name
        for each in found.nodes
        if each.is_decommissioned and (not each.workloads or _has_ended(each, found))
    } | gone
    names = {each.name for each in found.nodes}
    give_up: list[str] = []
    make: list[tuple[str, str]] = []
    taken = {*names, *found.provider_machines}
    for kind in sorted({*found.desired, *(each.node_class for each in staying)}):
        here = sorted((each for each in staying if each.node_class == kind), key=_decommission_order)
        missing = found.desired.get(kind, 0) - len(here)
        give_up.extend(each.name for each in here[: max(0, -missing)])
        free = (
            name
            for name in _numbered(f"{cluster}-{kind}")
            if name not in taken and name not in found.used_names
        )
        make.extend((next(free), kind) for _ in range(min(missing, _creatable_count(kind, found))))
    return MachineSteps(
        create=tuple(make),
        start=tuple(
            sorted(
                each.name for each in staying if _is_down(each, found) and each.name not in (*give_up, *gone)
            )
        ),
        decommission=tuple(sorted(set(give_up) - gone)),
        remove=tuple(sorted(remove)),
        orphaned=tuple(sorted(set(found.provider_machines) - names)),
    )


def _has_ended(node: ClusterNode, found: ClusterMachines) -> bool:
    """Its machine is down for good, since it is not started again: whatever is bound there waits in vain for its agent to say so."""
    return (
        node.has_joined
        and not node.is_ready
        and node.name in found.provider_machines
        and node.name not in found.running
    )


def _is_gone(node: ClusterNode, found: ClusterMachines) -> bool:
    """Its provider has no such machine any more, and its agent, which was heard once, is silent."""
    return (
        node.has_joined
        and not node.is_ready
        and node.name not in found.provider_machines
        and node.name not in found.running
    )


def _is_down(node: ClusterNode, found: ClusterMachines) -> bool:
    """Its machine is not up, as its provider says; one that the provider does not know is up as long as its agent is heard."""
    return node.name not in found.running and (node.name in found.provider_machines or not node.is_ready)


def fails_over(workload: LatticeWorkload) -> bool:
    """From a node that is silent for too long: it is put elsewhere. Others only wait to hear of their node, which may be for ever."""
    retry, spec = workload.status.retry, workload.spec
    has_failed = retry is not None and retry.revision == spec.effective_revision and retry.is_exhausted
    return spec.desired_state == "Running" and not workload.metadata.deletion_timestamp and not has_failed


def _decommission_order(node: ClusterNode) -> tuple[bool, bool, int, str]:
    """The first is missed least: one that never joined, then one that is not ready, then the one with least on it."""
    return (node.has_joined, node.is_ready, node.workloads, node.name)


def _creatable_count(kind: str, found: ClusterMachines) -> int:
    """A machine that goes is paid for until it is gone: its place is taken only then."""
    if found.paid_counts is None:
        return found.desired.get(kind, 0)
    there = sum(each.node_class == kind for each in found.nodes)
    return max(0, found.paid_counts.get(kind, 0) - there)


def _numbered(stem: str) -> Iterator[str]:
    return (f"{stem}-{number}" for number in count(1))


def machines_to_refund(remove: Collection[str], found: ClusterMachines) -> frozenset[str]:
    """Of machines that are confirmed to be gone: which are paid for no longer, and which leave their place to another?"""
    left = Counter(each.node_class for each in found.nodes if each.name not in remove)
    back: list[str] = []
    for kind, paid in (found.paid_counts or {}).items():
        going = sorted(each.name for each in found.nodes if each.node_class == kind and each.name in remove)
        back += going[: max(0, paid - max(found.desired.get(kind, 0), left[kind]))]
    return frozenset(back)
