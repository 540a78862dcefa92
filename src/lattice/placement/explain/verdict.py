"""Judge why a service is not placed: NotHere, NotNow, OverBudget, NoPrice or Never, with the blockers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.service import LatticeService
from lattice.placement.explain.blockers import (
    IGNORABLE_LIMITS,
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
from lattice.placement.greedy.gang import gang_shortfall
from lattice.placement.greedy.place import Placement
from lattice.placement.model.demand import Demand, Requirement, latency_targets
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.plugins.filters.available import MachinesDiffer, RuntimeMissing
from lattice.placement.plugins.filters.budget import UnknownPrice, unpriced_classes
from lattice.placement.plugins.filters.capacity import InsufficientCapacity
from lattice.placement.plugins.rejection_reasons import fleet_of

Services = Mapping[str, LatticeService]

# Requirement kinds that a pool meets on its own, without regard to replicas.
POOL_REQUIREMENT_KINDS = ("label", "compliance", "capability", "residency", "region")
VerdictKind = Literal["NotHere", "NoPrice", "OverBudget", "NotNow", "Never"]
# Limit of blockers that are dropped together; larger sets are not searched.
MAX_BLOCKERS_PER_SET = 6
# Limit of starting sets that the search for blocker sets extends.
MAX_STARTING_SETS = 6
# Limit of offers named in one sentence.
MAX_NAMED_OFFERS = 3
# A minimal set of blockers: the service fits if the whole set is dropped, but not if any blocker of the set
# is kept.
BlockerSet = tuple[Blocker, ...]


def _dependency_problems(demand: Demand, fleet: Fleet, services: Services) -> Iterator[str]:
    """Yield sentences about undefined dependencies, direct or indirect, and about the dependency cycle of the
    service."""
    dependencies = _unplaced_dependencies(demand, fleet, services)
    # Names in the namespace of the service are shown without the namespace.
    prefix = f"{demand.name.partition('/')[0]}/"
    for service, targets in dependencies.items():
        for target in targets:
            if target not in services:
                of = "" if service == demand.name else f", which {service.removeprefix(prefix)} needs,"
                yield f"{target.removeprefix(prefix)}{of} is not defined"
    cycle = _dependency_cycle(demand.name, dependencies)
    if cycle:
        *first, last = (name.removeprefix(prefix) for name in cycle)
        yield f"{', '.join(first)} and {last} depend on each other: Lattice places all of them or none"


def _unplaced_dependencies(demand: Demand, fleet: Fleet, services: Services) -> dict[str, list[str]]:
    """Return the unplaced latency dependencies of the service and of its unplaced dependencies, breadth
    first."""
    dependencies: dict[str, list[str]] = {}
    queue = [demand.name]
    while queue:
        name = queue.pop(0)
        # An undefined service has no known dependencies, and a visited service closes a cycle.
        if name in dependencies or name not in services:
            continue
        targets = [*latency_targets(services[name]).values()]
        affinity = services[name].spec.affinity
        namespace = services[name].metadata.namespace or DEFAULT_NAMESPACE
        targets += [
            f"{term.namespace or namespace}/{term.service}"
            for term in (affinity.workload.required if affinity else ())
            if term.service
        ]
        dependencies[name] = [
            target
            for target in dict.fromkeys(targets)
            if target != name and not fleet.assignments.get(target)
        ]
        queue += dependencies[name]
    return dependencies


def _dependency_cycle(start: str, dependencies: Mapping[str, list[str]]) -> list[str]:
    """Return the shortest dependency cycle through the service, or an empty list."""
    paths = [[start]]
    visited = {start}
    while paths:
        path = paths.pop(0)
        for target in dependencies.get(path[-1], ()):
            if target == start:
                return path
            if target not in visited:
                visited.add(target)
                paths.append([*path, target])
    return []


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule with the policy or service that states the rule."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.text} ({self.source})"


@dataclass(frozen=True, slots=True)
class ConflictingRequirements:
    """Two rules that hold alone but not together."""

    first: StatedRule
    second: StatedRule
    reason: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second}: {self.reason}"


def conflicting_requirements(demand: Demand, fleet: Fleet) -> Iterator[ConflictingRequirements]:
    """Yield conflicts between numbers, and pairs of requirements that pools meet alone but no pool meets
    together."""
    min_nodes, max_nodes = demand.rules.min_nodes, demand.rules.max_nodes
    if min_nodes > max_nodes:
        min_source, max_source = demand.size_sources
        yield ConflictingRequirements(
            StatedRule(f"clusters of at least {min_nodes} nodes", min_source),
            StatedRule(f"clusters of at most {max_nodes} nodes", max_source),
            "no number of nodes satisfies both",
        )
    for requirement in demand.requirements_of("minRegions"):
        if demand.max_replicas is not None and requirement.amount > demand.max_replicas:
            allowed = StatedRule(
                f"at most {demand.max_replicas} replica{'s' if demand.max_replicas != 1 else ''}",
                f"service/{demand.name.rpartition('/')[2]}",
            )
            yield ConflictingRequirements(
                _stated_rule(requirement), allowed, "each replica runs in only one region"
            )
    masks = []
    for requirement in demand.requirements:
        if requirement.kind in POOL_REQUIREMENT_KINDS:
            is_met = [not offer.closed_reason and _meets(requirement, offer) for offer in fleet.offers]
            masks.append((requirement, np.array(is_met, np.bool_)))
    for (first, meets_first), (second, meets_second) in combinations(masks, 2):
        # Two required regions do not conflict: different replicas meet them.
        if first.kind == second.kind == "region":
            continue
        if meets_first.any() and meets_second.any() and not (meets_first & meets_second).any():
            yield ConflictingRequirements(_stated_rule(first), _stated_rule(second), "no pool has both")


def _stated_rule(requirement: Requirement) -> StatedRule:
    return StatedRule(str(requirement), requirement.source)


def _meets(requirement: Requirement, offer: Offer) -> bool:
    match requirement.kind:
        case "compliance":
            return requirement.value in offer.compliance
        case "capability":
            return requirement.value in offer.capabilities
        case "residency":
            return requirement.value in offer.residency
        case "region":
            return offer.matches_region(requirement.value)
    return requirement.label is None or requirement.label.matches(offer.labels)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a service is not placed.

    `blocker_sets` holds all single blockers that suffice; only if no single blocker suffices, combinations.
    """

    kind: VerdictKind
    service: str
    # One sentence.
    reason: str
    # Every rejected offer with all shortfalls.
    rejections: tuple[tuple[str, tuple[Shortfall, ...]], ...]
    blocker_sets: tuple[BlockerSet, ...]
    # Events that would make the service fit without a change of manifests.
    waits: tuple[str, ...]
    required: RequiredInfrastructure
    # Pairs of rules that hold alone but not together.
    conflicting_requirements: tuple[ConflictingRequirements, ...] = ()


