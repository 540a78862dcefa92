"""Who must make room? The fewest and cheapest of lower priority, on the node where that costs least."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lattice.engine.decide import Decision, evaluate, state_of
from lattice.engine.plugin import Filter, Profile
from lattice.engine.table import Flags, Some
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.nodes import NodeTable, Placement
from lattice.scheduling.reclaim import Reclaimables, lower
from lattice.scheduling.reserve import lacks

LOOKED_AT = 12  # promising nodes that are worked out exactly
GIVEN_UP_AFTER = 256  # nodes that turned out not to help at all, before it is called hopeless
UNLIMITED = 1 << 30

Cost = tuple[int, int, float, int]  # how many, sum of their priorities, how long they have run, rank of the node


@dataclass(frozen=True, slots=True)
class Preemption:
    row: int
    victims: tuple[Placement, ...]  # least important first
    cost: Cost

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(victim.ask.name for victim in self.victims)


def _ageless(name: str) -> float:
    return 0.0


@dataclass(slots=True)
class Preemptor:
    """`may_disrupt`: how many of a service (namespace/service) may still be stopped; absent ones are not limited.
    `age` of a workload in seconds: of equals the youngest goes."""

    table: NodeTable
    profile: Profile
    may_disrupt: Mapping[str, int] = field(default_factory=dict)
    age: Callable[[str], float] = _ageless
    _sums: Reclaimables | None = None

    def find(self, ask: WorkloadAsk, decision: Decision) -> Preemption | None:
        """The cheapest set of victims that makes room. The table is as before when this returns."""
        best: Preemption | None = None
        seen = hopeless = 0
        for row, bound in self._promising(ask, decision):
            if best and (best.cost[:2] <= bound or seen >= LOOKED_AT):
                break
            if hopeless >= GIVEN_UP_AFTER:
                break
            found = self._on(ask, row)
            seen, hopeless = seen + 1, hopeless + (found is None)
            if found and (best is None or found.cost < best.cost):
                best = found
        return best

    def _promising(self, ask: WorkloadAsk, decision: Decision) -> Iterable[tuple[int, tuple[int, int]]]:
        """Rows with the least that they could cost, cheapest first."""
        if self._sums is None:
            self._sums = Reclaimables(self.table)
        sums = self._sums.below(ask.priority)
        rows = np.flatnonzero(sums.could_fit(ask) & self.table.column("alive") & ~_beyond_help(decision))
        fewest = sums.at_least(ask)[rows]
        cheapest = fewest * sums.lowest[rows]
        order = np.lexsort((self.table.column("rank")[rows], cheapest, fewest))
        for position in order.tolist():
            yield int(rows[position]), (int(fewest[position]), int(cheapest[position]))

    def _on(self, ask: WorkloadAsk, row: int) -> Preemption | None:
        """The best set on one node, tried in two orders: sparing the important ones, and sparing the small ones."""
        candidates = sorted(lower(self.table, row, ask.priority), key=self._importance)
        found = []
        for order in (candidates, self._largest_first(ask, row, candidates)):
            allowed = self._within_limits(order)
            victims = self._by_number(ask, row, allowed) or self._by_trying(ask, row, allowed)
            if victims:
                found.append(self._preemption(row, victims))
        return min(found, key=lambda each: each.cost, default=None)

    def _importance(self, placement: Placement) -> tuple[int, float, str]:
        return (placement.ask.priority, self.age(placement.ask.name), placement.ask.name)

    def _largest_first(self, ask: WorkloadAsk, row: int, candidates: Sequence[Placement]) -> list[Placement]:
        """By the share of what is missing that each would give back."""
        missing = {resource: amount - int(self.table.free(resource)[row]) for resource, amount in ask.needs}
        missing = {resource: amount for resource, amount in missing.items() if amount > 0}

        def help_given(placement: Placement) -> float:
            gpu = placement.ask.demands.gpu
            helped = sum(min(1.0, amount / missing[r]) for r, amount in placement.ask.needs if r in missing)
            return helped + (gpu.total / 1e9 if gpu else 0.0)

        return sorted(candidates, key=lambda each: -help_given(each))

    def _within_limits(self, order: Iterable[Placement]) -> list[Placement]:
        """Of a service no more than may be disrupted, the first ones in the order."""
        left: dict[str, int] = {}
        allowed = []
        for placement in order:
            service = service_of(placement)
            may = left.get(service, self.may_disrupt.get(service, UNLIMITED) if service else UNLIMITED)
            if may > 0:
                allowed.append(placement)
            left[service] = may - 1
        return allowed

    def _by_number(self, ask: WorkloadAsk, row: int, candidates: Sequence[Placement]) -> list[Placement] | None:
        """If only amounts are short: one that is enough alone, else all less those that can be spared, last first."""
        missing = {r: amount - int(self.table.free(r)[row]) for r, amount in ask.needs if amount > self.table.free(r)[row]}
        if not missing:
            return None
        given = [{r: amount for r, amount in each.ask.needs if r in missing} for each in candidates]
        for each, gives in zip(candidates, given, strict=True):
            if all(gives.get(r, 0) >= amount for r, amount in missing.items()):
                return self._proven(ask, row, [each])
        spare = {r: sum(gives.get(r, 0) for gives in given) - amount for r, amount in missing.items()}
        if min(spare.values()) < 0:
            return None
        victims = []
        for each, gives in zip(reversed(candidates), reversed(given), strict=True):
            if all(gives.get(r, 0) <= extra for r, extra in spare.items()):
                spare = {r: extra - gives.get(r, 0) for r, extra in spare.items()}
            else:
                victims.append(each)
        return self._proven(ask, row, victims)

    def _proven(self, ask: WorkloadAsk, row: int, victims: Sequence[Placement]) -> list[Placement] | None:
        with self.table.what_if():
            for victim in victims:
                self.table.forget(victim.ask.name)
            return list(victims) if fits_on(ask, self.table, self.profile, row) else None

    def _by_trying(self, ask: WorkloadAsk, row: int, candidates: Sequence[Placement]) -> list[Placement] | None:
        """Everything out; if it fits then, back in one by one, last first, as long as it still fits."""
        table = self.table
        with table.what_if():
            for each in candidates:
                table.forget(each.ask.name)
            if not fits_on(ask, table, self.profile, row):
                return None
            victims, spared = list(reversed(candidates)), True
            while spared:  # a second look: sparing one may have made another one spareable
                spared = False
                for each in tuple(victims):
                    table.restore(each)
                    if fits_on(ask, table, self.profile, row):
                        victims.remove(each)
                        spared = True
                    else:
                        table.forget(each.ask.name)
            return victims

    def _preemption(self, row: int, victims: Sequence[Placement]) -> Preemption:
        ordered = tuple(sorted(victims, key=self._importance))
        ages = sum(self.age(each.ask.name) for each in ordered)
        cost = (len(ordered), sum(each.ask.priority for each in ordered), ages, int(self.table.column("rank")[row]))
        return Preemption(row, ordered, cost)


def service_of(placement: Placement) -> str:
    demands = placement.ask.demands
    return f"{demands.namespace}/{demands.service}" if demands.service else ""


def fits_on(ask: WorkloadAsk, table: NodeTable, profile: Profile, row: int) -> bool:
    """Would it do on this one node as the table stands?"""
    if lacks(ask, table, row):
        return False
    plan = state_of(ask, table, profile).plan
    one = Some(table, np.array([row], np.intp))
    near = evaluate(ask, one, plan.near_filters, ())[1]
    if any(mask[0] for mask in near.values()):
        return False
    return not any(mask[row] for each in plan.wide_filters for mask in each.filter(ask, table).values())


def _beyond_help(decision: Decision) -> Flags:
    """Rows ruled out by something that nobody's leaving could cure."""
    cured = {each.name for each in decision.profile.filters if can_be_cured(each)}
    beyond: Flags = np.zeros(decision.table.count, np.bool_)
    for reason, mask in decision.reasons.items():
        if reason.plugin not in cured:
            beyond |= mask
    return beyond


def can_be_cured(plugin: Filter) -> bool:
    """Could it change its mind when a workload leaves? One that does not say might."""
    wakes_on = getattr(plugin, "wakes_on", None)
    return wakes_on is None or any(getattr(change, "name", "") == "WORKLOAD_GONE" for change in wakes_on)
