"""fit(service): the smallest changes that make it fit, on its own side and on the platform's, with their price."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TypeVar

from lattice.engine.plugin import Reason
from lattice.placement.model.edits import Change, Option, Who
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.fit.raise_limits import every_limit
from lattice.placement.fit.extend_supply import extensions
from lattice.placement.model.fleet import Fleet
from lattice.placement.fit.trial import Rehearsal, Result, Scene, Shown
from lattice.placement.inputs.ledger_math import thirty_days
from lattice.placement.fit.ranking import nearest_rows
from lattice.placement.explain.blockers import Failure, Obstacle, curing, first_failure, is_feasible
from lattice.placement.fit.relax_service import relaxations, relaxed
from lattice.placement.model.stand import Stand, supplier
from lattice.placement.explain.verdict import Trial, conflicts
from lattice.placement.model.world import World, key

LIMIT = 8  # suggestions
MOST_PARTS = 4
ROUNDS = 4
TRIED = 40  # candidates tried in one round
TUNED = 100  # services that wait: with more it is only said who comes first
FOLLOWED = 6  # candidates that are not enough but may be with more
TRIED_ALONE, FOLLOWED_ALONE = (
    8,
    2,
)  # the same, where only the platform is looked at after something was found for the team

Candidate = tuple[Option, ...]
Ranked = TypeVar("Ranked")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """All of these changes together make the service fit, and none of them can be left out."""

    changes: tuple[Change, ...]
    rate: int  # micro-dollars per hour that are paid more then
    is_priced: bool = True  # False: for some machine nobody knows the price
    ahead: tuple[str, ...] = ()  # services that wait, too, come first, and get replicas then
    is_enough: bool = True  # False: they take what the service would need
    service_rate: int | None = (
        None  # micro-dollars per hour that the service then costs; None: nobody asked yet
    )
    extent: int = 0  # how far its limits are raised or its wishes lowered, in steps: the smaller of two that cost the same comes first

    @property
    def who(self) -> tuple[Who, ...]:
        return tuple(sorted({each.who for each in self.changes}))

    @property
    def is_platforms(self) -> bool:
        """Nothing of it is asked of the team."""
        return self.who == ("platform",)

    @property
    def monthly(self) -> int:
        return thirty_days(self.rate)

    @property
    def sentence(self) -> str:
        return "; and ".join(each.sentence for each in self.changes)

    @property
    def rank(self) -> tuple[bool, int, bool, bool, int, int, str]:
        """What is enough, and fewer; what leaves the service's wishes whole and buys nothing; what is known to cost less; less."""
        adds = (
            all(each.adds_property for each in self.changes)
            and len({each.object for each in self.changes}) == 1
        )
        return (
            not self.is_enough,
            len(self.changes),
            not adds,
            not self.is_priced,
            self.rate,
            self.extent,
            self.sentence,
        )