def judge(placement: Placement, fleet: Fleet, services: Services | None = None) -> Verdict:
    """Judge a service that `place` could not place completely, in the fleet of that attempt.

    `services` are the defined services; None skips the check for undefined dependencies.
    """
    demand = placement.demand
    checker = FeasibilityChecker(demand, fleet)
    failure = first_failure(demand, fleet)
    gang = gang_shortfall(demand, fleet)
    if gang is not None and failure is None and not demand.rule_conflict:
        # The service alone would fit: only its gang keeps it from being placed.
        waits = tuple(f"free capacity for {service}" for service, _, _ in gang.incomplete)
        return Verdict("NotNow", demand.name, str(gang), (), (), waits, NO_INFRASTRUCTURE)
    kind = _kind(checker, fleet)
    joinable = _joinable_pools(failure, fleet) if kind == "Never" else []
    if joinable:
        kind = "NotNow"
    reason = demand.rule_conflict
    if failure is not None:
        reason = failure.sentence
        if failure.replica_number > 1:
            reason = f"replica {failure.replica_number:,} of {demand.replicas:,}: {reason}"
        shortage = _machine_shortage(failure) if kind == "NotHere" else ""
        reason = f"{reason}; {shortage}" if shortage else reason
        if absent := absent_regions(demand, fleet):
            reason = f"no pool is in {', '.join(absent)}: {reason}"
    return Verdict(
        kind=kind,
        service=demand.name,
        reason="; ".join(
            [
                reason,
                *([str(gang)] if gang else ()),
                *(_dependency_problems(demand, fleet, services) if failure and services is not None else ()),
            ]
        ),
        rejections=failure.rejections if failure else (),
        blocker_sets=tuple(minimal_blocker_sets(checker, failure)),
        waits=(f"a machine that joins {_join_names(joinable)}",)
        if joinable
        else tuple(_wait_conditions(checker, failure, services))
        if kind in ("NotNow", "NoPrice", "OverBudget")
        else (),
        required=NO_INFRASTRUCTURE if demand.rule_conflict else required_for(demand, failure, fleet),
        conflicting_requirements=tuple(conflicting_requirements(demand, fleet)),
    )


