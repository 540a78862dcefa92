"""What is short on one node for a workload, and who there could free it by going?"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lattice.scheduling.preemption.anti_affinity_conflicts import AntiAffinityConflicts
from lattice.scheduling.preemption.reclaimable import reclaimable_needs, victim_candidates
from lattice.scheduling.preemption.victim_search import Deficit, DisruptionLimits, VictimGroup
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement


@dataclass(frozen=True, slots=True)
class GangState:
    """So many members can go before it is of no use; then all must, if they may."""

    spare_members: int
    members: tuple[Placement, ...]
    may_be_evicted: bool


@dataclass(slots=True)
class PreemptionContext:
    """One workload that looks for room: what holds for it on every node. The table stays as it is meanwhile."""

    table: NodeTable
    ask: WorkloadAsk
    disruptions_allowed: Mapping[str, int]
    age_of: Callable[[str], float]
    conflicts: AntiAffinityConflicts
    _gangs: dict[str, GangState] = field(default_factory=dict)

    def gang(self, name: str) -> GangState:
        known = self._gangs.get(name)
        if known is None:
            members = tuple(self.table.placements[each] for each in self.table.gang_members[name])
            to_spare = len(members) - max(each.ask.min_member for each in members)
            known = self._gangs[name] = GangState(to_spare, members, self._may_evict_all(members))
        return known

    def _may_evict_all(self, members: Iterable[Placement]) -> bool:
        return all(each.ask.priority < self.ask.priority for each in members) and not exceeded_limits(
            members, self.disruptions_allowed
        )

    def eviction_cost(self, placement: Placement) -> tuple[int, float]:
        return (placement.ask.priority, max(0.0, self.age_of(placement.ask.name)))


class NodeVictims:
    """One node as it is: `short` is what must at least be freed. Whether that is enough, only the filters can tell."""

    def __init__(self, asking: PreemptionContext, row: int) -> None:
        table, ask = asking.table, asking.ask
        self.context, self.row = asking, row
        self._placements = list(table.placements_by_row[row].values())
        self._candidates = victim_candidates(table, row, ask)
        missing = {r: amount - int(table.free(r)[row]) for r, amount in ask.needs}
        self._missing_amounts = {r: amount for r, amount in missing.items() if amount > 0}
        self._conflicting_names = asking.conflicts.conflicting_names(row).union(self._port_conflicts())
        amounts = (
            *self._missing_amounts.values(),
            *([len(self._conflicting_names)] if self._conflicting_names else []),
        )
        self.deficit = Deficit(amounts, *self._gpu_deficit())

    def _port_conflicts(self) -> Iterator[str]:
        wanted = self.context.ask.demands.host_ports
        for each in self._placements if wanted else ():
            if any(port in each.ask.demands.host_ports or port[0] in each.ports for port in wanted):
                yield each.ask.name

    @property
    def smallest_group(self) -> tuple[int, int] | None:
        """How many go with the smallest party that may go at all, and their least sum of priorities; None: nobody may."""
        if any(self._may_evict_alone(each) for each in self._candidates):
            return (1, min(each.ask.priority for each in self._candidates if self._may_evict_alone(each)))
        gangs = [self.context.gang(name) for name in self._evictable_gangs()]
        return min(
            ((len(gang.members), sum(each.ask.priority for each in gang.members)) for gang in gangs),
            default=None,
        )

    def _gpu_deficit(self) -> tuple[dict[int, int], int]:
        """Of each that would do, how much it lacks; nothing, if enough of them are ready."""
        need, facts = self.context.ask.demands.gpu, self.context.table.node_infos[self.row]
        if need is None or facts is None:
            return {}, 0
        usable = {
            n: need.milli - milli
            for n, (model, milli) in enumerate(facts.gpus)
            if not need.models or model in need.models
        }
        for placement in self._placements:
            for number in placement.gpus:
                if number in usable and placement.ask.demands.gpu:
                    usable[number] += placement.ask.demands.gpu.milli
        is_ready = sum(lack <= 0 for lack in usable.values()) >= need.count
        return ({}, 0) if is_ready else (usable, need.count)

    @property
    def limits(self) -> DisruptionLimits:
        gangs = {each.ask.group for each in self._candidates if each.ask.group}
        return DisruptionLimits(
            self.context.disruptions_allowed, {gang: self.context.gang(gang).spare_members for gang in gangs}
        )

    def groups(self, most: int, *, by_amount: bool) -> Iterator[VictimGroup]:
        """Of no more than so many. `alike`: only those that help, and who gives the same is the same.

        Else everybody, told apart by all that filters see.
        """
        for party in self._all_groups():
            if len(party.members) <= most and (
                not by_amount or party.freed_gpus or any(map(any, party.freed_amounts))
            ):
                yield (
                    party
                    if by_amount
                    else replace(
                        party, equivalence_key=(party.equivalence_key, *map(_filter_identity, party.members))
                    )
                )

    def _all_groups(self) -> Iterator[VictimGroup]:
        for each in self._candidates:
            if self._may_evict_alone(each):
                yield self._group((each,), each.ask.group)
        for name in self._evictable_gangs():
            yield self._group(self.context.gang(name).members, name, is_whole_gang=True)

    def _may_evict_alone(self, placement: Placement) -> bool:
        gang = placement.ask.group
        if gang and self.context.gang(gang).spare_members <= 0:
            return False
        return all(
            self.context.disruptions_allowed[service] > 0 for service in self._limited_services([placement])
        )

    def _evictable_gangs(self) -> Iterator[str]:
        """Those of which more are here than could be spared; as a whole they may go."""
        for name, count in Counter(each.ask.group for each in self._candidates if each.ask.group).items():
            gang = self.context.gang(name)
            if count > gang.spare_members and gang.may_be_evicted:
                yield name

    def _group(
        self, members: tuple[Placement, ...], gang: str, *, is_whole_gang: bool = False
    ) -> VictimGroup:
        here = [each for each in members if each.row == self.row] if is_whole_gang else members
        gives = tuple(map(self._freed_amounts, here))
        gpus = (
            tuple(held for each in here for held in self._freed_gpus(each)) if self.deficit.gpu_count else ()
        )
        services = self._limited_services(members)
        kind = (gives, gpus, services, gang, is_whole_gang)
        return VictimGroup(
            members,
            tuple(map(self.context.eviction_cost, members)),
            gives,
            gpus,
            services,
            gang,
            is_whole_gang,
            kind,
        )

    def _freed_amounts(self, placement: Placement) -> tuple[int, ...]:
        """No more than is missing: who gives too much is like who gives enough."""
        given = dict(reclaimable_needs(self.context.table, placement))
        amounts = [min(given.get(resource, 0), lack) for resource, lack in self._missing_amounts.items()]
        return (
            (*amounts, int(placement.ask.name in self._conflicting_names))
            if self._conflicting_names
            else tuple(amounts)
        )

    def _freed_gpus(self, placement: Placement) -> Iterator[tuple[int, int]]:
        milli = placement.ask.demands.gpu.milli if placement.ask.demands.gpu else 0
        return (
            (number, milli) for number in placement.gpus if self.deficit.missing_by_gpu.get(number, 0) > 0
        )

    def _limited_services(self, members: Iterable[Placement]) -> tuple[str, ...]:
        if not self.context.disruptions_allowed:
            return ()
        return tuple(
            service for each in members if (service := service_of(each)) in self.context.disruptions_allowed
        )


def _filter_identity(placement: Placement) -> Hashable:
    return (placement.ask.shape, placement.gpus, placement.ports)


def service_of(placement: Placement) -> str:
    demands = placement.ask.demands
    return f"{demands.namespace}/{demands.service}" if demands.service else ""


def exceeded_limits(members: Iterable[Placement], may_disrupt: Mapping[str, int]) -> dict[str, int]:
    """Of which services more would go than may, and how many may."""
    gone = Counter(map(service_of, members))
    return {
        each: may_disrupt[each]
        for each in sorted(gone)
        if each in may_disrupt and gone[each] > may_disrupt[each]
    }
