"""The steps of a rollout: which replicas start and which stop next.

A ready replica stops only while more replicas are ready than desired (I-24), and at most one surge replica
runs above the desired count. A surge replica that no node accepts does not count: another one starts in a node
group without a waiting replica, so that a placement that gave way to the surge is used.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from lattice.lifecycle.replica_template import NodeGroupKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the service as the rollout sees it."""

    name: str
    slot: int
    node_group: NodeGroupKey
    revision: str
    is_ready: bool = False
    # Marked for deletion, and its object still exists.
    is_terminating: bool = False
    node: str = ""
    # The reason of the last failure, while the replica is down.
    failure: str = ""
    # The reason why no node accepts the replica, with the missing resources.
    unschedulable_reason: str = ""
    # The replica failed, and no restart would help.
    has_failed_finally: bool = False

    @property
    def is_failing(self) -> bool:
        return bool(self.failure) and not self.is_ready


@dataclass(frozen=True, slots=True)
class RolloutSteps:
    """The next steps of a rollout: node groups in which a replica starts, and names of replicas that stop."""

    start: tuple[NodeGroupKey, ...] = ()
    stop: tuple[str, ...] = ()
    # Replicas of another revision, or in a node group without a placement, still exist.
    is_rolling: bool = False
    # As many replicas of the current revision are ready as are desired.
    is_ready: bool = True
    # The reason why the new revision fails; the rollout replaces no replica until the new revision is ready.
    failure: str = ""
    # Surplus replicas exist that must not stop until other replicas are ready.
    is_waiting: bool = False
    # The reason why the surge replica is unschedulable; the rollout replaces no replica until it is
    # scheduled.
    unschedulable_reason: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.start or self.stop)


@dataclass(frozen=True, slots=True)
class ScaleDownLimits:
    """What a scale-down must know about nodes and clusters; the functions are called only if the service has
    surplus replicas."""

    # Whether workloads of other services run on the node.
    is_shared: Callable[[str], bool] = lambda _: False
    # The number of machines that the cluster keeps, even without workloads.
    min_machines: Callable[[str], int] = lambda _: 1


NO_SCALE_DOWN_LIMITS = ScaleDownLimits()


class _ReplicaDiff(NamedTuple):
    # Replicas of another revision, or in a node group without a placement.
    outdated: list[Replica]
    # Replicas of the current revision above the desired count of their node group.
    surplus: list[Replica]
    missing: Counter[NodeGroupKey]


def next_steps(
    desired: Mapping[NodeGroupKey, int],
    revision: str,
    replicas: Sequence[Replica],
    min_ready: int = 0,
    limits: ScaleDownLimits = NO_SCALE_DOWN_LIMITS,
    final_failure: str = "",
) -> RolloutSteps:
    """Return the next replicas to start and to stop on the way to the desired replicas per node group.

    A ready replica stops only if at least `min_ready` replicas stay ready, even if `desired` adds up to
    less. `final_failure` is the reason of an earlier surge replica of the same revision that failed and whose
    restart would not help: no further surge replica starts.
    """
    live = [replica for replica in replicas if not replica.is_terminating]
    diff = _diff_replicas(desired, revision, live, limits)
    total = sum(desired.values())
    removable = _removal_order([*diff.outdated, *diff.surplus], live, desired)
    stop = _removable(removable, max(total, min_ready), live)
    current = [replica for replica in live if replica.revision == revision]
    is_ready = sum(replica.is_ready for replica in current) >= total
    failed_surge = _failed_surge(current, total, live, limits) if diff.outdated and not stop else None
    if failed_surge is not None:
        return RolloutSteps(
            stop=(failed_surge.name,), is_rolling=True, is_ready=is_ready, failure=failed_surge.failure
        )
    staying = [replica for replica in live if replica.name not in stop]
    waiting = {
        replica.name: replica.node_group
        for replica in current
        if replica.unschedulable_reason and not replica.node
    }
    start = _node_groups_to_start(diff.missing, total, staying, replicas, waiting)
    # A surge replica that still runs beside other workloads may become ready after a manual retry.
    has_surge = len(live) > total and bool(current)
    if diff.outdated and final_failure and len(staying) >= total and not has_surge:
        return RolloutSteps((), stop, is_rolling=True, is_ready=is_ready, failure=final_failure)
    failing = [(replica.slot, replica.failure) for replica in current if replica.is_failing]
    unschedulable = [replica.unschedulable_reason for replica in current if replica.unschedulable_reason]
    return RolloutSteps(
        start,
        stop,
        is_rolling=bool(diff.outdated),
        is_ready=is_ready,
        is_waiting=not diff.outdated and len(stop) < len(removable),
        failure=min(failing)[1] if failing else "",
        unschedulable_reason=unschedulable[0] if unschedulable else "",
    )


