"""Who of those that may go must go? The fewest who free enough together, of these the cheapest, by branch and bound."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lattice.scheduling.table.ask import WHOLE_GPU
from lattice.scheduling.table.node_table import Placement

Cost = tuple[
    int, int, float, int
]  # how many, sum of their priorities, how long they have run, rank of the node
Choice = list["Party"]
Accept = Callable[[Choice], bool]

ASKING = 25  # asking the filters about one choice is as much work as so many steps


@dataclass(frozen=True, slots=True)
class Party:
    """Those who go together: one workload, or all of a gang that cannot do without it, wherever they are."""

    members: tuple[Placement, ...]
    worth: tuple[tuple[int, float], ...]  # of each member: its priority and age
    gives: tuple[tuple[int, ...], ...]  # of each member on this node: how much of every thing that is short
    gpus: tuple[tuple[int, int], ...] = ()  # (which one, thousandths) that members hold on this node
    services: tuple[str, ...] = ()  # of members, where these may not be disrupted without limit
    gang: str = ""
    is_whole: bool = False  # it is all of its gang
    kind: Hashable = None  # of one kind any will do: the cheapest goes first


@dataclass(frozen=True, slots=True)
class Short:
    """What a node lacks: an amount of each thing, and `gpu_count` GPUs of which `gpus` tells how much each lacks to be ready."""

    amounts: tuple[int, ...] = ()
    gpus: Mapping[int, int] = field(default_factory=dict)
    gpu_count: int = 0

    @property
    def is_nothing(self) -> bool:
        return not self.amounts and not self.gpu_count


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a service, and of a gang that is not stopped as a whole, no more than so many."""

    services: Mapping[str, int] = field(default_factory=dict)
    gangs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Effort:
    """Steps that may still be made. Counted, not timed, so that the same question always gets the same answer."""

    left: int
    whole: "Effort | None" = None  # that this is a part of
    is_spent: bool = False

    def part(self, most: int) -> "Effort":
        return Effort(most, self)

    def spend(self, steps: int) -> None:
        if self.whole:
            self.whole.left -= steps
        self.left -= steps
        if self.left < 0 or (self.whole and self.whole.left < 0):
            self.is_spent = True
            if self.whole:
                self.whole.is_spent = True
            raise _Spent


class _Spent(Exception):
    """Stays inside this module."""


class _Rest:
    """What the parties from one place on could give at best, and cost at least."""

    __slots__ = ("costs", "gains", "gpus", "span")

    def __init__(self, parties: Sequence[Party], short: Short) -> None:
        gives = [each for party in parties for each in _each_gives(party)]
        self.gains = [[0, *accumulate(sorted(column, reverse=True))] for column in zip(*gives, strict=True)]
        worth = sorted(each for party in parties for each in party.worth)
        self.costs = [(0, 0.0), *accumulate(worth, lambda one, other: (one[0] + other[0], one[1] + other[1]))]
        self.gpus: dict[int, list[int]] = {}
        self.span = 1
        if short.gpu_count:
            self._hold(parties)

    def _hold(self, parties: Sequence[Party]) -> None:
        held: dict[int, list[int]] = {}
        for party in parties:
            for number, milli in party.gpus:
                held.setdefault(number, []).append(milli)
            self.span = max(self.span, len(party.gpus))
        self.gpus = {
            number: list(accumulate(sorted(amounts, reverse=True))) for number, amounts in held.items()
        }

    def can_give(self, lacking: Sequence[int], most: int) -> bool:
        """By so many more workloads."""
        return all(
            lack <= gains[min(most, len(gains) - 1)] for lack, gains in zip(lacking, self.gains, strict=True)
        )

    def can_free(self, lacking: Mapping[int, int], count: int, most: int) -> bool:
        """A GPU takes as many workloads as its largest shares need; one workload counts for as many GPUs as any one spans."""
        takes = []
        for number, lack in lacking.items():
            shares = self.gpus.get(number, ())
            if lack <= 0:
                count -= 1
            elif shares and shares[-1] >= lack:
                takes.append(bisect_left(shares, lack) + 1)
        return count <= 0 or (len(takes) >= count and sum(sorted(takes)[:count]) <= most * self.span)


