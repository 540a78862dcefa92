"""Search for the smallest changes, by team or platform, that make a service fit, with their costs.

A change option has a strength, for example how far it raises a limit; tuning finds the weakest strengths that
suffice. The upper bound (greedy/upper_bound.py) proves cheaply that a service does not fit. A waiting service
is another service that lacks replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, combinations
from typing import TypeVar

from lattice.engine.plugin import Reason
from lattice.placement.explain.blockers import (
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
from lattice.placement.fit.service_trial import ServiceTrial, UnplacedService, WhatIfScope
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

# Limit of suggestions that `fit` returns by default.
MAX_SUGGESTIONS = 8
# Limit of edits in one suggestion.
MAX_EDITS = 4
# Limit of rounds of the search; every round adds options to insufficient option sets.
MAX_ROUNDS = 4
# Limit of option sets tried in one round.
MAX_TRIALS_PER_ROUND = 40
# Limit of waiting services. If more services wait, suggestions are not tuned again and only name the services
# ahead.
MAX_TUNED_WAITING_SERVICES = 100
# Limit of insufficient option sets that the next round extends.
MAX_FOLLOWED = 6
# MAX_TRIALS_PER_ROUND and MAX_FOLLOWED have these lower values in the search of platform-only suggestions.
MAX_PLATFORM_TRIALS = 8
MAX_PLATFORM_FOLLOWED = 2

# Options that are tried together.
OptionSet = tuple[ChangeOption, ...]
RankedT = TypeVar("RankedT")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Edits that together make the service fit; no edit can be left out."""

    edits: tuple[ObjectChange, ...]
    # Micro-dollars per hour that the fleet costs more.
    rate_increase: int
    # False: the price of a machine is unknown.
    is_priced: bool = True
    # Waiting services that are placed before this service and gain replicas from the edits.
    services_ahead: tuple[str, ...] = ()
    # False: the services ahead use the capacity that this service needs.
    is_enough: bool = True
    # Micro-dollars per hour that the service costs after the edits; None: not computed.
    service_rate: int | None = None
    # Steps by which limits are raised or requirements lowered; breaks ties between equal costs.
    extent: int = 0

    @property
    def responsible(self) -> tuple[Responsible, ...]:
        """The parties that have to make the edits."""
        return tuple(sorted({edit.responsible for edit in self.edits}))

    @property
    def is_platform_only(self) -> bool:
        """Report whether the suggestion asks for no edit by the team."""
        return self.responsible == ("platform",)

    @property
    def monthly(self) -> int:
        """Micro-dollars for 30 days."""
        return rate_per_30_days(self.rate_increase)

    @property
    def sentence(self) -> str:
        return "; and ".join(edit.sentence for edit in self.edits)

    @property
    def rank(self) -> tuple[bool, int, bool, bool, int, int, str]:
        """The sort key: sufficient, few edits, only adds properties to one object, priced, cheap, small."""
        adds_to_one_object = (
            all(edit.adds_property for edit in self.edits) and len({edit.target for edit in self.edits}) == 1
        )
        return (
            not self.is_enough,
            len(self.edits),
            not adds_to_one_object,
            not self.is_priced,
            self.rate_increase,
            self.extent,
            self.sentence,
        )


@dataclass(frozen=True, slots=True)
class EditSet:
    """Change options with the strength of every option."""

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
        """Yield the edit sets with one step less of one option."""
        return (
            self.with_strength(position, strength - 1)
            for position, strength in enumerate(self.strengths)
            if strength > 1
        )

    def subsets(self) -> Iterator["EditSet"]:
        """Yield the edit sets with one or more options left out, the smallest first."""
        for size in range(1, len(self.options)):
            for positions in combinations(range(len(self.options)), size):
                yield EditSet(
                    tuple(self.options[position] for position in positions),
                    tuple(self.strengths[position] for position in positions),
                )