def _joinable_pools(failure: PlacementFailure | None, fleet: Fleet) -> list[str]:
    """The pools of joined machines that only lack a machine for the replica."""
    if failure is None:
        return []
    rows = np.flatnonzero(open_rows(failure, InsufficientCapacity))
    return [fleet.offers[row].name for row in rows if fleet.offers[row].is_manual]


class FeasibilityChecker:
    """Checks whether a service fits without given blockers, and caches the results."""

    def __init__(self, demand: Demand, fleet: Fleet) -> None:
        self.demand, self.fleet = demand, fleet
        self.blockers = find_blockers(demand, fleet)
        self._results: dict[frozenset[Blocker], bool] = {}

    def fits_without(self, dropped: Iterable[Blocker]) -> bool:
        """Report whether all replicas fit without the dropped blockers."""
        blockers = frozenset(dropped)
        fits = self._results.get(blockers)
        if fits is None:
            fits = self._results[blockers] = is_feasible(without_blockers(self.demand, blockers), self.fleet)
        return fits

    @property
    def liftable_limits(self) -> tuple[LimitBlocker, ...]:
        """Limits that time or money could lift."""
        return tuple(
            blocker
            for blocker in self.blockers
            if isinstance(blocker, LimitBlocker) and blocker.kind in IGNORABLE_LIMITS
        )


def _kind(checker: FeasibilityChecker, fleet: Fleet) -> VerdictKind:
    if checker.demand.rule_conflict:
        return "Never"
    # The first verdict that applies wins.
    if absent_regions(checker.demand, fleet):
        return "NotHere"
    # NoPrice before OverBudget: an unpriced machine fails the budget filter too, and a price alone would
    # help.
    if LimitBlocker("prices") in checker.blockers and checker.fits_without([LimitBlocker("prices")]):
        return "NoPrice"
    if LimitBlocker("budget") in checker.blockers and checker.fits_without([LimitBlocker("budget")]):
        return "OverBudget"
    if checker.fits_without(checker.liftable_limits):
        return "NotNow"
    # Never: even without all limits that time or money could lift, the service does not fit. NotHere: it
    # would fit if the machines had what their classes state, or had the runtime.
    fit = fleet.quotes.machine_fit(checker.demand)
    hosts = fit.can_host.any(axis=0)
    for mask in (fit.lacks_only_promise, fit.lacks_only_runtime):
        if mask is not None and bool((mask & ~hosts).any()):
            return "NotHere"
    return "Never"


def _machine_shortage(failure: PlacementFailure) -> str:
    """What a replica needs and the real machines of the first such offer have; empty if all machines are as
    stated."""
    for reason, mask in failure.decision.reasons.items():
        if isinstance(reason, MachinesDiffer | RuntimeMissing) and mask.any():
            table = failure.decision.table
            row = min(np.flatnonzero(mask).tolist(), key=table.names.__getitem__)
            short = reason.detail(table, row)
            return f"{table.names[row]}: {short}"
    return ""


