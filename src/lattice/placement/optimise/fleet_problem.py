"""The fleet as a placement problem for the optimiser. The problem forbids no move that is really possible, so
its bound holds for the fleet.

A model is a node class of one offer in clusters of equal rules, because services share machines only under
equal rules. Machines that differ from the present offer get models of their own, limited to the existing
machines. They have a class or a price that the offer no longer has, a size other than listed, or no known
price; or they are closed, overcommitted, or run workloads that belong to no service.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.placement.model.demand import ClusterRules, Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import UNCLAIMED_GROUP, Cluster
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.offer import NO_LIMIT, MachineType, Offer, domain_of
from lattice.placement.optimise.problem import (
    SOLVER_NO_LIMIT,
    Load,
    MachineMinimum,
    MachineModel,
    MachineSource,
    PlacementProblem,
    ProximityRule,
    SpreadRule,
)
from lattice.placement.plan.plan import FleetState
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.overflow import overflow_candidates

Vector = tuple[int, ...]


@dataclass(frozen=True)
class FleetProblem:
    """The problem, and the price of machines that stay in every solution, in micro-dollars per hour."""

    problem: PlacementProblem
    fixed_rate: int


def build_fleet_problem(state: FleetState, move_cost: int) -> FleetProblem:
    """Build the placement problem of the fleet; `move_cost` is the price of one moved replica in
    micro-dollars."""
    view = _FleetView(state)
    allowed = {demand.name: _allowed_offers(demand, view.fleet) for demand in view.placed}
    loads = tuple(_load(view, demand, allowed, move_cost) for demand in view.placed)
    staying = {machine: view.fleet.machines.machine_type[machine].rate for machine in view.unmanaged_usage}
    unmanaged: Counter[str] = Counter()
    for machine, price in staying.items():
        cluster = view.fleet.machines.cluster[machine]
        unmanaged.update(dict.fromkeys(view.fleet.offers[cluster.offer_row].budgets, price))
    caps = {name: view.fleet.ledgers.commit_cap(name) for name in view.fleet.ledgers.budgets}
    ledgers = {name: cap - unmanaged[name] for name, cap in caps.items() if cap < NO_LIMIT}
    sources = tuple(_source(view, row) for row in range(view.fleet.table.count))
    return FleetProblem(PlacementProblem(view.resources, sources, loads, ledgers), sum(staying.values()))


def per_node_resource(service: str) -> str:
    """The name of the artificial resource that counts the replicas of the service on one machine."""
    return f"replicas of {service}"


def class_of(model: str) -> str:
    """Return the node class of a model name, without the rules and the number of an unlisted model."""
    return model.partition("@")[0].partition("#")[0]


def rules_hash(cluster: Cluster) -> str:
    """Return the hash of the cluster rules, by which clusters share machines."""
    return cluster.group.partition("/")[0]


@dataclass
class _UnlistedMachines:
    """Equal machines that differ from the classes of their offer."""

    name: str
    rules: str
    machine_type: MachineType
    size: Vector
    price: int
    closed: bool
    count: int = 0
    tenants: set[str] = field(default_factory=set)


class _FleetView:
    """The fleet by the names of sources, models and loads in the problem."""

    def __init__(self, state: FleetState) -> None:
        fleet, demands = state.fleet, state.world.demands
        self.fleet = fleet
        self.placed = [demand for name, demand in sorted(demands.items()) if name in fleet.assignments]
        resources = {"cpu", "memory"}
        # The replicas of a service on one machine are a resource of their own, where a rule limits them.
        self.node_limits: dict[str, int] = {}
        for demand in self.placed:
            resources.update(demand.effective_needs)
            if demand.max_per_node:
                self.node_limits[per_node_resource(demand.name)] = demand.max_per_node
        resources.update(self.node_limits)
        self.resources = tuple(sorted(resources))
        # Machine -> resources of workloads that belong to no service.
        self.unmanaged_usage: dict[int, Counter[str]] = {}
        # Machine -> resources of services.
        self.service_usage: dict[int, Counter[str]] = {}
        for name, assignments in fleet.assignments.items():
            usage = self.service_usage if name in demands else self.unmanaged_usage
            for assignment in assignments:
                used = usage.setdefault(assignment.machine, Counter())
                used.update(dict(assignment.needs))
                if per_node_resource(name) in self.node_limits:
                    used[per_node_resource(name)] += 1
        self.rules: dict[str, ClusterRules] = {demand.rules.hash: demand.rules for demand in self.placed}
        self.has_single_rules = len({*self.rules, *map(rules_hash, fleet.clusters.values())}) == 1
        self.model_of_machine: dict[int, str] = {}
        self.listed_counts: list[Counter[str]] = [Counter() for _ in fleet.offers]
        self.unlisted: list[dict[str, _UnlistedMachines]] = [{} for _ in fleet.offers]
        for row in range(len(fleet.offers)):
            self._classify_machines(row)
        self._models_by_demand: dict[object, dict[str, tuple[str, ...]]] = {}

    def model_name(self, name: str, rules: str) -> str:
        """The name of the model; the rules are part of the name only where clusters have different rules."""
        return name if self.has_single_rules else f"{name}@{rules}"

    def vector(self, size: Mapping[str, int]) -> Vector:
        """The size of a machine; every machine has room for the allowed replicas of every service."""
        return tuple(min(size.get(name, self.node_limits.get(name, 0)), NO_LIMIT) for name in self.resources)

    def _classify_machines(self, row: int) -> None:
        """Count the machines of the offer by model, listed and unlisted."""
        fleet, names = self.fleet, self.fleet.machines.names
        listed = {
            machine_type.name: machine_type
            for machine_type in fleet.offers[row].types
            if machine_type.is_priced
        }
        by_properties: dict[object, _UnlistedMachines] = {}
        for machine in sorted(fleet.inventory.machines_by_offer[row], key=lambda number: names[number]):
            machine_type, rules = (
                fleet.machines.machine_type[machine],
                rules_hash(fleet.machines.cluster[machine]),
            )
            closed, size = bool(fleet.machines.column("closed")[machine]), self._service_capacity(machine)
            listed_type = listed.get(machine_type.name)
            is_listed = listed_type is not None and (listed_type.rate, self.vector(listed_type.size)) == (
                machine_type.rate,
                size,
            )
            if is_listed and not closed and machine not in self.unmanaged_usage:
                self.model_of_machine[machine] = self.model_name(machine_type.name, rules)
                self.listed_counts[row][self.model_of_machine[machine]] += 1
                continue
            price = 0 if machine in self.unmanaged_usage else machine_type.rate
            properties = (
                rules,
                machine_type.name,
                machine_type.gpu_model,
                tuple(sorted(machine_type.labels.items())),
                machine_type.taints,
                size,
                price,
                closed,
            )
            name = self.model_name(f"{machine_type.name}#{len(by_properties)}", rules)
            unlisted = by_properties.setdefault(
                properties, _UnlistedMachines(name, rules, machine_type, size, price, closed)
            )
            unlisted.count += 1
            unlisted.tenants |= fleet.machines.replica_counts[machine].keys()
            self.model_of_machine[machine] = unlisted.name
            self.unlisted[row][unlisted.name] = unlisted

    def _service_capacity(self, machine: int) -> Vector:
        """The capacity of the machine for services: without unmanaged usage, and at least the present usage
        of services."""
        size, no_usage = self.fleet.machines.machine_type[machine].size, Counter[str]()
        unmanaged, services = (
            self.unmanaged_usage.get(machine, no_usage),
            self.service_usage.get(machine, no_usage),
        )
        capacity = {
            name: max(size.get(name, self.node_limits.get(name, 0)) - unmanaged[name], services[name])
            for name in self.resources
        }
        return self.vector(capacity)

    @cached_property
    def useful(self) -> list[list[MachineType]]:
        """By offer, the node classes of which new machines may be worth creating."""
        return [
            useful_types(offer, self.resources, {class_of(name) for name in self.listed_counts[row]})
            for row, offer in enumerate(self.fleet.offers)
        ]

    def serving(self, demand: Demand, allowed: Flags) -> dict[str, tuple[str, ...]]:
        """By offer, the models on which replicas of the demand may run."""
        key = (demand.machine_needs, demand.rules.hash, allowed.tobytes())
        if key in self._models_by_demand:
            return self._models_by_demand[key]
        quotes, rules = self.fleet.quotes, demand.rules.hash
        models_by_offer: dict[str, tuple[str, ...]] = {}
        for row in np.flatnonzero(allowed).tolist():
            serves = quotes.machine_fit(demand).can_host[:, row]
            models = [
                self.model_name(machine_type.name, rules)
                for machine_type in self.useful[row]
                if serves[quotes.catalog.type_ids[machine_type.name]]
            ]
            for unlisted in self.unlisted[row].values():
                # A cluster of any rules may claim an unclaimed joined machine.
                is_usable = unlisted.rules in (rules, UNCLAIMED_GROUP) and not unlisted.closed
                if is_usable and is_type_allowed(demand, unlisted.machine_type):
                    models.append(unlisted.name)
            models_by_offer[self.fleet.offers[row].name] = tuple(models)
        self._models_by_demand[key] = models_by_offer
        return models_by_offer

    @cached_property
    def milliseconds(self) -> Integers:
        """Latency to each offer (row) from each offer (column)."""
        return np.stack([self.fleet.ms_to_nearest([row]) for row in range(self.fleet.table.count)])


def useful_types(
    offer: Offer, resources: tuple[str, ...], present_names: Iterable[str] = ()
) -> list[MachineType]:
    """Return the classes that have machines, and the classes that no other class dominates. A class dominates
    another class if labels, taints and GPU model are equal, and if it is at least as large in every resource
    and not more expensive.

    If cores or memory of the offer are limited, a smaller machine leaves more for further machines, so every
    priced class is returned.
    """
    priced, present = (
        [machine_type for machine_type in offer.types if machine_type.is_priced],
        set(present_names),
    )
    if offer.limits.millicores < NO_LIMIT or offer.limits.memory < NO_LIMIT:
        return priced
    useful: list[MachineType] = []
    for machine_type in sorted(
        priced,
        key=lambda machine_type: (
            machine_type.rate,
            -sum(machine_type.size.get(name, 0) for name in resources),
            machine_type.name,
        ),
    ):
        rivals = (
            rival
            for rival in useful
            if (rival.labels, rival.taints, rival.gpu_model)
            == (machine_type.labels, machine_type.taints, machine_type.gpu_model)
        )
        if machine_type.name in present or not any(
            all(rival.size.get(name, 0) >= machine_type.size.get(name, 0) for name in resources)
            for rival in rivals
        ):
            useful.append(machine_type)
    return sorted(useful, key=lambda machine_type: machine_type.name)


def _source(view: _FleetView, row: int) -> MachineSource:
    """The offer as a source of machines."""
    offer, listed = view.fleet.offers[row], view.listed_counts[row]
    groups = {*view.rules, *map(rules_hash, view.fleet.inventory.clusters_by_offer[row].values())}
    models = []
    for rules in sorted(groups):
        for machine_type in view.useful[row]:
            name = view.model_name(machine_type.name, rules)
            if name in listed or rules in view.rules:
                size = view.vector(machine_type.size)
                models.append(MachineModel(name, size, machine_type.rate, listed[name]))
    unlisted = view.unlisted[row].values()
    models += [
        MachineModel(group.name, group.size, group.price, group.count, group.count) for group in unlisted
    ]
    limits = {"cpu": offer.limits.millicores, "memory": offer.limits.memory}
    most: list[int | None] = []
    for position, name in enumerate(view.resources):
        if limits.get(name, NO_LIMIT) < NO_LIMIT:
            # Unlisted machines may count as larger than their class, because their services need the
            # capacity: the limit grows by the difference.
            # The limit does not count joined machines at all.
            extra = sum(
                group.count
                * max(
                    0,
                    group.size[position]
                    - (0 if group.machine_type.is_joined else group.machine_type.size.get(name, 0)),
                )
                for group in unlisted
            )
            most.append(limits[name] + extra)
        else:
            most.append(None)
    # Reserved nodes count too: the bound must not exceed the cost of a solution that may use them.
    nodes = offer.limits.nodes
    if nodes < SOLVER_NO_LIMIT:
        nodes += sum(group.count for group in unlisted if group.machine_type.is_joined)
    return MachineSource(
        offer.name,
        offer.region,
        tuple(models),
        nodes if nodes < SOLVER_NO_LIMIT else None,
        tuple(most),
        offer.budgets,
        tuple(_minimums(view, row, models)),
    )


def _minimums(view: _FleetView, row: int, models: Iterable[MachineModel]) -> Iterable[MachineMinimum]:
    """The smallest number of machines per set of rules: the initial nodes of a new cluster, or fewer where a
    present cluster has fewer."""
    offer, listed = view.fleet.offers[row], [model.name for model in models]
    for name, rules in sorted(view.rules.items()):
        clusters = [
            item for item in view.fleet.inventory.clusters_by_offer[row].values() if rules_hash(item) == name
        ]
        fewest = [min(cluster.min_nodes, len(cluster.machines)) for cluster in clusters]
        least = min(offer.initial_nodes(min(rules.min_nodes, rules.max_nodes)), *fewest, NO_LIMIT)
        if least > 1:
            suffix = "" if view.has_single_rules else f"@{name}"
            yield MachineMinimum(tuple(model for model in listed if model.endswith(suffix)), least)


def _load(view: _FleetView, demand: Demand, allowed: Mapping[str, Flags], move_cost: int) -> Load:
    """The service as a load of the problem."""
    fleet, needs = view.fleet, {**demand.effective_needs, per_node_resource(demand.name): 1}
    allowed_rows = allowed[demand.name]
    current: Counter[tuple[str, str]] = Counter()
    for assignment in fleet.assignments[demand.name]:
        row = fleet.machines.cluster[assignment.machine].offer_row
        current[fleet.offers[row].name, view.model_of_machine[assignment.machine]] += 1
    # A replica may stay where it is, even on a model that no rule would choose for it today.
    usable_models = dict(view.serving(demand, allowed_rows))
    for offer, model in sorted(current):
        if model not in usable_models.get(offer, ()):
            usable_models[offer] = (*usable_models.get(offer, ()), model)
    counts = fleet.replicas.by_offer(demand.name)
    present = [fleet.offers[row] for row in counts]
    candidates = [fleet.offers[row] for row in np.flatnonzero(allowed_rows).tolist()]
    # A region rule that is broken today does not bind the optimiser.
    regions = [
        rule.value for rule in demand.regions if any(offer.matches_region(rule.value) for offer in present)
    ]
    groups = [
        frozenset(offer.name for offer in candidates if offer.matches_region(region)) for region in regions
    ]
    return Load(
        name=demand.name,
        replicas=counts.total(),
        needs=tuple(needs.get(name, 0) for name in view.resources),
        usable_models={name: types for name, types in usable_models.items() if types},
        required_source_groups=tuple(groups),
        min_regions=max(1, min(demand.min_regions, len({offer.region for offer in present}))),
        spreads=tuple(_spreads(demand, fleet, candidates)),
        proximity_rules=tuple(_proximity_rules(view, demand, allowed)),
        current_counts=current,
        move_cost=move_cost,
    )


def _allowed_offers(demand: Demand, fleet: Fleet) -> Flags:
    """Offers with replicas of the service, and offers that may take replicas.

    If an eligible data center has an overflow rule, rented offers may take replicas only if such a data
    center overflows to them. While a service to which the latency is limited is not placed, no further offer
    may take replicas.
    """
    is_waiting = any(
        target != demand.name and target not in fleet.assignments for _, target in demand.latency_to
    )
    # Latency depends on services that may move too: proximity rules cover it.
    requirements = tuple(item for item in demand.requirements if item.kind != "latency")
    ask = ReplicaAsk(replace(demand, requirements=requirements))
    allowed: Flags = np.zeros(fleet.table.count, np.bool_) if is_waiting else eligible_offers(ask, fleet)
    if holders := [] if is_waiting else overflow_candidates(ask, fleet):
        rules = [fleet.offers[row].overflow for row in holders]
        targets = {rule.target for rule in rules if rule and rule.enabled}
        allowed &= np.array([offer.is_static or offer.owner in targets for offer in fleet.offers], np.bool_)
    for row in fleet.replicas.by_offer(demand.name):
        allowed[row] = True
    return allowed


def skew(demand: Demand, fleet: Fleet, key: str) -> int:
    """Return the difference between the fullest and the emptiest domain that the service may use, in
    replicas."""
    counts: dict[str, int] = {}
    for row in np.flatnonzero(eligible_offers(ReplicaAsk(demand), fleet)).tolist():
        counts[domain_of(fleet.offers[row], key)] = 0
    for row, count in fleet.replicas.by_offer(demand.name).items():
        domain = domain_of(fleet.offers[row], key)
        counts[domain] = counts.get(domain, 0) + count
    return max(counts.values(), default=0) - min(counts.values(), default=0)


def _spreads(demand: Demand, fleet: Fleet, offers: Iterable[Offer]) -> Iterable[SpreadRule]:
    """The spread rules of the service over all domains that it may use, full ones included; a spread that is
    uneven today may stay as uneven as it is.

    A service with latency rules gets no spread rule: its domains depend on other services.
    """
    if not demand.spread or demand.latency:
        return
    eligible = [
        fleet.offers[row] for row in np.flatnonzero(eligible_offers(ReplicaAsk(demand), fleet)).tolist()
    ]
    for rule in demand.spread:
        domains: dict[str, set[str]] = {domain_of(offer, rule.value): set() for offer in eligible}
        for offer in offers:
            domains.setdefault(domain_of(offer, rule.value), set()).add(offer.name)
        allowed = max(rule.amount, skew(demand, fleet, rule.value))
        yield SpreadRule(tuple(frozenset(names) for _, names in sorted(domains.items())), allowed)


def _proximity_rules(
    view: _FleetView, demand: Demand, allowed: Mapping[str, Flags]
) -> Iterable[ProximityRule]:
    """The latency rules of the service; a replica that is too far from its target today may stay."""
    fleet, targets = view.fleet, dict(demand.latency_to)
    present, names = fleet.replicas.by_offer(demand.name), [offer.name for offer in fleet.offers]
    for rule in demand.latency:
        target = targets[rule.value]
        if target == demand.name or target not in allowed:
            continue
        close = view.milliseconds <= rule.amount
        target_candidates = np.flatnonzero(allowed[target])
        target_rows = fleet.replicas.offer_rows(target)
        reachable_sets: dict[bytes, frozenset[str]] = {}
        reachable = {}
        for row in np.flatnonzero(allowed[demand.name]).tolist():
            if present[row] and not close[target_rows, row].any():
                continue
            is_near = close[target_candidates, row]
            reachable[names[row]] = reachable_sets.setdefault(
                is_near.tobytes(),
                frozenset(names[row_number] for row_number in target_candidates[is_near].tolist()),
            )
        yield ProximityRule(target, reachable)
