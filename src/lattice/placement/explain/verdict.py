"""Why is a service not placed: not here, not now, over budget, without a known price or never; and what exactly is in its way?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Flags
from lattice.kinds.service import LatticeService
from lattice.placement.explain.blockers import (
    IGNORABLE,
    Blocker,
    LimitBlocker,
    PlacementFailure,
    find_blockers,
    first_failure,
    is_feasible,
    offer_remedies,
    open_rows,
    without_blockers,
)
from lattice.placement.explain.required_infrastructure import (
    NO_INFRASTRUCTURE,
    RequiredInfrastructure,
    required_for,
)
from lattice.placement.greedy.place import Placement
from lattice.placement.model.demand import Demand, Requirement, latency_targets
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.rejection_reasons import fleet_of
from lattice.placement.plugins.filters.budget import UnknownPrice, unpriced_classes
from lattice.placement.plugins.filters.capacity import InsufficientCapacity

Services = Mapping[str, LatticeService]


POOL_REQUIREMENT_KINDS = ("label", "compliance", "capability", "residency", "region")
VerdictKind = Literal["NotHere", "NoPrice", "OverBudget", "NotNow", "Never"]
MAX_BLOCKERS_PER_SET = 6  # things to drop together before giving up
MAX_STARTING_SETS = 6  # different beginnings of a combination that are followed up
MAX_NAMED_OFFERS = 3  # offers named in a sentence
BlockerSet = tuple[
    Blocker, ...
]  # dropped together they make the service fit, and none of them can be left out


def dependency_problems(demand: Demand, fleet: Fleet, services: Services) -> Iterator[str]:
    """Every dependency that is not declared, however far, and the circle that the service is in: sentences."""
    needs = _unplaced_dependencies(demand, fleet, services)
    for service, targets in needs.items():
        for target in targets:
            if target not in services:
                of = "" if service == demand.name else f", which {_short_name(service, demand)} needs,"
                yield f"{_short_name(target, demand)}{of} is not defined"
    circle = _dependency_cycle(demand.name, needs)
    if circle:
        *first, last = (_short_name(each, demand) for each in circle)
        yield f"{', '.join(first)} and {last} wait for one another: they are placed together or not at all"


def _unplaced_dependencies(demand: Demand, fleet: Fleet, services: Services) -> dict[str, list[str]]:
    """Of it, and of everything without a place that it waits for: what those wait for, nearest first."""
    found: dict[str, list[str]] = {}
    waiting = [demand.name]
    while waiting:
        name = waiting.pop(0)
        if name in found or name not in services:
            continue
        targets = latency_targets(services[name]).values()
        found[name] = [
            each for each in dict.fromkeys(targets) if each != name and not fleet.assignments.get(each)
        ]
        waiting += found[name]
    return found


def _dependency_cycle(start: str, needs: Mapping[str, list[str]]) -> list[str]:
    """The shortest way from a service back to it; nothing: there is none."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        for target in needs.get(way[-1], ()):
            if target == start:
                return way
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []


def _short_name(name: str, demand: Demand) -> str:
    """Without the namespace that they share."""
    return name.removeprefix(f"{demand.name.partition('/')[0]}/")


