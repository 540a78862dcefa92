"""Which replicas start and which stop next, so that never fewer are ready than are wanted, and never more than one is beyond them?"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from lattice.lifecycle.replica_template import NodeGroupKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    slot: int
    node_group: NodeGroupKey
    revision: str
    is_ready: bool = False
    is_terminating: bool = False  # marked for removal, and still there
    node: str = ""
    failure: str = ""  # why it failed last, while it is down
    unschedulable_reason: str = ""  # why no node takes it, with what is missing

    @property
    def is_failing(self) -> bool:
        return bool(self.failure) and not self.is_ready


@dataclass(frozen=True, slots=True)
class RolloutSteps:
    """`start`: cells that get a replica more each; `stop`: replicas that go."""

    start: tuple[NodeGroupKey, ...] = ()
    stop: tuple[str, ...] = ()
    is_rolling: bool = (
        False  # replicas of another revision, or where they are not placed any more, are still there
    )
    failure: str = ""  # why the new revision does not come up: nothing more is replaced until it does
    is_waiting: bool = (
        False  # too many are there, and which of them goes depends on others that are not ready
    )
    unschedulable_reason: str = (
        ""  # why the replica beyond those that are wanted finds no node: nothing is replaced until it does
    )

    @property
    def is_empty(self) -> bool:
        return not (self.start or self.stop)


@dataclass(frozen=True, slots=True)
class ScaleDownLimits:
    """What is where its replicas are; asked only when there are too many of them."""

    is_shared: Callable[[str], bool] = lambda _: False  # is anything of others on this node?
    min_machines: Callable[[str], int] = lambda _: 1  # machines that this cluster keeps, whoever is on them


NO_SCALE_DOWN_LIMITS = ScaleDownLimits()


class _ReplicaDiff(NamedTuple):
    outdated: list[Replica]  # of another revision or in another place
    surplus: list[Replica]  # as they should be, but too many
    missing: Counter[NodeGroupKey]


def next_steps(
    wanted: Mapping[NodeGroupKey, int],
    revision: str,
    replicas: Sequence[Replica],
    min_ready: int = 0,
    limits: ScaleDownLimits = NO_SCALE_DOWN_LIMITS,
) -> RolloutSteps:
    """`least`: so many stay ready as long as they can, also where fewer could be placed anew."""
    live = [each for each in replicas if not each.is_terminating]
    found = _diff_replicas(wanted, revision, live, limits)
    total, failure = sum(wanted.values()), _first_failure(revision, live)
    unwanted = _removal_order([*found.outdated, *found.surplus], live)
    stop = _removable(unwanted, max(total, min_ready), live)
    start = _node_groups_to_start(
        found.missing, total, [each for each in live if each.name not in stop], replicas
    )
    if not found.outdated:
        return RolloutSteps(start, stop, is_waiting=len(stop) < len(unwanted))
    no_room = next(
        (
            each.unschedulable_reason
            for each in live
            if each.revision == revision and each.unschedulable_reason
        ),
        "",
    )
    return RolloutSteps(start, stop, is_rolling=True, failure=failure, unschedulable_reason=no_room)


def _diff_replicas(
    wanted: Mapping[NodeGroupKey, int], revision: str, live: Sequence[Replica], around: ScaleDownLimits
) -> _ReplicaDiff:
    outdated: list[Replica] = []
    current: dict[NodeGroupKey, list[Replica]] = {cell: [] for cell in wanted}
    for each in live:
        (
            current[each.node_group] if each.revision == revision and each.node_group in current else outdated
        ).append(each)
    many = {cell: len(here) - wanted[cell] for cell, here in current.items() if len(here) > wanted[cell]}
    surplus = [each for cell, count in many.items() for each in _surplus(current[cell], count, live, around)]
    return _ReplicaDiff(
        outdated, surplus, +Counter({cell: wanted[cell] - len(here) for cell, here in current.items()})
    )


def _surplus(
    here: Sequence[Replica], count: int, live: Sequence[Replica], around: ScaleDownLimits
) -> list[Replica]:
    """Of one cell. Those that are not ready first, then as placement has it; of those on one node the highest slot."""
    last_first = sorted(here, key=lambda each: -each.slot)
    going = [each for each in last_first if not each.is_ready][:count]
    if len(going) == count:
        return going
    ready, mine = [each for each in last_first if each.is_ready], {each.name for each in here}
    beside = {each.node for each in live if each.name not in mine}
    least = around.min_machines(here[0].node_group[0])
    held = Counter(each.node for each in ready)
    left = removals_by_machine(
        held, lambda node: node in beside or around.is_shared(node), count - len(going), least
    )
    return going + first_on_machines(ready, lambda each: each.node, left)


def _removal_order(unwanted: Sequence[Replica], live: Sequence[Replica]) -> list[Replica]:
    """Those that are not ready first, then those that share a node with the most others, then the highest slot."""
    crowd = Counter(each.node for each in live if each.node)
    going = sorted((each for each in unwanted if not each.is_ready), key=lambda each: -each.slot)
    crowd.subtract(each.node for each in going if each.node)
    queue = [(-crowd[each.node], -each.slot, each.name, each) for each in unwanted if each.is_ready]
    heapq.heapify(queue)
    while queue:
        counted, slot, name, each = heapq.heappop(queue)
        if -counted != crowd[each.node]:  # others have left its node meanwhile
            heapq.heappush(queue, (-crowd[each.node], slot, name, each))
            continue
        going.append(each)
        if each.node:
            crowd[each.node] -= 1
    return going


def _removable(unwanted: Sequence[Replica], total: int, live: Sequence[Replica]) -> tuple[str, ...]:
    """As many of them as others can do without: one that is not ready is missed by nobody."""
    ready = sum(each.is_ready for each in live)
    found = []
    for each in unwanted:
        if each.is_ready:
            if ready <= total:
                continue
            ready -= 1
        found.append(each.name)
    return tuple(found)


def _node_groups_to_start(
    missing: Counter[NodeGroupKey], total: int, staying: Sequence[Replica], replicas: Sequence[Replica]
) -> tuple[NodeGroupKey, ...]:
    """All that are lacking; one in the place of another only when nothing else is under way. Who finds no room is not waited for."""
    cells = [cell for cell in sorted(missing) for _ in range(missing[cell])]
    lacking = total - len(staying)
    if lacking > 0:
        return tuple(cells[:lacking])
    going = (
        sum(each.is_terminating for each in replicas)
        + sum(not each.is_terminating for each in replicas)
        - len(staying)
    )
    may_surge = (
        cells
        and len(staying) == total
        and not going
        and all(each.is_ready or each.unschedulable_reason for each in staying)
    )
    return tuple(cells[:1]) if may_surge else ()


def _first_failure(revision: str, live: Iterable[Replica]) -> str:
    failing = sorted(
        (each.slot, each.failure) for each in live if each.revision == revision and each.is_failing
    )
    return failing[0][1] if failing else ""


def removals_by_machine(
    held: Mapping[str, int], is_shared: Callable[[str], bool], count: int, least: int
) -> Counter[str]:
    """How many leave each machine: as many machines as can be are left to nobody, the rest leaves those with the most of them.

    `held`: replicas of one service on machines of one class in a cluster. `is_shared`: is anything else there? `least`: on so many
    machines it stays as long as it can, since a cluster keeps them whoever is on them.
    """
    left, going = Counter(held), Counter[str]()
    names, rest = sorted(held, reverse=True), count
    for name in sorted(names, key=lambda each: held[each]):
        if held[name] > rest or len(left) <= least:
            break
        if not is_shared(name):
            going[name] = left.pop(name)
            rest -= going[name]
    queue = [(-left[name], order, name) for order, name in enumerate(names) if name in left]
    heapq.heapify(queue)
    for _ in range(rest):
        fewer, order, name = queue[0]
        going[name] += 1
        heapq.heapreplace(queue, (fewer + 1, order, name))
    return going


def first_on_machines(several: Iterable[T], machine: Callable[[T], str], counts: Counter[str]) -> list[T]:
    """The first that are on these machines, so many of each."""
    left, found = Counter(counts), []
    for each in several:
        if left[machine(each)]:
            left[machine(each)] -= 1
            found.append(each)
    return found
