"""What stands in a service's way: at which replica, in which offers, and what would have to go for it to pass?"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import sentence
from lattice.engine.plugin import Reason, Shortfall
from lattice.engine.table import Flags
from lattice.kinds.constraint import Toleration
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.demand import DEFAULT, ClusterRules, Demand, Ignored, ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.greedy.place import place, place_most
from lattice.placement.plugins.filters.available import Closed, TooBig
from lattice.placement.plugins.filters.budget import OverBudget, Unpriced
from lattice.placement.plugins.filters.capacity import Full
from lattice.placement.plugins.filters.latency import TooFar
from lattice.placement.plugins.filters.overflow import Gated, NotTheTarget, sources
from lattice.placement.plugins.filters.region import Elsewhere, Known
from lattice.placement.plugins.filters.spread import Ahead
from lattice.placement.model.reasons import Because, Lacks, fleet_of
from lattice.placement.explain.refused import refused
from lattice.placement.greedy.machine_choice import take_seat

LimitKind = Literal[Ignored, "clusterSize", "nodeSelector", "gpuModel", "taints", "perNode"]
IGNORABLE: tuple[Ignored, ...] = get_args(Ignored)
_WORDS: dict[str, str] = {
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

ENOUGH = 256  # replicas that are tried first


@dataclass(frozen=True, slots=True)
class Limit:
    """Something in the way that is no requirement of its own, and who says so if it is somebody."""

    kind: LimitKind
    source: str = ""

    def __str__(self) -> str:
        return _WORDS[self.kind]


Obstacle = Requirement | Limit


def obstacles(demand: Demand, fleet: Fleet) -> tuple[Obstacle, ...]:
    """Everything that could be dropped: its requirements, and the limits that apply here at all."""
    return (*demand.requirements, *(Limit(kind, _source(kind, demand)) for kind in _limits(demand, fleet)))


def _source(kind: LimitKind, demand: Demand) -> str:
    return (
        " and ".join(dict.fromkeys(each for each in demand.sized_by if each != DEFAULT))
        if kind == "clusterSize"
        else ""
    )


def _limits(demand: Demand, fleet: Fleet) -> Iterator[LimitKind]:
    if any(each.limit is not None for each in fleet.budgets.values()):
        if fleet.table.quotes.is_blind:
            yield "prices"
        yield "budget"
    yield "capacity"
    if any(not fleet.seats.get(target) for _, target in demand.latency_to):
        yield "dependencies"
    if any(offer.overflow is not None for offer in fleet.offers):
        yield "overflow"
    if any(offer.reserved_nodes and offer.name not in demand.admitted for offer in fleet.offers):
        yield "reservation"
    yield from _service_limits(demand, fleet)


def _service_limits(demand: Demand, fleet: Fleet) -> Iterator[LimitKind]:
    if demand.rules != ClusterRules(prefix=demand.rules.prefix):
        yield "clusterSize"
    if demand.node_selector:
        yield "nodeSelector"
    if demand.gpu_model and demand.needs.get("gpu"):
        yield "gpuModel"
    if fleet.table.quotes.catalogue.has_taints:
        yield "taints"
    if demand.per_node:
        yield "perNode"


def dropping(demand: Demand, dropped: Iterable[Obstacle]) -> Demand:
    """The same service without these in its way."""
    gone = list(dropped)
    kept = demand.without(each for each in gone if isinstance(each, Requirement))
    for each in gone:
        if isinstance(each, Limit):
            kept = _lifting(kept, each.kind)
    return kept


def _lifting(demand: Demand, kind: LimitKind) -> Demand:
    match kind:
        case "clusterSize":
            return demand.under(ClusterRules(prefix=demand.rules.prefix))
        case "nodeSelector":
            return replace(demand, node_selector=())
        case "gpuModel":
            return replace(demand, gpu_model="")
        case "taints":
            return replace(demand, tolerations=(*demand.tolerations, Toleration(operator="Exists")))
        case "perNode":
            return replace(demand, per_node=0)
        case "prices" | "budget" | "capacity" | "dependencies" | "overflow" | "reservation":
            return replace(demand, ignoring=demand.ignoring | {kind})


def is_feasible(demand: Demand, fleet: Fleet) -> bool:
    if not may_fit(demand, fleet):
        return False
    with fleet.what_if():
        reseat(demand, fleet)
        return _is_endless(demand, fleet) or place(demand, fleet).is_complete


def _is_endless(demand: Demand, fleet: Fleet) -> bool:
    """Of very many: do the first of them tell that there is a place for however many?"""
    some = len(fleet.seats.get(demand.name, ())) + ENOUGH
    if demand.replicas <= some or demand.spread or fleet.spilling:
        return False
    with fleet.what_if():
        return place(replace(demand, replicas=some), fleet).is_complete and _goes_on(demand, fleet)


def _goes_on(demand: Demand, fleet: Fleet) -> bool:
    """The last one went where neither machines nor money end."""
    offer = fleet.offers[fleet.machines.cluster[fleet.seats[demand.name][-1].machine].row]
    limits, ignoring = offer.limits, demand.ignoring
    counted = (limits.nodes, limits.milli, limits.memory, limits.clusters, *limits.gpus.values())
    is_roomy = not offer.is_static and all(each >= NO_LIMIT for each in counted)
    is_paid = all(fleet.cap(each) >= NO_LIMIT for each in offer.budgets)
    return ("capacity" in ignoring or is_roomy) and ("budget" in ignoring or is_paid)


def reseat(demand: Demand, fleet: Fleet) -> None:
    """Replicas that run already take what the service asks now."""
    needs = tuple(demand.effective_needs.items())
    former = [each for each in fleet.seats.get(demand.name, ()) if each.needs != needs]
    for seat in reversed(former):
        fleet.unseat(seat)
    for seat in former:
        take_seat(demand, fleet, seat.machine)


@dataclass(frozen=True, slots=True)
class Failure:
    """The first replica that finds no place once those before it have theirs. Masks and details are of that moment."""

    decision: Decision
    replica: int  # counted from 1
    sentence: str
    refusals: tuple[tuple[str, tuple[Shortfall, ...]], ...] = ()

    @property
    def ask(self) -> ReplicaAsk:
        return cast("ReplicaAsk", self.decision.ask)


@contextmanager
def at_failure(demand: Demand, fleet: Fleet, *, details: bool = False) -> Iterator[Failure | None]:
    """The fleet as it is at that moment. None: there is no such replica, or no offer could tell (the demand contradicts itself)."""
    if demand.problem:
        yield None
        return
    with fleet.what_if():
        reseat(demand, fleet)
        attempt = place_most(demand, fleet, 0)
        if attempt.is_complete:
            yield None
            return
        decision = _with_overflow(attempt.decisions[-1], fleet)
        why = tuple(_refusals(decision)) if details else ()
        yield Failure(decision, len(fleet.seats.get(demand.name, ())) + 1, sentence(decision, "pool"), why)


def _refusals(decision: Decision) -> Iterator[tuple[str, tuple[Shortfall, ...]]]:
    """Every offer that is ruled out, by name, with everything that is missing there."""
    for name, row in sorted(decision.table.row_of.items()):
        if found := refused(decision, row):
            yield name, tuple(short for _, short in found)


def first_failure(demand: Demand, fleet: Fleet, *, details: bool = True) -> Failure | None:
    with at_failure(demand, fleet, details=details) as failure:
        return failure


def _with_overflow(first: Decision, fleet: Fleet) -> Decision:
    """Where a data center may overflow, what its target said counts, not the gate that is open."""
    ask, reasons = cast("ReplicaAsk", first.ask), dict(first.reasons)
    for static in sources(ask, fleet):
        second = decide(replace(ask, overflow=static), fleet.table, first.profile)
        inside = ~next(
            (mask for reason, mask in second.reasons.items() if isinstance(reason, NotTheTarget)),
            np.zeros(0, np.bool_),
        )
        reasons = {reason: mask & ~inside for reason, mask in reasons.items()}
        for reason, mask in second.reasons.items():
            if (mask & inside).any():
                reasons[reason] = (mask & inside) | reasons.get(reason, False)
    return replace(first, reasons=reasons)


def cures(failure: Failure, demand: Demand, row: int) -> list[frozenset[Obstacle]]:
    """Ways to open one offer to the failing replica: what to drop, all of it; nothing: it stays closed."""
    ways: list[frozenset[Obstacle]] = [frozenset()]
    for reason, mask in failure.decision.reasons.items():
        if mask[row]:
            ways = [way | more for way in ways for more in curing(reason, demand, failure, row)]
    return ways


def curing(reason: Reason, demand: Demand, failure: Failure, row: int) -> list[frozenset[Obstacle]]:
    match reason:
        case Lacks(requirement=lacked):
            return [
                frozenset(
                    each
                    for each in demand.requirements
                    if (each.kind, each.value) == (lacked.kind, lacked.value)
                )
            ]
        case Elsewhere(region=region):
            return [frozenset(each for each in demand.regions if each.value == region)]
        case Known(regions=regions):
            return [frozenset(each for each in demand.of("minRegions") if each.amount > len(regions))]
        case TooFar(requirement=far) | Ahead(requirement=far):
            return [
                frozenset(
                    each
                    for each in demand.of(far.kind)
                    if (each.value, each.amount) == (far.value, far.amount)
                )
            ]
        case Because(plugin="Latency"):
            waiting = frozenset(each for each in demand.latency if reason.what == f"latency to {each.value}")
            return [frozenset({Limit("dependencies")}), waiting]
        case Gated():
            return [frozenset({Limit("overflow")})]
        case Full():
            return [frozenset({Limit("capacity")}), frozenset({Limit("reservation")})]
        case OverBudget():
            return [frozenset({Limit("budget")})]
        case Unpriced():
            return [frozenset({Limit("prices")}), frozenset({Limit("budget")})]
        case TooBig():
            return _shrinking(demand, failure, row)
        case Closed():
            return []
    return []


def _shrinking(demand: Demand, failure: Failure, row: int) -> list[frozenset[Obstacle]]:
    """Resources that no class there has enough of; if every one is to be had, what keeps the service off the classes."""
    fleet = fleet_of(failure.decision.table)
    types = fleet.offers[row].types
    largest = {name: max((each.size.get(name, 0) for each in types), default=0) for name in demand.needs}
    short = {name for name, amount in demand.effective_needs.items() if largest[name] < amount}
    resources = demand.of("resource")
    if short:
        return [frozenset(each for each in resources if each.value in short)]
    barred = [
        Limit(kind)
        for kind in _service_limits(demand, fleet)
        if kind in ("nodeSelector", "gpuModel", "taints")
    ]
    hindering: list[Obstacle] = [*barred, *resources]
    return [*(frozenset({each}) for each in hindering), frozenset(hindering)]


def open_rows(failure: Failure, *but: type[Reason]) -> Flags:
    """Offers that nothing rules out, these reasons aside."""
    found: Flags = failure.decision.table.column("alive").copy()
    for reason, mask in failure.decision.reasons.items():
        if not isinstance(reason, but):
            found &= ~mask
    return found