@dataclass(frozen=True, slots=True)
class StatedRule:
    """One of the rules, and the policy or service that states it."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.text} ({self.source})"


@dataclass(frozen=True, slots=True)
class ConflictingRequirements:
    """Each could be kept alone."""

    first: StatedRule
    second: StatedRule
    reason: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second}: {self.reason}"


def conflicting_requirements(demand: Demand, fleet: Fleet) -> Iterator[ConflictingRequirements]:
    """Rules about numbers, whatever the fleet; and what no pool has both of, though there is a pool with each."""
    yield from _numeric_conflicts(demand)
    placed = [
        (each, _offers_meeting(each, fleet))
        for each in demand.requirements
        if each.kind in POOL_REQUIREMENT_KINDS
    ]
    for (one, here), (other, there) in combinations(placed, 2):
        both_regions = one.kind == other.kind == "region"  # one replica in each
        if not both_regions and here.any() and there.any() and not (here & there).any():
            yield ConflictingRequirements(_stated_rule(one), _stated_rule(other), "no pool has both")


def _numeric_conflicts(demand: Demand) -> Iterator[ConflictingRequirements]:
    least, most = demand.rules.min_nodes, demand.rules.max_nodes
    if least > most:
        one, other = demand.size_sources
        yield ConflictingRequirements(
            StatedRule(f"clusters of at least {least} nodes", one),
            StatedRule(f"of at most {most}", other),
            "no number is both",
        )
    for each in demand.requirements_of("minRegions"):
        if demand.max_replicas is not None and each.amount > demand.max_replicas:
            allowed = StatedRule(
                f"at most {demand.max_replicas} replica{'s' if demand.max_replicas != 1 else ''}",
                f"service/{demand.name.rpartition('/')[2]}",
            )
            yield ConflictingRequirements(_stated_rule(each), allowed, "one replica is in one region")


def _stated_rule(each: Requirement) -> StatedRule:
    return StatedRule(str(each), each.source)


def _offers_meeting(required: Requirement, fleet: Fleet) -> Flags:
    return np.array([not offer.closed_reason and _meets(required, offer) for offer in fleet.offers], np.bool_)


def _meets(required: Requirement, offer: Offer) -> bool:
    match required.kind:
        case "compliance":
            return required.value in offer.compliance
        case "capability":
            return required.value in offer.capabilities
        case "residency":
            return required.value in offer.residency
        case "region":
            return offer.is_in(required.value)
    return required.label is None or required.label.matches(offer.labels)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`conflicts` are all the single things whose absence would be enough; where there is none, combinations."""

    kind: VerdictKind
    service: str
    reason: str  # one sentence
    rejections: tuple[
        tuple[str, tuple[Shortfall, ...]], ...
    ]  # every offer, with everything that rules it out
    blocker_sets: tuple[BlockerSet, ...]
    waits: tuple[str, ...]  # what would have to happen, if time could cure it
    required: RequiredInfrastructure
    conflicting_requirements: tuple[
        ConflictingRequirements, ...
    ] = ()  # two rules of which each could be kept, but not both


def judge(placement: Placement, fleet: Fleet, services: Services | None = None) -> Verdict:
    """Of a service that place() could not place completely, in the fleet that it was to be placed in. `known`: services that exist."""
    demand = placement.demand
    trial = FeasibilityChecker(demand, fleet)
    failure = first_failure(demand, fleet)
    kind = _kind(trial, fleet)
    return Verdict(
        kind=kind,
        service=demand.name,
        reason="; ".join(
            [
                _reason(kind, demand, fleet, failure),
                *(dependency_problems(demand, fleet, services) if failure and services is not None else ()),
            ]
        ),
        rejections=failure.rejections if failure else (),
        blocker_sets=tuple(minimal_blocker_sets(trial, failure)),
        waits=tuple(_wait_conditions(trial, failure, services))
        if kind in ("NotNow", "NoPrice", "OverBudget")
        else (),
        required=NO_INFRASTRUCTURE if demand.rule_conflict else required_for(demand, failure, fleet),
        conflicting_requirements=tuple(conflicting_requirements(demand, fleet)),
    )


class FeasibilityChecker:
    """Would it fit without these? Each question is asked once."""

    def __init__(self, demand: Demand, fleet: Fleet) -> None:
        self.demand, self.fleet = demand, fleet
        self.blockers = find_blockers(demand, fleet)
        self._results: dict[frozenset[Blocker], bool] = {}

    def fits_without(self, dropped: Iterable[Blocker]) -> bool:
        gone = frozenset(dropped)
        found = self._results.get(gone)
        if found is None:
            found = self._results[gone] = is_feasible(without_blockers(self.demand, gone), self.fleet)
        return found

    @property
    def liftable_limits(self) -> tuple[LimitBlocker, ...]:
        """Limits that time or money could lift."""
        return tuple(
            each for each in self.blockers if isinstance(each, LimitBlocker) and each.kind in IGNORABLE
        )