def _strongest(options: OptionSet) -> EditSet:
    return EditSet(options, tuple(option.max_strength for option in options))


@dataclass(frozen=True, slots=True)
class TunedSuggestion:
    """A suggestion with its edit set and the option set that the search started from."""

    suggestion: Suggestion
    edit_set: EditSet
    option_set: OptionSet


SuggestionsByEdits = dict[frozenset[ObjectChange], TunedSuggestion]


def fit(
    world: World, name: str, fleet: Fleet | None = None, limit: int = MAX_SUGGESTIONS
) -> tuple[Suggestion, ...]:
    """Return the best suggestions for the service. If the service fits without a change, the only suggestion
    may be to place its dependencies first.

    `fleet` is a fleet with all placements of the other services. A suggestion that only the platform has to
    make is included if the search finds one.
    """
    trial = ServiceTrial(world, world.build_fleet() if fleet is None else fleet, name)
    # The service fits without a change, perhaps after its dependencies are placed.
    if trial.run(()) is not None:
        return tuple(_place_dependencies_first(trial))
    first_round = _round(trial, [()])
    suggestions = first_round.suggestions or _search_rounds(trial, first_round.insufficient[:MAX_FOLLOWED])
    if not suggestions:
        tried = _try_option_sets(trial, _blocker_option_sets(trial), max_suggestions=MAX_SUGGESTIONS)
        suggestions = tried.suggestions or _search_rounds(trial, tried.insufficient)
    # Beside suggestions for the team, one suggestion for the platform alone is wanted.
    if not any(tuned.suggestion.is_platform_only for tuned in suggestions.values()):
        suggestions |= _platform_suggestions(trial, first_round)
    ranked = sorted(suggestions.values(), key=lambda tuned: tuned.suggestion.rank)
    best = _best_including_platform(ranked, limit, lambda tuned: tuned.suggestion)
    with_waiting = sorted(_suggestions_with_waiting(trial, best), key=lambda suggestion: suggestion.rank)
    return tuple(_best_including_platform(with_waiting, limit, lambda suggestion: suggestion))


def _best_including_platform(
    ranked: Sequence[RankedT], limit: int, suggestion: Callable[[RankedT], Suggestion]
) -> list[RankedT]:
    """Return the first `limit` entries; the last entry is replaced if a platform-only suggestion would
    otherwise be cut off."""
    best = list(ranked[:limit])
    if not any(suggestion(entry).is_platform_only for entry in best):
        platform_only = [entry for entry in ranked[limit:] if suggestion(entry).is_platform_only]
        best[limit - 1 :] = platform_only[:1] or best[limit - 1 :]
    return best


def _platform_suggestions(trial: ServiceTrial, first_round: "SearchRound") -> SuggestionsByEdits:
    """Search for one platform-only suggestion with the fewest edits; only the nearest option sets are
    extended."""
    insufficient = [options for options in first_round.insufficient if _is_platform_only(options)]
    bases = insufficient[:MAX_PLATFORM_FOLLOWED]
    candidates = []
    for options in first_round.limit_option_sets[:MAX_PLATFORM_TRIALS]:
        indispensable = _indispensable_options(trial, options)
        if len(indispensable) > 1:
            candidates.append(indispensable)
    candidates += [options for options in first_round.untried if _is_platform_only(options)]
    tried = _try_option_sets(trial, candidates[:MAX_PLATFORM_TRIALS], max_suggestions=1)
    for _ in range(1, MAX_ROUNDS):
        insufficient = []
        for base in bases:
            if tried.suggestions:
                break
            extended = _extend_option_sets(trial, [base], [])
            platform_only = [options for options in extended if _is_platform_only(options)]
            tried = _try_option_sets(trial, platform_only[:MAX_PLATFORM_TRIALS], max_suggestions=1)
            insufficient += tried.insufficient
        bases = insufficient[:MAX_PLATFORM_FOLLOWED]
    return tried.suggestions


