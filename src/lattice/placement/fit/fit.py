"""fit(service): the smallest changes that make it fit, on its own side and on the platform's, with their price."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TypeVar

from lattice.engine.plugin import Reason
from lattice.placement.explain.blockers import (
    Blocker,
    PlacementFailure,
    first_failure,
    is_feasible,
    reason_remedies,
)
from lattice.placement.explain.verdict import FeasibilityChecker, minimal_blocker_sets
from lattice.placement.fit.extend_supply import extensions
from lattice.placement.fit.nearest_offers import nearest_rows
from lattice.placement.fit.raise_limits import all_limit_options
from lattice.placement.fit.relax_service import relax_requirement, relaxations
from lattice.placement.fit.service_trial import ServiceTrial, TrialResult, UnplacedService, WhatIfScope
from lattice.placement.inputs.ledger_math import rate_per_30_days
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    RejectedCandidate,
    Responsible,
    supply_object_of,
)
from lattice.placement.model.world import World, object_key

MAX_SUGGESTIONS = 8  # suggestions
MAX_EDITS = 4
MAX_ROUNDS = 4
MAX_TRIALS_PER_ROUND = 40  # candidates tried in one round
MAX_TUNED_WAITING_SERVICES = 100  # services that wait: with more it is only said who comes first
MAX_FOLLOWED = 6  # candidates that are not enough but may be with more
MAX_PLATFORM_TRIALS, MAX_PLATFORM_FOLLOWED = (
    8,
    2,
)  # the same, where only the platform is looked at after something was found for the team

OptionSet = tuple[ChangeOption, ...]
RankedT = TypeVar("RankedT")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """All of these changes together make the service fit, and none of them can be left out."""

    edits: tuple[ObjectChange, ...]
    rate_increase: int  # micro-dollars per hour that are paid more then
    is_priced: bool = True  # False: for some machine nobody knows the price
    services_ahead: tuple[str, ...] = ()  # services that wait, too, come first, and get replicas then
    is_enough: bool = True  # False: they take what the service would need
    service_rate: int | None = (
        None  # micro-dollars per hour that the service then costs; None: nobody asked yet
    )
    extent: int = 0  # how far its limits are raised or its wishes lowered, in steps: the smaller of two that cost the same comes first

    @property
    def responsible(self) -> tuple[Responsible, ...]:
        return tuple(sorted({each.responsible for each in self.edits}))

    @property
    def is_platform_only(self) -> bool:
        """Nothing of it is asked of the team."""
        return self.responsible == ("platform",)

    @property
    def monthly(self) -> int:
        return rate_per_30_days(self.rate_increase)

    @property
    def sentence(self) -> str:
        return "; and ".join(each.sentence for each in self.edits)

    @property
    def rank(self) -> tuple[bool, int, bool, bool, int, int, str]:
        """What is enough, and fewer; what leaves the service's wishes whole and buys nothing; what is known to cost less; less."""
        adds = (
            all(each.adds_property for each in self.edits) and len({each.target for each in self.edits}) == 1
        )
        return (
            not self.is_enough,
            len(self.edits),
            not adds,
            not self.is_priced,
            self.rate_increase,
            self.extent,
            self.sentence,
        )


@dataclass(frozen=True, slots=True)
class EditSet:
    """Options, and how much of each."""

    options: OptionSet
    strengths: tuple[int, ...]

    @property
    def edits(self) -> tuple[ObjectChange, ...]:
        return tuple(
            option.build(strength) for option, strength in zip(self.options, self.strengths, strict=True)
        )

    def with_strength(self, position: int, strength: int) -> "EditSet":
        return replace(
            self, strengths=(*self.strengths[:position], strength, *self.strengths[position + 1 :])
        )

    def weaker(self) -> Iterator["EditSet"]:
        """With one step less of one of them."""
        return (
            self.with_strength(position, strength - 1)
            for position, strength in enumerate(self.strengths)
            if strength > 1
        )

    def subsets(self) -> Iterator["EditSet"]:
        """With some of them left out."""
        for size in range(1, len(self.options)):
            for some in combinations(range(len(self.options)), size):
                yield EditSet(
                    tuple(self.options[each] for each in some), tuple(self.strengths[each] for each in some)
                )


def _strongest(options: OptionSet) -> EditSet:
    return EditSet(options, tuple(option.max_strength for option in options))