def _each_gives(party: Party) -> Sequence[tuple[int, ...]]:
    """What all of a gang give, shared out among its members wherever they are: only together they give it."""
    if not party.is_whole:
        return party.gives
    count = len(party.members)
    return [tuple(-(-sum(column) // count) for column in zip(*party.gives, strict=True))] * count


class Search:
    """On one node, exact unless the effort is spent: all sets of one size that could be enough, and cheaper than what is known.

    `accept` is asked about what is enough by number; without it that suffices.
    """

    def __init__(
        self, parties: Iterable[Party], short: Short, limits: Limits, accept: Accept | None = None
    ) -> None:
        self.parties = _by_kind(parties, short)
        self.short, self.limits, self.accept = short, limits, accept
        self.is_cut = False  # the effort was spent before all was seen
        self._after = _next_kinds(self.parties)
        self._rests: dict[int, _Rest] = {}
        self._start()

    def _start(self) -> None:
        self._lacking, self._gpus = list(self.short.amounts), dict(self.short.gpus)
        self._used: Counter[str] = Counter()
        self._taken: Choice = []
        self._found: Choice | None = None

    def bound(self, count: int) -> tuple[int, int] | None:
        """How many, `count` or more, could be enough, and their least sum of priorities. None: no number is."""
        if not self.parties:
            return None
        rest = self._rest(0)
        for size in range(count, len(rest.costs)):
            if self._could_do(rest, size):
                return (size, rest.costs[size][0])
        return None

    def cheapest(self, count: int, below: tuple[float, ...], effort: Effort) -> Choice | None:
        """Of exactly so many, and of less cost (how many, priorities, ages) than `below`."""
        self._start()
        self._count, self._below, self._effort = count, below, effort
        try:
            self._descend(0, count, (0, 0.0))
        except _Spent:
            self.is_cut = True
        return self._found

    def _descend(self, at: int, left: int, spent: tuple[int, float]) -> None:
        """Take exactly `left` more from here on, in all ways that could be better than what is known."""
        if not left:
            self._offer(spent)
            return
        while at < len(self.parties) and self._is_worth_it(at, left, spent):
            self._effort.spend(1)
            party = self.parties[at]
            if len(party.members) <= left and self.may_take(party):
                self._take(party, 1)
                self._taken.append(party)
                self._descend(at + 1, left - len(party.members), _sum(spent, party))
                self._taken.pop()
                self._take(party, -1)
            at = self._after[at]

    def _is_worth_it(self, at: int, left: int, spent: tuple[int, float]) -> bool:
        rest = self._rest(at)
        if left >= len(rest.costs):
            return False
        priority, age = rest.costs[left]
        return (self._count, spent[0] + priority, spent[1] + age) < self._below and self._could_do(rest, left)

    def _rest(self, at: int) -> _Rest:
        rest = self._rests.get(at)
        if rest is None:
            rest = self._rests[at] = _Rest(self.parties[at:], self.short)
        return rest

    def _could_do(self, rest: _Rest, most: int) -> bool:
        if not rest.can_give(self._lacking, most):
            return False
        return not self.short.gpu_count or rest.can_free(self._gpus, self.short.gpu_count, most)

    def _offer(self, spent: tuple[int, float]) -> None:
        cost = (self._count, *spent)
        if cost >= self._below or not self._is_enough():
            return
        if self.accept:
            self._effort.spend(ASKING)
        if self.accept is None or self.accept(self._taken):
            self._found, self._below = list(self._taken), cost

    def _is_enough(self) -> bool:
        if any(lack > 0 for lack in self._lacking):
            return False
        return sum(lack <= 0 for lack in self._gpus.values()) >= self.short.gpu_count

    def may_take(self, party: Party) -> bool:
        """As far as limits go, besides those taken already."""
        for service in party.services:
            if self._used[service] + party.services.count(service) > self.limits.services[service]:
                return False
        if not party.gang:
            return True
        used = self._used["gang " + party.gang]
        return not used if party.is_whole else used < self.limits.gangs[party.gang]

    def _take(self, party: Party, sign: int) -> None:
        for gives in party.gives:
            for number, amount in enumerate(gives):
                self._lacking[number] -= sign * amount
        for number, milli in party.gpus:
            if number in self._gpus:
                self._gpus[number] -= sign * milli
        for service in party.services:
            self._used[service] += sign
        if party.gang:
            self._used["gang " + party.gang] += sign * (1 << 30 if party.is_whole else 1)

    def good_enough(self) -> Choice | None:
        """Without proof: as many as may go, less those that can be spared, in two orders. None if all of them are not enough."""
        orders = (
            sorted(self.parties, key=lambda each: (each.is_whole, each.worth)),
            sorted(self.parties, key=lambda each: (not each.is_whole, -_share(each, self.short))),
        )
        found = [choice for order in orders if (choice := self._thinned(self._within_limits(order)))]
        return min(found, key=_cost_of, default=None)

    def _within_limits(self, order: Sequence[Party]) -> Choice:
        """As many as may go. They are taken when this returns."""
        self._start()
        choice = []
        for party in order:
            if self.may_take(party):
                self._take(party, 1)
                choice.append(party)
        return choice

    def _thinned(self, choice: Choice) -> Choice | None:
        """The last ones stay first."""
        if not self._suffices(choice):
            return None
        for party in reversed(choice):
            rest = [each for each in choice if each is not party]
            self._take(party, -1)
            if self._suffices(rest):
                choice = rest
            else:
                self._take(party, 1)
        return choice

    def _suffices(self, choice: Choice) -> bool:
        """Of those that are taken now."""
        return bool(choice) and self._is_enough() and (self.accept is None or self.accept(choice))


def _sum(spent: tuple[int, float], party: Party) -> tuple[int, float]:
    for priority, age in party.worth:
        spent = (spent[0] + priority, spent[1] + age)
    return spent


def _cost_of(choice: Choice) -> tuple[int, int, float]:
    worth = [each for party in choice for each in party.worth]
    return (len(worth), sum(priority for priority, _ in worth), sum(age for _, age in worth))


def _share(party: Party, short: Short) -> float:
    """How much it gives of what is short."""
    amounts = sum(
        min(1.0, sum(column) / lack)
        for column, lack in zip(zip(*party.gives, strict=True), short.amounts, strict=True)
    )
    return float(
        amounts + sum(milli for number, milli in party.gpus if short.gpus.get(number, 0) > 0) / WHOLE_GPU
    )


def _by_kind(parties: Iterable[Party], short: Short) -> list[Party]:
    """Of a kind the cheapest first; kinds by their cheapest, those that give much before others."""
    kinds: dict[Hashable, list[Party]] = {}
    for party in sorted(parties, key=_importance):
        kinds.setdefault(party.kind, []).append(party)
    order = sorted(
        kinds.values(), key=lambda each: (len(each[0].members), each[0].worth[0][0], -_share(each[0], short))
    )
    return [party for each in order for party in each]


def _importance(party: Party) -> tuple[object, ...]:
    return (party.worth, party.members[0].ask.name)


def _next_kinds(parties: Sequence[Party]) -> list[int]:
    """For each place, where the next kind begins: who is not taken spares the dearer ones of its kind too."""
    after = [len(parties)] * len(parties)
    for at in range(len(parties) - 2, -1, -1):
        after[at] = after[at + 1] if parties[at].kind == parties[at + 1].kind else at + 1
    return after