def _failed_surge(
    current: Sequence[Replica], total: int, live: Sequence[Replica], limits: ScaleDownLimits
) -> Replica | None:
    """The surge replica that failed for good and is alone on its machine: without it, the machine that the
    update needed is given back until the template changes."""
    if len(live) <= total or any(replica.is_terminating for replica in live):
        return None
    replicas_by_node = Counter(replica.node for replica in live)
    for replica in current:
        is_alone = replicas_by_node[replica.node] == 1 and not limits.is_shared(replica.node)
        if replica.has_failed_finally and replica.failure and replica.node and is_alone:
            return replica
    return None


def _diff_replicas(
    desired: Mapping[NodeGroupKey, int], revision: str, live: Sequence[Replica], limits: ScaleDownLimits
) -> _ReplicaDiff:
    """Compare the live replicas with the desired count of each node group."""
    outdated: list[Replica] = []
    current: dict[NodeGroupKey, list[Replica]] = {group: [] for group in desired}
    for replica in live:
        if replica.revision == revision and replica.node_group in current:
            current[replica.node_group].append(replica)
        else:
            outdated.append(replica)
    surplus: list[Replica] = []
    missing: Counter[NodeGroupKey] = Counter()
    for group, replicas in current.items():
        count = len(replicas) - desired[group]
        if count > 0:
            surplus += _surplus(replicas, count, live, limits)
        elif count < 0:
            missing[group] = -count
    return _ReplicaDiff(outdated, surplus, missing)


def _surplus(
    replicas: Sequence[Replica], count: int, live: Sequence[Replica], limits: ScaleDownLimits
) -> list[Replica]:
    """Choose `count` replicas of one node group to stop: replicas that are not ready first, then by machine.

    Placement frees machines by the same rule, so that the machines that it stops paying for are the machines
    that become empty. On one machine the replica with the highest slot number stops first.
    """
    last_first = sorted(replicas, key=lambda replica: -replica.slot)
    stopping = [replica for replica in last_first if not replica.is_ready][:count]
    if len(stopping) == count:
        return stopping
    ready = [replica for replica in last_first if replica.is_ready]
    group_names = {replica.name for replica in replicas}
    shared_nodes = {replica.node for replica in live if replica.name not in group_names}
    removals = removals_by_machine(
        Counter(replica.node for replica in ready),
        lambda node: node in shared_nodes or limits.is_shared(node),
        count - len(stopping),
        limits.min_machines(replicas[0].node_group[0]),
    )
    return stopping + first_on_machines(ready, lambda replica: replica.node, removals)


def _removal_order(
    removable: Sequence[Replica], live: Sequence[Replica], desired: Mapping[NodeGroupKey, int]
) -> list[Replica]:
    """Order replicas for removal: not ready first, then from node groups with more replicas than desired, so
    that a group runs one surge replica at most, then from the nodes with the most replicas of the service, then
    the highest slot."""
    replicas_by_node = Counter(replica.node for replica in live if replica.node)
    excess = Counter(replica.node_group for replica in live)
    excess.subtract(desired)
    ordered = sorted(
        (replica for replica in removable if not replica.is_ready), key=lambda replica: -replica.slot
    )
    replicas_by_node.subtract(replica.node for replica in ordered if replica.node)
    excess.subtract(replica.node_group for replica in ordered)

    def rank(replica: Replica) -> tuple[bool, int]:
        return excess[replica.node_group] <= 0, -replicas_by_node[replica.node]

    queue = [
        (rank(replica), -replica.slot, replica.name, replica) for replica in removable if replica.is_ready
    ]
    heapq.heapify(queue)
    while queue:
        ranked, slot, name, replica = heapq.heappop(queue)
        # The rank in the heap is stale: a replica of the same node or group was taken after it was pushed.
        if ranked != rank(replica):
            heapq.heappush(queue, (rank(replica), slot, name, replica))
            continue
        ordered.append(replica)
        excess[replica.node_group] -= 1
        if replica.node:
            replicas_by_node[replica.node] -= 1
    return ordered


