"""Who must make room? The fewest and cheapest of lower priority, on the node where that costs least."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import ge, le, sub

import numpy as np
from numpy.typing import NDArray

from lattice.engine.decide import Decision
from lattice.engine.plugin import Filter, Profile
from lattice.engine.table import Flags, Some, Table
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import Change
from lattice.scheduling.nodes import NodeTable, Placement
from lattice.scheduling.reclaim import Reclaimables, lower
from lattice.scheduling.reserve import lacks

LOOKED_AT = 12  # promising nodes that are compared; more only if none of them helps
GIVEN_UP_AFTER = 256  # that turned out not to help at all
UNLIMITED = 1 << 30
WIDE = ("domain", "table")  # scopes of filters that look beyond one row

Bound = tuple[int, int]  # the least that a node could cost: how many, sum of their priorities
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

    `age` of a workload in seconds: of equals the youngest goes.
    """

    table: NodeTable
    profile: Profile
    may_disrupt: dict[str, int] = field(default_factory=dict)
    age: Callable[[str], float] = _ageless
    _sums: Reclaimables | None = None

    def find(self, ask: WorkloadAsk, decision: Decision) -> Preemption | None:
        """The cheapest set of victims that makes room. The table is as before when this returns."""
        best: Preemption | None = None
        rows = deque(islice(self._promising(ask, decision), GIVEN_UP_AFTER))
        enough = max(0, len(rows) - LOOKED_AT)  # left over, once something is found
        while rows and (best is None or (len(rows) > enough and not self._cannot_beat(rows[0][1], best))):
            found = self._best_of(ask, rows)
            best = min((each for each in (best, found) if each), key=_cost, default=None)
        return best

    def _best_of(self, ask: WorkloadAsk, rows: "deque[tuple[int, Bound]]") -> Preemption | None:
        """Draft by number on the next few nodes, then prove the cheapest draft; only where that fails, try out who can stay."""
        drafts: list[Preemption] = []
        others: list[tuple[int, Bound]] = []
        for _ in range(min(LOOKED_AT, len(rows))):
            if drafts and self._cannot_beat(rows[0][1], min(drafts, key=_cost)):
                break
            row, bound = rows.popleft()
            draft = self._draft(ask, row, bound)
            if draft:
                drafts.append(draft)
            else:
                others.append((row, bound))
        best: Preemption | None = None
        for draft in sorted(drafts, key=_cost):
            if self._makes_room(ask, draft):
                best = draft
                break
            others.append((draft.row, draft.cost[:2]))
        for row, bound in others:
            found = None if best and self._cannot_beat(bound, best) else self._by_trying(ask, row)
            if found and (best is None or found.cost < best.cost):
                best = found
        return best

    def charge(self, victims: Iterable[Placement]) -> None:
        """They are stopped: of their services fewer may be from now on."""
        for victim in victims:
            if (service := service_of(victim)) in self.may_disrupt:
                self.may_disrupt[service] -= 1

    def _cannot_beat(self, bound: Bound, best: Preemption) -> bool:
        """Where ages are not told, rows of equal cost come in their fixed order, and the first one wins."""
        return best.cost[:2] <= bound if self.age is _ageless else best.cost[:2] < bound

    def _promising(self, ask: WorkloadAsk, decision: Decision) -> Iterator[tuple[int, Bound]]:
        """Rows with the least that they could cost, cheapest first."""
        if self._sums is None:
            self._sums = Reclaimables(self.table)
        sums = self._sums.below(ask.priority)
        order = self.table.memo("by rank", _by_rank)
        rows = order[(sums.could_fit(ask) & self.table.column("alive") & ~_beyond_help(decision))[order]]
        fewest = sums.at_least(ask)[rows]
        cheapest = fewest * sums.lowest[rows]
        for position in np.lexsort((cheapest, fewest)).tolist():
            yield int(rows[position]), (int(fewest[position]), int(cheapest[position]))

    def _draft(self, ask: WorkloadAsk, row: int, bound: Bound) -> Preemption | None:
        """By amounts alone, in two orders: sparing the important ones, and sparing the small ones. None: amounts are not the trouble."""
        missing = {r: amount - int(self.table.free(r)[row]) for r, amount in ask.needs}
        missing = {r: amount for r, amount in missing.items() if amount > 0}
        if not missing:
            return None
        candidates = sorted(self._candidates(row, ask), key=self._importance)
        victims = least_for(missing, self._within_limits(candidates))
        if victims and len(victims) == bound[0]:
            return self._preemption(row, victims)
        by_size = sorted(candidates, key=lambda each: -share_of(missing, each))
        fewer = least_for(missing, self._within_limits(by_size))
        found = [self._preemption(row, each) for each in (victims, fewer) if each]
        return min(found, key=_cost, default=None)

    def _importance(self, placement: Placement) -> tuple[int, float, str]:
        return (placement.ask.priority, self.age(placement.ask.name), placement.ask.name)

    def _candidates(self, row: int, ask: WorkloadAsk) -> list[Placement]:
        """Whom it may displace; nobody whose gang has no member to spare."""
        return [each for each in lower(self.table, row, ask) if self._to_spare(each) > 0]

    def _to_spare(self, placement: Placement) -> int:
        """Half a gang is of no use: so many members may go before it has fewer than must run together."""
        ask = placement.ask
        return self.table.members[ask.group] - ask.min_member if ask.group else UNLIMITED

    def _within_limits(self, order: Iterable[Placement]) -> list[Placement]:
        """Of a service no more than may be disrupted, of a gang no more than it can spare; the first ones in the order."""
        services: Counter[str] = Counter()
        gangs: Counter[str] = Counter()
        allowed = []
        for placement in order:
            service, gang = service_of(placement), placement.ask.group
            may_stop = self.may_disrupt.get(service, UNLIMITED) if service else UNLIMITED
            if services[service] < may_stop and gangs[gang] < self._to_spare(placement):
                allowed.append(placement)
                services[service] += 1
                gangs[gang] += 1
        return allowed

    def _makes_room(self, ask: WorkloadAsk, draft: Preemption) -> bool:
        with self.table.what_if():
            for victim in draft.victims:
                self.table.forget(victim.ask.name)
            return fits_on(ask, self.table, self.profile, draft.row)

    def _by_trying(self, ask: WorkloadAsk, row: int) -> Preemption | None:
        """Everyone out; if it fits then, back in one by one as long as it still fits, until nobody more can stay."""
        candidates = sorted(self._candidates(row, ask), key=self._importance, reverse=True)
        for order in self._orders(row, candidates):
            victims = self._put_back(ask, row, order)
            if victims and len(self._within_limits(victims)) == len(victims):
                return self._preemption(row, victims)
        return None

    def _orders(self, row: int, candidates: list[Placement]) -> Iterator[list[Placement]]:
        """The most important first; if that stops too many of a service or gang, first as many small ones of it as must stay."""
        yield candidates
        by_size = sorted(candidates, key=lambda each: self._size(each, row))
        may_go = {each.ask.name for each in self._within_limits(reversed(by_size))}
        if len(may_go) == len(candidates):
            return
        kept = [each for each in by_size if each.ask.name not in may_go]
        yield kept + [each for each in candidates if each.ask.name in may_go]

    def _size(self, placement: Placement, row: int) -> tuple[int, float]:
        gpu = placement.ask.demands.gpu
        shares = sum(amount * float(self.table.inverse(r)[row]) for r, amount in placement.ask.needs)
        return (gpu.total if gpu else 0, shares)

    def _put_back(self, ask: WorkloadAsk, row: int, order: list[Placement]) -> list[Placement]:
        """Who cannot stay; nobody, if it does not even fit without all of them."""
        with self.table.what_if():
            for each in order:
                self.table.forget(each.ask.name)
            if not fits_on(ask, self.table, self.profile, row):
                return []
            victims = order
            while spared := {each.ask.name for each in victims if self._can_stay(each, ask, row)}:
                victims = [each for each in victims if each.ask.name not in spared]  # again: sparing one may help another
            return victims

    def _can_stay(self, placement: Placement, ask: WorkloadAsk, row: int) -> bool:
        """It is back if so."""
        self.table.restore(placement)
        if fits_on(ask, self.table, self.profile, row):
            return True
        self.table.forget(placement.ask.name)
        return False

    def _preemption(self, row: int, victims: Sequence[Placement]) -> Preemption:
        ordered = tuple(sorted(victims, key=self._importance))
        ages = sum(self.age(each.ask.name) for each in ordered)
        cost = (len(ordered), sum(each.ask.priority for each in ordered), ages, int(self.table.column("rank")[row]))
        return Preemption(row, ordered, cost)


