"""Who must make room? The fewest and cheapest of lower priority, on the node where that costs least."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from lattice.engine.decide import Decision
from lattice.engine.plugin import Filter, Profile
from lattice.engine.table import Flags, Some, Table
from lattice.scheduling.preemption.anti_affinity_victims import Apart, kept_apart
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.preemption.victim_groups import Asking, Scene, over_limits, service_of
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity
from lattice.scheduling.plugins.filters.workload_anti_affinity import WorkloadAntiAffinity
from lattice.scheduling.preemption.reclaimable import Reclaimables
from lattice.scheduling.table.resource_fit import lacks
from lattice.scheduling.preemption.victim_search import Accept, Choice, Cost, Effort, Search

PER_NODE = 20_000  # steps of a search for the best victims on one node
PER_WORKLOAD = 100_000  # and on all nodes together
WIDE = ("domain", "table")  # scopes of filters that look beyond one row

Bound = tuple[
    int, int, int, int
]  # the least that a node could cost: how many, sum of their priorities; its rank; its row


@dataclass(frozen=True, slots=True)
class Preemption:
    row: int
    victims: tuple[Placement, ...]  # least important first; not all on this row, if a whole gang must go
    cost: Cost
    exact: bool = True  # no set of victims anywhere costs less; else that was not proved

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(victim.ask.name for victim in self.victims)


def _ageless(name: str) -> float:
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
    may_disrupt: dict[str, int] = field(default_factory=dict)
    age: Callable[[str], float] = _ageless
    _sums: Reclaimables | None = None

    def find(self, ask: WorkloadAsk, decision: Decision) -> Preemption | None:
        """The cheapest set of victims that makes room. The table is as before when this returns."""
        keeps_apart = any(each.name == WorkloadAntiAffinity.name for each in self.profile.filters)
        apart = kept_apart(self.table, ask) if keeps_apart else Apart(self.table, ask)
        return _Hunt(self, ask, apart).run(self._promising(ask, decision, apart))

    def held_back(self, ask: WorkloadAsk, decision: Decision) -> str:
        """Who could make way if limits on disruption let them; "" if none is the reason that nobody is found."""
        found = replace(self, may_disrupt={}).find(ask, decision) if self.may_disrupt != {} else None
        over = over_limits(found.victims, self.may_disrupt) if found else {}
        if found is None or not over:
            return ""
        limits = " and ".join(f"{max(0, left)} more of service {service}" for service, left in over.items())
        return f"{len(found.victims)} of lower priority on node {self.table.names[found.row]} could make way, but only {limits} may be stopped"

    def charge(self, victims: Iterable[Placement], each: int = 1) -> None:
        """They are stopped: of their services fewer may be from now on. With -1 that is taken back."""
        for victim in victims:
            if (service := service_of(victim)) in self.may_disrupt:
                self.may_disrupt[service] -= each

    def _promising(self, ask: WorkloadAsk, decision: Decision, apart: Apart) -> Iterator[Bound]:
        """Rows with the least that they could cost, cheapest first."""
        if self._sums is None:
            self._sums = Reclaimables(self.table)
        sums = self._sums.below(ask.priority)
        beyond = _beyond_help(decision) | (_beyond_reach(decision, apart) & ~sums.in_gangs)
        order = self.table.memo("by rank", _by_rank)
        rows = order[(sums.could_fit(ask) & self.table.column("alive") & ~beyond)[order]]
        at_least = apart.at_least(sums.at_least(ask))
        fewest, cheapest, ranks = (
            at_least[rows],
            sums.at_least_worth(at_least)[rows],
            self.table.column("rank"),
        )
        for position in np.lexsort((cheapest, fewest)).tolist():
            row = int(rows[position])
            yield int(fewest[position]), int(cheapest[position]), int(ranks[row]), row


class _Hunt:
    """For one workload, over all nodes: always on where the bound is lowest, one size of set at a time, until nothing can be cheaper."""

    def __init__(self, preemptor: Preemptor, ask: WorkloadAsk, apart: Apart) -> None:
        self.table, self.profile, self.ask = preemptor.table, preemptor.profile, ask
        self.asking = Asking(self.table, ask, preemptor.may_disrupt, preemptor.age, apart)
        self.effort = Effort(PER_WORKLOAD)
        self.best: Preemption | None = None
        self.tries: dict[int, _Try] = {}
        self.put_off: set[int] = set()
        self.waiting: list[Bound] = []

    def run(self, promising: Iterator[Bound]) -> Preemption | None:
        for count, worth, rank, row in self._in_order(promising):
            if self.best and (count, worth, 0.0, rank) >= self.best.cost:
                break
            if row in self.tries:
                self._go_on(self.tries[row], count)
            else:
                self._begin(row, count)
        return replace(self.best, exact=not self.effort.is_spent) if self.best else None

    def _in_order(self, promising: Iterator[Bound]) -> Iterator[Bound]:
        """Those not looked at yet, and those that wait with a better bound."""
        head = next(promising, None)
        while head or self.waiting:
            if head is None or (self.waiting and self.waiting[0] < head):
                yield heappop(self.waiting)
            else:
                yield head
                head = next(promising, None)

    def _begin(self, row: int, count: int) -> None:
        """A node where only large gangs may go waits until these are not too many."""
        scene = Scene(self.asking, row)
        fewest = scene.fewest
        if fewest and fewest[0] > count and row not in self.put_off:
            self.put_off.add(row)
            heappush(self.waiting, (*fewest, self._rank(row), row))
        elif fewest:
            self._wait(self._closely(scene) if scene.short.is_nothing else self._try(scene), count)

    def _try(self, scene: Scene, accept: Accept | None = None) -> "_Try":
        most = self.best.cost[0] if self.best else len(self.table.placements)
        search = Search(scene.parties(most, alike=accept is None), scene.short, scene.limits, accept)
        return _Try(scene, search, self.effort.part(PER_NODE))

    def _closely(self, scene: Scene) -> "_Try | None":
        """Numbers are not all there is to it: from now on the filters are asked about every set. None: not even all who may go suffice."""
        if self._can_be_helped(scene):
            return self._try(scene, lambda choice: self._makes_room(scene, choice))
        return None

    def _wait(self, each: "_Try | None", count: int) -> None:
        if each and (bound := each.search.bound(count)):
            self.tries[each.scene.row] = each
            heappush(self.waiting, (*bound, self._rank(each.scene.row), each.scene.row))

    def _go_on(self, each: "_Try", count: int) -> None:
        """Sets of this size. By number first; the filters are asked about the outcome."""
        search, row = each.search, each.scene.row
        choice = search.cheapest(count, self._below(row), each.effort)
        if search.is_cut:
            self._settle_for_less(each, choice)
        elif choice is None:
            self._wait(each, count + 1)
        elif search.accept or self._makes_room(each.scene, choice):
            self._keep(row, choice)
        else:
            self._wait(self._closely(each.scene), count)

    def _settle_for_less(self, each: "_Try", choice: Choice | None) -> None:
        """What was found before the effort was spent, or a greedy choice, if need be one that the filters were asked about all along."""
        choices = [found for found in (choice, each.search.good_enough()) if found]
        if each.search.accept is None:
            choices = [found for found in choices if self._makes_room(each.scene, found)]
        for found in choices:
            self._keep(each.scene.row, found)
        if not choices and each.search.accept is None and (closely := self._closely(each.scene)):
            self._settle_for_less(closely, None)

    def _below(self, row: int) -> tuple[float, ...]:
        """At the same cost the lower rank wins: a cost is less than itself with anything after it."""
        if self.best is None:
            return (inf,)
        return self.best.cost if self._rank(row) < self.best.cost[3] else self.best.cost[:3]

    def _rank(self, row: int) -> int:
        return int(self.table.column("rank")[row])

    def _keep(self, row: int, choice: Choice) -> None:
        worth = {
            member.ask.name: (self.asking.worth(member), member)
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

    def _makes_room(self, scene: Scene, choice: Choice) -> bool:
        return self._fits_without(scene, [member for party in choice for member in party.members])

    def _can_be_helped(self, scene: Scene) -> bool:
        """Would it fit without all who might go? Whoever needs neighbours might not, though it does without some of them."""
        if self.ask.demands.near:
            return True
        members = [
            member
            for party in scene.parties(len(self.table.placements), alike=False)
            for member in party.members
        ]
        here = [each for each in members if each.row == scene.row]
        return self._fits_without(scene, here) or (
            len(here) < len(members) and self._fits_without(scene, members)
        )

    def _fits_without(self, scene: Scene, members: Iterable[Placement]) -> bool:
        with self.table.what_if():
            for name in dict.fromkeys(member.ask.name for member in members):
                self.table.forget(name)
            return fits_on(self.ask, self.table, self.profile, scene.row)


@dataclass(frozen=True, slots=True)
class _Try:
    """Where the hunt stands on one node."""

    scene: Scene
    search: Search
    effort: Effort


def fits_on(ask: WorkloadAsk, table: NodeTable, profile: Profile, row: int) -> bool:
    """Would it do on this one node as the table stands?"""
    if lacks(ask, table, row):
        return False
    one = Some(table, np.array([row], np.intp))
    return not any(_refuses(each, ask, table, row, one) for each in profile.filters if each.applies(ask))


def _refuses(each: Filter, ask: WorkloadAsk, table: NodeTable, row: int, one: Some) -> bool:
    if each.scope in WIDE:
        return any(mask[row] for mask in each.filter(ask, table).values())
    return any(mask[0] for mask in each.filter(ask, one).values())


def _beyond_help(decision: Decision) -> Flags:
    """Rows ruled out by something that nobody's leaving could cure."""
    cured = {each.name for each in decision.profile.filters if can_be_cured(each)}
    beyond: Flags = np.zeros(decision.table.count, np.bool_)
    for reason, mask in decision.reasons.items():
        if reason.plugin not in cured:
            beyond |= mask
    return beyond


def _beyond_reach(decision: Decision, apart: Apart) -> Flags:
    """Rows ruled out by who is, or is not, on other nodes: nobody's leaving cures that, unless mates elsewhere must go along."""
    beyond = apart.out_of_reach()
    for reason, mask in decision.reasons.items():
        if reason.plugin == WorkloadAffinity.name:
            beyond |= mask
    return beyond


def can_be_cured(plugin: Filter) -> bool:
    """Could it change its mind when a workload leaves? One that does not say might."""
    return Change.WORKLOAD_GONE in getattr(plugin, "wakes_on", {Change.WORKLOAD_GONE})


def _by_rank(table: Table) -> NDArray[np.intp]:
    return np.argsort(table.column("rank"), kind="stable")
