"""The deficit of one node for a workload, and the victim groups whose eviction could cover the deficit."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lattice.scheduling.preemption.anti_affinity_conflicts import AntiAffinityConflicts
from lattice.scheduling.preemption.reclaimable import reclaimable_needs, victim_candidates
from lattice.scheduling.preemption.victim_search import Deficit, DisruptionLimits, VictimGroup
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class GangState:
    """A gang that can lose up to `spare_members` members and still run. One more eviction stops the whole
    gang, and is allowed only if `may_be_evicted` is true."""

    spare_members: int
    members: tuple[Placement, ...]
    may_be_evicted: bool


@dataclass(slots=True)
class PreemptionContext:
    """The values of one preemption that are the same for every node. The node table does not change
    meanwhile."""

    table: NodeTable
    ask: WorkloadAsk
    disruptions_allowed: Mapping[str, int]
    age_of: Callable[[str], float]
    conflicts: AntiAffinityConflicts
    _gangs: dict[str, GangState] = field(default_factory=dict)

    def gang(self, name: str) -> GangState:
        gang = self._gangs.get(name)
        if gang is None:
            members = tuple(self.table.placements[member] for member in self.table.gang_members[name])
            # Members may state different minima: the largest counts.
            spare_members = len(members) - max(member.ask.min_member for member in members)
            may_be_evicted = all(
                member.ask.priority < self.ask.priority for member in members
            ) and not exceeded_limits(members, self.disruptions_allowed)
            gang = self._gangs[name] = GangState(spare_members, members, may_be_evicted)
        return gang

    def eviction_cost(self, placement: Placement) -> tuple[int, float]:
        return (placement.ask.priority, max(0.0, self.age_of(placement.ask.name)))


class NodeVictims:
    """The victim groups of one node. `deficit` is what evictions must free at least; only the filters decide
    if that suffices."""

    def __init__(self, context: PreemptionContext, row: int) -> None:
        table, ask = context.table, context.ask
        self.context, self.row = context, row
        self._placements = list(table.placements_by_row[row].values())
        self._candidates = victim_candidates(table, row, ask)
        missing = {r: amount - int(table.free(r)[row]) for r, amount in ask.needs}
        self._missing_amounts = {r: amount for r, amount in missing.items() if amount > 0}
        self._conflicting_names = set(context.conflicts.conflicting_names(row))
        host_ports = ask.demands.host_ports
        for placement in self._placements if host_ports else ():
            in_use = placement.ask.demands.host_ports
            if any(port in in_use or port[0] in placement.ports for port in host_ports):
                self._conflicting_names.add(placement.ask.name)
        amounts = tuple(self._missing_amounts.values())
        # Conflicting workloads count as one more resource: the deficit is their number.
        if self._conflicting_names:
            amounts = (*amounts, len(self._conflicting_names))
        self.deficit = Deficit(amounts, *self._gpu_deficit())

    @property
    def smallest_group(self) -> tuple[int, int] | None:
        """The size of the smallest victim group and its least sum of priorities; None if no workload may be
        evicted."""
        if any(self._may_evict_alone(placement) for placement in self._candidates):
            return (
                1,
                min(
                    placement.ask.priority
                    for placement in self._candidates
                    if self._may_evict_alone(placement)
                ),
            )
        gangs = [self.context.gang(name) for name in self._evictable_gangs()]
        return min(
            (
                (len(gang.members), sum(placement.ask.priority for placement in gang.members))
                for gang in gangs
            ),
            default=None,
        )

    def _gpu_deficit(self) -> tuple[dict[int, int], int]:
        """For every GPU of an accepted model, the thousandths that it lacks (0 or less if it has enough), and
        the number of GPUs needed; ({}, 0) if enough GPUs are free."""
        need, node_info = self.context.ask.demands.gpu, self.context.table.node_infos[self.row]
        if need is None or node_info is None:
            return {}, 0
        missing_by_gpu = {
            number: need.milli - milli
            for number, (model, milli) in enumerate(node_info.gpus)
            if not need.models or model in need.models
        }
        for placement in self._placements:
            for number in placement.gpus:
                if number in missing_by_gpu and placement.ask.demands.gpu:
                    missing_by_gpu[number] += placement.ask.demands.gpu.milli
        is_ready = sum(missing <= 0 for missing in missing_by_gpu.values()) >= need.count
        return ({}, 0) if is_ready else (missing_by_gpu, need.count)

    @property
    def limits(self) -> DisruptionLimits:
        gangs = {placement.ask.group for placement in self._candidates if placement.ask.group}
        return DisruptionLimits(
            self.context.disruptions_allowed, {gang: self.context.gang(gang).spare_members for gang in gangs}
        )

    def groups(self, most: int, *, by_amount: bool) -> Iterator[VictimGroup]:
        """Victim groups of at most `most` members.

        With `by_amount`, only groups that reduce the deficit; groups that free the same amounts are
        equivalent. Without `by_amount`, every group; groups are equivalent only if the filters cannot tell
        the groups apart.
        """
        for group in self._all_groups():
            if len(group.members) > most:
                continue
            if not by_amount:
                identities = [(member.ask.shape, member.gpus, member.ports) for member in group.members]
                yield replace(group, equivalence_key=(group.equivalence_key, *identities))
            elif group.freed_gpus or any(map(any, group.freed_amounts)):
                yield group

    def _all_groups(self) -> Iterator[VictimGroup]:
        for placement in self._candidates:
            if self._may_evict_alone(placement):
                yield self._group((placement,), placement.ask.group)
        for name in self._evictable_gangs():
            yield self._group(self.context.gang(name).members, name, is_whole_gang=True)

    def _may_evict_alone(self, placement: Placement) -> bool:
        gang = placement.ask.group
        # Without spare members, the gang is evicted as a whole or not at all.
        if gang and self.context.gang(gang).spare_members <= 0:
            return False
        return all(
            self.context.disruptions_allowed[service] > 0 for service in self._limited_services([placement])
        )

    def _evictable_gangs(self) -> Iterator[str]:
        """Gangs with more candidates on the node than spare members, if the whole gang may be evicted."""
        sizes = Counter(candidate.ask.group for candidate in self._candidates if candidate.ask.group)
        for name, count in sizes.items():
            gang = self.context.gang(name)
            if count > gang.spare_members and gang.may_be_evicted:
                yield name

    def _group(
        self, members: tuple[Placement, ...], gang: str, *, is_whole_gang: bool = False
    ) -> VictimGroup:
        on_node = [member for member in members if member.row == self.row] if is_whole_gang else members
        freed_amounts = tuple(map(self._freed_amounts, on_node))
        freed_gpus: list[tuple[int, int]] = []
        for member in on_node if self.deficit.gpu_count else ():
            milli = member.ask.demands.gpu.milli if member.ask.demands.gpu else 0
            missing_by_gpu = self.deficit.missing_by_gpu
            freed_gpus += [(number, milli) for number in member.gpus if missing_by_gpu.get(number, 0) > 0]
        services = self._limited_services(members)
        return VictimGroup(
            members,
            tuple(map(self.context.eviction_cost, members)),
            freed_amounts,
            tuple(freed_gpus),
            services,
            gang,
            is_whole_gang,
            equivalence_key=(freed_amounts, tuple(freed_gpus), services, gang, is_whole_gang),
        )

    def _freed_amounts(self, placement: Placement) -> tuple[int, ...]:
        """The amounts that evicting the workload frees, each limited to the missing amount, so that workloads
        that free more than enough are equivalent."""
        freed = dict(reclaimable_needs(self.context.table, placement))
        amounts = [
            min(freed.get(resource, 0), missing) for resource, missing in self._missing_amounts.items()
        ]
        if self._conflicting_names:
            amounts.append(int(placement.ask.name in self._conflicting_names))
        return tuple(amounts)

    def _limited_services(self, members: Iterable[Placement]) -> tuple[str, ...]:
        if not self.context.disruptions_allowed:
            return ()
        services = map(service_of, members)
        return tuple(service for service in services if service in self.context.disruptions_allowed)


def service_of(placement: Placement) -> str:
    """The service of a placed workload as namespace/service; "" for a workload without service."""
    demands = placement.ask.demands
    return f"{demands.namespace}/{demands.service}" if demands.service else ""


def exceeded_limits(members: Iterable[Placement], disruptions_allowed: Mapping[str, int]) -> dict[str, int]:
    """The services of which more members are evicted than their disruption limit allows, with the limit."""
    evicted = Counter(map(service_of, members))
    return {
        service: disruptions_allowed[service]
        for service in sorted(evicted)
        if service in disruptions_allowed and evicted[service] > disruptions_allowed[service]
    }