def _cost(preemption: Preemption) -> Cost:
    return preemption.cost


def least_for(missing: Mapping[int, int], candidates: Sequence[Placement]) -> list[Placement]:
    """One that gives enough alone, else all less those that can be spared, last first; none if all are not enough."""
    if not candidates:
        return []
    resources = tuple(missing)
    given = []
    for each in candidates:
        amounts = dict(each.ask.needs)
        given.append([amounts.get(r, 0) for r in resources])
    wanted = list(missing.values())
    for each, gives in zip(candidates, given, strict=True):
        if all(map(ge, gives, wanted)):
            return [each]
    spare = [sum(column) - want for column, want in zip(zip(*given, strict=True), wanted, strict=True)]
    if min(spare) < 0:
        return []
    victims = []
    for each, gives in zip(reversed(candidates), reversed(given), strict=True):
        if all(map(le, gives, spare)):
            spare = list(map(sub, spare, gives))
        else:
            victims.append(each)
    return victims


def share_of(missing: Mapping[int, int], placement: Placement) -> float:
    """How much of what is missing it would give back."""
    return sum(min(1.0, amount / missing[r]) for r, amount in placement.ask.needs if r in missing)


def service_of(placement: Placement) -> str:
    demands = placement.ask.demands
    return f"{demands.namespace}/{demands.service}" if demands.service else ""


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


def can_be_cured(plugin: Filter) -> bool:
    """Could it change its mind when a workload leaves? One that does not say might."""
    return Change.WORKLOAD_GONE in getattr(plugin, "wakes_on", {Change.WORKLOAD_GONE})


def _by_rank(table: Table) -> NDArray[np.intp]:
    return np.argsort(table.column("rank"), kind="stable")
