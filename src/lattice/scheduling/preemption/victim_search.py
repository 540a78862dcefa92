"""Branch-and-bound search for the victims of one node: the fewest that free enough together, then the
cheapest."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU

Cost = tuple[int, int, float, int]  # number of victims, sum of priorities, sum of ages, rank of the node
VictimSet = list["VictimGroup"]
VictimSetCheck = Callable[[VictimSet], bool]

FILTER_CHECK_STEPS = 25  # the cost of running the filters on one victim set, in search steps


@dataclass(frozen=True, slots=True)
class VictimGroup:
    """Workloads that are evicted together: one workload, or all members of a gang on all nodes."""

    members: tuple[Placement, ...]
    member_costs: tuple[tuple[int, float], ...]  # by member: priority and age in seconds
    freed_amounts: tuple[tuple[int, ...], ...]  # by member on the node: amounts of the missing resources
    freed_gpus: tuple[tuple[int, int], ...] = ()  # (GPU number, thousandths) of members on the node
    limited_services: tuple[str, ...] = ()  # services of members that have a disruption limit
    gang: str = ""
    is_whole_gang: bool = False
    equivalence_key: Hashable = None  # groups with equal keys are interchangeable: the cheapest goes first


@dataclass(frozen=True, slots=True)
class Deficit:
    """What a node lacks for the workload: amounts of resources, and `gpu_count` GPUs. `missing_by_gpu` holds
    the thousandths that every usable GPU lacks."""

    amounts: tuple[int, ...] = ()
    missing_by_gpu: Mapping[int, int] = field(default_factory=dict)
    gpu_count: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.amounts and not self.gpu_count


@dataclass(frozen=True, slots=True)
class DisruptionLimits:
    """The limits of evictions: by service, and by gang for gangs that are not evicted as a whole."""

    services: Mapping[str, int] = field(default_factory=dict)
    gangs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SearchBudget:
    """The remaining search steps. Steps are counted, not timed, so that equal inputs get equal results."""

    remaining_steps: int
    parent: "SearchBudget | None" = None  # also pays for the steps of this budget
    is_exhausted: bool = False

    def sub_budget(self, most: int) -> "SearchBudget":
        return SearchBudget(most, self)

    def spend(self, steps: int) -> None:
        """Pay for steps; an exhausted budget, own or parent's, ends the search."""
        if self.parent:
            self.parent.remaining_steps -= steps
        self.remaining_steps -= steps
        if self.remaining_steps < 0 or (self.parent and self.parent.remaining_steps < 0):
            self.is_exhausted = True
            if self.parent:
                self.parent.is_exhausted = True
            raise _BudgetExhausted


class _BudgetExhausted(Exception):
    """The search budget is exhausted. The exception does not leave the module."""