def _indispensable_options(trial: ServiceTrial, candidate: OptionSet) -> OptionSet:
    """Return the options that the upper bound proves indispensable: without any one of them, the other
    options do not suffice.

    The result is empty if all options together do not suffice.
    """
    if not trial.may_fit(_strongest(candidate).edits):
        return ()
    indispensable = []
    for option in candidate:
        remaining = tuple(other_option for other_option in candidate if other_option != option)
        if not trial.may_fit(_strongest(remaining).edits):
            indispensable.append(option)
    return tuple(indispensable)


def _is_platform_only(candidate: OptionSet) -> bool:
    return all(option.build(option.max_strength).responsible == "platform" for option in candidate)


def _search_rounds(trial: ServiceTrial, bases: Sequence[OptionSet]) -> SuggestionsByEdits:
    """Extend insufficient option sets by one step in every round, until a round finds suggestions."""
    suggestions: SuggestionsByEdits = {}
    for _ in range(1, MAX_ROUNDS):
        if suggestions or not bases:
            break
        search_round = _round(trial, bases)
        suggestions, bases = search_round.suggestions, search_round.insufficient[:MAX_FOLLOWED]
    return suggestions


def _blocker_option_sets(trial: ServiceTrial) -> list[OptionSet]:
    """Return option sets for the blocker sets of the verdict that consist of requirements of the service or
    of policies.

    Options that raise platform limits come from the search rounds.
    """
    world, fleet, name = trial.world, trial.fleet, trial.name
    demand, service = world.demands[name], world.services[name]
    policies = [policy for policy in world.policies if policy.spec.applies_to(service.metadata.labels or {})]
    failure = first_failure(demand, fleet, details=False)
    option_sets = []
    for blockers in minimal_blocker_sets(FeasibilityChecker(demand, fleet), failure):
        options = [
            relax_requirement(blocker, demand, service, policies, fleet)
            for blocker in blockers
            if isinstance(blocker, Requirement)
        ]
        # A blocker without an option makes the whole set useless.
        if options and all(options) and len(blockers) <= MAX_EDITS:
            option_sets.append(tuple(dict.fromkeys(option for option in options if option)))
    return option_sets


def _place_dependencies_first(trial: ServiceTrial) -> Iterator[Suggestion]:
    """Yield a suggestion to place the dependencies first, unless the service fits without them."""
    world, fleet, demand = trial.world, trial.fleet, trial.world.demands[trial.name]
    result = trial.run(())
    if result is None or is_feasible(demand, fleet):
        return
    edits = []
    for name, target in demand.latency_to:
        if target in world.services and not fleet.assignments.get(target):
            key, sentence = object_key(world.services[target]), f"place {name} first"
            edits.append(ObjectChange("platform", key, "status.placements", None, "placed", sentence))
    for term in demand.near_terms:
        if fleet.groups.is_waiting_for(demand, term) and term.targets[0] in world.services:
            key, sentence = object_key(world.services[term.targets[0]]), f"place {term.text} first"
            edits.append(ObjectChange("platform", key, "status.placements", None, "placed", sentence))
    yield Suggestion(tuple(edits), result.rate_increase, result.is_priced, service_rate=result.service_rate)


@dataclass(frozen=True, slots=True)
class SearchRound:
    """The result of one search round.

    `insufficient` option sets do not suffice but are worth an extension. `untried` option sets are larger
    than the suggestions found. `limit_option_sets` holds all limits of the offers that rejected the service.
    """

    suggestions: SuggestionsByEdits
    insufficient: list[OptionSet]
    untried: list[OptionSet]
    limit_option_sets: list[OptionSet] = field(default_factory=list)


def _round(trial: ServiceTrial, bases: Sequence[OptionSet]) -> SearchRound:
    limit_option_sets: list[OptionSet] = []
    return replace(
        _try_option_sets(trial, _extend_option_sets(trial, bases, limit_option_sets)[:MAX_TRIALS_PER_ROUND]),
        limit_option_sets=limit_option_sets,
    )