@dataclass(frozen=True, slots=True)
class Way:
    """Options, and how much of each."""

    options: Candidate
    strengths: tuple[int, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(
            option.make(strength) for option, strength in zip(self.options, self.strengths, strict=True)
        )

    def having(self, position: int, strength: int) -> "Way":
        return replace(
            self, strengths=(*self.strengths[:position], strength, *self.strengths[position + 1 :])
        )

    def weaker(self) -> Iterator["Way"]:
        """With one step less of one of them."""
        return (
            self.having(position, strength - 1)
            for position, strength in enumerate(self.strengths)
            if strength > 1
        )

    def parts(self) -> Iterator["Way"]:
        """With some of them left out."""
        for size in range(1, len(self.options)):
            for some in combinations(range(len(self.options)), size):
                yield Way(
                    tuple(self.options[each] for each in some), tuple(self.strengths[each] for each in some)
                )


def _strongest(options: Candidate) -> Way:
    return Way(options, tuple(option.strongest for option in options))


@dataclass(frozen=True, slots=True)
class Tuned:
    """A suggestion, how it is made, and what it began with."""

    suggestion: Suggestion
    way: Way
    candidate: Candidate


Found = dict[frozenset[Change], Tuned]


def fit(world: World, name: str, fleet: Fleet | None = None, limit: int = LIMIT) -> tuple[Suggestion, ...]:
    """`fleet`: where everything else has its place already. Nothing for a service that fits as it is."""
    alone = Rehearsal(world, world.fleet() if fleet is None else fleet, name)
    if alone.run(()) is not None:
        return tuple(_waiting(alone))
    first = _round(alone, [()])
    found = first.found or _searched(alone, first.short[:FOLLOWED]) or _from_conflicts(alone)
    if not any(each.suggestion.is_platforms for each in found.values()):
        found |= _of_the_platform(alone, first)
    best = sorted(found.values(), key=lambda each: each.suggestion.rank)
    told = sorted(
        _among_others(alone, _some(best, limit, lambda each: each.suggestion)), key=lambda each: each.rank
    )
    return tuple(_some(told, limit, lambda each: each))


def _some(ranked: Sequence[Ranked], limit: int, suggestion: Callable[[Ranked], Suggestion]) -> list[Ranked]:
    """The first of them, and among these the first that the platform can do by itself."""
    kept = list(ranked[:limit])
    if not any(suggestion(each).is_platforms for each in kept):
        kept[limit - 1 :] = [each for each in ranked[limit:] if suggestion(each).is_platforms][:1] or kept[
            limit - 1 :
        ]
    return kept


def _of_the_platform(rehearsal: Rehearsal, first: "Round") -> Found:
    """What the platform can do by itself though nothing alone is enough: one way, of the fewest changes. Only the nearest are followed."""
    begun = [each for each in first.short if _is_platforms(each)][:FOLLOWED_ALONE]
    wide = [needed for each in first.wide[:TRIED_ALONE] if len(needed := _needed(rehearsal, each)) > 1]
    tried = _tried(
        rehearsal, [*wide, *(each for each in first.untried if _is_platforms(each))][:TRIED_ALONE], most=1
    )
    for _ in range(1, ROUNDS):
        short: list[Candidate] = []
        for base in begun:
            if tried.found:
                break
            grown = [each for each in _grown(rehearsal, [base], []) if _is_platforms(each)]
            tried = _tried(rehearsal, grown[:TRIED_ALONE], most=1)
            short += tried.short
        begun = short[:FOLLOWED_ALONE]
    return tried.found


def _needed(rehearsal: Rehearsal, candidate: Candidate) -> Candidate:
    """Those without which the others can be told at a glance not to be enough; nothing: nor are they all together."""
    if not rehearsal.may_do(_strongest(candidate).changes):
        return ()
    return tuple(
        each
        for each in candidate
        if not rehearsal.may_do(_strongest(tuple(other for other in candidate if other != each)).changes)
    )


def _is_platforms(candidate: Candidate) -> bool:
    return all(option.make(option.strongest).who == "platform" for option in candidate)


def _searched(rehearsal: Rehearsal, begun: Sequence[Candidate]) -> Found:
    """With one more than these, which are not enough, in each round, until something is."""
    found: Found = {}
    for _ in range(1, ROUNDS):
        if found or not begun:
            break
        after = _round(rehearsal, begun)
        found, begun = after.found, after.short[:FOLLOWED]
    return found


def _from_conflicts(rehearsal: Rehearsal) -> Found:
    tried = _tried(rehearsal, _conflicting(rehearsal), most=LIMIT)
    return tried.found or _searched(rehearsal, tried.short)


def _conflicting(rehearsal: Rehearsal) -> list[Candidate]:
    """What of a verdict's conflicts is the service's own, or a policy's; limits of the platform come round by round."""
    world, fleet, name = rehearsal.world, rehearsal.fleet, rehearsal.name
    demand, service = world.demands[name], world.services[name]
    policies = [each for each in world.policies if each.spec.applies_to(service.metadata.labels or {})]
    failure = first_failure(demand, fleet, details=False)
    found = []
    for parts in conflicts(Trial(demand, fleet), failure):
        options = [
            relaxed(each, demand, service, policies, fleet) for each in parts if isinstance(each, Requirement)
        ]
        if options and all(options) and len(parts) <= MOST_PARTS:
            found.append(tuple(dict.fromkeys(each for each in options if each)))
    return found


def _waiting(rehearsal: Rehearsal) -> Iterator[Suggestion]:
    """It fits once those are placed that it waits for; nothing if it fits as it is."""
    world, fleet, demand = rehearsal.world, rehearsal.fleet, rehearsal.world.demands[rehearsal.name]
    result = rehearsal.run(())
    if result is None or is_feasible(demand, fleet):
        return
    awaited = [
        (name, target)
        for name, target in demand.latency_to
        if target in world.services and not fleet.seats.get(target)
    ]
    first = (
        Change(
            "platform",
            key(world.services[target]),
            "status.placements",
            None,
            "placed",
            f"place {name} first",
        )
        for name, target in awaited
    )
    yield Suggestion(tuple(first), result.rate, result.is_priced, service_rate=result.service)


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates that are enough, those that are not and are worth following, and those that are larger than what was found.

    `wide`: of offers that turned it away, every limit.
    """

    found: Found
    short: list[Candidate]
    untried: list[Candidate]
    wide: list[Candidate] = field(default_factory=list)


def _round(rehearsal: Rehearsal, begun: Sequence[Candidate]) -> Round:
    wide: list[Candidate] = []
    return replace(_tried(rehearsal, _grown(rehearsal, begun, wide)[:TRIED]), wide=wide)


def _grown(rehearsal: Rehearsal, begun: Sequence[Candidate], wide: list[Candidate]) -> list[Candidate]:
    """By one offer or one wish; the smallest first. `wide` is added to."""
    grown: dict[frozenset[Option], Candidate] = {}
    for base in begun:
        for more in _next(rehearsal, base, wide):
            candidate = tuple(dict.fromkeys((*base, *more)))
            if len(base) < len(candidate) <= MOST_PARTS:
                grown.setdefault(frozenset(candidate), candidate)
    return sorted(grown.values(), key=len)


def _tried(rehearsal: Rehearsal, candidates: Sequence[Candidate], most: int = TRIED) -> Round:
    """One after the other, until one is larger than what was found, or so many are found."""
    found: Found = {}
    short: list[Candidate] = []
    for at, candidate in enumerate(candidates):
        fewest = min((len(each.suggestion.changes) for each in found.values()), default=MOST_PARTS)
        if len(candidate) > fewest or len(found) >= most:
            return Round(found, short, list(candidates[at:]))
        tuned = _tuned(rehearsal, candidate)
        if tuned is None:
            short.append(candidate)
        else:
            found.setdefault(frozenset(tuned.suggestion.changes), replace(tuned, candidate=candidate))
    return Round(found, short, [])


# --- among others that wait ---


def _among_others(alone: Rehearsal, found: Sequence[Tuned]) -> list[Suggestion]:
    """What was found for the service alone, tried with everybody who waits; so much more of it as those need who come first."""
    others = _others(alone)
    if not others or not found:
        return [each.suggestion for each in found]
    crowd = Rehearsal(alone.world, alone.fleet, alone.name, others)
    tried = [(each, _crowded(crowd, each)) for each in found]
    held = {frozenset(each.changes): each for _, each in tried if each is not None}
    if not held:
        more = _round(crowd, [each.candidate for each, _ in tried][:FOLLOWED])
        held = {changes: each.suggestion for changes, each in more.found.items()}
    told = [replace(each, ahead=crowd.ahead(each.changes)) for each in held.values()]
    short = [each.suggestion for each, kept in tried if kept is None]
    return [*told, *(replace(each, ahead=_in_the_way(crowd, each), is_enough=False) for each in short)]


def _others(alone: Rehearsal) -> list[str]:
    """Services that lack replicas, too."""
    seats, demands = alone.fleet.seats, alone.world.demands
    return [
        name
        for name, each in demands.items()
        if name != alone.name and len(seats.get(name, ())) < each.replicas
    ]


def _crowded(crowd: Rehearsal, found: Tuned) -> Suggestion | None:
    """None: whatever more there is of it, others come first."""
    result = crowd.run(found.way.changes)
    if result and not any(crowd.run(some.changes) for some in (*found.way.parts(), *found.way.weaker())):
        return replace(
            found.suggestion, rate=result.rate, is_priced=result.is_priced, service_rate=result.service
        )
    tuned = _tuned(crowd, found.candidate) if len(crowd.others) <= TUNED else None
    return tuned.suggestion if tuned else None


def _in_the_way(crowd: Rehearsal, found: Suggestion) -> tuple[str, ...]:
    """Those, and who comes first once they are gone, until it is enough."""
    ahead = dict.fromkeys(crowd.ahead(found.changes))
    while left := [name for name in crowd.others if name not in ahead]:
        rest = Rehearsal(crowd.world, crowd.fleet, crowd.name, left, content=list(ahead))
        more = () if rest.run(found.changes) else rest.ahead(found.changes)
        if not more:
            break
        ahead |= dict.fromkeys(more)
    return tuple(ahead)


# --- as weak as will do ---


def _tuned(rehearsal: Rehearsal, candidate: Candidate) -> Tuned | None:
    """None: not even at their strongest are these enough. Else each as weak as will do, and without those that need not be."""
    way = _strongest(candidate)
    if not rehearsal.others and rehearsal.may_do(way.changes):
        least = _least_hopeful(rehearsal, way)
        is_worth_it = len(candidate) > 1 or least.strengths != (
            1,
        )  # of one alone, what a glance tells nothing about is bisected
        if is_worth_it and rehearsal.run(least.changes) is not None:
            return _irreducible(rehearsal, least)
    gauged = [position for position, option in enumerate(candidate) if option.measure]
    result = (
        rehearsal.measure(way.changes, [candidate[each].measure for each in gauged])
        if gauged
        else rehearsal.run(way.changes)
    )
    if result is None:
        return None
    for position, option in enumerate(candidate):
        if option.strongest > 1:
            hint = result.strengths[gauged.index(position)] if position in gauged else 0
            way = way.having(position, _weakest(rehearsal, way, position, hint))
    return _irreducible(rehearsal, _as_weak_as_any(rehearsal, way))


def _least_hopeful(rehearsal: Rehearsal, way: Way) -> Way:
    """As weak as can be without being told at a glance to be too weak, one after the other."""
    for position, strength in enumerate(way.strengths):
        way = way.having(position, 1 + _last_hopeless(strength, partial(_may_do, rehearsal, way, position)))
    return way


def _may_do(rehearsal: Rehearsal, way: Way, position: int, strength: int) -> bool:
    return rehearsal.may_do(way.having(position, strength).changes)


def _as_weak_as_any(rehearsal: Rehearsal, way: Way) -> Way:
    """Less of one may leave more to others than to the service, so that less of another is enough then, which was not before."""
    while less := next((each for each in way.weaker() if rehearsal.run(each.changes)), None):
        position = next(at for at, strength in enumerate(way.strengths) if strength != less.strengths[at])
        way = less.having(position, _weakest(rehearsal, less, position, 0))
    return way


def _weakest(rehearsal: Rehearsal, way: Way, position: int, hint: int) -> int:
    """One less is not enough. `hint`: how much was used when there was more than enough."""

    def is_enough(strength: int) -> bool:
        return rehearsal.run(way.having(position, strength).changes) is not None

    high = way.strengths[position]
    low = _last_hopeless(high, partial(_may_do, rehearsal, way, position))
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


def _last_hopeless(most: int, may_do: Callable[[int], bool]) -> int:
    """The largest strength that can be told at a glance to be too weak; 0: none can."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if may_do(middle) else (middle, high)
    return low


def _irreducible(rehearsal: Rehearsal, way: Way) -> Tuned | None:
    for some in way.parts():
        if rehearsal.run(some.changes) is not None:
            return _tuned(rehearsal, some.options)
    result = rehearsal.run(way.changes)
    return Tuned(_suggestion(way, result), way, way.options) if result else None


def _suggestion(way: Way, result: Result) -> Suggestion:
    return Suggestion(
        way.changes, result.rate, result.is_priced, service_rate=result.service, extent=sum(way.strengths)
    )


# --- what to try ---


def _next(rehearsal: Rehearsal, base: Candidate, wide: list[Candidate]) -> Iterator[Candidate]:
    """Every wish of a service that has no place, alone; and for offers that turned it away, what would open them."""
    found: list[Candidate] = []
    for scene, shown in rehearsal.failing(_strongest(base).changes):
        found += [
            (option,) for option in relaxations(shown.demand, shown.service, shown.policies, scene.fleet)
        ]
        if shown.failure is not None:
            for row in nearest_rows(shown.failure):
                found += _openings(scene, shown, shown.failure, row)
                wide += _every_limit(scene, shown.failure, row)
    yield from found


def _every_limit(scene: Scene, failure: Failure, row: int) -> Iterator[Candidate]:
    """With what opens the offer for one more replica; where the platform cannot open it, nothing."""
    reasons = [reason for reason, mask in failure.decision.reasons.items() if mask[row]]
    offered = [_platform(scene, failure.ask, reason, row) for reason in reasons]
    limits = every_limit(_stand(scene, failure.ask, row))
    together = tuple(dict.fromkeys(option for options in (*offered, limits) for option in options))
    if all(offered) and len(together) > 1:
        yield together


def _openings(scene: Scene, shown: Shown, failure: Failure, row: int) -> Iterator[Candidate]:
    """With what the platform can do, and wishes dropped where it can do nothing; and the other way round."""
    reasons = [reason for reason, mask in failure.decision.reasons.items() if mask[row]]
    offered = [_platform(scene, failure.ask, reason, row) for reason in reasons]
    asked = [_team(scene, shown, failure, reason, row) for reason in reasons]
    for first, second in ((offered, asked), (asked, offered)):
        chosen = [one or other for one, other in zip(first, second, strict=True)]
        if all(chosen):
            yield tuple(dict.fromkeys(option for options in chosen for option in options))


def _platform(scene: Scene, ask: ReplicaAsk, reason: Reason, row: int) -> list[Option]:
    told = getattr(reason, "ask", ask)
    return extensions(_stand(scene, told if told.overflow else ask, row), reason)


def _stand(scene: Scene, ask: ReplicaAsk, row: int) -> Stand:
    return Stand(scene.world, scene.fleet, row, ask, supplier(scene.fleet.offers[row], scene.objects))


def _team(scene: Scene, shown: Shown, failure: Failure, reason: Reason, row: int) -> list[Option]:
    for way in curing(reason, shown.demand, failure, row):
        options = [
            relaxed(each, shown.demand, shown.service, shown.policies, scene.fleet)
            for each in _requirements(way)
        ]
        if options and len(options) == len(way) and all(options):
            return [each for each in options if each]
    return []


def _requirements(way: Iterable[Obstacle]) -> list[Requirement]:
    return sorted(
        (each for each in way if isinstance(each, Requirement)), key=lambda each: (str(each), each.source)
    )