class _RemainingBounds:
    """Bounds of the groups from one index on: for every number of victims, the most that this many victims
    could free and the least that they could cost."""

    __slots__ = ("costs", "gains", "gpus", "span")

    def __init__(self, groups: Sequence[VictimGroup], deficit: Deficit) -> None:
        freed: list[tuple[int, ...]] = []
        member_costs: list[tuple[int, float]] = []
        for group in groups:
            if group.is_whole_gang:
                # Only the whole gang frees its amounts, so each member on any node stands for an equal part;
                # rounded up, because the bound must not be below what the gang frees.
                count = len(group.members)
                columns = zip(*group.freed_amounts, strict=True)
                freed += [tuple(-(-sum(column) // count) for column in columns)] * count
            else:
                freed += group.freed_amounts
            member_costs.extend(group.member_costs)
        self.gains = [[0, *accumulate(sorted(column, reverse=True))] for column in zip(*freed, strict=True)]
        self.costs = [
            (0, 0.0),
            *accumulate(sorted(member_costs), lambda total, cost: (total[0] + cost[0], total[1] + cost[1])),
        ]
        self.gpus: dict[int, list[int]] = {}
        self.span = 1
        if not deficit.gpu_count:
            return
        freed_by_gpu: dict[int, list[int]] = {}
        for group in groups:
            for number, milli in group.freed_gpus:
                freed_by_gpu.setdefault(number, []).append(milli)
            self.span = max(self.span, len(group.freed_gpus))
        for number, amounts in freed_by_gpu.items():
            self.gpus[number] = list(accumulate(sorted(amounts, reverse=True)))

    def can_cover(self, missing_amounts: Sequence[int], most: int) -> bool:
        """Whether `most` further workloads could free the missing amounts."""
        return all(
            missing <= gains[min(most, len(gains) - 1)]
            for missing, gains in zip(missing_amounts, self.gains, strict=True)
        )

    def can_free_gpus(self, missing_by_gpu: Mapping[int, int], count: int, most: int) -> bool:
        """Whether `most` further workloads could free `count` GPUs.

        The answer is optimistic: a GPU counts as free after the fewest evictions that could cover its missing
        part, those of its largest shares. One eviction may count for `span` GPUs, the most GPUs that one
        group uses.
        """
        evictions = []
        for number, missing in missing_by_gpu.items():
            shares = self.gpus.get(number, ())
            if missing <= 0:
                count -= 1
            elif shares and shares[-1] >= missing:
                evictions.append(bisect_left(shares, missing) + 1)
        return count <= 0 or (len(evictions) >= count and sum(sorted(evictions)[:count]) <= most * self.span)


class VictimSearch:
    """The search on one node. It examines every victim set of a given size that could suffice and costs less
    than the best known set.

    The search is exact unless its budget is exhausted. A victim set that covers the deficit is passed to
    `accept`, if given.
    """

    def __init__(
        self,
        groups: Iterable[VictimGroup],
        deficit: Deficit,
        limits: DisruptionLimits,
        accept: VictimSetCheck | None = None,
    ) -> None:
        self.groups = _cheapest_per_class_first(groups, deficit)
        self.deficit, self.limits, self.accept = deficit, limits, accept
        self.is_truncated = False  # the budget was exhausted before the search ended
        # By index, where the next equivalence class begins: a search that skips a group skips the costlier
        # groups of its class.
        self._next_class = [len(self.groups)] * len(self.groups)
        for index in range(len(self.groups) - 2, -1, -1):
            is_same_class = self.groups[index].equivalence_key == self.groups[index + 1].equivalence_key
            self._next_class[index] = self._next_class[index + 1] if is_same_class else index + 1
        self._bounds_by_index: dict[int, _RemainingBounds] = {}
        self._reset()

    def _reset(self) -> None:
        self._missing_amounts, self._missing_by_gpu = (
            list(self.deficit.amounts),
            dict(self.deficit.missing_by_gpu),
        )
        self._disrupted: Counter[str] = Counter()
        self._selected: VictimSet = []
        self._best: VictimSet | None = None

    def lower_bound(self, count: int) -> tuple[int, int] | None:
        """The least number of victims, from `count` on, that could suffice, and their least sum of
        priorities; None if none could."""
        if not self.groups:
            return None
        bounds = self._bounds_from(0)
        for size in range(count, len(bounds.costs)):
            if self._could_suffice(bounds, size):
                return (size, bounds.costs[size][0])
        return None

    def cheapest(self, count: int, below: tuple[float, ...], budget: SearchBudget) -> VictimSet | None:
        """The cheapest set of exactly `count` victims whose cost (number, priorities, ages) is less than
        `below`."""
        self._reset()
        self._count, self._cost_limit, self._budget = count, below, budget
        try:
            self._descend(0, count, (0, 0.0))
        except _BudgetExhausted:
            self.is_truncated = True
        return self._best

    def _descend(self, index: int, remaining: int, spent: tuple[int, float]) -> None:
        """Select `remaining` further victims from the groups at `index` and later, in every way that could be
        cheaper than the best set."""
        if not remaining:
            total_cost = (self._count, *spent)
            if total_cost < self._cost_limit and self._covers_deficit():
                # Running the filters costs as much as FILTER_CHECK_STEPS steps, which are spent before the
                # filters run.
                if self.accept:
                    self._budget.spend(FILTER_CHECK_STEPS)
                if self.accept is None or self.accept(self._selected):
                    self._best, self._cost_limit = list(self._selected), total_cost
            return
        while index < len(self.groups) and self._can_improve(index, remaining, spent):
            self._budget.spend(1)
            group = self.groups[index]
            if len(group.members) <= remaining and self.may_evict(group):
                cost = spent
                for priority, age in group.member_costs:
                    cost = (cost[0] + priority, cost[1] + age)
                self._select(group, 1)
                self._selected.append(group)
                self._descend(index + 1, remaining - len(group.members), cost)
                self._selected.pop()
                self._select(group, -1)
            index = self._next_class[index]

    def _can_improve(self, index: int, remaining: int, spent: tuple[int, float]) -> bool:
        bounds = self._bounds_from(index)
        if remaining >= len(bounds.costs):
            return False
        priority, age = bounds.costs[remaining]
        if (self._count, spent[0] + priority, spent[1] + age) >= self._cost_limit:
            return False
        return self._could_suffice(bounds, remaining)

    def _bounds_from(self, index: int) -> _RemainingBounds:
        bounds = self._bounds_by_index.get(index)
        if bounds is None:
            bounds = self._bounds_by_index[index] = _RemainingBounds(self.groups[index:], self.deficit)
        return bounds

    def _could_suffice(self, bounds: _RemainingBounds, most: int) -> bool:
        if not bounds.can_cover(self._missing_amounts, most):
            return False
        return not self.deficit.gpu_count or bounds.can_free_gpus(
            self._missing_by_gpu, self.deficit.gpu_count, most
        )

    def _covers_deficit(self) -> bool:
        if any(missing > 0 for missing in self._missing_amounts):
            return False
        return sum(missing <= 0 for missing in self._missing_by_gpu.values()) >= self.deficit.gpu_count

    def may_evict(self, group: VictimGroup) -> bool:
        """Whether the disruption limits allow the group in addition to the selected groups."""
        for service in group.limited_services:
            disrupted = self._disrupted[service] + group.limited_services.count(service)
            if disrupted > self.limits.services[service]:
                return False
        if not group.gang:
            return True
        evicted = self._disrupted["gang " + group.gang]
        return not evicted if group.is_whole_gang else evicted < self.limits.gangs[group.gang]

    def _select(self, group: VictimGroup, sign: int) -> None:
        for amounts in group.freed_amounts:
            for number, amount in enumerate(amounts):
                self._missing_amounts[number] -= sign * amount
        for number, milli in group.freed_gpus:
            if number in self._missing_by_gpu:
                self._missing_by_gpu[number] -= sign * milli
        for service in group.limited_services:
            self._disrupted[service] += sign
        if group.gang:
            # A whole gang counts as 2^30 evictions, more than any gang has members, so that no single member
            # is selected in addition.
            self._disrupted["gang " + group.gang] += sign * (1 << 30 if group.is_whole_gang else 1)

    def greedy_victims(self) -> VictimSet | None:
        """A victim set without proof that it is the cheapest; None if all groups together do not suffice.

        The search selects every group that the limits allow, then drops the groups that are not needed. It
        does so in two orders, and returns the cheaper set.
        """
        cheapest_first = sorted(self.groups, key=lambda group: (group.is_whole_gang, group.member_costs))
        largest_first = sorted(
            self.groups, key=lambda group: (not group.is_whole_gang, -_deficit_share(group, self.deficit))
        )
        orders = (cheapest_first, largest_first)
        victim_sets = [self._select_needed(order) for order in orders]
        return min(filter(None, victim_sets), key=_cost_of, default=None)

    def _select_needed(self, order: Sequence[VictimGroup]) -> VictimSet | None:
        """Select every group that the limits allow, then drop the groups without which the set suffices, the
        last groups first."""
        self._reset()
        victim_set: VictimSet = []
        for group in order:
            if self.may_evict(group):
                self._select(group, 1)
                victim_set.append(group)
        if not self._suffices(victim_set):
            return None
        for group in reversed(victim_set):
            remaining = [selected for selected in victim_set if selected is not group]
            self._select(group, -1)
            if self._suffices(remaining):
                victim_set = remaining
            else:
                self._select(group, 1)
        return victim_set

    def _suffices(self, victim_set: VictimSet) -> bool:
        """Whether the selected groups suffice."""
        return (
            bool(victim_set) and self._covers_deficit() and (self.accept is None or self.accept(victim_set))
        )


def _cost_of(victim_set: VictimSet) -> tuple[int, int, float]:
    costs = list(chain.from_iterable(group.member_costs for group in victim_set))
    return (len(costs), sum(priority for priority, _ in costs), sum(age for _, age in costs))


def _deficit_share(group: VictimGroup, deficit: Deficit) -> float:
    """The sum, over the missing resources, of the part that the group frees."""
    columns = zip(*group.freed_amounts, strict=True)
    amounts = sum(
        min(1.0, sum(column) / missing) for column, missing in zip(columns, deficit.amounts, strict=True)
    )
    freed_gpus = (milli for number, milli in group.freed_gpus if deficit.missing_by_gpu.get(number, 0) > 0)
    return float(amounts + sum(freed_gpus) / MILLI_PER_GPU)


def _cheapest_per_class_first(groups: Iterable[VictimGroup], deficit: Deficit) -> list[VictimGroup]:
    """Order groups by equivalence class, the cheapest of a class first.

    Classes are ordered by their cheapest group; of equally cheap classes, those that free more come first.
    """
    classes: dict[Hashable, list[VictimGroup]] = {}
    for group in sorted(groups, key=lambda group: (group.member_costs, group.members[0].ask.name)):
        classes.setdefault(group.equivalence_key, []).append(group)

    def rank(equivalent: list[VictimGroup]) -> tuple[int, int, float]:
        cheapest = equivalent[0]
        return (len(cheapest.members), cheapest.member_costs[0][0], -_deficit_share(cheapest, deficit))

    ordered = sorted(classes.values(), key=rank)
    return list(chain.from_iterable(ordered))
