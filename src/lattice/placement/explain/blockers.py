"""Find the blockers of a service: the first infeasible replica, the reasons by offer, and the
requirements and limits to drop."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import summarize
from lattice.engine.plugin import Reason, Shortfall
from lattice.engine.table import Flags
from lattice.kinds.constraints import Toleration
from lattice.placement.greedy.place import place, place_as_many_as_fit
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.demand import (
    DEFAULT_SOURCE,
    ClusterRules,
    Demand,
    IgnorableLimit,
    ReplicaAsk,
    Requirement,
)
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.filters.affinity import AffinityUnmet, AntiAffinityViolated, waiting_reason
from lattice.placement.plugins.filters.available import (
    MachinesDiffer,
    OfferClosed,
    ReplicaTooLarge,
    RuntimeMissing,
)
from lattice.placement.plugins.filters.budget import (
    OverBudget,
    UnknownPrice,
    exceeded_budgets,
    unpriced_classes,
)
from lattice.placement.plugins.filters.capacity import InsufficientCapacity, exceeded_limits
from lattice.placement.plugins.filters.latency import LatencyExceeded
from lattice.placement.plugins.filters.overflow import NotOverflowTarget, OverflowClosed, overflow_sources
from lattice.placement.plugins.filters.region import NotInRequiredRegion, RegionAlreadyUsed
from lattice.placement.plugins.filters.spread import SkewExceeded
from lattice.placement.plugins.rejection_reasons import FixedReason, MissingProperty, fleet_of

# The name of a filter plugin, with a reported shortfall.
FilterShortfall = tuple[str, Shortfall]

LimitKind = Literal[
    IgnorableLimit, "clusterSize", "nodeSelector", "gpuModel", "taints", "perNode", "runtime", "realMachines"
]
IGNORABLE_LIMITS: tuple[IgnorableLimit, ...] = get_args(IgnorableLimit)
_LIMIT_DESCRIPTIONS: dict[str, str] = {
    "prices": "unknown prices",
    "budget": "budgets",
    "capacity": "capacity limits",
    "dependencies": "unplaced dependencies",
    "overflow": "overflow rules of data centers that close the cloud",
    "reservation": "capacity reservations for other services",
    "clusterSize": "cluster sizes that policies require",
    "nodeSelector": "required machine labels",
    "gpuModel": "the required GPU model",
    "taints": "untolerated taints",
    "perNode": "the limit of replicas per machine",
    "runtime": "machines without the required runtime",
    "realMachines": "real machines that did not accept a replica",
}
# Number of replicas that a feasibility check places first; see is_feasible.
PROBE_REPLICAS = 256


def reason_shortfalls(
    reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int
) -> list[FilterShortfall]:
    """Return the shortfalls of the reasons in the offer, with shortfalls that earlier filters hide."""
    shortfalls: list[FilterShortfall] = []
    for reason in reasons:
        details = getattr(reason, "shortfalls", None)
        reported = details(fleet.table, row) if details else [reason.detail(fleet.table, row)]
        shortfalls.extend((reason.plugin, shortfall) for shortfall in reported)
    # A reason of an overflow target carries the ask with the overflow source.
    effective_ask = next(
        (
            reason.ask
            for reason in reasons
            if isinstance(reason, InsufficientCapacity | OverBudget | UnknownPrice)
        ),
        ask,
    )
    return [*shortfalls, *_masked_shortfalls(reasons, effective_ask, fleet, row)]


def _masked_shortfalls(
    reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int
) -> Iterator[FilterShortfall]:
    """Yield capacity and budget shortfalls that the filters did not report.

    The capacity filter checks limits only where a machine type fits, and the budget filter checks budgets
    only where the limits allow one more machine.
    """
    ignored_limits = ask.demand.ignored_limits
    # Where the replica fits on existing machines, limits and budgets play no role.
    if fleet.quotes.quote_for(ask).has_free_capacity[row] or any(
        isinstance(reason, NotOverflowTarget) for reason in reasons
    ):
        return
    if "capacity" not in ignored_limits and not any(
        isinstance(reason, InsufficientCapacity) for reason in reasons
    ):
        for shortfall in exceeded_limits(ask, fleet, row):
            yield "Capacity", shortfall
    if "budget" not in ignored_limits and not any(
        isinstance(reason, OverBudget | UnknownPrice) for reason in reasons
    ):
        for shortfall in exceeded_budgets(ask, fleet, row):
            yield "Budget", shortfall
        # A missing price blocks like a budget, so both appear under the budget filter.
        if "prices" not in ignored_limits and _lacks_prices(ask, fleet, row):
            yield "Budget", UnknownPrice(ask).detail(fleet.table, row)


def _lacks_prices(ask: ReplicaAsk, fleet: Fleet, row: int) -> bool:
    """Report whether a budget rejects the replica for an unknown price: no machine type that fits has a
    price, or the budget already pays for a machine without a known price."""
    quotes = fleet.quotes
    can_host = quotes.machine_fit(ask.demand).can_host[:, row]
    has_no_priced_type = (
        fleet.ledgers.has_limit(row, ask.overflow_source)
        and bool(can_host.any())
        and not (can_host & quotes.catalog.is_priced[:, row]).any()
    )
    return bool(fleet.ledgers.unpriced_ledger(row, ask.overflow_source)) or (
        has_no_priced_type and bool(unpriced_classes(ask, fleet, row))
    )


@dataclass(frozen=True, slots=True)
class LimitBlocker:
    """A blocker that is not a requirement of the service, with its source if a policy or service states the
    limit."""

    kind: LimitKind
    source: str = ""

    def __str__(self) -> str:
        return _LIMIT_DESCRIPTIONS[self.kind]


Blocker = Requirement | LimitBlocker


def find_blockers(demand: Demand, fleet: Fleet) -> tuple[Blocker, ...]:
    """Return all candidates for blockers: the requirements of the service and the limits that apply in this
    fleet."""
    kinds: list[LimitKind] = []
    if any(budget.limit is not None for budget in fleet.ledgers.budgets.values()):
        if fleet.quotes.has_unknown_prices:
            kinds.append("prices")
        kinds.append("budget")
    kinds.append("capacity")
    # A dependency without a replica has no place yet, so no latency to the dependency is known.
    if any(not fleet.assignments.get(target) for _, target in demand.latency_to) or any(
        term.is_anti or fleet.groups.is_waiting_for(demand, term) for term in demand.required_terms
    ):
        kinds.append("dependencies")
    if any(offer.overflow is not None for offer in fleet.offers):
        kinds.append("overflow")
    if any(offer.has_reserve and offer.name not in demand.usable_reserves for offer in fleet.offers):
        kinds.append("reservation")
    kinds.extend(_service_limits(demand, fleet))
    blockers: list[Blocker] = list(demand.requirements)
    for kind in kinds:
        source = ""
        if kind == "clusterSize":
            policies = (name for name in demand.size_sources if name != DEFAULT_SOURCE)
            source = " and ".join(dict.fromkeys(policies))
        blockers.append(LimitBlocker(kind, source))
    return tuple(blockers)


def _service_limits(demand: Demand, fleet: Fleet) -> Iterator[LimitKind]:
    if demand.rules != ClusterRules(prefix=demand.rules.prefix):
        yield "clusterSize"
    if demand.node_selector:
        yield "nodeSelector"
    if demand.gpu_model and demand.needs.get("gpu"):
        yield "gpuModel"
    if fleet.quotes.catalog.has_taints:
        yield "taints"
    if demand.max_per_node:
        yield "perNode"
    if not demand.runtimes.isdisjoint(fleet.quotes.catalog.lacking_runtime):
        yield "runtime"
    if demand.refusals:
        yield "realMachines"


def without_blockers(demand: Demand, dropped: Iterable[Blocker]) -> Demand:
    """Return the demand without the dropped requirements and limits."""
    blockers = list(dropped)
    relaxed = demand.without(blocker for blocker in blockers if isinstance(blocker, Requirement))
    for blocker in blockers:
        if not isinstance(blocker, LimitBlocker):
            continue
        match blocker.kind:
            case "clusterSize":
                relaxed = relaxed.with_rules(ClusterRules(prefix=relaxed.rules.prefix))
            case "nodeSelector":
                relaxed = replace(relaxed, node_selector=())
            case "gpuModel":
                relaxed = replace(relaxed, gpu_model="")
            case "taints":
                tolerations = (*relaxed.tolerations, Toleration(operator="Exists"))
                relaxed = replace(relaxed, tolerations=tolerations)
            case "perNode":
                relaxed = replace(relaxed, max_per_node=0)
            case "runtime":
                relaxed = replace(relaxed, runtimes=frozenset())
            case "realMachines":
                relaxed = replace(relaxed, refusals=())
            case "prices" | "budget" | "capacity" | "dependencies" | "overflow" | "reservation":
                relaxed = replace(relaxed, ignored_limits=relaxed.ignored_limits | {blocker.kind})
    return relaxed


def is_feasible(demand: Demand, fleet: Fleet) -> bool:
    """Report whether all replicas of the demand fit; the fleet is unchanged afterwards."""
    if not may_fit(demand, fleet):
        return False
    with fleet.what_if():
        resize_assignments(demand, fleet)
        return _fits_any_count(demand, fleet) or place(demand, fleet).is_complete


def _fits_any_count(demand: Demand, fleet: Fleet) -> bool:
    """Report whether the first `PROBE_REPLICAS` replicas of a large service prove that all replicas fit.

    The proof is that the last replica of the probe is in an offer without limits.
    """
    probe_count = len(fleet.assignments.get(demand.name, ())) + PROBE_REPLICAS
    # Spread and overflow depend on the replicas so far: a probe of the first replicas proves nothing.
    if demand.replicas <= probe_count or demand.spread or demand.required_terms or fleet.table.overflow_rows:
        return False
    with fleet.what_if():
        if not place(replace(demand, replicas=probe_count), fleet).is_complete:
            return False
        last_machine = fleet.assignments[demand.name][-1].machine
        offer = fleet.offers[fleet.machines.cluster[last_machine].offer_row]
        limits, ignored_limits = offer.limits, demand.ignored_limits
        amounts = (limits.nodes, limits.millicores, limits.memory, limits.clusters, *limits.gpus.values())
        has_capacity = not offer.is_static and all(amount >= NO_LIMIT for amount in amounts)
        has_budget = all(fleet.ledgers.commit_cap(ledger) >= NO_LIMIT for ledger in offer.budgets)
        return ("capacity" in ignored_limits or has_capacity) and ("budget" in ignored_limits or has_budget)


def resize_assignments(demand: Demand, fleet: Fleet) -> None:
    """Reassign running replicas with the current requests of the service."""
    needs = tuple(demand.effective_needs.items())
    outdated = [
        assignment for assignment in fleet.assignments.get(demand.name, ()) if assignment.needs != needs
    ]
    # All outdated replicas leave first, so that the new requests see the full free capacity.
    for assignment in reversed(outdated):
        fleet.unassign(assignment)
    for assignment in outdated:
        fleet.assign_replica(demand, assignment.machine)


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """The first infeasible replica, after the earlier replicas were placed. Masks and details
    describe the fleet at that moment."""

    decision: Decision
    # The first replica has number 1.
    replica_number: int
    sentence: str
    rejections: tuple[tuple[str, tuple[Shortfall, ...]], ...] = ()

    @property
    def ask(self) -> ReplicaAsk:
        return cast("ReplicaAsk", self.decision.ask)


@contextmanager
def at_failure(demand: Demand, fleet: Fleet, *, details: bool = False) -> Iterator[PlacementFailure | None]:
    """A context in which the fleet is as it was at the placement failure; the exit undoes all changes.

    Yields None if all replicas fit, or if the demand has a rule conflict, since no offer could explain the
    conflict.
    """
    if demand.rule_conflict:
        yield None
        return
    with fleet.what_if():
        resize_assignments(demand, fleet)
        attempt = place_as_many_as_fit(demand, fleet, 0)
        if attempt.is_complete:
            yield None
            return
        # The placed replicas stay until the context ends, so that reasons and details match this moment.
        decision = _with_overflow(attempt.decisions[-1], fleet)
        rejections = []
        if details:
            for name, row in sorted(decision.table.row_of.items()):
                reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
                ask = cast("ReplicaAsk", decision.ask)
                shortfalls = reason_shortfalls(reasons, ask, fleet, row) if reasons else []
                if shortfalls:
                    rejections.append((name, tuple(shortfall for _, shortfall in shortfalls)))
        replica_number = len(fleet.assignments.get(demand.name, ())) + 1
        yield PlacementFailure(decision, replica_number, summarize(decision, "pool"), tuple(rejections))


def first_failure(demand: Demand, fleet: Fleet, *, details: bool = True) -> PlacementFailure | None:
    """Return the placement failure of the demand, or None if all replicas fit or the demand has a rule
    conflict."""
    with at_failure(demand, fleet, details=details) as failure:
        return failure


def _with_overflow(first: Decision, fleet: Fleet) -> Decision:
    """Replace the reasons of overflow targets by the reasons that apply with the overflow of their data
    center.

    If a data center may overflow, its overflow targets get the reasons that reject them under that overflow,
    instead of the reason that the overflow is closed.
    """
    ask, reasons = cast("ReplicaAsk", first.ask), dict(first.reasons)
    for data_center in overflow_sources(ask, fleet):
        second = decide(replace(ask, overflow_source=data_center), fleet.table, first.profile)
        is_target = ~next(
            (mask for reason, mask in second.reasons.items() if isinstance(reason, NotOverflowTarget)),
            np.zeros(0, np.bool_),
        )
        # Inside the overflow targets, only the reasons of the overflow decision count.
        reasons = {reason: mask & ~is_target for reason, mask in reasons.items()}
        for reason, mask in second.reasons.items():
            if (mask & is_target).any():
                reasons[reason] = (mask & is_target) | reasons.get(reason, False)
    return replace(first, reasons=reasons)


def offer_remedies(failure: PlacementFailure, demand: Demand, row: int) -> list[frozenset[Blocker]]:
    """Return the alternatives that open the offer to the failed replica, as sets of blockers to drop
    together.

    An empty list means that no dropped blocker opens the offer.
    """
    alternatives: list[frozenset[Blocker]] = [frozenset()]
    for reason, mask in failure.decision.reasons.items():
        if mask[row]:
            remedies = reason_remedies(reason, demand, failure, row)
            # Every reason must go: one remedy of each reason, in all combinations.
            combined: list[frozenset[Blocker]] = []
            for alternative in alternatives:
                combined.extend(alternative | remedy for remedy in remedies)
            alternatives = combined
    return alternatives


def reason_remedies(
    reason: Reason, demand: Demand, failure: PlacementFailure, row: int
) -> list[frozenset[Blocker]]:
    """Return the alternatives that remove one reason, as sets of blockers to drop together."""
    match reason:
        case MissingProperty(requirement=missing):
            return [
                frozenset(
                    requirement
                    for requirement in demand.requirements
                    if (requirement.kind, requirement.value) == (missing.kind, missing.value)
                )
            ]
        case NotInRequiredRegion(region=region):
            return [frozenset(requirement for requirement in demand.regions if requirement.value == region)]
        case RegionAlreadyUsed(regions=regions):
            return [
                frozenset(
                    requirement
                    for requirement in demand.requirements_of("minRegions")
                    if requirement.amount > len(regions)
                )
            ]
        case LatencyExceeded(requirement=violated) | SkewExceeded(requirement=violated):
            return [
                frozenset(
                    requirement
                    for requirement in demand.requirements_of(violated.kind)
                    if (requirement.value, requirement.amount) == (violated.value, violated.amount)
                )
            ]
        case AffinityUnmet(term=term) | AntiAffinityViolated(term=term):
            return [frozenset(own for own in demand.requirements if own.term == term)]
        case FixedReason(plugin="Affinity"):
            waiting = frozenset(
                requirement
                for requirement in demand.requirements_of("affinity")
                if requirement.term and reason.summary() == waiting_reason(requirement.term).summary()
            )
            return [frozenset({LimitBlocker("dependencies")}), waiting]
        case FixedReason(plugin="Latency"):
            latency_requirements = frozenset(
                requirement
                for requirement in demand.latency
                if reason.subject == f"latency to {requirement.value}"
            )
            return [frozenset({LimitBlocker("dependencies")}), latency_requirements]
        case OverflowClosed():
            return [frozenset({LimitBlocker("overflow")})]
        case InsufficientCapacity():
            return [frozenset({LimitBlocker("capacity")}), frozenset({LimitBlocker("reservation")})]
        case OverBudget():
            return [frozenset({LimitBlocker("budget")})]
        case UnknownPrice():
            return [frozenset({LimitBlocker("prices")}), frozenset({LimitBlocker("budget")})]
        case ReplicaTooLarge():
            return _size_remedies(demand, failure, row)
        case RuntimeMissing():
            return [frozenset({LimitBlocker("runtime")})]
        case MachinesDiffer():
            remedies = _size_remedies(demand, failure, row)
            return [frozenset({LimitBlocker("realMachines")}), *remedies] if demand.refusals else remedies
        case OfferClosed():
            return []
    return []


def _size_remedies(demand: Demand, failure: PlacementFailure, row: int) -> list[frozenset[Blocker]]:
    """Return the resources that exceed every machine type of the offer; if none does, the limits that exclude
    the machine types."""
    fleet = fleet_of(failure.decision.table)
    types = fleet.offers[row].types
    largest = {
        name: max((machine_type.size.get(name, 0) for machine_type in types), default=0)
        for name in demand.needs
    }
    short = {name for name, amount in demand.effective_needs.items() if largest[name] < amount}
    resources = demand.requirements_of("resource")
    # Without a machine type large enough, the amount of the resource is the blocker.
    if short:
        return [frozenset(requirement for requirement in resources if requirement.value in short)]
    limits = [
        LimitBlocker(kind)
        for kind in _service_limits(demand, fleet)
        if kind in ("nodeSelector", "gpuModel", "taints", "runtime")
    ]
    blockers: list[Blocker] = [*limits, *resources]
    return [*(frozenset({blocker}) for blocker in blockers), frozenset(blockers)]


def open_rows(failure: PlacementFailure, *ignored_reasons: type[Reason]) -> Flags:
    """Return the mask of offers that no reason rejects, apart from reasons of the types in
    `ignored_reasons`."""
    is_open: Flags = failure.decision.table.column("alive").copy()
    for reason, mask in failure.decision.reasons.items():
        if not isinstance(reason, ignored_reasons):
            is_open &= ~mask
    return is_open
