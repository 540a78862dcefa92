"""The fleet as a program for the optimiser: what forbids nothing that may really be done, so that its bound holds for the fleet.

A model is a class of machines of one offer, in clusters of one set of rules, for only under equal rules do services share machines.
Machines that are not as their offer has them now are models of their own, of which there are as many as are there: of a class or at a
price that the offer no longer has, of another size than listed, without a known price, closed, too full, or with somebody on them who is
no service.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.placement.model.demand import ClusterRules, Demand, ReplicaAsk
from lattice.placement.model.fleet import Cluster, Fleet
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.offer import NO_LIMIT, MachineType, Offer
from lattice.placement.optimise.problem import (
    SOLVER_NO_LIMIT,
    Load,
    MachineMinimum,
    MachineModel,
    MachineSource,
    PlacementProblem,
    ProximityRule,
    ReplicaCap,
)
from lattice.placement.plan.plan import FleetState
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.overflow import overflow_candidates
from lattice.placement.plugins.filters.spread import domain_of

Vector = tuple[int, ...]


@dataclass(frozen=True)
class FleetProblem:
    """The program, and the price of machines that stay whatever it says."""

    problem: PlacementProblem
    fixed_rate: int


def build_fleet_problem(settled: FleetState, move_cost: int) -> FleetProblem:
    view = _FleetView(settled)
    rows = {demand.name: _allowed_offers(demand, view.fleet) for demand in view.placed}
    loads = tuple(_load(view, demand, rows, move_cost) for demand in view.placed)
    staying = {machine: view.fleet.machines.machine_type[machine].rate for machine in view.unmanaged_usage}
    held: Counter[str] = Counter()
    for machine, price in staying.items():
        cluster = view.fleet.machines.cluster[machine]
        held.update(dict.fromkeys(view.fleet.offers[cluster.offer_row].budgets, price))
    caps = {name: view.fleet.commit_cap(name) for name in view.fleet.budgets}
    ledgers = {name: cap - held[name] for name, cap in caps.items() if cap < NO_LIMIT}
    sources = tuple(_source(view, row) for row in range(view.fleet.table.count))
    return FleetProblem(PlacementProblem(view.resources, sources, loads, ledgers), sum(staying.values()))


def class_of(model: str) -> str:
    return model.partition("@")[0].partition("#")[0]


def rules_hash(cluster: Cluster) -> str:
    return cluster.group.partition("/")[0]


@dataclass
class _UnlistedMachines:
    """Machines that are not as listed, all alike."""

    name: str
    rules: str
    kind: MachineType
    size: Vector
    price: int
    closed: bool
    count: int = 0
    tenants: set[str] = field(default_factory=set)


class _FleetView:
    """What is there, by the names that the program has for it."""

    def __init__(self, settled: FleetState) -> None:
        fleet, demands = settled.fleet, settled.world.demands
        self.fleet = fleet
        self.placed = [demand for name, demand in sorted(demands.items()) if name in fleet.assignments]
        self.resources = tuple(
            sorted({name for demand in self.placed for name in demand.effective_needs} | {"cpu", "memory"})
        )
        self.unmanaged_usage: dict[
            int, Counter[str]
        ] = {}  # machine -> what those take of it who are no service
        self.service_usage: dict[int, Counter[str]] = {}  # machine -> what services take of it
        for name, seats in fleet.assignments.items():
            for seat in seats:
                (self.service_usage if name in demands else self.unmanaged_usage).setdefault(
                    seat.machine, Counter()
                ).update(dict(seat.needs))
        self.rules: dict[str, ClusterRules] = {demand.rules.hash: demand.rules for demand in self.placed}
        self.has_single_rules = len({*self.rules, *map(rules_hash, fleet.clusters.values())}) == 1
        self.model_of_machine: dict[int, str] = {}  # of each machine
        self.listed_counts: list[Counter[str]] = [Counter() for _ in fleet.offers]
        self.unlisted: list[dict[str, _UnlistedMachines]] = [{} for _ in fleet.offers]
        for row in range(len(fleet.offers)):
            self._classify_machines(row)
        self._serving: dict[object, dict[str, tuple[str, ...]]] = {}

    def model_name(self, name: str, rules: str) -> str:
        return name if self.has_single_rules else f"{name}@{rules}"

    def vector(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(min(amounts.get(name, 0), NO_LIMIT) for name in self.resources)

    def _classify_machines(self, row: int) -> None:
        fleet, names = self.fleet, self.fleet.machines.names
        listed = {kind.name: kind for kind in fleet.offers[row].types if kind.is_priced}
        known: dict[object, _UnlistedMachines] = {}
        for machine in sorted(fleet.machines_by_offer[row], key=lambda each: names[each]):
            kind, rules = fleet.machines.machine_type[machine], rules_hash(fleet.machines.cluster[machine])
            closed, size = bool(fleet.machines.column("closed")[machine]), self._service_capacity(machine)
            usual = listed.get(kind.name)
            is_listed = usual is not None and (usual.rate, self.vector(usual.size)) == (kind.rate, size)
            if is_listed and not closed and machine not in self.unmanaged_usage:
                self.model_of_machine[machine] = self.model_name(kind.name, rules)
                self.listed_counts[row][self.model_of_machine[machine]] += 1
                continue
            price = 0 if machine in self.unmanaged_usage else kind.rate
            like = (
                rules,
                kind.name,
                kind.gpu_model,
                tuple(sorted(kind.labels.items())),
                kind.taints,
                size,
                price,
                closed,
            )
            name = self.model_name(f"{kind.name}#{len(known)}", rules)
            odd = known.setdefault(like, _UnlistedMachines(name, rules, kind, size, price, closed))
            odd.count += 1
            odd.tenants |= fleet.machines.replica_counts[machine].keys()
            self.model_of_machine[machine] = odd.name
            self.unlisted[row][odd.name] = odd

    def _service_capacity(self, machine: int) -> Vector:
        """For services: what others leave of it, and never less than services have."""
        size, nothing = self.fleet.machines.machine_type[machine].size, Counter[str]()
        others, own = self.unmanaged_usage.get(machine, nothing), self.service_usage.get(machine, nothing)
        left = {name: max(size.get(name, 0) - others[name], own[name]) for name in self.resources}
        return self.vector(left)

    @cached_property
    def useful(self) -> list[list[MachineType]]:
        """By offer: classes to make machines of."""
        return [
            useful_types(offer, self.resources, {class_of(name) for name in self.listed_counts[row]})
            for row, offer in enumerate(self.fleet.offers)
        ]

    def serving(self, demand: Demand, may: Flags) -> dict[str, tuple[str, ...]]:
        """By offer: models that replicas may run on."""
        key = (demand.machine_needs, demand.rules.hash, may.tobytes())
        if key not in self._serving:
            self._serving[key] = {
                self.fleet.offers[row].name: tuple(self._models(demand, row))
                for row in np.flatnonzero(may).tolist()
            }
        return self._serving[key]

    def _models(self, demand: Demand, row: int) -> Iterable[str]:
        quotes, rules = self.fleet.table.quotes, demand.rules.hash
        serves = quotes.machine_fit(demand).can_host[:, row]
        yield from (
            self.model_name(kind.name, rules)
            for kind in self.useful[row]
            if serves[self.fleet.type_ids[kind.name]]
        )
        for odd in self.unlisted[row].values():
            if odd.rules == rules and not odd.closed and is_type_allowed(demand, odd.kind):
                yield odd.name

    @cached_property
    def milliseconds(self) -> Integers:
        """To each offer (row) from each (column)."""
        return np.stack([self.fleet.ms_to_nearest([row]) for row in range(self.fleet.table.count)])


def useful_types(offer: Offer, resources: tuple[str, ...], there: Iterable[str] = ()) -> list[MachineType]:
    """Classes that are there, and those that no other beats: one as large in everything, alike in the rest, and not dearer.

    Where cores or memory are limited a smaller machine leaves more for others, and none is left out but what has no price.
    """
    priced, present = [kind for kind in offer.types if kind.is_priced], set(there)
    if offer.limits.milli < NO_LIMIT or offer.limits.memory < NO_LIMIT:
        return priced
    kept: list[MachineType] = []
    for kind in sorted(
        priced, key=lambda each: (each.rate, -sum(each.size.get(name, 0) for name in resources), each.name)
    ):
        alike = (
            other
            for other in kept
            if (other.labels, other.taints, other.gpu_model) == (kind.labels, kind.taints, kind.gpu_model)
        )
        if kind.name in present or not any(
            all(other.size.get(name, 0) >= kind.size.get(name, 0) for name in resources) for other in alike
        ):
            kept.append(kind)
    return sorted(kept, key=lambda each: each.name)


def _source(view: _FleetView, row: int) -> MachineSource:
    offer, there = view.fleet.offers[row], view.listed_counts[row]
    groups = sorted({*view.rules, *(rules_hash(each) for each in view.fleet.clusters_by_offer[row].values())})
    models = [
        MachineModel(name, view.vector(kind.size), kind.rate, there[name])
        for rules in groups
        for kind in view.useful[row]
        if (name := view.model_name(kind.name, rules)) in there or rules in view.rules
    ]
    models += [
        MachineModel(odd.name, odd.size, odd.price, odd.count, odd.count)
        for odd in view.unlisted[row].values()
    ]
    limits = {"cpu": offer.limits.milli, "memory": offer.limits.memory}
    beyond = [
        sum(
            odd.count * max(0, odd.size[at] - odd.kind.size.get(name, 0))
            for odd in view.unlisted[row].values()
        )
        for at, name in enumerate(view.resources)
    ]
    most = tuple(
        limits[name] + more if limits.get(name, NO_LIMIT) < NO_LIMIT else None
        for name, more in zip(view.resources, beyond, strict=True)
    )
    nodes = (
        offer.limits.nodes
    )  # the reserved ones too: a bound must not lie above what somebody who may use them can reach
    return MachineSource(
        offer.name,
        offer.region,
        tuple(models),
        nodes if nodes < SOLVER_NO_LIMIT else None,
        most,
        offer.budgets,
        tuple(_minimums(view, row, models)),
    )


def _minimums(view: _FleetView, row: int, models: Iterable[MachineModel]) -> Iterable[MachineMinimum]:
    """Machines that a cluster begins with, or one that is there has less than that."""
    offer, listed = view.fleet.offers[row], [model.name for model in models]
    for name, rules in sorted(view.rules.items()):
        here = [each for each in view.fleet.clusters_by_offer[row].values() if rules_hash(each) == name]
        fewest = [min(each.min_nodes, len(each.machines)) for each in here]
        least = min(offer.initial_nodes(min(rules.min_nodes, rules.max_nodes)), *fewest, NO_LIMIT)
        if least > 1:
            yield MachineMinimum(
                tuple(each for each in listed if view.has_single_rules or each.endswith(f"@{name}")), least
            )


def _load(view: _FleetView, demand: Demand, rows: Mapping[str, Flags], move_cost: int) -> Load:
    fleet, needs = view.fleet, demand.effective_needs
    may = rows[demand.name]
    current: Counter[tuple[str, str]] = Counter()
    for seat in fleet.assignments[demand.name]:
        current[
            fleet.offers[fleet.machines.cluster[seat.machine].offer_row].name,
            view.model_of_machine[seat.machine],
        ] += 1
    serves = dict(view.serving(demand, may))
    for offer, model in sorted(current):
        if model not in serves.get(offer, ()):
            serves[offer] = (*serves.get(offer, ()), model)
    counts = fleet.replicas_by_offer(demand.name)
    here = [fleet.offers[row] for row in counts]
    able_to = [fleet.offers[row] for row in np.flatnonzero(may).tolist()]
    return Load(
        name=demand.name,
        replicas=counts.total(),
        needs=tuple(needs.get(name, 0) for name in view.resources),
        usable_models={name: types for name, types in serves.items() if types},
        required_source_groups=tuple(
            frozenset(offer.name for offer in able_to if offer.is_in(each.value))
            for each in demand.regions
            if any(offer.is_in(each.value) for offer in here)
        ),
        min_regions=max(1, min(demand.min_regions, len({offer.region for offer in here}))),
        caps=tuple(_caps(demand, fleet, able_to)),
        proximity_rules=tuple(_proximity_rules(view, demand, rows)),
        current_counts=current,
        move_cost=move_cost,
    )


def _allowed_offers(demand: Demand, fleet: Fleet) -> Flags:
    """Where it is, and every offer it may be in; rented ones only where no data center keeps it, or one overflows to them."""
    is_waiting = any(
        target != demand.name and target not in fleet.assignments for _, target in demand.latency_to
    )
    ask = ReplicaAsk(_without_latency(demand))
    may: Flags = np.zeros(fleet.table.count, np.bool_) if is_waiting else eligible_offers(ask, fleet)
    if keepers := [] if is_waiting else overflow_candidates(ask, fleet):
        targets = {rule.target for row in keepers if (rule := fleet.offers[row].overflow) and rule.enabled}
        may &= np.array([offer.is_static or offer.owner in targets for offer in fleet.offers], np.bool_)
    for row in fleet.replicas_by_offer(demand.name):
        may[row] = True
    return may


def _without_latency(demand: Demand) -> Demand:
    """Without what depends on where others are: they may move too."""
    return replace(demand, requirements=tuple(each for each in demand.requirements if each.kind != "latency"))


def skew(demand: Demand, fleet: Fleet, key: str) -> int:
    """Replicas in the fullest domain beyond those in the emptiest that it may be in."""
    counts = {
        domain_of(fleet.offers[row], key): 0
        for row in np.flatnonzero(eligible_offers(ReplicaAsk(demand), fleet)).tolist()
    }
    for row, count in fleet.replicas_by_offer(demand.name).items():
        domain = domain_of(fleet.offers[row], key)
        counts[domain] = counts.get(domain, 0) + count
    return max(counts.values(), default=0) - min(counts.values(), default=0)


def _caps(demand: Demand, fleet: Fleet, offers: Iterable[Offer]) -> Iterable[ReplicaCap]:
    """With so many domains to spread over, no one can have more than this; an uneven spread may stay as uneven as it is.

    How many there are to spread over is not known of a service that has to be near others.
    """
    if not demand.spread or demand.latency:
        return
    may = [fleet.offers[row] for row in np.flatnonzero(eligible_offers(ReplicaAsk(demand), fleet)).tolist()]
    replicas = fleet.replicas_by_offer(demand.name).total()
    for each in demand.spread:
        allowed = max(each.amount, skew(demand, fleet, each.value))
        domains: dict[str, set[str]] = {}
        for offer in offers:
            domains.setdefault(domain_of(offer, each.value), set()).add(offer.name)
        count = max(1, len({domain_of(offer, each.value) for offer in may}))
        most = allowed + max(0, replicas - allowed) // count
        yield from (
            ReplicaCap(frozenset(names), most) for _, names in sorted(domains.items()) if most < replicas
        )


def _proximity_rules(view: _FleetView, demand: Demand, rows: Mapping[str, Flags]) -> Iterable[ProximityRule]:
    """Where it is too far away already, it may stay."""
    fleet, targets = view.fleet, dict(demand.latency_to)
    here, names = fleet.replicas_by_offer(demand.name), [offer.name for offer in fleet.offers]
    for each in demand.latency:
        target = targets[each.value]
        if target == demand.name or target not in rows:
            continue
        close = view.milliseconds <= each.amount
        others = np.flatnonzero(rows[target])
        now = fleet.offer_rows_of(target)
        known: dict[bytes, frozenset[str]] = {}
        within = {}
        for row in np.flatnonzero(rows[demand.name]).tolist():
            if here[row] and not close[now, row].any():
                continue
            beside = close[others, row]
            within[names[row]] = known.setdefault(
                beside.tobytes(), frozenset(names[other] for other in others[beside].tolist())
            )
        yield ProximityRule(target, within)