def absent_regions(demand: Demand, fleet: Fleet) -> list[str]:
    """Return required regions without any offer."""
    return [
        requirement.value
        for requirement in demand.regions
        if not any(offer.matches_region(requirement.value) for offer in fleet.offers)
    ]


def minimal_blocker_sets(checker: FeasibilityChecker, failure: PlacementFailure | None) -> list[BlockerSet]:
    """Return all single blockers that suffice; if none does, verified combinations, the smallest first."""
    single: list[BlockerSet] = [(blocker,) for blocker in checker.blockers if checker.fits_without([blocker])]
    if single:
        return single
    sufficient: set[frozenset[Blocker]] = set()
    for start in _starting_sets(failure, checker.demand):
        grown_set = _grow_until_feasible(checker, start)
        if grown_set is not None:
            sufficient.add(minimal_subset(grown_set, checker.fits_without, checker.blockers))
    # No starting set led to a result: begin with all blockers and minimise.
    if not sufficient and checker.fits_without(checker.blockers):
        sufficient.add(minimal_subset(frozenset(checker.blockers), checker.fits_without, checker.blockers))
    # Supersets of a smaller sufficient set are skipped.
    minimal = [blockers for blockers in sufficient if not any(smaller < blockers for smaller in sufficient)]
    blocker_sets = [
        tuple(blocker for blocker in checker.blockers if blocker in blockers) for blockers in minimal
    ]
    order = {blocker: index for index, blocker in enumerate(checker.blockers)}
    return sorted(
        blocker_sets, key=lambda blockers: (len(blockers), [order[blocker] for blocker in blockers])
    )


def _starting_sets(failure: PlacementFailure | None, demand: Demand) -> list[frozenset[Blocker]]:
    """Return the remedies of the rejected offers, the smallest first, then the remedies that open the most
    offers."""
    if failure is None:
        return []
    decision = failure.decision
    masks, names = list(decision.reasons.values()), decision.table.names
    reason_bits = np.stack(masks, axis=1) if masks else np.zeros((len(names), 0), np.bool_)
    # One offer stands for all offers with the same set of reasons, the first by name.
    row_by_reasons: dict[bytes, int] = {}
    for row in sorted(decision.table.row_of.values(), key=names.__getitem__):
        row_by_reasons.setdefault(reason_bits[row].tobytes(), row)
    counts: dict[frozenset[Blocker], int] = {}
    for row in row_by_reasons.values():
        for remedy in offer_remedies(failure, demand, row):
            counts[remedy] = counts.get(remedy, 0) + 1
    return sorted(counts, key=lambda remedy: (len(remedy), -counts[remedy], sorted(map(str, remedy))))[
        :MAX_STARTING_SETS
    ]


def _grow_until_feasible(checker: FeasibilityChecker, start: frozenset[Blocker]) -> frozenset[Blocker] | None:
    """Extend the set of dropped blockers until all replicas fit; None if the set grows too large or no remedy
    remains."""
    dropped = start
    while not checker.fits_without(dropped):
        if len(dropped) >= MAX_BLOCKERS_PER_SET:
            return None
        relaxed = without_blockers(checker.demand, dropped)
        failure = first_failure(relaxed, checker.fleet, details=False)
        # A remedy that is dropped already does not help the next failed replica.
        new_remedies = [remedy - dropped for remedy in _starting_sets(failure, relaxed)]
        smallest = next((remedy for remedy in new_remedies if remedy), None)
        if smallest is None:
            return None
        dropped = dropped | smallest
    return dropped