@dataclass(frozen=True, slots=True)
class TunedSuggestion:
    """A suggestion, how it is made, and what it began with."""

    suggestion: Suggestion
    edit_set: EditSet
    option_set: OptionSet


SuggestionsByEdits = dict[frozenset[ObjectChange], TunedSuggestion]


def fit(
    world: World, name: str, fleet: Fleet | None = None, limit: int = MAX_SUGGESTIONS
) -> tuple[Suggestion, ...]:
    """`fleet`: where everything else has its place already. Nothing for a service that fits as it is."""
    alone = ServiceTrial(world, world.build_fleet() if fleet is None else fleet, name)
    if alone.run(()) is not None:
        return tuple(_place_dependencies_first(alone))
    first = _round(alone, [()])
    found = (
        first.suggestions
        or _search_rounds(alone, first.insufficient[:MAX_FOLLOWED])
        or _from_blocker_sets(alone)
    )
    if not any(each.suggestion.is_platform_only for each in found.values()):
        found |= _platform_suggestions(alone, first)
    best = sorted(found.values(), key=lambda each: each.suggestion.rank)
    told = sorted(
        _suggestions_with_waiting(alone, _best_including_platform(best, limit, lambda each: each.suggestion)),
        key=lambda each: each.rank,
    )
    return tuple(_best_including_platform(told, limit, lambda each: each))


def _best_including_platform(
    ranked: Sequence[RankedT], limit: int, suggestion: Callable[[RankedT], Suggestion]
) -> list[RankedT]:
    """The first of them, and among these the first that the platform can do by itself."""
    kept = list(ranked[:limit])
    if not any(suggestion(each).is_platform_only for each in kept):
        kept[limit - 1 :] = [each for each in ranked[limit:] if suggestion(each).is_platform_only][
            :1
        ] or kept[limit - 1 :]
    return kept


def _platform_suggestions(rehearsal: ServiceTrial, first: "SearchRound") -> SuggestionsByEdits:
    """What the platform can do by itself though nothing alone is enough: one way, of the fewest changes. Only the nearest are followed."""
    begun = [each for each in first.insufficient if _is_platform_only(each)][:MAX_PLATFORM_FOLLOWED]
    wide = [
        needed
        for each in first.limit_option_sets[:MAX_PLATFORM_TRIALS]
        if len(needed := _indispensable_options(rehearsal, each)) > 1
    ]
    tried = _try_option_sets(
        rehearsal,
        [*wide, *(each for each in first.untried if _is_platform_only(each))][:MAX_PLATFORM_TRIALS],
        max_suggestions=1,
    )
    for _ in range(1, MAX_ROUNDS):
        short: list[OptionSet] = []
        for base in begun:
            if tried.suggestions:
                break
            grown = [each for each in _extend_option_sets(rehearsal, [base], []) if _is_platform_only(each)]
            tried = _try_option_sets(rehearsal, grown[:MAX_PLATFORM_TRIALS], max_suggestions=1)
            short += tried.insufficient
        begun = short[:MAX_PLATFORM_FOLLOWED]
    return tried.suggestions


def _indispensable_options(rehearsal: ServiceTrial, candidate: OptionSet) -> OptionSet:
    """Those without which the others can be told at a glance not to be enough; nothing: nor are they all together."""
    if not rehearsal.may_fit(_strongest(candidate).edits):
        return ()
    return tuple(
        each
        for each in candidate
        if not rehearsal.may_fit(_strongest(tuple(other for other in candidate if other != each)).edits)
    )


def _is_platform_only(candidate: OptionSet) -> bool:
    return all(option.build(option.max_strength).responsible == "platform" for option in candidate)


def _search_rounds(rehearsal: ServiceTrial, begun: Sequence[OptionSet]) -> SuggestionsByEdits:
    """With one more than these, which are not enough, in each round, until something is."""
    found: SuggestionsByEdits = {}
    for _ in range(1, MAX_ROUNDS):
        if found or not begun:
            break
        after = _round(rehearsal, begun)
        found, begun = after.suggestions, after.insufficient[:MAX_FOLLOWED]
    return found


def _from_blocker_sets(rehearsal: ServiceTrial) -> SuggestionsByEdits:
    tried = _try_option_sets(rehearsal, _blocker_option_sets(rehearsal), max_suggestions=MAX_SUGGESTIONS)
    return tried.suggestions or _search_rounds(rehearsal, tried.insufficient)