def _extend_option_sets(
    trial: ServiceTrial, bases: Sequence[OptionSet], limit_option_sets: list[OptionSet]
) -> list[OptionSet]:
    """Extend every option set by the options of one offer or one requirement, the smallest first; append to
    `limit_option_sets`."""
    extended: dict[frozenset[ChangeOption], OptionSet] = {}
    for base in bases:
        option_sets: list[OptionSet] = []
        for scope, unplaced in trial.failures(_strongest(base).edits):
            # Every relaxation of the unplaced service, and what opens the offers that rejected the service.
            option_sets += [
                (option,)
                for option in relaxations(unplaced.demand, unplaced.service, unplaced.policies, scope.fleet)
            ]
            if unplaced.failure is None:
                continue
            for row in nearest_rows(unplaced.failure):
                failure = unplaced.failure
                reasons = [reason for reason, mask in failure.decision.reasons.items() if mask[row]]
                platform_options = []
                for reason in reasons:
                    ask = getattr(reason, "ask", failure.ask)
                    rejected = _rejected_candidate(scope, ask if ask.overflow_source else failure.ask, row)
                    platform_options.append(extensions(rejected, reason))
                team_options = [_team(scope, unplaced, failure, reason, row) for reason in reasons]
                # Platform options first, with team options for reasons that the platform cannot remove; then
                # the reverse.
                for first, second in ((platform_options, team_options), (team_options, platform_options)):
                    chosen = [
                        preferred or alternative for preferred, alternative in zip(first, second, strict=True)
                    ]
                    if all(chosen):
                        option_sets.append(tuple(dict.fromkeys(chain.from_iterable(chosen))))
                # The options that open the offer, with all limits of the offer.
                limit_options = all_limit_options(_rejected_candidate(scope, failure.ask, row))
                with_limits = tuple(dict.fromkeys(chain(*platform_options, limit_options)))
                if all(platform_options) and len(with_limits) > 1:
                    limit_option_sets.append(with_limits)
        for options in option_sets:
            candidate = tuple(dict.fromkeys((*base, *options)))
            # An extension must add an option.
            if len(base) < len(candidate) <= MAX_EDITS:
                extended.setdefault(frozenset(candidate), candidate)
    return sorted(extended.values(), key=len)


def _try_option_sets(
    trial: ServiceTrial, candidates: Sequence[OptionSet], max_suggestions: int = MAX_TRIALS_PER_ROUND
) -> SearchRound:
    """Try option sets in order until `max_suggestions` are found or a set is larger than a suggestion."""
    suggestions: SuggestionsByEdits = {}
    insufficient: list[OptionSet] = []
    for index, candidate in enumerate(candidates):
        fewest = min((len(entry.suggestion.edits) for entry in suggestions.values()), default=MAX_EDITS)
        # Candidates are sorted by size: all later sets need more edits than a suggestion found.
        if len(candidate) > fewest or len(suggestions) >= max_suggestions:
            return SearchRound(suggestions, insufficient, list(candidates[index:]))
        tuned = _tune(trial, candidate)
        if tuned is None:
            insufficient.append(candidate)
        else:
            suggestions.setdefault(frozenset(tuned.suggestion.edits), replace(tuned, option_set=candidate))
    return SearchRound(suggestions, insufficient, [])