def _removable(ordered: Sequence[Replica], total: int, live: Sequence[Replica]) -> tuple[str, ...]:
    """Return which of the `ordered` replicas stop now: every replica that is not ready, and ready replicas as
    long as `total` replicas stay ready."""
    ready = sum(replica.is_ready for replica in live)
    stopping = []
    for replica in ordered:
        if replica.is_ready:
            if ready <= total:
                continue
            ready -= 1
        stopping.append(replica.name)
    return tuple(stopping)


def _node_groups_to_start(
    missing: Counter[NodeGroupKey],
    total: int,
    staying: Sequence[Replica],
    replicas: Sequence[Replica],
    waiting: Mapping[str, NodeGroupKey],
) -> tuple[NodeGroupKey, ...]:
    """Return the node groups in which replicas start now.

    While fewer than `total` replicas stay, missing replicas start at once, up to `total`. A surge replica
    starts only while no replica stops and every other replica is ready. Unschedulable replicas do not delay
    the surge (I-32). `waiting` holds the node groups of current replicas that no node accepts: while one of them
    is the surge replica, another one starts only in a node group in which none waits.
    """
    groups: list[NodeGroupKey] = []
    for group in sorted(missing):
        groups += [group] * missing[group]
    lacking = total - len(staying)
    if lacking > 0:
        return tuple(groups[:lacking])
    # Replicas that are terminating already or stop in this step.
    stopping = len(replicas) - len(staying)
    if len(staying) > total:
        groups = [group for group in groups if group not in waiting.values()]
    running = sum(replica.name not in waiting for replica in staying)
    may_surge = (
        groups
        and (len(staying) == total or running <= total)
        and not stopping
        and all(replica.is_ready or replica.unschedulable_reason for replica in staying)
    )
    return tuple(groups[:1]) if may_surge else ()


def removals_by_machine(
    counts: Mapping[str, int], is_shared: Callable[[str], bool], count: int, min_machines: int
) -> Counter[str]:
    """Return how many of `count` removed replicas leave each machine.

    As many machines as possible become empty; the remaining removals come from the machines with the most
    replicas. `counts` holds the replicas of one service on machines of one node group, and `is_shared` tells
    whether workloads of other services run on a machine. At least `min_machines` machines keep a replica as
    long as possible, since the cluster keeps that many machines even without workloads.
    """
    staying, removals = Counter(counts), Counter[str]()
    names, remaining = sorted(counts, reverse=True), count
    for name in sorted(names, key=lambda name: counts[name]):
        if counts[name] > remaining or len(staying) <= min_machines:
            break
        if not is_shared(name):
            removals[name] = staying.pop(name)
            remaining -= removals[name]
    queue = [(-staying[name], order, name) for order, name in enumerate(names) if name in staying]
    heapq.heapify(queue)
    for _ in range(remaining):
        negative_count, order, name = queue[0]
        removals[name] += 1
        heapq.heapreplace(queue, (negative_count + 1, order, name))
    return removals


def first_on_machines(items: Iterable[T], machine: Callable[[T], str], counts: Counter[str]) -> list[T]:
    """Return, in order, the first `counts[machine]` items of each machine."""
    remaining, chosen = Counter(counts), []
    for item in items:
        if remaining[machine(item)]:
            remaining[machine(item)] -= 1
            chosen.append(item)
    return chosen