def _blocker_option_sets(rehearsal: ServiceTrial) -> list[OptionSet]:
    """What of a verdict's conflicts is the service's own, or a policy's; limits of the platform come round by round."""
    world, fleet, name = rehearsal.world, rehearsal.fleet, rehearsal.name
    demand, service = world.demands[name], world.services[name]
    policies = [each for each in world.policies if each.spec.applies_to(service.metadata.labels or {})]
    failure = first_failure(demand, fleet, details=False)
    found = []
    for parts in minimal_blocker_sets(FeasibilityChecker(demand, fleet), failure):
        options = [
            relax_requirement(each, demand, service, policies, fleet)
            for each in parts
            if isinstance(each, Requirement)
        ]
        if options and all(options) and len(parts) <= MAX_EDITS:
            found.append(tuple(dict.fromkeys(each for each in options if each)))
    return found


def _place_dependencies_first(rehearsal: ServiceTrial) -> Iterator[Suggestion]:
    """It fits once those are placed that it waits for; nothing if it fits as it is."""
    world, fleet, demand = rehearsal.world, rehearsal.fleet, rehearsal.world.demands[rehearsal.name]
    result = rehearsal.run(())
    if result is None or is_feasible(demand, fleet):
        return
    awaited = [
        (name, target)
        for name, target in demand.latency_to
        if target in world.services and not fleet.assignments.get(target)
    ]
    first = (
        ObjectChange(
            "platform",
            object_key(world.services[target]),
            "status.placements",
            None,
            "placed",
            f"place {name} first",
        )
        for name, target in awaited
    )
    yield Suggestion(tuple(first), result.rate_increase, result.is_priced, service_rate=result.service_rate)


@dataclass(frozen=True, slots=True)
class SearchRound:
    """Candidates that are enough, those that are not and are worth following, and those that are larger than what was found.

    `wide`: of offers that turned it away, every limit.
    """

    suggestions: SuggestionsByEdits
    insufficient: list[OptionSet]
    untried: list[OptionSet]
    limit_option_sets: list[OptionSet] = field(default_factory=list)


def _round(rehearsal: ServiceTrial, begun: Sequence[OptionSet]) -> SearchRound:
    wide: list[OptionSet] = []
    return replace(
        _try_option_sets(rehearsal, _extend_option_sets(rehearsal, begun, wide)[:MAX_TRIALS_PER_ROUND]),
        limit_option_sets=wide,
    )


def _extend_option_sets(
    rehearsal: ServiceTrial, begun: Sequence[OptionSet], wide: list[OptionSet]
) -> list[OptionSet]:
    """By one offer or one wish; the smallest first. `wide` is added to."""
    grown: dict[frozenset[ChangeOption], OptionSet] = {}
    for base in begun:
        for more in _next_option_sets(rehearsal, base, wide):
            candidate = tuple(dict.fromkeys((*base, *more)))
            if len(base) < len(candidate) <= MAX_EDITS:
                grown.setdefault(frozenset(candidate), candidate)
    return sorted(grown.values(), key=len)


def _try_option_sets(
    rehearsal: ServiceTrial, candidates: Sequence[OptionSet], max_suggestions: int = MAX_TRIALS_PER_ROUND
) -> SearchRound:
    """One after the other, until one is larger than what was found, or so many are found."""
    found: SuggestionsByEdits = {}
    short: list[OptionSet] = []
    for at, candidate in enumerate(candidates):
        fewest = min((len(each.suggestion.edits) for each in found.values()), default=MAX_EDITS)
        if len(candidate) > fewest or len(found) >= max_suggestions:
            return SearchRound(found, short, list(candidates[at:]))
        tuned = _tune(rehearsal, candidate)
        if tuned is None:
            short.append(candidate)
        else:
            found.setdefault(frozenset(tuned.suggestion.edits), replace(tuned, option_set=candidate))
    return SearchRound(found, short, [])


# --- among others that wait ---


def _suggestions_with_waiting(alone: ServiceTrial, found: Sequence[TunedSuggestion]) -> list[Suggestion]:
    """What was found for the service alone, tried with everybody who waits; so much more of it as those need who come first."""
    others = _waiting_services(alone)
    if not others or not found:
        return [each.suggestion for each in found]
    crowd = ServiceTrial(alone.world, alone.fleet, alone.name, others)
    tried = [(each, _tune_with_waiting(crowd, each)) for each in found]
    held = {frozenset(each.edits): each for _, each in tried if each is not None}
    if not held:
        more = _round(crowd, [each.option_set for each, _ in tried][:MAX_FOLLOWED])
        held = {changes: each.suggestion for changes, each in more.suggestions.items()}
    told = [replace(each, services_ahead=crowd.services_ahead(each.edits)) for each in held.values()]
    short = [each.suggestion for each, kept in tried if kept is None]
    return [
        *told,
        *(replace(each, services_ahead=_in_the_way(crowd, each), is_enough=False) for each in short),
    ]