def _suggestions_with_waiting(
    alone: ServiceTrial, tuned_suggestions: Sequence[TunedSuggestion]
) -> list[Suggestion]:
    """Try the suggestions again together with all waiting services, and strengthen the edits by what the
    services ahead need."""
    assignments, demands = alone.fleet.assignments, alone.world.demands
    waiting = []
    for name, demand in demands.items():
        if name != alone.name and len(assignments.get(name, ())) < demand.replicas:
            waiting.append(name)
    if not waiting or not tuned_suggestions:
        return [tuned.suggestion for tuned in tuned_suggestions]
    with_waiting = ServiceTrial(alone.world, alone.fleet, alone.name, waiting)
    sufficient: dict[frozenset[ObjectChange], Suggestion] = {}
    insufficient: list[Suggestion] = []
    for tuned in tuned_suggestions:
        suggestion = _tune_with_waiting(with_waiting, tuned)
        if suggestion is None:
            insufficient.append(tuned.suggestion)
        else:
            sufficient[frozenset(suggestion.edits)] = suggestion
    if not sufficient:
        search_round = _round(with_waiting, [tuned.option_set for tuned in tuned_suggestions][:MAX_FOLLOWED])
        for edits, tuned in search_round.suggestions.items():
            sufficient[edits] = tuned.suggestion
    suggestions = []
    for suggestion in sufficient.values():
        services_ahead = with_waiting.services_ahead(suggestion.edits)
        suggestions.append(replace(suggestion, services_ahead=services_ahead))
    for suggestion in insufficient:
        services_ahead = _all_services_ahead(with_waiting, suggestion)
        # Edits that fail without services ahead break something else, such as a dependency that they shrink.
        if not services_ahead:
            continue
        suggestions.append(replace(suggestion, services_ahead=services_ahead, is_enough=False))
    return suggestions


def _tune_with_waiting(trial: ServiceTrial, tuned_suggestion: TunedSuggestion) -> Suggestion | None:
    """Tune the suggestion with waiting services; None if services ahead use the capacity at any strength."""
    result = trial.run(tuned_suggestion.edit_set.edits)
    if result and not any(
        trial.run(weaker.edits)
        for weaker in (*tuned_suggestion.edit_set.subsets(), *tuned_suggestion.edit_set.weaker())
    ):
        return replace(
            tuned_suggestion.suggestion,
            rate_increase=result.rate_increase,
            is_priced=result.is_priced,
            service_rate=result.service_rate,
        )
    tuned = (
        _tune(trial, tuned_suggestion.option_set)
        if len(trial.waiting_services) <= MAX_TUNED_WAITING_SERVICES
        else None
    )
    return tuned.suggestion if tuned else None


def _all_services_ahead(trial: ServiceTrial, suggestion: Suggestion) -> tuple[str, ...]:
    """Return all services that must be satisfied before the edits of the suggestion suffice."""
    ahead = dict.fromkeys(trial.services_ahead(suggestion.edits))
    while remaining := [name for name in trial.waiting_services if name not in ahead]:
        remaining_trial = ServiceTrial(
            trial.world, trial.fleet, trial.name, remaining, satisfied_services=list(ahead)
        )
        next_ahead = (
            () if remaining_trial.run(suggestion.edits) else remaining_trial.services_ahead(suggestion.edits)
        )
        # Either the edits suffice now, or no other service is ahead.
        if not next_ahead:
            break
        ahead |= dict.fromkeys(next_ahead)
    return tuple(ahead)


