"""Which replicas start and which stop next, so that never fewer are ready than are wanted, and never more than one is beyond them?"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lattice.placement.greedy.scale_down import leaving, taken
from lattice.lifecycle.replica_template import Cell


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    slot: int
    cell: Cell
    revision: str
    is_ready: bool = False
    is_going: bool = False  # marked for removal, and still there
    node: str = ""
    failure: str = ""  # why it failed last, while it is down
    no_room: str = ""  # why no node takes it, with what is missing

    @property
    def is_failing(self) -> bool:
        return bool(self.failure) and not self.is_ready


@dataclass(frozen=True, slots=True)
class Steps:
    """`start`: cells that get a replica more each; `stop`: replicas that go."""

    start: tuple[Cell, ...] = ()
    stop: tuple[str, ...] = ()
    is_rolling: bool = (
        False  # replicas of another revision, or where they are not placed any more, are still there
    )
    failure: str = ""  # why the new revision does not come up: nothing more is replaced until it does
    is_waiting: bool = (
        False  # too many are there, and which of them goes depends on others that are not ready
    )
    no_room: str = (
        ""  # why the replica beyond those that are wanted finds no node: nothing is replaced until it does
    )

    @property
    def is_none(self) -> bool:
        return not (self.start or self.stop)


@dataclass(frozen=True, slots=True)
class Around:
    """What is where its replicas are; asked only when there are too many of them."""

    is_shared: Callable[[str], bool] = lambda _: False  # is anything of others on this node?
    least: Callable[[str], int] = lambda _: 1  # machines that this cluster keeps, whoever is on them


ALONE = Around()


class _Sorted(NamedTuple):
    outdated: list[Replica]  # of another revision or in another place
    surplus: list[Replica]  # as they should be, but too many
    missing: Counter[Cell]


def next_steps(
    wanted: Mapping[Cell, int],
    revision: str,
    replicas: Sequence[Replica],
    least: int = 0,
    around: Around = ALONE,
) -> Steps:
    """`least`: so many stay ready as long as they can, also where fewer could be placed anew."""
    live = [each for each in replicas if not each.is_going]
    found = _sort(wanted, revision, live, around)
    total, failure = sum(wanted.values()), _failure(revision, live)
    unwanted = _leaving_order([*found.outdated, *found.surplus], live)
    stop = _spare(unwanted, max(total, least), live)
    start = _lacking(found.missing, total, [each for each in live if each.name not in stop], replicas)
    if not found.outdated:
        return Steps(start, stop, is_waiting=len(stop) < len(unwanted))
    no_room = next((each.no_room for each in live if each.revision == revision and each.no_room), "")
    return Steps(start, stop, is_rolling=True, failure=failure, no_room=no_room)


def _sort(wanted: Mapping[Cell, int], revision: str, live: Sequence[Replica], around: Around) -> _Sorted:
    outdated: list[Replica] = []
    current: dict[Cell, list[Replica]] = {cell: [] for cell in wanted}
    for each in live:
        (current[each.cell] if each.revision == revision and each.cell in current else outdated).append(each)
    many = {cell: len(here) - wanted[cell] for cell, here in current.items() if len(here) > wanted[cell]}
    surplus = [each for cell, count in many.items() for each in _surplus(current[cell], count, live, around)]
    return _Sorted(
        outdated, surplus, +Counter({cell: wanted[cell] - len(here) for cell, here in current.items()})
    )


def _surplus(here: Sequence[Replica], count: int, live: Sequence[Replica], around: Around) -> list[Replica]:
    """Of one cell. Those that are not ready first, then as placement has it; of those on one node the highest slot."""
    last_first = sorted(here, key=lambda each: -each.slot)
    going = [each for each in last_first if not each.is_ready][:count]
    if len(going) == count:
        return going
    ready, mine = [each for each in last_first if each.is_ready], {each.name for each in here}
    beside = {each.node for each in live if each.name not in mine}
    least = around.least(here[0].cell[0])
    held = Counter(each.node for each in ready)
    left = leaving(held, lambda node: node in beside or around.is_shared(node), count - len(going), least)
    return going + taken(ready, lambda each: each.node, left)


def _leaving_order(unwanted: Sequence[Replica], live: Sequence[Replica]) -> list[Replica]:
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


def _spare(unwanted: Sequence[Replica], total: int, live: Sequence[Replica]) -> tuple[str, ...]:
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


def _lacking(
    missing: Counter[Cell], total: int, staying: Sequence[Replica], replicas: Sequence[Replica]
) -> tuple[Cell, ...]:
    """All that are lacking; one in the place of another only when nothing else is under way. Who finds no room is not waited for."""
    cells = [cell for cell in sorted(missing) for _ in range(missing[cell])]
    lacking = total - len(staying)
    if lacking > 0:
        return tuple(cells[:lacking])
    going = (
        sum(each.is_going for each in replicas) + sum(not each.is_going for each in replicas) - len(staying)
    )
    may_surge = (
        cells
        and len(staying) == total
        and not going
        and all(each.is_ready or each.no_room for each in staying)
    )
    return tuple(cells[:1]) if may_surge else ()


def _failure(revision: str, live: Iterable[Replica]) -> str:
    failing = sorted(
        (each.slot, each.failure) for each in live if each.revision == revision and each.is_failing
    )
    return failing[0][1] if failing else ""
