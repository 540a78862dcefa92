"""Who of those that may go must go? The fewest who free enough together, of these the cheapest, by branch and bound."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lattice.scheduling.table.ask import MILLI_PER_GPU
from lattice.scheduling.table.node_table import Placement

Cost = tuple[
    int, int, float, int
]  # how many, sum of their priorities, how long they have run, rank of the node
VictimSet = list["VictimGroup"]
VictimSetCheck = Callable[[VictimSet], bool]

FILTER_CHECK_STEPS = 25  # asking the filters about one choice is as much work as so many steps


@dataclass(frozen=True, slots=True)
class VictimGroup:
    """Those who go together: one workload, or all of a gang that cannot do without it, wherever they are."""

    members: tuple[Placement, ...]
    member_costs: tuple[tuple[int, float], ...]  # of each member: its priority and age
    freed_amounts: tuple[
        tuple[int, ...], ...
    ]  # of each member on this node: how much of every thing that is short
    freed_gpus: tuple[tuple[int, int], ...] = ()  # (which one, thousandths) that members hold on this node
    limited_services: tuple[str, ...] = ()  # of members, where these may not be disrupted without limit
    gang: str = ""
    is_whole_gang: bool = False  # it is all of its gang
    equivalence_key: Hashable = None  # of one kind any will do: the cheapest goes first


@dataclass(frozen=True, slots=True)
class Deficit:
    """What a node lacks: an amount of each thing, and `gpu_count` GPUs of which `gpus` tells how much each lacks to be ready."""

    amounts: tuple[int, ...] = ()
    missing_by_gpu: Mapping[int, int] = field(default_factory=dict)
    gpu_count: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.amounts and not self.gpu_count


@dataclass(frozen=True, slots=True)
class DisruptionLimits:
    """Of a service, and of a gang that is not stopped as a whole, no more than so many."""

    services: Mapping[str, int] = field(default_factory=dict)
    gangs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SearchBudget:
    """Steps that may still be made. Counted, not timed, so that the same question always gets the same answer."""

    remaining_steps: int
    parent: "SearchBudget | None" = None  # that this is a part of
    is_exhausted: bool = False

    def sub_budget(self, most: int) -> "SearchBudget":
        return SearchBudget(most, self)

    def spend(self, steps: int) -> None:
        if self.parent:
            self.parent.remaining_steps -= steps
        self.remaining_steps -= steps
        if self.remaining_steps < 0 or (self.parent and self.parent.remaining_steps < 0):
            self.is_exhausted = True
            if self.parent:
                self.parent.is_exhausted = True
            raise _BudgetExhausted


class _BudgetExhausted(Exception):
    """Stays inside this module."""


class _RemainingBounds:
    """What the parties from one place on could give at best, and cost at least."""

    __slots__ = ("costs", "gains", "gpus", "span")

    def __init__(self, parties: Sequence[VictimGroup], short: Deficit) -> None:
        gives = [each for party in parties for each in _freed_per_member(party)]
        self.gains = [[0, *accumulate(sorted(column, reverse=True))] for column in zip(*gives, strict=True)]
        worth = sorted(each for party in parties for each in party.member_costs)
        self.costs = [(0, 0.0), *accumulate(worth, lambda one, other: (one[0] + other[0], one[1] + other[1]))]
        self.gpus: dict[int, list[int]] = {}
        self.span = 1
        if short.gpu_count:
            self._sum_gpus(parties)

    def _sum_gpus(self, parties: Sequence[VictimGroup]) -> None:
        held: dict[int, list[int]] = {}
        for party in parties:
            for number, milli in party.freed_gpus:
                held.setdefault(number, []).append(milli)
            self.span = max(self.span, len(party.freed_gpus))
        self.gpus = {
            number: list(accumulate(sorted(amounts, reverse=True))) for number, amounts in held.items()
        }

    def can_cover(self, lacking: Sequence[int], most: int) -> bool:
        """By so many more workloads."""
        return all(
            lack <= gains[min(most, len(gains) - 1)] for lack, gains in zip(lacking, self.gains, strict=True)
        )

    def can_free_gpus(self, lacking: Mapping[int, int], count: int, most: int) -> bool:
        """A GPU takes as many workloads as its largest shares need; one workload counts for as many GPUs as any one spans."""
        takes = []
        for number, lack in lacking.items():
            shares = self.gpus.get(number, ())
            if lack <= 0:
                count -= 1
            elif shares and shares[-1] >= lack:
                takes.append(bisect_left(shares, lack) + 1)
        return count <= 0 or (len(takes) >= count and sum(sorted(takes)[:count]) <= most * self.span)


def _freed_per_member(party: VictimGroup) -> Sequence[tuple[int, ...]]:
    """What all of a gang give, shared out among its members wherever they are: only together they give it."""
    if not party.is_whole_gang:
        return party.freed_amounts
    count = len(party.members)
    return [tuple(-(-sum(column) // count) for column in zip(*party.freed_amounts, strict=True))] * count


class VictimSearch:
    """On one node, exact unless the effort is spent: all sets of one size that could be enough, and cheaper than what is known.

    `accept` is asked about what is enough by number; without it that suffices.
    """

    def __init__(
        self,
        parties: Iterable[VictimGroup],
        short: Deficit,
        limits: DisruptionLimits,
        accept: VictimSetCheck | None = None,
    ) -> None:
        self.groups = _by_kind(parties, short)
        self.deficit, self.limits, self.accept = short, limits, accept
        self.is_truncated = False  # the effort was spent before all was seen
        self._next_kind = _next_kind_indexes(self.groups)
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
        """How many, `count` or more, could be enough, and their least sum of priorities. None: no number is."""
        if not self.groups:
            return None
        rest = self._bounds_from(0)
        for size in range(count, len(rest.costs)):
            if self._could_suffice(rest, size):
                return (size, rest.costs[size][0])
        return None

    def cheapest(self, count: int, below: tuple[float, ...], effort: SearchBudget) -> VictimSet | None:
        """Of exactly so many, and of less cost (how many, priorities, ages) than `below`."""
        self._reset()
        self._count, self._cost_limit, self._budget = count, below, effort
        try:
            self._descend(0, count, (0, 0.0))
        except _BudgetExhausted:
            self.is_truncated = True
        return self._best

    def _descend(self, at: int, left: int, spent: tuple[int, float]) -> None:
        """Take exactly `left` more from here on, in all ways that could be better than what is known."""
        if not left:
            self._consider(spent)
            return
        while at < len(self.groups) and self._can_improve(at, left, spent):
            self._budget.spend(1)
            party = self.groups[at]
            if len(party.members) <= left and self.may_evict(party):
                self._select(party, 1)
                self._selected.append(party)
                self._descend(at + 1, left - len(party.members), _add_cost(spent, party))
                self._selected.pop()
                self._select(party, -1)
            at = self._next_kind[at]

    def _can_improve(self, at: int, left: int, spent: tuple[int, float]) -> bool:
        rest = self._bounds_from(at)
        if left >= len(rest.costs):
            return False
        priority, age = rest.costs[left]
        return (self._count, spent[0] + priority, spent[1] + age) < self._cost_limit and self._could_suffice(
            rest, left
        )

    def _bounds_from(self, at: int) -> _RemainingBounds:
        rest = self._bounds_by_index.get(at)
        if rest is None:
            rest = self._bounds_by_index[at] = _RemainingBounds(self.groups[at:], self.deficit)
        return rest

    def _could_suffice(self, rest: _RemainingBounds, most: int) -> bool:
        if not rest.can_cover(self._missing_amounts, most):
            return False
        return not self.deficit.gpu_count or rest.can_free_gpus(
            self._missing_by_gpu, self.deficit.gpu_count, most
        )

    def _consider(self, spent: tuple[int, float]) -> None:
        cost = (self._count, *spent)
        if cost >= self._cost_limit or not self._covers_deficit():
            return
        if self.accept:
            self._budget.spend(FILTER_CHECK_STEPS)
        if self.accept is None or self.accept(self._selected):
            self._best, self._cost_limit = list(self._selected), cost

    def _covers_deficit(self) -> bool:
        if any(lack > 0 for lack in self._missing_amounts):
            return False
        return sum(lack <= 0 for lack in self._missing_by_gpu.values()) >= self.deficit.gpu_count

    def may_evict(self, party: VictimGroup) -> bool:
        """As far as limits go, besides those taken already."""
        for service in party.limited_services:
            if (
                self._disrupted[service] + party.limited_services.count(service)
                > self.limits.services[service]
            ):
                return False
        if not party.gang:
            return True
        used = self._disrupted["gang " + party.gang]
        return not used if party.is_whole_gang else used < self.limits.gangs[party.gang]

    def _select(self, party: VictimGroup, sign: int) -> None:
        for gives in party.freed_amounts:
            for number, amount in enumerate(gives):
                self._missing_amounts[number] -= sign * amount
        for number, milli in party.freed_gpus:
            if number in self._missing_by_gpu:
                self._missing_by_gpu[number] -= sign * milli
        for service in party.limited_services:
            self._disrupted[service] += sign
        if party.gang:
            self._disrupted["gang " + party.gang] += sign * (1 << 30 if party.is_whole_gang else 1)

    def greedy_victims(self) -> VictimSet | None:
        """Without proof: as many as may go, less those that can be spared, in two orders. None if all of them are not enough."""
        orders = (
            sorted(self.groups, key=lambda each: (each.is_whole_gang, each.member_costs)),
            sorted(
                self.groups, key=lambda each: (not each.is_whole_gang, -_deficit_share(each, self.deficit))
            ),
        )
        found = [
            choice for order in orders if (choice := self._drop_unneeded(self._select_all_allowed(order)))
        ]
        return min(found, key=_cost_of, default=None)

    def _select_all_allowed(self, order: Sequence[VictimGroup]) -> VictimSet:
        """As many as may go. They are taken when this returns."""
        self._reset()
        choice = []
        for party in order:
            if self.may_evict(party):
                self._select(party, 1)
                choice.append(party)
        return choice

    def _drop_unneeded(self, choice: VictimSet) -> VictimSet | None:
        """The last ones stay first."""
        if not self._suffices(choice):
            return None
        for party in reversed(choice):
            rest = [each for each in choice if each is not party]
            self._select(party, -1)
            if self._suffices(rest):
                choice = rest
            else:
                self._select(party, 1)
        return choice

    def _suffices(self, choice: VictimSet) -> bool:
        """Of those that are taken now."""
        return bool(choice) and self._covers_deficit() and (self.accept is None or self.accept(choice))


def _add_cost(spent: tuple[int, float], party: VictimGroup) -> tuple[int, float]:
    for priority, age in party.member_costs:
        spent = (spent[0] + priority, spent[1] + age)
    return spent


def _cost_of(choice: VictimSet) -> tuple[int, int, float]:
    worth = [each for party in choice for each in party.member_costs]
    return (len(worth), sum(priority for priority, _ in worth), sum(age for _, age in worth))


def _deficit_share(party: VictimGroup, short: Deficit) -> float:
    """How much it gives of what is short."""
    amounts = sum(
        min(1.0, sum(column) / lack)
        for column, lack in zip(zip(*party.freed_amounts, strict=True), short.amounts, strict=True)
    )
    return float(
        amounts
        + sum(milli for number, milli in party.freed_gpus if short.missing_by_gpu.get(number, 0) > 0)
        / MILLI_PER_GPU
    )


def _by_kind(parties: Iterable[VictimGroup], short: Deficit) -> list[VictimGroup]:
    """Of a kind the cheapest first; kinds by their cheapest, those that give much before others."""
    kinds: dict[Hashable, list[VictimGroup]] = {}
    for party in sorted(parties, key=_importance):
        kinds.setdefault(party.equivalence_key, []).append(party)
    order = sorted(
        kinds.values(),
        key=lambda each: (len(each[0].members), each[0].member_costs[0][0], -_deficit_share(each[0], short)),
    )
    return [party for each in order for party in each]


def _importance(party: VictimGroup) -> tuple[object, ...]:
    return (party.member_costs, party.members[0].ask.name)


def _next_kind_indexes(parties: Sequence[VictimGroup]) -> list[int]:
    """For each place, where the next kind begins: who is not taken spares the dearer ones of its kind too."""
    after = [len(parties)] * len(parties)
    for at in range(len(parties) - 2, -1, -1):
        after[at] = (
            after[at + 1] if parties[at].equivalence_key == parties[at + 1].equivalence_key else at + 1
        )
    return after