def _kind(trial: FeasibilityChecker, fleet: Fleet) -> VerdictKind:
    if trial.demand.rule_conflict:
        return "Never"
    if absent_regions(trial.demand, fleet):
        return "NotHere"
    if LimitBlocker("prices") in trial.blockers and trial.fits_without([LimitBlocker("prices")]):
        return "NoPrice"
    if LimitBlocker("budget") in trial.blockers and trial.fits_without([LimitBlocker("budget")]):
        return "OverBudget"
    return "NotNow" if trial.fits_without(trial.liftable_limits) else "Never"


def absent_regions(demand: Demand, fleet: Fleet) -> list[str]:
    """Required regions that no offer is in."""
    return [
        each.value for each in demand.regions if not any(offer.is_in(each.value) for offer in fleet.offers)
    ]


def _reason(kind: VerdictKind, demand: Demand, fleet: Fleet, failure: PlacementFailure | None) -> str:
    if failure is None:
        return demand.rule_conflict
    which = (
        f"replica {failure.replica_number:,} of {demand.replicas:,}: " if failure.replica_number > 1 else ""
    )
    where = f"no pool here is in {', '.join(absent_regions(demand, fleet))}: " if kind == "NotHere" else ""
    return f"{where}{which}{failure.sentence}"


def minimal_blocker_sets(trial: FeasibilityChecker, failure: PlacementFailure | None) -> list[BlockerSet]:
    """Single things first; only if none is enough, combinations that have been found to be."""
    alone: list[BlockerSet] = [(each,) for each in trial.blockers if trial.fits_without([each])]
    return alone or sorted(_combinations(trial, failure), key=lambda each: (len(each), _order(trial, each)))


def _order(trial: FeasibilityChecker, parts: BlockerSet) -> list[int]:
    return [trial.blockers.index(each) for each in parts]


def _combinations(trial: FeasibilityChecker, failure: PlacementFailure | None) -> Iterator[BlockerSet]:
    found: set[frozenset[Blocker]] = set()
    for start in _starting_sets(failure, trial.demand):
        grown = _grow_until_feasible(trial, start)
        if grown is not None:
            found.add(minimal_subset(grown, trial.fits_without, trial.blockers))
    if not found and trial.fits_without(trial.blockers):
        found.add(minimal_subset(frozenset(trial.blockers), trial.fits_without, trial.blockers))
    for each in found:
        if not any(other < each for other in found):
            yield tuple(part for part in trial.blockers if part in each)


def _starting_sets(failure: PlacementFailure | None, demand: Demand) -> list[frozenset[Blocker]]:
    """Ways to open the offers that are nearest to taking the replica, those that open most of them first."""
    if failure is None:
        return []
    counted: dict[frozenset[Blocker], int] = {}
    for row in representatives(failure):
        for way in offer_remedies(failure, demand, row):
            counted[way] = counted.get(way, 0) + 1
    return sorted(counted, key=lambda way: (len(way), -counted[way], sorted(map(str, way))))[
        :MAX_STARTING_SETS
    ]


def representatives(failure: PlacementFailure) -> list[int]:
    """One offer of those that are ruled out by the same reasons, the first by name."""
    masks = list(failure.decision.reasons.values())
    names = failure.decision.table.names
    rows = sorted(failure.decision.table.row_of.values(), key=names.__getitem__)
    signs = np.stack(masks, axis=1) if masks else np.zeros((len(names), 0), np.bool_)
    kept: dict[bytes, int] = {}
    for row in rows:
        kept.setdefault(signs[row].tobytes(), row)
    return list(kept.values())


