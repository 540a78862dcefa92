"""Preemption: find the fewest and cheapest workloads of lower priority, on the node where evicting them costs
least."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain
from math import inf

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.plugin import Filter, Profile
from lattice.engine.table import Flags, RowSubset
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
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.resource_fit import unfit_reason
from lattice.scheduling.table.workload_ask import WorkloadAsk

MAX_STEPS_PER_NODE = 20_000  # limit of search steps on one node
MAX_STEPS_PER_WORKLOAD = 100_000  # limit of search steps on all nodes together
WIDE_SCOPES = ("domain", "table")  # filters with these scopes depend on more than one row

# A lower bound of the cost on a node: number of victims, sum of their priorities, rank and row of the node.
NodeLowerBound = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Preemption:
    """The victims whose eviction lets a workload fit on a node."""

    row: int
    victims: tuple[Placement, ...]  # least important first; with a gang, some may be on other nodes
    cost: Cost
    is_exact: bool = True  # proved: no set of victims on any node costs less

    @property
    def victim_names(self) -> tuple[str, ...]:
        return tuple(victim.ask.name for victim in self.victims)


@dataclass(slots=True)
class Preemptor:
    """Find victims: the fewest, then the least sum of priorities, then the youngest, then the node first in
    tie order.

    Victims have a lower priority than the workload. They are on the node, except for members of gangs: a gang
    never keeps fewer members than it needs, so a gang without spare members is evicted as a whole, also on
    other nodes. `disruptions_allowed` is the number of further evictions by service (namespace/service);
    services not in the dict have no limit (see DisruptionBudget). `age_of` returns the age of a workload in
    seconds.

    Of the nodes that evictions could free, the search skips only nodes whose lower bound is not below the
    best cost so far. The result is the optimum for resources, GPUs, ports and required anti-affinity, and for
    every filter that never rejects a node because of an eviction.

    The search on a node takes at most MAX_STEPS_PER_NODE steps, and on all nodes MAX_STEPS_PER_WORKLOAD; this
    suffices for some tens of candidates on a node. Beyond the limit a greedy search, which is deterministic,
    chooses the victims on the node, and `is_exact` is false.
    """

    table: NodeTable
    profile: Profile
    disruptions_allowed: dict[str, int] = field(default_factory=dict)
    age_of: Callable[[str], float] = lambda name: 0.0
    _reclaimable: ReclaimableCache | None = None

    def find(self, ask: WorkloadAsk, decision: Decision) -> Preemption | None:
        """The cheapest victims whose eviction lets the workload fit, or None. The node table is unchanged
        afterwards."""
        conflicts = AntiAffinityConflicts(self.table, ask)
        if any(plugin.name == WorkloadAntiAffinity.name for plugin in self.profile.filters):
            conflicts = anti_affinity_conflicts(self.table, ask)
        return _BestFirstSearch(self, ask, conflicts).run(self._candidate_bounds(ask, decision, conflicts))

    def disruption_limit_message(self, ask: WorkloadAsk, decision: Decision) -> str:
        """A message that names the disruption limits that prevent the preemption; "" if the preemption would
        fail without the limits too, or exceeds no limit."""
        if self.disruptions_allowed == {}:
            return ""
        preemption = replace(self, disruptions_allowed={}).find(ask, decision)
        exceeded = exceeded_limits(preemption.victims, self.disruptions_allowed) if preemption else {}
        if preemption is None or not exceeded:
            return ""
        limits = " and ".join(
            f"{max(0, limit)} more of service {service}" for service, limit in exceeded.items()
        )
        count = len(preemption.victims)
        return (
            f"{count} workload{'' if count == 1 else 's'} of lower priority on node"
            f" {self.table.names[preemption.row]} could be preempted, but disruption limits allow only {limits}"
        )

    def charge(self, victims: Iterable[Placement], count: int = 1) -> None:
        """Lower the disruption limits of the victims' services by `count` per victim; a `count` of -1
        restores them."""
        for victim in victims:
            if (service := service_of(victim)) in self.disruptions_allowed:
                self.disruptions_allowed[service] -= count

    def _candidate_bounds(
        self, ask: WorkloadAsk, decision: Decision, conflicts: AntiAffinityConflicts
    ) -> Iterator[NodeLowerBound]:
        """Rows with their lower bounds, cheapest first."""
        if self._reclaimable is None:
            self._reclaimable = ReclaimableCache(self.table)
        reclaimable = self._reclaimable.for_priority(ask.priority)
        # Nodes rejected by a filter whose rejection no eviction can end.
        resolvable = {plugin.name for plugin in decision.profile.filters if is_resolvable_by_eviction(plugin)}
        unresolvable: Flags = np.zeros(decision.table.count, np.bool_)
        # Nodes rejected because of a conflict with workloads on other nodes, or because no workload in the
        # domain matches a required affinity term.
        blocked_elsewhere = conflicts.unresolvable_rows()
        for reason, mask in decision.reasons.items():
            if reason.plugin not in resolvable:
                unresolvable |= mask
            if reason.plugin == WorkloadAffinity.name:
                blocked_elsewhere |= mask
        # Evicting a gang member on the node may resolve a conflict on another node, because its whole gang is
        # evicted.
        unresolvable |= blocked_elsewhere & ~reclaimable.has_gang_member
        order = self.table.memo("by rank", lambda table: np.argsort(table.column("rank"), kind="stable"))
        rows = order[(reclaimable.could_fit(ask) & self.table.column("alive") & ~unresolvable)[order]]
        min_victims = conflicts.min_victims(reclaimable.min_victims(ask))
        fewest, cheapest, ranks = (
            min_victims[rows],
            reclaimable.min_priority_sum(min_victims)[rows],
            self.table.column("rank"),
        )
        for position in np.lexsort((cheapest, fewest)).tolist():
            row = int(rows[position])
            yield int(fewest[position]), int(cheapest[position]), int(ranks[row]), row


class _BestFirstSearch:
    """The search over all nodes for one workload.

    Each step takes the node with the lowest bound and examines its victim sets of one size. The search ends
    when no bound is below the best cost.
    """

    def __init__(self, preemptor: Preemptor, ask: WorkloadAsk, conflicts: AntiAffinityConflicts) -> None:
        self.table, self.profile, self.ask = preemptor.table, preemptor.profile, ask
        self.context = PreemptionContext(
            self.table, ask, preemptor.disruptions_allowed, preemptor.age_of, conflicts
        )
        self.budget = SearchBudget(MAX_STEPS_PER_WORKLOAD)
        self.best: Preemption | None = None
        self.node_searches: dict[int, _NodeSearch] = {}
        self.deferred_rows: set[int] = set()
        self.pending: list[NodeLowerBound] = []

    def run(self, candidates: Iterator[NodeLowerBound]) -> Preemption | None:
        for count, priority_sum, rank, row in self._cheapest_first(candidates):
            if self.best and (count, priority_sum, 0.0, rank) >= self.best.cost:
                break
            if row in self.node_searches:
                self._continue_node(self.node_searches[row], count)
            else:
                # A node on which only large gangs may be evicted waits until its bound is the lowest.
                node_victims = NodeVictims(self.context, row)
                smallest = node_victims.smallest_group
                if smallest and smallest[0] > count and row not in self.deferred_rows:
                    self.deferred_rows.add(row)
                    heappush(self.pending, (*smallest, self._rank(row), row))
                elif smallest and node_victims.deficit.is_empty:
                    self._push(self._filtered_search(node_victims), count)
                elif smallest:
                    self._push(self._node_search(node_victims), count)
        return replace(self.best, is_exact=not self.budget.is_exhausted) if self.best else None

    def _cheapest_first(self, candidates: Iterator[NodeLowerBound]) -> Iterator[NodeLowerBound]:
        """The nodes that are not searched yet and the nodes that wait with a raised bound, the lowest bound
        first."""
        head = next(candidates, None)
        while head or self.pending:
            if head is None or (self.pending and self.pending[0] < head):
                yield heappop(self.pending)
            else:
                yield head
                head = next(candidates, None)

    def _node_search(self, node_victims: NodeVictims, accept: VictimSetCheck | None = None) -> "_NodeSearch":
        most = self.best.cost[0] if self.best else len(self.table.placements)
        search = VictimSearch(
            node_victims.groups(most, by_amount=accept is None),
            node_victims.deficit,
            node_victims.limits,
            accept,
        )
        return _NodeSearch(node_victims, search, self.budget.sub_budget(MAX_STEPS_PER_NODE))

    def _filtered_search(self, node_victims: NodeVictims) -> "_NodeSearch | None":
        """A search that runs the filters on every victim set; None if evicting every candidate would not
        suffice."""
        # Skip this check for required affinity: evicting every candidate would also evict the workloads that
        # the workload must be near, although fewer evictions may suffice.
        if not self.ask.demands.affinity_terms:
            groups = node_victims.groups(len(self.table.placements), by_amount=False)
            members = list(chain.from_iterable(group.members for group in groups))
            on_node = [member for member in members if member.row == node_victims.row]
            victim_lists = [on_node, members] if len(on_node) < len(members) else [on_node]
            if not any(self._fits_without(node_victims, victims) for victims in victim_lists):
                return None
        return self._node_search(node_victims, lambda victim_set: self._suffices(node_victims, victim_set))

    def _push(self, node_search: "_NodeSearch | None", count: int) -> None:
        if node_search and (bound := node_search.search.lower_bound(count)):
            self.node_searches[node_search.node_victims.row] = node_search
            heappush(
                self.pending, (*bound, self._rank(node_search.node_victims.row), node_search.node_victims.row)
            )

    def _continue_node(self, node_search: "_NodeSearch", count: int) -> None:
        """Search victim sets of one size: by amounts first, then the filters check the result."""
        search, row = node_search.search, node_search.node_victims.row
        cost_limit: tuple[float, ...] = (inf,)
        if self.best:
            # The search accepts a cost of three items (count, priorities, ages) below the limit. At equal cost
            # the node of lower rank wins: a limit of four items, with the rank last, admits an equal cost,
            # because a tuple is less than a longer tuple that begins with the same items.
            cost_limit = self.best.cost if self._rank(row) < self.best.cost[3] else self.best.cost[:3]
        victim_set = search.cheapest(count, cost_limit, node_search.budget)
        if search.is_truncated:
            self._accept_inexact(node_search, victim_set)
        elif victim_set is None:
            self._push(node_search, count + 1)
        elif search.accept or self._suffices(node_search.node_victims, victim_set):
            self._keep_if_cheaper(row, victim_set)
        else:
            self._push(self._filtered_search(node_search.node_victims), count)

    def _accept_inexact(self, node_search: "_NodeSearch", victim_set: VictimSet | None) -> None:
        """Use the best set found before the budget was exhausted, or a greedy set, checked by the filters."""
        row, search = node_search.node_victims.row, node_search.search
        victim_sets = [candidate for candidate in (victim_set, search.greedy_victims()) if candidate]
        if search.accept is None:
            victim_sets = [
                candidate for candidate in victim_sets if self._suffices(node_search.node_victims, candidate)
            ]
        for candidate in victim_sets:
            self._keep_if_cheaper(row, candidate)
        # A search by amounts alone found no set that the filters accept: search once more with the filters.
        if victim_sets or search.accept is not None:
            return
        if filtered := self._filtered_search(node_search.node_victims):
            self._accept_inexact(filtered, None)

    def _rank(self, row: int) -> int:
        return int(self.table.column("rank")[row])

    def _keep_if_cheaper(self, row: int, victim_set: VictimSet) -> None:
        members: dict[str, Placement] = {}
        for group in victim_set:
            members.update((member.ask.name, member) for member in group.members)
        costs = [(self.context.eviction_cost(member), member) for member in members.values()]
        ordered = sorted(costs, key=lambda cost: (cost[0], cost[1].ask.name))
        cost = (
            len(ordered),
            sum(priority for (priority, _), _ in ordered),
            sum(age for (_, age), _ in ordered),
            self._rank(row),
        )
        if self.best is None or cost < self.best.cost:
            self.best = Preemption(row, tuple(member for _, member in ordered), cost)

    def _suffices(self, node_victims: NodeVictims, victim_set: VictimSet) -> bool:
        victims = chain.from_iterable(group.members for group in victim_set)
        return self._fits_without(node_victims, victims)

    def _fits_without(self, node_victims: NodeVictims, members: Iterable[Placement]) -> bool:
        with self.table.what_if():
            # A member may be in two groups: alone, and with its whole gang.
            for name in dict.fromkeys(member.ask.name for member in members):
                self.table.forget(name)
            return fits_on(self.ask, self.table, self.profile, node_victims.row)


@dataclass(frozen=True, slots=True)
class _NodeSearch:
    """The state of the search on one node."""

    node_victims: NodeVictims
    search: VictimSearch
    budget: SearchBudget


def fits_on(ask: WorkloadAsk, table: NodeTable, profile: Profile, row: int) -> bool:
    """Whether the workload fits on one node of the table as it is and every filter accepts the node."""
    if unfit_reason(ask, table, row):
        return False
    subset = RowSubset(table, np.array([row], np.intp))
    for plugin in profile.filters:
        if not plugin.applies(ask):
            continue
        if plugin.scope in WIDE_SCOPES:
            is_rejected = any(mask[row] for mask in plugin.filter(ask, table).values())
        else:
            is_rejected = any(mask[0] for mask in plugin.filter(ask, subset).values())
        if is_rejected:
            return False
    return True


def is_resolvable_by_eviction(plugin: Filter) -> bool:
    """Whether an eviction could end a rejection by the filter. For a filter that declares no cluster events,
    the answer is yes."""
    return ClusterEvent.WORKLOAD_GONE in getattr(plugin, "wakes_on", {ClusterEvent.WORKLOAD_GONE})
