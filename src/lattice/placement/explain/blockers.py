"""What stands in a service's way: at which replica, in which offers, and what would have to go for it to pass?"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import summarize
from lattice.engine.plugin import Reason, Shortfall
from lattice.engine.table import Flags
from lattice.kinds.constraint import Toleration
from lattice.placement.greedy.place import place, place_as_many_as_fit
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.assignments import assign
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
from lattice.placement.model.rejection_reasons import FixedReason, MissingProperty, fleet_of
from lattice.placement.plugins.filters.available import OfferClosed, ReplicaTooLarge
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

FilterShortfall = tuple[str, Shortfall]  # filter, and what it misses


LimitKind = Literal[IgnorableLimit, "clusterSize", "nodeSelector", "gpuModel", "taints", "perNode"]
IGNORABLE: tuple[IgnorableLimit, ...] = get_args(IgnorableLimit)
_LIMIT_DESCRIPTIONS: dict[str, str] = {
    "prices": "prices that nobody knows",
    "budget": "budgets",
    "capacity": "limits on capacity",
    "dependencies": "dependencies that are not placed",
    "overflow": "the overflow rules of data centers, which close the cloud",
    "reservation": "capacity that is reserved for others",
    "clusterSize": "how many machines policies want in a cluster",
    "nodeSelector": "labels that its machines must have",
    "gpuModel": "the model of its GPUs",
    "taints": "taints that it does not tolerate",
    "perNode": "how many replicas may share a machine",
}
PROBE_REPLICAS = 256  # replicas that are tried first


def offer_shortfalls(decision: Decision, row: int) -> list[FilterShortfall]:
    """Nothing: the offer is not ruled out. Only while the fleet is as it was when deciding."""
    reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
    return (
        reason_shortfalls(reasons, cast("ReplicaAsk", decision.ask), fleet_of(decision.table), row)
        if reasons
        else []
    )


def reason_shortfalls(
    reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int
) -> list[FilterShortfall]:
    found = [(reason.plugin, short) for reason in reasons for short in _shortfalls(reason, fleet, row)]
    asked = next(
        (each.ask for each in reasons if isinstance(each, InsufficientCapacity | OverBudget | UnknownPrice)),
        ask,
    )
    return [*found, *_masked_shortfalls(reasons, asked, fleet, row)]


def _shortfalls(reason: Reason, fleet: Fleet, row: int) -> list[Shortfall]:
    several = getattr(reason, "shortfalls", None)
    return several(fleet.table, row) if several else [reason.detail(fleet.table, row)]


def _masked_shortfalls(
    reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int
) -> Iterator[FilterShortfall]:
    """Limits are looked at only where a class of machines would do, budgets only where the limits allow a machine more."""
    ignoring = ask.demand.ignored_limits
    if fleet.table.quotes.quote_for(ask).has_free_capacity[row] or any(
        isinstance(each, NotOverflowTarget) for each in reasons
    ):
        return
    if "capacity" not in ignoring and not any(isinstance(each, InsufficientCapacity) for each in reasons):
        yield from (("Capacity", each) for each in exceeded_limits(ask, fleet, row))
    if "budget" not in ignoring and not any(isinstance(each, OverBudget | UnknownPrice) for each in reasons):
        yield from (("Budget", each) for each in exceeded_budgets(ask, fleet, row))
        if "prices" not in ignoring and _lacks_prices(ask, fleet, row):
            yield "Budget", UnknownPrice(ask).detail(fleet.table, row)


def _lacks_prices(ask: ReplicaAsk, fleet: Fleet, row: int) -> bool:
    """A budget applies, and of the classes that would do none has a price."""
    quotes = fleet.table.quotes
    serving = quotes.machine_fit(ask.demand).can_host[:, row]
    blind = (
        fleet.has_budget_limit(row, ask.overflow_source)
        and bool(serving.any())
        and not (serving & quotes.catalog.is_priced[:, row]).any()
    )
    return bool(quotes.unpriced_ledger(row, ask.overflow_source)) or (
        blind and bool(unpriced_classes(ask, fleet, row))
    )


@dataclass(frozen=True, slots=True)
class LimitBlocker:
    """Something in the way that is no requirement of its own, and who says so if it is somebody."""

    kind: LimitKind
    source: str = ""

    def __str__(self) -> str:
        return _LIMIT_DESCRIPTIONS[self.kind]


Blocker = Requirement | LimitBlocker


def find_blockers(demand: Demand, fleet: Fleet) -> tuple[Blocker, ...]:
    """Everything that could be dropped: its requirements, and the limits that apply here at all."""
    return (
        *demand.requirements,
        *(LimitBlocker(kind, _source(kind, demand)) for kind in _limits(demand, fleet)),
    )


def _source(kind: LimitKind, demand: Demand) -> str:
    return (
        " and ".join(dict.fromkeys(each for each in demand.size_sources if each != DEFAULT_SOURCE))
        if kind == "clusterSize"
        else ""
    )


def _limits(demand: Demand, fleet: Fleet) -> Iterator[LimitKind]:
    if any(each.limit is not None for each in fleet.budgets.values()):
        if fleet.table.quotes.has_unknown_prices:
            yield "prices"
        yield "budget"
    yield "capacity"
    if any(not fleet.assignments.get(target) for _, target in demand.latency_to):
        yield "dependencies"
    if any(offer.overflow is not None for offer in fleet.offers):
        yield "overflow"
    if any(offer.reserved_nodes and offer.name not in demand.usable_reserves for offer in fleet.offers):
        yield "reservation"
    yield from _service_limits(demand, fleet)


def _service_limits(demand: Demand, fleet: Fleet) -> Iterator[LimitKind]:
    if demand.rules != ClusterRules(prefix=demand.rules.prefix):
        yield "clusterSize"
    if demand.node_selector:
        yield "nodeSelector"
    if demand.gpu_model and demand.needs.get("gpu"):
        yield "gpuModel"
    if fleet.table.quotes.catalog.has_taints:
        yield "taints"
    if demand.max_per_node:
        yield "perNode"


def without_blockers(demand: Demand, dropped: Iterable[Blocker]) -> Demand:
    """The same service without these in its way."""
    gone = list(dropped)
    kept = demand.without(each for each in gone if isinstance(each, Requirement))
    for each in gone:
        if isinstance(each, LimitBlocker):
            kept = _without_limit(kept, each.kind)
    return kept


def _without_limit(demand: Demand, kind: LimitKind) -> Demand:
    match kind:
        case "clusterSize":
            return demand.with_rules(ClusterRules(prefix=demand.rules.prefix))
        case "nodeSelector":
            return replace(demand, node_selector=())
        case "gpuModel":
            return replace(demand, gpu_model="")
        case "taints":
            return replace(demand, tolerations=(*demand.tolerations, Toleration(operator="Exists")))
        case "perNode":
            return replace(demand, max_per_node=0)
        case "prices" | "budget" | "capacity" | "dependencies" | "overflow" | "reservation":
            return replace(demand, ignored_limits=demand.ignored_limits | {kind})


def is_feasible(demand: Demand, fleet: Fleet) -> bool:
    if not may_fit(demand, fleet):
        return False
    with fleet.what_if():
        resize_assignments(demand, fleet)
        return _fits_any_count(demand, fleet) or place(demand, fleet).is_complete


def _fits_any_count(demand: Demand, fleet: Fleet) -> bool:
    """Of very many: do the first of them tell that there is a place for however many?"""
    some = len(fleet.assignments.get(demand.name, ())) + PROBE_REPLICAS
    if demand.replicas <= some or demand.spread or fleet.overflow_rows:
        return False
    with fleet.what_if():
        return place(replace(demand, replicas=some), fleet).is_complete and _is_last_offer_unlimited(
            demand, fleet
        )


def _is_last_offer_unlimited(demand: Demand, fleet: Fleet) -> bool:
    """The last one went where neither machines nor money end."""
    offer = fleet.offers[fleet.machines.cluster[fleet.assignments[demand.name][-1].machine].offer_row]
    limits, ignoring = offer.limits, demand.ignored_limits
    counted = (limits.nodes, limits.milli, limits.memory, limits.clusters, *limits.gpus.values())
    is_roomy = not offer.is_static and all(each >= NO_LIMIT for each in counted)
    is_paid = all(fleet.commit_cap(each) >= NO_LIMIT for each in offer.budgets)
    return ("capacity" in ignoring or is_roomy) and ("budget" in ignoring or is_paid)


def resize_assignments(demand: Demand, fleet: Fleet) -> None:
    """Replicas that run already take what the service asks now."""
    needs = tuple(demand.effective_needs.items())
    former = [each for each in fleet.assignments.get(demand.name, ()) if each.needs != needs]
    for seat in reversed(former):
        fleet.unassign(seat)
    for seat in former:
        assign(demand, fleet, seat.machine)


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """The first replica that finds no place once those before it have theirs. Masks and details are of that moment."""

    decision: Decision
    replica_number: int  # counted from 1
    sentence: str
    rejections: tuple[tuple[str, tuple[Shortfall, ...]], ...] = ()

    @property
    def ask(self) -> ReplicaAsk:
        return cast("ReplicaAsk", self.decision.ask)


@contextmanager
def at_failure(demand: Demand, fleet: Fleet, *, details: bool = False) -> Iterator[PlacementFailure | None]:
    """The fleet as it is at that moment. None: there is no such replica, or no offer could tell (the demand contradicts itself)."""
    if demand.rule_conflict:
        yield None
        return
    with fleet.what_if():
        resize_assignments(demand, fleet)
        attempt = place_as_many_as_fit(demand, fleet, 0)
        if attempt.is_complete:
            yield None
            return
        decision = _with_overflow(attempt.decisions[-1], fleet)
        why = tuple(_rejections(decision)) if details else ()
        yield PlacementFailure(
            decision, len(fleet.assignments.get(demand.name, ())) + 1, summarize(decision, "pool"), why
        )


def _rejections(decision: Decision) -> Iterator[tuple[str, tuple[Shortfall, ...]]]:
    """Every offer that is ruled out, by name, with everything that is missing there."""
    for name, row in sorted(decision.table.row_of.items()):
        if found := offer_shortfalls(decision, row):
            yield name, tuple(short for _, short in found)


def first_failure(demand: Demand, fleet: Fleet, *, details: bool = True) -> PlacementFailure | None:
    with at_failure(demand, fleet, details=details) as failure:
        return failure


def _with_overflow(first: Decision, fleet: Fleet) -> Decision:
    """Where a data center may overflow, what its target said counts, not the gate that is open."""
    ask, reasons = cast("ReplicaAsk", first.ask), dict(first.reasons)
    for static in overflow_sources(ask, fleet):
        second = decide(replace(ask, overflow_source=static), fleet.table, first.profile)
        inside = ~next(
            (mask for reason, mask in second.reasons.items() if isinstance(reason, NotOverflowTarget)),
            np.zeros(0, np.bool_),
        )
        reasons = {reason: mask & ~inside for reason, mask in reasons.items()}
        for reason, mask in second.reasons.items():
            if (mask & inside).any():
                reasons[reason] = (mask & inside) | reasons.get(reason, False)
    return replace(first, reasons=reasons)


def offer_remedies(failure: PlacementFailure, demand: Demand, row: int) -> list[frozenset[Blocker]]:
    """Ways to open one offer to the failing replica: what to drop, all of it; nothing: it stays closed."""
    ways: list[frozenset[Blocker]] = [frozenset()]
    for reason, mask in failure.decision.reasons.items():
        if mask[row]:
            ways = [way | more for way in ways for more in reason_remedies(reason, demand, failure, row)]
    return ways


def reason_remedies(
    reason: Reason, demand: Demand, failure: PlacementFailure, row: int
) -> list[frozenset[Blocker]]:
    match reason:
        case MissingProperty(requirement=lacked):
            return [
                frozenset(
                    each
                    for each in demand.requirements
                    if (each.kind, each.value) == (lacked.kind, lacked.value)
                )
            ]
        case NotInRequiredRegion(region=region):
            return [frozenset(each for each in demand.regions if each.value == region)]
        case RegionAlreadyUsed(regions=regions):
            return [
                frozenset(each for each in demand.requirements_of("minRegions") if each.amount > len(regions))
            ]
        case LatencyExceeded(requirement=far) | SkewExceeded(requirement=far):
            return [
                frozenset(
                    each
                    for each in demand.requirements_of(far.kind)
                    if (each.value, each.amount) == (far.value, far.amount)
                )
            ]
        case FixedReason(plugin="Latency"):
            waiting = frozenset(
                each for each in demand.latency if reason.subject == f"latency to {each.value}"
            )
            return [frozenset({LimitBlocker("dependencies")}), waiting]
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
        case OfferClosed():
            return []
    return []


def _size_remedies(demand: Demand, failure: PlacementFailure, row: int) -> list[frozenset[Blocker]]:
    """Resources that no class there has enough of; if every one is to be had, what keeps the service off the classes."""
    fleet = fleet_of(failure.decision.table)
    types = fleet.offers[row].types
    largest = {name: max((each.size.get(name, 0) for each in types), default=0) for name in demand.needs}
    short = {name for name, amount in demand.effective_needs.items() if largest[name] < amount}
    resources = demand.requirements_of("resource")
    if short:
        return [frozenset(each for each in resources if each.value in short)]
    barred = [
        LimitBlocker(kind)
        for kind in _service_limits(demand, fleet)
        if kind in ("nodeSelector", "gpuModel", "taints")
    ]
    hindering: list[Blocker] = [*barred, *resources]
    return [*(frozenset({each}) for each in hindering), frozenset(hindering)]


def open_rows(failure: PlacementFailure, *but: type[Reason]) -> Flags:
    """Offers that nothing rules out, these reasons aside."""
    found: Flags = failure.decision.table.column("alive").copy()
    for reason, mask in failure.decision.reasons.items():
        if not isinstance(reason, but):
            found &= ~mask
    return found