def _waiting_services(alone: ServiceTrial) -> list[str]:
    """Services that lack replicas, too."""
    seats, demands = alone.fleet.assignments, alone.world.demands
    return [
        name
        for name, each in demands.items()
        if name != alone.name and len(seats.get(name, ())) < each.replicas
    ]


def _tune_with_waiting(crowd: ServiceTrial, found: TunedSuggestion) -> Suggestion | None:
    """None: whatever more there is of it, others come first."""
    result = crowd.run(found.edit_set.edits)
    if result and not any(
        crowd.run(some.edits) for some in (*found.edit_set.subsets(), *found.edit_set.weaker())
    ):
        return replace(
            found.suggestion,
            rate_increase=result.rate_increase,
            is_priced=result.is_priced,
            service_rate=result.service_rate,
        )
    tuned = (
        _tune(crowd, found.option_set) if len(crowd.waiting_services) <= MAX_TUNED_WAITING_SERVICES else None
    )
    return tuned.suggestion if tuned else None


def _in_the_way(crowd: ServiceTrial, found: Suggestion) -> tuple[str, ...]:
    """Those, and who comes first once they are gone, until it is enough."""
    ahead = dict.fromkeys(crowd.services_ahead(found.edits))
    while left := [name for name in crowd.waiting_services if name not in ahead]:
        rest = ServiceTrial(crowd.world, crowd.fleet, crowd.name, left, satisfied_services=list(ahead))
        more = () if rest.run(found.edits) else rest.services_ahead(found.edits)
        if not more:
            break
        ahead |= dict.fromkeys(more)
    return tuple(ahead)


# --- as weak as will do ---


def _tune(rehearsal: ServiceTrial, candidate: OptionSet) -> TunedSuggestion | None:
    """None: not even at their strongest are these enough. Else each as weak as will do, and without those that need not be."""
    way = _strongest(candidate)
    if not rehearsal.waiting_services and rehearsal.may_fit(way.edits):
        least = _weakest_promising(rehearsal, way)
        is_worth_it = len(candidate) > 1 or least.strengths != (
            1,
        )  # of one alone, what a glance tells nothing about is bisected
        if is_worth_it and rehearsal.run(least.edits) is not None:
            return _reduce(rehearsal, least)
    gauged = [position for position, option in enumerate(candidate) if option.measure_strength]
    result = (
        rehearsal.measure(way.edits, [candidate[each].measure_strength for each in gauged])
        if gauged
        else rehearsal.run(way.edits)
    )
    if result is None:
        return None
    for position, option in enumerate(candidate):
        if option.max_strength > 1:
            hint = result.strengths[gauged.index(position)] if position in gauged else 0
            way = way.with_strength(position, _weakest(rehearsal, way, position, hint))
    return _reduce(rehearsal, _weaken(rehearsal, way))


def _weakest_promising(rehearsal: ServiceTrial, way: EditSet) -> EditSet:
    """As weak as can be without being told at a glance to be too weak, one after the other."""
    for position, strength in enumerate(way.strengths):
        way = way.with_strength(
            position, 1 + _largest_infeasible(strength, partial(_may_fit, rehearsal, way, position))
        )
    return way


def _may_fit(rehearsal: ServiceTrial, way: EditSet, position: int, strength: int) -> bool:
    return rehearsal.may_fit(way.with_strength(position, strength).edits)


def _weaken(rehearsal: ServiceTrial, way: EditSet) -> EditSet:
    """Less of one may leave more to others than to the service, so that less of another is enough then, which was not before."""
    while less := next((each for each in way.weaker() if rehearsal.run(each.edits)), None):
        position = next(at for at, strength in enumerate(way.strengths) if strength != less.strengths[at])
        way = less.with_strength(position, _weakest(rehearsal, less, position, 0))
    return way


