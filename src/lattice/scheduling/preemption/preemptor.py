"""Who must make room? The fewest and cheapest of lower priority, on the node where that costs least."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from lattice.engine.decide import Decision
from lattice.engine.plugin import Filter, Profile
from lattice.engine.table import Flags, RowSubset, Table
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity, WorkloadAntiAffinity
from lattice.scheduling.preemption.anti_affinity_conflicts import (
    AntiAffinityConflicts,
    anti_affinity_conflicts,
)
from lattice.scheduling.preemption.node_victims import (
    NodeVictims,
    PreemptionContext,
    exceeded_limits,
    service_of,
)
from lattice.scheduling.preemption.reclaimable import ReclaimableCache
from lattice.scheduling.preemption.victim_search import (
    Cost,
    SearchBudget,
    VictimSearch,
    VictimSet,
    VictimSetCheck,
)
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.resource_fit import unfit_reason

MAX_STEPS_PER_NODE = 20_000  # steps of a search for the best victims on one node
MAX_STEPS_PER_WORKLOAD = 100_000  # and on all nodes together
WIDE_SCOPES = ("domain", "table")  # scopes of filters that look beyond one row

NodeLowerBound = tuple[
    int, int, int, int
]  # the least that a node could cost: how many, sum of their priorities; its rank; its row


@dataclass(frozen=True, slots=True)
class Preemption:
    row: int
    victims: tuple[Placement, ...]  # least important first; not all on this row, if a whole gang must go
    cost: Cost
    is_exact: bool = True  # no set of victims anywhere costs less; else that was not proved

    @property
    def victim_names(self) -> tuple[str, ...]:
        return tuple(victim.ask.name for victim in self.victims)


def _zero_age(name: str) -> float:
    return 0.0


@dataclass(slots=True)
class Preemptor:
    """The fewest victims, of these the least important (sum of priorities), then the youngest, then the node that is first in tie order.

    Victims are of lower priority and on the node that is freed. A gang is never left with fewer members than it needs: if it has
    none to spare all of it goes, on all nodes, and counts. `may_disrupt`: how many of a service (namespace/service) may still be
    stopped; absent ones are not limited (see Allowance for one that is asked for). `age` of a workload in seconds.

    Every node that could be helped is looked at unless it cannot be cheaper than what is known. The answer is exact for amounts, GPUs,
    ports and required anti-affinity, and for any other filter that never minds a workload's leaving, as long as the search takes no
    more than PER_NODE steps on a node and PER_WORKLOAD in all: some tens of candidates on a node. Where it is cut short that node
    gets a greedy answer, the same each time, and `exact` is false.
    """

    table: NodeTable
    profile: Profile
    disruptions_allowed: dict[str, int] = field(default_factory=dict)
    age_of: Callable[[str], float] = _zero_age
    _reclaimable: ReclaimableCache | None = None

    def find(self, ask: WorkloadAsk, decision: Decision) -> Preemption | None:
        """The cheapest set of victims that makes room. The table is as before when this returns."""
        keeps_apart = any(each.name == WorkloadAntiAffinity.name for each in self.profile.filters)
        apart = (
            anti_affinity_conflicts(self.table, ask)
            if keeps_apart
            else AntiAffinityConflicts(self.table, ask)
        )
        return _BestFirstSearch(self, ask, apart).run(self._candidate_bounds(ask, decision, apart))

    def disruption_limit_message(self, ask: WorkloadAsk, decision: Decision) -> str:
        """Who could make way if limits on disruption let them; "" if none is the reason that nobody is found."""
        found = (
            replace(self, disruptions_allowed={}).find(ask, decision)
            if self.disruptions_allowed != {}
            else None
        )
        over = exceeded_limits(found.victims, self.disruptions_allowed) if found else {}
        if found is None or not over:
            return ""
        limits = " and ".join(f"{max(0, left)} more of service {service}" for service, left in over.items())
        return f"{len(found.victims)} of lower priority on node {self.table.names[found.row]} could make way, but only {limits} may be stopped"

    def charge(self, victims: Iterable[Placement], each: int = 1) -> None:
        """They are stopped: of their services fewer may be from now on. With -1 that is taken back."""
        for victim in victims:
            if (service := service_of(victim)) in self.disruptions_allowed:
                self.disruptions_allowed[service] -= each

    def _candidate_bounds(
        self, ask: WorkloadAsk, decision: Decision, apart: AntiAffinityConflicts
    ) -> Iterator[NodeLowerBound]:
        """Rows with the least that they could cost, cheapest first."""
        if self._reclaimable is None:
            self._reclaimable = ReclaimableCache(self.table)
        sums = self._reclaimable.for_priority(ask.priority)
        beyond = _unresolvable_rows(decision) | (
            _rows_blocked_elsewhere(decision, apart) & ~sums.has_gang_member
        )
        order = self.table.memo("by rank", _by_rank)
        rows = order[(sums.could_fit(ask) & self.table.column("alive") & ~beyond)[order]]
        at_least = apart.min_victims(sums.min_victims(ask))
        fewest, cheapest, ranks = (
            at_least[rows],
            sums.min_priority_sum(at_least)[rows],
            self.table.column("rank"),
        )
        for position in np.lexsort((cheapest, fewest)).tolist():
            row = int(rows[position])
            yield int(fewest[position]), int(cheapest[position]), int(ranks[row]), row


class _BestFirstSearch:
    """For one workload, over all nodes: always on where the bound is lowest, one size of set at a time, until nothing can be cheaper."""

    def __init__(self, preemptor: Preemptor, ask: WorkloadAsk, apart: AntiAffinityConflicts) -> None:
        self.table, self.profile, self.ask = preemptor.table, preemptor.profile, ask
        self.context = PreemptionContext(
            self.table, ask, preemptor.disruptions_allowed, preemptor.age_of, apart
        )
        self.budget = SearchBudget(MAX_STEPS_PER_WORKLOAD)
        self.best: Preemption | None = None
        self.node_searches: dict[int, _NodeSearch] = {}
        self.deferred_rows: set[int] = set()
        self.pending: list[NodeLowerBound] = []

    def run(self, promising: Iterator[NodeLowerBound]) -> Preemption | None:
        for count, worth, rank, row in self._cheapest_first(promising):
            if self.best and (count, worth, 0.0, rank) >= self.best.cost:
                break
            if row in self.node_searches:
                self._continue_node(self.node_searches[row], count)
            else:
                self._start_node(row, count)
        return replace(self.best, is_exact=not self.budget.is_exhausted) if self.best else None

    def _cheapest_first(self, promising: Iterator[NodeLowerBound]) -> Iterator[NodeLowerBound]:
        """Those not looked at yet, and those that wait with a better bound."""
        head = next(promising, None)
        while head or self.pending:
            if head is None or (self.pending and self.pending[0] < head):
                yield heappop(self.pending)
            else:
                yield head
                head = next(promising, None)

    def _start_node(self, row: int, count: int) -> None:
        """A node where only large gangs may go waits until these are not too many."""
        scene = NodeVictims(self.context, row)
        fewest = scene.smallest_group
        if fewest and fewest[0] > count and row not in self.deferred_rows:
            self.deferred_rows.add(row)
            heappush(self.pending, (*fewest, self._rank(row), row))
        elif fewest:
            self._push(
                self._filtered_search(scene) if scene.deficit.is_empty else self._node_search(scene), count
            )

    def _node_search(self, scene: NodeVictims, accept: VictimSetCheck | None = None) -> "_NodeSearch":
        most = self.best.cost[0] if self.best else len(self.table.placements)
        search = VictimSearch(
            scene.groups(most, by_amount=accept is None), scene.deficit, scene.limits, accept
        )
        return _NodeSearch(scene, search, self.budget.sub_budget(MAX_STEPS_PER_NODE))

    def _filtered_search(self, scene: NodeVictims) -> "_NodeSearch | None":
        """Numbers are not all there is to it: from now on the filters are asked about every set. None: not even all who may go suffice."""
        if self._may_fit_after_evictions(scene):
            return self._node_search(scene, lambda choice: self._suffices(scene, choice))
        return None

    def _push(self, each: "_NodeSearch | None", count: int) -> None:
        if each and (bound := each.search.lower_bound(count)):
            self.node_searches[each.node_victims.row] = each
            heappush(self.pending, (*bound, self._rank(each.node_victims.row), each.node_victims.row))

    def _continue_node(self, each: "_NodeSearch", count: int) -> None:
        """Sets of this size. By number first; the filters are asked about the outcome."""
        search, row = each.search, each.node_victims.row
        choice = search.cheapest(count, self._cost_limit(row), each.budget)
        if search.is_truncated:
            self._accept_inexact(each, choice)
        elif choice is None:
            self._push(each, count + 1)
        elif search.accept or self._suffices(each.node_victims, choice):
            self._keep_if_cheaper(row, choice)
        else:
            self._push(self._filtered_search(each.node_victims), count)

    def _accept_inexact(self, each: "_NodeSearch", choice: VictimSet | None) -> None:
        """What was found before the effort was spent, or a greedy choice, if need be one that the filters were asked about all along."""
        choices = [found for found in (choice, each.search.greedy_victims()) if found]
        if each.search.accept is None:
            choices = [found for found in choices if self._suffices(each.node_victims, found)]
        for found in choices:
            self._keep_if_cheaper(each.node_victims.row, found)
        if (
            not choices
            and each.search.accept is None
            and (closely := self._filtered_search(each.node_victims))
        ):
            self._accept_inexact(closely, None)

    def _cost_limit(self, row: int) -> tuple[float, ...]:
        """At the same cost the lower rank wins: a cost is less than itself with anything after it."""
        if self.best is None:
            return (inf,)
        return self.best.cost if self._rank(row) < self.best.cost[3] else self.best.cost[:3]

    def _rank(self, row: int) -> int:
        return int(self.table.column("rank")[row])

    def _keep_if_cheaper(self, row: int, choice: VictimSet) -> None:
        worth = {
            member.ask.name: (self.context.eviction_cost(member), member)
            for party in choice
            for member in party.members
        }
        ordered = sorted(worth.values(), key=lambda each: (each[0], each[1].ask.name))
        cost = (
            len(ordered),
            sum(priority for (priority, _), _ in ordered),
            sum(age for (_, age), _ in ordered),
            self._rank(row),
        )
        if self.best is None or cost < self.best.cost:
            self.best = Preemption(row, tuple(member for _, member in ordered), cost)

    def _suffices(self, scene: NodeVictims, choice: VictimSet) -> bool:
        return self._fits_without(scene, [member for party in choice for member in party.members])

    def _may_fit_after_evictions(self, scene: NodeVictims) -> bool:
        """Would it fit without all who might go? Whoever needs neighbours might not, though it does without some of them."""
        if self.ask.demands.near:
            return True
        members = [
            member
            for party in scene.groups(len(self.table.placements), by_amount=False)
            for member in party.members
        ]
        here = [each for each in members if each.row == scene.row]
        return self._fits_without(scene, here) or (
            len(here) < len(members) and self._fits_without(scene, members)
        )

    def _fits_without(self, scene: NodeVictims, members: Iterable[Placement]) -> bool:
        with self.table.what_if():
            for name in dict.fromkeys(member.ask.name for member in members):
                self.table.forget(name)
            return fits_on(self.ask, self.table, self.profile, scene.row)


@dataclass(frozen=True, slots=True)
class _NodeSearch:
    """Where the hunt stands on one node."""

    node_victims: NodeVictims
    search: VictimSearch
    budget: SearchBudget


def fits_on(ask: WorkloadAsk, table: NodeTable, profile: Profile, row: int) -> bool:
    """Would it do on this one node as the table stands?"""
    if unfit_reason(ask, table, row):
        return False
    one = RowSubset(table, np.array([row], np.intp))
    return not any(_rejects(each, ask, table, row, one) for each in profile.filters if each.applies(ask))


def _rejects(each: Filter, ask: WorkloadAsk, table: NodeTable, row: int, one: RowSubset) -> bool:
    if each.scope in WIDE_SCOPES:
        return any(mask[row] for mask in each.filter(ask, table).values())
    return any(mask[0] for mask in each.filter(ask, one).values())


def _unresolvable_rows(decision: Decision) -> Flags:
    """Rows ruled out by something that nobody's leaving could cure."""
    cured = {each.name for each in decision.profile.filters if is_resolvable_by_eviction(each)}
    beyond: Flags = np.zeros(decision.table.count, np.bool_)
    for reason, mask in decision.reasons.items():
        if reason.plugin not in cured:
            beyond |= mask
    return beyond


def _rows_blocked_elsewhere(decision: Decision, apart: AntiAffinityConflicts) -> Flags:
    """Rows ruled out by who is, or is not, on other nodes: nobody's leaving cures that, unless mates elsewhere must go along."""
    beyond = apart.unresolvable_rows()
    for reason, mask in decision.reasons.items():
        if reason.plugin == WorkloadAffinity.name:
            beyond |= mask
    return beyond


def is_resolvable_by_eviction(plugin: Filter) -> bool:
    """Could it change its mind when a workload leaves? One that does not say might."""
    return ClusterEvent.WORKLOAD_GONE in getattr(plugin, "wakes_on", {ClusterEvent.WORKLOAD_GONE})


def _by_rank(table: Table) -> NDArray[np.intp]:
    return np.argsort(table.column("rank"), kind="stable")