def _tune(trial: ServiceTrial, candidate: OptionSet) -> TunedSuggestion | None:
    """Return the weakest strengths that suffice, without unnecessary options; None if the options at full
    strength do not suffice."""
    edit_set = _strongest(candidate)
    # The upper bound is cheap: try the strengths at the bound before a search.
    if not trial.waiting_services and trial.may_fit(edit_set.edits):
        # The weakest strengths that the bound does not prove insufficient, option by option.
        lower_bound = edit_set
        for position, strength in enumerate(edit_set.strengths):
            infeasible = _largest_infeasible(strength, partial(_may_fit, trial, lower_bound, position))
            lower_bound = lower_bound.with_strength(position, 1 + infeasible)
        # For a single option with bound 1 the bound says nothing: bisect instead.
        is_worth_trying = len(candidate) > 1 or lower_bound.strengths != (1,)
        if is_worth_trying and trial.run(lower_bound.edits) is not None:
            return _reduce(trial, lower_bound)
    measured = [position for position, option in enumerate(candidate) if option.measure_strength]
    result = (
        trial.measure(edit_set.edits, [candidate[position].measure_strength for position in measured])
        if measured
        else trial.run(edit_set.edits)
    )
    if result is None:
        return None
    for position, option in enumerate(candidate):
        if option.max_strength > 1:
            hint = result.strengths[measured.index(position)] if position in measured else 0
            edit_set = edit_set.with_strength(position, _weakest(trial, edit_set, position, hint))
    # With less of one option, waiting services may use less capacity, so less of another option suffices.
    while weaker := next((candidate for candidate in edit_set.weaker() if trial.run(candidate.edits)), None):
        position = next(
            index for index, strength in enumerate(edit_set.strengths) if strength != weaker.strengths[index]
        )
        edit_set = weaker.with_strength(position, _weakest(trial, weaker, position, 0))
    return _reduce(trial, edit_set)


def _may_fit(trial: ServiceTrial, edit_set: EditSet, position: int, strength: int) -> bool:
    return trial.may_fit(edit_set.with_strength(position, strength).edits)


def _weakest(trial: ServiceTrial, edit_set: EditSet, position: int, hint: int) -> int:
    """Return the weakest strength of one option that suffices. `hint` is the strength that a trial at full
    strength used."""

    def is_enough(strength: int) -> bool:
        return trial.run(edit_set.with_strength(position, strength).edits) is not None

    high = edit_set.strengths[position]
    low = _largest_infeasible(high, partial(_may_fit, trial, edit_set, position))
    # One trial suffices if the bound is exact.
    if 0 < low < high - 1 and is_enough(low + 1):
        return low + 1
    # The strength that a trial at full strength used narrows the search.
    if low < hint < high:
        low, high = (low, hint) if is_enough(hint) else (hint, high)
        if high == hint and hint > 1 and not is_enough(hint - 1):
            return hint
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _largest_infeasible(max_strength: int, may_fit: Callable[[int], bool]) -> int:
    """Return the largest strength that the upper bound proves insufficient, or 0."""
    low, high = 0, max_strength
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if may_fit(middle) else (middle, high)
    return low


def _reduce(trial: ServiceTrial, edit_set: EditSet) -> TunedSuggestion | None:
    """Return the suggestion without unnecessary options; a subset that suffices is tuned again."""
    # A weaker option may have made another option unnecessary.
    for subset in edit_set.subsets():
        if trial.run(subset.edits) is not None:
            return _tune(trial, subset.options)
    result = trial.run(edit_set.edits)
    if not result:
        return None
    suggestion = Suggestion(
        edit_set.edits,
        result.rate_increase,
        result.is_priced,
        service_rate=result.service_rate,
        extent=sum(edit_set.strengths),
    )
    return TunedSuggestion(suggestion, edit_set, edit_set.options)


def _rejected_candidate(scope: WhatIfScope, ask: ReplicaAsk, row: int) -> RejectedCandidate:
    return RejectedCandidate(
        scope.world, scope.fleet, row, ask, supply_object_of(scope.fleet.offers[row], scope.objects)
    )


def _team(
    scope: WhatIfScope, unplaced: UnplacedService, failure: PlacementFailure, reason: Reason, row: int
) -> list[ChangeOption]:
    """Return the relaxations of the first remedy that consists of requirements only."""
    for remedy in reason_remedies(reason, unplaced.demand, failure, row):
        requirements = sorted(
            (blocker for blocker in remedy if isinstance(blocker, Requirement)),
            key=lambda requirement: (str(requirement), requirement.source),
        )
        options = []
        for requirement in requirements:
            option = relax_requirement(
                requirement, unplaced.demand, unplaced.service, unplaced.policies, scope.fleet
            )
            if option:
                options.append(option)
        if options and len(options) == len(remedy):
            return options
    return []