def minimal_subset(
    blockers: frozenset[Blocker], is_enough: Callable[[Iterable[Blocker]], bool], order: tuple[Blocker, ...]
) -> frozenset[Blocker]:
    """Return a subset that suffices on its own and of which no blocker can be left out; of a small set, the
    smallest such subset."""
    remaining = [blocker for blocker in order if blocker in blockers]
    for blocker in list(remaining):
        fewer = [candidate for candidate in remaining if candidate is not blocker]
        # Shrink a large set greedily first: trying all subsets would take too long.
        if len(remaining) > MAX_BLOCKERS_PER_SET and is_enough(fewer):
            remaining = fewer
    for size in range(1, min(len(remaining), MAX_BLOCKERS_PER_SET + 1)):
        for subset in combinations(remaining, size):
            if is_enough(subset):
                return frozenset(subset)
    return frozenset(remaining)


def _wait_conditions(
    checker: FeasibilityChecker, failure: PlacementFailure | None, services: Services | None
) -> Iterator[str]:
    """Yield what to wait for, for the smallest set of limits whose lifting suffices."""
    limits = checker.liftable_limits
    # Smallest sets first: the first set that suffices names the fewest events to wait for.
    for size in range(1, len(limits) + 1):
        for subset in combinations(limits, size):
            if checker.fits_without(subset):
                for limit in subset:
                    yield from _limit_wait_conditions(limit, checker, failure, services)
                return


def _limit_wait_conditions(
    limit: LimitBlocker,
    checker: FeasibilityChecker,
    failure: PlacementFailure | None,
    services: Services | None,
) -> Iterator[str]:
    fleet, demand = checker.fleet, checker.demand
    match limit.kind:
        case "dependencies":
            for name, service in demand.latency_to:
                if not fleet.assignments.get(service):
                    is_defined = services is None or service in services
                    yield f"{name}, which is not {'placed' if is_defined else 'defined'}"
            for term in demand.required_terms:
                if term.is_anti and not term.is_local and any(map(fleet.replicas.count, term.targets)):
                    yield f"{term.text} to leave a {term.key}"
                elif not term.is_anti and fleet.groups.is_waiting_for(demand, term):
                    yield f"{term.text}, which is not {'placed' if term.targets else 'defined'}"
        case "capacity":
            full_offers = (
                [fleet.offers[row].name for row in np.flatnonzero(open_rows(failure, InsufficientCapacity))]
                if failure
                else []
            )
            yield f"free capacity in {_join_names(full_offers)}" if full_offers else "free capacity"
        case "overflow":
            rules = {
                offer.name: offer.overflow.enabled for offer in fleet.offers if offer.overflow is not None
            }
            enabled = sorted(name for name, is_enabled in rules.items() if is_enabled)
            disabled = sorted(name for name, is_enabled in rules.items() if not is_enabled)
            if enabled:
                yield f"{_join_names(enabled)} to reach the overflow trigger"
            if disabled:
                yield f"overflow of {_join_names(disabled)} to be enabled"
        case "reservation":
            reserving = sorted(
                offer.name
                for offer in fleet.offers
                if offer.has_reserve and offer.name not in demand.usable_reserves
            )
            yield f"capacity of {_join_names(reserving)} that is reserved for other services"
        case "prices":
            yield from sorted(_prices(failure)) or ["prices of running machines"]
        case "budget":
            yield "budget"


def _prices(failure: PlacementFailure | None) -> set[str]:
    """Return sentences about the machine types without a price, and the settings that hold the price."""
    sentences = set()
    for reason, mask in failure.decision.reasons.items() if failure else ():
        if isinstance(reason, UnknownPrice):
            fleet = fleet_of(failure.decision.table)  # type: ignore[union-attr]
            for row in np.flatnonzero(mask).tolist():
                provider = fleet.offers[row].place.provider
                sentences |= {
                    f"a price for class {name} (costPerHour.{provider}, or a price file)"
                    for name in unpriced_classes(reason.ask, fleet, row)
                }
    return sentences


def _join_names(names: list[str]) -> str:
    unnamed = len(names) - MAX_NAMED_OFFERS
    return f"{', '.join(sorted(names)[:MAX_NAMED_OFFERS])}{f' or {unnamed} more' if unnamed > 0 else ''}"