def _grow_until_feasible(trial: FeasibilityChecker, start: frozenset[Blocker]) -> frozenset[Blocker] | None:
    """With what else it takes, replica after replica; None: no end in sight."""
    dropped = start
    while not trial.fits_without(dropped):
        if len(dropped) >= MAX_BLOCKERS_PER_SET:
            return None
        kept = without_blockers(trial.demand, dropped)
        failure = first_failure(kept, trial.fleet, details=False)
        more = [way - dropped for way in _starting_sets(failure, kept)]
        more = [way for way in more if way]
        if not more:
            return None
        dropped = dropped | more[0]
    return dropped


def minimal_subset(
    parts: frozenset[Blocker], is_enough: Callable[[Iterable[Blocker]], bool], order: tuple[Blocker, ...]
) -> frozenset[Blocker]:
    """A smallest part of it that is enough on its own; nothing can be left out of that."""
    kept = [each for each in order if each in parts]
    for each in list(kept):
        fewer = [other for other in kept if other is not each]
        if len(kept) > MAX_BLOCKERS_PER_SET and is_enough(fewer):
            kept = fewer
    for size in range(1, min(len(kept), MAX_BLOCKERS_PER_SET + 1)):
        for some in combinations(kept, size):
            if is_enough(some):
                return frozenset(some)
    return frozenset(kept)


def _wait_conditions(
    trial: FeasibilityChecker, failure: PlacementFailure | None, known: Services | None
) -> Iterator[str]:
    """For the fewest limits whose lifting would do."""
    limits = trial.liftable_limits
    for size in range(1, len(limits) + 1):
        for some in combinations(limits, size):
            if trial.fits_without(some):
                yield from (
                    words for each in some for words in _limit_wait_conditions(each, trial, failure, known)
                )
                return


def _limit_wait_conditions(
    limit: LimitBlocker, trial: FeasibilityChecker, failure: PlacementFailure | None, known: Services | None
) -> Iterator[str]:
    fleet, demand = trial.fleet, trial.demand
    match limit.kind:
        case "dependencies":
            for name, service in demand.latency_to:
                if not fleet.assignments.get(service):
                    is_known = known is None or service in known
                    yield f"{name}, which is not {'placed' if is_known else 'defined'}"
        case "capacity":
            full = (
                [fleet.offers[row].name for row in np.flatnonzero(open_rows(failure, InsufficientCapacity))]
                if failure
                else []
            )
            yield f"room in {_join_names(full)}" if full else "room"
        case "overflow":
            rules = {
                offer.name: offer.overflow.enabled for offer in fleet.offers if offer.overflow is not None
            }
            gates = sorted(name for name, is_enabled in rules.items() if is_enabled)
            off = sorted(name for name, is_enabled in rules.items() if not is_enabled)
            yield from [f"{_join_names(gates)} to be full enough to overflow"] if gates else []
            yield from [f"overflow of {_join_names(off)} to be enabled"] if off else []
        case "reservation":
            keepers = sorted(
                offer.name
                for offer in fleet.offers
                if offer.reserved_nodes and offer.name not in demand.usable_reserves
            )
            yield f"capacity of {_join_names(keepers)} that is reserved for others"
        case "prices":
            yield from sorted(_prices(failure)) or ["prices of machines that run"]
        case "budget":
            yield "budget"


def _prices(failure: PlacementFailure | None) -> set[str]:
    """Of which classes, and how they are given."""
    found = set()
    for reason, mask in failure.decision.reasons.items() if failure else ():
        if isinstance(reason, UnknownPrice):
            fleet = fleet_of(failure.decision.table)  # type: ignore[union-attr]
            for row in np.flatnonzero(mask).tolist():
                provider = fleet.offers[row].place.provider
                found |= {
                    f"a price of class {name} (costPerHour.{provider}, or a price file)"
                    for name in unpriced_classes(reason.ask, fleet, row)
                }
    return found


def _join_names(names: list[str]) -> str:
    rest = len(names) - MAX_NAMED_OFFERS
    return f"{', '.join(sorted(names)[:MAX_NAMED_OFFERS])}{f' or {rest} more' if rest > 0 else ''}"