def _weakest(rehearsal: ServiceTrial, way: EditSet, position: int, hint: int) -> int:
    """One less is not enough. `hint`: how much was used when there was more than enough."""

    def is_enough(strength: int) -> bool:
        return rehearsal.run(way.with_strength(position, strength).edits) is not None

    high = way.strengths[position]
    low = _largest_infeasible(high, partial(_may_fit, rehearsal, way, position))
    if 0 < low < high - 1 and is_enough(low + 1):
        return low + 1
    if low < hint < high:
        low, high = (low, hint) if is_enough(hint) else (hint, high)
        if high == hint and hint > 1 and not is_enough(hint - 1):
            return hint
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _largest_infeasible(most: int, may_do: Callable[[int], bool]) -> int:
    """The largest strength that can be told at a glance to be too weak; 0: none can."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if may_do(middle) else (middle, high)
    return low


def _reduce(rehearsal: ServiceTrial, way: EditSet) -> TunedSuggestion | None:
    for some in way.subsets():
        if rehearsal.run(some.edits) is not None:
            return _tune(rehearsal, some.options)
    result = rehearsal.run(way.edits)
    return TunedSuggestion(_suggestion(way, result), way, way.options) if result else None


def _suggestion(way: EditSet, result: TrialResult) -> Suggestion:
    return Suggestion(
        way.edits,
        result.rate_increase,
        result.is_priced,
        service_rate=result.service_rate,
        extent=sum(way.strengths),
    )


# --- what to try ---


def _next_option_sets(rehearsal: ServiceTrial, base: OptionSet, wide: list[OptionSet]) -> Iterator[OptionSet]:
    """Every wish of a service that has no place, alone; and for offers that turned it away, what would open them."""
    found: list[OptionSet] = []
    for scene, shown in rehearsal.failures(_strongest(base).edits):
        found += [
            (option,) for option in relaxations(shown.demand, shown.service, shown.policies, scene.fleet)
        ]
        if shown.failure is not None:
            for row in nearest_rows(shown.failure):
                found += _openings(scene, shown, shown.failure, row)
                wide += _limit_option_sets(scene, shown.failure, row)
    yield from found


def _limit_option_sets(scene: WhatIfScope, failure: PlacementFailure, row: int) -> Iterator[OptionSet]:
    """With what opens the offer for one more replica; where the platform cannot open it, nothing."""
    reasons = [reason for reason, mask in failure.decision.reasons.items() if mask[row]]
    offered = [_platform(scene, failure.ask, reason, row) for reason in reasons]
    limits = all_limit_options(_rejected_candidate(scene, failure.ask, row))
    together = tuple(dict.fromkeys(option for options in (*offered, limits) for option in options))
    if all(offered) and len(together) > 1:
        yield together


def _openings(
    scene: WhatIfScope, shown: UnplacedService, failure: PlacementFailure, row: int
) -> Iterator[OptionSet]:
    """With what the platform can do, and wishes dropped where it can do nothing; and the other way round."""
    reasons = [reason for reason, mask in failure.decision.reasons.items() if mask[row]]
    offered = [_platform(scene, failure.ask, reason, row) for reason in reasons]
    asked = [_team(scene, shown, failure, reason, row) for reason in reasons]
    for first, second in ((offered, asked), (asked, offered)):
        chosen = [one or other for one, other in zip(first, second, strict=True)]
        if all(chosen):
            yield tuple(dict.fromkeys(option for options in chosen for option in options))


def _platform(scene: WhatIfScope, ask: ReplicaAsk, reason: Reason, row: int) -> list[ChangeOption]:
    told = getattr(reason, "ask", ask)
    return extensions(_rejected_candidate(scene, told if told.overflow_source else ask, row), reason)


def _rejected_candidate(scene: WhatIfScope, ask: ReplicaAsk, row: int) -> RejectedCandidate:
    return RejectedCandidate(
        scene.world, scene.fleet, row, ask, supply_object_of(scene.fleet.offers[row], scene.objects)
    )


def _team(
    scene: WhatIfScope, shown: UnplacedService, failure: PlacementFailure, reason: Reason, row: int
) -> list[ChangeOption]:
    for way in reason_remedies(reason, shown.demand, failure, row):
        options = [
            relax_requirement(each, shown.demand, shown.service, shown.policies, scene.fleet)
            for each in _requirements(way)
        ]
        if options and len(options) == len(way) and all(options):
            return [each for each in options if each]
    return []


def _requirements(way: Iterable[Blocker]) -> list[Requirement]:
    return sorted(
        (each for each in way if isinstance(each, Requirement)), key=lambda each: (str(each), each.source)
    )
