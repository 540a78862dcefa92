"""What is short on one node for a workload, and who there could free it by going?"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lattice.scheduling.preemption.anti_affinity_victims import Apart
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.preemption.reclaimable import lower, needs_of
from lattice.scheduling.preemption.victim_search import Limits, Party, Short


@dataclass(frozen=True, slots=True)
class Gang:
    """So many members can go before it is of no use; then all must, if they may."""

    to_spare: int
    members: tuple[Placement, ...]
    may_go: bool


@dataclass(slots=True)
class Asking:
    """One workload that looks for room: what holds for it on every node. The table stays as it is meanwhile."""

    table: NodeTable
    ask: WorkloadAsk
    may_disrupt: Mapping[str, int]
    age: Callable[[str], float]
    apart: Apart
    _gangs: dict[str, Gang] = field(default_factory=dict)

    def gang(self, name: str) -> Gang:
        known = self._gangs.get(name)
        if known is None:
            members = tuple(self.table.placements[each] for each in self.table.gangs[name])
            to_spare = len(members) - max(each.ask.min_member for each in members)
            known = self._gangs[name] = Gang(to_spare, members, self._may_all_go(members))
        return known

    def _may_all_go(self, members: Iterable[Placement]) -> bool:
        return all(each.ask.priority < self.ask.priority for each in members) and not over_limits(
            members, self.may_disrupt
        )

    def worth(self, placement: Placement) -> tuple[int, float]:
        return (placement.ask.priority, max(0.0, self.age(placement.ask.name)))


class Scene:
    """One node as it is: `short` is what must at least be freed. Whether that is enough, only the filters can tell."""

    def __init__(self, asking: Asking, row: int) -> None:
        table, ask = asking.table, asking.ask
        self.asking, self.row = asking, row
        self._here = list(table.on_row[row].values())
        self._candidates = lower(table, row, ask)
        missing = {r: amount - int(table.free(r)[row]) for r, amount in ask.needs}
        self._missing = {r: amount for r, amount in missing.items() if amount > 0}
        self._in_the_way = asking.apart.in_the_way(row).union(self._on_its_ports())
        amounts = (*self._missing.values(), *([len(self._in_the_way)] if self._in_the_way else []))
        self.short = Short(amounts, *self._lacking_gpus())

    def _on_its_ports(self) -> Iterator[str]:
        wanted = self.asking.ask.demands.host_ports
        for each in self._here if wanted else ():
            if any(port in each.ask.demands.host_ports or port[0] in each.ports for port in wanted):
                yield each.ask.name

    @property
    def fewest(self) -> tuple[int, int] | None:
        """How many go with the smallest party that may go at all, and their least sum of priorities; None: nobody may."""
        if any(self._may_go_alone(each) for each in self._candidates):
            return (1, min(each.ask.priority for each in self._candidates if self._may_go_alone(each)))
        gangs = [self.asking.gang(name) for name in self._whole_gangs()]
        return min(
            ((len(gang.members), sum(each.ask.priority for each in gang.members)) for gang in gangs),
            default=None,
        )

    def _lacking_gpus(self) -> tuple[dict[int, int], int]:
        """Of each that would do, how much it lacks; nothing, if enough of them are ready."""
        need, facts = self.asking.ask.demands.gpu, self.asking.table.facts[self.row]
        if need is None or facts is None:
            return {}, 0
        usable = {
            n: need.milli - milli
            for n, (model, milli) in enumerate(facts.gpus)
            if not need.models or model in need.models
        }
        for placement in self._here:
            for number in placement.gpus:
                if number in usable and placement.ask.demands.gpu:
                    usable[number] += placement.ask.demands.gpu.milli
        is_ready = sum(lack <= 0 for lack in usable.values()) >= need.count
        return ({}, 0) if is_ready else (usable, need.count)

    @property
    def limits(self) -> Limits:
        gangs = {each.ask.group for each in self._candidates if each.ask.group}
        return Limits(self.asking.may_disrupt, {gang: self.asking.gang(gang).to_spare for gang in gangs})

    def parties(self, most: int, *, alike: bool) -> Iterator[Party]:
        """Of no more than so many. `alike`: only those that help, and who gives the same is the same.

        Else everybody, told apart by all that filters see.
        """
        for party in self._all_parties():
            if len(party.members) <= most and (not alike or party.gpus or any(map(any, party.gives))):
                yield party if alike else replace(party, kind=(party.kind, *map(_seen, party.members)))

    def _all_parties(self) -> Iterator[Party]:
        for each in self._candidates:
            if self._may_go_alone(each):
                yield self._party((each,), each.ask.group)
        for name in self._whole_gangs():
            yield self._party(self.asking.gang(name).members, name, is_whole=True)

    def _may_go_alone(self, placement: Placement) -> bool:
        gang = placement.ask.group
        if gang and self.asking.gang(gang).to_spare <= 0:
            return False
        return all(self.asking.may_disrupt[service] > 0 for service in self._limited([placement]))

    def _whole_gangs(self) -> Iterator[str]:
        """Those of which more are here than could be spared; as a whole they may go."""
        for name, count in Counter(each.ask.group for each in self._candidates if each.ask.group).items():
            gang = self.asking.gang(name)
            if count > gang.to_spare and gang.may_go:
                yield name

    def _party(self, members: tuple[Placement, ...], gang: str, *, is_whole: bool = False) -> Party:
        here = [each for each in members if each.row == self.row] if is_whole else members
        gives = tuple(map(self._gives, here))
        gpus = tuple(held for each in here for held in self._holds(each)) if self.short.gpu_count else ()
        services = self._limited(members)
        kind = (gives, gpus, services, gang, is_whole)
        return Party(
            members, tuple(map(self.asking.worth, members)), gives, gpus, services, gang, is_whole, kind
        )

    def _gives(self, placement: Placement) -> tuple[int, ...]:
        """No more than is missing: who gives too much is like who gives enough."""
        given = dict(needs_of(self.asking.table, placement))
        amounts = [min(given.get(resource, 0), lack) for resource, lack in self._missing.items()]
        return (*amounts, int(placement.ask.name in self._in_the_way)) if self._in_the_way else tuple(amounts)

    def _holds(self, placement: Placement) -> Iterator[tuple[int, int]]:
        milli = placement.ask.demands.gpu.milli if placement.ask.demands.gpu else 0
        return ((number, milli) for number in placement.gpus if self.short.gpus.get(number, 0) > 0)

    def _limited(self, members: Iterable[Placement]) -> tuple[str, ...]:
        if not self.asking.may_disrupt:
            return ()
        return tuple(service for each in members if (service := service_of(each)) in self.asking.may_disrupt)


def _seen(placement: Placement) -> Hashable:
    return (placement.ask.shape, placement.gpus, placement.ports)


def service_of(placement: Placement) -> str:
    demands = placement.ask.demands
    return f"{demands.namespace}/{demands.service}" if demands.service else ""


def over_limits(members: Iterable[Placement], may_disrupt: Mapping[str, int]) -> dict[str, int]:
    """Of which services more would go than may, and how many may."""
    gone = Counter(map(service_of, members))
    return {
        each: may_disrupt[each]
        for each in sorted(gone)
        if each in may_disrupt and gone[each] > may_disrupt[each]
    }
